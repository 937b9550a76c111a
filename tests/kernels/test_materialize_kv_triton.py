"""Claims about draft-KV materialize in Triton: interpreted on a CPU, and compiled ahead of time for sm_90.

triton decides at import whether it interprets, so both run in child processes, once per module; each answers with JSON.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

INTERPRETED = '''
import dataclasses, json, sys, traceback
import torch
from ddbench.kernels import materialize_kv as torch_kernel
from ddbench.kernels.materialize_kv_triton import PIECE, gemm_plan, materialize_kv_triton, materialize_workspace
from ddbench.ops import OPS, check_op
from ddbench.reference import materialize_kv as spec
from ddbench.testing import poison, relative_error, to_float64

torch.set_num_threads(1)
WEIGHTS = ("fc", "hidden_norm", "kv_weights", "k_norms")


def run(function, inputs, **changes):
    inputs = inputs | changes
    inputs["k_cache"], inputs["v_cache"] = inputs["k_cache"].clone(), inputs["v_cache"].clone()
    assert function(**inputs) is None
    return inputs["k_cache"], inputs["v_cache"]


def scratch_of_nan(inputs):
    scratch = materialize_workspace(inputs["features"], inputs["fc"], inputs["kv_weights"])
    for tensor in scratch:
        poison(tensor)
    return scratch


def agree(inputs, scratch=None):
    ours = run(materialize_kv_triton, inputs, **({} if scratch is None else {"workspace": scratch}))
    theirs = run(spec.materialize_kv, inputs)
    for before, got, expected in zip((inputs["k_cache"], inputs["v_cache"]), ours, theirs):
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)
        assert torch.equal(got == before, expected == before), "other cache elements changed"


def shaped(batch, rows, width=24, hidden=16, layers=2, heads=2, dim=8, rotary=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    slots = rows + 2
    cos, sin = spec.cos_sin(spec.inv_freq(rotary, 10000.0), slots)
    new = lambda *shape: torch.randn(*shape, generator=g)
    return {
        "features": new(batch, rows, width), "positions": 1 + torch.arange(rows).expand(batch, -1),
        "num_rows": torch.full((batch,), rows), "fc": new(hidden, width) * width**-0.5,
        "hidden_norm": 1 + 0.2 * new(hidden), "kv_weights": new(layers, 2 * heads * dim, hidden) * hidden**-0.5,
        "k_norms": 1 + 0.2 * new(layers, dim), "eps": 1e-6, "cos": cos, "sin": sin,
        "k_cache": new(layers, batch, slots, heads, dim), "v_cache": new(layers, batch, slots, heads, dim),
    }


def meets_specification():
    op = dataclasses.replace(OPS["materialize_kv"], implementations={"triton": materialize_kv_triton})
    for size in spec.SIZES:
        for seed in (0, 1):
            check = check_op(op, "triton", size, seed)
            assert check.ok, (size, seed, check.detail)


def poisoned_scratch_is_not_read():
    for size in spec.SIZES:
        inputs = spec.make_inputs(3, size)
        agree(inputs, scratch_of_nan(inputs))


def any_number_of_rows():
    for batch, rows in ((1, 1), (1, 15), (1, 16), (1, 17), (3, 11), (4, 16), (5, 13), (1, 129)):
        inputs = shaped(batch, rows)
        scratch = scratch_of_nan(inputs)
        assert (batch * rows <= 64) == (scratch.fc_partial.numel() > 0), "the other path"
        agree(inputs, scratch)


def counts_of_zero_some_and_all():
    for rows in (5, 40):  # our GEMMs, then torch's
        inputs = shaped(4, rows)
        inputs["num_rows"] = torch.tensor([0, rows - 2, rows, 1])
        beyond = torch.arange(rows) >= inputs["num_rows"][:, None]
        inputs["features"][beyond] = float("nan")
        inputs["positions"] = torch.where(beyond, 10**9, inputs["positions"])
        agree(inputs, scratch_of_nan(inputs))


def idle_rows_change_nothing():
    for rows in (3, 70):
        inputs = shaped(2, rows)
        poison(inputs["features"])
        inputs["num_rows"] = torch.zeros(2, dtype=torch.int64)
        caches = run(materialize_kv_triton, inputs)
        assert torch.equal(caches[0], inputs["k_cache"]) and torch.equal(caches[1], inputs["v_cache"])


def no_rows_no_change():
    inputs = spec.make_inputs(0, "small")
    none = {name: inputs[name][:, :0] for name in ("features", "positions")}
    caches = run(materialize_kv_triton, inputs, **none)
    assert torch.equal(caches[0], inputs["k_cache"]) and torch.equal(caches[1], inputs["v_cache"])


def wide_rows_in_pieces_and_splits():
    inputs = shaped(1, 2, width=300, hidden=PIECE + 76, layers=1, heads=3, dim=10, rotary=6)
    inputs["hidden_norm"] *= 3
    scratch = scratch_of_nan(inputs)
    assert scratch.squares.shape[1] == 2 and scratch.fc_partial.shape[0] > 4 and scratch.kv_partial.shape[0] > 4
    agree(inputs, scratch)


def eps_decides_for_tiny_rows():
    inputs = shaped(1, 3)
    inputs["features"][0, 0] *= 1e-6
    inputs["features"][0, 1] = 0
    inputs["features"][0, 2] *= 1e12
    agree(inputs)
    inputs = shaped(1, 1, width=40, hidden=PIECE + 8, layers=1)
    inputs["features"] *= 1e-4
    agree(inputs)


def bf16_within_budget():
    """The interpreter truncates where the device rounds: twice the error at each of the steps."""
    for inputs in (spec.make_inputs(1, "odd"), shaped(2, 33), shaped(1, 4, width=300, hidden=136)):
        names = ("features", *WEIGHTS, "k_cache", "v_cache")
        low = inputs | {name: inputs[name].bfloat16() for name in names}
        exact = run(spec.materialize_kv, to_float64(low))
        rounded = run(spec.materialize_kv, low)
        for got, obvious, right in zip(run(materialize_kv_triton, low), rounded, exact):
            assert got.dtype == torch.bfloat16
            assert relative_error(got, right) <= 4 * relative_error(obvious, right)


def twice_is_once():
    inputs = spec.make_inputs(0, "small")
    once = run(materialize_kv_triton, inputs)
    again = run(materialize_kv_triton, inputs, k_cache=once[0], v_cache=once[1])
    assert torch.equal(once[0], again[0]) and torch.equal(once[1], again[1])


def company_and_strides():
    """One request in a view of the caches and as a view of the features gets what it gets in company."""
    inputs = spec.make_inputs(5, "adversarial")
    together = run(materialize_kv_triton, inputs)
    rows = {name: inputs[name][1:2] for name in ("features", "positions", "num_rows")}
    rows["features"] = torch.cat((rows["features"], poison(torch.empty(1, 5, 3))), -1)[..., :24]
    caches = [inputs[name].clone() for name in ("k_cache", "v_cache")]
    materialize_kv_triton(**(inputs | rows | {n: c[:, 1:2] for n, c in zip(("k_cache", "v_cache"), caches)}))
    for alone, all_of_them, before in zip(caches, together, (inputs["k_cache"], inputs["v_cache"])):
        torch.testing.assert_close(alone[:, 1], all_of_them[:, 1], rtol=1e-5, atol=1e-5)
        assert torch.equal(alone[:, [0, 2, 3]], before[:, [0, 2, 3]])


def partial_rotation_leaves_the_tail():
    inputs = spec.make_inputs(0, "odd")
    inputs["num_rows"] = torch.tensor([1, 1, 1])
    base, _ = run(spec.materialize_kv, inputs, positions=torch.zeros(3, 7, dtype=torch.int64))
    for position in (3, 30):
        k_cache, _ = run(materialize_kv_triton, inputs, positions=torch.full((3, 7), position))
        torch.testing.assert_close(k_cache[:, :, position, :, 6:], base[:, :, 0, :, 6:])
        assert not torch.allclose(k_cache[:, :, position, :, :6], base[:, :, 0, :, :6], atol=1e-2)


def bad_arguments_are_refused():
    inputs = shaped(2, 4)
    last = torch.arange(6).unfold(0, 4, 1)[-1].expand(2, -1)
    cases = (
        (IndexError, "max_context", {"positions": last + 1}),
        (IndexError, "position 6 is beyond the last one, 5", {"position_bound": 7}),
        (ValueError, "positions have shape", {"positions": last[:, :3]}),
        (ValueError, "fc must be contiguous", {"fc": inputs["fc"].T.contiguous().T}),
        (ValueError, "one type", {"fc": inputs["fc"].bfloat16()}),
        (ValueError, "float32", to_float64({n: inputs[n] for n in ("features", "fc", "kv_weights")})),
        (ValueError, "equal strides", {"v_cache": inputs["v_cache"].transpose(2, 3).contiguous().transpose(2, 3)}),
    )
    for kind, words, changes in cases:
        before = inputs["k_cache"].clone()
        try:
            materialize_kv_triton(**(inputs | changes))
        except kind as error:
            assert words in str(error), str(error)
        else:
            raise AssertionError(f"not refused: {words}")
        assert torch.equal(before, inputs["k_cache"])


CHECKS = [
    meets_specification, poisoned_scratch_is_not_read, any_number_of_rows, counts_of_zero_some_and_all,
    idle_rows_change_nothing, no_rows_no_change, wide_rows_in_pieces_and_splits, eps_decides_for_tiny_rows,
    bf16_within_budget, twice_is_once, company_and_strides, partial_rotation_leaves_the_tail, bad_arguments_are_refused,
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
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ddbench.kernels.materialize_kv_triton import AOT, MAX_SKINNY_TOKENS, SLOTS, gemm_plan, materialize_kv_triton
from ddbench.reference import materialize_kv as spec

tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
answers = {"entries": {}, "plans": []}
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
    numbers |= {"shared": kernel.metadata.shared, "wgmma": ptx.count("wgmma.mma_async")}
    answers["entries"][entry["name"]] = numbers | {"copies": sorted(copies)}
for tokens in range(1, MAX_SKINNY_TOKENS + 1):
    for outer, inner in ((7168, 43008), (12288, 7168), (4096, 20480), (256, 768), (11, 15), (1, 1), (16, 2000)):
        for dtype in (torch.bfloat16, torch.float32):
            plan = gemm_plan(tokens, outer, inner, dtype)
            answers["plans"].append([tokens, outer, inner, SLOTS, plan._asdict()])
try:
    materialize_kv_triton(**spec.make_inputs(0, "small"))
    answers["cpu"] = "not refused"
except ValueError as error:
    answers["cpu"] = str(error)
sys.stdout.write("ANSWER" + json.dumps(answers))
"""

