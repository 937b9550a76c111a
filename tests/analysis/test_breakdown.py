"""Stage times per round against numbers computed by hand."""

import pytest

from ddbench.analysis.breakdown import Breakdown, breakdown, idle_between_graphs
from ddbench.analysis.decompose import HOST_GAP, PARTS, Shares, shares_of
from ddbench.records import NotMeasured, StageSample

MS = 1_000_000


def sample(step: int, stage: str, ms: int) -> StageSample:
    return StageSample(step=step, stage=stage, duration_ns=ms * MS, clock="host")


def test_stages_and_gap_make_up_the_mean_round(setting_of) -> None:
    """Two attributed rounds of 20 and 30 ms; draft in both, commit in one, prefill outside; 125 against 100 ms wall."""
    stages = (
        sample(-1, "prefill", 16 * 9),
        sample(0, "draft", 4),
        sample(0, "verify", 10),
        sample(1, "draft", 6),
        sample(1, "verify", 14),
        sample(1, "commit", 2),
    )
    setting = setting_of(stages)
    found = breakdown(setting)
    assert isinstance(found, Breakdown)
    assert found.stage_ms == {"draft": 5.0, "verify": 12.0, "commit": 1.0}
    assert list(found.stage_ms) == ["draft", "verify", "commit"]
    assert (found.round_ms, found.gap_ms, found.num_rounds, found.clock) == (25.0, 7.0, 2, "host")
    assert found.share("verify") == pytest.approx(12 / 25)
    assert found.tax == pytest.approx(0.25)
    assert found.outside_ms == {"prefill": 16 * 9 / setting.workload.num_requests}


def test_without_attributed_pass_there_is_a_reason(setting_of) -> None:
    assert breakdown(setting_of(attributed_ms=())) == NotMeasured(
        not_measured="no attributed pass was run: capture mode 'none'"
    )


def test_under_graphs_the_gap_is_the_clean_pass_s_own(setting_of) -> None:
    """Rounds of 68 ms in all, graphs in 51 of them: a quarter idle, however long the attributed pass waits."""
    setting = setting_of((sample(0, "draft", 4), sample(0, "verify", 11)), attributed_ms=(90,), replayed_ms=51)
    assert idle_between_graphs(setting) == pytest.approx(0.25)
    found = breakdown(setting)
    assert isinstance(found, Breakdown)
    assert found.stage_ms == {"draft": 4.0, "verify": 11.0}
    assert (found.round_ms, found.gap_ms) == pytest.approx((20.0, 5.0))
    shares = shares_of(setting)
    assert isinstance(shares, Shares)
    assert dict(zip(PARTS, shares.values, strict=True))[HOST_GAP] == pytest.approx(0.25)
    assert shares.values.sum() == pytest.approx(1)


def test_without_graphs_nothing_is_known_of_idle_time_between_them(setting_of) -> None:
    why = NotMeasured(not_measured="the rounds were not replayed as graphs")
    assert idle_between_graphs(setting_of(attributed_ms=())) == why
