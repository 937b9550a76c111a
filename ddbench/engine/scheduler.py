"""Which request runs next: first come, first served, `concurrency` of them in flight; and what became of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ddbench.engine.types import Finished, Request


class Scheduler:
    """Host-only bookkeeping of one run."""

    def __init__(self, requests: Sequence[Request], concurrency: int) -> None:
        self._order = [request.request_id for request in requests]
        self._waiting = deque(requests)
        self._finished: dict[int, Finished] = {}
        self.capacity = min(concurrency, len(requests))

    def next(self) -> Request | None:
        """The request that has waited longest leaves the queue; None when nobody waits."""
        return self._waiting.popleft() if self._waiting else None

    def finish(self, finished: Finished) -> None:
        """Keep the result of a request that is done."""
        assert finished.request_id not in self._finished, f"request {finished.request_id} finished twice"
        self._finished[finished.request_id] = finished

    def results(self) -> list[Finished]:
        """All results, in the order in which the requests came."""
        return [self._finished[request_id] for request_id in self._order]
