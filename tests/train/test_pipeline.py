"""`ddbench train` from a corpus to an evaluated pair, on a toy shape; and the one-line errors on the way."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ddbench.cli import main
from ddbench.models.lab_format import read_shapes
from ddbench.models.weights import load_models
from ddbench.spec import EngineSpec
from ddbench.train.corpus import Document, write_documents
from ddbench.train.tokenizer import load_tokenizer


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["train", *map(str, arguments)])


def data(toy: Any, out: Path) -> tuple[object, ...]:
    return ("--corpus", toy.corpus, "--heldout", toy.heldout, "--out", out, "--device", "cpu")


def target_options(toy: Any, out: Path) -> tuple[object, ...]:
    options = ("--shape", toy.shape, "--tokenizer", toy.tokenizer, "--window", 24, "--batch-rows", 8, "--steps", 10)
    return ("target", *data(toy, out), *options)


def drafter_options(toy: Any, out: Path) -> tuple[object, ...]:
    return ("drafter", *data(toy, out), "--rows", 24, "--total", 36, "--batch-rows", 6, "--steps", 10)


def prompt_rows(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]


def sound(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def trained(toy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The pair folder, and what each command printed."""
    out = tmp_path_factory.mktemp("trained") / "pair"
    output = {"target": sound(call(*target_options(toy, out))), "drafter": sound(call(*drafter_options(toy, out)))}
    return out, output


def test_training_leaves_a_pair_that_loads(trained, toy_shapes):
    folder, _ = trained
    assert read_shapes(folder) == toy_shapes
    models = load_models(EngineSpec(target=str(folder)))
    assert models.facts.has_trained_weights
    assert load_tokenizer(folder / "tokenizer.json").get_vocab_size() == 300
    assert len(prompt_rows(folder)) == 6


def test_the_card_tells_what_was_trained_on_what_by_which_command(trained, toy):
    folder, _ = trained
    text = (folder / "training-card.json").read_text()
    card = json.loads(text)
    assert card["target"]["command"] == (
        "ddbench train target --shape shape.json --tokenizer tokenizer.json --window 24 --corpus train.jsonl.xz "
        "--heldout heldout.jsonl.xz --out pair --steps 10 --batch-rows 8 --device cpu"
    )
    for part in ("target", "drafter"):
        facts = card[part]
        assert len(facts["curve"]) == 10
        assert facts["recipe"]["steps"] == 10
        assert len(facts["corpus"]["sha256"]) == 64
        assert facts["software"]["device"] == "CPU"
        assert facts["parameters"] > 1000
    assert card["target"]["heldout_bits_per_byte"].keys() == {"code", "docs", "prose"}
    assert card["drafter"]["data"]["rows"] == 24
    assert len(card["drafter"]["data"]["sha256"]) == 64
    for path in (folder.parent, toy.corpus.parent, Path.home(), Path.cwd()):
        assert str(path) not in text


def test_long_work_tells_its_progress(trained):
    _, output = trained
    assert "training tokens" in output["target"]
    assert output["target"].count("held out: step") == output["drafter"].count("held out: step") == 10
    assert "continuations: 24/24 rows" in output["drafter"]
    assert "rows, 0 loops dropped, done" in output["drafter"]
    assert output["target"].rstrip().endswith("training-card.json")


def test_the_tokenizer_and_the_prompts_beside_it_become_the_pairs(trained, toy):
    folder, _ = trained
    assert (folder / "tokenizer.json").read_bytes() == toy.tokenizer.read_bytes()
    assert (folder / "prompts.jsonl").read_bytes() == toy.prompts.read_bytes()


def varied(kind: str, number: int) -> Document:
    """A text in which no run of words comes twice, with places where a prompt of its kind may start and end."""
    rng = random.Random(f"{kind}/{number}")
    lines = [" ".join("".join(rng.choices("abcdefghij", k=5)) for _ in range(6)) for _ in range(30)]
    shapes = {"code": "value = {}\n", "docs": "\n\nNote {}\n", "prose": "So {}. "}
    text = "".join(shapes[kind].format(line) for line in lines)
    row = {"text": text, "source": "toy", "kind": kind, "licence": "MIT", "path": f"{number}.txt"}
    return Document.model_validate(row)


def test_a_tokenizer_and_prompts_are_made_from_the_corpus(tmp_path: Path):
    kinds = ("code", "docs", "prose")
    write_documents(tmp_path / "train.xz", [varied(kind, i) for kind in kinds for i in range(4)])
    write_documents(tmp_path / "held.xz", [varied(kind, i) for kind in kinds for i in (4, 5)])
    options = ("--corpus", tmp_path / "train.xz", "--heldout", tmp_path / "held.xz", "--out", tmp_path, "--vocab", 300)
    sound(call("tokenizer", *options, "--per-kind", 1))
    assert load_tokenizer(tmp_path / "tokenizer.json").get_vocab_size() == 300
    assert [row["kind"] for row in prompt_rows(tmp_path)] == ["code", "prose", "docs"]


def test_a_new_target_says_that_its_drafter_is_another_ones(trained, toy, tmp_path: Path):
    folder, output = trained
    assert "train it anew" not in output["target"]
    again = Path(shutil.copytree(folder, tmp_path / "pair", ignore=shutil.ignore_patterns("work")))
    assert "drafter.safetensors was trained for another target" in sound(call(*target_options(toy, again)))


