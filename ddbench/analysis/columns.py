"""A table as plain arrays, and slices of it: what loops over cases and settings look at.

Beside frames. To look up a column of a sliced `DataFrame` takes 13 us, here it takes half of one (pandas 3.1, one core
of an EPYC): with a thousand settings, each looked at fifty times, that is the difference between 0.7 s and nothing.
Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd


class Whole:
    """Rows of a table in some order, else all as they are; each column is taken out of it once."""

    def __init__(self, table: pd.DataFrame, order: np.ndarray | None = None) -> None:
        self._table, self._order = table, order
        self._values: dict[str, np.ndarray] = {}
        self._codes: dict[str, np.ndarray] = {}
        self._numbers: dict[str, dict[str, int]] = {}

    def values(self, name: str) -> np.ndarray:
        if name not in self._values:
            self._values[name] = self._ordered(self._table[name].to_numpy())
        return self._values[name]

    def codes(self, name: str) -> np.ndarray:
        if name not in self._codes:
            self._codes[name] = self._ordered(self._table[name].array.codes)
        return self._codes[name]

    def categories(self, name: str) -> pd.Index:
        return self._table[name].array.categories

    def numbers(self, name: str) -> Mapping[str, int]:
        if name not in self._numbers:
            self._numbers[name] = {value: code for code, value in enumerate(self.categories(name))}
        return self._numbers[name]

    def _ordered(self, column: np.ndarray) -> np.ndarray:
        return column if self._order is None else column[self._order]


class Columns:
    """Rows of a table by column name: `rows["num_emitted"]` is an array [N]."""

    __slots__ = ("_rows", "_whole")

    def __init__(self, whole: Whole, begin: int, end: int) -> None:
        self._whole, self._rows = whole, slice(begin, end)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._whole.values(name)[self._rows]

    def codes(self, name: str) -> np.ndarray:
        """Of a column of text: the number of each row's value among `categories`: [N]."""
        return self._whole.codes(name)[self._rows]

    def categories(self, name: str) -> pd.Index:
        return self._whole.categories(name)

    def numbers(self, name: str) -> Mapping[str, int]:
        """Category -> its number."""
        return self._whole.numbers(name)

    def __len__(self) -> int:
        return self._rows.stop - self._rows.start


def grouped(table: pd.DataFrame, keys: list[str]) -> dict[tuple[Hashable, ...], Columns]:
    """The rows of every combination of `keys` that is there, in the table's order."""
    codes = table.groupby(keys, sort=False, observed=True).ngroup().to_numpy()
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(codes.max(initial=-1) + 2))
    found = zip(*(table[key].array.take(order[starts[:-1]]) for key in keys), strict=True)
    whole = Whole(table, None if (order == np.arange(len(order))).all() else order)
    return {key: Columns(whole, *bounds) for key, bounds in zip(found, pairs(starts), strict=True)}


def pairs(bounds: np.ndarray) -> Iterator[Sequence[int]]:
    """Begin and end of everything between neighbouring bounds."""
    return zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)


def no_rows(table: pd.DataFrame) -> Columns:
    """None of the table's rows, with its columns."""
    return Columns(Whole(table), 0, 0)
