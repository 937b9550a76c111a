"""Which tensor of a published checkpoint goes where in our modules: one `Piece` per stored tensor.

Ours keep gate and up rows in one matrix and the experts of a layer in one stack, and rotate halves of a head; theirs
are apart, and DeepSeek's rotary pairs lie side by side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ddbench.models.checkpoints.target_config import PublishedTarget
from ddbench.models.shape_kinds import DrafterShape, GQAShape, MLAShape, MoEShape, TargetShape

FLOATS = ("BF16", "F32")
WORDS = ("I32",)
# Tables that other programs keep beside the weights, and compute anew.
_TABLES = re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached|original_inv_freq)")


@dataclass(frozen=True, slots=True)
class Piece:
    """One stored tensor: what it is called and looks like there, and which part of which of ours it is."""

    source: str
    shape: tuple[int, ...]
    place: str | None  # None: not a weight but a statement, which must be `states`
    rows: tuple[int, int] | None = None  # of it, from and to
    expert: int | None = None  # of a stack
    dtypes: tuple[str, ...] = FLOATS
    turned: Callable[[torch.Tensor], torch.Tensor] | None = None
    states: tuple[int, ...] = ()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of our tensor that this piece fills."""
        whole = tensor if self.expert is None else tensor[self.expert]
        return whole if self.rows is None else whole[slice(*self.rows)]


def is_table(name: str) -> bool:
    """Whether a stored tensor is a rotary table: no weight, and not read."""
    return _TABLES.fullmatch(name) is not None


def is_extra(name: str, target: PublishedTarget) -> bool:
    """Whether a stored tensor belongs to a layer of multi-token prediction, which the configuration announces."""
    found = re.match(r"model\.layers\.(\d{1,6})\.", name)
    first = target.shape.num_layers
    return found is not None and first <= int(found[1]) < first + target.num_extra_layers


def target_pieces(target: PublishedTarget) -> Iterator[Piece]:
    """Every tensor of a published target."""
    shape = target.shape
    yield Piece("model.embed_tokens.weight", (shape.vocab, shape.hidden), "embedding.weight")
    yield Piece("model.norm.weight", (shape.hidden,), "norm.weight")
    if not shape.tie_embeddings:
        yield Piece("lm_head.weight", (shape.vocab, shape.hidden), "lm_head.weight")
    for layer in range(shape.num_layers):
        theirs, ours = f"model.layers.{layer}", f"layers.{layer}"
        yield Piece(f"{theirs}.input_layernorm.weight", (shape.hidden,), f"{ours}.input_norm.weight")
        yield Piece(f"{theirs}.post_attention_layernorm.weight", (shape.hidden,), f"{ours}.post_norm.weight")
        if isinstance(shape.attention, GQAShape):
            yield from _gqa(f"{theirs}.self_attn", f"{ours}.attention", shape.hidden, shape.attention)
        else:
            yield from _mla(f"{theirs}.self_attn", f"{ours}.attention", shape, shape.attention, target.interleaves_rope)
        if shape.moe is not None and shape.is_moe_layer(layer):
            yield from _moe(f"{theirs}.mlp", f"{ours}.mlp", shape.hidden, shape.moe)
        else:
            yield from _mlp(f"{theirs}.mlp", f"{ours}.mlp", shape.hidden, shape.dense_width)


def drafter_pieces(shape: DrafterShape) -> Iterator[Piece]:
    """Every tensor of a DFlash drafter; its embedding and head are the target's."""
    hidden = shape.hidden
    yield Piece("fc.weight", (hidden, len(shape.target_layer_ids) * shape.target_hidden), "fc.weight")
    yield Piece("hidden_norm.weight", (hidden,), "hidden_norm.weight")
    yield Piece("norm.weight", (hidden,), "norm.weight")
    attention = GQAShape(
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, qk_norm=True
    )
    for layer in range(shape.num_layers):
        name = f"layers.{layer}"
        yield Piece(f"{name}.input_layernorm.weight", (hidden,), f"{name}.input_norm.weight")
        yield Piece(f"{name}.post_attention_layernorm.weight", (hidden,), f"{name}.post_norm.weight")
        yield from _gqa(f"{name}.self_attn", f"{name}.attention", hidden, attention)
        yield from _mlp(f"{name}.mlp", f"{name}.mlp", hidden, shape.width)


def _gqa(theirs: str, ours: str, hidden: int, shape: GQAShape) -> Iterator[Piece]:
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
        yield Piece(f"{theirs}.{name}_proj.weight", (rows, columns), f"{ours}.{name}_proj.weight")
    for name in ("q_norm", "k_norm") if shape.qk_norm else ():
        yield Piece(f"{theirs}.{name}.weight", (shape.head_dim,), f"{ours}.{name}.weight")


