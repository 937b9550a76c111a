"""What a reader of one tool's files hands to the digest: the rows of its tables and the facts of its `Capture`.

A reader is a function of the captures folder. What is wrong with the tool's files is a `CaptureProblem`, which becomes
the capture's fault; any other exception is a bug of the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ddbench.captured import CapturedRun, CaptureFault, CaptureStart, FaultReason
from ddbench.errors import DdbenchError, SchemaError
from ddbench.files import why_unread
from ddbench.spec import RecordT, Tool, from_json

_AGAIN = "capture the case again: its process or the driver of the tool ended before its time"


@dataclass(frozen=True)
class Digested:
    """Tables by their name in `CAPTURE_TABLES`, with exactly the columns of their record; fields of `Capture`.

    `fields` leaves out what the digest knows without the tool: tool, seconds, command, raw, the run's own rounds.
    """

    tables: Mapping[str, pd.DataFrame]
    fields: Mapping[str, Any] = field(default_factory=dict)


class CaptureProblem(DdbenchError):
    """Why a tool's files give no tables: becomes `Capture.fault`."""

    def __init__(self, reason: FaultReason, what: str, cure: str) -> None:
        super().__init__(f"{reason}: {what}: {cure}")
        self.fault = CaptureFault(reason=reason, what=what, cure=cure)


Reader = Callable[[Path], Digested]


def read_start(folder: Path, tool: Tool) -> CaptureStart:
    """What the driver of the tool left."""
    return _read(CaptureStart, folder / f"{tool}.start.json")


def read_run(folder: Path, tool: Tool) -> CapturedRun:
    """What the captured process saw of the window."""
    return _read(CapturedRun, folder / f"{tool}.run.json")


def source(folder: Path, tool: Tool) -> Path:
    """The file or folder in captures/raw/ that is to be digested."""
    return folder / "raw" / read_start(folder, tool).reads


def _read(model: type[RecordT], path: Path) -> RecordT:
    try:
        return from_json(model, path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        what: FaultReason = "crash" if isinstance(error, FileNotFoundError) else "unreadable"
        raise CaptureProblem(what, f"{path.name}: cannot be read ({why_unread(error)})", _AGAIN) from error
    except SchemaError as error:
        raise CaptureProblem("unreadable", str(error), _AGAIN) from error
