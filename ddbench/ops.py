"""The op table: every op's specification, its implementations, its inputs, its cost and its tolerance.

The only product module that knows both `reference` and `kernels`. A new implementation is one entry in its op's
`implementations`, a new op one row of `OPS`; the correctness matrix, `ddbench check` and the roofline derive from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from ddbench.errors import UserError, did_you_mean
from ddbench.kernels import absorbed_query as absorbed_query_kernels
from ddbench.kernels import accept_walk as accept_walk_kernels
from ddbench.kernels import advance as advance_kernels
from ddbench.kernels import commit_kv as commit_kv_kernels
from ddbench.kernels import draft_topk as draft_topk_kernels
from ddbench.kernels import int4 as int4_kernels
from ddbench.kernels import latent_rows as latent_rows_kernels
from ddbench.kernels import linear as linear_kernels
from ddbench.kernels import materialize_kv as materialize_kv_kernels
from ddbench.kernels import mla_tree_attention as mla_kernels
from ddbench.kernels import moe_experts as moe_experts_kernels
from ddbench.kernels import moe_route as moe_route_kernels
from ddbench.kernels import prompt_lookup as prompt_lookup_kernels
from ddbench.kernels import qk_rows as qk_rows_kernels
from ddbench.kernels import rms_norm as rms_norm_kernels
from ddbench.kernels import rope as rope_kernels
from ddbench.kernels import swiglu as swiglu_kernels
from ddbench.kernels import token_rows as token_rows_kernels
from ddbench.kernels import tree_attention as tree_attention_kernels
from ddbench.kernels import tree_build as tree_build_kernels
from ddbench.kernels import tree_compile as tree_compile_kernels
from ddbench.reference import (
    absorbed_query,
    accept_walk,
    advance,
    commit_kv,
    draft_topk,
    int4,
    latent_rows,
    linear,
    materialize_kv,
    mla_tree_attention,
    moe_experts,
    moe_route,
    prompt_lookup,
    qk_rows,
    rms_norm,
    rope,
    swiglu,
    token_rows,
    tree_attention,
    tree_build,
    tree_compile,
)
from ddbench.testing import copied, named_tensors, relative_error, to_float64

SIZES = ("small", "odd", "degenerate", "adversarial")


@dataclass(frozen=True, slots=True)
class Op:
    """One op. All callables take the keyword arguments that `make_inputs(seed, size)` returns.

    Ops that write in place return None; then the arguments after the call are what is compared.
    """

    name: str
    reference: Callable[..., Any]
    implementations: Mapping[str, Callable[..., Any]]
    make_inputs: Callable[[int, str], dict[str, Any]]
    cost: Callable[..., dict[str, int]]  # {"bytes": fewest bytes, "flops": flops}
    tolerance: float  # relative error always allowed; twice the reference's own rounding error is allowed as well
    integer_outputs: bool  # results decide between candidates: the reference runs in the inputs' own precision


@dataclass(frozen=True, slots=True)
class OpCheck:
    """One implementation against its specification on one set of inputs."""

    name: str
    implementation: str
    size: str
    ok: bool
    error: float  # largest relative error of a floating-point result; 0 where there is none
    tolerance: float  # what was allowed
    detail: str  # what is wrong, empty where nothing is


@dataclass(frozen=True, slots=True)
class TritonLauncher:
    """An implementation in `kernels/<stem>_triton.py`, imported at its first call: triton is an extra."""

    stem: str
    name: str = ""  # of the launcher; without: the stem's own

    def load(self) -> Callable[..., Any]:
        """The launcher itself."""
        return getattr(import_module(f"ddbench.kernels.{self.stem}_triton"), self.name or f"{self.stem}_triton")

    def __call__(self, **inputs: Any) -> Any:
        return self.load()(**inputs)


def _torch_and_triton(run: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """A kernel of plain torch, and its twin `<module>_triton.<name>_triton`."""
    stem = run.__module__.rpartition(".")[2]
    return {"torch": run, "triton": TritonLauncher(stem, f"{run.__name__}_triton")}


def why_not(op: Op, implementation: str, device: str) -> str | None:
    """Why an implementation cannot run on a device of this machine; None: it can."""
    is_triton = isinstance(op.implementations.get(implementation), TritonLauncher)
    return why_no_triton(device) if is_triton else None


def why_no_triton(device: str) -> str | None:
    """Why no Triton kernel runs on a device of this machine; None: they do."""
    if find_spec("triton") is None:
        return "triton is not installed: pip install 'ddbench[gpu]'"
    return None if device == "cuda" else "needs a CUDA device"


def _tree_attention_dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    mask = tree_attention_kernels.dense_mask(lengths, q.shape[1], int(lengths.max()), visible, window)
    return tree_attention_kernels.tree_attention_dense(q, k, v, mask, scale)


def _mla_dense(method: str) -> Callable[..., torch.Tensor]:
    def run(
        q: torch.Tensor,
        latent: torch.Tensor,
        rank: int,
        lengths: torch.Tensor,
        visible: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        mask = tree_attention_kernels.dense_mask(lengths, q.shape[1], int(lengths.max()), visible)
        return mla_kernels.mla_tree_attention_dense(q, latent, rank, mask, scale, method)

    return run


def _op(
    spec: ModuleType,
    implementations: Mapping[str, Callable[..., Any]],
    tolerance: float = 0.0,
    integer_outputs: bool = False,
    oracle: str = "",
    inputs: str = "make_inputs",
    cost: str = "cost",
) -> Op:
    """A row from a reference module. A module with a second op names that op's oracle, inputs and cost."""
    stem = spec.__name__.rsplit(".", 1)[-1]
    name = oracle if not oracle or stem in oracle else f"{stem}_{oracle}"
    return Op(
        name=name or stem,
        reference=getattr(spec, oracle or stem),
        implementations=implementations,
        make_inputs=getattr(spec, inputs),
        cost=getattr(spec, cost),
        tolerance=tolerance,
        integer_outputs=integer_outputs,
    )


