"""[part] Target features of committed rows -> K/V rows in the cache of every drafter layer.

Thin adapters over `kernels/materialize_kv.py`, which describes what the implementations share and where they differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from ddbench.engine.kv_cache import CacheView
from ddbench.engine.types import CommittedRows, Part, Setting
from ddbench.kernels import materialize_kv


class Materializer(Part, ABC):
    """Base: holds the drafter's weights as the kernels want them."""

    def __init__(self, setting: Setting) -> None:
        self._weights = setting.models.drafter.materialize_weights()
        self._kernel = self.kernel_of(setting)

    @staticmethod
    @abstractmethod
    def kernel_of(setting: Setting) -> Callable[..., None]:
        """What does the work; arguments as `materialize_sequential`."""

    def __call__(self, rows: CommittedRows, caches: CacheView) -> None:
        """Write the counting rows of `rows` to the draft cache, in place."""
        w = self._weights
        self._kernel(
            rows.features, rows.positions, rows.num_rows,
            w.fc, w.hidden_norm, w.kv_weights, w.k_norms, w.eps, w.cos, w.sin,
            *caches.draft, position_bound=rows.position_bound,
        )  # fmt: skip


class SequentialMaterializer(Materializer):
    """Layer by layer, each with its own GEMM: the unfused path of production engines."""

    @staticmethod
    def kernel_of(setting: Setting) -> Callable[..., None]:
        return materialize_kv.materialize_sequential


class BatchedMaterializer(Materializer):
    """One GEMM for all layers; norm, rotation and write layer by layer."""

    @staticmethod
    def kernel_of(setting: Setting) -> Callable[..., None]:
        return materialize_kv.materialize_batched


class FusedMaterializer(Materializer):
    """One GEMM, one norm, one rotation and one write for all layers; in Triton the last three are one launch."""

    @staticmethod
    def kernel_of(setting: Setting) -> Callable[..., None]:
        return setting.kernels.materialize


MATERIALIZERS = {
    "sequential": SequentialMaterializer,
    "batched": BatchedMaterializer,
    "fused": FusedMaterializer,
}
