"""The fields of a published configuration, each of them accounted for: honoured, checked, known to change nothing, or
refused by name. A field that nobody asked about is an error, because what it would have changed is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar, overload

from pydantic import BaseModel, ValidationError

from ddbench.errors import CheckpointError, did_you_mean, shown
from ddbench.spec import first_message

ShapeT = TypeVar("ShapeT", bound=BaseModel)
KindT = TypeVar("KindT")

LARGEST_WHOLE = 2**31 - 1
LARGEST_FLOAT = 1e300


class _Required:
    """Stands for 'no default'."""


REQUIRED: Final = _Required()


class Fields:
    """A table of a JSON file, read field by field; `close` at the end. A null counts as not set."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.where = where  # the file
        self._values = values
        self._prefix = prefix
        self._asked: set[str] = set()

    def fault(self, name: str, complaint: str) -> NoReturn:
        """Raise the one-line error about a field."""
        raise CheckpointError(f"{self.where}: {self._prefix}{name}: {complaint}")

    @property
    def names(self) -> tuple[str, ...]:
        """What is set."""
        return tuple(name for name in self._values if self.has(name))

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """The value as it is; None where it is not set."""
        self._asked.add(name)
        return self._values.get(name)

    @overload
    def whole(self, name: str) -> int: ...
    @overload
    def whole(self, name: str, default: KindT) -> int | KindT: ...
    def whole(self, name: str, default: Any = REQUIRED) -> Any:
        """A whole number."""
        return self._one(name, default, int, "a whole number")

    @overload
    def number(self, name: str) -> float: ...
    @overload
    def number(self, name: str, default: KindT) -> float | KindT: ...
    def number(self, name: str, default: Any = REQUIRED) -> Any:
        """A number."""
        value = self._one(name, default, (int, float), "a number")
        if isinstance(value, int | float) and not abs(value) <= LARGEST_FLOAT:
            self.fault(name, f"expected a number, got {shown(value)}")
        return float(value) if isinstance(value, int) else value

    def count(self, name: str, most: int) -> int:
        """A whole number from 1 to `most`, beyond which nothing is built."""
        value: int = self.whole(name)
        if not 1 <= value <= most:
            self.fault(name, f"is {value}, expected 1 to {most}")
        return value

    @overload
    def flag(self, name: str) -> bool: ...
    @overload
    def flag(self, name: str, default: KindT) -> bool | KindT: ...
    def flag(self, name: str, default: Any = REQUIRED) -> Any:
        """True or false."""
        return self._one(name, default, bool, "true or false")

    @overload
    def text(self, name: str) -> str: ...
    @overload
    def text(self, name: str, default: KindT) -> str | KindT: ...
    def text(self, name: str, default: Any = REQUIRED) -> Any:
        """A text."""
        return self._one(name, default, str, "a text")

    def _one(self, name: str, default: Any, kind: Any, words: str) -> Any:
        value = self.raw(name)
        if value is None:
            if default is REQUIRED:
                self.fault(name, f"is not set; expected {words}")
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fault(name, f"expected {words}, got {shown(value)}")
        if kind is int and abs(value) > LARGEST_WHOLE:
            self.fault(name, f"expected {words} of 31 bits, got {shown(value)}")
        return value

    def wholes(self, name: str, default: None = None) -> tuple[int, ...] | None:
        """A list of whole numbers, or one of them; None where it is not set."""
        values = self._many(name, int, "a list of whole numbers")
        if values is not None and any(abs(one) > LARGEST_WHOLE for one in values):
            self.fault(name, f"expected whole numbers of 31 bits, got {shown(list(values))}")
        return values

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts."""
        return self._many(name, str, "a list of texts")

    def _many(self, name: str, kind: type[KindT], words: str) -> tuple[KindT, ...] | None:
        value = self.raw(name)
        if value is None:
            return None
        values = value if isinstance(value, list) else [value]
        if any(not isinstance(one, kind) or isinstance(one, bool) for one in values):
            self.fault(name, f"expected {words}, got {shown(value)}")
        return tuple(values)

    def table(self, name: str) -> Fields | None:
        """A table below this one."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fault(name, f"expected a table, got {shown(value)}")
        return Fields(value, self.where, f"{self._prefix}{name}.")

    def must_be(self, name: str, *allowed: Any) -> None:
        """Refuse every other value of a field that is not ours to choose; not set is fine."""
        value = self.raw(name)
        if value is None or any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
            return
        words = " or ".join(shown(one) for one in allowed)
        self.fault(name, f"is {shown(value)}, only {words} can be served")

    def changes_nothing(self, names: Iterable[str]) -> None:
        """Fields that have no part in inference."""
        self._asked.update(names)

    def close(self) -> None:
        """Complain about the first field that nobody asked about; nulls ask for nothing."""
        left = sorted(name for name in self._values if name not in self._asked and self.has(name))
        if left:
            known = did_you_mean(left[0], [name for name in self._asked if name not in self._values])
            hint = f"; {known}" if known.startswith("did you mean") else ""
            self.fault(left[0], f"is {shown(self._values[left[0]])}: an unknown field, which may change results{hint}")


def build(kind: type[ShapeT], where: str, **values: Any) -> ShapeT:
    """A shape of what was read; values that do not go together are a one-line error."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise CheckpointError(f"{where}: {first_message(error)}") from error


def agreed(fields: Sequence[tuple[Fields, str]], kind: str) -> Any:
    """The value of a field that may stand in several places: whichever is set; different values are an error."""
    found = [(table, name, getattr(table, kind)(name, None)) for table, name in fields]
    found = [(table, name, value) for table, name, value in found if value is not None]
    for table, name, value in found[1:]:
        if value != found[0][2]:
            here, there = (shown(list(one) if isinstance(one, tuple) else one) for one in (value, found[0][2]))
            table.fault(name, f"is {here}, but {found[0][1]} says {there} elsewhere in the file")
    return found[0][2] if found else None
