"""Which of many paired comparisons show a difference, which show that there is none, and which cannot tell.

Behind `effects` (one cell: ratio and interval), in front of comparisons and the gate. A cell is one metric of one
setting, measured on both sides in the same blocks. A difference must be
- significant over all cells of a call (false discovery rate, Benjamini-Hochberg),
- as large as the minimum effect and as what a run of the same code against itself showed (noise floor), and, at the
  level of both sides' medians, as the absolute floor in the metric's unit,
- confirmed: by the earlier and the later half of the blocks and, of few blocks, by both orders, each with half of what
  the difference must be at least; or by a second run where there is one.
`same` is a finding of its own and not the absence of one: the whole interval lies where no difference would count.
Everything else is `undecided`, with codes that say why. Values without any spread are judged like counters: no test, no
interval, only the sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import false_discovery_control

from ddbench.analysis.effects import FEWEST_BLOCKS, Effect, Pair, effect_of, halves, has_one_order, thin_orders
from ddbench.records import NotMeasured

Verdict = Literal["faster", "slower", "same", "undecided", "incomparable"]
Direction = Literal["higher", "lower"]

# Codes of a decision.
NO_PAIRS = "no_pairs"
UNUSABLE_VALUES = "unusable_values"  # not positive, not finite
TOO_FEW_BLOCKS = "too_few_blocks"
ONE_ORDER_ONLY = "one_order_only"  # the same side always ran first
SPREAD_TOO_WIDE = "spread_too_wide"
INTERVAL_SPANS_BOTH = "interval_spans_both"  # no difference, and one that would count
NOT_SIGNIFICANT_AFTER_FDR = "not_significant_after_fdr"
BELOW_MIN_EFFECT = "below_min_effect"
BELOW_NOISE_FLOOR = "below_noise_floor"
BELOW_ABSOLUTE_FLOOR = "below_absolute_floor"
NOT_CONFIRMED = "not_confirmed"
IDENTICAL = "identical"  # both sides have the same value in every block
NO_SPREAD = "no_spread"  # the ratio is the same in every block

# Above this standard deviation of the log-ratios nothing is decided, unless the difference is twice as large as it and
# so plain in nearly every block. A machine that gives one code two times 15 % apart is not one to find 2 % with.
SPREAD_CEILING = 0.15
ALPHA = 0.05  # false discovery rate
_ROUNDING = 1e-9  # relative: an effect of exactly the minimum counts


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a difference must be to count."""

    min_effect: float  # relative: 0.02 is 2 %
    absolute_floor: float = 0.0  # in the metric's unit
    noise_floor: float = 0.0  # relative: what the same code against itself showed; 0: not known


@dataclass(frozen=True, slots=True)
class Cell:
    """What one decision is about; `direction` is the better one."""

    key: Hashable
    pairs: tuple[Pair, ...]
    direction: Direction
    limits: Limits


