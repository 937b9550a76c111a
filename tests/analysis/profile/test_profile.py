"""What is derived from captures against the synthetic truth, and against sums done row by row."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddbench.analysis.frames import RunFrames, load_run
from ddbench.analysis.profile.agreement import WHOLE, agreements
from ddbench.analysis.profile.captured_case import CapturedCase
from ddbench.analysis.profile.copies import copies_of, moved_by_copies, syncs_of
from ddbench.analysis.profile.device_time import DeviceTime
from ddbench.analysis.profile.launches import RoundLaunches
from ddbench.analysis.profile.moved import StageBytes, kernel_bytes
from ddbench.analysis.profile.occupancy import kernel_occupancy, sampled_metrics
from ddbench.analysis.profile.profile import Profile, by_setting, profiles_of
from ddbench.analysis.profile.sharing import Readings
from ddbench.analysis.profile.tax import Tax, clean_rounds, tax_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases, synthetic_ceilings
from ddbench.analysis.synthetic_captures import KERNELS, LATENCY_NS, SYNC_NS, CapturePlan
from ddbench.captured import OUTSIDE_ROUNDS, CaptureFault
from ddbench.records import ExpertUse, NotMeasured

SMALL = {"concurrencies": (1,), "node_budgets": (16,), "num_requests": 6, "max_new_tokens": 24}
DENIED = CaptureFault(reason="no_permission", what="counters are for administrators", cure="run as root")
AMOUNTS = {("read", "cold"): 1e10, ("matmul", "none"): 1e12, ("launch", "none"): 1000.0}


@pytest.fixture(scope="module")
def frames_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFrames]:
    def build(cache: int = 0, **plan: Any) -> RunFrames:
        folder = tmp_path_factory.mktemp("captured") / "run"
        cases = make_cases(arms=("ddtree",), **SMALL)
        ceilings = synthetic_ceilings(AMOUNTS, cache_bytes=cache)
        return load_run(build_run(folder, SyntheticPlan(cases=cases, ceilings=ceilings, **plan)))

    return build


@pytest.fixture(scope="module")
def profile_of(frames_of) -> Callable[..., Profile]:
    def build(cache: int = 0, **plan: Any) -> Profile:
        (found,) = profiles_of(frames_of(cache, captures={0: CapturePlan(**plan)})).values()
        return found

    return build


@pytest.fixture(scope="module")
def eager(profile_of) -> Profile:
    return profile_of(waste={"verify": 1.1, "draft": 3.0}, sampled=0.8)


@pytest.fixture(scope="module")
def graph(profile_of) -> Profile:
    return profile_of(is_graph=True)


def stages_of(profile: Profile) -> dict[str, StageBytes]:
    return {one.stage: one for one in profile.stage_bytes}


def known(value: float | NotMeasured) -> float:
    assert not isinstance(value, NotMeasured), value
    return value


# --- tax --------------------------------------------------------------------------------------------------------------


def test_the_tax_is_that_of_the_same_rounds(eager) -> None:
    for one in eager.case.passes.values():
        found = tax_of(eager.case, one)
        assert isinstance(found, Tax)
        assert found.ratio == pytest.approx(1.25, rel=1e-6)
        clean = eager.case.steps
        clean = clean[(clean["pass_name"] == "clean") & clean["step"].between(4, 3 + one.num_rounds)]
        assert found.clean_ns == pytest.approx((clean["end_ns"] - clean["start_ns"]).mean())


def late(case: CapturedCase) -> CapturedCase:
    """Every round is read 1000 ns after the next one has started."""
    steps = case.steps.assign(end_ns=case.steps["end_ns"] + 1000)
    return dataclasses.replace(case, steps=steps)


def test_rounds_that_are_read_late_are_told_apart_by_their_ends(eager) -> None:
    """Under one graph a round is committed after the next one began: start to end would count the time twice."""
    steps = eager.case.steps[(eager.case.steps["pass_name"] == "clean").to_numpy()].sort_values("step")
    found = clean_rounds(late(eager.case))
    ends = steps["end_ns"].to_numpy()
    starts = steps["start_ns"].to_numpy()
    is_late = np.append(False, starts[1:] < ends[:-1] + 1000)
    assert is_late.any()
    for step, is_own_late, took in zip(steps["step"][1:], is_late[1:], np.diff(ends), strict=True):
        if is_own_late:
            assert found[step] == took


def test_a_round_that_never_ran_clean_leaves_no_tax(frames_of) -> None:
    frames = frames_of(captures={0: CapturePlan(tools=("nsys",))})
    frames = dataclasses.replace(frames, steps=frames.steps[(frames.steps["step"] != 5).to_numpy()])
    (profile,) = profiles_of(frames).values()
    assert isinstance(profile.tax, NotMeasured)
    assert "1 rounds of the nsys pass are not in the clean one" in profile.tax.not_measured
    assert isinstance(agreements(profile.case), NotMeasured)


# --- launches, time, copies -------------------------------------------------------------------------------------------


def test_launches_are_counted_per_round_and_stage(eager, graph) -> None:
    for profile in (eager, graph):
        one, found = profile.case.passes["nsys"], profile.launches
        assert isinstance(found, RoundLaunches)
        ops = Counter(zip(one.ops["stage"], one.ops["kind"], strict=True))
        for stage in found.stages:
            for kind, count in stage.ops.items():
                assert count * one.num_rounds == pytest.approx(ops[stage.stage, kind])
        kinds = Counter(one.calls["kind"])
        assert found.whole.calls["launch"] * one.num_rounds == kinds["launch"]
        assert found.whole.calls["sync"] * one.num_rounds == kinds["sync"]
    assert eager.launches.whole.ops["kernel"] == 7 * KERNELS
    assert eager.launches.whole.num_replayed == 0
    assert graph.launches.whole.calls["graph_launch"] == 1
    assert graph.launches.whole.num_replayed == 7 * KERNELS


def test_stage_times_are_those_of_their_ops(eager) -> None:
    one = eager.case.passes["nsys"]
    took = (one.ops["end_ns"] - one.ops["start_ns"]).groupby(one.ops["stage"].astype(object)).sum()
    for stage in eager.launches.stages:
        assert stage.time_ns * one.num_rounds == took[stage.stage]
        assert stage.busy_ns <= stage.time_ns, "a copy beside a kernel is busy once"


def test_latency_and_gaps_are_the_synthetic_ones(eager, graph) -> None:
    """An eager launch takes its latency and the host's time between launches; a graph's nodes follow each other."""
    for profile in (eager, graph):
        found = profile.device_time
        assert isinstance(found, DeviceTime)
        assert found.busy_ns + sum(found.causes.values()) + found.outside_ns == found.window_ns
        one = profile.case.passes["nsys"]
        covered = np.zeros(one.capture.window_ns // 100 + 1, bool)
        for start, end in zip(one.ops["start_ns"], one.ops["end_ns"], strict=True):
            covered[start // 100 : end // 100] = True
        assert found.busy_ns == pytest.approx(100 * covered.sum(), rel=0.01)
    assert eager.device_time.share("host in verify") > graph.device_time.share("host in verify") == 0
    assert graph.device_time.share("between nodes of a replay") > 0
    assert LATENCY_NS == 6_000


def test_copies_are_told_by_direction_size_and_stage(eager) -> None:
    one = eager.case.passes["nsys"]
    found = {(own.what, own.stage, own.num_bytes): own for own in copies_of(one)}
    assert set(found) == {
        ("device to host", "tree_build", 3584),
        ("device to host", "accept", 64),
        ("host to device", "tree_build", 512),
        ("device to device", "commit", 4096),
    }
    assert all(own.per_round == 1 and own.calls == ("cudaMemcpyAsync",) for own in found.values())
    assert [own.is_to_host for own in copies_of(one)] == [True, True, False, False]
    # Within a device a byte is read and written, across its edge it is one of the two.
    assert moved_by_copies(one) == {"tree_build": 3584 + 512, "accept": 64, "commit": 2 * 4096}


def test_syncs_are_told_by_call_and_stage(eager) -> None:
    found = {(own.name, own.stage): own for own in syncs_of(eager.case.passes["nsys"])}
    assert set(found) == {("cudaStreamSynchronize", "accept"), ("cudaStreamSynchronize", "tree_build")}
    assert all((own.per_round, own.ns_per_round, own.longest_ns) == (1, SYNC_NS, SYNC_NS) for own in found.values())


def test_versions_of_calls_are_left_out(make_pass) -> None:
    one = make_pass(calls=[{"kind": "sync", "name": "cudaEventSynchronize_v3020", "start_ns": 0, "end_ns": 5}])
    assert [own.name for own in syncs_of(one)] == ["cudaEventSynchronize"]


def test_what_belongs_to_no_round_is_no_round(make_pass) -> None:
    one = make_pass(
        [{"start_ns": 0, "end_ns": 9, "round": OUTSIDE_ROUNDS, "kind": "copy", "direction": "device to host"}],
        [{"start_ns": 0, "end_ns": 5, "kind": "sync", "round": OUTSIDE_ROUNDS}],
    )
    assert copies_of(one) == ()
    assert syncs_of(one) == ()


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_bytes_are_counters_and_copies_over_the_fewest(eager) -> None:
    found = stages_of(eager)
    for stage, waste in (("verify", 1.1), ("draft", 3.0), ("accept", 1.5)):
        one = found[stage]
        copied = {"accept": 64}.get(stage, 0)
        assert known(one.counted) == pytest.approx(waste * 1e6)
        assert known(one.copied) == copied
        assert known(one.moved) == pytest.approx(waste * 1e6 + copied)
        assert known(one.waste) == pytest.approx(waste + copied / 1e6)
        assert known(one.sampled) == pytest.approx(0.8 * waste * 1e6, rel=1e-3)
        assert known(one.agreement) == pytest.approx(0.8 * waste * 1e6 / (waste * 1e6 + copied), rel=1e-3)
        assert known(one.bytes_per_s) == pytest.approx(known(one.moved) / known(one.busy_ns) * 1e9)
    assert found["tree_compile"].num_samples == 0, "shorter than the sampling interval"


def test_without_counters_samples_say_what_moved(profile_of) -> None:
    profile = profile_of(faults={"ncu": DENIED}, sampled=0.8)
    one = stages_of(profile)["draft"]
    assert isinstance(one.counted, NotMeasured)
    assert "counters are for administrators" in one.counted.not_measured
    assert known(one.moved) == pytest.approx(0.8 * 1.5e6, rel=1e-3)
    assert isinstance(one.agreement, NotMeasured)
    # Half a percent of the DRAM's peak, read and written, for as long as the stage takes.
    assert one.error == pytest.approx(2 * 0.005 * 4.8e12 * known(one.busy_ns) / 1e9, rel=1e-3)


@pytest.mark.parametrize("change", ["absent", "lost"])
def test_a_kernel_without_a_count_leaves_no_sum(frames_of, change) -> None:
    """H34, H35: a counter that the chip lacks, or that one kernel lacks, is no 0 in a sum."""
    frames = frames_of(captures={0: CapturePlan()})
    rows = frames.kernel_counters
    is_read = (rows["metric"] == "dram_read").to_numpy()
    gone = is_read if change == "absent" else is_read & (rows["index"] == 3).to_numpy()
    (profile,) = profiles_of(dataclasses.replace(frames, kernel_counters=rows[~gone])).values()
    one = stages_of(profile)["verify"]
    assert isinstance(one.counted, NotMeasured)
    wanted = "lack dram_read" if change == "absent" else "1 of 42 kernels have no count"
    assert wanted in one.counted.not_measured
    assert isinstance(kernel_bytes(profile.case), NotMeasured)
    assert known(one.moved) == known(one.sampled)


def test_a_stage_of_no_time_or_bytes_has_no_bandwidth() -> None:
    """H39."""
    none = StageBytes("accept", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0)
    for value in (none.waste, none.agreement, none.bytes_per_s):
        assert isinstance(value, NotMeasured)


def test_kernels_are_ordered_by_bytes(eager) -> None:
    found = kernel_bytes(eager.case)
    assert not isinstance(found, NotMeasured)
    assert [one.stage for one in found[:KERNELS]] == ["draft"] * KERNELS
    assert [one.moved for one in found] == sorted((one.moved for one in found), reverse=True)
    assert sum(one.moved for one in found) == pytest.approx(1e6 * (1.1 + 3.0 + 5 * 1.5))
    assert all(one.num_launches == 1 and one.read == pytest.approx(3 * one.written) for one in found)


# --- readings of the context: verify has to move 1 MB, of which 400 kB are one reading of the context -----------------


@pytest.mark.parametrize(
    ("waste", "cache", "most"),
    [
        (1.0, "flushed", 1.0),  # all beyond the rest is one reading
        (1.4, "flushed", 2.0),
        (7.4, "flushed", 17.0),  # one for each of the 17 tokens
        (1.0, "as it ran", 2.5),  # the other 600 kB may have been in the cache
    ],
)
def test_readings_are_what_the_bytes_leave_room_for(profile_of, waste, cache, most) -> None:
    profile = profile_of(32_000_000, waste={"verify": waste})
    if cache == "as it ran":
        profile = unflushed(profile)
    found = profile.readings
    assert isinstance(found, Readings)
    assert found.most == pytest.approx(most)
    assert (found.width, found.context, found.fewest) == (17.0, 4e5, 1e6)
    assert found.is_once == (most < 2 - 1e-9)
    assert found.is_shared == (most < 17 - 1e-9)
    assert found.is_visible


def unflushed(profile: Profile) -> Profile:
    """With counters that did not flush."""
    passes = dict(profile.case.passes)
    warm = passes["ncu"].capture.model_copy(update={"cache": "as it ran"})
    passes["ncu"] = dataclasses.replace(passes["ncu"], capture=warm)
    return Profile(dataclasses.replace(profile.case, passes=passes), profile.machine)


def test_a_context_that_would_not_show_tells_nothing() -> None:
    assert not Readings(1.0, 17.0, 1e6, 1e6, 2e3, 0.0, 0.0, 0.0, "hardware counters").is_visible
    assert Readings(1.0, 17.0, 1e6, 1e6, 4e3, 0.0, 0.0, 0.0, "hardware counters").is_visible


def with_expectation(profile: Profile, expected: int | NotMeasured) -> Profile:
    """So many of the fewest bytes of verify are an expectation."""
    costs = tuple(c.model_copy(update={"expected_bytes": expected}) for c in profile.case.result.stage_costs)
    result = profile.case.result.model_copy(update={"stage_costs": costs})
    return Profile(dataclasses.replace(profile.case, result=result), profile.machine)


@pytest.mark.parametrize(
    ("waste", "expected", "most"),
    [
        (1.0, 0, 1.0),
        (1.0, 400_000, 2.0),  # experts that nobody asked for leave room for another context
        (0.5, 600_000, 1.25),  # fewer bytes than the fewest, as experts were not touched
        (7.0, 600_000, 17.5),
    ],
)
def test_what_is_only_expected_is_not_taken_away(profile_of, waste, expected, most) -> None:
    """The fewest bytes: 1 MB, 400 kB of it context; what may be taken away are the others that are sure."""
    found = with_expectation(profile_of(waste={"verify": waste}), expected).readings
    assert isinstance(found, Readings)
    assert found.most == pytest.approx(most)
    assert found.most == pytest.approx((waste * 1e6 - (1e6 - 4e5 - expected)) / 4e5)
    assert not found.is_contradicted
    assert found.is_telling == (most < 17)


def with_count(profile: Profile, counted: int, spread: float) -> Profile:
    """600 kB of verify's fewest bytes were an expectation of experts; so many were counted in 100 rounds."""
    fields = {"expected_bytes": 600_000, "counted_bytes": counted}
    result = profile.case.result
    costs = tuple(c.model_copy(update=fields) if c.stage == "verify" else c for c in result.stage_costs)
    use = ExpertUse(touched=4, uniform=6, spread=spread, held=8, tokens=17, num_rounds=100)
    result = result.model_copy(update={"stage_costs": costs, "expert_use": use})
    return Profile(dataclasses.replace(profile.case, result=result), profile.machine)


