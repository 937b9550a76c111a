"""Why an export cannot be read: one type per cause, each message with what to do about it."""

from __future__ import annotations

from pathlib import Path

from ddbench.captured import FaultReason
from ddbench.errors import DdbenchError

_AGAIN = "export the report again: `nsys export --type parquetdir --force-overwrite true REPORT.nsys-rep`"


class ExportError(DdbenchError):
    """Base: this export of Nsight Systems gives no frames. `what` and `cure` name no path, the message does."""

    reason: FaultReason = "unreadable"

    def __init__(self, path: Path, what: str, cure: str = _AGAIN) -> None:
        super().__init__(f"{path}: {what}: {cure}")
        self.what, self.cure = f"{path.name}: {what}", cure


class MissingExport(ExportError):
    """There is nothing at the path."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "no such file or folder")


class UnreadableExport(ExportError):
    """Something is there but the system does not let it be read, or another process holds it."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(path, f"cannot be opened ({detail})", "wait for its writer, or check who may read it")


class NotAnExport(ExportError):
    """The file is whole, but not one of nsys's exports that are read here."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(path, f"{found}, expected a SQLite export or a parquetdir of nsys")


class RawReport(ExportError):
    """The report itself, or what nsys leaves where its importer fails, instead of an export."""

    def __init__(self, path: Path) -> None:
        cure = _AGAIN
        if path.suffix == ".qdstrm":
            self.reason = "importer"
            cure = (
                "nsys did not import it: keep the file, install libdw1 and libelf1 beside this very nsys, and import it"
            )
        super().__init__(path, f"a report ({path.suffix}), not an export of it", cure)


class TruncatedExport(ExportError):
    """The file ends before what it says that it holds, or its writer never finished."""

    reason = "truncated"

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(path, f"incomplete ({detail})")


class DamagedExport(ExportError):
    """What is stored contradicts itself or cannot be decoded."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(path, f"damaged ({detail})")


class UnknownSchema(ExportError):
    """A table is there without a column that is needed: written by an nsys that is not known yet, or no longer."""

    def __init__(self, path: Path, table: str, column: str, version: str) -> None:
        super().__init__(
            path,
            f"table {table} has no column {column} (export schema {version})",
            "export the report with nsys 2024.2 or a later release that is known to work, such as 2025.3",
        )


class EmptyExport(ExportError):
    """A sound export in which nothing was recorded."""

    reason = "nothing"

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            "holds no kernel, copy, API call or NVTX range",
            "the capture window was never opened or `--trace=cuda,nvtx` was missing; "
            "capture again and look at the diagnostics of nsys",
        )


def first_line(error: BaseException) -> str:
    """What an error says, short enough for one line."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:160]
