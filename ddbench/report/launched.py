"""Table: which kernels ran on the GPU, where an op has one for every GPU in Triton and one for Hopper in Gluon.

Of records that say it; older ones, and those of a CPU, add nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddbench import units
from ddbench.records import OkResult
from ddbench.report import cells
from ddbench.report.document import Cell, Table
from ddbench.report.evidence import Evidence

MAX_NAMED = 4  # cases that a row names
LANGUAGES = ("gluon", "triton")  # how the files of an op's kernels end

Key = tuple[str, str]


def kernel_tables(evidence: Evidence) -> list[Table]:
    """One row per op and choice of its kernels, with the cases in which it was that one."""
    found: dict[tuple[str, tuple[str, ...]], list[Key]] = {}
    observed: list[Key] = []
    for key, result in evidence.frames.results.items():
        if isinstance(result, OkResult) and result.kernels_launched:
            observed.append(key)
            for op, texts in _ops(result).items():
                found.setdefault((op, texts), []).append(key)
    rows = tuple(
        (cells.text_cell(op.replace("_", " ")), *map(_names_cell, texts), _cases_cell(evidence, keys, len(observed)))
        for (op, texts), keys in sorted(found.items())
    )
    columns = cells.text_columns("Op", "Gluon, for Hopper", "Triton", "Cases")
    return [Table("Kernels that ran", columns, rows, is_folded=True)] if rows else []


def _ops(result: OkResult) -> dict[str, tuple[str, ...]]:
    """Op -> the names of its kernels in each of the languages."""
    launched = result.kernels_launched
    ops = sorted({file.rpartition("_")[0] for file in launched})
    return {op: tuple(", ".join(launched.get(f"{op}_{language}", ())) for language in LANGUAGES) for op in ops}


def _names_cell(text: str) -> Cell:
    return cells.text_cell(text) if text else cells.missing_cell("none was launched")


def _cases_cell(evidence: Evidence, keys: Sequence[Key], total: int) -> Cell:
    if len(keys) == total > 1:
        return cells.text_cell(f"all {total}")
    names = [evidence.case_labels[key] for key in keys[:MAX_NAMED]]
    more = [f"{len(keys) - MAX_NAMED} more"] if len(keys) > MAX_NAMED else []
    return cells.text_cell(units.listed([*names, *more]))
