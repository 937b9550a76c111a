"""The drafter: a block over materialized target features gives what the paper's equations give, and what it was
trained as."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ddbench.models.drafter import Drafter
from ddbench.models.shapes import DRAFTERS, TARGETS, TargetShape
from ddbench.models.target import Target
from ddbench.reference.materialize_kv import materialize_kv
from ddbench.train.drafter import block_logits

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
ROWS = 64


class DraftSession:
    """Draft caches of some texts, filled from their features by the reference; everything else is NaN.

    Each text ends with its anchor, which has no features yet.
    """

    def __init__(self, drafter: Drafter, target: Target, texts: list[list[int]], features: list[Tensor]) -> None:
        shape, w = drafter.shape, drafter.materialize_weights()
        self.drafter, self.target, self.texts = drafter, target, texts
        self.lengths = torch.tensor([len(text) - 1 for text in texts])
        size = (shape.num_layers, len(texts), ROWS, shape.num_kv_heads, shape.head_dim)
        self.k, self.v = torch.full(size, torch.nan), torch.full(size, torch.nan)
        longest = int(self.lengths.max())
        padded = torch.full((len(texts), longest, features[0].shape[-1]), torch.nan)
        for row, part in enumerate(features):
            padded[row, : len(part)] = part
        positions = torch.arange(longest).expand(len(texts), -1)
        materialize_kv(
            padded, positions, self.lengths, w.fc, w.hidden_norm, w.kv_weights, w.k_norms, w.eps, w.cos, w.sin,
            self.k, self.v,
        )  # fmt: skip
        # The dense attention multiplies unread rows by zero, so they must be finite; large ones betray a read.
        self.k.nan_to_num_(nan=50.0)
        self.v.nan_to_num_(nan=50.0)

    def block(self, size: int) -> Tensor:
        ids = torch.full((len(self.texts), size), self.drafter.shape.mask_token_id)
        ids[:, 0] = torch.tensor([text[-1] for text in self.texts])
        return ids

    def run(self, block_ids: Tensor, slack: int = 0) -> Tensor:
        """Draft logits [B, P-1, V]."""
        bound = int(self.lengths.max()) + slack
        with torch.inference_mode():
            return self.drafter(block_ids, self.lengths, self.k, self.v, bound, self.target)


@pytest.fixture(scope="session")
def make_session(float_target, make_ids):
    """`make_session(drafter, target, lengths)`: texts of these lengths, anchors included, and their features."""

    def make(drafter: Drafter, target: Target, lengths: tuple[int, ...]) -> DraftSession:
        texts = [make_ids(length, seed=length).tolist() for length in lengths]
        target = float_target(target)
        features = [target.full(torch.tensor([text]))[1][0, :-1] for text in texts]
        return DraftSession(drafter, target, texts, features)

    return make


def trained_form(session: DraftSession, features: Tensor, row: int, block: int) -> Tensor:
    """The same draft out of the training pass over the whole text, [P-1, V]."""
    ids = torch.tensor([session.texts[row]])
    anchors = session.lengths[row].view(1, 1)
    return block_logits(session.drafter, session.target, features, ids, anchors, block)[0, 0]


RULES: list[dict[str, Any]] = [  # sliding windows and in-block causality, per layer
    {},
    {"is_causal": True},
    {"is_causal": False},
    {"layer_types": (), "sliding_window": None},
    {"rope": {"theta": 1e4, "rotary_dim": 16, "yarn": {"factor": 8.0, "original_context": 32}}},
    {"num_layers": 1, "layer_types": ("sliding_attention",), "sliding_window": 1},
    {"num_layers": 1, "layer_types": ("sliding_attention",), "sliding_window": 5, "is_causal": False},
]


@pytest.mark.parametrize("changes", RULES)
def test_a_draft_is_what_the_equations_give_and_what_was_trained(models, make_drafter, make_session, oracle, changes):
    """H12, H20 (a block smaller than trained), unequal lengths, an empty and a one-row context."""
    changes = {"num_layers": 3, "layer_types": models.drafter.shape.layer_types, **changes}
    if len(changes["layer_types"]) not in (0, changes["num_layers"]):
        changes["layer_types"] = ()
    drafter = make_drafter(models.drafter.shape, ROWS, **changes)
    session = make_session(drafter, models.target, (1, 2, 14, 31))
    for block in (drafter.shape.block_size, 3, 2):
        logits = session.run(session.block(block), slack=block)
        for row, text in enumerate(session.texts):
            features = session.target.full(torch.tensor([text]))[1]
            expected = oracle.draft(drafter, models.target, text, features[0, :-1], block)
            torch.testing.assert_close(logits[row].double(), expected, **TOLERANCE)
            torch.testing.assert_close(trained_form(session, features, row, block), logits[row], **TOLERANCE)


def test_many_blocks_train_in_one_pass_as_they_run_one_by_one(models, make_session, make_ids):
    """Context strictly before each anchor, no block sees another."""
    text = make_ids(30, seed=3)
    session = make_session(models.drafter, models.target, (5,))
    features = session.target.full(text[None])[1]
    anchors = torch.tensor([[20, 4, 0, 23, 5]])
    together = block_logits(models.drafter, session.target, features, text[None], anchors, 4)[0]
    for draft, anchor in zip(together, anchors[0].tolist(), strict=True):
        alone = DraftSession(models.drafter, session.target, [text[: anchor + 1].tolist()], [features[0, :anchor]])
        torch.testing.assert_close(alone.run(alone.block(4))[0], draft, **TOLERANCE)


@pytest.mark.parametrize(
    ("changes", "sees_later_slots"),
    [
        ({"layer_types": ("full_attention",), "is_causal": None}, True),
        ({"layer_types": ("sliding_attention",), "sliding_window": 9, "is_causal": None}, False),
        ({"layer_types": ("sliding_attention",), "sliding_window": 9, "is_causal": False}, True),
        ({"layer_types": ("full_attention",), "is_causal": True}, False),
    ],
)
def test_only_layers_that_are_not_causal_see_later_slots(models, make_drafter, make_session, changes, sees_later_slots):
    """H14: perturb the last slot of the block; slot 1's row must change exactly where attention is bidirectional."""
    drafter = make_drafter(models.drafter.shape, ROWS, num_layers=1, **changes)
    session = make_session(drafter, models.target, (14, 6))
    block = session.block(5)
    perturbed = block.clone()
    perturbed[:, -1] = (block[:, -1] + 1) % 90
    before, after = session.run(block), session.run(perturbed)
    assert torch.equal(before[:, 0], after[:, 0]) != sees_later_slots
    assert not torch.allclose(before[:, -1], after[:, -1], atol=1e-3)


