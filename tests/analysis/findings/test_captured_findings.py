"""Q1 by bytes in place of an inference, Q3 by launches and idle time, and neither by what is withheld."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddbench.analysis.findings.answers import Finding, captured, told
from ddbench.analysis.findings.bandwidth import bandwidth
from ddbench.analysis.frames import load_run
from ddbench.analysis.profile.device_time import HOST_CAUSES
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases, synthetic_ceilings
from ddbench.analysis.synthetic_captures import CapturePlan
from ddbench.captured import CaptureFault
from ddbench.records import ExpertUse, NotMeasured
from ddbench.report.evidence import Evidence, evidence_of

CASES = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), node_budgets=(16,), num_requests=8)
DENIED = CaptureFault(reason="no_permission", what="counters are for administrators", cure="run as root")
TREE = 2  # place of ddtree in CASES
CEILINGS = synthetic_ceilings(
    {("read", "hot"): 1e9, ("read", "cold"): 1e9, ("matmul", "none"): 1e12, ("launch", "none"): 1000.0}
)


@pytest.fixture
def evidence(tmp_path: Path) -> Callable[..., Evidence]:
    def build(cases=CASES, **plan: Any) -> Evidence:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return evidence_of(load_run(build_run(folder, SyntheticPlan(cases=cases, ceilings=CEILINGS, **plan))))

    return build


def answer(run: Evidence, question: int) -> Finding:
    (found,) = run.findings.values()
    return found.answers[question - 1]


# --- Q1: verify has to move 1 MB, 400 kB of it one reading of the context; 17 tokens could each read it ---------------


@pytest.mark.parametrize(
    ("waste", "verdict", "words"),
    [
        ({"verify": 1.2}, "yes", "room for 1.5 readings of the context by 17.0 tokens: it is read once and shared"),
        (
            {"verify": 1.2, "draft": 3.0},
            "mixed",
            "bandwidth is wasted in draft (3.0x): bytes moved, counted, over the fewest",
        ),
        (
            {"verify": 1.8},
            "undecided",
            "room for 3.0 readings of the context by 17.0 tokens: shared, perhaps not by all",
        ),
        ({"verify": 9.0}, "no", "a reading per token is not excluded"),
    ],
)
def test_counted_bytes_answer_in_place_of_an_inference(evidence, waste, verdict, words) -> None:
    found = answer(evidence(captures={TREE: CapturePlan(waste=waste)}), 1)
    assert (found.verdict, words in found.answer) == (verdict, True), found.answer
    assert found.answer.startswith("By the bytes that captures counted.")
    assert not found.is_inferred
    assert not any("needs hardware counters" in text for text in found.missing)
    values = {number.label: number.value for number in found.numbers}
    assert values["verify: bytes moved over its fewest"].value == pytest.approx(waste["verify"])
    assert values["verify: bytes moved per round"].value == pytest.approx(1e6 * waste["verify"])
    assert values["verify: sampled bytes over counted ones"].value == pytest.approx(0.9, rel=1e-3)
    assert values["readings of the context by verify, at most"].value == pytest.approx((waste["verify"] - 0.6) / 0.4)


def with_costs(run: Evidence, **fields: Any) -> Evidence:
    """The same run, its costs told otherwise."""
    results = {
        key: result.model_copy(update={"stage_costs": tuple(c.model_copy(update=fields) for c in result.stage_costs)})
        for key, result in run.frames.results.items()
    }
    return evidence_of(dataclasses.replace(run.frames, results=results))


def test_fewer_bytes_than_the_fewest_prove_no_sharing(evidence) -> None:
    """The fewest of an MoE target rest on an expectation: less than they are is no room for less than one reading."""
    run = evidence(captures={TREE: CapturePlan(waste={"verify": 0.8})})
    found = answer(run, 1)
    assert found.verdict == "undecided"
    assert "cannot tell, as verify moved less than its fewest bytes" in found.answer
    assert "rest on an expectation of how many are touched" in found.answer
    assert not any("readings of the context" in number.label for number in found.numbers)
    told_so = answer(with_costs(run, expected_bytes=600_000), 1)
    assert told_so.verdict == "undecided"
    assert "600 kB of them by an expectation of how many experts are touched" in told_so.answer
    assert "shared, perhaps not by all" in told_so.answer
    assert "of routed experts these are an expectation" in told_so.answer


def with_count(run: Evidence, counted: int) -> Evidence:
    """600 kB of verify's fewest bytes were an expectation of experts; so many were counted."""
    use = ExpertUse(touched=4, uniform=6, spread=0.0, held=8, tokens=17, num_rounds=31)
    fields = {"expected_bytes": 600_000, "counted_bytes": counted}
    results = {
        key: result.model_copy(
            update={
                "expert_use": use,
                "stage_costs": tuple(
                    c.model_copy(update=fields if c.stage == "verify" else {}) for c in result.stage_costs
                ),
            }
        )
        for key, result in run.frames.results.items()
    }
    return evidence_of(dataclasses.replace(run.frames, results=results))


