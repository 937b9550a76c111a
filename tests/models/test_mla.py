"""Latent attention whose joined projections come in parts, against its projections apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ddbench.models.kernel_set import TORCH, use_kernels
from ddbench.models.shapes import TARGETS
from ddbench.models.target import Target


def linear_parts(num_parts: int):
    """A product whose inner dimension is split: fp32 sums."""

    def run(x: torch.Tensor, weight: torch.Tensor, *, is_join: bool = False) -> torch.Tensor:
        if num_parts == 1:
            return F.linear(x, weight)
        halves = zip(x.float().chunk(num_parts, -1), weight.float().chunk(num_parts, -1), strict=True)
        return torch.stack([F.linear(*half) for half in halves])

    return run


@pytest.fixture
def target(make_target) -> Iterator[Target]:
    target = make_target(TARGETS["tiny-mla-moe"], (0, 1))
    yield target
    use_kernels(target, TORCH)


def outputs(target: Target, session, make_ids) -> tuple[torch.Tensor, ...]:
    """Of a text, of new tokens on it, and the cache as they left it."""
    running = session(target, 2, 16)
    texts = torch.stack([make_ids(7), make_ids(7, seed=1)])
    first, second = running.feed(texts), running.feed(texts[:, :4])
    rows = [cache[0].nan_to_num(5.0) for cache in running.cache]
    return *first, *second, *rows


@torch.no_grad()
@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_joined_projections_in_parts_give_what_they_give_apart(target, session, make_ids, num_parts) -> None:
    apart = outputs(target, session, make_ids)
    calls = []

    def compressed_rows(parts: torch.Tensor, *args) -> torch.Tensor:
        calls.append(tuple(parts.shape))
        return TORCH.compressed_rows(parts, *args)

    use_kernels(
        target, replace(TORCH, name="parts", linear_parts=linear_parts(num_parts), compressed_rows=compressed_rows)
    )
    together = outputs(target, session, make_ids)
    width = 32 + target.shape.attention.row_shapes[0][0]
    assert calls == [(num_parts, 2, tokens, width) for tokens in (7, 4) for _ in target.layers]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_low_precision_model_stays_in_its_precision(target, session, make_ids) -> None:
    """fp32 sums become queries and cache rows in bf16."""
    target.to(torch.bfloat16)
    use_kernels(target, replace(TORCH, name="parts", linear_parts=linear_parts(2)))
    logits, features, *_ = outputs(target, session, make_ids)
    assert logits.dtype == features.dtype == torch.bfloat16
    assert logits.isfinite().all()
