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


def tpot_by_unit(setting: Setting, blocks: frozenset[int] | None = None) -> pd.Series:
    """Milliseconds per token after the first, one value per prompt (repeats of a prompt: their median)."""
    requests = setting.requests
    if blocks is not None and blocks != setting.blocks:
        requests = requests[requests["block"].isin(blocks)]
    num_tokens = requests["tokens"].map(len).to_numpy(dtype=np.int64)
    spans = (requests["last_token_ns"] - requests["first_token_ns"]).to_numpy(dtype=np.float64)
    can_tell = num_tokens >= 2
    values = spans[can_tell] / (num_tokens[can_tell] - 1) / MILLISECOND
    return pd.Series(values).groupby(requests["unit"].to_numpy()[can_tell], sort=False).median()


def tpot(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    values = tpot_by_unit(setting)
    if values.empty:
        return missing("no request emitted two tokens: the time per token needs two")
    return stats.median(values.to_numpy())


def ttft(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    requests = setting.requests
    waits = (requests["first_token_ns"] - requests["admitted_ns"]) / MILLISECOND
    return stats.median(waits.groupby(requests["unit"].to_numpy(), sort=False).median().to_numpy())


def output_rate(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    tokens = setting.passes["num_emitted"].to_numpy(dtype=np.float64)
    seconds = setting.passes["wall_ns"].to_numpy(dtype=np.float64) / 1e9
    if seconds.sum() <= 0:
        return missing("the clean pass took no time: its clock is broken")
    return stats.ratio_of_sums(tokens, seconds)


def round_time(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    steps = setting.steps
    durations = (steps["end_ns"] - steps["start_ns"]).to_numpy(dtype=np.float64) / MILLISECOND
    return stats.median(durations, _segments(steps, max(1, setting.requests["unit"].nunique())))


def _segments(steps: pd.DataFrame, num_segments: int) -> np.ndarray:
    """Cuts the rounds of every pass into `num_segments` contiguous runs: neighbours share context length and clocks."""
    passes = steps.groupby(["case_id", "pass_index"], sort=False, observed=True)
    pass_number = passes.ngroup().to_numpy()
    place = passes.cumcount().to_numpy() * num_segments // np.maximum(passes["step"].transform("size").to_numpy(), 1)
    return pass_number * num_segments + place


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
    shared = [unit for unit in ours.index if unit in theirs.index]
    if not shared:
        return missing(f"no prompt has a time per token both here and in {base.label}")
    if min(theirs[shared].min(), ours[shared].min()) <= 0:
        return missing("a prompt's time per token is not positive: the clock is too coarse or broken")
    return stats.paired_ratio_of_medians(theirs[shared].to_numpy(), ours[shared].to_numpy())


def mean_batch_size(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    steps = setting.steps
    segments = _segments(steps, max(1, setting.requests["unit"].nunique()))
    return stats.ratio_of_sums(*acceptance.unit_sums(steps.assign(unit=segments), "batch_size", ""))


def peak_memory(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    peaks = [result.peak_memory_bytes for result in setting.results]
    known = [peak for peak in peaks if not isinstance(peak, NotMeasured)]
    if not known:
        return next(peak for peak in peaks if isinstance(peak, NotMeasured))
    return stats.Summary(float(max(known)), None, None, len(known), "a maximum has no interval")
