"""How long the accepted paths are: acceptance lengths, histogram, acceptance by depth, and outputs that loop.

All of it counts rounds of the clean pass. `num_accepted` is before any cut by a stop token or the length limit, so it
describes draft and target; `num_emitted` is after the cut and is what the output gained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ddbench.analysis import stats
from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.values import Compute, missing
from ddbench.records import NotMeasured

NGRAM = 4
REPETITION_LIMIT = 0.3
MAX_LOOP_PERIOD = 16
FEWEST_LOOP_TOKENS = 16  # a shorter output is not judged


def unit_sums(rows: pd.DataFrame, *columns: str) -> tuple[np.ndarray, ...]:
    """Sum of each column per unit (column name '' counts rows); units in order of appearance."""
    codes, units = pd.factorize(rows["unit"])
    sums = []
    for column in columns:
        weights = rows[column].to_numpy(dtype=np.float64) if column else None
        sums.append(np.bincount(codes, weights=weights, minlength=len(units)).astype(np.float64))
    return tuple(sums)


def histogram(setting: Setting) -> np.ndarray:
    """Rounds by number of accepted drafted tokens, 0 first: [longest + 1] counts; empty without rounds."""
    return np.bincount(setting.rounds["num_accepted"].to_numpy(dtype=np.int64))


def by_depth(setting: Setting) -> tuple[stats.Summary, ...]:
    """P(accepted >= d | accepted >= d - 1) for d = 1, 2, ... as deep as any round got there."""
    accepted = setting.rounds["num_accepted"].to_numpy(dtype=np.int64)
    if accepted.size == 0:
        return ()
    codes, units = pd.factorize(setting.rounds["unit"])
    longest = int(accepted.max())
    table = np.bincount(codes * (longest + 1) + accepted, minlength=len(units) * (longest + 1))
    at_least = np.cumsum(table.reshape(len(units), longest + 1)[:, ::-1], axis=1)[:, ::-1]  # [units, longest + 1]
    return tuple(stats.ratio_of_sums(at_least[:, d], at_least[:, d - 1]) for d in range(1, longest + 1))


def repetition(tokens: Sequence[int]) -> float:
    """Share of 4-grams that repeat an earlier one of the same output; 0 for outputs without a 4-gram."""
    grams = list(zip(*(tokens[offset:] for offset in range(NGRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def has_tail_loop(tokens: Sequence[int]) -> bool:
    """True if the output ends in a cycle: its last max(3 p, 16) tokens repeat with some period p <= 16."""
    for period in range(1, MAX_LOOP_PERIOD + 1):
        span = max(3 * period, FEWEST_LOOP_TOKENS)
        tail = list(tokens[-span:])
        if len(tail) == span and tail[period:] == tail[:-period]:
            return True
    return False


def is_degenerate(tokens: Sequence[int]) -> bool | None:
    """True if the output loops to its end; None if it is too short to tell."""
    if len(tokens) < FEWEST_LOOP_TOKENS:
        return None
    return repetition(tokens) > REPETITION_LIMIT and has_tail_loop(tokens)


def acceptance_length(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    return stats.ratio_of_sums(*unit_sums(setting.rounds, "num_emitted", ""))


def acceptance_length_uncut(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    accepted, rounds = unit_sums(setting.rounds, "num_accepted", "")
    return stats.ratio_of_sums(accepted + rounds, rounds)


def acceptance_length_macro(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    rows = setting.rounds
    case_codes, _ = pd.factorize(rows["case_id"])
    widest = int(rows["request_row"].max()) + 1
    request_codes = case_codes * widest + rows["request_row"].to_numpy()
    _, first, request = np.unique(request_codes, return_index=True, return_inverse=True)
    lengths = np.bincount(request, weights=rows["num_emitted"]) / np.bincount(request)
    requests = pd.DataFrame({"length": lengths, "unit": rows["unit"].array.take(first)})
    return stats.ratio_of_sums(*unit_sums(requests, "length", ""))


def acceptance_length_of(is_repeated: bool) -> Compute:
    def compute(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
        rounds = setting.rounds
        repeated = (2 * rounds["num_repeated"] > rounds["num_emitted"]).to_numpy(dtype=bool)
        rows = rounds[repeated == is_repeated]
        if rows.empty:
            return missing(f"no round emitted mostly {'repeated' if is_repeated else 'new'} text")
        return stats.ratio_of_sums(*unit_sums(rows, "num_emitted", ""))

    return compute


def expected_length(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    if not setting.has_drafter:
        return missing(
            f"{setting.engine.draft} has no model: every proposal counts as certain, which is no expectation"
        )
    if not np.isfinite(setting.rounds["expected_length"].to_numpy(dtype=np.float64)).all():
        return missing(f"the draft '{setting.engine.draft}' gives no probabilities")
    return stats.ratio_of_sums(*unit_sums(setting.rounds, "expected_length", ""))


def calibration(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    if isinstance(expected := expected_length(setting, study), NotMeasured):
        return expected
    accepted, rounds, surrogate = unit_sums(setting.rounds, "num_accepted", "", "expected_length")
    if surrogate.sum() <= 0:
        return missing("the surrogate expects no token at all: nothing to compare with")
    return stats.ratio_of_sums(accepted + rounds, surrogate)


def mean_over_rounds(column: str) -> Compute:
    return lambda setting, study: stats.ratio_of_sums(*unit_sums(setting.rounds, column, ""))


def padding_share(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    nodes, rounds, widths = unit_sums(setting.rounds, "num_nodes", "", "verify_width")
    if widths.sum() <= 0:
        return missing("no position was verified")
    return stats.ratio_of_sums(widths - nodes - rounds, widths)


def degenerate_share(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    verdicts = setting.requests["tokens"].map(is_degenerate)
    judged = setting.requests.assign(loops=verdicts)[verdicts.notna().to_numpy()]
    if judged.empty:
        return missing(f"every output is shorter than {FEWEST_LOOP_TOKENS} tokens: too short to tell")
    return stats.ratio_of_sums(*unit_sums(judged, "loops", ""))