@pytest.mark.parametrize(
    ("waste", "counted", "most"),
    [
        (1.0, 600_000, 1.0),  # as expected, and sure: nothing but one context is left
        (0.8, 400_000, 1.0),  # 200 kB less of experts were moved, and counted
        (1.2, 400_000, 2.0),
    ],
)
def test_experts_that_were_counted_are_taken_away(profile_of, waste, counted, most) -> None:
    """Of 400 kB context and the experts; were these an expectation, they would leave room for more readings."""
    profile = with_count(profile_of(waste={"verify": waste}), counted, 0.0)
    found = profile.readings
    assert isinstance(found, Readings)
    assert (found.fewest, found.expected, found.error, found.expert_rounds) == (4e5 + counted, 0, 0, 100)
    assert found.most == pytest.approx(most)
    assert not found.is_contradicted
    assert found.is_telling


def test_rounds_differ_from_those_that_were_counted(profile_of) -> None:
    """700 kB moved where 800 kB were counted: a contradiction, unless rounds differ by as much."""
    profile = profile_of(waste={"verify": 0.7})
    still, lively = (with_count(profile, 400_000, spread) for spread in (0.01, 0.2))
    assert still.readings.is_contradicted
    found = lively.readings
    captured = lively.case.counted.num_rounds
    assert found.error == pytest.approx(2 * 0.2 * 4e5 * (1 / captured + 1 / 100) ** 0.5)
    assert not found.is_contradicted
    assert found.most == pytest.approx((7e5 + found.error - 4e5) / 4e5), "what they differ by may be context"


