"""The end of a round in one launch: tokens, lengths, limits, anchors, positions and the host's report.

Semantics of `reference.advance`; one program per request. In plain torch it is some sixteen launches of a microsecond
or two each. Floor: a few hundred bytes per request; one launch, about 1.5 us. Letters: B batch rows, S context length,
P = draft horizon + 1, N tree node slots.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before


@triton.jit(do_not_specialize=["width", "slots", "context"])
def _advance_kernel(
    path_ptr,  # [B, P]
    num_accepted_ptr,  # [B]
    emitted_ptr,  # [B, P]
    num_emitted_ptr,  # [B]
    finished_ptr,  # [B] uint8
    num_nodes_ptr,  # [B], read with HAS_TREE only, as are the scores
    scores_ptr,  # [B, N] fp32 or narrower
    tokens_ptr,  # [B, S]
    lengths_ptr,  # [B]
    remaining_ptr,  # [B]
    anchors_ptr,  # [B]
    report_ptr,  # [B, 2P+4] fp64
    positions_ptr,  # [B, P]
    width,
    slots,
    context,
    HAS_TREE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK_P)
    inside = place < width
    wait_for_launch_before(IS_DEPENDENT)
    path = tl.load(path_ptr + request * width + place, mask=inside, other=-1)
    emitted = tl.load(emitted_ptr + request * width + place, mask=inside, other=-1)
    length = tl.load(lengths_ptr + request)
    count = tl.load(num_emitted_ptr + request)
    accepted = tl.load(num_accepted_ptr + request)
    left = tl.load(remaining_ptr + request)
    left = tl.where(tl.load(finished_ptr + request) != 0, 0, left - count)
    last = tl.sum(tl.where(place == count - 1, emitted, 0), 0)
    anchor = tl.where(count > 0, last, tl.load(anchors_ptr + request))
    nodes = accepted
    expected = count.to(tl.float64)
    if HAS_TREE:
        slot = tl.arange(0, BLOCK_N)
        scores = tl.load(scores_ptr + request * slots + slot, mask=slot < slots, other=-float("inf"))
        nodes = tl.load(num_nodes_ptr + request)
        expected = tl.sum(tl.exp(scores.to(tl.float32)), 0).to(tl.float64)
    tl.store(positions_ptr + request * width + place, length + place, mask=inside)
    tl.store(tokens_ptr + request * context + length + 1 + place, emitted, mask=inside)
    tl.store(lengths_ptr + request, length + count)
    tl.store(remaining_ptr + request, left)
    tl.store(anchors_ptr + request, anchor)
    row = report_ptr + request * (2 * width + 4)
    tl.store(row + place, path.to(tl.float64), mask=inside)
    tl.store(row + width + place, emitted.to(tl.float64), mask=inside)
    tl.store(row + 2 * width, accepted.to(tl.float64))
    tl.store(row + 2 * width + 1, count.to(tl.float64))
    tl.store(row + 2 * width + 2, nodes.to(tl.float64))
    tl.store(row + 2 * width + 3, expected)


def advance_triton(
    path: torch.Tensor,  # [B, P] int64
    num_accepted: torch.Tensor,  # [B] int64
    emitted: torch.Tensor,  # [B, P] int64
    num_emitted: torch.Tensor,  # [B] int64
    finished: torch.Tensor,  # [B] bool
    tree: tuple[torch.Tensor, torch.Tensor] | None,  # num_nodes [B] int64, scores [B, N] fp32 or narrower
    tokens: torch.Tensor,  # [B, S] int64, changed in place as are the next three
    lengths: torch.Tensor,  # [B] int64
    remaining: torch.Tensor,  # [B] int64
    anchors: torch.Tensor,  # [B] int64
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,  # the results, to be written
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (report [B, 2P+4] fp64, positions [B, P] int64)."""
    if not (path.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"advance_triton: path is on {path.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    batch, width = path.shape
    num_nodes, scores = (num_accepted, emitted) if tree is None else tree
    given = (path, num_accepted, emitted, num_emitted, finished, num_nodes, scores, tokens, lengths, remaining, anchors)
    if not all(tensor.is_contiguous() for tensor in given):
        raise ValueError(f"advance_triton: all tensors must be contiguous: strides {[t.stride() for t in given]}")
    if out is None:
        report = torch.empty(batch, 2 * width + 4, dtype=torch.float64, device=path.device)
        out = report, torch.empty_like(path)
    slots = 1 if tree is None else scores.shape[1]
    _advance_kernel[(batch,)](
        path, num_accepted, emitted, num_emitted, finished.view(torch.uint8), num_nodes, scores, tokens, lengths,
        remaining, anchors, *out, width, slots, tokens.shape[1], HAS_TREE=tree is not None,
        BLOCK_P=triton.next_power_of_2(width), BLOCK_N=triton.next_power_of_2(slots), num_warps=1,
        **dependence(path),
    )  # fmt: skip
    return out


_INTEGERS = ("path", "num_accepted", "emitted", "num_emitted", "num_nodes", "tokens", "lengths", "remaining", "anchors")
_SIGNATURE = {
    **{f"{name}_ptr": "*i64" for name in (*_INTEGERS, "positions")},
    "finished_ptr": "*u8",
    "scores_ptr": "*fp32",
    "report_ptr": "*fp64",
    "width": "i32",
    "slots": "i32",
    "context": "i32",
}


def _entry(name: str, has_tree: bool, block_p: int, block_n: int) -> dict[str, Any]:
    signature = _SIGNATURE if has_tree else {**_SIGNATURE, "scores_ptr": "*i64"}
    return {
        "name": name,
        "kernel": _advance_kernel,
        "signature": signature,
        "constexprs": {"HAS_TREE": has_tree, "BLOCK_P": block_p, "BLOCK_N": block_n, "IS_DEPENDENT": True},
        "num_warps": 1,
        "num_stages": 3,
        "divisible_by_16": tuple(arg for arg, kind in signature.items() if kind.startswith("*")),
    }


AOT = (_entry("tree-of-64", True, 8, 128), _entry("chain", True, 16, 16), _entry("step", False, 1, 1))
