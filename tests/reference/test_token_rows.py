"""Claims about the specification of a forward's first rows."""

from __future__ import annotations

import torch

from ddbench.reference.token_rows import SIZES, cost, make_inputs, token_rows


def test_rows_are_the_tables_own():
    for size in SIZES:
        inputs = make_inputs(0, size)
        x, cos, sin = token_rows(**inputs)
        ids, positions = inputs["ids"], inputs["positions"] + torch.zeros_like(inputs["ids"])
        if inputs["positions"].shape != ids.shape:
            positions += torch.arange(ids.shape[1])
        assert torch.equal(x, inputs["embedding"][ids])
        assert torch.equal(cos[:, :, 0], inputs["cos"][positions])
        assert torch.equal(sin[:, :, 0], inputs["sin"][positions])


def test_cost_counts_every_row_twice():
    inputs = make_inputs(0, "small")
    assert cost(**inputs) == {"bytes": 2 * 6 * 8 + 2 * 6 * (16 * 4 + 2 * 4 * 4), "flops": 0}
