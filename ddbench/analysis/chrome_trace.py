"""Trace of the torch profiler (Chrome's JSON, plain or gzipped) -> `Trace`: the events that analysis needs, as columns.

Microseconds with three decimals become integer nanoseconds digit by digit: as binary floats, times since 1970 would be
off by up to 128 ns, and operators would no longer lie within those that called them.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddbench.analysis.digested import CaptureProblem

ANNOTATION, OPERATOR = "user_annotation", "cpu_op"
CALLS = ("cuda_runtime", "cuda_driver")
DEVICE_OPS = ("kernel", "gpu_memcpy", "gpu_memset")
_WITH_ARGUMENTS = (*CALLS, *DEVICE_OPS)
_WANTED = (ANNOTATION, OPERATOR, *_WITH_ARGUMENTS)
_LATEST_US = (1 << 61) // 1000  # sums of two such times, in nanoseconds, stay within 64 bits
_MOST = 1 << 62  # ... as do sums over all events
_LARGEST = 1 << 62  # of ids and bytes
_LONGEST_WORD = len("-Infinity")  # where one is cut, its beginning is what JSON complains of
_AGAIN = "capture again with --capture torch"
_TEXT = ("category", "name")
_ARGUMENTS = {
    "correlation": "correlation",
    "device": "gpu",
    "stream": "stream",
    "bytes": "num_bytes",
    "graph id": "graph",
    "graph node id": "node",
}


@dataclass(frozen=True)
class Trace:
    """One file. `thread` numbers the pairs of process and thread as they appear; -1: an argument that is not there."""

    # category, name, thread, start_ns, end_ns, correlation, gpu, stream, num_bytes, graph and node (0: of no graph)
    events: pd.DataFrame
    schema_version: str  # '' where the trace states none
    num_gpus: int  # that the profiler saw on the machine, whether or not anything ran there


def read_trace(path: Path) -> Trace:
    """Events of the wanted categories. Raises `CaptureProblem` for whatever is no complete trace."""
    document = _decoded(path)
    listed = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(listed, list):
        raise _unreadable(path, "no list of events in it")
    columns: dict[str, list[Any]] = {name: [] for name in (*_TEXT, "thread", "start_ns", "end_ns")}
    columns |= {name: [] for name in _ARGUMENTS.values()}
    threads: dict[tuple[object, object], int] = {}
    for event in listed:
        if not isinstance(event, dict):
            raise _unreadable(path, "an event that is no object")
        if event.get("ph") == "X" and event.get("cat") in _WANTED:
            for name, value in _cells(event, threads, path):
                columns[name].append(value)
    if sum(columns["end_ns"]) - sum(columns["start_ns"]) >= _MOST:
        raise _unreadable(path, "times beyond any capture")
    events = pd.DataFrame({name: _column(name, values) for name, values in columns.items()})
    facts = document if isinstance(document, dict) else {}
    gpus = facts.get("deviceProperties")
    version = facts.get("schemaVersion")
    return Trace(
        events, str(version) if isinstance(version, int | str) else "", len(gpus) if isinstance(gpus, list) else 0
    )


# ------------------------------------------------------------------------------------------------------------- bytes


def _decoded(path: Path) -> Any:
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except FileNotFoundError as error:
        raise CaptureProblem("nothing", f"{path.name} is not there", _AGAIN) from error
    except EOFError as error:
        raise _truncated(path) from error
    except (OSError, zlib.error, UnicodeDecodeError, MemoryError) as error:
        raise _unreadable(path, f"{type(error).__name__}") from error
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=str)  # NaN and Infinity: not in what is read
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) - _LONGEST_WORD or error.msg.startswith("Unterminated string"):
            raise _truncated(path) from error
        raise _unreadable(path, f"no JSON from character {error.pos} on") from error
    except (ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise _unreadable(path, f"{type(error).__name__}") from error


def _truncated(path: Path) -> CaptureProblem:
    return CaptureProblem("truncated", f"{path.name} ends before its end", f"{_AGAIN}: its writer did not finish")


def _unreadable(path: Path, detail: str) -> CaptureProblem:
    return CaptureProblem("unreadable", f"{path.name} is no trace of the torch profiler ({detail})", _AGAIN)


# ------------------------------------------------------------------------------------------------------------ events


def _cells(
    event: Mapping[str, Any], threads: dict[tuple[object, object], int], path: Path
) -> Iterator[tuple[str, Any]]:
    """What one event puts into the columns."""
    start, duration = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
    name = event.get("name")
    arguments = event.get("args", {}) if event["cat"] in _WITH_ARGUMENTS else {}
    if start is None or duration is None or duration < 0:
        raise _unreadable(path, "an event without its times")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise _unreadable(path, "an event without a name")
    place = (event.get("pid"), event.get("tid"))
    if not all(isinstance(number, int | str) for number in place):
        raise _unreadable(path, "an event without its thread")
    yield from zip(_TEXT, (event["cat"], name), strict=True)
    is_host = event["cat"] not in DEVICE_OPS  # on a device the pair is a GPU and a stream
    yield "thread", threads.setdefault(place, len(threads)) if is_host else -1
    yield from (("start_ns", start), ("end_ns", start + duration))
    for spelling, column in _ARGUMENTS.items():
        yield column, _whole(arguments.get(spelling), f"{spelling} of {event['cat']}", path)


def _nanoseconds(us: object) -> int | None:
    """Whole nanoseconds; None: no time that a capture can have."""
    if isinstance(us, bool) or not isinstance(us, int | Decimal) or (isinstance(us, Decimal) and not us.is_finite()):
        return None
    return int((Decimal(us) * 1000).to_integral_value()) if -_LATEST_US < us < _LATEST_US else None


def _whole(value: object, what: str, path: Path) -> int:
    """An id or a number of bytes; -1: not there."""
    if value is None:
        return -1
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < _LARGEST:
        raise _unreadable(path, f"{what} is no number that it could be")
    return value


def _column(name: str, values: list[Any]) -> np.ndarray | pd.Series:
    if name in _TEXT:
        return pd.Series(values, dtype=object)
    return np.array(values, dtype=np.int64)
