"""Which implementation of every op the models and the engine run: plain torch, or Triton on a CUDA device.

The two sets answer to the same calls, so that models and parts are written once. `EngineSpec.kernels` names the set; it
is handed over when models are loaded and parts are built, and a case records it as a path that ran.
Letters: B batch rows, N new tokens, S cache rows, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ddbench.kernels import (
    absorbed_query,
    accept_walk,
    advance,
    commit_kv,
    draft_topk,
    linear,
    materialize_kv,
    moe_experts,
    moe_route,
    prompt_lookup,
    rms_norm,
    rope,
    swiglu,
    token_rows,
    tree_attention,
    tree_build,
    tree_compile,
)

Op = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """One callable per op; arguments and results as in `kernels/<op>.py`, unless said otherwise."""

    name: str
    linear: Op
    linear_parts: Op  # as `linear`, or [S, ..., O] fp32, a dim more, for readers that add (`in_parts`)
    head_linear: Op
    prefetch: Op  # (tensors): they are asked for into the L2 cache, where a device can be; no result depends on it
    token_rows: Op
    rms_norm: Op
    add_rms_norm: Op
    swiglu: Op
    plan_rows: Op  # (lengths [B], N) -> cache rows of a forward's new tokens, in place of `lengths` in the next two
    latent_rows: Op
    compressed_rows: Op
    qk_rows: Op
    absorbed_query: Op
    moe_route: Op
    moe_experts: Op
    moe_experts_int4: Op
    plan_block: Op  # (lengths [B], N, context_bound, window, is_causal) -> a plan for `attend_block`, one per forward
    attend_block: Op  # (q [B, N, H, D], k and v [B, S, G, D], plan, scale) -> [B, N, H, D]
    prompt_lookup: Op
    draft_topk: Op
    tree_build: Op  # a root's score is NaN where one of the request's log-probabilities is
    tree_build_chain: Op  # (log_probs and token_ids [B, L, 1]); likewise
    greedy: Op  # logits [B, N, V] -> [B, N] int64, ties to the lower id
    tree_compile: Op
    tree_compile_bits: Op  # the same with the mask in bits, [B, N, W] int32, W even; for attention that reads them
    tree_compile_chain: Op  # (tokens, parents, depths, num_nodes, anchors, lengths) -> input_ids, positions [B, N]
    accept: Op  # accept_walk's arguments, with stop_ids and remaining before the horizon; -> its results, cut, finished
    accept_token: Op  # (tokens [B, 1], stop_ids, remaining): the same of trees that are roots alone
    commit_rows: Op  # (caches, lengths, path, num_emitted), the root counted
    advance: Op
    materialize: Op


class _Block(NamedTuple):
    lengths: torch.Tensor
    context_bound: int
    window: int | None
    is_causal: bool


_Rows = tuple[torch.Tensor, torch.Tensor]  # batch row and cache row of every new token, [B, 1] and [B, N]


def _plan_rows(lengths: torch.Tensor, num_new: int) -> _Rows:
    batch_rows = torch.arange(len(lengths), device=lengths.device)[:, None]
    return batch_rows, lengths[:, None] + torch.arange(num_new, device=lengths.device)


def _latent_rows(
    kv: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    cos_rows: torch.Tensor,
    sin_rows: torch.Tensor,
    rows: _Rows,
    cache: torch.Tensor,
) -> None:
    """`kernels.latent_rows` for rows that are known to lie in the cache: to skip others takes ten ops a layer."""
    latent, k_rope = kv.split((len(norm_weight), kv.shape[-1] - len(norm_weight)), dim=-1)
    rotated = rope.rope(k_rope[:, :, None], cos_rows, sin_rows)[:, :, 0]
    new = torch.cat((rms_norm.rms_norm(latent, norm_weight, eps), rotated), dim=-1)
    cache[rows] = new if new.dtype == cache.dtype else new.to(cache.dtype)  # wider: of parts


def _compressed_rows(
    parts: torch.Tensor,
    q_weight: torch.Tensor,
    kv_weight: torch.Tensor,
    q_eps: float,
    kv_eps: float,
    cos_rows: torch.Tensor,
    sin_rows: torch.Tensor,
    rows: _Rows,
    cache: torch.Tensor,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`kernels.compressed_rows`, likewise."""
    q, kv = linear.added(parts).split((len(q_weight), parts.shape[-1] - len(q_weight)), dim=-1)
    _latent_rows(kv, kv_weight, kv_eps, cos_rows, sin_rows, rows, cache)
    return rms_norm.rms_norm(q, q_weight, q_eps).to(dtype or parts.dtype)


