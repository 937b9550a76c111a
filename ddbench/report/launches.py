"""Section: what a round launches, when the device has nothing to do, and what it waits for then."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddbench import units
from ddbench.analysis.findings.answers import reasons
from ddbench.analysis.profile.device_time import CAUSES, STAGE_CAUSES, DeviceTime
from ddbench.analysis.profile.idle import Cause
from ddbench.analysis.profile.latency import launch_latency
from ddbench.analysis.profile.launches import RoundLaunches, StageLaunches
from ddbench.analysis.profile.profile import Profile
from ddbench.records import NotMeasured
from ddbench.report import cells, plots
from ddbench.report.arms import MAX_ROWS_DRAWN
from ddbench.report.document import Cell, Column, Figure, LegendEntry, Panel, Section, Skipped, Table
from ddbench.report.evidence import Evidence
from ddbench.report.profiled import (
    CASE_STAGE,
    labelled,
    per_round_cell,
    share_cell,
    skipped,
    stage_cell,
    table,
    us_cell,
    words,
)

TITLE = "Launches and gaps"
LONG_GAP_NS = 5_000  # a gap from which on it is listed: launched back to back, kernels follow within 1 to 2 us
MAX_GAPS = 12  # kinds of gaps of a case
GROUPS: dict[str, tuple[str, ...]] = {
    Cause.REPLAY: (Cause.REPLAY,),
    Cause.QUEUE: (Cause.QUEUE,),
    Cause.LAUNCH: (Cause.LAUNCH,),
    Cause.SYNC: (Cause.SYNC,),
    Cause.STAGE: (Cause.MEMORY, *STAGE_CAUSES.values()),
    Cause.HOST: (Cause.HOST,),
    "other": (Cause.UNKNOWN, Cause.NOTHING),
}
SHORT: dict[str, str] = {
    Cause.REPLAY: "In replay",
    Cause.QUEUE: "In queue",
    Cause.LAUNCH: "Launching",
    Cause.SYNC: "Host sync",
    Cause.STAGE: "Host stage",
    Cause.HOST: "Host between",
    "other": "Other",
}
assert {cause for causes in GROUPS.values() for cause in causes} == set(CAUSES), "every cause in one group"
GROUP_COLORS = ("#56b4e9", "#b5a642", "#e69f00", "#d55e00", "#cc79a7", "#8c8c8c", "#5b6670")
COLORS: dict[str, str] = dict(zip(GROUPS, GROUP_COLORS, strict=True))
BUSY_COLOR = "#009e73"

Own = list[tuple[Cell, Profile, DeviceTime]]  # the cell that names the case, what its captures say


def launches(evidence: Evidence) -> Section | Skipped:
    """Counts, the window's time by cause, and the gaps worth naming."""
    found = [(label, profile, profile.device_time) for label, profile in labelled(evidence)]
    known = [(label, profile, time) for label, profile, time in found if isinstance(time, DeviceTime)]
    if not known:
        return skipped(evidence, "launches", TITLE, reasons(time for *_, time in found))
    intro = (
        "Idle time is what a faster kernel cannot win back. Where the host is late (in a sync, in a stage, between "
        "stages) fewer or graph-captured launches help; what is left between nodes of a replay is the graph's own. "
        "Busy time and causes add up to the rounds; times carry the capture's tax, shares less so. A gap belongs to "
        "the round of the op that ends it.",
    )
    tables = (*_time_table(known), *_launch_table(known), *_gap_table(known), *_latency_table(known))
    return Section("launches", TITLE, intro, tables=tables, figures=(_figure(known),))


# --- time -------------------------------------------------------------------------------------------------------------


def _time_table(own: Own) -> Iterator[Table]:
    columns = (
        Column("Case", is_number=False),
        Column("Round", "us", "on the device: busy or idle for the round; what belongs to no round is left out"),
        Column("Busy", "%", "at least one op runs"),
        Column("Idle", "%"),
        *(
            Column(SHORT[name], "%", f"idle, {name}: of the rounds' time", is_minor=name != Cause.STAGE)
            for name in GROUPS
        ),
        Column("Idle by round", "%", "median over the rounds, with the least and the most"),
    )
    rows = []
    for label, _, found in own:
        shares = [share_cell(sum(found.share(cause) for cause in causes)) for causes in GROUPS.values()]
        window = us_cell(found.rounds_ns / found.num_rounds / found.num_gpus, tip=_outside(found))
        busy = (share_cell(found.busy_ns / found.rounds_ns), share_cell(found.idle_share))
        rows.append((label, window, *busy, *shares, _by_round_cell(found)))
    yield from table("The device's time, by what it waits for", columns, rows)


def _outside(found: DeviceTime) -> str:
    """What the window holds beside rounds."""
    return f"{units.duration(found.outside_ns)} of {units.duration(found.window_ns)} in the window belong to no round"


def _by_round_cell(found: DeviceTime) -> Cell:
    low, middle, high = (float(value) for value in np.quantile(found.round_idle, (0.0, 0.5, 1.0)))
    detail = units.interval(100 * low, 100 * high)
    empty = f"{found.num_empty} rounds without any op" if found.num_empty else ""
    return Cell(units.significant(100 * middle), detail, empty, middle, "bad" if empty else "plain")


