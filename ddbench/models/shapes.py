"""Named model shapes: plain data, no weights, no torch.

A shape says everything that decides a model's arithmetic; `models/target.py` and `models/drafter.py` build from it.
Sources: the models' published config.json files. A new target is one entry in `TARGETS`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from ddbench.errors import UserError, did_you_mean


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class YarnShape(_Shape):
    """YaRN context extension (arXiv 2309.00071) as DeepSeek-V3 and Kimi-K2 configure it."""

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0


class RopeShape(_Shape):
    """Half-split (neox) rotary embedding over the first `rotary_dim` dims of a head; the rest passes through."""

    theta: float
    rotary_dim: int
    yarn: YarnShape | None = None


class GQAShape(_Shape):
    """Grouped-query attention: K/V cache rows of `num_kv_heads * head_dim`."""

    kind: Literal["gqa"] = "gqa"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qk_norm: bool = False

    @property
    def row_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Per-token shapes of the cache tensors: K and V."""
        return ((self.num_kv_heads, self.head_dim),) * 2


class MLAShape(_Shape):
    """Multi-head latent attention: one cached row of `kv_lora_rank + qk_rope_dim` shared by all heads."""

    kind: Literal["mla"] = "mla"
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_head_dim: int

    @property
    def row_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Per-token shape of the one cache tensor: latent and rotated key part."""
        return ((self.kv_lora_rank + self.qk_rope_dim,),)


class MoEShape(_Shape):
    """Routed experts (sigmoid scores with a selection bias, top-k, normalised, scaled) plus shared experts."""

    num_experts: int
    top_k: int
    expert_width: int
    num_shared: int = 1
    routed_scaling: float = 1.0
    weight_format: Literal["float", "int4"] = "float"
    group_size: int = 32


class TargetShape(_Shape):
    """A decoder: `num_dense_layers` layers with a dense MLP, the rest MoE (all dense where `moe` is None)."""

    name: str
    num_layers: int
    hidden: int
    vocab: int
    dense_width: int
    attention: GQAShape | MLAShape
    rope: RopeShape
    moe: MoEShape | None = None
    num_dense_layers: int = 0
    norm_eps: float = 1e-6
    tie_embeddings: bool = False
    max_context: int = 4096
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    stop_token_ids: tuple[int, ...] = ()

    def is_moe_layer(self, layer: int) -> bool:
        return self.moe is not None and layer >= self.num_dense_layers


class DrafterShape(_Shape):
    """A DFlash block-diffusion drafter (arXiv 2602.06036). `block_size` counts the anchor."""

    name: str
    num_layers: int
    hidden: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    target_hidden: int
    rope: RopeShape
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] = ()
    sliding_window: int | None = None
    is_causal: bool | None = None  # None: legacy rule, causal in the block on sliding layers only
    norm_eps: float = 1e-6

    @model_validator(mode="after")
    def _consistent(self) -> DrafterShape:
        bad = [i for i in self.target_layer_ids if not 0 <= i < self.num_target_layers]
        if bad or not self.target_layer_ids:
            raise ValueError(
                f"target_layer_ids {list(self.target_layer_ids)}: each must be in 0..{self.num_target_layers - 1}"
            )
        if self.block_size < 2:
            raise ValueError(f"block_size {self.block_size}: at least 2 (the anchor and one drafted position)")
        if self.layer_types and len(self.layer_types) != self.num_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for {self.num_layers} layers")
        if "sliding_attention" in self.layer_types and not self.sliding_window:
            raise ValueError("layer_types names sliding_attention but sliding_window is not set")
        return self

    @property
    def draft_horizon(self) -> int:
        """Drafted positions per block, the depth limit of the tree."""
        return self.block_size - 1

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, the query itself included; None for full attention."""
        return self.sliding_window if self.layer_types and self.layer_types[layer] == "sliding_attention" else None

    def causal_in_block(self, layer: int) -> bool:
        """Whether block slots see only earlier slots: `is_causal` where set, else sliding layers only."""
        return self.is_causal if self.is_causal is not None else self.window(layer) is not None


