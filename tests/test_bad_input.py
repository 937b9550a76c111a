"""Whatever is wrong with a request, an experiment, a checkpoint or a run: exit code 2 and one line that says what was
got, what is expected and what may be meant; no traceback, nothing run, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner, Result

from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.cli import main
from ddbench.experiment_file import find_experiment
from ddbench.harness.plan import engine_capabilities, make_plan, with_overrides
from ddbench.harness.sweep import new_run
from ddbench.models.lab_format import save_pair
from ddbench.models.weights import random_models

HUGE = "9" * 30


@pytest.fixture(autouse=True)
def _locks_of_our_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that is going on elsewhere on this machine is none of our business."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def assert_complaint(result: Result, expected: str, exit_code: int = 2) -> None:
    assert result.exit_code == exit_code, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert expected in result.stderr
    assert "Traceback" not in result.output


# ---------------------------------------------------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "lst",
            "unknown command 'lst': did you mean 'list'? (known: bench-ops, check, compare, doctor, gate, list,",
        ),
        ("--verison", "unknown option '--verison': did you mean '--version'?"),
        ("plan a b", "got unexpected extra argument (b); see"),
        ("plan --concurency 1", "unknown option '--concurency': did you mean '--concurrency'?"),
        ("plan --num-requests 3", "unknown option '--num-requests': an axis is set with --set num_requests=VALUE"),
        ("plan --concurrency", "option '--concurrency' requires an argument"),
        ("plan smoke --device tpu", "'tpu' is not one of 'cpu', 'cuda'"),
        ("plan smoke --dtype int8", "'int8' is not one of 'float32', 'bfloat16'"),
        ("plan smoke --blocks 0", "0 is not in the range x>=1"),
        (f"plan smoke --blocks {HUGE}", f"num_blocks: expected at most 100, got {HUGE}"),
        ("plan smoke --seed -1", "seed: expected at least 0, got -1"),
        ("plan smoke --arms ,", "--arms names no arm: known: ar, chain, chain_via_tree, ddtree, prompt_lookup"),
        ("plan smoke --arms DTree", "unknown arm 'DTree': did you mean 'ddtree'?"),
        ("check --only op", "'op' is not one of 'ops', 'parity', 'distribution'"),
        ("report", "missing argument 'RUN [RUN...]'"),
        ("sweep --resume nowhere --arms ar --set a=1", "leave out --set, --arms"),
        ("sweep smoke --resume nowhere --out x", "leave out --out, EXPERIMENT"),
    ],
)
def test_words_that_no_command_knows(line: str, expected: str) -> None:
    assert_complaint(call(*line.split(" ")), expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "defualt",
            "unknown experiment 'defualt': did you mean 'default'? (known: captures, default,",
        ),
        ("smoke.toml", "smoke.toml: there is no such file: did you mean the experiment 'smoke'?"),
        ("smoke --target tiny", "target 'tiny' is neither a known name nor a folder: did you mean 'tiny-gqa'?"),
        ("smoke --target llama-3.1-8b", "target 'llama-3.1-8b' has no drafter shape"),
        ("smoke --drafter nowhere", "drafter 'nowhere': target 'tiny-gqa' has random weights"),
        ("default --drafter nowhere", "nowhere: no config.json there; expected a checkpoint folder"),
        ("smoke --set node_budget", "--set: expected AXIS=VALUE[,VALUE...], got 'node_budget'"),
        (
            "smoke --set node_budget=8,32,concurrency=1",
            "holds 2 axes: each takes its own: --set node_budget=8,32 --set concurrency=1",
        ),
        ("smoke --set node_budget=", "axis 'node_budget' has no values"),
        ("smoke --set =1", "unknown axis '': known: attention, block_size,"),
        ("smoke --set budget=3", "unknown axis 'budget': did you mean 'node_budget'?"),
        ("smoke --set node_budget=1 --set node_budget=2", "axis 'node_budget' is there twice"),
        ("smoke --concurrency 1 --set concurrency=2", "axis 'concurrency' is there twice"),
        ("smoke --dtype bfloat16 --set dtype=float32", "--dtype and --set dtype=... are both given: keep one"),
        ("smoke --set device=cpu,cuda", "a run has one device"),
        ("smoke --set tree_build=heep", "tree_build: unknown variant 'heep': did you mean 'heap'?"),
        ("smoke --set draft=none", "draft: unknown variant 'none'"),
        ("smoke --concurrency 0", "axis 'concurrency': expected at least 1, got '0'"),
        ("smoke --concurrency 1025", "axis 'concurrency': expected at most 1024, got '1025'"),
        ("smoke --concurrency -1", "expected at least 1, got '-1'"),
        ("smoke --concurrency ü", "expected an integer, got 'ü'"),
        (f"smoke --set node_budget={HUGE}", f"expected at most 4096, got '{HUGE}'"),
        ("smoke --set node_budget=1.5", "expected an integer, got '1.5'"),
        ("smoke --set temperature=nan", "axis 'temperature': expected at most 10, got 'nan'"),
        ("smoke --set block_size=1", "axis 'block_size': expected at least 2, got '1'"),
        ("smoke --set ignore_stop=maybe", "expected true or false, got 'maybe'"),
        ("smoke --set mode=ncu", "expected 'none' or 'stages', got 'ncu'"),
        ("smoke --set oracle_quality=0.5+5", "axis 'oracle_quality': expected at most 1, got '5'"),
        (
            "smoke --set oracle_profile=kimi",
            "unknown profile 'kimi': known: nano-k2, nano-k2-blocks, nano-k2-code, nano-k2-docs, nano-k2-prose, "
            "smollm2-humaneval; or the path of a .safetensors file",
        ),
        ("smoke --set oracle_profile=nano-k2-block", "unknown profile 'nano-k2-block': did you mean 'nano-k2-blocks'?"),
        ("smoke --set seed=-1", "axis 'seed': expected at least 0, got '-1'"),
        ("smoke --set num_threads=0", "expected at least 1, got '0'"),
        ("smoke --set num_requests=10001", "axis 'num_requests': expected at most 10000, got '10001'"),
    ],
)
def test_values_that_no_plan_can_hold(line: str, expected: str) -> None:
    assert_complaint(call("plan", *line.split(" "), "--device", "cpu"), expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("smoke --set block_size=32", "block_size 32 is larger than the block the drafter was trained with (5)"),
        (
            "smoke --set max_new_tokens=1000000",
            "1000000 new + 2 in flight = 1000041, more than the context of 'tiny-gqa'",
        ),
        ("smoke --set node_budget=4096", "4098 in flight = 4149, more than the context of 'tiny-gqa' (512)"),
        ("smoke --concurrency 16", "concurrency 16 is never reached by 4 requests: lower it, or --set num_requests=16"),
        (
            "smoke --set draft=oracle --set oracle_quality=0.5",
            "oracle_quality: expected 4 values in 0..1, one per drafted position, got 1",
        ),
        (
            "smoke --set draft=oracle --set oracle_profile=gone.safetensors",
            "oracle_profile gone.safetensors: there is no such file; expected a file that `ddbench train profile`",
        ),
        ("smoke --set oracle_profile=nano-k2-docs", "no case of the plan reads it; it takes draft 'oracle' without"),
        ("default --set prompt_tokens=8", "prompt_tokens is for random prompts, prompts is 'held-out'"),
        ("smoke --set prompt_tokens=500", "500 prompt tokens + 12 new + 2 in flight = 514, more than the context"),
        (
            "smoke --set temperature=0.5",
            "axis 'temperature' has no effect: no case of the plan reads it; it takes sampling",
        ),
        ("smoke --set node_budget=4 --arms ar,chain", "axis 'node_budget' has no effect"),
        ("smoke --set prompts=held-out", "target 'tiny-gqa' comes with no prompts"),
        ("default --set prompts=heldout", "prompts: unknown source 'heldout': did you mean 'held-out'?"),
        ("default --set kinds=coed", "kinds: no prompts of kind 'coed': did you mean 'code'?"),
        ("default --set num_requests=1000", "the workload needs 1002 prompts"),
        ("default --set max_new_tokens=1900", "more than the context of 'nano-k2' (2048)"),
    ],
)
def test_shapes_that_no_case_can_have_are_found_before_the_first(line: str, expected: str, tmp_path: Path) -> None:
    arguments = (*line.split(" "), "--device", "cpu")
    assert_complaint(call("plan", *arguments), expected)
    assert_complaint(call("sweep", *arguments, "--out", str(tmp_path / "runs")), expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("line", ["plan smoke", "sweep smoke", "check"])
def test_a_gpu_that_is_not_there(line: str) -> None:
    assert_complaint(call(*line.split(" "), "--device", "cuda"), "device 'cuda': torch sees no CUDA device here; use")


@pytest.mark.parametrize("line", ["smoke --concurrency 1,1,1", "smoke --concurrency 1 --arms ar,chain,ar"])
def test_what_is_said_twice_counts_once(line: str) -> None:
    result = call("plan", *line.split(" "), "--device", "cpu")
    assert result.exit_code == 0
    assert ("5 cases" if "1,1" in line else "2 cases") in result.output


def test_a_value_that_does_not_fit_is_skipped_where_others_fit() -> None:
    result = call("plan", "smoke", "--device", "cpu", "--arms", "chain", "--set", "block_size=3,32")
    assert result.exit_code == 0
    assert "1 case, 1 skipped" in result.output
    assert "larger than the block the drafter was trained with" in " ".join(result.output.split())


# -------------------------------------------------------------------------------------------------------- experiments

HEAD = 'question = "?"\n'
ENGINE = '[engine]\ntarget = "tiny-gqa"\n'
RANDOM = '[workload]\nprompts = "random"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "question: missing"),
        ("question = ", "not valid TOML: "),
        (HEAD + HEAD, "not valid TOML: "),
        ("question = 3", "question: expected text, got 3"),
        (HEAD + "arms = []", "arms: expected at least one, got ()"),
        (HEAD + 'arms = "ar"', "arms: expected a list, got 'ar'"),
        (HEAD + 'arms = ["dtree"]', "unknown arm 'dtree': did you mean 'ddtree'?"),
        (HEAD + "blocks = 3", "unknown key 'blocks': did you mean 'num_blocks'?"),
        (HEAD + 'name = "' + 200 * "x" + '"', "name: expected at most 80 characters"),
        (HEAD + ENGINE + "node_bugdet = 3", "[engine]: unknown key 'node_bugdet': did you mean 'node_budget'?"),
        (HEAD + ENGINE + 'node_budget = "6"', "engine.node_budget: expected an integer, got '6'"),
        (HEAD + ENGINE + "node_budget = true", "engine.node_budget: expected an integer, got True"),
        (HEAD + ENGINE + "temperature = nan", "engine.temperature: expected at most 10, got nan"),
        (HEAD + ENGINE + f"seed = {HUGE}", f"engine.seed: expected less than 2147483648, got {HUGE}"),
        (HEAD + ENGINE + 'device = "gpu"', "engine.device: expected 'cpu' or 'cuda', got 'gpu'"),
        (HEAD + RANDOM + 'kinds = "code"', "workload.kinds: expected a list, got 'code'"),
        (HEAD + "[capture]\ntimeout_s = 1e400", "capture.timeout_s: expected an integer, got inf"),
        (HEAD + "axes = [1]", "[axes]: expected a table of axis = [values], got [1]"),
        (HEAD + "[axes]\nconcurency = [1]", "[axes]: unknown axis 'concurency': did you mean 'concurrency'?"),
        (HEAD + '[axes]\nconcurrency = ["1"]', "[axes]: axis 'concurrency': expected an integer, got '1'"),
        (HEAD + "[axes]\nconcurrency = [[1, 2]]", "axis 'concurrency': expected an integer, got (1, 2)"),
        (
            HEAD + RANDOM + "concurrency = 2\n[axes]\nconcurrency = [1]",
            "'concurrency' is fixed in [workload] and varied",
        ),
        (
            HEAD + "[axes]\nseed = [" + "1, 2, " * 9 + "3]\nprompt_seed = " + str(list(range(9999))),
            "at most 10000 cases",
        ),
        (HEAD + ENGINE + RANDOM + '[ablate]\ntree_bild = ["heap"]', "[ablate]: unknown axis 'tree_bild': did you mean"),
        (HEAD + ENGINE + RANDOM + '[ablate]\ntree_build = ["heep"]', "unknown variant 'heep': did you mean 'heap'?"),
        (HEAD + ENGINE + RANDOM + '[ablate]\ntree_compile = ["causal"]', "'tree_compile' is what defines the arm"),
        (
            HEAD + ENGINE + "block_size = 32\n" + RANDOM,
            "block_size 32 is larger than the block the drafter was trained",
        ),
    ],
)
def test_a_faulty_experiment(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "été mine.toml"
    file.write_text(text, encoding="utf-8")
    assert_complaint(call("plan", str(file), "--device", "cpu"), expected)


def test_an_experiment_that_is_no_text_file(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\0")
    assert_complaint(call("plan", str(tmp_path / "folder.toml")), "cannot be read (Is a directory)")
    assert_complaint(
        call("plan", str(tmp_path / "binary.toml")), "cannot be read (not UTF-8 text); expected a TOML file"
    )
    assert_complaint(
        call("plan", str(tmp_path / "binry.toml")), "there is no such file; TOML files in its folder: did you"
    )
    assert_complaint(call("plan", str(tmp_path / ("x" * 5000 + ".toml"))), "File name too long")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("\ufeff" + HEAD + ENGINE + RANDOM, encoding="utf-8")
    assert call("plan", str(tmp_path / "x.toml"), "--device", "cpu").exit_code == 0


# -------------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound checkpoint folder."""
    folder = tmp_path_factory.mktemp("checkpoints") / "pair"
    models = random_models("tiny-gqa")
    save_pair(folder, models.target, models.drafter)
    return folder


