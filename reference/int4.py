"""Specification of the four-bit weight format: values -8..7 times a bf16 scale per group of input columns.

Eight values share an int32: value j of a word stands in bits 4j..4j+3 as an unsigned nibble, value + 8. The scale is
the group's element of largest magnitude (the first of equals) divided by -8 and rounded to bf16, so it may be negative
and that element is stored as -8. Letters: O output rows, I input columns; leading dims are allowed.
"""

from __future__ import annotations

from typing import Any

import torch

# leading dims, output rows, input columns, group
SIZES = {
    "small": ((), 4, 64, 32),
    "odd": ((3,), 5, 24, 8),
    "degenerate": ((), 1, 8, 8),
    "adversarial": ((2,), 6, 64, 32),
}


def _quantize_group(values: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    extreme = max(values.tolist(), key=abs)  # max keeps the first of equals
    scale = torch.tensor(extreme / -8).to(torch.bfloat16)
    if scale == 0:
        return [0] * len(values), scale
    steps = torch.round(values / scale.float())  # fp32, half to even
    return [int(min(max(step, -8), 7)) for step in steps.tolist()], scale


def quantize(w: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """w [..., O, I] -> (packed [..., O, I/8] int32, scales [..., O, I/group] bf16)."""
    columns = w.shape[-1]
    if columns % group or columns % 8:
        raise ValueError(f"int4: {columns} input columns; they must be a multiple of the group ({group}) and of 8")
    packed, scales = [], []
    for row in w.detach().float().reshape(-1, columns):
        values: list[int] = []
        for start in range(0, columns, group):
            group_values, scale = _quantize_group(row[start : start + group])
            values += group_values
            scales.append(scale)
        for start in range(0, columns, 8):
            word = sum((value + 8) << (4 * j) for j, value in enumerate(values[start : start + 8]))
            packed.append(word - (1 << 32) if word >= 1 << 31 else word)  # as a signed 32-bit number
    lead = w.shape[:-1]
    return torch.tensor(packed, dtype=torch.int32).reshape(*lead, -1), torch.stack(scales).reshape(*lead, -1)


def dequantize(packed: torch.Tensor, scales: torch.Tensor, group: int, dtype: torch.dtype) -> torch.Tensor:
    """-> [..., O, I] in `dtype`: (nibble - 8) * scale, the product rounded once."""
    nibbles = torch.stack([(packed.long() >> (4 * j)) & 15 for j in range(8)], dim=-1).flatten(-2)  # [..., O, I]
    wide = torch.promote_types(dtype, torch.float32)
    return ((nibbles - 8).to(wide) * scales.to(wide).repeat_interleave(group, dim=-1)).to(dtype)


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Inputs of `quantize`. Adversarial: zero group, +a and -a tied for largest, outlier, denormals, constant."""
    generator = torch.Generator().manual_seed(seed)
    lead, rows, columns, group = SIZES[size]
    w = torch.randn(*lead, rows, columns, generator=generator) * 0.05
    if size == "adversarial":
        w[0, 0] = 0
        w[0, 1, :2] = torch.tensor([0.5, -0.5])
        w[0, 2, 3] = 1e4
        w[0, 3] = 1e-40
        w[0, 4] = 0.25
    return {"w": w, "group": group}


def make_dequantize_inputs(seed: int, size: str) -> dict[str, Any]:
    """Every nibble pattern is legal: random words, scales of either sign and zero."""
    generator = torch.Generator().manual_seed(seed)
    lead, rows, columns, group = SIZES[size]
    packed = torch.randint(-(1 << 31), 1 << 31, (*lead, rows, columns // 8), generator=generator).to(torch.int32)
    scales = torch.randn(*lead, rows, columns // group, generator=generator).to(torch.bfloat16)
    if size == "adversarial":
        scales[0, 0] = 0
        packed[0, 1] = -1
        packed[0, 2] = 0
    return {"packed": packed, "scales": scales, "group": group, "dtype": torch.float32}


def cost(w: torch.Tensor, group: int) -> dict[str, int]:
    """Of `quantize`: weights in, half a byte per weight and two per group out."""
    moved = w.nbytes + w.numel() // 2 + w.numel() // group * 2
    return {"bytes": moved, "flops": 3 * w.numel()}


def dequantize_cost(packed: torch.Tensor, scales: torch.Tensor, group: int, dtype: torch.dtype) -> dict[str, int]:
    """Of `dequantize`: packed and scales in, the weights out."""
    weights = packed.numel() * 8
    return {"bytes": packed.numel() * 4 + scales.numel() * 2 + weights * dtype.itemsize, "flops": 2 * weights}
