"""Profilers that are not there: scripts that answer and fail as nsys and ncu do, around a worker that is no engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddbench.captured import Capture
from ddbench.harness.profilers import drive
from ddbench.harness.run import Job
from ddbench.harness.store import CaseTables, write_case
from ddbench.records import OkResult
from ddbench.spec import CaptureSpec, Case

Put = Callable[[str, str], Path]
MakeResult = Callable[[str, Case], OkResult]
SECRET = "PLANTED_SECRET"

# Runs what stands behind its options, as the real ones do. `word`: what goes wrong, or what it says when it fails.
NSYS = """
import os, subprocess
word = {word!r}
LOG = {log!r}
open(LOG, "a").write(repr(sys.argv[1:]) + chr(10))
assert os.environ["LC_ALL"] == "C" and {secret!r} not in os.environ
(out,) = [w.removeprefix("--output=") for w in sys.argv if w.startswith("--output=")] or [""]
if sys.argv[1] == "--version":
    print("NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0")
elif sys.argv[1] == "profile":
    has_metrics = any(w.startswith("--gpu-metrics") for w in sys.argv)
    if word == "no counters" and has_metrics:
        print("Illegal --gpu-metrics-devices argument: 0.\\nInsufficient privilege, see ERR_NVGPUCTRPERM")
        sys.exit(1)
    if word == "hang":
        import time
        print("a line", flush=True)
        time.sleep(600)
    code = subprocess.run(sys.argv[sys.argv.index(sys.executable):]).returncode
    if word.startswith("Importer"):
        print("Generating '" + out + ".qdstrm'\\n" + word)
        open(out + ".qdstrm", "w").write("stream")
    elif word.startswith("/") or word.startswith("Generated"):
        print(word)
    else:
        open(out + ".nsys-rep", "w").write("" if word == "empty" else "report")
    sys.exit(143 if word == "143" else code)
elif sys.argv[1] == "export":
    assert open(sys.argv[-1]).read() == "report"
    if word == "no export":
        print("Unable to open the report: it is damaged")
        sys.exit(1)
    os.mkdir(out)
    open(os.path.join(out, "StringIds.parquet"), "w").close()
"""

NCU = """
import os, subprocess
word = {word!r}
LOG = {log!r}
open(LOG, "a").write(repr(sys.argv[1:]) + chr(10))
assert os.environ["LC_ALL"] == "C" and {secret!r} not in os.environ
if sys.argv[1] == "--version":
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880) (public-release)")
elif sys.argv[1] == "--query-metrics":
    print("Device NVIDIA H200 (GH100)\\n" + "-" * 40)
    for name in ("gpu__time_duration", "dram__bytes_read", "sm__pipe_tensor_cycles_active"):
        print(f"{{name:<60}} Counter")
elif sys.argv[1] == "--import":
    print('"ID","Kernel Name","gpu__time_duration.sum"\\n"","","ns"\\n"0","add","1504"' if word != "no export" else "")
else:
    out = sys.argv[sys.argv.index("--export") + 1]
    metrics = sys.argv[sys.argv.index("--metrics") + 1].split(",")
    if word == "refuses" and "l1tex__x.sum" not in metrics and "lts__t_sector_hit_rate.pct" in metrics:
        print("==ERROR== Failed to find metric lts__t_sector_hit_rate.pct")
        sys.exit(1)
    if word == "hang":
        import time
        time.sleep(600)
    for number in range(200):
        print(f'==PROF== Profiling "add" - {{number}}: 0%....50%....100% - 4 passes')
        if number == 3 and word.startswith("=="):
            print(word)
    code = subprocess.run(sys.argv[sys.argv.index(sys.executable):]).returncode
    if not word.startswith("=="):
        open(out + ".ncu-rep", "w").write("" if word == "empty" else "report")
    sys.exit(code)
"""

# Writes what the real one does; `word` is what goes wrong.
WORKER = """
import json, pathlib, sys
job, out, tool, parent = sys.argv[1:]
word = {word!r}
print(json.dumps({{"phase": "recording"}}), flush=True)
if word == "crash":
    sys.exit("RuntimeError: CUDA error: an illegal memory access")
