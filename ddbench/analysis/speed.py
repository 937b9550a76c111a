"""Formulas of the speed metrics: time per token, time to first token, round time, throughput, speedup.

All read the clean pass. The formulas in words stand in the metric table, which is what the report prints.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddbench.analysis import acceptance, stats
from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.values import MILLISECOND, Compute, missing
from ddbench.records import NotMeasured


def _medians(values: np.ndarray, units: np.ndarray) -> dict[str, float]:
    """One value per unit: the median of its values."""
    found: dict[str, list[float]] = {}
    for unit, value in zip(units.tolist(), values.tolist(), strict=True):
        found.setdefault(unit, []).append(value)
    return {unit: own[0] if len(own) == 1 else float(np.median(own)) for unit, own in found.items()}


def tpot_by_unit(setting: Setting, blocks: frozenset[int] | None = None) -> dict[str, float]:
    """Milliseconds per token after the first, one value per prompt (repeats of a prompt: their median)."""
    requests = setting.requests
    if blocks is not None and blocks != setting.blocks:
        requests = requests[requests["block"].isin(blocks)]
    num_tokens = np.array([len(tokens) for tokens in requests["tokens"]], dtype=np.int64)
    spans = requests["last_token_ns"].to_numpy(dtype=np.float64) - requests["first_token_ns"].to_numpy()
    can_tell = num_tokens >= 2
    return _medians(spans[can_tell] / (num_tokens[can_tell] - 1) / MILLISECOND, requests["unit"].to_numpy()[can_tell])


def tpot(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    values = tpot_by_unit(setting)
    if not values:
        return missing("no request emitted two tokens: the time per token needs two")
    return stats.median(list(values.values()))


def ttft(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    requests = setting.requests
    waits = requests["first_token_ns"].to_numpy(dtype=np.float64) - requests["admitted_ns"].to_numpy()
    return stats.median(list(_medians(waits / MILLISECOND, requests["unit"].to_numpy()).values()))


def output_rate(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    tokens = setting.passes["num_emitted"].to_numpy(dtype=np.float64)
    seconds = setting.passes["wall_ns"].to_numpy(dtype=np.float64) / 1e9
    if seconds.sum() <= 0:
        return missing("the clean pass took no time: its clock is broken")
    return stats.ratio_of_sums(tokens, seconds)


def round_time(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    steps = setting.steps
    durations = steps["end_ns"].to_numpy(dtype=np.float64) - steps["start_ns"].to_numpy()
    return stats.median(durations / MILLISECOND, _segments(setting))


def _segments(setting: Setting) -> np.ndarray:
    """Cuts the rounds of every pass into as many contiguous runs as there are prompts: [num steps] run numbers.

    Neighbouring rounds share context lengths and clocks, so they are resampled together.
    """
    steps = setting.steps
    num_segments = max(1, setting.requests["unit"].nunique())
    case_codes, _ = pd.factorize(steps["case_id"])
    passes = case_codes * (int(steps["pass_index"].max()) + 1) + steps["pass_index"].to_numpy()
    _, pass_number, sizes = np.unique(passes, return_inverse=True, return_counts=True)
    order = np.lexsort((steps["step"].to_numpy(), pass_number))
    place = np.empty(len(steps), dtype=np.int64)
    place[order] = np.arange(len(steps)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return pass_number * num_segments + place * num_segments // sizes[pass_number]


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
    theirs, ours = tpot_by_unit(base, blocks), tpot_by_unit(setting, blocks)
    shared = [unit for unit in ours if unit in theirs]
    if not shared:
        return missing(f"no prompt has a time per token both here and in {base.label}")
    if min(min(theirs[unit], ours[unit]) for unit in shared) <= 0:
        return missing("a prompt's time per token is not positive: the clock is too coarse or broken")
    return stats.paired_ratio_of_medians([theirs[unit] for unit in shared], [ours[unit] for unit in shared])


def mean_batch_size(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    steps = setting.steps
    rows = pd.DataFrame({"unit": _segments(setting), "batch_size": steps["batch_size"].to_numpy()})
    return stats.ratio_of_sums(*acceptance.unit_sums(rows, "batch_size", ""))


def peak_memory(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    peaks = [result.peak_memory_bytes for result in setting.results]
    known = [peak for peak in peaks if not isinstance(peak, NotMeasured)]
    if not known:
        return next(peak for peak in peaks if isinstance(peak, NotMeasured))
    return stats.Summary(float(max(known)), None, None, len(known), "a maximum has no interval")
