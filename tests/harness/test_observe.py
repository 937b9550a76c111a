"""From events to records, by hand: two requests, one of which joins late."""

from __future__ import annotations

import pytest

from ddbench.engine.types import Finished, Request, RoundOutcome
from ddbench.harness.capture import CleanProbe
from ddbench.harness.observe import PassRows, count, pass_rows, typical_round

REQUESTS = [Request(0, (1, 2, 3), 9, prompt_id="a", kind="code"), Request(1, (4,), 9, prompt_id="b", kind="prose")]
FINISHED = [Finished(0, (5, 6, 7, 8), "length", 2), Finished(1, (9, 9, 9, 9, 9, 9, 9), "stop", 2)]


def heard() -> CleanProbe:
    """Request 0 runs rounds 0 and 1, request 1 runs rounds 1 and 2; the clock ticks by 10."""
    times = iter(range(1010, 2000, 10))
    probe = CleanProbe(lambda: next(times))
    probe.admitted(0)  # 1010
    probe.first_token(0, 5)  # 1020
    probe.round_started(1)  # 1030
    probe.committed(RoundOutcome((0,), (4,), (1,), ((6, 7),), (1.5,), (False,), 5))  # 1040
    probe.admitted(1)  # 1050
    probe.first_token(1, 9)  # 1060
    probe.round_started(2)  # 1070
    probe.committed(RoundOutcome((0, 1), (4, 3), (2, 2), ((8,), (9, 9, 9)), (1.5, 2.0), (True, False), 5))  # 1080
    probe.finished(0, "length")
    probe.round_started(1)  # 1090
    probe.committed(RoundOutcome((1,), (4,), (2,), ((9, 9, 9),), (1.5,), (True,), 5))  # 1100
    probe.finished(1, "stop")
    return probe


@pytest.fixture
def rows() -> PassRows:
    return pass_rows(heard(), REQUESTS, FINISHED, "clean", 0, start_ns=1000)


def test_times_are_since_the_pass_began(rows: PassRows) -> None:
    times = [(r.admitted_ns, r.first_token_ns, r.last_token_ns) for r in rows.requests]
    assert times == [(10, 20, 80), (50, 60, 100)]
    assert [(s.step, s.batch_size, s.start_ns, s.end_ns) for s in rows.steps] == [
        (0, 1, 30, 40),
        (1, 2, 70, 80),
        (2, 1, 90, 100),
    ]


def test_rounds_are_counted_per_request(rows: PassRows) -> None:
    assert [(r.step, r.request_id, r.request_round, r.num_emitted) for r in rows.rounds] == [
        (0, 0, 0, 2),
        (1, 0, 1, 1),
        (1, 1, 0, 3),
        (2, 1, 1, 3),
    ]
    assert [(r.num_rounds, r.finish_reason, r.kind) for r in rows.requests] == [
        (2, "length", "code"),
        (2, "stop", "prose"),
    ]


def test_accepted_before_a_cut_and_emitted_after_it_are_kept_apart(rows: PassRows) -> None:
    """H100: request 0 had 2 tokens accepted in its last round and emitted 1."""
    assert (rows.rounds[1].num_accepted, rows.rounds[1].num_emitted) == (2, 1)


def test_repeats_are_tokens_that_complete_a_known_4_gram(rows: PassRows) -> None:
    """H107: prompt 4, then 9 x 7: the first 9 9 9 9 is new, the three after it are repeats."""
    assert [r.num_repeated for r in rows.rounds] == [0, 0, 0, 3]


def test_the_prompt_counts_as_seen() -> None:
    probe = CleanProbe(iter(range(100)).__next__)
    probe.admitted(0)
    probe.first_token(0, 1)
    probe.round_started(1)
    probe.committed(RoundOutcome((0,), (3,), (3,), ((2, 3, 4, 9),), (1.0,), (True,), 4))
    request, done = Request(0, (1, 2, 3, 4), 9), Finished(0, (1, 2, 3, 4, 9), "length", 1)
    rows = pass_rows(probe, [request], [done], "clean", 0, 0)
    assert rows.rounds[0].num_repeated == 1


def test_counters_add_up(rows: PassRows) -> None:
    assert count(rows) == {
        "num_requests": 2,
        "num_steps": 3,
        "num_rounds": 4,
        "nodes_verified": 15,
        "tokens_accepted": 7,
        "tokens_emitted": 11,
        "tokens_repeated": 3,
        "identity_paths": 2,
    }


def test_the_typical_round_is_the_mean_over_rounds(rows: PassRows) -> None:
    typical = typical_round(rows, block=8)
    assert typical.batch == pytest.approx(4 / 3)
    assert typical.width == 5
    assert typical.context == pytest.approx((3 + 5 + 1 + 4) / 4)
    assert typical.committed == pytest.approx(9 / 4)
    assert typical.moved == pytest.approx((1 + 0 + 2 + 0) / 4)


def test_a_request_that_its_prefill_finishes_has_no_rounds() -> None:
    probe = CleanProbe(iter(range(100)).__next__)
    probe.admitted(0)
    probe.first_token(0, 5)
    probe.finished(0, "length")
    rows = pass_rows(probe, [Request(0, (1,), 1)], [Finished(0, (5,), "length", 0)], "clean", 0, 0)
    assert rows.requests[0].last_token_ns == rows.requests[0].first_token_ns
    assert rows.requests[0].tokens == (5,)
    assert rows.rounds == []


def test_rounds_that_overlap_share_their_time_and_serve_whom_they_served() -> None:
    """Round 1 is launched before round 0 is read; request 0 had stopped by then, and round 2 serves nobody."""
    times = iter(range(1010, 2000, 10))
    probe = CleanProbe(lambda: next(times))
    for request in REQUESTS:
        probe.admitted(request.request_id)
        probe.first_token(request.request_id, 5)  # 1020, 1040
    for _ in range(2):
        probe.round_started(2)  # 1050, 1060
    probe.committed(RoundOutcome((0, 1), (4, 4), (1, 0), ((6, 7), (8,)), (1.5, 1.5), (True, True), 5))  # 1070
    probe.committed(RoundOutcome((1,), (4,), (0,), ((9,),), (1.5,), (True,), 5))  # 1080
    probe.round_started(1)  # 1090
    probe.committed(RoundOutcome((), (), (), (), (), (), 5))  # 1100
    done = [Finished(0, (5, 6, 7), "stop", 1), Finished(1, (5, 8, 9), "stop", 2)]
    rows = pass_rows(probe, REQUESTS, done, "clean", 0, start_ns=1000)
    assert [(s.start_ns, s.end_ns) for s in rows.steps] == [(50, 70), (70, 80), (90, 100)], "no time counts twice"
    took_part = [sum(r.step == step for r in rows.rounds) for step in range(3)]
    assert [s.batch_size for s in rows.steps] == took_part == [2, 1, 0]
    assert typical_round(rows, block=8).width == 5, "rows that wait are no work that has to be done"


def test_two_stories_of_one_pass_are_a_bug() -> None:
    other_tokens = [Finished(0, (5, 6, 7, 0), "length", 2), FINISHED[1]]
    with pytest.raises(AssertionError, match="not the result's"):
        pass_rows(heard(), REQUESTS, other_tokens, "clean", 0, 0)
    open_round = heard()
    open_round.round_started(1)
    with pytest.raises(AssertionError, match="not committed"):
        pass_rows(open_round, REQUESTS, FINISHED, "clean", 0, 0)
