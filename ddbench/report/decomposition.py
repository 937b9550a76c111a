"""What a speedup is made of, as tables and a drawing: acceptance against round cost, and the round cost stage by stage.

Used by the sections that set one setting against another: arms (against ar, prompt_lookup and chain) and variants
(against the setting that they change).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddbench.analysis.decompose import HOST_GAP, PARTS, Contribution, Decomposition
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate
from ddbench.records import NotMeasured
from ddbench.report import cells, plots
from ddbench.report.document import Cell, Column, Figure, Panel, Table
from ddbench.report.evidence import Evidence

NOTE = (
    "Stages and host gap add up to round cost - 1. They are shares of the attributed pass laid on the round cost of "
    "the clean one, which assumes that attributing slows every stage alike; intervals resample rounds in blocks."
)
DRAWN_AGAINST: tuple[str, ...] = ("chain", "ar")  # the first of these that an arm is compared with
MAX_PANELS = 6


@dataclass(frozen=True)
class Row:
    """A decomposition with the cells that say what it is of."""

    about: tuple[Cell, ...]
    found: Decomposition


def made_of_table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Speedups as tau over round cost, times what neither of them holds."""
    body = []
    for row in rows:
        contest, net = row.found.contest, row.found.contest.net
        body.append(
            (
                *row.about,
                cells.value_cell(contest.speedup),
                cells.value_cell(contest.length),
                cells.value_cell(contest.cost),
                cells.missing_cell("one of its two parts is missing") if net is None else _factor(net),
                _factor(row.found.waiting),
                _factor(row.found.typical),
            )
        )
    own = (
        Column("TPOT", tip="the measured speedup: median TPOT of the other / of this; the product of net and the rest"),
        Column("tau", tip="tau of this / of the other, pooled over the prompts they share: above 1 it accepts more"),
        Column("Round cost", tip="round_cost_ms of this / of the other, over rounds: below 1 its rounds are cheaper"),
        Column("Net", tip="tau / round cost"),
        Column(
            "Waiting", tip="what waiting between rounds, mostly for prefills of others, leaves of net: below 1 a loss"
        ),
        Column("Typical", tip="what lies between means over rounds and the median prompt"),
    )
    return cells.with_notes(Table(title, (*columns, *own), tuple(body), is_folded=True))


def stage_table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table | None:
    """What every stage adds to the round cost, in % of the other's round; None where no stage was timed."""
    timed = [row for row in rows if not isinstance(row.found.contributions, NotMeasured)]
    if not timed:
        return None
    body = [(*row.about, cells.value_cell(row.found.contest.cost), *_part_cells(row.found)) for row in timed]
    own = (
        Column("Round cost", tip="of this / of the other"),
        *(Column(_title(part), "%", tip="of the other's round, more or less than there") for part in PARTS),
    )
    return cells.with_notes(Table(title, (*columns, *own), tuple(body), (NOTE,), is_folded=True))


def _factor(value: float | NotMeasured) -> Cell:
    if isinstance(value, NotMeasured):
        return cells.missing_cell(value.not_measured)
    return Cell(cells.number(value, "x"), sort=value)


def _title(part: str) -> str:
    return part.replace("_", " ").capitalize() if part == HOST_GAP else part.replace("_", " ")


def _part_cells(found: Decomposition) -> list[Cell]:
    assert not isinstance(found.contributions, NotMeasured), "rows without stage times are left out"
    known = {one.part: one for one in found.contributions}
    return [_part_cell(known[part]) if part in known else cells.missing_cell("neither has it") for part in PARTS]


def _part_cell(one: Contribution) -> Cell:
    cell = cells.value_cell(one.share)
    if isinstance(one.share, NotMeasured):
        return cell
    sign = "+" if one.share.value > 0 else ""
    tip = f"{cell.tip}; in the attributed pass alone {100 * one.attributed:+.3g} %"
    return Cell(f"{sign}{cell.text}", cell.detail, tip, cell.sort, cell.tone)


def figure(evidence: Evidence) -> Figure | None:
    """What makes the rounds of the fastest drafter dearer or cheaper, one panel per concurrency and run."""
    chosen = []
    for run in evidence.runs:
        for concurrency in evidence.study.concurrencies:
            setting = evidence.bases[run].best_drafter(concurrency)
            found = None if setting is None else _drawn(evidence, setting)
            if found is not None:
                chosen.append(found)
    chosen = chosen[:MAX_PANELS]
    if not chosen:
        return None
    points = [_points(found) for found in chosen]
    limits = plots.limits([point for group in points for point in group], 0.0, least=1.0)
    panels = []
    for place, (found, group) in enumerate(zip(chosen, points, strict=True)):
        base, setting = found.contest.base, found.contest.setting
        title = f"{evidence.name(setting)} against {base.label}, concurrency {setting.concurrency}"
        svg = plots.forest(group, f"% of a round of {base.label}", limits, reference=0.0)
        panels.append(Panel(f"decomposition-{place}", title, svg))
    caption = (
        "Dot: time that the stage adds to a round (right) or saves (left); line: 95 % interval over rounds. " + NOTE
    )
    return Figure("What makes a round of the fastest drafter dearer", caption, tuple(panels))


def _drawn(evidence: Evidence, setting: Setting) -> Decomposition | None:
    for arm in DRAWN_AGAINST:
        found = evidence.decompositions.get((setting.key, arm))
        if found is not None and not isinstance(found.contributions, NotMeasured):
            return found
    return None


def _points(found: Decomposition) -> list[plots.Point]:
    assert not isinstance(found.contributions, NotMeasured), "only timed stages are drawn"
    points = []
    for one in found.contributions:
        if isinstance(one.share, Estimate):
            low, high = (None if end is None else 100 * end for end in (one.share.low, one.share.high))
            color = plots.STAGE_COLORS.get(one.part, plots.GREY)
            points.append(plots.Point(_title(one.part), 100 * one.share.value, low, high, color))
    return points
