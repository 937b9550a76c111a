"""The rows behind the report as CSV files: exact values with their interval, n and reason, for other tools to read.

They lie beside the report, in `DATA`, whatever its format. Times of single rounds stay in the run folder's parquet
tables, which the raw-data section names. A report on one run does not name it in every row. Text that a spreadsheet
would take for a formula is marked with a leading apostrophe; apart from that every name is exact.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ddbench import units
from ddbench.analysis import acceptance
from ddbench.analysis.breakdown import Breakdown
from ddbench.analysis.counters import counter, counters_of
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate, Value
from ddbench.records import CaseResult, FailedResult, Manifest, NotMeasured, OkResult
from ddbench.report import captured_rows
from ddbench.report.document import Download
from ddbench.report.evidence import Evidence
from ddbench.spec import PART_FIELDS, Case

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_SETTING = ("run", "arm", "label", "concurrency", "node_budget")
_ASKED = ("target", "dtype", "device", *PART_FIELDS)
_FATE = ("status", "reason", "started_at", "seconds", "parity", "output_digest", "peak_memory_bytes", "warnings")

Row = tuple[Any, ...]
Rows = Callable[[Evidence], Iterable[Row]]


def csv_text(columns: Iterable[str], rows: Iterable[Row]) -> str:
    """RFC 4180. Floats in 12 digits, missing values empty."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(columns)
    writer.writerows([_safe(value) for value in row] for row in rows)
    return buffer.getvalue()


