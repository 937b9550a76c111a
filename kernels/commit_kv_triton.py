"""Commit of accepted cache rows in one launch: all layers of up to four caches of different shapes, in place.

Where in the flow: COMMIT, after the walk. The target wrote node i's row at `lengths[b] + i`.
Letters: Y layers, B batch rows, S cache rows, L draft horizon, P = L + 1, W elements of a row.

A program owns the same columns of all rows of one request in one layer of one cache: it loads every row that moves,
passes a barrier, then stores; a destination that is another move's source is therefore read before it is written, and
no two programs share an element. Rows are moved as integers, so NaN payloads and any element type survive. A row that
stands in place is neither read nor written, nor is anything of a request without moves: idle rows may hold any length.
Caches of one call may differ in everything but B; each is a range of the launch's programs. More than four: one launch
per four.

Floor: 2 bytes of traffic per byte moved. Kimi-K2.6 (61 layers x 576 x 2 B), B = 16, 7 rows each: 15.7 MB or 3.6 us at
4.4 TB/s; Qwen3-8B (36 layers, K and V, 1024 x 2 B), the same: 33 MB or 7.5 us; a usual round moves 1 to 3 rows.
Measured on an H200 in a graph: 2.5 us at batch 1, 7.1 us at 16 (K2.6, 7 rows moved, cold). Prediction: 4 us (K2.6, 3
rows) to 9 us (Qwen3-8B, 7 rows), B = 16, in a graph: 976 and 1152 programs, one wave; two dependent loads and a store
(2 us) bind while few rows move, DRAM when all do. At L = 15 with every row moved Qwen3-8B has a floor of 16 us. If it
misses: 16-byte accesses in the SASS, then more columns' worth of programs (BLOCK_W 512) for latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

MAX_CACHES = 4  # per launch
TILE_ELEMENTS = 16384  # rows x columns a program holds at most: 64 registers of a thread for bf16
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit(do_not_specialize=["width", "first_1", "first_2", "first_3"])
def _commit_kv_kernel(
    cache_0_ptr,  # each [Y, B, S, W] as integers, innermost stride 1
    cache_1_ptr,
    cache_2_ptr,
    cache_3_ptr,
    lengths_ptr,  # [B]
    path_ptr,  # [B, P]
    num_accepted_ptr,  # [B]
    width,
    layer_stride_0,
    layer_stride_1,
    layer_stride_2,
    layer_stride_3,
    batch_stride_0,
    batch_stride_1,
    batch_stride_2,
    batch_stride_3,
    row_stride_0,
    row_stride_1,
    row_stride_2,
    row_stride_3,
    row_size_0,
    row_size_1,
    row_size_2,
    row_size_3,
    first_1,  # the first program of each cache; of cache 0 it is 0
    first_2,
    first_3,
    NUM_CACHES: tl.constexpr,
    COUNTS_ROOT: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_W: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    program = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    place = 1 + tl.arange(0, BLOCK_P)  # the root never moves
    wait_for_launch_before(IS_DEPENDENT)
    base = tl.load(lengths_ptr + request)
    num_accepted = tl.load(num_accepted_ptr + request)
    node = tl.load(path_ptr + request * width + place, mask=place < width, other=-1)
    if COUNTS_ROOT:
        num_accepted -= 1

    cache_ptr = cache_0_ptr
    layer_stride = layer_stride_0
    batch_stride = batch_stride_0
    row_stride = row_stride_0
    row_size = row_size_0
    first = 0
    if NUM_CACHES > 1:
        is_it = program >= first_1
        cache_ptr = tl.where(is_it, cache_1_ptr, cache_ptr)
        layer_stride = tl.where(is_it, layer_stride_1, layer_stride)
        batch_stride = tl.where(is_it, batch_stride_1, batch_stride)
        row_stride = tl.where(is_it, row_stride_1, row_stride)
        row_size = tl.where(is_it, row_size_1, row_size)
        first = tl.where(is_it, first_1, first)
    if NUM_CACHES > 2:
        is_it = program >= first_2
        cache_ptr = tl.where(is_it, cache_2_ptr, cache_ptr)
        layer_stride = tl.where(is_it, layer_stride_2, layer_stride)
        batch_stride = tl.where(is_it, batch_stride_2, batch_stride)
        row_stride = tl.where(is_it, row_stride_2, row_stride)
        row_size = tl.where(is_it, row_size_2, row_size)
        first = tl.where(is_it, first_2, first)
    if NUM_CACHES > 3:
        is_it = program >= first_3
        cache_ptr = tl.where(is_it, cache_3_ptr, cache_ptr)
        layer_stride = tl.where(is_it, layer_stride_3, layer_stride)
        batch_stride = tl.where(is_it, batch_stride_3, batch_stride)
        row_stride = tl.where(is_it, row_stride_3, row_stride)
        row_size = tl.where(is_it, row_size_3, row_size)
        first = tl.where(is_it, first_3, first)

    chunks = tl.cdiv(row_size, BLOCK_W)
    layer = (program - first) // chunks
    column = (program - first - layer * chunks) * BLOCK_W + tl.arange(0, BLOCK_W)
    moves = (place < width) & (place <= num_accepted) & (node >= 0) & (node != place)
    source = tl.where(moves, base + node, 0)  # what stands elsewhere is never an index
    destination = tl.where(moves, base + place, 0)
    rows_ptr = cache_ptr + layer.to(tl.int64) * layer_stride + request * batch_stride
    mask = moves[:, None] & (column < row_size)[None, :]
    rows = tl.load(rows_ptr + source[:, None] * row_stride + column[None, :], mask=mask, other=0)
    tl.debug_barrier()  # every thread has its rows before any thread overwrites one
    tl.store(rows_ptr + destination[:, None] * row_stride + column[None, :], rows, mask=mask)


def _as_words(cache: torch.Tensor, size: int) -> torch.Tensor:
    """A cache [Y, B, S, ...] as integers of `size` bytes, [Y, B, S, W], without copying."""
    layers, batch, num_rows, *row = cache.shape
    width = 1
    for dim, stride in zip(reversed(row), reversed(cache.stride()[3:]), strict=True):
        if dim > 1 and stride != width:
            raise ValueError(
                f"commit_kv_triton: the elements of a cache row must lie together; got shape {tuple(cache.shape)}, "
                f"strides {cache.stride()}"
            )
        width *= dim
    flat = cache.as_strided((layers, batch, num_rows, width), (*cache.stride()[:3], 1))
    return flat.view(WORDS[size])


def _launch(caches: Sequence[torch.Tensor], rest: tuple[torch.Tensor, ...], counts_root: bool) -> None:
    """One launch over caches [Y, B, S, W] of one integer type; `rest` is lengths, path, num_accepted."""
    batch, width = rest[1].shape
    block_p = triton.next_power_of_2(width - 1)
    widest = triton.next_power_of_2(max(cache.shape[3] for cache in caches))
    block_w = max(16, min(widest, 2048 // caches[0].element_size(), TILE_ELEMENTS // block_p))
    programs = [cache.shape[0] * triton.cdiv(cache.shape[3], block_w) for cache in caches]
    first = [sum(programs[:i]) for i in range(len(programs))]
    filled = [*caches, *[caches[0]] * (MAX_CACHES - len(caches))]
    strides = [cache.stride(dim) for dim in range(3) for cache in filled]
    sizes = [cache.shape[3] for cache in filled]
    _commit_kv_kernel[(sum(programs), batch)](
        *filled, *rest, width, *strides, *sizes, *[*first, *[0] * MAX_CACHES][1:MAX_CACHES],
        NUM_CACHES=len(caches), COUNTS_ROOT=counts_root, BLOCK_P=block_p, BLOCK_W=block_w, num_warps=4,
        **dependence(caches[0]),
    )  # fmt: skip


def commit_kv_triton(
    caches: Sequence[torch.Tensor],  # each [Y, B, S, ...], a row's elements together
    lengths: torch.Tensor,  # [B] int64 committed rows before this round
    path: torch.Tensor,  # [B, P] int64 node indices, root first, padded with -1
    num_accepted: torch.Tensor,  # [B] int64
    *,
    counts_root: bool = False,  # `num_accepted` counts the root too, as the number of emitted tokens does
) -> None:
    """Row `lengths[b] + j` := old row `lengths[b] + path[b, j]` for j = 0..num_accepted[b]; nothing else changes.

    One launch per four caches. A request that moves nothing is not looked at, whatever its length.
    """
    inputs = {"lengths": lengths, "path": path, "num_accepted": num_accepted}
    for name, tensor in {**inputs, **{f"caches[{i}]": cache for i, cache in enumerate(caches)}}.items():
        if not (tensor.is_cuda or triton.knobs.runtime.interpret):
            raise ValueError(
                f"commit_kv_triton: {name} is on {tensor.device}, need a CUDA device; "
                "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
            )
        if name in inputs and not tensor.is_contiguous():
            raise ValueError(f"commit_kv_triton: {name} must be contiguous, has strides {tensor.stride()}")
    if not caches or path.shape[1] < 2:
        return  # a path of the root alone: no row can move
    batch = path.shape[0]
    assert lengths.shape == num_accepted.shape == (batch,)
    assert all(cache.shape[1] >= batch for cache in caches)
    size = min(cache.element_size() for cache in caches)
    words = [_as_words(cache, size) for cache in caches]
    for start in range(0, len(words), MAX_CACHES):
        _launch(words[start : start + MAX_CACHES], (lengths, path, num_accepted), counts_root)


_SIGNATURE = {
    **dict.fromkeys((f"cache_{i}_ptr" for i in range(MAX_CACHES)), "*i16"),
    **dict.fromkeys(("lengths_ptr", "path_ptr", "num_accepted_ptr"), "*i64"),
    "width": "i32",
    **dict.fromkeys((f"layer_stride_{i}" for i in range(MAX_CACHES)), "i64"),
    **dict.fromkeys((f"batch_stride_{i}" for i in range(MAX_CACHES)), "i64"),
    **dict.fromkeys((f"row_stride_{i}" for i in range(MAX_CACHES)), "i32"),
    **dict.fromkeys((f"row_size_{i}" for i in range(MAX_CACHES)), "i32"),
    **dict.fromkeys(("first_1", "first_2", "first_3"), "i32"),
}
_LOOSE = ("width", "first_1", "first_2", "first_3")  # all other arguments are multiples of 16


def _entry(name: str, num_caches: int, block_p: int, block_w: int) -> dict[str, Any]:
    return {
        "name": name,
        "kernel": _commit_kv_kernel,
        "signature": _SIGNATURE,
        "constexprs": {"NUM_CACHES": num_caches, "COUNTS_ROOT": True, "BLOCK_P": block_p, "BLOCK_W": block_w}
        | {"IS_DEPENDENT": True},
        "num_warps": 4,
        "num_stages": 3,
        "divisible_by_16": tuple(arg for arg in _SIGNATURE if arg not in _LOOSE),
    }


AOT = (
    _entry("k2.6-latent-h7", 1, 8, 1024),
    _entry("k2.6-latent-h15", 1, 16, 1024),
    _entry("gqa-k-v-h7", 2, 8, 1024),
    _entry("nano-k2-latent-h7", 1, 8, 128),
    _entry("four-caches-h7", 4, 8, 1024),
)