def _qk_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_rows: torch.Tensor,
    sin_rows: torch.Tensor,
    rows: _Rows,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> torch.Tensor:
    """`kernels.qk_rows`, likewise."""
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm.rms_norm(q, q_norm, eps), rms_norm.rms_norm(k, k_norm, eps)
    k_cache[rows], v_cache[rows] = rope.rope(k, cos_rows, sin_rows), v
    return rope.rope(q, cos_rows, sin_rows)


def _dense_plan(lengths: torch.Tensor, num_new: int, bound: int, window: int | None, is_causal: bool) -> torch.Tensor:
    return tree_attention.dense_mask(lengths, num_new, bound, None, window=window, causal=is_causal)


def _greedy(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(dim=-1)


def _not_asked_for(tensors: Sequence[torch.Tensor]) -> None:
    """Nothing: plain torch has no such op."""


def _no_bits(*_: Any) -> Any:
    raise AssertionError("no attention of plain torch reads a mask in bits")


def _accept(
    tokens: torch.Tensor,
    parents: torch.Tensor,
    num_nodes: torch.Tensor,
    posterior: torch.Tensor,
    stop_ids: torch.Tensor,
    remaining: torch.Tensor,
    horizon: int,
) -> tuple[torch.Tensor, ...]:
    path, num_accepted, emitted, num_emitted = accept_walk.accept_walk(tokens, parents, num_nodes, posterior, horizon)
    num_emitted, finished = accept_walk.truncate(emitted, num_emitted, stop_ids, remaining)
    return path, num_accepted, emitted, num_emitted, finished


def _accept_token(tokens: torch.Tensor, stop_ids: torch.Tensor, remaining: torch.Tensor) -> tuple[torch.Tensor, ...]:
    none = torch.zeros_like(tokens)
    finished = (remaining <= 1) | (tokens == stop_ids).any(1)
    return none, none[:, 0], tokens, remaining.clamp(max=1), finished


def _tree_build(log_probs: torch.Tensor, token_ids: torch.Tensor, node_budget: int) -> tree_build.Trees:
    trees = tree_build.tree_build_levelwise(log_probs, token_ids, node_budget)
    trees[3][:, 0].masked_fill_(draft_topk.has_nan(log_probs), torch.nan)
    return trees


def _tree_build_chain(log_probs: torch.Tensor, token_ids: torch.Tensor) -> tree_build.Trees:
    trees = tree_build.tree_build_chain(log_probs, token_ids)
    trees[3][:, 0].masked_fill_(draft_topk.has_nan(log_probs), torch.nan)
    return trees


def _commit_rows(
    caches: Sequence[torch.Tensor], lengths: torch.Tensor, path: torch.Tensor, num_emitted: torch.Tensor
) -> None:
    commit_kv.commit_kv(caches, lengths, path, num_emitted - 1)


TORCH = KernelSet(
    name="torch",
    linear=linear.linear,
    linear_parts=linear.linear,
    head_linear=linear.head_linear,
    prefetch=_not_asked_for,
    token_rows=token_rows.token_rows,
    rms_norm=rms_norm.rms_norm,
    add_rms_norm=rms_norm.add_rms_norm,
    swiglu=swiglu.swiglu,
    plan_rows=_plan_rows,
    latent_rows=_latent_rows,
    compressed_rows=_compressed_rows,
    qk_rows=_qk_rows,
    absorbed_query=absorbed_query.absorbed_query,
    moe_route=moe_route.moe_route,
    moe_experts=moe_experts.moe_experts,
    moe_experts_int4=moe_experts.moe_experts_int4,
    plan_block=_dense_plan,
    attend_block=tree_attention.tree_attention_dense,
    prompt_lookup=prompt_lookup.prompt_lookup,
    draft_topk=draft_topk.draft_topk,
    tree_build=_tree_build,
    tree_build_chain=_tree_build_chain,
    greedy=_greedy,
    tree_compile=tree_compile.tree_compile,
    tree_compile_bits=_no_bits,
    tree_compile_chain=tree_compile.tree_compile_chain,
    accept=_accept,
    accept_token=_accept_token,
    commit_rows=_commit_rows,
    advance=advance.advance,
    materialize=materialize_kv.materialize_fused,
)


def triton_set() -> KernelSet:
    """The Triton launchers; triton is imported here and nowhere before."""
    from ddbench.kernels import (
        absorbed_query_triton,
        accept_walk_triton,
        advance_triton,
        commit_kv_triton,
        draft_topk_triton,
        latent_rows_triton,
        linear_triton,
        materialize_kv_triton,
        moe_experts_triton,
        moe_route_triton,
        prefetch_triton,
        prompt_lookup_triton,
        qk_rows_triton,
        rms_norm_triton,
        swiglu_triton,
        token_rows_triton,
        tree_attention_triton,
        tree_build_triton,
        tree_compile_triton,
    )

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: _Block, scale: float) -> torch.Tensor:
        return tree_attention_triton.tree_attention_triton(
            q, k, v, plan.lengths, None, scale, plan.window, causal=plan.is_causal, context_bound=plan.context_bound
        )

    def build_chain(log_probs: torch.Tensor, token_ids: torch.Tensor) -> tree_build.Trees:
        return tree_build_triton.tree_build_triton(log_probs, token_ids, log_probs.shape[1], marks_nan=True)

    def commit(caches: Sequence[torch.Tensor], lengths: torch.Tensor, path: torch.Tensor, kept: torch.Tensor) -> None:
        commit_kv_triton.commit_kv_triton(caches, lengths, path, kept, counts_root=True)

    return KernelSet(
        name="triton",
        linear=linear_triton.linear_triton,
        linear_parts=linear_triton.linear_parts_triton,
        head_linear=linear_triton.head_linear_triton,
        prefetch=prefetch_triton.prefetch_triton,
        token_rows=token_rows_triton.token_rows_triton,
        rms_norm=rms_norm_triton.rms_norm_triton,
        add_rms_norm=rms_norm_triton.add_rms_norm_triton,
        swiglu=swiglu_triton.swiglu_triton,
        plan_rows=lambda lengths, num_new: lengths,
        latent_rows=latent_rows_triton.latent_rows_triton,
        compressed_rows=latent_rows_triton.compressed_rows_triton,
        qk_rows=qk_rows_triton.qk_rows_triton,
        absorbed_query=absorbed_query_triton.absorbed_query_triton,
        moe_route=moe_route_triton.moe_route_triton,
        moe_experts=moe_experts_triton.moe_experts_triton,
        moe_experts_int4=moe_experts_triton.moe_experts_int4_triton,
        plan_block=lambda lengths, num_new, bound, window, is_causal: _Block(lengths, bound, window, is_causal),
        attend_block=attend,
        prompt_lookup=prompt_lookup_triton.prompt_lookup_triton,
        draft_topk=draft_topk_triton.draft_topk_triton,
        tree_build=partial(tree_build_triton.tree_build_triton, marks_nan=True),
        tree_build_chain=build_chain,
        tree_compile=tree_compile_triton.tree_compile_triton,
        tree_compile_bits=tree_compile_triton.tree_compile_bits_triton,
        tree_compile_chain=tree_compile_triton.tree_compile_chain_triton,
        greedy=accept_walk_triton.greedy_posterior_triton,
        accept=accept_walk_triton.accept_and_cut_triton,
        accept_token=accept_walk_triton.accept_token_triton,
        commit_rows=commit,
        advance=advance_triton.advance_triton,
        materialize=materialize_kv_triton.materialize_kv_triton,
    )


def kernel_set(name: str) -> KernelSet:
    """The set that a spec names."""
    return TORCH if name == TORCH.name else triton_set()


def plain_ops(module: nn.Module, kernels: KernelSet) -> tuple[str, ...]:
    """Ops that a model runs in plain torch whatever the set is, which has nothing for the form that it needs."""
    if kernels is TORCH:
        return ()
    return tuple(sorted({op for child in module.modules() for op in getattr(child, "plain_ops", ())}))


def use_kernels(module: nn.Module, kernels: KernelSet) -> None:
    """Let every layer of a model run this set; layers start with plain torch, and with their projections apart."""
    is_on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    side_stream = torch.cuda.Stream() if is_on_gpu and kernels is not TORCH else None  # one for all layers
    for child in module.modules():
        if hasattr(child, "side_stream"):
            child.side_stream = side_stream  # type: ignore[assignment]
        if hasattr(child, "kernels"):
            child.kernels = kernels  # type: ignore[assignment]
        if (projections := getattr(child, "projections", None)) is not None:
            projections.join(kernels is not TORCH)
        if (prefetch := getattr(child, "prefetch", None)) is not None:
            prefetch.use(kernels, side_stream)
