"""Claims about tree attention in Triton: interpreted on a CPU, and compiled ahead of time for sm_90.

triton decides at import whether it interprets, so both run in child processes, once per module; each answers with JSON.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

INTERPRETED = '''
import dataclasses, itertools, json, sys, traceback
from functools import partial
import numpy_scalars, torch
from ddbench.kernels import tree_attention_triton as launcher
from ddbench.kernels.tree_attention import dense_mask, tree_attention_dense
from ddbench.kernels.tree_attention_plan import TILES_HOPPER, cut
from ddbench.kernels.tree_attention_triton import (
    Tile, pack_visible_triton, tree_attention_plan, tree_attention_triton, workspace_elements,
)
from ddbench.ops import OPS, check_op
from ddbench.reference import tree_attention as spec
from ddbench.testing import poison, relative_error, to_float64

torch.set_num_threads(1)
launcher.ROWS_AT_ONCE = 20  # above it a combine program has four rows
SCALE, TILES = 0.3, (Tile(16, 16, 4, 2, 1), Tile(64, 32, 4, 2, 1), Tile(32, 128, 4, 2, 1))


def shaped(lengths=(0, 45, 17), num_new=5, heads=2, kv_heads=1, dim=8, kind="tree", spare=3, seed=0, window=None):
    """Requests with NaN in every row that none of their tokens can see."""
    g, batch = torch.Generator().manual_seed(seed), len(lengths)
    rows = max(lengths) + num_new + spare
    q = torch.randn(batch, num_new, heads, dim, generator=g)
    k, v = torch.randn(2, batch, rows, kv_heads, dim, generator=g)
    visible = None if kind == "causal" else spec.random_visible(batch, num_new, g)
    if kind == "any":
        visible = torch.rand(batch, num_new, num_new, generator=g) < 0.4
    for b, length in enumerate(lengths):
        for cache in (k, v):
            poison(cache[b, length + num_new :])
            poison(cache[b, : max(length - window + 1, 0) if window else 0])
    return dict(q=q, k=k, v=v, lengths=torch.tensor(lengths), visible=visible, scale=SCALE, window=window)


def agree(inputs, expected=None, **how):
    expected = spec.tree_attention(**inputs) if expected is None else expected
    got = tree_attention_triton(**inputs, **how)
    error = relative_error(got, expected)
    assert error < 2e-6, (error, how)
    return got


def meets_specification():
    for how in ({}, {"programs": 1}, {"programs": 3, "tile": TILES[0]}):
        implementations = {"triton": partial(tree_attention_triton, **how)}
        op = dataclasses.replace(OPS["tree_attention"], implementations=implementations)
        for size in spec.SIZES:
            for seed in (0, 1):
                check = check_op(op, "triton", size, seed)
                assert check.ok, (size, seed, how, check.detail)


def any_cut_gives_the_same():
    for window in (None, 20):
        inputs = shaped(window=window)
        expected = spec.tree_attention(**inputs)
        for tile, counts in zip(TILES, ((1, 2, 3, 5, 1000), (1, 3), (2,))):
            for programs in counts:
                agree(inputs, expected, tile=tile, programs=programs)


def more_partials_than_fit_at_once():
    """Thirteen partials of one request, the largest score in the last ones."""
    inputs = shaped((200,), spare=0)
    inputs["k"] *= torch.linspace(0.1, 6, inputs["k"].shape[1])[:, None, None]
    agree(inputs, tile=TILES[0], programs=13)


def lengths_around_the_edges():
    """Contexts that end on, just before and just after an edge of a block, and stretches that hold many requests."""
    for num_new in (1, 16):
        inputs = shaped((0, 15, 16, 17, 31, 32, 33, 1), num_new, heads=1, kind="any")
        expected = spec.tree_attention(**inputs)
        for programs in (2, 7):
            agree(inputs, expected, tile=TILES[0], programs=programs)


def windows_of_any_width():
    for kind in ("tree", "causal"):
        for window in (1, 7, 16, 33, 500):
            inputs = shaped((48, 33), kind=kind, window=window)
            agree(inputs, tile=TILES[0], programs=4)


def many_nodes_in_three_words():
    inputs = shaped((5, 90), num_new=70, kind="any")
    agree(inputs, tile=Tile(128, 64, 4, 2, 1), programs=3)
    agree(shaped((5, 90), num_new=70, kind="causal"), tile=TILES[1], programs=1)


def packed_words_hold_the_bits():
    for num_new in (1, 32, 33, 70):
        visible = torch.rand(2, num_new, num_new, generator=torch.Generator().manual_seed(0)) < 0.5
        packed = pack_visible_triton(visible)
        assert packed.shape == (2, num_new, -(-num_new // 32))
        bits = (packed[..., None] >> torch.arange(32)) & 1
        bits = bits.flatten(2).bool()
        assert torch.equal(bits[..., :num_new], visible) and not bits[..., num_new:].any()
        assert torch.equal(pack_visible_triton(visible.mT.contiguous().mT, out=torch.full_like(packed, -1)), packed)


def packed_takes_the_place_of_visible():
    inputs = shaped()
    packed = pack_visible_triton(inputs["visible"])
    assert torch.equal(tree_attention_triton(**inputs | {"visible": None}, packed=packed), agree(inputs))


def token_that_sees_nothing_gets_zeros():
    inputs = shaped((0, 20), num_new=9, kind="any", window=3)
    inputs["visible"][0, 2] = False
    inputs["visible"][1, 8] = False
    for programs in (1, 4):
        got = agree(inputs, tile=TILES[0], programs=programs)
        assert not got[0, 2].any() and not got[1, 8].any() and got[1, 0].any()


def block_is_bidirectional():
    inputs = shaped(kind="causal", window=12)
    everything = inputs | {"visible": torch.ones(3, 5, 5, dtype=torch.bool)}
    got = agree(everything, tile=TILES[0])
    assert torch.equal(tree_attention_triton(**inputs, causal=False, tile=TILES[0]), got)
    assert not torch.allclose(agree(inputs), got, atol=1e-2)


def chain_shaped_tree_equals_causal():
    inputs = shaped(kind="causal")
    chain = torch.ones(5, 5).tril().bool().expand(3, -1, -1)
    assert torch.equal(tree_attention_triton(**inputs), tree_attention_triton(**inputs | {"visible": chain}))


def polarity():
    inputs = shaped()
    inverted = tree_attention_triton(**inputs | {"visible": ~inputs["visible"]})
    assert not torch.allclose(inverted, agree(inputs), atol=1e-2)


def scratch_and_output_are_not_read():
    inputs = shaped()
    tile, programs = TILES[0], 5
    plan = tree_attention_plan(3, 5, 2, 1, 8, inputs["k"].shape[1] - 5, 4, 1, tile, programs)
    workspace = poison(torch.empty(workspace_elements(plan, 8)))
    out = poison(torch.empty_like(inputs["q"]))
    got = tree_attention_triton(**inputs, tile=tile, programs=programs, out=out, workspace=workspace)
    assert got is out and bool(workspace.isfinite().any())
    assert torch.equal(got, agree(inputs, tile=tile, programs=programs))


def bound_only_shapes_the_grid():
    inputs = shaped()
    for bound in (45, 48, 10_000):
        agree(inputs, context_bound=bound, tile=TILES[0])


def company_only_rounds():
    inputs = shaped()
    together = agree(inputs, tile=TILES[0], programs=4)
    order = torch.tensor([2, 0, 1])
    per_request = ("q", "k", "v", "lengths", "visible")
    swapped = inputs | {name: inputs[name][order] for name in per_request}
    assert relative_error(tree_attention_triton(**swapped, tile=TILES[0], programs=4), together[order]) < 1e-6
    alone = inputs | {name: inputs[name][1:2] for name in per_request}
    assert relative_error(tree_attention_triton(**alone, tile=TILES[0], programs=4), together[1:2]) < 1e-6


def repeats_agree_bit_for_bit():
    inputs = shaped()
    assert torch.equal(agree(inputs, programs=5, tile=TILES[0]), agree(inputs, programs=5, tile=TILES[0]))


def views_and_narrow_lengths():
    """Queries out of a fused projection, one layer of a pool of caches, K and V stored apart, 32-bit lengths."""
    inputs = shaped(heads=4, kv_heads=2)
    fused = poison(torch.empty(3, 5, 8, 8))
    fused[:, :, 2:6] = inputs["q"]
    pool = poison(torch.empty(2, 3, 2, *inputs["k"].shape[1:]))
    pool[1, :, 0] = inputs["k"]
    views = {"q": fused[:, :, 2:6], "k": pool[1, :, 0], "v": inputs["v"].transpose(1, 2).contiguous().transpose(1, 2)}
    narrow = {"lengths": inputs["lengths"].int()}
    assert torch.equal(tree_attention_triton(**inputs | views | narrow), agree(inputs))


def prefill_in_many_tiles():
    inputs = shaped((3, 40), num_new=50, heads=4, kind="causal")
    agree(inputs, tile=TILES[1])


def bf16_within_budget():
    """The interpreter truncates where the device rounds: twice the error."""
    inputs = shaped(window=30, dim=16)
    low = inputs | {name: inputs[name].bfloat16() for name in ("q", "k", "v")}
    exact = spec.tree_attention(**to_float64(low))
    budget = 4 * relative_error(spec.tree_attention(**low), exact)
    for how in ({}, {"tile": TILES[0], "programs": 5}):
        got = tree_attention_triton(**low, **how)
        assert got.dtype == torch.bfloat16 and relative_error(got, exact) <= budget


def stretches_that_cross_kv_heads():
    """Stretches that begin and end inside of KV heads, some with all of one, and programs without any."""
    for heads, kv_heads, counts in ((2, 1, (1, 5)), (6, 2, (3, 5, 200))):
        inputs = shaped((45, 0, 17), num_new=11, heads=heads, kv_heads=kv_heads)
        expected = spec.tree_attention(**inputs)
        for programs in counts:
            agree(inputs, expected, plan=cut(3, kv_heads, 11 * heads // kv_heads, TILES[0], programs))


def plans_fill_the_chip():
    """A plan holds slots for every partial, never more programs than blocks, and no fuller chip than there is."""
    for batch, num_new, bound, on_hopper in itertools.product(
        (1, 2, 4, 8, 16), (1, 8, 9, 16, 17, 32, 33, 64, 65, 256), (0, 100, 8192, 32768), (False, True)
    ):
        plan = tree_attention_plan(batch, num_new, 32, 8, 128, bound, 2, 132, on_hopper=on_hopper)
        blocks = 8 * batch * -(-(bound + num_new) // plan.tile.block)
        assert 1 <= plan.programs <= blocks and plan.num_tiles * plan.tile.rows >= num_new * 4
        assert plan.programs % 8 == 0 and plan.grid == plan.num_tiles * plan.programs
        slots = 0 if plan.programs == 8 else plan.num_tiles * (plan.programs + 8 * batch - 1)
        assert plan.partial_rows == slots * plan.tile.rows
        if bound >= 8192 and (num_new <= 64 or on_hopper and num_new == 65):
            assert 0.9 < plan.grid / (132 * plan.tile.residents) <= 1, (batch, num_new, bound, plan)


def hopper_tiles_as_measured():
    """The fastest tile of those measured on an H200, and as many programs as fill it, at GQA 32/8/128."""
    for batch, bound, num_new, name, tiles, programs in (
        (1, 2048, 9, "narrow", 1, 128), (16, 8192, 16, "narrow", 1, 128), (1, 2048, 17, "wide", 1, 128),
        (16, 8192, 32, "long", 1, 128), (1, 2048, 33, "wide", 2, 64), (1, 8192, 33, "tall", 1, 128),
        (16, 2048, 33, "tall", 1, 128), (16, 8192, 33, "tall", 1, 128), (1, 32768, 48, "tall", 1, 128),
        (1, 8192, 49, "long", 2, 64), (1, 2048, 64, "wide", 2, 64), (16, 8192, 64, "long", 2, 64),
        (1, 2048, 65, "wide", 3, 40), (16, 8192, 65, "long", 3, 40),
    ):  # fmt: skip
        plan = tree_attention_plan(batch, num_new, 32, 8, 128, bound, 2, 132, on_hopper=True)
        assert plan[:3] == (TILES_HOPPER[name], tiles, programs), (batch, bound, num_new, plan)


def heads_of_few_dims_take_narrow_tiles():
    """As measured on an H200 at GQA 9/3/64: many rows, too, in 16 bits."""

    def rows_of(num_new, dim, element_size):
        return tree_attention_plan(1, num_new, 9, 3, dim, 256, element_size, 132).tile.rows

    for num_new in (1, 9, 21, 22, 33, 65, 129, 513):
        assert [rows_of(num_new, dim, 2) for dim in (32, 64)] == [64, 64], num_new
        assert [rows_of(num_new, dim, 2) for dim in (80, 128)] == [64 if num_new <= 21 else 128] * 2, num_new
        assert [rows_of(num_new, dim, 4) for dim in (64, 128)] == [16, 16], num_new
    plan = tree_attention_plan(4, 129, 9, 3, 64, 256, 2, 132)
    assert (plan.num_tiles, plan.programs) == (7, 36)
    assert plan.grid <= 2 * 132


def bad_arguments_are_refused():
    inputs = shaped()
    cases = (
        ("q is torch.float64", {name: inputs[name].double() for name in ("q", "k", "v")}),
        ("expected one type", {"k": inputs["k"].bfloat16()}),
        ("unit stride", {"q": inputs["q"].mT.contiguous().mT}),
        ("do not divide", {name: inputs[name].expand(-1, -1, 3, -1) for name in ("k", "v")}),
        ("k and v have shapes", {"v": inputs["v"][:, :-1]}),
        ("cache has 4 rows", {"k": inputs["k"][:, :4], "v": inputs["v"][:, :4]}),
        ("lengths has shape", {"lengths": inputs["lengths"][:2]}),
        ("visible has shape", {"visible": inputs["visible"][:, :4]}),
        ("visible is torch.int32", {"visible": inputs["visible"].int()}),
        ("scale is -1", {"scale": -1.0}),
        ("window is 0", {"window": 0}),
        ("out must be contiguous", {"out": inputs["q"].mT.contiguous().mT}),
        ("this call needs", {"workspace": torch.empty(5), "programs": 3, "tile": TILES[0]}),
        ("packed is torch.int64", {"packed": torch.zeros(3, 5, 1, dtype=torch.int64)}),
    )
    for words, changes in cases:
        try:
            tree_attention_triton(**(inputs | changes))
        except ValueError as error:
            assert words in str(error), str(error)
        else:
            raise AssertionError(f"not refused: {words}")


CHECKS = [
    meets_specification, any_cut_gives_the_same, more_partials_than_fit_at_once, lengths_around_the_edges,
    windows_of_any_width, many_nodes_in_three_words, packed_words_hold_the_bits, packed_takes_the_place_of_visible,
    token_that_sees_nothing_gets_zeros, block_is_bidirectional, chain_shaped_tree_equals_causal, polarity,
    scratch_and_output_are_not_read, bound_only_shapes_the_grid, company_only_rounds, repeats_agree_bit_for_bit,
    views_and_narrow_lengths, prefill_in_many_tiles, bf16_within_budget, plans_fill_the_chip, bad_arguments_are_refused,
    stretches_that_cross_kv_heads, hopper_tiles_as_measured, heads_of_few_dims_take_narrow_tiles,
]
answers = {}
for check in CHECKS:
    try:
        check()
        answers[check.__name__] = ""
    except Exception:
        answers[check.__name__] = traceback.format_exc()
sys.stdout.write("ANSWER" + json.dumps(answers))
'''

COMPILED = """
import json, re, subprocess, sys, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ddbench.kernels.tree_attention_triton import AOT, tree_attention_triton
from ddbench.reference import tree_attention as spec

tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
answers = {"entries": {}}
for entry in AOT:
    names = entry["kernel"].arg_names
    signature = {name: entry["signature"].get(name, "constexpr") for name in names}
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in entry["divisible_by_16"]}
    options = {"num_warps": entry["num_warps"], "num_stages": entry["num_stages"]}
    source = ASTSource(entry["kernel"], signature, entry["constexprs"], attrs)
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    numbers = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\\d+)", usage.stdout)}
    ptx = kernel.asm["ptx"]
    copies = set(re.findall(r"cp\\.async\\.c[ag]\\.shared\\.global \\[[^]]*\\], \\[[^]]*\\], (\\w+)", ptx))
    numbers |= {"shared": kernel.metadata.shared, "wgmma": ptx.count("wgmma.mma_async"), "warps": entry["num_warps"]}
    answers["entries"][entry["name"]] = numbers | {"copies": sorted(copies)}
try:
    tree_attention_triton(**spec.make_inputs(0, "small"))
    answers["cpu"] = "not refused"
except ValueError as error:
    answers["cpu"] = str(error)
sys.stdout.write("ANSWER" + json.dumps(answers))
"""

CHECKS = (
    "meets_specification",
    "any_cut_gives_the_same",
    "more_partials_than_fit_at_once",
    "lengths_around_the_edges",
    "windows_of_any_width",
    "many_nodes_in_three_words",
    "packed_words_hold_the_bits",
    "packed_takes_the_place_of_visible",
    "token_that_sees_nothing_gets_zeros",
    "block_is_bidirectional",
    "chain_shaped_tree_equals_causal",
    "polarity",
    "scratch_and_output_are_not_read",
    "bound_only_shapes_the_grid",
    "company_only_rounds",
    "repeats_agree_bit_for_bit",
    "views_and_narrow_lengths",
    "prefill_in_many_tiles",
    "bf16_within_budget",
    "plans_fill_the_chip",
    "bad_arguments_are_refused",
    "stretches_that_cross_kv_heads",
    "hopper_tiles_as_measured",
    "heads_of_few_dims_take_narrow_tiles",
)


@pytest.fixture(scope="module")
def interpreted(answer):
    return answer(INTERPRETED, TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled(answer):
    return answer(COMPILED)


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted(interpreted, check):
    """H12, H14, H38, H63, H64, H93 and the specification, by the names of the checks."""
    assert interpreted.keys() == set(CHECKS)
    assert interpreted[check] == ""


def test_compiled_for_hopper_without_spills(compiled):
    """No stack, no local memory; bf16 on wgmma, fed by 16-byte copies; narrow tiles fit an SM in pairs, as planned."""
    assert len(compiled["entries"]) >= 6
    for name, numbers in compiled["entries"].items():
        assert numbers["STACK"] == numbers["LOCAL"] == 0, (name, numbers)
        together = 2 if numbers["warps"] <= 4 else 1
        assert together * (numbers["shared"] + 1024) <= 228 * 1024, (name, numbers)
        assert together * numbers["warps"] * 32 * numbers["REG"] <= 65536, (name, numbers)
        if name.startswith(("verify", "draft block")):
            assert numbers["wgmma"] >= 16, (name, numbers)
            assert {"0x10"} <= set(numbers["copies"]) <= {"0x10", "0x4"}, (name, numbers)  # 4 bytes: words of bits


def test_a_cpu_is_refused_outside_the_interpreter(compiled):
    assert "TRITON_INTERPRET=1" in compiled["cpu"]
    assert "cpu" in compiled["cpu"]
