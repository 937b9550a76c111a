"""The counter table: exact whole numbers of a case, free of noise, and which way each of them is better.

What a gate holds first: a counter that differs differs, on any machine, without statistics. Counters come from three
places: what the clean pass emitted and verified (`harness/observe.py`), what the engine asked of torch in a short
counted pass (`harness/op_counts.py`), and the fewest bytes of each stage, from the shapes (`stage_costs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddbench.records import OkResult

Direction = Literal["lower", "higher", "equal"]


@dataclass(frozen=True, slots=True)
class Counter:
    """One row of the table; a name may carry a stage behind a dot: `torch_ops.verify`."""

    name: str
    title: str
    direction: Direction  # which way is better; `equal`: any change is one of behaviour
    meaning: str


COUNTERS: dict[str, Counter] = {
    counter.name: counter
    for counter in (
        Counter("num_requests", "Requests", "equal", "requests of a clean pass"),
        Counter("tokens_emitted", "Tokens emitted", "equal", "output tokens of a clean pass, first tokens included"),
        Counter("tokens_repeated", "Tokens repeated", "equal", "emitted tokens that complete a 4-gram seen before"),
        Counter("tokens_accepted", "Tokens accepted", "higher", "drafted tokens accepted, before any cut"),
        Counter("num_rounds", "Rounds", "lower", "rounds, counted once per request that they serve"),
        Counter("num_steps", "Steps", "lower", "rounds of the whole batch"),
        Counter("nodes_verified", "Nodes verified", "lower", "drafted tokens that the target looked at"),
        Counter("identity_paths", "Identity paths", "higher", "rounds whose accepted path moves no cache row"),
        Counter("counted_steps", "Counted steps", "equal", "rounds of the whole batch in the counted pass"),
        Counter("torch_ops", "Torch ops", "lower", "ops that the rounds of the counted pass dispatched"),
        Counter("host_reads", "Host reads", "lower", "times that those rounds read a value back to the host"),
        Counter("min_bytes", "Fewest bytes", "lower", "fewest bytes of a typical round, from the shapes"),
        Counter("min_flops", "Flops", "lower", "flops of a typical round, from the shapes"),
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
