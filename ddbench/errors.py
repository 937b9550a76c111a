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


class ParityError(DdbenchError):
    """Speculative output differs from autoregressive output where it must not."""


def did_you_mean(got: str, choices: Iterable[str]) -> str:
    """A trailing sentence naming the closest choice, or all of them: `did you mean 'heap'? (chain, device, heap)`."""
    known = sorted(choices)
    close = difflib.get_close_matches(got, known, n=1, cutoff=0.5)
    listing = ", ".join(known) if known else "none"
    return f"did you mean '{close[0]}'? (known: {listing})" if close else f"known: {listing}"
