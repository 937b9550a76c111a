"""Four-bit weights (see int4.py) unpacked in registers, inside of other kernels: a word's eight nibbles as eight tiles.

For bf16, two words make eight pairs without a conversion instruction: a nibble or-ed into the mantissa of 128.0 is
128 + n; less 136 it is exact, and the product with the scale rounds once, as the specification does. That is 32
instructions for 16 weights; conversions from integers alone would run at 16 weights per SM and clock, less than what an
H200's memory delivers at 60 %. Letters: R weight rows, W words of a row, G scales of a row.

Where a kernel says itself which thread holds what (moe_experts_gluon.py), `GROUPS_ASM` is a warp's whole step, from
words to sums: 128 + n goes into the matrix product as it is, a product over -136 takes the offset away, and the sum of
a group of 32 is scaled in fp32: 23 instructions for 16 weights, products included, and no weight is rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl


def _unpack_asm() -> str:
    """Two adjacent words $8, $9 and their scales $10 -> pairs (nibble j of both words) times scale in $0 .. $7."""
    lines = ["{ .reg .b32 p, t, bias;", "mov.b32 bias, 0x43084308;"]  # 136
    for byte in range(4):
        selector = byte | byte << 4 | (4 + byte) << 8 | (4 + byte) << 12
        lines.append(f"prmt.b32 p, $8, $9, {selector:#x};")  # this byte of both words
        for j in (2 * byte, 2 * byte + 1):
            # (p & mask) | 128.0; the mantissa has seven bits, so that an upper nibble must be moved down
            lines += ["lop3.b32 t, p, 0x000f000f, 0x43004300, 0xea;", "sub.rn.bf16x2 t, t, bias;"]
            lines += [f"mul.rn.bf16x2 ${j}, t, $10;", "shr.u32 p, p, 4;"]
        lines.pop()
    return "\n".join([*lines, "}"])


UNPACK_ASM = tl.constexpr(_unpack_asm())


def _product_asm(target: str, weights: list[str], tokens: list[str], addend: list[str]) -> str:
    operands = [[f"{target}{i}" for i in range(4)], weights, tokens, addend]
    lists = ", ".join("{" + ", ".join(names) + "}" for names in operands)
    return f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {lists};"


def _groups_asm() -> str:
    """32 weight rows (two tiles of 16) of 4 groups of 32 columns times 8 tokens, by one warp.

    $0-7 sums out and $8-15 in, by tile, then as the product gives them; $16-31 words by tile, half of its rows, group:
    lane t of four has word t of a group; $32-47 token columns (0 4, 1 5, 2 6, 3 7 of a word) by pair, group; $48-55
    scales by tile, half of its rows, two groups in one; $56-59 `OFFSETS`, each.
    """
    lines = ["{ .reg .b32 a<8>, u; .reg .f32 d<4>, e<4>, sum<8>, scale<2>, zero;", "mov.f32 zero, 0f00000000;"]
    lines += [f"mov.f32 sum{i}, ${8 + i};" for i in range(8)]
    offsets, group_sums = ([f"{name}{i}" for i in range(4)] for name in "de")
    minus_136 = [f"${56 + i}" for i in range(4)]
    for group in range(4):
        tokens = [f"${32 + 4 * pair + group}" for pair in range(4)]
        lines += [_product_asm("d", minus_136, tokens[:2], ["zero"] * 4)]
        lines += [_product_asm("d", minus_136, tokens[2:], offsets)]
        for tile in range(2):
            for half in range(2):
                word = f"${16 + 8 * tile + 4 * half + group}"
                for j in range(4):
                    # (nibbles j and j + 4) | 128.0; what the product calls a0 a1 a2 a3: halves of rows, then columns
                    place = j // 2 * 4 + j % 2 * 2 + half
                    lines += [f"shr.u32 u, {word}, {4 * j};"] if j else []
                    lines += [f"lop3.b32 a{place}, {'u' if j else word}, 0x000f000f, 0x43004300, 0xea;"]
                pair = f"${48 + 4 * tile + 2 * half + group // 2}"
                lines += [f"and.b32 u, {pair}, 0xffff0000;" if group % 2 else f"shl.b32 u, {pair}, 16;"]
                lines += [f"mov.b32 scale{half}, u;"]
            lines += [_product_asm("e", [f"a{i}" for i in range(4)], tokens[:2], offsets)]
            lines += [_product_asm("e", [f"a{i}" for i in range(4, 8)], tokens[2:], group_sums)]
            for i in range(4):
                lines += [f"fma.rn.f32 sum{4 * tile + i}, e{i}, scale{i // 2}, sum{4 * tile + i};"]
    lines += [f"mov.f32 ${i}, sum{i};" for i in range(8)]
    return "\n".join([*lines, "}"])


GROUPS_ASM = tl.constexpr(_groups_asm())
GROUPS_CONSTRAINTS = tl.constexpr(",".join(["=&f"] * 8 + ["f"] * 8 + ["r"] * 44))
OFFSETS = tl.constexpr(0xC308C308 - (1 << 32))  # -136 twice, as int32


@triton.jit
def _plane(w, s, j: tl.constexpr, dtype: tl.constexpr):
    return ((((w >> (4 * j)) & 15) - 8).to(tl.float32) * s).to(dtype)


@triton.jit
def unpack_planes(w, s, dtype: tl.constexpr, INTERPRET: tl.constexpr):
    """Words [R, W] int32, scales [R, G] bf16 -> 8 tiles [R, W]: nibble j times scale, rounded once."""
    # The words' layout (that of operand A) reaches the scales through this broadcast: no exchange between threads.
    PER_SCALE: tl.constexpr = w.shape[1] // s.shape[1]
    s = tl.reshape(tl.broadcast_to(s[:, :, None], (s.shape[0], s.shape[1], PER_SCALE)), (w.shape[0], w.shape[1]))
    if dtype == tl.bfloat16 and not INTERPRET:
        return tl.inline_asm_elementwise(
            UNPACK_ASM,
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r",
            [w, s],
            dtype=(tl.bfloat16,) * 8,
            is_pure=True,
            pack=2,
        )
    s = s.to(tl.float32)
    return (
        _plane(w, s, 0, dtype), _plane(w, s, 1, dtype), _plane(w, s, 2, dtype), _plane(w, s, 3, dtype),
        _plane(w, s, 4, dtype), _plane(w, s, 5, dtype), _plane(w, s, 6, dtype), _plane(w, s, 7, dtype),
    )  # fmt: skip
