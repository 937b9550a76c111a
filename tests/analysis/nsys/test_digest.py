"""From an export to the tables of a capture: by hand, cut against brute force, real captures of an H200, damage."""

import runpy
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.analysis.digest import digest
from ddbench.analysis.nsys.digest import digest_nsys
from ddbench.analysis.nsys.names import STAGE_NAMES, WINDOW
from ddbench.analysis.nsys.window import Window, ops_within
from ddbench.captured import CAPTURE_TABLES, TABLES_OF, Capture, CapturedRun, CaptureStart
from ddbench.records import NotMeasured

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("nsys_exports.py"))))
FIXTURES = Path(__file__).with_name("fixtures")
MAIN, OTHER_THREAD, OTHER_PROCESS, US = made.MAIN, made.thread_id(4242, 7), made.thread_id(99, 99), made.US


def captures_folder(folder: Path, export: Path, num_rounds: int = 2) -> Path:
    """What the driver leaves: the export in raw/, its account, and that of the captured process."""
    (folder / "raw").mkdir(parents=True)
    export.rename(folder / "raw" / export.name)
    start = CaptureStart(tool="nsys", tool_version="2025.3.2", seconds=9.0, reads=export.name, raw=("nsys.nsys-rep",))
    run = CapturedRun(first_round=0, round_ns=(1000,) * num_rounds, num_emitted=7, outputs={"0": (1, 2)})
    (folder / "nsys.start.json").write_text(start.model_dump_json())
    (folder / "nsys.run.json").write_text(run.model_dump_json())
    return folder


def windowed(start: int = 900, end: int = 170 * US) -> Any:
    """The small capture with a window that begins after its graph was captured."""
    rec = made.small_capture()
    rec.nvtx(MAIN, WINDOW, start, end)
    return rec


def digested(rec: Any, folder: Path, form: str = "parquet") -> tuple[Capture, dict[str, pd.DataFrame]]:
    return read(captures_folder(folder / "captures", rec.write(folder, form)))


def read(folder: Path) -> tuple[Capture, dict[str, pd.DataFrame]]:
    capture = digest(folder, "nsys")
    assert Capture.model_validate_json((folder / "nsys.json").read_text()) == capture
    there = {name for name in CAPTURE_TABLES if (folder / f"nsys-{name}.parquet").exists()}
    assert there == (set(TABLES_OF["nsys"]) if capture.fault is None else set())
    return capture, {name: pd.read_parquet(folder / f"nsys-{name}.parquet") for name in sorted(there)}


def rows(frame: pd.DataFrame, *columns: str) -> list[list[Any]]:
    return frame[list(columns)].astype(object).values.tolist()


# --- by hand ---


@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_a_small_capture_row_by_row(form: str, tmp_path: Path) -> None:
    """H14: an op that a graph replays has the stage of its capture, which lies before the window, once."""
    capture, tables = digested(windowed(), tmp_path, form)
    ops = tables["ops"]
    assert rows(ops, "kind", "name", "stage", "launch_stage", "basis", "round") == [
        ["kernel", "draft<gemm, 'x'>", "draft", "draft", "launch", 0],
        ["kernel", "verify_gemm", "verify", "verify", "launch", 0],
        ["copy", "copy device to host", "verify", "verify", "launch", 0],
        ["kernel", "draft<gemm, 'x'>", "draft", "", "capture", 1],
        ["kernel", "verify_gemm", "verify", "", "capture", 1],
        ["memset", "memset", "", "", "unattributed", -1],
    ]
    assert rows(ops, "start_ns", "end_ns", "launch_ns", "num_bytes", "direction", "is_replayed")[2:4] == [
        [59_100, 64_100, 1400, 4096, "device to host", False],
        [99_100, 119_100, 5200, 0, "", True],
    ]
    assert rows(tables["calls"], "kind", "name", "stage", "round", "thread", "start_ns", "end_ns") == [
        ["launch", "cudaLaunchKernel_v7000", "draft", 0, 0, 300, 400],
        ["launch", "cudaLaunchKernel_v7000", "verify", 0, 0, 1200, 1300],
        ["copy", "cudaMemcpyAsync_v3020", "verify", 0, 0, 1400, 1500],
        ["graph_launch", "cudaGraphLaunch_v10000", "", 1, 0, 5200, 5300],
        ["memset", "cudaMemsetAsync_v3020", "", -1, 0, 8600, 8700],
        ["sync", "cudaDeviceSynchronize_v3020", "", -1, 0, 9000, 9100],
    ]
    assert rows(tables["ranges"], "kind", "name", "round", "thread", "start_ns", "end_ns") == [
        ["round", "", 0, 0, 100, 4100],
        ["stage", "draft", 0, 0, 200, 1000],
        ["stage", "verify", 0, 0, 1100, 4000],
        ["round", "", 1, 0, 5100, 8100],
    ]
    assert (capture.window_ns, capture.num_graph_launches, capture.num_graph_replays) == (169_100, 1, 1)
    assert [(line.count, line.time_ns) for line in capture.ledger] == [(3, 55_000), (2, 50_000), (0, 0), (1, 1000)]
    assert (capture.withheld, capture.fault, capture.dram_peak_bytes_per_s) == ("", None, 4.8e12)
    assert (capture.round_ns, capture.num_emitted, capture.raw) == ((1000, 1000), 7, ("nsys.nsys-rep",))
    assert "nsys: buffers were flushed late" in capture.notes
    assert capture.seconds >= 9.0


