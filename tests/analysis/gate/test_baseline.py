"""Baselines: what they hold, that they are the same every time and name nobody, and that a noise floor is a bound."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddbench.analysis.effects import FEWEST_BLOCKS
from ddbench.analysis.frames import load_run
from ddbench.analysis.gate.baseline import (
    Baseline,
    baseline_of,
    baseline_of_folders,
    baseline_text,
    differences,
    place_of,
    read_baseline,
    shape_key,
    write_baseline,
)
from ddbench.analysis.gate.noise import Floor, noise_floor
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases, synthetic_environment
from ddbench.errors import DdbenchError, SchemaError, UserError
from ddbench.experiment_file import find_experiment
from ddbench.harness.plan import engine_capabilities, make_plan
from ddbench.records import NotMeasured
from ddbench.spec import Case, EngineSpec

ROOT = Path(__file__).resolve().parents[3]
SMALL = {"arms": ("ar", "ddtree"), "concurrencies": (1,), "num_requests": 4, "max_new_tokens": 12}


def run(folder: Path, num_blocks: int = 6, machine: int = 1, cases: tuple[Case, ...] = (), **plan: Any) -> Path:
    cases = cases or make_cases(num_blocks=num_blocks, **SMALL)
    return build_run(folder, SyntheticPlan(name=folder.name, cases=cases, machine=machine, **plan))


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change every result on disk."""
    for file in folder.glob("cases/*/result.json"):
        data = json.loads(file.read_text(encoding="utf-8"))
        change(data["result"])
        file.write_text(json.dumps(data), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("runs")
    return run(place / "one"), run(place / "two", machine=2)


# ----------------------------------------------------------------------------------------------------- what it holds


def test_the_committed_baseline_still_knows_the_cases_of_the_gate() -> None:
    """A field added to a spec must not make strangers of the shapes that a baseline holds."""
    baseline = read_baseline(ROOT / "reports" / "baselines" / "gate.json")
    plan = make_plan(find_experiment("gate"), engine_capabilities())
    assert {shape.key for shape in baseline.shapes} == {shape_key(case) for case in plan.cases}


def test_it_holds_counters_times_and_floors_of_every_shape(two_runs: tuple[Path, Path]) -> None:
    baseline = baseline_of_folders(two_runs[:1])
    assert [shape.label for shape in baseline.shapes] == ["ar c=1", "ddtree node_budget=16 c=1"]
    tree = baseline.shapes[1]
    assert isinstance(tree.counters["num_rounds"], int)
    assert tree.counters["num_rounds"] > 0
    assert "min_bytes.verify" in tree.counters
    assert [repeat.block for repeat in tree.repeats] == list(range(6))
    for name in ("tpot_ms", "ttft_ms", "output_tok_per_s", "acceptance_length"):
        samples = tree.metrics[name]
        assert len(samples.values) == 6
        assert isinstance(samples.floor, Floor)
    assert isinstance(tree.metrics["tpot_ms"].floor, Floor)
    assert tree.metrics["tpot_ms"].floor.value > 0
    assert tree.metrics["acceptance_length"].floor == Floor(  # greedy: the same rounds every time
        even_odd=0.0, halves=0.0, runs=tree.metrics["acceptance_length"].floor.runs, num_blocks=6, num_runs=1
    )


def test_the_same_runs_give_the_same_bytes_and_come_back_whole(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    once, again = (baseline_text(baseline_of_folders(two_runs)) for _ in range(2))
    assert once == again
    write_baseline(tmp_path / "deep" / "baseline.json", baseline_of_folders(two_runs))
    assert (tmp_path / "deep" / "baseline.json").read_text(encoding="utf-8") == once
    assert read_baseline(tmp_path / "deep" / "baseline.json") == baseline_of_folders(two_runs)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["baseline.json"]
    assert list(json.loads(once)) == sorted(json.loads(once))


def test_it_names_no_folder(tmp_path: Path) -> None:
    """A checkpoint lies somewhere else on every machine; its weights have a digest."""
    shapes = {**SMALL, "num_blocks": 6}
    here, there = "/home/somebody/models/pair", "/mnt/other/pair"
    one, other = (run(tmp_path / n, cases=make_cases(target=t, **shapes)) for n, t in (("a", here), ("b", there)))
    text = baseline_text(baseline_of_folders([one]))
    assert "somebody" not in text
    assert str(tmp_path) not in text
    keys = [[shape.key for shape in baseline_of_folders([folder]).shapes] for folder in (one, other)]
    assert keys[0] == keys[1]


def test_a_shape_is_a_case_without_its_repeat_and_its_patience() -> None:
    case = make_cases(arms=("ddtree",), concurrencies=(1,))[0]
    key = shape_key(case)
    same = ({"block": 3}, {"shown": ("node_budget",)}, {"capture": case.capture.model_copy(update={"timeout_s": 9})})
    assert {shape_key(case.model_copy(update=change)) for change in same} == {key}
    wider = case.workload.model_copy(update={"concurrency": 2})
    other = (
        {"workload": wider},
        {"engine": case.engine.model_copy(update={"dtype": "bfloat16"})},
        {"engine": case.engine.model_copy(update={"node_budget": 17})},
        {"capture": case.capture.model_copy(update={"num_clean_passes": 2})},
    )
    assert len({key, *(shape_key(case.model_copy(update=change)) for change in other)}) == 5


def test_everything_that_a_fingerprint_holds_is_part_of_the_place() -> None:
    """H40."""
    here = synthetic_environment()
    changes: tuple[dict[str, Any], ...] = (
        {"machine": "aarch64"},
        {"cpu_model": "another"},
        {"device": "a GPU"},
        {"driver": "580.1"},
        {"power_cap_w": 300.0},
        {"libraries": {**here.libraries, "torch": "2.9.1"}},
        {"libraries": {**here.libraries, "new": "1"}},
    )
    for change in changes:
        there = here.model_copy(update=change)
        assert there.fingerprint() != here.fingerprint()
        assert len(differences(place_of(here), place_of(there))) == 1
    assert differences(place_of(here), place_of(here.model_copy(update={"num_threads": 7}))) == [
        "num_threads (2 then, 7 now)"
    ]
    assert differences(place_of(here), place_of(here.model_copy(update={"commit": "abc"}))) == []


def test_counters_that_repeats_disagree_in_are_no_exact_numbers(tmp_path: Path) -> None:
    def change(result: dict[str, Any]) -> None:
        result["counters"]["torch_ops"] += result["case"]["block"] % 2
        result["output_digest"] = f"digest {result['case']['block'] % 2}"

    shape = baseline_of_folders([edit(run(tmp_path / "run"), change)]).shapes[0]
    assert isinstance(shape.counters["torch_ops"], NotMeasured)
    assert "differs between repeats" in shape.counters["torch_ops"].not_measured
    assert isinstance(shape.counters["num_rounds"], int)
    assert isinstance(shape.output_digest, NotMeasured)


def test_a_throttled_repeat_has_no_times(tmp_path: Path) -> None:
    """H46."""

    def throttle(result: dict[str, Any]) -> None:
        if result["case"]["block"] == 2:
            result["passes"][0]["load"]["throttle_reasons"] = ["hardware thermal slowdown"]

    shape = baseline_of_folders([edit(run(tmp_path / "run", num_blocks=7), throttle)]).shapes[0]
    samples = shape.metrics["tpot_ms"]
    missing = [value for value in samples.values if isinstance(value, NotMeasured)]
    assert missing == [NotMeasured(not_measured="throttled: hardware thermal slowdown")]
    assert isinstance(samples.floor, Floor)
    assert samples.floor.num_blocks == 6


# ---------------------------------------------------------------------------------------------------- what is refused


def refused(runs: list[Path]) -> DdbenchError:
    with pytest.raises(DdbenchError) as caught:
        baseline_of_folders(runs)
    return caught.value


@pytest.mark.parametrize(
    ("hole", "partner", "cure"),
    [
        ("failed", None, "--resume RUN"),
        ("not_run", "before", "--resume RUN --against CHECKOUT"),
        ("incorrect", None, "mend the code, and sweep anew"),
    ],
)
def test_the_cure_of_a_hole_fits_it(hole: str, partner: str | None, cure: str, tmp_path: Path) -> None:
    """What is incorrect stays so, and a run in turns is not resumed alone."""
    with pytest.raises(DdbenchError) as caught:
        baseline_of_folders([run(tmp_path / "run", interleaved_with=partner, **{hole: (1,)})])
    assert str(caught.value).endswith(cure)


@pytest.mark.parametrize("hole", ["failed", "incorrect", "not_run"])
def test_a_run_with_holes_makes_no_baseline(hole: str, tmp_path: Path) -> None:
    error = refused([run(tmp_path / "run", **{hole: (1,)})])
    assert error.exit_code == 4
    assert "1 of 12 cases" in str(error)


def test_nothing_measured_makes_no_baseline(tmp_path: Path) -> None:
    """H67."""
    error = refused([run(tmp_path / "run", failed=tuple(range(12)))])
    assert (error.exit_code, "nothing was measured" in str(error)) == (4, True)


def test_runs_of_one_baseline_are_of_one_code_one_place_one_plan(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    first = load_run(two_runs[0])
    assert "twice" in str(refused([two_runs[0], two_runs[0]]))
    manifest = load_run(two_runs[1]).manifests[0]
    for change, word in (({"code_digest": "f" * 16}, "different code"), ({"cpu_model": "other"}, "different places")):
        environment = manifest.environment.model_copy(update=change)
        frames = load_run(two_runs[1])
        object.__setattr__(frames, "manifests", (manifest.model_copy(update={"environment": environment}),))
        with pytest.raises(UserError, match=word):
            baseline_of([first, frames])
    fewer = run(tmp_path / "fewer", cases=make_cases(num_blocks=6, **{**SMALL, "arms": ("ar",)}))
    assert "same cases" in str(refused([two_runs[0], fewer]))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (None, "no such baseline"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"schema_version": 99}', "schema 99, this ddbench reads 1; made by a newer"),
        ('{"schema_version": 1, "surprise": 2}', "damaged"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_a_baseline_that_cannot_be_read_says_how_to_make_one(text: str | None, word: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(SchemaError) as caught:
        read_baseline(path)
    assert word in str(caught.value)
    assert f"ddbench qualify EXPERIMENT --out {path}" in str(caught.value)


def test_a_baseline_that_cannot_be_written_is_an_error_of_the_request(
    two_runs: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="--out"):
        write_baseline(tmp_path / "file" / "baseline.json", baseline_of_folders(two_runs[:1]))


def test_unknown_keys_of_a_shape_are_damage() -> None:
    with pytest.raises(ValueError, match="surprise"):
        Baseline.model_validate({"surprise": 1})


# ------------------------------------------------------------------------------------------------------ noise floors


def null_effects(num_blocks: int, noise: str, num_seeds: int) -> Iterator[tuple[float, float]]:
    """(floor, difference of a later run of the same code) in relative terms, the drawing known."""
    for seed in range(num_seeds):
        rng = np.random.default_rng((seed, num_blocks, len(noise)))
        logs = {
            "normal": lambda rng=rng: 0.02 * rng.standard_normal(num_blocks),
            "heavy": lambda rng=rng: 0.02 * rng.standard_t(3, num_blocks),
            "skewed": lambda rng=rng: 0.02 * rng.exponential(size=num_blocks),
        }[noise]
        floor = noise_floor([np.exp(logs()).tolist()])
        assert isinstance(floor, Floor)
        yield floor.value, math.expm1(abs(float(logs().mean() - logs().mean())))


@pytest.mark.parametrize("num_blocks", [6, 12])
@pytest.mark.parametrize("noise", ["normal", "heavy", "skewed"])
def test_the_same_code_rarely_leaves_its_floor(noise: str, num_blocks: int) -> None:
    """The bound holds at the fewest repeats too: at most 5 % of null effects lie above it."""
    beyond = sum(effect > floor for floor, effect in null_effects(num_blocks, noise, 400))
    assert beyond <= 0.05 * 400


def test_more_repeats_give_a_lower_floor() -> None:
    rng = np.random.default_rng(0)
    values = np.exp(0.02 * rng.standard_normal(96)).tolist()
    floors = [noise_floor([values[:count]]) for count in (6, 24, 96)]
    sizes = [floor.value for floor in floors if isinstance(floor, Floor)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.02


def test_drift_slots_and_differences_between_runs_raise_the_floor() -> None:
    rng = np.random.default_rng(1)
    noise = 0.002 * rng.standard_normal((3, 12))
    quiet = noise_floor([np.exp(noise[0]).tolist()])
    drift = noise_floor([np.exp(noise[0] + 0.05 * (np.arange(12) >= 6)).tolist()])
    slots = noise_floor([np.exp(noise[0] + 0.05 * (np.arange(12) % 2)).tolist()])
    runs = noise_floor([np.exp(noise[place] + 0.05 * place).tolist() for place in range(3)])
    assert all(isinstance(floor, Floor) for floor in (quiet, drift, slots, runs))
    assert quiet.value < 0.01  # type: ignore[union-attr]
    assert drift.halves > 0.05  # type: ignore[union-attr]
    assert slots.even_odd > 0.05  # type: ignore[union-attr]
    assert max(runs.even_odd, runs.halves) < 0.01  # type: ignore[union-attr]
    assert runs.value > 0.1  # type: ignore[union-attr]  # three runs 5 % apart: a fourth may be anywhere
    assert isinstance(quiet.runs, NotMeasured)  # type: ignore[union-attr]


def test_few_or_unusable_repeats_have_no_floor_but_a_reason() -> None:
    """H42."""
    assert isinstance(noise_floor([[1.0] * FEWEST_BLOCKS]), Floor)
    for runs, word in (
        ([], "0 repeats"),
        ([[1.0]], "1 repeats"),
        ([[1.0] * (FEWEST_BLOCKS - 1)], "at least 6"),
        ([[1.0] * 6, [1.0] * 5], "5 repeats"),
        ([[1.0] * 5 + [0.0]], "not positive"),
        ([[1.0] * 5 + [math.nan]], "not positive"),
    ):
        floor = noise_floor(runs)
        assert isinstance(floor, NotMeasured)
        assert word in floor.not_measured


def test_specs_of_checkpoints_keep_their_names() -> None:
    """Two checkpoints with other names are two shapes."""
    case = make_cases(arms=("ar",), concurrencies=(1,))[0]
    one, other = (case.model_copy(update={"engine": EngineSpec(target=name)}) for name in ("/a/one", "/a/two"))
    assert shape_key(one) != shape_key(other)
