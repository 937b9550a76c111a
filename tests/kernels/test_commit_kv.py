"""The product's commit against its specification, on every device present."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.kernels.accept_walk import accept_walk, truncate
from ddbench.kernels.commit_kv import commit_kv
from ddbench.kernels.draft_topk import draft_topk
from ddbench.kernels.tree_build import tree_build_levelwise
from ddbench.kernels.tree_compile import tree_compile
from ddbench.reference import commit_kv as reference

SIZES = ["small", "odd", "degenerate", "adversarial"]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size, device):
    """H78, H80: overlapping moves, identity and root-only paths; every other row of the cache is a sentinel."""
    for seed in range(5):
        inputs = reference.make_inputs(seed, size)
        mine = [cache.clone().to(device) for cache in inputs["caches"]]
        rest = [inputs[name].to(device) for name in ("lengths", "path", "num_accepted")]
        commit_kv(mine, *rest)
        reference.commit_kv(**inputs)
        for cache, expected in zip(mine, inputs["caches"], strict=True):
            assert torch.equal(cache.cpu(), expected)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), size=st.sampled_from(SIZES))
def test_a_view_into_a_larger_buffer_is_written_in_place(seed, size):
    inputs = reference.make_inputs(seed, size)
    cache = inputs["caches"][1]
    buffer = torch.full((cache.shape[0], cache.shape[1] + 2, cache.shape[2], cache.shape[3] + 3), 7.0)
    view = buffer[:, 1:-1, :, 2:-1]
    view.copy_(cache)
    rest = [inputs[name] for name in ("lengths", "path", "num_accepted")]
    commit_kv([view], *rest)
    reference.commit_kv([cache], *rest)
    assert torch.equal(buffer[:, 1:-1, :, 2:-1], cache)
    buffer[:, 1:-1, :, 2:-1] = 7.0
    assert (buffer == 7.0).all()


def test_rows_outside_the_path_may_hold_nan():
    inputs = reference.make_inputs(2, "odd")
    cache = inputs["caches"][0]
    place = torch.arange(cache.shape[2])
    used = torch.zeros(cache.shape[1], cache.shape[2], dtype=torch.bool)
    for b in range(len(used)):
        nodes = inputs["path"][b, : int(inputs["num_accepted"][b]) + 1]
        used[b, inputs["lengths"][b] + nodes] = True
    cache[:, ~used] = torch.nan
    rest = [inputs[name] for name in ("lengths", "path", "num_accepted")]
    commit_kv([cache], *rest)
    start, count = inputs["lengths"][:, None], inputs["num_accepted"][:, None]
    committed = (place >= start) & (place <= start + count)
    assert not cache[:, committed].isnan().any()
    assert cache[:, ~committed & ~used].isnan().all()


def test_what_pads_hold_is_never_an_index():
    """H68"""
    inputs = reference.make_inputs(0, "small")
    expected = [cache.clone() for cache in inputs["caches"]]
    reference.commit_kv(expected, inputs["lengths"], inputs["path"], inputs["num_accepted"])
    pads = torch.arange(4) > inputs["num_accepted"][:, None]
    assert pads.any()
    inputs["path"] = inputs["path"].where(~pads, 10**12)
    commit_kv(**inputs)
    assert all(torch.equal(cache, other) for cache, other in zip(inputs["caches"], expected, strict=True))


def test_no_value_is_read_on_the_host():
    """H38: a tensor of the meta device has no values to read."""
    inputs = reference.make_inputs(0, "odd")
    on_meta = [inputs[name].to("meta") for name in ("lengths", "path", "num_accepted")]
    caches = [cache.to("meta") for cache in inputs["caches"]]
    assert commit_kv(caches, *on_meta) is None


def tree_round(logits, anchors, lengths, posterior, cache):
    """Every op of the tree between the drafter's logits and the committed cache; budget 12, horizon 4."""
    tokens, parents, depths, scores, num_nodes = tree_build_levelwise(*draft_topk(logits, 12), 12)
    inputs = tree_compile(tokens, parents, depths, num_nodes, anchors, lengths, max_depth=4)
    path, num_accepted, emitted, num_emitted = accept_walk(tokens, parents, num_nodes, posterior, 4)
    count, finished = truncate(emitted, num_emitted, torch.full_like(emitted[:, :1], 3), lengths)
    commit_kv([cache], lengths, path, count - 1)
    return tokens, parents, depths, scores, num_nodes, *inputs, path, num_accepted, emitted, count, finished, cache


def round_inputs(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 4, 300, generator=generator).to(torch.bfloat16) * 3
    anchors, lengths = torch.randint(1, 9, (2, 3), generator=generator)
    second = logits[:, 0].float().topk(2).indices[:, 1:]  # a first token that is not node 1: rows must move
    posterior = torch.cat([second, logits[:, 1].float().argmax(-1, keepdim=True).expand(-1, 12)], dim=1)
    return [logits, anchors, lengths, posterior, torch.randn(2, 3, 24, 4, generator=generator)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
def test_all_tree_ops_replay_in_one_cuda_graph():
    """H62, H92: replays with other values in the same buffers equal the eager run on the CPU."""
    static = [value.cuda() for value in round_inputs(0)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tree_round(*static)  # fills the table of candidates
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = tree_round(*static)
    for seed in (1, 2, 3):
        for buffer, value in zip(static, round_inputs(seed), strict=True):
            buffer.copy_(value)
        graph.replay()
        for output, expected in zip(outputs, tree_round(*round_inputs(seed)), strict=True):
            torch.testing.assert_close(output.cpu(), expected, rtol=1e-6, atol=1e-5)
