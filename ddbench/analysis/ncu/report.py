"""The report itself (`.ncu-rep`) -> `Profile`, by NVIDIA's own reader: the optional package `ncu-report`.

It needs neither a GPU nor ncu. There are wheels for x86-64 only; where it is missing, `page` reads the exported CSV.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ddbench.analysis.digested import CaptureProblem
from ddbench.analysis.ncu.counters import METRIC_NAMES
from ddbench.analysis.ncu.profile import AGAIN, Kernel, Measured, Profile
from ddbench.analysis.nsys.names import DOMAIN

_FAILURES = (OSError, RuntimeError, ValueError, TypeError, KeyError, IndexError, MemoryError)  # what SWIG may raise
_CHIP = ("device__attribute_compute_capability_major", "device__attribute_compute_capability_minor")


def is_available() -> bool:
    """Whether the package is installed."""
    return find_spec("ncu_report") is not None


def read_report(path: Path) -> Profile:
    """Every kernel of the report. Raises `CaptureProblem`."""
    import ncu_report

    try:
        context = ncu_report.load_report(str(path))
        actions = [action for profiled in context for action in profiled]
        kernels = tuple(_kernel(action, ncu_report.IAction) for action in actions)
        chips = sorted({_chip(action) for action in actions})
    except _FAILURES as error:
        raise CaptureProblem("unreadable", f"{path.name} is no report ({type(error).__name__})", AGAIN) from error
    if not kernels:
        # The package takes any file for a report: what is none holds nothing.
        raise CaptureProblem("nothing", f"{path.name} holds no kernel, or is no report of ncu", AGAIN)
    return Profile(kernels, " and ".join(filter(None, chips)))


def _kernel(action: Any, kinds: Any) -> Kernel:
    found = {name: action.metric_by_name(name) for name in METRIC_NAMES}
    metrics = {name: _measured(metric) for name, metric in found.items() if metric is not None}
    return Kernel(str(action.name(kinds.NameBase_DEMANGLED)), _ranges(action.nvtx_state()), metrics)


def _measured(metric: Any) -> Measured:
    value = float(metric.as_double()) if metric.has_value() else math.nan
    return Measured(value if math.isfinite(value) else None, str(metric.unit() or ""))


def _ranges(state: Any) -> tuple[str, ...]:
    """Names of our domain's push/pop ranges, the outermost first."""
    if state is None:
        return ()
    domains = [state.domain_by_id(number) for number in state.domains()]
    own = [domain for domain in domains if domain is not None and domain.name() == DOMAIN]
    return tuple(str(name) for domain in own for name in domain.push_pop_ranges())


def _chip(action: Any) -> str:
    parts = [action.metric_by_name(name) for name in _CHIP]
    return ".".join(str(int(part.as_uint64())) for part in parts if part is not None and part.has_value())
