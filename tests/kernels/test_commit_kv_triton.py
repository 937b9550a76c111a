"""The commit in Triton against its specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import commit_kv as reference

kernels = pytest.importorskip("ddbench.kernels.commit_kv_triton", reason="triton is not installed")

SIZES = ("small", "odd", "degenerate", "adversarial")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REST = ("lengths", "path", "num_accepted")


def bits(cache):
    return cache.cpu().contiguous().view(torch.int8)


def assert_commits(inputs, rest=None, **options):
    """The kernel does to the caches what the reference does; `rest` changes what the kernel is given beside them."""
    mine = [cache.clone().to(DEVICE) for cache in inputs["caches"]]
    expected = [cache.clone() for cache in inputs["caches"]]
    given = {**{name: inputs[name] for name in REST}, **(rest or {})}
    kernels.commit_kv_triton(mine, **{name: tensor.to(DEVICE) for name, tensor in given.items()}, **options)
    reference.commit_kv(expected, *(inputs[name] for name in REST))
    for cache, other in zip(mine, expected, strict=True):
        assert torch.equal(bits(cache), bits(other))


def check_equals_the_reference():
    """H78, H80: overlapping moves, identity and root-only paths; caches of three shapes and two element sizes."""
    for size in SIZES:
        for seed in range(3):
            assert_commits(reference.make_inputs(seed, size))


def check_every_count_of_caches():
    """One to six caches of different layers, rows and widths; the narrowest and the widest rows in one launch."""
    inputs = reference.make_inputs(1, "adversarial")
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 33, 1), (3, 4, 40, 1030), (2, 4, 33, 5, 4), (1, 4, 50, 16), (2, 4, 33, 2, 2, 3), (4, 4, 33))
    caches = [torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes]
    for count in range(1, len(caches) + 1):
        assert_commits({**inputs, "caches": caches[:count]})


def check_every_element_type_keeps_its_bits():
    """Also the payloads of NaN, in types of 1, 2, 4 and 8 bytes side by side."""
    inputs = reference.make_inputs(3, "odd")
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(-(2**63), 2**63 - 1, (2, 3, 61, 4), generator=generator)
    kinds = (torch.float8_e4m3fn, torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for kind in kinds:
        inputs["caches"] = [raw.view(kind)]
        mine = raw.clone().view(kind).to(DEVICE)
        kernels.commit_kv_triton([mine], *(inputs[name].to(DEVICE) for name in REST))
        words = raw.clone().view(torch.int8)
        reference.commit_kv([words], *(inputs[name] for name in REST))
        assert torch.equal(bits(mine), words)
    mixed = [raw.clone().view(kind).to(DEVICE) for kind in (torch.float32, torch.float8_e4m3fn)]
    kernels.commit_kv_triton(mixed, *(inputs[name].to(DEVICE) for name in REST))
    assert all(torch.equal(bits(cache), words) for cache in mixed)


def check_moves_in_any_order():
    """Cycles: every row is read before any is written."""
    inputs = reference.make_inputs(0, "adversarial")
    inputs["path"] = torch.stack([torch.cat((torch.tensor([0]), torch.randperm(8) + 1)) for _ in range(4)])
    inputs["num_accepted"] = torch.tensor([8, 8, 7, 0])
    inputs["lengths"] = torch.tensor([0, 5, 24, 30])
    assert_commits(inputs)


def check_a_view_into_a_larger_buffer_is_written_in_place():
    inputs = reference.make_inputs(1, "odd")
    rest = [inputs[name] for name in REST]
    cache = inputs["caches"][0]  # [3, 3, 61, 2, 4]
    buffer = torch.full((3, 5, 61, 2, 4), 7.0, device=DEVICE)
    view = buffer[:, 1:-1]
    view.copy_(cache)
    latent = torch.full((3, 5, 61, 8), 7.0, device=DEVICE)
    latent_view = latent[:, 1:-1, :, 2:-1]
    latent_view.copy_(inputs["caches"][1])
    kernels.commit_kv_triton([view, latent_view], *(tensor.to(DEVICE) for tensor in rest))
    reference.commit_kv(inputs["caches"][:2], *rest)
    for whole, part, expected in ((buffer, view, cache), (latent, latent_view, inputs["caches"][1])):
        assert torch.equal(part.cpu(), expected)
        part.fill_(7.0)
        assert (whole == 7.0).all()


def check_what_pads_hold_is_never_an_index():
    """H68"""
    inputs = reference.make_inputs(0, "small")
    pads = torch.arange(4) > inputs["num_accepted"][:, None]
    assert pads.any()
    for value in (-(2**63), -1, 10**12, 2**63 - 1):
        assert_commits(inputs, {"path": inputs["path"].where(~pads, value)})


def check_idle_rows_may_hold_any_length():
    """Nothing accepted, or (emitted nothing, root counted) less than nothing."""
    inputs = reference.make_inputs(0, "odd")
    inputs["num_accepted"][1] = 0
    for count in (0, -1, -(2**62)):
        lengths, num_accepted = inputs["lengths"].clone(), inputs["num_accepted"].clone()
        lengths[1], num_accepted[1] = 10**15, count
        assert_commits(inputs, {"lengths": lengths, "num_accepted": num_accepted})


def check_counts_of_emitted_tokens():
    inputs = reference.make_inputs(2, "adversarial")
    inputs["lengths"][3] = 0
    beyond = torch.arange(9) > inputs["num_accepted"][:, None]
    rest = {"num_accepted": inputs["num_accepted"] + 1, "path": inputs["path"].where(~beyond, 13)}  # would be a row
    assert beyond.any()
    assert_commits(inputs, rest, counts_root=True)


def check_no_node_is_no_row():
    """H68: a -1 within the counted part of a path moves nothing."""
    inputs = reference.make_inputs(1, "adversarial")
    inputs["lengths"][0] = 0
    inputs["path"][0, 4:], inputs["num_accepted"][0] = -1, 3
    num_accepted = inputs["num_accepted"].clone()
    num_accepted[0] = 8
    assert_commits(inputs, {"num_accepted": num_accepted})


def check_rows_outside_the_path_may_hold_nan():
    inputs = reference.make_inputs(2, "odd")
    used = torch.zeros(3, 61, dtype=torch.bool)
    for b in range(3):
        nodes = inputs["path"][b, : int(inputs["num_accepted"][b]) + 1]
        used[b, inputs["lengths"][b] + nodes] = True
    for cache in inputs["caches"]:
        cache[:, ~used] = torch.nan
    assert_commits(inputs)


def check_permuting_requests_permutes_caches():
    """H64"""
    inputs = reference.make_inputs(1, "adversarial")
    order = torch.tensor([2, 0, 3, 1])
    shuffled = {name: inputs[name][order] for name in REST}
    together = [cache.clone().to(DEVICE) for cache in inputs["caches"]]
    apart = [cache[:, order].clone().to(DEVICE) for cache in inputs["caches"]]
    kernels.commit_kv_triton(together, *(inputs[name].to(DEVICE) for name in REST))
    kernels.commit_kv_triton(apart, *(shuffled[name].to(DEVICE) for name in REST))
    assert all(torch.equal(mine[:, order], other) for mine, other in zip(together, apart, strict=True))


def check_long_paths_split_into_more_columns():
    generator = torch.Generator().manual_seed(0)
    horizon, nodes = 40, 70
    path = torch.cat((torch.tensor([0]), (torch.randperm(nodes, generator=generator)[:horizon] + 1).sort().values))
    cache = torch.randn(1, 1, 80, 900, generator=generator)
    inputs = {"caches": [cache], "lengths": torch.tensor([9]), "path": path[None]}
    assert_commits({**inputs, "num_accepted": torch.tensor([horizon])})


def check_rows_scattered_in_memory_are_refused():
    cache = torch.zeros(1, 2, 20, 4, 2, device=DEVICE).transpose(3, 4)
    inputs = reference.make_inputs(0, "small")
    with pytest.raises(ValueError, match="elements of a cache row must lie together"):
        kernels.commit_kv_triton([cache], *(inputs[name].to(DEVICE) for name in REST))


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills_in_wide_accesses(compiled):
    """And between loads and stores of rows there is a barrier."""
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    for usage in compiled.values():
        accesses = usage["accesses"]
        rows = [access for access in accesses if ".v4.b32" in access or access == "bar.sync"]
        loads, stores = rows.count("ld.global.v4.b32"), rows.count("st.global.v4.b32")
        assert rows == ["ld.global.v4.b32"] * loads + ["bar.sync"] + ["st.global.v4.b32"] * stores
        assert loads == stores > 0


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="lengths is on cpu, need a CUDA device"):
        kernels.commit_kv_triton(**reference.make_inputs(0, "small"))