outputs = {{"0": [7, 8, 10] if word == "other" else [7, 8, 9]}}
run = {{"first_round": 4, "round_ns": [] if word == "no round" else [5, 6], "num_emitted": 2, "outputs": outputs}}
captures = pathlib.Path(out, "captures")
(captures / f"{{tool}}.run.json").write_text(json.dumps(run))
if tool == "torch":
    (captures / "raw" / "torch.json.gz").write_bytes(b"" if word == "empty" else b"trace")
    if word == "CUPTI":
        (captures / "raw" / "torch.json.gz").unlink()
        print("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)", file=sys.stderr)
"""

DIGEST = """
import json, pathlib, sys
word = {word!r}
captures, tool = pathlib.Path(sys.argv[1]), sys.argv[2]
start = json.loads((captures / f"{{tool}}.start.json").read_text())
run = json.loads((captures / f"{{tool}}.run.json").read_text())
assert (captures / "raw" / start["reads"]).exists()
(captures / f"{{tool}}-ops.parquet").write_text("rows")
if word == "crash":
    sys.exit("MemoryError")
kept = {{name: start[name] for name in ("tool", "tool_version", "seconds", "command", "raw", "notes", "cache")}}
kept |= {{name: start[name] for name in ("counted_kernels", "counters")}}
kept |= {{name: run[name] for name in ("first_round", "round_ns", "num_emitted")}}
if word == "fault":
    kept["fault"] = {{"reason": "nothing", "what": "no kernel", "cure": "none"}}
(captures / f"{{tool}}.json").write_text("{{" if word == "damage" else json.dumps(kept))
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What the tools were called with, a line each."""
    return tmp_path / "calls.txt"


@pytest.fixture
def put(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """`put('nsys', word)`: a tool on a PATH that holds no others, which fails as the word says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv(SECRET, "planted")

    def program(name: str, word: str = "") -> Path:
        body = {"nsys": NSYS, "ncu": NCU}[name].format(word=word, log=str(log), secret=SECRET)
        file = folder / name
        file.write_text(f"#!{sys.executable}\nimport sys\n{body}", encoding="utf-8")
        file.chmod(0o755)
        return file

    return program


@pytest.fixture
def gpu_case(new_case: Callable[..., Case]) -> Callable[..., Case]:
    """A case that says that it runs on a GPU."""

    def make(*tools: str, device: str = "cuda", timeout_s: int = 60, **capture: int | str) -> Case:
        case = new_case()
        return case.model_copy(
            update={
                "engine": case.engine.model_copy(update={"device": device}),
                "capture": CaptureSpec(tools=tools, timeout_s=timeout_s, **capture),  # type: ignore[arg-type]
            }
        )

    return make


@pytest.fixture
def folder(tmp_path: Path, new_case: Callable[..., Case], ok_result: MakeResult, tables: CaseTables) -> Path:
    """A case that its own process has just written."""
    place = tmp_path / "case"
    place.mkdir()
    write_case(place, ok_result("a", new_case()), tables)
    return place


@pytest.fixture
def captured(tmp_path: Path, folder: Path) -> Callable[..., tuple[Capture, ...]]:
    """`captured(case, worker=..., digest=...)`: its captures, made by these programs."""

    def go(case: Case, *, worker: str = "", digest: str = "", phases: list[str] | None = None) -> tuple[Capture, ...]:
        commands = []
        for name, body, word in (("worker", WORKER, worker), ("digest", DIGEST, digest)):
            script = tmp_path / f"{name}.py"
            script.write_text(body.format(word=word), encoding="utf-8")
            commands.append((sys.executable, str(script)))
        job = tmp_path / "job.json"
        job.write_text(Job(case_id="a", case=case).model_dump_json(), encoding="utf-8")
        told = (phases if phases is not None else []).append
        return drive.capture_case(job, folder, case, told, *commands)

    return go
