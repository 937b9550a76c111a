"""Attribution: by launch, by capture, what is only approximate, and a ledger that adds up to everything."""

import runpy
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis.nsys.attribution import Attribution
from ddbench.analysis.nsys.export import read_export
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.captured import LedgerLine

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("nsys_exports.py"))))
MAIN, OTHER_THREAD, OTHER_PROCESS = made.MAIN, made.thread_id(4242, 7), made.thread_id(99, 99)
NODE, CLONE = (1 << 32) | 1, (2 << 32) | 1
GRAPH_LAUNCH = "cudaGraphLaunch_v10000"


@pytest.fixture
def rec() -> Any:
    """A capture whose last moment no stage range reaches."""
    found = made.Recorder()
    found.domain(MAIN)
    found.domain(OTHER_PROCESS)
    found.call(MAIN, 10**6, 10**6 + 1, "cudaDeviceSynchronize_v3020")
    found.call(OTHER_PROCESS, 10**6, 10**6 + 1, "cudaDeviceSynchronize_v3020")
    return found


def attributed(rec: Any) -> Attribution:
    with tempfile.TemporaryDirectory() as folder:
        return made.attribute(read_export(rec.write_sqlite(Path(folder) / "capture.sqlite")))


def time_of(found: Attribution) -> int:
    return sum(line.time_ns for line in found.ledger)


def charged(rec: Any) -> list[tuple[str | None, str]]:
    """Stage and basis of each op in the order of their start."""
    ops = attributed(rec).ops
    return [(None if pd.isna(stage) else stage, basis) for stage, basis in zip(ops["stage"], ops["basis"], strict=True)]


# --- by hand ---


def test_a_small_capture_to_the_nanosecond(tmp_path: Path) -> None:
    """H14: launch and capture are two columns; each op counts once."""
    for form in ("sqlite", "parquet"):
        found = made.attribute(read_export(made.small_capture().write(tmp_path, form)))
        assert found.ops["launch_stage"].dropna().tolist() == ["draft", "verify", "verify"]
        assert found.ops["capture_stage"].dropna().tolist() == ["draft", "verify"]
        assert found.ops["round"].tolist() == [0, 0, 0, 1, 1, -1]
        assert [(line.count, line.time_ns) for line in found.ledger] == [
            (3, 55_000),
            (2, 50_000),
            (0, 0),
            (1, 1000),
        ]
        ops = found.ops.assign(time_ns=found.ops["end_ns"] - found.ops["start_ns"])
        stages = ops.groupby("stage", observed=True, dropna=False)
        assert stages.size().tolist() == [2, 3, 1]
        assert stages[["time_ns", "num_bytes"]].sum().values.tolist() == [[30_000, 0], [75_000, 4096], [1000, 64]]


def test_the_innermost_stage_is_charged(rec: Any) -> None:
    """H1: a stage within a stage, and the outer one again behind it."""
    rec.nvtx(MAIN, "verify", 0, 100)
    rec.nvtx(MAIN, "accept", 20, 40)
    for index, start in enumerate((10, 30, 50)):
        rec.kernel(MAIN, rec.call(MAIN, start, start + 5), 1000 * index, 1000 * index + 10)
    assert charged(rec) == [("verify", "launch"), ("accept", "launch"), ("verify", "launch")]


def test_correlation_ids_are_those_of_a_process(rec: Any) -> None:
    rec.nvtx(MAIN, "draft", 0, 100)
    rec.nvtx(OTHER_PROCESS, "verify", 0, 100)
    rec.call(MAIN, 10, 20, correlationId=500)
    rec.call(OTHER_PROCESS, 10, 20, correlationId=500)
    rec.kernel(MAIN, 500, 1000, 1010)
    rec.kernel(OTHER_PROCESS, 500, 2000, 2010)
    assert charged(rec) == [("draft", "launch"), ("verify", "launch")]


def test_a_range_holds_its_own_thread_only(rec: Any) -> None:
    rec.nvtx(MAIN, "draft", 0, 100)
    rec.kernel(MAIN, rec.call(OTHER_THREAD, 10, 20), 1000, 1010)
    assert charged(rec) == [(None, "unattributed")]