def test_finished_trainings_are_not_done_again(trained, toy, tmp_path: Path):
    folder, _ = trained
    again = Path(shutil.copytree(folder, tmp_path / "pair"))
    before = {name: (again / name).read_bytes() for name in ("target.safetensors", "drafter.safetensors")}
    for options in (target_options(toy, again), drafter_options(toy, again)):
        output = sound(call(*options))
        assert "resumed at step 10" in output
        assert "held out: step" not in output
    assert all((again / name).read_bytes() == content for name, content in before.items())


def test_another_recipe_needs_another_work_folder(trained, toy, tmp_path: Path):
    folder, _ = trained
    again = Path(shutil.copytree(folder, tmp_path / "pair"))
    result = call(*target_options(toy, again), "--seed", 1)
    assert result.exit_code == 2
    assert "was begun with seed 0, now it is 1; pass another --work" in result.output
    sound(call(*target_options(toy, again), "--seed", 1, "--work", tmp_path / "work"))


def test_a_drafter_may_start_from_another_one(trained, toy, tmp_path: Path):
    folder, _ = trained
    again = Path(shutil.copytree(folder, tmp_path / "pair", ignore=shutil.ignore_patterns("work")))
    options = (*drafter_options(toy, again), "--steps", 1, "--max-repetition", 0.9)
    sound(call(*options, "--init", folder))
    card = json.loads((again / "training-card.json").read_text())["drafter"]
    before = hashlib.sha256((folder / "drafter.safetensors").read_bytes()).hexdigest()
    assert before.startswith(card["initial_weights"])
    assert (again / "drafter.safetensors").read_bytes() != (folder / "drafter.safetensors").read_bytes()
    result = call(*options)  # from scratch, into the same work folder
    assert result.exit_code == 2
    assert "was begun with origin" in result.output


def test_the_pair_is_evaluated_and_the_result_goes_into_its_card(trained, tmp_path: Path):
    folder, _ = trained
    again = Path(shutil.copytree(folder, tmp_path / "pair"))
    cards = [json.loads((again / "training-card.json").read_text())]
    output = sound(call("evaluate", "--pair", again, "--max-new-tokens", 6))
    assert (again / "training-card.json").read_text() == (folder / "training-card.json").read_text()
    assert "[7/7] ddtree 64" in output
    assert "6/6" in output
    sound(call("evaluate", "--pair", again, "--max-new-tokens", 6, "--save"))
    cards.append(json.loads((again / "training-card.json").read_text()))
    evaluation = cards[1].pop("evaluation")
    assert cards[0] == cards[1]
    assert evaluation["command"] == "ddbench train evaluate --pair pair --max-new-tokens 6 --save"
    assert evaluation["prompts"]["kinds"] == {"code": 2, "docs": 2, "prose": 2}
    assert str(tmp_path) not in json.dumps(evaluation)


def lines_of(result: Result) -> list[str]:
    assert result.exit_code == 2, result.output
    return [line for line in result.output.splitlines() if line]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--shape": "nano-k3"}, "shape 'nano-k3' is neither a known name nor a JSON file: did you mean 'nano-k2'"),
        ({"--shape": "llama-3.1-8b"}, "'llama-3.1-8b' has no DFlash drafter"),
        ({"--shape": "tiny-gqa"}, "300 tokens, the shape 'tiny-gqa' has 96"),
        ({"--corpus": "TOKENIZER"}, "not a corpus file (make one with `ddbench train corpus`)"),
        ({"--tokenizer": "CORPUS"}, "cannot be read as a tokenizer"),
        ({"--shape": "TOKENIZER"}, "has no 'target' table"),
        ({"--window": "100000"}, "a training window needs 100001"),
    ],
)
def test_wrong_requests_get_one_line(toy, tmp_path: Path, changes: dict[str, str], words: str):
    options = dict(zip(*[iter(map(str, target_options(toy, tmp_path / "pair")[1:]))] * 2, strict=True))
    files = {"TOKENIZER": str(toy.tokenizer), "CORPUS": str(toy.corpus)}
    options |= {name: files.get(value, value) for name, value in changes.items()}
    *_, line = lines_of(call("target", *(word for pair in options.items() for word in pair)))
    assert line.startswith("error: ")
    assert words in line


def test_a_drafter_needs_its_target(toy, tmp_path: Path):
    *_, line = lines_of(call(*drafter_options(toy, tmp_path / "nowhere")))
    assert "no config.json there; expected a checkpoint folder" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pair", "tiny-gqa"), "pair 'tiny-gqa' has no trained weights"),
        (("--pair", "nano-k3"), "'nano-k3' is neither a known name nor a folder: did you mean 'nano-k2'"),
        (("--prompts", 97), "has 96 held-out"),
    ],
)
def test_wrong_evaluations_get_one_line(arguments: tuple[object, ...], words: str):
    *_, line = lines_of(call("evaluate", *arguments))
    assert words in line


def test_an_evaluation_needs_prompts(trained, tmp_path: Path):
    folder = Path(shutil.copytree(trained[0], tmp_path / "pair"))
    (folder / "prompts.jsonl").unlink()
    *_, line = lines_of(call("evaluate", "--pair", folder))
    assert "prompts.jsonl: missing" in line


@pytest.mark.parametrize("command", ["corpus", "tokenizer", "target", "drafter", "evaluate"])
def test_every_command_explains_itself_with_an_example(command: str):
    output = sound(call(command, "--help"))
    assert "Example" in output
    assert f"ddbench train {command}" in output
    assert command in sound(call("--help"))


def test_a_root_that_is_no_folder_is_named(tmp_path: Path):
    *_, line = lines_of(call("corpus", "--out", tmp_path, "--root", "austen"))
    assert "--root 'austen': expected NAME=FOLDER" in line
