"""Section: bytes that every stage moved, against the fewest that it needs and against what the memory can do."""

from __future__ import annotations

from collections.abc import Iterator

from ddbench import units
from ddbench.analysis.findings.traffic import contradiction, is_wasteful
from ddbench.analysis.profile.attention_reads import AttentionReads
from ddbench.analysis.profile.moved import KernelBytes, StageBytes, kernel_bytes
from ddbench.analysis.profile.profile import Profile
from ddbench.analysis.profile.sharing import Readings
from ddbench.records import NotMeasured
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Section, Skipped, Table
from ddbench.report.evidence import Evidence
from ddbench.report.expert_use import expert_tables
from ddbench.report.profiled import (
    CASE_STAGE,
    bytes_cell,
    labelled,
    number_cell,
    per_round_cell,
    rate_cell,
    ratio_cell,
    share_cell,
    skipped,
    stage_cell,
    table,
    us_cell,
)

TITLE = "Bandwidth"
MAX_KERNELS = 12  # of a case
APART = 1.5  # from this ratio on the two sources of bytes disagree
WHOLE = "whole round"


def bandwidth(evidence: Evidence) -> Section | Skipped:
    """Per stage, for the context alone, and for the kernels that move most."""
    own = [(label, profile) for label, profile in labelled(evidence) if profile.has_bytes]
    if not own:
        reasons = [
            one.moved.not_measured
            for _, profile in labelled(evidence)
            for one in profile.stage_bytes
            if isinstance(one.moved, NotMeasured)
        ]
        return skipped(evidence, "bandwidth", TITLE, reasons[:1])
    is_counted = any(one.expert_rounds for _, profile in own for one in profile.stage_bytes)
    fewer = "the rounds in which they were counted" if is_counted else "the uniform router that its fewest bytes expect"
    intro = (
        "Bytes through device memory per round, against the fewest that the shapes allow. Waste is moved over fewest: "
        "1 is perfect; below 1 a cache served the rest, or a target of routed experts touched fewer of them than "
        f"{fewer}. Counters see every kernel alone (copies are added from the "
        "timeline); samples see the memory while the case ran. Where the two disagree widely, believe neither before "
        "you know why.",
    )
    rows = [row for label, profile in own for row in _stage_rows(label, profile)]
    tables = (
        *table("Bytes moved per round and stage", _stage_columns(is_counted), rows),
        *expert_tables("Case", ((label, profile.case.result) for label, profile in own)),
        *_readings(own),
        *_kernels(own),
    )
    return Section("bandwidth", TITLE, intro, tables=tables)


def _stage_columns(is_counted: bool) -> tuple[Column, ...]:
    experts = "the fewest of routed experts are an expectation, which may be too high"
    if is_counted:
        experts = "of routed experts the fewest are as counted in other rounds of the case, where its cell says so"
    return (
        *CASE_STAGE,
        Column("Moved", tip="by counters and copies where there are any, else sampled"),
        Column("Fewest", tip="by the cost model of the case's typical round"),
        Column("Waste", tip=f"moved / fewest; {experts}"),
        Column("Kernels", tip="DRAM bytes read and written, by hardware counters", is_minor=True),
        Column("Copies", tip="copies and memsets, which counters do not see; read and written", is_minor=True),
        Column("Sampled", tip="sampled share of the DRAM's peak x peak x time of the stage", is_minor=True),
        Column("Agreement", tip="sampled / counted"),
        Column("Rate", tip="moved / time in which its ops run"),
        Column("Read", "% of ceiling", "rate / the run's own cold read ceiling"),
        Column("Cache", is_number=False, tip="state of the caches when the bytes were counted"),
    )


def _stage_rows(label: Cell, profile: Profile) -> Iterator[tuple[Cell, ...]]:
    stages = profile.stage_bytes
    yield (label, cells.text_cell(WHOLE), *_byte_cells(whole_round(stages), profile))
    for one in stages:
        yield (label, stage_cell(one.stage), *_byte_cells(one, profile))


