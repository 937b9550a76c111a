"""Expert routing of a MoE layer in two launches: the gate's product in pieces, then the choice.

    _gate_kernel    a tile of experts times a segment of the hidden columns, for a block of tokens: fp32 partials
    _choose_kernel  a token's partials added in order, sigmoid, biased choice of k, weights normalised and scaled

Where in the flow: every MoE layer, before its routed experts.
Letters: T tokens, M hidden, E experts, k chosen experts. Experts are the rows of the product (operand A), tokens its
columns, so that a single token wastes no more than eight. How M is cut depends on M and E alone, a product's sum on
nothing but its own operands: a token's result does not depend on the batch. Sums in fp32: exact products of bf16 on
tensor cores, IEEE products where an operand is fp32. Equal scores go to the lower expert id: the choice is a maximum
over 64-bit keys, score above id.

On Hopper a launch begins while the one before ends (the whole product must have begun) and waits where it needs it.

The choice in two steps, so that no maximum crosses warps: a warp takes the best k of its 128 experts, one after the
other, by maxima and minima of 32-bit integers (`redux`, one instruction for a warp); the places of these few candidates
are then counted, each against all. Sixty-four-bit keys over four warps were eight times two barriers and ten shuffles.

Floor, K2.6 (E 384, M 7168): 5.5 MB of gate in bf16, 1.3 us at 4.4 TB/s; 65 nodes 0.4 GFLOP: nothing. fp32 11 MB.
Measured on an H200 in a graph, before both of these: 8.7 us for a token, 10.6 for 64, of which the product 5.8 and the
choice 4.2. Prediction: 6 and 8 us (a launch less to wait for, 1 to 1.5 us; the choice's maxima 0.5 us instead of 1.5).
The gate does not stay in L2 between two rounds of a whole model. fp32 runs outside of the tensor cores: not fast.
If it misses: tiles of 16 experts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

PROGRAMS = 160  # of a block of tokens that the product should have: more than an H200 has multiprocessors
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Tile(NamedTuple):
    """How a program of the product is cut: experts, hidden columns of a step, tokens at most, warps, stages."""

    experts: int
    columns: int
    most_tokens: int
    num_warps: int
    num_stages: int


GROUP = 128  # experts of which a warp chooses
NO_BITS = tl.constexpr(-(2**31))  # of a score: below or equal to all
NO_EXPERT = tl.constexpr(2**31 - 1)
TILE_16_BIT = Tile(experts=32, columns=128, most_tokens=64, num_warps=4, num_stages=5)
TILE_32_BIT = Tile(experts=32, columns=32, most_tokens=32, num_warps=4, num_stages=3)


@triton.jit(do_not_specialize=["num_tokens"])
def _gate_kernel(
    x_ptr,  # [T, M]
    gate_ptr,  # [E, M]
    partial_ptr,  # [segments, T, E] fp32 out
    num_tokens,
    EXPERTS: tl.constexpr,  # E
    HIDDEN: tl.constexpr,  # M
    STEPS: tl.constexpr,  # of a segment
    BLOCK_T: tl.constexpr,
    BLOCK_E: tl.constexpr,
    COLUMNS: tl.constexpr,  # of a step
    WIDE: tl.constexpr,  # products of fp32: two operands of different types, or the interpreter, whose bf16 is wrong
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tiles of experts, segments, blocks of tokens."""
    EVEN: tl.constexpr = HIDDEN % (STEPS * COLUMNS) == 0 and EXPERTS % BLOCK_E == 0
    expert = (tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E))[:, None]
    token = (tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T))[None, :]
    begin = tl.program_id(1) * (STEPS * COLUMNS)
    column = tl.arange(0, COLUMNS)
    is_expert = expert < EXPERTS
    is_token = token < num_tokens
    token = token.to(tl.int64)
    gate_at = gate_ptr + expert.to(tl.int64) * HIDDEN + (begin + column)[None, :]
    x_at = x_ptr + token * HIDDEN + (begin + column)[:, None]
    acc = tl.zeros((BLOCK_E, BLOCK_T), tl.float32)
    wait_for_launch_before(IS_DEPENDENT)
    for step in range(STEPS):
        k = step * COLUMNS
        if EVEN:
            gate = tl.load(gate_at + k)
            x = tl.load(x_at + k, mask=is_token, other=0)
        else:
            is_column = begin + k + column < HIDDEN
            gate = tl.load(gate_at + k, mask=is_expert & is_column[None, :], other=0)
            x = tl.load(x_at + k, mask=is_token & is_column[:, None], other=0)
        if WIDE:
            gate = gate.to(tl.float32)
            x = x.to(tl.float32)
        acc = tl.dot(gate, x, acc, input_precision="ieee")
    target = partial_ptr + (tl.program_id(1).to(tl.int64) * num_tokens + token) * EXPERTS + expert
    tl.store(target, acc, mask=is_expert & is_token)


