"""matplotlib drawings as SVG text: one palette, one style, the same bytes for the same data.

Every function draws one panel of a figure; panels are narrow (they stand side by side on a desk and one below the other
on a phone) and row labels stand above their row, so that long variant names fit. Text stays text. Colours of text and
rules are placeholders: `themed` replaces them, by CSS variables on the page and by fixed colours in image files.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

from ddbench import units
from ddbench.engine.stages import ROUND_STAGES, Stage
from ddbench.report.document import visible
from ddbench.report.drawing_text import compact

# Okabe and Ito's colours, which stay apart for colour-blind readers; yellow is darkened to show on white.
PALETTE: tuple[str, ...] = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a642", "#8c8c8c")
MARKERS: tuple[str, ...] = ("o", "s", "^", "D", "v", "P", "X", "h")
GREY = "#9aa1a9"
ARM_COLORS: dict[str, str] = {
    "ar": GREY,
    "prompt_lookup": "#e69f00",
    "chain": "#0072b2",
    "chain_via_tree": "#cc79a7",
    "ddtree": "#009e73",
}
STAGE_COLORS: dict[str, str] = {
    Stage.DRAFT.value: "#0072b2",
    Stage.TREE_BUILD.value: "#d55e00",
    Stage.TREE_COMPILE.value: "#e69f00",
    Stage.VERIFY.value: "#009e73",
    Stage.ACCEPT.value: "#cc79a7",
    Stage.COMMIT.value: "#b5a642",
    Stage.MATERIALIZE.value: "#56b4e9",
}
assert STAGE_COLORS.keys() == {stage.value for stage in ROUND_STAGES}, "every stage has a colour"

_INK, _RULE, _FAINT, _PAPER = "#010203", "#040506", "#070809", "#fdfcfb"  # placeholders, see `themed`
_WIDTH = 4.5  # inches of a panel
_BOTTOM, _TOP, _RIGHT = 0.52, 0.08, 0.17  # inches around the axes
_LABEL_CHARS = 50
_ROW = 0.46  # inches of a labelled row
_SMALL = 9.0  # points of numbers inside a drawing
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ddbench",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.color": _INK,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _FAINT,
    "axes.labelsize": 10.0,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "figure.facecolor": "none",
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _FAINT,
    "ytick.labelcolor": _FAINT,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
}


@dataclass(frozen=True, slots=True)
class Point:
    """A value with its interval, where there is one."""

    label: str
    value: float
    low: float | None
    high: float | None
    color: str


@dataclass(frozen=True, slots=True)
class Series:
    """A line: y over x, with intervals where there are any."""

    label: str
    color: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar of adjoining segments: (name, value, colour)."""

    label: str
    segments: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """One stage of one arm in a roofline."""

    series: str  # the arm: told by the marker's shape
    color: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Roof:
    """One ceiling: a rate in bytes per second slopes, one in flops per second is flat."""

    label: str
    rate: float
    is_flat: bool