@pytest.fixture
def copy(pair: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair, tmp_path / "pair"))


def planned(folder: Path, *more: str) -> Result:
    return call("plan", "smoke", "--device", "cpu", "--target", str(folder), *more)


def test_a_sound_checkpoint_passes(copy: Path) -> None:
    assert planned(copy).exit_code == 0


@pytest.mark.parametrize("file", ["config.json", "target.safetensors", "drafter.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\0\1", b'{"target": {'])
def test_a_file_of_a_checkpoint_that_is_missing_or_damaged(copy: Path, file: str, content: bytes | None) -> None:
    (copy / file).unlink()
    if content is not None:
        (copy / file).write_bytes(content)
    assert_complaint(planned(copy), str(copy) if content is None and file == "config.json" else str(copy / file))


def test_a_truncated_weight_file(copy: Path) -> None:
    data = (copy / "target.safetensors").read_bytes()
    (copy / "target.safetensors").write_bytes(data[: len(data) // 2])
    assert_complaint(planned(copy), "target.safetensors: damaged: Error while deserializing")


Weights = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda weights: weights.pop("fc.weight"), "misses tensor 'fc.weight'"),
        (lambda weights: weights.update(extra=torch.zeros(2)), "has an unused tensor 'extra'"),
        (lambda weights: weights.update({"fc.weight": weights["fc.weight"][1:].clone()}), "'fc.weight' has shape"),
        (lambda weights: weights["fc.weight"].fill_(float("nan")), "tensor 'fc.weight' has non-finite values"),
    ],
)
def test_tensors_that_do_not_fit(copy: Path, change: Callable[[Weights], object], expected: str) -> None:
    weights = safetensors.torch.load_file(copy / "drafter.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, copy / "drafter.safetensors")
    assert_complaint(planned(copy), expected)


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        ("drafter", {"target_hidden": 7}, "drafter.target_hidden is 7, the target has"),
        ("drafter", {"block_size": 1}, "drafter.block_size"),
        ("target", {"vocab": "many"}, "target.vocab"),
        ("target", {"vocabb": 3}, "target.vocabb: unknown key; did you mean 'vocab'?"),
        ("target", {"max_context": 32}, "more than the context of 'tiny-gqa' (32)"),
        ("target", {"vocab": 10**18}, "its shape is impossible"),
        ("target", {"vocab": 10**11}, "of host memory, this machine has"),
    ],
)
def test_a_config_that_does_not_fit(copy: Path, part: str, change: dict[str, object], expected: str) -> None:
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config[part].update(change)
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert_complaint(planned(copy), expected)


