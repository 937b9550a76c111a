"""Section: how far every stage is from the least time in which this machine could do its work, and the ceilings.

From `analysis/roofline.py`: costs of the cases against the ceilings that the run measured around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddbench import units
from ddbench.analysis.roofline import Floor, Roofline, RoundFloor, StageFloor, machine_of
from ddbench.analysis.settings import Setting
from ddbench.engine.stages import ROUND_STAGES
from ddbench.records import NotMeasured
from ddbench.report import cells, plots
from ddbench.report.arms import label_cell
from ddbench.report.ceilings import ceiling_notes, ceiling_tables
from ddbench.report.document import Cell, Column, Figure, LegendEntry, Panel, Section, Skipped, Table
from ddbench.report.evidence import Evidence
from ddbench.report.expert_use import expert_tables
from ddbench.report.profiled import MAX_ROWS_OPEN, number_cell, words

TITLE = "Roofline"
MAX_ARMS_DRAWN = 6  # of a panel; the tables hold all
BOUND_WORDS: dict[str, str] = {"bytes": "bytes", "flops": "flops", "launch": "one launch"}

Measured = Sequence[tuple[Setting, Roofline]]
Found = Sequence[tuple[Setting, Roofline | NotMeasured]]


def roofline(evidence: Evidence) -> Section | Skipped:
    """Distances per concurrency, the drawing, and the ceilings themselves."""
    found = [(setting, evidence.rooflines[setting.key]) for setting in evidence.study.settings]
    measured = [(setting, value) for setting, value in found if isinstance(value, Roofline)]
    if not measured:
        reasons = dict.fromkeys(value.not_measured for _, value in found if isinstance(value, NotMeasured))
        return Skipped("roofline", TITLE, "; ".join(reasons) or "no case has a result")
    tables = [table for c in evidence.study.concurrencies for table in _distance_tables(evidence, c, found)]
    return Section(
        "roofline",
        TITLE,
        tuple(_intro(evidence, measured)),
        tables=(*tables, *_experts(evidence), *ceiling_tables(evidence)),
        figures=tuple(_figures(evidence, measured)),
        notes=tuple(_notes(evidence, measured)),
    )


def _intro(evidence: Evidence, measured: Measured) -> Iterator[str]:
    setting, floor = max(
        ((setting, floor) for setting, value in _arms_first(evidence, measured) for floor in value.stages),
        key=lambda one: one[1].milliseconds - one[1].floor_ms,
    )
    yield (
        "How far every stage is from the least time that this machine could do its work in. Most time above a floor: "
        f"{words(floor.stage)} of {evidence.name(setting)} at concurrency {setting.concurrency}, "
        f"{_us(floor.milliseconds)} us for {_us(floor.floor_ms)} us of work."
    )
    yield (
        "A floor is the longest of three: the fewest bytes at the read ceiling (as many as fit the last-level cache at "
        "the hot rate, the rest at the cold one), the flops at the matmul ceiling, one launch. Distance is time over "
        "floor: 1 is perfect, below 1 the cost model or the ceiling is wrong. Below a distance stands what the "
        "quartiles of time and ceilings make of it; below a floor, where it differs, the floor if nothing were in the "
        "cache. Times are of the attributed pass."
    )


def _experts(evidence: Evidence) -> Iterator[Table]:
    """What the fewest bytes of a target of routed experts rest on, where they were counted."""
    counted = [(label_cell(evidence, s), s.results[0]) for s in evidence.study.settings if s.results]
    yield from expert_tables("Arm", counted)


def _arms_first(evidence: Evidence, measured: Measured) -> Measured:
    """Without variants, where there is more than variants."""
    arms = [(setting, value) for setting, value in measured if setting in evidence.arms_at(setting.concurrency)]
    return arms or measured


def _notes(evidence: Evidence, measured: Measured) -> Iterator[str]:
    """What is wrong, in words."""
    for setting, value in measured:
        fast = [f"{words(one.stage)} ({_distance(one.distance)})" for one in value.stages if one.is_too_fast]
        fast += [f"the whole round ({_distance(value.whole.distance)})"] * value.whole.is_too_fast
        if fast:
            yield (
                f"{evidence.name(setting)} at concurrency {setting.concurrency}, faster than its floor: "
                f"{', '.join(fast)}. The cost model or the ceiling is wrong there."
            )
    yield from ceiling_notes(evidence)


# ----------------------------------------------------------------------------------------------------- distances


def _distance_tables(evidence: Evidence, concurrency: int, found: Found) -> Iterator[Table]:
    """The arms, and folded the variants of one of them."""
    arms = evidence.arms_at(concurrency)
    own = [(setting, value) for setting, value in found if setting.concurrency == concurrency]
    yield _distance_table(evidence, f"Concurrency {concurrency}", [one for one in own if one[0] in arms])
    variants = [one for one in own if one[0] not in arms]
    if variants:
        yield replace(_distance_table(evidence, f"Variants at concurrency {concurrency}", variants), is_folded=True)


def _distance_table(evidence: Evidence, title: str, found: Found) -> Table:
    columns = (
        *cells.text_columns("Arm", "Stage"),
        Column("Distance", "time / floor"),
        Column("Time", "us", "mean per round of the attributed pass"),
        Column("Floor", "us", "the longest of the three times"),
        Column("Bound by", is_number=False, tip="what the floor consists of"),
        Column("Intensity", "flop/byte", "flops / fewest bytes"),
        Column("Read", "% of ceiling", "time of the bytes at the read ceiling / time"),
        Column("Matmul", "% of ceiling", "time of the flops at the matmul ceiling / time"),
        Column("Cache", is_number=False, tip="hot: the fewest bytes fit the last-level cache; cold: they do not"),
    )
    rows: list[tuple[Cell, ...]] = []
    for setting, value in found:
        label = label_cell(evidence, setting)
        if isinstance(value, NotMeasured):
            rows.append((label, *(cells.missing_cell(value.not_measured),) * (len(columns) - 1)))
        else:
            rows.append((label, *_round_cells(value.whole)))
            rows += [(label, *_stage_cells(floor)) for floor in value.stages]
    return cells.with_notes(Table(title, columns, tuple(rows), is_folded=len(rows) > MAX_ROWS_OPEN))


def _round_cells(whole: RoundFloor) -> tuple[Cell, ...]:
    without = f"; without a floor: {', '.join(map(words, whole.without))}" if whole.without else ""
    does_not_apply = Cell("", tip="")
    return (
        cells.text_cell("whole round", "host gaps between stages included"),
        _distance_cell(whole),
        Cell(_us(whole.milliseconds), sort=whole.milliseconds),
        _floor_cell(whole.floor_ms, whole.cold_floor_ms, "sum of the stages' floors" + without),
        *(does_not_apply,) * 5,
    )


def _stage_cells(floor: StageFloor) -> tuple[Cell, ...]:
    work = f"{units.byte_count(floor.num_bytes)}, {units.rate(floor.num_flops, 'flop')} ({floor.basis})"
    return (
        cells.text_cell(words(floor.stage), work),
        _distance_cell(floor),
        Cell(_us(floor.milliseconds), sort=floor.milliseconds),
        _floor_cell(floor.floor_ms, floor.cold_floor_ms, work),
        cells.text_cell(BOUND_WORDS[floor.bound]),
        number_cell(floor.intensity),
        _share_cell(floor.share_of_read, units.rate(floor.bytes_per_s, "B/s")),
        _share_cell(floor.share_of_matmul, units.rate(floor.flops_per_s, "flop/s")),
        cells.text_cell(floor.cache),
    )


def _floor_cell(floor_ms: float, cold_floor_ms: float, tip: str) -> Cell:
    is_other = cold_floor_ms > 1.005 * floor_ms
    return Cell(_us(floor_ms), f"cold {_us(cold_floor_ms)}" if is_other else "", tip, floor_ms)


def _distance_cell(one: Floor) -> Cell:
    tip = "faster than its floor: the cost model or the ceiling is wrong" if one.is_too_fast else ""
    detail = f"{_distance(one.low)} to {_distance(one.high)}"
    return Cell(_distance(one.distance), detail, tip, one.distance, "bad" if one.is_too_fast else "plain")


def _share_cell(share: float, rate: str) -> Cell:
    return Cell(units.significant(100 * share, 2), tip=rate, sort=share)


def _distance(value: float) -> str:
    return f"{units.grouped(round(value))}x" if value >= 100 else f"{units.significant(value)}x"


def _us(milliseconds: float) -> str:
    return units.microseconds(1e3 * milliseconds)


# ------------------------------------------------------------------------------------------------------- drawing


def _figures(evidence: Evidence, measured: Measured) -> Iterator[Figure]:
    """A panel for everything that has the same roofs; stages that compute nothing have no place in it."""
    groups: dict[tuple[str, int, str, int], list[tuple[Setting, Roofline]]] = {}
    for setting, value in measured:
        engine = setting.engine
        threads = engine.num_threads or evidence.bases[setting.run].default_threads
        if setting in evidence.arms_at(setting.concurrency):
            key = (setting.run, setting.concurrency, engine.dtype, threads)
            groups.setdefault(key, []).append((setting, value))
    has_kinds = len({key[2:] for key in groups}) > 1
    panels = [panel for key, own in groups.items() for panel in _panel(evidence, key, own, has_kinds)]
    if not panels:
        return
    drawn = {floor.stage for _, value in measured for floor in value.stages if floor.num_flops and floor.num_bytes}
    legend = [LegendEntry(words(s.value), plots.STAGE_COLORS[s.value]) for s in ROUND_STAGES if s.value in drawn]
    caption = (
        "Achieved flop/s over flop per byte: colour tells the stage, shape the arm. What lies between a mark and the "
        "line above it is wasted; left of the bend bytes are the limit, right of it flops. Stages without arithmetic "
        f"are in the tables only, and so are settings beyond the first {MAX_ARMS_DRAWN}."
    )
    yield Figure("Stages below the ceilings", caption, tuple(panels), tuple(legend))


def _panel(evidence: Evidence, key: tuple[str, int, str, int], own: Measured, has_kinds: bool) -> Iterator[Panel]:
    run, concurrency, dtype, threads = key
    machine = machine_of(evidence.frames.ceilings[run], dtype, threads)
    marks = [
        plots.Mark(evidence.name(setting), plots.STAGE_COLORS[floor.stage], floor.intensity, floor.flops_per_s)
        for setting, value in own[:MAX_ARMS_DRAWN]
        for floor in value.stages
        if not isinstance(floor.intensity, NotMeasured) and floor.num_flops
    ]
    if isinstance(machine, NotMeasured) or not marks:
        return
    rates = machine.typical
    roofs = [plots.Roof(f"matmul {units.rate(rates.matmul, 'flop/s')}", rates.matmul, is_flat=True)]
    roofs.append(plots.Roof(f"read, cold {units.rate(rates.cold, 'B/s')}", rates.cold, is_flat=False))
    if rates.hot > rates.cold:
        roofs.append(plots.Roof(f"read, hot {units.rate(rates.hot, 'B/s')}", rates.hot, is_flat=False))
    place = f", {dtype}, {threads} threads" if has_kinds else ""
    name = f"roofline-c{concurrency}" + (f"-{dtype}-{threads}" if place else "")
    name += f"-{evidence.run_names[run]}" if evidence.frames.is_merged else ""
    title = f"{evidence.of_run(run)}concurrency {concurrency}{place}"
    yield Panel(name, title[:1].upper() + title[1:], plots.roofline(marks, roofs))
