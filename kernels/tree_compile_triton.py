"""Draft trees to the target's verify inputs in one launch: ids, positions, the ancestor mask, as bytes and as bits.

Where in the flow: TREE_COMPILE, between the tree builder and the target's forward.
Letters: B batch rows, N node slots (slot 0 the root = anchor), W = ceil(N / 32) words of a node's ancestor bits.

A program takes 64 nodes of one request and 32 columns of the mask. It walks from every node towards the root and keeps
the ancestors that fall into its columns as bits of one word, which is both the packed result and, spread out, 32 bytes
of the mask. Bit j % 32 of word j // 32 of row i: node i sees node j. Eight steps of the walk are taken between two
looks at whether any node is still on its way, so the depth needs no bound from the host.

Floor: B = 16, N = 65: 35 KB read, 17 KB ids and positions, 68 KB mask (bits alone: 12 KB): nothing. At N = 513 the mask
is 4.2 MB, 1 us at 4.4 TB/s. What binds is a chain of loads: one from memory, then as many from the L1 cache as the tree
is deep. On an H200 (`bench-ops`, cold, bits) 2.5 us at N = 65, batch 1, 2.8 us at 16. Prediction: 3 us whatever the
batch (96 programs at 16), 5 us at N = 513, in a graph. If it misses: parents in registers (`tl.gather`) up to 128
slots; programs that share the walk for several words.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

BLOCK_N = 64  # nodes per program
WORD = 32  # mask columns per program


@triton.jit(do_not_specialize=["slots", "num_words"])
def _tree_compile_kernel(
    tokens_ptr,  # [B, N]
    parents_ptr,  # [B, N]
    depths_ptr,  # [B, N]
    num_nodes_ptr,  # [B]
    anchors_ptr,  # [B]
    lengths_ptr,  # [B]
    input_ids_ptr,  # [B, N]
    positions_ptr,  # [B, N]
    visible_ptr,  # [B, N, N] uint8, written with HAS_BYTES only
    bits_ptr,  # [B, N, W] int32, written with HAS_BITS only
    slots,
    num_words,
    HAS_BYTES: tl.constexpr,
    HAS_BITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WORD: tl.constexpr,
    STEPS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    node = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    word = tl.program_id(2)
    at = request * slots + node
    is_slot = node < slots
    wait_for_launch_before(IS_DEPENDENT)
    used = is_slot & (node > 0) & (node <= tl.load(num_nodes_ptr + request))
    parent = tl.load(parents_ptr + at, mask=used, other=-1)
    if word == 0:
        token = tl.load(tokens_ptr + at, mask=used, other=0)
        depth = tl.load(depths_ptr + at, mask=used, other=0)
        tl.store(input_ids_ptr + at, tl.where(node == 0, tl.load(anchors_ptr + request), token), mask=is_slot)
        tl.store(positions_ptr + at, tl.load(lengths_ptr + request) + depth, mask=is_slot)

    if not (HAS_BYTES or HAS_BITS):
        return
    sees = tl.where(node // WORD == word, 1 << (node % WORD), 0)  # itself
    # Parents precede their children: what does not is no parent, so the walk ends and leaves no request's slots.
    current = tl.where((parent >= 0) & (parent < node), parent, -1).to(tl.int32)
    while tl.max(current, 0) >= 0:
        for _ in tl.static_range(STEPS):
            is_in_word = (current >= 0) & (current // WORD == word)
            sees = sees | tl.where(is_in_word, 1 << tl.where(is_in_word, current % WORD, 0), 0)
            parent = tl.load(parents_ptr + request * slots + current, mask=current > 0, other=-1)
            current = tl.where((parent >= 0) & (parent < current), parent, -1).to(tl.int32)
    if HAS_BITS:
        tl.store(bits_ptr + at * num_words + word, sees, mask=is_slot)
    if HAS_BYTES:
        offset = tl.arange(0, WORD)
        column = word * WORD + offset
        is_visible = (sees[:, None] >> offset[None, :]) & 1
        mask = is_slot[:, None] & (column < slots)[None, :]
        tl.store(visible_ptr + at[:, None] * slots + column[None, :], is_visible.to(tl.uint8), mask=mask)


def num_words(slots: int) -> int:
    """W, the int32 words of one node's ancestor bits."""
    return triton.cdiv(slots, WORD)


