"""Formulas of the speed metrics: time per token, time to first token, round time, throughput, speedup.

All read the clean pass. The formulas in words stand in the metric table, which is what the report prints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ddbench.analysis import acceptance, series, stats
from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.values import MILLISECOND, Compute, missing
from ddbench.records import NotMeasured


@dataclass(frozen=True)
class Table:
    """One value per process and prompt; prompts that some process did not measure are left out."""

    units: tuple[str, ...]
    values: np.ndarray  # [B processes, U prompts]


def _by_process_and_unit(requests: pd.DataFrame, values: np.ndarray) -> Table:
    """Repeats of a prompt within a process (passes, or requests for one prompt) count as their median."""
    found: dict[int, dict[str, list[float]]] = {}
    for block, unit, value in zip(requests["block"].tolist(), requests["unit"].tolist(), values.tolist(), strict=True):
        found.setdefault(block, {}).setdefault(unit, []).append(value)
    own = [found[block] for block in sorted(found)]
    units = tuple(unit for unit in own[0] if all(unit in process for process in own)) if own else ()
    medians = [[_median(process[unit]) for unit in units] for process in own]
    return Table(units, np.array(medians, dtype=np.float64).reshape(len(own), len(units)))


def _median(values: list[float]) -> float:
    return values[0] if len(values) == 1 else float(np.median(values))


def tpot_table(setting: Setting, blocks: frozenset[int] | None = None) -> Table:
    """Milliseconds per token after the first."""
    requests = setting.requests
    if blocks is not None and blocks != setting.blocks:
        requests = requests[requests["block"].isin(blocks)]
    num_tokens = np.array([len(tokens) for tokens in requests["tokens"]], dtype=np.int64)
    can_tell = num_tokens >= 2
    spans = requests["last_token_ns"].to_numpy(dtype=np.float64) - requests["first_token_ns"].to_numpy()
    return _by_process_and_unit(requests[can_tell], spans[can_tell] / (num_tokens[can_tell] - 1) / MILLISECOND)


def tpot(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    table = tpot_table(setting)
    if not len(table.values):
        return missing("no request emitted two tokens: the time per token needs two")
    if not table.units:
        return missing("no prompt was timed in every process")
    return stats.median(table.values)


def ttft(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    requests = setting.requests
    waits = requests["first_token_ns"].to_numpy(dtype=np.float64) - requests["admitted_ns"].to_numpy()
    table = _by_process_and_unit(requests, waits / MILLISECOND)
    return stats.median(table.values) if table.units else missing("no prompt was timed in every process")


# --- what happens in a row --------------------------------------------------------------------------------------------


def output_rate(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    """Tokens per second over whole passes; every event of a pass (a first token, a round) brings tokens and takes time.

    An event takes the time since the event before it, so that rounds carry the host's gaps and prefills their own
    time, and all of it adds up to the wall time of the passes.
    """
    tokens, wall_ns = setting.passes["num_emitted"].sum(), setting.passes["wall_ns"].sum()
    if wall_ns <= 0:
        return missing("the clean pass took no time: its clock is broken")
    value = float(tokens / (wall_ns / 1e9))
    if setting.steps.empty:
        return stats.Summary(value, None, None, 0, "no rounds: nothing to resample")
    rounds, prefills = _events(setting)
    summary = series.ratio_of_sums((rounds, prefills), "rounds")
    return replace(summary, value=value)  # the same unless the book-keeping is broken, which has a check of its own


def _events(setting: Setting) -> tuple[series.Stratum, series.Stratum]:
    """Rounds and prefills in order, each with its tokens and the seconds since the event before it."""
    parts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])  # per pass [events, 2]
    lengths: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
    for process in _processes(setting):
        for kind in (0, 1):
            lengths[kind].append(())
        for case_id, pass_index, wall_ns in process:
            steps, requests = (_of_pass(table, case_id, pass_index) for table in (setting.steps, setting.requests))
            split = _split_events(steps.sort_values("step"), requests, wall_ns)
            for kind in (0, 1):
                parts[kind].append(split[kind])
                lengths[kind][-1] += (len(split[kind]),)
    rows = [np.concatenate(own) for own in parts]
    first, second = (
        series.Stratum(own[:, 0], own[:, 1], series.Layout(tuple(sizes)))
        for own, sizes in zip(rows, lengths, strict=True)
    )
    return first, second


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


def _processes(setting: Setting) -> list[list[tuple[str, int, int]]]:
    """The passes of every process (case), as (case, pass, wall time)."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    passes = setting.passes.sort_values(["block", "pass_index"])
    for case_id, index, wall_ns in zip(passes["case_id"], passes["pass_index"], passes["wall_ns"], strict=True):
        found.setdefault(case_id, []).append((case_id, int(index), int(wall_ns)))
    return list(found.values())


