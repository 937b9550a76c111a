"""What a forward begins with in one launch: embeddings and rotary rows, three to five launches in plain PyTorch.

Where in the flow: the first launch of DRAFT and of VERIFY. Letters: B batch rows, N new tokens, V vocabulary, M hidden,
S positions of the rotary table, Dr rotary dims. A program copies COLUMNS columns of one token's embedding; the first of
a token's programs also its rotary rows. Nothing is computed: what comes out are the tables' own bits.

Floor, K2.6, 33 nodes: 0.95 MB in bf16, 0.2 us at 4.4 TB/s. Predicted 1.5 us in a graph (two loads and a store deep);
in plain PyTorch on an H200 the launches of nano-k2's draft took 9.1 us with their gaps, those of its verify 4.8. If it
misses: the rotary rows to the programs that need them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

COLUMNS = 1024  # of a program


@triton.jit
def _token_rows_kernel(
    ids_ptr,  # [B, N]
    positions_ptr,  # [B, N]; with COUNTS [B]
    embedding_ptr,  # [V, M]
    cos_ptr,  # [S, HALF]
    sin_ptr,  # [S, HALF]
    x_ptr,  # [B, N, M]
    cos_rows_ptr,  # [B, N, HALF]
    sin_rows_ptr,  # [B, N, HALF]
    HIDDEN: tl.constexpr,
    HALF: tl.constexpr,
    COUNTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tokens, batch rows, tiles of M."""
    i = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    token = b * tl.num_programs(0) + i
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < HIDDEN
    wait_for_launch_before(IS_DEPENDENT)
    row = tl.load(ids_ptr + token)
    tl.store(x_ptr + token * HIDDEN + column, tl.load(embedding_ptr + row * HIDDEN + column, mask=mask), mask=mask)
    if tl.program_id(2) == 0:
        if COUNTS:
            position = tl.load(positions_ptr + b) + i
        else:
            position = tl.load(positions_ptr + token)
        pair = tl.arange(0, BLOCK_HALF)
        is_pair = pair < HALF
        cos = tl.load(cos_ptr + position * HALF + pair, mask=is_pair)
        sin = tl.load(sin_ptr + position * HALF + pair, mask=is_pair)
        tl.store(cos_rows_ptr + token * HALF + pair, cos, mask=is_pair)
        tl.store(sin_rows_ptr + token * HALF + pair, sin, mask=is_pair)


def _sizes(hidden: int, half: int) -> tuple[dict[str, int], int]:
    """-> (sizes, warps)."""
    columns = min(COLUMNS, triton.next_power_of_2(hidden))
    sizes = {"HIDDEN": hidden, "HALF": half, "COLUMNS": columns, "BLOCK_HALF": triton.next_power_of_2(half)}
    return sizes, max(1, columns // 256)


def token_rows_triton(
    ids: torch.Tensor,  # [B, N] int64, all of them in the vocabulary
    positions: torch.Tensor,  # [B, N] int64, all of them in the table; or [B, 1], the first token's: the others follow
    embedding: torch.Tensor,  # [V, M]
    cos: torch.Tensor,  # [S, Dr/2]
    sin: torch.Tensor,  # [S, Dr/2]
    *,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,  # the results, to be written
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> embeddings [B, N, M] in embedding.dtype, cos and sin rows, each [B, N, 1, Dr/2]."""
    if not (ids.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"token_rows_triton: ids are on {ids.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    (batch, num_tokens), hidden, half = ids.shape, embedding.shape[1], cos.shape[1]
    if out is None:
        x = torch.empty(batch, num_tokens, hidden, dtype=embedding.dtype, device=ids.device)
        rows = [torch.empty(batch, num_tokens, 1, half, dtype=cos.dtype, device=ids.device) for _ in range(2)]
        out = (x, rows[0], rows[1])
    ids, positions = ids.contiguous(), positions.contiguous()
    counts = positions.shape[1] != num_tokens
    assert positions.shape == (batch, 1 if counts else num_tokens), f"{tuple(positions.shape)}, ids {tuple(ids.shape)}"
    assert cos.shape == sin.shape, f"tables: {tuple(cos.shape)} and {tuple(sin.shape)}"
    assert ids.dtype == positions.dtype == torch.int64, f"ids {ids.dtype}, positions {positions.dtype}"
    assert (out[0].dtype, out[1].dtype, out[2].dtype) == (embedding.dtype, cos.dtype, sin.dtype), "out: other dtypes"
    expected = ((batch, num_tokens, hidden), *((batch, num_tokens, 1, half),) * 2)
    assert tuple(tuple(t.shape) for t in out) == expected, f"out: {[tuple(t.shape) for t in out]}"
    assert all(t.is_contiguous() for t in (embedding, cos, sin, *out)), "embedding, tables or out not contiguous"
    if batch and num_tokens:
        sizes, num_warps = _sizes(hidden, half)
        _token_rows_kernel[(num_tokens, batch, triton.cdiv(hidden, sizes["COLUMNS"]))](
            ids, positions, embedding, cos, sin, *out, COUNTS=counts, **sizes, **dependence(ids), num_warps=num_warps
        )
    return out


def _entry(name: str, element: str, counts: bool, hidden: int, half: int) -> dict[str, Any]:
    pointers = {"ids_ptr": "*i64", "positions_ptr": "*i64", "embedding_ptr": f"*{element}", "x_ptr": f"*{element}"}
    pointers |= dict.fromkeys(("cos_ptr", "sin_ptr", "cos_rows_ptr", "sin_rows_ptr"), "*fp32")
    sizes, num_warps = _sizes(hidden, half)
    return {
        "name": f"{name}-{element}",
        "kernel": _token_rows_kernel,
        "signature": pointers,
        "constexprs": {**sizes, "COUNTS": counts, "IS_DEPENDENT": True},
        "divisible_by_16": tuple(pointers),
        "num_warps": num_warps,
        "num_stages": 3,
    }


_SHAPES = (("k2.6-verify", False, 7168, 32), ("k2.6-draft", True, 7168, 64), ("nano-k2-verify", False, 256, 8))
AOT = tuple(
    _entry(name, element, counts, hidden, half)
    for name, counts, hidden, half in _SHAPES
    for element in ("bf16", "fp32")
)
