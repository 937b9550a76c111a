"""Files of ours are small, and read as what was written, by us with and without Arrow's copy of the schema."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddbench.parquet_files import open_parquet, write_parquet

SCHEMA = pa.schema(
    [
        pa.field("name", pa.dictionary(pa.int32(), pa.string())),
        pa.field("text", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("depths", pa.list_(pa.int32())),
    ]
)


def table_of(num_rows: int) -> pa.Table:
    names = pa.array([f"k{i % 3}" * 900 for i in range(num_rows)]).dictionary_encode()
    rows = range(num_rows)
    return pa.table([names, [str(i % 5) for i in rows], [i * i for i in rows], [[i, 2] for i in rows]], schema=SCHEMA)


@pytest.mark.parametrize("num_rows", [0, 1, 700, 30_000])
def test_tables_come_back_from_new_and_old_files(num_rows: int, tmp_path: Path) -> None:
    table = table_of(num_rows)
    write_parquet(tmp_path / "new.parquet", table)
    pq.write_table(table, tmp_path / "old.parquet")
    for name in ("new", "old"):
        with open_parquet(pa.OSFile(str(tmp_path / f"{name}.parquet")), SCHEMA) as file:
            found = file.read()
        assert found.schema.field("name").type == SCHEMA.field("name").type
        assert found.cast(SCHEMA).to_pydict() == table.to_pydict()
    assert (tmp_path / "new.parquet").stat().st_size < 0.7 * (tmp_path / "old.parquet").stat().st_size


def test_a_column_that_is_not_there_is_not_asked_for(tmp_path: Path) -> None:
    """Who reads says what is missing, in words."""
    write_parquet(tmp_path / "few.parquet", pa.table({"count": [1]}))
    with open_parquet(pa.OSFile(str(tmp_path / "few.parquet")), SCHEMA) as file:
        assert file.read().column_names == ["count"]


def test_files_hold_nothing_beside_their_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", table_of(9))
    metadata = pq.read_metadata(tmp_path / "x.parquet")
    assert metadata.metadata is None
    column = metadata.row_group(0).column(2)
    assert (column.compression, column.statistics) == ("ZSTD", None)
    assert [metadata.row_group(0).column(i).has_dictionary_page for i in range(4)] == [True, False, False, False]
