"""All ops of the benchmark in one table, and the selection that a command asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddbench.errors import UserError, refuse_unknown
from ddbench.opbench.accepting import ACCEPTING
from ddbench.opbench.attention import ATTENTION
from ddbench.opbench.dense import DENSE
from ddbench.opbench.drafting import DRAFTING
from ddbench.opbench.experts import EXPERTS
from ddbench.opbench.fused import FUSED
from ddbench.opbench.materialize import MATERIALIZE
from ddbench.opbench.records import foremost
from ddbench.opbench.shapes import TIERS, BenchOp, Implementation, Shape, Tier

BENCH_OPS: Mapping[str, BenchOp] = {
    op.name: op for op in (*MATERIALIZE, *DRAFTING, *ATTENTION, *EXPERTS, *ACCEPTING, *FUSED, *DENSE)
}


@dataclass(frozen=True, slots=True)
class Point:
    """One op at one shape with the implementations that are to be measured."""

    op: BenchOp
    shape: Shape
    implementations: tuple[Implementation, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for; an empty tuple: everything of the tier. Shapes that are named are taken from any tier.

    `ours_on` a device: only what a gate holds there, see `foremost`; of what is torch's own, the first alone.
    """

    tier: Tier = "default"
    ops: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    ours_on: str | None = None

    def points(self, table: Mapping[str, BenchOp] = BENCH_OPS) -> tuple[Point, ...]:
        """In the table's order. A name that fits nothing is a UserError with what is meant."""
        refuse_unknown("op", self.ops, table)
        ops = [op for op in table.values() if not self.ops or op.name in self.ops]
        refuse_unknown("shape", self.shapes, [shape.name for op in ops for shape in op.shapes])
        refuse_unknown("implementation", self.implementations, [one.name for op in ops for one in op.implementations])
        found = tuple(point for op in ops for point in self._of(op))
        if not found:
            raise UserError("no op has both the shape and the implementation asked for: leave one of them out")
        return found

    def _of(self, op: BenchOp) -> Iterator[Point]:
        wanted = self.implementations
        chosen = tuple(one for one in op.implementations if not wanted or one.name in wanted)
        tiers = TIERS[: TIERS.index(self.tier) + 1]
        for shape in op.shapes:
            is_asked = shape.name in self.shapes if self.shapes else shape.tier in tiers
            found = chosen if self.ours_on is None else _foremost(chosen, shape, self.ours_on)
            if is_asked and found:
                yield Point(op, shape, found)


def _foremost(implementations: tuple[Implementation, ...], shape: Shape, device: str) -> tuple[Implementation, ...]:
    able = [one for one in implementations if one.why_not(shape, device) is None]
    kind = foremost(one.kind for one in able)
    found = tuple(one for one in able if one.kind == kind)
    return found[:1] if kind == "peer" else found
