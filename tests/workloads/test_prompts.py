"""Prompts of a set for a target: whole, in its own template, of one split, and identified by all of that."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from ddbench.cli import main
from ddbench.errors import CheckpointError, UserError
from ddbench.harness.measure import measure_case
from ddbench.harness.run import Job
from ddbench.harness.sweep import case_ids, environment_of
from ddbench.harness.workload import build_workload, prompts_digest
from ddbench.models.shapes import TARGETS
from ddbench.models.weights import checkpoint_folder
from ddbench.records import OkResult
from ddbench.spec import ARMS, CaptureSpec, Case, EngineSpec, WorkloadSpec
from ddbench.workloads import sets
from ddbench.workloads.cache import Cache, cache_folder

torch.set_num_threads(1)

TINY = TARGETS["tiny-gqa"]
CHAT = "<u> {{ messages[0].content }} <a>"
WORDS = {"?": 0, "<u>": 1, "<a>": 2, "one": 3, "two": 4, "three": 5, "Please": 6, ":": 7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder with a tokenizer of whole words; two of them are special."""
    place = tmp_path / "checkpoint"
    place.mkdir()
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in ("<u>", "<a>")])
    tokenizer.save(str(place / "tokenizer.json"))
    return place


def chatting(folder: Path, template: str = CHAT) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    return folder


def spec(**fields: Any) -> WorkloadSpec:
    return WorkloadSpec(**{"prompts": "tiny", "num_requests": 4, **fields})


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


# ------------------------------------------------------------------------------------------------------------ prompts


def test_a_chat_target_gets_the_first_turn_in_its_template(fetched: sets.PromptSet, folder: Path) -> None:
    workload = build_workload(spec(), TINY, chatting(folder), 1)
    number = [0, 0]  # digits are unknown words
    assert {tuple(request.prompt) for request in workload.measured} == {(1, 6, 7, 3, 4, number[0], 5, 2)}
    assert workload.card is not None
    assert (workload.card.framing, workload.card.turns, workload.card.is_foreign) == ("chat", "first", False)
    assert (workload.card.source, workload.card.licence) == ("tiny-prompts==1.0", "MIT")


def test_a_target_without_a_template_gets_the_text_and_the_card_says_so(fetched: sets.PromptSet, folder: Path) -> None:
    workload = build_workload(spec(), TINY, folder, 1)
    assert {tuple(request.prompt) for request in workload.measured} == {(3, 4, 0, 5)}
    assert workload.card is not None
    assert (workload.card.framing, workload.card.is_foreign) == ("plain", False)
    (folder / "prompts.jsonl").write_text("", encoding="utf-8")
    own = build_workload(spec(), TINY, folder, 1).card
    assert own is not None
    assert own.is_foreign, "a target with prompts of its own kind"
    chat = build_workload(spec(), TINY, chatting(folder), 1).card
    assert chat is not None
    assert not chat.is_foreign, "one that chats is asked, as others are"


def test_categories_take_turns_and_can_be_chosen(fetched: sets.PromptSet, folder: Path) -> None:
    kinds = [request.kind for request in build_workload(spec(), TINY, folder, 0).measured]
    assert kinds == ["code", "prose", "code", "prose"]
    prose = build_workload(spec(kinds=("prose",)), TINY, folder, 1)
    assert {request.kind for request in (*prose.measured, *prose.warmup)} == {"prose"}
    with pytest.raises(UserError, match=r"no prompts of kind 'math'.*code, prose"):
        build_workload(spec(kinds=("math",)), TINY, folder, 0)


