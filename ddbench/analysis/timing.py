"""Rows of one setting -> what its times are computed from: per prompt, per round, per event. No statistics here.

Between settings and metrics: a setting derives each of these once. Everything reads the clean pass.
Letters: B processes, U prompts, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

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
        return self.values[np.ix_(rows, [self.units.index(unit) for unit in units])]


def by_prompt(requests: pd.DataFrame, values: np.ndarray) -> Table:
    """Repeats of a prompt within a process (passes, or requests for one prompt) count as their median."""
    found: dict[int, dict[str, list[float]]] = {}
    for block, unit, value in zip(requests["block"].tolist(), requests["unit"].tolist(), values.tolist(), strict=True):
        found.setdefault(block, {}).setdefault(unit, []).append(value)
    blocks = tuple(sorted(found))
    own = [found[block] for block in blocks]
    units = tuple(unit for unit in own[0] if all(unit in process for process in own)) if own else ()
    medians = [[_median(process[unit]) for unit in units] for process in own]
    return Table(blocks, units, np.array(medians, dtype=np.float64).reshape(len(own), len(units)))


def _median(values: list[float]) -> float:
    return values[0] if len(values) == 1 else float(np.median(values))


def tpot_by_prompt(requests: pd.DataFrame) -> Table:
    """Milliseconds per token after the first."""
    num_tokens = np.array([len(tokens) for tokens in requests["tokens"]], dtype=np.int64)
    can_tell = num_tokens >= 2
    spans = requests["last_token_ns"].to_numpy(dtype=np.float64) - requests["first_token_ns"].to_numpy()
    return by_prompt(requests[can_tell], spans[can_tell] / (num_tokens[can_tell] - 1) / MILLISECOND)


@dataclass(frozen=True)
class Rounds:
    """The rounds of every pass one after the other."""

    steps: pd.DataFrame  # [N]
    layout: Layout

    @property
    def milliseconds(self) -> np.ndarray:
        ends, starts = (self.steps[name].to_numpy(dtype=np.float64) for name in ("end_ns", "start_ns"))
        return (ends - starts) / MILLISECOND

    @property
    def batch_sizes(self) -> np.ndarray:
        return self.steps["batch_size"].to_numpy(dtype=np.float64)


def rounds_in_order(steps: pd.DataFrame, passes: pd.DataFrame) -> Rounds:
    parts = [
        [of_pass(steps, case_id, index).sort_values("step") for case_id, index, _ in process]
        for process in processes(passes)
    ]
    layout = Layout(tuple(tuple(len(part) for part in process) for process in parts))
    return Rounds(pd.concat([steps.iloc[:0], *(part for process in parts for part in process)]), layout)


def round_costs(rounds: Rounds) -> Stratum:
    """Milliseconds of every round, once for each request that it served, over the requests that it served."""
    return Stratum(rounds.batch_sizes * rounds.milliseconds, rounds.batch_sizes, rounds.layout)


def events(rounds: Rounds, requests: pd.DataFrame, passes: pd.DataFrame) -> tuple[Stratum, Stratum]:
    """Rounds and prefills in order, each with its tokens and the seconds since the event before it.

    So rounds carry the host's gaps and prefills their own time, and all of it adds up to the wall time of the passes.
    """
    of_rounds, of_prefills = [], []
    lengths: list[list[int]] = []
    for process in processes(passes):
        lengths.append([])
        for case_id, index, wall_ns in process:
            own = of_pass(requests, case_id, index)
            split = _split_events(of_pass(rounds.steps, case_id, index), own, wall_ns)
            of_rounds.append(split[0])
            of_prefills.append(split[1])
            lengths[-1].append(len(own))
    first, second = np.concatenate(of_rounds), np.concatenate(of_prefills)
    return (
        Stratum(first[:, 0], first[:, 1], rounds.layout),
        Stratum(second[:, 0], second[:, 1], Layout(tuple(map(tuple, lengths)))),
    )


def _split_events(steps: pd.DataFrame, requests: pd.DataFrame, wall_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, prefills) of one pass: [events, 2] tokens and seconds; the last event takes what is left of the pass."""
    starts = np.sort(requests["first_token_ns"].to_numpy(dtype=np.float64))
    times = np.concatenate([starts, steps["end_ns"].to_numpy(dtype=np.float64)])
    tokens = np.concatenate([np.ones(len(starts)), steps["num_emitted"].to_numpy(dtype=np.float64)])
    order = np.argsort(times, kind="stable")
    ends = np.append(times[order[:-1]], max(float(wall_ns), float(times[order[-1]])))
    seconds = np.empty(len(times))
    seconds[order] = np.diff(ends, prepend=0.0) / 1e9
    events = np.stack([tokens, seconds], axis=1)
    return events[len(starts) :], events[: len(starts)]


def processes(passes: pd.DataFrame) -> list[list[tuple[str, int, int]]]:
    """The passes of every process (case), as (case, pass, wall time)."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    ordered = passes.sort_values(["block", "pass_index"])
    for case_id, index, wall_ns in zip(ordered["case_id"], ordered["pass_index"], ordered["wall_ns"], strict=True):
        found.setdefault(case_id, []).append((case_id, int(index), int(wall_ns)))
    return list(found.values())


def of_pass(table: pd.DataFrame, case_id: str, pass_index: int) -> pd.DataFrame:
    return table[((table["case_id"] == case_id) & (table["pass_index"] == pass_index)).to_numpy(dtype=bool)]
