"""Rotary embedding as published configurations describe it -> `RopeShape`.

`rope_theta` and `rope_scaling` stand at the top, or all of it in `rope_parameters`, where newer files put it.
"""

from __future__ import annotations

import math

from ddbench.kernels.rope import yarn_mscale
from ddbench.models.checkpoints.fields import Fields, agreed, build
from ddbench.models.shape_kinds import Llama3Shape, RopeShape, YarnShape


def read_rope(fields: Fields, head_dim: int, *, is_latent: bool = False, may_be_partial: bool = False) -> RopeShape:
    """The rotary embedding of heads with `head_dim` dims; theta is never guessed.

    `is_latent`: DeepSeek's multi-head latent attention, which lets YaRN's temperature act on the scores.
    """
    modern = fields.table("rope_parameters")
    scaling = fields.table("rope_scaling")
    places = [(fields, "rope_theta"), *([(modern, "rope_theta")] if modern else [])]
    theta = agreed(places, "number")
    if theta is None:
        fields.fault("rope_theta", "is set neither here nor in rope_parameters")
    partial = [(fields, "partial_rotary_factor"), *([(modern, "partial_rotary_factor")] if modern else [])]
    share = agreed(partial, "number")
    if share not in (None, 1.0) and not may_be_partial:
        fields.fault("partial_rotary_factor", f"is {share}, only 1.0 can be served for this architecture")
    if share is not None and not 0 < share <= 1:
        fields.fault("partial_rotary_factor", f"is {share}, expected a share of the head's dims, above 0 and up to 1")
    rotary_dim = int(head_dim * (1.0 if share is None else share))
    table = _scaling(fields, modern, scaling)
    kind = "default" if table is None else (agreed([(table, "rope_type"), (table, "type")], "text") or "default")
    values: dict[str, object] = {"theta": theta, "rotary_dim": rotary_dim}
    if table is not None and kind in ("yarn", "deepseek_yarn"):
        values["yarn"] = _yarn(table, is_latent)
    elif table is not None and kind == "llama3":
        values["llama3"] = build(
            Llama3Shape,
            fields.where,
            factor=table.number("factor"),
            low_freq_factor=table.number("low_freq_factor"),
            high_freq_factor=table.number("high_freq_factor"),
            original_context=table.whole("original_max_position_embeddings"),
        )
    elif table is not None and kind != "default":
        table.fault("rope_type", f"'{kind}' cannot be served; known: default, llama3, yarn")
    for one in (modern, scaling):
        if one is not None:
            one.close()
    return build(RopeShape, fields.where, **values)


def _scaling(fields: Fields, modern: Fields | None, scaling: Fields | None) -> Fields | None:
    """The table that says how the context is extended."""
    if modern is not None and scaling is not None:
        fields.fault("rope_scaling", "stands beside rope_parameters: one of them has to go")
    return modern if modern is not None else scaling


def _yarn(table: Fields, is_latent: bool) -> YarnShape:
    """YaRN. Outside latent attention its temperature multiplies cos and sin, and nothing else."""
    factor = table.number("factor")
    mscale, all_dim = table.number("mscale", None), table.number("mscale_all_dim", None)
    temperature = table.number("attention_factor", None)
    table.must_be("truncate", True)
    if is_latent:
        if temperature is not None:
            table.fault("attention_factor", f"is {temperature}: latent attention takes mscale and mscale_all_dim")
        mscale, all_dim = 1.0 if mscale is None else mscale, all_dim or 0.0
    else:
        if temperature is None:
            ours = (mscale, all_dim) if mscale and all_dim else (1.0, 0.0)
            temperature = yarn_mscale(factor, ours[0]) / yarn_mscale(factor, ours[1])
        mscale, all_dim = ((temperature - 1.0) / (0.1 * math.log(factor)) if factor > 1 else 1.0), 0.0
        if factor <= 1 and temperature != 1.0:
            table.fault("attention_factor", f"is {temperature} for a context that is not extended (factor {factor})")
    return build(
        YarnShape,
        table.where,
        factor=factor,
        original_context=table.whole("original_max_position_embeddings"),
        beta_fast=table.number("beta_fast", 32.0),
        beta_slow=table.number("beta_slow", 1.0),
        mscale=mscale,
        mscale_all_dim=all_dim,
    )
