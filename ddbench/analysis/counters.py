"""The counter table: exact whole numbers of a case, free of noise, and which way each of them is better.

What a gate holds first: a counter that differs differs, on any machine, without statistics. Counters come from three
places: what the clean pass emitted and verified (`harness/observe.py`), what the engine asked of torch in a short
counted pass (`harness/op_counts.py`), and the fewest bytes of each stage, from the shapes (`stage_costs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddbench.records import NotMeasured, OkResult

Direction = Literal["lower", "higher", "equal"]


@dataclass(frozen=True, slots=True)
class Counter:
    """One row of the table; a name may carry a stage behind a dot: `torch_ops.verify`."""

    name: str
    title: str
    direction: Direction  # which way is better; `equal`: any change is one of behaviour
    meaning: str
    unit: Literal["count", "bytes", "flop"] = "count"
    is_work: bool = False  # what a round has to do: more of it explains a dearer round
    per: str = ""  # the counter that it grows with; set against it, fewer rounds do not pass for less work in each
    given: tuple[str, ...] = ()  # counters that must be equal before it means the same: the cause has rows of its own
    why_given: str = ""


# What the rounds of a case were: where one of these differs, so does what its typical round holds.
_ROUNDS = (
    "num_requests",
    "num_rounds",
    "num_steps",
    "nodes_verified",
    "tokens_accepted",
    "tokens_emitted",
    "identity_paths",
)
_OTHER_ROUNDS = "of a typical round, and the rounds themselves are others"
_OTHER_COUNT = "summed over the counted rounds, of which there are not as many"

COUNTERS: dict[str, Counter] = {
    counter.name: counter
    for counter in (
        Counter("num_requests", "Requests", "equal", "requests of a clean pass"),
        Counter("tokens_emitted", "Tokens emitted", "equal", "output tokens of a clean pass, first tokens included"),
        Counter("tokens_repeated", "Tokens repeated", "equal", "emitted tokens that complete a 4-gram seen before"),
        Counter(
            "tokens_accepted", "Tokens accepted", "higher", "drafted tokens accepted, before any cut", per="num_rounds"
        ),
        Counter("num_rounds", "Rounds", "lower", "rounds, counted once per request that they serve"),
        Counter("num_steps", "Steps", "lower", "rounds of the whole batch"),
        Counter(
            "nodes_verified",
            "Nodes verified",
            "lower",
            "drafted tokens that the target looked at",
            is_work=True,
            per="num_rounds",
        ),
        Counter(
            "identity_paths",
            "Identity paths",
            "higher",
            "rounds whose accepted path moves no cache row",
            per="num_rounds",
        ),
        Counter("jit_compilations", "JIT compilations", "lower", "Triton kernels compiled within the timed passes"),
        Counter("graph_captures", "Graph captures", "lower", "CUDA graphs captured within the timed passes"),
        Counter("graph_replays", "Graph replays", "lower", "CUDA graphs launched in the timed passes", per="num_steps"),
        Counter("eager_rounds", "Eager rounds", "lower", "rounds without the graph that was asked for"),
        Counter(
            "counted_steps",
            "Counted steps",
            "equal",
            "rounds of the whole batch in the counted pass",
            given=_ROUNDS,
            why_given="follows from the rounds, which are others",
        ),
        Counter(
            "torch_ops",
            "Torch ops",
            "lower",
            "ops that the rounds of the counted pass dispatched",
            is_work=True,
            per="counted_steps",
            given=("counted_steps",),
            why_given=_OTHER_COUNT,
        ),
        Counter(
            "host_reads",
            "Host reads",
            "lower",
            "times that those rounds read a value back to the host",
            is_work=True,
            per="counted_steps",
            given=("counted_steps",),
            why_given=_OTHER_COUNT,
        ),
        Counter(
            "min_bytes",
            "Fewest bytes",
            "lower",
            "fewest bytes of a typical round, from the shapes",
            unit="bytes",
            is_work=True,
            given=_ROUNDS,
            why_given=_OTHER_ROUNDS,
        ),
        Counter(
            "min_flops",
            "Flops",
            "lower",
            "flops of a typical round, from the shapes",
            unit="flop",
            is_work=True,
            given=_ROUNDS,
            why_given=_OTHER_ROUNDS,
        ),
    )
}


def counter(name: str) -> Counter:
    """The row of `torch_ops.verify` is that of `torch_ops`; a counter that has no row must stay equal."""
    own = name.partition(".")[0]
    return COUNTERS.get(own, Counter(own, own.replace("_", " "), "equal", "not in the counter table"))


def counters_of(result: OkResult) -> Mapping[str, int]:
    """Every exact number of a case by name."""
    found = dict(result.counters)
    for cost in result.stage_costs:
        found[f"min_bytes.{cost.stage}"] = cost.num_bytes
        found[f"min_flops.{cost.stage}"] = cost.num_flops
    return found


def agreed_counters(results: Sequence[OkResult]) -> dict[str, int | NotMeasured]:
    """Counters that every repeat gives alike; one that differs, or is not there every time, is no exact number."""
    found = [counters_of(result) for result in results]
    names = sorted({name for counters in found for name in counters})
    return {name: _agreed([counters.get(name) for counters in found]) for name in names}


def _agreed(values: Sequence[int | None]) -> int | NotMeasured:
    if len(set(values)) == 1 and values[0] is not None:
        return values[0]
    shown = ", ".join(sorted({"absent" if value is None else str(value) for value in values}))
    return NotMeasured(not_measured=f"differs between repeats of the same code: {shown}")