def test_the_rounds_that_may_differ_are_those_whose_bytes_are_told(profile_of) -> None:
    """Of one round some kernels were counted, by choice: the bytes of verify are the samples of the others."""
    profile = with_count(profile_of(sampled=1.0), 400_000, 0.2)
    passes = dict(profile.case.passes)
    ncu = passes["ncu"].capture
    some = ncu.model_copy(update={"counted_kernels": "attention", "round_ns": ncu.round_ns[:1]})
    passes["ncu"] = dataclasses.replace(passes["ncu"], capture=some)
    case = dataclasses.replace(profile.case, passes=passes)
    sampled = case.timeline.num_rounds
    assert case.counted.num_rounds < sampled
    verify = stages_of(Profile(case, profile.machine))["verify"]
    assert not verify.is_counted
    assert verify.expert_error == pytest.approx(2 * 0.2 * 4e5 * (1 / sampled + 1 / 100) ** 0.5)


@pytest.mark.parametrize("expected", [NotMeasured(not_measured="an old record"), 0, 100_000])
def test_fewer_bytes_than_must_have_moved_tell_nothing(profile_of, expected) -> None:
    """A record that does not say what is expected may rest on experts; one that does is contradicted by its sum."""
    found = with_expectation(profile_of(waste={"verify": 0.8}), expected).readings
    assert isinstance(found, Readings)
    assert found.is_contradicted
    assert not found.is_telling


