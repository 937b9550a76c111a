"""What captures say, as rows for the CSV files that come with a report: exact values, missing ones empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddbench.analysis.profile.device_time import CAUSES, DeviceTime
from ddbench.analysis.profile.launches import NO_STAGE, RoundLaunches, StageLaunches
from ddbench.analysis.profile.moved import StageBytes
from ddbench.analysis.profile.profile import Profile
from ddbench.analysis.profile.tax import tax_of
from ddbench.records import NotMeasured
from ddbench.report.evidence import Evidence

Row = tuple[Any, ...]

CASE: tuple[str, ...] = ("run", "case_id", "label")
PASS: tuple[str, ...] = (
    "tool",
    "state",
    "reason",
    "first_round",
    "rounds",
    "round_ns",
    "clean_ns",
    "window_ns",
    "graph_launches",
    "graph_replays",
)
STAGE: tuple[str, ...] = (
    "stage",
    "fewest_bytes",
    "moved_bytes",
    "counted_bytes",
    "copied_bytes",
    "sampled_bytes",
    "busy_ns",
    "kernels",
    "copies",
    "memsets",
    "launch_calls",
    "graph_launches",
    "syncs",
)
IDLE: tuple[str, ...] = ("what", "ns_per_round", "share")


def captured_passes(evidence: Evidence) -> Iterator[Row]:
    """One tool's pass over one case, whatever became of it."""
    for profile in evidence.profiles.values():
        for tool, one in profile.case.passes.items():
            capture, tax = one.capture, tax_of(profile.case, one)
            state = "failed" if capture.fault else "withheld" if one.unusable else "whole"
            times = (None, None) if isinstance(tax, NotMeasured) else (tax.captured_ns, tax.clean_ns)
            counts = (capture.window_ns, capture.num_graph_launches, capture.num_graph_replays)
            yield (
                *_case(evidence, profile),
                tool,
                state,
                one.unusable,
                capture.first_round,
                one.num_rounds,
                *times,
                *counts,
            )


def captured_stages(evidence: Evidence) -> Iterator[Row]:
    """One stage of one captured case: bytes, times and launches per round."""
    for profile in evidence.profiles.values():
        by_stage = {one.stage: one for one in profile.stage_bytes}
        launches = profile.launches
        launched = {} if isinstance(launches, NotMeasured) else {one.stage: one for one in launches.stages}
        for stage in dict.fromkeys((*by_stage, *launched)):
            moved, counts = _bytes(by_stage.get(stage)), _launches(launched.get(stage), launches)
            yield (*_case(evidence, profile), stage if stage != NO_STAGE else "none", *moved, *counts)


def _bytes(one: StageBytes | None) -> Row:
    if one is None:
        return (None,) * 6
    values = (one.fewest, one.moved, one.counted, one.copied, one.sampled, one.busy_ns)
    return tuple(None if isinstance(value, NotMeasured) else value for value in values)


def _launches(one: StageLaunches | None, whole: RoundLaunches | NotMeasured) -> Row:
    """A stage that a usable timeline does not have launches nothing."""
    if one is None:
        return ((None if isinstance(whole, NotMeasured) else 0.0),) * 6
    ops, calls = one.ops, one.calls
    return (
        *(ops[kind] for kind in ("kernel", "copy", "memset")),
        *(calls[k] for k in ("launch", "graph_launch", "sync")),
    )


def captured_idle(evidence: Evidence) -> Iterator[Row]:
    """One cause of idle time in one captured case, or its busy time."""
    for profile in evidence.profiles.values():
        found = profile.device_time
        if isinstance(found, DeviceTime):
            for what, time in (("busy", found.busy_ns), *((cause, found.causes.get(cause, 0)) for cause in CAUSES)):
                yield (*_case(evidence, profile), what, time / found.num_rounds, time / found.rounds_ns)


def _case(evidence: Evidence, profile: Profile) -> Row:
    key = (profile.case.run, profile.case.case_id)
    return (*key, evidence.case_labels[key])
