"""The gate: what passes, what fails and why, and which exit code wins."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddbench.analysis.gate.baseline import Baseline, baseline_of_folders, write_baseline
from ddbench.analysis.gate.noise import Floor
from ddbench.analysis.gate.policies import POLICIES, Request, policies_of, request_of
from ddbench.analysis.gate.result import gate, gate_folders
from ddbench.analysis.gate.rows import EXIT_CODES, PRECEDENCE, GateResult, Row, Verdict
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.errors import UserError
from ddbench.records import NotMeasured
from ddbench.spec import Case

Change = Callable[[dict[str, Any]], None]
SMALL = {"arms": ("ar", "ddtree"), "concurrencies": (1,), "num_requests": 6, "max_new_tokens": 16}
COUNTERS, EVERYTHING = Request(only="counters"), Request()
TREE = "ddtree node_budget=16 c=1"


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run of ten repeats, of the code that the baseline is of unless `plan` says what is slow about it."""

    def make(name: str = "run", machine: int = 2, cases: tuple[Case, ...] = (), **plan: Any) -> Path:
        cases = cases or make_cases(num_blocks=plan.pop("num_blocks", 10), **SMALL)
        return build_run(tmp_path / name, SyntheticPlan(name=name, cases=cases, machine=machine, **plan))

    return make


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline of one run."""
    place = tmp_path_factory.mktemp("baseline")
    cases = make_cases(num_blocks=10, **SMALL)
    run = build_run(place / "base", SyntheticPlan(name="base", cases=cases, machine=1))
    edit(run, with_digest)
    write_baseline(place / "baseline.json", baseline_of_folders([run]))
    return place / "baseline.json"


def edit(folder: Path, *changes: Change) -> Path:
    """Change every result on disk."""
    for path in folder.glob("cases/*/result.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        for change in changes:
            change(data["result"])
        path.write_text(json.dumps(data), encoding="utf-8")
    return folder


def edit_place(folder: Path, **environment: Any) -> Path:
    path = folder / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["environment"] |= environment
    path.write_text(json.dumps(data), encoding="utf-8")
    return folder


def with_digest(result: dict[str, Any]) -> None:
    result["output_digest"] = f"output of {result['case']['arm']}"


def of_tree(name: str, by: int) -> Change:
    def change(result: dict[str, Any]) -> None:
        if result["case"]["arm"] == "ddtree":
            result["counters"][name] = result["counters"].get(name, 0) + by

    return change


def rows_of(result: GateResult, *verdicts: Verdict) -> dict[tuple[str, str], Row]:
    return {(row.shape, row.name): row for row in result.rows if not verdicts or row.verdict in verdicts}


# -------------------------------------------------------------------------------------------- passing and not passing


@pytest.mark.parametrize("machine", range(2, 8))
def test_the_same_code_passes(machine: int, make_run: Callable[..., Path], file: Path) -> None:
    result = gate_folders(edit(make_run(machine=machine), with_digest), file, EVERYTHING)
    assert result.exit_code == 0, result.headline
    assert {row.verdict for row in result.rows} <= {"same", "improved"}
    timings = [row for row in result.rows if row.kind == "timing"]
    assert len(timings) == 2 * len(POLICIES)
    assert all(row.timing is not None and row.timing.num_pairs == 10 for row in timings)


def test_a_slowdown_fails_with_everything_that_stands_behind_it(make_run: Callable[..., Path], file: Path) -> None:
    result = gate_folders(edit(make_run(slow={"verify": 1.5}), with_digest), file, EVERYTHING)
    assert result.exit_code == 1
    bad = rows_of(result, "regression")
    assert set(bad) == {(TREE, "tpot_ms"), (TREE, "output_tok_per_s")}  # `ar` is as fast as before
    row = bad[TREE, "tpot_ms"]
    timing = row.timing
    assert timing is not None
    assert timing.low is not None
    assert 1.15 < timing.low <= timing.ratio
    assert isinstance(timing.floor, float)
    assert (timing.num_pairs, timing.threshold, timing.limit) == (10, 0.02, max(0.02, timing.floor))
    assert row.now is not None
    assert row.now > row.before  # type: ignore[operator]
    assert "worse by more than the" in row.reason


def test_less_acceptance_fails_by_counters_alone(make_run: Callable[..., Path], file: Path) -> None:
    result = gate_folders(edit(make_run(agreement=0.8), with_digest), file, COUNTERS)
    assert result.exit_code == 1
    bad = rows_of(result, "regression")
    assert {(TREE, "num_rounds"), (TREE, "tokens_accepted")} <= set(bad)
    assert all(shape == TREE for shape, _ in bad)
    assert not [row for row in result.rows if row.kind == "timing"]
    assert result.ungated == ()


def test_one_more_op_fails(make_run: Callable[..., Path], file: Path) -> None:
    run = edit(make_run(), with_digest, of_tree("torch_ops.verify", 1))
    result = gate_folders(run, file, COUNTERS)
    assert result.exit_code == 1
    assert list(rows_of(result, "regression")) == [(TREE, "torch_ops.verify")]


def test_better_counters_pass_and_ask_for_a_new_baseline(make_run: Callable[..., Path], file: Path) -> None:
    result = gate_folders(edit(make_run(), with_digest, of_tree("torch_ops.verify", -1)), file, COUNTERS)
    assert result.exit_code == 0
    assert list(rows_of(result, "improved")) == [(TREE, "torch_ops.verify")]
    assert any("make it anew" in note for note in result.notes)


def test_what_is_better_beside_a_regression_asks_for_no_new_baseline(make_run: Callable[..., Path], file: Path) -> None:
    """It would take the regression over."""
    mixed = edit(make_run(), with_digest, of_tree("torch_ops.verify", -1), of_tree("num_rounds", 1))
    result = gate_folders(mixed, file, COUNTERS)
    assert result.exit_code == 1
    assert rows_of(result, "improved")
    assert not any("anew" in text for text in (*result.notes, *(row.reason for row in result.rows)))


def test_the_baselines_own_run_is_told_from_a_new_one(
    make_run: Callable[..., Path], file: Path, tmp_path: Path
) -> None:
    run = make_run()
    write_baseline(tmp_path / "own.json", baseline_of_folders([run]))
    assert any("this very run" in note for note in gate_folders(run, tmp_path / "own.json", COUNTERS).notes)
    assert not any("this very run" in note for note in gate_folders(run, file, COUNTERS).notes)


def test_what_differs_about_the_place_is_named(make_run: Callable[..., Path], file: Path) -> None:
    run = edit_place(edit(make_run(), with_digest), cpu_model="Another CPU")
    (note,) = [note for note in gate_folders(run, file, EVERYTHING).notes if "not judged" in note]
    assert "cpu_model (" in note
    assert "Another CPU now)" in note
    assert "--only counters" in note


def test_faster_passes_as_improved(make_run: Callable[..., Path], file: Path) -> None:
    """H49: one metric is better when it is higher, the other when it is lower."""
    result = gate_folders(edit(make_run(slow={"verify": 0.5}), with_digest), file, Request(only="timings"))
    assert result.exit_code == 0
    improved = rows_of(result, "improved")
    assert {(TREE, "tpot_ms"), (TREE, "output_tok_per_s")} <= set(improved)
    assert improved[TREE, "tpot_ms"].timing.ratio < 1  # type: ignore[union-attr]
    assert improved[TREE, "output_tok_per_s"].timing.ratio > 1  # type: ignore[union-attr]


def test_other_tokens_fail(make_run: Callable[..., Path], file: Path) -> None:
    def change(result: dict[str, Any]) -> None:
        result["output_digest"] = "other tokens"

    result = gate_folders(edit(make_run(), with_digest, change), file, COUNTERS)
    assert result.exit_code == 1
    assert set(rows_of(result, "changed")) == {("ar c=1", "output"), (TREE, "output")}


def test_a_counter_that_must_stay_fails_either_way(make_run: Callable[..., Path], file: Path) -> None:
    for by in (-1, 1):
        result = gate_folders(edit(make_run(f"run{by}"), with_digest, of_tree("counted_steps", by)), file, COUNTERS)
        assert (result.exit_code, list(rows_of(result, "changed"))) == (1, [(TREE, "counted_steps")])


def test_repeats_that_disagree_have_changed(make_run: Callable[..., Path], file: Path) -> None:
    def change(result: dict[str, Any]) -> None:
        result["counters"]["num_rounds"] -= result["case"]["block"] == 3

    result = gate_folders(edit(make_run(), with_digest, change), file, COUNTERS)
    assert result.exit_code == 1
    assert "differs between repeats" in rows_of(result, "changed")[TREE, "num_rounds"].reason


def test_what_is_counted_per_round_is_not_judged_when_the_rounds_are_others(
    make_run: Callable[..., Path], file: Path
) -> None:
    """Fewer rounds that hold more each are an improvement, whatever a round now costs."""

    def heavier(result: dict[str, Any]) -> None:
        for cost in result["stage_costs"]:
            cost["num_bytes"] += 100

    better = (of_tree("num_rounds", -1), of_tree("counted_steps", -1), of_tree("torch_ops.verify", 5))
    result = gate_folders(edit(make_run(), with_digest, *better, heavier), file, COUNTERS)
    bad = {name for shape, name in rows_of(result, "regression") if shape == TREE}
    assert bad == set()
    shown = rows_of(result, "not_gated")
    assert "the rounds themselves are others" in shown[TREE, "min_bytes.verify"].reason
    assert "not as many" in shown[TREE, "torch_ops.verify"].reason
    assert result.exit_code == 1  # `ar` took the same rounds, and more bytes
    assert ("ar c=1", "min_bytes.verify") in rows_of(result, "regression")


# --------------------------------------------------------------------------------------------- what cannot be compared


@pytest.mark.parametrize(
    "place",
    [
        {"device": "NVIDIA H200 NVL"},
        {"cpu_model": "another"},
        {"driver": "580.95"},
        {"power_cap_w": 350.0},
        {"num_threads": 8},
        {"libraries": {"python": "3.11.0", "torch": "2.9.0", "triton": "3.6.0"}},
    ],
)
def test_times_of_another_place_are_context_only(
    place: dict[str, Any], make_run: Callable[..., Path], file: Path
) -> None:
    """H40. Slower or not: nothing is said of it."""
    run = edit_place(edit(make_run(slow={"verify": 1.5}), with_digest), **place)
    result = gate_folders(run, file, Request(only="timings"))
    assert result.exit_code == 5
    for row in result.rows:
        assert row.verdict == "incomparable"
        assert "context only" in row.reason
        assert row.timing is not None
        assert (row.timing.low, row.timing.q_value) == (None, None)
        assert row.now is not None
    assert [one.name for one in result.place if one.before != one.now]
    counters = gate_folders(run, file, COUNTERS)
    assert counters.exit_code == (5 if "device" in place else 0)


@pytest.mark.parametrize(("torch", "code"), [("2.9.4+cu130", 0), ("2.10.0", 5)])
def test_counters_take_the_same_minor_version_of_torch(
    torch: str, code: int, make_run: Callable[..., Path], file: Path
) -> None:
    run = edit_place(edit(make_run(), with_digest), libraries={"torch": torch})
    assert gate_folders(run, file, COUNTERS).exit_code == code


def test_other_weights_are_not_compared(make_run: Callable[..., Path], file: Path) -> None:
    def change(result: dict[str, Any]) -> None:
        result["models"]["target_digest"] = "c" * 16
        result["counters"]["num_rounds"] += 100

    result = gate_folders(edit(make_run(), with_digest, change), file, EVERYTHING)
    assert result.exit_code == 5
    assert all("other weights" in row.reason for row in result.rows)


def test_another_experiment_is_not_comparable(make_run: Callable[..., Path], file: Path) -> None:
    cases = make_cases(num_blocks=6, **{**SMALL, "concurrencies": (16,)})
    result = gate_folders(make_run(cases=cases), file, COUNTERS)
    assert (result.exit_code, len(result.rows)) == (5, 1)
    assert "no case of the run ('run') is in the baseline ('base')" in result.rows[0].reason


@pytest.mark.parametrize(("text", "word"), [(None, "no such"), ("{", "damaged"), ('{"schema_version": 7}', "schema 7")])
def test_a_baseline_that_cannot_be_read_is_exit_code_5_with_its_cure(
    text: str | None, word: str, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "baseline.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    result = gate_folders(make_run(num_blocks=1), path, EVERYTHING)
    assert result.exit_code == 5
    assert word in result.rows[0].reason
    assert "ddbench qualify" in result.rows[0].reason


# ------------------------------------------------------------------------------------------------ what was not measured


def test_nothing_measured_is_exit_code_4(make_run: Callable[..., Path], file: Path, tmp_path: Path) -> None:
    """H67."""
    failed = make_run("failed", failed=tuple(range(20)))
    assert gate_folders(failed, file, EVERYTHING).exit_code == 4
    not_run = make_run("not_run", not_run=tuple(range(20)))
    result = gate_folders(not_run, tmp_path / "no baseline either", EVERYTHING)
    assert result.exit_code == 4
    assert "nothing was measured" in result.rows[0].reason
    damaged = make_run("damaged")
    next(damaged.glob("cases/*/result.json")).write_text("{", encoding="utf-8")
    assert gate_folders(damaged, file, EVERYTHING).exit_code == 4


@pytest.mark.parametrize(
    ("hole", "word"), [("failed", "out_of_memory"), ("incorrect", "parity diverged"), ("not_run", "interrupted")]
)
def test_a_shape_with_a_hole_is_missing_by_name(
    hole: str, word: str, make_run: Callable[..., Path], file: Path
) -> None:
    """One bad repeat of ten is enough: an answer that is wrong once in a while is wrong."""
    result = gate_folders(edit(make_run(**{hole: (5,)}), lambda result: None), file, COUNTERS)
    assert result.exit_code == 4
    missing = rows_of(result, "missing")
    assert (TREE, "case") in missing
    assert word in missing[TREE, "case"].reason


def test_a_planned_shape_that_is_not_there_is_missing(make_run: Callable[..., Path], file: Path) -> None:
    cases = make_cases(num_blocks=6, **{**SMALL, "arms": ("ar", "chain")})
    result = gate_folders(edit(make_run(cases=cases), with_digest), file, COUNTERS)
    assert result.exit_code == 4
    assert list(rows_of(result, "missing")) == [(TREE, "case")]
    assert any("chain c=1" in note and "not gated" in note for note in result.notes)


def test_a_counter_that_is_not_counted_any_more_is_missing(make_run: Callable[..., Path], file: Path) -> None:
    def change(result: dict[str, Any]) -> None:
        del result["counters"]["torch_ops"]
        result["counters"]["launches"] = 3

    result = gate_folders(edit(make_run(), with_digest, change), file, COUNTERS)
    assert result.exit_code == 4
    assert (TREE, "torch_ops") in rows_of(result, "missing")
    assert "not in the baseline" in rows_of(result, "not_gated")[TREE, "launches"].reason


def test_when_nothing_can_be_gated_it_does_not_pass(tmp_path: Path) -> None:
    cases = make_cases(num_blocks=1, **{**SMALL, "arms": ("ddtree",)}, sampling="stochastic")
    run = build_run(tmp_path / "run", SyntheticPlan(cases=cases))
    write_baseline(tmp_path / "baseline.json", baseline_of_folders([run]))
    result = gate_folders(run, tmp_path / "baseline.json", COUNTERS)
    assert result.exit_code == 4
    shown = {name: row.reason for (_, name), row in rows_of(result, "not_gated").items()}
    assert "sampled" in shown["num_rounds"]


# ------------------------------------------------------------------------------------------------------ cannot tell


def test_too_few_repeats_are_undecided(make_run: Callable[..., Path], file: Path) -> None:
    run = edit(make_run(num_blocks=2, slow={"verify": 3.0}), with_digest)
    result = gate_folders(run, file, EVERYTHING)
    assert result.exit_code == 3
    assert all("too few repeats" in row.reason for row in result.rows if row.kind == "timing")
    passing = gate_folders(run, file, Request(is_undecided_passing=True))
    assert passing.exit_code == 0
    assert gate_folders(run, file, COUNTERS).exit_code == 0


@pytest.mark.parametrize("num_throttled", [10, 6, 2])
def test_throttled_repeats_say_nothing_about_times(
    num_throttled: int, make_run: Callable[..., Path], file: Path
) -> None:
    """H46."""

    def throttle(result: dict[str, Any]) -> None:
        if result["case"]["block"] < num_throttled:
            for one in result["passes"]:
                one["load"]["throttle_reasons"] = ["software thermal slowdown"]

    run = edit(make_run(slow={"verify": 1.5}), with_digest, throttle)
    result = gate_folders(run, file, EVERYTHING)
    rows = [row for row in result.rows if row.kind == "timing" and row.shape == TREE]
    assert result.exit_code == (1 if num_throttled == 2 else 3)
    assert all("throttled" in row.reason for row in rows)
    if num_throttled == 10:
        assert all(row.timing is None and row.before is None for row in rows)


def test_without_a_floor_times_are_undecided(make_run: Callable[..., Path], tmp_path: Path) -> None:
    once = make_run("once", num_blocks=1)
    write_baseline(tmp_path / "baseline.json", baseline_of_folders([once]))
    result = gate_folders(once, tmp_path / "baseline.json", EVERYTHING)
    assert result.exit_code == 3
    assert all("no noise floor" in row.reason for row in result.rows if row.kind == "timing")
    assert gate_folders(once, tmp_path / "baseline.json", COUNTERS).exit_code == 0


# ------------------------------------------------------------------------------------------- thresholds and policies


def test_a_threshold_under_the_floor_is_refused_with_both_numbers(make_run: Callable[..., Path], file: Path) -> None:
    with pytest.raises(UserError) as caught:
        gate_folders(make_run(), file, request_of(None, ["tpot_ms=0.25"], False))
    data = json.loads(file.read_text(encoding="utf-8"))
    floors = [Floor(**shape["metrics"]["tpot_ms"]["floor"]).value for shape in data["shapes"]]
    enough = float(str(caught.value).split("give at least tpot_ms=")[1].split(",")[0])
    assert caught.value.exit_code == 2
    assert "tpot_ms=0.25" in str(caught.value)
    assert 100 * max(floors) <= enough <= 100 * max(floors) + 0.01
    assert gate_folders(make_run("again"), file, request_of(None, [f"tpot_ms={enough}"], False)).exit_code in (0, 4)


def test_a_threshold_above_the_change_lets_it_pass(make_run: Callable[..., Path], file: Path) -> None:
    run = edit(make_run(slow={"verify": 1.5}), with_digest)
    result = gate_folders(run, file, request_of(None, ["tpot_ms=150", "output_tok_per_s=60%"], False))
    assert result.exit_code == 0
    assert rows_of(result)[TREE, "tpot_ms"].timing.threshold == 1.5  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["tpot_ms", "tpot_ms=", "tpot_ms=x", "tpot_ms=0", "tpot_ms=-3", "tpot_ms=nan", "=3"])
def test_a_threshold_is_a_metric_and_a_percentage(text: str) -> None:
    with pytest.raises(UserError, match="--threshold"):
        policies_of(request_of(None, [text], False).thresholds)


def test_only_what_has_a_better_side_and_repeats_can_be_gated() -> None:
    with pytest.raises(UserError, match="did you mean 'tpot_ms'"):
        policies_of({"tpot": 0.1})
    with pytest.raises(UserError, match="no timing is called"):
        policies_of({"peak_memory_bytes": 0.1})
    assert set(policies_of({"round_cost_ms": 0.1})) == {*POLICIES, "round_cost_ms"}
    with pytest.raises(UserError, match="--only counters"):
        request_of("counters", ["tpot_ms=5"], False)


def test_every_metric_is_gated_or_says_why_not(make_run: Callable[..., Path], file: Path) -> None:
    result = gate_folders(edit(make_run(), with_digest), file, EVERYTHING)
    gated = {row.name for row in result.rows if row.kind == "timing"}
    assert gated | {one.metric for one in result.ungated} == set(METRICS)
    assert all(one.reason for one in result.ungated)


# ----------------------------------------------------------------------------------------- confirming, taking turns


def test_a_slowdown_that_a_second_run_does_not_show_is_undecided(make_run: Callable[..., Path], file: Path) -> None:
    run, second = (edit(make_run(n, machine=m, slow=s), with_digest) for n, m, s in (
        ("one", 2, {"verify": 1.5}), ("two", 3, {}),
    ))  # fmt: skip
    result = gate_folders(run, file, EVERYTHING, second)
    assert result.exit_code == 3
    assert "not confirmed" in rows_of(result, "undecided")[TREE, "tpot_ms"].reason
    slow = edit(make_run("three", machine=4, slow={"verify": 1.5}), with_digest)
    assert gate_folders(run, file, EVERYTHING, slow).exit_code == 1


def test_a_confirming_run_is_another_run_of_the_same_code_at_the_same_place(
    make_run: Callable[..., Path], file: Path
) -> None:
    run = edit(make_run(), with_digest)
    with pytest.raises(UserError, match="is the run itself"):
        gate_folders(run, file, EVERYTHING, run)
    for place, word in (({"code_digest": "e" * 16}, "other code"), ({"driver": "1"}, "another place")):
        with pytest.raises(UserError, match=word):
            gate_folders(run, file, EVERYTHING, edit_place(make_run(f"second {word}"), **place))


def interleaved(tmp_path: Path, offset: float, slow: float) -> tuple[Baseline, Path]:
    """A baseline of three runs that lie far apart, and a run that took turns with the last of them."""
    cases = make_cases(num_blocks=10, **SMALL)
    runs = []
    for place in range(3):
        plan = SyntheticPlan(
            name=f"base{place}", cases=cases, machine=10 + place, slow={"verify": 1 + offset * place}, turn=0
        )
        runs.append(build_run(tmp_path / plan.name, plan))
    partner = json.loads((runs[-1] / "manifest.json").read_text(encoding="utf-8"))["run_id"]
    plan = SyntheticPlan(name="after", cases=cases, machine=20, slow={"verify": slow}, turn=1, interleaved_with=partner)
    return baseline_of_folders(runs), build_run(tmp_path / "after", plan)


def test_codes_that_took_turns_are_compared_with_each_other_only(tmp_path: Path) -> None:
    """What differs between runs is in both, and the pairs' own spread takes the place of a floor."""
    baseline, run = interleaved(tmp_path, offset=0.3, slow=1.6)
    write_baseline(tmp_path / "baseline.json", baseline)
    row = rows_of(gate_folders(run, tmp_path / "baseline.json", Request(only="timings")))[TREE, "tpot_ms"]
    assert row.timing is not None
    assert row.timing.is_interleaved
    assert isinstance(row.timing.floor, NotMeasured)
    assert row.timing.ratio == pytest.approx(1, abs=0.02)  # as slow as its partner, though not as the others
    assert row.verdict in ("same", "undecided")


