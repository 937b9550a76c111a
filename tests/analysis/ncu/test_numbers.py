"""Numbers of any locale: read as they were written, or refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.analysis.ncu.counters import factor
from ddbench.analysis.ncu.numbers import Ambiguous, Locale, is_missing, locale_of, parse

LOCALES = [(",", "."), (".", ","), ("", "."), ("\u202f", ","), ("'", "."), ("", ",")]


def written(value: float, thousands: str, point: str) -> str:
    """As ncu writes base units: two decimals."""
    return f"{value:,.2f}".replace(",", "T").replace(".", point).replace("T", thousands)


@pytest.mark.parametrize(("thousands", "point"), LOCALES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(values=st.lists(st.integers(0, 10**14), min_size=1, max_size=6))
def test_a_page_is_read_as_it_was_written(thousands: str, point: str, values: list[int]) -> None:
    cells = [written(value / 100, thousands, point) for value in values]
    cells += [cell.partition(point)[0] for cell in cells]  # whole numbers, as counts are written
    locale = locale_of(cells)
    expected = [round(value / 100, 2) for value in values]
    expected += [float(f"{value:.2f}".partition(".")[0]) for value in expected]
    assert [parse(cell, locale) for cell in cells] == pytest.approx(expected, rel=1e-15)


def test_what_has_two_readings_is_refused() -> None:
    """H32: a factor of 1000 is nothing to guess."""
    assert locale_of(["1,234", "12"]) == Locale("", "")
    with pytest.raises(Ambiguous):
        parse("1,234", Locale("", ""))
    assert parse("1,234", Locale("", ".")) == 1234
    assert parse("1,234", Locale(".", "")) == 1.234
    assert parse("0.234", locale_of(["0.234"])) == 0.234
    assert parse("1.5e3", locale_of(["1.5e3"])) == 1500
    with pytest.raises(Ambiguous):
        locale_of(["1,234.50", "1.234,50"])
    with pytest.raises(Ambiguous):
        locale_of(["12.5", "12,5"])


@pytest.mark.parametrize("cell", ["", "abc", "1.2.3", "12,34,567", "(1, 2)", "0x10", "1e9999", "--1", "1,2345.00"])
def test_what_is_no_number_is_refused(cell: str) -> None:
    with pytest.raises(ValueError):
        parse(cell, Locale(",", "."))


def test_words_for_no_value() -> None:
    """H34."""
    assert all(is_missing(cell) for cell in ("", " ", "n/a", "N/A", "nan", "-nan", "inf", "-inf"))
    assert not any(is_missing(cell) for cell in ("0", "0.00", "123.4"))


@pytest.mark.parametrize(
    ("unit", "wanted", "expected"),
    [
        ("nsecond", "ns", 1), ("usecond", "ns", 1e3), ("msecond", "ns", 1e6), ("second", "ns", 1e9), ("us", "ns", 1e3),
        ("byte", "bytes", 1), ("Kbyte", "bytes", 1e3), ("Mbyte", "bytes", 1e6), ("Gbyte", "bytes", 1e9),
        ("MB", "bytes", 1e6), ("B", "bytes", 1), ("%", "%", 1), ("", "waves", 1),
        ("byte/cycle", "bytes per cycle", 1), ("Kbyte/cycle", "bytes per cycle", 1e3),
        ("cycle/nsecond", "cycles per second", 1e9), ("Ghz", "cycles per second", 1e9), ("hz", "cycles per second", 1),
        ("cycle/usecond", "cycles per second", 1e6),
        ("byte", "ns", None), ("", "ns", None), ("", "%", None), ("Xbyte", "bytes", None), ("cycle", "bytes", None),
        ("%", "bytes", None), ("bytebyte", "bytes", None),
    ],
)  # fmt: skip
def test_units(unit: str, wanted: str, expected: float | None) -> None:
    """H32: converted by the unit that the report states, in both of ncu's spellings."""
    assert factor(unit, wanted) == (None if expected is None else pytest.approx(expected))
