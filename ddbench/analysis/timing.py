"""Rows of one setting -> what its times are computed from: per prompt, per round, per event. No statistics here.

Between settings and metrics: a setting derives each of these once. Everything reads the clean pass.
Letters: B processes, U prompts, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddbench.analysis.columns import Columns, pairs
from ddbench.analysis.series import Layout, Stratum

MILLISECOND = 1e6  # ns


@dataclass(frozen=True)
class Table:
    """One value per process and prompt; prompts that some process did not measure are left out."""

    blocks: tuple[int, ...]
    units: tuple[str, ...]
    values: np.ndarray  # [B, U]

    def of(self, blocks: frozenset[int], units: list[str]) -> np.ndarray:
        """The values of some processes and prompts: [some B, some U]."""
        rows = [place for place, block in enumerate(self.blocks) if block in blocks]
        columns = {unit: place for place, unit in enumerate(self.units)}
        return self.values[np.ix_(rows, [columns[unit] for unit in units])]

    def shared_with(self, other: Table) -> list[str]:
        """The prompts that both have, in this one's order."""
        theirs = set(other.units)
        return [unit for unit in self.units if unit in theirs]


def _by_prompt(of_block: np.ndarray, of_unit: np.ndarray, values: np.ndarray) -> Table:
    """Repeats of a prompt within a process (passes, or requests for one prompt) count as their median."""
    found: dict[int, dict[str, list[float]]] = {}
    for block, unit, value in zip(of_block.tolist(), of_unit.tolist(), values.tolist(), strict=True):
        found.setdefault(block, {}).setdefault(unit, []).append(value)
    blocks = tuple(sorted(found))
    own = [found[block] for block in blocks]
    units = tuple(unit for unit in own[0] if all(unit in process for process in own)) if own else ()
    medians = [[_median(process[unit]) for unit in units] for process in own]
    return Table(blocks, units, np.array(medians, dtype=np.float64).reshape(len(own), len(units)))


def _median(values: list[float]) -> float:
    return values[0] if len(values) == 1 else float(np.median(values))


def tpot_by_prompt(requests: Columns) -> Table:
    """Milliseconds per token after the first."""
    num_tokens = np.array([len(tokens) for tokens in requests["tokens"]], dtype=np.int64)
    can_tell = num_tokens >= 2
    spans = requests["last_token_ns"].astype(np.float64) - requests["first_token_ns"]
    per_token = spans[can_tell] / (num_tokens[can_tell] - 1) / MILLISECOND
    return _by_prompt(requests["block"][can_tell], requests["unit"][can_tell], per_token)


def ttft_by_prompt(requests: Columns) -> Table:
    """Milliseconds from admission to the first token."""
    waits = requests["first_token_ns"].astype(np.float64) - requests["admitted_ns"]
    return _by_prompt(requests["block"], requests["unit"], waits / MILLISECOND)


@dataclass(frozen=True)
class Rounds:
    """The rounds of every pass one after the other."""

    batch_sizes: np.ndarray  # [N]
    num_emitted: np.ndarray  # [N]
    start_ns: np.ndarray  # [N]
    end_ns: np.ndarray  # [N]
    layout: Layout

    @cached_property
    def milliseconds(self) -> np.ndarray:
        return (self.end_ns - self.start_ns) / MILLISECOND


def rounds_in_order(steps: Columns, passes: Columns) -> Rounds:
    place = steps["step"]
    parts = [[rows[np.argsort(place[rows], kind="stable")] for rows in process] for process in _rows(steps, passes)]
    order = np.concatenate([np.zeros(0, dtype=np.int64), *(rows for process in parts for rows in process)])
    columns = (steps[name][order].astype(np.float64) for name in ("batch_size", "num_emitted", "start_ns", "end_ns"))
    batch_sizes, num_emitted, start_ns, end_ns = columns
    layout = Layout(tuple(tuple(len(rows) for rows in process) for process in parts))
    return Rounds(batch_sizes, num_emitted, start_ns, end_ns, layout)