def test_the_name_of_a_stage_in_another_domain_is_nobodys(rec: Any) -> None:
    """H6."""
    rec.domain(MAIN, "NCCL", 2)
    rec.nvtx(MAIN, "verify", 0, 100, domainId=2)
    rec.nvtx(MAIN, "verify", 0, 100, domainId=0)
    rec.kernel(MAIN, rec.call(MAIN, 10, 20), 1000, 1010)
    assert charged(rec) == [(None, "unattributed")]


def test_a_launch_before_the_window_leaves_the_total_whole(rec: Any) -> None:
    """H9: no API call for the kernel."""
    rec.nvtx(MAIN, "verify", 0, 100)
    rec.kernel(MAIN, 12_345, 50, 60)
    rec.kernel(MAIN, 0, 70, 80)
    found = attributed(rec)
    assert found.ledger[-1] == LedgerLine(basis="unattributed", count=2, time_ns=20)
    assert time_of(found) == 20


@pytest.mark.parametrize("cells", [{"endGlobalTid": OTHER_THREAD}, {"end": 10**6 + 1}, {"end": None}])
def test_weak_evidence_is_called_approximate(rec: Any, cells: dict[str, Any]) -> None:
    """H2, H3: ended on another thread, or never closed."""
    end = cells.pop("end", 100)
    rec.nvtx(MAIN, "verify", 0, end, **cells)
    rec.kernel(MAIN, rec.call(MAIN, 10, 20), 1000, 1010)
    assert charged(rec) == [("verify", "approximate")]
    assert attributed(rec).ops["launch_stage"].isna().all()


def test_clones_of_clones_lead_to_the_capture(rec: Any) -> None:
    rec.nvtx(MAIN, "commit", 0, 100)
    rec.node(MAIN, NODE, 50)
    rec.node(MAIN, CLONE, 200, original=NODE)
    rec.node(MAIN, CLONE + 1, 300, original=CLONE)
    rec.kernel(MAIN, rec.call(MAIN, 400, 410, GRAPH_LAUNCH), 1000, 1010, graphNodeId=CLONE + 1)
    assert charged(rec) == [("commit", "capture")]


def test_an_id_used_again_means_its_latest_node(rec: Any) -> None:
    rec.nvtx(MAIN, "draft", 0, 100)
    rec.nvtx(MAIN, "verify", 2000, 2100)
    rec.node(MAIN, NODE, 50)
    rec.node(MAIN, NODE, 2050)
    rec.kernel(MAIN, rec.call(MAIN, 400, 410, GRAPH_LAUNCH), 1000, 1010, graphNodeId=NODE)
    rec.kernel(MAIN, rec.call(MAIN, 3000, 3010, GRAPH_LAUNCH), 4000, 4010, graphNodeId=NODE)
    assert charged(rec) == [("draft", "capture"), ("verify", "capture")]


@pytest.mark.parametrize("original", [None, CLONE + 5, CLONE])
def test_a_capture_outside_of_the_recording_is_unknown(rec: Any, original: int | None) -> None:
    """H17: no event, an event whose original has none, a node that comes from itself. The launch is weak evidence."""
    if original is not None:
        rec.node(MAIN, CLONE, 50, original=original)
    rec.nvtx(MAIN, "verify", 300, 500)
    for index, start in enumerate((400, 600)):
        launch = rec.call(MAIN, start, start + 10, GRAPH_LAUNCH)
        rec.kernel(MAIN, launch, 1000 * (index + 1), 1000 * (index + 1) + 10, graphNodeId=CLONE)
    assert charged(rec) == [("verify", "approximate"), (None, "unattributed")]


def replayed(rec: Any, num_launches: int, num_recorded: int, num_nodes: int = 3) -> Any:
    rec.nvtx(MAIN, "verify", 0, 100)
    for node in range(num_nodes):
        rec.node(MAIN, NODE + node, 10 + node)
    for index in range(num_launches):
        launch = rec.call(MAIN, 200 + 10 * index, 205 + 10 * index, GRAPH_LAUNCH)
        rec.call(MAIN, 201 + 10 * index, 204 + 10 * index, "cuGraphLaunch")  # the driver's, within the runtime's
        for node in range(num_nodes if index < num_recorded else 0):
            start = 10_000 + 1000 * index + 10 * node
            rec.kernel(MAIN, launch, start, start + 10, graphNodeId=NODE + node)
    return rec


