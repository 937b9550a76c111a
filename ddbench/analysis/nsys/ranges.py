"""Ranges of our domain that are stages or rounds, and which of them encloses a call."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddbench.analysis.nsys.enclosing import NONE, around
from ddbench.analysis.nsys.export import NsysExport
from ddbench.analysis.nsys.names import DOMAIN, STAGE_NAMES, WINDOW, parse_round

Codes = np.ndarray  # index into STAGE_NAMES or a step, or NONE


def stage_ranges(export: NsysExport) -> pd.DataFrame:
    """The ranges that are stages; `code` is an index into STAGE_NAMES."""
    of_name = pd.Index(STAGE_NAMES).get_indexer(pd.Index(export.ranges["name"].cat.categories, dtype=object))
    return _ours(export, of_name)


def round_ranges(export: NsysExport) -> pd.DataFrame:
    """The ranges that are rounds; `code` is the step."""
    names = export.ranges["name"].cat.categories
    return _ours(export, [step if (step := parse_round(name)) is not None else NONE for name in names])


def window_ranges(export: NsysExport) -> pd.DataFrame:
    """The ranges around all rounds that a capture tells of: one, if all is well."""
    return _ours(export, [0 if name == WINDOW else NONE for name in export.ranges["name"].cat.categories])


def exact(ranges: pd.DataFrame) -> pd.DataFrame:
    """Those that were closed, on the thread that opened them."""
    return ranges[(~ranges["is_unclosed"] & (ranges["thread"] == ranges["end_thread"])).to_numpy()]


def codes_around(ranges: pd.DataFrame, calls: pd.DataFrame) -> Codes:
    """Code of the innermost range around each call on its thread, or NONE."""
    return around(ranges, "code", calls)


def _ours(export: NsysExport, code_of_name: np.ndarray | list[int]) -> pd.DataFrame:
    """The ranges of our domain whose name has a code."""
    ranges = export.ranges
    codes = np.append(np.asarray(code_of_name, np.int64), NONE)[ranges["name"].cat.codes]
    is_ours = (ranges["domain"] == DOMAIN).to_numpy() & (codes != NONE)
    return ranges[is_ours].assign(code=codes[is_ours])