@triton.jit
def _best_of_groups(bits, score_bits, expert, TOP_K: tl.constexpr, PLACES: tl.constexpr):
    """[groups, experts] -> [groups, PLACES]: bits, expert, score bits of each group's best, in order."""
    place = tl.arange(0, PLACES)[None, :]
    best_bits = tl.full((bits.shape[0], PLACES), NO_BITS, tl.int32)
    best_expert = tl.full((bits.shape[0], PLACES), NO_EXPERT, tl.int32)
    best_score = tl.full((bits.shape[0], PLACES), 0, tl.int32)
    for j in tl.static_range(min(TOP_K, bits.shape[1])):
        most = tl.max(bits, 1)[:, None]
        first = tl.min(tl.where(bits == most, expert, NO_EXPERT), 1)[:, None]
        is_best = expert == first
        its_score = tl.max(tl.where(is_best, score_bits, NO_BITS), 1)[:, None]
        best_bits = tl.where(place == j, most, best_bits)
        best_expert = tl.where(place == j, first, best_expert)
        best_score = tl.where(place == j, its_score, best_score)
        bits = tl.where(is_best, NO_BITS, bits)
        expert = tl.where(is_best, NO_EXPERT, expert)  # so that one taken is not the first of equals again
    return best_bits, best_expert, best_score