def test_a_drafter_of_another_target(pair: Path, tmp_path: Path) -> None:
    models = random_models("tiny-mla-moe")
    save_pair(tmp_path / "other", models.target, models.drafter)
    assert_complaint(planned(pair, "--drafter", str(tmp_path / "other")), "the target has")


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("prompts.jsonl", b'{"id": 1}\n', "prompts.jsonl: line 1: id: expected text, got 1"),
        ("prompts.jsonl", b"\xff\xfe\n", "prompts.jsonl: cannot be read (not UTF-8 text)"),
        ("prompts.jsonl", b'{"id": "a", "kind": "code"}', "prompts.jsonl: line 1: text: missing"),
        ("tokenizer.json", None, "tokenizer.json: missing"),
        ("tokenizer.json", b"{}", "tokenizer.json: damaged: Model missing"),
        ("tokenizer.json", b"\xff\xfe", "tokenizer.json: damaged"),
    ],
)
def test_prompts_that_cannot_be_read(copy: Path, file: str, content: bytes | None, expected: str) -> None:
    (copy / "prompts.jsonl").write_text('{"id": "a", "kind": "code", "text": "x"}\n', encoding="utf-8")
    if content is not None:
        (copy / file).write_bytes(content)
    assert_complaint(planned(copy, "--set", "prompts=held-out"), expected)


