"""Columns give what the frame holds, group by group, whatever order its rows are in."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis.columns import Columns, Whole, grouped, no_rows

rows = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 99)), max_size=20)


def frame(values: list[tuple[str, str, int]]) -> pd.DataFrame:
    table = pd.DataFrame(values, columns=["run", "case", "number"])
    return table.astype({"run": "category", "case": "category"})


@given(rows)
def test_groups_are_those_of_the_frame(values: list[tuple[str, str, int]]) -> None:
    table = frame(values)
    found = grouped(table, ["run", "case"])
    expected = dict(iter(table.groupby(["run", "case"], observed=True)))
    assert found.keys() == expected.keys()
    for key, own in expected.items():
        assert len(found[key]) == len(own)
        assert found[key]["number"].tolist() == own["number"].tolist()
        assert found[key]["case"].tolist() == own["case"].tolist()
        categories, codes = found[key].categories("case"), found[key].codes("case")
        assert [categories[code] for code in codes] == own["case"].tolist()
        assert [found[key].numbers("case")[case] for case in own["case"]] == codes.tolist()


def test_rows_that_are_in_order_are_not_copied() -> None:
    table = frame([("a", "x", 1), ("a", "x", 2), ("b", "x", 3)])
    for own in grouped(table, ["run"]).values():
        assert np.shares_memory(own["number"], table["number"].to_numpy())


def test_no_rows_have_columns_all_the_same() -> None:
    none = no_rows(frame([("a", "x", 1)]))
    assert len(none) == 0
    assert none["number"].dtype == np.int64
    assert none["number"].tolist() == none.codes("case").tolist() == []


def test_a_column_that_is_not_there_is_an_error() -> None:
    whole = Columns(Whole(frame([("a", "x", 1), ("b", "y", 2)])), 0, 2)
    assert whole["number"].tolist() == [1, 2]
    with pytest.raises(KeyError):
        whole["no such column"]
