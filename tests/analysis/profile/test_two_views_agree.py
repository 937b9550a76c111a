"""The report and the timeline judge idle time by code of their own: on one capture they must say the same."""

from collections import Counter
from pathlib import Path

import pytest

from ddbench.analysis.frames import load_run
from ddbench.analysis.profile import device_time
from ddbench.analysis.profile.profile import profiles_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.synthetic_captures import CapturePlan
from ddbench.timeline.idle import Cause, idle_of
from ddbench.timeline.rounds import rounds_of
from ddbench.timeline.window import window_of

SAME = {
    Cause.SYNC: device_time.SYNC,
    Cause.MEMORY: device_time.MEMORY,
    Cause.HOST: device_time.BETWEEN,
    Cause.LAUNCH: device_time.LATENCY,
    Cause.REPLAY: device_time.IN_REPLAY,
    Cause.QUEUE: device_time.IN_QUEUE,
    Cause.UNKNOWN: device_time.UNKNOWN,
}


@pytest.mark.parametrize("plan", [CapturePlan(unattributed=2), CapturePlan(is_graph=True)], ids=["eager", "graph"])
def test_report_and_timeline_find_the_same_causes(tmp_path: Path, plan: CapturePlan) -> None:
    cases = make_cases(arms=("ddtree",), concurrencies=(1,), num_requests=6, max_new_tokens=24)
    folder = build_run(tmp_path / "run", SyntheticPlan(cases=cases, captures={0: plan}))
    frames = load_run(folder)
    ((key, profile),) = profiles_of(frames).items()
    window = window_of(frames, folder, key, "ddtree", "nsys")
    shown: Counter = Counter()
    for piece in idle_of(window, rounds_of(window)).itertuples():
        cause = Cause(piece.cause)
        if cause is not Cause.NOTHING:  # after the last op: no part of any round
            name = device_time.STAGE_CAUSES[piece.stage] if cause is Cause.STAGE else SAME[cause]
            shown[name] += piece.end_ns - piece.start_ns
    found = profile.device_time
    assert isinstance(found, device_time.DeviceTime)
    assert dict(shown) == found.causes
    assert len(shown) >= 3
