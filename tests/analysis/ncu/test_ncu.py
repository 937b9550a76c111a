"""From a page of ncu to counters by stage: units, what is missing, ranges, the timeline's stages, faults, damage."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddbench.analysis.digest import digest
from ddbench.analysis.digested import CaptureProblem, Digested
from ddbench.analysis.ncu.counters import COUNTERS
from ddbench.analysis.ncu.digest import digest_ncu
from ddbench.analysis.ncu.page import parse_page
from ddbench.analysis.ncu.stages import bare_name
from ddbench.analysis.tables import write_capture_table
from ddbench.captured import CAPTURE_TABLES, CapturedRun, CaptureStart, DeviceOp
from ddbench.records import NotMeasured

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("ncu_pages.py"))))
TIME, READ, TENSOR = made.TIME, made.READ, made.TENSOR


def digested(content: str | bytes, folder: Path) -> Digested:
    raw = folder / "raw"
    raw.mkdir(exist_ok=True)
    (raw / "ncu.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return digest_ncu(folder)


def fault_of(content: str | bytes, folder: Path) -> str:
    with pytest.raises(CaptureProblem) as caught:
        digested(content, folder)
    return caught.value.fault.reason


def counters(found: Digested) -> dict[tuple[int, str], float]:
    table = found.tables["counters"]
    assert list(table.columns) == list(CAPTURE_TABLES["counters"].model_fields)
    return {(row.index, row.metric): row.value for row in table.itertuples(index=False)}


def places(found: Digested) -> list[tuple[str, str, bool]]:
    """Stage, basis and whether replayed, of each kernel."""
    table = found.tables["counters"].drop_duplicates("index")
    return list(table[["stage", "basis", "is_replayed"]].itertuples(index=False, name=None))


def write_timeline(folder: Path, *ops: tuple[str, str, int], **cells: Any) -> None:
    """Kernels of the nsys capture: name, stage, round; all of them nodes of a graph unless said."""
    rows = []
    for number, (name, stage, step) in enumerate(ops):
        values = {
            "kind": "kernel",
            "name": name,
            "stage": stage,
            "basis": "capture",
            "round": step,
            "is_replayed": True,
        }
        rest = {"launch_stage": "", "gpu": 0, "stream": 7, "start_ns": number, "end_ns": number + 1, "num_bytes": 0}
        rows.append(values | rest | {"direction": "", "launch_ns": 0} | cells)
    frame = pd.DataFrame(rows, columns=list(DeviceOp.model_fields))
    write_capture_table(folder / "nsys-ops.parquet", DeviceOp, frame)


@pytest.fixture
def page() -> Any:
    """Two kernels of two stages of round 4, launched one by one."""
    found = made.Page()
    found.add("void gemm<float>(int)", ("round/4", "draft"), "1000.00", "4096.00", "12.50")
    found.add("void attention<a, b>(int)", ("round/4", "verify"), "2500.00", "8192.00", "130.25")
    return found


# --- values ---


def test_counters_of_a_page(page: Any, tmp_path: Path) -> None:
    """H34: a share above 100 % stays as it is."""
    found = digested(page.text(), tmp_path)
    assert counters(found) == {
        (0, "time"): 1000, (0, "dram_read"): 4096, (0, "tensor"): 12.5,
        (1, "time"): 2500, (1, "dram_read"): 8192, (1, "tensor"): 130.25,
    }  # fmt: skip
    assert places(found) == [("draft", "launch", False), ("verify", "launch", False)]
    assert [(line.basis, line.count, line.time_ns) for line in found.fields["ledger"]] == [("launch", 2, 3500)]
    units = dict(found.tables["counters"][["metric", "unit"]].itertuples(index=False, name=None))
    assert units == {"time": "ns", "dram_read": "bytes", "tensor": "%"}


def test_units_are_read_not_assumed(page: Any, tmp_path: Path) -> None:
    """H32: the same report with ncu's own choice of units."""
    base = counters(digested(page.text(), tmp_path))
    scaled = made.Page({TIME: "usecond", READ: "Kbyte", TENSOR: "%"})
    scaled.add("gemm", ("round/4", "draft"), "1.000000", "4.096000", "12.500000")
    scaled.add("attention", ("round/4", "verify"), "2.500000", "8.192000", "130.250000")
    assert counters(digested(scaled.text(), tmp_path)) == pytest.approx(base)
    scaled.units[TIME] = "fortnight"
    assert fault_of(scaled.text(), tmp_path) == "unreadable"


