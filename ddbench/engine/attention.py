"""[part] How the target's new tokens attend to the cache; every entry implements `models.inputs.VerifyAttention`."""

from __future__ import annotations

from ddbench.engine.types import Part
from ddbench.models.attention import DenseMask


class DenseMaskAttention(DenseMask, Part):
    """One boolean mask over context and new tokens per forward, shared by all layers."""


ATTENTIONS = {"dense_mask": DenseMaskAttention}