_EXPERT_FORMS: tuple[moe_experts_kernels.Form, ...] = ("gather", "grouped", "dense")

OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        _op(rms_norm, _torch_and_triton(rms_norm_kernels.rms_norm), tolerance=1e-6),
        _op(
            rms_norm,
            _torch_and_triton(rms_norm_kernels.add_rms_norm),
            tolerance=1e-6,
            oracle="add_rms_norm",
            inputs="make_add_inputs",
            cost="add_cost",
        ),
        _op(linear, {"torch": linear_kernels.linear, "triton": TritonLauncher("linear")}, tolerance=2e-6),
        _op(
            linear,
            {"torch": linear_kernels.head_linear, "triton": TritonLauncher("linear", "head_linear_triton")},
            tolerance=2e-6,
            oracle="head_linear",
            inputs="make_head_inputs",
            cost="head_cost",
        ),
        _op(rope, {"torch": rope_kernels.rope}, tolerance=1e-6),
        _op(swiglu, _torch_and_triton(swiglu_kernels.swiglu), tolerance=1e-6),
        _op(token_rows, _torch_and_triton(token_rows_kernels.token_rows), tolerance=1e-6),
        _op(latent_rows, _torch_and_triton(latent_rows_kernels.latent_rows), tolerance=1e-6),
        _op(
            latent_rows,
            _torch_and_triton(latent_rows_kernels.compressed_rows),
            tolerance=1e-6,
            oracle="compressed_rows",
            inputs="make_compressed_inputs",
            cost="compressed_cost",
        ),
        _op(qk_rows, _torch_and_triton(qk_rows_kernels.qk_rows), tolerance=1e-6),
        _op(absorbed_query, _torch_and_triton(absorbed_query_kernels.absorbed_query), tolerance=1e-6),
        _op(
            tree_attention,
            {"dense": _tree_attention_dense, "triton": TritonLauncher("tree_attention")},
            tolerance=2e-6,
        ),
        # SDPA sums in tiles of its own: 3.3e-6 on an H200 where logits reach hundreds (plain products: 1.9e-6).
        _op(
            mla_tree_attention,
            {
                "matmul": _mla_dense("matmul"),
                "sdpa": _mla_dense("sdpa"),
                "triton": TritonLauncher("mla_tree_attention"),
            },
            tolerance=5e-6,
        ),
        _op(moe_route, _torch_and_triton(moe_route_kernels.moe_route), tolerance=1e-6, integer_outputs=True),
        _op(
            moe_experts,
            {
                **{form: partial(moe_experts_kernels.moe_experts, form=form) for form in _EXPERT_FORMS},
                "triton": TritonLauncher("moe_experts"),
            },
            tolerance=2e-6,
        ),
        _op(
            moe_experts,
            {
                **{form: partial(moe_experts_kernels.moe_experts_int4, form=form) for form in _EXPERT_FORMS},
                "triton": TritonLauncher("moe_experts", "moe_experts_int4_triton"),
            },
            tolerance=2e-6,
            oracle="moe_experts_int4",
            inputs="make_int4_inputs",
            cost="int4_cost",
        ),
        _op(int4, {"torch": int4_kernels.quantize}, integer_outputs=True, oracle="quantize"),
        _op(
            int4,
            {"torch": int4_kernels.dequantize},
            oracle="dequantize",
            inputs="make_dequantize_inputs",
            cost="dequantize_cost",
        ),
        _op(
            materialize_kv,
            {
                "sequential": materialize_kv_kernels.materialize_sequential,
                "batched": materialize_kv_kernels.materialize_batched,
                "fused": materialize_kv_kernels.materialize_fused,
                "triton": TritonLauncher("materialize_kv"),
            },
            tolerance=3e-6,
        ),
        _op(prompt_lookup, _torch_and_triton(prompt_lookup_kernels.prompt_lookup), integer_outputs=True),
        _op(draft_topk, _torch_and_triton(draft_topk_kernels.draft_topk), tolerance=1e-6, integer_outputs=True),
        _op(
            tree_build,
            {
                "heap": tree_build_kernels.tree_build_heap,
                "levelwise": tree_build_kernels.tree_build_levelwise,
                "triton": TritonLauncher("tree_build"),
            },
            integer_outputs=True,
        ),
        _op(tree_compile, _torch_and_triton(tree_compile_kernels.tree_compile), integer_outputs=True),
        _op(accept_walk, _torch_and_triton(accept_walk_kernels.accept_walk), integer_outputs=True),
        _op(advance, _torch_and_triton(advance_kernels.advance), tolerance=1e-6),
        _op(commit_kv, _torch_and_triton(commit_kv_kernels.commit_kv), integer_outputs=True),
    )
}


