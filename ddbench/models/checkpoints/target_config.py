"""config.json of a published target -> `TargetShape`, with what its tensors need besides: Llama, Qwen3, DeepSeek-V3
and Kimi-K2, the latter also as the text part of Kimi-K2.5 and later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ddbench.errors import CheckpointError, did_you_mean, shown
from ddbench.models.checkpoints.fields import Fields, build
from ddbench.models.checkpoints.files import CONFIG, read_json
from ddbench.models.checkpoints.quantization import read_group_size
from ddbench.models.checkpoints.rotary import read_rope
from ddbench.models.shape_kinds import GQAShape, MLAShape, MoEShape, TargetShape

MOST_LAYERS = 1024
MOST_CONTEXT = 2**22  # tokens, whose rotary table is 2 GiB
# Of bookkeeping, training and text generation: nothing in a forward pass depends on them.
CHANGES_NOTHING = tuple(
    """architectures model_type torch_dtype dtype transformers_version use_cache initializer_range attention_dropout
    bos_token_id pad_token_id auto_map name_or_path _name_or_path is_llama_config transformers.js_config
    aux_loss_alpha seq_aux ep_size output_router_logits router_aux_loss_coef unsloth_fixed unsloth_version
    _attn_implementation attn_implementation
    add_cross_attention bad_words_ids begin_suppress_tokens chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id id2label is_decoder
    is_encoder_decoder label2id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores prefix problem_type pruned_heads
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torchscript
    typical_p use_bfloat16""".split()
)
WRAPPER = "KimiK25ForConditionalGeneration"  # text, images and video; only its text part is read
_OF_MEDIA = ("vision_config", "media_placeholder_token_id", "video_placeholder", "ignore_index",
             "use_unified_vision_chunk", "tie_word_embeddings")  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublishedTarget:
    """A published target's shape, and how its tensors are laid out."""

    shape: TargetShape
    interleaves_rope: bool = False  # rotary pairs lie side by side, not in halves
    num_extra_layers: int = 0  # of multi-token prediction, behind the decoder's own; not loaded
    prefix: str = ""  # of every tensor's name
    left_out: tuple[str, ...] = ()  # prefixes of tensors that belong to other parts of the model


def read_target(folder: Path) -> PublishedTarget:
    """What a folder's config.json says; an architecture or a field that cannot be served is a one-line error."""
    path = folder / CONFIG
    fields = Fields(read_json(path), str(path))
    architectures = fields.texts("architectures") or ()
    name = architectures[0] if len(architectures) == 1 else None
    if name is None:
        fields.fault("architectures", f"expected one name, got {shown(list(architectures))}")
    if name == WRAPPER:
        return _text_part(fields, folder)
    if name not in ARCHITECTURES:
        fields.fault(
            "architectures", f"{shown(name)} cannot be served; {did_you_mean(name, (*ARCHITECTURES, WRAPPER))}"
        )
    return _read(fields, folder, name)


def _text_part(outer: Fields, folder: Path) -> PublishedTarget:
    """Kimi-K2.5 and later: a Kimi-K2 below `text_config`."""
    fields = outer.table("text_config")
    if fields is None:
        outer.fault("text_config", "is not set; expected the table of the language model")
    outer.changes_nothing((*CHANGES_NOTHING, *_OF_MEDIA, "eos_token_id"))
    outer.must_be("model_type", "kimi_k25")
    if outer.has("quantization_config") and not fields.has("quantization_config"):
        outer.fault("quantization_config", "stands beside text_config, expected in it")
    outer.changes_nothing(("quantization_config",))
    outer.close()
    target = _read(fields, folder, "DeepseekV3ForCausalLM")
    return replace(target, prefix="language_model.", left_out=("vision_tower.", "mm_projector."))


def _read(fields: Fields, folder: Path, name: str) -> PublishedTarget:
    kinds, read = ARCHITECTURES[name]
    kind = fields.text("model_type")
    if kind not in kinds:
        fields.fault("model_type", f"is {shown(kind)}, {name} goes with {' or '.join(kinds)}")
    fields.changes_nothing(CHANGES_NOTHING)
    target = read(fields, folder.resolve().name, _stop_ids(fields, folder))
    fields.close()
    return target


def _stop_ids(fields: Fields, folder: Path) -> tuple[int, ...]:
    """What ends an answer: the generation's own list where there is one."""
    own = fields.wholes("eos_token_id") or ()
    path = folder / "generation_config.json"
    if not path.is_file():
        return own
    generation = Fields(read_json(path), str(path)).wholes("eos_token_id")
    return own if generation is None else generation


def _llama(fields: Fields, name: str, stop: tuple[int, ...]) -> PublishedTarget:
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    head_dim = _head_dim(fields, hidden, heads)
    fields.must_be("mlp_bias", False)
    fields.must_be("pretraining_tp", 1)
    fields.must_be("rope_interleaved", False)
    attention = build(
        GQAShape,
        fields.where,
        num_heads=heads,
        num_kv_heads=fields.whole("num_key_value_heads", heads),
        head_dim=head_dim,
    )
    return PublishedTarget(_decoder(fields, name, stop, attention=attention, rope=read_rope(fields, head_dim)))