def test_samples_are_those_whose_interval_lies_in_the_window(tmp_path: Path) -> None:
    """Samples of 10 us: that of 0 begins before the window, that of 160 ends with it."""
    _, tables = digested(windowed(), tmp_path)
    dram = tables["samples"].set_index(["metric", "label"]).loc["dram_read"]
    # draft 10-20 and 100-120, verify 20-65 and 120-150, the memset 160-161; values 50, 51, ... from 0 on
    assert dram.loc["draft", ["num_whole", "num_touching", "time_ns"]].tolist() == [3, 3, 30 * US]
    assert dram.loc["draft", "mean"] == pytest.approx((51 + 60 + 61) / 3)
    assert dram.loc["verify", ["num_whole", "num_touching", "time_ns"]].tolist() == [7, 8, 75 * US]
    assert dram.loc["unattributed", ["num_whole", "time_ns", "blended"]].tolist() == [0, US, 66]
    assert dram["time_ns"].sum() == 160 * US


def test_a_call_within_a_call_is_not_told_apart(tmp_path: Path) -> None:
    """The driver's part of a launch: counted once, and ops point at the call that is in the table."""
    rec = windowed()
    rec.call(MAIN, 6500, 6600, "cudaLaunchKernel_v7000")
    inner = rec.call(MAIN, 6520, 6580, "cuLaunchKernel")
    rec.kernel(MAIN, inner, 165 * US, 166 * US)
    _, tables = digested(rec, tmp_path)
    assert "cuLaunchKernel" not in set(tables["calls"]["name"])
    assert tables["ops"]["launch_ns"].tolist()[-1] == 5600
    assert set(tables["ops"]["launch_ns"]) <= set(tables["calls"]["start_ns"])


def test_the_wait_that_closes_the_window_is_no_rounds_own(tmp_path: Path) -> None:
    """It happens while the last round's range is open; a wait before it counts."""
    rec = windowed()
    rec.nvtx(MAIN, "round/2", 9650, 12_000)
    rec.call(MAIN, 9700, 9800, "cudaDeviceSynchronize_v3020")
    _, tables = digested(rec, tmp_path)
    assert tables["calls"]["round"].tolist()[-2:] == [2, -1]


def test_threads_are_numbered_as_they_appear_and_other_processes_left_out(tmp_path: Path) -> None:
    rec = windowed()
    rec.domain(OTHER_PROCESS)
    rec.call(OTHER_THREAD, 1050, 1060, "cudaStreamSynchronize_v3020")
    rec.call(OTHER_PROCESS, 1000, 1010, "cudaFree_v3020")
    rec.nvtx(OTHER_PROCESS, "verify", 1000, 2000)
    _, tables = digested(rec, tmp_path)
    found = tables["calls"].astype({"name": str}).set_index("name")["thread"]
    assert found["cudaStreamSynchronize_v3020"] == 1
    assert found["cudaDeviceSynchronize_v3020"] == tables["ranges"]["thread"].max() == 0
    assert "cudaFree_v3020" not in found