def test_prompts_in_tokens_of_another_target(copy: Path, pair: Path) -> None:
    from ddbench.models.weights import PRETRAINED

    for file in ("tokenizer.json", "prompts.jsonl"):
        shutil.copy(PRETRAINED / "nano-k2" / file, copy)
    assert_complaint(planned(copy, "--set", "prompts=held-out"), "has tokens outside 0..")


# ---------------------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run to report on, of another machine."""
    plan = SyntheticPlan(cases=make_cases(("ar", "chain"), (1,), num_requests=3, max_new_tokens=8))
    return build_run(tmp_path_factory.mktemp("runs") / "run", plan)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def case_of(run: Path, place: int = 0) -> Path:
    return sorted((run / "cases").iterdir())[place]


def edit(file: Path, **changes: object) -> None:
    data = json.loads(file.read_text(encoding="utf-8"))
    target = data.get("result", data)
    target.update(changes)
    file.write_text(json.dumps(data), encoding="utf-8")


BREAKAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda run: (run / "manifest.json").unlink(), "not a run folder (no manifest.json there)"),
    "half a manifest": (lambda run: (run / "manifest.json").write_text('{"run'), "manifest.json: damaged"),
    "binary manifest": (lambda run: (run / "manifest.json").write_bytes(b"\xff"), "manifest.json: cannot be read"),
    "another schema": (lambda run: edit(run / "manifest.json", schema_version=99), "schema version 99, this ddbench"),
    "unknown key": (lambda run: edit(run / "manifest.json", foo=1), "foo: unknown key"),
    "escaping ids": (
        lambda run: edit(run / "manifest.json", case_ids=["../x", "y"]),
        "expected a plain name, got '../x'",
    ),
    "ids twice": (lambda run: edit(run / "manifest.json", case_ids=["x", "x"]), "a case is there twice"),
    "half a result": (lambda run: (case_of(run) / "result.json").write_text("{"), "result.json: damaged"),
    "another result": (lambda run: edit(case_of(run) / "result.json", case_id="x"), "holds case 'x', expected"),
    "old result": (lambda run: edit(case_of(run) / "result.json", speed=1), "speed: unknown key"),
    "no passes": (lambda run: edit(case_of(run) / "result.json", passes=[]), "passes: expected at least one"),
    "no table": (lambda run: (case_of(run) / "rounds.parquet").unlink(), "rounds.parquet: missing"),
    "half a table": (lambda run: os.truncate(case_of(run) / "rounds.parquet", 300), "rounds.parquet: "),
    "no bytes": (lambda run: os.truncate(case_of(run) / "steps.parquet", 0), "steps.parquet: "),
    "other table": (
        lambda run: shutil.copy(case_of(run) / "steps.parquet", case_of(run) / "rounds.parquet"),
        "column 'request_id' is missing",
    ),
}