def whole_round(stages: tuple[StageBytes, ...]) -> StageBytes:
    """Sums over the stages; a stage without a cost counts with 0 fewest bytes, one without a measurement with none."""

    def total(name: str) -> float | NotMeasured:
        values = [getattr(one, name) for one in stages]
        known = [value for value in values if not isinstance(value, NotMeasured)]
        if known:
            return float(sum(known))
        return next(value for value in values if isinstance(value, NotMeasured))

    names = ("fewest", "context", "expected", "counted", "copied", "sampled", "busy_ns")
    rest = {
        "num_samples": min(one.num_samples for one in stages),
        "sampled_error": sum(o.sampled_error for o in stages),
        "expert_rounds": max(one.expert_rounds for one in stages),
        "expert_error": sum(one.expert_error for one in stages),
    }
    return StageBytes(stage=WHOLE, **rest, **{name: total(name) for name in names})  # type: ignore[arg-type]


def _byte_cells(one: StageBytes, profile: Profile) -> tuple[Cell, ...]:
    rate = one.bytes_per_s
    return (
        bytes_cell(one.moved, "" if one.is_counted else "sampled"),
        bytes_cell(one.fewest, tip=_of_experts(one)),
        ratio_cell(one.waste, is_bad=is_wasteful(one)),
        bytes_cell(one.counted),
        bytes_cell(one.copied),
        bytes_cell(one.sampled, tip=_sample_tip(one)),
        ratio_cell(one.agreement, is_bad=isinstance(one.agreement, float) and not 1 / APART < one.agreement < APART),
        rate_cell(rate),
        share_cell(_of_ceiling(rate, profile)),
        _cache_cell(one, profile),
    )


def _sample_tip(one: StageBytes) -> str:
    if isinstance(one.sampled, NotMeasured):
        return ""
    error = f"; whole percents put it off by up to {units.byte_count(one.sampled_error)}"
    if one.num_samples:
        return f"{one.num_samples} samples lie wholly within the stage{error}"
    return f"shorter than the sampling interval: blurred by what ran beside it{error}"


def _of_ceiling(rate: float | NotMeasured, profile: Profile) -> float | NotMeasured:
    if isinstance(rate, NotMeasured):
        return rate
    if isinstance(profile.machine, NotMeasured):
        return profile.machine
    return rate / profile.machine.typical.cold


def _of_experts(one: StageBytes | Readings) -> str:
    """What the fewest bytes rest on: a count, or how much of them is none that is sure."""
    if isinstance(one.expected, NotMeasured) or not one.expected:
        return f"routed experts as counted in {one.expert_rounds} rounds" if one.expert_rounds else ""
    return f"{units.byte_count(one.expected)} of them by an expectation of how many routed experts are touched"


def _cache_cell(one: StageBytes, profile: Profile) -> Cell:
    """Samples are of the run itself; counters say whether they flushed."""
    counted = profile.case.counted
    if one.is_counted and not isinstance(counted, NotMeasured):
        return cells.text_cell(counted.capture.cache, "of the counters; samples are always as it ran")
    return cells.text_cell("as it ran")


# --- the context ------------------------------------------------------------------------------------------------------


def _readings(own: list[tuple[Cell, Profile]]) -> Iterator[Table]:
    """By the kernels of attention, then by all that verify moved: the first is the direct answer."""
    columns = (
        *cells.text_columns("Case", "By"),
        Column("Moved", tip="by attention kernels: read from device memory; by all of verify: read and written"),
        Column("Fewest", tip="attention: context and queries; all of verify: weights, one context, results"),
        Column("Context", tip="one reading of it; by attention kernels: in the rounds that were counted"),
        Column("Cached", tip="at most so much was in the last-level cache already", is_minor=True),
        Column("Width", tip="verified tokens per request, each of which could have read it"),
        Column(
            "Readings at most",
            tip="from device memory, if all that was moved beyond the rest had been context; what the L2 serves "
            "again within a kernel is not in it",
        ),
        Column("Verdict", is_number=False),
    )
    rows = []
    for label, profile in own:
        direct, room = profile.attention_reads, profile.readings
        for name, found in (("attention kernels", direct), ("all of verify", room)):
            about = (label, cells.text_cell(name))
            if isinstance(found, NotMeasured):
                rows.append((*about, *(cells.missing_cell(found.not_measured),) * (len(columns) - 2)))
            elif isinstance(found, AttentionReads):
                rows.append((*about, *_kernel_readings(found)))
            else:
                rows.append((*about, *_room_readings(found)))
    yield from table("How often verify can have read the context from memory", columns, rows)