def _mla(theirs: str, ours: str, target: TargetShape, shape: MLAShape, is_interleaved: bool) -> Iterator[Piece]:
    hidden, rope_dim, rank = target.hidden, shape.qk_rope_dim, shape.kv_lora_rank
    q_dim = shape.qk_nope_dim + rope_dim
    q_rows, kv_rows = shape.num_heads * q_dim, shape.num_heads * (shape.qk_nope_dim + shape.v_head_dim)
    halves_of_q = _Halves(q_dim, rope_dim) if is_interleaved else None
    halves_of_k = _Halves(rank + rope_dim, rope_dim) if is_interleaved else None
    if shape.q_lora_rank is None:
        yield Piece(f"{theirs}.q_proj.weight", (q_rows, hidden), f"{ours}.q_proj.weight", turned=halves_of_q)
    else:
        low = shape.q_lora_rank
        yield Piece(f"{theirs}.q_a_proj.weight", (low, hidden), f"{ours}.q_a_proj.weight")
        yield Piece(f"{theirs}.q_a_layernorm.weight", (low,), f"{ours}.q_a_norm.weight")
        yield Piece(f"{theirs}.q_b_proj.weight", (q_rows, low), f"{ours}.q_b_proj.weight", turned=halves_of_q)
    kv_a = f"{theirs}.kv_a_proj_with_mqa.weight"
    yield Piece(kv_a, (rank + rope_dim, hidden), f"{ours}.kv_a_proj.weight", turned=halves_of_k)
    yield Piece(f"{theirs}.kv_a_layernorm.weight", (rank,), f"{ours}.kv_a_norm.weight")
    yield Piece(f"{theirs}.kv_b_proj.weight", (kv_rows, rank), f"{ours}.kv_b_proj.weight")
    o_shape = (hidden, shape.num_heads * shape.v_head_dim)
    yield Piece(f"{theirs}.o_proj.weight", o_shape, f"{ours}.o_proj.weight")


def _mlp(theirs: str, ours: str, hidden: int, width: int) -> Iterator[Piece]:
    place = f"{ours}.gate_up.weight"
    yield Piece(f"{theirs}.gate_proj.weight", (width, hidden), place, (0, width))
    yield Piece(f"{theirs}.up_proj.weight", (width, hidden), place, (width, 2 * width))
    yield Piece(f"{theirs}.down_proj.weight", (hidden, width), f"{ours}.down.weight")


def _moe(theirs: str, ours: str, hidden: int, shape: MoEShape) -> Iterator[Piece]:
    yield Piece(f"{theirs}.gate.weight", (shape.num_experts, hidden), f"{ours}.gate")
    yield Piece(f"{theirs}.gate.e_score_correction_bias", (shape.num_experts,), f"{ours}.bias")
    yield from _mlp(f"{theirs}.shared_experts", f"{ours}.shared", hidden, shape.num_shared * shape.expert_width)
    width = shape.expert_width
    for expert in range(shape.num_experts):
        for name, rows, columns, place, part in (
            ("gate_proj", width, hidden, "gate_up", (0, width)),
            ("up_proj", width, hidden, "gate_up", (width, 2 * width)),
            ("down_proj", hidden, width, "down", None),
        ):
            source, ours_here = f"{theirs}.experts.{expert}.{name}.weight", f"{ours}.experts.{place}"
            if shape.weight_format == "float":
                yield Piece(source, (rows, columns), ours_here, part, expert)
                continue
            yield Piece(f"{source}_packed", (rows, columns // 8), f"{ours_here}_packed", part, expert, WORDS)
            groups = (rows, columns // shape.group_size)
            yield Piece(f"{source}_scale", groups, f"{ours_here}_scales", part, expert, ("BF16",))
            yield Piece(f"{source}_shape", (2,), None, dtypes=("I64", "I32"), states=(rows, columns))


@dataclass(frozen=True, slots=True)
class _Halves:
    """Rows of rotary pairs that lie side by side, put into halves: the last `rope_dim` of every `head_dim` rows."""

    head_dim: int
    rope_dim: int

    def __call__(self, w: torch.Tensor) -> torch.Tensor:
        heads = w.unflatten(0, (-1, self.head_dim))  # [H, head_dim, in]
        plain, pairs = heads.split((self.head_dim - self.rope_dim, self.rope_dim), dim=1)
        halves = pairs.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
        return torch.cat((plain, halves), dim=1).flatten(0, 1)
