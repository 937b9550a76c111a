"""Claims about the specification of MLA's new cache rows."""

from __future__ import annotations

import torch

from ddbench.reference.latent_rows import cost, latent_rows, make_inputs
from ddbench.reference.rms_norm import rms_norm
from ddbench.reference.rope import rope


def test_rows_are_norm_and_rotation_and_nothing_else_changes():
    inputs = make_inputs(0, "odd")
    before = inputs["cache"].clone()
    assert latent_rows(**inputs) is None
    kv, rank = inputs["kv"], inputs["norm_weight"].shape[0]
    latent = rms_norm(kv[..., :rank], inputs["norm_weight"], inputs["eps"])
    key = rope(kv[:, :, None, rank:], inputs["cos_rows"], inputs["sin_rows"])[:, :, 0]
    for b, length in enumerate(inputs["lengths"].tolist()):
        before[b, length : length + kv.shape[1]] = torch.cat((latent[b], key[b]), dim=-1)
    torch.testing.assert_close(inputs["cache"], before)


def test_rows_without_a_place_are_skipped():
    """The cache of each adversarial request holds as many rows as fit; all others stay NaN, bit for bit."""
    inputs = make_inputs(1, "adversarial")
    bits = inputs["cache"].clone().view(torch.int32)
    latent_rows(**inputs)
    written = ~inputs["cache"].isnan().any(-1)
    assert written.sum(1).tolist() == [4, 1, 0, 0, 0, 4]
    assert written[0, :4].all()
    assert written[1, 8]
    assert written[5, 5:].all()
    assert torch.equal(inputs["cache"].view(torch.int32)[~written], bits[~written])


def test_only_rows_with_a_place_cost():
    inputs = make_inputs(1, "adversarial")
    fewer = inputs | {"lengths": torch.full((6,), -1)}
    assert cost(**inputs)["flops"] == 9 * (4 * 33 + 6 * 6)
    assert cost(**fewer) == {"bytes": 4 * 33 + 8 * 6, "flops": 0}
