"""Whether a capture recorded all that ran: graph launches by the host against replays found on the device.

Under graph replay the profiler may drop records, and what is dropped then looks like idle time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.nsys.calls import call_kind, outermost
from ddbench.analysis.nsys.export import NsysExport


@dataclass(frozen=True, slots=True)
class Recording:
    """Graph launches against what was recorded of them."""

    num_launches: int  # by the host
    num_replays: int  # launches of which the device left at least one record
    num_partial: int  # replays with fewer nodes than the fullest one of the same graph
    num_untraced: int  # replays recorded as a whole, without nodes

    @property
    def complaint(self) -> str:
        """Why totals over this recording would be wrong; empty: they are not, as far as can be seen."""
        cure = "capture fewer rounds at a time, or without GPU metrics"
        if self.num_replays < self.num_launches:
            return f"under-recorded: {self.num_launches} graph launches, {self.num_replays} replays found: {cure}"
        if self.num_partial:
            return f"under-recorded: {self.num_partial} of {self.num_replays} replays lack nodes of their graph: {cure}"
        return ""


def recorded(export: NsysExport, ops: pd.DataFrame) -> Recording:
    """Graph launches that the host made against replays of which the device left a trace."""
    calls = export.api_calls
    names = calls["name"].cat.categories
    is_launch_name = np.array([call_kind(name) == "graph_launch" for name in names], dtype=bool)
    is_launch = is_launch_name[calls["name"].cat.codes] if len(names) else np.zeros(0, bool)
    launches = calls[is_launch]
    outer = pd.Series(outermost(launches), index=launches.index)  # a driver call within a runtime call is the same
    replayed = ops[ops["is_replayed"]]
    found = outer.reindex(replayed["launch_call"].unique()).dropna()
    groups = replayed[replayed["graph_node"] != 0].assign(graph=lambda frame: frame["graph_node"].to_numpy() >> 32)
    sizes = groups.groupby(["process", "graph", "correlation"])["graph_node"].nunique()
    fullest = sizes.groupby(level=["process", "graph"]).transform("max")
    return Recording(
        num_launches=int(outer.nunique()),
        num_replays=int(found.nunique()),
        num_partial=int((sizes < fullest).sum()),
        num_untraced=int((replayed["kind"] == "graph").sum()),
    )