@pytest.mark.parametrize("command", [("report",), ("sweep", "--resume"), ("scrub",)])
def test_a_damaged_manifest_says_what_can_be_done(command: tuple[str, ...], run: Path) -> None:
    """Nothing else holds the question and the place."""
    (run / "manifest.json").write_text('{"run', encoding="utf-8")
    result = call(*command, str(run))
    assert_complaint(result, "manifest.json: damaged")
    assert "copy it again from where the run was measured" in result.stderr
    assert "else run the experiment anew" in result.stderr


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_report_of_a_damaged_run_names_the_file(name: str, run: Path) -> None:
    damage, expected = BREAKAGES[name]
    damage(run)
    assert_complaint(call("report", str(run)), expected)
    assert not (run / "report").exists()


def test_a_report_of_what_is_no_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert_complaint(call("report", str(tmp_path / "rnu")), "there is no such run folder: in ")
    assert_complaint(call("report", str(tmp_path / "rnu")), "did you mean 'run'?")
    assert_complaint(
        call("report", str(tmp_path)), f"not a run folder but one of runs: give one of them, the last is {run}"
    )
    assert_complaint(call("report", str(tmp_path / "empty")), "no manifest.json there")
    assert_complaint(call("report", str(tmp_path / "file")), "expected a folder")
    assert_complaint(call("report", ""), "expected a folder, got an empty name")
    assert_complaint(call("report", str(run), "nowhere"), "nowhere: there is no such run folder")
    copy = shutil.copytree(run, tmp_path / "copy")
    assert_complaint(call("report", str(run), str(run)), "given twice")
    assert_complaint(call("report", str(run), str(copy)), "say where it goes with --out")
    assert_complaint(call("report", str(run), str(copy), "--out", str(tmp_path / "out")), "run ids must differ")
    assert_complaint(call("report", str(run), "--format", "htm"), "unknown format 'htm': did you mean 'html'?")
    assert_complaint(call("report", str(run), "--format", ","), "--format names no format")
    assert_complaint(
        call("report", str(run), "--out", str(tmp_path / "file" / "x")), "cannot be written (Not a directory)"
    )
    assert_complaint(call("report", str(run), "--out", "/proc/ddbench"), "cannot be written")


