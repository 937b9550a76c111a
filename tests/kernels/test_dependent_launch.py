"""A launch that begins while the one before it ends must wait for it before it touches memory, on every path, and let
its own dependents begin only then. Read off the text and the machine code of every kernel that is launched so."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("dependent_child.py")
USUAL = {"prefetch_triton"}  # launched the usual way: behind a fork of streams, where nobody follows it
STEMS = sorted({path.stem for path in (ROOT / "kernels").glob("*.py") if "\nAOT" in path.read_text()} - USUAL)
# Read before the wait: what the launch before, the same launcher's, does not write. Its own wait is behind it, so all
# that came earlier is complete.
EARLY = {
    "_choose_kernel": {"bias_ptr"},
    "_combine_kernel": {"ids_ptr", "weights_ptr"},
    "_mla_combine_kernel": {"lengths_ptr"},
    "_tree_attention_combine_kernel": {"lengths"},
    "_product_kernel": {"blocks_ptr", "order_ptr", "w_ptr", "s_ptr"},
}
# Where warps part at once (the first ones wait, and then start the others) or where it depends on the work how long a
# program goes before it waits: no order of the text.
PARTED = {"_mla_hopper_kernel", "_tree_attention_hopper_kernel", "_product_kernel"}


@pytest.fixture(scope="module", params=STEMS)
def kernels(request: pytest.FixtureRequest) -> dict[str, dict]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(CHILD), request.param]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.rpartition("ANSWER")[2])


def test_every_kernel_waits_before_it_touches_memory(kernels: dict[str, dict]) -> None:
    for name, found in kernels.items():
        kernel, text, code = found["kernel"], found["text"], found["code"]
        assert (text["waits"], code["waits"]) == (True, True), name
        assert set(text["accessed"]) <= EARLY.get(kernel, set()), name
        if kernel in PARTED:
            continue
        assert text["branches"] == 0, f"{name}: a path may go around the wait"
        assert code["ends"] == 0, f"{name}: a program may end before it waits"
        if kernel not in EARLY:
            assert code["accesses"] == 0, f"{name}: the assembler moved an access ahead of the wait"


def test_no_kernel_lets_its_dependents_begin_before_it_has_waited(kernels: dict[str, dict]) -> None:
    """Else a launch could run while the one before the one before it still does."""
    for name, found in kernels.items():
        assert (found["text"]["launches"], found["code"]["launches"]) == (True, True), name
        assert not found["code"]["launches_first"], name


def _launches(tree: ast.AST) -> list[ast.Call]:
    """Calls of the form `kernel[grid](...)`."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id.endswith("_kernel")
    ]


@pytest.mark.parametrize("stem", STEMS)
def test_every_launch_of_a_round_may_begin_early(stem: str) -> None:
    """One forgotten option and a launch waits as launches do; no result would tell."""
    launches = _launches(ast.parse((ROOT / "kernels" / f"{stem}.py").read_text()))
    assert launches
    for launch in launches:
        told = {ast.unparse(keyword.value) for keyword in launch.keywords if keyword.arg is None}
        named = {keyword.arg for keyword in launch.keywords}
        is_told = "launch_pdl" in named or any(
            words.startswith("dependence(") or words in ("told", "dependent", "options") for words in told
        )
        assert is_told, ast.unparse(launch)[:200]


@pytest.mark.parametrize("stem", sorted(USUAL))
def test_what_is_launched_the_usual_way_is_told_of_no_other(stem: str) -> None:
    """Nor does it wait: nobody would let it go."""
    text = (ROOT / "kernels" / f"{stem}.py").read_text()
    launches = _launches(ast.parse(text))
    assert launches
    assert all(keyword.arg not in (None, "launch_pdl") for launch in launches for keyword in launch.keywords)
    assert "wait_for_launch_before" not in text


def _child() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dependent_child", CHILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HEAD = """.visible .entry k(
	.param .u64 k_param_0, .param .u64 k_param_1) {
	ld.param.b64 %rd1, [k_param_0];
	ld.param.b64 %rd2, [k_param_1];
	mad.wide.s32 %rd3, %r1, 4, %rd2;
"""
WAIT = "	griddepcontrol.wait; // dummy %r9\n	st.global.b32 [%rd1], %r2;\n	ret;\n}"


@pytest.mark.parametrize(
    ("body", "accessed", "branches"),
    [
        ("", [], 0),
        ("	@%p1 ld.global.b32 { %r2 }, [ %rd3 + 0 ];\n", ["y"], 0),
        ("	cp.async.cg.shared.global [ %r5 + 0 ], [ %rd3 + 0 ], 0x10, %r7;\n", ["y"], 0),
        ("	st.global.b32 [ %rd1 + 8 ], { %r2 };\n", ["x"], 0),
        ("	ld.shared.b32 %r2, [%r8];\n	cp.async.bulk.prefetch.L2.global [%rd3], %r1;\n", [], 0),
        ("	@%p1 bra $L__BB0_2;\n", [], 1),
        ("	ld.b32 %r2, [%rd9];\n", ["?"], 0),
    ],
)
def test_an_access_before_the_wait_is_found(body: str, accessed: list[str], branches: int) -> None:
    found = _child().before_waiting(HEAD + body + WAIT, ["x", "y"])
    assert found == {"waits": True, "accessed": accessed, "branches": branches}


def test_a_kernel_without_a_wait_is_found() -> None:
    assert not _child().before_waiting(HEAD + "	ret;\n}", ["x", "y"])["waits"]


def test_nothing_depends_where_no_such_gpu_is() -> None:
    """On a CPU, interpreted, or on a GPU of another generation no launch is told of an option that it does not know."""
    from ddbench.kernels import dependent_launch_triton

    assert dependent_launch_triton.dependence(torch.zeros(1)) == {"IS_DEPENDENT": False}
    assert not dependent_launch_triton.is_hopper(torch.zeros(1))
