"""Why an export cannot be read: one type per cause, each message with what to do about it."""

from __future__ import annotations

from pathlib import Path

from ddbench.errors import DdbenchError

_AGAIN = "export the report again: `nsys export --type parquetdir --force-overwrite true REPORT.nsys-rep`"


class ExportError(DdbenchError):
    """Base: this export of Nsight Systems gives no frames."""


class MissingExport(ExportError):
    """There is nothing at the path."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no such file or folder: {_AGAIN}")


class UnreadableExport(ExportError):
    """Something is there but the system does not let it be read, or another process holds it."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path}: cannot be opened ({detail}): wait for its writer, or check who may read it")


class NotAnExport(ExportError):
    """The file is whole, but not one of nsys's exports that are read here."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(f"{path}: {found}, expected a SQLite export or a parquetdir of nsys: {_AGAIN}")


class RawReport(ExportError):
    """The report itself, or what nsys leaves where its importer fails, instead of an export."""

    def __init__(self, path: Path) -> None:
        cure = _AGAIN
        if path.suffix == ".qdstrm":
            cure = (
                "nsys did not import it: keep the file, install libdw1 and libelf1 beside this very nsys, and import it"
            )
        super().__init__(f"{path}: a report ({path.suffix}), not an export of it: {cure}")


class TruncatedExport(ExportError):
    """The file ends before what it says that it holds, or its writer never finished."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path}: incomplete ({detail}): {_AGAIN}")


class DamagedExport(ExportError):
    """What is stored contradicts itself or cannot be decoded."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path}: damaged ({detail}): {_AGAIN}")


class UnknownSchema(ExportError):
    """A table is there without a column that is needed: written by an nsys that is not known yet, or no longer."""

    def __init__(self, path: Path, table: str, column: str, version: str) -> None:
        super().__init__(
            f"{path}: table {table} has no column {column} (export schema {version}): "
            "export the report with nsys 2024.2 or a later release that is known to work, such as 2025.3"
        )


class EmptyExport(ExportError):
    """A sound export in which nothing was recorded."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: holds no kernel, copy, API call or NVTX range: the capture window was never opened or "
            "`--trace=cuda,nvtx` was missing; capture again and look at the diagnostics of nsys"
        )


def first_line(error: BaseException) -> str:
    """What an error says, short enough for one line."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:160]
