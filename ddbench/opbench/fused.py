"""The small fused ops of a layer: SwiGLU, cache rows of latent and grouped-query attention, the absorbed query.

Letters: B batch rows, N new tokens, S cache rows, H query heads, G KV heads, D head dim, R latent rank, Dr rotary dims,
I width.
"""

from __future__ import annotations

from typing import Any

import torch

from ddbench.kernels.absorbed_query import absorbed_query
from ddbench.kernels.latent_rows import compressed_rows, latent_rows
from ddbench.kernels.qk_rows import qk_rows
from ddbench.kernels.rope import cos_sin, inv_freq
from ddbench.kernels.swiglu import swiglu
from ddbench.opbench.shapes import BenchOp, Implementation, Inputs, Place, Shape, Tensors, Tier, plain
from ddbench.opbench.triton_calls import launch, triton_kernel
from ddbench.ops import OPS

CONTEXT = 2048  # rows before the new ones


def _positions(place: Place, batch: int, tokens: int, rotary: int) -> Inputs:
    """Rows of the tables, and where the new rows go."""
    tables = (table[CONTEXT:] for table in cos_sin(inv_freq(rotary, 50000.0), CONTEXT + tokens))
    cos_rows, sin_rows = (rows[None, :, None].repeat(batch, 1, 1, 1).to(place.device) for rows in tables)
    return {
        "cos_rows": cos_rows,
        "sin_rows": sin_rows,
        "lengths": torch.full((batch,), CONTEXT, device=place.device),
    }


def build_swiglu(place: Place, seed: int, *, tokens: int, width: int) -> Inputs:
    """[T, 2I]."""
    return {"gate_up": place.randn(place.generator(seed), tokens, 2 * width)}


def build_latent(place: Place, seed: int, *, batch: int, tokens: int, rank: int, rotary: int) -> Inputs:
    """kv [B, N, R+Dr], cache [B, S, R+Dr]."""
    generator = place.generator(seed)
    return {
        "kv": place.randn(generator, batch, tokens, rank + rotary),
        "norm_weight": 1 + place.randn(generator, rank, scale=0.2),
        "eps": 1e-5,
        **_positions(place, batch, tokens, rotary),
        "cache": torch.zeros(batch, CONTEXT + tokens, rank + rotary, dtype=place.dtype, device=place.device),
    }


def build_compressed(
    place: Place, seed: int, *, batch: int, tokens: int, query: int, rank: int, rotary: int, parts: int
) -> Inputs:
    """Parts [X, B, N, Q+R+Dr] of the product before it: sums in fp32, or what is not split."""
    generator = place.generator(seed)
    inputs = build_latent(place, seed + 1, batch=batch, tokens=tokens, rank=rank, rotary=rotary)
    sums = place.randn(generator, parts, batch, tokens, query + rank + rotary)
    del inputs["kv"]
    return {
        "parts": sums.float() if parts > 1 else sums,
        "q_weight": 1 + place.randn(generator, query, scale=0.2),
        "kv_weight": inputs.pop("norm_weight"),
        "q_eps": inputs["eps"],
        "kv_eps": inputs.pop("eps"),
        **inputs,
        "dtype": place.dtype,
    }


def build_qk(place: Place, seed: int, *, batch: int, tokens: int, heads: int, kv_heads: int, dim: int) -> Inputs:
    """q, k and v as views of one projection."""
    generator = place.generator(seed)
    whole = place.randn(generator, batch, tokens, heads + 2 * kv_heads, dim)
    q, k, v = whole.split((heads, kv_heads, kv_heads), dim=2)
    caches = [
        torch.zeros(batch, CONTEXT + tokens, kv_heads, dim, dtype=place.dtype, device=place.device) for _ in range(2)
    ]
    norms = [1 + place.randn(generator, dim, scale=0.2) for _ in range(2)]
    return {
        "q": q,
        "k": k,
        "v": v,
        "q_norm": norms[0],
        "k_norm": norms[1],
        "eps": 1e-6,
        **_positions(place, batch, tokens, dim),
        "k_cache": caches[0],
        "v_cache": caches[1],
    }


def build_query(place: Place, seed: int, *, batch: int, tokens: int, heads: int, rank: int, rotary: int) -> Inputs:
    """q_latent [B, N, H, R] as the product by heads leaves it, q_rope [B, N, H, Dr]."""
    generator = place.generator(seed)
    tables = _positions(place, batch, tokens, rotary)
    return {
        "q_latent": place.randn(generator, heads, batch, tokens, rank).permute(1, 2, 0, 3),
        "q_rope": place.randn(generator, batch, tokens, heads, rotary),
        "cos_rows": tables["cos_rows"],
        "sin_rows": tables["sin_rows"],
    }


