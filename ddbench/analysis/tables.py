"""The parquet tables of a case and of its captures: their columns, reading one whole or not at all, writing captures'.

A table of a capture may hold a million rows with names of kilobytes, so that its text columns are dictionaries, on disk
and in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pandas as pd
import pyarrow as pa

from ddbench.errors import SchemaError, shown
from ddbench.parquet_files import open_parquet, write_parquet
from ddbench.records import RequestRecord, RoundRecord, StageSample, StepRecord
from ddbench.spec import Record

TABLES: dict[str, type[Record]] = {
    "requests": RequestRecord,
    "rounds": RoundRecord,
    "steps": StepRecord,
    "stages": StageSample,
}
_TEXT = pa.dictionary(pa.int32(), pa.string())


def table_schema(record: type[Record]) -> pa.Schema:
    """The columns of a record's parquet file, in the record's order."""
    return pa.schema([(name, _arrow_type(field.annotation)) for name, field in record.model_fields.items()])


def capture_schema(record: type[Record]) -> pa.Schema:
    """... of a capture's."""
    columns = table_schema(record)
    return pa.schema([(column.name, _TEXT if column.type == pa.string() else column.type) for column in columns])


def _arrow_type(annotation: Any) -> pa.DataType:
    if get_origin(annotation) is tuple:
        return pa.list_(pa.int32())
    if get_origin(annotation) is Literal:
        return pa.string()
    return {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}[annotation]


def write_capture_table(path: Path, record: type[Record], frame: pd.DataFrame) -> None:
    """Write a frame that has exactly the columns of `record`, without empty cells."""
    schema = capture_schema(record)
    assert list(frame.columns) == schema.names, f"columns {list(frame.columns)}, expected {schema.names}"
    arrays = [_column(frame[field.name], field.type) for field in schema]
    write_parquet(path, pa.table(arrays, schema=schema))


def _column(values: pd.Series, kind: pa.DataType) -> pa.Array:
    if kind != _TEXT:
        found = pa.array(values.to_numpy(), kind)
    else:
        texts = values if values.dtype == "category" else values.astype("category")
        texts = texts.cat.remove_unused_categories().cat
        codes = pa.array(texts.codes.to_numpy(), pa.int32(), mask=(texts.codes < 0).to_numpy())
        found = pa.DictionaryArray.from_arrays(codes, pa.array(list(texts.categories), pa.string()))
    assert not found.null_count, f"column '{values.name}' holds empty cells"
    return found


def read_capture_table(path: Path, record: type[Record], cure: str) -> pa.Table:
    """A table of a capture: the columns of `record`, and in those with few choices none but these."""
    table = read_parquet(path, capture_schema(record), cure=cure, owner="its capture is whole")
    for name, field in record.model_fields.items():
        if get_origin(field.annotation) is Literal:
            for chunk in table[name].chunks:
                strange = set(chunk.dictionary.to_pylist()) - set(get_args(field.annotation))
                if strange:
                    found, known = shown(min(map(str, strange))), ", ".join(map(repr, get_args(field.annotation)))
                    raise SchemaError(f"{path}: column '{name}' holds {found}, expected one of {known}: {cure}")
    return table


def read_parquet(path: Path, schema: pa.Schema, *, cure: str = "", owner: str = "its case is ok") -> pa.Table:
    """The table with exactly `schema`: names, types and no nulls.

    Through `ParquetFile` on the file's bytes: 0.2 ms for a file of a case, where `pq.read_table`, which also takes
    whole data sets, takes 0.7 (pyarrow 26, one core of an EPYC).
    """
    cure = cure or f"run its case again with `ddbench sweep --resume {path.parents[2]}`"
    try:
        with open_parquet(pa.BufferReader(path.read_bytes()), schema) as file:
            table = file.read(use_threads=False)
        if not table.schema.equals(schema):
            absent = [name for name in schema.names if name not in table.column_names]
            if absent:
                raise SchemaError(f"{path}: column '{absent[0]}' is missing: written by another version; {cure}")
            table = table.select(schema.names).cast(schema)
    except FileNotFoundError as error:
        raise SchemaError(f"{path}: missing although {owner}: {cure}") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SchemaError(f"{path}: not a readable table ({first_line}): {cure}") from error
    for column_name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise SchemaError(f"{path}: column '{column_name}' holds empty values: {cure}")
    return table.replace_schema_metadata(None)
