"""The Triton top-k against its specification and a stable sort: interpreted where there is no GPU."""

from __future__ import annotations

import math

import pytest
import torch

from ddbench.kernels.draft_topk import draft_topk, has_nan
from ddbench.reference import draft_topk as reference

kernels = pytest.importorskip("ddbench.kernels.draft_topk_triton", reason="triton is not installed")

INF = math.inf
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {"chunk": 128, "block": 4}  # several chunks, an incomplete last block
TILINGS = [{}, SMALL, {"chunk": 32, "block": 16}]


def top(logits: torch.Tensor, k: int, **tiling: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The op under test, results on the CPU."""
    log_probs, token_ids = kernels.draft_topk_triton(logits.to(DEVICE), k, **tiling)
    assert (log_probs.dtype, token_ids.dtype) == (torch.float32, torch.int64)
    return log_probs.cpu(), token_ids.cpu()


def stable(logits: torch.Tensor, k: int) -> torch.Tensor:
    return logits.float().sort(dim=-1, descending=True, stable=True).indices[..., :k]


def assert_same(result: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(result[1].cpu(), expected[1])
    torch.testing.assert_close(result[0].cpu(), expected[0], rtol=1e-6, atol=2e-6)


def check_equals_the_reference():
    for size in ("small", "odd", "degenerate", "adversarial"):
        for seed, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16, torch.float64)):
            inputs = reference.make_inputs(seed, size)
            logits = inputs["logits"].to(dtype).clamp(max=6e4)  # fp16 has no 1e5
            expected = reference.draft_topk(logits, inputs["k"])
            for tiling in (TILINGS[0], TILINGS[1 + seed % 2]):
                result = top(logits, inputs["k"], **tiling)
                assert_same(result, expected)
                assert (result[0] <= 0).all()


def check_selection_is_a_stable_sort_whatever_the_ties():
    """H43"""
    generator = torch.Generator().manual_seed(0)
    for case in range(60):
        vocab, k, levels = (
            int(torch.randint(low, high, (), generator=generator)) for low, high in ((1, 400), (1, 40), (1, 12))
        )
        logits = torch.randint(-levels, levels + 1, (1, 2, vocab), generator=generator).float()
        if case % 4 == 1:
            logits = torch.zeros_like(logits)
        if case % 4 == 2:
            logits = logits.where(torch.rand(logits.shape, generator=generator) < 0.05, -INF)
        if case % 4 == 3:
            logits = logits * torch.randn(logits.shape, generator=generator)
        log_probs, token_ids = top(logits, k, **TILINGS[case % 3])
        assert torch.equal(token_ids, stable(logits, k)), (case, vocab, k)
        assert torch.equal(log_probs == -INF, logits.gather(-1, token_ids) == -INF)


def check_a_large_vocabulary_with_ties_across_blocks():
    logits = (torch.randn(1, 2, 32003, generator=torch.Generator().manual_seed(0)) * 3).to(torch.bfloat16)
    for k in (1, 2, 64, 200):
        assert_same(top(logits, k), draft_topk(logits, k))


def check_the_whole_best_in_one_block():
    """The second selection's start, the blocks' threshold, is far below the K-th token here."""
    for first in (0, 64, 8128):
        logits = torch.linspace(-5, 5, 8192).flip(0).reshape(1, 1, -1).clone()
        logits[..., first : first + 64] = torch.arange(64.0) + 100
        log_probs, token_ids = top(logits, 64)
        assert token_ids.flatten().tolist() == list(range(first + 63, first - 1, -1))
        assert (log_probs.diff() < 0).all()


def check_extremes_of_fp32_keep_their_order():
    values = [3.4e38, 1.0, 1e-45, 0.0, -0.0, -1e-45, -1.0, -3.4e38, -INF]
    logits = torch.tensor(values[::-1]).reshape(1, 1, -1)
    token_ids = top(logits, 9, **SMALL)[1].flatten().tolist()
    assert token_ids == [8, 7, 6, 4, 5, 3, 2, 1, 0]


def check_a_broken_logit_makes_its_row_nan_and_no_other():
    """H46: also a NaN whose sign bit sorts it behind everything, and rows of nothing else."""
    for bits in (0x7FC00000, -0x400000, -1, 0x7FFFFFFF, 0x7F800000):
        broken = torch.tensor([bits], dtype=torch.int32).view(torch.float32)[0]
        for rest, at, k in ((0.0, 217, 1), (-INF, 217, 16), (0.0, slice(None), 16)):
            logits = torch.full((3, 1, 300), rest)
            logits[1, 0, at] = broken
            log_probs, token_ids = top(logits, k, **SMALL)
            assert has_nan(log_probs).tolist() == [False, True, False]
            assert log_probs[1, 0].isnan().all()
            assert ((token_ids >= 0) & (token_ids < 300)).all()
            assert all(row.unique().numel() == k for row in token_ids.flatten(0, 1))


def check_widened_logits_give_the_same():
    """So that nobody has to widen them: the same tokens, and log-probabilities whose sums may have another order."""
    logits = (torch.randn(2, 3, 700, generator=torch.Generator().manual_seed(5)) * 4).to(torch.bfloat16)
    (narrow, narrow_ids), (wide, wide_ids) = (top(given, 20, **SMALL) for given in (logits, logits.float()))
    assert torch.equal(narrow_ids, wide_ids)
    torch.testing.assert_close(narrow, wide, rtol=2e-6, atol=1e-6)


def check_rows_without_candidates_have_no_nan():
    logits = torch.randn(2, 2, 50)
    logits[0, 1] = -INF
    for k in (1, 3, 16):
        log_probs, _ = top(logits, k, **SMALL)
        assert (log_probs[0, 1] == -INF).all()
        assert not log_probs.isnan().any()


def check_requests_do_not_see_each_other():
    """H64: bitwise, whatever the batch; an idle row may hold anything."""
    logits = reference.make_inputs(0, "odd")["logits"]
    together = top(logits, 7, **SMALL)
    idle = logits.clone()
    idle[1] = math.nan
    beside_idle = top(idle, 7, **SMALL)
    for b in (0, 2):
        for alone, both, beside in zip(top(logits[b : b + 1], 7, **SMALL), together, beside_idle, strict=True):
            assert torch.equal(alone[0], both[b])
            assert torch.equal(beside[b], both[b])


def check_nothing_outside_of_a_view_is_read():
    storage = torch.full((3, 6, 200), math.nan, device=DEVICE)
    for view in (storage[:2, 1:, 3:133], storage[1:, ::2, :130], storage[:2].transpose(1, 2)[:, :6, 1:5]):
        storage.fill_(math.nan)
        view.copy_(torch.randn(view.shape, generator=torch.Generator().manual_seed(0)))
        assert_same(kernels.draft_topk_triton(view, 16, **SMALL), draft_topk(view.contiguous().cpu(), 16))


def check_results_and_workspace_may_be_passed_in():
    """As a captured graph does: the same memory again and again, whatever it holds."""
    first = reference.make_inputs(0, "odd")["logits"].to(DEVICE)
    out = torch.full((3, 5, 17), math.nan, device=DEVICE), torch.full((3, 5, 17), -7, device=DEVICE)
    workspace = kernels.draft_topk_workspace(first, 17, **SMALL)
    for tensor in workspace:
        tensor.fill_(math.nan if tensor.is_floating_point() else 2**62)
    for logits in (first, -first, first.round()):
        assert kernels.draft_topk_triton(logits, 17, out=out, workspace=workspace, **SMALL)[0] is out[0]
        assert_same(out, reference.draft_topk(logits.cpu(), 17))


def check_a_width_of_zero_is_empty():
    log_probs, token_ids = top(torch.zeros(2, 3, 5), 0)
    assert log_probs.shape == token_ids.shape == (2, 3, 0)


@pytest.mark.parametrize("name", [name for name in list(globals()) if name.startswith("check_")])
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills(compiled):
    warps = {entry["name"]: entry["num_warps"] for entry in kernels.AOT}
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    assert {name for name, usage in compiled.items() if usage["REG"] * 32 * warps[name] > 65536} == set()
    for name, usage in compiled.items():
        if "partial" in name:  # the vocabulary goes by 16 bytes at a time
            assert {access for access in usage["accesses"] if access.startswith("ld.global")} == {"ld.global.v4.b32"}


@pytest.mark.parametrize(("k", "vocab", "message"), [(-2, 3, "got -2"), (300, 400, "k = 300"), (1, 2**21, "2097152")])
def test_what_it_cannot_do_is_an_error(k, vocab, message):
    with pytest.raises(ValueError, match=message):
        kernels.draft_topk_triton(torch.zeros(1, 1, vocab), k)


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_a_tensor_on_the_cpu_is_refused():
    with pytest.raises(ValueError, match="runs on a GPU: got logits on cpu"):
        kernels.draft_topk_triton(torch.zeros(1, 1, 3), 2)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 64])
def test_equals_the_torch_implementation_at_the_product_shape(k, dtype):
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    logits = (torch.randn(16, 7, 163840, generator=generator, device=DEVICE) * 3).to(dtype)
    log_probs, token_ids = kernels.draft_topk_triton(logits, k)
    expected = draft_topk(logits, k)
    assert torch.equal(token_ids, expected[1])
    torch.testing.assert_close(log_probs, expected[0], rtol=1e-6, atol=4e-6)
