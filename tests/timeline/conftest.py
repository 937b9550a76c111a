"""Windows made by hand, and a synthetic run whose captures are known."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.synthetic_captures import CapturePlan
from ddbench.captured import Capture, CaptureFault, DeviceOp, HostCall, HostRange, LedgerLine
from ddbench.records import NotMeasured
from ddbench.timeline.window import Tokens, Window

OP = DeviceOp(
    kind="kernel",
    name="k",
    stage="verify",
    launch_stage="verify",
    basis="launch",
    round=0,
    gpu=0,
    stream=7,
    start_ns=0,
    end_ns=1,
    num_bytes=0,
    direction="",
    is_replayed=False,
    launch_ns=-1,
)
CALL = HostCall(kind="launch", name="cudaLaunchKernel", stage="verify", round=0, thread=0, start_ns=0, end_ns=1)
RANGE = HostRange(kind="stage", name="verify", round=0, thread=0, start_ns=0, end_ns=1)
MakeWindow = Callable[..., Window]


def _frame(template: Any, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    filled = [{**template.model_dump(), **row} for row in rows]
    frame = pd.DataFrame(filled, columns=list(type(template).model_fields))
    whole = {name: "int64" for name in frame if name.endswith("_ns") or name in ("round", "thread", "gpu", "stream")}
    return frame.astype(whole).sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)


def _ledger(ops: pd.DataFrame) -> tuple[LedgerLine, ...]:
    time = ops["end_ns"] - ops["start_ns"]
    own = {basis: ops["basis"] == basis for basis in ("launch", "capture", "approximate", "unattributed")}
    return tuple(
        LedgerLine(basis=basis, count=int(is_own.sum()), time_ns=int(time[is_own].sum()))  # type: ignore[arg-type]
        for basis, is_own in own.items()
    )


@pytest.fixture(scope="session")
def make_window() -> MakeWindow:
    """Rows as what differs from a plain kernel, call or stage range; times of ops as pairs."""

    def make(
        ops: Sequence[dict[str, Any]] = (),
        calls: Sequence[dict[str, Any]] = (),
        ranges: Sequence[dict[str, Any]] = (),
        end: int = 100,
        tokens: dict[int, Tokens] | None = None,
        **capture: Any,
    ) -> Window:
        rows = _frame(OP, ops).astype({"is_replayed": bool})
        values = {"tool": "nsys", "tool_version": "1", "seconds": 1.0, "window_ns": end, "ledger": _ledger(rows)}
        return Window(
            run="run",
            case_id="0000-1a2b3c4d",
            label="ddtree c=1",
            capture=Capture(**{**values, **capture}),
            ops=rows,
            calls=_frame(CALL, calls),
            ranges=_frame(RANGE, ranges),
            tokens=tokens or {},
            tax=NotMeasured(not_measured="made by hand"),
            raw=(),
        )

    return make


FAULT = CaptureFault(reason="importer", what="only a .qdstrm was left", cure="install libdw1")
PLANS = {
    0: CapturePlan(tools=("ncu",)),
    1: CapturePlan(tools=("torch",)),
    2: CapturePlan(faults={"nsys": FAULT}),
    3: CapturePlan(is_graph=True, lost_replays=2),
    4: CapturePlan(unattributed=2),
    5: CapturePlan(is_graph=True, notes=("GPU metrics were refused",)),
}


@pytest.fixture(scope="session")
def captured_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six cases: only counters, torch, a fault, a withheld graph, eager, graph."""
    cases = make_cases(concurrencies=(1,), node_budgets=(8, 32), num_requests=6, max_new_tokens=24)
    rounds = {"first_round": 4, "num_rounds": 5}
    asked = tuple(case.model_copy(update={"capture": case.capture.model_copy(update=rounds)}) for case in cases)
    folder = tmp_path_factory.mktemp("runs") / "20250101T000000Z-captured"
    return build_run(folder, SyntheticPlan(name="captured", cases=asked, captures=PLANS))
