"""What this machine can do at best: `python -m ddbench.harness.ceilings DEVICE WHEN DTYPE:THREADS...` prints it.

Asked by `bracket.py` before and after the cases of a run; `analysis/roofline.py` sets the cases' times against it. For
every dtype and thread count (0: torch's default): `read` (a reduction) and `copy`, each hot (half of the last-level
cache) and cold (several times it), `matmul` (square, the best of a few sizes), `launch` (the smallest op from the host,
back to back), and on a GPU `replay` (the same op as a node of a replayed graph). On a GPU everything but `launch` is
timed inside a graph: launches take longer than a pass over the L2. Every ceiling is measured in several spells, and the
best of them counts: others may use the machine for a while, and a ceiling is what it can do. Takes about a second.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch

from ddbench.harness.caches import LastLevelCache, last_level_cache
from ddbench.records import CacheLabel, CeilingKind, Ceilings, CeilingSample, NotMeasured, When

Op = Callable[[], Any]
Sampler = Callable[[], list[float]]  # seconds of one call, one value per sample
MB = 1 << 20
NUM_SPELLS = 3
MOST_SAMPLES, FEWEST_SAMPLES = 31, 5  # of a spell
BUDGET_S = 0.02  # for a spell, as far as the fewest samples allow
SAMPLE_S = 0.001  # that a sample lasts at least, so that the clock's own cost does not matter
MATMUL_SIZES: dict[str, tuple[int, ...]] = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192)}
LONG_MATMUL_S = 0.003  # from which on no larger one is tried
# A cold set is so many times the last-level cache, within so many MB as long as that is twice the cache.
COLD_SETS: dict[str, tuple[int, int, int]] = {"cpu": (4, 128, 512), "cuda": (16, 256, 2048)}
HOT_READS = 8  # passes over a hot set by one kernel: a single one is over before a GPU is busy
NUM_LAUNCHES = 300  # in a row, fewer than a CUDA stream takes before it blocks the host


# ----------------------------------------------------------------------------------------------------------- clocks


def host_samples(op: Op) -> list[float]:
    """Seconds per call, warm, by the host's clock."""
    once = min(_host_seconds(op) for _ in range(3))  # the first warms up, and wakes threads that sleep
    num_calls = max(1, round(SAMPLE_S / max(once, 1e-7)))
    samples: list[float] = []
    deadline = time.perf_counter() + BUDGET_S
    while len(samples) < FEWEST_SAMPLES or (len(samples) < MOST_SAMPLES and time.perf_counter() < deadline):
        samples.append(_host_seconds(op, num_calls) / num_calls)
    return samples


def _host_seconds(op: Op, num_calls: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(num_calls):
        op()
    return time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class Replays:
    """An op captured many times over; a call gives seconds per op inside the replayed graph, by events of the device.

    Holds the op too: a graph knows addresses only, and the op's tensors must live as long as it is replayed.
    """

    op: Op
    graph: Any  # torch.cuda.CUDAGraph
    num_calls: int

    def __call__(self) -> list[float]:
        whole = min(_device_seconds(self.graph.replay) for _ in range(2))
        num_samples = max(FEWEST_SAMPLES, min(MOST_SAMPLES, round(BUDGET_S / whole)))
        return [_device_seconds(self.graph.replay) / self.num_calls for _ in range(num_samples)]


def graph_sampler(op: Op, num_calls: int = 0) -> Sampler:
    """Captures the op, as many times as fill a sample."""
    once = min(_device_seconds(op) for _ in range(3))
    num_calls = num_calls or max(1, min(50, round(SAMPLE_S / max(once, 1e-6))))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_calls):
            op()
    return Replays(op, graph, num_calls)


def _device_seconds(op: Op) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    op()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def launch_samples(op: Op) -> list[float]:
    """Seconds that the host takes to launch, while the device is never waited for."""
    samples = []
    for _ in range(FEWEST_SAMPLES + 1):
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        samples.append(_host_seconds(op, NUM_LAUNCHES) / NUM_LAUNCHES)
    return samples[1:]  # the first warms up


# -------------------------------------------------------------------------------------------------------- candidates


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and as what to measure."""

    device: str
    dtype: str
    num_threads: int
    cache: LastLevelCache | NotMeasured

    def sampler(self, op: Op) -> Sampler:
        return graph_sampler(op) if self.device == "cuda" else partial(host_samples, op)

    def working_sets(self) -> dict[CacheLabel, int]:
        """Bytes by cache label; only `cold` where the cache is not known."""
        factor, fewest, most = COLD_SETS[self.device]
        if isinstance(self.cache, NotMeasured):
            return {"cold": self._affordable(most * MB)}
        whole = self.cache.num_bytes
        cold = max(2 * whole, min(max(factor * whole, fewest * MB), most * MB))
        return {"hot": _in_halves(self.cache.reached_by(self.num_threads) // 2), "cold": self._affordable(cold)}

    def _affordable(self, num_bytes: int) -> int:
        is_device = self.device == "cuda"
        free = torch.cuda.mem_get_info()[0] if is_device else psutil.virtual_memory().available
        return _in_halves(min(num_bytes, free // 4))


def _in_halves(num_bytes: int) -> int:
    """Rounded down to two halves of whole cache lines."""
    return num_bytes // 256 * 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to reach a ceiling; the best of all with the same kind and cache counts."""

    kind: CeilingKind
    cache: CacheLabel
    working_set_bytes: int
    amount: float  # bytes or flops of one call; 0: the time of a call is what is asked for
    sampler: Sampler

    def spell(self) -> list[float]:
        """A few samples of the amount."""
        return [self.amount / seconds if self.amount else seconds * 1e9 for seconds in self.sampler()]


