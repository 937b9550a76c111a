"""How the work of a round reaches the device: what a round's code may ask of its executor.

The round brackets its stages and names the one thing that has to happen on the host; whether that means a kernel
launch, a node of a graph under capture, or a cut between two graphs is the executor's business.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from ddbench.engine.probe import UNOBSERVED, Probe
from ddbench.engine.stages import Stage


class Launch(Protocol):
    """One run of a round's code."""

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        """Brackets one stage."""

    def on_host(self, step: Callable[[], None]) -> None:
        """Run `step` on the host when all work before it is done; work after it sees its effects."""


class EagerLaunch:
    """Operation by operation, as the code runs."""

    def __init__(self, probe: Probe) -> None:
        self.stage = probe.stage

    def on_host(self, step: Callable[[], None]) -> None:
        if torch.cuda.is_initialized():  # an engine on the CPU leaves a GPU alone
            torch.cuda.current_stream().synchronize()
        step()


AT_ONCE = EagerLaunch(UNOBSERVED)