def test_replays_that_were_all_recorded_give_totals(rec: Any) -> None:
    found = attributed(replayed(rec, 20, 20))
    assert (found.recording.num_launches, found.recording.num_replays) == (20, 20)
    assert found.withheld == ""


def test_lost_replays_withhold_totals(rec: Any) -> None:
    """H18: the ledger still adds up, over what there is."""
    found = attributed(replayed(rec, 100, 37))
    assert "100 graph launches, 37 replays" in found.withheld
    assert sum(line.count for line in found.ledger) == 37 * 3


def test_one_lost_node_withholds_totals(rec: Any) -> None:
    rec = replayed(rec, 20, 20)
    del rec.tables["CUPTI_ACTIVITY_KIND_KERNEL"][31]
    found = attributed(rec)
    assert "1 of 20 replays lack nodes" in found.withheld


def test_whole_replays_have_time_but_no_kernels(rec: Any) -> None:
    """H13: a capture in graph mode."""
    rec.nvtx(MAIN, "verify", 0, 100)
    rec.graph_trace(MAIN, rec.call(MAIN, 10, 20, GRAPH_LAUNCH), 1000, 1500)
    found = attributed(rec)
    assert (found.recording.num_untraced, found.withheld) == (1, "")
    assert time_of(found) == 500
    assert charged(rec) == [("verify", "approximate")]


def test_a_replay_is_not_counted_beside_its_nodes(rec: Any) -> None:
    rec = replayed(rec, 1, 1)
    kernel = rec.tables["CUPTI_ACTIVITY_KIND_KERNEL"][0]
    rec.graph_trace(MAIN, kernel["correlationId"], 10_000, 10_030)
    assert time_of(attributed(rec)) == 30


def test_nothing_on_a_device_is_not_measured(rec: Any) -> None:
    """H25."""
    found = attributed(rec)
    assert "device" in found.withheld
    assert time_of(found) == 0


def test_the_export_says_which_gpu_a_device_is(rec: Any) -> None:
    """Both processes call theirs 0."""
    for process, gpu in ((MAIN, 3), (OTHER_PROCESS, 5)):
        rec.nvtx(process, "verify", 0, 100)
        rec.kernel(process, rec.call(process, 10, 20), 1000, 2000)
        rec.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=(process >> 24) & 0xFFFFFF)
    assert sorted(attributed(rec).ops["gpu"]) == [3, 5]


# --- against brute force ---

# Few moments, ids and threads, so that most ops find a call or a node, and most of those a range; `mostly` weighs.


def mostly(usual: Any, *rare: Any) -> Any:
    return st.sampled_from([usual] * 5 + list(rare))


moments, lengths = st.integers(0, 60), st.integers(0, 25)
early, long = st.integers(0, 8), st.integers(2, 20)
threads = mostly(MAIN, OTHER_THREAD, OTHER_PROCESS)
names = st.sampled_from(["draft", "verify", "commit", "round/3", "elsewhere"])
nvtx_rows = st.tuples(
    threads, names, early, st.one_of(long, long, long, st.none()), mostly(None, MAIN, OTHER_THREAD), mostly(1, 0)
)
call_rows = st.tuples(threads, st.integers(0, 16), st.integers(0, 2), mostly(1, 2, 3, 0))
node_rows = st.tuples(threads, st.integers(1, 3), st.integers(0, 16), st.sampled_from([None, None, None, 1, 2, 3]))
op_rows = st.tuples(threads, mostly(1, 2, 3, 4, 0), moments, lengths, st.sampled_from([0, 0, 0, 1, 2, 3]))
last_calls = mostly([(MAIN, 100, 1, 9), (OTHER_PROCESS, 100, 1, 9)], [])
captures = st.tuples(
    st.lists(nvtx_rows, min_size=2, max_size=14),
    st.tuples(st.lists(call_rows, min_size=2, max_size=12), last_calls).map(lambda both: both[0] + both[1]),
    st.lists(node_rows, min_size=1, max_size=8),
    st.lists(op_rows, min_size=1, max_size=16),
)


