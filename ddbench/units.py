"""Numbers and lists to text: the only formatter of durations, bytes, rates and ratios in the project."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BYTE_STEPS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_COUNT_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits and no exponent: 0.0123, 1.23, 12.3, 1230."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def aligned(value: float, largest: float, digits: int = 4) -> str:
    """`value` with the decimals that give `largest` that many significant digits: numbers that line up in a column."""
    places = max(0, digits - 1 - math.floor(math.log10(abs(largest)))) if largest else 0
    return f"{value:.{places}f}"


def grouped(count: int) -> str:
    """A whole number with its thousands apart: `12 705` (narrow no-break space)."""
    return f"{count:,}".replace(",", "\u202f")


def signed_percent(share: float) -> str:
    """`+3.2 %`, `−0.41 %`, `0 %`."""
    if share == 0:
        return "0 %"
    return f"{'+' if share > 0 else '−'}{significant(100 * abs(share), 2)} %"


def microseconds(us: float) -> str:
    """Microseconds for a column of them: whole ones from 100 on, three digits below; never 0 for what is not 0."""
    return grouped(round(us)) if abs(us) >= 100 else significant(us)


def shortened(text: str, limit: int = 40) -> str:
    """`text` cut in its middle where it is longer than that: what tells long labels apart stands at either end."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def duration(ns: float) -> str:
    """Nanoseconds to the unit that reads best: `812 ns`, `41.2 us`, `3.10 ms`, `1.25 s`."""
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= limit:
            return f"{significant(ns / limit)} {unit}"
    return f"{ns:.0f} ns"


def about(seconds: float) -> str:
    """A rough time ahead: `40 s`, `2 min 10 s`, `1 h 20 min`."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{whole // 60} min {whole % 60 // 10 * 10} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _stepped(value: float, steps: tuple[tuple[float, str], ...], unit: str) -> str:
    for limit, name in steps:
        if abs(value) >= limit:
            return f"{significant(value / limit)} {name}{unit}"
    return f"{significant(value)} {unit}".rstrip()


def byte_count(num_bytes: float) -> str:
    """Decimal bytes: `617 MB`."""
    return _stepped(num_bytes, _BYTE_STEPS, "" if abs(num_bytes) >= 1e3 else "B")


def rate(per_s: float, unit: str) -> str:
    """A rate with a decimal prefix: `rate(4.3e12, 'B/s')` is `4.30 TB/s`."""
    return _stepped(per_s, _COUNT_STEPS, unit)


def ratio(value: float) -> str:
    """A speedup or tau ratio: `1.25x`."""
    return f"{value:.2f}x"


def interval(low: float, high: float) -> str:
    """A confidence interval: `[1.20, 1.31]`."""
    return f"[{significant(low)}, {significant(high)}]"


def listed(items: Sequence[object]) -> str:
    """`heap, device and chain`."""
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def repeatable(value: object) -> str:
    """A value as text that is the same wherever it is computed: floats in 12 digits.

    Sums of products end in other last bits with another number of threads or another processor's vector unit.
    """
    return f"{value:.12g}" if isinstance(value, float) else str(value)
