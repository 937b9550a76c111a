"""Captures of a case, against tools that are not there: what is called, what is kept, and every way of failing."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ddbench.captured import Capture
from ddbench.harness.profilers import drive, ncu, nsys
from ddbench.harness.profilers.drive import clean_outputs, known_captures, tools_of
from ddbench.harness.tools import case_environment
from ddbench.spec import Case

from .conftest import Put

Captured = Callable[..., tuple[Capture, ...]]
NewCase = Callable[..., Case]


def calls(log: Path) -> list[list[str]]:
    return [ast.literal_eval(line) for line in log.read_text(encoding="utf-8").splitlines()]


def files_of(folder: Path) -> list[str]:
    captures = folder / "captures"
    return sorted(path.relative_to(captures).as_posix() for path in captures.rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------------------- what is done


def test_nsys_records_what_the_program_marks_and_nothing_of_the_cpu(
    put: Put, gpu_case: NewCase, captured: Captured, folder: Path, log: Path
) -> None:
    put("nsys")
    phases: list[str] = []
    (capture,) = captured(gpu_case("nsys"), phases=phases)
    assert capture.fault is None
    assert (capture.tool_version, capture.round_ns, capture.num_emitted) == ("2025.3.1.90", (5, 6), 2)
    _, profile, export = calls(log)
    for words in (["-s", "none"], ["-c", "cudaProfilerApi"]):
        place = profile.index(words[0])
        assert profile[place : place + 2] == words
    assert {
        "--cpuctxsw=none",
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",
        "--capture-range-end=stop",
        "--kill=none",
        "--gpu-metrics-devices=0",
        "--gpu-metrics-frequency=100000",
    } <= set(profile)
    assert export[:2] == ["export", "--type=parquetdir"]
    assert files_of(folder) == ["nsys-ops.parquet", "nsys.json", "raw/nsys.nsys-rep"], "the export is gone"
    assert phases == ["nsys: recording", "nsys: export", "nsys: digest"]


def test_nsys_samples_as_often_as_the_case_says(
    put: Put, gpu_case: NewCase, captured: Captured, folder: Path, log: Path
) -> None:
    put("nsys")
    captured(gpu_case("nsys", samples_per_s=20_000))
    assert "--gpu-metrics-frequency=20000" in calls(log)[1]


def test_ncu_leaves_clocks_and_caches_alone_and_asks_by_the_chips_own_names(
    put: Put, gpu_case: NewCase, captured: Captured, folder: Path, log: Path
) -> None:
    put("ncu")
    (capture,) = captured(gpu_case("ncu"))
    assert capture.fault is None
    assert capture.cache == "as it ran"
    count = next(words for words in calls(log) if "--export" in words)
    for option, value in {
        "--clock-control": "none",
        "--cache-control": "none",
        "--graph-profiling": "node",
        "--profile-from-start": "off",
        "--target-processes": "all",
    }.items():
        assert count[count.index(option) + 1] == value
    assert "--nvtx" in count
    assert "--kernel-name" not in count
    metrics = count[count.index("--metrics") + 1].split(",")
    assert "dram__bytes_read.sum" in metrics
    assert "dram__bytes_op_read.sum" not in metrics, "another generation's name"
    assert {"dram__bytes_write.sum", "dram__bytes_op_write.sum"} <= set(metrics), "neither is listed: both are tried"
    assert "launch__waves_per_multiprocessor" in metrics
    (read,) = [words for words in calls(log) if words[0] == "--import"]
    assert read[2:] == ["--csv", "--page", "raw", "--print-units", "base"]
    assert files_of(folder) == ["ncu-ops.parquet", "ncu.json", "raw/ncu.csv", "raw/ncu.ncu-rep"]
    assert (folder / "captures/raw/ncu.csv").read_text(encoding="utf-8").startswith('"ID","Kernel Name"')


def test_ncu_counts_the_bytes_of_chosen_kernels_in_one_run_of_each(
    put: Put, gpu_case: NewCase, captured: Captured, log: Path
) -> None:
    """From flushed caches: what they read is then all from memory. A name has to match as a whole, in any case."""
    put("ncu")
    (capture,) = captured(gpu_case("ncu", counted_kernels="_mla_.*|_tree_attention_kernel", counters="bytes"))
    assert capture.fault is None
    assert (capture.cache, capture.counters) == ("flushed", "bytes")
    assert capture.counted_kernels == "_mla_.*|_tree_attention_kernel"
    count = next(words for words in calls(log) if "--export" in words)
    for option, value in {
        "--clock-control": "none",
        "--cache-control": "all",
        "--graph-profiling": "node",
        "--kernel-name-base": "function",
        "--kernel-name": "regex:^(_mla_.*|_tree_attention_kernel)$",
    }.items():
        assert count[count.index(option) + 1] == value
    assert "--replay-mode" not in count
    metrics = count[count.index("--metrics") + 1].split(",")
    assert metrics == [
        "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "dram__bytes_op_write.sum",
    ], "of the last counter neither name is listed by this ncu: both are tried"  # fmt: skip


def test_a_choice_of_kernels_is_none_of_other_tools(put: Put, gpu_case: NewCase, captured: Captured, log: Path) -> None:
    put("nsys")
    (capture,) = captured(gpu_case("nsys", counted_kernels="_mla_.*", counters="bytes"))
    assert (capture.counted_kernels, capture.counters, capture.cache) == ("", "all", "as it ran")
    assert not any("_mla_" in word for words in calls(log) for word in words)


def test_torch_records_a_case_on_the_cpu_and_needs_no_tool(
    put: Put, gpu_case: NewCase, captured: Captured, folder: Path
) -> None:
    (capture,) = captured(gpu_case("torch", device="cpu"))
    assert capture.fault is None
    assert files_of(folder) == ["raw/torch.json.gz", "torch-ops.parquet", "torch.json"]


def test_commands_name_nothing_of_this_machine(put: Put, gpu_case: NewCase, captured: Captured, tmp_path: Path) -> None:
    put("nsys")
    put("ncu")
    for capture in captured(gpu_case("nsys", "ncu", "torch")):
        assert str(tmp_path) not in capture.model_dump_json()
        assert capture.command.endswith(f"python -m ddbench.harness.capture_worker JOB CASE {capture.tool}")
        assert "PLANTED" not in capture.model_dump_json()


def test_tools_come_in_one_order_and_in_the_first_block_only(gpu_case: NewCase) -> None:
    case = gpu_case("ncu", "torch", "nsys")
    assert tools_of(case) == ("nsys", "torch", "ncu")
    assert tools_of(case.model_copy(update={"block": 1})) == ()
    assert tools_of(gpu_case()) == ()


def test_what_is_captured_is_read_again_and_damage_is_as_good_as_none(
    put: Put, gpu_case: NewCase, captured: Captured, folder: Path
) -> None:
    put("nsys")
    case = gpu_case("nsys", "ncu")
    made = captured(case)
    assert known_captures(folder, case) == made
    (folder / "captures/nsys.json").write_text("{", encoding="utf-8")
    assert [one.tool for one in known_captures(folder, case)] == ["ncu"]


def test_a_tool_below_a_case_sees_how_to_compute_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("API_TOKEN", "planted")
    found = case_environment()
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["LC_ALL"] == "C"
    assert "API_TOKEN" not in found


@pytest.mark.parametrize(
    ("visible", "gpu"), [(None, "0"), ("2,1", "2"), ("GPU-8a1f", "cuda-visible"), ("", "cuda-visible")]
)
def test_the_gpu_that_is_sampled_is_the_first_that_the_case_sees(visible: str | None, gpu: str) -> None:
    assert nsys.sampled_gpu({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == gpu


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_no_permission_for_counters_costs_nsys_its_gpu_metrics_only(
    put: Put, gpu_case: NewCase, captured: Captured, log: Path
) -> None:
    put("nsys", "no counters")
    (capture,) = captured(gpu_case("nsys"))
    assert capture.fault is None
    assert "no GPU metrics: no permission" in capture.notes[0]
    assert "--gpu-metrics" not in capture.command
    assert len([words for words in calls(log) if words[0] == "profile"]) == 2


def test_counters_that_a_chip_lacks_are_left_out(put: Put, gpu_case: NewCase, captured: Captured, log: Path) -> None:
    put("ncu", "refuses")
    (capture,) = captured(gpu_case("ncu"))
    assert capture.fault is None
    first, second = (words[words.index("--metrics") + 1] for words in calls(log) if "--export" in words)
    assert set(first.split(",")) - set(second.split(",")) == {"lts__t_sector_hit_rate.pct"}


def test_nsys_that_ends_with_143_has_still_recorded(put: Put, gpu_case: NewCase, captured: Captured) -> None:
    """H27."""
    put("nsys", "143")
    assert captured(gpu_case("nsys"))[0].fault is None


LIBDW = "/nsys/QdstrmImporter: error while loading shared libraries: libdw.so.1: cannot open shared object file"


@pytest.mark.parametrize(
    ("tool", "word", "reason", "cure"),
    [
        ("nsys", "Importer error status: An unknown error occurred.", "importer", "libdw1"),
        ("nsys", LIBDW, "importer", "libdw1"),
        ("nsys", "/tmp: No space left on device", "disk", "TMPDIR"),
        ("nsys", "/nsys: the GPU is already under profiling", "busy", "stop it"),
        ("nsys", "Generated: No reports were generated", "nothing", "CUPTI clients"),
        ("nsys", "/nsys: a failure of another kind", "nothing", "doctor"),
        ("nsys", "empty", "truncated", "capture again"),
        ("nsys", "no export", "unreadable", "viewer"),
        ("ncu", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "no_permission", "SYS_ADMIN"),
        ("ncu", "==ERROR== Failed to open lock file /tmp/nsight-compute-lock", "lock", "other ncu"),
        ("ncu", "==ERROR== Profiling failed because a driver resource was unavailable.", "busy", "DCGM"),
        ("ncu", "==ERROR== The driver is not compatible with Nsight Compute", "driver_mismatch", "ncu as new"),
        ("ncu", "==WARNING== No kernels were profiled.", "nothing", "GPU"),
        ("ncu", "empty", "truncated", "capture again"),
        ("ncu", "no export", "unreadable", "viewer"),
    ],
)
def test_every_failure_of_a_tool_is_its_own_reason_with_a_cure(
    tool: str, word: str, reason: str, cure: str, put: Put, gpu_case: NewCase, captured: Captured, folder: Path
) -> None:
    """H26, H36. Among hundreds of other lines, too."""
    put(tool, word)
    (capture,) = captured(gpu_case(tool))
    assert capture.fault is not None
    assert (capture.fault.reason, cure in capture.fault.cure) == (reason, True), capture.fault
    assert "\n" not in capture.fault.what + capture.fault.cure
    assert capture.round_ns == ()
    assert not [name for name in files_of(folder) if name.endswith((".parquet", "run.json", "start.json"))]
    assert [f"raw/{name}" for name in capture.raw] == [name for name in files_of(folder) if name.startswith("raw/")]


def test_a_stream_that_was_not_imported_is_kept(put: Put, gpu_case: NewCase, captured: Captured, folder: Path) -> None:
    put("nsys", "Importer error status: An unknown error occurred.")
    (capture,) = captured(gpu_case("nsys"))
    assert capture.raw == ("nsys.qdstrm",)
    assert (folder / "captures/raw/nsys.qdstrm").read_text(encoding="utf-8") == "stream"


@pytest.mark.parametrize(
    ("worker", "reason", "what"),
    [
        ("crash", "crash", "illegal memory access"),
        ("other", "other_output", "request 0"),
        ("no round", "nothing", "before its round 4"),
    ],
)
@pytest.mark.parametrize("tool", ["nsys", "ncu", "torch"])
def test_every_failure_of_the_case_below_a_tool_is_told(
    tool: str, worker: str, reason: str, what: str, put: Put, gpu_case: NewCase, captured: Captured
) -> None:
    if tool != "torch":
        put(tool)
    (capture,) = captured(gpu_case(tool), worker=worker)
    assert capture.fault is not None
    assert (capture.fault.reason, what in capture.fault.what) == (reason, True), capture.fault


@pytest.mark.parametrize(("worker", "reason"), [("empty", "truncated"), ("CUPTI", "busy")])
def test_every_failure_of_the_torch_profiler_is_told(
    worker: str, reason: str, put: Put, gpu_case: NewCase, captured: Captured
) -> None:
    (capture,) = captured(gpu_case("torch"), worker=worker)
    assert capture.fault is not None
    assert capture.fault.reason == reason


@pytest.mark.parametrize("word", ["crash", "damage"])
def test_a_digest_that_fails_is_a_fault_and_leaves_no_tables(
    word: str, put: Put, gpu_case: NewCase, captured: Captured, folder: Path
) -> None:
    put("nsys")
    (capture,) = captured(gpu_case("nsys"), digest=word)
    assert capture.fault is not None
    assert (capture.fault.reason, "not digested" in capture.fault.what) == ("crash", True)
    assert files_of(folder) == ["nsys.json", "raw/nsys.nsys-rep"]


def test_what_the_digest_finds_wrong_is_the_fault(put: Put, gpu_case: NewCase, captured: Captured) -> None:
    put("nsys")
    (capture,) = captured(gpu_case("nsys"), digest="fault")
    assert capture.fault is not None
    assert capture.fault.what == "no kernel"


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_a_tool_that_hangs_is_stopped_with_all_that_it_started(
    tool: str, put: Put, gpu_case: NewCase, captured: Captured
) -> None:
    """H37."""
    program = put(tool, "hang")
    begin = time.monotonic()
    (capture,) = captured(gpu_case(tool, timeout_s=1))
    assert capture.fault is not None
    assert (capture.fault.reason, "1 s" in capture.fault.what) == ("timeout", True)
    assert ("one by one" in capture.fault.cure) == (tool == "ncu")
    assert time.monotonic() - begin < 30
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(program) in (one.info["cmdline"] or [])]


def test_a_tool_that_is_not_there_or_of_no_use_is_said_without_running_anything(
    put: Put, gpu_case: NewCase, captured: Captured, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "find_tool", lambda name: None)
    missing = captured(gpu_case("nsys", "ncu"))
    assert [one.fault.reason for one in missing if one.fault] == ["tool_missing", "tool_missing"]
    unsupported = captured(gpu_case("nsys", "ncu", device="cpu"))
    assert [one.fault.reason for one in unsupported if one.fault] == ["unsupported", "unsupported"]
    monkeypatch.setattr(drive.importlib.util, "find_spec", lambda name: None)
    (without,) = captured(gpu_case("nsys"))
    assert without.fault is not None
    assert without.fault.cure == "pip install nvtx"
    assert not log.exists()


def test_one_tool_that_fails_does_not_cost_the_others(put: Put, gpu_case: NewCase, captured: Captured) -> None:
    put("nsys", "/nsys: a failure")
    put("ncu")
    found = captured(gpu_case("nsys", "ncu", "torch"))
    assert [(one.tool, one.fault is None) for one in found] == [("nsys", False), ("torch", True), ("ncu", True)]


def test_outputs_are_held_against_the_first_clean_pass(folder: Path) -> None:
    assert clean_outputs(folder) == {"0": (7, 8, 9)}


def test_names_that_are_unknown_to_a_silent_ncu_are_all_asked_for(put: Put, tmp_path: Path) -> None:
    silent = tmp_path / "ncu"
    silent.write_text("#!/bin/sh\n", encoding="utf-8")
    silent.chmod(0o755)
    from ddbench.analysis.ncu.counters import METRIC_NAMES

    assert set(ncu.known_metrics(silent)) == set(METRIC_NAMES)
