"""What the attention kernels of `verify` read from device memory, over one reading of the context: Q1 without detours.

From the counters of single kernels. A kernel that finds nothing in the caches, as they were flushed before it, reads
from memory all that it needs: the context at least once, and the queries. What it read beyond the queries is the most
that its readings of the context can amount to. Neither the experts nor what a cache may have kept play a part. What the
L2 hands to a second block within one kernel was read from memory once, and counts once.

Where caches were not flushed, they may have served any part: then the count bounds nothing from above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddbench.analysis.ncu.stages import bare_name
from ddbench.analysis.profile.captured_case import CapturedCase, ToolPass, round_steps, texts
from ddbench.analysis.profile.moved import KernelBytes, kernel_bytes
from ddbench.analysis.profile.rounds import loads_of
from ddbench.analysis.values import missing
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured, StageCost

# Kernels of `tree_attention` and `mla_tree_attention` that read the cache. The others of these ops join partial results
# or pack masks.
READERS = frozenset(
    {
        "_tree_attention_kernel",
        "_tree_attention_hopper_kernel",
        "_mla_tree_attention_kernel",
        "_mla_hopper_kernel",
    }
)
KNOWN_ATTENTION = "tree_triton"  # the variant that reads the cache with these kernels and with no others
LEAST = 0.95  # readings: with fewer after a flush, the count or the context is not what it is taken for


@dataclass(frozen=True, slots=True)
class AttentionReads:
    """Per round, over the rounds that were counted."""

    read: float  # bytes from device memory
    queries: float  # of these, at least so many were queries; 0: not known
    context: float  # one reading of it in these rounds
    width: float  # tokens per request, each of which could have read it
    num_launches: float
    is_flushed: bool  # caches, before every kernel

    @property
    def times(self) -> float:
        """Readings of the context at most; where caches were not flushed, of what came from memory."""
        return max(0.0, self.read - self.queries) / self.context

    @property
    def is_contradicted(self) -> bool:
        """After a flush the context cannot come from anywhere but from memory."""
        return self.is_flushed and self.times < LEAST

    @property
    def is_telling(self) -> bool:
        """A bound from above."""
        return self.is_flushed and not self.is_contradicted

    @property
    def is_once(self) -> bool:
        return self.times < 2

    @property
    def is_shared(self) -> bool:
        """Not every token can have read it for itself."""
        return self.times < self.width


def attention_reads(case: CapturedCase) -> AttentionReads | NotMeasured:
    """Of verify's attention kernels, if each of them was counted."""
    one, kernels = case.counted, kernel_bytes(case)
    if isinstance(one, NotMeasured):
        return one
    if isinstance(kernels, NotMeasured):
        return kernels
    if case.result.case.engine.attention != KNOWN_ATTENTION:
        return missing("which kernels read the context is known of attention 'tree_triton' alone")
    readers = [kernel for kernel in kernels if bare_name(kernel.name) in READERS]
    own = [kernel for kernel in readers if kernel.stage == Stage.VERIFY.value]
    why = _incomplete(case, one, readers, own)
    if why:
        return missing(why)
    cost = next((cost for cost in case.result.stage_costs if cost.stage == Stage.VERIFY.value), None)
    if cost is None:
        return missing("nothing says what verify has to read")
    return _reads(case, one, own, cost)


def _incomplete(case: CapturedCase, one: ToolPass, readers: Sequence[KernelBytes], own: Sequence[KernelBytes]) -> str:
    """Why the counted kernels are not, or may not be, all that read the context; empty: they are."""
    if any(not kernel.stage for kernel in readers):
        return "attention kernels were counted of which no stage is known"
    if not own:
        return "no attention kernel of verify was counted"
    ran = _launched(case, one)
    counted = round(sum(kernel.num_launches for kernel in own) * one.num_rounds)
    if ran is not None and ran != counted:
        return f"{counted} attention kernels of verify were counted where the timeline has {ran}"
    return ""


def _launched(case: CapturedCase, one: ToolPass) -> int | None:
    """Kernels of verify that read the context, in the same rounds of the timeline; None: it does not have them."""
    timeline = case.timeline
    if isinstance(timeline, NotMeasured):
        return None
    steps = round_steps(one)
    if not set(steps) <= set(round_steps(timeline)):
        return None
    ops = timeline.ops
    own = ops[np.isin(ops["round"].to_numpy(), list(steps)) & (texts(ops, "stage") == Stage.VERIFY.value)]
    return sum(bare_name(name) in READERS for name in texts(own, "name"))


def _reads(
    case: CapturedCase, one: ToolPass, own: Sequence[KernelBytes], cost: StageCost
) -> AttentionReads | NotMeasured:
    """Costs are those of the typical round: brought to the rounds that were counted."""
    loads = loads_of(case, round_steps(one))
    if isinstance(loads, NotMeasured):
        return loads
    if isinstance(cost.context_bytes, NotMeasured):
        return cost.context_bytes
    context = cost.context_bytes * loads.context_share
    if not context:
        return missing("verify reads no context")
    queries = 0.0 if isinstance(cost.query_bytes, NotMeasured) else cost.query_bytes * loads.tokens_share
    return AttentionReads(
        read=sum(kernel.read for kernel in own),
        queries=queries,
        context=context,
        width=loads.width,
        num_launches=sum(kernel.num_launches for kernel in own),
        is_flushed=one.capture.cache == "flushed",
    )
