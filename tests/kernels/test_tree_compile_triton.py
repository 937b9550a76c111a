"""The verify inputs in Triton against their specification, with the mask as bytes and as bits."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import tree_compile as reference

kernels = pytest.importorskip("ddbench.kernels.tree_compile_triton", reason="triton is not installed")

SIZES = ("small", "odd", "degenerate", "adversarial")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(inputs):
    return {name: value.to(DEVICE) for name, value in inputs.items()}


def assert_same(outputs, expected):
    for mine, other in zip(outputs, expected, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine.cpu(), other.cpu())


def unpacked(bits, slots):
    """Bit j % 32 of word j // 32 -> column j; what stands beyond the last slot must be 0."""
    columns = (bits.cpu()[..., None] >> torch.arange(32)) & 1  # [B, N, W, 32]
    columns = columns.flatten(2).bool()
    assert not columns[..., slots:].any()
    return columns[..., :slots]


def assert_all_forms(inputs, expected, extra_words=0):
    """Bytes, bits and both in one launch; and ids and positions without a mask."""
    given = on_device(inputs)
    batch, slots = inputs["tokens"].shape
    assert_same(kernels.tree_compile_triton(**given), expected)
    assert_same(kernels.tree_compile_chain_triton(**given), expected[:2])
    input_ids, positions, bits = kernels.tree_compile_bits_triton(**given)
    assert bits.shape == (batch, slots, 2 * -(-slots // 64))  # whole words of 64 bits
    assert_same((input_ids, positions, unpacked(bits, slots)), expected)
    bits = torch.full((batch, slots, bits.shape[2] + extra_words), -1, dtype=torch.int32, device=DEVICE)
    assert_same(kernels.tree_compile_triton(**given, bits=bits), expected)
    assert torch.equal(unpacked(bits, slots), expected[2])


def random_inputs(seed, batch, slots, horizon, vocab=7):
    tokens, parents, depths, num_nodes = reference.random_trees(
        torch.Generator().manual_seed(seed), batch, slots, horizon, vocab
    )
    tree = {"tokens": tokens, "parents": parents, "depths": depths, "num_nodes": num_nodes}
    return {**tree, "anchors": torch.arange(batch) + 3, "lengths": torch.arange(batch) * 1000}


def check_equals_the_reference():
    for size in SIZES:
        for seed in range(3):
            inputs = reference.make_inputs(seed, size)
            assert_all_forms(inputs, reference.tree_compile(**inputs))


def check_sizes_around_words_and_blocks():
    for slots in (31, 32, 33, 63, 64, 65):
        inputs = random_inputs(slots, 2, slots, 7)
        inputs["num_nodes"][0] = max(1, int(inputs["num_nodes"][0]))
        assert_all_forms(inputs, reference.tree_compile(**inputs), extra_words=slots % 2)


def check_a_chain_is_plain_causal_at_every_depth():
    """H57: and the walk goes on as long as the tree is deep, into the sign bit of a word and over words."""
    for depth in (1, 2, 7, 8, 9, 15, 16, 17, 40):
        index = torch.arange(depth + 1)
        inputs = {"tokens": index[None] - 1, "parents": index[None] - 1, "depths": index[None]}
        inputs |= {"num_nodes": torch.tensor([depth]), "anchors": torch.tensor([0]), "lengths": torch.tensor([5])}
        causal = torch.ones(1, depth + 1, depth + 1, dtype=torch.bool).tril()
        tokens = (index - 1).clamp(min=0)[None]
        assert_all_forms(inputs, (tokens, 5 + index[None], causal))


def check_what_unused_slots_hold_changes_nothing():
    inputs = reference.make_inputs(1, "odd")
    expected = reference.tree_compile(**inputs)
    unused = torch.arange(23) > inputs["num_nodes"][:, None]
    assert unused.any()
    for value in (-(2**63), -1, 0, 10**12, 2**63 - 1):
        garbage = {name: inputs[name].where(~unused, value) for name in ("tokens", "parents", "depths")}
        assert_all_forms({**inputs, **garbage}, expected)


def check_what_is_no_parent_ends_the_walk():
    """Broken trees, cycles among them, neither hang nor reach into other requests."""
    for parent in (-(2**63), -1, 1, 2, 3, 2**32, 2**63 - 1):
        inputs = random_inputs(0, 2, 3, 2)
        inputs["parents"], inputs["num_nodes"] = torch.tensor([[-1, parent, 1], [-1, 0, parent]]), torch.tensor([2, 2])
        _, _, visible = kernels.tree_compile_triton(**on_device(inputs))
        assert visible[0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
        assert visible[1].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1] if parent == 1 else [0, 0, 1]]


def check_what_the_root_slot_holds_changes_nothing():
    inputs = reference.make_inputs(1, "odd")
    expected = reference.tree_compile(**inputs)
    for name in ("tokens", "parents", "depths"):
        inputs[name][:, 0] = 10**12
    assert_all_forms(inputs, expected)


def check_permuting_requests_permutes_inputs_of_the_target():
    """H64: unequal trees."""
    inputs = reference.make_inputs(0, "adversarial")
    order = torch.tensor([4, 2, 0, 3, 1])
    outputs = kernels.tree_compile_triton(**on_device(inputs))
    permuted = kernels.tree_compile_triton(**on_device({name: value[order] for name, value in inputs.items()}))
    assert_same(permuted, [output.cpu()[order] for output in outputs])


def check_outputs_are_written_where_asked_and_inputs_stay():
    inputs = on_device(random_inputs(0, 3, 20, 5))
    before = {name: value.clone() for name, value in inputs.items()}
    expected = reference.tree_compile(**{name: value.cpu() for name, value in inputs.items()})
    out = tuple(torch.full_like(output, True).to(DEVICE) for output in expected)
    outputs = kernels.tree_compile_triton(**inputs, max_depth=5, out=out)
    assert all(mine is given for mine, given in zip(outputs, out, strict=True))
    assert_same(out, expected)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)


def check_bits_of_another_shape_are_refused():
    inputs = on_device(reference.make_inputs(0, "odd"))
    for bits in (torch.zeros(3, 23, 1), torch.zeros(3, 22, 1, dtype=torch.int32), torch.zeros(3, 23, 0).int()):
        with pytest.raises(ValueError, match="bits must be int32 of shape"):
            kernels.tree_compile_triton(**inputs, bits=bits.to(DEVICE))


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="tokens is on cpu, need a CUDA device"):
        kernels.tree_compile_triton(**reference.make_inputs(0, "small"))
