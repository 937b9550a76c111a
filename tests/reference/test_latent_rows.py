"""Claims about the specification of MLA's new cache rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ddbench.reference.latent_rows import (
    SIZES,
    compressed_cost,
    compressed_rows,
    cost,
    latent_rows,
    make_compressed_inputs,
    make_inputs,
)
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


def test_a_query_before_the_row_is_a_norm_of_its_own():
    """Against torch's own norm in fp64, in which the order of the parts does not matter."""
    for size in SIZES:
        inputs = make_compressed_inputs(0, size)
        wide = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
        rank = len(inputs["q_weight"])
        total, cache = wide["parts"].sum(0), wide["cache"].clone()
        q = compressed_rows(**wide)
        assert q.dtype == torch.float64
        expected = F.rms_norm(total[..., :rank], (rank,), wide["q_weight"], inputs["q_eps"])
        torch.testing.assert_close(q, expected, equal_nan=True)
        rest = {name: wide[name] for name in ("cos_rows", "sin_rows", "lengths")}
        latent_rows(total[..., rank:], wide["kv_weight"], inputs["kv_eps"], cache=cache, **rest)
        torch.testing.assert_close(wide["cache"], cache, equal_nan=True)


def test_parts_are_added_in_their_order_and_the_sum_is_not_rounded():
    inputs = make_compressed_inputs(0, "small")
    parts = torch.zeros_like(inputs["parts"][:1]).expand(3, -1, -1, -1).clone()
    parts[0], parts[1], parts[2] = 1.0, 2.0**-10, -1.0  # bf16 would lose the second in the sum
    low = inputs | {"parts": parts, "dtype": torch.bfloat16, "q_eps": 0.0}
    torch.testing.assert_close(compressed_rows(**low), inputs["q_weight"].bfloat16().expand(2, 3, -1))


def test_every_part_is_read_once_and_a_query_written():
    inputs = make_compressed_inputs(0, "adversarial")
    tokens, rank, width = 6 * 4, 65, 65 + 33 + 12
    rows = 9  # that have a place
    rest = cost(**make_inputs(0, "adversarial"))
    found = compressed_cost(**inputs)
    assert found["bytes"] == rest["bytes"] + 4 * (3 * rows * (width - rank) + 5 * tokens * rank + rank)
    assert found["flops"] == rest["flops"] + 3 * rows * (width - rank) + 7 * tokens * rank
    assert compressed_cost(**inputs, dtype=torch.bfloat16)["bytes"] == found["bytes"] - 2 * tokens * rank