@dataclass(frozen=True, slots=True)
class Decision:
    """`faster` is b better than a, in whatever the metric counts. `incomparable` is never given here: callers know."""

    key: Hashable
    verdict: Verdict
    reasons: tuple[str, ...]
    effect: Effect | NotMeasured
    q_value: float | None  # p-value after control of the false discovery rate; None: not part of the test


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The limits of a cell as log-ratios."""

    min_effect: float
    noise_floor: float
    absolute_floor: float

    @property
    def relative(self) -> float:
        return max(self.min_effect, self.noise_floor)

    def too_small_for(self, size: float) -> tuple[str, ...]:
        floors = (
            (self.min_effect, BELOW_MIN_EFFECT),
            (self.noise_floor, BELOW_NOISE_FLOOR),
            (self.absolute_floor, BELOW_ABSOLUTE_FLOOR),
        )
        return tuple(code for floor, code in floors if size < floor * (1 - _ROUNDING))


def decide(
    cells: Sequence[Cell], confirmation: Mapping[Hashable, Sequence[Pair]] | None = None
) -> tuple[Decision, ...]:
    """One decision per cell, in their order; `ALPHA` is the false discovery rate over all of them.

    `confirmation` holds a second run's pairs of cells that the first found different: they then take the place of the
    halves, and must show the same direction on their own. Cells that it does not name are confirmed by their halves.
    """
    effects = [effect_of(cell.pairs) for cell in cells]
    q_values = _q_values(cells, effects)
    second = confirmation or {}
    return tuple(
        _decision(cell, effect, q_value, second.get(cell.key))
        for cell, effect, q_value in zip(cells, effects, q_values, strict=True)
    )


def _q_values(cells: Sequence[Cell], effects: Sequence[Effect | NotMeasured]) -> list[float | None]:
    """Over the cells that can be tested at all."""
    found: list[float | None] = [None] * len(cells)
    tested = {
        index: effect.p_value
        for index, (cell, effect) in enumerate(zip(cells, effects, strict=True))
        if isinstance(effect, Effect) and effect.p_value is not None and not has_one_order(cell.pairs)
    }
    if tested:
        for index, q_value in zip(tested, false_discovery_control(list(tested.values())), strict=True):
            found[index] = float(q_value)
    return found


def _decision(
    cell: Cell, effect: Effect | NotMeasured, q_value: float | None, second: Sequence[Pair] | None
) -> Decision:
    if isinstance(effect, NotMeasured):
        code = UNUSABLE_VALUES if cell.pairs else NO_PAIRS
        return Decision(cell.key, "undecided", (code,), effect, None)
    verdict, reasons = _judged(cell, effect, q_value, second)
    return Decision(cell.key, verdict, reasons, effect, q_value)


def _judged(
    cell: Cell, effect: Effect, q_value: float | None, second: Sequence[Pair] | None
) -> tuple[Verdict, tuple[str, ...]]:
    if effect.n > 1 and all(pair.a == pair.b for pair in cell.pairs):
        return "same", (IDENTICAL,)
    centre, sizes = float(np.log(effect.ratio)), _sizes(cell)
    refused = _refusals(cell, effect, centre)
    if refused:
        return "undecided", refused
    change: Verdict = "faster" if (centre > 0) == (cell.direction == "higher") else "slower"
    too_small = sizes.too_small_for(abs(centre))
    if q_value is None:  # no spread
        is_change = not too_small and abs(centre) > _ROUNDING
        return (change, (NO_SPREAD,)) if is_change else ("same", (NO_SPREAD, *too_small))
    reach = _reach(effect)
    is_equal = reach <= max(sizes.relative, sizes.absolute_floor)
    if q_value > ALPHA:
        is_open = effect.low is None or effect.high is None or effect.low <= 1 <= effect.high
        doubts: tuple[str, ...] = (INTERVAL_SPANS_BOTH if is_open else NOT_SIGNIFICANT_AFTER_FDR,)
    else:
        is_confirmed = _is_confirmed(cell.pairs, second, np.sign(centre), sizes.relative / 2)
        doubts = too_small + (() if is_confirmed else (NOT_CONFIRMED,))
    if not doubts:
        return change, ()
    if is_equal:  # by which of the limits, where the minimum effect alone would not have said so
        return "same", () if reach <= sizes.min_effect else sizes.too_small_for(reach)
    return "undecided", doubts


def _refusals(cell: Cell, effect: Effect, centre: float) -> tuple[str, ...]:
    """Why no values whatever could give a verdict."""
    found = []
    if effect.n < FEWEST_BLOCKS:
        found.append(TOO_FEW_BLOCKS)
    if has_one_order(cell.pairs):
        found.append(ONE_ORDER_ONLY)
    if effect.spread is not None and effect.spread > max(SPREAD_CEILING, abs(centre) / 2):
        found.append(SPREAD_TOO_WIDE)
    return tuple(found)


def _sizes(cell: Cell) -> _Sizes:
    """The absolute floor as a log-ratio around the geometric mean of both medians, so that it has no preferred side."""
    limits = cell.limits
    level = np.sqrt(np.median([pair.a for pair in cell.pairs])) * np.sqrt(np.median([pair.b for pair in cell.pairs]))
    absolute = float(2 * np.arcsinh(limits.absolute_floor / (2 * level)))
    return _Sizes(float(np.log1p(limits.min_effect)), float(np.log1p(limits.noise_floor)), absolute)


def _reach(effect: Effect) -> float:
    """How far from no difference the interval goes, as a log-ratio."""
    if effect.low is None or effect.high is None:
        return float("inf")
    return float(max(-np.log(effect.low), np.log(effect.high)))


def _is_confirmed(pairs: Sequence[Pair], second: Sequence[Pair] | None, sign: float, size: float) -> bool:
    """Whether both halves (of few blocks: and both orders), or the second run, go the same way by `size` at least."""
    if second is None:
        return all(sign * part >= size and sign * part > 0 for part in (*halves(pairs), *thin_orders(pairs)))
    effect = effect_of(second)
    if isinstance(effect, NotMeasured) or effect.n < FEWEST_BLOCKS or has_one_order(second):
        return False
    is_certain = effect.p_value is None or effect.p_value <= ALPHA  # None: no spread
    centre = sign * float(np.log(effect.ratio))
    return is_certain and centre >= size and centre > 0
