"""The specification of the verify inputs, against the ancestor closure and a hand-drawn tree."""

import pytest
import torch

from ddbench.reference.tree_compile import cost, make_inputs, random_trees, tree_compile

SIZES = ["small", "odd", "degenerate", "adversarial"]


def ancestors(parents: list[int], node: int) -> set[int]:
    return {node} if parents[node] < 0 else {node} | ancestors(parents, parents[node])


def test_a_hand_drawn_tree():
    """H61: siblings 1 and 2 share a position; each sees the root and itself only."""
    #   root(9) -> 1(token 0) -> 3(token 5)
    #           -> 2(token 4)                 slot 4 unused
    input_ids, positions, visible = tree_compile(
        tokens=torch.tensor([[-1, 0, 4, 5, -1]]),
        parents=torch.tensor([[-1, 0, 0, 1, -1]]),
        depths=torch.tensor([[0, 1, 1, 2, 0]]),
        num_nodes=torch.tensor([3]),
        anchors=torch.tensor([9]),
        lengths=torch.tensor([20]),
    )
    assert input_ids.tolist() == [[9, 0, 4, 5, 0]]
    assert positions.tolist() == [[20, 21, 21, 22, 20]]
    assert visible.int().tolist() == [
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]]
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_a_node_sees_exactly_its_ancestors_and_itself(size, seed):
    """H59's mask half: row i is the path from the root to i; an unused slot sees itself only."""
    inputs = make_inputs(seed, size)
    _, positions, visible = tree_compile(**inputs)
    slots = visible.shape[1]
    for b, count in enumerate(inputs["num_nodes"].tolist()):
        parents = inputs["parents"][b].tolist()
        for i in range(slots):
            expected = ancestors(parents, i) if i <= count else {i}
            assert set(visible[b, i].nonzero().flatten().tolist()) == expected
            assert positions[b, i] == inputs["lengths"][b] + (len(expected) - 1)


@pytest.mark.parametrize("size", SIZES)
def test_ids_are_legal_and_the_mask_is_lower_triangular(size):
    inputs = make_inputs(5, size)
    input_ids, _, visible = tree_compile(**inputs)
    assert (input_ids >= 0).all()
    assert torch.equal(input_ids[:, 0], inputs["anchors"])
    assert torch.equal(visible, visible.tril())
    assert visible.any(-1).all()  # no softmax over nothing


def test_random_trees_are_prefix_closed_with_distinct_siblings_and_unequal_sizes():
    """H54, H64: the generator that other tests rely on keeps a builder's promises."""
    tokens, parents, depths, num_nodes = random_trees(
        torch.Generator().manual_seed(0), batch=20, slots=15, horizon=4, vocab=3
    )
    assert num_nodes.unique().numel() > 3
    for b, count in enumerate(num_nodes.tolist()):
        edges = [(int(parents[b, i]), int(tokens[b, i])) for i in range(1, count + 1)]
        assert len(set(edges)) == count
        assert all(0 <= parent < i for i, (parent, _) in enumerate(edges, start=1))
        assert all(depths[b, i] == depths[b, parents[b, i]] + 1 <= 4 for i in range(1, count + 1))


def test_cost_counts_the_mask_as_bytes():
    inputs = make_inputs(0, "small")
    assert cost(**inputs) == {"bytes": 3 * 2 * 6 * 8 + 3 * 2 * 8 + 2 * 6 * (16 + 6), "flops": 0}
