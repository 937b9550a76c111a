"""Requests: seeded, the same for every arm, warm-up prompts apart from measured ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from ddbench.errors import CheckpointError, UserError
from ddbench.harness.workload import RANDOM_LENGTHS, build_workload
from ddbench.models.shapes import TARGETS
from ddbench.spec import WorkloadSpec

TINY = TARGETS["tiny-gqa"]
NANO = TARGETS["nano-k2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder with a tokenizer and five prompts of two kinds."""
    tokenizer = Tokenizer(models.WordLevel({"one": 1, "two": 2, "three": 3, "?": 4}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    prompts = [("code-0", "code"), ("code-1", "code"), ("code-2", "code"), ("prose-0", "prose"), ("prose-1", "prose")]
    lines = [json.dumps({"id": i, "kind": kind, "source": "s", "text": f"one two {i} three"}) for i, kind in prompts]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_random_prompts_are_seeded_and_of_unequal_length() -> None:
    spec = WorkloadSpec(prompts="random", num_requests=12, max_new_tokens=5)
    one, two = (build_workload(spec, TINY, None, 3) for _ in range(2))
    assert one == two
    other = build_workload(spec.model_copy(update={"prompt_seed": 1}), TINY, None, 3)
    assert [r.prompt for r in other.measured] != [r.prompt for r in one.measured]
    lengths = {len(request.prompt) for request in one.measured}
    assert len(lengths) > 3
    assert min(lengths) >= RANDOM_LENGTHS[0]
    assert max(lengths) <= RANDOM_LENGTHS[1]
    assert all(0 <= token < TINY.vocab for request in one.measured for token in request.prompt)


def test_random_prompts_of_a_given_length() -> None:
    spec = WorkloadSpec(prompts="random", num_requests=3, prompt_tokens=64)
    workload = build_workload(spec, NANO, None, 1)
    assert {len(request.prompt) for request in (*workload.measured, *workload.warmup)} == {64}
    assert len({request.prompt for request in workload.measured}) == 3
    assert not any(set(request.prompt) & set(NANO.stop_token_ids) for request in workload.measured)


def test_only_random_prompts_have_a_given_length(folder: Path) -> None:
    with pytest.raises(UserError, match="prompt_tokens is for random prompts, prompts is 'held-out'"):
        build_workload(WorkloadSpec(prompt_tokens=8, num_requests=1), TINY, folder, 0)


def test_random_prompts_hold_no_stop_token() -> None:
    workload = build_workload(WorkloadSpec(prompts="random", num_requests=200), NANO, None, 0)
    assert not any(set(request.prompt) & set(NANO.stop_token_ids) for request in workload.measured)


def test_concurrency_does_not_change_the_requests() -> None:
    specs = [WorkloadSpec(prompts="random", concurrency=c) for c in (1, 16)]
    one, two = (build_workload(spec, TINY, None, 2) for spec in specs)
    assert one == two


def test_warmup_prompts_are_not_measured_ones(folder: Path) -> None:
    """H62: nothing of what is measured has been seen before."""
    workload = build_workload(WorkloadSpec(num_requests=3), TINY, folder, 2)
    assert len(workload.warmup) == 2
    assert {r.prompt_id for r in workload.warmup}.isdisjoint(r.prompt_id for r in workload.measured)
    ids = [request.request_id for request in (*workload.measured, *workload.warmup)]
    assert ids == list(range(5))


def test_kinds_take_turns_and_can_be_chosen(folder: Path) -> None:
    mixed = build_workload(WorkloadSpec(num_requests=4), TINY, folder, 0)
    assert [request.kind for request in mixed.measured] == ["code", "prose", "code", "prose"]
    assert mixed.measured[0].prompt[:2] == (1, 2)
    prose = build_workload(WorkloadSpec(num_requests=2, kinds=("prose",)), TINY, folder, 0)
    assert {request.kind for request in prose.measured} == {"prose"}
    with pytest.raises(UserError, match=r"no prompts of kind 'poetry'.*code, prose"):
        build_workload(WorkloadSpec(kinds=("poetry",)), TINY, folder, 0)


def test_too_few_prompts_are_an_error_not_repeats(folder: Path) -> None:
    with pytest.raises(UserError, match=r"needs 6 prompts \(4 measured, 2 to warm up\).*has 5"):
        build_workload(WorkloadSpec(num_requests=4), TINY, folder, 2)


def test_a_target_without_text_says_what_to_do() -> None:
    with pytest.raises(UserError, match="--set prompts=random"):
        build_workload(WorkloadSpec(), TINY, None, 0)
    with pytest.raises(UserError, match="did you mean 'held-out'"):
        build_workload(WorkloadSpec(prompts="heldout"), TINY, None, 0)


def test_damaged_prompts_name_file_and_line(folder: Path) -> None:
    path = folder / "prompts.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + '{"id": 3}\n', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"prompts\.jsonl: line 6"):
        build_workload(WorkloadSpec(num_requests=1), TINY, folder, 0)


def test_a_missing_tokenizer_is_an_error(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing"):
        build_workload(WorkloadSpec(num_requests=1), TINY, folder, 0)


def test_stop_tokens_can_be_ignored() -> None:
    spec = WorkloadSpec(prompts="random", num_requests=1)
    assert build_workload(spec, NANO, None, 0).measured[0].stop_token_ids == NANO.stop_token_ids
    ignoring = spec.model_copy(update={"ignore_stop": True})
    assert build_workload(ignoring, NANO, None, 0).measured[0].stop_token_ids == ()