@triton.jit(do_not_specialize=["num_tokens"])
def _choose_kernel(
    partial_ptr,  # [SEGMENTS, T, E] fp32
    bias_ptr,  # [E]
    ids_ptr,  # [T, k] int64 out
    weights_ptr,  # [T, k] fp32 out
    scaling,
    num_tokens,
    EXPERTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    TOP_K: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_GROUP: tl.constexpr,  # experts
    PLACES: tl.constexpr,  # a power of two >= the most that is chosen of a group
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tokens."""
    token = tl.program_id(0).to(tl.int64)
    expert = (tl.arange(0, GROUPS) * PER_GROUP)[:, None] + tl.arange(0, PER_GROUP)[None, :]
    mask = expert < EXPERTS
    bias = tl.load(bias_ptr + expert, mask=mask, other=0.0).to(tl.float32)  # no launch before this one's writes it
    wait_for_launch_before(IS_DEPENDENT)
    source = partial_ptr + token * EXPERTS + expert
    logit = tl.zeros((GROUPS, PER_GROUP), tl.float32)
    for segment in tl.static_range(SEGMENTS):
        logit += tl.load(source + segment * num_tokens.to(tl.int64) * EXPERTS, mask=mask, other=0.0)
    score = tl.div_rn(1.0, 1.0 + tl.exp(-logit))
    bits = (score + bias).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # orders as the floats do
    bits, expert, score_bits = _best_of_groups(
        tl.where(mask, bits, NO_BITS),
        score.to(tl.int32, bitcast=True),
        tl.where(mask, expert, NO_EXPERT),
        TOP_K,
        PLACES,
    )
    key = (bits.to(tl.int64) << 32) | (expert ^ NO_EXPERT).to(tl.int64)
    key = tl.reshape(key, (GROUPS * PLACES,))
    score = tl.reshape(score_bits, (GROUPS * PLACES,)).to(tl.float32, bitcast=True)
    if GROUPS == 1:
        rank = tl.arange(0, PLACES)
    else:
        rank = tl.sum((key[:, None] > key[None, :]).to(tl.int32), 0)
    is_chosen = rank < TOP_K
    total = tl.sum(tl.where(is_chosen, score, 0.0), 0) + 1e-20
    tl.store(ids_ptr + token * TOP_K + rank, (key & NO_EXPERT) ^ NO_EXPERT, mask=is_chosen)
    tl.store(weights_ptr + token * TOP_K + rank, tl.div_rn(score, total) * scaling, mask=is_chosen)


def _segments(tile: Tile, experts: int, hidden: int) -> tuple[int, int]:
    """-> (segments of the hidden columns, steps of each): by E and M alone, so that company changes no sum."""
    steps = triton.cdiv(hidden, tile.columns)
    per_segment = max(1, steps * triton.cdiv(experts, tile.experts) // PROGRAMS)
    return triton.cdiv(steps, per_segment), per_segment


def _product(tile: Tile, experts: int, hidden: int, num_tokens: int, steps: int, wide: bool) -> dict[str, Any]:
    return {
        "EXPERTS": experts,
        "HIDDEN": hidden,
        "STEPS": steps,
        "BLOCK_T": min(tile.most_tokens, max(16, triton.next_power_of_2(num_tokens))),
        "BLOCK_E": tile.experts,
        "COLUMNS": tile.columns,
        "WIDE": wide,
    }


def _choice(experts: int, segments: int, top_k: int) -> tuple[dict[str, int], int]:
    """-> (sizes, warps)."""
    block = triton.next_power_of_2(experts)
    per_group = min(block, GROUP)
    sizes = {"EXPERTS": experts, "SEGMENTS": segments, "TOP_K": top_k, "GROUPS": block // per_group}
    sizes |= {"PER_GROUP": per_group, "PLACES": triton.next_power_of_2(min(top_k, per_group))}
    return sizes, min(8, block // per_group)


def moe_route_triton(
    x: torch.Tensor,  # [T, M]
    gate_weight: torch.Tensor,  # [E, M]
    bias: torch.Tensor,  # [E]
    top_k: int,
    scaling: float,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,  # ids [T,k] int64 and weights [T,k] fp32, to be written
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (expert ids [T,k] int64, weights [T,k] fp32), best first; equal scores go to the lower expert id.

    Sigmoid scores in fp32; `bias` takes part in the choice only, the weights come from the plain scores, normalised to
    sum to 1 and scaled.
    """
    if not (x.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"moe_route_triton: x is on {x.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    if x.dtype not in DTYPES or gate_weight.dtype not in DTYPES:
        raise ValueError(f"moe_route_triton: got {x.dtype} and {gate_weight.dtype}, need bfloat16, float16 or float32")
    num_tokens, hidden = x.shape
    experts = gate_weight.shape[0]
    assert gate_weight.shape == (experts, hidden), f"x {tuple(x.shape)}, gate_weight {tuple(gate_weight.shape)}"
    assert bias.shape == (experts,), f"bias: {tuple(bias.shape)}, {experts} experts"
    assert 0 < top_k <= experts, f"top_k is {top_k}, there are {experts} experts"
    assert all(t.is_contiguous() for t in (x, gate_weight, bias)), "x, gate_weight or bias is not contiguous"
    if out is None:
        ids = torch.empty((num_tokens, top_k), dtype=torch.int64, device=x.device)
        weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=x.device)
    else:
        ids, weights = out
        assert ids.shape == weights.shape == (num_tokens, top_k), f"out: {tuple(ids.shape)}, {tuple(weights.shape)}"
        assert all(t.is_contiguous() for t in out), "ids or weights is not contiguous"
        assert (ids.dtype, weights.dtype) == (torch.int64, torch.float32), f"out: {ids.dtype}, {weights.dtype}"
    if num_tokens == 0:
        return ids, weights
    wide = x.dtype != gate_weight.dtype or x.dtype == torch.float32
    tile = TILE_32_BIT if wide else TILE_16_BIT
    segments, steps = _segments(tile, experts, hidden)
    sizes = _product(tile, experts, hidden, num_tokens, steps, wide or triton.knobs.runtime.interpret)
    partial = torch.empty((segments, num_tokens, experts), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(experts, tile.experts), segments, triton.cdiv(num_tokens, sizes["BLOCK_T"]))
    told = dependence(x)
    _gate_kernel[grid](
        x, gate_weight, partial, num_tokens, **sizes, **told, num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )  # fmt: skip
    choice, num_warps = _choice(experts, segments, top_k)
    _choose_kernel[(num_tokens,)](
        partial, bias, ids, weights, scaling, num_tokens, **choice, **told, num_warps=num_warps
    )
    return ids, weights


def _gate_entry(name: str, element: str, experts: int, hidden: int, num_tokens: int) -> dict[str, Any]:
    tile = TILE_32_BIT if element == "fp32" else TILE_16_BIT
    pointers = {"x_ptr": f"*{element}", "gate_ptr": f"*{element}", "partial_ptr": "*fp32"}
    steps = _segments(tile, experts, hidden)[1]
    return {
        "name": f"gate-{name}-{element}-t{num_tokens}",
        "kernel": _gate_kernel,
        "signature": {**pointers, "num_tokens": "i32"},
        "constexprs": _product(tile, experts, hidden, num_tokens, steps, element == "fp32") | {"IS_DEPENDENT": True},
        "divisible_by_16": tuple(pointers),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def _choose_entry(name: str, tile: Tile, experts: int, hidden: int, top_k: int) -> dict[str, Any]:
    pointers = {"partial_ptr": "*fp32", "bias_ptr": "*fp32", "ids_ptr": "*i64", "weights_ptr": "*fp32"}
    sizes, num_warps = _choice(experts, _segments(tile, experts, hidden)[0], top_k)
    return {
        "name": f"choose-{name}",
        "kernel": _choose_kernel,
        "signature": {**pointers, "scaling": "fp32", "num_tokens": "i32"},
        "constexprs": sizes | {"IS_DEPENDENT": True},
        "divisible_by_16": tuple(pointers),
        "num_warps": num_warps,
        "num_stages": 3,
    }


AOT = (
    *(_gate_entry("k2.6", "bf16", 384, 7168, num_tokens) for num_tokens in (16, 32, 64)),
    *(_gate_entry("k2.6", "fp32", 384, 7168, num_tokens) for num_tokens in (16, 32)),
    *(_gate_entry("nano-k2", element, 16, 256, 64) for element in ("bf16", "fp32")),
    _choose_entry("k2.6", TILE_16_BIT, 384, 7168, 8),
    _choose_entry("k2.6-fp32", TILE_32_BIT, 384, 7168, 8),
    _choose_entry("nano-k2", TILE_16_BIT, 16, 256, 2),
)
