"""What goes into and comes out of one target forward; shared by the models and the engine.

Letters: B batch rows, N new tokens per request (tree nodes incl. the root), M hidden, K captured layers, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class VerifyInputs:
    """N new tokens for each of B requests, on top of `lengths` cached context rows.

    The K/V (or latent row) of new token i of request b is written to cache row `lengths[b] + i`.
    `visible` and `packed` None means causal among the new tokens (prefill, plain decoding, chain verify); of a tree's
    mask those forms are there that its attention reads.
    """

    input_ids: torch.Tensor  # [B, N] int64
    positions: torch.Tensor  # [B, N] int64, absolute; siblings share one
    lengths: torch.Tensor  # [B] int64, context rows already in the cache
    visible: torch.Tensor | None  # [B, N, N] bool, row i: the new tokens that token i may see (itself included)
    context_bound: int  # host integer >= lengths.max(): how much of the cache attention has to look at
    packed: torch.Tensor | None = None  # [B, N, W] int32, `visible` in bits, bit j of word w: new token 32 w + j
    logit_rows: torch.Tensor | None = None  # [B] int64: logits of this one row per request only (prefill)


@dataclass(frozen=True, slots=True)
class VerifyOutput:
    """Logits and captured features of every new token (of `logit_rows` only, for the logits, where given)."""

    logits: torch.Tensor  # [B, N, V] (or [B, 1, V]), the model's dtype or float32
    features: torch.Tensor  # [B, N, K*M] model dtype; residual stream after the captured layers, in list order


class VerifyAttention(Protocol):
    """How the target's new tokens attend to the cache: one implementation per variant of the `attention` part."""

    def prepare(self, inputs: VerifyInputs, dtype: torch.dtype) -> Any:
        """Once per forward, before the layers: masks, plans."""

    def gqa(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any, scale: float) -> torch.Tensor:
        """q [B,N,H,D], k and v [B,S,G,D] (cache rows, the new ones already written) -> [B,N,H,D]."""

    def mla(self, q: torch.Tensor, latent: torch.Tensor, rank: int, plan: Any, scale: float) -> torch.Tensor:
        """Absorbed MLA. q [B,N,H,R+Dr], latent [B,S,R+Dr] (all heads share it) -> [B,N,H,R]."""
