"""The two forms of an export behind one face: which tables there are, which columns, and columns as numpy arrays.

SQLite's numbers come out as one text per 100,000 rows (`group_concat`), which numpy parses: a third of the time that
fetching them row by row takes (2,000,000 rows of three columns: 0.9 s against 1.5 s, one core of an EPYC).
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ddbench.analysis.nsys.failures import (
    DamagedExport,
    MissingExport,
    NotAnExport,
    RawReport,
    TruncatedExport,
    UnreadableExport,
    first_line,
)
from ddbench.analysis.nsys.schema import Column

_MAGIC = b"SQLite format 3\x00"
_CHUNK = 100_000  # rows
_RAW = (".nsys-rep", ".qdrep", ".qdstrm")
_DECODING = (OSError, ValueError, OverflowError, MemoryError, pa.ArrowException)  # what pyarrow says of bad bytes
_DAMAGE = (sqlite3.Error, ValueError, OverflowError, MemoryError)  # ... and sqlite3, whose texts may be no UTF-8
Arrays = dict[str, np.ndarray]


class Source(AbstractContextManager["Source"], Protocol):
    """An open export."""

    path: Path

    def columns(self, table: str) -> Collection[str]:
        """Column names of a table; none: it is not there."""

    def read(self, table: str, wanted: Mapping[str, Column], only: Mapping[str, Collection[int]]) -> Arrays:
        """The columns by name in the export. int64, float64, or objects (text, None where empty).

        `only`: rows whose value in that column is one of these.
        """


def open_export(path: Path) -> Source:
    """SQLite file or folder of parquet files, decided by what is there, never by the name alone."""
    try:
        if path.is_dir():
            return ParquetSource(path)
        if not path.exists():
            raise MissingExport(path)
        if path.suffix in _RAW:
            raise RawReport(path)
        with path.open("rb") as file:
            head = file.read(100)
        size = path.stat().st_size
    except OSError as error:
        raise UnreadableExport(path, error.strerror or first_line(error)) from error
    _check_sqlite(path, head, size)
    return SqliteSource(path)


def _check_sqlite(path: Path, head: bytes, size: int) -> None:
    """The header alone tells what is no database and what was cut off."""
    if not size:
        raise TruncatedExport(path, "the file has no bytes")
    if len(head) < 100 and head[:16] == _MAGIC[: len(head)]:
        raise TruncatedExport(path, f"{size} bytes are not even the header of a database")
    if head[:16] != _MAGIC:
        raise NotAnExport(path, "not a SQLite file")
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    expected = page * int.from_bytes(head[28:32], "big")
    if size < expected:
        raise TruncatedExport(path, f"{size} bytes of {expected}")
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            raise TruncatedExport(path, f"{beside.name} lies beside it: its writer did not finish")


class SqliteSource(Source):
    """Read-only and without any lock: an export is written once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        except sqlite3.Error as error:
            raise UnreadableExport(path, first_line(error)) from error
        try:
            rows = self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        except _DAMAGE as error:
            self._database.close()
            raise DamagedExport(path, first_line(error)) from error
        self._tables = frozenset(name for (name,) in rows if isinstance(name, str))

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def columns(self, table: str) -> Collection[str]:
        if table not in self._tables:
            return ()
        try:
            return [row[1] for row in self._database.execute(f"PRAGMA table_info({_quoted(table)})")]
        except _DAMAGE as error:
            raise DamagedExport(self.path, f"{table}: {first_line(error)}") from error

    def read(self, table: str, wanted: Mapping[str, Column], only: Mapping[str, Collection[int]]) -> Arrays:
        where = "".join(f" AND {_quoted(name)} IN ({', '.join(map(str, values))})" for name, values in only.items())
        has_text = any(column.kind == "text" for column in wanted.values())
        try:
            return (self._read_rows if has_text else self._read_numbers)(table, wanted, where)
        except _DAMAGE as error:
            raise DamagedExport(self.path, f"{table}: {first_line(error)}") from error

    def _read_rows(self, table: str, wanted: Mapping[str, Column], where: str) -> Arrays:
        """A small table with text."""
        names = ", ".join(map(_quoted, wanted))
        rows = self._database.execute(f"SELECT {names} FROM {_quoted(table)} WHERE 1{where} ORDER BY rowid").fetchall()
        cells = list(zip(*rows, strict=True)) if rows else [()] * len(wanted)
        return {
            name: _typed(f"{table}.{name}", column, values, self.path)
            for (name, column), values in zip(wanted.items(), cells, strict=True)
        }

    def _read_numbers(self, table: str, wanted: Mapping[str, Column], where: str) -> Arrays:
        quoted = _quoted(table)
        first, last = self._database.execute(f"SELECT min(rowid), max(rowid) FROM {quoted}").fetchone()
        parts: dict[str, list[np.ndarray]] = {name: [_parse("", column)] for name, column in wanted.items()}
        texts = ", ".join(f"group_concat({_cell(name, column)})" for name, column in wanted.items())
        query = f"SELECT count(*), {texts} FROM {quoted} WHERE rowid BETWEEN ? AND ?{where}"
        if first is None:
            first, last = 0, -1
        if last - first > 1000 * max(_CHUNK, self._count(quoted)):
            raise DamagedExport(self.path, f"{table}: row numbers from {first} to {last}")
        for low in range(first, last + 1, _CHUNK):
            count, *found = self._database.execute(query, (low, low + _CHUNK - 1)).fetchone()
            for (name, column), text in zip(wanted.items(), found, strict=True):
                values = _parse(text or "", column)
                if len(values) != count:
                    raise DamagedExport(self.path, f"{table}.{name}: {len(values)} numbers in {count} rows")
                parts[name].append(values)
        return {name: np.concatenate(parts.pop(name)) for name in wanted}

    def _count(self, quoted: str) -> int:
        return int(self._database.execute(f"SELECT count(*) FROM {quoted}").fetchone()[0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cell(name: str, column: Column) -> str:
    return _quoted(name) if column.empty is None else f"ifnull({_quoted(name)}, {column.empty})"


def _parse(text: str, column: Column) -> np.ndarray:
    """Numbers between commas; what is no number is a ValueError."""
    dtype = np.float64 if column.kind == "float" else np.int64
    if not text:
        return np.empty(0, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy stops at what it cannot read, and only warns
        try:
            return np.fromstring(text, dtype, sep=",")
        except DeprecationWarning as warning:
            raise ValueError("not all cells are numbers") from warning


def _typed(place: str, column: Column, values: tuple[object, ...], path: Path) -> np.ndarray:
    """Cells of a small table; SQLite lets any cell hold anything."""
    if column.kind == "text":
        if not all(value is None or isinstance(value, str) for value in values):
            raise DamagedExport(path, f"{place}: a cell that is not text")
        return np.array(values, dtype=object)
    cells = [column.empty if value is None else value for value in values]
    kinds = (int, float) if column.kind == "float" else (int,)
    if not all(isinstance(cell, kinds) for cell in cells):
        raise DamagedExport(path, f"{place}: a cell that is no number")
    return np.array(cells, dtype=np.float64 if column.kind == "float" else np.int64)


class ParquetSource(Source):
    """`nsys export --type parquetdir`: one file per table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = {file.stem: file for file in path.glob("*.parquet") if file.is_file()}
        if not self._files:
            raise NotAnExport(path, "a folder without parquet files")

    def __exit__(self, *_: object) -> None:
        """Files are open only while they are read."""

    def columns(self, table: str) -> Collection[str]:
        if table not in self._files:
            return ()
        with self._open(table) as file:
            return list(file.schema_arrow.names)

    def read(self, table: str, wanted: Mapping[str, Column], only: Mapping[str, Collection[int]]) -> Arrays:
        place = self._files[table]
        try:
            with self._open(table) as file:
                found = file.read(columns=list(wanted))
            for name, values in only.items():
                chosen = pa.array(sorted(values), pa.int64())
                found = found.filter(pc.is_in(found[name].cast(pa.int64()), value_set=chosen))
            return {name: self._array(place, name, column, found[name]) for name, column in wanted.items()}
        except _DECODING as error:
            raise DamagedExport(place, first_line(error)) from error

    def _open(self, table: str) -> pq.ParquetFile:
        place = self._files[table]
        try:
            with place.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - 4))
                tail = file.read(4)
            if size < 12 or tail != b"PAR1":
                raise TruncatedExport(place, "no footer of a parquet file at its end")
            return pq.ParquetFile(place)
        except _DECODING as error:
            raise DamagedExport(place, first_line(error)) from error

    def _array(self, place: Path, name: str, column: Column, values: pa.ChunkedArray) -> np.ndarray:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if column.kind == "text":
            return np.array(values.cast(pa.string()).to_pylist(), dtype=object)
        if pa.types.is_null(values.type):  # no cell of it is filled
            values = values.cast(pa.int64())
        if not (pa.types.is_integer(values.type) or (column.kind == "float" and pa.types.is_floating(values.type))):
            raise DamagedExport(place, f"{name} is {values.type}, expected numbers")
        kind = pa.float64() if column.kind == "float" else pa.int64()
        values = values.cast(kind, safe=values.type != pa.uint64())  # ids of 64 bits are signed, as SQLite has them
        if values.null_count:
            if column.empty is None:
                raise DamagedExport(place, f"{name}: {values.null_count} empty cells")
            values = pc.fill_null(values, pa.scalar(column.empty, kind))
        return values.to_numpy()
