"""Formulas of the speed metrics: time per token, time to first token, round time, throughput, speedup.

All read the clean pass. The formulas in words stand in the metric table, which is what the report prints.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddbench.analysis import acceptance, series, stats
from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.timing import events, steady_rounds
from ddbench.analysis.values import Compute, missing
from ddbench.records import NotMeasured

NO_SHARED_PROMPT = "no prompt was timed in every process"


def tpot(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    if not len(setting.tpot.values):
        return missing("no request emitted two tokens: the time per token needs two")
    return stats.median(setting.tpot.values) if setting.tpot.units else missing(NO_SHARED_PROMPT)


def ttft(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    return stats.median(setting.ttft.values) if setting.ttft.units else missing(NO_SHARED_PROMPT)


def output_rate(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    requests, passes = setting.requests, setting.passes
    tokens, wall_ns = passes["num_emitted"].sum(), passes["wall_ns"].sum()
    if wall_ns <= 0:
        return missing("the clean pass took no time: its clock is broken")
    value = float(tokens / (wall_ns / 1e9))
    if not len(setting.steps):
        return stats.Summary(value, None, None, 0, "no rounds: nothing to resample")
    summary = series.ratio_of_sums(events(setting.ordered, requests, passes), "rounds")
    return replace(summary, value=value)  # the same unless the book-keeping is broken, which has a check of its own


def round_time(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    return series.median(setting.ordered.milliseconds, setting.ordered.layout, "rounds")


def steady_round_time(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    values, layout = steady_rounds(setting.ordered)
    if not values.size:
        return missing("no round of a full batch began where the one before it ended: the host did not run ahead")
    return series.median(values, layout, "rounds")


def round_cost(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    return series.ratio_of_sums((setting.round_costs,), "rounds")


def mean_batch_size(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    sizes = setting.ordered.batch_sizes
    return series.ratio_of_sums((series.Stratum(sizes, np.ones(len(sizes)), setting.ordered.layout),), "rounds")


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
    shared = setting.tpot.shared_with(base.tpot)
    over, under = base.tpot.of(blocks, shared), setting.tpot.of(blocks, shared)
    if not shared or over.shape != under.shape:
        return missing(f"no prompt has a time per token both here and in {base.label}")
    if min(over.min(), under.min()) <= 0:
        return missing("a prompt's time per token is not positive: the clock is too coarse or broken")
    return stats.paired_ratio_of_medians(over, under)


def round_cost_ratio(setting: Setting, base: Setting) -> stats.Summary | NotMeasured:
    """What a round costs a request in `setting` over what it costs in `base`."""
    ours, theirs = setting.round_costs, base.round_costs
    if min(one.numerators.sum() for one in (ours, theirs)) <= 0:
        return missing("the rounds took no time: the clock is too coarse or broken")
    return series.ratio_of_ratios(ours, theirs, "rounds")


def length_ratio(setting: Setting, base: Setting) -> stats.Summary | NotMeasured:
    """tau of `setting` over tau of `base`, pooled over the prompts they share."""
    ours, theirs = emitted_and_rounds(setting), emitted_and_rounds(base)
    shared = [unit for unit in ours if unit in theirs]
    if not shared:
        return missing(f"no prompt has rounds both here and in {base.label}")
    over, under = (np.array([sums[unit] for unit in shared]).T for sums in (ours, theirs))
    return stats.paired_ratio_of_ratios((over[0], over[1]), (under[0], under[1]))


def emitted_and_rounds(setting: Setting) -> dict[str, tuple[float, float]]:
    """Prompt -> (tokens that its rounds emitted, number of rounds)."""
    emitted, counts = acceptance.prompt_sums(setting, "num_emitted", "")
    return dict(zip(setting.prompts[1], zip(emitted.tolist(), counts.tolist(), strict=True), strict=True))


def peak_memory(setting: Setting, study: Study) -> stats.Summary | NotMeasured:
    peaks = [result.peak_memory_bytes for result in setting.results]
    known = [peak for peak in peaks if not isinstance(peak, NotMeasured)]
    if not known:
        return next(peak for peak in peaks if isinstance(peak, NotMeasured))
    return stats.Summary(float(max(known)), None, None, len(known), "maximum: it has no interval")