def test_every_split_holds_what_the_ids_say_and_nothing_twice(fetched: sets.PromptSet, folder: Path) -> None:
    """H62: what is tuned on, reported on and warmed up with are apart."""
    parts = sets.splits(Cache(cache_folder()).read(fetched))
    found = {}
    for split, number in (("test", 10), ("calibration", 2), ("all", 12)):
        workload = build_workload(spec(prompt_split=split, num_requests=number - 1), TINY, folder, 1)
        ids = [request.prompt_id for request in (*workload.measured, *workload.warmup)]
        assert len(set(ids)) == number
        found[split] = set(ids)
        assert workload.card is not None
        assert (workload.card.split, workload.card.num_prompts) == (split, number)
    assert found["test"] == {one for one, part in parts.items() if part == "test"}
    assert found["calibration"] == {one for one, part in parts.items() if part == "calibration"}
    assert found["all"] == found["test"] | found["calibration"]


def test_another_seed_chooses_others_of_the_same_split(fetched: sets.PromptSet, folder: Path) -> None:
    chosen = [
        Counter(request.prompt_id for request in build_workload(spec(prompt_seed=seed), TINY, folder, 0).measured)
        for seed in (0, 0, 1)
    ]
    assert chosen[0] == chosen[1] != chosen[2]


def test_too_few_prompts_name_the_set_and_the_split(fetched: sets.PromptSet, folder: Path) -> None:
    with pytest.raises(UserError, match=r"needs 4 prompts \(3 measured, 1 to warm up\), the set 'tiny' has 2 .*'cali"):
        build_workload(spec(prompt_split="calibration", num_requests=3), TINY, folder, 1)


def test_a_prompt_is_never_cut_nor_padded(fetched: sets.PromptSet, folder: Path) -> None:
    """Tokenizer files may carry a length to cut to; acceptance on a stump is that of another prompt."""
    whole = build_workload(spec(), TINY, folder, 0).measured
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert build_workload(spec(), TINY, folder, 0).measured == whole