def test_a_second_run_confirms_a_run_that_took_turns_without_having_taken_any(tmp_path: Path) -> None:
    """It may hold repeats that the run lacks, and the order of the run's turns is not its own."""
    before, _ = interleaved(tmp_path, offset=0.0, slow=1.0)
    short, cases = make_cases(num_blocks=9, **SMALL), make_cases(num_blocks=10, **SMALL)
    turns = SyntheticPlan(
        name="short", cases=short, machine=21, slow={"verify": 2.0}, turn=1, interleaved_with=before.runs[-1]
    )
    run = build_run(tmp_path / "short", turns)
    second = build_run(tmp_path / "second", SyntheticPlan(name="second", cases=cases, machine=22, slow={"verify": 2.0}))
    write_baseline(tmp_path / "baseline.json", before)
    result = gate_folders(run, tmp_path / "baseline.json", Request(only="timings"), second)
    assert rows_of(result)[TREE, "tpot_ms"].verdict == "regression"


def test_apart_from_turns_one_slow_run_does_not_stand_for_the_baseline(tmp_path: Path) -> None:
    """The reference is the median over runs; how far runs differ is in the floor."""
    baseline, run = interleaved(tmp_path, offset=0.05, slow=3.0)
    data = json.loads((run / "manifest.json").read_text(encoding="utf-8")) | {"interleaved_with": None}
    (run / "manifest.json").write_text(json.dumps(data), encoding="utf-8")
    write_baseline(tmp_path / "baseline.json", baseline)
    row = rows_of(gate_folders(run, tmp_path / "baseline.json", Request(only="timings")))[TREE, "tpot_ms"]
    values = next(shape for shape in baseline.shapes if shape.label == TREE).metrics["tpot_ms"].values
    by_run = [sorted(values[start : start + 10]) for start in (0, 10, 20)]  # type: ignore[type-var]
    assert by_run[0][5] < row.before < by_run[2][5]  # type: ignore[operator]
    assert row.timing is not None
    assert not row.timing.is_interleaved
    assert row.verdict == "regression"


