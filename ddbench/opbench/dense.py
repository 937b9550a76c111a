"""Norms, routing and plain GEMMs: the small ops between the large ones, and what torch's matmul does at their sizes.

Letters: T tokens, M hidden, E experts, O output features.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ddbench.kernels.linear import linear
from ddbench.kernels.moe_route import moe_route
from ddbench.kernels.rms_norm import add_rms_norm, rms_norm
from ddbench.opbench.shapes import BenchOp, Call, Implementation, Inputs, Place, Shape, Tensors, Tier, plain
from ddbench.opbench.triton_calls import launch, triton_kernel
from ddbench.ops import OPS

# ---------------------------------------------------------------------------------------------------------------- norms


def build_norm(place: Place, seed: int, *, tokens: int, width: int) -> Inputs:
    """x [T, M]."""
    generator = place.generator(seed)
    weight = 1 + place.randn(generator, width, scale=0.2)
    return {"x": place.randn(generator, tokens, width), "weight": weight, "eps": 1e-5}


def build_add_norm(place: Place, seed: int, *, tokens: int, width: int) -> Inputs:
    """x and residual [T, M]."""
    residual = place.randn(place.generator(seed + 1), tokens, width)
    return build_norm(place, seed, tokens=tokens, width=width) | {"residual": residual}


def _normed(inputs: Inputs, result: Any) -> Tensors:
    return {"normed": result[0], "sum": result[1]}


# -------------------------------------------------------------------------------------------------------------- routing


def build_route(place: Place, seed: int, *, tokens: int, width: int, experts: int, top_k: int) -> Inputs:
    """x [T, M], gate [E, M], a bias that moves choices."""
    generator = place.generator(seed)
    bias = torch.randn(experts, generator=generator, device=place.device) * 0.1
    gate = place.randn(generator, experts, width, scale=width**-0.5)
    return {
        "x": place.randn(generator, tokens, width),
        "gate_weight": gate,
        "bias": bias,
        "top_k": top_k,
        "scaling": 2.8,
    }


def _sorted_weights(inputs: Inputs, result: Any) -> Tensors:
    """Weights by size: two experts with almost the same score may change places."""
    return {"weights": result[1].float().sort(dim=1, descending=True).values}


# ---------------------------------------------------------------------------------------------------------------- GEMMs


def build_linear(place: Place, seed: int, *, tokens: int, width: int, outputs: int) -> Inputs:
    """x [T, M], weight [O, M]."""
    generator = place.generator(seed)
    weight = place.randn(generator, outputs, width, scale=width**-0.5)
    return {"x": place.randn(generator, tokens, width), "weight": weight}


def _laid_out(inputs: Inputs) -> Call:
    """torch.matmul with the weight stored the other way round, [M, O]."""
    x, weight = inputs["x"], inputs["weight"].t().contiguous()
    return lambda: torch.matmul(x, weight)


def _linear_cost(inputs: Inputs) -> dict[str, int]:
    """Both operands in, the product out."""
    (tokens, width), outputs = inputs["x"].shape, inputs["weight"].shape[0]
    moved = tokens * width + outputs * width + tokens * outputs
    return {"bytes": moved * inputs["x"].element_size(), "flops": 2 * tokens * width * outputs}


def _summed(inputs: Inputs, result: Any) -> Tensors:
    """Of a product [T, O], maybe in parts [S, T, O]."""
    return {"sum": result.float().sum(0) if result.dim() > inputs["x"].dim() else result}


# ---------------------------------------------------------------------------------------------------------------- table


def _rows(name: str, width: int, tokens: int, tier: Tier = "default", **more: int) -> Shape:
    about = f"{tokens} token{'s' * (tokens > 1)} x {width}" + "".join(f", {key} {more[key]}" for key in more)
    return Shape(f"{name}-t{tokens}", about, tier, {"tokens": tokens, "width": width, **more})


NORM_SHAPES = (
    *(_rows("kimi-k2.6", 7168, tokens) for tokens in (1, 33, 65, 1040)),
    _rows("kimi-k2.6-latent", 512, 65, "full"),
    _rows("nano-k2", 256, 17, "quick"),
)

# Tokens of the products that `kernels/linear_triton.py` may take on: one, trees of few requests.
SMALL: tuple[tuple[int, Tier], ...] = (
    *((tokens, "default") for tokens in (1, 17, 33, 65)),
    *((tokens, "full") for tokens in (8, 64, 129, 260)),
)

# Large weights of a layer, (name, inputs, outputs), and the tokens of one request: of `ar`, a chain, a tree.
LARGE = (
    ("kimi-k2.6-compressed", 7168, 2112),
    ("kimi-k2.6-q", 1536, 12288),
    ("kimi-k2.6-o", 8192, 7168),
    ("kimi-k2.6-shared-up", 7168, 4096),
    ("kimi-k2.6-shared-down", 2048, 7168),
    ("kimi-k2.6-draft-up", 7168, 36864),
    ("kimi-k2.6-draft-down", 18432, 7168),
)
QUICK = ("kimi-k2.6-q", 1)

DENSE = (
    BenchOp(
        name="rms_norm",
        build=build_norm,
        cost=lambda inputs: OPS["rms_norm"].cost(**inputs),
        oracle=lambda inputs: rms_norm(**inputs),
        implementations=(triton_kernel(launch("rms_norm")), Implementation("torch", "torch", plain(rms_norm))),
        shapes=NORM_SHAPES,
    ),
    BenchOp(
        name="add_rms_norm",
        build=build_add_norm,
        cost=lambda inputs: OPS["add_rms_norm"].cost(**inputs),
        oracle=lambda inputs: add_rms_norm(**inputs),
        results=_normed,
        implementations=(
            triton_kernel(launch("rms_norm", "add_rms_norm_triton")),
            Implementation("torch", "torch", plain(add_rms_norm)),
        ),
        shapes=NORM_SHAPES,
    ),
    BenchOp(
        name="moe_route",
        build=build_route,
        cost=lambda inputs: OPS["moe_route"].cost(**inputs),
        oracle=lambda inputs: moe_route(**inputs),
        results=_sorted_weights,
        implementations=(triton_kernel(launch("moe_route")), Implementation("torch", "torch", plain(moe_route))),
        shapes=(
            *(_rows("kimi-k2.6", 7168, tokens, experts=384, top_k=8) for tokens in (1, 33, 64)),
            _rows("nano-k2", 256, 17, "quick", experts=16, top_k=2),
        ),
    ),
    BenchOp(
        name="linear",
        build=build_linear,
        cost=_linear_cost,
        oracle=lambda inputs: F.linear(inputs["x"], inputs["weight"]),
        implementations=(
            Implementation("linear", "peer", plain(lambda x, weight: F.linear(x, weight))),
            Implementation("matmul_laid_out", "peer", _laid_out),
        ),
        shapes=(
            *(_rows("kimi-k2.6-draft-fc", 43008, tokens, outputs=7168) for tokens in (1, 8, 16)),
            *(_rows("kimi-k2.6-draft-kv", 7168, tokens, outputs=12288) for tokens in (1, 8, 16)),
            *(_rows("kimi-k2.6-lm-head", 7168, tokens, outputs=163840) for tokens in (1, 33)),
            _rows("nano-k2-lm-head", 256, 17, "quick", outputs=4096),
        ),
    ),
    BenchOp(
        name="small_linear",
        build=build_linear,
        cost=_linear_cost,
        oracle=lambda inputs: F.linear(inputs["x"], inputs["weight"]),
        implementations=(
            triton_kernel(launch("linear")),
            Implementation("torch", "torch", plain(linear)),
        ),
        shapes=(
            _rows("nano-k2-o", 256, 17, "quick", outputs=256),
            *(_rows("nano-k2-o", 256, tokens, tier, outputs=256) for tokens, tier in SMALL if tokens != 17),
            *(_rows("smollm2-o", 576, tokens, tier, outputs=576) for tokens, tier in SMALL),
            *(_rows("smollm2-qkv", 576, tokens, tier, outputs=960) for tokens, tier in SMALL),
            *(_rows("smollm2-up", 576, tokens, tier, outputs=3072) for tokens, tier in SMALL),
            *(_rows("smollm2-down", 1536, tokens, tier, outputs=576) for tokens, tier in SMALL),
        ),
    ),
    BenchOp(
        name="stream_linear",
        build=build_linear,
        cost=_linear_cost,
        oracle=lambda inputs: F.linear(inputs["x"], inputs["weight"]),
        results=_summed,
        implementations=(
            triton_kernel(launch("linear", "linear_parts_triton")),
            Implementation("torch", "torch", plain(linear)),
        ),
        shapes=tuple(
            _rows(name, width, tokens, "quick" if (name, tokens) == QUICK else "default", outputs=outputs)
            for name, width, outputs in LARGE
            for tokens in ((8,) if "draft" in name else (1, 8, 33))
        ),
    ),
)