@contextmanager
def _drawing(height: float, left: float = 0.14) -> Iterator[tuple[Drawing, Axes]]:
    """A panel in our style, whatever the reader's matplotlib settings are; `left` inches are for tick labels."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from"
        )  # text stays text: the reader's fonts have it
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)  # type: ignore[arg-type]
        drawing = Drawing(figsize=(_WIDTH, height))
        FigureCanvasSVG(drawing)
        box = (left / _WIDTH, _BOTTOM / height, (_WIDTH - left - _RIGHT) / _WIDTH, (height - _BOTTOM - _TOP) / height)
        yield drawing, drawing.add_axes(box)


def _finish(drawing: Drawing) -> str:
    """The bare <svg> element: no prolog, no metadata, nothing that names a place outside of the file."""
    buffer = io.StringIO()
    drawing.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace("'DejaVu Sans'", "system-ui, 'Segoe UI', 'DejaVu Sans'")
    return compact(text).strip() + "\n"


def _on(color: str) -> str:
    """Black or white, whichever has the higher contrast to `color` (WCAG relative luminance)."""
    channels = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def _label(text: str, limit: int = _LABEL_CHARS) -> str:
    """A name as a drawing can hold it: on one line, nothing in it that XML or a font knows no sign for."""
    return units.shortened(" ".join(visible(text).split()), limit)


def _rows_axis(axes: Axes, num_rows: int) -> None:
    axes.set_ylim(num_rows - 0.4, -0.85)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.tick_params(axis="x", length=0)


def _row_label(axes: Axes) -> dict[str, Any]:
    """Text at the left edge, on paper so that grid lines do not cross it."""
    box = {"facecolor": _PAPER, "edgecolor": "none", "pad": 1.0}
    return {"transform": axes.get_yaxis_transform(), "va": "center", "bbox": box, "zorder": 3}


def limits(points: Sequence[Point], reference: float, least: float = 0.1) -> tuple[float, float]:
    """An axis for all of them and the reference; `least` to either side where they are all in one place."""
    values = [value for point in points for value in (point.low, point.value, point.high) if value is not None]
    low, high = min(reference, *values), max(reference, *values)
    margin = 0.06 * (high - low) or least
    return low - margin, high + margin


def forest(points: Sequence[Point], x_label: str, limits: tuple[float, float], reference: float | None = None) -> str:
    """One row per point: its label, a dot, its interval as a line."""
    with _drawing(0.60 + _ROW * len(points)) as (drawing, axes):
        _rows_axis(axes, len(points))
        axes.set_xlim(*limits)
        if reference is not None:
            axes.axvline(reference, color=_FAINT, linewidth=1.0, linestyle=(0, (3, 2)), zorder=1)
        for row, point in enumerate(points):
            axes.text(0.0, row - 0.30, _label(point.label), **_row_label(axes))
            if point.low is not None and point.high is not None:
                axes.plot([point.low, point.high], [row + 0.1] * 2, color=point.color, linewidth=2.2, alpha=0.55)
            axes.plot([point.value], [row + 0.1], "o", color=point.color, markersize=5.5)
        axes.set_xlabel(_label(x_label))
        return _finish(drawing)


def lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    ticks: Sequence[float] = (),
    is_log: bool = False,
    reference: float | None = None,
    diagonal_from: float | None = None,
) -> str:
    """Lines with error bars, told apart by colour and marker, in the order of the legend; on a diagonal y is x."""
    with _drawing(2.6, left=0.62) as (drawing, axes):
        if is_log:
            axes.set_xscale("log", base=2)
        if reference is not None:
            axes.axhline(reference, color=_FAINT, linewidth=1.0, linestyle=(0, (3, 2)), zorder=1)
        for index, line in enumerate(series):
            marker = MARKERS[index % len(MARKERS)]
            axes.plot(line.x, line.y, color=line.color, marker=marker, markersize=4.2, linewidth=1.5)
            for x, low, high in zip(line.x, line.low, line.high, strict=False):
                if low is not None and high is not None:
                    axes.plot([x, x], [low, high], color=line.color, linewidth=1.1, alpha=0.6)
        if ticks:
            axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
        if diagonal_from is not None:
            ends = [diagonal_from, max(diagonal_from, *(x for line in series for x in line.x))]
            axes.plot(ends, ends, color=_FAINT, linewidth=1.0, linestyle=(0, (3, 2)), zorder=1)
            axes.set_xlim(left=diagonal_from)
        axes.set_ylim(bottom=diagonal_from or 0)
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.set_xlabel(_label(x_label))
        axes.set_ylabel(_label(y_label))
        return _finish(drawing)


def histogram(shares: Sequence[float], color: str, top: float, num_bins: int) -> str:
    """Share of rounds by accepted tokens, 0 first."""
    with _drawing(1.9, left=0.60) as (drawing, axes):
        places = range(len(shares))
        axes.bar(places, [100 * share for share in shares], width=0.82, color=color)
        for place, share in zip(places, shares, strict=True):
            if share >= 0.02:
                axes.text(
                    place,
                    100 * share + 100 * top * 0.02,
                    f"{100 * share:.0f}",
                    ha="center",
                    va="bottom",
                    fontsize=_SMALL,
                )
        axes.set_xlim(-0.6, num_bins - 0.4)
        axes.set_ylim(0, 100 * top * 1.12)
        axes.set_xticks(range(0, num_bins, max(1, num_bins // 12)))
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("accepted drafted tokens")
        axes.set_ylabel("% of rounds")
        return _finish(drawing)


def stacked_bars(stacks: Sequence[Stack], x_label: str, limit: float) -> str:
    """One labelled bar per stack; segments wide enough carry their value."""
    with _drawing(0.60 + 0.54 * len(stacks)) as (drawing, axes):
        _rows_axis(axes, len(stacks))
        axes.set_xlim(0, limit * 1.02)
        for row, stack in enumerate(stacks):
            axes.text(0.0, row - 0.38, _label(stack.label), **_row_label(axes))
            left = 0.0
            for _, value, color in stack.segments:
                axes.barh(row + 0.1, value, left=left, height=0.46, color=color, linewidth=0)
                if value > 0.085 * limit:
                    ink = _on(color)
                    axes.text(
                        left + value / 2,
                        row + 0.11,
                        f"{value:.3g}",
                        ha="center",
                        va="center",
                        fontsize=_SMALL,
                        color=ink,
                    )
                left += value
        axes.set_xlabel(_label(x_label))
        return _finish(drawing)


def roofline(marks: Sequence[Mark], roofs: Sequence[Roof]) -> str:
    """Achieved flops per second over flops per byte, both logarithmic, below the ceilings."""
    peak = max(roof.rate for roof in roofs if roof.is_flat)
    slowest = min(roof.rate for roof in roofs if not roof.is_flat)
    left, right = min(mark.x for mark in marks) / 3, 4 * max(peak / slowest, *(mark.x for mark in marks))
    series = list(dict.fromkeys(mark.series for mark in marks))
    with _drawing(4.0, left=0.74) as (drawing, axes):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(left, right)
        bottom = min(min(mark.y for mark in marks), slowest * left) / 3
        axes.set_ylim(bottom, max(peak, *(mark.y for mark in marks)) * 10 ** (0.6 + 0.35 * len(series)))
        for roof in roofs:
            _draw_roof(axes, roof, peak, is_lowest=roof.rate == slowest)
        for mark in marks:
            shape = MARKERS[series.index(mark.series) % len(MARKERS)]
            axes.plot([mark.x], [mark.y], shape, color=mark.color, markersize=7, markeredgecolor=_PAPER)
        for place, name in enumerate(series):
            shape = MARKERS[place % len(MARKERS)]
            axes.plot([], [], shape, color=_FAINT, markersize=6, label=_label(name, 34))
        axes.legend(loc="upper left", frameon=False, fontsize=_SMALL, handletextpad=0.2, borderaxespad=0.1)
        for axis in (axes.xaxis, axes.yaxis):
            ticks = _decades(*axis.get_view_interval())
            axis.set_ticks(ticks, [_power_of_ten(tick) for tick in ticks])
            axis.set_ticks([], minor=True)
        axes.grid(linewidth=0.4)
        axes.tick_params(length=0)
        axes.set_xlabel("flop per byte that has to move")
        axes.set_ylabel("flop/s")
        return _finish(drawing)


def _draw_roof(axes: Axes, roof: Roof, peak: float, is_lowest: bool) -> None:
    """A ceiling with its name: flat to the right, or rising up to the peak."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    if roof.is_flat:
        axes.plot([left, right], [roof.rate] * 2, color=_FAINT, linewidth=1.2)
        place: dict[str, Any] = {"x": right / 1.1, "y": roof.rate * 1.15, "ha": "right", "va": "bottom"}
    else:
        style = "-" if is_lowest else (0, (4, 2))
        axes.plot([left, peak / roof.rate], [roof.rate * left, peak], color=_FAINT, linewidth=1.2, linestyle=style)
        width, height = axes.get_window_extent().size
        rise, run = height / math.log10(top / bottom), width / math.log10(right / left)  # of one decade
        start = max(left, bottom / roof.rate) * 1.6
        place = {"x": start, "y": roof.rate * start * (0.8 if is_lowest else 1.2), "ha": "left"}
        place |= {"rotation": math.degrees(math.atan2(rise, run)), "rotation_mode": "anchor"}
        place["va"] = "top" if is_lowest else "bottom"
    axes.text(s=_label(roof.label), fontsize=_SMALL, color=_FAINT, **place)


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten in between, at most seven."""
    exponents = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [10.0**exponent for exponent in exponents if exponent % math.ceil(len(exponents) / 7) == 0]


def _power_of_ten(value: float) -> str:
    number, _, prefix = units.rate(value, "").partition(" ")
    return f"{float(number):g} {prefix}".rstrip()


def colors(count: int) -> tuple[str, ...]:
    """As many colours as there are series that are no arms; the last one again where the palette ends."""
    return tuple(PALETTE[min(place, len(PALETTE) - 1)] for place in range(count))


def series_colors(arms: Sequence[str]) -> tuple[str, ...]:
    """A colour per series: an arm's own for its first series, then whatever is left of the palette."""
    colors: list[str] = []
    for arm in arms:
        own = ARM_COLORS.get(arm, GREY)
        spare = [color for color in PALETTE if color not in colors and color not in ARM_COLORS.values()]
        spare += [color for color in PALETTE if color not in colors]
        colors.append(own if own not in colors else spare[0] if spare else GREY)
    return tuple(colors)


def themed(svg: str, colors: Mapping[str, str], prefix: str) -> str:
    """`svg` with real colours for text (`ink`), quiet text (`faint`), `rule` and `paper`, and own ids."""
    for placeholder, name in ((_INK, "ink"), (_RULE, "rule"), (_FAINT, "faint"), (_PAPER, "paper")):
        svg = svg.replace(placeholder, colors[name])
    return re.sub(r"<[^<>]*>", lambda tag: re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}-", tag[0]), svg)