def test_ops_around_the_window_are_not_in_it(tmp_path: Path) -> None:
    """H9: without a known launch it is the op's own time that counts."""
    rec = windowed(end=9950)
    rec.kernel(MAIN, 777_777, 100, 200, "before")
    rec.kernel(MAIN, 777_777, 950, 990, "launched before the recording")
    rec.kernel(MAIN, rec.call(MAIN, 9960, 9970), 300 * US, 301 * US, "after")
    capture, tables = digested(rec, tmp_path)
    assert tables["ops"]["name"].tolist()[0] == "launched before the recording"
    assert rows(tables["ops"], "basis", "launch_ns")[0] == ["unattributed", -1]
    assert not {"before", "after"} & set(tables["ops"]["name"])
    assert sum(line.count for line in capture.ledger) == len(tables["ops"]) == 7


def test_a_device_that_was_not_idle_at_the_edge_is_noted(tmp_path: Path) -> None:
    rec = windowed()
    rec.kernel(MAIN, rec.call(MAIN, 700, 710), 800, 5000, "straggler")
    capture, tables = digested(rec, tmp_path)
    assert tables["ops"]["start_ns"].tolist()[0] == -100
    assert "1 ops ran in the window but were launched outside of it" in capture.notes


def test_replays_lost_in_the_window_withhold_totals_and_those_before_it_do_not(tmp_path: Path) -> None:
    """H18."""
    for index, (at, expected) in enumerate(((500, ""), (7000, "under-recorded: 2 graph launches, 1 replays"))):
        rec = windowed()
        rec.call(MAIN, at, at + 50, "cudaGraphLaunch_v10000")
        (tmp_path / str(index)).mkdir()
        capture, tables = digested(rec, tmp_path / str(index))
        assert capture.withheld.startswith(expected)
        assert bool(capture.withheld) == bool(expected)
        assert bool(len(tables["samples"])) == (not expected)  # lost kernels would pass for idle time
        assert len(tables["ops"]) == 6


def test_a_capture_of_a_cpu_has_calls_and_ranges_and_says_what_it_lacks(tmp_path: Path) -> None:
    """H25."""
    rec = made.Recorder()
    rec.domain(MAIN)
    rec.nvtx(MAIN, WINDOW, 0, 1000)
    rec.nvtx(MAIN, "round/0", 10, 500)
    rec.nvtx(MAIN, "verify", 20, 400)
    capture, tables = digested(rec, tmp_path)
    assert capture.fault is None
    assert "nothing ran on a device" in capture.withheld
    assert isinstance(capture.dram_peak_bytes_per_s, NotMeasured)
    assert [len(tables[name]) for name in ("ops", "calls", "ranges", "samples")] == [0, 0, 2, 0]
    assert "1 of the window's 2 rounds have no range" in capture.notes


@pytest.mark.parametrize(("num_windows", "reason"), [(0, "nothing"), (2, "unreadable")])
def test_there_must_be_one_window(num_windows: int, reason: str, tmp_path: Path) -> None:
    """H7: a domain without its ranges is told as that, not as 0 kernels."""
    rec = made.small_capture()
    rec.nvtx(MAIN, WINDOW, 0, 10, domainId=0)
    for index in range(num_windows):
        rec.nvtx(MAIN, WINDOW, 1000 * index, 1000 * index + 10)
    capture, _ = digested(rec, tmp_path)
    assert capture.fault is not None
    assert capture.fault.reason == reason
    assert f"{num_windows} ranges 'window'" in capture.fault.what


