"""The metric table: what each number is, its unit, which way is better, its formula, and what computes it.

Third step of the analysis (settings -> values). A metric is a function of one setting and of the study that it belongs
to. It gives an `Estimate`, or a `NotMeasured` with the reason; never 0 or NaN in place of a missing value. Speed is
read from the clean pass only. Intervals come from a bootstrap over what `counted` says: prompts, or rounds in blocks of
neighbours; from three interleaved processes on, those are resampled as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddbench.analysis import acceptance, blocks, speed
from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.values import Compute, Counted, Unit, Value, missing, to_estimate


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    title: str
    unit: Unit
    direction: Literal["higher", "lower", "neither"]
    formula: str
    needs: tuple[str, ...]  # tables of a setting that must have rows
    compute: Compute
    needs_draft: bool = False  # has no meaning in an arm that drafts nothing
    counted: Counted = "prompts"  # what n counts and the interval resamples
    per_block: blocks.PerBlock | None = None  # where it can be compared in pairs: its value in every interleaved repeat
    absolute_floor: float = 0.0  # in its unit: a comparison lets no smaller difference count

    @property
    def is_comparable(self) -> bool:
        """Repeats of two sides can be paired, and one of two values is better: comparisons, baselines and gates do."""
        return self.per_block is not None and self.direction != "neither"


HOST_TRIP_MS = 0.02  # what one more host round trip costs a round or a token

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "output_tok_per_s",
            "Output",
            "tok/s",
            "higher",
            "emitted tokens / wall time, both summed over clean passes, prefill and first tokens included; the "
            "interval resamples rounds in blocks of about sqrt(n) neighbours, each with its tokens and the time since "
            "the event before it, and apart from them the prefills",
            ("passes",),
            speed.output_rate,
            counted="rounds",
            per_block=blocks.output_rate,
        ),
        Metric(
            "tpot_ms",
            "TPOT",
            "ms",
            "lower",
            "median over prompts of (last token - first token) / (n - 1), n the emitted tokens of a request, n >= 2; "
            "repeats of one prompt count as their median",
            ("requests",),
            speed.tpot,
            per_block=blocks.tpot,
            absolute_floor=HOST_TRIP_MS,
        ),
        Metric(
            "ttft_ms",
            "TTFT",
            "ms",
            "lower",
            "median over prompts of (first token - admission to the batch): prefill, the prompt's materialize and "
            "waiting for the running round; time in the queue before admission is not part of it",
            ("requests",),
            speed.ttft,
            per_block=blocks.ttft,
            absolute_floor=0.05,  # a prefill is several launches long
        ),
        Metric(
            "round_ms",
            "Round",
            "ms",
            "lower",
            "median duration of a round of the whole batch; the interval resamples rounds in blocks of about sqrt(n) "
            "neighbours",
            ("steps",),
            speed.round_time,
            counted="rounds",
        ),
        Metric(
            "steady_round_ms",
            "Steady round",
            "ms",
            "lower",
            "median duration of a round of a full batch (the largest) that begins where the one before it ends: the "
            "host launched it ahead; the interval as for a round",
            ("steps",),
            speed.steady_round_time,
            counted="rounds",
        ),
        Metric(
            "round_cost_ms",
            "Round cost",
            "ms",
            "lower",
            "mean duration of a round, rounds weighted by the requests they serve: what one more round costs a "
            "request, so that TPOT is about round cost / tau",
            ("steps",),
            speed.round_cost,
            counted="rounds",
            per_block=blocks.round_cost,
            absolute_floor=HOST_TRIP_MS,
        ),
        Metric(
            "acceptance_length",
            "tau",
            "tokens",
            "higher",
            "emitted tokens / rounds, pooled over requests; the prefill token is not counted, tokens that a stop token "
            "or the length limit cut off are not counted",
            ("rounds",),
            acceptance.acceptance_length,
            per_block=blocks.acceptance_length,
        ),
        Metric(
            "acceptance_length_macro",
            "tau macro",
            "tokens",
            "higher",
            "mean over requests of (emitted tokens / rounds of the request): the figure that papers report",
            ("rounds",),
            acceptance.acceptance_length_macro,
        ),
        Metric(
            "acceptance_length_uncut",
            "tau uncut",
            "tokens",
            "higher",
            "1 + accepted drafted tokens / rounds, pooled, before any cut: what draft and target agree on",
            ("rounds",),
            acceptance.acceptance_length_uncut,
        ),
        Metric(
            "acceptance_length_novel",
            "tau novel",
            "tokens",
            "higher",
            "acceptance_length over rounds of which at most half of the emitted tokens complete a 4-gram seen before "
            "in prompt or output",
            ("rounds",),
            acceptance.acceptance_length_of(is_repeated=False),
        ),
        Metric(
            "acceptance_length_repeated",
            "tau repeated",
            "tokens",
            "higher",
            "acceptance_length over the other rounds: those that emitted mostly repeated text",
            ("rounds",),
            acceptance.acceptance_length_of(is_repeated=True),
        ),
        Metric(
            "expected_length",
            "E[tau]",
            "tokens",
            "neither",
            "mean over rounds of 1 + the sum of the draft's path probabilities over the tree's nodes: what the draft "
            "itself expects",
            ("rounds",),
            acceptance.expected_length,
            needs_draft=True,
        ),
        Metric(
            "calibration",
            "tau / E[tau]",
            "x",
            "neither",
            "acceptance_length_uncut / expected_length: below 1 the draft is too sure of itself",
            ("rounds",),
            acceptance.calibration,
            needs_draft=True,
        ),
        Metric(
            "nodes_per_round",
            "Nodes",
            "nodes",
            "neither",
            "mean drafted nodes verified per request and round, the root not counted",
            ("rounds",),
            acceptance.mean_over_rounds("num_nodes"),
            needs_draft=True,
        ),
        Metric(
            "padding_share",
            "Padding",
            "share",
            "lower",
            "verified positions that hold neither root nor node / verified positions",
            ("rounds", "steps"),
            acceptance.padding_share,
        ),
        Metric(
            "identity_path_share",
            "Identity paths",
            "share",
            "higher",
            "rounds whose accepted path is the first nodes in order (no cache row has to move) / rounds",
            ("rounds",),
            acceptance.mean_over_rounds("is_identity_path"),
            needs_draft=True,
        ),
        Metric(
            "degenerate_share",
            "Looping",
            "share",
            "lower",
            "requests whose output loops / requests with at least 16 tokens; it loops if more than 0.3 of its 4-grams "
            "repeat an earlier one and its last max(3 p, 16) tokens have a period p <= 16",
            ("requests",),
            acceptance.degenerate_share,
        ),
        Metric(
            "mean_batch_size",
            "Mean batch",
            "requests",
            "neither",
            "mean requests per round: below the concurrency while the last requests drain",
            ("steps",),
            speed.mean_batch_size,
            counted="rounds",
        ),
        Metric(
            "speedup_vs_ar",
            "vs ar",
            "x",
            "higher",
            "TPOT of ar / TPOT of this case: same target, device, dtype, sampling, executor, workload and "
            "concurrency, over the prompts both ran; prompts are resampled in pairs",
            ("requests",),
            speed.speedup("ar"),
        ),
        Metric(
            "speedup_vs_chain",
            "vs chain",
            "x",
            "higher",
            "TPOT of chain / TPOT of this case, under the same conditions",
            ("requests",),
            speed.speedup("chain"),
        ),
        Metric(
            "peak_memory_bytes",
            "Peak memory",
            "bytes",
            "lower",
            "largest peak memory of the case's processes",
            (),
            speed.peak_memory,
            counted="processes",
        ),
    )
}


def measure(setting: Setting, study: Study) -> dict[str, Value]:
    """Every metric of one setting, by name."""
    return {name: evaluate(metric, setting, study) for name, metric in METRICS.items()}


def measure_all(study: Study) -> Mapping[str, Mapping[str, Value]]:
    """Setting key -> metric name -> value."""
    return {setting.key: measure(setting, study) for setting in study.settings}


def evaluate(metric: Metric, setting: Setting, study: Study) -> Value:
    """One metric of one setting, or why it was not measured."""
    if not setting.is_ok:
        return missing(setting.reason)
    if metric.needs_draft and not setting.has_draft:
        return missing(f"the {setting.arm} arm drafts nothing")
    for table in metric.needs:
        if not len(getattr(setting, table)):
            return missing(f"the clean pass recorded no {table}")
    return to_estimate(metric.compute(setting, study), metric.unit, "clean", metric.counted)
