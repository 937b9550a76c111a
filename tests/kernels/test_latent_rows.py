"""Claims about the implementation of MLA's new cache rows."""

from __future__ import annotations

import torch

from ddbench.kernels.latent_rows import latent_rows, write_rows
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
