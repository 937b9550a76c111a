"""First come, first served; results in the order of the requests."""

from __future__ import annotations

import pytest

from ddbench.engine.scheduler import Scheduler
from ddbench.engine.types import Finished, Request

REQUESTS = [Request(i, (1,), 1) for i in (7, 3, 9)]


def test_requests_leave_the_queue_in_order_and_results_come_back_in_that_order():
    scheduler = Scheduler(REQUESTS, 2)
    assert [scheduler.next() for _ in range(4)] == [*REQUESTS, None]
    for request_id in (9, 7, 3):
        scheduler.finish(Finished(request_id, (1,), "stop", 0))
    assert [finished.request_id for finished in scheduler.results()] == [7, 3, 9]


@pytest.mark.parametrize(("concurrency", "capacity"), [(1, 1), (3, 3), (50, 3)])
def test_capacity_is_no_larger_than_needed(concurrency, capacity):
    assert Scheduler(REQUESTS, concurrency).capacity == capacity


def test_finishing_twice_is_a_fault():
    scheduler = Scheduler(REQUESTS, 2)
    scheduler.finish(Finished(7, (1,), "stop", 0))
    with pytest.raises(AssertionError, match="twice"):
        scheduler.finish(Finished(7, (1,), "stop", 0))
