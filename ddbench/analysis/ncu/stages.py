"""Profiled kernels -> their stages: by the ranges that ncu records with them, else from the timeline of the same case.

A kernel launched one by one carries the range of its stage (`launch`). A kernel that a graph replays carries what is
open around the replay: its round, but no stage where one graph holds the whole round. The same round of the same case
in the nsys capture launches the same kernels, and knows the stage of each from the graph's capture. So both tools'
kernels of a round are laid side by side: where every name occurs as often in the one as in the other, they are matched
in order, up to what a graph runs side by side, and the stages are taken over (`capture`). Where they are not the same
kernels, or two of one name might be either's, nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from ddbench.analysis.ncu.profile import Kernel
from ddbench.analysis.nsys.names import parse_round, parse_stage
from ddbench.captured import OUTSIDE_ROUNDS, Basis


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a kernel belongs."""

    stage: str  # '' where none is known
    basis: Basis
    is_replayed: bool


def place(kernels: Sequence[Kernel], timeline: pd.DataFrame | None) -> tuple[tuple[Placed, ...], tuple[str, ...]]:
    """The place of each kernel, and what could not be told.

    `timeline`: device ops of the case's nsys capture, of the kernels that were to be counted.
    """
    rounds = rounds_of(kernels)
    found: list[Placed] = [_by_range(kernel) for kernel in kernels]
    notes: list[str] = []
    for step in sorted(set(rounds)):
        own = [index for index, other in enumerate(rounds) if other == step]
        reason = _take_over(own, kernels, found, timeline, step)
        without = sum(not found[index].stage for index in own)
        if reason and without:
            notes.append(f"{without} kernels of {_called(step)} have no stage: {reason}")
    return tuple(found), tuple(notes)


def rounds_of(kernels: Sequence[Kernel]) -> list[int]:
    """The step of each kernel."""
    return [_round(kernel) for kernel in kernels]


def _called(step: int) -> str:
    return f"round {step}" if step != OUTSIDE_ROUNDS else "no round"


def _round(kernel: Kernel) -> int:
    """Of the innermost round range around it."""
    steps = [step for name in kernel.ranges if (step := parse_round(name)) is not None]
    return steps[-1] if steps else OUTSIDE_ROUNDS


def _by_range(kernel: Kernel) -> Placed:
    """The innermost stage range around it."""
    stages = [stage.value for name in kernel.ranges if (stage := parse_stage(name)) is not None]
    return Placed(stages[-1], "launch", False) if stages else Placed("", "unattributed", False)


# ------------------------------------------------------------------------------------------------- from the timeline


def _take_over(
    own: Sequence[int], kernels: Sequence[Kernel], found: list[Placed], timeline: pd.DataFrame | None, step: int
) -> str:
    """Give the round's kernels what the timeline knows of their counterparts; why that cannot be, if so."""
    if timeline is None:
        return "no nsys capture of the case to take them from"
    if step == OUTSIDE_ROUNDS:
        return "they lie in no round"
    counterparts = timeline[((timeline["kind"] == "kernel") & (timeline["round"] == step)).to_numpy()]
    if not len(counterparts):
        return "the nsys capture does not reach this round"
    if len(counterparts) != len(own):
        return f"the nsys capture has {len(counterparts)} kernels in this round, ncu {len(own)}"
    rows = counterparts.to_dict("records")
    counted, seen = _names([kernels[index].name for index in own], [str(row["name"]) for row in rows])
    difference = Counter(counted) - Counter(seen)
    if difference:
        return f"the nsys capture lacks {next(iter(difference))}, which ncu has in this round"
    for block in _blocks(counted, seen):
        known = _known([rows[place] for place in block], [seen[place] for place in block])
        for place in block:
            found[own[place]] = _counterpart(found[own[place]], known[counted[place]])
    return "two of one name may be either's, or the nsys capture has none for them"


def _blocks(one: Sequence[str], other: Sequence[str]) -> Iterator[range]:
    """The shortest stretches of both orders that hold the same names: branches of a graph run side by side.

    ncu runs the kernels of a graph one after the other, nsys gives them in the order in which they began.
    """
    first, surplus = 0, Counter[str]()
    for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        for name, change in ((mine, 1), (theirs, -1)):
            surplus[name] += change
            if not surplus[name]:
                del surplus[name]
        if not surplus:
            yield range(first, place + 1)
            first = place + 1


def _known(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> dict[str, Mapping[str, object] | None]:
    """What holds for every kernel of that name in the block; None: for two of them it differs."""
    known: dict[str, Mapping[str, object] | None] = {}
    for name, row in zip(names, rows, strict=True):
        facts = {key: row[key] for key in ("stage", "basis", "is_replayed")}
        known[name] = facts if known.get(name, facts) == facts else None
    return known


def _counterpart(own: Placed, row: Mapping[str, object] | None) -> Placed:
    if row is None:
        return own
    is_replayed = bool(row["is_replayed"])
    if own.stage or not row["stage"]:
        return Placed(own.stage, own.basis, is_replayed)
    return Placed(str(row["stage"]), "capture" if row["basis"] == "capture" else "approximate", is_replayed)


# ------------------------------------------------------------------------------------------------------------- names


def _names(one: Sequence[str], other: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Both in one spelling: as they are where nsys and ncu agree, else by the bare name of the function.

    The report spells a name as nsys does; its pages leave out inner namespaces and the types of template arguments.
    """
    if set(one) <= set(other):
        return one, other
    return [bare_name(name) for name in one], [bare_name(name) for name in other]


def bare_name(name: str) -> str:
    """A function's name without result type, namespaces, template arguments and parameters."""
    depth, start, text = 0, 0, name.strip()
    kept = []
    for index, letter in enumerate(text):
        if letter in "<([{":
            if not depth:
                kept.append(text[start:index])
            depth += 1
        elif letter in ">)]}" and depth:
            depth -= 1
            start = index + 1
    if not depth:
        kept.append(text[start:])
    plain = "".join(kept).split()
    return (plain[-1].rpartition("::")[2] if plain else "") or text
