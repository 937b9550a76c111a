"""Numbers of a window: they add up to the capture's own, to single nanoseconds, and to the window."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.analysis.frames import RunFrames, load_run
from ddbench.analysis.profile.captured_case import captured_cases
from ddbench.analysis.profile.idle import Cause
from ddbench.analysis.profile.tax import tax_of
from ddbench.analysis.synthetic_captures import LATENCY_NS, NODE_GAP_NS
from ddbench.timeline.rounds import rounds_of
from ddbench.timeline.summary import LATENCY_QUANTILES, Summary, summary_of
from ddbench.timeline.window import Window, window_of

END = 60
MakeWindow = Callable[..., Window]
ops_ = st.lists(
    st.builds(
        lambda start, length, step, stage, stream: {
            "start_ns": start,
            "end_ns": min(END, start + length),
            "launch_ns": max(0, start - 3),
            "round": step,
            "stage": stage,
            "stream": stream,
            "basis": "launch" if stage else "unattributed",
        },
        st.integers(0, END - 1),
        st.integers(0, 9),
        st.integers(-1, 2),
        st.sampled_from(["verify", "draft", "commit", ""]),
        st.integers(6, 7),
    ),
    max_size=12,
)


@settings(max_examples=30)
@given(ops_)
def test_busy_time_is_the_nanoseconds_in_which_anything_runs(
    make_window: MakeWindow, ops: list[dict[str, Any]]
) -> None:
    """H12: concurrent streams count once, so that no share can exceed the whole."""
    summary = summary_of(make_window(ops, end=END))
    rounds = summary.rounds
    for place in range(len(rounds.steps)):
        inside = range(int(rounds.begin_ns[place]), int(rounds.end_ns[place]))
        busy = sum(any(op["start_ns"] <= at < op["end_ns"] for op in ops) for at in inside)
        assert summary.busy_per_round[place] == busy
    assert 0 <= summary.busy_share <= 1
    for line in summary.stages:
        per_round = [
            len(
                {
                    at
                    for op in ops
                    if op["stage"] == line.stage and (not rounds.is_split or op["round"] == step)
                    for at in range(op["start_ns"], op["end_ns"])
                }
            )
            for step in rounds.steps
        ]
        assert line.busy_ns == np.median(per_round)


@settings(max_examples=30)
@given(ops_)
def test_stages_add_up_to_the_ledger(make_window: MakeWindow, ops: list[dict[str, Any]]) -> None:
    window = make_window(ops, end=END)
    stages = summary_of(window).stages
    assert sum(line.total_ns for line in stages) == sum(line.time_ns for line in window.capture.ledger)
    assert sum(line.count for line in stages) == sum(line.count for line in window.capture.ledger)


@settings(max_examples=30)
@given(ops_)
def test_busy_and_idle_of_all_periods_fill_the_window(make_window: MakeWindow, ops: list[dict[str, Any]]) -> None:
    summary = summary_of(make_window(ops, end=END))
    rounds, idle = summary.rounds, summary.idle
    assert rounds.begin_ns[0] == 0
    assert (rounds.begin_ns[1:] == rounds.end_ns[:-1]).all()
    split = summary.busy_per_round + summary.idle_per_round(False) + summary.idle_per_round(True)
    assert (split == rounds.period_ns).all()
    after = idle[(idle["place"] == len(rounds.steps)).to_numpy()]
    later = range(int(rounds.end_ns[-1]), END)
    rest = sum(any(op["start_ns"] <= at < op["end_ns"] for op in ops) for at in later)
    assert rounds.end_ns[-1] + rest + (after["end_ns"] - after["start_ns"]).sum() == END
    assert sum(line.total_ns for line in summary.idle_lines) == (idle["end_ns"] - idle["start_ns"]).sum()


def test_rounds_that_overlap_on_the_host_do_not_on_the_device(make_window: MakeWindow) -> None:
    """Tokens that are read a round late: round 5 is launched before round 4 has ended."""
    ops = [{"round": step, "start_ns": 20 * step, "end_ns": 20 * step + 15, "launch_ns": 0} for step in range(3)]
    ranges = [{"kind": "round", "name": "", "round": step, "start_ns": step, "end_ns": 30 + step} for step in range(3)]
    rounds = rounds_of(make_window(ops, [], ranges, end=60))
    assert rounds.begin_ns.tolist() == [0, 15, 35]
    assert rounds.end_ns.tolist() == [15, 35, 55]


def test_a_round_without_an_op_counts_as_none(make_window: MakeWindow) -> None:
    """An average hides empty rounds; a median over all of them does not."""
    ops = [{"round": 0, "stage": "draft", "start_ns": 0, "end_ns": 9}]
    ops += [{"round": step, "start_ns": 10 * step, "end_ns": 10 * step + 5} for step in range(1, 5)]
    stages = {line.stage: line for line in summary_of(make_window(ops)).stages}
    assert stages["draft"].busy_ns == 0
    assert stages["verify"].busy_ns == 5


def test_latency_is_apart_for_an_idle_and_a_busy_device(make_window: MakeWindow) -> None:
    ops = [
        {"start_ns": 10, "end_ns": 30, "launch_ns": 4},
        {"start_ns": 30, "end_ns": 40, "launch_ns": 12},
        {"start_ns": 50, "end_ns": 55, "launch_ns": 45, "is_replayed": True, "basis": "capture"},
        {"start_ns": 56, "end_ns": 60, "launch_ns": 45, "is_replayed": True, "basis": "capture"},
        {"kind": "copy", "direction": "device to host", "start_ns": 70, "end_ns": 75, "launch_ns": -1},
    ]
    lines = {line.what: line for line in summary_of(make_window(ops)).latencies}
    assert {what: (line.count, line.quantiles_ns[1]) for what, line in lines.items()} == {
        "kernel, device idle": (1, 6),
        "kernel, device busy": (1, 18),
        "graph replay, device idle": (1, 5),
    }
    assert LATENCY_QUANTILES[1] == 0.5


def test_an_empty_window_has_numbers_too(make_window: MakeWindow) -> None:
    summary = summary_of(make_window([]))
    assert (summary.busy_share, summary.stages, summary.kernels, summary.latencies) == (0, (), (), ())
    assert not summary.rounds.is_split


# --- a run whose truth is known ---


@pytest.fixture(scope="module")
def frames(captured_run: Path) -> RunFrames:
    return load_run(captured_run)


def summary(frames: RunFrames, folder: Path, place: int, tool: Any = "nsys") -> Summary:
    run, case_id = frames.cases["run"].iloc[place], frames.cases["case_id"].iloc[place]
    return summary_of(window_of(frames, folder, (run, case_id), "label", tool))


def test_latencies_and_gaps_are_those_that_were_made(frames: RunFrames, captured_run: Path) -> None:
    eager, graph = (summary(frames, captured_run, place) for place in (4, 5))
    latencies = {line.what: line.quantiles_ns for line in eager.latencies}
    assert set(latencies["kernel, device idle"]) == {LATENCY_NS}
    idle = graph.idle[(graph.idle["cause"] == Cause.REPLAY).to_numpy()]
    assert set(idle["end_ns"] - idle["start_ns"]) == {NODE_GAP_NS}
    assert len(graph.rounds.steps) == 5
    assert graph.rounds.steps[0] == 4


def test_copies_and_syncs_have_their_stage_and_size(frames: RunFrames, captured_run: Path) -> None:
    lines = summary(frames, captured_run, 4).traffic
    copies = {
        (line.what, line.stage): (line.num_per_round, line.bytes_per_round)
        for line in lines
        if line.bytes_per_round is not None
    }
    assert copies["copy device to host", "tree_build"] == (1, 3584)
    assert copies["copy device to host", "accept"] == (1, 64)
    syncs = {line.stage: line.num_per_round for line in lines if line.bytes_per_round is None}
    assert syncs == {"tree_build": 1, "accept": 1}
    assert "device to host" in lines[0].what, "the host's reads come first"


def test_tokens_are_those_of_the_clean_pass(frames: RunFrames, captured_run: Path) -> None:
    shown = summary(frames, captured_run, 4)
    rounds = frames.rounds[(frames.rounds["case_id"] == shown.window.case_id).to_numpy()]
    rounds = rounds[((rounds["pass_name"] == "clean") & (rounds["pass_index"] == 0)).to_numpy()]
    for step, tokens in zip(shown.rounds.steps, shown.rounds.tokens, strict=True):
        own = rounds[(rounds["step"] == step).to_numpy()]
        assert tokens is not None
        assert tokens.num_emitted == own["num_emitted"].sum()
        assert tokens.num_accepted == own["num_accepted"].sum()


def test_tax_is_the_reports(frames: RunFrames, captured_run: Path) -> None:
    shown = summary(frames, captured_run, 4)
    case = captured_cases(frames)[shown.window.run, shown.window.case_id]
    assert shown.window.tax == tax_of(case, case.passes["nsys"])


def test_a_tools_rows_are_its_own(frames: RunFrames, captured_run: Path) -> None:
    shown = summary(frames, captured_run, 1, "torch")
    assert len(shown.window.ops) == sum(line.count for line in shown.window.capture.ledger)
