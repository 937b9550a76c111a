"""Traces of the torch profiler: real ones, nests with an independent oracle, launches and replays, and damage.

traces/tiny_cpu.json.gz: three rounds of the `tiny-gqa` engine (ddtree, heap, eager) on a CPU with torch 2.13, cut to
the window. traces/nano_h200_*.json.gz: `nano-k2` (ddtree, bfloat16) on an H200 with torch 2.11: two eager rounds with
the tree built on the host, four rounds as one graph each. Process and thread numbers are made up.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.analysis.chrome_trace import read_trace
from ddbench.analysis.digested import CaptureProblem, Digested
from ddbench.analysis.kineto import digest_kineto
from ddbench.captured import CAPTURE_TABLES, TABLES_OF

TRACES = Path(__file__).with_name("traces")
REAL = TRACES / "tiny_cpu.json.gz"
HOST, DEVICE = (7, 7), (0, 7)


class Maker:
    """A trace event by event, times in nanoseconds."""

    def __init__(self, origin_ns: int = 0) -> None:
        self.origin_ns = origin_ns
        self.events: list[dict[str, Any]] = []
        self.gpus: list[dict[str, Any]] = []

    def add(self, category: str, name: str, start: int, end: int, place: tuple[int, int] = HOST, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": place[0], "tid": place[1], "args": args}
        self.events.append({**event, "ts": f"<{self.origin_ns + start}>", "dur": f"<{end - start}>"})

    def range(self, name: str, start: int, end: int, place: tuple[int, int] = HOST) -> None:
        self.add("user_annotation", name, start, end, place)

    def call(self, name: str, start: int, end: int, correlation: int) -> None:
        kind = "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime"
        self.add(kind, name, start, end, correlation=correlation)

    def kernel(self, start: int, end: int, correlation: int, name: str = "kernel", **args: Any) -> None:
        self.add("kernel", name, start, end, DEVICE, device=0, stream=7, correlation=correlation, **args)

    def text(self) -> str:
        """Microseconds with three decimals, digit by digit."""
        text = json.dumps({"schemaVersion": 1, "deviceProperties": self.gpus, "traceEvents": self.events})
        for event in self.events:
            for key in ("ts", "dur"):
                ns = int(event[key][1:-1])
                text = text.replace(f'"{event[key]}"', f"{ns // 1000}.{ns % 1000:03d}")
        return text


def digested(content: str | bytes, folder: Path) -> Digested:
    raw = folder / "raw"
    raw.mkdir(exist_ok=True)
    (raw / "torch.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    return digest_kineto(folder)


def fault_of(content: str | bytes, folder: Path) -> str:
    with pytest.raises(CaptureProblem) as caught:
        digested(content, folder)
    return caught.value.fault.reason


def check_adds_up(found: Digested) -> None:
    """Ledger lines against the table; the columns of the records; clocks that run forward."""
    ops = found.tables["ops"]
    for line in found.fields["ledger"]:
        own = ops[ops["basis"] == line.basis]
        assert (line.count, line.time_ns) == (len(own), int((own["end_ns"] - own["start_ns"]).sum()))
    assert sum(line.count for line in found.fields["ledger"]) == len(ops)
    assert set(found.tables) == set(TABLES_OF["torch"])
    for name, table in found.tables.items():
        assert list(table.columns) == list(CAPTURE_TABLES[name].model_fields)
        assert (table["end_ns"] >= table["start_ns"]).all()
        assert table["start_ns"].is_monotonic_increasing


@pytest.fixture
def made() -> Maker:
    """One round that is the whole window, with two stages."""
    maker = Maker()
    maker.range("window", 0, 10_000)
    maker.range("round/4", 100, 9000)
    maker.range("draft", 200, 1000)
    maker.range("verify", 2000, 3000)
    return maker


# --- a real trace of a CPU ---


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Digested:
    raw = tmp_path_factory.mktemp("captures") / "raw"
    raw.mkdir()
    (raw / "torch.json.gz").write_bytes(REAL.read_bytes())
    return digest_kineto(raw.parent)


def test_a_real_trace_adds_up(real: Digested) -> None:
    check_adds_up(real)
    ranges = real.tables["ranges"]
    assert ranges[ranges["kind"] == "round"]["round"].tolist() == [1, 2, 3]
    assert real.tables["ops"]["round"].unique().tolist() == [1, 2, 3]
    total = sum(line.time_ns for line in real.fields["ledger"])
    known = sum(line.time_ns for line in real.fields["ledger"] if line.basis == "launch")
    assert 0.99 * total < known <= total < real.fields["window_ns"]
    assert len(real.tables["calls"]) == 0


def test_real_operators_are_those_that_no_other_called(real: Digested) -> None:
    """Against a walk over the file that keeps the stack of open events, as they are written."""
    events = json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"]
    window = next(event for event in events if event["name"] == "window")
    inside = [e for e in events if window["ts"] <= e["ts"] and e["ts"] + e["dur"] <= window["ts"] + window["dur"]]
    expected, until = [], 0.0
    for event in sorted((e for e in inside if e["cat"] == "cpu_op"), key=lambda e: (e["ts"], -e["dur"])):
        if event["ts"] >= until:
            expected.append(event["name"])
            until = event["ts"] + event["dur"]
    assert real.tables["ops"]["name"].tolist() == expected
    assert len(expected) < sum(e["cat"] == "cpu_op" for e in inside)


def test_real_stages_hold_their_operators(real: Digested) -> None:
    ops, ranges = real.tables["ops"], real.tables["ranges"]
    for row in ranges[ranges["kind"] == "stage"].itertuples():
        own = ops[(ops["start_ns"] >= row.start_ns) & (ops["end_ns"] <= row.end_ns)]
        assert len(own)
        assert set(own["stage"]) == {row.name}
        assert (own["end_ns"] - own["start_ns"]).sum() <= row.end_ns - row.start_ns


@pytest.mark.parametrize("name", ["eager", "round_graph"])
def test_a_real_trace_of_a_gpu(name: str, tmp_path: Path) -> None:
    """Same engine, same kernels but for the tree; only eager launches lie in the range of a stage."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "torch.json.gz").write_bytes((TRACES / f"nano_h200_{name}.json.gz").read_bytes())
    found = digest_kineto(tmp_path)
    check_adds_up(found)
    ops, calls = found.tables["ops"], found.tables["calls"]
    assert not found.fields["withheld"]
    assert found.fields["notes"] == ()
    assert found.fields["num_graph_launches"] == found.fields["num_graph_replays"] == 4 * (name == "round_graph")
    assert ops["round"].unique().tolist() == calls["round"][calls["round"] >= 0].unique().tolist()
    assert (ops["launch_ns"] < ops["start_ns"]).all()
    kernels = ops[ops["kind"] == "kernel"]
    to_host = ops[ops["direction"] == "device to host"]
    if name == "eager":
        assert kernels["stage"].value_counts().to_dict() == {
            "verify": 232, "draft": 78, "tree_build": 26, "commit": 8, "materialize": 8, "accept": 6, "tree_compile": 2,
        }  # fmt: skip
        assert to_host["stage"].tolist() == ["tree_build", ""] * 2  # the logits' best, and the round's report
        assert to_host["num_bytes"].tolist() == [1792, 160] * 2
        assert calls["kind"].value_counts()["launch"] == len(kernels)
    else:
        assert kernels["round"].value_counts().to_dict() == {1: 173, 2: 173, 3: 173, 4: 173}
        assert kernels["is_replayed"].all()
        assert not to_host["is_replayed"].any()
        assert set(ops["basis"]) == {"unattributed"}


