"""Names of NVTX ranges: what the probe writes is what the analysis finds."""

import pytest

from ddbench.analysis.nsys.names import parse_round, parse_stage, round_range, stage_range
from ddbench.engine.stages import Stage


@pytest.mark.parametrize("stage", list(Stage))
def test_a_stage_range_is_called_by_its_value(stage: Stage) -> None:
    assert stage_range(stage) == stage.value
    assert parse_stage(stage_range(stage)) is stage


@pytest.mark.parametrize("step", [0, 7, 10**12])
def test_a_round_range_carries_its_step(step: int) -> None:
    assert round_range(step) == f"round/{step}"
    assert parse_round(round_range(step)) == step


@pytest.mark.parametrize("name", ["round/", "round/01", "round/-1", "round/1 ", "Round/1", "round/1/x", "round/٣"])
def test_what_only_looks_like_a_round_is_none(name: str) -> None:
    assert parse_round(name) is None


@pytest.mark.parametrize("name", ["", "Verify", "verify ", "STAGE.verify", "round/1"])
def test_what_only_looks_like_a_stage_is_none(name: str) -> None:
    assert parse_stage(name) is None
