"""A Llama in a GGUF file -> the published layout: config.json, model.safetensors in float32, tokenizer.json.

GGUF keeps the rows of q and k in the order of interleaved rotary pairs; published checkpoints rotate halves, so that
the rows are put back. Text is split as `tokenizer.ggml.pre` says: SmolLM's digits one by one, which the names of tokens
and merges alone do not tell.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from ddbench.errors import CheckpointError, DdbenchError, shown
from ddbench.models.checkpoints.gguf import GGUF

CONTROL, NORMAL = 3, 1  # token types
_PLACES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HONOURED = frozenset(
    """block_count context_length embedding_length feed_forward_length attention.head_count attention.head_count_kv
    rope.freq_base rope.dimension_count attention.layer_norm_rms_epsilon vocab_size""".split()
)


def convert(gguf: GGUF, folder: Path) -> None:
    """Write the folder's files; every tensor and every field of the architecture is accounted for."""
    config = llama_config(gguf)
    tensors = llama_tensors(gguf, config)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    write_tokenizer(gguf, folder)
    try:
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    except SafetensorError as error:
        raise DdbenchError(f"{folder}: cannot be written: {error}") from error


def llama_config(gguf: GGUF) -> dict[str, Any]:
    """The published configuration that says the same as the metadata."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{gguf.path}: architecture {shown(architecture)}; known: 'llama'")
    for key in gguf.metadata:
        if key.startswith("llama.") and key.removeprefix("llama.") not in _HONOURED:
            raise CheckpointError(f"{gguf.path}: {key}: an unknown field, which may change results")
    hidden, heads = _whole(gguf, "llama.embedding_length"), _whole(gguf, "llama.attention.head_count")
    rotary = _whole(gguf, "llama.rope.dimension_count")
    if rotary * heads != hidden:
        raise CheckpointError(f"{gguf.path}: llama.rope.dimension_count is {rotary}: expected {hidden}/{heads}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": len(_texts(gguf, "tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": _whole(gguf, "llama.feed_forward_length"),
        "num_hidden_layers": _whole(gguf, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _whole(gguf, "llama.attention.head_count_kv"),
        "head_dim": rotary,
        "hidden_act": "silu",
        "rms_norm_eps": _number(gguf, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _number(gguf, "llama.rope.freq_base"),
        "max_position_embeddings": _whole(gguf, "llama.context_length"),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": _whole(gguf, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _whole(gguf, "tokenizer.ggml.eos_token_id"),
    }


def llama_tensors(gguf: GGUF, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor by its published name, float32; one that has no place is an error."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    places = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if not config["tie_word_embeddings"]:
        places["output.weight"] = "lm_head.weight"
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in _PLACES.items():
            places[f"blk.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
    for what, names in (
        ("misses", places.keys() - gguf.tensors.keys()),
        ("has an unused", gguf.tensors.keys() - places.keys()),
    ):
        if names:
            raise CheckpointError(f"{gguf.path}: {what} tensor '{min(names)}' ({len(names)} such)")
    found = {}
    for theirs, ours in places.items():
        values = gguf.read(theirs)
        kind = theirs.split(".")[-2]
        found[ours] = torch.from_numpy(halves(values, heads[kind]) if kind in heads else values.copy())
    return found


def halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows [heads * dim, in] of rotary pairs that lie side by side -> the same rows in halves."""
    if rows.shape[0] % (2 * num_heads):
        raise CheckpointError(f"{rows.shape[0]} rows of q or k are no pairs for {num_heads} heads")
    paired = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows.shape))


def write_tokenizer(gguf: GGUF, folder: Path) -> None:
    """tokenizer.json, and the chat template where there is one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, split = gguf.metadata.get("tokenizer.ggml.model"), gguf.metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split != "smollm":
        raise CheckpointError(
            f"{gguf.path}: tokenizer {shown(kind)} with splitting {shown(split)}; known: gpt2, smollm"
        )
    tokens = _texts(gguf, "tokenizer.ggml.tokens")
    types = gguf.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens) or set(types) - {CONTROL, NORMAL}:
        raise CheckpointError(
            f"{gguf.path}: tokenizer.ggml.token_type: expected {len(tokens)} of {NORMAL} or {CONTROL}"
        )
    merges = [tuple(merge.split(" ")) for merge in _texts(gguf, "tokenizer.ggml.merges")]
    vocab = {token: number for number, token in enumerate(tokens)}
    known = all(len(pair) == 2 and {*pair, "".join(pair)} <= vocab.keys() for pair in merges)
    if len(vocab) != len(tokens) or not known:
        raise CheckpointError(f"{gguf.path}: tokenizer: tokens that stand there twice, or merges of unknown ones")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))  # type: ignore[arg-type]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, one in zip(tokens, types, strict=True)
            if one == CONTROL
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(gguf, tokens))
    template = gguf.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _tokenizer_config(gguf: GGUF, tokens: list[str]) -> dict[str, Any]:
    """For transformers, which the same folder can be opened with."""
    special = {name: gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
               for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"))}  # fmt: skip
    named = {name: tokens[one] for name, one in special.items() if isinstance(one, int) and one < len(tokens)}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}


def _whole(gguf: GGUF, key: str) -> int:
    value = gguf.metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f"{gguf.path}: {key}: expected a whole number, got {shown(value)}")
    return value


def _number(gguf: GGUF, key: str) -> float:
    """A float32 of the file as the decimal that was meant: 1e-05, not 9.999999747378752e-06."""
    value = gguf.metadata.get(key)
    if not isinstance(value, float):
        raise CheckpointError(f"{gguf.path}: {key}: expected a number, got {shown(value)}")
    return float(str(np.float32(value)))


def _texts(gguf: GGUF, key: str) -> list[str]:
    value = gguf.metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise CheckpointError(f"{gguf.path}: {key}: expected a list of texts")
    return value


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
