"""Draft-KV materialize: committed target features -> K and V rows in the cache of every drafter layer.

Three implementations of one contract (`_materialize`), from the production engines' layer-by-layer path to a fully
batched one.
Letters: B batch rows, T feature rows per request, K captured layers, Dt target hidden, D drafter hidden, Ld drafter
layers, G KV heads, hd head dim, S cache rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from .rms_norm import rms_norm
from .rope import rope


def _check(
    features: torch.Tensor, positions: torch.Tensor, num_rows: torch.Tensor, limit: int, position_bound: int | None
) -> None:
    """Refuse what would read or write out of bounds, as far as the host knows it without asking a GPU."""
    if positions.shape != features.shape[:2]:
        raise ValueError(
            f"materialize: positions have shape {tuple(positions.shape)}, features need {tuple(features.shape[:2])}"
        )
    if position_bound is None and positions.device.type == "cpu" and positions.numel():
        used = torch.arange(positions.shape[1]) < num_rows[:, None]
        position_bound = int(positions.where(used, 0).amax()) + 1
    if position_bound is not None and position_bound > limit:
        raise IndexError(
            f"materialize: position {position_bound - 1} is beyond the last one, {limit - 1} "
            "(rows of the cos/sin table or of the draft cache); build the drafter with a larger max_context"
        )


class _Call(NamedTuple):
    """The arguments of one call, with what is computed of them once for all layers."""

    context: torch.Tensor  # [B, T, D]
    cos: torch.Tensor  # [B, T, 1, rotary_dim/2]
    sin: torch.Tensor
    rows: torch.Tensor  # [B, T] cache rows
    is_valid: torch.Tensor  # [B, T]
    is_active: torch.Tensor  # [B, 1]
    kv_weights: torch.Tensor
    k_norms: torch.Tensor
    eps: float
    k_cache: torch.Tensor
    v_cache: torch.Tensor

    @property
    def heads(self) -> torch.Size:
        """[G, hd]"""
        return self.k_cache.shape[-2:]

    def projected(self) -> torch.Tensor:
        """K and V of all layers by one GEMM, [B, T, Ld, 2, G, hd]."""
        kv = F.linear(self.context, self.kv_weights.flatten(0, 1))
        return kv.unflatten(-1, (len(self.kv_weights), 2, *self.heads))

    def write(self, cache: torch.Tensor, values: torch.Tensor) -> None:
        """Values [..., B, T, G, hd] into cache [..., B, S, G, hd], without reading anything on the host.

        A row that must not be written repeats its request's row 0 (same place, same value, so the order of writing does
        not matter); where even row 0 must not be written, the place gets back what stands there.
        """
        batch = torch.arange(self.rows.shape[0], device=self.rows.device)[:, None]
        present = cache[..., batch, self.rows[:, :1], :, :]  # [..., B, 1, G, hd]
        first = torch.where(self.is_active[..., None, None], values[..., :1, :, :], present)
        values = torch.where(self.is_valid[..., None, None], values, first)
        cache[..., batch, self.rows, :, :] = values.to(cache.dtype)


def _materialize(
    form: Callable[[_Call], None],
    features: torch.Tensor,  # [B, T, K*Dt]
    positions: torch.Tensor,  # [B, T] int64, absolute, also the cache rows; distinct within a request
    num_rows: torch.Tensor,  # [B] int64, rows of each request that count
    fc: torch.Tensor,  # [D, K*Dt]
    hidden_norm: torch.Tensor,  # [D]
    kv_weights: torch.Tensor,  # [Ld, 2*G*hd, D], K rows first
    k_norms: torch.Tensor,  # [Ld, hd]
    eps: float,
    cos: torch.Tensor,  # [positions, rotary_dim/2] fp32
    sin: torch.Tensor,
    k_cache: torch.Tensor,  # [Ld, B, S, G, hd], written in place
    v_cache: torch.Tensor,  # [Ld, B, S, G, hd], written in place
    position_bound: int | None = None,  # host integer > every position that counts, checked against table and cache
) -> None:
    """Row j < num_rows[b] goes to cache row positions[b, j] of every layer; nothing else changes."""
    _check(features, positions, num_rows, min(cos.shape[0], k_cache.shape[2]), position_bound)
    if features.shape[1] == 0:
        return
    is_valid = torch.arange(positions.shape[1], device=positions.device) < num_rows[:, None]
    is_active = (num_rows > 0)[:, None]
    rows = positions.where(is_valid, positions[:, :1].where(is_active, 0))
    context = rms_norm(F.linear(features, fc), hidden_norm, eps)
    tables = cos[rows][:, :, None], sin[rows][:, :, None]
    form(_Call(context, *tables, rows, is_valid, is_active, kv_weights, k_norms, eps, k_cache, v_cache))


def _layer_by_layer(call: _Call) -> None:
    """GEMM, norm, rotation, write: the production engines' unfused path, rounded after each step."""
    for layer, weight in enumerate(call.kv_weights):
        k, v = F.linear(call.context, weight).chunk(2, dim=-1)  # [B, T, G*hd]
        k = rope(rms_norm(k.unflatten(-1, call.heads), call.k_norms[layer], call.eps), call.cos, call.sin)
        call.write(call.k_cache[layer], k)
        call.write(call.v_cache[layer], v.unflatten(-1, call.heads))


def _one_product(call: _Call) -> None:
    """One GEMM for all layers, then norm, rotation and write per layer."""
    kv = call.projected()
    for layer in range(len(call.kv_weights)):
        k = rope(rms_norm(kv[:, :, layer, 0], call.k_norms[layer], call.eps), call.cos, call.sin)
        call.write(call.k_cache[layer], k)
        call.write(call.v_cache[layer], kv[:, :, layer, 1])


def _all_at_once(call: _Call) -> None:
    """One GEMM, one norm, one rotation and one write per cache for all layers; K stays fp32 from GEMM to write."""
    k, v = call.projected().permute(3, 2, 0, 1, 4, 5).unbind(0)  # [Ld, B, T, G, hd] each
    k = F.rms_norm(k.float(), call.heads[-1:], None, call.eps) * call.k_norms[:, None, None, None].float()
    call.write(call.k_cache, rope(k, call.cos, call.sin))
    call.write(call.v_cache, v)


materialize_sequential = partial(_materialize, _layer_by_layer)
materialize_batched = partial(_materialize, _one_product)
materialize_fused = partial(_materialize, _all_at_once)
