"""The target: prefill, chunks, ragged batches and trees on a cache give what the equations give without one."""

from __future__ import annotations

import contextlib
import itertools
from unittest import mock

import pytest
import torch

from ddbench.models.layers import Addend, Parts
from ddbench.models.moe import MoE
from ddbench.models.shapes import TARGETS, MLAShape, TargetShape
from ddbench.models.target import Target

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # fp32 against fp64, three layers


def test_whole_texts_give_what_the_equations_give(models, float_target, oracle, make_ids):
    ids = make_ids(21)
    hidden, features, _ = float_target(models.target).full(ids[None])
    logits = models.target.head(hidden)
    expected_logits, expected_features = oracle.target(models.target, ids.tolist())
    torch.testing.assert_close(logits[0].double(), expected_logits, **TOLERANCE)
    torch.testing.assert_close(features[0].double(), expected_features, **TOLERANCE)


@pytest.mark.parametrize("chunks", [(21,), (1, 3, 8, 9), (1,) * 21])
def test_chunked_prefill_changes_nothing(models, session, oracle, make_ids, chunks):
    ids = make_ids(21)
    running = session(models.target, 1, 24)
    outs = [running.feed(part[None]) for part in ids.split(chunks)]
    logits, features = (torch.cat(part, dim=1)[0].double() for part in zip(*outs, strict=True))
    expected_logits, expected_features = oracle.target(models.target, ids.tolist())
    torch.testing.assert_close(logits, expected_logits, **TOLERANCE)
    torch.testing.assert_close(features, expected_features, **TOLERANCE)


def test_requests_of_unequal_length_do_not_see_each_other(models, session, oracle, make_ids):
    """H64. Every cache row that nobody may read holds NaN."""
    texts = [make_ids(length, seed=length) for length in (4, 17, 9)]
    running = session(models.target, 3, 24)
    for row, text in enumerate(texts):
        running.feed(text[None, :-3], row)
    logits, features = running.run(torch.stack([text[-3:] for text in texts]))
    for row, text in enumerate(texts):
        expected_logits, expected_features = oracle.target(models.target, text.tolist())
        torch.testing.assert_close(logits[row].double(), expected_logits[-3:], **TOLERANCE)
        torch.testing.assert_close(features[row].double(), expected_features[-3:], **TOLERANCE)