def test_warnings_of_nsys_name_no_paths_and_its_chatter_is_left_out(tmp_path: Path) -> None:
    """H28."""
    rec = windowed()
    rec.add("DIAGNOSTIC_EVENT", severity=1, text="Loaded CUPTI library: /opt/secret/libcupti.so")
    rec.add("DIAGNOSTIC_EVENT", severity=3, text="see /home/somebody/log.txt (line 3) for the reason")
    capture, _ = digested(rec, tmp_path)
    said = [note for note in capture.notes if note.startswith("nsys: ")]
    assert said == ["nsys: buffers were flushed late", "nsys: see <path> (line 3) for the reason"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda place: place.write_bytes(place.read_bytes()[:-5000]), "truncated"),
        (lambda place: place.write_text("Time (%),Total Time (ns)\n" * 9), "unreadable"),
        (lambda place: place.unlink(), "unreadable"),
    ],
)
def test_what_is_wrong_with_an_export_becomes_the_fault_without_a_path(
    damage: Any, reason: str, tmp_path: Path
) -> None:
    """H26."""
    folder = captures_folder(tmp_path / "captures", windowed().write_sqlite(tmp_path / "capture.sqlite"))
    damage(folder / "raw" / "capture.sqlite")
    capture, _ = read(folder)
    assert capture.fault is not None
    assert capture.fault.reason == reason
    assert capture.fault.what.startswith("capture.sqlite: ")
    assert str(tmp_path) not in capture.model_dump_json()
    assert (capture.tool_version, capture.raw) == ("2025.3.2", ("nsys.nsys-rep",))


# --- against brute force ---

moments = st.integers(0, 12)


