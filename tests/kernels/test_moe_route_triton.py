"""Expert routing in Triton against its specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import moe_route as reference
from ddbench.testing import copied, relative_error

kernels = pytest.importorskip("ddbench.kernels.moe_route_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-6


def run(inputs, **options):
    ids, weights = kernels.moe_route_triton(**copied(inputs, DEVICE), **options)
    return ids.cpu(), weights.cpu()


def inputs_of(tokens, hidden, experts, top_k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(tokens, hidden, generator=generator),
        "gate_weight": torch.randn(experts, hidden, generator=generator) * hidden**-0.5,
        "bias": 0.1 * torch.randn(experts, generator=generator),
        "top_k": top_k,
        "scaling": 2.5,
    }


def assert_equals_reference(inputs):
    ids, weights = run(inputs)
    expected_ids, expected = reference.moe_route(**inputs)
    assert ids.dtype == torch.int64
    assert weights.dtype == torch.float32
    assert torch.equal(ids, expected_ids)
    assert relative_error(weights, expected) <= TOLERANCE


def check_equals_the_reference():
    """Ties, a token without signal, a strong bias."""
    for size in reference.SIZES:
        for seed in range(3):
            assert_equals_reference(reference.make_inputs(seed, size))


def check_shapes_of_every_kind():
    """Around a tile's experts and columns, several blocks of tokens, all experts chosen; nano-k2's layer."""
    for shape in ((3, 31, 31, 2), (33, 64, 33, 8), (70, 33, 5, 5), (2, 256, 16, 2), (1, 100, 1, 1), (1, 40, 384, 8)):
        assert_equals_reference(inputs_of(*shape))


def check_segments_of_many_steps():
    """So many experts and columns that a segment has several steps, the last one fewer."""
    shape = (3, 1000, 384, 8)
    assert kernels._segments(kernels.TILE_32_BIT, 384, 1000) == (16, 2)
    assert_equals_reference(inputs_of(*shape))
    assert kernels._segments(kernels.TILE_16_BIT, 384, 7168) == (14, 4)


def check_ties_go_to_the_lower_expert():
    for experts in (1, 2, 17, 130):
        top_k = min(8, experts)
        inputs = {"x": torch.zeros(3, 4), "gate_weight": torch.ones(experts, 4), "bias": torch.zeros(experts)}
        for bias in (0.0, -3.0):
            ids, weights = run(inputs | {"bias": inputs["bias"] + bias, "top_k": top_k, "scaling": 1.0})
            assert ids.tolist() == [list(range(top_k))] * 3
            assert relative_error(weights, torch.full((3, top_k), 1 / top_k)) <= TOLERANCE


def check_ties_across_the_groups_of_warps():
    """Few different scores, so that every place is decided by the id; a last group of few experts, and all of it."""
    for experts, top_k in ((384, 8), (129, 8), (260, 3), (140, 131)):
        inputs = inputs_of(3, 4, experts, top_k)
        inputs |= {"x": torch.zeros(3, 4), "bias": torch.arange(experts) * 7919 % 5 * 0.25 - 0.5, "scaling": 1.0}
        assert_equals_reference(inputs)


def check_every_size_of_the_choice():
    for experts, top_k in ((8, 8), (64, 1), (127, 9), (128, 8), (256, 8), (300, 16)):
        assert_equals_reference(inputs_of(2, 24, experts, top_k))


def check_the_last_expert_of_a_group_is_found():
    for best in (0, 127, 128, 255, 383):
        inputs = inputs_of(1, 8, 384, 2)
        inputs["bias"][best] = 9.0
        assert run(inputs)[0][0, 0] == best
        assert_equals_reference(inputs)


def check_no_number_chooses_the_first_experts_and_weighs_nothing():
    ids, weights = run(inputs_of(2, 8, 300, 8) | {"x": torch.full((2, 8), torch.nan)})
    assert ((ids >= 0) & (ids < 300)).all()
    assert weights.isnan().all()


def check_bias_chooses_but_does_not_weigh():
    """Scores with the bias on both sides of zero are ordered as numbers."""
    gate, bias = torch.zeros(6, 2), torch.tensor([-0.6, -0.4, -0.5, -2.0, 9.0, -0.7])
    ids, weights = run({"x": torch.zeros(1, 2), "gate_weight": gate, "bias": bias, "top_k": 5, "scaling": 1.0})
    assert ids.tolist() == [[4, 1, 2, 0, 5]]
    assert relative_error(weights, torch.full((1, 5), 0.2)) <= TOLERANCE


def check_vanishing_scores_give_finite_weights():
    """All sigmoids underflow to 0: the 1e-20 keeps 0/0 away."""
    inputs = {"x": torch.full((1, 1), -200.0), "gate_weight": torch.ones(3, 1), "bias": torch.zeros(3)}
    ids, weights = run(inputs | {"top_k": 2, "scaling": 2.5})
    assert ids.tolist() == [[0, 1]]
    assert weights.tolist() == [[0.0, 0.0]]


def check_low_precision():
    """bf16 operands have exact products, summed in fp32: the choice of fp32 on the same values."""
    for shape in ((5, 300, 40, 4), (20, 64, 16, 2)):
        inputs = inputs_of(*shape)
        low = inputs | {name: inputs[name].bfloat16() for name in ("x", "gate_weight")}
        assert_equals_reference(low)


def check_bf16_tokens_are_routed_in_fp32():
    """Scores that only differ beyond bf16 still decide."""
    gate = torch.tensor([[1.0, 0.0], [1.0, 2.0**-12]])
    inputs = {"x": torch.ones(1, 2).bfloat16(), "gate_weight": gate, "bias": torch.zeros(2)}
    assert run(inputs | {"top_k": 1, "scaling": 1.0})[0].tolist() == [[1]]


def check_company_changes_nothing():
    """Bit for bit where compiled; the interpreter's products are a library's and sum as the batch's size asks."""
    wide = inputs_of(70, 130, 24, 3)
    for inputs in (wide | {name: wide[name].bfloat16() for name in ("x", "gate_weight")}, wide):
        ids, weights = run(inputs)
        for first, last in ((0, 1), (3, 4), (10, 30), (20, 70)):
            alone_ids, alone = run(inputs | {"x": inputs["x"][first:last].contiguous()})
            assert torch.equal(alone_ids, ids[first:last])
            assert relative_error(alone, weights[first:last]) <= (0 if DEVICE == "cuda" else TOLERANCE)
    poisoned = inputs["x"].clone()
    poisoned[1::2] = torch.nan
    beside_ids, beside = run(inputs | {"x": poisoned})
    assert torch.equal(beside_ids[::2], ids[::2])
    assert torch.equal(beside[::2], weights[::2])
    assert (beside_ids >= 0).all()
    assert (beside_ids < 24).all()


