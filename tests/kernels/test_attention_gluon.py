"""Claims about the Hopper kernels of both attention ops, in Gluon: what the compiler makes of them for sm_90, without a
GPU, and, with one, that the launchers of `*_triton`, which call them, give what a dense attention in fp64 gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", reason="the kernels are Gluon programs")

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = [300, 0, 63, 64, 65, 127, 130, 1]
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)


def answer(script: str, *arguments: str, **settings: str) -> dict:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | settings
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.rpartition("ANSWER")[2])


def test_mla_compiles_for_hopper_without_spills():
    """Products as planned: a pair of tiles is two times 36 for scores, half of them in each warp group, and in each
    group 8 for the values of both tiles; one wait per chain of products (a compiler that sees a hazard puts one behind
    every instruction); tiles by the copy engine."""
    entries = answer("gluon_child.py", "mla_tree_attention_gluon")
    assert len(entries) == 3
    for name, numbers in entries.items():
        counts = numbers["instructions"]
        assert numbers["STACK"] == numbers["LOCAL"] == 0, name
        assert numbers["shared"] <= 227 * 1024, name
        assert (counts["HGMMA.64x64x16"], counts["HGMMA.64x256x16"], counts["wgmma waits"]) == (72, 16, 6), name
        assert counts["UTMALDG"] > 0, name
        assert "LDGSTS" not in counts, name


def test_gqa_compiles_for_hopper_without_spills():
    """As for MLA; where registers are few some words per request are on the stack, outside of the loops over blocks:
    two for the longest tile, ten for the tallest, whose three warp groups have the registers of two."""
    entries = answer("gluon_child.py", "tree_attention_gluon")
    assert len(entries) == 5
    for name, numbers in entries.items():
        counts, groups = numbers["instructions"], 3 if "33-48" in name else 2 if "17-64" in name else 1
        assert numbers["STACK"] <= (40 if "33-48" in name else 8 if "batch 16" in name else 0), name
        assert numbers["loops"] == [0] * groups, name
        assert numbers["LOCAL"] == 0, name
        assert numbers["shared"] <= 227 * 1024, name
        products = sum(count for kind, count in counts.items() if "HGMMA" in kind)
        assert counts["wgmma waits"] <= 4 * groups < 8 * groups < products, name
        assert counts["UTMALDG"] == 4, name
        assert counts["PREEXIT"] == 1, name  # lets the combine kernel start


def test_gqa_emulated_ends_and_equals_the_specification():
    """Its source on a CPU, partitions as threads: each barrier gets as many arrivals as it is waited for, whatever
    tiles, programs, lengths and idle warp groups; combined by the product's kernel, interpreted."""
    answers = answer("gluon_emulated.py", TRITON_INTERPRET="1")
    assert len(answers) >= 19
    assert {name: problem for name, problem in answers.items() if problem} == {}


def case(num_new: int, kind: str, idle: bool, generator: torch.Generator) -> tuple[list[int], torch.Tensor]:
    lengths = [-1 if idle and length == 127 else length for length in LENGTHS]
    visible = torch.rand(len(lengths), num_new, num_new, generator=generator) < 0.3
    visible |= torch.eye(num_new, dtype=torch.bool)
    if kind == "causal":
        visible = torch.ones(num_new, num_new, dtype=torch.bool).tril().expand_as(visible)
    if kind == "full":
        visible = torch.ones_like(visible)
    return lengths, visible


def softmax_weights(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """scores [heads, N, length + N] -> weights; the last N columns are seen where `visible` [N, N] says."""
    scores[..., -visible.shape[0] :] = scores[..., -visible.shape[0] :].masked_fill(~visible, float("-inf"))
    return scores.softmax(-1)


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest relative error of a request; an expected zero must be zero."""
    differences = (out.double().cpu() - expected).flatten(1).norm(dim=1)
    norms = expected.flatten(1).norm(dim=1)
    assert not differences[norms == 0].any()
    return float((differences[norms > 0] / norms[norms > 0]).max())


@needs_hopper
@pytest.mark.parametrize("num_new", [1, 5, 70])
@pytest.mark.parametrize(
    ("heads", "kind", "splits"), [(64, "tree", 1), (64, "causal", 1), (64, "causal", 2), (8, "tree", 5)]
)
def test_mla_equals_dense(num_new, heads, kind, splits):
    """Rows past the last one hold NaN, as does an idle request."""
    from ddbench.kernels.mla_tree_attention_triton import mla_tree_attention_triton

    generator = torch.Generator().manual_seed(num_new)
    lengths, visible = case(num_new, kind, True, generator)
    q = torch.randn(len(lengths), num_new, heads, 576, generator=generator).bfloat16()
    latent = torch.randn(len(lengths), 380, 576, generator=generator).bfloat16()
    expected = torch.zeros(*q.shape[:3], 512, dtype=torch.float64)
    for b, length in enumerate(lengths):
        latent[b, max(length + num_new, 0) if length >= 0 else 0 :] = float("nan")
        if length >= 0:
            rows = latent[b, : length + num_new].double()
            weights = softmax_weights(q[b].double().transpose(0, 1) @ rows.T * 0.07, visible[b])
            expected[b] = (weights @ rows[:, :512]).transpose(0, 1)
    out = mla_tree_attention_triton(
        q.cuda(), latent.cuda(), 512, torch.tensor(lengths).cuda(), None if kind == "causal" else visible.cuda(), 0.07,
        300, num_splits=splits,
    )  # fmt: skip
    assert error(out, expected) < 1e-2


@needs_hopper
@pytest.mark.parametrize("num_new", [1, 5, 33, 40, 65, 70])
@pytest.mark.parametrize(
    ("heads", "kind", "programs", "bound"),
    [(32, "tree", None, 300), (32, "tree", None, 1000), (32, "causal", 1, 300), (64, "full", 7, 300)],
)
def test_gqa_equals_dense(num_new, heads, kind, programs, bound):
    """Rows past the last one hold NaN; stretches of one program that hold many requests, and the other way round; the
    larger bound asks for the tiles of long contexts."""
    from ddbench.kernels.tree_attention_triton import tree_attention_triton

    generator = torch.Generator().manual_seed(num_new)
    lengths, visible = case(num_new, kind, False, generator)
    q = torch.randn(len(lengths), num_new, heads, 128, generator=generator).bfloat16()
    k, v = torch.randn(2, len(lengths), 380, 8, 128, generator=generator).bfloat16()
    expected = torch.zeros(q.shape, dtype=torch.float64)
    for b, length in enumerate(lengths):
        k[b, length + num_new :] = v[b, length + num_new :] = float("nan")
        keys, values = (
            cache[b, : length + num_new].double().transpose(0, 1).repeat_interleave(heads // 8, 0) for cache in (k, v)
        )
        weights = softmax_weights(q[b].double().transpose(0, 1) @ keys.mT * 0.09, visible[b])
        expected[b] = (weights @ values).transpose(0, 1)
    out = tree_attention_triton(
        q.cuda(), k.cuda(), v.cuda(), torch.tensor(lengths).cuda(), visible.cuda() if kind == "tree" else None, 0.09,
        causal=kind == "causal", context_bound=bound, programs=programs,
    )  # fmt: skip
    assert error(out, expected) < 1e-2
