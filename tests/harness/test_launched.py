"""Which of two kernels of an op ran is what Triton said of its launches, by the file that holds the kernel."""

from __future__ import annotations

import ast
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="launches are told by Triton's hooks")
from triton import knobs
from triton.compiler.compiler import LazyDict

import ddbench.kernels.mla_tree_attention_gluon
import ddbench.kernels.mla_tree_attention_triton  # noqa: F401
from ddbench.harness.launched import by_file, launches_seen
from ddbench.spec import ARMS, EngineSpec

KERNELS = Path(__file__).parents[2] / "kernels"
ON_GPU = EngineSpec(device="cuda", kernels="triton", **ARMS["ar"])


def launch(name: str) -> None:
    """What Triton does with its hooks when a kernel is launched."""
    knobs.runtime.launch_enter_hook(LazyDict({"name": name, "function": 1, "stream": 2}))


def test_launches_are_seen_within_and_not_after() -> None:
    names: set[str] = set()
    launch("before")
    with launches_seen(ON_GPU, names):
        launch("_mla_hopper_kernel")
        launch("_mla_hopper_kernel")
    with suppress(RuntimeError), launches_seen(ON_GPU, names):
        launch("_mla_combine_kernel")
        raise RuntimeError
    launch("after")
    assert names == {"_mla_hopper_kernel", "_mla_combine_kernel"}
    assert not knobs.runtime.launch_enter_hook.calls, "a hook that stays would be timed"


@pytest.mark.parametrize(
    "spec",
    [
        EngineSpec(device="cpu", **ARMS["ar"]),
        EngineSpec(device="cuda", kernels="torch", attention="dense_mask", **ARMS["ar"]),
    ],
)
def test_an_engine_without_triton_is_left_alone(spec: EngineSpec) -> None:
    with launches_seen(spec, set()):
        assert not knobs.runtime.launch_enter_hook.calls


def test_a_kernel_is_known_by_its_file_and_those_of_others_are_left_out() -> None:
    names = ("_mla_hopper_kernel", "_pack_ancestors_kernel", "_mla_combine_kernel", "triton_poi_fused_add_0")
    assert by_file(names) == {
        "mla_tree_attention_gluon": ("_mla_hopper_kernel",),
        "mla_tree_attention_triton": ("_mla_combine_kernel", "_pack_ancestors_kernel"),
    }
    assert by_file(()) == {}


def test_no_two_files_hold_a_kernel_of_the_same_name() -> None:
    """Or a launch would be billed to both."""
    names: Counter[str] = Counter()
    for path in KERNELS.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(one) for one in node.decorator_list):
                names[node.name] += node.name.endswith("_kernel")
    assert sum(names.values()) > 25
    assert [name for name, count in names.items() if count > 1] == []