def _compile(
    tree: tuple[torch.Tensor, ...],  # tokens, parents, depths, num_nodes
    context: tuple[torch.Tensor, torch.Tensor],  # anchors, lengths
    out: tuple[torch.Tensor, torch.Tensor],  # input_ids, positions
    visible: torch.Tensor | None,
    bits: torch.Tensor | None,
) -> None:
    """Check and launch; of the mask's two forms those are written that are given."""
    tokens, parents, depths, nodes = tree
    batch, slots = tokens.shape
    named = {"tokens": tokens, "parents": parents, "depths": depths, "num_nodes": nodes}
    named |= {"anchors": context[0], "lengths": context[1], "input_ids": out[0], "positions": out[1]}
    named |= {name: mask for name, mask in (("visible", visible), ("bits", bits)) if mask is not None}
    for name, tensor in named.items():
        if not (tensor.is_cuda or triton.knobs.runtime.interpret):
            raise ValueError(
                f"tree_compile_triton: {name} is on {tensor.device}, need a CUDA device; "
                "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"tree_compile_triton: {name} must be contiguous, has strides {tensor.stride()}")
    assert all(t.shape == (batch, slots) for t in (parents, depths, *out)), f"tokens have {tuple(tokens.shape)}"
    assert all(t.shape == (batch,) for t in (nodes, *context)), f"tokens have {tuple(tokens.shape)}"
    assert visible is None or visible.shape == (batch, slots, slots), f"tokens have {tuple(tokens.shape)}"
    words = num_words(slots) if visible is not None or bits is not None else 1
    if bits is not None:
        if bits.dtype != torch.int32 or bits.shape[:2] != (batch, slots) or bits.shape[2] < words:
            raise ValueError(
                f"tree_compile_triton: bits must be int32 of shape {(batch, slots, words)}, or with more words; "
                f"got {bits.dtype} of shape {tuple(bits.shape)}"
            )
        words = bits.shape[2]
    _tree_compile_kernel[(batch, triton.cdiv(slots, BLOCK_N), words)](
        *tree, *context, *out, out[0] if visible is None else visible.view(torch.uint8),
        out[0] if bits is None else bits, slots, words, HAS_BYTES=visible is not None, HAS_BITS=bits is not None,
        BLOCK_N=BLOCK_N, WORD=WORD, STEPS=8, num_warps=2, **dependence(tokens),
    )  # fmt: skip


def tree_compile_triton(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    depths: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    anchors: torch.Tensor,  # [B] int64 token ids
    lengths: torch.Tensor,  # [B] int64 committed rows
    max_depth: int | None = None,  # of no use here: the walk ends by itself
    *,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,  # the results, to be written
    bits: torch.Tensor | None = None,  # [B, N, W] int32, to be written beside the mask; words beyond W become 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> input_ids [B, N] int64, positions [B, N] int64, visible [B, N, N] bool (true = may attend).

    Unused slots get id 0, the anchor's position, and see themselves only; what they hold is never read as an index.
    """
    batch, slots = tokens.shape
    if out is None:
        visible = tokens.new_empty((batch, slots, slots), dtype=torch.bool)
        out = (torch.empty_like(tokens), torch.empty_like(tokens), visible)
    input_ids, positions, visible = out
    _compile((tokens, parents, depths, num_nodes), (anchors, lengths), (input_ids, positions), visible, bits)
    return input_ids, positions, visible


def tree_compile_bits_triton(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    depths: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    anchors: torch.Tensor,  # [B] int64 token ids
    lengths: torch.Tensor,  # [B] int64 committed rows
    max_depth: int | None = None,  # of no use here
    *,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,  # the results, to be written
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same without the mask in bytes: -> input_ids [B, N], positions [B, N], bits [B, N, W] int32.

    W is even, so that kernels that count in words of 64 bits can read them as they are; `out` may have fewer.
    """
    batch, slots = tokens.shape
    if out is None:
        words = triton.cdiv(slots, 2 * WORD) * 2
        packed = tokens.new_empty((batch, slots, words), dtype=torch.int32)
        out = (torch.empty_like(tokens), torch.empty_like(tokens), packed)
    input_ids, positions, packed = out
    _compile((tokens, parents, depths, num_nodes), (anchors, lengths), (input_ids, positions), None, packed)
    return input_ids, positions, packed


def tree_compile_chain_triton(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    depths: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    anchors: torch.Tensor,  # [B] int64 token ids
    lengths: torch.Tensor,  # [B] int64 committed rows
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,  # the results, to be written
) -> tuple[torch.Tensor, torch.Tensor]:
    """Without a mask, for chains, whose order is the causal one: -> input_ids and positions [B, N].

    Unused slots get id 0 and the anchor's position.
    """
    if out is None:
        out = (torch.empty_like(tokens), torch.empty_like(tokens))
    _compile((tokens, parents, depths, num_nodes), (anchors, lengths), out, None, None)
    return out


_SIGNATURE = {
    **dict.fromkeys(("tokens_ptr", "parents_ptr", "depths_ptr", "num_nodes_ptr", "anchors_ptr"), "*i64"),
    **dict.fromkeys(("lengths_ptr", "input_ids_ptr", "positions_ptr"), "*i64"),
    "visible_ptr": "*u8",
    "bits_ptr": "*i32",
    "slots": "i32",
    "num_words": "i32",
}


def _entry(name: str, has_bytes: bool, has_bits: bool) -> dict[str, Any]:
    return {
        "name": name,
        "kernel": _tree_compile_kernel,
        "signature": _SIGNATURE,
        "constexprs": {
            "HAS_BYTES": has_bytes,
            "HAS_BITS": has_bits,
            "BLOCK_N": BLOCK_N,
            "WORD": WORD,
            "STEPS": 8,
            "IS_DEPENDENT": True,
        },
        "num_warps": 2,
        "num_stages": 3,
        "divisible_by_16": tuple(arg for arg, kind in _SIGNATURE.items() if kind.startswith("*")),
    }


AOT = (
    _entry("bytes-and-bits", True, True),
    _entry("bytes", True, False),
    _entry("bits", False, True),
    _entry("chain", False, False),
)
