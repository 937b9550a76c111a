"""Claims about the products of INT4 experts in Gluon, which no interpreter runs; see test_moe_experts_triton.py."""

from __future__ import annotations

import pytest
import torch

from ddbench.kernels import int4
from ddbench.reference import moe_experts as spec
from ddbench.testing import poison, relative_error, to_float64

kernels = pytest.importorskip("ddbench.kernels.moe_experts_gluon", reason="triton is not installed")

EXPERTS, TOP_K, HIDDEN, WIDTH = 6, 2, 2048, 1024
IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_hopper = pytest.mark.skipif(not IS_HOPPER, reason="there is no Hopper GPU")


@pytest.mark.parametrize("name", [entry["name"] for entry in kernels.AOT])
def test_compiles_for_hopper_without_spills(compiled, name):
    assert compiled[name]["STACK"] == 0
    assert compiled[name]["LOCAL"] == 0


@pytest.mark.parametrize("entry", kernels.AOT, ids=[entry["name"] for entry in kernels.AOT])
def test_a_multiprocessor_has_room_for_the_programs_of_a_plan(compiled, entry):
    usage, programs = compiled[entry["name"]], entry["residents"]
    assert programs * (usage["shared"] + 1024) <= 228 * 1024
    assert programs * entry["num_warps"] * 32 * -(-usage["REG"] // 8) * 8 <= 65536


def test_plans_differ_in_nothing_that_a_sum_depends_on():
    plans = [kernels.MANY, *(plans for _, plans in kernels.FEW)]
    assert len({(each.gate_up.warps, each.down.warps) for each in plans}) == 1
    bounds = [bound for bound, _ in kernels.FEW]
    assert bounds == sorted(bounds)
    assert kernels.plans_of(1) == kernels.FEW[0][1]
    assert kernels.plans_of(bounds[-1]) == kernels.FEW[-1][1]
    assert kernels.plans_of(bounds[-1] + 1) == kernels.MANY


def test_suits_the_product_and_nothing_that_it_cannot_cut():
    assert kernels.suits(torch.bfloat16, 32, 7168, 2048)
    for other in ((torch.float32, 32, 7168, 2048), (torch.bfloat16, 64, 7168, 2048), (torch.bfloat16, 32, 256, 96)):
        assert not kernels.suits(*other)


@pytest.fixture(scope="module")
def experts():
    g = torch.Generator().manual_seed(0)
    gate_up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=g) * HIDDEN**-0.5
    down = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=g) * WIDTH**-0.5
    packed = {}
    for name, matrix in (("gate_up", gate_up), ("down", down)):
        packed[f"{name}_packed"], packed[f"{name}_scales"] = int4.quantize(matrix, 32)
    return packed | {"group": 32}


def _tokens(num_tokens):
    g = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(num_tokens, HIDDEN, generator=g).bfloat16(),
        "expert_ids": torch.rand(num_tokens, EXPERTS, generator=g).argsort(1)[:, :TOP_K].contiguous(),
        "weights": torch.rand(num_tokens, TOP_K, generator=g),
    }


def _run(inputs, **options):
    from ddbench.kernels.moe_experts_triton import moe_experts_int4_triton

    on_device = {name: value.cuda() if torch.is_tensor(value) else value for name, value in inputs.items()}
    return moe_experts_int4_triton(**on_device, **options).cpu()


@on_hopper
@pytest.mark.parametrize("num_tokens", [1, 2, 9, 40])
def test_equals_the_specification(experts, num_tokens):
    inputs = experts | _tokens(num_tokens)
    assert relative_error(_run(inputs), spec.moe_experts_int4(**to_float64(inputs))) <= 5e-3  # of bf16


@on_hopper
@pytest.mark.parametrize("num_tokens", [1, 4, 40])
def test_parts_of_the_down_product_add_up(experts, num_tokens):
    from ddbench.kernels.moe_experts_triton import moe_workspace

    inputs = experts | _tokens(num_tokens)
    scratch = moe_workspace(num_tokens, TOP_K, HIDDEN, EXPERTS, WIDTH, torch.bfloat16, "cuda", True, 2)
    out = _run(inputs, workspace=scratch)
    assert relative_error(out, spec.moe_experts_int4(**to_float64(inputs))) <= 5e-3
    assert torch.equal(_run(inputs, workspace=scratch), out)


@on_hopper
def test_company_changes_nothing_and_unused_experts_are_not_read(experts):
    inputs = experts | _tokens(20)
    inputs["expert_ids"][:] = torch.tensor([4, 1])  # three blocks each
    inputs["expert_ids"][3] = -1
    poison(inputs["x"][3])
    out = _run(inputs)
    assert out[3].count_nonzero() == 0
    assert torch.equal(_run(inputs), out)
    for name in ("gate_up_scales", "down_scales"):
        inputs[name] = inputs[name].clone()
        for expert in (0, 2, 3, 5):
            poison(inputs[name][expert])
    assert torch.equal(_run(inputs), out)
    for first, last in ((0, 1), (19, 20), (2, 4), (5, 9), (10, 18)):  # the tokens of every plan
        alone = inputs | {name: inputs[name][first:last] for name in ("x", "expert_ids", "weights")}
        assert torch.equal(_run(alone), out[first:last])


@on_hopper
def test_shares_add_up(experts):
    inputs = experts | _tokens(12)
    shares = [
        _run(
            inputs | {name: inputs[name][first : first + 3] for name in experts if name != "group"}, first_expert=first
        )
        for first in (0, 3)
    ]
    assert relative_error(sum(share.float() for share in shares), _run(inputs).float()) <= 5e-3
