"""Claims about the unpacking of four-bit weights in registers."""

from __future__ import annotations

import re

import pytest
import torch

from ddbench.reference import int4

kernels = pytest.importorskip("ddbench.kernels.int4_triton", reason="triton is not installed")


def _as_pair(value: int) -> torch.Tensor:
    return torch.tensor([value - (1 << 32) if value >> 31 else value], dtype=torch.int32).view(torch.bfloat16)


def _execute(asm: str, registers: dict[str, int]) -> dict[str, int]:
    """The few PTX instructions of the unpacking on Python integers and, for bf16 pairs, on torch."""

    def bits(text: str) -> int:
        return registers[text] if text in registers else int(text, 0)

    rounded = {"sub.rn.bf16x2": torch.sub, "mul.rn.bf16x2": torch.mul}
    for line in re.findall(r"^(\w[\w.]*) (.*);$", asm, re.MULTILINE):
        name, (target, *operands) = line[0], line[1].split(", ")
        values = [bits(operand) for operand in operands]
        if name == "mov.b32":
            result = values[0]
        elif name == "prmt.b32":
            source = (values[0] | values[1] << 32).to_bytes(8, "little")
            result = int.from_bytes(bytes(source[values[2] >> 4 * i & 7] for i in range(4)), "little")
        elif name == "lop3.b32":
            assert values[3] == 0xF0 & 0xCC | 0xAA, "not (a & b) | c"
            result = values[0] & values[1] | values[2]
        elif name == "shr.u32":
            result = values[0] >> values[1]
        else:
            result = int(rounded[name](*map(_as_pair, values)).view(torch.int32)) & 0xFFFFFFFF
        registers[target] = result
    return registers


def test_unpacking_instructions_dequantise():
    """No interpreter runs them. Every nibble in every place, scales of either sign, against the specification."""
    g = torch.Generator().manual_seed(0)
    asm = kernels.UNPACK_ASM.value
    for step in range(16):
        words = torch.tensor([[sum((step + 3 * i + j) % 16 << 4 * j for j in range(8))] for i in range(2)])
        packed = torch.where(words >> 31 > 0, words - (1 << 32), words).to(torch.int32).view(1, 2)  # [1, 2]
        scale = torch.randn(1, 1, generator=g).bfloat16()
        pair = int(scale.expand(1, 2).contiguous().view(torch.int32)) & 0xFFFFFFFF
        registers = _execute(asm, {"$8": int(words[0]), "$9": int(words[1]), "$10": pair})
        got = torch.stack([_as_pair(registers[f"${j}"]) for j in range(8)], dim=1)  # [2 words, 8]
        expected = int4.dequantize(packed, scale, 16, torch.bfloat16).view(2, 8)
        assert torch.equal(got, expected)