def test_what_this_torch_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    profiler = pytest.importorskip("torch.profiler")
    (tmp_path / "raw").mkdir()
    with (
        profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile,
        profiler.record_function("window"),
        profiler.record_function("round/0"),
    ):
        with profiler.record_function("verify"):
            torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))
        torch.zeros(3)
    profile.export_chrome_trace(str(tmp_path / "raw" / "torch.json.gz"))
    found = digest_kineto(tmp_path)
    check_adds_up(found)
    ops = found.tables["ops"]
    assert "aten::linear" in set(ops["name"][ops["stage"] == "verify"])
    assert "aten::zeros" in set(ops["name"][ops["stage"] == ""])
    assert "aten::addmm" not in set(ops["name"])
    assert set(ops["round"]) == {0}


# --- operators: nests against an oracle ---


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Start, end, depth of operators that nest as calls do, with times of zero and shared ends among them."""
    events: list[tuple[int, int, int]] = []

    def grow(start: int, end: int, depth: int) -> None:
        at = start
        for _ in range(draw(st.integers(0, 3 if depth < 3 else 0))):
            begin = draw(st.integers(at, end))
            stop = draw(st.integers(begin, end))
            if stop > begin:
                events.append((begin, stop, depth))
                grow(begin, stop, depth + 1)
            at = stop

    grow(1000, 1060, 0)
    return events


@settings(max_examples=60, deadline=None, derandomize=True)
@given(forest=forests())
def test_operators_count_once(forest: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Depth is known where the nest is made; time by marking every nanosecond that any operator covers."""
    maker = Maker(origin_ns=1_790_857_026_123_456_789)
    maker.range("window", 0, 5000)
    maker.range("round/0", 0, 5000)
    for number, (start, end, depth) in enumerate(forest):
        maker.add("cpu_op", f"op {number} at {depth}", start, end)
    folder = tmp_path_factory.mktemp("captures")
    if not forest:
        assert fault_of(maker.text(), folder) == "nothing"
        return
    found = digested(maker.text(), folder)
    check_adds_up(found)
    covered = {ns for start, end, _ in forest for ns in range(start, end)}
    assert sum(line.time_ns for line in found.fields["ledger"]) == len(covered)
    tops = sorted((start, end) for start, end, depth in forest if depth == 0)
    ops = found.tables["ops"]
    assert list(zip(ops["start_ns"], ops["end_ns"], strict=True)) == tops


