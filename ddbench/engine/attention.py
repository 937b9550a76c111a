"""[part] How the target's new tokens attend to the cache; every entry implements `models.inputs.VerifyAttention`."""

from __future__ import annotations

from ddbench.engine.types import CaseFacts, Part
from ddbench.models.attention import DenseMask, TreeTriton


class DenseMaskAttention(DenseMask, Part):
    """One boolean mask over context and new tokens per forward, shared by all layers."""


class TreeTritonAttention(TreeTriton, Part):
    """No mask over the context, one bit per pair of new tokens; the context is read once for all of them."""

    needs_cuda = True

    @staticmethod
    def supports(facts: CaseFacts) -> str | None:
        return None if facts.spec.kernels == "triton" else "attention 'tree_triton' needs kernels 'triton'"


ATTENTIONS = {"dense_mask": DenseMaskAttention, "tree_triton": TreeTritonAttention}
