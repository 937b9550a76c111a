"""Draft-KV materialize: committed target features -> K and V rows in the cache of every drafter layer.

Three implementations of one contract, from the production engines' layer-by-layer path to a fully batched one.
Letters: B batch rows, T feature rows per request, K captured layers, Dt target hidden, D drafter hidden, Ld drafter
layers, G KV heads, hd head dim, S cache rows.
"""

from __future__ import annotations

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


def _destinations(positions: torch.Tensor, num_rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> (is_valid [B,T], is_active [B,1], cache rows [B,T]), without reading anything on the host.

    A row that must not be written repeats its request's row 0 (same place, same value, so the order of writing does not
    matter); where even row 0 must not be written, the place gets back what stands there.
    """
    is_valid = torch.arange(positions.shape[1], device=positions.device) < num_rows[:, None]
    is_active = (num_rows > 0)[:, None]
    first = positions[:, :1].where(is_active, 0)
    return is_valid, is_active, positions.where(is_valid, first)


def _write(
    cache: torch.Tensor,  # [..., B, S, G, hd]
    values: torch.Tensor,  # [..., B, T, G, hd]
    is_valid: torch.Tensor,
    is_active: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    batch = torch.arange(rows.shape[0], device=rows.device)[:, None]
    present = cache[..., batch, rows[:, :1], :, :]  # [..., B, 1, G, hd]
    first = torch.where(is_active[..., None, None], values[..., :1, :, :], present)
    cache[..., batch, rows, :, :] = torch.where(is_valid[..., None, None], values, first).to(cache.dtype)


def _context(features: torch.Tensor, fc: torch.Tensor, hidden_norm: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(F.linear(features, fc), hidden_norm, eps)  # [B, T, D], shared by all layers


def materialize_sequential(
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
    """Layer by layer: GEMM, norm, rotation, write. The production engines' unfused path, rounded after each step."""
    _check(features, positions, num_rows, min(cos.shape[0], k_cache.shape[2]), position_bound)
    if features.shape[1] == 0:
        return
    heads = k_cache.shape[-2:]
    is_valid, is_active, rows = _destinations(positions, num_rows)
    cos_rows, sin_rows = cos[rows][:, :, None], sin[rows][:, :, None]  # [B, T, 1, rotary_dim/2]
    context = _context(features, fc, hidden_norm, eps)
    for layer, weight in enumerate(kv_weights):
        k, v = F.linear(context, weight).chunk(2, dim=-1)  # [B, T, G*hd]
        k = rope(rms_norm(k.unflatten(-1, heads), k_norms[layer], eps), cos_rows, sin_rows)
        _write(k_cache[layer], k, is_valid, is_active, rows)
        _write(v_cache[layer], v.unflatten(-1, heads), is_valid, is_active, rows)


def materialize_batched(
    features: torch.Tensor,
    positions: torch.Tensor,
    num_rows: torch.Tensor,
    fc: torch.Tensor,
    hidden_norm: torch.Tensor,
    kv_weights: torch.Tensor,
    k_norms: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    position_bound: int | None = None,
) -> None:
    """One GEMM for all layers, then norm, rotation and write per layer. Arguments as `materialize_sequential`."""
    _check(features, positions, num_rows, min(cos.shape[0], k_cache.shape[2]), position_bound)
    if features.shape[1] == 0:
        return
    heads = k_cache.shape[-2:]
    is_valid, is_active, rows = _destinations(positions, num_rows)
    cos_rows, sin_rows = cos[rows][:, :, None], sin[rows][:, :, None]
    context = _context(features, fc, hidden_norm, eps)
    kv = F.linear(context, kv_weights.flatten(0, 1)).unflatten(-1, (len(kv_weights), 2, *heads))  # [B,T,Ld,2,G,hd]
    for layer in range(len(kv_weights)):
        k = rope(rms_norm(kv[:, :, layer, 0], k_norms[layer], eps), cos_rows, sin_rows)
        _write(k_cache[layer], k, is_valid, is_active, rows)
        _write(v_cache[layer], kv[:, :, layer, 1], is_valid, is_active, rows)


def materialize_fused(
    features: torch.Tensor,
    positions: torch.Tensor,
    num_rows: torch.Tensor,
    fc: torch.Tensor,
    hidden_norm: torch.Tensor,
    kv_weights: torch.Tensor,
    k_norms: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    position_bound: int | None = None,
) -> None:
    """One GEMM, one norm, one rotation and one write per cache for all layers; K stays fp32 from GEMM to write.

    Arguments as `materialize_sequential`.
    """
    _check(features, positions, num_rows, min(cos.shape[0], k_cache.shape[2]), position_bound)
    if features.shape[1] == 0:
        return
    heads = k_cache.shape[-2:]
    is_valid, is_active, rows = _destinations(positions, num_rows)
    cos_rows, sin_rows = cos[rows][:, :, None], sin[rows][:, :, None]
    context = _context(features, fc, hidden_norm, eps)
    kv = F.linear(context, kv_weights.flatten(0, 1)).unflatten(-1, (len(kv_weights), 2, *heads))
    k, v = kv.permute(3, 2, 0, 1, 4, 5).unbind(0)  # [Ld, B, T, G, hd] each
    k = F.rms_norm(k.float(), heads[-1:], None, eps) * k_norms[:, None, None, None].float()
    _write(k_cache, rope(k, cos_rows, sin_rows), is_valid, is_active, rows)
    _write(v_cache, v, is_valid, is_active, rows)
