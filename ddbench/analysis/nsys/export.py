"""Export of Nsight Systems -> `NsysExport`: typed frames of what was recorded, times in integer nanoseconds.

First step of every analysis of a capture. Reads only the columns that are needed (schema.py), resolves string ids,
domains and metric names, and checks what can be checked without knowing the program. A table that is absent gives an
empty frame with the same columns. Every failure is an `ExportError` of its own type (failures.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ddbench.analysis.nsys.failures import DamagedExport, EmptyExport, NotAnExport, UnknownSchema
from ddbench.analysis.nsys.gpu_metrics import METRICS, metric_key
from ddbench.analysis.nsys.schema import COPY_DIRECTIONS, SERIOUS, TABLES, Column, Table
from ddbench.analysis.nsys.sources import Source, open_export

NEWEST_KNOWN = (3, 25)
LOW_BITS = 0xFFFFFF  # of a global thread id: the thread; the 24 bits above them are the process
NO_DOMAIN = ""
UNNAMED = "<unnamed>"
_RANGE_TYPES = (59, 60)  # push/pop, start/end
_DOMAIN_CREATED = 75
_LARGEST_VALUE = 1e15  # of a sampled metric
_LARGEST = 1 << 61  # nanoseconds: sums of two stay within 64 bits
_COUNTED = ("kernels", "copies", "memsets", "graph_traces", "api_calls", "ranges")


@dataclass(frozen=True)
class NsysExport:
    """What one capture recorded. `process` and `thread` are nsys's global ids."""

    schema_version: str
    kernels: pd.DataFrame  # start_ns, end_ns, device, stream, correlation, process, name, graph_node (0: none)
    copies: pd.DataFrame  # ... num_bytes, direction, graph_node
    memsets: pd.DataFrame  # ... num_bytes, graph_node
    graph_traces: pd.DataFrame  # whole replays, from a capture that does not trace nodes
    api_calls: pd.DataFrame  # start_ns, end_ns, thread, correlation, name
    node_events: pd.DataFrame  # graph nodes: start_ns, thread, node, original (0: created, not cloned)
    ranges: pd.DataFrame  # NVTX: start_ns, end_ns, thread, end_thread, name, domain, is_unclosed
    samples: pd.DataFrame  # of the known GPU metrics: time_ns, gpu, metric, value
    gpus: pd.DataFrame  # gpu, dram_bytes_per_s (0: unknown)
    cuda_devices: pd.DataFrame  # pid, device, gpu
    diagnostics: tuple[str, ...]  # warnings and errors of nsys itself
    notes: tuple[str, ...]  # what the reader could not take at face value

    @property
    def is_cpu_only(self) -> bool:
        return not any(len(frame) for frame in (self.kernels, self.copies, self.memsets, self.graph_traces))


def read_export(path: Path) -> NsysExport:
    """Frames of a SQLite export or a parquetdir."""
    with open_export(path) as source:
        return _Reader(source).read()


