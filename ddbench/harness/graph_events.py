"""What must not happen while a pass is timed: kernels compiled, graphs captured, rounds run without their graph.

Each of them would be billed to the rounds that happen to be under way, and a round that was asked for as a graph and
ran op by op must not go by the graph's name. Such a case fails, with the cure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddbench.engine.engine import Engine
from ddbench.errors import DdbenchError

_CURES = {
    "jit_compilations": "Triton kernels were compiled within a timed pass: raise num_rehearsals",
    "graph_captures": "graphs were captured within a timed pass: its requests did not fit what the case had reserved",
    "eager_rounds": "rounds ran op by op although graphs were asked for: their shape had not been recorded",
    "prefill_captures": "prefills were captured within a timed pass: its prompts are longer than those reserved for",
    "eager_prefills": "prefills ran op by op although graphs were asked for: their length had not been recorded",
}


class GraphEvents:
    """Counts, from its making on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._at_start = self._counted()
        self.num_compilations = 0

    def counters(self) -> dict[str, int]:
        """What has happened; empty for an engine that could not have compiled or captured."""
        if self._engine.spec.kernels != "triton":
            return {}
        now = self._counted()
        return {"jit_compilations": self.num_compilations} | {name: now[name] - self._at_start[name] for name in now}

    def _counted(self) -> dict[str, int]:
        return self._engine.parts.executor.counters() | self._engine.parts.prefill.counters()

    def check(self) -> None:
        """Raise for the first thing that must not have happened."""
        for name, count in self.counters().items():
            if count and name in _CURES:
                raise DdbenchError(f"{_CURES[name]} ({name}: {count})")


@contextmanager
def watched(engine: Engine) -> Iterator[GraphEvents]:
    """Count what happens within."""
    events = GraphEvents(engine)
    if engine.spec.kernels != "triton":
        yield events
        return
    from triton import knobs

    def compiled(**_: Any) -> None:
        events.num_compilations += 1

    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = compiled
    try:
        yield events
    finally:
        knobs.runtime.jit_post_compile_hook = before
