"""`Summary` -> tables: stages, idle time, latencies, copies and syncs, kernels, rounds; and how their cells read."""

from __future__ import annotations

import re

import numpy as np

from ddbench import units
from ddbench.analysis.profile.copies import plain_name
from ddbench.analysis.profile.idle import Cause
from ddbench.report.document import Cell, Column, Table
from ddbench.report.profiled import us_cell, words
from ddbench.timeline.summary import LATENCY_QUANTILES, IdleLine, Summary

_MOST_IDLE_LINES = 10
_MOST_ROUNDS = 40
_LONGEST_NAME = 40  # characters
_HINT = re.compile(r"\w*Functor\w*|\w+_kernel_cuda|\w+_kernel_impl|launch_\w+")
_UNNAMED = re.compile(r"(<unnamed>|\(anonymous namespace\))::")
_PER_ROUND = "Medians over the rounds of the window; they need not add up exactly."


def tables_of(summary: Summary) -> tuple[Table, ...]:
    """Those that have rows."""
    tables = (_stage_table(summary), _idle_table(summary), _latency_table(summary), _traffic_table(summary))
    return tuple(table for table in (*tables, _kernel_table(summary), _round_table(summary)) if table.rows)


def kernel_name(name: str) -> str:
    """A demangled name without namespaces, parameters and all but the telling template argument."""
    plain = _UNNAMED.sub("", name.removeprefix("void ").strip())
    head = re.split(r"[<(]", plain, maxsplit=1)[0]
    hint = _HINT.search(plain, len(head))
    short = head.rpartition("::")[2] or head or plain
    return units.shortened(f"{short}<{hint[0]}>" if hint else short, _LONGEST_NAME)


def _stage_table(summary: Summary) -> Table:
    columns = (
        Column("Stage", is_number=False),
        Column("Busy", "us/round", tip="union over streams"),
        Column("Share", "%", tip="of the median round"),
        Column("Idle before", "us/round", tip="the device idle right before ops of the stage"),
        Column("Ops", "a round"),
        Column("All ops", "in window", is_minor=True),
        Column("Total", "us in window", tip="sum of durations, as in the ledger", is_minor=True),
    )
    rows = [
        (
            Cell(words(line.stage)),
            us_cell(line.busy_ns),
            _share(line.busy_ns, summary.period_ns),
            us_cell(line.wait_ns),
            count_cell(line.num_ops),
            count_cell(line.count),
            us_cell(line.total_ns),
        )
        for line in summary.stages
    ]
    for what, is_between in (("idle inside rounds", False), ("idle before rounds", True)):
        own, time = summary.idle_per_round(is_between), summary.idle_ns(is_between)
        empty = Cell("")
        rows.append(
            (Cell(what), us_cell(time), _share(time, summary.period_ns), empty, empty, empty, us_cell(own.sum()))
        )
    title = "Stages on the device" if summary.window.has_device else "Operators of every stage"
    return Table(title, columns, tuple(rows), notes=(_PER_ROUND,))


def _idle_table(summary: Summary) -> Table:
    has_device = summary.window.has_device
    columns = (
        Column("Device idle because" if has_device else "No operator because", is_number=False),
        Column("Host in", is_number=False),
        Column("Inside", "us/round"),
        Column("Before", "us/round", tip="between two rounds"),
        Column("Of idle", "%"),
        Column("Longest", "us", is_minor=True),
        Column("Total", "us in window", is_minor=True),
    )
    whole = sum(line.total_ns for line in summary.idle_lines)
    shown, rest = summary.idle_lines[:_MOST_IDLE_LINES], summary.idle_lines[_MOST_IDLE_LINES:]
    rows = [
        (
            Cell(line.cause.value),
            Cell(_host_stage(line)),
            us_cell(line.within_ns),
            us_cell(line.between_ns),
            _share(line.total_ns, whole),
            us_cell(line.longest_ns),
            us_cell(line.total_ns),
        )
        for line in shown
    ]
    if rest:
        total, longest = sum(line.total_ns for line in rest), max(line.longest_ns for line in rest)
        rows.append(
            (
                Cell(f"{len(rest)} more"),
                Cell(""),
                Cell(""),
                Cell(""),
                _share(total, whole),
                us_cell(longest),
                us_cell(total),
            )
        )
    return Table("Why the device was idle" if has_device else "When no operator ran", columns, tuple(rows))


def _host_stage(line: IdleLine) -> str:
    is_host = line.cause in (Cause.SYNC, Cause.MEMORY, Cause.STAGE)
    return words(line.stage) if is_host else ""


