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
DEGENERATE_LIMIT = 0.5  # share of judged outputs that loop from which a setting's speed says nothing


def prompt_sums(setting: Setting, *columns: str, rows: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """Sum of each column per prompt ('' counts rounds), prompts in order of appearance; of some `rows` where given."""
    codes, weights = setting.prompts[0], [setting.rounds[column] if column else None for column in columns]
    if rows is None:
        return _sums_of(codes, weights)
    return _sums_of(pd.factorize(codes[rows])[0], [None if weight is None else weight[rows] for weight in weights])


def _sums_of(codes: np.ndarray, columns: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    return tuple(np.bincount(codes, weights=column).astype(np.float64, copy=False) for column in columns)


def histogram(setting: Setting) -> np.ndarray:
    """Rounds by number of accepted drafted tokens, 0 first: [longest + 1] counts; empty without rounds."""
    return np.bincount(setting.rounds["num_accepted"])


def by_depth(setting: Setting) -> tuple[stats.Summary, ...]:
    """P(accepted >= d | accepted >= d - 1) for d = 1, 2, ... as deep as any round got there."""
    accepted = setting.rounds["num_accepted"]
    if accepted.size == 0:
        return ()
    codes, units = setting.prompts
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
        if len(tokens) >= span and tokens[-1] == tokens[-1 - period]:  # most outputs are told by their last token
            tail = list(tokens[-span:])
            if tail[period:] == tail[:-period]:
                return True
    return False


def is_degenerate(tokens: Sequence[int]) -> bool | None:
    """True if the output loops to its end; None if it is too short to tell."""
    if len(tokens) < FEWEST_LOOP_TOKENS:
        return None
    return has_tail_loop(tokens) and repetition(tokens) > REPETITION_LIMIT


def acceptance_length(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    return stats.ratio_of_sums(*prompt_sums(setting, "num_emitted", ""))


def acceptance_length_uncut(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    accepted, rounds = prompt_sums(setting, "num_accepted", "")
    return stats.ratio_of_sums(accepted + rounds, rounds)


def acceptance_length_macro(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    rows = setting.rounds
    case_codes, request_row = pd.factorize(rows.codes("case_id"))[0], rows["request_row"]
    request_codes = case_codes * (int(request_row.max()) + 1) + request_row
    _, first, request = np.unique(request_codes, return_index=True, return_inverse=True)
    lengths = np.bincount(request, weights=rows["num_emitted"]) / np.bincount(request)
    codes, _ = pd.factorize(setting.prompts[0][first])
    return stats.ratio_of_sums(*_sums_of(codes, [lengths, None]))


def acceptance_length_of(is_repeated: bool) -> Compute:
    def compute(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
        repeated, emitted = (setting.rounds[name] for name in ("num_repeated", "num_emitted"))
        is_own = (2 * repeated > emitted) == is_repeated
        if not is_own.any():
            return missing(f"no round emitted mostly {'repeated' if is_repeated else 'new'} text")
        return stats.ratio_of_sums(*prompt_sums(setting, "num_emitted", "", rows=is_own))

    return compute


def expected_length(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    if not setting.has_drafter:
        return missing(
            f"{setting.engine.draft} has no model: every proposal counts as certain, which is no expectation"
        )
    if not np.isfinite(setting.rounds["expected_length"]).all():
        return missing(f"the draft '{setting.engine.draft}' gives no probabilities")
    return stats.ratio_of_sums(*prompt_sums(setting, "expected_length", ""))


def calibration(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    if isinstance(expected := expected_length(setting, study), NotMeasured):
        return expected
    accepted, rounds, surrogate = prompt_sums(setting, "num_accepted", "", "expected_length")
    if surrogate.sum() <= 0:
        return missing("the surrogate expects no token at all: nothing to compare with")
    return stats.ratio_of_sums(accepted + rounds, surrogate)


def mean_over_rounds(column: str) -> Compute:
    return lambda setting, study: stats.ratio_of_sums(*prompt_sums(setting, column, ""))


def padding_share(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    nodes, rounds, widths = prompt_sums(setting, "num_nodes", "", "verify_width")
    if widths.sum() <= 0:
        return missing("no position was verified")
    return stats.ratio_of_sums(widths - nodes - rounds, widths)


def degenerate_share(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    requests = setting.requests
    verdicts = [is_degenerate(tokens.tolist()) for tokens in requests["tokens"]]
    is_judged = np.array([verdict is not None for verdict in verdicts])
    if not is_judged.any():
        return missing(f"every output is shorter than {FEWEST_LOOP_TOKENS} tokens: too short to tell")
    codes, _ = pd.factorize(requests.codes("unit")[is_judged])
    loops = np.array([verdict for verdict in verdicts if verdict is not None], dtype=np.float64)
    return stats.ratio_of_sums(*_sums_of(codes, [loops, None]))
