"""The parquet tables of a case: their columns, and reading one whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_origin

import pyarrow as pa
import pyarrow.parquet as pq

from ddbench.errors import SchemaError
from ddbench.records import RequestRecord, RoundRecord, StageSample, StepRecord
from ddbench.spec import Record

TABLES: dict[str, type[Record]] = {
    "requests": RequestRecord,
    "rounds": RoundRecord,
    "steps": StepRecord,
    "stages": StageSample,
}


def table_schema(record: type[Record]) -> pa.Schema:
    """The columns of a record's parquet file, in the record's order."""
    return pa.schema([(name, _arrow_type(field.annotation)) for name, field in record.model_fields.items()])


def _arrow_type(annotation: Any) -> pa.DataType:
    if get_origin(annotation) is tuple:
        return pa.list_(pa.int32())
    if get_origin(annotation) is Literal:
        return pa.string()
    return {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}[annotation]


def read_parquet(path: Path, schema: pa.Schema) -> pa.Table:
    """The table with exactly `schema`: names, types and no nulls."""
    if not path.exists():
        raise SchemaError(f"{path}: missing although its case is ok: run the case again")
    try:
        table = pq.read_table(path, partitioning=None, use_threads=False)
        absent = [name for name in schema.names if name not in table.column_names]
        if absent:
            raise SchemaError(f"{path}: column '{absent[0]}' is missing: written by another version, run again")
        table = table.select(schema.names).replace_schema_metadata(None).cast(schema)
    except (OSError, ValueError, pa.ArrowException) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SchemaError(f"{path}: not a readable table ({first_line}): run the case again") from error
    for column_name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise SchemaError(f"{path}: column '{column_name}' holds empty values: run the case again")
    return table