def _latency_table(summary: Summary) -> Table:
    titles = [f"p{100 * quantile:.0f}" if quantile < 1 else "max" for quantile in LATENCY_QUANTILES]
    columns = (
        Column("From launch to start", is_number=False),
        Column("Launches"),
        *(Column(title, "us") for title in titles),
    )
    rows = tuple(
        (Cell(line.what), count_cell(line.count), *(us_cell(value) for value in line.quantiles_ns))
        for line in summary.latencies
    )
    note = "From the start of the host's call, itself included; onto a busy device also the wait behind other ops."
    return Table("Launch to start", columns, rows, notes=(note,) if rows else ())


def _traffic_table(summary: Summary) -> Table:
    columns = (
        Column("Copies, and calls that wait", is_number=False),
        Column("Stage", is_number=False),
        Column("Number", "a round"),
        Column("Bytes", "a round"),
        Column("Each", "us", tip="median"),
        Column("Total", "us in window", is_minor=True),
    )
    rows = tuple(
        (
            Cell(plain_name(line.what)),
            Cell(words(line.stage)),
            count_cell(line.num_per_round),
            Cell("" if line.bytes_per_round is None else units.byte_count(line.bytes_per_round)),
            us_cell(line.time_ns),
            us_cell(line.total_ns),
        )
        for line in summary.traffic
    )
    return Table("Copies and syncs", columns, rows)


def _kernel_table(summary: Summary) -> Table:
    what = "Kernel" if summary.window.has_device else "Operator"
    columns = (
        Column("Stage", is_number=False),
        Column(what, is_number=False),
        Column("Number", "a round"),
        Column("Each", "us", tip="median", is_minor=True),
        Column("Sum", "us/round"),
        Column("Of stage", "%", is_minor=True),
    )
    rows = tuple(
        (
            Cell(words(line.stage)),
            Cell(kernel_name(line.name), tip=line.name),
            count_cell(line.num_per_round),
            us_cell(line.median_ns),
            us_cell(line.per_round_ns),
            _share(line.share, 1.0),
        )
        for line in summary.kernels
    )
    return Table(f"Longest {what.lower()}s of every stage", columns, rows)


def _round_table(summary: Summary) -> Table:
    rounds = summary.rounds
    columns = (
        Column("Round"),
        Column("Emitted", "tokens"),
        Column("Accepted", "tokens"),
        Column("Period", "us"),
        Column("Busy", "us"),
        Column("Busy", "%"),
        Column("Idle inside", "us"),
        Column("Idle before", "us"),
        Column("Most idle because", is_number=False, is_minor=True),
    )
    if not rounds.is_split:
        return Table("Rounds", columns, ())
    inside, before = (summary.idle_per_round(is_between) for is_between in (False, True))
    rows = []
    for place, step in enumerate(rounds.steps.tolist()[:_MOST_ROUNDS]):
        tokens = rounds.tokens[place]
        busy, period = float(summary.busy_per_round[place]), float(rounds.period_ns[place])
        rows.append(
            (
                Cell(str(step)),
                Cell("–" if tokens is None else str(tokens.num_emitted)),
                Cell("–" if tokens is None else str(tokens.num_accepted)),
                us_cell(period),
                us_cell(busy),
                _share(busy, period),
                us_cell(inside[place]),
                us_cell(before[place]),
                Cell(_main_cause(summary, place)),
            )
        )
    left_out = len(rounds.steps) - len(rows)
    return Table("Rounds", columns, tuple(rows), notes=(f"{left_out} more rounds are not shown.",) * bool(left_out))


def _main_cause(summary: Summary, place: int) -> str:
    own = summary.idle[(summary.idle["place"] == place).to_numpy()]
    if not len(own):
        return ""
    times = (own["end_ns"] - own["start_ns"]).groupby([own["cause"], own["stage"]]).sum()
    cause, stage = times.index[int(np.argmax(times))]
    return str(cause) + (f" ({words(stage)})" if stage else "")


# --- numbers ---


def count_cell(number: float) -> Cell:
    return Cell(units.grouped(int(number)) if float(number).is_integer() else units.significant(number), sort=number)


def _share(part: float, whole: float) -> Cell:
    share = part / whole if whole else 0.0
    return Cell(percent(share).removesuffix(" %"), sort=share)


def percent(share: float) -> str:
    """Never 100 for what is not all of it."""
    if share == 0 or 0.0995 <= share < 0.995 or share >= 1:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.1f} %" if share >= 0.995 else f"{units.significant(100 * share, 2)} %"
