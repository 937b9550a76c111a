"""Named model shapes: plain data, no weights, no torch.

A shape says everything that decides a model's arithmetic; `models/target.py` and `models/drafter.py` build from it.
Sources: the models' published config.json files. A new target is one entry in `TARGETS`.
Left out of the arithmetic, so that named shapes stand for cost and not for published outputs: DeepSeek-V3's
group-limited routing (its 8 groups of experts count as one) and Llama 3.1's rotary scaling.

`k2.6-ep8-rank` is what one of eight expert-parallel ranks computes of Kimi-K2.6 before the all-reduce: everything but
the routed experts in full, of those 48 of 384. `-l8` is its first 8 layers.
"""

from __future__ import annotations

from typing import Literal

from ddbench.errors import UserError, did_you_mean
from ddbench.models.shape_kinds import (
    DrafterShape,
    GQAShape,
    Llama3Shape,
    MLAShape,
    MoEShape,
    RopeShape,
    TargetShape,
    YarnShape,
)

__all__ = [
    "DRAFTERS",
    "TARGETS",
    "DrafterShape",
    "GQAShape",
    "Llama3Shape",
    "MLAShape",
    "MoEShape",
    "RopeShape",
    "TargetShape",
    "YarnShape",
    "drafter_shape",
    "target_shape",
]


def _qwen3(name: str, hidden: int, width: int, tied: bool) -> TargetShape:
    return TargetShape(
        name=name,
        num_layers=36,
        hidden=hidden,
        vocab=151936,
        dense_width=width,
        attention=GQAShape(num_heads=32, num_kv_heads=8, head_dim=128, qk_norm=True),
        rope=RopeShape(theta=1e6, rotary_dim=128),
        tie_embeddings=tied,
        max_context=40960,
        stop_token_ids=(151645, 151643),
    )


def _qwen3_drafter(target: str, hidden: int, width: int) -> DrafterShape:
    return DrafterShape(
        name=f"{target}-dflash",
        num_layers=5,
        hidden=hidden,
        width=width,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        block_size=16,
        mask_token_id=151669,
        target_layer_ids=(1, 9, 17, 25, 33),
        num_target_layers=36,
        target_hidden=hidden,
        rope=RopeShape(theta=1e6, rotary_dim=128),
    )


def _mla_moe(name: str, *, layers: int, dense_layers: int, heads: int, experts: int, vocab: int, theta: float,
             yarn_factor: float, scaling: float, weight_format: Literal["float", "int4"],
             norm_eps: float, stop: tuple[int, ...], held: int | None = None) -> TargetShape:  # fmt: skip
    return TargetShape(
        name=name,
        num_layers=layers,
        hidden=7168,
        vocab=vocab,
        dense_width=18432,
        num_dense_layers=dense_layers,
        attention=MLAShape(
            num_heads=heads, q_lora_rank=1536, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_head_dim=128
        ),
        rope=RopeShape(theta=theta, rotary_dim=64, yarn=YarnShape(factor=yarn_factor, original_context=4096)),
        moe=MoEShape(
            num_experts=experts,
            top_k=8,
            expert_width=2048,
            routed_scaling=scaling,
            weight_format=weight_format,
            num_local_experts=held,
        ),
        norm_eps=norm_eps,
        max_context=int(4096 * yarn_factor),
        stop_token_ids=stop,
    )


def _kimi_k2_6(name: str, layers: int = 61, held: int | None = None) -> TargetShape:
    """Kimi-K2.6, or its first layers, or the first rank's share of it."""
    return _mla_moe(name, layers=layers, dense_layers=1, heads=64, experts=384, vocab=163840, theta=50000.0,
                    yarn_factor=64.0, scaling=2.827, weight_format="int4", norm_eps=1e-5, stop=(163586,),
                    held=held)  # fmt: skip


def _kimi_drafter(target: str, layers: int, features: tuple[int, ...]) -> DrafterShape:
    return DrafterShape(
        name=f"{target}-dflash",
        num_layers=6,
        hidden=7168,
        width=18432,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        block_size=8,
        mask_token_id=163838,
        target_layer_ids=features,
        num_target_layers=layers,
        target_hidden=7168,
        rope=RopeShape(theta=50000.0, rotary_dim=128, yarn=YarnShape(factor=64.0, original_context=4096)),
        layer_types=("sliding_attention",) * 5 + ("full_attention",),
        sliding_window=2048,
        norm_eps=1e-5,
    )


_KIMI_FEATURES = (1, 12, 24, 35, 47, 58)

