"""Tree attention, grouped-query and latent: our kernels beside plain torch, SDPA and FlexAttention.

A shape of n nodes has N = n + 1 new tokens: the root counts for the work, not for the budget. Every request has the
same context. Masks, packed ancestor bits and block masks are made before the timed call: an engine makes them once for
all layers. Letters: B batch rows, N new tokens, S cache rows, H query heads, G KV heads, D head dim, R latent rank, Dr
rotary dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ddbench.kernels.mla_tree_attention import mla_tree_attention_dense
from ddbench.kernels.tree_attention import dense_mask, tree_attention_dense
from ddbench.opbench.records import Target
from ddbench.opbench.shapes import BenchOp, Call, Implementation, Inputs, Place, Shape, Tier
from ddbench.opbench.trees import random_visible
from ddbench.opbench.triton_calls import launcher, triton_kernel
from ddbench.ops import OPS

ALIGNED = 16  # elements to which SDPA's fused kernels want the rows of a bias aligned
TARGETS = (
    Target(metric="share_of_floor", limit=0.5),
    Target(metric="speedup", limit=3.0, against=("sdpa", "sdpa_folded")),
)

# ------------------------------------------------------------------------------------------------------------- inputs


def _context(place: Place, seed: int, context: int, nodes: int, batch: int) -> Inputs:
    return {
        "lengths": torch.full((batch,), context, device=place.device),
        "visible": random_visible(seed, batch, nodes + 1, place.device),
    }


def build_gqa(place: Place, seed: int, *, context: int, nodes: int, batch: int, **widths: int) -> Inputs:
    """q [B,N,H,D], k and v [B,S,G,D] with S = context + N."""
    generator = place.generator(seed)
    rows, dim = context + nodes + 1, widths["dim"]
    q = place.randn(generator, batch, nodes + 1, widths["heads"], dim)
    k, v = (place.randn(generator, batch, rows, widths["kv_heads"], dim) for _ in range(2))
    return {"q": q, "k": k, "v": v, **_context(place, seed, context, nodes, batch), "scale": dim**-0.5}


def build_mla(place: Place, seed: int, *, context: int, nodes: int, batch: int, **widths: int) -> Inputs:
    """q [B,N,H,R+Dr], latent [B,S,R+Dr] with S = context + N."""
    generator = place.generator(seed)
    width = widths["rank"] + widths["rotary"]
    q = place.randn(generator, batch, nodes + 1, widths["heads"], width)
    latent = place.randn(generator, batch, context + nodes + 1, width)
    own = _context(place, seed, context, nodes, batch)
    return {"q": q, "latent": latent, "rank": widths["rank"], **own, "scale": width**-0.5}


def _bound(inputs: Inputs) -> int:
    """Context rows, known on the host."""
    cache = inputs["k"] if "k" in inputs else inputs["latent"]
    return cache.shape[1] - inputs["q"].shape[1]


def _mask(inputs: Inputs) -> torch.Tensor:
    """[B, 1, N, S] bool."""
    return dense_mask(inputs["lengths"], inputs["q"].shape[1], _bound(inputs), inputs["visible"])


# ------------------------------------------------------------------------------------------------------------- oracle


def _one_by_one(inputs: Inputs, parts: Callable[[int], tuple[torch.Tensor, ...]]) -> Iterator[torch.Tensor]:
    """Softmax attention request by request, so that its scores fit in memory: [heads or 1, rows, width] each."""
    for b in range(inputs["q"].shape[0]):
        q, keys, values, mask = parts(b)
        scores = (q @ keys.transpose(-1, -2)).float() * inputs["scale"]
        scores.masked_fill_(~mask, -math.inf)
        yield scores.softmax(dim=-1).to(q.dtype) @ values


def gqa_oracle(inputs: Inputs) -> torch.Tensor:
    """-> [B, N, H, D], plain products."""
    num_new, num_heads, dim = inputs["q"].shape[1:]
    num_kv = inputs["k"].shape[2]
    group = num_heads // num_kv
    masks = _mask(inputs)  # [B, 1, N, S]

    def parts(b: int) -> tuple[torch.Tensor, ...]:
        q = inputs["q"][b].view(num_new, num_kv, group, dim).permute(1, 0, 2, 3).reshape(num_kv, -1, dim)
        keys, values = inputs["k"][b].transpose(0, 1), inputs["v"][b].transpose(0, 1)  # [G, S, D]
        return q, keys, values, masks[b].repeat_interleave(group, dim=1)

    out = [rows.view(num_kv, num_new, group, dim).transpose(0, 1).flatten(1, 2) for rows in _one_by_one(inputs, parts)]
    return torch.stack(out)


def mla_oracle(inputs: Inputs) -> torch.Tensor:
    """-> [B, N, H, R], plain products with the heads folded into the rows."""
    num_new, num_heads, width = inputs["q"].shape[1:]
    rank, masks = inputs["rank"], _mask(inputs)

    def parts(b: int) -> tuple[torch.Tensor, ...]:
        rows = inputs["latent"][b]
        mask = masks[b, 0].repeat_interleave(num_heads, dim=0)
        return inputs["q"][b].reshape(-1, width), rows, rows[:, :rank], mask

    return torch.stack([rows.view(num_new, num_heads, rank) for rows in _one_by_one(inputs, parts)])


# ---------------------------------------------------------------------------------------------------------- torch's own


def _bias(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A bool mask as the bias that SDPA's fused kernels take without a copy: rows aligned, in the queries' dtype."""
    rows = mask.shape[-1]
    padded = torch.zeros(*mask.shape[:-1], -(-rows // ALIGNED) * ALIGNED, dtype=like.dtype, device=like.device)
    return padded[..., :rows].masked_fill_(~mask, -math.inf)


def _gqa_dense(inputs: Inputs) -> Call:
    mask = _mask(inputs)
    q, k, v, scale = (inputs[name] for name in ("q", "k", "v", "scale"))
    return lambda: tree_attention_dense(q, k, v, mask, scale)


def _gqa_folded(inputs: Inputs) -> Call:
    """The heads that share a KV head become rows: no grouped-query support is needed, and fused kernels take it."""
    q, scale = inputs["q"], inputs["scale"]
    batch, num_new, num_heads, dim = q.shape
    k, v = (inputs[name].transpose(1, 2) for name in ("k", "v"))  # [B, G, S, D]
    num_kv = k.shape[1]
    bias = _bias(_mask(inputs).repeat_interleave(num_heads // num_kv, dim=2), q)  # [B, 1, N*H/G, S]

    def call() -> torch.Tensor:
        rows = q.view(batch, num_new, num_kv, -1, dim).transpose(1, 2).reshape(batch, num_kv, -1, dim)
        out = F.scaled_dot_product_attention(rows, k, v, attn_mask=bias, scale=scale)
        return out.view(batch, num_kv, num_new, -1, dim).transpose(1, 2).reshape(q.shape)

    return call


def _mla_heads(inputs: Inputs) -> Call:
    """Heads apart, all of them looking at the same keys."""
    q, latent, rank, scale = (inputs[name] for name in ("q", "latent", "rank", "scale"))
    queries = q.transpose(1, 2)  # [B, H, N, R+Dr]
    keys = latent[:, None].expand(-1, q.shape[2], -1, -1)  # [B, H, S, R+Dr] one row for all heads
    bias = _bias(_mask(inputs), q)  # [B, 1, N, S]
    values = keys[..., :rank]

    def call() -> torch.Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scale).transpose(1, 2)

    return call


def _mla_folded(inputs: Inputs) -> Call:
    """Heads folded into the query rows."""
    q, latent, rank, scale = (inputs[name] for name in ("q", "latent", "rank", "scale"))
    batch, num_new, num_heads, width = q.shape
    bias = _bias(_mask(inputs).repeat_interleave(num_heads, dim=2), q)  # [B, 1, N*H, S]
    keys = latent[:, None]

    def call() -> torch.Tensor:
        rows = q.reshape(batch, 1, num_new * num_heads, width)
        out = F.scaled_dot_product_attention(rows, keys, keys[..., :rank], attn_mask=bias, scale=scale)
        return out.view(batch, num_new, num_heads, rank)

    return call


def _mla_matmul(inputs: Inputs) -> Call:
    q, latent, rank, scale = (inputs[name] for name in ("q", "latent", "rank", "scale"))
    mask = _mask(inputs)
    return lambda: mla_tree_attention_dense(q, latent, rank, mask, scale)


# ------------------------------------------------------------------------------------------------------ FlexAttention


def why_not_flex(shape: Shape, device: str) -> str | None:
    """Every shape is compiled on its own, for many seconds: only a few have it."""
    if device != "cuda":
        return "needs a CUDA device"
    return None if shape.dims.get("flex") else "each shape is compiled for many seconds: only a few have it"


Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries, keys, values [B, heads, rows, width]


def _flex_calls(first: Inputs, sets: Sequence[Heads], fold: int) -> list[Call]:
    """FlexAttention, compiled once for the sets' shape; they share the mask. Row r belongs to token r // fold."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    lengths, visible, num_new = first["lengths"], first["visible"], first["q"].shape[1]
    queries, keys, _ = sets[0]

    def sees(b: torch.Tensor, h: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        new = at - lengths[b]
        return (new < 0) | visible[b, row // fold, new.clamp(0, num_new - 1)]

    torch._dynamo.reset()  # shapes seen before count against a limit, and would make this one a dynamic one
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    sizes = (queries.shape[0], None, queries.shape[2], keys.shape[2])  # B, any head, rows, S
    blocks = create_block_mask(sees, *sizes, device=queries.device)
    shared = {"block_mask": blocks, "scale": first["scale"], "enable_gqa": queries.shape[1] != keys.shape[1]}
    return [partial(compiled, *heads, **shared) for heads in sets]


def _gqa_flex(sets: Sequence[Inputs]) -> list[Call]:
    heads = [(inputs["q"].transpose(1, 2), inputs["k"].transpose(1, 2), inputs["v"].transpose(1, 2)) for inputs in sets]
    return [_then(call, lambda out: out.transpose(1, 2)) for call in _flex_calls(sets[0], heads, fold=1)]


def _mla_flex(sets: Sequence[Inputs]) -> list[Call]:
    batch, num_new, num_heads, width = sets[0]["q"].shape
    rank = sets[0]["rank"]
    heads = [
        (inputs["q"].reshape(batch, 1, -1, width), inputs["latent"][:, None], inputs["latent"][:, None, :, :rank])
        for inputs in sets
    ]
    calls = _flex_calls(sets[0], heads, fold=num_heads)
    return [_then(call, lambda out: out.view(batch, num_new, num_heads, rank)) for call in calls]


def _then(call: Call, last: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    return lambda: last(call())


def _flex(prepare: Callable[[Sequence[Inputs]], list[Call]]) -> Implementation:
    return Implementation(
        "flex", "peer", lambda inputs: prepare([inputs])[0], why_not=why_not_flex, prepare_sets=prepare
    )


# ----------------------------------------------------------------------------------------------------------------- ours


def _gqa_triton(inputs: Inputs) -> Call:
    run, bound = launcher("tree_attention"), _bound(inputs)
    packed = launcher("tree_attention", "pack_visible_triton")(inputs["visible"])
    arguments: tuple[Any, ...] = tuple(inputs[name] for name in ("q", "k", "v", "lengths"))
    return lambda: run(*arguments, None, inputs["scale"], packed=packed, context_bound=bound)


def _mla_triton(inputs: Inputs) -> Call:
    run, bound = launcher("mla_tree_attention"), _bound(inputs)
    packed = launcher("mla_tree_attention", "pack_ancestors")(inputs["visible"])
    arguments: tuple[Any, ...] = (*(inputs[name] for name in ("q", "latent", "rank", "lengths")), packed)
    return lambda: run(*arguments, inputs["scale"], bound)


# ---------------------------------------------------------------------------------------------------------------- table

CONTEXTS = (8192, 32768)
NODES = (8, 16, 32, 64)
BATCHES = (1, 16)
DEFAULTS = ((8192, 8, 1), (8192, 64, 1), (8192, 64, 16), (32768, 8, 1), (32768, 64, 1), (32768, 8, 16))
FLEX = {"gqa": ((8192, 64, 1), (32768, 8, 1)), "mla": ((8192, 16, 1),)}  # shapes with FlexAttention
GQA = {"heads": 32, "kv_heads": 8, "dim": 128}
MLA = {"heads": 64, "rank": 512, "rotary": 64}


def _shape(family: str, words: str, widths: dict[str, int], context: int, nodes: int, batch: int) -> Shape:
    point = (context, nodes, batch)
    tier: Tier = "default" if point in DEFAULTS else "full"
    return Shape(
        name=f"{family}-c{context // 1024}k-n{nodes}-b{batch}",
        about=f"{words}; context {context}, {nodes} nodes + root = {nodes + 1} tokens, batch {batch}",
        tier=tier,
        dims={**widths, "context": context, "nodes": nodes, "batch": batch, "flex": int(point in FLEX[family])},
        targets=TARGETS,
    )


def _shapes(family: str, words: str, widths: dict[str, int], small: Shape) -> tuple[Shape, ...]:
    grid = [(context, nodes, batch) for context in CONTEXTS for nodes in NODES for batch in BATCHES]
    return (small, *(_shape(family, words, widths, *point) for point in grid))


def _nano(words: str, **widths: int) -> Shape:
    about = f"nano-k2, {words}; context 256, 16 nodes + root = 17 tokens, batch 2"
    return Shape("nano-k2", about, "quick", {**widths, "context": 256, "nodes": 16, "batch": 2, "flex": 0})


ATTENTION = (
    BenchOp(
        name="tree_attention",
        build=lambda place, seed, flex, **dims: build_gqa(place, seed, **dims),
        cost=lambda inputs: OPS["tree_attention"].cost(**inputs),
        oracle=gqa_oracle,
        implementations=(
            triton_kernel(_gqa_triton),
            Implementation("sdpa", "torch", _gqa_dense),
            Implementation("sdpa_folded", "peer", _gqa_folded),
            _flex(_gqa_flex),
        ),
        shapes=_shapes("gqa", "32/8 heads of 128", GQA, _nano("8/4 heads of 32", heads=8, kv_heads=4, dim=32)),
    ),
    BenchOp(
        name="mla_tree_attention",
        build=lambda place, seed, flex, **dims: build_mla(place, seed, **dims),
        cost=lambda inputs: OPS["mla_tree_attention"].cost(**inputs),
        oracle=mla_oracle,
        implementations=(
            triton_kernel(_mla_triton),
            Implementation("matmul", "torch", _mla_matmul),
            Implementation("sdpa", "peer", _mla_heads),
            Implementation("sdpa_folded", "peer", _mla_folded),
            _flex(_mla_flex),
        ),
        shapes=_shapes("mla", "64 heads, 512 + 64", MLA, _nano("8 heads, 64 + 16", heads=8, rank=64, rotary=16)),
    ),
)