CHECKS = (
    "meets_specification",
    "poisoned_scratch_is_not_read",
    "any_number_of_rows",
    "counts_of_zero_some_and_all",
    "idle_rows_change_nothing",
    "no_rows_no_change",
    "wide_rows_in_pieces_and_splits",
    "eps_decides_for_tiny_rows",
    "bf16_within_budget",
    "twice_is_once",
    "company_and_strides",
    "partial_rotation_leaves_the_tail",
    "bad_arguments_are_refused",
)


@pytest.fixture(scope="module")
def interpreted(answer):
    return answer(INTERPRETED, TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled(answer):
    return answer(COMPILED)


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted(interpreted, check):
    """H11, H24, H25, H26, H27, H32, H34 and the specification, by the names of the checks."""
    assert interpreted.keys() == set(CHECKS)
    assert interpreted[check] == ""


def test_compiled_for_hopper_without_spills(compiled):
    """No stack, no local memory, 16-byte copies, tensor cores for bf16, and the planned programs fit side by side."""
    assert len(compiled["entries"]) >= 9
    for name, numbers in compiled["entries"].items():
        assert numbers["STACK"] == numbers["LOCAL"] == 0, (name, numbers)
        together = 1 if name.startswith("k2.6") and name.endswith("-64") else 2  # on one multiprocessor
        assert together * (numbers["shared"] + 1024) <= 228 * 1024, (name, numbers)
        assert together * 128 * numbers["REG"] <= 65536, (name, numbers)
        is_gemm = "-fc-" in name or "-kv-" in name
        if is_gemm and "fp32" not in name:
            assert numbers["copies"] == ["0x10"], (name, numbers)
            assert numbers["wgmma"] >= 8, (name, numbers)


def test_plans_cover_and_fill(compiled):
    """Each column falls in one split, no split is empty; the product's GEMMs leave under 5 % of their waves idle."""
    for tokens, outer, inner, slots, plan in compiled["plans"]:
        assert plan["block_m"] >= max(16, tokens)
        assert plan["chunk"] % plan["block_k"] == 0
        assert (plan["splits"] - 1) * plan["chunk"] < inner <= plan["splits"] * plan["chunk"]
        if inner >= 7168 and plan["block_k"] == 128:
            programs = -(-outer // plan["block_n"]) * plan["splits"]
            slots = slots if plan["block_n"] == 64 else slots // 2
            assert programs / (-(-programs // slots) * slots) > 0.95, (outer, inner, plan)


def test_a_cpu_is_refused_outside_the_interpreter(compiled):
    assert "TRITON_INTERPRET=1" in compiled["cpu"]
    assert "cpu" in compiled["cpu"]
