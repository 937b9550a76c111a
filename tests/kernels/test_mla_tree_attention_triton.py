"""Claims about the Triton kernels of absorbed latent attention: their results, interpreted on the CPU in a process of
its own, and what the compiler makes of them for sm_90. Neither needs a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels are Triton programs")

ROOT = Path(__file__).resolve().parents[2]
CHECKS = [
    *(f"equals_reference_{size}" for size in ("small", "odd", "degenerate", "adversarial")),
    *(f"split_equals_reference_{size}" for size in ("small", "odd", "degenerate", "adversarial")),
    "padding_of_rank_and_heads",
    "trees_wider_than_a_word",
    "packed_words",
    "packed_words_serve_as_visible",
    "unread_rows_may_be_nan",
    "own_request_only",
    "larger_bound_changes_nothing",
    "idle_rows_are_zero",
    "blind_rows_are_zero",
    "given_outputs_are_used",
    "strided_inputs",
    "bf16_within_budget",
    "fp32_blocks",
    "splits_fill_the_device",
    "bad_input_is_refused",
]
CHILD = r'''
import json, sys, traceback
import numpy_scalars, torch
from ddbench.kernels import mla_tree_attention_triton as m
from ddbench.reference import mla_tree_attention as spec
from ddbench.reference.tree_attention import random_visible
from ddbench.testing import relative_error, error_budget

torch.set_num_threads(1)
run, oracle = m.mla_tree_attention_triton, spec.mla_tree_attention
NAN = float("nan")


def close(out, expected, bound=5e-6):
    error = relative_error(out, expected)
    assert error <= bound, f"relative error {error:.3g}"


def made(lengths, num_new, heads, rank, rope, rows, seed=0, causal=False):
    g = torch.Generator().manual_seed(seed)
    latent = torch.randn(len(lengths), rows, rank + rope, generator=g)
    for b, length in enumerate(lengths):
        latent[b, max(length, -num_new) + num_new:] = NAN
    return {
        "q": torch.randn(len(lengths), num_new, heads, rank + rope, generator=g), "latent": latent, "rank": rank,
        "lengths": torch.tensor(lengths), "scale": 0.2,
        "visible": None if causal else random_visible(len(lengths), num_new, g),
    }


def equals_reference(size, **more):
    for seed in (0, 1):
        inputs = spec.make_inputs(seed, size)
        close(run(**inputs, **more), oracle(**inputs))


def padding_of_rank_and_heads():
    inputs = made([37, 5], 9, 5, 11, 6, 60)
    for splits in (1, 2):
        close(run(**inputs, num_splits=splits), oracle(**inputs))


def trees_wider_than_a_word():
    """Bits straddle words and tiles: 70 nodes, contexts that end anywhere in a tile."""
    for lengths in ([3, 16], [63, 40]):
        inputs = made(lengths, 70, 1, 8, 4, 140)
        close(run(**inputs, num_splits=2), oracle(**inputs))


def packed_words():
    g = torch.Generator().manual_seed(0)
    for n in (1, 5, 63, 64, 65, 130):
        visible = torch.rand(2, n, n, generator=g) < 0.5
        words = m.pack_ancestors(visible.transpose(1, 2)).transpose(0, 1).tolist()
        for i in (0, n - 1):
            for b in range(2):
                bits = [(words[i][b][j // 64] >> (j % 64)) & 1 for j in range(n)]
                assert bits == visible[b, :, i].int().tolist(), (n, i, b)
                assert (words[i][b][-1] % 2**64) >> ((n - 1) % 64 + 1) == 0, "bits past the last token"


def packed_words_serve_as_visible():
    inputs = made([20, 3], 6, 2, 8, 4, 40)
    words = m.pack_ancestors(inputs["visible"])
    assert torch.equal(run(**inputs | {"visible": words}), run(**inputs))


def unread_rows_may_be_nan():
    for causal in (False, True):
        inputs = made([0, 17, 34], 6, 2, 8, 4, 40, causal=causal)
        for splits in (1, 4):
            workspace = torch.full((4 * 3 * 12 * 10,), NAN)
            out = torch.full((3, 6, 2, 8), NAN)
            run(**inputs, num_splits=splits, out=out, workspace=workspace)
            close(out, oracle(**inputs))


def own_request_only():
    """H64: each request uses its own tree and rows; swapped requests swap their outputs, to the bit."""
    inputs = made([33, 9], 6, 2, 8, 4, 40)
    out = run(**inputs, num_splits=3)
    swapped = inputs | {k: inputs[k].flip(0) for k in ("q", "latent", "lengths", "visible")}
    assert torch.equal(run(**swapped, num_splits=3), out.flip(0))
    one = inputs | {k: inputs[k][:1] for k in ("q", "latent", "lengths", "visible")}
    assert torch.equal(run(**one, num_splits=3), out[:1])


def larger_bound_changes_nothing():
    inputs = made([30, 9], 6, 2, 8, 4, 90)
    out = run(**inputs, context_bound=30, num_splits=2)
    assert torch.equal(run(**inputs, context_bound=84, num_splits=2), out)
    close(run(**inputs), out)


def idle_rows_are_zero():
    inputs = made([20, -1], 6, 2, 8, 4, 40)
    inputs["latent"][1] = NAN
    inputs["q"][1] = NAN
    for splits in (1, 3):
        out = run(**inputs, num_splits=splits)
        assert not out[1].any(), "idle row"
        one = {k: inputs[k][:1] for k in ("q", "latent", "lengths", "visible")}
        close(out[:1], oracle(**inputs | one))


def blind_rows_are_zero():
    """A token that sees nothing (padding of a small tree on an empty context)."""
    inputs = made([0, 12], 6, 2, 8, 4, 20)
    inputs["visible"][:, 4:] = False
    for splits in (1, 2):
        out = run(**inputs, num_splits=splits)
        assert not out[0, 4:].any()
        close(out, oracle(**inputs))


def given_outputs_are_used():
    inputs = made([40], 6, 2, 8, 4, 50)
    numel = m.workspace_numel(inputs["q"], 8, 44, 3)
    workspace, out = torch.full((numel,), NAN), torch.full((1, 6, 2, 8), NAN)
    result = run(**inputs, context_bound=44, num_splits=3, out=out, workspace=workspace)
    assert result.data_ptr() == out.data_ptr() and not workspace.isnan().all()
    close(out, oracle(**inputs))
    assert m.workspace_numel(inputs["q"], 8, 44, 1) == 0


def strided_inputs():
    """A layer's slice of a cache, and q as a permuted projection leaves it."""
    inputs = made([20, 11], 6, 2, 8, 4, 40)
    cache = torch.full((2, 40, 3, 12), NAN)
    cache[:, :, 1] = inputs["latent"]
    q = inputs["q"].transpose(1, 2).contiguous().transpose(1, 2)
    close(run(**inputs | {"latent": cache[:, :, 1], "q": q}), oracle(**inputs))


