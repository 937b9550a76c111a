"""How two codes measured in turns differ: the ratio of their paired values, with its interval.

Between per-block values (`blocks`) and verdicts (`paired`). What is compared is the log-ratio d of the two values of a
block, so that whatever both shared in the block cancels. What the one that ran second always pays, the slot effect, is
estimated where both orders occur and taken out: it biases the ratio when the orders are not balanced, and passes for
noise when they are. The estimate is the Hodges-Lehmann median of all pairwise means, which one odd block cannot drag
away; the spread is the plain standard deviation, which one odd block does widen, on purpose.

Chosen by simulation: A/A runs with drift, random walk, warm-up ramp, a slot effect of 3 %, heavy and skewed tails and a
slow mode (15 % of measurements 20 % slower), at 6 to 20 blocks, 100,000 of each; shares of nominal 5 %, 1 % and 0.1 %.
- This one (Hodges-Lehmann, Student's t with two parameters): 0.1 to 1.0 of each nominal rate, but for the slow mode at
  6 blocks (1.9 of 0.1 %). It sees 5 % at 10 blocks with 2 % noise per measurement in 99.4 % of runs; least squares
  with the same t 99.7 %, but its estimate follows an odd block.
- Signed ranks and sign flips are exact only where nothing is estimated: after the slot effect up to 1.4 of nominal 5 %.
  With 10 blocks they have no p-value below 0.002, so one change among more than 25 cells could never be told.
- Permuting the orders is exact, but has no p-value below 0.1 at 6 blocks and none below 0.008 at 10.
- A robust scale sees more next to odd blocks (5 % at 10 blocks of heavy-tailed noise: 98 to 99 % of runs, this one
  92 %), but alarms at up to 14 (Huber) or 5 (winsorised) times nominal 0.1 %, which is where a test of many cells is.

Letters: n blocks, d log-ratio of b over a, s +1 where a ran first, -1 where b did, 0 where that is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from ddbench.analysis.stats import CONFIDENCE
from ddbench.records import NotMeasured

# The smallest two-sided p-value of n exchangeable signs is 2/2^n: 0.0625 at 5 blocks, which decides nothing at 5 %.
FEWEST_BLOCKS = 6
FEWEST_PER_ORDER = 5  # for a difference that only one of the orders shows
_NO_SPREAD = 1e-12  # of log-ratios: what rounding leaves of values that repeat exactly
_ROOT_EFFICIENCY = np.sqrt(np.pi / 3)  # standard error of Hodges-Lehmann over that of the mean, normal noise
_LARGEST_LOG = 700.0  # exp of more is no number


@dataclass(frozen=True, slots=True)
class Pair:
    """A block's two values in the metric's unit, and whether a ran before b; None: unknown."""

    block: int
    a: float
    b: float
    is_a_first: bool | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """b over a. The interval is absent where there is no spread or too little to tell it from; the note says which.

    `p_value` is two-sided and absent below `FEWEST_BLOCKS`, where no value of it could decide anything.
    """

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    n: int
    slot_ratio: float | None  # second to run over first to run, the same code; None: not separable
    spread: float | None  # standard deviation of the log-ratios without the slot effect; None: one block has none
    note: str = ""


def effect_of(pairs: Sequence[Pair]) -> Effect | NotMeasured:
    """Ratio of b over a. Every value must be a positive finite number: one that is not makes the effect not measured.

    Exchanging a and b inverts ratio and interval and changes nothing else; the order of `pairs` does not matter.
    """
    bad = next((pair for pair in pairs if not (0 < pair.a < np.inf and 0 < pair.b < np.inf)), None)
    if bad is not None:
        return NotMeasured(
            not_measured=f"block {bad.block}: a is {bad.a}, b is {bad.b}; a ratio takes positive numbers"
        )
    if not pairs:
        return NotMeasured(not_measured="no block has a value on both sides")
    rest, orders, slot = _without_slot(pairs)
    centre, count = _hodges_lehmann(rest), len(pairs)
    if abs(centre) > _LARGEST_LOG:
        return NotMeasured(not_measured="the two sides are too far apart for a ratio")
    freedom = count - (1 if slot is None else 2)
    spread = float(np.sqrt(np.sum((rest - centre) ** 2) / freedom)) if freedom else None
    low, high, p_value, note = _inference(centre, spread, freedom, _variance_factor(orders, slot is not None))
    if count < FEWEST_BLOCKS:
        p_value, note = None, f"n={count}: fewer than {FEWEST_BLOCKS} blocks decide nothing" + (note and f"; {note}")
    slot_ratio = None if slot is None else float(np.exp(slot))
    note = "; ".join(filter(None, (note, _slot_note(pairs) if slot is None else "")))
    return Effect(float(np.exp(centre)), low, high, p_value, count, slot_ratio, spread, note)


def halves(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Log-ratios of the earlier and of the later half of the blocks, the slot effect of all of them taken out.

    Early against late, because what lasts only for a while (a warm-up, a busy neighbour) then stays in one half. Each
    order is halved on its own, so that both halves hold both.
    """
    rest, orders, _ = _without_slot(pairs)
    is_late = np.zeros(len(rest), dtype=bool)
    for turn, order in enumerate(dict.fromkeys(orders.tolist())):  # by appearance, so that no side is preferred
        own = np.flatnonzero(orders == order)
        is_late[own[(len(own) + turn % 2) // 2 :]] = True
    return _hodges_lehmann(rest[~is_late]), _hodges_lehmann(rest[is_late])


def thin_orders(pairs: Sequence[Pair]) -> tuple[float, ...]:
    """Log-ratios of each order on its own, slot effect and all; empty where every order has `FEWEST_PER_ORDER` blocks.

    With fewer, a slow mode that by chance falls on one side in all blocks of one order looks like a slot effect plus a
    difference, both without spread: 4 alarms in 1,000 A/A cells of 6 blocks, at any level of significance.
    """
    groups = [[pair for pair in pairs if pair.is_a_first is first] for first in (True, False)]
    if not all(groups) or min(map(len, groups)) >= FEWEST_PER_ORDER:
        return ()
    return tuple(_hodges_lehmann(_log_ratios(group)) for group in groups)


def has_one_order(pairs: Sequence[Pair]) -> bool:
    """Whether the same side ran first wherever that is known, so that a slot effect would pass for a difference."""
    known = [pair.is_a_first for pair in pairs if pair.is_a_first is not None]
    return len(known) > 1 and len(set(known)) == 1


def _without_slot(pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray, float | None]:
    """In the order of blocks: log-ratios without the slot effect [n], orders s [n]; and the effect, if separable."""
    table = sorted(pairs, key=lambda pair: pair.block)
    assert len({pair.block for pair in table}) == len(table), "a block is one pair"
    logs = _log_ratios(table)
    orders = np.array([0 if pair.is_a_first is None else 1 if pair.is_a_first else -1 for pair in table])
    ahead, behind = logs[orders > 0], logs[orders < 0]
    if not (ahead.size and behind.size and len(table) > 2):
        return logs, orders, None
    slot = float(np.median(np.subtract.outer(ahead, behind))) / 2
    return logs - slot * orders, orders, slot


def _log_ratios(pairs: Sequence[Pair]) -> np.ndarray:
    return np.array([np.log(pair.b) - np.log(pair.a) for pair in pairs])


def _slot_note(pairs: Sequence[Pair]) -> str:
    if has_one_order(pairs):
        return "slot effect not taken out: the same side always ran first"
    is_unknown = all(pair.is_a_first is None for pair in pairs)
    return "slot effect not taken out: " + ("which ran first is unknown" if is_unknown else "too few blocks")


def _hodges_lehmann(values: np.ndarray) -> float:
    rows, columns = np.triu_indices(values.size)
    return float(np.median((values[rows] + values[columns]) / 2))


def _variance_factor(orders: np.ndarray, has_slot: bool) -> float:
    """Variance of the intercept over that of the noise, in least squares of d on 1 and, `has_slot`, on s."""
    if not has_slot:
        return 1 / orders.size
    squares = float(np.sum(orders**2))
    return squares / (orders.size * squares - float(np.sum(orders)) ** 2)


def _inference(
    centre: float, spread: float | None, freedom: int, variance_factor: float
) -> tuple[float | None, float | None, float | None, str]:
    """Low, high, p-value and what is to be said about them."""
    if spread is None:
        return None, None, None, "no interval from one block"
    if spread <= _NO_SPREAD:
        return None, None, None, "no spread: the ratio is the same in every block"
    error = spread * _ROOT_EFFICIENCY * np.sqrt(variance_factor)
    p_value = float(2 * stdtr(freedom, -abs(centre) / error))
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * error)
    if abs(centre) + half > _LARGEST_LOG:
        return None, None, p_value, "the spread is too wide for an interval"
    return float(np.exp(centre - half)), float(np.exp(centre + half)), p_value, ""
