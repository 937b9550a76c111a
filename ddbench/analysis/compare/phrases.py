"""How comparisons are put into words: ratios with their intervals. Below the diagnosis and its report."""

from __future__ import annotations

from ddbench import units
from ddbench.analysis.compare.comparison import Comparison
from ddbench.analysis.effects import Effect
from ddbench.analysis.values import Value
from ddbench.records import NotMeasured


def moved(comparison: Comparison) -> str:
    """`2.10 -> 2.61 ms (1.24x [1.22, 1.27])`."""
    return (
        f"{value_text(comparison.a)} -> {value_text(comparison.b)} {comparison.metric.unit} ({ratio_text(comparison)})"
    )


def ratio_text(comparison: Comparison) -> str:
    """The ratio with its interval, or that it is exact, or that it has none."""
    effect = comparison.decision.effect
    if not isinstance(effect, Effect):
        return "no ratio"
    text = f"{units.significant(effect.ratio)}x"
    if comparison.basis == "exact":
        return f"{text}, exact"
    if effect.low is None or effect.high is None:
        return f"{text}, no interval"
    return f"{text} {units.interval(effect.low, effect.high)}"


def value_text(value: Value) -> str:
    return "-" if isinstance(value, NotMeasured) else units.significant(value.value)