def test_experts_that_were_counted_prove_sharing_where_an_expectation_cannot(evidence) -> None:
    """800 kB moved; 1 MB expected, of which 600 kB of experts; 350 kB of these were counted."""
    run = evidence(captures={TREE: CapturePlan(waste={"verify": 0.8})})
    assert answer(run, 1).verdict == "undecided"
    found = answer(with_count(run, 350_000), 1)
    assert found.verdict == "yes"
    assert "800 kB where 750 kB are the fewest, routed experts as counted in 31 rounds: its bytes" in found.answer
    assert "its fewest bytes, as counted (the routed experts among these counted in 31 rounds)" in found.answer
    assert "expectation" not in found.answer
    values = {number.label: number.value for number in found.numbers}
    assert values["verify: bytes moved over its fewest"].value == pytest.approx(0.8 / 0.75)
    assert values["readings of the context by verify, at most"].value == pytest.approx(1.125)
    wrong = answer(with_count(run, 500_000), 1)
    assert "cannot tell, as verify moved less than it surely must" in wrong.answer


def with_attention(run: Evidence, read: float, kept: bool = False) -> Evidence:
    """One kernel of verify is attention, and reads so many bytes a round; `kept`: caches were not flushed."""
    changed = {}
    for table in ("kernel_counters", "device_ops"):
        own = getattr(run.frames, table)
        changed[table] = own.assign(
            name=own["name"].astype(object).replace("verify_kernel_1", "_tree_attention_kernel")
        )
    counters = changed["kernel_counters"]
    is_read = (counters["name"] == "_tree_attention_kernel") & (counters["metric"] == "dram_read")
    changed["kernel_counters"] = counters.assign(value=counters["value"].where(~is_read, read))
    captures = run.frames.captures
    if kept:
        captures = {
            key: {tool: one.model_copy(update={"cache": "as it ran"}) for tool, one in own.items()}
            for key, own in captures.items()
        }
    return evidence_of(dataclasses.replace(run.frames, captures=captures, **changed))


TREE_CASES = make_cases(
    arms=("ar", "chain", "ddtree"), concurrencies=(1,), node_budgets=(16,), num_requests=8, attention="tree_triton"
)


@pytest.mark.parametrize(
    ("read", "kept", "verdict", "words"),
    [
        (5e5, False, "yes", "memory is asked for it once, and it is shared"),
        (20e5, False, "undecided", "shared, perhaps not by all"),
        (90e5, False, "undecided", "a reading per token is not excluded"),
        (5e5, True, "undecided", "with caches left as they were: these may have served any more of it"),
        (1e5, False, "undecided", "less than one reading cannot be"),
    ],
)
def test_kernels_of_attention_answer_before_the_sum_over_the_stage(evidence, read, kept, verdict, words) -> None:
    """The sum leaves room for more than 17 readings, since nearly all of the fewest bytes are only expected."""
    run = evidence(TREE_CASES, captures={TREE: CapturePlan(waste={"verify": 12.0})})
    found = answer(with_attention(with_costs(run, expected_bytes=9_600_000, num_bytes=10**7), read, kept), 1)
    assert (found.verdict, words in found.answer) == (verdict, True), found.answer
    assert "the attention kernels of verify read" in found.answer
    assert "room for" not in found.answer
    values = {number.label: number.value.value for number in found.numbers}
    bound = "at most" if not kept and read > 4e5 else "no bound"
    times = values[f"attention kernels of verify: bytes read over one reading of the context ({bound})"]
    assert times == pytest.approx(read / 4e5, rel=0.2), "rounds early in the answers have a shorter context"


def test_kernels_alone_answer_where_no_stage_has_bytes(evidence) -> None:
    """Chosen kernels, and no samples: nothing is said of waste."""
    run = evidence(TREE_CASES, captures={TREE: CapturePlan()})
    frames = run.frames
    captures = {
        key: {
            tool: one.model_copy(update={"counted_kernels": "_tree.*"} if tool == "ncu" else {})
            for tool, one in own.items()
        }
        for key, own in frames.captures.items()
    }
    bare = dataclasses.replace(frames, captures=captures, stage_samples=frames.stage_samples.iloc[:0])
    found = answer(with_attention(evidence_of(bare), 5e5), 1)
    assert found.verdict == "yes"
    assert found.answer.startswith("By the bytes that captures counted.")
    assert "fewest bytes" not in found.answer


