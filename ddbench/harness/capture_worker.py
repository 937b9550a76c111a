"""The process of one case under a profiler: `python -m ddbench.harness.capture_worker JOB.json OUT_DIR TOOL PARENT`.

Started by the tool's driver (`profilers/`) after the case's own process (`worker.py`) has proved and timed it, with the
same models, workload and engine. A first engine compiles and warms up; the one that is recorded is new, so that nsys
sees its graphs being captured, stage by stage. Writes captures/<tool>.run.json. Ends when the process PARENT is gone:
what standard input is below a profiler is not known.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil
import torch

from ddbench.captured import CapturedRun
from ddbench.engine.engine import Engine
from ddbench.engine.types import Setting
from ddbench.files import write_atomically
from ddbench.harness.measure import Notify, all_requests, build_engine, rehearse, synchronize, warm_up
from ddbench.harness.profilers.kineto import Kineto
from ddbench.harness.profilers.window import NvtxRanges, Ranges, TorchRanges, WindowProbe
from ddbench.harness.run import Job
from ddbench.harness.store import json_text
from ddbench.harness.worker import ORPHANED, take_over_stdout
from ddbench.harness.workload import Workload, build_workload
from ddbench.models.weights import Models, load_models
from ddbench.spec import Case, Tool, from_json

NCU_ROUNDS = 1  # every kernel of it is run again for every group of counters: 0.25 s each on an H200
_ORPHAN_S = 1.0


class Recorder(Protocol):
    """When a tool records."""

    def ranges(self) -> Ranges:
        """Its names for stretches of time."""

    def before_reserve(self) -> None:
        """The engine that is recorded is about to be given its storage and its graphs."""

    def before_window(self) -> None:
        """The device is idle."""

    def after_window(self) -> None:
        """The device is idle; nothing more is to be recorded."""


class Nsys:
    """Records from before the graphs are captured, so that every node is known by the range of its capture."""

    def ranges(self) -> Ranges:
        return NvtxRanges()

    def before_reserve(self) -> None:
        torch.cuda.profiler.start()

    def before_window(self) -> None:
        """Recording for long."""

    def after_window(self) -> None:
        torch.cuda.profiler.stop()


class Ncu:
    """Records the window alone."""

    def ranges(self) -> Ranges:
        return NvtxRanges()

    def before_reserve(self) -> None:
        """Not yet."""

    def before_window(self) -> None:
        torch.cuda.profiler.start()

    def after_window(self) -> None:
        torch.cuda.profiler.stop()


class Torch:
    """Records the window alone, in this process."""

    def __init__(self, device: str, file: Path) -> None:
        self._kineto = Kineto(device, file)

    def ranges(self) -> Ranges:
        return TorchRanges()

    def before_reserve(self) -> None:
        self._kineto.warm_up()

    def before_window(self) -> None:
        self._kineto.start()

    def after_window(self) -> None:
        self._kineto.stop()


def recorder_of(tool: Tool, device: str, captures: Path) -> Recorder:
    """The recorder of a tool."""
    if tool == "torch":
        return Torch(device, captures / "raw" / "torch.json.gz")
    return Nsys() if tool == "nsys" else Ncu()


def num_rounds(case: Case, tool: Tool) -> int:
    """Rounds in the window."""
    return min(case.capture.num_rounds, NCU_ROUNDS) if tool == "ncu" else case.capture.num_rounds


# ----------------------------------------------------------------------------------------------------------- the run


def captured_run(case: Case, tool: Tool, captures: Path, notify: Notify) -> CapturedRun:
    """Run the case under the tool, whose recording is begun and ended from here."""
    notify("loading")
    if case.engine.num_threads is not None:
        torch.set_num_threads(case.engine.num_threads)
    models = load_models(case.engine)
    workload = build_workload(case.workload, models.target.shape, models.folder, case.capture.num_warmup_requests)
    setting = _warmed_up(case, models, workload, notify)
    gc.collect()  # the first engine and its graphs make room
    recorder = recorder_of(tool, case.engine.device, captures)
    notify("reserving")
    synchronize(case.engine)
    recorder.before_reserve()
    probe = WindowProbe(
        recorder.ranges(),
        first_round=case.capture.first_round,
        num_rounds=num_rounds(case, tool),
        synchronize=lambda: synchronize(case.engine),
        opening=recorder.before_window,
        closed=recorder.after_window,
    )
    engine = Engine(case.engine, models, continuations=setting.continuations)
    engine.reserve(all_requests(case, workload), case.workload.concurrency, probe=probe)
    notify("recording")
    finished = engine.run(workload.measured, case.workload.concurrency, probe)
    probe.close()
    return probe.run({str(done.request_id): done.tokens for done in finished})


def _warmed_up(case: Case, models: Models, workload: Workload, notify: Notify) -> Setting:
    """Compile and choose algorithms with an engine that is thrown away; what the next one is built from."""
    engine = build_engine(case.engine, models, workload, case.workload.concurrency)
    engine.reserve(all_requests(case, workload), case.workload.concurrency)
    notify("warm-up")
    warm_up(engine, case, workload.warmup)
    rehearse(engine, case, workload.measured, notify)
    return engine.setting


# ------------------------------------------------------------------------------------------------------- the process


def main(arguments: list[str]) -> int:
    """Exit code 0 when the run's record was written; a failure goes to standard error and to whoever started it."""
    job_file, out, tool = Path(arguments[0]), Path(arguments[1]), arguments[2]
    notify = take_over_stdout()
    if len(arguments) > 3:
        _end_without(int(arguments[3]))
    job = from_json(Job, job_file.read_text(encoding="utf-8"), job_file.name)
    assert tool in ("nsys", "ncu", "torch"), "called by a driver"
    captures = out / "captures"
    run = captured_run(job.case, tool, captures, notify)  # type: ignore[arg-type]
    write_atomically(captures / f"{tool}.run.json", json_text(run))
    return 0


def _end_without(parent: int) -> None:
    """A parent that was killed cannot stop us."""

    def wait() -> None:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(parent)
            while process.is_running():
                time.sleep(_ORPHAN_S)
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True, name="parent-watch").start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
