"""Claims about the routed experts' implementation."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ddbench.kernels import moe_experts as kernel
from ddbench.reference import moe_experts as spec
from ddbench.testing import assert_within_budget, poison

FORMS = {
    **{form: partial(kernel.moe_experts, form=form) for form in ("gather", "grouped", "dense")},
    "chosen": kernel.moe_experts,
}
EACH_FORM = pytest.mark.parametrize("run", FORMS.values(), ids=FORMS)


def _inputs(tokens, experts=8, top_k=2, hidden=16, width=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(tokens, hidden, generator=g),
        "expert_ids": torch.rand(tokens, experts, generator=g).argsort(1)[:, :top_k],
        "weights": torch.rand(tokens, top_k, generator=g),
        "gate_up": torch.randn(experts, 2 * width, hidden, generator=g) / 4,
        "down": torch.randn(experts, hidden, width, generator=g) / 4,
    }


@EACH_FORM
@pytest.mark.parametrize("tokens", [0, 1, 4, 5, 33])
def test_any_number_of_tokens(run, tokens):
    """None, one, and both sides of the shape rule (4 * 2 slots <= 8 experts < 5 * 2)."""
    inputs = _inputs(tokens)
    torch.testing.assert_close(run(**inputs), spec.moe_experts(**inputs))


@EACH_FORM
def test_company_only_adds_rounding(run):
    inputs = _inputs(9)
    out = run(**inputs)
    one = {name: inputs[name][4:5] for name in ("x", "expert_ids", "weights")}
    torch.testing.assert_close(run(**inputs | one)[0], out[4])


@EACH_FORM
def test_low_precision_within_budget(run):
    inputs = _inputs(12, hidden=32, width=16)
    low = inputs | {name: inputs[name].bfloat16() for name in ("x", "gate_up", "down")}
    exact = spec.moe_experts(**{name: t.double() if t.is_floating_point() else t for name, t in low.items()})
    # the forms round the hidden activations to bf16 between the two products, the specification does not
    assert_within_budget(run(**low), spec.moe_experts(**low), exact, factor=4)


@pytest.mark.parametrize("form", ["gather", "grouped"])
def test_unused_experts_are_not_read(form):
    """NaN weights of experts without tokens: the dense form alone needs them finite."""
    inputs = spec.make_inputs(0, "adversarial")
    clean = FORMS[form](**inputs)
    poison(inputs["gate_up"][1:-1])
    poison(inputs["down"][1:-1])
    assert torch.equal(FORMS[form](**inputs), clean)


def test_rule_of_forms():
    """A CPU groups; a GPU never waits for counts."""
    assert kernel.choose_form(2, 16, "cpu") == kernel.choose_form(999, 16, "cpu") == "grouped"
    assert kernel.choose_form(16, 16, "cuda") == "gather"
    assert kernel.choose_form(17, 16, "cuda") == "dense"


@pytest.mark.parametrize("tokens", [3, 30])
def test_host_reads_nothing(tokens):
    """H38: both shapes run on tensors without values, by the rule of a GPU; with int4 weights as well."""
    meta = {name: tensor.to("meta") for name, tensor in _inputs(tokens).items()}
    assert kernel.moe_experts(**meta).shape == (tokens, 16)
    packed = spec.make_int4_inputs(0, "small")
    meta = {name: t.to("meta") if isinstance(t, torch.Tensor) else t for name, t in packed.items()}
    assert kernel.moe_experts_int4(**meta).shape == (5, 16)


@pytest.mark.parametrize("form", ["gather", "grouped", "dense"])
@pytest.mark.parametrize("tokens", [1, 7])
def test_shares_of_ranks_add_up(form, tokens):
    """Three ranks hold 3, 3 and 2 of the experts; each gives what the specification gives for its own choices."""
    inputs = _inputs(tokens)
    shares = []
    for first, end in ((0, 3), (3, 6), (6, 8)):
        held = {name: inputs[name][first:end] for name in ("gate_up", "down")}
        shares.append(kernel.moe_experts(**inputs | held, form=form, first_expert=first))
        ids = inputs["expert_ids"]
        own = inputs | {"weights": inputs["weights"] * ((ids >= first) & (ids < end))}
        torch.testing.assert_close(shares[-1], spec.moe_experts(**own))
    torch.testing.assert_close(sum(shares), spec.moe_experts(**inputs))


@pytest.mark.parametrize("form", ["gather", "grouped", "dense"])
def test_a_share_of_packed_experts(form):
    inputs = spec.make_int4_inputs(0, "small")
    matrices = [name for name in inputs if name.startswith(("gate_up", "down"))]
    shares = [
        kernel.moe_experts_int4(
            **inputs | {name: inputs[name][first : first + 2] for name in matrices}, form=form, first_expert=first
        )
        for first in (0, 2, 4)
    ]
    torch.testing.assert_close(sum(shares), spec.moe_experts_int4(**inputs))


@pytest.mark.parametrize("form", ["gather", "grouped", "dense"])
def test_rows_without_experts_of_a_share_are_zero_whatever_they_hold(form):
    inputs = _inputs(5)
    clean = kernel.moe_experts(**inputs, form=form, first_expert=0)
    inputs["expert_ids"][3] = -1
    poison(inputs["x"][3])
    poison(inputs["weights"][3])
    clean[3] = 0
    torch.testing.assert_close(kernel.moe_experts(**inputs, form=form, first_expert=0), clean)


@pytest.mark.parametrize("form", ["gather", "dense"])
def test_a_share_is_computed_without_a_host_read(form):
    """H38."""
    meta = {name: tensor.to("meta") for name, tensor in _inputs(3).items()}
    assert kernel.moe_experts(**meta, form=form, first_expert=2).shape == (3, 16)


@pytest.mark.parametrize("form", ["gather", "grouped", "dense"])
def test_gradients_equal_the_specification(form):
    """Training runs through these: the same gradients for tokens, routing weights and expert weights."""
    inputs = _inputs(6)
    names = ("x", "weights", "gate_up", "down")
    grads = []
    for run in (FORMS[form], spec.moe_experts):
        leaves = inputs | {name: inputs[name].clone().requires_grad_() for name in names}
        run(**leaves).square().sum().backward()
        grads.append([leaves[name].grad for name in names])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
