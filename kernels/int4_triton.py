"""Four-bit weights (see int4.py) unpacked in registers, inside of other kernels: a word's eight nibbles as eight tiles.

For bf16, two words make eight pairs without a conversion instruction: a nibble or-ed into the mantissa of 128.0 is
128 + n; less 136 it is exact, and the product with the scale rounds once, as the specification does. That is 32
instructions for 16 weights; conversions from integers alone would run at 16 weights per SM and clock, less than what an
H200's memory delivers at 60 %. Letters: R weight rows, W words of a row, G scales of a row.
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
