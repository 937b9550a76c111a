"""The walk, the cut and the greedy posterior in Triton against their specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import accept_walk as reference

kernels = pytest.importorskip("ddbench.kernels.accept_walk_triton", reason="triton is not installed")

SIZES = ("small", "odd", "degenerate", "adversarial")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(inputs):
    return {name: value.to(DEVICE) if torch.is_tensor(value) else value for name, value in inputs.items()}


def assert_same(outputs, expected):
    for mine, other in zip(outputs, expected, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine.cpu(), other.cpu()), f"{mine.tolist()}, expected {other.tolist()}"


def limits(batch, seed, num_stops=2):
    generator = torch.Generator().manual_seed(seed)
    stop_ids = torch.randint(-2, 3, (batch, num_stops), generator=generator).clamp(min=-1)
    return stop_ids, torch.randint(-1, 6, (batch,), generator=generator)


def check_walk_equals_the_reference():
    """H66, H67, H68: root-only trees, absent tokens, poisoned unused slots."""
    for size in SIZES:
        for seed in range(4):
            inputs = reference.make_inputs(seed, size)
            assert_same(kernels.accept_walk_triton(**on_device(inputs)), reference.accept_walk(**inputs))


def check_a_chain_is_followed_up_to_the_first_mismatch():
    """The doubling takes enough steps around powers of two: a mismatch at any node hides all nodes below it."""
    for depth in (1, 2, 3, 4, 5, 8, 9):
        index = torch.arange(depth + 1, device=DEVICE)
        tokens = (index - 1).repeat(depth + 1, 1)  # row b breaks at node b + 1; the last row does not break
        posterior = torch.where(index == index[:, None], 99, index)
        path, num_accepted, emitted, num_emitted = kernels.accept_walk_triton(
            tokens, tokens, index * 0 + depth, posterior, depth
        )
        on_path = index <= index[:, None]
        assert_same((num_accepted, num_emitted), (index, index + 1))
        assert_same((path, emitted), (torch.where(on_path, index, -1), torch.where(on_path, posterior, -1)))


def check_wide_trees():
    """A fan of 300 nodes and a chain of 20 in 301 slots: more slots than one warp takes."""
    slots, horizon = 301, 20
    index = torch.arange(slots)
    tokens = torch.stack((index + 1000, index))
    parents = torch.stack((torch.zeros_like(index), index - 1))
    posterior = torch.stack((torch.full_like(index, 1299), index + 1))
    inputs = {"tokens": tokens, "parents": parents, "num_nodes": torch.tensor([300, 20]), "posterior": posterior}
    outputs = kernels.accept_walk_triton(**on_device(inputs), horizon=horizon)
    assert_same(outputs, reference.accept_walk(**inputs, horizon=horizon))
    assert outputs[0][0, :2].tolist() == [0, 299]
    assert outputs[1].tolist() == [1, 20]


def check_what_unused_slots_hold_changes_nothing():
    """H68: any 64-bit pattern, also one that would match."""
    inputs = reference.make_inputs(1, "odd")
    expected = reference.accept_walk(**inputs)
    unused = torch.arange(31) > inputs["num_nodes"][:, None]
    assert unused.any()
    for value in (-(2**63), -1, 0, 1, 2**31, 2**32, 2**63 - 1):
        garbage = {name: inputs[name].where(~unused, value) for name in ("tokens", "parents", "posterior")}
        assert_same(kernels.accept_walk_triton(**on_device({**inputs, **garbage})), expected)


def check_what_is_no_parent_or_no_token_never_matches():
    """A broken tree costs its own request acceptance, never a read elsewhere; ids are compared in full."""
    for parent in (-(2**63), -1, 2, 3, 2**32, 2**63 - 1):
        inputs = {"tokens": torch.tensor([[-1, 5, 5]]), "parents": torch.tensor([[-1, parent, parent]])}
        inputs |= {"num_nodes": torch.tensor([2]), "posterior": torch.tensor([[5, 5, 5]])}
        path, num_accepted, emitted, _ = kernels.accept_walk_triton(**on_device(inputs), horizon=2)
        assert (path.tolist(), num_accepted.tolist(), emitted.tolist()) == ([[0, -1, -1]], [0], [[5, -1, -1]])
    inputs["parents"], inputs["posterior"] = torch.tensor([[-1, 0, 1]]), torch.tensor([[2**32 + 5, 5, 5]])
    assert kernels.accept_walk_triton(**on_device(inputs), horizon=2)[1].tolist() == [0]


def check_the_cut_in_the_same_launch_equals_both_ops():
    """H82"""
    for size in SIZES:
        inputs = reference.make_inputs(2, size)
        for num_stops in (0, 1, 3):
            stop_ids, remaining = limits(len(inputs["tokens"]), num_stops, num_stops)
            path, num_accepted, emitted, num_emitted = reference.accept_walk(**inputs)
            cut = reference.truncate(emitted, num_emitted, stop_ids, remaining)
            outputs = kernels.accept_and_cut_triton(
                **on_device({**inputs, "stop_ids": stop_ids, "remaining": remaining})
            )
            assert_same(outputs, (path, num_accepted, emitted, *cut))


def check_a_token_without_a_tree_is_a_walk_over_a_root_alone():
    """Idle, at its last token, with room, and at a stop; a pad among the stop ids never matches."""
    tokens = torch.tensor([[7], [7], [7], [9], [-1]])
    stop_ids = torch.tensor([[9, -1]]).expand(5, -1).contiguous()
    remaining = torch.tensor([0, 1, 5, 5, 5])
    root = (torch.full_like(tokens, -1), torch.full_like(tokens, -1), torch.zeros(5, dtype=torch.int64))
    walk = reference.accept_walk(*root, tokens, 0)
    expected = (*walk[:3], *reference.truncate(walk[2], walk[3], stop_ids, remaining))
    given = (tensor.to(DEVICE) for tensor in (tokens, stop_ids, remaining))
    for mine, other in zip(kernels.accept_token_triton(*given), expected, strict=True):
        assert torch.equal(mine.cpu(), other)
    assert expected[3].tolist() == [0, 1, 1, 1, 1]
    assert expected[4].tolist() == [True, True, False, True, False]


def check_outputs_are_written_where_asked():
    inputs = reference.make_inputs(3, "odd")
    shapes = ((5, 8), (5,), (5, 8), (5,))
    out = tuple(torch.full(shape, -77, device=DEVICE) for shape in shapes)
    outputs = kernels.accept_walk_triton(**on_device(inputs), out=out)
    assert all(mine is given for mine, given in zip(outputs, out, strict=True))
    assert_same(out, reference.accept_walk(**inputs))


def check_permuting_requests_permutes_paths():
    """H64: unequal trees."""
    inputs = reference.make_inputs(3, "odd")
    order = torch.tensor([4, 2, 0, 1, 3])
    permuted = {name: value[order] if torch.is_tensor(value) else value for name, value in inputs.items()}
    outputs = kernels.accept_walk_triton(**on_device(inputs))
    assert_same(kernels.accept_walk_triton(**on_device(permuted)), [output.cpu()[order] for output in outputs])


def check_greedy_posterior_equals_the_reference():
    """Ties to the lower id within and across chunks, odd vocabularies, all-equal and infinite rows."""
    generator = torch.Generator().manual_seed(0)
    for vocab in (1, 9, kernels.BLOCK_V, kernels.BLOCK_V + 1, 3 * kernels.BLOCK_V - 5):
        logits = torch.randint(-2, 3, (2, 2, vocab), generator=generator).to(torch.bfloat16)
        logits[0, 0] = 0
        logits[0, 1] = -torch.inf
        logits[1, 0, -1] = 7
        for dtype in (torch.bfloat16, torch.float32):
            tokens = kernels.greedy_posterior_triton(logits.to(DEVICE, dtype))
            assert_same([tokens], [reference.sample_posterior(logits, 0.0)])


def check_greedy_posterior_takes_several_steps_per_chunk():
    """Many rows share the machine: a chunk is then several tiles; first and last of equals far apart."""
    rows = kernels.PROGRAMS if DEVICE == "cuda" else 1
    vocab = 3 * kernels.BLOCK_V
    logits = torch.zeros(1, rows, vocab, device=DEVICE)
    logits[..., 5], logits[..., 2 * kernels.BLOCK_V + 5] = 1, 1
    chunks, steps = kernels.posterior_chunks(kernels.PROGRAMS, vocab)
    assert (chunks, steps) == (1, 3)
    kernel = kernels._argmax_chunk_kernel
    value, index = torch.empty(rows, 1, device=DEVICE), torch.empty(rows, 1, dtype=torch.int32, device=DEVICE)
    kernel[(rows, 1)](
        *(logits, index, value, index, vocab, vocab, 3, 1, rows), HAS_COUNTS=False, BLOCK_V=kernels.BLOCK_V,
        num_warps=8, **kernels.dependence(logits),
    )  # fmt: skip
    assert (value == 1).all()
    assert (index == 5).all()


def check_greedy_posterior_does_not_read_unused_slots():
    """NaN there; -1 comes out. In a used slot a NaN shows, as in torch."""
    logits = torch.randn(2, 3, 70, generator=torch.Generator().manual_seed(0))
    logits[1, 1, 31] = torch.nan
    expected = logits.argmax(-1)
    assert expected[1, 1] == 31
    num_nodes = torch.tensor([0, 1])
    unused = torch.arange(3) > num_nodes[:, None]
    logits[unused] = torch.nan
    workspace = torch.full((6, 1), 77.0, device=DEVICE), torch.full((6, 1), 77, dtype=torch.int32, device=DEVICE)
    tokens = kernels.greedy_posterior_triton(logits.to(DEVICE), num_nodes=num_nodes.to(DEVICE), workspace=workspace)
    assert_same([tokens], [expected.where(~unused, -1)])
    assert torch.equal((workspace[0] == 77).cpu(), unused.reshape(6, 1))


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    assert "bar.sync" not in compiled["walk-64-h7"]["accesses"]  # one warp, nothing to wait for
    assert "ld.global.v4.b32" in compiled["argmax"]["accesses"]  # 16 bytes at a time


def test_chunks_cover_the_vocabulary():
    for num_rows in (1, 7, 65, 1040, 5000):
        for vocab in (1, 4096, 4097, 151_936, 163_840):
            chunks, steps = kernels.posterior_chunks(num_rows, vocab)
            tiles = -(-vocab // kernels.BLOCK_V)
            assert (chunks - 1) * steps < tiles <= chunks * steps  # and none is empty


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="tokens is on cpu, need a CUDA device"):
        kernels.accept_walk_triton(**reference.make_inputs(0, "small"))
    with pytest.raises(ValueError, match="logits is on cpu, need a CUDA device"):
        kernels.greedy_posterior_triton(torch.zeros(1, 1, 5))