@pytest.mark.parametrize(("thousands", "point"), [(",", "."), (".", ","), ("", "."), ("\u202f", ",")])
def test_every_locale_gives_the_same_counters(thousands: str, point: str, tmp_path: Path) -> None:
    found = made.Page()
    for time, read, tensor in ((1234567.89, 268457472.0, 93.89), (999.0, 1000.0, 0.0)):
        cells = [f"{value:,.2f}".translate({44: thousands, 46: point}) for value in (time, read, tensor)]
        found.add("gemm", ("draft",), *cells)
    assert counters(digested(found.text(), tmp_path)) == {
        (0, "time"): 1234567.89, (0, "dram_read"): 268457472, (0, "tensor"): 93.89,
        (1, "time"): 999, (1, "dram_read"): 1000, (1, "tensor"): 0,
    }  # fmt: skip


def test_a_page_without_a_sign_of_its_locale_is_refused(tmp_path: Path) -> None:
    found = made.Page()
    found.add("gemm", (), "1,234", "7", "5")
    assert fault_of(found.text(), tmp_path) == "unreadable"


def test_what_is_missing_is_noted_never_zero(tmp_path: Path) -> None:
    """H34, H35: `n/a` and empty cells have no row; a counter that no kernel has is not one of this chip."""
    found = made.Page(cc="12.0")
    found.add("gemm", ("draft",), "1000.00", "n/a", "n/a")
    found.add("gemm", ("draft",), "1000.00", "4096.00", "")
    result = digested(found.text(), tmp_path)
    assert counters(result) == {(0, "time"): 1000, (1, "time"): 1000, (1, "dram_read"): 4096}
    notes = " ".join(result.fields["notes"])
    assert "dram_read: no value for 1 of 2 kernels" in notes
    assert "tensor: not counted, none of its names is known to compute capability 12.0" in notes
    assert "waves: not counted" in notes
    assert isinstance(result.fields["dram_peak_bytes_per_s"], NotMeasured)


def test_chips_have_their_own_names(tmp_path: Path) -> None:
    """H35: the first name that has a value."""
    newer = "sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_active"
    found = made.Page({TIME: "ns", "dram__bytes_op_read.sum": "byte", newer: "%", TENSOR: "%"})
    found.add("gemm", (), "10.00", "64.00", "40.00", "n/a")
    assert counters(digested(found.text(), tmp_path)) == {(0, "time"): 10, (0, "dram_read"): 64, (0, "tensor"): 40}


def test_the_peak_of_the_dram(tmp_path: Path) -> None:
    units = {TIME: "ns", "dram__bytes.sum.peak_sustained": "byte/cycle", "dram__cycles_elapsed.avg.per_second": "Ghz"}
    found = made.Page(units)
    for clock in ("2.60", "2.50", "2.70"):
        found.add("gemm", (), "10.00", "1536.00", clock)
    assert digested(found.text(), tmp_path).fields["dram_peak_bytes_per_s"] == pytest.approx(1536 * 2.6e9)


def test_a_kernel_without_a_time_leaves_no_ledger(tmp_path: Path) -> None:
    """H39: nothing is divided by it either; the rows are the counters alone."""
    found = made.Page()
    found.add("gemm", (), "0.00", "0.00", "0.00")
    assert digested(found.text(), tmp_path).fields["ledger"][0].time_ns == 0
    found.add("gemm", (), "n/a", "0.00", "0.00")
    assert digested(found.text(), tmp_path).fields["ledger"] == ()


def test_the_table_of_counters_is_sound() -> None:
    names = [name for counter in COUNTERS.values() for name in counter.names]
    assert len(names) == len(set(names))
    assert {counter.unit for counter in COUNTERS.values()} <= {"ns", "bytes", "%", "waves"}


# --- the page itself ---