def check_result_goes_where_it_should():
    inputs = inputs_of(5, 19, 11, 3)
    out = (torch.full((5, 3), -7, device=DEVICE), torch.full((5, 3), 7.0, device=DEVICE))
    ids, weights = kernels.moe_route_triton(**copied(inputs, DEVICE), out=out)
    assert ids is out[0]
    assert weights is out[1]
    assert all(torch.equal(mine.cpu(), other) for mine, other in zip(out, run(inputs), strict=True))
    ids, weights = run(inputs_of(0, 19, 11, 3))
    assert ids.shape == weights.shape == (0, 3)


def check_other_types_are_refused():
    with pytest.raises(ValueError, match=r"got torch\.float64 and torch\.float32, need"):
        run(inputs_of(2, 4, 3, 1) | {"x": torch.zeros(2, 4, dtype=torch.float64)})


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    accesses = compiled["choose-k2.6"]["accesses"]
    assert "ld.global.v4.b32" in accesses
    assert accesses.count("bar.sync") <= 16  # none for a maximum: eight over four warps were 16 more
    assert all(usage["shared"] <= 112 * 1024 for usage in compiled.values())  # two programs to a multiprocessor


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="x is on cpu, need a CUDA device"):
        kernels.moe_route_triton(**reference.make_inputs(0, "small"))
