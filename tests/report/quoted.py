"""What README.md and reports/README.md quote: their text, the rows of the committed runs, and how numbers are put.

Loaded by path (`runpy`), since test folders are no packages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (REPORTS / "README.md").read_text(encoding="utf-8")


def assert_reads(text: str, *lines: str) -> None:
    """Every line stands in the text, wherever it wraps; what does not is printed as it should be."""
    flat = " ".join(text.split())
    absent = [line for line in lines if " ".join(line.split()) not in flat]
    assert not absent, "the rows say:\n" + "\n".join(absent)


def index_row(folder: str) -> str:
    """The row of the index that tells of one folder."""
    (row,) = (line for line in INDEX.splitlines() if line.startswith(f"| [{folder_of(folder).name}]"))
    return row


def name_of(folder: Path) -> str:
    """`k26-rank` of `2026-11-k26-rank-h200`: what was measured, without when and where."""
    found = re.fullmatch(r"\d{4}-\d{2}-(.+)-h200", folder.name)
    assert found is not None, f"{folder.name}: not of an H200, or not dated"
    return found[1]


def folder_of(run: str) -> Path:
    (folder,) = REPORTS.glob(f"????-??-{run}-h200")
    return folder


def began(run: str) -> str:
    """When, `2026-11-30T16:23:43+00:00`."""
    return str(json.loads((folder_of(run) / "manifest.json").read_text(encoding="utf-8"))["created_at"])


@cache
def rows(run: str, table: str) -> pd.DataFrame:
    return pd.read_csv(folder_of(run) / "report" / "data" / f"{table}.csv")


@cache
def words(run: str, path: str = "report/report.md") -> str:
    """A text beside the rows, without Markdown's escapes."""
    return re.sub(r"\\([\[\]_])", r"\1", (folder_of(run) / path).read_text(encoding="utf-8"))


def said(run: str, pattern: str, path: str = "report/report.md") -> list[tuple[str, ...]]:
    """What the groups of a pattern hold, wherever a run's text has it; at least once."""
    found = [match.groups() for match in re.finditer(pattern, words(run, path), re.M)]
    assert found, f"{run} says nowhere {pattern}"
    return found


def metric(run: str, label: str, concurrency: int, name: str = "round_ms") -> pd.Series:
    """One value of one setting, with its interval: `value`, `low`, `high`."""
    table = rows(run, "metrics")
    is_asked = (table.label == label) & (table.concurrency == concurrency) & (table.metric == name)
    ((_, row),) = table[is_asked].iterrows()
    return row


def rounds(run: str, label: str, concurrencies: Iterable[int] = (1, 4, 16)) -> list[float]:
    """Steady rounds in ms, one per concurrency; of `eager`, where the host never runs ahead, all rounds."""
    name = "round_ms" if "executor=eager" in label else "steady_round_ms"
    return [metric(run, label, concurrency, name).value for concurrency in concurrencies]


def stage_us(run: str, stage: str, labels: Iterable[str], concurrency: int | None = None) -> pd.Series:
    """A stage's mean in every setting of the attributed pass that has one of the labels."""
    table = rows(run, "stages")
    is_asked = (table.stage == stage) & table.label.isin(set(labels))
    if concurrency is not None:
        is_asked &= table.concurrency == concurrency
    return 1000 * table[is_asked].stage_ms


def ceiling_us(run: str, kind: str) -> list[float]:
    samples = json.loads((folder_of(run) / "ceilings.json").read_text(encoding="utf-8"))["samples"]
    return [sample["amount"] / 1000 for sample in samples if sample["kind"] == kind]


def passes_ms(run: str, label: str, concurrency: int) -> pd.Series:
    """The rounds of a case's clean passes in ms, by the number of their pass."""
    cases = rows(run, "cases")
    (folder,) = cases[cases.label == f"{label} c={concurrency}"].folder
    steps = pd.read_parquet(folder_of(run) / folder / "steps.parquet")
    clean = steps[steps.pass_name == "clean"]
    return ((clean.end_ns - clean.start_ns) / 1e6).set_axis(clean.pass_index)


def listed(texts: Iterable[str], last: str = ", ") -> str:
    """`a, b, c`; with `last=" and "`: `a, b and c`."""
    *before, end = texts
    return ", ".join(before) + (last if before else "") + end


def digits(values: Iterable[float | str], places: int = 0, last: str = ", ") -> str:
    """Numbers with so many decimals, listed."""
    return listed((f"{round(float(value), places) + 0:.{places}f}" for value in values), last)  # 0, not -0


def span(low: float | str, high: float | str, places: int = 2) -> str:
    return f"[{digits((low, high), places)}]"


def times(value: float | str, low: float | str, high: float | str) -> str:
    """`1.26x [1.16, 1.36]`."""
    return f"{float(value):.2f}x {span(low, high)}"


def over(run: str, label: str, concurrency: int, arm: str = "chain") -> str:
    """A setting's speedup over an arm with the same concurrency, with its interval."""
    found = metric(run, label, concurrency, f"speedup_vs_{arm}")
    return times(found.value, found.low, found.high)
