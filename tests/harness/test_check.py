"""`ddbench check` passes on what is right and fails on what is wrong."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from rich.console import Console

from ddbench.engine.engine import Engine
from ddbench.engine.parts import PARTS
from ddbench.engine.types import Request
from ddbench.harness import check
from ddbench.harness.check import Row, check_ops, check_parity, check_sampling, checked_specs, run_checks, variants
from ddbench.harness.show import show_checks
from ddbench.models.weights import random_models
from ddbench.ops import OPS
from ddbench.spec import ARMS, UNUSED, EngineSpec

torch.set_num_threads(1)


def test_every_variant_of_every_part_is_checked() -> None:
    models = random_models("tiny-gqa")
    specs = variants(EngineSpec(target="tiny-gqa"), models).values()
    for field, table in PARTS.items():
        checked = {getattr(spec, field) for spec in specs}
        left_out = {"stochastic", *(name for name, kind in table.items() if kind.needs_cuda)}
        assert set(table) - left_out == checked - {UNUSED}, field
    assert set(ARMS) <= set(variants(EngineSpec(target="tiny-gqa"), models))


def test_on_a_gpu_every_variant_is_checked_and_the_arms_with_plain_kernels_and_in_one_graph_too() -> None:
    """Planned only: what is expected there comes from plain torch, so that no kernel is its own judge."""
    specs = checked_specs(EngineSpec(target="tiny-gqa", device="cuda"), random_models("tiny-gqa"))
    for field, table in PARTS.items():
        assert set(table) - {"stochastic"} <= {getattr(spec, field) for spec in specs.values()}, field
    for arm in ARMS:
        assert specs[arm].kernels == "triton"
        assert (specs[f"{arm} kernels=torch"].kernels, specs[f"{arm} kernels=torch"].executor) == ("torch", "eager")
        assert specs[f"{arm} in one graph"].executor == "round_graph"
    assert all(spec.device == "cuda" for spec in specs.values())


def test_parity_rows_name_what_is_out_of_reach_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "checkpoint_folder", lambda name: None)
    rows = list(check_parity("cpu", targets=("nano-k2",)))
    assert {row.status for row in rows} == {"skipped"}
    assert {row.subject: row.detail for row in rows[:-1]} == {
        "attention=tree_triton": "attention 'tree_triton' needs a CUDA device",
        "prefill=graph": "prefill 'graph' needs a CUDA device",
        "executor=stage_graphs": "executor 'stage_graphs' needs a CUDA device",
        "executor=round_graph": "executor 'round_graph' needs a CUDA device",
        "kernels=triton": "kernels 'triton' needs a CUDA device",
    }
    assert "weights are not in this installation" in rows[-1].detail


def test_an_engine_that_errs_only_when_batched_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = check.outputs_of

    def wrong_when_batched(engine: Engine, requests: Sequence[Request], concurrency: int) -> dict[int, tuple[int, ...]]:
        outputs = real(engine, requests, concurrency)
        if concurrency > 1 and engine.spec.tree_build == "device":
            outputs[2] = (*outputs[2][:4], outputs[2][4] ^ 1, *outputs[2][5:])
        return outputs

    monkeypatch.setattr(check, "outputs_of", wrong_when_batched)
    monkeypatch.setattr(check, "NEW_TOKENS", 6)
    rows = {row.subject: row for row in check_parity("cpu", targets=("tiny-gqa",))}
    failed = {subject for subject, row in rows.items() if row.status == "failed"}
    assert failed == {"tiny-gqa tree_build=device"}
    assert "concurrency 4, random-2, token 4" in rows["tiny-gqa tree_build=device"].detail
    assert rows["tiny-gqa ddtree"].status == "ok"


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS["rms_norm"]
    right = op.implementations["torch"]
    wrong = type(op)(**{**{f: getattr(op, f) for f in op.__slots__}, "implementations": {
        "right": right, "wrong": lambda **inputs: right(**inputs) * 1.001,
    }})  # fmt: skip
    monkeypatch.setattr(check, "OPS", {"rms_norm": wrong})
    assert [(row.subject, row.status) for row in check_ops("cpu")] == [
        ("rms_norm right", "ok"),
        ("rms_norm wrong", "failed"),
    ]


def test_sampling_is_right_and_the_control_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """H70, H71."""
    few = partial(check.check_distribution, num_draws=1_000, batch_size=1_000)
    monkeypatch.setattr(check, "check_distribution", few)
    rows = list(check_sampling("cpu"))
    assert [row.status for row in rows] == ["ok"] * 3
    assert "noticed, as it must be" in rows[-1].detail


def test_one_suite_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    suites = {name: (lambda device, name=name: iter([Row(name, "x", "ok")])) for name in ("ops", "parity")}
    monkeypatch.setattr(check, "SUITES", suites)
    assert [row.suite for row in run_checks("ops", "cpu")] == ["ops"]
    assert [row.suite for row in run_checks(None, "cpu")] == ["ops", "parity"]


def test_the_table_shows_every_row_and_the_sum() -> None:
    console = Console(file=io.StringIO(), width=120)
    rows = [Row("ops", "a [b]", "ok", "fine"), Row("ops", "c", "failed", "off by one"), Row("ops", "d", "skipped")]
    assert show_checks(console, rows) == rows
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "a [b]" in text
    assert "off by one" in text
    assert text.strip().endswith("1 ok, 1 failed, 1 skipped")