def _qwen3(name: str, layers: int, hidden: int, width: int, heads: int) -> TargetShape:
    return TargetShape(
        name=name,
        num_layers=layers,
        hidden=hidden,
        vocab=151936,
        dense_width=width,
        attention=GQAShape(num_heads=heads, num_kv_heads=8, head_dim=128, qk_norm=True),
        rope=RopeShape(theta=1e6, rotary_dim=128),
        max_context=40960,
        stop_token_ids=(151645, 151643),
    )


def _mla_moe(name: str, *, layers: int, dense_layers: int, heads: int, experts: int, vocab: int, theta: float,
             yarn_factor: float, scaling: float, dense_width: int, weight_format: Literal["float", "int4"],
             stop: tuple[int, ...]) -> TargetShape:  # fmt: skip
    return TargetShape(
        name=name,
        num_layers=layers,
        hidden=7168,
        vocab=vocab,
        dense_width=dense_width,
        num_dense_layers=dense_layers,
        attention=MLAShape(
            num_heads=heads, q_lora_rank=1536, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_head_dim=128
        ),
        rope=RopeShape(theta=theta, rotary_dim=64, yarn=YarnShape(factor=yarn_factor, original_context=4096)),
        moe=MoEShape(
            num_experts=experts, top_k=8, expert_width=2048, routed_scaling=scaling, weight_format=weight_format
        ),
        max_context=int(4096 * yarn_factor),
        stop_token_ids=stop,
    )


_TINY_ROPE = RopeShape(theta=10000.0, rotary_dim=16)

TARGETS: dict[str, TargetShape] = {
    shape.name: shape
    for shape in (
        _qwen3("qwen3-4b", 36, 2560, 9728, 32),
        _qwen3("qwen3-8b", 36, 4096, 12288, 32),
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
            stop_token_ids=(128009,),
        ),
        _mla_moe("deepseek-v3", layers=61, dense_layers=3, heads=128, experts=256, vocab=129280, theta=10000.0,
                 yarn_factor=40.0, scaling=2.5, dense_width=18432, weight_format="float", stop=(1,)),
        _mla_moe("kimi-k2.6", layers=61, dense_layers=1, heads=64, experts=384, vocab=163840, theta=50000.0,
                 yarn_factor=64.0, scaling=2.827, dense_width=18432, weight_format="int4", stop=(163586,)),
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
            rope=_TINY_ROPE,
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
    "kimi-k2.6": DrafterShape(
        name="kimi-k2.6-dflash",
        num_layers=6,
        hidden=7168,
        width=18432,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        block_size=8,
        mask_token_id=163838,
        target_layer_ids=(1, 12, 24, 35, 47, 58),
        num_target_layers=61,
        target_hidden=7168,
        rope=RopeShape(theta=50000.0, rotary_dim=128, yarn=YarnShape(factor=64.0, original_context=4096)),
        layer_types=("sliding_attention",) * 5 + ("full_attention",),
        sliding_window=2048,
    ),
    "qwen3-4b": DrafterShape(
        name="qwen3-4b-dflash",
        num_layers=5,
        hidden=2560,
        width=9728,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        block_size=16,
        mask_token_id=151669,
        target_layer_ids=(1, 9, 17, 25, 33),
        num_target_layers=36,
        target_hidden=2560,
        rope=RopeShape(theta=1e6, rotary_dim=128),
    ),
    "qwen3-8b": DrafterShape(
        name="qwen3-8b-dflash",
        num_layers=5,
        hidden=4096,
        width=12288,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        block_size=16,
        mask_token_id=151669,
        target_layer_ids=(1, 9, 17, 25, 33),
        num_target_layers=36,
        target_hidden=4096,
        rope=RopeShape(theta=1e6, rotary_dim=128),
    ),
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
