"""The raw page of a report (`ncu --csv --page raw --print-units base`) -> `Profile`: the reader that needs no package.

Names in the first row, units in the second (read, never assumed), then a row per kernel. What ncu says meanwhile
(`==PROF== ...`) and what the program prints may stand between them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ddbench.analysis.digested import CaptureProblem
from ddbench.analysis.ncu.counters import METRIC_NAMES
from ddbench.analysis.ncu.numbers import Ambiguous, Locale, is_missing, locale_of, parse
from ddbench.analysis.ncu.profile import AGAIN, Kernel, Measured, Profile
from ddbench.analysis.nsys.names import DOMAIN
from ddbench.errors import shown

_ID, _KERNEL, _CHIP = "ID", "Kernel Name", "CC"
_STACK = "thread Domain:Push/Pop_Range"  # how its column begins; a cell: thread, then a quoted entry per open range
_ENTRY = re.compile(rf'"{DOMAIN}:([^":]*)[^"]*"')
_HEADER = re.compile(r'"?ID"?[,\s]')
_SAID = re.compile(r"==[A-Z]+== ?(.*)")
_LOCALE = "run ncu with LC_ALL=C and --print-units base"


def read_page(path: Path) -> Profile:
    """Every kernel of the page. Raises `CaptureProblem`."""
    return parse_page(_text(path), path.name)


def parse_page(text: str, name: str) -> Profile:
    """The same for a page in memory; `name` is what errors call it."""
    said: list[str] = []
    rows = _rows(text, said, name)
    header = next(rows, None)
    if header is None:
        raise _no_page(said, text, name)
    place = {column: index for index, column in enumerate(header)}
    if "Metric Name" in place:
        raise _unreadable(name, "the details page", "export it with --page raw")
    if len(place) != len(header) or _KERNEL not in place:
        raise _unreadable(name, "no raw page of ncu: a column is there twice, or the kernel's name is not")
    units = next(rows, None)
    kernels = list(rows)
    if units is None or units[place[_ID]].strip() or units[place[_KERNEL]].strip():
        raise _unreadable(name, "a raw page without its row of units")
    if not kernels:
        raise CaptureProblem("nothing", f"{name} holds no kernel", "look at the filters; the program must use the GPU")
    locale = _locale(header, kernels, name)
    chips = sorted({row[place[_CHIP]].strip() for row in kernels} if _CHIP in place else ())
    return Profile(tuple(_kernel(row, place, units, locale, name) for row in kernels), " and ".join(chips))


# -------------------------------------------------------------------------------------------------------------- text


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise CaptureProblem("nothing", f"{path.name} is not there", AGAIN) from error
    except (OSError, UnicodeDecodeError, MemoryError) as error:
        raise _unreadable(path.name, type(error).__name__) from error


def _rows(text: str, said: list[str], name: str) -> Iterator[list[str]]:
    """Cells of the header, then of every row below it, all of one length."""
    width = 0
    for record in _records(text, said, name):
        try:
            cells = next(csv.reader([record], strict=True), [])
        except csv.Error as error:
            raise _unreadable(name, f"no CSV ({error})") from error
        width = width or len(cells)
        if cells and len(cells) != width:
            raise CaptureProblem("truncated", f"{name}: a row of {len(cells)} cells, expected {width}", AGAIN)
        if cells:
            yield cells


def _records(text: str, said: list[str], name: str) -> Iterator[str]:
    """The text of the header and of every row, without the lines that ncu says; a quoted cell may hold line ends."""
    lines = io.StringIO(text, newline="\n")
    is_page = False
    for line in lines:
        spoken = _SAID.match(line)
        is_page = is_page or _HEADER.match(line) is not None
        if spoken:
            said.append(spoken[1])
        elif is_page:
            while line.count('"') % 2:
                more = next(lines, None)
                if more is None:
                    raise CaptureProblem("truncated", f"{name} ends within a cell", AGAIN)
                line += more
            yield line


# -------------------------------------------------------------------------------------------------------------- cells


def _locale(header: Sequence[str], kernels: Sequence[Sequence[str]], name: str) -> Locale:
    """Told by all metrics of the page, wanted or not; attributes of the device are no measured numbers."""
    places = [index for index, column in enumerate(header) if "__" in column and not column.startswith("device__")]
    try:
        return locale_of(row[index] for row in kernels for index in places)
    except Ambiguous as error:
        raise _unreadable(name, str(error), _LOCALE) from error


def _kernel(row: Sequence[str], place: Mapping[str, int], units: Sequence[str], locale: Locale, name: str) -> Kernel:
    metrics = {}
    for metric in METRIC_NAMES:
        if metric in place:
            cell = row[place[metric]]
            metrics[metric] = Measured(_number(metric, cell, locale, name), units[place[metric]].strip())
    if not row[place[_ID]].strip().isdecimal():
        raise _unreadable(name, "a row without the number of its kernel")
    return Kernel(row[place[_KERNEL]].strip(), _ranges(row, place), metrics)


def _ranges(row: Sequence[str], place: Mapping[str, int]) -> tuple[str, ...]:
    """Names of our open ranges, the outermost first: `4711  "ddbench:round/4:none:..."  "ddbench:draft:..."`."""
    cells = [row[index] for column, index in place.items() if column.startswith(_STACK)]
    return tuple(name for cell in cells for name in _ENTRY.findall(cell))


def _number(metric: str, cell: str, locale: Locale, name: str) -> float | None:
    if is_missing(cell):
        return None
    try:
        return parse(cell, locale)
    except Ambiguous as error:
        raise _unreadable(name, f"{metric} is {shown(cell)}, which two locales read in two ways", _LOCALE) from error
    except ValueError as error:
        raise _unreadable(name, f"{metric} is {shown(cell)}, expected a number") from error


# ------------------------------------------------------------------------------------------------------------- errors


def _no_page(said: Sequence[str], text: str, name: str) -> CaptureProblem:
    told = " ".join(said)
    if not text.strip():
        return CaptureProblem("truncated", f"{name} is empty", AGAIN)
    if "ERR_NVGPUCTRPERM" in told:
        return CaptureProblem("no_permission", "no permission for GPU counters", "see `ddbench doctor --for ncu`")
    if "No kernels were profiled" in told:
        return CaptureProblem("nothing", "ncu profiled no kernel", "look at its filters; the program must use the GPU")
    return _unreadable(name, f"no page of ncu{': ' + said[-1][:120] if said else ''}")


def _unreadable(name: str, detail: str, cure: str = AGAIN) -> CaptureProblem:
    return CaptureProblem("unreadable", f"{name}: {detail}", cure)
