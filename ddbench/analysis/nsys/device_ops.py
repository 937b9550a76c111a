"""Kernels, copies and memsets of an export as one table of device ops, in the order of their start."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddbench.analysis.nsys.export import LOW_BITS, NsysExport

OP_KINDS = ("kernel", "copy", "memset", "graph")  # graph: a whole replay whose nodes were not traced


def device_ops(export: NsysExport) -> pd.DataFrame:
    """Everything that took time on a device, once: a replay is not counted beside its own nodes."""
    parts = []
    sources = (export.kernels, export.copies, export.memsets, _untraced_replays(export))
    for code, frame in enumerate(sources):
        part = pd.DataFrame({"kind": pd.Categorical.from_codes(np.full(len(frame), code), categories=list(OP_KINDS))})
        for column in ("device", "stream", "start_ns", "end_ns", "correlation", "process"):
            part[column] = frame[column].to_numpy()
        for column in ("num_bytes", "graph_node"):
            part[column] = frame[column].to_numpy() if column in frame else np.int64(0)
        part["num_bytes"] = part["num_bytes"].astype(np.int64)
        parts.append(part)
    directions = pd.Categorical(export.copies["direction"])
    names = [
        pd.Categorical(export.kernels["name"]),
        directions.rename_categories([f"copy {direction}" for direction in directions.categories]),
        *(pd.Categorical([name] * len(frame)) for name, frame in (("memset", export.memsets), ("graph", sources[3]))),
    ]
    ops = pd.concat(parts, ignore_index=True)
    ops["name"] = _joined(names)
    ops["gpu"] = _gpus(export, ops)
    return ops.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)


def _joined(parts: list[pd.Categorical]) -> pd.Categorical:
    """Names one after the other, distinct ones stored once (pandas joins no empty ones of another type)."""
    texts = list(dict.fromkeys(text for part in parts for text in part.categories))
    place = {text: code for code, text in enumerate(texts)}
    codes = [np.array([place[text] for text in part.categories], np.int64)[part.codes] for part in parts if len(part)]
    return pd.Categorical.from_codes(np.concatenate([np.empty(0, np.int64), *codes]), categories=texts)


def _untraced_replays(export: NsysExport) -> pd.DataFrame:
    traces = export.graph_traces
    nodes = [frame[frame["graph_node"] != 0] for frame in (export.kernels, export.copies, export.memsets)]
    keys = pd.MultiIndex.from_frame(pd.concat([frame[["process", "correlation"]] for frame in nodes]))
    return traces[~pd.MultiIndex.from_frame(traces[["process", "correlation"]]).isin(keys)]


def _gpus(export: NsysExport, ops: pd.DataFrame) -> np.ndarray:
    """The machine's number of each op's GPU: a process counts the devices that it sees."""
    devices = export.cuda_devices.drop_duplicates(["pid", "device"])
    if not len(devices):
        return ops["device"].to_numpy()
    table = devices.set_index(["pid", "device"])["gpu"]
    codes, distinct = pd.factorize(
        pd.MultiIndex.from_arrays([(ops["process"].to_numpy() >> 24) & LOW_BITS, ops["device"]])
    )
    found = table.reindex(distinct)
    own = np.array([device for _, device in distinct], dtype=np.int64)
    return np.where(found.isna(), own, found.fillna(0).to_numpy()).astype(np.int64)[codes]