def recorded(capture: Any) -> Any:
    rec = made.Recorder()
    for thread in (MAIN, OTHER_PROCESS):
        rec.domain(thread)
    ranges, calls, nodes, ops = capture
    for thread, name, start, length, ended_by, domain in ranges:
        end = None if length is None else start + length
        rec.nvtx(thread, name, start, end, endGlobalTid=ended_by, domainId=domain)
    for thread, start, length, correlation in calls:
        rec.call(thread, start, start + length, correlationId=correlation)
    for thread, node, at, original in nodes:
        rec.node(thread, node, at, original=original)
    for thread, correlation, start, length, node in ops:
        rec.kernel(thread, correlation, start, start + length, graphNodeId=node)
    return rec


def process_of(thread: int) -> int:
    return thread >> 24


def around(ranges: list[Any], start: int, end: int) -> str | None:
    """Name of the innermost of these ranges that holds [start, end]."""
    holding = [
        (low, -(high - low), row, name) for row, (low, high, name) in enumerate(ranges) if low <= start and high >= end
    ]
    return max(holding)[3] if holding else None


def expected_of(capture: Any, op: Any) -> tuple[str | None, str, str | None, str | None, int]:
    """Stage, basis, launch stage, capture stage, round: one op, every row in turn."""
    ranges, calls, nodes, _ = capture
    thread, correlation, at, _, node = op
    own = process_of(thread)

    def last_moment(process: int) -> int:
        ends = [start + (length or 0) for t, _, start, length, _, _ in ranges if process_of(t) == process]
        return max([*ends, *(start + length for t, start, length, _ in calls if process_of(t) == process)], default=0)

    def kept(names: Any, is_exact: bool, holds: Any) -> list[Any]:
        found = []
        for t, name, start, length, ended_by, domain in ranges:
            last = last_moment(process_of(t))
            end = last if length is None else start + length
            is_sound = end != last and length is not None and ended_by in (None, t)
            if domain == 1 and names(name) and is_sound == is_exact and holds(t):
                found.append((start, end, name))
        return found

    def stage_at(t: int, start: int, end: int) -> str | None:
        return around(kept(lambda name: name in STAGE_NAMES, True, lambda other: other == t), start, end)

    def node_event(process: int, wanted: int, until: int) -> Any:
        rows = [(start, row) for row, (t, n, start, _) in enumerate(nodes) if (process_of(t), n) == (process, wanted)]
        rows = [found for found in rows if found[0] <= until]
        return nodes[max(rows)[1]] if rows else None

    found = sorted(
        (start, row) for row, (t, start, _, c) in enumerate(calls) if c == correlation != 0 and process_of(t) == own
    )
    launch = weaker = None
    step = -1
    if found:
        call_thread, start, length, _ = calls[found[0][1]]
        launch = stage_at(call_thread, start, start + length)
        in_process = kept(lambda name: name in STAGE_NAMES, False, lambda other: process_of(other) == own)
        weaker = around(in_process, start, start + length)
        rounds = kept(lambda name: name == "round/3", True, lambda other: other == call_thread)
        step = 3 if around(rounds, start, start + length) else -1
    event, seen = node_event(own, node, at) if node else None, 0
    while event is not None and event[3] is not None and seen < 20:
        event, seen = node_event(process_of(event[0]), event[3], event[2]), seen + 1
    capture_stage = stage_at(event[0], event[2], event[2]) if event is not None and event[3] is None else None
    exact = capture_stage if node else launch
    stage = exact or launch or weaker
    basis = ("capture" if node else "launch") if exact else "approximate" if stage else "unattributed"
    return stage, basis, launch, capture_stage, step


@given(captures)
def test_attribution_equals_brute_force(capture: Any) -> None:
    """Random nests and overlaps, threads, processes, correlation ids, clones, cycles; the ledger adds up."""
    found = attributed(recorded(capture))
    columns = ["start_ns", "end_ns", "stage", "basis", "launch_stage", "capture_stage", "round"]
    ops = found.ops[columns].astype(object)
    got = Counter(ops.where(ops.notna(), None).itertuples(index=False, name=None))
    wanted = Counter((op[2], op[2] + op[3], *expected_of(capture, op)) for op in capture[3])
    assert got == wanted
    for line in found.ledger:
        own = [key for key in wanted.elements() if key[3] == line.basis]
        assert (line.count, line.time_ns) == (len(own), sum(end - start for start, end, *_ in own))
