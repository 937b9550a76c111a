"""The torch profiler (Kineto) over the window of a run: started, stopped, its trace written without the host's name.

Used by `capture_worker.py` inside the case's process; there is no tool around it. The trace is Chrome's JSON.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import torch

_NAMING = ("host_name", "traceName", "trace_id", "distributedInfo")  # keys that name a machine, a folder, a session


class Kineto:
    """One recording."""

    def __init__(self, device: str, file: Path) -> None:
        from torch.profiler import ProfilerActivity

        self._activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
        self._device = device
        self._file = file
        self._profile: Any = None

    def warm_up(self) -> None:
        """The first recording of a process sets CUPTI up, which takes seconds: not in the window."""
        with torch.profiler.profile(activities=self._activities):
            torch.ones(1, device=self._device).add_(1)
        self._profile = torch.profiler.profile(activities=self._activities, acc_events=True)

    def start(self) -> None:
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        plain = self._file.with_suffix("")
        self._profile.export_chrome_trace(str(plain))
        trace = json.loads(plain.read_text(encoding="utf-8", errors="replace"))
        plain.unlink()
        anonymous = {key: value for key, value in trace.items() if key not in _NAMING}
        with gzip.open(self._file, "wt", encoding="utf-8", compresslevel=5) as packed:
            json.dump(anonymous, packed)