def tree(parents: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Depths [N] and ancestor mask [N, N] of a tree given by parent indices, the root's -1."""
    visible = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            visible[node] |= visible[parent]
    return visible.sum(dim=1) - 1, visible


PARENTS = ([-1, 0, 0, 1, 1, 3, 2], [-1, 0, 1, 2, 3, 4, 5], [-1, 0, 0, 0, 0, 0, 0])


def test_every_tree_node_continues_its_own_path(models, session, oracle, make_ids):
    """H59, H61, H64: siblings share a position, not a cache row; each request has its own tree."""
    texts, nodes = [make_ids(length, seed=length) for length in (6, 11, 3)], make_ids(21, seed=5).view(3, 7)
    running = session(models.target, 3, 24)
    for row, text in enumerate(texts):
        running.feed(text[None], row)
    depths, visible = (torch.stack(part) for part in zip(*map(tree, PARENTS), strict=True))
    logits, features = running.run(nodes, positions=running.lengths[:, None] + depths, visible=visible)
    for row, node in itertools.product(range(3), range(7)):
        path = nodes[row][visible[row, node]].tolist()
        expected_logits, expected_features = oracle.target(models.target, [*texts[row].tolist(), *path])
        torch.testing.assert_close(logits[row, node].double(), expected_logits[-1], **TOLERANCE)
        torch.testing.assert_close(features[row, node].double(), expected_features[-1], **TOLERANCE)


def test_a_chain_given_as_a_tree_is_the_plain_forward(models, session, make_ids):
    """H57."""
    text, new = make_ids(8), make_ids(5, seed=1)[None]
    running = session(models.target, 1, 16)
    running.feed(text[None])
    depths, visible = tree([-1, 0, 1, 2, 3])
    plain = running.run(new)
    as_tree = running.run(new, positions=8 + depths[None], visible=visible[None])
    for one, other in zip(plain, as_tree, strict=True):
        assert torch.equal(one, other)


def test_logits_of_the_wanted_rows_only(models, session, make_ids):
    ids = make_ids(14).view(2, 7)
    running = session(models.target, 2, 8)
    everything, features = running.run(ids)
    wanted = torch.tensor([6, 2])
    chosen, same_features = running.run(ids, logit_rows=wanted)
    assert chosen.shape == (2, 1, models.target.shape.vocab)
    torch.testing.assert_close(chosen[:, 0], everything[torch.arange(2), wanted])
    assert torch.equal(features, same_features)


def test_rejected_rows_leave_no_trace(models, session, make_ids):
    """Rows at and beyond `lengths` are scratch: another draft over them gives what a fresh cache gives."""
    text, wrong, right = make_ids(6), make_ids(5, seed=1), make_ids(3, seed=2)
    used, fresh = session(models.target, 1, 16), session(models.target, 1, 16)
    for running in (used, fresh):
        running.feed(text[None])
    used.run(wrong[None])
    for one, other in zip(used.run(right[None]), fresh.run(right[None]), strict=True):
        assert torch.equal(one, other)


# ------------------------------------------------------------------------------------------------------- features


def added(addend: Addend) -> torch.Tensor:
    if isinstance(addend, Parts):
        return addend.sums.sum(0)
    return addend[0] + addend[1] if isinstance(addend, tuple) else addend


def kept(function, keep):
    """The function, whose results are shown to `keep`."""

    def call(*args):
        out = function(*args)
        keep(out)
        return out

    return call


def recorded(target: Target, run) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """What forward hooks see while `run()` runs: each layer's output, and stream + attention + MLP branches."""
    outputs: dict[int, torch.Tensor] = {}
    sums: dict[int, torch.Tensor] = {}

    def add(i: int, out: torch.Tensor) -> None:
        sums[i] = sums[i] + out.view_as(sums[i])

    with contextlib.ExitStack() as stack:
        for i, layer in enumerate(target.layers):
            handles = [
                layer.register_forward_pre_hook(lambda _, args, i=i: sums.__setitem__(i, args[1])),
                layer.attention.register_forward_hook(lambda _, args, out, i=i: add(i, added(out))),
                layer.register_forward_hook(lambda _, args, out, i=i: outputs.__setitem__(i, added(out[0]) + out[1])),
            ]
            if isinstance(layer.mlp, MoE):
                hook = lambda _, args, out, i=i: add(i, out)  # noqa: E731
                handles += [branch.register_forward_hook(hook) for branch in (layer.mlp.experts, layer.mlp.shared)]
            else:  # its sum is left to the norm behind it: no forward
                spy = kept(layer.mlp.addend, lambda out, i=i: add(i, added(out)))
                stack.enter_context(mock.patch.object(layer.mlp, "addend", spy))
            for handle in handles:
                stack.callback(handle.remove)
        run()
    return outputs, sums


@pytest.mark.parametrize("capture", [(0,), (1, 2), (2, 0), (0, 1, 2)])
def test_features_are_residuals_after_the_named_layers_in_list_order(models, make_target, session, make_ids, capture):
    """H02, H08: id i is the stream after layer i, branches added; neither i - 1 nor i + 1 (the order may fall)."""
    target = make_target(models.target.shape, capture)
    ids, running = make_ids(9)[None], session(target, 1, 12)
    features = running.run(ids)[1]
    outputs, sums = recorded(target, lambda: running.run(ids))
    parts = features.split(target.shape.hidden, dim=-1)
    assert len(parts) == len(capture)
    for i, part in zip(capture, parts, strict=True):
        assert torch.equal(part, outputs[i])
        torch.testing.assert_close(part, sums[i])
        for other in outputs.keys() - {i}:
            assert not torch.allclose(part, outputs[other], atol=1e-2)


def test_the_last_layers_feature_is_not_normalised(models, make_target, session, make_ids):
    """H07: Hugging Face's last hidden state has been through the final norm; ours has not."""
    last = models.target.shape.num_layers - 1
    target = make_target(models.target.shape, (last,))
    logits, features = session(target, 1, 12).run(make_ids(9)[None])
    torch.testing.assert_close(target.head(target.norm(features)), logits)
    assert not torch.allclose(target.norm(features), features, atol=1e-2)


def test_no_capture_ids_no_features(models, make_target, session, make_ids):
    target = make_target(models.target.shape)
    assert session(target, 1, 4).run(make_ids(4)[None])[1].shape == (1, 4, 0)


@pytest.mark.parametrize("bad", [-1, 3])
def test_capture_ids_beyond_the_layers_are_refused(models, bad):
    """H04: a negative index must not wrap."""
    with pytest.raises(AssertionError, match="capture ids"):
        Target(models.target.shape, (bad,))


# ---------------------------------------------------------------------------------------- embedding, head, variants


def changed(name: str, **changes: object) -> TargetShape:
    return TargetShape(**{**TARGETS[name].model_dump(), **changes})


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla-moe"])
def test_embedding_scale_and_softcap_reach_the_logits(make_target, session, oracle, make_ids, name):
    """H19."""
    target = make_target(changed(name, embedding_scale=3.0, logit_softcap=2.0), (0,))
    ids = make_ids(9)
    logits, features = session(target, 1, 12).run(ids[None])
    expected_logits, expected_features = oracle.target(target, ids.tolist())
    torch.testing.assert_close(logits[0].double(), expected_logits, **TOLERANCE)
    torch.testing.assert_close(features[0].double(), expected_features, **TOLERANCE)
    assert 1.0 < float(logits.abs().max()) < 2.0
    torch.testing.assert_close(target.embed(ids), 3 * target.embedding(ids))


def test_tied_embeddings_share_one_tensor(make_target, session, oracle, make_ids):
    target = make_target(changed("tiny-gqa", tie_embeddings=True))
    assert target.lm_head.weight is target.embedding.weight
    ids = make_ids(6)
    logits = session(target, 1, 8).run(ids[None])[0]
    torch.testing.assert_close(logits[0].double(), oracle.target(target, ids.tolist())[0], **TOLERANCE)


def test_partial_rotary_and_no_head_norms(make_target, session, oracle, make_ids):
    """H11 in the target: dims beyond `rotary_dim` pass through."""
    attention = {**TARGETS["tiny-gqa"].attention.model_dump(), "qk_norm": False}
    target = make_target(changed("tiny-gqa", attention=attention, rope={"theta": 5e4, "rotary_dim": 6}))
    ids = make_ids(9)
    logits = session(target, 1, 12).run(ids[None])[0]
    torch.testing.assert_close(logits[0].double(), oracle.target(target, ids.tolist())[0], **TOLERANCE)


def test_mla_without_a_low_rank_query(make_target, float_target, session, make_ids):
    attention = {**TARGETS["tiny-mla-moe"].attention.model_dump(), "q_lora_rank": None}
    target = make_target(changed("tiny-mla-moe", attention=attention))
    assert isinstance(target.shape.attention, MLAShape)
    ids = make_ids(9)[None]
    hidden = float_target(target).full(ids)[0]
    torch.testing.assert_close(session(target, 1, 12).run(ids)[0], target.head(hidden), **TOLERANCE)


def test_a_forward_leaves_logits_as_its_product_made_them(models, make_target, session, make_ids):
    """No pass to widen them, which changes no choice; what is computed with, `head`'s, is wide."""
    target = make_target(models.target.shape, (1,)).to(torch.bfloat16)
    logits, features = session(target, 1, 12).run(make_ids(9)[None])
    assert (logits.dtype, features.dtype) == (torch.bfloat16, torch.bfloat16)
    hidden = torch.randn(1, 9, target.shape.hidden, dtype=torch.bfloat16)
    assert target.head(hidden).dtype == torch.float32
    assert torch.equal(target.head(hidden), target.logits(hidden).float())
    capped = make_target(models.target.shape.model_copy(update={"logit_softcap": 5.0})).to(torch.bfloat16)
    assert capped.logits(hidden).dtype == torch.float32
    assert capped.logits(hidden).abs().max() <= 5
    assert bool(logits.isfinite().all())
