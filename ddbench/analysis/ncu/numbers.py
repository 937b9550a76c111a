"""Numbers of a CSV page whose writer's locale is not known: `268,457,472` or `268.457.472`, `93.89` or `93,89`.

A page shows its own locale: a separator that occurs twice in a number, or before other than three digits, can be only
one thing. What stays open is refused, never guessed: the two readings differ by a factor of 1000.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_NUMBER = re.compile(r"[+-]?(?P<digits>\d[\d.,'\u00a0\u202f\u2019 ]*)(?P<exponent>[eE][+-]?\d{1,3})?")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?P<mark>[.,'\u00a0\u202f\u2019 ])\d{3}(?:(?P=mark)\d{3})*")
_MISSING = frozenset(("", "n/a", "nan", "-nan", "inf", "-inf", "+inf", "infinity", "-infinity", "no data"))


class Ambiguous(ValueError):
    """A number that the page's other numbers leave two readings of, or a page of two locales."""


@dataclass(frozen=True, slots=True)
class Locale:
    """Which mark groups thousands and which is the decimal point; '': the page shows none."""

    thousands: str
    point: str


def is_missing(cell: str) -> bool:
    """Whether the cell says that there is no value."""
    return cell.strip().lower() in _MISSING


def locale_of(cells: Iterable[str]) -> Locale:
    """What the numbers among the cells show. Raises `Ambiguous` where they contradict each other."""
    thousands: set[str] = set()
    points: set[str] = set()
    for cell in cells:
        number = _NUMBER.fullmatch(cell.strip())
        if number is None:
            continue
        marks = [mark for mark in number["digits"] if not mark.isdigit()]
        if not marks:
            continue
        first, last = marks[0], marks[-1]
        if len(marks) > 1:
            whole = number["digits"] if first == last else number["digits"].rpartition(last)[0]
            if _GROUPED.fullmatch(whole):  # else no number: a version
                thousands.add(first)
                points.update({last} - {first})
        elif not _GROUPED.fullmatch(number["digits"]):
            points.add(first)
        elif first not in ".,":  # blanks and apostrophes are no decimal points
            thousands.add(first)
    if len(thousands) > 1 or len(points) > 1 or thousands & points:
        raise Ambiguous("numbers of two locales")
    return Locale("".join(thousands), "".join(points))


def parse(cell: str, locale: Locale) -> float:
    """The number. Raises `ValueError` for what is none, and its subclass `Ambiguous`."""
    number = _NUMBER.fullmatch(cell.strip())
    if number is None:
        raise ValueError(cell)
    digits = number["digits"]
    marks = {mark for mark in digits if not mark.isdigit()}
    for mark in marks - {locale.thousands, locale.point}:
        # The page shows nothing of this mark. If it shows the other one's part, the part that is left is this one's.
        known = Locale(
            locale.thousands or (mark if locale.point else ""), locale.point or (mark if locale.thousands else "")
        )
        if mark not in (known.thousands, known.point):
            raise Ambiguous(cell)
        return parse(cell, known)
    whole, point, rest = digits.rpartition(locale.point) if locale.point in marks else (digits, "", "")
    if locale.thousands in marks:
        if not _GROUPED.fullmatch(whole):
            raise ValueError(cell)
        whole = whole.replace(locale.thousands, "")
    value = float(
        f"{'-' if cell.strip().startswith('-') else ''}{whole}{'.' if point else ''}{rest}{number['exponent'] or ''}"
    )
    if not math.isfinite(value):
        raise ValueError(cell)
    return value
