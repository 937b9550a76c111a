"""The product's walk and cut against their specification, and the law of what sampling emits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.kernels.accept_walk import accept_walk, sample_posterior, truncate
from ddbench.kernels.draft_topk import draft_topk
from ddbench.kernels.tree_build import tree_build_levelwise
from ddbench.reference import accept_walk as reference

SIZES = ["small", "odd", "degenerate", "adversarial"]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def assert_same(outputs, others):
    for mine, other in zip(outputs, others, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine.cpu(), other)


def on(device, inputs):
    return {name: value.to(device) if torch.is_tensor(value) else value for name, value in inputs.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", SIZES)
def test_walk_equals_the_reference(size, device):
    """H66, H67, H68: root-only trees, absent tokens, poisoned unused slots."""
    for seed in range(10):
        inputs = reference.make_inputs(seed, size)
        assert_same(accept_walk(**on(device, inputs)), reference.accept_walk(**inputs))


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 8, 9, 15, 16, 17])
def test_a_chain_is_followed_up_to_the_first_mismatch(depth):
    """The doubling takes enough steps around powers of two: a mismatch at any node hides all nodes below it."""
    index = torch.arange(depth + 1)
    tokens = (index - 1).repeat(depth + 1, 1)  # row b breaks at node b + 1; the last row does not break
    posterior = torch.where(index == index[:, None], 99, index)
    path, num_accepted, emitted, num_emitted = accept_walk(tokens, tokens, index * 0 + depth, posterior, depth)
    assert torch.equal(num_accepted, index)
    assert torch.equal(num_emitted, index + 1)
    assert torch.equal(path, torch.where(index <= index[:, None], index, -1))
    assert torch.equal(emitted, torch.where(index <= index[:, None], posterior, -1))


@pytest.mark.parametrize("device", DEVICES)
def test_cut_equals_the_reference(device):
    """H82: random cases full of stop tokens, pads, idle rows and exhausted limits."""
    generator = torch.Generator().manual_seed(0)
    batch, width = 2000, 5
    num_emitted = torch.randint(0, width + 1, (batch,), generator=generator)
    emitted = torch.randint(
        -1, 6, (batch, width), generator=generator
    )  # -1 is no token and no stop, wherever it stands
    padded = (torch.arange(width) >= num_emitted[:, None]) & (torch.arange(batch) % 2 == 0)[:, None]
    emitted[padded] = -1  # in every other row tokens stand beyond num_emitted, and must not count
    stop_ids = torch.randint(-3, 6, (batch, 2), generator=generator).clamp(min=-1)
    remaining = torch.randint(-1, 8, (batch,), generator=generator)
    arguments = (emitted, num_emitted, stop_ids, remaining)
    expected = reference.truncate(*arguments)
    assert expected[1].float().mean() > 0.2
    assert_same(truncate(*(argument.to(device) for argument in arguments)), expected)
    no_stops = stop_ids[:, :0]
    assert_same(
        truncate(emitted, num_emitted, no_stops, remaining),
        reference.truncate(emitted, num_emitted, no_stops, remaining),
    )


def test_permuting_requests_permutes_paths():
    """H64: unequal trees."""
    inputs = reference.make_inputs(3, "odd")
    order = torch.tensor([4, 2, 0, 1, 3])
    permuted = {name: value[order] if torch.is_tensor(value) else value for name, value in inputs.items()}
    assert inputs["num_nodes"].unique().numel() > 1
    assert_same(accept_walk(**permuted), [output[order] for output in accept_walk(**inputs)])


def test_no_value_is_read_on_the_host():
    """H38: a tensor of the meta device has no values to read."""
    path, num_accepted, emitted, num_emitted = accept_walk(**on("meta", reference.make_inputs(0, "odd")))
    assert (path.shape, emitted.shape, num_accepted.shape) == ((5, 8), (5, 8), (5,))
    count, finished = truncate(emitted, num_emitted, torch.empty(5, 2, dtype=torch.int64, device="meta"), num_accepted)
    assert count.shape == finished.shape == (5,)
    logits = torch.empty(5, 31, 100, device="meta")
    assert sample_posterior(logits, 0.0).shape == sample_posterior(logits, 0.7).shape == (5, 31)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**31))
def test_greedy_posterior_equals_the_reference(seed):
    logits = torch.randint(-2, 3, (2, 3, 9), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    assert torch.equal(sample_posterior(logits, 0.0), reference.sample_posterior(logits, 0.0))


VOCAB, NUM_REQUESTS, NUM_TOKENS = 3, 60_000, 3
TARGET = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.6, 0.35, 0.05]])  # row: last token; a Markov target
DRAFT = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])


def chi_square(emitted: torch.Tensor) -> float:
    """Statistic of the joint of the first NUM_TOKENS tokens against the target run token by token from token 0."""
    law = TARGET[0]
    for _ in range(NUM_TOKENS - 1):
        law = (law.unsqueeze(-1) * TARGET[torch.arange(law.numel()) % VOCAB].reshape(*law.shape, VOCAB)).flatten()
    cells = (emitted * VOCAB ** torch.arange(NUM_TOKENS - 1, -1, -1)).sum(1)
    expected = law * len(emitted)
    return float(((torch.bincount(cells, minlength=law.numel()) - expected) ** 2 / expected).sum())


def run_rounds(generator: torch.Generator, posterior_of) -> torch.Tensor:
    """The first NUM_TOKENS tokens of NUM_REQUESTS independent requests, over as many rounds as that takes at most."""
    anchors = torch.zeros(NUM_REQUESTS, dtype=torch.int64)
    out = torch.full((NUM_REQUESTS, 2 * NUM_TOKENS + 2), -1)
    count = torch.zeros(NUM_REQUESTS, dtype=torch.int64)
    tables = [DRAFT[token].log().expand(1, 2, VOCAB) for token in range(VOCAB)]  # horizon 2, marginals by the anchor
    trees = [tree_build_levelwise(*draft_topk(table, VOCAB), node_budget=4) for table in tables]
    for _ in range(NUM_TOKENS):
        tokens, parents, _, _, num_nodes = (torch.cat(parts)[anchors] for parts in zip(*trees, strict=True))
        context = tokens.clone()
        context[:, 0] = anchors
        posterior = posterior_of(context, tokens, parents, generator)
        _, _, emitted, num_emitted = accept_walk(tokens, parents, num_nodes, posterior, horizon=2)
        rows = torch.arange(NUM_REQUESTS).unsqueeze(1)
        slots = (count.unsqueeze(1) + torch.arange(3)).where(emitted >= 0, out.shape[1] - 1)
        slots = slots.clamp(max=out.shape[1] - 1)
        out[rows, slots] = emitted
        anchors = emitted.gather(1, num_emitted.unsqueeze(1) - 1).squeeze(1)
        count += num_emitted
    assert (count >= NUM_TOKENS).all()
    return out[:, :NUM_TOKENS]


def draw(context, tokens, parents, generator):
    return sample_posterior(TARGET[context].log(), 1.0, generator)


def draw_wrongly(context, tokens, parents, generator):
    """min(1, p/q) on deterministic children: accept the first child with probability p/q, else draw from the target."""
    drawn = draw(context, tokens, parents, generator)
    for node in range(tokens.shape[1] - 1, 0, -1):  # the first child is tried last and so decides
        parent = parents[:, node].clamp(min=0)
        before = context.gather(1, parent.unsqueeze(1)).squeeze(1)
        ratio = TARGET[before, tokens[:, node]] / DRAFT[before, tokens[:, node]]
        accepted = torch.rand(len(tokens), generator=generator) < ratio
        rows = torch.arange(len(tokens))
        drawn[rows, parent] = torch.where(accepted, tokens[:, node], drawn[rows, parent])
    return drawn


CRITICAL = 68.0  # chi-square, 26 degrees of freedom, p = 1e-5


def test_sampled_output_has_the_targets_law_whatever_the_tree():
    """H70, H76: joint of the first three tokens, with fresh randomness at every node."""
    assert chi_square(run_rounds(torch.Generator().manual_seed(0), draw)) < CRITICAL


def test_the_ratio_rule_on_top_k_children_is_caught():
    """H71: positive control; the same statistic must reject the wrong acceptance rule."""
    assert chi_square(run_rounds(torch.Generator().manual_seed(0), draw_wrongly)) > 10 * CRITICAL
