"""Claims about the routed experts' Triton kernels. `check_` functions run in a child process: see conftest.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import wraps

import pytest
import torch

from ddbench import ops
from ddbench.kernels import int4
from ddbench.reference import moe_experts as spec
from ddbench.testing import poison, relative_error, to_float64

kernels = pytest.importorskip("ddbench.kernels.moe_experts_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = ("float", "int4")


def _inputs(weight_format, tokens, experts=6, top_k=2, hidden=24, width=16, group=8):
    g = torch.Generator().manual_seed(0)
    inputs = {
        "x": torch.randn(tokens, hidden, generator=g),
        "expert_ids": torch.rand(tokens, experts, generator=g).argsort(1)[:, :top_k].contiguous(),
        "weights": torch.rand(tokens, top_k, generator=g),
    }
    matrices = {
        "gate_up": torch.randn(experts, 2 * width, hidden, generator=g) * hidden**-0.5,
        "down": torch.randn(experts, hidden, width, generator=g) * width**-0.5,
    }
    if weight_format == "float":
        return inputs | matrices
    for name, matrix in matrices.items():
        inputs[f"{name}_packed"], inputs[f"{name}_scales"] = int4.quantize(matrix, group)
    return inputs | {"group": group}


def _run(inputs, **options):
    on_device = {name: value.to(DEVICE) if torch.is_tensor(value) else value for name, value in inputs.items()}
    run = kernels.moe_experts_int4_triton if "group" in inputs else kernels.moe_experts_triton
    return run(**on_device, **options).cpu()


def _exact(inputs):
    return (spec.moe_experts_int4 if "group" in inputs else spec.moe_experts)(**to_float64(inputs))


def for_each_format(check):
    @wraps(check)
    def run():
        for weight_format in FORMATS:
            check(weight_format)

    return run


def _poisoned_scratch(weight_format, tokens, experts):
    scratch = kernels.moe_workspace(tokens, 2, 24, experts, 16, torch.float32, DEVICE, weight_format == "int4")
    for tensor in scratch:
        poison(tensor, float("nan") if tensor.is_floating_point() else 10**6)
    return scratch


def _assert_close(got, expected, limit=2e-6):
    assert relative_error(got, expected) <= limit


def check_specification():
    launchers = {
        "moe_experts": kernels.moe_experts_triton,
        "moe_experts_int4": kernels.moe_experts_int4_triton,
    }
    for name, run in launchers.items():
        op = replace(ops.OPS[name], implementations={"triton": run})
        details = [ops.check_op(op, "triton", size, seed, DEVICE).detail for size in ops.SIZES for seed in (0, 1)]
        assert not any(details), f"{name}: {details}"


@for_each_format
def check_tiles(weight_format):
    """Sizes that tiles divide, and sizes that they do not; groups of 32."""
    for tokens, hidden, width in ((2, 256, 256), (3, 288, 96)):
        inputs = _inputs(weight_format, tokens, 3, hidden=hidden, width=width, group=32)
        _assert_close(_run(inputs), _exact(inputs))


@for_each_format
def check_crowd(weight_format):
    """Twenty tokens on the same two experts: three blocks each, the last one with four tokens. Small and large ones."""
    for hidden in (24, 264):
        inputs = _inputs(weight_format, 20, hidden=hidden)
        inputs["expert_ids"][:] = torch.tensor([4, 1])
        _assert_close(_run(inputs), _exact(inputs))


def check_small_experts_in_a_crowd():
    """More slots than a program of small experts looks at; 9 of 24 experts held."""
    inputs = _inputs("float", 70, experts=24, top_k=8, hidden=8, width=40)
    inputs["expert_ids"][5] = -1
    held = {name: inputs[name][7:16] for name in ("gate_up", "down")}
    out = _run(inputs | held, first_expert=7)
    for name, matrix in inputs.items():
        if name in held:
            inputs[name] = torch.zeros_like(matrix)
            inputs[name][7:16] = held[name]
    inputs["expert_ids"][5], inputs["weights"][5] = 0, 0.0
    _assert_close(out, _exact(inputs))


@for_each_format
def check_unused_experts_are_not_read(weight_format):
    inputs = _inputs(weight_format, 5)
    inputs["expert_ids"][:] = torch.tensor([4, 1])
    clean = _run(inputs)
    assert clean.isfinite().all()
    for name in {"gate_up", "down", "gate_up_scales", "down_scales"} & inputs.keys():
        for expert in (0, 2, 3, 5):
            poison(inputs[name][expert])
    assert torch.equal(_run(inputs), clean)


@for_each_format
def check_scratch_is_written_before_it_is_read(weight_format):
    """Scratch and output hold NaN and nonsense; a second call on them gives the same."""
    inputs = _inputs(weight_format, 5)
    scratch = _poisoned_scratch(weight_format, 5, 6)
    out = torch.full((5, 24), float("nan"), device=DEVICE)
    expected = _run(inputs)
    for _ in range(2):
        _run(inputs, out=out, workspace=scratch)
        assert torch.equal(out.cpu(), expected)


@for_each_format
def check_shares_add_up(weight_format):
    """Ranks of two experts each: what the others hold is neither here nor looked at."""
    inputs = _inputs(weight_format, 7)
    matrices = [name for name in inputs if name.startswith(("gate_up", "down"))]
    shares = []
    for first in (0, 2, 4):
        held = {name: inputs[name][first : first + 2] for name in matrices}
        shares.append(_run(inputs | held, first_expert=first, workspace=_poisoned_scratch(weight_format, 7, 2)))
    _assert_close(sum(shares), _exact(inputs))


@for_each_format
def check_idle_rows(weight_format):
    """Rows without experts (-1) hold NaN, give zeros and leave the others as they are."""
    inputs = _inputs(weight_format, 5)
    clean = _run(inputs)
    inputs["expert_ids"][3] = -1
    poison(inputs["x"][3])
    poison(inputs["weights"][3])
    out = _run(inputs)
    clean[3] = 0
    assert torch.equal(out, clean)


@for_each_format
def check_company_changes_nothing(weight_format):
    inputs = _inputs(weight_format, 9)
    alone = inputs | {name: inputs[name][4:5] for name in ("x", "expert_ids", "weights")}
    assert torch.equal(_run(alone)[0], _run(inputs)[4])


@for_each_format
def check_low_precision(weight_format):
    """The interpreter cuts instead of rounding: only the size of the error is looked at."""
    inputs = _inputs(weight_format, 4)
    for name, value in inputs.items():
        if name != "weights" and torch.is_tensor(value) and value.dtype == torch.float32:
            inputs[name] = value.bfloat16()
    out = _run(inputs)
    assert out.dtype == torch.bfloat16
    _assert_close(out, _exact(inputs), 2e-2)


@for_each_format
def check_no_tokens(weight_format):
    assert _run(_inputs(weight_format, 0)).shape == (0, 24)


def check_routing():
    """70 tokens, 8 of 24 experts each, 9 of them held here (7 .. 15); more slots than a program reads at once."""
    inputs = _inputs("int4", 70, experts=24, top_k=8, hidden=8, width=8)
    inputs["expert_ids"][5] = -1
    scratch = kernels.moe_workspace(70, 8, 8, 9, 8, torch.float32, DEVICE, True)
    held = {name: inputs[name][7:16] for name in inputs if name.startswith(("gate_up", "down"))}
    _run(inputs | held, first_expert=7, workspace=scratch)
    order, blocks, flat = scratch.order.tolist(), scratch.blocks.tolist(), inputs["expert_ids"].flatten().tolist()
    expected = [slot for expert in range(7, 16) for slot in range(560) if flat[slot] == expert]
    assert order[: len(expected)] == expected
    num_blocks, size = blocks[0], kernels.block_tokens(70)
    rows = [blocks[3 * i + 1 : 3 * i + 4] for i in range(num_blocks)]
    covered = [(expert + 7, slot) for expert, first, count in rows for slot in order[first : first + count]]
    assert covered == [(flat[slot], slot) for slot in expected]
    counts = Counter(flat[slot] for slot in expected)
    assert num_blocks == sum(-(-count // size) for count in counts.values()) <= kernels.max_blocks(70, 8, 9, size)


def check_refusals():
    inputs = _inputs("int4", 2)
    for change, text in (({"group": 24}, "groups of 24"), ({"x": inputs["x"].double()}, "float64 tokens")):
        with pytest.raises(ValueError, match=text):
            _run(inputs | change)
    inputs = _inputs("float", 2)
    with pytest.raises(ValueError, match="float32 weights for"):
        _run(inputs | {"x": inputs["x"].bfloat16()})
    with pytest.raises(ValueError, match="for out"):
        _run(inputs, out=torch.zeros(2, 48, device=DEVICE)[:, ::2])
    with pytest.raises(ValueError, match="contiguous"):
        _run(inputs | {"down": torch.zeros(6, 16, 24).mT})


CHECKS = [name for name in globals() if name.startswith("check_")]


@pytest.mark.parametrize("name", CHECKS)
def test_check(checked, name):
    """H38 and what the checks claim."""
    assert checked[name] == ""


@pytest.mark.parametrize("name", [entry["name"] for entry in kernels.AOT])
def test_compiles_for_hopper_without_spills(compiled, name):
    assert compiled[name]["STACK"] == 0
    assert compiled[name]["LOCAL"] == 0


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")
def test_refuses_a_cpu():
    with pytest.raises(ValueError, match="expected CUDA; use moe_experts on a CPU"):
        _run(_inputs("float", 2))
