"""The gate over ops: what passes, what fails and why. Runs are made up, with the noise of the committed H200 report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddbench.analysis.gate.policies import Request
from ddbench.analysis.gate.rows import GateResult, Row
from ddbench.errors import UserError
from ddbench.opbench.gate.baseline import OpsBaseline, read_ops, read_ops_baseline, write_ops_baseline
from ddbench.opbench.gate.result import gate_ops, gate_ops_folders
from ddbench.opbench.gate.times import METRIC
from ddbench.opbench.records import IncorrectRow, NotMeasuredRow, OpRow, OpsFile
from ddbench.records import NotMeasured

EVERYTHING, TIMINGS, COUNTERS = Request(), Request(only="timings"), Request(only="counters")
PLANTED = "moe_experts_int4"
NUM_RUNS = 200


@pytest.fixture
def base(maker: Any) -> OpsBaseline:
    """Of five processes."""
    return maker.baseline(range(5))


def told(result: GateResult, *verdicts: str) -> list[Row]:
    return [row for row in result.rows if row.verdict in verdicts]


def without(file: OpsFile, keep: Callable[[OpRow], bool], *more: OpRow) -> OpsFile:
    return file.model_copy(update={"rows": (*filter(keep, file.rows), *more)})


def elsewhere(file: OpsFile, **environment: Any) -> OpsFile:
    return file.model_copy(update={"environment": file.environment.model_copy(update=environment)})


# -------------------------------------------------------------------------------------------- same code, slower code


def test_the_same_code_passes_and_says_how_sure_that_is(maker: Any, base: OpsBaseline) -> None:
    result = gate_ops(maker.file(100), base, EVERYTHING)
    assert result.exit_code == 0, result.headline
    assert {row.verdict for row in result.rows} == {"same"}
    gated = [row for row in base.rows if not row.is_control]
    assert sum(row.kind == "timing" for row in result.rows) == len(gated)
    assert sum(row.kind == "counter" for row in result.rows) == 3 * len(gated)
    assert any("about 1.00 % raise a false alarm" in note for note in result.notes)
    assert any("The machine against the baseline's" in note and "matmul" in note for note in result.notes)


def test_false_alarms_are_as_rare_as_the_note_says(maker: Any) -> None:
    """200 baselines of five processes and a sixth of the same code: alarms of any of 149 times, either way."""
    alarms = improved = 0
    for i in range(NUM_RUNS):
        base = maker.baseline(range(10 * i, 10 * i + 5))
        result = gate_ops(maker.file(10 * i + 5), base, TIMINGS)
        alarms += result.exit_code != 0
        improved += bool(told(result, "improved"))
    assert alarms <= 2 * 0.01 * NUM_RUNS
    assert improved <= 2 * 0.01 * NUM_RUNS


def test_five_percent_of_one_kernel_fail_and_name_it(maker: Any, base: OpsBaseline) -> None:
    result = gate_ops(maker.file(101, slow={PLANTED: 1.05}), base, EVERYTHING)
    assert result.exit_code == 1
    bad = told(result, "regression")
    assert {row.shape.split()[0] for row in bad} == {PLANTED}, "and nothing else is blamed"
    assert "moe_experts_int4 kimi-k2.6-ep8-t64 triton cold" in {row.shape for row in bad}
    assert {(row.kind, row.name) for row in bad} == {("timing", METRIC)}
    assert all(row.timing is not None and 1.03 < row.timing.ratio < 1.08 for row in bad)
    assert all("worse by more than the" in row.reason for row in bad)


def test_five_percent_are_seen_in_every_kernel_that_is_long_enough_and_not_restless(
    maker: Any, base: OpsBaseline
) -> None:
    """One run for each op, with twice the noise of the report; restless: what a process does not repeat by itself."""
    seen: dict[str, bool] = {}
    for index, op in enumerate(sorted({row.op for row in base.rows if not row.is_control})):
        result = gate_ops(maker.file(200 + index, slow={op: 1.05}), base, TIMINGS)
        long = [row for row in result.rows if row.kind == "timing" and float(row.before or 0) > 10]  # type: ignore[arg-type]
        seen |= {row.shape: row.verdict == "regression" for row in long if row.shape.startswith(f"{op} ")}
    assert len(seen) > 40
    hidden = {label for label, is_seen in seen.items() if not is_seen}
    assert hidden <= maker.restless
    assert len(maker.restless) < len(seen) / 6


def test_a_faster_kernel_passes_and_asks_for_a_new_baseline(maker: Any, base: OpsBaseline) -> None:
    result = gate_ops(maker.file(102, slow={PLANTED: 0.9}), base, EVERYTHING)
    assert result.exit_code == 0
    assert {row.shape.split()[0] for row in told(result, "improved")} == {PLANTED}
    assert any("make it anew" in note for note in result.notes)


def test_what_is_within_the_noise_floor_is_the_same_and_counted_as_hidden(maker: Any, base: OpsBaseline) -> None:
    result = gate_ops(maker.file(103, slow={"mla_tree_attention": 1.05}), base, TIMINGS)
    wide = [row for row in base.rows if row.op == "mla_tree_attention" and isinstance(row.floor, float)]
    restless = max(wide, key=lambda row: row.floor if isinstance(row.floor, float) else 0.0)
    assert isinstance(restless.floor, float)
    assert restless.floor > 0.1
    assert {row.shape: row for row in result.rows}[restless.label].verdict == "same"
    times = [row.timing for row in result.rows if row.timing is not None]
    hidden = sum(max(row.floor, 200 / row.typical_ns) > 0.05 for row in base.rows if isinstance(row.floor, float))
    assert 0 < hidden < len(times)
    note = f"A slowdown of 5.00 % would not show in {hidden} of {len(times)} times"
    assert any(note in one for one in result.notes)


def test_what_nobody_would_feel_is_the_same_however_quiet_the_machine(maker: Any) -> None:
    """6 % of a kernel of 1.7 us are 0.1 us."""
    base = maker.baseline(range(5), 0.3)
    label = "swiglu kimi-k2.6-shared-t1 triton cold"
    (held,) = (row for row in base.rows if row.label == label)
    assert isinstance(held.floor, float)
    assert held.floor < 0.04
    result = gate_ops(maker.file(103, width=0.3, slow={"swiglu": 1.06}), base, TIMINGS)
    (row,) = (row for row in result.rows if row.shape == label)
    assert (row.verdict, row.reason) == ("same", "above the threshold, within 0.2 us")
    slower = gate_ops(maker.file(103, width=0.3, slow={"swiglu": 1.3}), base, TIMINGS)
    assert {row.shape: row.verdict for row in slower.rows}[label] == "regression"


def test_a_threshold_of_the_command_line_counts(maker: Any, base: OpsBaseline) -> None:
    slow = maker.file(104, slow={PLANTED: 1.05})
    assert gate_ops(slow, base, Request(only="timings", thresholds={METRIC: 0.2})).exit_code == 0
    with pytest.raises(UserError, match="no timing of an op is called 'time': did you mean 'time_us'"):
        gate_ops(slow, base, Request(thresholds={"time": 0.2}))


# -------------------------------------------------------------------------------------------------------- the machine


@pytest.mark.parametrize("bound", ["", "replay", "read cold"])
def test_a_slower_machine_is_told_as_such_and_no_kernel_is_blamed(maker: Any, base: OpsBaseline, bound: str) -> None:
    result = gate_ops(maker.file(105, drift={bound: 1.06}), base, EVERYTHING)
    assert not told(result, "regression")
    (row,) = (row for row in result.rows if row.name == "machine")
    assert (row.verdict, result.exit_code) == ("undecided", 3)
    assert "the machine is slower" in row.reason
    assert "+6" in row.reason or "+5.9" in row.reason
    assert all("slower as the machine is" in one.reason for one in told(result, "not_gated"))
    assert told(result, "not_gated")


def test_a_slow_kernel_on_a_slow_machine_is_still_one(maker: Any, base: OpsBaseline) -> None:
    result = gate_ops(maker.file(106, drift={"": 1.06}, slow={PLANTED: 1.06}), base, TIMINGS)
    assert result.exit_code == 1
    assert {row.shape.split()[0] for row in told(result, "regression")} == {PLANTED}
    assert all("against the machine" in row.reason for row in told(result, "regression"))


def test_a_faster_machine_does_not_excuse_a_slow_kernel(maker: Any, base: OpsBaseline) -> None:
    result = gate_ops(maker.file(107, drift={"": 0.92}, slow={PLANTED: 1.08}), base, TIMINGS)
    assert result.exit_code == 3
    assert {row.shape.split()[0] for row in told(result, "undecided")} == {PLANTED}
    assert all("got faster" in row.reason for row in told(result, "undecided"))
    assert not told(result, "improved"), "what is only as much faster as the machine is no better"


def test_all_kernels_slower_without_any_control_is_the_code(maker: Any, base: OpsBaseline) -> None:
    """A change in what they share: launchers, compiler flags."""
    result = gate_ops(maker.file(108, drift={"": 1.06}, is_seen=False), base, TIMINGS)
    assert result.exit_code == 1
    assert len({row.shape.split()[0] for row in told(result, "regression")}) > 10
    assert not [row for row in result.rows if row.name == "machine"]
    assert any("moved together and no control with them" in note for note in result.notes)


# ------------------------------------------------------------------------------------------- counters, holes, places


def test_one_more_launch_fails_by_the_counter_alone(maker: Any, base: OpsBaseline) -> None:
    file = maker.file(109)
    rows = tuple(
        row.model_copy(update={"launches": row.launches + 1}) if row.op == "rms_norm" else row for row in file.rows
    )
    result = gate_ops(file.model_copy(update={"rows": rows}), base, COUNTERS)
    assert result.exit_code == 1
    assert {(row.shape.split()[0], row.name) for row in told(result, "regression")} == {("rms_norm", "launches")}
    assert not [row for row in result.rows if row.kind == "timing"]
    fewer = tuple(row.model_copy(update={"launches": 1}) if row.op == PLANTED else row for row in file.rows)
    better = gate_ops(file.model_copy(update={"rows": fewer}), base, COUNTERS)
    assert (better.exit_code, {row.name for row in told(better, "improved")}) == (0, {"launches"})


def test_other_bytes_of_the_same_shape_are_a_change_either_way(maker: Any, base: OpsBaseline) -> None:
    file = maker.file(110)
    rows = tuple(row.model_copy(update={"num_bytes": 0.9 * row.num_bytes}) for row in file.rows)
    result = gate_ops(file.model_copy(update={"rows": rows}), base, COUNTERS)
    assert result.exit_code == 1
    assert {row.name for row in told(result, "changed")} == {"num_bytes"}


def test_a_row_that_is_gone_or_not_measured_is_missing_with_its_reason(maker: Any, base: OpsBaseline) -> None:
    file = maker.file(111)
    names = {"op": PLANTED, "shape": "kimi-k2.6-ep8-t64", "about": "", "implementation": "triton", "kind": "ours"}
    absent = NotMeasuredRow(**names, reason="out of memory")
    holes = without(file, lambda row: row.op != "swiglu" and (row.op, row.shape) != (PLANTED, names["shape"]), absent)
    result = gate_ops(holes, base, EVERYTHING)
    assert result.exit_code == 4
    missing = {row.shape: row.reason for row in told(result, "missing")}
    assert missing["moe_experts_int4 kimi-k2.6-ep8-t64 triton"] == "out of memory"
    assert sum(label.startswith("swiglu ") for label in missing) == sum(row.op == "swiglu" for row in base.rows)


def test_a_part_can_be_gated_and_what_it_leaves_out_is_not_missing(maker: Any, base: OpsBaseline) -> None:
    part = without(maker.file(112, slow={PLANTED: 1.05}), lambda row: row.op == PLANTED)
    assert len(told(gate_ops(part, base, TIMINGS), "missing")) > 100
    result = gate_ops(part, base, Request(ops=(PLANTED,)))
    assert (result.exit_code, told(result, "missing")) == (1, [])
    assert {row.shape.split()[0] for row in result.rows} == {PLANTED}
    with pytest.raises(UserError, match="the baseline holds no op 'moe_expert': did you mean 'moe_experts_int4'"):
        gate_ops(part, base, Request(ops=("moe_expert",)))


def test_an_incorrect_kernel_is_a_regression_and_not_a_hole(maker: Any, base: OpsBaseline) -> None:
    names = {"op": "swiglu", "about": "", "implementation": "triton"}
    wrong = IncorrectRow(**names, shape="kimi-k2.6-shared-t1", kind="ours", detail="result: 3 of 4 differ")
    peer = IncorrectRow(**names, shape="other", kind="peer", detail="not ours")
    file = without(maker.file(113), lambda row: (row.op, row.shape) != ("swiglu", wrong.shape), wrong, peer)
    result = gate_ops(file, base, TIMINGS)
    assert result.exit_code == 1
    (row,) = told(result, "regression")
    assert (row.kind, row.reason) == ("output", "incorrect: result: 3 of 4 differ")
    assert gate_ops(file, base, Request(ops=(PLANTED,))).exit_code == 0, "another op was asked for"
    assert not told(result, "missing")


@pytest.mark.parametrize(
    ("environment", "what"),
    [({"device": "Another GPU"}, "another device"), ({"libraries": {"torch": "2.12"}}, "torch 2.11 then, 2.12 now")],
)
def test_another_device_or_torch_is_not_comparable(
    maker: Any, base: OpsBaseline, environment: dict[str, Any], what: str
) -> None:
    result = gate_ops(elsewhere(maker.file(114), **environment), base, EVERYTHING)
    assert result.exit_code == 5
    (row,) = result.rows
    assert what in row.reason


def test_times_of_another_driver_are_context_and_counters_still_hold(maker: Any, base: OpsBaseline) -> None:
    result = gate_ops(elsewhere(maker.file(115), driver="999"), base, EVERYTHING)
    assert result.exit_code == 5
    assert {row.verdict for row in result.rows if row.kind == "timing"} == {"incomparable"}
    assert {row.verdict for row in result.rows if row.kind == "counter"} == {"same"}
    assert gate_ops(elsewhere(maker.file(115), driver="999"), base, COUNTERS).exit_code == 0


def test_the_host_of_a_gpu_may_be_another(maker: Any, base: OpsBaseline) -> None:
    other = elsewhere(maker.file(116), cpu_model="another", num_threads=64)
    assert gate_ops(other, base, EVERYTHING).exit_code == 0


def test_few_samples_or_another_precision_are_another_question(maker: Any, base: OpsBaseline) -> None:
    file = maker.file(117)
    for change in ({"selection": "quick"}, {"dtype": "bfloat16"}):
        assert gate_ops(file.model_copy(update=change), base, EVERYTHING).exit_code == 5


# ------------------------------------------------------------------------------------------------------ a second run


def test_a_slowdown_must_show_in_the_second_run_too(maker: Any, base: OpsBaseline) -> None:
    slow, again, fine = (maker.file(seed, slow=slow) for seed, slow in ((118, {PLANTED: 1.06}),) * 2 + ((120, {}),))
    again = again.model_copy(update={"created_at": "later"})
    confirmed = gate_ops(slow, base, TIMINGS, again)
    assert confirmed.exit_code == 1
    assert all("confirmed by the second run" in row.reason for row in told(confirmed, "regression"))
    refuted = gate_ops(slow, base, TIMINGS, fine)
    assert (refuted.exit_code, told(refuted, "regression")) == (3, [])
    assert all("not confirmed by the second run" in row.reason for row in told(refuted, "undecided"))


def test_a_second_run_must_be_one_and_of_the_same_code(maker: Any, base: OpsBaseline) -> None:
    run = maker.file(121)
    with pytest.raises(UserError, match="is the run itself"):
        gate_ops(run, base, TIMINGS, run)
    with pytest.raises(UserError, match="is of other code"):
        gate_ops(run, base, TIMINGS, elsewhere(maker.file(122), code_digest="other"))


def test_without_a_noise_floor_nothing_is_told_from_times(maker: Any) -> None:
    result = gate_ops(maker.file(123, slow={PLANTED: 1.5}), maker.baseline(range(1)), EVERYTHING)
    assert result.exit_code == 3
    assert {row.verdict for row in result.rows if row.kind == "timing"} == {"undecided"}
    assert gate_ops(maker.file(123), maker.baseline(range(1)), COUNTERS).exit_code == 0


def test_a_run_that_the_baseline_is_made_of_is_told(maker: Any, base: OpsBaseline) -> None:
    assert any("made of this very run" in note for note in gate_ops(maker.file(4), base, EVERYTHING).notes)


# ------------------------------------------------------------------------------------------------------ what is broken


def test_what_cannot_be_read_is_a_row_with_its_cure(tmp_path: Path, maker: Any, base: OpsBaseline) -> None:
    kept = tmp_path / "baseline.json"
    write_ops_baseline(kept, base)
    assert read_ops_baseline(kept) == base
    folder = tmp_path / "ops"
    folder.mkdir()
    (folder / "ops.json").write_text(maker.file(124).model_dump_json(), encoding="utf-8")
    assert read_ops(folder) == maker.file(124)
    assert gate_ops_folders(folder, kept, EVERYTHING).exit_code == 0
    absent = gate_ops_folders(folder, tmp_path / "absent.json", EVERYTHING)
    assert absent.exit_code == 5
    assert "there is no such baseline; make one of single ops with: ddbench qualify --ops" in absent.rows[0].reason
    for damage in (
        "",
        "[1]",
        '{"kind": "ops"',
        kept.read_text(encoding="utf-8").replace('"times_ns": [', '"t": ['),
        "{}",
    ):
        kept.write_text(damage, encoding="utf-8")
        result = gate_ops_folders(folder, kept, EVERYTHING)
        assert (result.exit_code, len(result.rows)) == (5, 1)
        assert "\n" not in result.rows[0].reason
    write_ops_baseline(kept, base)
    (folder / "ops.json").write_text("{", encoding="utf-8")
    damaged = gate_ops_folders(folder, kept, EVERYTHING)
    assert damaged.exit_code == 4
    assert "ddbench bench-ops --ours" in damaged.rows[0].reason
    os.remove(folder / "ops.json")
    assert gate_ops_folders(folder, kept, EVERYTHING).exit_code == 4


def test_a_run_without_any_time_was_not_measured(maker: Any, base: OpsBaseline) -> None:
    nothing = without(maker.file(125), lambda row: False)
    assert gate_ops(nothing, base, EVERYTHING).exit_code == 4
    assert gate_ops(NotMeasured(not_measured="damaged"), base, EVERYTHING).exit_code == 4