# ---------------------------------------------------------------------------------------------------------- exit codes


def result_of(verdicts: Sequence[Verdict], **fields: Any) -> GateResult:
    rows = tuple(Row(kind="counter", shape="s", name="n", verdict=verdict) for verdict in verdicts)
    return GateResult(run="r", baseline=("b",), experiment="e", question="q", rows=rows, **fields)


def test_the_gravest_code_wins_whatever_else_there_is() -> None:
    """A confirmed regression is never hidden; a broken run never passes for one without a baseline."""
    assert PRECEDENCE == (1, 4, 5, 3, 0)
    assert set(PRECEDENCE) == set(EXIT_CODES.values())
    verdicts = tuple(EXIT_CODES)
    for size in (1, 2, 3):
        for chosen in itertools.combinations_with_replacement(verdicts, size):
            codes = [EXIT_CODES[verdict] for verdict in chosen]
            assert result_of(chosen).exit_code == min(codes, key=PRECEDENCE.index)


def test_undecided_may_pass_and_nothing_else() -> None:
    for verdict, code in EXIT_CODES.items():
        assert result_of([verdict], is_undecided_passing=True).exit_code == (0 if code == 3 else code)
    assert result_of(["undecided", "missing"], is_undecided_passing=True).exit_code == 4


def test_a_regression_shows_beside_an_undecided_and_a_missing_shape(make_run: Callable[..., Path], file: Path) -> None:
    run = edit(make_run(num_blocks=2, failed=(0,)), with_digest_if_ok, of_tree("torch_ops.verify", 1))
    result = gate_folders(run, file, EVERYTHING)
    assert {row.verdict for row in result.rows} >= {"regression", "missing", "undecided"}
    assert result.exit_code == 1