def test_the_anchor_stands_in_slot_0(models, make_session):
    """H01: the anchor decides the draft; a block of masks alone is another draft."""
    session = make_session(models.drafter, models.target, (14, 6))
    block = session.block(4)
    masked = block.clone()
    masked[:, 0] = models.drafter.shape.mask_token_id
    assert (session.run(block) - session.run(masked)).abs().amax(dim=(1, 2)).min() > 0.1


def test_the_sliding_window_counts_the_query_itself(models, make_drafter, make_session):
    """A context row at distance W - 1 is seen, one at distance W is not, for every slot of the block."""
    window = 6
    drafter = make_drafter(
        models.drafter.shape, ROWS, num_layers=1, layer_types=("sliding_attention",), sliding_window=window
    )
    session = make_session(drafter, models.target, (20,))
    block = session.block(4)
    before = session.run(block)
    for distance in range(window - 3, window + 3):
        row = 19 - distance  # the anchor stands at position 19
        kept = session.k[:, 0, row].clone()
        session.k[:, 0, row] += 3.0
        changed = (session.run(block) - before)[0].abs().amax(dim=-1) > 1e-4
        session.k[:, 0, row] = kept
        assert changed.tolist() == [distance + slot < window for slot in (1, 2, 3)]


def test_a_draft_leaves_the_context_as_it_was_and_repeats_bit_for_bit(models, make_session):
    """H22: rows below `lengths` and beyond the block are untouched; the block's own rows are scratch."""
    session = make_session(models.drafter, models.target, (14, 6))
    block = session.block(models.drafter.shape.block_size)
    size = block.shape[1]
    before = session.k.clone(), session.v.clone()
    first = session.run(block)
    for cache, old in zip((session.k, session.v), before, strict=True):
        for row, length in enumerate(session.lengths.tolist()):
            assert torch.equal(cache[:, row, :length], old[:, row, :length])
            assert torch.equal(cache[:, row, length + size :], old[:, row, length + size :])
    assert torch.equal(session.run(block), first)


