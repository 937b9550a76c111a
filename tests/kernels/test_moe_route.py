"""Claims about the routing's implementation."""

from __future__ import annotations

import torch

from ddbench.kernels.moe_route import moe_route
from ddbench.reference import moe_route as spec


def test_ties_go_to_the_lower_expert_at_every_width():
    """Sizes around those where sort and top-k implementations switch algorithms."""
    for experts in (1, 2, 15, 16, 17, 64, 257, 384):
        ids, _ = moe_route(torch.zeros(3, 4), torch.ones(experts, 4), torch.zeros(experts), min(8, experts), 1.0)
        assert ids.tolist() == [list(range(min(8, experts)))] * 3


def test_bf16_tokens_are_routed_in_fp32():
    """Scores that only differ beyond bf16 still decide."""
    gate = torch.tensor([[1.0, 0.0], [1.0, 2.0**-12]])
    ids, weights = moe_route(torch.ones(1, 2).bfloat16(), gate, torch.zeros(2), 1, 1.0)
    assert ids.tolist() == [[1]]
    assert weights.dtype == torch.float32


def test_tokens_are_independent():
    inputs = spec.make_inputs(0, "odd")
    ids, _ = moe_route(**inputs)
    for t in range(5):
        assert moe_route(**inputs | {"x": inputs["x"][t : t + 1]})[0].tolist() == ids[t : t + 1].tolist()


def test_host_reads_nothing():
    """H38: runs on tensors without values."""
    x, gate, bias = (torch.empty(*shape, device="meta") for shape in ((6, 16), (8, 16), (8,)))
    ids, weights = moe_route(x, gate, bias, 2, 2.5)
    assert ids.shape == weights.shape == (6, 2)
