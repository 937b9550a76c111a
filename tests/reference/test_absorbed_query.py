"""Claims about the specification of absorbed MLA's query."""

from __future__ import annotations

import torch

from ddbench.reference.absorbed_query import absorbed_query, make_inputs


def test_parts_stand_side_by_side():
    """By complex multiplication: pair i of the rotary part is turned by its angle, the latent part is untouched."""
    inputs = make_inputs(0, "odd")
    out = absorbed_query(**inputs)
    rank, half = inputs["q_latent"].shape[-1], inputs["cos_rows"].shape[-1]
    assert torch.equal(out[..., :rank], inputs["q_latent"])
    turn = torch.complex(inputs["cos_rows"], inputs["sin_rows"])
    turned = torch.complex(inputs["q_rope"][..., :half], inputs["q_rope"][..., half:]) * turn
    torch.testing.assert_close(out[..., rank:], torch.cat((turned.real, turned.imag), dim=-1))
    assert out.is_contiguous()


def test_zero_angle_is_concatenation():
    inputs = make_inputs(0, "small")
    inputs |= {"cos_rows": torch.ones_like(inputs["cos_rows"]), "sin_rows": torch.zeros_like(inputs["sin_rows"])}
    assert torch.equal(absorbed_query(**inputs), torch.cat((inputs["q_latent"], inputs["q_rope"]), dim=-1))
