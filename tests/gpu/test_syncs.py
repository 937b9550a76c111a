"""A round is launched without waiting for the device: torch raises at every synchronisation that it knows of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ddbench.spec import ARMS

pytestmark = pytest.mark.gpu


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("executor", ["eager", "stage_graphs", "round_graph"])
@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize("target", ["tiny-gqa", "tiny-mla-moe"])
def test_no_launch_of_a_run_waits_for_the_device(lab, surrounded, target, arm, executor):
    """All of a run's rounds, at all batch sizes; prefill and the arrival of tokens lie outside, and may wait."""
    requests = lab.stopping(target, lab.requests(target))
    engine = lab.engine(target, arm, executor=executor)
    engine.run(requests, 3)
    around = surrounded(engine, around=no_waiting)
    assert [one.tokens for one in engine.run(requests, 3)] == lab.texts(target, requests)
    assert around.num_launches > 4


@pytest.mark.parametrize("executor", ["eager", "stage_graphs", "round_graph"])
def test_a_tree_built_on_the_host_waits_and_is_seen_to(lab, surrounded, executor):
    """The control, and why the heap is not among the above: its search needs the candidates on the host."""
    requests = lab.requests("tiny-gqa", 2)
    engine = lab.new_engine("tiny-gqa", tree_build="heap", executor=executor)
    engine.run(requests, 2)
    surrounded(engine, around=no_waiting)
    with pytest.raises(RuntimeError, match="synchroniz"):
        engine.run(requests, 2)


def test_a_number_read_within_a_launch_is_seen(lab, surrounded):
    """The control: one `.item()` in a round's code."""
    requests = lab.requests("tiny-gqa", 2)
    engine = lab.new_engine("tiny-gqa", executor="eager")
    engine.run(requests, 2)
    real = engine._round

    def reading(batch, launch):
        report = real(batch, launch)
        assert report[0, 0].item() == report[0, 0].item()
        return report

    surrounded(engine, around=no_waiting, round_=reading)
    with pytest.raises(RuntimeError, match="synchroniz"):
        engine.run(requests, 2)