def _qwen3(fields: Fields, name: str, stop: tuple[int, ...]) -> PublishedTarget:
    head_dim = fields.whole("head_dim")
    fields.must_be("use_sliding_window", False)
    kinds = fields.texts("layer_types") or ()
    if set(kinds) - {"full_attention"}:
        fields.fault("layer_types", f"has {shown(sorted(set(kinds)))}, only full_attention can be served in a target")
    fields.changes_nothing(("sliding_window", "max_window_layers"))  # without use_sliding_window
    attention = build(
        GQAShape,
        fields.where,
        num_heads=fields.whole("num_attention_heads"),
        num_kv_heads=fields.whole("num_key_value_heads"),
        head_dim=head_dim,
        qk_norm=True,
    )
    target = _decoder(fields, name, stop, attention=attention, rope=read_rope(fields, head_dim))
    if kinds and len(kinds) != target.num_layers:
        fields.fault("layer_types", f"has {len(kinds)} entries for {target.num_layers} layers")
    return PublishedTarget(target)


def _deepseek_v3(fields: Fields, name: str, stop: tuple[int, ...]) -> PublishedTarget:
    heads, rope_dim = fields.whole("num_attention_heads"), fields.whole("qk_rope_head_dim")
    nope_dim = fields.whole("qk_nope_head_dim")
    attention = build(
        MLAShape,
        fields.where,
        num_heads=heads,
        q_lora_rank=fields.whole("q_lora_rank", None),
        kv_lora_rank=fields.whole("kv_lora_rank"),
        qk_nope_dim=nope_dim,
        qk_rope_dim=rope_dim,
        v_head_dim=fields.whole("v_head_dim"),
    )
    fields.must_be("head_dim", rope_dim)
    fields.must_be("qk_head_dim", nope_dim + rope_dim)
    fields.must_be("num_key_value_heads", heads)
    fields.must_be("pretraining_tp", 1)
    shape = _decoder(
        fields,
        name,
        stop,
        attention=attention,
        rope=read_rope(fields, rope_dim, is_latent=True),
        moe=_experts(fields),
        num_dense_layers=fields.whole("first_k_dense_replace"),
    )
    return PublishedTarget(
        shape,
        interleaves_rope=fields.flag("rope_interleave", True),
        num_extra_layers=fields.whole("num_nextn_predict_layers", 0),
    )


def _experts(fields: Fields) -> MoEShape:
    fields.must_be("moe_layer_freq", 1)
    fields.must_be("norm_topk_prob", True)
    fields.must_be("scoring_func", "sigmoid")
    fields.must_be("topk_method", "noaux_tc")
    group_size = read_group_size(fields)
    groups = fields.whole("n_group", 1)
    packed = {} if group_size is None else {"weight_format": "int4", "group_size": group_size}
    return build(
        MoEShape,
        fields.where,
        num_experts=fields.whole("n_routed_experts"),
        top_k=fields.whole("num_experts_per_tok"),
        expert_width=fields.whole("moe_intermediate_size"),
        num_shared=fields.whole("n_shared_experts"),
        routed_scaling=fields.number("routed_scaling_factor"),
        num_groups=groups,
        top_groups=fields.whole("topk_group", groups),
        **packed,
    )


def _decoder(fields: Fields, name: str, stop: tuple[int, ...], **parts: object) -> TargetShape:
    """What every decoder has, and the parts that are its own."""
    fields.must_be("hidden_act", "silu")
    fields.must_be("attention_bias", False)
    if "moe" not in parts and fields.has("quantization_config"):
        table = fields.table("quantization_config")
        kind = table.raw("quant_method") if table is not None else None
        fields.fault("quantization_config", f"{shown(kind)}: dense weights are served as floats only")
    return build(
        TargetShape,
        fields.where,
        name=name,
        num_layers=fields.count("num_hidden_layers", MOST_LAYERS),
        hidden=fields.whole("hidden_size"),
        vocab=fields.whole("vocab_size"),
        dense_width=fields.whole("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps"),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        max_context=fields.count("max_position_embeddings", MOST_CONTEXT),
        stop_token_ids=stop,
        **parts,
    )


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    given = fields.whole("head_dim", None)
    if given is not None:
        return given
    if heads < 1 or hidden % heads:
        raise CheckpointError(f"{fields.where}: hidden_size is {hidden}: no multiple of num_attention_heads, {heads}")
    return hidden // heads


Reader = Callable[[Fields, str, tuple[int, ...]], PublishedTarget]
ARCHITECTURES: dict[str, tuple[tuple[str, ...], Reader]] = {
    "LlamaForCausalLM": (("llama",), _llama),
    "Qwen3ForCausalLM": (("qwen3",), _qwen3),
    "DeepseekV3ForCausalLM": (("deepseek_v3", "kimi_k2"), _deepseek_v3),
}  # by `architectures`: the model types that go with it, and who reads the rest
