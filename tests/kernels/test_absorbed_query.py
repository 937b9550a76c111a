"""Claims about the implementation of absorbed MLA's query."""

from __future__ import annotations

import torch

from ddbench.kernels.absorbed_query import absorbed_query
from ddbench.reference import absorbed_query as spec
from ddbench.testing import to_float64


def test_low_precision_is_rounded_once_and_latents_keep_their_bits():
    inputs = spec.make_inputs(0, "small")
    low = {name: t.bfloat16() if name.startswith("q") else t for name, t in inputs.items()}
    out = absorbed_query(**low)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, spec.absorbed_query(**low))
    assert torch.equal(out[..., :16], low["q_latent"])


def test_views_of_the_products_are_taken_as_they_are():
    """The latent part comes heads first, the rotary part from between other dims."""
    inputs = spec.make_inputs(1, "odd")
    latent = inputs["q_latent"].permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    whole = torch.randn(*inputs["q_rope"].shape[:3], 20)
    whole[..., 6:] = inputs["q_rope"]
    out = absorbed_query(latent, whole[..., 6:], inputs["cos_rows"], inputs["sin_rows"])
    torch.testing.assert_close(out.double(), spec.absorbed_query(**to_float64(inputs)), rtol=1e-6, atol=1e-6)
    assert out.is_contiguous()
