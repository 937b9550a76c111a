"""The table: the shapes that targets are promised for, names, selections, and every op at its quick shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddbench.errors import UserError
from ddbench.opbench.correct import check, expectation
from ddbench.opbench.experts import choices
from ddbench.opbench.records import Target
from ddbench.opbench.run import SEED
from ddbench.opbench.shapes import BenchOp, Place, Shape
from ddbench.opbench.table import BENCH_OPS, Point, Selection
from ddbench.opbench.trees import HORIZON, ancestor_masks, random_parents

ROOT = Path(__file__).resolve().parents[2]
QUICK = Selection("quick").points()


def promised(op: str) -> list[Shape]:
    return [shape for shape in BENCH_OPS[op].shapes if shape.targets]


def limits(shape: Shape) -> dict[str, float]:
    return {target.metric: target.limit for target in shape.targets}


def test_materialize_is_promised_for_1_to_16_tokens_of_the_k2_drafter() -> None:
    shapes = promised("materialize_kv")
    assert [shape.dims["tokens"] for shape in shapes] == [1, 2, 4, 8, 16]
    assert all(limits(shape) == {"share_of_read": 1 / 1.25} for shape in shapes)
    assert all(
        (shape.dims["features"], shape.dims["hidden"], shape.dims["layers"]) == (43008, 7168, 6) for shape in shapes
    )


def test_topk_and_tree_are_promised_at_the_whole_vocabulary() -> None:
    shapes = promised("draft_topk_tree_build")
    assert {shape.dims["batch"]: limits(shape)["time_us"] for shape in shapes} == {1: 80.0, 16: 300.0}
    assert all((shape.dims["vocab"], shape.dims["horizon"], shape.dims["k"]) == (163840, 7, 64) for shape in shapes)
    assert "heap" in {one.name for one in BENCH_OPS["draft_topk_tree_build"].implementations}


@pytest.mark.parametrize(
    ("op", "widths"),
    [
        ("tree_attention", {"heads": 32, "kv_heads": 8, "dim": 128}),
        ("mla_tree_attention", {"heads": 64, "rank": 512, "rotary": 64}),
    ],
)
def test_attention_is_promised_for_every_context_tree_and_batch(op: str, widths: dict[str, int]) -> None:
    shapes = promised(op)
    points = {(shape.dims["context"], shape.dims["nodes"], shape.dims["batch"]) for shape in shapes}
    assert points == {(c, n, b) for c in (8192, 32768) for n in (8, 16, 32, 64) for b in (1, 16)}
    assert all(widths.items() <= shape.dims.items() for shape in shapes)
    assert all(limits(shape) == {"share_of_floor": 0.5, "speedup": 3.0} for shape in shapes)
    names = {one.name for one in BENCH_OPS[op].implementations}
    assert {"triton", "sdpa", "sdpa_folded", "flex"} <= names
    assert {name for shape in shapes for target in shape.targets for name in target.against} <= names


def test_experts_are_promised_for_the_share_of_a_rank() -> None:
    shapes = promised("moe_experts_int4")
    assert [shape.dims["tokens"] for shape in shapes] == [1, 4, 8, 16, 32, 64]
    assert all((shape.dims["held"], shape.dims["experts"], shape.dims["top_k"]) == (48, 384, 8) for shape in shapes)
    assert all(limits(shape) == {"share_of_read": 0.6} for shape in shapes)


@pytest.mark.parametrize("op", ["accept_walk", "commit_kv", "advance"])
def test_walk_commit_and_the_rounds_end_are_promised_one_quick_launch_at_batch_16(op: str) -> None:
    shapes = promised(op)
    assert shapes
    assert all(shape.dims["batch"] == 16 and limits(shape) == {"time_us": 10.0, "launches": 1} for shape in shapes)


def test_a_rounds_end_finds_what_the_one_before_it_found() -> None:
    """It is called thousands of times on the same inputs, and must not run out of its context."""
    op = BENCH_OPS["advance"]
    inputs = op.build(Place("cpu", torch.float32), SEED, batch=16, nodes=16, vocab=4096)
    call = next(one for one in op.implementations if one.name == "torch").prepare(inputs)
    first, second = ({name: value.clone() for name, value in op.results(inputs, call()).items()} for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert set(first) == {"report", "expected", "positions", "tokens", "lengths", "remaining", "anchors"}


def test_names_are_unique_and_every_tier_holds_the_one_before() -> None:
    for op in BENCH_OPS.values():
        for names in ([shape.name for shape in op.shapes], [one.name for one in op.implementations]):
            assert len(set(names)) == len(names)
        assert any(shape.tier == "quick" for shape in op.shapes), f"{op.name} cannot be tried on a CPU"
    quick, default, full = (
        [(point.op.name, point.shape.name) for point in Selection(tier).points()]
        for tier in ("quick", "default", "full")
    )
    assert set(quick) < set(default) < set(full)
    assert [name for name in full if name in set(default)] == default, "the order is the table's"


def test_a_selection_names_ops_shapes_and_implementations() -> None:
    points = Selection("quick", ("tree_attention",), ("gqa-c32k-n64-b16",), ("triton", "sdpa")).points()
    assert [(point.op.name, point.shape.name) for point in points] == [("tree_attention", "gqa-c32k-n64-b16")]
    assert [one.name for one in points[0].implementations] == ["triton", "sdpa"]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (Selection(ops=("tree_atention",)), "unknown op 'tree_atention': did you mean 'tree_attention'?"),
        (Selection(shapes=("gqa-c8k-n64-b2",)), "unknown shape 'gqa-c8k-n64-b2': did you mean 'gqa-c8k-n64-b1"),
        (Selection(implementations=("tritn",)), "unknown implementation 'tritn': did you mean 'triton'?"),
        (Selection(ops=("linear",), implementations=("triton",)), "unknown implementation 'triton': "),
        (Selection(shapes=("n64-b16",), implementations=("sdpa",)), "no op has both"),
    ],
)
def test_a_name_that_fits_nothing_says_what_is_meant(asked: Selection, meant: str) -> None:
    with pytest.raises(UserError) as caught:
        asked.points()
    assert str(caught.value).startswith(meant)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("point", QUICK, ids=lambda point: f"{point.op.name}-{point.shape.name}")
def test_every_implementation_agrees_at_the_quick_shapes(point: Point, dtype: torch.dtype) -> None:
    op: BenchOp = point.op
    inputs = op.build(Place("cpu", dtype), SEED, **point.shape.dims)
    expected = expectation(op, inputs)
    runnable = [one for one in point.implementations if one.why_not(point.shape, "cpu") is None]
    assert runnable
    for one in runnable:
        assert check(op, one, inputs, expected).detail == "", one.name
    cost, other = op.cost(inputs), op.cost(op.another(inputs, 1))
    assert cost["bytes"] > 0
    assert cost["flops"] == other["flops"], "another set is as much work"


@pytest.mark.parametrize("point", QUICK, ids=lambda point: f"{point.op.name}-{point.shape.name}")
def test_costs_oracles_and_calls_make_tensors_where_their_inputs_are(point: Point) -> None:
    """With another default device what is made without a word of where is not where the inputs are."""
    inputs = point.op.build(Place("cpu", torch.float32), SEED, **point.shape.dims)
    with torch.device("meta"):
        assert point.op.cost(inputs)["bytes"] > 0
        expected = expectation(point.op, inputs)
        for one in point.implementations:
            if not one.has_host_sync and one.why_not(point.shape, "cpu") is None:
                assert check(point.op, one, inputs, expected).detail == "", one.name


def test_a_set_of_its_own_shares_no_memory_unless_it_says_so() -> None:
    for point in QUICK:
        inputs = point.op.build(Place("cpu", torch.float32), SEED, **point.shape.dims)
        other = point.op.another(inputs, 1)
        places = [
            {value.data_ptr() for value in one.values() if isinstance(value, torch.Tensor)} for one in (inputs, other)
        ]
        assert point.op.is_shared or not places[0] & places[1], point.op.name


def test_the_launchers_are_called_as_they_want_to_be() -> None:
    """Every Triton row at its quick shape, in a process of its own: on a GPU where there is one, else interpreted."""
    pytest.importorskip("triton", reason="triton is not installed")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answers = dict(line.split("\t") for line in done.stdout.splitlines())
    assert len(answers) >= 20
    assert {name: detail for name, detail in answers.items() if detail != "agrees"} == {}


def test_random_trees_are_trees_of_full_depth() -> None:
    parents, depths = random_parents(3, 4, 65)
    assert bool((parents[:, 1:] >= 0).all())
    assert bool((parents < torch.arange(65)).all())
    assert bool((depths[:, 1:] == depths.gather(1, parents[:, 1:]) + 1).all())
    assert depths.amax(dim=1).tolist() == [HORIZON] * 4
    visible = ancestor_masks(parents)
    assert torch.equal(visible.sum(dim=2), depths + 1), "a node sees itself and one node of every level above"


def test_choices_fall_into_the_share_as_often_as_on_average() -> None:
    for tokens in (1, 4, 64):
        ids = choices(tokens, tokens, 8, 384, 48, 48)
        assert ids.shape == (tokens, 8)
        assert int(((ids >= 48) & (ids < 96)).sum()) == tokens
        assert all(len(set(row)) == 8 for row in ids.tolist())


def test_a_target_is_an_upper_limit_for_times_and_launches_only() -> None:
    assert [
        Target(metric=m, limit=1).is_ceiling
        for m in ("time_us", "launches", "share_of_floor", "share_of_read", "speedup")
    ] == [
        *(True, True),
        *(False, False, False),
    ]


def _interpreted() -> None:
    torch.set_num_threads(1)
    place = Place("cuda" if torch.cuda.is_available() else "cpu", torch.float32)
    for point in QUICK:
        inputs = point.op.build(place, SEED, **point.shape.dims)
        expected = expectation(point.op, inputs)
        for one in point.implementations:
            if one.why_not(point.shape, "cuda") is None and one.why_not(point.shape, "cpu") and one.name != "flex":
                detail = check(point.op, one, inputs, expected).detail
                sys.stdout.write(f"{point.op.name} {point.shape.name} {one.name}\t{detail or 'agrees'}\n")


if __name__ == "__main__":
    _interpreted()