def bf16_within_budget():
    """The interpreter cuts fp32 off to bf16 where a device rounds: the result is the fp32 one cut off, to the bit, and
    rounded it keeps the budget. (Weights rounded to bf16 before the value product exist on a device only.)"""
    config = m._config
    for size in ("small", "odd", "adversarial"):
        inputs = spec.make_inputs(2, size)
        low = inputs | {k: inputs[k].bfloat16() for k in ("q", "latent")}
        exact = oracle(**low | {k: low[k].double() for k in ("q", "latent")})
        for splits in (1, 2):
            out = run(**low, num_splits=splits)
            m._config = lambda dtype, rank, rope: config(torch.bfloat16, rank, rope)
            wide = run(**low | {k: low[k].float() for k in ("q", "latent")}, num_splits=splits)
            m._config = config
            cut = (wide.view(torch.int32) & -65536).view(torch.float32)
            assert out.dtype == torch.bfloat16 and torch.equal(out.float(), cut)
            error, budget = relative_error(wide.bfloat16(), exact), error_budget(oracle(**low), exact)
            assert error <= budget, (error, budget)


def fp32_blocks():
    """The blocks of bf16 (64 x 64) on fp32 numbers, so that they too are held to fp32's tolerance."""
    config = m._config
    m._config = lambda dtype, rank, rope: config(torch.bfloat16, rank, rope)
    try:
        for lengths, causal in (([130, 63], False), ([64, 1], True)):
            inputs = made(lengths, 9, 8, 64, 16, 150, causal=causal)
            for splits in (1, 2):
                close(run(**inputs, num_splits=splits), oracle(**inputs))
    finally:
        m._config = config