def test_what_is_printed_meanwhile_does_not_matter(page: Any, tmp_path: Path) -> None:
    lines = page.text().splitlines(keepends=True)
    lines.insert(0, '==PROF== Connected to process 77\nloading "weights\n')
    lines.insert(3, '==WARNING== something about a kernel, with "quotes\n')
    assert counters(digested("".join(lines), tmp_path)) == counters(digested(page.text(), tmp_path))
    assert counters(digested(page.text("\r\n"), tmp_path)) == counters(digested(page.text(), tmp_path))


def test_names_survive_whatever_they_hold(tmp_path: Path) -> None:
    """H30: quotes, commas, line ends, bars, 4 kB of template arguments."""
    name = 'void k<"a,b", c|d>(int)\nfor <' + "x, " * 1400 + ">"
    found = made.Page()
    found.add(name, ("draft",), "10.00", "1.00", "1.00")
    assert digested(found.text(), tmp_path).tables["counters"]["name"].tolist() == [name] * 3


def test_ranges_of_others_are_nobodys(page: Any, tmp_path: Path) -> None:
    """H6; and the innermost stage is the kernel's (H1)."""
    place = made.IDENTITY.index(made.STACK)
    page.rows[0][place] = made.stack("verify", domain="NCCL") + "  " + made.stack("round/4").partition("  ")[2]
    page.rows[1][place] = made.stack("round/4", "verify", "accept")
    assert places(digested(page.text(), tmp_path)) == [("", "unattributed", False), ("accept", "launch", False)]


def test_a_page_without_ranges_is_all_unattributed(page: Any, tmp_path: Path) -> None:
    """H7: ncu ran without --nvtx."""
    lines = [row[: len(made.IDENTITY) - 2] + row[len(made.IDENTITY) :] for row in page.rows]
    header = [*made.IDENTITY[:-2], *page.units]
    text = "\n".join(
        ",".join(f'"{cell}"' for cell in row) for row in (header, [""] * 11 + list(page.units.values()), *lines)
    )
    found = digested(text, tmp_path)
    assert {stage for stage, _, _ in places(found)} == {""}
    assert "lie in no round" in " ".join(found.fields["notes"]) or "no nsys capture" in " ".join(found.fields["notes"])


def test_faults_have_their_reasons(page: Any, tmp_path: Path) -> None:
    """H36."""
    assert fault_of("", tmp_path) == "truncated"
    assert fault_of("==WARNING== No kernels were profiled.\n", tmp_path) == "nothing"
    assert fault_of("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", tmp_path) == "no_permission"
    assert fault_of("hello\n", tmp_path) == "unreadable"
    assert fault_of(b"\xff\xfeI\x00D\x00", tmp_path) == "unreadable"
    lines = page.text().splitlines(keepends=True)
    assert fault_of("".join(lines[:2]), tmp_path) == "nothing"
    assert fault_of(lines[0], tmp_path) == "unreadable"
    assert fault_of(page.text()[:-30], tmp_path) == "truncated"
    page.has_units = False
    assert fault_of(page.text(), tmp_path) == "unreadable"
    (tmp_path / "raw" / "ncu.csv").unlink()
    with pytest.raises(CaptureProblem, match="not there"):
        digest_ncu(tmp_path)


def test_the_details_page_is_refused(tmp_path: Path) -> None:
    """Its rows are ragged: those of metrics stop early."""
    header = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type"'
    with pytest.raises(CaptureProblem, match="--page raw"):
        digested(f'{header}\n"0","7","gemm","Duration","ns","10"\n', tmp_path)


@pytest.mark.parametrize("cell", ["-5.00", "12 (0: 12)", "abc", "1e999"])
def test_a_value_that_cannot_be_is_refused(cell: str, page: Any, tmp_path: Path) -> None:
    page.add("gemm", (), cell, "1.00", "1.00")
    assert fault_of(page.text(), tmp_path) == "unreadable"


# --- stages of replayed kernels, from the timeline ---


@pytest.fixture
def replay() -> Any:
    """Round 4: one kernel of a stage launched by itself, then a replay of three."""
    found = made.Page()
    for name, ranges in (
        ("a", ("round/4", "materialize")),
        ("b<1>", ("round/4",)),
        ("c(int)", ("round/4",)),
        ("b<1>", ("round/4",)),
    ):
        found.add(f"void {name}", ranges, "10.00", "1.00", "1.00")
    return found


