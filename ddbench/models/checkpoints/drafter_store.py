"""A DFlash drafter written in the published format: config.json and model.safetensors, as `drafter_config.py` reads it.

Only the drafter: its embedding and head are its target's, which need not be given away with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ddbench.errors import CheckpointError
from ddbench.files import replacing
from ddbench.kernels.rope import yarn_mscale
from ddbench.models.checkpoints.drafter_config import ARCHITECTURE
from ddbench.models.checkpoints.files import CONFIG, WEIGHTS
from ddbench.models.checkpoints.int8_rows import SCALE, quantize_rows
from ddbench.models.checkpoints.pieces import drafter_pieces
from ddbench.models.drafter import Drafter
from ddbench.models.shape_kinds import DrafterShape, RopeShape, TargetShape


def save_drafter(folder: Path, drafter: Drafter, target: TargetShape, *, int8: bool = False) -> None:
    """Write a drafter of `target`, floats as bf16, or its matrices as `int8_rows`; the folder's other files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    ours = drafter.state_dict()
    tensors = {
        piece.source: piece.of(ours[piece.place]).contiguous().cpu()
        for piece in drafter_pieces(drafter.shape)
        if piece.place is not None
    }
    tensors = _in_int8(tensors) if int8 else {name: one.to(torch.bfloat16) for name, one in tensors.items()}
    with replacing(folder / WEIGHTS) as partial:
        safetensors.torch.save_file(tensors, partial, {"format": "pt"})
    text = json.dumps(published_config(drafter.shape, target), indent=1) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def _in_int8(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stored = {name: one.to(torch.bfloat16) for name, one in tensors.items() if one.ndim != 2}
    for name, one in tensors.items():
        if one.ndim == 2:
            stored[name], stored[name + SCALE] = quantize_rows(one)
    return stored


def published_config(shape: DrafterShape, target: TargetShape) -> dict[str, Any]:
    """What config.json says of a drafter."""
    sliding = shape.sliding_window is not None and "sliding_attention" in shape.layer_types
    causal = {} if shape.is_causal is None else {"is_causal": shape.is_causal}
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": shape.norm_eps,
        "vocab_size": target.vocab,
        "max_position_embeddings": target.max_context,
        "rope_parameters": _rope(shape.rope, shape.head_dim),
        "layer_types": list(shape.layer_types) or ["full_attention"] * shape.num_layers,
        "use_sliding_window": sliding,
        "sliding_window": shape.sliding_window if sliding else None,
        "block_size": shape.block_size,
        "num_target_layers": shape.num_target_layers,
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
            **causal,
        },
    }


def _rope(rope: RopeShape, head_dim: int) -> dict[str, Any]:
    partial = {} if rope.rotary_dim == head_dim else {"partial_rotary_factor": rope.rotary_dim / head_dim}
    common = {"rope_theta": rope.theta, **partial}
    if rope.llama3 is not None:
        scaling = rope.llama3.model_dump()
        return {
            "rope_type": "llama3",
            "original_max_position_embeddings": scaling.pop("original_context"),
            **scaling,
            **common,
        }
    if rope.yarn is None:
        return {"rope_type": "default", **common}
    if rope.yarn.mscale_all_dim != 0:
        raise CheckpointError(
            f"yarn.mscale_all_dim {rope.yarn.mscale_all_dim} cannot be said in the published format, whose "
            "temperature acts on cos and sin alone: expected 0"
        )
    return {
        "rope_type": "yarn",
        "factor": rope.yarn.factor,
        "original_max_position_embeddings": rope.yarn.original_context,
        "beta_fast": rope.yarn.beta_fast,
        "beta_slow": rope.yarn.beta_slow,
        "attention_factor": yarn_mscale(rope.yarn.factor, rope.yarn.mscale),
        **common,
    }
