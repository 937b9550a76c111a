"""`ddbench bench-ops` with a slowdown planted in one op, to see that a gate finds it. Works on a CPU too.

    python tests/gpu/planted.py OP [--percent 5] [--how wait|longer] -- BENCH-OPS ARGUMENTS...

wait: after every call of our implementations of the op the device is kept busy for that share of the call's own time.
On a GPU that is one more kernel in the graph, so the counter of launches is one up: gate with `--only timings` to see
that the time alone fails. What it takes by itself is part of what is planted; a share that is less is not planted.
longer: the context behind the same shape's name is that much longer, where an op has one: the same kernels, as many
launches, the shape's own cost, only more work.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout's own, whatever is installed

from ddbench.cli import main
from ddbench.opbench.shapes import BenchOp, Call, Implementation, Inputs, Place, clone_set
from ddbench.opbench.table import BENCH_OPS
from ddbench.opbench.timing import Budget, time_calls, watch_of

BUDGET = Budget(seconds=0.05)
CYCLES = (20_000, 100_000)  # of the two waits that tell how long a cycle is


def say(text: str) -> None:
    sys.stdout.write(f"planted: {text}\n")
    sys.stdout.flush()


def seconds_of(call: Call, device: str, has_host_sync: bool = False) -> float:
    """Per call, with a hot cache: on a GPU inside a graph, as `bench-ops` has it."""
    watch = watch_of(device, 1 << 20)  # nothing is driven out of a cache here
    call()
    return time_calls(watch, [call], BUDGET, is_cold=False, needs_flush=False, has_host_sync=has_host_sync).median


# ---------------------------------------------------------------------------------------------------------------- wait


@cache
def wait_law() -> tuple[float, float]:
    """Seconds of a wait of no cycles (one node of a graph), and of each cycle."""
    short, long = (seconds_of(partial(torch.cuda._sleep, cycles), "cuda") for cycles in CYCLES)
    per_cycle = (long - short) / (CYCLES[1] - CYCLES[0])
    return short - per_cycle * CYCLES[0], per_cycle


def waiting(seconds: float, device: str) -> Call | None:
    """A call that keeps the device busy for so long, its own launch included; None where that alone is longer."""
    if device == "cpu":
        return partial(spin, seconds)
    launch, per_cycle = wait_law()
    if seconds < launch:
        return None
    return partial(torch.cuda._sleep, round((seconds - launch) / per_cycle))


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@dataclass(frozen=True)
class Waiting:
    """`prepare` of an implementation with a wait behind every call."""

    op: str
    inner: Implementation
    share: float
    waits: dict[tuple[Any, ...], Call | None]  # by the sizes of the inputs: all sets of a shape get the same

    def __call__(self, inputs: Inputs) -> Call:
        call = self.inner.prepare(inputs)
        sizes = tuple((name, *value.shape) for name, value in inputs.items() if isinstance(value, torch.Tensor))
        if sizes not in self.waits:
            self.waits[sizes] = self.measured(inputs)
        wait = self.waits[sizes]
        if wait is None:
            return call

        def both() -> Any:
            result = call()
            wait()
            return result

        return both

    def measured(self, inputs: Inputs) -> Call | None:
        """The wait that takes the share of a call. On a copy: some calls move their inputs."""
        device = next(value.device.type for value in inputs.values() if isinstance(value, torch.Tensor))
        seconds = seconds_of(self.inner.prepare(clone_set(inputs)), device, self.inner.has_host_sync)
        wait = waiting(self.share * seconds, device)
        much = f"{1e6 * self.share * seconds:.2f} us"
        what = f"{much} behind" if wait is not None else f"nothing, {much} would be less than a launch takes, behind"
        say(f"{self.op} {self.inner.name}: {what} {1e6 * seconds:.2f}")
        return wait


def with_wait(op: BenchOp, share: float) -> BenchOp:
    found = tuple(
        replace(one, prepare=Waiting(op.name, one, share, {}), prepare_sets=None) if one.kind != "peer" else one
        for one in op.implementations
    )
    return replace(op, implementations=found)


# -------------------------------------------------------------------------------------------------------------- longer


def with_longer_context(op: BenchOp, share: float) -> BenchOp:
    if not all("context" in shape.dims for shape in op.shapes):
        raise SystemExit(f"{op.name} has no context that could be longer: plant a wait")
    latest: dict[str, int] = {}

    def build(place: Place, seed: int, **dims: int) -> Inputs:
        latest.update(op.cost(op.build(place, seed, **dims)))
        longer = round(dims["context"] * (1 + share))
        say(f"{op.name}: a context of {longer} for {dims['context']}")
        return op.build(place, seed, **{**dims, "context": longer})

    return replace(op, build=build, cost=lambda inputs: dict(latest))


HOW: dict[str, Callable[[BenchOp, float], BenchOp]] = {"wait": with_wait, "longer": with_longer_context}


def plant(words: Sequence[str]) -> list[str]:
    """Change the table; the arguments that are left are those of `bench-ops`."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog="Behind --: what `ddbench bench-ops` takes."
    )
    parser.add_argument("op", choices=sorted(BENCH_OPS))
    parser.add_argument("--percent", type=float, default=5.0)
    parser.add_argument("--how", choices=sorted(HOW), default="wait")
    end = words.index("--") if "--" in words else len(words)
    asked = parser.parse_args(words[:end])
    BENCH_OPS[asked.op] = HOW[asked.how](BENCH_OPS[asked.op], asked.percent / 100)  # type: ignore[index]
    return list(words[end + 1 :])


if __name__ == "__main__":
    main(["bench-ops", *plant(sys.argv[1:])])