@settings(max_examples=60, deadline=None, derandomize=True)
@given(spans=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=8))
def test_operators_that_do_not_nest_count_once_too(
    spans: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    maker = Maker()
    maker.range("window", 0, 100)
    maker.range("round/0", 0, 100)
    for start, length in spans:
        maker.add("cpu_op", "op", start, start + length)
    found = digested(maker.text(), tmp_path_factory.mktemp("captures"))
    check_adds_up(found)
    covered = {ns for start, length in spans for ns in range(start, start + length)}
    assert sum(line.time_ns for line in found.fields["ledger"]) == len(covered)


def test_threads_have_their_own_stages(made: Maker, tmp_path: Path) -> None:
    made.add("cpu_op", "mine", 300, 400)
    made.add("cpu_op", "theirs", 300, 400, (7, 8))
    ops = digested(made.text(), tmp_path).tables["ops"].set_index("name")
    assert (ops.loc["mine", "stage"], ops.loc["theirs", "stage"]) == ("draft", "")
    assert (ops.loc["mine", "stream"], ops.loc["theirs", "stream"]) == (0, 1)


def test_an_operator_across_two_stages_is_nobodys(made: Maker, tmp_path: Path) -> None:
    made.add("cpu_op", "long", 900, 2100)
    found = digested(made.text(), tmp_path)
    assert [(line.basis, line.time_ns) for line in found.fields["ledger"]] == [("unattributed", 1200)]


def test_a_cpu_trace_of_a_machine_with_a_gpu_says_so(made: Maker, tmp_path: Path) -> None:
    """H25: it may be a case on the CPU, or one whose device was not recorded."""
    made.add("cpu_op", "aten::add", 300, 400)
    assert digested(made.text(), tmp_path).fields["notes"] == ()
    made.gpus.append({"id": 0})
    assert "has a GPU" in digested(made.text(), tmp_path).fields["notes"][0]


# --- launches and replays on a GPU ---


def test_kernels_and_copies_follow_their_launch(made: Maker, tmp_path: Path) -> None:
    made.add("cpu_op", "aten::add", 240, 320)
    made.call("cudaLaunchKernel", 250, 300, 1)
    made.kernel(2500, 2600, 1, "add<a|b>")
    made.call("cudaMemcpyAsync", 2100, 2200, 2)
    made.add(
        "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 4000, 4100, DEVICE, device=0, stream=9, correlation=2, bytes=64
    )
    made.call("cudaMemsetAsync", 5000, 5100, 3)
    made.add("gpu_memset", "Memset (Device)", 5200, 5300, DEVICE, device=0, stream=7, correlation=3, bytes=8)
    made.call("cudaStreamSynchronize", 6000, 6100, 4)
    found = digested(made.text(), tmp_path)
    check_adds_up(found)
    columns = ["kind", "name", "stage", "basis", "stream", "num_bytes", "direction", "launch_ns", "round"]
    assert found.tables["ops"][columns].values.tolist() == [
        ["kernel", "add<a|b>", "draft", "launch", 7, 0, "", 250, 4],
        ["copy", "copy device to host", "verify", "launch", 9, 64, "device to host", 2100, 4],
        ["memset", "memset", "", "unattributed", 7, 8, "", 5000, 4],
    ]
    assert found.tables["calls"]["kind"].tolist() == ["launch", "copy", "memset", "sync"]
    assert found.tables["calls"]["stage"].tolist() == ["draft", "verify", "", ""]
    assert not found.fields["withheld"]


def test_a_replay_has_the_stage_of_its_launch_or_none(made: Maker, tmp_path: Path) -> None:
    """H14: Kineto knows nothing of a graph's capture."""
    made.call("cudaGraphLaunch", 300, 400, 1)
    made.call("cudaGraphLaunch", 1100, 1200, 2)
    for number in range(3):
        made.kernel(3000 + 10 * number, 3005 + 10 * number, 1)
        made.kernel(4000 + 10 * number, 4005 + 10 * number, 2)
    found = digested(made.text(), tmp_path)
    ops = found.tables["ops"]
    assert ops["is_replayed"].all()
    assert ops["stage"].tolist() == ["draft"] * 3 + [""] * 3
    assert ops["basis"].tolist() == ["launch"] * 3 + ["unattributed"] * 3
    assert (found.fields["num_graph_launches"], found.fields["num_graph_replays"]) == (2, 2)
    assert not found.fields["withheld"]


@pytest.mark.parametrize("what", ["replay", "node", "launch"])
def test_what_was_not_recorded_withholds_totals(what: str, made: Maker, tmp_path: Path) -> None:
    """H18."""
    graph = {"graph id": 2}
    for correlation, start in ((1, 300), (2, 1100)):
        made.call("cudaGraphLaunch", start, start + 50, correlation)
        for node in range(2 if correlation == 1 or what == "launch" else int(what == "node")):
            made.kernel(3000 + start + node, 3001 + start + node, correlation, **graph, **{"graph node id": 5 + node})
    made.call("cudaLaunchKernel", 500, 550, 3)
    if what != "launch":
        made.kernel(2990, 2995, 3)
    withheld = digested(made.text(), tmp_path).fields["withheld"]
    assert {"replay": "2 graph launches, 1 replays", "node": "1 of 2 replays", "launch": "1 launches"}[what] in withheld


def test_a_driver_call_within_a_runtime_call_is_one_launch(made: Maker, tmp_path: Path) -> None:
    made.call("cudaGraphLaunch", 300, 400, 1)
    made.call("cuGraphLaunch", 310, 390, 2)
    made.kernel(3000, 3010, 2)
    found = digested(made.text(), tmp_path)
    assert found.tables["calls"]["name"].tolist() == ["cudaGraphLaunch"]
    assert found.tables["ops"]["launch_ns"].tolist() == [300]
    assert (found.fields["num_graph_launches"], found.fields["num_graph_replays"]) == (1, 1)


def test_a_kernel_without_its_launch_stays_in_the_total(made: Maker, tmp_path: Path) -> None:
    """H9; and an id that two calls claim says nothing."""
    made.call("cudaLaunchKernel", 300, 310, 5)
    made.call("cudaLaunchKernel", 2300, 2310, 5)
    made.kernel(3000, 3010, 5)
    made.kernel(4000, 4010, 99)
    made.kernel(20_000, 20_010, 98)  # behind the window
    found = digested(made.text(), tmp_path)
    assert [(line.basis, line.count, line.time_ns) for line in found.fields["ledger"]] == [("unattributed", 2, 20)]
    assert found.tables["ops"]["launch_ns"].tolist() == [-1, -1]
    assert "several calls share" in found.fields["notes"][0]


def test_only_the_window_counts(made: Maker, tmp_path: Path) -> None:
    made.range("round/3", -900, -100)
    made.range("draft", -800, -700)
    for correlation, start in ((1, -750), (2, 300), (3, 11_000)):
        made.call("cudaLaunchKernel", start, start + 10, correlation)
        made.kernel(start + 20, start + 30, correlation)
    origin = Maker(10**15)
    origin.events = [{**event, "ts": f"<{int(event['ts'][1:-1]) + 10**15}>"} for event in made.events]
    found = digested(origin.text(), tmp_path)
    assert found.tables["ops"]["start_ns"].tolist() == [320]
    assert found.tables["ranges"]["round"].tolist() == [4, 4, 4]
    assert len(found.tables["calls"]) == 1


# --- faults ---


def test_faults_have_their_reasons(made: Maker, tmp_path: Path) -> None:
    made.add("cpu_op", "aten::add", 300, 400)
    whole = made.text()
    assert fault_of("", tmp_path) == "truncated"
    assert fault_of(whole[:-1], tmp_path) == "truncated"
    assert fault_of(gzip.compress(whole.encode())[:-9], tmp_path) == "truncated"
    assert fault_of("[]", tmp_path) == "nothing"
    assert fault_of("{}", tmp_path) == "unreadable"
    assert fault_of("[1]", tmp_path) == "unreadable"
    assert fault_of(b"\xff\xfe[]", tmp_path) == "unreadable"
    assert fault_of("[" * 100_000, tmp_path) in ("unreadable", "truncated")
    assert fault_of(whole.replace('"window"', '"widow"'), tmp_path) == "nothing"
    assert fault_of(whole.replace('"round/4"', '"round/x"'), tmp_path) == "nothing"
    assert fault_of(whole.replace('"verify"', '"window"'), tmp_path) == "unreadable"
    assert fault_of(whole.replace("0.300", "1e999999999"), tmp_path) == "unreadable"
    assert fault_of(whole.replace("0.300", "1e99999999999999999999"), tmp_path) == "unreadable"
    assert fault_of(whole.replace("0.300", "NaN"), tmp_path) == "unreadable"
    assert fault_of(whole.replace("0.100", "-0.100"), tmp_path) == "unreadable"
    for _ in range(3):
        made.add("cpu_op", "for 63 years", 0, 2 * 10**18)
    assert fault_of(made.text(), tmp_path) == "unreadable"
    (tmp_path / "raw" / "torch.json").unlink()
    with pytest.raises(CaptureProblem, match="not there"):
        digest_kineto(tmp_path)


def damaged(whole: bytes, rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """Bits flipped, bytes cut out, pieces doubled."""
    for _ in range(count):
        content = bytearray(whole)
        for bit in rng.integers(0, 8 * len(whole), rng.integers(1, 6)):
            content[bit // 8] ^= 1 << (bit % 8)
        low, high = sorted(rng.integers(0, len(whole), 2))
        yield bytes(content)
        yield whole[:low] + whole[min(high, low + 40) :]
        yield whole[:low] + whole[low : low + 200] + whole[low:]
        yield whole[:low]


@pytest.mark.parametrize("form", ["plain", "gzip"])
def test_damage_gives_a_fault_or_an_answer_that_adds_up(form: str, made: Maker, tmp_path: Path) -> None:
    made.call("cudaGraphLaunch", 300, 400, 1)
    made.call("cudaLaunchKernel", 500, 550, 2)
    for number in range(4):
        made.kernel(3000 + 10 * number, 3005 + 10 * number, 1 + number % 2, **{"graph id": 2, "graph node id": number})
    whole = made.text().encode()
    outcomes = set()
    for content in damaged(whole if form == "plain" else gzip.compress(whole), np.random.default_rng(5), 150):
        try:
            check_adds_up(digested(content, tmp_path))
            outcomes.add("read")
        except CaptureProblem as problem:
            outcomes.add(problem.fault.reason)
    assert {"truncated", "unreadable"} <= outcomes
    assert "read" in outcomes or form == "gzip"


def test_wild_values_give_a_fault_or_an_answer_that_adds_up(made: Maker, tmp_path: Path) -> None:
    made.call("cudaGraphLaunch", 300, 400, 1)
    made.kernel(3000, 3005, 1, **{"graph id": 2, "graph node id": 1})
    made.add("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 4000, 4100, DEVICE, correlation=2, bytes=64)
    wild = [None, True, -1, 2**63, 2**80, 1.5, "x", [], -(2**62)]
    document = json.loads(made.text())
    outcomes, turn = set(), 0
    for event in document["traceEvents"]:
        for key in (*event, *(("args", name) for name in event["args"])):
            holder = event["args"] if isinstance(key, tuple) else event
            name = key[1] if isinstance(key, tuple) else key
            kept = holder[name]
            turn += 1
            for value in (wild[turn % len(wild)], wild[(turn + 4) % len(wild)]):
                holder[name] = value
                try:
                    check_adds_up(digested(json.dumps(document), tmp_path))
                    outcomes.add("read")
                except CaptureProblem as problem:
                    outcomes.add(problem.fault.reason)
            holder[name] = kept
    assert {"read", "unreadable", "nothing"} <= outcomes


def test_times_since_1970_stay_exact(made: Maker, tmp_path: Path) -> None:
    """Binary floats hold such microseconds to a quarter of one."""
    maker = Maker(origin_ns=1_790_857_026_123_456_789)
    maker.range("window", 0, 10_000)
    maker.range("round/0", 1, 9999)
    maker.add("cpu_op", "outer", 111, 222)
    maker.add("cpu_op", "inner", 112, 222)
    (tmp_path / "raw").mkdir()
    place = tmp_path / "raw" / "torch.json"
    place.write_text(maker.text())
    assert (read_trace(place).events["start_ns"] - maker.origin_ns).tolist() == [0, 1, 111, 112]
    ops = digest_kineto(tmp_path).tables["ops"]
    assert isinstance(ops, pd.DataFrame)
    assert ops[["name", "start_ns", "end_ns"]].values.tolist() == [["outer", 111, 222]]
