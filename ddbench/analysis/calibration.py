"""Is the draft as sure as it may be: rounds in bins of what their tree expected, against what they then accepted.

Beside the metrics, for the acceptance section. The surrogate E[tau] of a tree is 1 + the sum of its nodes' path
probabilities. A tree is chosen by it: a draft that is sure in the wrong places chooses the wrong nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddbench.analysis import stats
from ddbench.analysis.acceptance import prompt_sums
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import missing
from ddbench.records import NotMeasured

MOST_BINS = 5
FEWEST_ROUNDS = 20  # of a bin


@dataclass(frozen=True, slots=True)
class Bin:
    """Rounds whose trees expected about the same."""

    low: float  # least and most that a tree of the bin expected
    high: float
    num_rounds: int
    expected: float  # their mean
    measured: stats.Summary  # mean of 1 + accepted, before any cut


def calibration_bins(setting: Setting) -> tuple[Bin, ...] | NotMeasured:
    """Bins of about as many rounds each, in order of E[tau]; rounds that expected the same are never parted."""
    if not setting.has_drafter:
        return missing(f"{setting.engine.draft} has no model: every proposal counts as certain")
    expected = setting.rounds["expected_length"]
    if expected.size == 0 or not np.isfinite(expected).all():
        return missing(f"the draft '{setting.engine.draft}' gives no probabilities")
    count = min(MOST_BINS, max(1, expected.size // FEWEST_ROUNDS))
    edges = np.unique(np.quantile(expected, np.linspace(0, 1, count + 1)[1:-1]))
    places = np.searchsorted(edges, expected, side="left")
    return tuple(_bin(setting, places == place) for place in np.unique(places))


def _bin(setting: Setting, own: np.ndarray) -> Bin:
    expected = setting.rounds["expected_length"][own]
    accepted, counts = prompt_sums(setting, "num_accepted", "", rows=own)
    return Bin(
        low=float(expected.min()),
        high=float(expected.max()),
        num_rounds=len(expected),
        expected=float(expected.mean()),
        measured=stats.ratio_of_sums(accepted + counts, counts),
    )
