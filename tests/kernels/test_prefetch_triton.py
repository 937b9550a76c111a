"""What a launch asks for: every byte of the tensors once and no other, and nothing where nobody can be asked."""

from __future__ import annotations

import json

import pytest
import torch

kernels = pytest.importorskip("ddbench.kernels.prefetch_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PIECE = kernels.LANES * kernels.LANE_BYTES


def tensors():
    """Of one, four and more pieces, one of them a view, one of nothing and one of fewer bytes than are asked for."""
    sizes = (PIECE // 2, 4 * PIECE // 2 + 8, 24, 0, 3, PIECE, 100_000)
    made = [torch.arange(size, device=DEVICE).to(torch.bfloat16) for size in sizes]
    return [*made, torch.ones(64, 64, device=DEVICE)[16:32]]


def check_no_tensor_changes():
    """On a GPU that can be asked, too."""
    given = tensors()
    before = [one.clone() for one in given]
    assert kernels.prefetch_triton(given) is None
    assert kernels.prefetch_triton([]) is None
    assert all(torch.equal(one, old) for one, old in zip(given, before, strict=True))


ASKED = """
import json, sys
import torch
from ddbench.kernels import prefetch_triton as kernels
asked = []
def asm(text, constraints, args, dtype, is_pure, pack):
    assert "cp.async.bulk.prefetch.L2" in text and constraints == "=r,l,r" and not is_pure
    asked.extend(zip(*(one.handle.data.tolist() for one in args)))
kernels.tl.inline_asm_elementwise = asm
kernels.is_hopper = lambda tensor: True
PIECE = kernels.LANES * kernels.LANE_BYTES
tensors = [torch.zeros(size, dtype=torch.uint8) for size in (PIECE, 3 * PIECE + 4096 + 32, 24, 0, 15, 16, 200_000)]
tensors.append(torch.zeros(64, 64)[16:32])
kernels.prefetch_triton(tensors)
wanted = {(t.data_ptr() + i, min(kernels.LANE_BYTES, t.nbytes // 16 * 16 - i))
          for t in tensors for i in range(0, t.nbytes // 16 * 16, kernels.LANE_BYTES)}
some = [(at, size) for at, size in asked if size]
refused = []
for bad in (torch.zeros(64, 64).T, torch.zeros(64)[1:]):
    try:
        kernels.prefetch_triton([bad])
    except AssertionError:
        refused.append(True)
answer = {"once": len(set(some)) == len(some), "all": set(some) == wanted, "sizes": sorted({s % 16 for _, s in asked}),
          "least": min(s for _, s in asked), "refused": len(refused)}
sys.stdout.write("ANSWER" + json.dumps(answer))
"""

COMPILED = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ddbench.kernels.prefetch_triton import AOT
answers = {}
for entry in AOT:
    names = entry["kernel"].arg_names
    signature = {name: entry["signature"].get(name, "constexpr") for name in names}
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in entry["divisible_by_16"]}
    options = {"num_warps": entry["num_warps"], "num_stages": entry["num_stages"]}
    source = ASTSource(entry["kernel"], signature, entry["constexprs"], attrs)
    answers[entry["name"]] = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
sys.stdout.write("ANSWER" + json.dumps(answers))
"""


def test_every_byte_is_asked_for_once(answer):
    """The addresses and sizes that the instruction would get, in the interpreter; what it cannot take is refused."""
    found = answer(ASKED, TRITON_INTERPRET="1")
    assert found == {"once": True, "all": True, "sizes": [0], "least": 0, "refused": 2}, json.dumps(found)


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills_and_touches_no_memory(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    assert [usage["accesses"] for usage in compiled.values()] == [[]] * len(kernels.AOT)


def test_the_machine_is_asked_where_there_is_something_and_nobody_is_waited_for(answer):
    """Under a condition: the instruction does not know a size of zero. And no part of a chain of launches."""
    for name, text in answer(COMPILED, TRITON_INTERPRET="0").items():
        assert text.count("@some cp.async.bulk.prefetch.L2.global") == kernels.PER_LAUNCH, name
        assert "griddepcontrol" not in text, name


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_nothing_is_launched_elsewhere():
    """As no result depends on it, a device that cannot be asked is no error."""
    assert kernels.prefetch_triton(tensors()) is None