def test_a_prompt_that_spells_a_special_token_is_refused_in_a_chat_and_text_elsewhere(
    tiny: Any, folder: Path, make_set: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the user's turn."""
    rows = [{"question_id": i, "category": "c", "turns": ["one <a> two" if i % 3 else "one"]} for i in range(9)]
    made = make_set(rows)
    monkeypatch.setattr(sets, "PROMPT_SETS", {"other": made.prompt_set})
    items = [sets.Item(id=f"mt-bench/{row['question_id']}", category="c", turns=row["turns"]) for row in rows]
    Cache(cache_folder()).write(made.prompt_set, sets.lines_of(items))
    asked = spec(prompts="other", prompt_split="all")
    plain = build_workload(asked.model_copy(update={"num_requests": 9}), TINY, folder, 0)
    assert not any(2 in request.prompt for request in plain.measured)
    with pytest.raises(
        UserError, match="6 of 9 prompts spell out special tokens of the target, the first is 'mt-bench"
    ):
        build_workload(asked, TINY, chatting(folder), 0)


def test_what_stands_in_the_way_is_said(fetched: sets.PromptSet, folder: Path) -> None:
    with pytest.raises(UserError, match=r"prompts 'tiny' are text, and a target with random weights has no tokenizer"):
        build_workload(spec(), TINY, None, 0)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing"):
        build_workload(spec(), TINY, folder, 0)
    with pytest.raises(UserError, match=r"unknown source 'tinny': did you mean 'tiny'\?"):
        build_workload(spec(prompts="tinny"), TINY, folder, 0)
    with pytest.raises(UserError, match="prompt_split is for prompt sets, prompts is 'held-out'"):
        build_workload(spec(prompts="held-out", prompt_split="all"), TINY, folder, 0)


# ----------------------------------------------------------------------------------------------------------- identity


def test_only_a_set_adds_to_the_identity_of_a_case(fetched: sets.PromptSet, folder: Path) -> None:
    """Cases of before sets keep their address; the template, the wording and the set itself make another case."""
    assert prompts_digest(WorkloadSpec(), folder) == prompts_digest(spec(prompts="random"), None) == ""
    found = [prompts_digest(spec(), folder), prompts_digest(spec(), chatting(folder))]
    found.append(prompts_digest(spec(), chatting(folder, CHAT + "!")))
    assert all(one.startswith(fetched.digest) for one in found)
    assert len(set(found)) == 3


def test_the_set_is_part_of_the_case_id(fetched: sets.PromptSet, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(arm="ar", engine=EngineSpec(**ARMS["ar"]), workload=spec())
    place = environment_of("cpu")
    before = case_ids([case], place)
    monkeypatch.setattr(sets, "PROMPT_SETS", {"tiny": dataclasses.replace(fetched, digest="0" * 64)})
    assert case_ids([case], place) != before


def test_the_split_makes_another_workload_and_its_default_none(fetched: sets.PromptSet) -> None:
    assert spec(prompt_split="test").digest() == spec().digest()
    assert spec(prompt_split="calibration").digest() != spec().digest()


# ------------------------------------------------------------------------------------------------------- command line


def test_workload_is_short_for_the_axis_prompts(fetched: sets.PromptSet) -> None:
    gate = ("plan", "gate", "--device", "cpu", "--arms", "ar")
    short, long = call(*gate, "--workload", "held-out,tiny"), call(*gate, "--set", "prompts=held-out,tiny")
    assert short.exit_code == 0, short.stderr
    assert short.output == long.output
    assert "ar prompts=tiny c=1" in short.output
    both = call(*gate, "--workload", "tiny", "--set", "prompts=random")
    assert both.exit_code == 2
    assert "axis 'prompts' is there twice" in both.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--workload", "humanevla"), "prompts: unknown source 'humanevla': did you mean 'humaneval'?"),
        (("--workload", "tiny"), "prompt set 'tiny' is not fetched yet: ddbench workloads fetch tiny"),
        (("--workload", "held-out", "--set", "prompt_split=all"), "prompt_split is for prompt sets"),
        (("--workload", "tiny", "--set", "prompt_split=train"), "axis 'prompt_split': expected 'test'"),
    ],
)
def test_a_wrong_request_is_one_line_before_any_weights_are_read(
    words: tuple[str, ...], expected: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddbench.harness.preflight._checked_pair", lambda spec: pytest.fail("weights were read"))
    result = call("sweep", "gate", "--device", "cpu", "--arms", "ar", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert expected in result.stderr


def test_too_long_prompts_are_refused_with_their_number(fetched: sets.PromptSet) -> None:
    context = TARGETS["nano-k2"].max_context
    words = ("plan", "gate", "--device", "cpu", "--arms", "ar", "--workload", "tiny")
    result = call(*words, "--set", f"max_new_tokens={context}")
    assert result.exit_code == 2
    assert re.search(rf"more than the context of 'nano-k2' \({context}\), for 5 of 5 prompts", result.stderr)


def test_a_measured_case_says_what_it_was_given(fetched: sets.PromptSet) -> None:
    """The shipped pair on a set: measured like any other, and labelled as text that is foreign to it."""
    case = Case(
        arm="ar",
        engine=EngineSpec(**ARMS["ar"], num_threads=1),
        workload=spec(num_requests=2, max_new_tokens=4, prompt_split="all"),
        capture=CaptureSpec(mode="none", num_warmup_requests=1, parity_prompts=1, parity_tokens=2),
    )
    result, tables = measure_case(Job(case_id="x", case=case), lambda phase: None)
    assert isinstance(result, OkResult)
    expected = build_workload(case.workload, TARGETS["nano-k2"], checkpoint_folder("nano-k2"), 1).card
    assert result.prompts == expected
    assert result.prompts is not None
    assert (result.prompts.set_digest, result.prompts.is_foreign) == (fetched.digest, True)
    text = "; ".join(result.warnings)
    assert "prompts of tiny are foreign text to nano-k2" in text
    assert "of tiny only the first turn is asked" in text
    assert "for choosing settings are among these" in text
    assert tables is not None
    assert {row.kind for row in tables.requests} <= {"code", "prose"}