def test_any_bound_on_the_context_gives_the_same_draft(models, make_session):
    session = make_session(models.drafter, models.target, (14, 6))
    block = session.block(4)
    torch.testing.assert_close(session.run(block, slack=20), session.run(block), rtol=1e-5, atol=1e-5)


def test_a_full_block_is_drafted_at_the_very_end_of_the_context(models, make_drafter, make_session, oracle):
    """H21: positions of the block may pass the last one of the context."""
    drafter = make_drafter(models.drafter.shape, 14)  # 14 positions of context, the anchor at the last of them
    session = make_session(drafter, models.target, (14,))
    size = drafter.shape.block_size
    features = session.target.full(torch.tensor(session.texts))[1][0, :-1]
    expected = oracle.draft(drafter, models.target, session.texts[0], features, size)
    torch.testing.assert_close(session.run(session.block(size))[0].double(), expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla-moe"])
def test_embedding_scale_and_softcap_reach_the_draft(make_target, make_drafter, make_session, oracle, name):
    """H19."""
    changed = {**TARGETS[name].model_dump(), "embedding_scale": 3.0, "logit_softcap": 2.0}
    shape = DRAFTERS[name]
    target = make_target(TargetShape(**changed), shape.target_layer_ids)
    drafter = make_drafter(shape, ROWS)
    session = make_session(drafter, target, (9,))
    features = session.target.full(torch.tensor(session.texts))[1][0, :-1]
    logits = session.run(session.block(4))[0]
    expected = oracle.draft(drafter, target, session.texts[0], features, 4)
    torch.testing.assert_close(logits.double(), expected, **TOLERANCE)
    assert 1.0 < float(logits.abs().max()) < 2.0


def test_the_number_of_features_is_not_the_number_of_layers(models, make_drafter):
    """H06: fc is sized by the captured layers."""
    drafter = make_drafter(models.drafter.shape, num_layers=4, layer_types=(), target_layer_ids=(0, 1, 2))
    assert drafter.fc.weight.shape == (drafter.shape.hidden, 3 * drafter.shape.target_hidden)
    assert len(drafter.materialize_weights().kv_weights) == 4


def test_materialize_weights_hold_k_rows_first_and_fp32_tables(models, make_drafter):
    drafter = make_drafter(models.drafter.shape, ROWS).to(torch.bfloat16)
    w = drafter.materialize_weights()
    half = drafter.shape.num_kv_heads * drafter.shape.head_dim
    for layer, kv, norm in zip(drafter.layers, w.kv_weights, w.k_norms, strict=True):
        assert torch.equal(kv[:half], layer.attention.k_proj.weight)
        assert torch.equal(kv[half:], layer.attention.v_proj.weight)
        assert torch.equal(norm, layer.attention.k_norm.weight)
    assert (w.cos.dtype, w.sin.dtype, w.kv_weights.dtype) == (torch.float32, torch.float32, torch.bfloat16)
    assert len(w.cos) == ROWS + drafter.shape.block_size


def test_draft_logits_are_as_their_product_made_them(models, make_drafter, make_target):
    drafter = make_drafter(models.drafter.shape, ROWS).to(torch.bfloat16)
    target = make_target(models.target.shape).to(torch.bfloat16)
    shape = drafter.shape
    caches = torch.zeros(2, shape.num_layers, 1, ROWS, shape.num_kv_heads, shape.head_dim, dtype=torch.bfloat16)
    logits = drafter(torch.tensor([[3, 4, 4]]), torch.tensor([0]), *caches, 0, target)
    assert logits.dtype == torch.bfloat16
    assert logits.shape == (1, 2, target.shape.vocab)