def memory_candidates(bench: Bench) -> Iterator[Candidate]:
    """In fp32 whatever the dtype: bytes are bytes, and a sum of bf16 is bound by arithmetic."""
    for cache, size in bench.working_sets().items():
        data = torch.ones(size // 4, device=bench.device)
        num_times = HOT_READS if (bench.device, cache) == ("cuda", "hot") else 1
        rows, totals = data.expand(num_times, -1), torch.empty(num_times, device=bench.device)
        reading = bench.sampler(partial(torch.sum, rows, 1, out=totals))
        yield Candidate("read", cache, size, num_times * size, reading)
        source, place = data.chunk(2)
        yield Candidate("copy", cache, size, size, bench.sampler(partial(place.copy_, source)))


def matmul_candidates(bench: Bench) -> Iterator[Candidate]:
    """Square ones of growing size, up to the first that takes long."""
    dtype = getattr(torch, bench.dtype)
    for size in MATMUL_SIZES[bench.device]:
        left, right = (torch.randn(size, size, device=bench.device).to(dtype) for _ in range(2))
        op = partial(torch.mm, left, right, out=torch.empty_like(left))
        yield Candidate("matmul", "none", 3 * left.nbytes, 2.0 * size**3, bench.sampler(op))
        seconds = _device_seconds if bench.device == "cuda" else _host_seconds
        if min(seconds(op) for _ in range(3)) > LONG_MATMUL_S:
            break


def launch_candidates(bench: Bench) -> Iterator[Candidate]:
    """One op on one element."""
    one = torch.zeros(1, device=bench.device)
    yield Candidate("launch", "none", one.nbytes, 0, partial(launch_samples, partial(one.add_, 1)))
    if bench.device == "cuda":
        yield Candidate("replay", "none", one.nbytes, 0, graph_sampler(partial(one.add_, 1), NUM_LAUNCHES))


# --------------------------------------------------------------------------------------------------------- measuring


def best_spells(candidates: Sequence[Candidate]) -> dict[tuple[CeilingKind, CacheLabel], tuple[Candidate, list[float]]]:
    """Every candidate in turn, several times over; the spell with the best median by kind and cache."""
    best: dict[tuple[CeilingKind, CacheLabel], tuple[Candidate, list[float]]] = {}
    for _ in range(NUM_SPELLS):
        for one in candidates:
            spell = one.spell()
            key = (one.kind, one.cache)
            if key not in best or is_better(one, spell, best[key][1]):
                best[key] = (one, spell)
    return best


def is_better(one: Candidate, spell: Sequence[float], other: Sequence[float]) -> bool:
    """A higher rate, a shorter time."""
    gain = statistics.median(spell) - statistics.median(other)
    return gain > 0 if one.amount else gain < 0


def measure(device: str, when: When, asked: Sequence[tuple[str, int]]) -> Ceilings:
    """All ceilings for every (dtype, threads); what cannot be measured is a fault."""
    cache = last_level_cache(device)
    default_threads = torch.get_num_threads()
    samples: list[CeilingSample] = []
    faults: list[str] = []
    for dtype, threads in asked:
        torch.set_num_threads(threads or default_threads)
        bench = Bench(device, dtype, torch.get_num_threads(), cache)
        for candidates in (memory_candidates, matmul_candidates, launch_candidates):
            try:
                found = best_spells(list(candidates(bench)))
            except (RuntimeError, MemoryError) as error:  # out of memory among them
                first = (str(error).splitlines() or [type(error).__name__])[0]
                faults.append(f"{when} the cases: {candidates.__name__.partition('_')[0]} in {dtype}: {first}")
            else:
                samples += [_sample(bench, when, one, spell) for one, spell in found.values()]
    name = torch.cuda.get_device_properties(0).name if device == "cuda" else "cpu"
    known = cache if isinstance(cache, NotMeasured) else cache.num_bytes
    return Ceilings(device=name, last_level_cache_bytes=known, samples=tuple(samples), faults=tuple(faults))


def _sample(bench: Bench, when: When, one: Candidate, spell: Sequence[float]) -> CeilingSample:
    low, middle, high = statistics.quantiles(spell, n=4, method="inclusive")
    return CeilingSample(
        kind=one.kind,
        cache=one.cache,
        when=when,
        dtype=bench.dtype,
        num_threads=bench.num_threads,
        working_set_bytes=one.working_set_bytes,
        amount=middle,
        low=low,
        high=high,
        num_samples=len(spell),
    )


def main(arguments: Sequence[str]) -> str:
    """The record as JSON."""
    device, when, *pairs = arguments
    assert when in ("before", "after"), when
    asked = [(dtype, int(threads)) for dtype, _, threads in (pair.partition(":") for pair in pairs)]
    return measure(device, when, asked).model_dump_json()  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