def round_costs(rounds: Rounds) -> Stratum:
    """Milliseconds of every round, once for each request that it served, over the requests that it served."""
    return Stratum(rounds.batch_sizes * rounds.milliseconds, rounds.batch_sizes, rounds.layout)


def steady_rounds(rounds: Rounds) -> tuple[np.ndarray, Layout]:
    """Milliseconds of the rounds of a full batch, the largest there is, that begin where the one before them ended.

    Those the host launched while the device had the one before. It reads a round first where a request may end with it,
    and the device waits meanwhile: such a round says little about the device.
    """
    bounds = list(pairs(np.cumsum([0, *rounds.layout.passes])))
    is_steady = rounds.batch_sizes == rounds.batch_sizes.max(initial=0)
    is_steady[1:] &= rounds.start_ns[1:] == rounds.end_ns[:-1]
    is_steady[[begin for begin, end in bounds if begin < end]] = False  # none stands before the first of a pass
    counts = iter([int(is_steady[begin:end].sum()) for begin, end in bounds])
    processes = ([next(counts) for _ in process] for process in rounds.layout.lengths)
    lengths = (tuple(count for count in process if count) for process in processes)  # what has none is not drawn from
    return rounds.milliseconds[is_steady], Layout(tuple(process for process in lengths if process))


def events(rounds: Rounds, requests: Columns, passes: Columns) -> tuple[Stratum, Stratum]:
    """Rounds and prefills in order, each with its tokens and the seconds since the event before it.

    So rounds carry the host's gaps and prefills their own time, and all of it adds up to the wall time of the passes.
    """
    of_rounds, of_prefills = [], []
    first_tokens = requests["first_token_ns"].astype(np.float64)
    walls = [wall_ns for process in processes(passes) for _, _, wall_ns in process]
    own = _rows(requests, passes)
    bounds = pairs(np.cumsum([0, *rounds.layout.passes]))
    for (begin, end), rows, wall_ns in zip(bounds, (rows for one in own for rows in one), walls, strict=True):
        split = _split_events(rounds.end_ns[begin:end], rounds.num_emitted[begin:end], first_tokens[rows], wall_ns)
        of_rounds.append(split[0])
        of_prefills.append(split[1])
    first, second = np.concatenate(of_rounds), np.concatenate(of_prefills)
    return (
        Stratum(first[:, 0], first[:, 1], rounds.layout),
        Stratum(second[:, 0], second[:, 1], Layout(tuple(tuple(map(len, process)) for process in own))),
    )


def _split_events(
    end_ns: np.ndarray, emitted: np.ndarray, first_tokens: np.ndarray, wall_ns: int
) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, prefills) of one pass: [events, 2] tokens and seconds; the last event takes what is left of the pass."""
    starts = np.sort(first_tokens)
    times = np.concatenate([starts, end_ns])
    tokens = np.concatenate([np.ones(len(starts)), emitted])
    order = np.argsort(times, kind="stable")
    ends = np.append(times[order[:-1]], max(float(wall_ns), float(times[order[-1]])))
    seconds = np.empty(len(times))
    seconds[order] = np.diff(ends, prepend=0.0) / 1e9
    events = np.stack([tokens, seconds], axis=1)
    return events[len(starts) :], events[: len(starts)]


def processes(passes: Columns) -> list[list[tuple[str, int, int]]]:
    """The passes of every process (case), as (case, pass, wall time)."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    case_ids, index, wall_ns = (passes[name] for name in ("case_id", "pass_index", "wall_ns"))
    for row in np.lexsort((index, passes["block"])):
        found.setdefault(case_ids[row], []).append((case_ids[row], int(index[row]), int(wall_ns[row])))
    return list(found.values())


def _rows(table: Columns, passes: Columns) -> list[list[np.ndarray]]:
    """The rows of every pass of every process, in the table's order."""
    cases, index, numbers = table.codes("case_id"), table["pass_index"], table.numbers("case_id")
    return [
        [np.flatnonzero((cases == numbers.get(case_id, -1)) & (index == number)) for case_id, number, _ in process]
        for process in processes(passes)
    ]
