"""The product's verify inputs against their specification, on every device present."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.kernels.tree_compile import tree_compile, tree_compile_chain
from ddbench.reference import tree_compile as reference

SIZES = ["small", "odd", "degenerate", "adversarial"]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def assert_same(outputs, others):
    for mine, other in zip(outputs, others, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine.cpu(), other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size, device):
    for seed in range(5):
        inputs = reference.make_inputs(seed, size)
        outputs = tree_compile(**{name: value.to(device) for name, value in inputs.items()})
        assert_same(outputs, reference.tree_compile(**inputs))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), slots=st.integers(1, 40), horizon=st.integers(1, 17), vocab=st.integers(1, 6))
def test_a_bound_on_the_depth_changes_nothing(seed, slots, horizon, vocab):
    generator = torch.Generator().manual_seed(seed)
    trees = reference.random_trees(generator, 3, slots, horizon, vocab)
    context = {"anchors": torch.tensor([0, 1, 2]), "lengths": torch.tensor([1, 70, 3])}
    expected = reference.tree_compile(*trees, **context)
    assert_same(tree_compile(*trees, **context), expected)
    assert_same(tree_compile(*trees, **context, max_depth=horizon), expected)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7, 8, 15, 16])
def test_a_chain_is_plain_causal_at_every_depth(depth):
    """H57: and the doubling takes enough steps around powers of two."""
    index = torch.arange(depth + 1)
    _, positions, visible = tree_compile(
        tokens=index[None] - 1,
        parents=index[None] - 1,
        depths=index[None],
        num_nodes=torch.tensor([depth]),
        anchors=torch.tensor([0]),
        lengths=torch.tensor([5]),
        max_depth=depth,
    )
    assert torch.equal(positions[0], 5 + index)
    assert torch.equal(visible[0], torch.ones(depth + 1, depth + 1, dtype=torch.bool).tril())


@pytest.mark.parametrize("num_nodes", [0, 1, 4, 7])
def test_a_chain_without_its_mask_has_the_same_ids_and_positions(num_nodes):
    """Of the slots that it uses; and the others' ids are legal ones."""
    index = torch.arange(8)
    used = (index > 0) & (index <= num_nodes)
    chain = {"tokens": (index + 30).where(used, -1)[None], "parents": (index - 1).where(used, -1)[None]}
    chain |= {"depths": index.where(used, 0)[None], "num_nodes": torch.tensor([num_nodes])}
    chain |= {"anchors": torch.tensor([9]), "lengths": torch.tensor([5])}
    ids, positions, _ = tree_compile(**chain)
    found_ids, found_positions = tree_compile_chain(**chain)
    assert torch.equal(found_ids, ids)
    assert torch.equal(found_positions[:, : num_nodes + 1], positions[:, : num_nodes + 1])


def test_permuting_requests_permutes_inputs_of_the_target():
    """H64: unequal trees."""
    inputs = reference.make_inputs(0, "adversarial")
    order = torch.tensor([4, 2, 0, 3, 1])
    outputs = tree_compile(**inputs)
    permuted = tree_compile(**{name: value[order] for name, value in inputs.items()})
    assert_same(permuted, [output[order] for output in outputs])


def test_what_unused_slots_hold_changes_nothing():
    inputs = reference.make_inputs(1, "odd")
    outputs = tree_compile(**inputs)
    unused = torch.arange(23) > inputs["num_nodes"][:, None]
    for name in ("tokens", "parents", "depths"):
        inputs[name] = inputs[name].where(~unused, 10**12)
    assert unused.any()
    assert_same(tree_compile(**inputs), outputs)


def test_no_value_is_read_on_the_host_and_inputs_stay_as_they_were():
    """H38: a tensor of the meta device has no values to read."""
    inputs = reference.make_inputs(0, "odd")
    before = {name: value.clone() for name, value in inputs.items()}
    tree_compile(**inputs)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)
    outputs = tree_compile(**{name: value.to("meta") for name, value in inputs.items()})
    assert [tuple(output.shape) for output in outputs] == [(3, 23), (3, 23), (3, 23, 23)]
