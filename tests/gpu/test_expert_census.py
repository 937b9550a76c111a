"""Experts are counted behind an engine of graphs as behind one without, no layer waits for it, and nothing stays."""

from __future__ import annotations

import pytest
import torch

from ddbench.harness import expert_census
from ddbench.harness.expert_census import count_experts
from ddbench.records import ExpertUse

pytestmark = pytest.mark.gpu
TARGET = "tiny-mla-moe"


@pytest.mark.parametrize("arm", ["ar", "ddtree"])
def test_graphs_or_not_the_same_experts_are_counted(lab, arm):
    """And the graphs, which had to go, are recorded anew and say what they said."""
    requests = lab.requests(TARGET)
    plain = count_experts(lab.new_engine(TARGET, arm, executor="eager"), requests, 3)
    engine = lab.new_engine(TARGET, arm, executor="round_graph", prefill="graph")
    before = engine.run(requests, 3)
    found = count_experts(engine, requests, 3)
    assert isinstance(found, ExpertUse)
    assert found == plain
    assert engine.run(requests, 3) == before
    assert engine.parts.executor.counters()["eager_rounds"] == 0


def test_a_count_waits_for_nothing(lab, monkeypatch):
    real = expert_census.different
    seen = []

    def watched(ids, shape):
        torch.cuda.set_sync_debug_mode("error")
        try:
            seen.append(real(ids, shape))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return seen[-1]

    engine = lab.new_engine(TARGET, executor="eager")
    monkeypatch.setattr(expert_census, "different", watched)
    count_experts(engine, lab.requests(TARGET, 2), 2)
    assert len(seen) > 4
    assert all(one.is_cuda for one in seen)