def test_records_from_before_answer_as_before_where_enough_was_moved(profile_of) -> None:
    profile = profile_of(waste={"verify": 1.4})
    old, new = profile.readings, with_expectation(profile, 0).readings
    assert isinstance(old, Readings)
    assert isinstance(new, Readings)
    assert isinstance(old.expected, NotMeasured)
    assert (old.most, old.is_telling) == (new.most, new.is_telling)


# --- occupancy --------------------------------------------------------------------------------------------------------


def test_occupancy_is_weighted_by_time(make_pass, eager) -> None:
    rows = []
    for index, (time, occupancy) in enumerate(((10.0, 20.0), (30.0, 60.0))):
        about = {"index": index, "name": "k", "stage": "verify"}
        rows += [{**about, "metric": "time", "value": time}, {**about, "metric": "occupancy", "value": occupancy}]
    one = make_pass(counters=rows, tool="ncu")
    (found,) = kernel_occupancy(dataclasses.replace(eager.case, passes={"ncu": one}))
    assert found.achieved == pytest.approx((10 * 20 + 30 * 60) / 40)
    assert isinstance(found.theoretical, NotMeasured)
    assert found.time_ns == 40.0


def test_samples_of_a_short_stage_are_blurred(eager) -> None:
    found = sampled_metrics(eager.case)
    assert not isinstance(found, NotMeasured)
    assert found["tree_compile"]["sm_active"].num_whole == 0
    assert found["verify"]["tensor_active"].value == 4.2
    assert list(found)[-1] == "idle"