def _kernel_readings(found: AttentionReads) -> tuple[Cell, ...]:
    cached = bytes_cell(0.0) if found.is_flushed else cells.missing_cell("caches were not flushed before a kernel")
    return (
        bytes_cell(found.read, "hardware counters"),
        bytes_cell(found.context + found.queries, tip="" if found.queries else "the queries are not known"),
        bytes_cell(found.context),
        cached,
        number_cell(found.width),
        Cell(units.significant(found.times), "" if found.is_telling else "no bound", sort=found.times),
        _kernel_verdict(found),
    )


def _kernel_verdict(found: AttentionReads) -> Cell:
    if not found.is_flushed:
        tip = "caches were kept: what they served is not in it, so that it bounds nothing"
        return cells.text_cell("not excluded", tip, "warn")
    if found.is_contradicted:
        tip = "less than one reading cannot be where caches were flushed"
        return cells.text_cell("cannot tell", tip, "warn")
    return _shared_cell(found)


def _room_readings(found: Readings) -> tuple[Cell, ...]:
    return (
        bytes_cell(found.moved, found.source),
        bytes_cell(found.fewest, tip=_of_experts(found)),
        bytes_cell(found.context),
        bytes_cell(found.cached),
        number_cell(found.width),
        cells.missing_cell(contradiction(found)) if found.is_contradicted else number_cell(found.most),
        _room_verdict(found),
    )


def _room_verdict(found: Readings) -> Cell:
    if found.is_contradicted:
        return cells.text_cell("cannot tell", contradiction(found), "warn")
    if not found.is_visible:
        return cells.text_cell("too small to tell", "a reading per token would not show in the sum", "quiet")
    return _shared_cell(found)


def _shared_cell(found: AttentionReads | Readings) -> Cell:
    if found.is_once:
        return cells.text_cell("read once", tone="good")
    if found.is_shared:
        return cells.text_cell("shared, perhaps not by all", tone="warn")
    return cells.text_cell("not excluded", "room enough for a reading per token", "warn")


# --- kernels ----------------------------------------------------------------------------------------------------------


def _kernels(own: list[tuple[Cell, Profile]]) -> Iterator[Table]:
    rows = []
    for label, profile in own:
        found = kernel_bytes(profile.case)
        if not isinstance(found, NotMeasured):
            rows += [_kernel_row(label, profile, one) for one in found[:MAX_KERNELS]]
    columns = (
        *cells.text_columns("Case", "Stage", "Kernel"),
        Column("Launches", "per round"),
        Column("Moved", tip="DRAM bytes per round"),
        Column("Read", is_minor=True),
        Column("Written", is_minor=True),
        Column("Alone", "us", "its time under the counters, alone on the device, per round"),
        Column("Rate", tip="moved / that time"),
        Column("Read", "% of ceiling", "rate / the run's own cold read ceiling"),
    )
    yield from table(f"Kernels that move most (at most {MAX_KERNELS} of a case)", columns, rows)


def _kernel_row(label: Cell, profile: Profile, one: KernelBytes) -> tuple[Cell, ...]:
    rate = one.bytes_per_s
    return (
        label,
        stage_cell(one.stage),
        cells.text_cell(units.shortened(one.name, 60), tip=one.name),
        per_round_cell(one.num_launches),
        bytes_cell(one.moved),
        bytes_cell(one.read),
        bytes_cell(one.written),
        us_cell(one.time_ns),
        rate_cell(rate),
        share_cell(_of_ceiling(rate, profile)),
    )