def _of_pass(table: pd.DataFrame, case_id: str, pass_index: int) -> pd.DataFrame:
    return table[((table["case_id"] == case_id) & (table["pass_index"] == pass_index)).to_numpy(dtype=bool)]


def _rounds_in_order(setting: Setting) -> tuple[pd.DataFrame, series.Layout]:
    """The rounds of every pass one after the other."""
    parts = [
        [_of_pass(setting.steps, case_id, index).sort_values("step") for case_id, index, _ in process]
        for process in _processes(setting)
    ]
    layout = series.Layout(tuple(tuple(len(part) for part in process) for process in parts))
    return pd.concat([part for process in parts for part in process]), layout


def round_time(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    steps, layout = _rounds_in_order(setting)
    durations = steps["end_ns"].to_numpy(dtype=np.float64) - steps["start_ns"].to_numpy()
    return series.median(durations / MILLISECOND, layout, "rounds")


def mean_batch_size(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    steps, layout = _rounds_in_order(setting)
    sizes = steps["batch_size"].to_numpy(dtype=np.float64)
    return series.ratio_of_sums((series.Stratum(sizes, np.ones(len(sizes)), layout),), "rounds")


# --- one setting against another --------------------------------------------------------------------------------------


def speedup(arm: str) -> Compute:
    def compute(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
        base = study.counterpart(setting, arm)
        return base if isinstance(base, NotMeasured) else tpot_ratio(base, setting)

    return compute


def tpot_ratio(base: Setting, setting: Setting) -> stats.Summary | NotMeasured:
    """median TPOT of `base` over median TPOT of `setting`, over the prompts and interleaved repeats they share."""
    blocks = base.blocks & setting.blocks
    if not blocks:
        return missing(f"no interleaved repeat holds both this case and {base.label}")
    theirs, ours = tpot_table(base, blocks), tpot_table(setting, blocks)
    shared = [unit for unit in ours.units if unit in theirs.units]
    if not shared or len(ours.values) != len(theirs.values):
        return missing(f"no prompt has a time per token both here and in {base.label}")
    over, under = (table.values[:, [table.units.index(unit) for unit in shared]] for table in (theirs, ours))
    if min(over.min(), under.min()) <= 0:
        return missing("a prompt's time per token is not positive: the clock is too coarse or broken")
    return stats.paired_ratio_of_medians(over, under)


def round_cost(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    return series.ratio_of_sums((_round_costs(setting),), "rounds")


def _round_costs(setting: Setting) -> series.Stratum:
    """Milliseconds of every round, once for each request that it served, over the requests that it served."""
    steps, layout = _rounds_in_order(setting)
    milliseconds = (steps["end_ns"].to_numpy(dtype=np.float64) - steps["start_ns"].to_numpy()) / MILLISECOND
    sizes = steps["batch_size"].to_numpy(dtype=np.float64)
    return series.Stratum(sizes * milliseconds, sizes, layout)


def round_cost_ratio(setting: Setting, base: Setting) -> stats.Summary | NotMeasured:
    """What a round costs a request in `setting` over what it costs in `base`."""
    ours, theirs = _round_costs(setting), _round_costs(base)
    if min(one.numerators.sum() for one in (ours, theirs)) <= 0:
        return missing("the rounds took no time: the clock is too coarse or broken")
    return series.ratio_of_ratios(ours, theirs, "rounds")


def length_ratio(setting: Setting, base: Setting) -> stats.Summary | NotMeasured:
    """tau of `setting` over tau of `base`, pooled over the prompts they share."""
    ours, theirs = _emitted_and_rounds(setting), _emitted_and_rounds(base)
    shared = [unit for unit in ours if unit in theirs]
    if not shared:
        return missing(f"no prompt has rounds both here and in {base.label}")
    over, under = (np.array([sums[unit] for unit in shared]).T for sums in (ours, theirs))
    return stats.paired_ratio_of_ratios((over[0], over[1]), (under[0], under[1]))


def _emitted_and_rounds(setting: Setting) -> dict[str, tuple[float, float]]:
    """Prompt -> (tokens that its rounds emitted, number of rounds)."""
    emitted, counts = acceptance.unit_sums(setting.rounds, "num_emitted", "")
    units = pd.factorize(setting.rounds["unit"])[1]
    sums = zip(emitted.tolist(), counts.tolist(), strict=True)
    return dict(zip((str(unit) for unit in units), sums, strict=True))


def peak_memory(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    peaks = [result.peak_memory_bytes for result in setting.results]
    known = [peak for peak in peaks if not isinstance(peak, NotMeasured)]
    if not known:
        return next(peak for peak in peaks if isinstance(peak, NotMeasured))
    return stats.Summary(float(max(known)), None, None, len(known), "maximum: it has no interval")
