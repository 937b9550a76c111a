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


LANE = torch.arange(32)
QUAD, IN_QUAD = LANE // 4, LANE % 4


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.float().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def _floats(bits: torch.Tensor) -> torch.Tensor:
    return torch.where(bits >> 31 > 0, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


def _half(bits: torch.Tensor, high: int) -> torch.Tensor:
    return _floats(bits >> 16 * high << 16 & 0xFFFFFFFF)


def _multiply(
    weights: list[torch.Tensor], tokens: list[torch.Tensor], addend: list[torch.Tensor]
) -> list[torch.Tensor]:
    """mma.m16n8k16 on bf16 pairs: who holds what, by the PTX manual."""
    a, b, c = torch.zeros(16, 16), torch.zeros(16, 8), torch.zeros(16, 8)
    for i in range(4):
        for high in range(2):
            a[QUAD + 8 * (i % 2), 2 * IN_QUAD + high + 8 * (i // 2)] = _floats(
                weights[i] >> 16 * high << 16 & 0xFFFFFFFF
            )
        c[QUAD + 8 * (i // 2), 2 * IN_QUAD + i % 2] = _floats(addend[i])
    for i in range(2):
        for high in range(2):
            b[2 * IN_QUAD + high + 8 * i, QUAD] = _half(tokens[i], high)
    product = a.double() @ b.double() + c
    return [_bits(product[QUAD + 8 * (i // 2), 2 * IN_QUAD + i % 2]) for i in range(4)]


def _execute_warp(asm: str, registers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The instructions of a step on 32 lanes, registers as unsigned 32-bit patterns in int64."""

    def bits(name: str) -> torch.Tensor:
        if name in registers:
            return registers[name]
        return torch.full((32,), int(name.removeprefix("0f"), 16 if name.startswith("0f") else 0))

    for name, text in re.findall(r"^([a-z][\w.]*) (.*);$", asm, re.MULTILINE):
        if name.startswith("mma."):
            target, *lists = [group.split(", ") for group in re.findall(r"\{(.*?)\}", text)]
            registers.update(zip(target, _multiply(*[[bits(i) for i in names] for names in lists]), strict=True))
            continue
        target, *operands = text.split(", ")
        a, *more = [bits(operand) for operand in operands]
        if name in ("mov.b32", "mov.f32"):
            registers[target] = a
        elif name == "lop3.b32":
            assert operands[3] == "0xea"
            registers[target] = a & more[0] | more[1]
        elif name == "fma.rn.f32":
            registers[target] = _bits(_floats(a).double() * _floats(more[0]) + _floats(more[1]))
        else:
            shifted = {"shr.u32": a >> more[0], "shl.b32": a << more[0], "and.b32": a & more[0]}
            registers[target] = shifted[name] & 0xFFFFFFFF
    return registers


def test_step_of_a_warp_multiplies_dequantised_weights():
    """No interpreter runs it. Random nibbles and scales; sums that are not zero to begin with."""
    g = torch.Generator().manual_seed(0)
    words = torch.randint(0, 1 << 32, (32, 16), generator=g)
    scales = torch.randn(32, 4, generator=g).bfloat16()
    tokens = torch.randn(8, 16, 8, generator=g).bfloat16()  # by word
    before = torch.randn(32, 8, generator=g)
    places = [(tile, half, e) for tile in range(2) for half in range(2) for e in range(2)]
    rows = [16 * tile + 8 * half + QUAD for tile, half, e in places]
    registers = {f"${8 + i}": _bits(before[rows[i], 2 * IN_QUAD + places[i][2]]) for i in range(8)}
    for group in range(4):
        for i in range(4):
            registers[f"${16 + 4 * i + group}"] = words[8 * i + QUAD, 4 * group + IN_QUAD]
            low, high = (tokens[QUAD, 4 * group + IN_QUAD, column] for column in (i, i + 4))
            registers[f"${32 + 4 * i + group}"] = _bits(low) >> 16 | _bits(high)
            if group % 2:
                low, high = (scales[8 * i + QUAD, column] for column in (group - 1, group))
                registers[f"${48 + 2 * i + group // 2}"] = _bits(low) >> 16 | _bits(high)
    registers |= {f"${56 + i}": torch.full((32,), kernels.OFFSETS.value & 0xFFFFFFFF) for i in range(4)}
    registers = _execute_warp(kernels.GROUPS_ASM.value, registers)
    got = torch.zeros(32, 8)
    for i, (_, _, e) in enumerate(places):
        got[rows[i], 2 * IN_QUAD + e] = _floats(registers[f"${i}"])
    packed = torch.where(words >> 31 > 0, words - (1 << 32), words).to(torch.int32)
    weights = int4.dequantize(packed, scales, 32, torch.float64)
    torch.testing.assert_close(got.double(), before + weights @ tokens.flatten(1).double().T, atol=1e-3, rtol=1e-5)
