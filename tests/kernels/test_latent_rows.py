"""Claims about the implementation of MLA's new cache rows."""

from __future__ import annotations

import torch

from ddbench.kernels.latent_rows import compressed_rows, latent_rows, write_rows
from ddbench.kernels.linear import added
from ddbench.kernels.rms_norm import rms_norm
from ddbench.reference import latent_rows as spec


def test_rows_outside_of_the_cache_are_skipped():
    """H68: bit for bit, whatever the lengths of idle slots are."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([0, 3, 5, 6, 7, -1, -3, 2**63 - 1, -(2**63), 10**15])
    rows = torch.randn(10, 3, 2, 4, generator=generator)
    cache = torch.full((10, 7, 2, 4), torch.nan)
    write_rows(cache, rows, lengths)
    expected = torch.full((10, 7, 2, 4), torch.nan)
    expected[0, :3], expected[1, 3:6], expected[2, 5:], expected[3, 6:] = rows[0], rows[1], rows[2, :2], rows[3, :1]
    assert torch.equal(cache.view(torch.int32), expected.view(torch.int32))


def test_more_rows_than_the_cache_has():
    cache = torch.zeros(1, 2, 1)
    write_rows(cache, torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([0]))
    assert cache.flatten().tolist() == [1.0, 2.0]
    write_rows(cache, torch.zeros(1, 0, 1), torch.tensor([0]))
    assert cache.flatten().tolist() == [1.0, 2.0]


def test_views_of_wider_tensors_are_written_in_place():
    inputs = spec.make_inputs(0, "small")
    expected = {**inputs, "cache": inputs["cache"].clone()}
    spec.latent_rows(**expected)
    buffer = torch.full((2, 14, 30), 7.0)
    view = buffer[:, 1:-1, 2:26]
    view.copy_(inputs["cache"])
    wide = torch.randn(2, 3, 40)
    wide[..., 5:29] = inputs["kv"]
    latent_rows(**inputs | {"cache": view, "kv": wide[..., 5:29]})
    torch.testing.assert_close(view, expected["cache"])
    view.fill_(7.0)
    assert (buffer == 7.0).all()


def test_host_reads_nothing():
    """H38: runs on tensors without values."""
    inputs = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in spec.make_inputs(0, "small").items()}
    assert latent_rows(**inputs) is None
    inputs = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in spec.make_compressed_inputs(0, "odd").items()}
    assert compressed_rows(**inputs).shape == (3, 5, 41)


def test_a_query_in_the_same_product_is_the_two_ops_apart():
    """In every bit, in both precisions: of one part, and of the sum of several."""
    for size in spec.SIZES:
        for dtype in (torch.float32, torch.bfloat16):
            inputs = spec.make_compressed_inputs(0, size)
            for name in ("cache", "q_weight", "kv_weight"):
                inputs[name] = inputs[name].to(dtype)
            for num_parts in (1, len(inputs["parts"])):
                parts = inputs["parts"][:num_parts]
                parts = parts.to(dtype) if num_parts == 1 else parts
                given = inputs | {"parts": parts, "cache": inputs["cache"].clone(), "dtype": dtype}
                q = compressed_rows(**given)
                rows, rank, cache = added(parts), len(inputs["q_weight"]), inputs["cache"].clone()
                latent_rows(
                    rows[..., rank:], inputs["kv_weight"], inputs["kv_eps"], inputs["cos_rows"], inputs["sin_rows"],
                    inputs["lengths"], cache,
                )  # fmt: skip
                assert q.dtype == dtype
                assert torch.equal(q, rms_norm(rows[..., :rank], inputs["q_weight"], inputs["q_eps"]).to(dtype))
                assert torch.equal(given["cache"].nan_to_num(5.0), cache.nan_to_num(5.0))


def test_parts_are_added_in_their_order():
    parts = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    assert added(parts).tolist() == [1.0]
    assert added(parts.flip(0)).tolist() == [0.0]
    assert added(parts.bfloat16()).dtype == torch.float32
    assert added(parts[:1].bfloat16()).dtype == torch.bfloat16
