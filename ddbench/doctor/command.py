"""The body of `ddbench doctor`: rows as they are found, on the console or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

import ddbench
from ddbench.doctor.checks import CHECKS, Purpose, Row

JSON_VERSION = 1
_COLOURS = {"ok": "green", "missing": "yellow", "failed": "red"}
_WIDTH = max(len(check.name) for check in CHECKS)


def show(console: Console, rows: Iterable[Row], purpose: Purpose | None) -> int:
    """One line per check, its cure at the end; then the verdict. The exit code comes back."""
    faults = []
    for row in rows:
        line = Text(f"{row.status:<7}  ", style=_COLOURS[row.status] if row.is_fault or row.status == "ok" else "dim")
        line.append(f"{row.name:<{_WIDTH}}  ", style="default")
        line.append(row.detail, style="default")
        if row.cure:
            line.append(f"  -> {row.cure}", style="default" if row.is_fault else "dim")
        console.print(line, soft_wrap=True)
        faults += [row.name] * row.is_fault
    wanted = f"what {_named(purpose)} needs" if purpose else "what a sweep needs"
    verdict = f"to mend: {', '.join(faults)}" if faults else f"{wanted} is there, and nothing is broken"
    console.print(Text(verdict, style="red" if faults else "green"), soft_wrap=True)
    return 1 if faults else 0


def show_json(console: Console, rows: Iterable[Row], purpose: Purpose | None) -> int:
    """The same as one JSON document."""
    seen = list(rows)
    document: dict[str, Any] = {
        "version": JSON_VERSION,
        "ddbench": ddbench.__version__,
        "for": purpose,
        "is_fit": not any(row.is_fault for row in seen),
        "checks": [{**asdict(row), "is_fault": row.is_fault} for row in seen],
    }
    console.print(Text(json.dumps(document, indent=1, ensure_ascii=False)), soft_wrap=True)
    return 0 if document["is_fit"] else 1


def _named(purpose: Purpose) -> str:
    return "a sweep" if purpose == "sweep" else purpose