def _outcome(run: Callable[..., Any], inputs: Any) -> dict[str, torch.Tensor]:
    """Result tensors and the inputs as the call left them, by name, on the CPU."""
    result = run(**inputs)
    tensors = named_tensors(result, "result") | named_tensors(inputs, "inputs")
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _mismatch(name: str, got: torch.Tensor, like: torch.Tensor, expected: torch.Tensor, limit: float) -> str:
    """What is wrong with one tensor, empty where nothing is. `like` has the dtype that `got` must have."""
    if got.shape != like.shape or got.dtype != like.dtype:
        return f"{name}: {got.dtype}{list(got.shape)}, expected {like.dtype}{list(like.shape)}"
    if not got.is_floating_point():
        wrong = (got != expected).nonzero()
        if not len(wrong):
            return ""
        where = tuple(wrong[0].tolist())
        count = f"{len(wrong)} of {got.numel()} differ"
        return f"{name}: {count}, {list(where)} is {got[where]}, expected {expected[where]}"
    error = relative_error(got, expected)
    return f"{name}: relative error {error:.3g}, allowed {limit:.3g}" if error > limit else ""


def check_op(op: Op, implementation: str, size: str, seed: int = 0, device: str = "cpu") -> OpCheck:
    """Run one implementation on `device` against the specification on the CPU, on inputs of its own.

    Integers must be equal. A floating-point result may be off by `op.tolerance`, or by twice the error that the
    specification itself makes in the inputs' precision, relative to fp64. Arguments that the specification leaves alone
    must be left alone.
    """
    if implementation not in op.implementations:
        known = did_you_mean(implementation, op.implementations)
        raise UserError(f"op '{op.name}' has no implementation '{implementation}': {known}")
    inputs = op.make_inputs(seed, size)
    rounded = _outcome(op.reference, copied(inputs))
    exact = rounded if op.integer_outputs else _outcome(op.reference, to_float64(inputs))
    got = _outcome(op.implementations[implementation], copied(inputs, device))
    floats = [name for name in rounded if rounded[name].is_floating_point()]
    limit = max([op.tolerance, *(2 * relative_error(rounded[name], exact[name]) for name in floats)])
    if got.keys() != rounded.keys():
        detail = f"got {', '.join(got)}, expected {', '.join(rounded)}"
        return OpCheck(op.name, implementation, size, False, float("inf"), limit, detail)
    comparable = [name for name in floats if got[name].shape == exact[name].shape]
    error = max((relative_error(got[name], exact[name]) for name in comparable), default=0.0)
    wrong = [_mismatch(name, got[name], rounded[name], exact[name], limit) for name in rounded]
    detail = "; ".join(text for text in wrong if text)
    return OpCheck(op.name, implementation, size, not detail, error, limit, detail)