def splits_fill_the_device():
    for batch, tiles, blocks, expected in ((1, 64, 129, 2), (16, 64, 129, 1), (1, 65, 130, 2), (16, 8, 129, 1)):
        assert m.num_context_splits(batch, tiles, blocks) == expected, (batch, tiles, blocks)
    assert 100 <= 8 * m.num_context_splits(1, 8, 129) <= 132
    assert m.num_context_splits(1, 1, 1) == m.num_context_splits(1, 1, 0) == 1


def bad_input_is_refused():
    inputs = made([20], 6, 2, 8, 4, 40)
    for change in ({"latent": inputs["latent"].double()}, {"rank": 12}, {"latent": inputs["latent"][:, :5]}):
        try:
            run(**inputs | change)
        except AssertionError:
            continue
        raise RuntimeError(f"accepted {list(change)}")


results = {}
for name in json.loads(sys.argv[1]):
    try:
        if name.startswith("equals_reference_"):
            equals_reference(name.removeprefix("equals_reference_"))
        elif name.startswith("split_equals_reference_"):
            equals_reference(name.removeprefix("split_equals_reference_"), num_splits=3)
        else:
            globals()[name]()
        results[name] = ""
    except Exception:
        results[name] = traceback.format_exc()[-2000:] or "failed"
print(json.dumps(results))
'''


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str]:
    """Each check's failure, empty where it passed. Triton decides at import whether it interprets: hence a child."""
    here = str(Path(__file__).parent)
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": here}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(CHECKS)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted(interpreted, check):
    """H64 (own tree only), and that nothing in a slot that must not be read matters."""
    assert interpreted[check] == ""


@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter does take tensors of a CPU")
def test_refuses_a_cpu():
    import torch

    from ddbench.kernels.mla_tree_attention_triton import mla_tree_attention_triton, pack_ancestors

    q, latent, lengths = torch.zeros(1, 2, 2, 12), torch.zeros(1, 8, 12), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected a CUDA device"):
        mla_tree_attention_triton(q, latent, 8, lengths, None, 0.3)
    with pytest.raises(ValueError, match="expected a CUDA device"):
        pack_ancestors(torch.ones(1, 2, 2, dtype=torch.bool))


def _entries():
    from ddbench.kernels.mla_tree_attention_triton import AOT

    return [pytest.param(entry, id=entry["name"].replace(" ", "-")) for entry in AOT]


@pytest.mark.parametrize("entry", _entries())
def test_compiles_for_hopper_without_spills(entry, tmp_path):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = entry["kernel"]
    signature = {name: entry["signature"].get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, entry["constexprs"])
    options = {name: entry[name] for name in ("num_warps", "num_stages")}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.metadata.shared <= 227 * 1024
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"STACK:(\d+) .*LOCAL:(\d+)", usage) == [("0", "0")], usage
    if entry["name"].startswith("k2.6") and "RANK" in entry["constexprs"] and "ROPE" in entry["constexprs"]:
        sass = subprocess.run([tool, "--dump-sass", cubin], capture_output=True, text=True, check=True).stdout
        # scores 64 x 64 over 576 dims, a half for each warp group; were the two products seen as chained, it were 72
        assert len(re.findall(r"HGMMA\.64x32x16", sass)) == 36
        assert len(re.findall(r"HGMMA\.64x256x16", sass)) == 4
