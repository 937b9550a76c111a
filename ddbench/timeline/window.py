"""`RunFrames` -> `Window`: what one tool captured of one case, with what its rounds brought.

First step of a timeline: nothing is computed here. Times are nanoseconds since the window began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ddbench.analysis.frames import RunFrames
from ddbench.analysis.profile.captured_case import Key, captured_cases, window_end
from ddbench.analysis.profile.tax import Tax, tax_of
from ddbench.captured import Capture, DeviceOp, HostCall, HostRange
from ddbench.errors import SchemaError
from ddbench.records import NotMeasured
from ddbench.spec import Record, Tool


@dataclass(frozen=True)
class Tokens:
    """What one round brought, over all of its requests, in the first clean pass."""

    num_accepted: int
    num_emitted: int
    num_nodes: int
    batch_size: int


@dataclass(frozen=True, eq=False)
class Window:
    """What a timeline is drawn from."""

    run: str
    case_id: str
    label: str
    capture: Capture
    ops: pd.DataFrame  # columns of `DeviceOp`, in the order of their start
    calls: pd.DataFrame  # columns of `HostCall`
    ranges: pd.DataFrame  # columns of `HostRange`
    tokens: Mapping[int, Tokens]  # step -> what it brought
    tax: Tax | NotMeasured
    raw: tuple[Path, ...]  # the tool's own files, those that are there

    @property
    def has_device(self) -> bool:
        """Kernels, copies and memsets rather than operators of the host."""
        return not bool((self.ops["kind"] == "operator").any())

    @property
    def end_ns(self) -> int:
        return window_end(self.capture, self.ops)


def window_of(frames: RunFrames, folder: Path, key: Key, label: str, tool: Tool) -> Window:
    """The window of a capture without fault."""
    case = captured_cases(frames)[key]
    own = case.passes[tool]
    run, case_id = key
    sources = (("ops", own.ops, DeviceOp), ("calls", own.calls, HostCall), ("ranges", own.ranges, HostRange))
    place = folder / "cases" / case_id / "captures"
    tables = {name: _rows(frame, record, place / f"{tool}-{name}.parquet") for name, frame, record in sources}
    return Window(
        run=run,
        case_id=case_id,
        label=label,
        capture=own.capture,
        tokens=_tokens(frames.rounds, frames.steps, run, case_id),
        tax=tax_of(case, own),
        raw=tuple(place / "raw" / name for name in own.capture.raw if (place / "raw" / name).exists()),
        **tables,
    )


def _rows(frame: pd.DataFrame, record: type[Record], path: Path) -> pd.DataFrame:
    """In the order of their start, text as plain objects; times that run backwards would make every sum a lie."""
    own = frame[list(record.model_fields)]
    own = own.astype({name: object for name in own if own[name].dtype == "category"})
    wrong = np.flatnonzero((own["end_ns"] < own["start_ns"]).to_numpy())
    if len(wrong):
        raise SchemaError(f"{path}: row {wrong[0]} ends before it starts: damaged; remove its folder, capture again")
    return own.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)


def _tokens(rounds: pd.DataFrame, steps: pd.DataFrame, run: str, case_id: str) -> dict[int, Tokens]:
    """Of the first clean pass."""
    sums = _first_pass(rounds, run, case_id).groupby("step")[["num_accepted", "num_emitted", "num_nodes"]].sum()
    sizes = _first_pass(steps, run, case_id).set_index("step")["batch_size"]
    return {
        int(row.Index): Tokens(
            int(row.num_accepted), int(row.num_emitted), int(row.num_nodes), int(sizes.get(row.Index, 0))
        )
        for row in sums.itertuples()
    }


def _first_pass(frame: pd.DataFrame, run: str, case_id: str) -> pd.DataFrame:
    is_own = (frame["run"] == run) & (frame["case_id"] == case_id) & (frame["pass_name"] == "clean")
    return frame[(is_own & (frame["pass_index"] == 0)).to_numpy()]
