"""Claims about absorbed latent attention's specification."""

from __future__ import annotations

import torch

from ddbench.reference.mla_tree_attention import cost, make_inputs, mla_tree_attention
from ddbench.reference.tree_attention import random_visible, tree_attention

RANK, ROTARY, NOPE, VALUE, HEADS = 8, 4, 5, 6, 3


def _random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_absorbed_equals_expanded():
    """Projecting latents up to per-head K and V and attending plainly gives the same as absorbing the projections."""
    batch, num_new, rows = 2, 5, 17
    latent, q_nope = _random(batch, rows, RANK + ROTARY, seed=0), _random(batch, num_new, HEADS, NOPE, seed=1)
    q_rotary = _random(batch, num_new, HEADS, ROTARY, seed=2)
    up_k, up_v = _random(HEADS, NOPE, RANK, seed=3), _random(HEADS, VALUE, RANK, seed=4)
    lengths, visible = torch.tensor([12, 3]), random_visible(batch, num_new, torch.Generator().manual_seed(5))
    scale = (NOPE + ROTARY) ** -0.5

    absorbed_q = torch.cat((torch.einsum("bnhd,hdr->bnhr", q_nope, up_k), q_rotary), -1)
    attended = mla_tree_attention(absorbed_q, latent, RANK, lengths, visible, scale)
    absorbed = torch.einsum("bnhr,hvr->bnhv", attended, up_v)

    k_nope = torch.einsum("bsr,hdr->bshd", latent[..., :RANK], up_k)
    k = torch.cat((k_nope, latent[:, :, None, RANK:].expand(-1, -1, HEADS, -1)), -1)
    v = torch.einsum("bsr,hvr->bshv", latent[..., :RANK], up_v)
    q = torch.cat((q_nope, q_rotary), -1)
    padded_v = torch.nn.functional.pad(v, (0, NOPE + ROTARY - VALUE))
    expanded = tree_attention(q, k, padded_v, lengths, visible, scale)[..., :VALUE]
    torch.testing.assert_close(absorbed, expanded)


def test_rotary_part_is_key_only():
    """The value is the first R dims; the rotary dims decide scores but never appear in the output."""
    q, latent = _random(1, 1, 1, RANK + ROTARY, seed=0), _random(1, 9, RANK + ROTARY, seed=1)
    latent[..., :RANK] = 1.0
    out = mla_tree_attention(q, latent, RANK, torch.tensor([8]), None, 1.0)
    torch.testing.assert_close(out, torch.ones(1, 1, 1, RANK, dtype=torch.float64))


def test_unread_rows_never_matter():
    q, latent = _random(2, 3, HEADS, RANK + ROTARY, seed=0), _random(2, 14, RANK + ROTARY, seed=1)
    lengths = torch.tensor([1, 9])
    clean = mla_tree_attention(q, latent, RANK, lengths, None, 0.3)
    latent[0, 4:], latent[1, 12:] = float("nan"), float("nan")
    assert torch.equal(mla_tree_attention(q, latent, RANK, lengths, None, 0.3), clean)


def test_heads_share_the_cache():
    """Permuting heads permutes outputs: no head has rows of its own. Fewest bytes count the rows once for all heads."""
    inputs = make_inputs(0, "small")
    out = mla_tree_attention(**inputs)
    order = torch.tensor([2, 0, 1])
    assert torch.equal(mla_tree_attention(**inputs | {"q": inputs["q"][:, :, order]}), out[:, :, order])
    twice = inputs | {"q": inputs["q"].repeat(1, 1, 2, 1)}
    q, rank = inputs["q"], inputs["rank"]
    added = q.numel() + q.shape[0] * q.shape[1] * q.shape[2] * rank
    assert cost(**twice)["bytes"] - cost(**inputs)["bytes"] == 4 * added