def _figure(own: Own) -> Figure:
    stacks = []
    for label, _, found in own[:MAX_ROWS_DRAWN]:
        whole = found.num_rounds * found.num_gpus * 1e6
        segments = [("busy", found.busy_ns / whole, BUSY_COLOR)]
        for group, causes in GROUPS.items():
            time = sum(found.causes.get(cause, 0) for cause in causes)
            if time:
                segments.append((group, time / whole, COLORS[group]))
        stacks.append(plots.Stack(label.text, tuple(segments)))
    drawn = {name for stack in stacks for name, _, _ in stack.segments}
    legend = [LegendEntry(name, color) for name, color in (("busy", BUSY_COLOR), *COLORS.items()) if name in drawn]
    most = max(sum(value for _, value, _ in stack.segments) for stack in stacks)
    svg = plots.stacked_bars(stacks, "ms per round", most)
    caption = "The mean round of each capture on the device: busy, or idle for one of these causes."
    if len(own) > MAX_ROWS_DRAWN:
        caption += f" The first {MAX_ROWS_DRAWN} of {len(own)} are drawn."
    return Figure("What the device waits for", caption, (Panel("device-time", "Per round", svg),), tuple(legend))


# --- counts -----------------------------------------------------------------------------------------------------------


def _launch_table(own: Own) -> Iterator[Table]:
    columns = (
        *CASE_STAGE,
        Column("Kernels", "per round"),
        Column("Copies", "per round"),
        Column("Memsets", "per round"),
        Column("Replayed", "%", "of these ops, nodes of graphs"),
        Column("Launch calls", "per round", "of the host, one op each"),
        Column("Graph launches", "per round"),
        Column("Syncs", "per round", "calls in which the host waits for the device"),
        Column("Busy", "us/round", "at least one of its ops runs"),
        Column("Op", "us", "mean time of one op"),
    )
    rows: list[tuple[Cell, ...]] = []
    for label, profile, _ in own:
        found = profile.launches
        assert isinstance(found, RoundLaunches)
        outside = f"{found.num_outside} more ops of the window belong to no round" if found.num_outside else ""
        rows.append((label, cells.text_cell("whole round", outside), *_launch_cells(found.whole)))
        rows += [(label, stage_cell(one.stage), *_launch_cells(one)) for one in found.stages]
    yield from table("Launches per round and stage", columns, rows)


def _launch_cells(one: StageLaunches) -> tuple[Cell, ...]:
    """An operator of a CPU and a replay recorded as a whole count as kernels, and say so."""
    others = {kind: one.ops[kind] for kind in ("operator", "graph") if one.ops[kind]}
    kernels = one.ops["kernel"] + sum(others.values())
    kernel_cell = per_round_cell(kernels)
    if others:
        kernel_cell = Cell(kernel_cell.text, " and ".join(f"{kind}s" for kind in others), sort=kernels)
    share = one.num_replayed / one.num_ops if one.num_ops else 0.0
    mean = us_cell(one.time_ns / one.num_ops) if one.num_ops else cells.missing_cell("the stage has no op of its own")
    return (
        kernel_cell,
        *(per_round_cell(one.ops[kind]) for kind in ("copy", "memset")),
        share_cell(share),
        *(per_round_cell(one.calls[kind]) for kind in ("launch", "graph_launch", "sync")),
        us_cell(one.busy_ns),
        mean,
    )


# --- gaps -------------------------------------------------------------------------------------------------------------


def _gap_table(own: Own) -> Iterator[Table]:
    columns = (
        *cells.text_columns("Case", "Between", "Mostly"),
        Column("Gaps", "per round"),
        Column("Time", "us/round"),
        Column("Share", "%", "of the rounds' time"),
        Column("Longest", "us"),
    )
    rows = [row for label, _, found in own for row in _gap_rows(label, found)]
    limit = units.duration(LONG_GAP_NS)
    yield from table(f"Gaps of {limit} and more (at most {MAX_GAPS} kinds of a case)", columns, rows)


def _gap_rows(label: Cell, found: DeviceTime) -> Iterator[tuple[Cell, ...]]:
    gaps = found.gaps.assign(took=found.gaps["end_ns"] - found.gaps["start_ns"])
    gaps = gaps[(gaps["took"] >= LONG_GAP_NS).to_numpy()]
    kinds = [(place, rows["took"].to_numpy()) for place, rows in gaps.groupby(["before", "after", "cause"], sort=True)]
    for (before, after, cause), took in sorted(kinds, key=lambda kind: -int(kind[1].sum()))[:MAX_GAPS]:
        total = int(took.sum())
        yield (
            label,
            cells.text_cell(f"{words(before)} → {words(after)}"),
            cells.text_cell(cause),
            per_round_cell(len(took) / found.num_rounds),
            us_cell(total / found.num_rounds),
            share_cell(total / found.rounds_ns),
            us_cell(int(took.max())),
        )


def _latency_table(own: Own) -> Iterator[Table]:
    columns = (
        Column("Case", is_number=False),
        Column("Op", "us", "median over ops launched one by one; behind other work it waits for that too"),
        Column("Ops"),
        Column("Replay", "us", "median over graph launches, to the first node"),
        Column("Replays"),
    )
    rows = []
    for label, profile, _ in own:
        one = profile.case.timeline
        assert not isinstance(one, NotMeasured)
        found = launch_latency(one.ops)
        ops, replays = cells.missing_cell("no op was launched by itself"), cells.missing_cell("no graph was replayed")
        if found.num_ops:
            ops = us_cell(found.median_op_ns)
        if found.num_replays:
            replays = us_cell(found.median_replay_ns)
        rows.append((label, ops, cells.count_cell(found.num_ops), replays, cells.count_cell(found.num_replays)))
    yield from table("From the host's launch call to the start on the device", columns, rows)
