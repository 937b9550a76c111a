"""The engine's one hook for the harness. The engine calls it; what it costs is the harness's business."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from ddbench.engine.stages import Stage
from ddbench.engine.types import RoundOutcome


class Probe(Protocol):
    """Told where the engine is. Host times are read by the probe itself, so that `NullProbe` costs nothing."""

    times_stages: bool  # wants the time of every stage: graphs are recorded with events inside

    def admitted(self, request_id: int) -> None:
        """The request got its batch row: its clock starts."""

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        """Brackets one stage."""

    def recording(self, stage: Stage) -> AbstractContextManager[None]:
        """Brackets what the host does for a stage and what is not timed as it.

        Launches that become nodes of a graph, a step between two graphs, small copies around prefill and commit.
        """

    def timed(self, stage: Stage, duration_ns: int) -> None:
        """A stage within a replayed graph, by the device's clock; it belongs to the round that started last."""

    def first_token(self, request_id: int, token: int) -> None:
        """Prefill is done and its token is on the host."""

    def round_started(self, batch_size: int) -> None:
        """A round (or one autoregressive step) begins for `batch_size` running requests."""

    def committed(self, outcome: RoundOutcome) -> None:
        """The tokens of one round are on the host."""

    def finished(self, request_id: int, reason: str) -> None:
        """The request left the batch: reason `stop` or `length`."""

    def path_used(self, part: str, name: str) -> None:
        """A part that could have chosen another path says which one ran."""


_NOTHING = nullcontext()


class NullProbe:
    """Observes nothing."""

    times_stages = False

    def admitted(self, request_id: int) -> None: ...

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        return _NOTHING

    def recording(self, stage: Stage) -> AbstractContextManager[None]:
        return _NOTHING

    def timed(self, stage: Stage, duration_ns: int) -> None: ...

    def first_token(self, request_id: int, token: int) -> None: ...

    def round_started(self, batch_size: int) -> None: ...

    def committed(self, outcome: RoundOutcome) -> None: ...

    def finished(self, request_id: int, reason: str) -> None: ...

    def path_used(self, part: str, name: str) -> None: ...


UNOBSERVED = NullProbe()