def test_a_replay_takes_its_stages_from_the_same_round(replay: Any, tmp_path: Path) -> None:
    own = [("a", "materialize", 4), ("b<1>", "draft", 4), ("c", "verify", 4), ("b<1>", "accept", 4)]
    write_timeline(tmp_path, ("a", "prefill", 3), *own, ("a", "draft", 5))
    found = digested(replay.text(), tmp_path)
    assert places(found)[1:] == [("draft", "capture", True), ("verify", "capture", True), ("accept", "capture", True)]
    assert places(found)[0][:2] == ("materialize", "launch")
    assert not [note for note in found.fields["notes"] if "stage" in note]
    assert [(line.basis, line.count) for line in found.fields["ledger"]] == [("capture", 3), ("launch", 1)]


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ((), "no nsys capture"),
        ((("a", "draft", 5),), "does not reach this round"),
        ((("a", "draft", 4), ("b", "draft", 4), ("c", "draft", 4)), "3 kernels in this round, ncu 4"),
        ((("a", "draft", 4), ("c", "draft", 4), ("c", "verify", 4), ("b", "accept", 4)), "lacks b"),
    ],
)
def test_no_stage_is_guessed(ops: tuple[tuple[str, str, int], ...], reason: str, replay: Any, tmp_path: Path) -> None:
    """H38: the two tools do not agree on the round's kernels one to one."""
    if ops:
        write_timeline(tmp_path, *ops)
    found = digested(replay.text(), tmp_path)
    assert places(found) == [("materialize", "launch", False)] + [("", "unattributed", False)] * 3
    assert any("3 kernels of round 4 have no stage" in note and reason in note for note in found.fields["notes"])


def test_branches_of_a_graph_may_run_in_any_order(replay: Any, tmp_path: Path) -> None:
    """ncu runs one branch after the other, nsys sees them side by side. Two of one name may then be either's."""
    write_timeline(tmp_path, ("a", "", 4), ("c", "verify", 4), ("b", "draft", 4), ("b", "accept", 4))
    assert [stage for stage, _, _ in places(digested(replay.text(), tmp_path))][1:] == ["draft", "verify", "accept"]
    replay.rows[2], replay.rows[3] = replay.rows[3], replay.rows[2]
    found = digested(replay.text(), tmp_path)
    assert [stage for stage, _, _ in places(found)][1:] == ["", "", "verify"]
    assert any(
        "2 kernels of round 4 have no stage: two of one name may be either's" in note for note in found.fields["notes"]
    )


def test_kernels_left_out_by_choice_are_no_gap(replay: Any, tmp_path: Path) -> None:
    """Of round 4 the b's alone were counted: laid beside the b's of the timeline, and the rest is known to be left."""
    own = [("void a", "materialize", 4), ("b<1>", "draft", 4), ("c", "verify", 4), ("b<1>", "accept", 4)]
    write_timeline(tmp_path, *own, ("b<1>", "draft", 5), ("c", "draft", 5))
    replay.rows = [row for row in replay.rows if "b<1>" in "".join(row)]
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "ncu.csv").write_text(replay.text(), encoding="utf-8")
    found = digest_ncu(tmp_path, "b|nothing_else")
    assert places(found) == [("draft", "capture", True), ("accept", "capture", True)]
    assert found.fields["num_left_out"] == 2
    assert not [note for note in found.fields["notes"] if "stage" in note]
    whole = digest_ncu(tmp_path)
    assert whole.fields["num_left_out"] == 0
    assert {stage for stage, _, _ in places(whole)} == {""}, "without the choice they are not the round's kernels"
    assert isinstance(digest_ncu(tmp_path, "b").fields["num_left_out"], int)
    assert places(digest_ncu(tmp_path, "b.")) == [("", "unattributed", False)] * 2, "a name matches as a whole"
    (tmp_path / "nsys-ops.parquet").unlink()
    assert isinstance(digest_ncu(tmp_path, "b").fields["num_left_out"], NotMeasured)


