"""Every Triton implementation on few small inputs, to be watched by compute-sanitizer; no test of pytest's.

Run it plainly first, with ddbench installed: kernels are compiled then, and the sanitizer finds them in Triton's cache.

    python tests/gpu/sanitize.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu/sanitize.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck --error-exitcode 9 python tests/gpu/sanitize.py

Without torch's caching allocator every tensor is an allocation of its own, so that a row too many is seen: from the
cache they are cut out of large blocks, and an overrun lands in a neighbour. memcheck finds accesses out of bounds and
misaligned ones, racecheck threads of a program that meet in shared memory without a barrier.

In FP32 results are held against the specification; in BF16, and at the product's head sizes, which on Hopper have
kernels of their own, the ops just run: what they compute is for other tests to judge. Names of ops as arguments: those
only. One line for each run; the exit status is 1 if a result is wrong.
Letters: B requests, N new tokens, S cache rows, H query heads, G KV heads, T tokens, E experts, M hidden, I width.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ddbench.ops import OPS, Op, TritonLauncher, check_op, why_not
from ddbench.reference.tree_attention import random_visible
from ddbench.testing import copied

SIZES = ("small", "odd", "adversarial")
FP32_ALWAYS = frozenset(("weights", "cos", "sin", "cos_rows", "sin_rows", "bias", "log_probs", "scores"))

Run = Callable[[], str]  # -> what is wrong, empty where nothing is
Named = tuple[str, Run]


def checked(op: Op, implementation: str) -> Iterator[Named]:
    """FP32, against the specification."""
    for size in SIZES:
        yield f"fp32 {size}", partial(_complaint, op, implementation, size)


def _complaint(op: Op, implementation: str, size: str) -> str:
    return check_op(op, implementation, size, device="cuda").detail


def in_16_bits(op: Op, implementation: str) -> Iterator[Named]:
    """The same inputs in BF16, but what is FP32 by contract."""
    for size in SIZES:
        given = op.make_inputs(0, size)
        inputs = {name: value if name in FP32_ALWAYS else _half(value) for name, value in given.items()}
        yield f"bf16 {size}", _running(op.implementations[implementation], **copied(inputs, "cuda"))  # type: ignore[arg-type]


def _half(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.bfloat16() if value.is_floating_point() else value
    return type(value)(map(_half, value)) if isinstance(value, list | tuple) else value


def _running(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Run:
    def call() -> str:
        run(*args, **kwargs)
        torch.cuda.synchronize()
        return ""

    return call


# ---------------------------------------------------------------------------------------- the product's head sizes


def gqa(op: Op, implementation: str) -> Iterator[Named]:
    """Trees, causal and two-way blocks, a window; one context long, one short."""
    from ddbench.kernels.tree_attention_triton import tree_attention_triton

    sizes = ((2, 5, 300, 32, 8), (2, 33, 700, 32, 8), (1, 33, 6200, 32, 8), (1, 65, 3900, 32, 8), (2, 8, 500, 64, 8))
    for b, n, s, h, g in sizes:  # on Hopper every tile: narrow, wide, tall, long
        q, k, v = (_normal(b, rows, heads, 128) for rows, heads in ((n, h), (s + n, g), (s + n, g)))
        lengths, visible = _lengths(b, s), _visible(b, n)
        blocks: tuple[dict[str, Any], ...] = ({}, {"causal": False}, {"window": 64})
        for bits, options in ((visible, {}), *((None, options) for options in blocks)):
            name = f"bf16 B={b} N={n} S={s} {'tree' if bits is not None else options or 'causal'}"
            yield name, _running(tree_attention_triton, q, k, v, lengths, bits, 128**-0.5, context_bound=s, **options)


def mla(op: Op, implementation: str) -> Iterator[Named]:
    """Trees and chains over latent rows of 512 + 64."""
    from ddbench.kernels.mla_tree_attention_triton import mla_tree_attention_triton

    for b, n, s in ((2, 1, 300), (2, 33, 700), (1, 65, 900), (8, 9, 200)):
        q, latent = _normal(b, n, 64, 576), _normal(b, s + n, 576)
        for visible in (_visible(b, n), None):
            name = f"bf16 B={b} N={n} S={s} {'causal' if visible is None else 'tree'}"
            yield (
                name,
                _running(
                    mla_tree_attention_triton, q, latent, 512, _lengths(b, s), visible, 192**-0.5, context_bound=s
                ),
            )


def int4_experts(op: Op, implementation: str) -> Iterator[Named]:
    """A share of the experts, few tokens and many."""
    from ddbench.kernels.moe_experts_triton import moe_experts_int4_triton

    e, m, i, top_k, group, num_all = 6, 1024, 512, 4, 32, 24
    words = [_words(e, 2 * i, m // 8), _words(e, m, i // 8)]
    scales = [torch.rand(e, *shape, device="cuda").bfloat16() for shape in ((2 * i, m // group), (m, i // group))]
    for t in (1, 3, 17, 70):
        ids = torch.rand(t, num_all, device="cuda").argsort(1)[:, :top_k].contiguous()
        weights = torch.rand(t, top_k, device="cuda")
        experts = (words[0], scales[0], words[1], scales[1], group)
        yield f"bf16 T={t}", _running(moe_experts_int4_triton, _normal(t, m), ids, weights, *experts, first_expert=2)


def streamed(op: Op, implementation: str) -> Iterator[Named]:
    """Large weights in one part and in four, for every padding of the tokens; readers of the sums; a layer ahead."""
    from ddbench.kernels.prefetch_triton import prefetch_triton
    from ddbench.kernels.rms_norm_triton import add_rms_norm_triton
    from ddbench.kernels.stream_linear_triton import stream_linear_triton
    from ddbench.kernels.swiglu_triton import swiglu_triton

    for outputs, inputs in ((6400, 128), (1664, 512)):
        weight, norm = _normal(outputs, inputs), _normal(outputs)
        yield f"bf16 O={outputs} ahead", _running(prefetch_triton, [weight])
        for t in (1, 17, 33):
            x, residual = _normal(t, inputs), _normal(t, outputs)
            name = f"bf16 T={t} O={outputs}"
            yield name, _running(stream_linear_triton, x, weight, may_split=True)
            parts = stream_linear_triton(x, weight, may_split=True)
            yield f"{name} swiglu", _running(swiglu_triton, parts, in_parts=True, dtype=x.dtype)
            yield f"{name} norm", _running(add_rms_norm_triton, parts, residual, norm, 1e-6, in_parts=True)


def accepting(op: Op, implementation: str) -> Iterator[Named]:
    """The walk with its cut, of trees and of roots alone."""
    from ddbench.kernels.accept_walk_triton import accept_and_cut_triton, accept_token_triton

    for size in SIZES:
        inputs = copied(op.make_inputs(0, size), "cuda")
        batch = len(inputs["tokens"])
        limits = {"stop_ids": torch.full((batch, 3), 5, device="cuda"), "remaining": torch.arange(batch, device="cuda")}
        yield f"{size} cut", _running(accept_and_cut_triton, **inputs, **limits)
        yield f"{size} token", _running(accept_token_triton, inputs["posterior"][:, :1].contiguous(), **limits)


def compiled(op: Op, implementation: str) -> Iterator[Named]:
    """The mask in bits, and none."""
    from ddbench.kernels.tree_compile_triton import tree_compile_bits_triton, tree_compile_chain_triton

    for size in SIZES:
        inputs = copied(op.make_inputs(0, size), "cuda")
        yield f"{size} bits", _running(tree_compile_bits_triton, **inputs)
        yield f"{size} chain", _running(tree_compile_chain_triton, **inputs)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def _words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, device="cuda", dtype=torch.int32)


def _lengths(batch: int, longest: int) -> torch.Tensor:
    return torch.tensor([longest] * (batch - 1) + [min(37, longest) if batch > 1 else longest], device="cuda")


def _visible(batch: int, num_new: int) -> torch.Tensor:
    return random_visible(batch, num_new, torch.Generator().manual_seed(0)).cuda()


MORE = {
    "tree_attention": gqa,
    "mla_tree_attention": mla,
    "moe_experts_int4": int4_experts,
    "linear": streamed,
    "accept_walk": accepting,
    "tree_compile": compiled,
}


def main(names: list[str]) -> int:
    """Run the named ops, all without names; -> exit status."""
    torch.manual_seed(0)
    is_wrong = False
    if unknown := set(names) - set(OPS):
        sys.exit(f"no such op: {', '.join(sorted(unknown))}; known: {', '.join(OPS)}")
    for op in [OPS[name] for name in names] or OPS.values():
        for implementation, launcher in op.implementations.items():
            if not isinstance(launcher, TritonLauncher):
                continue
            if (reason := why_not(op, implementation, "cuda")) is not None:
                sys.exit(f"{op.name} {implementation}: {reason}")
            for source in (checked, in_16_bits, *([MORE[op.name]] if op.name in MORE else [])):
                for name, run in source(op, implementation):
                    start = time.perf_counter()
                    wrong = run()
                    verdict = f"WRONG {wrong}" if wrong else "ok" if source is checked else "ran"
                    seconds = time.perf_counter() - start
                    sys.stdout.write(f"{op.name} {implementation} {name}: {verdict} ({seconds:.2f} s)\n")
                    sys.stdout.flush()
                    is_wrong |= bool(wrong)
    return int(is_wrong)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    sys.exit(main(sys.argv[1:]))
