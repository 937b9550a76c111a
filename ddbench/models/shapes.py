"""Named model shapes: plain data, no weights, no torch.

A shape says everything that decides a model's arithmetic; `models/target.py` and `models/drafter.py` build from it.
Sources: the models' published config.json files. A new target is one entry in `TARGETS`.
Left out of the arithmetic, so that named shapes stand for cost and not for published outputs: DeepSeek-V3's
group-limited routing (its 8 groups of experts count as one) and Llama 3.1's rotary scaling.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from ddbench.errors import UserError, did_you_mean


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class YarnShape(_Shape):
    """YaRN context extension (arXiv 2309.00071) as DeepSeek-V3 and Kimi-K2 configure it."""

    factor: PositiveFloat
    original_context: PositiveInt
    beta_fast: PositiveFloat = 32.0
    beta_slow: PositiveFloat = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0


class RopeShape(_Shape):
    """Half-split (neox) rotary embedding over the first `rotary_dim` dims of a head; the rest passes through."""

    theta: PositiveFloat
    rotary_dim: int = Field(gt=0, multiple_of=2)
    yarn: YarnShape | None = None


class GQAShape(_Shape):
    """Grouped-query attention: K/V cache rows of `num_kv_heads * head_dim`."""

    kind: Literal["gqa"] = "gqa"
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    qk_norm: bool = False

    @model_validator(mode="after")
    def _grouped(self) -> GQAShape:
        _check_heads(self.num_heads, self.num_kv_heads)
        return self

    @property
    def row_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Per-token shapes of the cache tensors: K and V."""
        return ((self.num_kv_heads, self.head_dim),) * 2


class MLAShape(_Shape):
    """Multi-head latent attention: one cached row of `kv_lora_rank + qk_rope_dim` shared by all heads."""

    kind: Literal["mla"] = "mla"
    num_heads: PositiveInt
    q_lora_rank: PositiveInt | None
    kv_lora_rank: PositiveInt
    qk_nope_dim: PositiveInt
    qk_rope_dim: PositiveInt
    v_head_dim: PositiveInt

    @property
    def row_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Per-token shape of the one cache tensor: latent and rotated key part."""
        return ((self.kv_lora_rank + self.qk_rope_dim,),)


class MoEShape(_Shape):
    """Routed experts (sigmoid scores with a selection bias, top-k, normalised, scaled) plus shared experts."""

    num_experts: PositiveInt
    top_k: PositiveInt
    expert_width: PositiveInt
    num_shared: PositiveInt = 1
    routed_scaling: float = 1.0
    weight_format: Literal["float", "int4"] = "float"
    group_size: int = Field(default=32, gt=0, multiple_of=8)  # eight values share a word

    @model_validator(mode="after")
    def _enough_experts(self) -> MoEShape:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k is {self.top_k}, there are {self.num_experts} experts")
        return self


class TargetShape(_Shape):
    """A decoder: `num_dense_layers` layers with a dense MLP, the rest MoE (all dense where `moe` is None)."""

    name: str
    num_layers: PositiveInt
    hidden: PositiveInt
    vocab: PositiveInt
    dense_width: PositiveInt
    attention: Annotated[GQAShape | MLAShape, Field(discriminator="kind")]
    rope: RopeShape
    moe: MoEShape | None = None
    num_dense_layers: NonNegativeInt = 0
    norm_eps: PositiveFloat = 1e-6
    tie_embeddings: bool = False
    max_context: PositiveInt = 4096
    embedding_scale: float = 1.0
    logit_softcap: PositiveFloat | None = None
    stop_token_ids: tuple[NonNegativeInt, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> TargetShape:
        attention, rotary = self.attention, self.rope.rotary_dim
        if isinstance(attention, GQAShape):
            _check_rotary(rotary, attention.head_dim)
        elif rotary != attention.qk_rope_dim:
            raise ValueError(f"rope.rotary_dim is {rotary}, expected attention.qk_rope_dim, {attention.qk_rope_dim}")
        if self.moe is not None and self.moe.weight_format == "int4":
            for what, columns in (("hidden", self.hidden), ("moe.expert_width", self.moe.expert_width)):
                if columns % self.moe.group_size:
                    raise ValueError(f"{what} is {columns}: not a multiple of the int4 group, {self.moe.group_size}")
        beyond = [token for token in self.stop_token_ids if token >= self.vocab]
        if beyond:
            raise ValueError(f"stop_token_ids {beyond}: the vocabulary ends at {self.vocab - 1}")
        return self

    def is_moe_layer(self, layer: int) -> bool:
        return self.moe is not None and layer >= self.num_dense_layers


class DrafterShape(_Shape):
    """A DFlash block-diffusion drafter (arXiv 2602.06036). `block_size` counts the anchor."""

    name: str
    num_layers: PositiveInt
    hidden: PositiveInt
    width: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    block_size: int = Field(ge=2)
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: PositiveInt
    target_hidden: PositiveInt
    rope: RopeShape
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] = ()
    sliding_window: PositiveInt | None = None
    is_causal: bool | None = None  # None: legacy rule, causal in the block on sliding layers only
    norm_eps: PositiveFloat = 1e-6

    @model_validator(mode="after")
    def _consistent(self) -> DrafterShape:
        bad = [i for i in self.target_layer_ids if not 0 <= i < self.num_target_layers]
        if bad or not self.target_layer_ids:
            raise ValueError(
                f"target_layer_ids {list(self.target_layer_ids)}: each must be in 0..{self.num_target_layers - 1}"
            )
        if self.layer_types and len(self.layer_types) != self.num_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for {self.num_layers} layers")
        if "sliding_attention" in self.layer_types and self.sliding_window is None:
            raise ValueError("layer_types names sliding_attention but sliding_window is not set")
        _check_heads(self.num_heads, self.num_kv_heads)
        _check_rotary(self.rope.rotary_dim, self.head_dim)
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


def _check_heads(num_heads: int, num_kv_heads: int) -> None:
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads is {num_heads}: expected a multiple of num_kv_heads, {num_kv_heads}")


def _check_rotary(rotary_dim: int, head_dim: int) -> None:
    if rotary_dim > head_dim:
        raise ValueError(f"rope.rotary_dim is {rotary_dim}, a head has {head_dim} dims")


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
             norm_eps: float, stop: tuple[int, ...]) -> TargetShape:  # fmt: skip
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
            num_experts=experts, top_k=8, expert_width=2048, routed_scaling=scaling, weight_format=weight_format
        ),
        norm_eps=norm_eps,
        max_context=int(4096 * yarn_factor),
        stop_token_ids=stop,
    )


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
        _mla_moe("kimi-k2.6", layers=61, dense_layers=1, heads=64, experts=384, vocab=163840, theta=50000.0,
                 yarn_factor=64.0, scaling=2.827, weight_format="int4", norm_eps=1e-5, stop=(163586,)),
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
        norm_eps=1e-5,
    ),
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
