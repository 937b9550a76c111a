"""Fewest bytes and flops of each stage of a typical round, from the shapes alone: the floor of every roofline.

Pure arithmetic on `models/shapes.py`; no tensors. What is counted as bytes: every weight that the stage needs, once;
context rows, once per request however many nodes attend to them; new cache rows, once; logits, once. What is not:
activations between kernels, masks, anything that a perfect implementation keeps on the chip. A multiply-add is two
flops. Routed experts are counted as if the router were uniform: T tokens touch H * (1 - (1 - k/E)^T) of the H experts
held here (all E, or a rank's share), and T*k*H/E of their choices are computed here. That is an expectation: what is
sure is what one token must touch, since all tokens may choose alike. The bytes beyond that are told apart, and stand
beside what a count of the case's own choices makes of them (`expert_census.py`).

Letters: B batch rows, N tokens verified per request (root included), P block size, T = B*N tokens, S context rows,
M hidden, V vocabulary, G KV heads, D head dim, R latent rank, E experts, H of them held here, k chosen ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ddbench.engine.stages import Stage
from ddbench.models.shapes import DrafterShape, GQAShape, MLAShape, MoEShape, TargetShape
from ddbench.records import ExpertUse, NotMeasured, StageCost

INDEX_BYTES = 8  # token ids and positions are int64
_VERIFY_ONLY = NotMeasured(not_measured="counted for verify only")
NO_EXPERTS = NotMeasured(not_measured="the target has no routed experts")
NOT_COUNTED = NotMeasured(not_measured="the experts that tokens chose were not counted")
_NO_PARTS: dict[str, int | NotMeasured] = {
    "context_bytes": _VERIFY_ONLY,
    "expected_bytes": 0,
    "query_bytes": _VERIFY_ONLY,
    "counted_bytes": _VERIFY_ONLY,
}


@dataclass(frozen=True, slots=True)
class TypicalRound:
    """The round that costs are for: means over the rounds of a pass."""

    batch: float  # B requests
    width: float  # N tokens per request in the target forward
    block: int  # P positions of the draft block, the anchor included; 0: no drafter
    context: float  # S rows per request
    committed: float  # rows per request that become context (root and accepted nodes)
    moved: float  # of these, rows that commit has to move

    @property
    def basis(self) -> str:
        return f"batch {self.batch:.3g}, width {self.width:.3g}, context {self.context:.4g}, block {self.block}"


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes moved and floating-point operations."""

    num_bytes: float
    num_flops: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.num_bytes + other.num_bytes, self.num_flops + other.num_flops)

    def times(self, count: float) -> Cost:
        return Cost(self.num_bytes * count, self.num_flops * count)


def stage_costs(
    target: TargetShape,
    drafter: DrafterShape,
    round_: TypicalRound,
    element_bytes: int,
    is_packed: bool,
    stages: Collection[str],
    expert_use: ExpertUse | NotMeasured = NOT_COUNTED,
) -> tuple[StageCost, ...]:
    """Costs of those `stages` that have a closed form, in the order of a round."""
    verify_parts = _verify_parts(target, round_, element_bytes, is_packed, expert_use)
    costs = {
        Stage.VERIFY: verify_cost(target, round_, element_bytes, is_packed),
        Stage.TREE_COMPILE: tree_compile_cost(round_),
        Stage.ACCEPT: accept_cost(target, round_, element_bytes),
        Stage.COMMIT: commit_cost(target, drafter, round_, element_bytes),
    }
    if round_.block:
        costs[Stage.TREE_BUILD] = tree_build_cost(target, round_, element_bytes)
        costs[Stage.DRAFT] = draft_cost(target, drafter, round_, element_bytes)
        costs[Stage.MATERIALIZE] = materialize_cost(drafter, round_.batch * round_.committed, element_bytes)
    return tuple(
        StageCost(
            stage=stage.value,
            num_bytes=round(costs[stage].num_bytes),
            num_flops=round(costs[stage].num_flops),
            basis=round_.basis,
            **(verify_parts if stage is Stage.VERIFY else _NO_PARTS),
        )
        for stage in Stage
        if stage in costs and stage.value in stages
    )


# --------------------------------------------------------------------------------------------------- target stages


def verify_cost(target: TargetShape, round_: TypicalRound, element_bytes: int, is_packed: bool) -> Cost:
    """The target forward over B*N tokens: layers, embedding rows in, logits out."""
    tokens = round_.batch * round_.width
    total = linear_cost(target.vocab * target.hidden, tokens, element_bytes)
    total += Cost(tokens * (target.hidden + target.vocab) * element_bytes)
    attention = linear_cost(attention_weights(target), tokens, element_bytes)
    attention += attention_cost(target.attention, round_, element_bytes)
    total += attention.times(target.num_layers)
    num_moe = num_moe_layers(target)
    dense = linear_cost(3 * target.hidden * target.dense_width, tokens, element_bytes)
    total += dense.times(target.num_layers - num_moe)
    if target.moe is not None:
        total += moe_cost(target.moe, target.hidden, tokens, element_bytes, is_packed).times(num_moe)
    return total


