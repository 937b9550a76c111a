"""Which cases a timeline is asked for, by number, label or id in the order of the report; and what there is.

Cases that a capture was made of are numbered, those whose capture gave nothing included: they are listed with the cure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddbench import units
from ddbench.analysis.frames import RunFrames
from ddbench.analysis.profile.captured_case import TIMELINES
from ddbench.analysis.settings import study_of
from ddbench.captured import Capture
from ddbench.errors import DdbenchError, UserError, did_you_mean, shown
from ddbench.spec import Tool

MOST_CASES = 2
_SHORTEST_ID = 4  # characters of an id that name a case


class NothingCaptured(DdbenchError):
    """There is a case, and its capture holds no times."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A case with captures."""

    number: int
    run: str
    case_id: str
    label: str
    captures: dict[Tool, Capture]  # by tool

    @property
    def is_usable(self) -> bool:
        return any(tool in self.captures and not self.captures[tool].fault for tool in TIMELINES)

    def describe(self) -> str:
        return "; ".join(_described(tool, capture) for tool, capture in sorted(self.captures.items()))


def _described(tool: str, capture: Capture) -> str:
    if capture.fault:
        return f"{tool}: nothing ({capture.fault.what}; {capture.fault.cure})"
    if tool not in TIMELINES:
        return f"{tool}: counters, no times"
    rounds = f"{len(capture.round_ns)} rounds from {capture.first_round}"
    totals = ", totals withheld" if capture.withheld else ""
    return f"{tool}: {rounds}, {units.duration(capture.window_ns)}{totals}"


def candidates_of(frames: RunFrames) -> tuple[Candidate, ...]:
    """In the order of the report; interleaved repeats of a setting one after the other."""
    place = {setting.key: number for number, setting in enumerate(study_of(frames).settings)}
    cases = frames.cases.assign(place=[place[key] for key in frames.cases["setting"]])
    cases = cases.sort_values(["place", "block"], kind="stable")
    has_blocks = cases["label"].duplicated(keep=False)
    found: list[Candidate] = []
    for row, is_repeat in zip(cases.itertuples(), has_blocks, strict=True):
        captures = frames.captures.get((row.run, row.case_id))
        if captures:
            label = f"{row.label} block={row.block}" if is_repeat else str(row.label)
            found.append(Candidate(len(found) + 1, str(row.run), str(row.case_id), label, dict(captures)))
    return tuple(found)


def chosen(candidates: Sequence[Candidate], asked: Sequence[str], folder: str) -> tuple[Candidate, ...]:
    """The cases asked for; none: the only one that has times, or nothing where there are several."""
    if not candidates:
        raise UserError(f"{folder}: no case has a capture: make them with `ddbench sweep ... --capture nsys`")
    if len(asked) > MOST_CASES:
        raise UserError(f"--case: {MOST_CASES} cases at most side by side, got {len(asked)}")
    if not asked:
        usable = [one for one in candidates if one.is_usable]
        if not usable:
            raise NothingCaptured(f"{folder}: no capture holds times; the first: {candidates[0].describe()}")
        return tuple(usable) if len(usable) == 1 else ()
    found = tuple(_named(candidates, word) for word in asked)
    if len({one.case_id for one in found}) < len(found):
        raise UserError(f"--case: case {found[0].number} ({found[0].label}) is named twice")
    return found


def _named(candidates: Sequence[Candidate], word: str) -> Candidate:
    """A label (with `c=` or without), a number, or the beginning of an id; in this order."""
    text = word.strip()
    by_label = [one for one in candidates if text in (one.label, one.label.rpartition(" c=")[0])]
    by_number = [one for one in candidates if text == str(one.number)]
    by_id = [one for one in candidates if text == one.case_id]
    by_id = by_id or [one for one in candidates if len(text) >= _SHORTEST_ID and one.case_id.startswith(text)]
    for found in (by_label, by_number, by_id):
        if len(found) == 1:
            return found[0]
        if found:
            twins = units.listed([f"{one.number} ({one.label})" for one in found[:4]])
            raise UserError(f"--case {shown(text)} names {len(found)} cases: say which by number: {twins}")
    if text.isascii() and text.isdigit() and len(text) < _SHORTEST_ID:
        raise UserError(f"--case {text}: there are {len(candidates)} cases with captures, 1 to {len(candidates)}")
    labels = [one.label for one in candidates]
    raise UserError(f"--case {shown(text)}: no case with a capture is called so: {did_you_mean(text, labels)}")


def tool_of(candidate: Candidate, asked: Tool | None) -> Tool:
    """The tool whose capture is shown: the one asked for, or the first that gave something."""
    tools = [tool for tool in TIMELINES if tool in candidate.captures]
    if asked is not None and asked not in tools:
        there = f"there is {units.listed(sorted(candidate.captures))}"
        raise UserError(f"case {candidate.number} ({candidate.label}) has no capture of {asked}: {there}")
    tools = [asked] if asked is not None else tools
    good = [tool for tool in tools if not candidate.captures[tool].fault]
    if good:
        return good[0]
    raise NothingCaptured(f"case {candidate.number} ({candidate.label}): {candidate.describe()}")
