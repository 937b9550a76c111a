"""[part] How a round's work is launched."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ddbench.engine.batch import Batch
from ddbench.engine.probe import Probe
from ddbench.engine.types import Part

Round = Callable[[Batch, Probe], torch.Tensor]


class EagerExecutor(Part):
    """Operation by operation, from Python."""

    def __call__(self, round_: Round, batch: Batch, probe: Probe) -> torch.Tensor:
        """Run one round or step; -> its report on the device."""
        return round_(batch, probe)


EXECUTORS = {"eager": EagerExecutor}