def attention_weights(target: TargetShape) -> int:
    """Projection weights of one layer."""
    a, m = target.attention, target.hidden
    if isinstance(a, GQAShape):
        return m * (a.num_heads + 2 * a.num_kv_heads) * a.head_dim + a.num_heads * a.head_dim * m
    query = a.num_heads * (a.qk_nope_dim + a.qk_rope_dim)
    down = m * query if a.q_lora_rank is None else m * a.q_lora_rank + a.q_lora_rank * query
    latent = m * (a.kv_lora_rank + a.qk_rope_dim) + a.kv_lora_rank * a.num_heads * (a.qk_nope_dim + a.v_head_dim)
    return down + latent + a.num_heads * a.v_head_dim * m


def attention_cost(shape: GQAShape | MLAShape, round_: TypicalRound, element_bytes: int) -> Cost:
    """One layer's attention: context rows in once per request, new rows out, every node against context and itself."""
    rows = round_.batch * (round_.context + round_.width)
    pairs = round_.batch * round_.width * (round_.context + 1)  # (query, key) pairs
    return Cost(rows * row_elements(shape) * element_bytes, 2 * pairs * _products_per_pair(shape))


def _verify_parts(
    target: TargetShape,
    round_: TypicalRound,
    element_bytes: int,
    is_packed: bool,
    expert_use: ExpertUse | NotMeasured,
) -> dict[str, int | NotMeasured]:
    """What verify's bytes consist of, and the queries beside them."""
    return {
        "context_bytes": _context_bytes(target, round_, element_bytes),
        **_expert_parts(target, round_.batch * round_.width, element_bytes, is_packed, expert_use),
        "query_bytes": round(
            round_.batch * round_.width * target.num_layers * query_elements(target.attention) * element_bytes
        ),
    }


def _expert_parts(
    target: TargetShape, tokens: float, element_bytes: int, is_packed: bool, use: ExpertUse | NotMeasured
) -> dict[str, int | NotMeasured]:
    """Bytes of routed experts beyond the sure ones: as a uniform router would touch them, and as they were counted."""
    if target.moe is None:
        return {"expected_bytes": 0, "counted_bytes": NO_EXPERTS}
    weights = (element_bytes, is_packed)
    expected = _unsure_bytes(target, experts_touched(target.moe, tokens), *weights)
    if isinstance(use, NotMeasured):
        return {"expected_bytes": expected, "counted_bytes": use}
    counted = _unsure_bytes(target, experts_counted(target.moe, tokens, use), *weights)
    return {"expected_bytes": expected, "counted_bytes": counted}


def _unsure_bytes(target: TargetShape, touched: float, element_bytes: int, is_packed: bool) -> int:
    """Of all layers that touch so many routed experts each, those beyond the ones that any tokens touch."""
    assert target.moe is not None
    beyond = max(0.0, touched - fewest_experts(target.moe))
    return round(num_moe_layers(target) * beyond * expert_bytes(target.moe, target.hidden, element_bytes, is_packed))


def num_moe_layers(target: TargetShape) -> int:
    return sum(target.is_moe_layer(layer) for layer in range(target.num_layers))


def _context_bytes(target: TargetShape, round_: TypicalRound, element_bytes: int) -> int:
    """Context rows of all layers, once per request: those bytes of verify that all nodes of a tree can share."""
    rows = round_.batch * round_.context * target.num_layers
    return round(rows * row_elements(target.attention) * element_bytes)


def row_elements(shape: GQAShape | MLAShape) -> int:
    """Numbers that one token leaves in one layer's cache."""
    if isinstance(shape, GQAShape):
        return 2 * shape.num_kv_heads * shape.head_dim
    return shape.kv_lora_rank + shape.qk_rope_dim


def query_elements(shape: GQAShape | MLAShape) -> int:
    """Numbers of one token's queries in one layer, as attention reads them: those of latent attention absorbed."""
    if isinstance(shape, GQAShape):
        return shape.num_heads * shape.head_dim
    return shape.num_heads * (shape.kv_lora_rank + shape.qk_rope_dim)


def _products_per_pair(shape: GQAShape | MLAShape) -> int:
    """Multiply-adds of one query token against one key, all heads: scores and values."""
    if isinstance(shape, GQAShape):
        return shape.num_heads * 2 * shape.head_dim
    return shape.num_heads * (2 * shape.kv_lora_rank + shape.qk_rope_dim)  # absorbed


