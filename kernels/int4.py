"""Four-bit weights: one bf16 scale per group of input columns, no zero point, eight values packed in an int32.

The layout is that of compressed-tensors' `pack-quantized`: value + 8 as an unsigned nibble, low nibble first. The scale
carries the sign that puts a group's largest magnitude at -8, the longer end of the range: squared error of Gaussian
groups of 32 is 0.78 of that of absmax/7 and 0.82 of absmax/7.5, and quantising twice changes nothing.
Letters: O output rows, I input columns; leading batch dims (experts) are allowed everywhere.
"""

from __future__ import annotations

import torch

QUANTIZED_MIN, QUANTIZED_MAX = -8, 7


def quantize(w: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """w [..., O, I] -> (packed [..., O, I/8] int32, scales [..., O, I/group] bf16); group and 8 divide I."""
    columns = w.shape[-1]
    if columns % group or columns % 8:
        raise ValueError(f"int4: {columns} input columns; they must be a multiple of the group ({group}) and of 8")
    grouped = w.detach().float().unflatten(-1, (-1, group))  # [..., O, I/group, group]
    extreme = grouped.gather(-1, grouped.abs().argmax(dim=-1, keepdim=True)).squeeze(-1)
    scales = (extreme / QUANTIZED_MIN).to(torch.bfloat16)  # of either sign
    divisor = torch.where(scales == 0, 1, scales).float()
    values = (grouped / divisor[..., None]).round().clamp(QUANTIZED_MIN, QUANTIZED_MAX)
    nibbles = (values + 8).to(torch.uint8).flatten(-2)  # [..., O, I]
    pairs = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)  # little-endian bytes of the int32 words
    return pairs.contiguous().view(torch.int32), scales


def dequantize(packed: torch.Tensor, scales: torch.Tensor, group: int, dtype: torch.dtype) -> torch.Tensor:
    """The weights [..., O, I] in `dtype`: value times scale, rounded once."""
    pairs = packed.contiguous().view(torch.uint8)  # [..., O, I/2]
    nibbles = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)  # [..., O, I]
    values = nibbles.to(dtype).sub_(8).unflatten(-1, (-1, group))
    return (values * scales.to(dtype)[..., None]).flatten(-2)


def fake_quantize(w: torch.Tensor, group: int) -> torch.Tensor:
    """`dequantize(quantize(w))` in w.dtype whose gradient is that of the identity: quantisation-aware training."""
    packed, scales = quantize(w, group)
    return dequantize(packed, scales, group, w.dtype) + (w - w.detach())  # adding an exact zero keeps the values
