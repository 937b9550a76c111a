"""What a model shape is: records that say everything that decides a model's arithmetic. No weights, no torch.

The named shapes are in `shapes.py`; a checkpoint folder's config.json holds two of these records.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator


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


class Llama3Shape(_Shape):
    """Context extension of Llama 3.1: pairs that turn slowly within the original context are slowed by `factor`."""

    factor: PositiveFloat
    low_freq_factor: PositiveFloat
    high_freq_factor: PositiveFloat
    original_context: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> Llama3Shape:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor is {self.high_freq_factor}: expected more than low_freq_factor, "
                f"{self.low_freq_factor}"
            )
        return self


class RopeShape(_Shape):
    """Half-split (neox) rotary embedding over the first `rotary_dim` dims of a head; the rest passes through."""

    theta: PositiveFloat
    rotary_dim: int = Field(gt=0, multiple_of=2)
    yarn: YarnShape | None = None
    llama3: Llama3Shape | None = None

    @model_validator(mode="after")
    def _one_extension(self) -> RopeShape:
        if self.yarn is not None and self.llama3 is not None:
            raise ValueError("yarn and llama3 are both set: a context is extended in one way")
        return self


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
    """Routed experts (sigmoid scores with a selection bias, top-k, normalised, scaled) plus shared experts.

    The router always chooses among all `num_experts`. A rank of an expert-parallel group holds `num_local_experts` of
    them from `first_expert` on; what others hold adds nothing here, as on a rank before the all-reduce.
    """

    num_experts: PositiveInt
    top_k: PositiveInt
    expert_width: PositiveInt
    num_shared: PositiveInt = 1
    routed_scaling: float = 1.0
    weight_format: Literal["float", "int4"] = "float"
    group_size: int = Field(default=32, gt=0, multiple_of=8)  # eight values share a word
    num_local_experts: PositiveInt | None = None  # None: all of them
    first_expert: NonNegativeInt = 0
    num_groups: PositiveInt = 1  # of experts; a token's choice is limited to the best `top_groups` of them
    top_groups: PositiveInt = 1

    @model_validator(mode="after")
    def _enough_experts(self) -> MoEShape:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k is {self.top_k}, there are {self.num_experts} experts")
        if self.num_experts % self.num_groups or self.top_groups > self.num_groups:
            raise ValueError(
                f"{self.top_groups} of {self.num_groups} groups of {self.num_experts} experts: expected groups of one "
                "size, and no more of them chosen than there are"
            )
        size = self.num_experts // self.num_groups
        if self.num_groups > 1 and (size < 2 or self.top_groups * size < self.top_k):
            raise ValueError(
                f"top_k is {self.top_k}, {self.top_groups} groups hold {self.top_groups * size} experts: expected "
                "groups of two or more that hold as many as are chosen"
            )
        if self.first_expert + self.num_held > self.num_experts:
            last = self.first_expert + self.num_held - 1
            raise ValueError(
                f"experts {self.first_expert}..{last} are held here, there are {self.num_experts}: "
                "expected num_local_experts with a first_expert that leaves room for them"
            )
        return self

    @property
    def num_held(self) -> int:
        """Experts whose weights are here."""
        return self.num_experts if self.num_local_experts is None else self.num_local_experts

    @property
    def is_share(self) -> bool:
        """Whether some choices of the router belong to other ranks."""
        return self.num_held < self.num_experts


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