def _latent_written(inputs: Inputs, result: Any) -> Tensors:
    return {"cache": inputs["cache"][:, CONTEXT:]}


def _compressed_written(inputs: Inputs, result: Any) -> Tensors:
    return {"q": result, **_latent_written(inputs, result)}


def _qk_written(inputs: Inputs, result: Any) -> Tensors:
    return {"q": result, **{name: inputs[name][:, CONTEXT:] for name in ("k_cache", "v_cache")}}


def _shape(name: str, tier: Tier = "default", **dims: int) -> Shape:
    return Shape(name, ", ".join(f"{value} {key}" for key, value in dims.items()), tier, dims)


FUSED = (
    BenchOp(
        name="swiglu",
        build=build_swiglu,
        cost=lambda inputs: OPS["swiglu"].cost(**inputs),
        oracle=lambda inputs: swiglu(**inputs),
        implementations=(triton_kernel(launch("swiglu")), Implementation("torch", "torch", plain(swiglu))),
        shapes=(
            *(_shape(f"kimi-k2.6-shared-t{tokens}", tokens=tokens, width=2048) for tokens in (1, 33, 65)),
            _shape("kimi-k2.6-draft-t8", tokens=8, width=18432),
            _shape("nano-k2-t17", "quick", tokens=17, width=96),
        ),
    ),
    BenchOp(
        name="latent_rows",
        build=build_latent,
        cost=lambda inputs: OPS["latent_rows"].cost(**inputs),
        oracle=lambda inputs: latent_rows(**inputs),
        results=_latent_written,
        implementations=(triton_kernel(launch("latent_rows")), Implementation("torch", "torch", plain(latent_rows))),
        shapes=(
            _shape("kimi-k2.6-b1", batch=1, tokens=33, rank=512, rotary=64),
            _shape("kimi-k2.6-b16", batch=16, tokens=33, rank=512, rotary=64),
            _shape("nano-k2-b1", "quick", batch=1, tokens=17, rank=64, rotary=16),
        ),
    ),
    BenchOp(
        name="compressed_rows",
        build=build_compressed,
        cost=lambda inputs: OPS["latent_rows_compressed_rows"].cost(**inputs),
        oracle=lambda inputs: compressed_rows(**inputs | {"dtype": inputs["cache"].dtype}),
        results=_compressed_written,
        implementations=(
            triton_kernel(launch("latent_rows", "compressed_rows_triton")),
            Implementation("torch", "torch", plain(compressed_rows)),
        ),
        shapes=(
            _shape("kimi-k2.6-b1", batch=1, tokens=33, query=1536, rank=512, rotary=64, parts=4),
            _shape("kimi-k2.6-b16", batch=16, tokens=33, query=1536, rank=512, rotary=64, parts=1),
            _shape("nano-k2-b1", "quick", batch=1, tokens=17, query=96, rank=64, rotary=16, parts=2),
        ),
    ),
    BenchOp(
        name="qk_rows",
        build=build_qk,
        cost=lambda inputs: OPS["qk_rows"].cost(**inputs),
        oracle=lambda inputs: qk_rows(**inputs),
        results=_qk_written,
        implementations=(triton_kernel(launch("qk_rows")), Implementation("torch", "torch", plain(qk_rows))),
        shapes=(
            _shape("qwen3-8b-b1", batch=1, tokens=33, heads=32, kv_heads=8, dim=128),
            _shape("kimi-k2.6-draft-b1", batch=1, tokens=8, heads=64, kv_heads=8, dim=128),
            _shape("nano-k2-draft-b1", "quick", batch=1, tokens=8, heads=8, kv_heads=4, dim=32),
        ),
    ),
    BenchOp(
        name="absorbed_query",
        build=build_query,
        cost=lambda inputs: OPS["absorbed_query"].cost(**inputs),
        oracle=lambda inputs: absorbed_query(**inputs),
        implementations=(
            triton_kernel(launch("absorbed_query")),
            Implementation("torch", "torch", plain(absorbed_query)),
        ),
        shapes=(
            _shape("kimi-k2.6-b1", batch=1, tokens=33, heads=64, rank=512, rotary=64),
            _shape("nano-k2-b1", "quick", batch=1, tokens=17, heads=8, rank=64, rotary=16),
        ),
    ),
)