def _safe(value: Any) -> Any:
    """What no spreadsheet evaluates, and no other machine computes otherwise."""
    if isinstance(value, float):
        return units.repeatable(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def downloads(evidence: Evidence) -> tuple[Download, ...]:
    """Every file that has a row."""
    first = 1 if len(evidence.frames.manifests) == 1 else 0  # column; the run is only told where there are several
    found = []
    for name, (about, columns, rows) in FILES.items():
        own = [row[first:] for row in rows(evidence)]
        if own:
            found.append(Download(f"{name}.csv", about, len(own), csv_text(columns[first:], own)))
    return tuple(found)


def _setting_columns(setting: Setting) -> Row:
    return (setting.run, setting.arm, setting.label, setting.concurrency, setting.engine.node_budget)


def _metrics(evidence: Evidence) -> Iterator[Row]:
    for setting in evidence.study.settings:
        own = _setting_columns(setting)
        for name, value in evidence.values[setting.key].items():
            yield (*own, name, METRICS[name].unit, METRICS[name].direction, *_numbers(value))


def _numbers(value: Value) -> Row:
    if isinstance(value, Estimate):
        return (value.value, value.low, value.high, value.n, value.counted, value.pass_name, value.note)
    return (*(None,) * 6, f"not measured: {value.not_measured}")


def _blocks(evidence: Evidence) -> Iterator[Row]:
    """Only where cases ran more than once: one repeat's value is the metric itself."""
    for setting in evidence.study.settings:
        if setting.is_ok and len(setting.blocks) > 1:
            own = _setting_columns(setting)
            for name, metric in METRICS.items():
                if metric.per_block is not None:
                    for block, value in metric.per_block(setting).items():
                        yield (*own, name, metric.unit, block, value)


def _stages(evidence: Evidence) -> Iterator[Row]:
    for setting in evidence.study.settings:
        found = evidence.breakdowns[setting.key]
        if isinstance(found, Breakdown):
            own, rest = _setting_columns(setting), (found.round_ms, found.num_rounds, found.clock)
            for stage, milliseconds in found.stage_ms.items():
                yield (*own, stage, milliseconds, found.share(stage), *rest)
            yield (*own, "host gap", found.gap_ms, found.gap_ms / found.round_ms, *rest)


def _accepted(evidence: Evidence) -> Iterator[Row]:
    for setting in evidence.study.settings:
        if setting.is_ok and setting.has_draft and len(setting.rounds):
            own = _setting_columns(setting)
            for accepted, count in enumerate(acceptance.histogram(setting).tolist()):
                yield (*own, accepted, count)


def _counters(evidence: Evidence) -> Iterator[Row]:
    for (run, case_id), result in evidence.frames.results.items():
        if isinstance(result, OkResult):
            for name, count in counters_of(result).items():
                yield (run, case_id, name, count, counter(name).direction)


def _cases(evidence: Evidence) -> Iterator[Row]:
    """Every planned case, in execution order, whatever became of it."""
    for manifest in evidence.frames.manifests:
        for case_id, case in _planned(manifest, evidence):
            result = evidence.frames.results.get((manifest.run_id, case_id))
            label = evidence.case_labels.get((manifest.run_id, case_id), case.label)
            asked = (getattr(case.engine, name) for name in _ASKED)
            place = (manifest.run_id, case_id, f"cases/{case_id}", case.arm, label, case.block)
            yield (*place, case.workload.concurrency, case.engine.node_budget, *asked, *_fate(result))


def _planned(manifest: Manifest, evidence: Evidence) -> Iterator[tuple[str, Case]]:
    for place, case_id in enumerate(manifest.case_ids):
        result = evidence.frames.results.get((manifest.run_id, case_id))
        if result is not None:
            yield case_id, result.case
        elif manifest.cases:
            yield case_id, manifest.cases[place]


def _fate(result: CaseResult | None) -> Row:
    if result is None:
        return ("not_run", "there is no result: interrupted, or still going", *(None,) * 6)
    warnings = "; ".join(result.warnings)
    if isinstance(result, FailedResult):
        return (result.outcome, result.reason, result.started_at, result.seconds, None, None, None, warnings)
    parity = result.parity.status
    if not isinstance(result, OkResult):
        return (result.status, result.parity.detail, result.started_at, result.seconds, parity, None, None, warnings)
    known = (_or_none(result.output_digest), _or_none(result.peak_memory_bytes))
    return (result.status, "", result.started_at, result.seconds, parity, *known, warnings)


def _or_none(value: str | int | NotMeasured) -> str | int | None:
    return None if isinstance(value, NotMeasured) else value


def _failures(evidence: Evidence) -> Iterator[Row]:
    for row in evidence.frames.failures.itertuples():
        yield (row.run, row.case_id, row.arm, row.label, row.outcome, row.reason, row.log_tail)


def _skipped(evidence: Evidence) -> Iterator[Row]:
    for row in evidence.frames.skipped.itertuples():
        yield (row.run, row.arm, row.label, row.reason)


# file -> (what one row is, columns from the run on, rows)
FILES: dict[str, tuple[str, tuple[str, ...], Rows]] = {
    "metrics": (
        "one metric of one setting: value, interval, n, or why it was not measured",
        (*_SETTING, "metric", "unit", "better", "value", "low", "high", "n", "counted", "pass", "note"),
        _metrics,
    ),
    "blocks": (
        "one metric of one setting in one interleaved repeat",
        (*_SETTING, "metric", "unit", "block", "value"),
        _blocks,
    ),
    "stages": (
        "one stage of one setting, mean over the rounds of the attributed pass",
        (*_SETTING, "stage", "stage_ms", "share", "round_ms", "rounds", "clock"),
        _stages,
    ),
    "accepted": (
        "how many rounds of one setting accepted so many drafted tokens",
        (*_SETTING, "accepted", "rounds"),
        _accepted,
    ),
    "counters": (
        "one counter of one case, which cases.csv tells of: exact, free of noise",
        ("run", "case_id", "counter", "count", "better"),
        _counters,
    ),
    "captured-passes": (
        "one profiler's pass over one case: what it recorded and what it cost",
        (*captured_rows.CASE, *captured_rows.PASS),
        captured_rows.captured_passes,
    ),
    "captured-stages": (
        "one stage of one captured case: bytes, times and launches per round",
        (*captured_rows.CASE, *captured_rows.STAGE),
        captured_rows.captured_stages,
    ),
    "captured-idle": (
        "one cause of idle time of the device in one captured case, or its busy time",
        (*captured_rows.CASE, *captured_rows.IDLE),
        captured_rows.captured_idle,
    ),
    "cases": (
        "one planned case: what was asked, where its folder lies, what became of it",
        ("run", "case_id", "folder", "arm", "label", "block", "concurrency", "node_budget", *_ASKED, *_FATE),
        _cases,
    ),
    "failures": (
        "one case without timings, with the end of its log",
        ("run", "case_id", "arm", "label", "outcome", "reason", "log_tail"),
        _failures,
    ),
    "skipped": (
        "one point of the plan that cannot run here",
        ("run", "arm", "label", "reason"),
        _skipped,
    ),
}