def test_without_captures_the_inference_stays_and_says_so(evidence) -> None:
    found = answer(evidence(), 1)
    assert found.is_inferred
    assert found.answer.startswith("By inference, as no bytes were counted.")


def test_samples_stand_in_for_counters_that_were_denied(evidence) -> None:
    """What whole percents of the DRAM's peak leave open is no waste."""
    plan = {"faults": {"ncu": DENIED}, "waste": {"verify": 1e5, "draft": 1.2}}
    found = answer(evidence(captures={TREE: CapturePlan(**plan)}), 1)
    assert found.answer.startswith("By the bytes that captures sampled.")
    assert "bandwidth is wasted in verify" in found.answer
    assert "bytes moved, sampled, over the fewest" in found.answer
    assert any("counters are for administrators" in text for text in found.missing)
    small = answer(evidence(captures={TREE: CapturePlan(faults={"ncu": DENIED}, waste={"verify": 9.0})}), 1)
    assert "wasted" not in small.answer, "half a percent of 4.8 TB/s is more than that"


def test_captures_that_failed_leave_the_inference(evidence) -> None:
    found = answer(evidence(captures={TREE: CapturePlan(faults={"ncu": DENIED, "nsys": DENIED})}), 1)
    assert found.is_inferred


def test_a_context_without_its_bytes_says_nothing_of_sharing(evidence) -> None:
    run = evidence(captures={TREE: CapturePlan(waste={"verify": 1.2})})
    unknown = NotMeasured(not_measured="context rows were not counted apart")
    results = {
        key: result.model_copy(
            update={"stage_costs": tuple(c.model_copy(update={"context_bytes": unknown}) for c in result.stage_costs)}
        )
        for key, result in run.frames.results.items()
    }
    found = answer(evidence_of(dataclasses.replace(run.frames, results=results)), 1)
    assert "readings of the context" not in found.answer
    assert any("context rows were not counted apart" in text for text in found.missing)


def test_outputs_that_loop_are_not_measured_by_their_bytes(evidence) -> None:
    """H52: nothing rests on a degenerate case, its captures included."""
    run = evidence(captures={TREE: CapturePlan()})
    (basis,) = run.bases.values()
    (key,) = basis.profiles
    assert answer(run, 1).rests_on
    doubted = dataclasses.replace(basis, trusted=basis.trusted - {key})
    assert bandwidth(doubted).is_inferred


# --- Q3 ---------------------------------------------------------------------------------------------------------------


def graph_cases() -> tuple[Any, ...]:
    about = {"arms": ("ddtree",), "concurrencies": (1,), "node_budgets": (16,), "num_requests": 8}
    return (*make_cases(**about), *make_cases(**about, executor="round_graph"))


def test_launches_and_idle_shares_of_both_executors_are_told(evidence) -> None:
    captures = {0: CapturePlan(), 1: CapturePlan(is_graph=True)}
    run = evidence(graph_cases(), usual={"round_graph": 0.5}, captures=captures)
    found = answer(run, 3)
    assert "eager runs 21 kernels by 21 launch calls and 0 graph launches a round" in found.answer
    assert "round_graph runs 21 kernels by 0 launch calls and 1 graph launch a round" in found.answer
    assert "(rounds of 1.25x their clean time)" in found.answer
    for profile in run.profiles.values():
        idle = profile.device_time.idle_share
        late = sum(profile.device_time.share(cause) for cause in HOST_CAUSES)
        shares = [told(captured(share, "share", 1)) for share in (idle, late)]
        assert f"idle for {shares[0]} of the time, {shares[1]} as the host is late" in found.answer
    labels = [number.label for number in found.numbers]
    assert labels.count("device idle: share of a round, captured") == 2
    assert labels.count("kernels that a round runs, captured") == 2


def test_one_captured_side_is_told_by_itself(evidence) -> None:
    found = answer(evidence(captures={TREE: CapturePlan()}), 3)
    assert "Captured at concurrency 1, ddtree" in found.answer


def test_an_under_recorded_capture_is_not_used(evidence) -> None:
    """H18."""
    run = evidence(graph_cases(), captures={1: CapturePlan(is_graph=True, lost_replays=2)}, usual={"round_graph": 0.5})
    found = answer(run, 3)
    assert "Captured" not in found.answer
    assert not any("captured" in number.label for number in found.numbers)
    assert any("under-recorded" in text for text in found.missing)


def test_bytes_are_told_with_their_unit() -> None:
    assert told(captured(1.1e6, "bytes", 2)) == "1.10 MB"