# --- what nothing is read from ----------------------------------------------------------------------------------------


def test_withheld_totals_are_not_used(profile_of) -> None:
    """H18: a replay without a record makes every total too small."""
    profile = profile_of(is_graph=True, lost_replays=1)
    assert "under-recorded" in profile.case.passes["nsys"].unusable
    for value in (profile.device_time, profile.launches, agreements(profile.case), sampled_metrics(profile.case)):
        assert isinstance(value, NotMeasured)
        assert "under-recorded" in value.not_measured
    one = stages_of(profile)["verify"]
    assert not isinstance(one.counted, NotMeasured), "counters do not rest on the timeline"
    assert isinstance(one.sampled, NotMeasured)
    assert isinstance(one.copied, NotMeasured)


def test_a_failed_capture_says_why(profile_of) -> None:
    profile = profile_of(faults={"nsys": DENIED, "ncu": DENIED})
    assert isinstance(profile.readings, NotMeasured)
    assert not profile.has_bytes
    for value in (profile.device_time, profile.tax, profile.case.counted, sampled_metrics(profile.case)):
        assert isinstance(value, NotMeasured)
        assert "counters are for administrators" in value.not_measured


def test_a_window_without_rounds_gives_nothing(make_pass) -> None:
    assert "no round" in make_pass(round_ns=()).unusable