TARGETS: dict[str, TargetShape] = {
    shape.name: shape
    for shape in (
        _qwen3("qwen3-4b", 2560, 9728, tied=True),
        _qwen3("qwen3-8b", 4096, 12288, tied=False),
        TargetShape(
            name="llama-3.1-8b",
            num_layers=32,
            hidden=4096,
            vocab=128256,
            dense_width=14336,
            attention=GQAShape(num_heads=32, num_kv_heads=8, head_dim=128),
            rope=RopeShape(theta=500000.0, rotary_dim=128),
            norm_eps=1e-5,
            max_context=8192,
            stop_token_ids=(128001, 128008, 128009),
        ),
        _mla_moe("deepseek-v3", layers=61, dense_layers=3, heads=128, experts=256, vocab=129280, theta=10000.0,
                 yarn_factor=40.0, scaling=2.5, weight_format="float", norm_eps=1e-6, stop=(1,)),
        _kimi_k2_6("kimi-k2.6"),
        _kimi_k2_6("k2.6-ep8-rank", held=48),
        _kimi_k2_6("k2.6-ep8-rank-l8", layers=8, held=48),
        TargetShape(
            name="nano-k2",
            num_layers=6,
            hidden=256,
            vocab=4096,
            dense_width=512,
            num_dense_layers=1,
            attention=MLAShape(
                num_heads=8, q_lora_rank=96, kv_lora_rank=64, qk_nope_dim=32, qk_rope_dim=16, v_head_dim=32
            ),
            rope=RopeShape(theta=50000.0, rotary_dim=16, yarn=YarnShape(factor=4.0, original_context=512)),
            moe=MoEShape(num_experts=16, top_k=2, expert_width=96, routed_scaling=2.827, weight_format="int4"),
            max_context=2048,
            stop_token_ids=(0,),
        ),
        TargetShape(
            name="tiny-gqa",
            num_layers=3,
            hidden=48,
            vocab=96,
            dense_width=96,
            attention=GQAShape(num_heads=4, num_kv_heads=2, head_dim=16, qk_norm=True),
            rope=RopeShape(theta=10000.0, rotary_dim=16),
            max_context=512,
        ),
        TargetShape(
            name="tiny-mla-moe",
            num_layers=3,
            hidden=64,
            vocab=96,
            dense_width=96,
            num_dense_layers=1,
            attention=MLAShape(
                num_heads=4, q_lora_rank=32, kv_lora_rank=32, qk_nope_dim=16, qk_rope_dim=16, v_head_dim=16
            ),
            rope=RopeShape(theta=10000.0, rotary_dim=16, yarn=YarnShape(factor=4.0, original_context=128)),
            moe=MoEShape(num_experts=8, top_k=2, expert_width=32, routed_scaling=2.5, weight_format="int4"),
            max_context=512,
        ),
    )
}  # fmt: skip

DRAFTERS: dict[str, DrafterShape] = {
    "kimi-k2.6": _kimi_drafter("kimi-k2.6", 61, _KIMI_FEATURES),
    "k2.6-ep8-rank": _kimi_drafter("k2.6-ep8-rank", 61, _KIMI_FEATURES),
    "k2.6-ep8-rank-l8": _kimi_drafter("k2.6-ep8-rank-l8", 8, (1, 2, 3, 4, 5, 6)),
    "qwen3-4b": _qwen3_drafter("qwen3-4b", hidden=2560, width=9728),
    "qwen3-8b": _qwen3_drafter("qwen3-8b", hidden=4096, width=12288),
    "nano-k2": DrafterShape(
        name="nano-k2-dflash",
        num_layers=3,
        hidden=256,
        width=512,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        block_size=8,
        mask_token_id=1,
        target_layer_ids=(1, 3, 4),
        num_target_layers=6,
        target_hidden=256,
        rope=RopeShape(theta=50000.0, rotary_dim=32),
        layer_types=("sliding_attention", "sliding_attention", "full_attention"),
        sliding_window=128,
    ),
    "tiny-gqa": DrafterShape(
        name="tiny-gqa-dflash",
        num_layers=2,
        hidden=48,
        width=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        block_size=5,
        mask_token_id=95,
        target_layer_ids=(0, 1),
        num_target_layers=3,
        target_hidden=48,
        rope=RopeShape(theta=10000.0, rotary_dim=8),
    ),
    "tiny-mla-moe": DrafterShape(
        name="tiny-mla-moe-dflash",
        num_layers=3,
        hidden=64,
        width=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        block_size=6,
        mask_token_id=7,
        target_layer_ids=(0, 2),
        num_target_layers=3,
        target_hidden=64,
        rope=RopeShape(theta=10000.0, rotary_dim=16),
        layer_types=("sliding_attention", "full_attention", "sliding_attention"),
        sliding_window=12,
    ),
}


def target_shape(name: str) -> TargetShape:
    """The named target shape; an unknown name is a UserError with the closest known one."""
    if name not in TARGETS:
        raise UserError(f"unknown target '{name}': {did_you_mean(name, TARGETS)}")
    return TARGETS[name]


def drafter_shape(target: str) -> DrafterShape:
    """The drafter that goes with a named target."""
    if target not in DRAFTERS:
        raise UserError(f"target '{target}' has no DFlash drafter: {did_you_mean(target, DRAFTERS)}")
    return DRAFTERS[target]