def test_comparisons_and_gates_that_cannot_be(run: Path, tmp_path: Path) -> None:
    absent = str(tmp_path / "baseline.json")
    assert_complaint(call("compare", str(run), "nowhere"), "nowhere: there is no such run folder")
    assert_complaint(call("compare", str(run), "--arms", "ar,chian"), "did you mean 'chain'?")
    assert_complaint(call("compare", str(run), "--metrics", ",", "--arms", "ar,chain"), "--metrics names nothing")
    assert_complaint(call("compare", str(run), "--format", "pdf", "--arms", "ar,chain"), "unknown format 'pdf'")
    assert_complaint(call("gate", "nowhere", "--baseline", absent), "nowhere: there is no such run folder")
    assert_complaint(call("gate", str(run), "--baseline", absent, "--threshold", "tpot=3"), "did you mean 'tpot_ms'?")
    assert_complaint(call("gate", str(run), "--baseline", absent, "--threshold", "tpot_ms"), "expected METRIC=PCT")
    assert_complaint(call("qualify", "--from", str(run), "--blocks", "3", "--out", absent), "leave out --blocks")
    assert_complaint(call("sweep", "smoke", "--against", str(tmp_path)), "no checkout of ddbench there")


def test_a_run_that_goes_on_or_never_began_is_reported_as_what_it_is(run: Path) -> None:
    shutil.rmtree(case_of(run))
    (run / "cases" / ".partial-x-1").mkdir()
    assert call("report", str(run), "--format", "md").exit_code == 0
    assert "1 of 2 planned cases were measured" in (run / "report" / "report.md").read_text(encoding="utf-8")
    shutil.rmtree(run / "cases")
    assert call("report", str(run), "--format", "md").exit_code == 0
    assert "0 of 2 planned cases were measured" in (run / "report" / "report.md").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------- resume


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A run of this machine without a result."""
    smoke = with_overrides(find_experiment("smoke"), arms=("ar", "chain"), engine={"device": "cpu"})
    return new_run(make_plan(smoke, engine_capabilities()), tmp_path / "runs").path


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"environment": {"code_digest": "0" * 64}}, "was made by other code (digest 000000000000, now"),
        ({"environment": {"cpu_model": "Z80"}}, "was made in another environment (Z80 then"),
        ({"cases": []}, "its manifest does not hold the cases: it cannot be resumed"),
        ({"case_ids": ["x"]}, "1 case ids for 2 cases: damaged"),
        ({"case_ids": ["x", "y"]}, "the weights of 'tiny-gqa' are not the ones of then"),
        ({"schema_version": 99}, "schema version 99, this ddbench reads 2"),
    ],
)
def test_a_run_that_cannot_go_on(unfinished: Path, change: dict[str, object], expected: str) -> None:
    """H65."""
    file = unfinished / "manifest.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    for key, value in change.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) else value
    file.write_text(json.dumps(data), encoding="utf-8")
    assert_complaint(call("sweep", "--resume", str(unfinished)), expected)


def test_resuming_what_is_no_run(unfinished: Path, tmp_path: Path) -> None:
    assert_complaint(call("sweep", "--resume", str(tmp_path / "nowhere")), "there is no such run folder")
    assert_complaint(call("sweep", "--resume", str(tmp_path / "runs")), f"the last is {unfinished}")
    assert_complaint(call("sweep", "--resume", ""), "expected a folder, got an empty name")
    assert_complaint(call("sweep", "--resume", "x" * 5000), "File name too long")
    (unfinished / "cases").rmdir()
    (unfinished / "cases").write_text("", encoding="utf-8")
    assert_complaint(call("sweep", "--resume", str(unfinished)), "cases: expected a folder, got a file: damaged")


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("", "empty name"),
        ("{}/file", "is a file"),
        ("{}/file/x", "cannot be written"),
        ("/proc/x", "cannot be written"),
    ],
)
def test_a_place_for_runs_that_cannot_be(out: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert_complaint(call("sweep", "smoke", "--device", "cpu", "--out", out.format(tmp_path)), expected)
