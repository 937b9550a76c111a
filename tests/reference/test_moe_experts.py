"""Claims about the routed experts' specification."""

from __future__ import annotations

import numpy as np
import torch

from ddbench.reference.int4 import dequantize
from ddbench.reference.moe_experts import cost, int4_cost, make_inputs, make_int4_inputs, moe_experts, moe_experts_int4


def test_equals_numpy_over_all_experts():
    """All experts on all tokens, weighted by a dense matrix of weights."""
    inputs = make_inputs(0, "odd")
    x, gate_up, down = (inputs[name].double().numpy() for name in ("x", "gate_up", "down"))
    combine = np.zeros((x.shape[0], down.shape[0]))
    np.put_along_axis(combine, inputs["expert_ids"].numpy(), inputs["weights"].numpy(), axis=1)
    width = down.shape[2]
    gate = np.einsum("tm,eim->tei", x, gate_up[:, :width])
    up = np.einsum("tm,eim->tei", x, gate_up[:, width:])
    expected = np.einsum("te,tei,emi->tm", combine, gate / (1 + np.exp(-gate)) * up, down)
    np.testing.assert_allclose(moe_experts(**inputs).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_gate_rows_come_first():
    """silu(gate) * up is not symmetric: with gate 0 the output is 0, with up 0 as well, with both 1 it is silu(1)."""
    x, ids, one = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)
    both = moe_experts(x, ids, one, torch.tensor([[[1.0], [2.0]]]), torch.ones(1, 1, 1))
    torch.testing.assert_close(both, torch.nn.functional.silu(torch.ones(1, 1)) * 2)
    swapped = moe_experts(x, ids, one, torch.tensor([[[2.0], [1.0]]]), torch.ones(1, 1, 1))
    torch.testing.assert_close(swapped, torch.nn.functional.silu(torch.full((1, 1), 2.0)))


def test_output_is_linear_in_the_weights_and_slot_order_is_free():
    inputs = make_inputs(1, "small")
    inputs = inputs | {name: inputs[name].double() for name in ("x", "weights", "gate_up", "down")}
    out = moe_experts(**inputs)
    torch.testing.assert_close(moe_experts(**inputs | {"weights": 3 * inputs["weights"]}), 3 * out)
    flipped = {name: inputs[name].flip(1) for name in ("expert_ids", "weights")}
    torch.testing.assert_close(moe_experts(**inputs | flipped), out)
    assert moe_experts(**inputs | {"weights": 0 * inputs["weights"]}).abs().max() == 0


def test_unused_experts_are_not_read():
    inputs = make_inputs(0, "adversarial")
    clean = moe_experts(**inputs)
    inputs["gate_up"][1:-1], inputs["down"][1:-1] = float("nan"), float("nan")
    assert torch.equal(moe_experts(**inputs), clean)


def test_int4_form_is_experts_over_dequantised_weights():
    packed = make_int4_inputs(0, "small")
    gate_up = dequantize(packed["gate_up_packed"], packed["gate_up_scales"], 8, torch.float32)
    down = dequantize(packed["down_packed"], packed["down_scales"], 8, torch.float32)
    plain = {name: packed[name] for name in ("x", "expert_ids", "weights")}
    assert torch.equal(moe_experts_int4(**packed), moe_experts(**plain, gate_up=gate_up, down=down))


def test_cost_counts_experts_in_use_once():
    """Nine tokens on the same two experts read two experts; int4 reads an eighth of the fp32 bytes, and scales."""
    inputs, packed = make_inputs(0, "adversarial"), make_int4_inputs(0, "adversarial")
    per_expert = 3 * 8 * 16
    activations = 2 * 9 * 16 * 4 + 12 * 18
    assert cost(**inputs)["bytes"] == activations + 2 * per_expert * 4
    assert int4_cost(**packed)["bytes"] == activations + 2 * (per_expert // 2 + per_expert // 8 * 2)
    assert cost(**inputs)["flops"] == int4_cost(**packed)["flops"] == 2 * 18 * per_expert
