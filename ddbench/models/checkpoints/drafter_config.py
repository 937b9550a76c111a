"""config.json of a published DFlash drafter (z-lab's format) -> `DrafterShape`, checked against its target.

Fields of the drafting itself stand at the top or in `dflash_config`; both may say the same, never different things.
What is not set is not guessed: the layers that features come from above all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddbench.errors import CheckpointError, shown
from ddbench.models.checkpoints.fields import Fields, agreed, build
from ddbench.models.checkpoints.files import CONFIG, read_json
from ddbench.models.checkpoints.rotary import read_rope
from ddbench.models.checkpoints.target_config import CHANGES_NOTHING, MOST_LAYERS
from ddbench.models.shape_kinds import DrafterShape, TargetShape

OWN = "dflash_config"
ARCHITECTURE = "DFlashDraftModel"
MOST_BLOCK = 256
FULL, SLIDING = "full_attention", "sliding_attention"
# What other families of drafters have: their weights mean something else.
FOREIGN = {
    "conv_kernel_size": "a DFlash2 drafter",
    "conv_group_size": "a DFlash2 drafter",
    "selector_rank": "a DFlash2 drafter",
    "selector_top_k": "a DFlash2 drafter",
    "gru_hidden_dim": "a Domino drafter",
    "emb_dim": "a Domino drafter",
    "shift_label": "a Domino drafter",
    "pure_draft_prefix_len": "a Domino drafter",
    "attention_sink_bias": "attention sinks",
    "add_swa_attention_sink_bias": "attention sinks",
    "add_full_attention_sink_bias": "attention sinks",
    "sample_from_anchor": "drafting from the anchor's own row",
}
NOTHING = ("num_anchors", "loss_decay_gamma", "max_position_embeddings", "max_window_layers", "eos_token_id")


def is_drafter(data: dict[str, Any]) -> bool:
    """Whether a config.json is that of a published DFlash drafter, of whatever family."""
    names = data.get("architectures")
    named = isinstance(names, list) and any(isinstance(name, str) and "dflash" in name.lower() for name in names)
    return named or OWN in data


def read_drafter(folder: Path, target: TargetShape, tokenizers: tuple[Path, ...] = ()) -> DrafterShape:
    """The drafter's shape; a field that is missing, disagrees with `target` or cannot be honoured is an error.

    `tokenizers`: folders whose tokenizer.json may know the id of a mask token that is given as a text.
    """
    path = folder / CONFIG
    fields = Fields(read_json(path), str(path))
    own = fields.table(OWN) or Fields({}, str(path), f"{OWN}.")
    places = (fields, own)
    _refuse_foreign(places)
    fields.changes_nothing((*CHANGES_NOTHING, *NOTHING))
    own.changes_nothing(NOTHING)
    ids = _either(places, "target_layer_ids", "wholes")
    if ids is None:
        own.fault("target_layer_ids", "is not set; which layers the features come from cannot be guessed")
    block_size = _either(places, "block_size", "whole")
    if block_size is None:
        fields.fault("block_size", f"is set neither here nor in {OWN}")
    if not 2 <= block_size <= MOST_BLOCK:
        fields.fault("block_size", f"is {block_size}, expected 2 to {MOST_BLOCK}, the anchor included")
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    head_dim = fields.whole("head_dim", None) or hidden // max(heads, 1)
    num_layers = fields.count("num_hidden_layers", MOST_LAYERS)
    fields.must_be("hidden_act", "silu")
    fields.must_be("attention_bias", False)
    fields.must_be("mlp_bias", False)
    fields.must_be("is_neox_style", True)
    shape = build(
        DrafterShape,
        fields.where,
        name=folder.resolve().name,
        num_layers=num_layers,
        hidden=hidden,
        width=fields.whole("intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        block_size=block_size,
        mask_token_id=_mask_id(places, (folder, *tokenizers)),
        target_layer_ids=ids,
        num_target_layers=_target_layers(places, target),
        target_hidden=_either(places, "target_hidden_size", "whole") or target.hidden,
        rope=read_rope(fields, head_dim, may_be_partial=True),
        norm_eps=fields.number("rms_norm_eps"),
        is_causal=_either(places, "is_causal", "flag", "causal"),  # None where the file does not say, as older ones do
        **_windows(places, num_layers),
    )
    _check_heads(places, target)
    fields.close()
    own.close()
    return shape


def _either(places: tuple[Fields, Fields], name: str, kind: str, other: str | None = None) -> Any:
    """A field that may stand in either table, under either name; different values are an error."""
    names = (name, other) if other else (name,)
    return agreed([(table, one) for one in names for table in places], kind)


def _refuse_foreign(places: tuple[Fields, Fields]) -> None:
    for table in places:
        for name, what in FOREIGN.items():
            value = table.raw(name)
            if value not in (None, False):
                table.fault(name, f"is {shown(value)}: {what}, which cannot be served")
        kind = table.text("projector_type", "dflash")
        if kind != "dflash":
            table.fault("projector_type", f"is {shown(kind)}: another family of drafters, which cannot be served")
        table.must_be("attention_value_scale", 1.0)
        table.must_be("use_aux_hidden_state", True)
    names = places[0].texts("architectures") or ()
    if names and names != (ARCHITECTURE,):
        places[0].fault("architectures", f"is {shown(list(names))}, only {ARCHITECTURE} can be served")


def _target_layers(places: tuple[Fields, Fields], target: TargetShape) -> int:
    given = _either(places, "num_target_layers", "whole")
    if given is not None and given != target.num_layers:
        places[0].fault("num_target_layers", f"is {given}, target '{target.name}' has {target.num_layers}")
    return target.num_layers


def _mask_id(places: tuple[Fields, Fields], folders: tuple[Path, ...]) -> int:
    """The id, or that of the token that is named instead."""
    given, text = _either(places, "mask_token_id", "whole"), _either(places, "mask_token", "text")
    if given is not None:
        return given
    if text is None:
        places[1].fault("mask_token_id", "is not set, nor is mask_token; expected one of them")
    for folder in folders:
        if (folder / "tokenizer.json").is_file():
            known = _token_ids(folder / "tokenizer.json")
            if text in known:
                return known[text]
    places[1].fault("mask_token", f"{shown(text)} is in no tokenizer.json beside the drafter or its target")


def _token_ids(path: Path) -> dict[str, int]:
    data = read_json(path)
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    added = data.get("added_tokens")
    found = {str(text): one for text, one in vocab.items() if isinstance(one, int)} if isinstance(vocab, dict) else {}
    for one in added if isinstance(added, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), int):
            found[str(one.get("content"))] = one["id"]
    return found


def _windows(places: tuple[Fields, Fields], num_layers: int) -> dict[str, Any]:
    """`layer_types` and `sliding_window`, as the older or the newer fields give them."""
    fields, _ = places
    kinds = fields.texts("layer_types")
    window, uses_window = fields.whole("sliding_window", None), fields.flag("use_sliding_window", None)
    if _either(places, "use_swa", "flag"):
        size = _either(places, "swa_window_size", "whole") or window
        if kinds is not None and set(kinds) != {SLIDING}:
            fields.fault("layer_types", f"is {shown(sorted(set(kinds)))}, but use_swa makes every layer a sliding one")
        return {"layer_types": (SLIDING,) * num_layers, "sliding_window": size}
    _either(places, "swa_window_size", "whole")
    if kinds is None and uses_window and window is not None:
        fields.fault("layer_types", "is not set, but use_sliding_window is true: which layers slide cannot be guessed")
    if kinds is not None and set(kinds) - {FULL, SLIDING}:
        fields.fault("layer_types", f"has {shown(sorted(set(kinds)))}; known: {FULL}, {SLIDING}")
    if kinds is not None and SLIDING in kinds and uses_window is False:
        fields.fault("layer_types", f"names {SLIDING}, but use_sliding_window is false")
    slides = kinds is not None and SLIDING in kinds
    return {"layer_types": kinds or (), "sliding_window": window if slides else None}


def _check_heads(places: tuple[Fields, Fields], target: TargetShape) -> None:
    """The head is the target's: whatever the file says about it has to be what the target's is."""
    fields = places[0]
    for name in ("vocab_size", "draft_vocab_size"):
        size = _either(places, name, "whole")
        if size is not None and size != target.vocab:
            what = ": a reduced vocabulary cannot be served" if name == "draft_vocab_size" else ""
            raise CheckpointError(
                f"{fields.where}: {name} is {size}, target '{target.name}' has {target.vocab} tokens{what}"
            )
    for name, ours in (
        ("final_logit_softcapping", target.logit_softcap),
        ("logit_scale", 1.0),
        ("output_multiplier", 1.0),
        ("embedding_multiplier", target.embedding_scale),
    ):
        value = _either(places, name, "number")
        if value is not None and value != ours:
            fields.fault(name, f"is {value}, the head of target '{target.name}' has {ours}")
    fields.flag("tie_word_embeddings", None)  # both matrices are the target's either way