@given(
    ops=st.lists(st.tuples(moments, st.integers(0, 6), st.one_of(st.none(), moments)), max_size=12),
    edges=st.tuples(moments, moments).map(sorted),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_cut_equals_asking_of_each_op(ops: list[Any], edges: list[int]) -> None:
    low, high = edges
    calls = pd.DataFrame({"start_ns": [launch for _, _, launch in ops if launch is not None]}, dtype=np.int64)
    order = iter(range(len(calls)))
    frame = pd.DataFrame(
        {
            "start_ns": np.array([start for start, _, _ in ops], np.int64),
            "end_ns": np.array([start + length for start, length, _ in ops], np.int64),
            "launch_call": np.array([-1 if launch is None else next(order) for _, _, launch in ops], np.int64),
            "place": np.arange(len(ops)),
        }
    )
    expected = [
        place
        for place, (start, length, launch) in enumerate(ops)
        if (launch is not None and low <= launch <= high) or (start < high and start + length > low)
    ]
    assert ops_within(Window(low, high, MAIN), frame, calls)["place"].tolist() == expected


# --- real captures: nano-k2 on an H200, nsys 2025.3.2, cut by `cut_export.py` ---


@pytest.fixture(scope="module")
def graph_round(tmp_path_factory: pytest.TempPathFactory) -> tuple[Capture, dict[str, pd.DataFrame]]:
    """Nine rounds, each one graph, the tree built on the device."""
    return real(tmp_path_factory.mktemp("real"), "round_graph.sqlite")


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> tuple[Capture, dict[str, pd.DataFrame]]:
    """Nine rounds launched from Python, the tree built on the host."""
    return real(tmp_path_factory.mktemp("real"), "eager")


def real(folder: Path, name: str) -> tuple[Capture, dict[str, pd.DataFrame]]:
    source = FIXTURES / name
    copy = Path((shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name))
    return read(captures_folder(folder / "captures", copy, num_rounds=9))


def test_every_replayed_kernel_has_the_stage_of_its_capture(graph_round: Any) -> None:
    """Through clones, for nine replays of 174 nodes: left are the copies of reports and what admits a request."""
    capture, tables = graph_round
    assert [(line.count, line.time_ns) for line in capture.ledger] == [
        (123, 251_580),
        (1566, 3_628_585),
        (0, 0),
        (28, 29_184),
    ]
    ops = tables["ops"]
    replayed = ops[ops["is_replayed"]]
    assert (replayed["basis"] == "capture").all()
    assert replayed.groupby("round").size().tolist() == [174] * 9
    assert (replayed["launch_stage"] == "").all()
    assert (capture.num_graph_launches, capture.num_graph_replays, capture.withheld) == (9, 9, "")
    left = ops[(ops["basis"] == "unattributed") & (ops["round"] >= 0)]
    assert rows(left, "direction", "num_bytes", "round") == [["device to host", 160, step] for step in range(9)]
    time = (ops["end_ns"] - ops["start_ns"])[ops["round"] >= 1]
    assert time[ops["basis"] == "unattributed"].sum() < 0.005 * time.sum()


def test_a_real_round_is_plausible(graph_round: Any) -> None:
    """About 0.4 ms, one launch and one wait a round, stages in their order; kernels that start early overlap."""
    capture, tables = graph_round
    ops = tables["ops"][tables["ops"]["is_replayed"]]
    span = ops.groupby("round")["end_ns"].max() - ops.groupby("round")["start_ns"].min()
    assert span.between(365_000, 390_000).all()
    firsts = ops[ops["round"] == 4].groupby("stage", observed=True)["start_ns"].min().sort_values()
    assert list(firsts.index) == [name for name in STAGE_NAMES if name != "prefill"]
    calls = tables["calls"]
    kinds = calls[(calls["round"] == 4) & (calls["kind"] != "other")]["kind"].tolist()
    assert kinds == ["graph_launch", "copy", "sync"]
    verify = ops[(ops["stage"] == "verify") & (ops["round"] == 4)]
    assert (verify["start_ns"].to_numpy()[1:] < verify["end_ns"].to_numpy()[:-1]).any()
    assert (verify["end_ns"] - verify["start_ns"]).sum() > verify["end_ns"].max() - verify["start_ns"].min()
    assert capture.window_ns == 15_463_953


def test_real_samples_show_an_idle_device_as_idle(graph_round: Any, eager: Any) -> None:
    """A sample tells of the interval after its time: looked at the other way round, idle time is as busy as a stage."""
    for capture, tables in (graph_round, eager):
        samples = tables["samples"].set_index(["metric", "label"])
        assert samples.loc[("sm_active", "idle"), "mean"] < 0.01
        assert samples.loc[("sm_active", "verify"), "blended"] > 3
        assert (samples.loc["clock", "blended"].between(1700, 2000)).all()
        assert capture.dram_peak_bytes_per_s == 4_814_304_000_000
    busy = graph_round[1]["samples"].set_index(["metric", "label"])
    assert busy.loc[("sm_active", "verify"), ["mean", "num_whole"]].tolist() == pytest.approx([18.8333, 204], rel=1e-4)
    assert busy.loc[("warps_in_flight", "verify"), "mean"] == pytest.approx(2.5882, rel=1e-4)
    assert (tables["samples"]["time_ns"] >= 0).all()


def test_eager_rounds_are_charged_by_launch(eager: Any) -> None:
    capture, tables = eager
    assert [(line.count, line.time_ns) for line in capture.ledger] == [
        (1779, 3_498_453),
        (0, 0),
        (0, 0),
        (28, 30_112),
    ]
    ops, calls = tables["ops"], tables["calls"]
    assert (ops["stage"] == ops["launch_stage"]).all()
    counts = ops[ops["round"] == 5].groupby("stage", observed=True).size()
    assert counts[counts > 0].to_dict() == {
        "": 1,
        "accept": 3,
        "commit": 4,
        "draft": 40,
        "materialize": 4,
        "tree_build": 16,
        "tree_compile": 1,
        "verify": 116,
    }
    launched = calls[(calls["round"] == 5) & (calls["kind"] == "launch")]
    assert len(launched) == (ops[ops["round"] == 5]["kind"] == "kernel").sum() == 180
    # the tree goes through the host: two copies down, one back, and the host waits
    built = ops[(ops["round"] == 5) & (ops["stage"] == "tree_build") & (ops["kind"] == "copy")]
    assert set(built["direction"]) == {"device to host", "host to device", "device to device"}
    assert (calls[(calls["round"] == 5) & (calls["stage"] == "tree_build")]["kind"] == "sync").any()
    assert set(ops["launch_ns"]) <= set(calls["start_ns"])


def test_real_stages_equal_a_join_in_sql(graph_round: Any) -> None:
    """The same question asked of the database: a kernel's call or the event of its node, and the range around it."""
    database = sqlite3.connect(f"{(FIXTURES / 'round_graph.sqlite').as_uri()}?mode=ro", uri=True)
    names = ", ".join(f"'{name}'" for name in STAGE_NAMES)
    database.executescript(
        "CREATE TEMP TABLE own AS SELECT n.start AS low, n.end AS high, n.globalTid AS thread, s.value AS name "
        f"FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId WHERE n.eventType = 59 AND name IN ({names});"
        "CREATE TEMP TABLE made AS SELECT e.graphNodeId AS node, (SELECT name FROM own WHERE thread = e.globalTid "
        "AND low <= e.start AND high >= e.end ORDER BY low DESC, high LIMIT 1) AS stage FROM CUDA_GRAPH_NODE_EVENTS e;"
        "CREATE TEMP TABLE called AS SELECT r.correlationId AS id, (SELECT name FROM own WHERE thread = r.globalTid "
        "AND low <= r.start AND high >= r.end ORDER BY low DESC, high LIMIT 1) AS stage "
        "FROM CUPTI_ACTIVITY_KIND_RUNTIME r;"
        "CREATE INDEX temp.by_node ON made (node); CREATE INDEX temp.by_id ON called (id);"
    )
    # a clone has two events: one without its original, then one with it
    query = (
        "SELECT k.start, ifnull(CASE WHEN ifnull(k.graphNodeId, 0) = 0 THEN called.stage ELSE made.stage END, '') "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN called ON called.id = k.correlationId "
        "LEFT JOIN CUDA_GRAPH_NODE_EVENTS clone ON clone.graphNodeId = k.graphNodeId "
        "AND clone.originalGraphNodeId IS NOT NULL LEFT JOIN made ON made.node = clone.originalGraphNodeId "
        "ORDER BY k.start, k.end"
    )
    expected = [list(row) for row in database.execute(query)]
    (low,) = database.execute(
        f"SELECT n.start FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId WHERE s.value = '{WINDOW}'"
    ).fetchone()
    database.close()
    ops = graph_round[1]["ops"]
    kernels = ops[ops["kind"] == "kernel"]
    assert rows(kernels.assign(start_ns=kernels["start_ns"] + low), "start_ns", "stage") == expected


def test_fixtures_name_no_machine() -> None:
    """H28: neither environment, host nor paths."""
    content = b"".join(place.read_bytes() for place in sorted(FIXTURES.rglob("*")) if place.is_file())
    assert len(content) < 2_200_000
    for word in (b"ENVIRONMENT", b"/home/", b"/tmp/", b"/root", b"/work", b"PATH=", b"EXPORT_HOST", b".nsys-rep"):
        assert word not in content


# --- damage ---


def flipped(content: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    for place in rng.integers(0, len(content), rng.choice([1, 3, 30])):
        damaged[place] = rng.integers(256)
    return bytes(damaged[: rng.integers(1, len(content))] if rng.random() < 0.2 else damaged)


@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_damage_gives_a_fault_or_an_answer_that_adds_up(form: str, tmp_path: Path) -> None:
    """Bytes replaced and files cut off, in every file that the digest reads in turn."""
    folder = captures_folder(tmp_path / "captures", windowed().write(tmp_path, form))
    rng, outcomes = np.random.default_rng(5), set()
    places = sorted(place for place in folder.rglob("*") if place.is_file())
    for index in range(60):
        place = places[index % len(places)]
        whole = place.read_bytes()
        place.write_bytes(flipped(whole, rng))
        capture, tables = read(folder)
        place.write_bytes(whole)
        outcomes.add(capture.fault.reason if capture.fault else "read")
        if capture.fault is None:
            time = tables["ops"]["end_ns"] - tables["ops"]["start_ns"]
            assert sum(line.count for line in capture.ledger) == len(time)
            assert sum(line.time_ns for line in capture.ledger) == time.sum()
    assert {"unreadable", "read"} <= outcomes
    assert read(folder)[0].fault is None
    assert digest_nsys(folder).fields["window_ns"] == 169_100
