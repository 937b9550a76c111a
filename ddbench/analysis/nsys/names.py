"""How NVTX ranges are called: the one spelling for the probe that opens them and for the analysis that finds them.

Stage ranges carry exactly the value of their `Stage`; the range around one round of the batch is `round/<step>`; the
range around all rounds that a capture tells of is `window`, with the device idle where it opens and where it closes.
All lie in the domain `ddbench`, so that a library's own range called `verify` is nobody's stage.
"""

from __future__ import annotations

import re

from ddbench.engine.stages import Stage

DOMAIN = "ddbench"
WINDOW = "window"
STAGE_NAMES: tuple[str, ...] = tuple(stage.value for stage in Stage)
_ROUND = re.compile(r"round/(0|[1-9][0-9]{0,17})")


def stage_range(stage: Stage) -> str:
    return stage.value


def round_range(step: int) -> str:
    """Name of the range around the round of the batch with index `step`, as in the step records."""
    assert 0 <= step < 10**18, "a step is an index"
    return f"round/{step}"


def parse_stage(name: str) -> Stage | None:
    """The stage that a range of our domain stands for; None: it is no stage's."""
    return Stage(name) if name in STAGE_NAMES else None


def parse_round(name: str) -> int | None:
    """The step of a round range; None: it is no round's."""
    found = _ROUND.fullmatch(name)
    return int(found.group(1)) if found else None
