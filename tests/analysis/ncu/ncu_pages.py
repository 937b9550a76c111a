"""Raw pages of ncu made by hand, in any locale and any unit. Loaded with `runpy`: no package."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

STACK = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
IDENTITY = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
IDENTITY += [
    "Grid Size",
    "Device",
    "CC",
    STACK,
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
]
TIME, READ = "gpu__time_duration.sum", "dram__bytes_read.sum"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"


def stack(*names: str, domain: str = "ddbench") -> str:
    """The cell of the open ranges."""
    return "1234  " + "  ".join(f'"{domain}:{name}:none:none:none:none:none:none"' for name in names)


@dataclass
class Page:
    """Columns with their units, and rows that are added one by one."""

    units: dict[str, str] = field(default_factory=lambda: {TIME: "nsecond", READ: "byte", TENSOR: "%"})
    cc: str = "9.0"
    has_units: bool = True
    rows: list[list[str]] = field(default_factory=list)

    def add(self, name: str, ranges: Sequence[str], *cells: str) -> None:
        identity = [
            str(len(self.rows)),
            "77",
            "python",
            "host",
            name,
            "1",
            "7",
            "(128, 1, 1)",
            "(4, 1, 1)",
            "0",
            self.cc,
        ]
        self.rows.append([*identity, stack(*ranges) if ranges else "", "", *cells])

    def text(self, line_end: str = "\n") -> str:
        out = io.StringIO()
        writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator=line_end)
        writer.writerow([*IDENTITY, *self.units])
        if self.has_units:
            writer.writerow([""] * len(IDENTITY) + list(self.units.values()))
        writer.writerows(self.rows)
        return out.getvalue()
