"""Captures of a run's cases -> their accounts and one frame per table, with the case and the tool of every row.

As strict as with the case's own tables: what is there is whole or a `SchemaError` that names the file. A capture under
way, which has no account yet, is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from ddbench.analysis.tables import capture_schema, read_capture_table
from ddbench.captured import CAPTURE_TABLES, TABLES_OF, Capture
from ddbench.errors import SchemaError
from ddbench.files import why_unread
from ddbench.spec import Tool, from_json

Tools = Mapping[Tool, Capture]


def load_captures(run: Path, case_ids: Sequence[str]) -> tuple[dict[str, Tools], dict[str, pd.DataFrame]]:
    """Captures by case id, and the rows of all of them by the name of their table."""
    captures: dict[str, Tools] = {}
    for case_id in case_ids:
        found = _captures_of(run / "cases" / case_id / "captures")
        if found:
            captures[case_id] = found
    return captures, {name: _rows(run, captures, name) for name in CAPTURE_TABLES}


def sorted_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """Text columns have their categories in order, so that what is grouped by them comes in order too."""
    for name in frame.select_dtypes("category"):
        frame[name] = frame[name].cat.reorder_categories(sorted(frame[name].cat.categories))
    return frame


def _captures_of(folder: Path) -> dict[Tool, Capture]:
    found: dict[Tool, Capture] = {}
    for tool in TABLES_OF:
        path = folder / f"{tool}.json"
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaError(f"{path}: cannot be read ({why_unread(error)}): {_cure(folder)}") from error
        try:
            capture = from_json(Capture, text, str(path))
        except SchemaError as error:
            raise SchemaError(f"{error}: {_cure(folder)}") from error
        if capture.tool != tool:
            raise SchemaError(f"{path}: of the tool '{capture.tool}', expected '{tool}': {_cure(folder)}")
        found[tool] = capture
    return found


def _cure(folder: Path) -> str:
    run = folder.parents[2]
    return f"remove {folder} to do without it, or its case's folder, then `ddbench sweep --resume {run}`"


def _rows(run: Path, captures: Mapping[str, Tools], name: str) -> pd.DataFrame:
    """One table of every capture that has it, one after the other."""
    record = CAPTURE_TABLES[name]
    parts, case_ids, tools = [], [], []
    for case_id, by_tool in captures.items():
        for tool, capture in by_tool.items():
            if capture.fault is None and name in TABLES_OF[tool]:
                parts.append(_read(run / "cases" / case_id / "captures", tool, name, capture))
                case_ids.append(case_id)
                tools.append(tool)
    table = pa.concat_tables(parts).unify_dictionaries() if parts else capture_schema(record).empty_table()
    frame = sorted_categories(table.to_pandas())
    lengths = [part.num_rows for part in parts]
    for column, values in (("tool", tools), ("case_id", case_ids)):
        codes, distinct = pd.factorize(np.array(values, dtype=object))
        categories = pd.Index(distinct, dtype=object)
        frame[column] = pd.Categorical.from_codes(np.repeat(codes, lengths), categories=categories)
    return frame


def _read(folder: Path, tool: Tool, name: str, capture: Capture) -> pa.Table:
    path = folder / f"{tool}-{name}.parquet"
    table = read_capture_table(path, CAPTURE_TABLES[name], _cure(folder))
    expected = sum(line.count for line in capture.ledger)
    if name == "ops" and capture.ledger and table.num_rows != expected:
        raise SchemaError(f"{path}: {table.num_rows} rows, {tool}.json tells of {expected}: {_cure(folder)}")
    return table