def with_digest_if_ok(result: dict[str, Any]) -> None:
    if result["status"] == "ok":
        with_digest(result)


def test_what_cannot_be_read_is_a_row_and_not_an_error() -> None:
    nothing = NotMeasured(not_measured="unreadable")
    result = gate(nothing, nothing, EVERYTHING)
    assert [(row.kind, row.verdict) for row in result.rows] == [("run", "missing"), ("baseline", "incomparable")]
    assert result.exit_code == 4


# ---------------------------------------------------------------------------------------------------------------- notes


def test_slow_plain_decoding_and_a_busy_host_are_pointed_out(make_run: Callable[..., Path], file: Path) -> None:
    """H63."""

    def busy(result: dict[str, Any]) -> None:
        for one in result["passes"]:
            one["load"]["host_load_before"] = 0.9

    calm = gate_folders(edit(make_run(slow={"verify": 1.5}), with_digest), file, EVERYTHING)
    assert not any("host busy" in note or "Plain decoding" in note for note in calm.notes)
    loaded = edit(make_run("busy", slow={"verify": 1.5}), with_digest, busy)
    assert any("host busy" in note for note in gate_folders(loaded, file, EVERYTHING).notes)
    slowed = slow_down(edit(make_run("slow"), with_digest), 1.5)
    result = gate_folders(slowed, file, EVERYTHING)
    assert result.exit_code == 1
    assert any("Plain decoding (ar) is slower too" in note for note in result.notes)


def test_a_floor_that_hides_everything_is_pointed_out(make_run: Callable[..., Path], tmp_path: Path) -> None:
    """A gate that cannot fail must not look like one that passed."""
    rng = np.random.default_rng(0)
    cases = make_cases(num_blocks=8, **SMALL)
    restless = build_run(tmp_path / "restless", SyntheticPlan(name="restless", cases=cases, machine=1))
    for case in sorted(restless.glob("cases/*")):
        slow_down(restless, float(rng.uniform(1, 3)), case.name)
    write_baseline(tmp_path / "baseline.json", baseline_of_folders([restless]))
    result = gate_folders(make_run(num_blocks=8), tmp_path / "baseline.json", Request(only="timings"))
    assert any("noise floor above 25 %" in note for note in result.notes)


def slow_down(folder: Path, factor: float, case: str = "*") -> Path:
    """Every arm, or one case, takes that much longer."""
    for path in folder.glob(f"cases/{case}/requests.parquet"):
        table = pq.read_table(path)
        for name in ("first_token_ns", "last_token_ns", "admitted_ns"):
            values = pa.array([int(factor * value) for value in table[name].to_pylist()], table.schema.field(name).type)
            table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), values)
        pq.write_table(table, path)
    return folder