def test_what_the_driver_was_to_count_reaches_the_account(replay: Any, tmp_path: Path) -> None:
    """As the digest's own process does it: from ncu.start.json to ncu.json."""
    write_timeline(tmp_path, ("a", "materialize", 4), ("b", "draft", 4), ("c", "verify", 4), ("b", "accept", 4))
    replay.rows = [row for row in replay.rows if "b<1>" in "".join(row)]
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "ncu.csv").write_text(replay.text(), encoding="utf-8")
    start = CaptureStart(
        tool="ncu", tool_version="2025.3.1", seconds=1.0, reads="ncu.csv", raw=("ncu.csv",), cache="flushed",
        counted_kernels="b", counters="bytes",
    )  # fmt: skip
    run = CapturedRun(first_round=4, round_ns=(9,), num_emitted=1, outputs={})
    for name, record in (("start", start), ("run", run)):
        (tmp_path / f"ncu.{name}.json").write_text(record.model_dump_json(), encoding="utf-8")
    found = digest(tmp_path, "ncu")
    assert found.fault is None
    assert (found.counted_kernels, found.num_left_out, found.counters, found.cache) == ("b", 2, "bytes", "flushed")
    assert sum(line.count for line in found.ledger) == 2
    assert [note.partition(":")[0] for note in found.notes] == ["dram_write"], "asked for, and not on the page"


def test_counters_that_were_not_asked_for_are_not_missed(tmp_path: Path) -> None:
    found = made.Page({TIME: "nsecond", READ: "byte", "dram__bytes_write.sum": "byte"})
    found.add("gemm", ("draft",), "1000.00", "4096.00", "64.00")
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "ncu.csv").write_text(found.text(), encoding="utf-8")
    assert not digest_ncu(tmp_path, counters="bytes").fields["notes"]
    assert any("occupancy: not counted" in note for note in digest_ncu(tmp_path).fields["notes"])


def test_what_the_timeline_only_guesses_stays_a_guess(replay: Any, tmp_path: Path) -> None:
    own = [(name, "draft" if name != "c" else "", 4) for name in ("a", "b", "c", "b")]
    write_timeline(tmp_path, *own, basis="approximate")
    found = digested(replay.text(), tmp_path)
    assert [basis for _, basis, _ in places(found)] == ["launch", "approximate", "unattributed", "approximate"]


def test_a_damaged_timeline_is_said(replay: Any, tmp_path: Path) -> None:
    (tmp_path / "nsys-ops.parquet").write_bytes(b"PAR1 no")
    found = digested(replay.text(), tmp_path)
    assert any("nsys-ops.parquet cannot be read" in note for note in found.fields["notes"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void at::native::(anonymous namespace)::f<int, (int)4>(T1 *, int)", "at::native::<unnamed>::f"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"),
        ("void f<g<int>, (a)1>(void (*)(int))", "f"),
    ],
)
def test_bare_names(one: str, other: str) -> None:
    assert bare_name(one) == bare_name(other)


# --- damage ---


def test_damage_gives_a_fault_or_counters(page: Any, tmp_path: Path) -> None:
    whole = page.text().encode()
    rng, outcomes = np.random.default_rng(3), set()
    for _ in range(150):
        content = bytearray(whole)
        for bit in rng.integers(0, 8 * len(whole), rng.integers(1, 5)):
            content[bit // 8] ^= 1 << (bit % 8)
        low, high = sorted(rng.integers(0, len(whole), 2))
        for damaged in (
            bytes(content),
            whole[:low],
            whole[:low] + whole[high:],
            whole[:low] + whole[low:high] + whole[low:],
        ):
            try:
                found = digested(damaged, tmp_path)
                assert (found.tables["counters"]["value"] >= 0).all()
                assert np.isfinite(found.tables["counters"]["value"]).all()
                outcomes.add("read")
            except CaptureProblem as problem:
                outcomes.add(problem.fault.reason)
    assert {"read", "unreadable", "truncated"} <= outcomes


@pytest.mark.parametrize(
    "text", ['"ID"', '"ID","Kernel Name"\n"",""\n"x","a"', '"', "\x00", '"ID","Kernel Name","ID"\n', "=="]
)
def test_stumps_of_pages_are_faults(text: str) -> None:
    with pytest.raises(CaptureProblem) as caught:
        parse_page(text, "ncu.csv")
    assert caught.value.fault.reason in ("unreadable", "truncated", "nothing")