class _Reader:
    """One export being read: its versions, its strings, and the notes that pile up."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._notes: list[str] = []
        if not any(self._source.columns(name) for name in ("META_DATA_EXPORT", "StringIds")):
            raise NotAnExport(source.path, "neither META_DATA_EXPORT nor StringIds is in it")
        self._versions = self._read_versions()
        self._strings = self._read_strings()

    def read(self) -> NsysExport:
        frames = {name: self._frame(name) for name in TABLES if name not in ("samples", "metric_names", "nvtx")}
        copy_kinds = frames["copies"].pop("copy_kind")
        frames["copies"]["direction"] = copy_kinds.map(COPY_DIRECTIONS).fillna("other").astype("category")
        frames["ranges"] = self._ranges(self._frame("nvtx"), frames["api_calls"])
        for name in (*_COUNTED, "node_events"):
            self._check_times(name, frames[name])
        if not any(len(frames[name]) for name in _COUNTED):
            raise EmptyExport(self._source.path)
        diagnostics = frames.pop("diagnostics")
        serious = diagnostics["text"][diagnostics["severity"].isin(SERIOUS)]
        return NsysExport(
            schema_version=self._version("EXPORT_SCHEMA_VERSION"),
            samples=self._samples(),
            diagnostics=tuple(text for text in serious if text),
            notes=(*self._version_notes(), *self._notes),
            **frames,
        )

    # --- versions and strings ---

    def _read_versions(self) -> dict[str, str]:
        wanted = {"name": Column("name", ("name",), "text"), "value": Column("value", ("value",), "text")}
        if not set(wanted) <= set(self._source.columns("META_DATA_EXPORT")):
            return {}
        table = self._source.read("META_DATA_EXPORT", wanted, {})
        return {str(name): str(value) for name, value in zip(table["name"], table["value"], strict=True)}

    def _version(self, key: str) -> str:
        return self._versions.get(key, "unknown")

    def _version_notes(self) -> tuple[str, ...]:
        version = self._version("EXPORT_SCHEMA_VERSION")
        numbers = [int(part) for part in version.split(".")[:2] if part.isascii() and part.isdigit()]
        if len(numbers) == 2 and tuple(numbers) <= NEWEST_KNOWN:
            return ()
        known = ".".join(map(str, NEWEST_KNOWN))
        return (f"export schema {version}: not one of the versions known up to {known}, read by its columns",)

    def _read_strings(self) -> pd.Series:
        """Text by id."""
        wanted = {"id": Column("id", ("id",)), "value": Column("value", ("value",), "text")}
        found = self._source.columns("StringIds")
        if not found:
            return pd.Series([], index=pd.Index([], dtype=np.int64), dtype=object)
        for name in wanted:
            if name not in found:
                raise UnknownSchema(self._source.path, "StringIds", name, self._version("EXPORT_SCHEMA_VERSION"))
        table = self._source.read("StringIds", wanted, {})
        strings = pd.Series(table["value"], index=table["id"], dtype=object)
        if not strings.index.is_unique:
            raise DamagedExport(self._source.path, "StringIds: one id, several texts")
        return strings

    # --- tables ---

    def _frame(self, name: str, only: dict[str, list[int]] | None = None) -> pd.DataFrame:
        """A frame with every column of `TABLES[name]`, whatever the export holds of them."""
        table = TABLES[name]
        place, columns = self._find(table)
        wanted: dict[str, Column] = {}
        for column in table.columns if place else ():
            source = next((spelling for spelling in column.sources if spelling in columns), None)
            if source is not None:
                wanted[source] = column
            elif column.needed:
                version = self._version("EXPORT_SCHEMA_VERSION")
                raise UnknownSchema(self._source.path, place, " or ".join(column.sources), version)
        arrays = self._source.read(place, wanted, only or {}) if wanted else {}
        read = {column.name: arrays.pop(source) for source, column in wanted.items()}
        num_rows = len(next(iter(read.values()))) if read else 0
        filled = {column.name: self._filled(column, read.get(column.name), num_rows) for column in table.columns}
        return pd.DataFrame(filled, copy=False)

    def _find(self, table: Table) -> tuple[str, frozenset[str]]:
        """The table's name in this export and its columns; no name: it is not there."""
        for name in table.names:
            columns = frozenset(self._source.columns(name))
            if columns and (not table.marked_by or table.marked_by in columns):
                return name, columns
        return "", frozenset()

    def _filled(self, column: Column, values: np.ndarray | None, num_rows: int) -> np.ndarray | pd.Categorical:
        if column.kind == "string":
            return self._named(values if values is not None else np.full(num_rows, -1, np.int64))
        if values is not None:
            return values
        if column.kind == "text":
            return np.full(num_rows, None, dtype=object)
        dtype = np.float64 if column.kind == "float" else np.int64
        return np.full(num_rows, 0 if column.empty is None else column.empty, dtype)

    def _named(self, ids: np.ndarray) -> pd.Categorical:
        """Texts of string ids; each distinct one is looked up once."""
        codes, distinct = pd.factorize(ids)
        texts = self._strings.reindex(distinct)
        if texts.isna().any():
            self._notes.append(f"{int(texts.isna().sum())} string ids have no text: read as {UNNAMED}")
        names_codes, names = pd.factorize(texts.fillna(UNNAMED).to_numpy(dtype=object))
        return pd.Categorical.from_codes(names_codes[codes], categories=pd.Index(names, dtype=object))

    def _check_times(self, name: str, frame: pd.DataFrame) -> None:
        """Clocks run forward, and sums of what is there fit 64 bits."""
        start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
        if not len(frame):
            return
        if (name != "node_events" and (end < start).any()) or max(
            abs(int(start.min())), abs(int(end.min()))
        ) > _LARGEST:
            raise DamagedExport(self._source.path, f"{name}: a row ends before it starts")
        if max(int(end.max()), int(start.max())) > _LARGEST or float((end - start).astype(float).sum()) > _LARGEST:
            raise DamagedExport(self._source.path, f"{name}: times beyond any capture")
        for column in ("correlation", "num_bytes"):
            if column in frame and not 0 <= int(frame[column].min()) <= int(frame[column].max()) < 1 << 53:
                raise DamagedExport(self._source.path, f"{name}: {column} out of range")

    # --- NVTX ---

    def _ranges(self, events: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
        """Closed and unclosed ranges with their name and domain."""
        names = pd.Series(self._texts(events), index=events.index, dtype=object)
        created = events["event_type"].to_numpy() == _DOMAIN_CREATED
        domains: dict[tuple[int, int], str] = {}
        for thread, domain, name in zip(
            events["thread"][created], events["domain_id"][created], names[created], strict=True
        ):
            domains[int(thread) & ~LOW_BITS, int(domain)] = name
        ranges = events[events["event_type"].isin(_RANGE_TYPES)]
        processes = ranges["thread"].to_numpy() & ~LOW_BITS
        keys = pd.MultiIndex.from_arrays([processes, ranges["domain_id"].to_numpy()])
        codes, distinct = pd.factorize(keys)
        texts = np.array([self._domain(domains, key) for key in distinct], dtype=object)
        end, is_unclosed = _ends(ranges, processes, api_calls)
        end_thread = ranges["end_thread"].to_numpy()
        return pd.DataFrame(
            {
                "start_ns": ranges["start_ns"].to_numpy(),
                "end_ns": end,
                "thread": ranges["thread"].to_numpy(),
                "end_thread": np.where(end_thread == 0, ranges["thread"].to_numpy(), end_thread),
                "name": pd.Categorical(names[ranges.index].to_numpy()),
                "domain": pd.Categorical(texts[codes] if len(ranges) else np.array([], dtype=object)),
                "is_unclosed": is_unclosed,
            }
        )

    def _texts(self, events: pd.DataFrame) -> np.ndarray:
        """An event's own text, else that of its string id, else a name that says that it has none."""
        own = events["text"].to_numpy(dtype=object)
        registered = self._strings.reindex(events["text_id"].to_numpy()).to_numpy(dtype=object)
        return np.where(pd.notna(own), own, np.where(pd.notna(registered), registered, UNNAMED))

    @staticmethod
    def _domain(domains: dict[tuple[int, int], str], key: tuple[int, int]) -> str:
        process, domain = int(key[0]), int(key[1])
        return NO_DOMAIN if domain == 0 else domains.get((process, domain), f"<domain {domain}>")

    # --- GPU metrics ---

    def _samples(self) -> pd.DataFrame:
        """Samples of the metrics in `METRICS`; any other metric stays in the file."""
        names = self._frame("metric_names")
        known = [
            (int(type_id), int(metric_id), key)
            for type_id, metric_id, name in zip(names["type_id"], names["metric_id"], names["name"], strict=True)
            if name is not None and (key := metric_key(name)) is not None
        ]
        only = {"metricId": sorted({metric_id for _, metric_id, _ in known})}
        samples = self._frame("samples", only)
        wanted = list(METRICS)
        codes = np.full(len(samples), -1, np.int8)
        type_ids, metric_ids = samples.pop("type_id").to_numpy(), samples.pop("metric_id").to_numpy()
        for type_id, metric_id, key in known:
            codes[(type_ids == type_id) & (metric_ids == metric_id)] = wanted.index(key)
        times, values = samples["time_ns"].to_numpy(), samples["value"].to_numpy()
        is_sound = (np.abs(values) <= _LARGEST_VALUE).all()  # false for NaN, too
        if len(samples) and (not is_sound or max(abs(int(times.min())), int(times.max())) > _LARGEST):
            raise DamagedExport(self._source.path, "GPU_METRICS: a sample that is no number, or beyond any capture")
        gpus = (type_ids & 0xFF).astype(np.int16)
        is_known = codes >= 0
        if not is_known.all():
            times, values, gpus, codes = times[is_known], values[is_known], gpus[is_known], codes[is_known]
        metric = pd.Categorical.from_codes(codes, categories=wanted)
        return pd.DataFrame({"time_ns": times, "gpu": gpus, "metric": metric, "value": values}, copy=False)


def _ends(ranges: pd.DataFrame, processes: np.ndarray, api_calls: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Ends of ranges and which may never have been closed.

    nsys gives a range that was never closed the end of its process and no flag. So a range that ends at the last
    moment known of its process (by ranges and API calls) is not trusted, nor is one whose end is empty. This can meet
    the range that was closed last; what it encloses is then called approximate; the other mistake would go unseen.
    """
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    is_empty = end == -1
    calls = pd.Series(api_calls["end_ns"].to_numpy()).groupby(api_calls["thread"].to_numpy() & ~LOW_BITS).max()
    known = pd.Series(np.where(is_empty, start, end)).groupby(processes).max()
    last_of = pd.concat([calls, known]).groupby(level=0).max()
    last = last_of.reindex(processes).to_numpy(dtype=np.int64)
    end = np.where(is_empty, last, end)
    return end, is_empty | (end == last)