def linear_cost(num_weights: float, tokens: float, element_bytes: float) -> Cost:
    """Weights read once, one multiply-add per weight and token."""
    return Cost(num_weights * element_bytes, 2 * num_weights * tokens)


def expert_bytes(moe: MoEShape, hidden: int, element_bytes: int, is_packed: bool) -> float:
    """Weights of one routed expert; packed INT4 carries one bf16 scale per group."""
    weights = 3 * hidden * moe.expert_width
    if is_packed and moe.weight_format == "int4":
        return weights * (0.5 + 2 / moe.group_size)
    return weights * element_bytes


def experts_touched(moe: MoEShape, tokens: float) -> float:
    """Expected number of different experts held here that `tokens` tokens choose under a uniform router."""
    return moe.num_held * (1 - (1 - moe.top_k / moe.num_experts) ** tokens)


def experts_counted(moe: MoEShape, tokens: float, use: ExpertUse) -> float:
    """The same for tokens that choose as those of a count did: alike, so that they touch fewer."""
    touched = use.touched / use.uniform * experts_touched(moe, tokens)
    return max(fewest_experts(moe), min(touched, moe.num_held))


def fewest_experts(moe: MoEShape) -> int:
    """Experts held here that any tokens touch, were they all to choose the same and others where they can."""
    return max(0, moe.top_k - (moe.num_experts - moe.num_held))


def moe_cost(moe: MoEShape, hidden: int, tokens: float, element_bytes: int, is_packed: bool) -> Cost:
    """One MoE layer: router over all experts, those that were chosen and are held here, shared experts."""
    weights = 3 * hidden * moe.expert_width
    choices = moe.top_k * tokens * moe.num_held / moe.num_experts
    routed = experts_touched(moe, tokens) * expert_bytes(moe, hidden, element_bytes, is_packed)
    total = Cost(routed, 2 * weights * choices)
    total += linear_cost(weights * moe.num_shared, tokens, element_bytes)
    return total + linear_cost(moe.num_experts * hidden, tokens, element_bytes)


def tree_compile_cost(round_: TypicalRound) -> Cost:
    """Tokens and parents in; ids, positions and one visibility bit per pair of nodes out."""
    nodes = round_.batch * round_.width
    return Cost(nodes * (4 * INDEX_BYTES + round_.width / 8))


def accept_cost(target: TargetShape, round_: TypicalRound, element_bytes: int) -> Cost:
    """One look at the logits of every node."""
    logits = round_.batch * round_.width * target.vocab
    return Cost(logits * element_bytes, logits)


def commit_cost(target: TargetShape, drafter: DrafterShape, round_: TypicalRound, element_bytes: int) -> Cost:
    """Cache rows that move and the features of committed rows: read and written once each."""
    rows = round_.batch * round_.moved * target.num_layers * row_elements(target.attention)
    features = round_.batch * round_.committed * len(drafter.target_layer_ids) * target.hidden if round_.block else 0.0
    return Cost(2 * element_bytes * (rows + features))


# -------------------------------------------------------------------------------------------------- drafter stages


def draft_cost(target: TargetShape, drafter: DrafterShape, round_: TypicalRound, element_bytes: int) -> Cost:
    """The drafter over B*P block positions, the target's head over the drafted ones, their logits out."""
    tokens = round_.batch * round_.block
    query = drafter.num_heads * drafter.head_dim
    row = 2 * drafter.num_kv_heads * drafter.head_dim
    weights = drafter.hidden * (2 * query + row) + 3 * drafter.hidden * drafter.width
    total = linear_cost(weights, tokens, element_bytes).times(drafter.num_layers)
    for layer in range(drafter.num_layers):
        window = drafter.window(layer)
        seen = round_.context if window is None else min(round_.context, window)
        total += Cost(
            round_.batch * (seen + round_.block) * row * element_bytes,
            4 * tokens * (seen + round_.block) * query,
        )
    drafted = round_.batch * (round_.block - 1)
    total += linear_cost(target.vocab * target.hidden, drafted, element_bytes)
    return total + Cost(drafted * target.vocab * element_bytes)


def tree_build_cost(target: TargetShape, round_: TypicalRound, element_bytes: int) -> Cost:
    """One look at the draft logits (one exponential and one addition each); the tree itself is small."""
    logits = round_.batch * (round_.block - 1) * target.vocab
    return Cost(logits * element_bytes, 2 * logits)


def materialize_cost(drafter: DrafterShape, rows: float, element_bytes: int) -> Cost:
    """`rows` feature rows through fc and every layer's K and V projection into the draft cache."""
    features = len(drafter.target_layer_ids) * drafter.target_hidden
    kv = drafter.num_layers * 2 * drafter.num_kv_heads * drafter.head_dim
    total = linear_cost(features * drafter.hidden + kv * drafter.hidden, rows, element_bytes)
    return total + Cost(rows * (features + kv) * element_bytes)
