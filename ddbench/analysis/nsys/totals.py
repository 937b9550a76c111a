"""Sums over attributed ops: per stage, and per stage and kernel."""

from __future__ import annotations

import pandas as pd

from ddbench.analysis.intervals import union
from ddbench.analysis.nsys.enclosing import NONE
from ddbench.analysis.nsys.names import STAGE_NAMES


def stage_totals(ops: pd.DataFrame) -> pd.DataFrame:
    """One row per stage in their order, then what has none (empty stage)."""
    rows = []
    for code in (*range(len(STAGE_NAMES)), NONE):
        own = ops[(ops["stage"].cat.codes == code).to_numpy()]
        start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        busy = sum(union(start[rows_], end[rows_]).total for rows_ in own.groupby("gpu").indices.values())
        rows.append(
            {
                "stage": STAGE_NAMES[code] if code != NONE else "",
                "count": len(own),
                "time_ns": int((end - start).sum()),
                "busy_ns": busy,
                "num_bytes": int(own["num_bytes"].sum()),
            }
        )
    return pd.DataFrame(rows)


def kernel_totals(ops: pd.DataFrame) -> pd.DataFrame:
    """One row per stage and kernel, the longest total first."""
    own = ops[(ops["kind"] == "kernel").to_numpy()]
    stage = own["stage"].cat.add_categories("").fillna("")
    timed = own.assign(stage=stage, time_ns=own["end_ns"] - own["start_ns"])
    totals = timed.groupby(["stage", "name"], observed=True)["time_ns"].agg(["size", "sum"]).reset_index()
    return totals.rename(columns={"size": "count", "sum": "time_ns"}).sort_values(
        "time_ns", ascending=False, kind="stable", ignore_index=True
    )