def test_stages_that_take_longer_than_they_can_are_found(eager) -> None:
    found = agreements(eager.case)
    assert not isinstance(found, NotMeasured)
    assert found[-1].stage == WHOLE
    assert all(one.is_ok for one in found)
    longer = eager.case.passes["nsys"]
    ops = longer.ops.assign(end_ns=longer.ops["start_ns"] + 4 * (longer.ops["end_ns"] - longer.ops["start_ns"]))
    passes = {"nsys": dataclasses.replace(longer, ops=ops)}
    found = agreements(dataclasses.replace(eager.case, passes=passes))
    assert not isinstance(found, NotMeasured)
    assert not all(one.is_ok for one in found)


def test_cases_without_captures_have_no_profile(frames_of) -> None:
    assert profiles_of(frames_of()) == {}


def test_a_usable_repeat_stands_for_its_setting(tmp_path: Path) -> None:
    cases = make_cases(arms=("ddtree",), num_blocks=2, **SMALL)
    captures = {0: CapturePlan(faults={"nsys": DENIED, "ncu": DENIED}), 1: CapturePlan()}
    profiles = profiles_of(load_run(build_run(tmp_path / "run", SyntheticPlan(cases=cases, captures=captures))))
    (found,) = by_setting(profiles.values()).values()
    assert found.case.case_id.startswith("0001-")
