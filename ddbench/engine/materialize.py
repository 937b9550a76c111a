"""[part] Target features of committed rows -> K/V rows in the cache of every drafter layer.

Thin adapters over `kernels/materialize_kv.py`, which describes what the implementations share and where they differ.
"""

from __future__ import annotations

from collections.abc import Callable

from ddbench.engine.kv_cache import CacheView
from ddbench.engine.types import CommittedRows, Part, Setting
from ddbench.kernels import materialize_kv


class Materializer(Part):
    """Base: holds the drafter's weights as the kernels want them."""

    kernel: Callable[..., None]  # what does the work; arguments as in `kernels/materialize_kv.py`

    def __init__(self, setting: Setting) -> None:
        self._weights = setting.models.drafter.materialize_weights()

    def __call__(self, rows: CommittedRows, caches: CacheView) -> None:
        """Write the counting rows of `rows` to the draft cache, in place."""
        w = self._weights
        self.kernel(
            rows.features, rows.positions, rows.num_rows,
            w.fc, w.hidden_norm, w.kv_weights, w.k_norms, w.eps, w.cos, w.sin,
            *caches.draft, position_bound=rows.position_bound,
        )  # fmt: skip


class SequentialMaterializer(Materializer):
    """Layer by layer, each with its own GEMM: the unfused path of production engines."""

    kernel = staticmethod(materialize_kv.materialize_sequential)


class BatchedMaterializer(Materializer):
    """One GEMM for all layers; norm, rotation and write layer by layer."""

    kernel = staticmethod(materialize_kv.materialize_batched)


class FusedMaterializer(Materializer):
    """One GEMM, one norm, one rotation and one write for all layers; in Triton the last three are one launch."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.kernel = setting.kernels.materialize


MATERIALIZERS = {
    "sequential": SequentialMaterializer,
    "batched": BatchedMaterializer,
    "fused": FusedMaterializer,
}
