"""Cache tensors of target and drafter: one row per token and request slot, zero-initialised, always finite.

The target's caches are stacked over layers ([Y, B, S, *row]) so that a commit moves all of them at once; the layers'
own views serve the forward. Letters: Y target layers, Ld drafter layers, B batch rows, S cache rows, G KV heads, hd
head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddbench.models.shapes import DrafterShape, TargetShape


@dataclass(frozen=True, slots=True)
class CacheView:
    """The caches of some batch rows; writing to a view writes to the cache."""

    target: tuple[torch.Tensor, ...]  # each [Y, B, S, *row]: K and V, or latent rows
    layers: tuple[tuple[torch.Tensor, ...], ...]  # the same by layer, each [B, S, *row]
    draft: tuple[torch.Tensor, ...]  # K and V [Ld, B, S, G, hd]; empty where no drafter runs


class KVCache:
    """The storage for `capacity` requests of at most `num_rows` tokens each."""

    def __init__(
        self,
        target: TargetShape,
        drafter: DrafterShape | None,  # None: no draft cache
        *,
        capacity: int,
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        sizes = [(target.num_layers, row) for row in target.attention.row_shapes]
        draft_sizes = [] if drafter is None else [(drafter.num_layers, (drafter.num_kv_heads, drafter.head_dim))] * 2
        self._target, self._draft = (
            [torch.zeros(layers, capacity, num_rows, *row, dtype=dtype, device=device) for layers, row in group]
            for group in (sizes, draft_sizes)
        )

    def view(self, rows: slice) -> CacheView:
        """The caches of a range of batch rows."""
        target = tuple(cache[:, rows] for cache in self._target)
        return CacheView(
            target=target,
            layers=tuple(zip(*(cache.unbind(0) for cache in target), strict=True)),
            draft=tuple(cache[:, rows] for cache in self._draft),
        )

    def copy_row(self, source: int, destination: int, num_rows: int) -> None:
        """Give batch row `destination` the first `num_rows` cache rows of batch row `source`."""
        for cache in (*self._target, *self._draft):
            cache[:, destination, :num_rows] = cache[:, source, :num_rows]
