"""Errors that reach a user: one line each, saying what was got, what is expected and what to do.

The exit code sits on the class, so that no command decides it again. Our own invariants use `assert` instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DdbenchError(Exception):
    """Base of every error whose text is meant for the user. Exit code 4: measurement or infrastructure failure."""

    exit_code = 4


class UserError(DdbenchError):
    """The request cannot be served as written (unknown name, impossible value). Exit code 2."""

    exit_code = 2


class UnsupportedVariant(UserError):
    """A variant that exists nowhere, or cannot serve the case it was asked for."""


class SchemaError(UserError):
    """A file of ours (run folder, experiment, record) does not have the shape that it must have."""


class CheckpointError(UserError):
    """A model folder is missing, incomplete, damaged, or disagrees with its own configuration."""


_FEW = 16  # so many choices are listed beside a suggestion


def did_you_mean(got: str, choices: Iterable[str]) -> str:
    """What to write instead: `did you mean 'heap'? (known: chain, device, heap)`; a long list only if nothing fits."""
    known = sorted(set(choices))
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(got.lower(), lowered, n=1, cutoff=0.5)
    listing = f"known: {', '.join(known) or 'none'}"
    if not close:
        return listing
    return f"did you mean '{lowered[close[0]]}'?" + (f" ({listing})" if len(known) <= _FEW else "")


def refuse_unknown(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """UserError where one of the names is not known: `unknown format 'htm': did you mean 'html'? (known: ...)`."""
    choices = set(known)
    for name in names:
        if name not in choices:
            raise UserError(f"unknown {what} {shown(name)}: {did_you_mean(name, choices)}")


def shown(value: object, limit: int = 60) -> str:
    """A value as it goes into a message: on one line, and never the message's longest part."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[-1]}"
