"""Draft-KV materialize: the committed rows of one request, every layer of the drafter.

Letters: T rows, K captured layers, Dt target hidden, D drafter hidden, Ld drafter layers, G KV heads, hd head dim, S
cache rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ddbench.kernels import materialize_kv
from ddbench.kernels.rope import cos_sin, inv_freq
from ddbench.models.shapes import drafter_shape
from ddbench.opbench.records import Target
from ddbench.opbench.shapes import BenchOp, Call, Implementation, Inputs, Place, Shape, Tensors
from ddbench.opbench.triton_calls import launch, triton_kernel
from ddbench.ops import OPS

CONTEXT = 1024  # position of the first row
TARGETS = (Target(metric="share_of_read", limit=0.8),)  # within 1.25 of the byte floor


def build(place: Place, seed: int, **dims: int) -> Inputs:
    """One request with `tokens` rows, all of which count."""
    generator = place.generator(seed)
    tokens, width, hidden, layers = (dims[name] for name in ("tokens", "features", "hidden", "layers"))
    heads, dim = dims["kv_heads"], dims["head_dim"]
    rows = CONTEXT + tokens
    tables = cos_sin(inv_freq(dims["rotary_dim"], 50000.0), rows)
    caches = [torch.zeros(layers, 1, rows, heads, dim, dtype=place.dtype, device=place.device) for _ in range(2)]
    return {
        "features": place.randn(generator, 1, tokens, width),
        "positions": torch.arange(CONTEXT, rows, device=place.device)[None],
        "num_rows": torch.full((1,), tokens, device=place.device),
        "fc": place.randn(generator, hidden, width, scale=width**-0.5),
        "hidden_norm": torch.ones(hidden, dtype=place.dtype, device=place.device),
        "kv_weights": place.randn(generator, layers, 2 * heads * dim, hidden, scale=hidden**-0.5),
        "k_norms": torch.ones(layers, dim, dtype=place.dtype, device=place.device),
        "eps": 1e-5,
        "cos": tables[0].to(place.device),
        "sin": tables[1].to(place.device),
        "k_cache": caches[0],
        "v_cache": caches[1],
    }


def _written(inputs: Inputs, result: Any) -> Tensors:
    return {name: inputs[name][:, :, CONTEXT:] for name in ("k_cache", "v_cache")}


def _torch(function: Callable[..., None]) -> Callable[[Inputs], Call]:
    def prepare(inputs: Inputs) -> Call:
        bound = inputs["k_cache"].shape[2]  # known on the host: nothing is asked of the device
        return lambda: function(**inputs, position_bound=bound)

    return prepare


def _shape(target: str, tokens: int) -> Shape:
    shape = drafter_shape(target)
    return Shape(
        name=f"{target}-t{tokens}",
        about=f"drafter of {target}, {tokens} token{'s' * (tokens > 1)} of one request",
        tier="quick" if target == "nano-k2" else "default",
        dims={
            "tokens": tokens,
            "features": len(shape.target_layer_ids) * shape.target_hidden,
            "hidden": shape.hidden,
            "layers": shape.num_layers,
            "kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "rotary_dim": shape.rope.rotary_dim,
        },
        targets=TARGETS if target == "kimi-k2.6" else (),
    )


MATERIALIZE = (
    BenchOp(
        name="materialize_kv",
        build=build,
        cost=lambda inputs: OPS["materialize_kv"].cost(**inputs),
        oracle=lambda inputs: _torch(materialize_kv.materialize_sequential)(inputs)(),
        results=_written,
        implementations=(
            triton_kernel(launch("materialize_kv")),
            Implementation("fused", "torch", _torch(materialize_kv.materialize_fused)),
            Implementation("batched", "torch", _torch(materialize_kv.materialize_batched)),
            Implementation("sequential", "torch", _torch(materialize_kv.materialize_sequential)),
        ),
        shapes=(
            *(_shape("kimi-k2.6", tokens) for tokens in (1, 2, 4, 8, 16)),
            *(_shape("nano-k2", tokens) for tokens in (1, 8)),
        ),
    ),
)
