"""Floors and distances against numbers computed by hand: 100 GB/s hot, 10 GB/s cold, 1 Tflop/s, launches of 2 us."""

from collections.abc import Callable, Sequence

import pytest

from ddbench.analysis.breakdown import breakdown
from ddbench.analysis.frames import load_run
from ddbench.analysis.roofline import (
    Machine,
    Roofline,
    StageFloor,
    drifts,
    machine_of,
    roofline_of,
)
from ddbench.analysis.settings import Setting, study_of
from ddbench.analysis.synthetic import make_cases
from ddbench.records import Ceilings, CeilingSample, NotMeasured, StageCost, StageSample

CASE = {case.arm: case for case in make_cases(concurrencies=(1,))}
MS = 1_000_000
CACHE = 32_000_000


def rooflines(setting: Setting, ceilings: Ceilings | NotMeasured, default_threads: int | None = None):
    """The stages alone."""
    found = roofline_of(setting, breakdown(setting), ceilings, default_threads)
    return found.stages if isinstance(found, Roofline) else found


def sample(kind: str, cache: str, amount: float, **changes) -> CeilingSample:
    values = {
        "kind": kind, "cache": cache, "amount": amount, "low": amount, "high": amount, "when": "before",
        "dtype": "float32", "num_threads": 2, "working_set_bytes": 1, "num_samples": 5,
    }  # fmt: skip
    return CeilingSample(**{**values, **changes})


HOT, COLD = sample("read", "hot", 100e9), sample("read", "cold", 10e9)
MATMUL = sample("matmul", "none", 1e12)
LAUNCH, REPLAY = sample("launch", "none", 2000), sample("replay", "none", 500)


def ceilings_of(*samples: CeilingSample, cache: int | NotMeasured = CACHE, faults: Sequence[str] = ()) -> Ceilings:
    return Ceilings(device="cpu", last_level_cache_bytes=cache, samples=samples, faults=tuple(faults))


MADE = ceilings_of(HOT, COLD, MATMUL, LAUNCH, REPLAY)


def cost(stage: str, num_bytes: int, num_flops: int) -> StageCost:
    return StageCost(stage=stage, num_bytes=num_bytes, num_flops=num_flops, basis="batch 1")


def timed(step: int, stage: str, ms: float, clock: str = "host") -> StageSample:
    return StageSample(step=step, stage=stage, duration_ns=round(ms * MS), clock=clock)


Make = Callable[..., Setting]


def one_floor(
    setting_of: Make, num_bytes: int, num_flops: int, ceilings: Ceilings = MADE, ms: float = 12
) -> StageFloor:
    setting = setting_of([timed(0, "verify", ms), timed(1, "verify", ms)], [cost("verify", num_bytes, num_flops)])
    found = rooflines(setting, ceilings)
    assert isinstance(found, tuple)
    (floor,) = found
    return floor


@pytest.mark.parametrize(
    ("num_bytes", "num_flops", "bound", "cache", "floor_ms", "cold_floor_ms"),
    [
        (6_000_000, 30_000_000, "bytes", "hot", 0.06, 0.6),  # 6 MB at 100 GB/s; at 10 GB/s
        (32_000_000, 0, "bytes", "hot", 0.32, 3.2),  # just fits
        (132_000_000, 0, "bytes", "cold", 0.32 + 10.0, 13.2),  # 32 MB from the cache, 100 MB from memory
        (6_000_000, 3_000_000_000, "flops", "hot", 3.0, 3.0),  # 3 Gflop at 1 Tflop/s, wherever the bytes are
        (1000, 1000, "launch", "hot", 0.002, 0.002),
        (0, 5_000_000_000, "flops", "hot", 5.0, 5.0),
    ],
)
def test_a_floor_is_the_longest_of_three_times(
    setting_of: Make, num_bytes: int, num_flops: int, bound: str, cache: str, floor_ms: float, cold_floor_ms: float
) -> None:
    floor = one_floor(setting_of, num_bytes, num_flops)
    assert (floor.bound, floor.cache) == (bound, cache)
    assert floor.floor_ms == pytest.approx(floor_ms)
    assert floor.cold_floor_ms == pytest.approx(cold_floor_ms)
    assert floor.distance == pytest.approx(12 / floor_ms)


def test_rates_and_shares_are_the_work_over_the_time(setting_of: Make) -> None:
    """6 MB and 30 Mflop in 12 ms: 0.5 GB/s of 100, 2.5 Gflop/s of 1000."""
    floor = one_floor(setting_of, 6_000_000, 30_000_000)
    assert floor.intensity == pytest.approx(5.0)
    assert (floor.bytes_per_s, floor.flops_per_s) == (pytest.approx(0.5e9), pytest.approx(2.5e9))
    assert (floor.share_of_read, floor.share_of_matmul) == (pytest.approx(0.005), pytest.approx(0.0025))


def test_work_without_bytes_has_no_intensity(setting_of: Make) -> None:
    floor = one_floor(setting_of, 0, 1_000_000_000)
    assert floor.intensity == NotMeasured(not_measured="the stage has nothing to move")
    assert (floor.bytes_per_s, floor.share_of_read) == (0.0, 0.0)


@pytest.mark.parametrize(("num_flops", "distance"), [(24_000_000_000, 0.5), (12_000_000_000, 1.0)])
def test_what_is_faster_than_its_floor_says_so(setting_of: Make, num_flops: int, distance: float) -> None:
    floor = one_floor(setting_of, 0, num_flops)
    assert floor.distance == pytest.approx(distance)
    assert floor.is_too_fast == (distance < 1)


def test_the_distance_spans_the_quartiles_of_time_and_ceiling(setting_of: Make) -> None:
    """Rounds of 10, 12, 14 and 24 ms: mean 15, quartiles 11.5 and 16.5. At 50 to 200 GB/s floors are 1.2 to 0.3 ms."""
    setting = setting_of(
        [timed(step, "verify", ms) for step, ms in enumerate((10, 12, 14, 24))],
        [cost("verify", 60_000_000, 0)],
        attributed_ms=(30,) * 4,
    )
    wide = sample("read", "hot", 100e9, low=50e9, high=200e9)
    found = rooflines(setting, ceilings_of(wide, COLD, MATMUL, cache=100_000_000))
    assert isinstance(found, tuple)
    assert found[0].distance == pytest.approx(15 / 0.6)
    assert (found[0].low, found[0].high) == (pytest.approx(11.5 / 1.2), pytest.approx(16.5 / 0.3))


def test_a_round_without_the_stage_counts_with_no_time(setting_of: Make) -> None:
    """6 ms in one of two rounds: mean 3, quartiles 1.5 and 4.5."""
    setting = setting_of([timed(0, "verify", 6)], [cost("verify", 0, 1_000_000_000)])
    found = rooflines(setting, MADE)
    assert isinstance(found, tuple)
    assert (found[0].low, found[0].distance, found[0].high) == pytest.approx((1.5, 3.0, 4.5))


def test_a_whole_round_is_the_sum_of_its_stages_floors(setting_of: Make) -> None:
    """Floors of 3 and 0.06 ms (0.6 cold) in rounds of 20 and 30 ms; draft has no known cost."""
    setting = setting_of(
        [timed(step, stage, 5) for step in (0, 1) for stage in ("draft", "verify", "accept")],
        [cost("verify", 0, 3_000_000_000), cost("accept", 6_000_000, 0)],
    )
    found = roofline_of(setting, breakdown(setting), MADE)
    assert isinstance(found, Roofline)
    assert [floor.stage for floor in found.stages] == ["verify", "accept"]
    whole = found.whole
    assert (whole.milliseconds, whole.floor_ms, whole.cold_floor_ms) == pytest.approx((25.0, 3.06, 3.6))
    assert (whole.low, whole.distance, whole.high) == pytest.approx((22.5 / 3.06, 25 / 3.06, 27.5 / 3.06))
    assert (whole.without, whole.is_too_fast) == (("draft",), False)


def test_a_floor_rests_on_experts_as_they_were_counted(setting_of: Make) -> None:
    """10 MB, of which 8 MB were an expectation and 3 MB were counted: as long as another stage's 5 MB."""
    counted = cost("verify", 10_000_000, 0).model_copy(update={"expected_bytes": 8_000_000, "counted_bytes": 3_000_000})
    rows = [timed(step, stage, 5) for step in (0, 1) for stage in ("verify", "accept")]
    found = rooflines(setting_of(rows, [counted, cost("accept", 5_000_000, 0)]), MADE)
    assert isinstance(found, tuple)
    one, other = ((floor.num_bytes, floor.floor_ms, floor.distance) for floor in found)
    assert one == other
    assert one[0] == 5_000_000


def test_costs_of_several_processes_are_averaged(hand_run, hand_case, three_requests) -> None:
    cases = []
    for block, num_flops in enumerate((2_000_000_000, 4_000_000_000)):
        cases.append(
            hand_case(
                case=CASE["chain"].model_copy(update={"block": block}),
                requests=three_requests,
                round_ms=(14, 16, 10, 14, 14),
                stages=(timed(0, "verify", 12),),
                attributed_ms=(20,),
                fields={"stage_costs": (cost("verify", 0, num_flops),)},
            )
        )
    (setting,) = study_of(load_run(hand_run(cases).path)).settings
    found = rooflines(setting, MADE)
    assert isinstance(found, tuple)
    assert found[0].floor_ms == pytest.approx(3.0)


# --------------------------------------------------------------------------------------------------------- ceilings


def test_times_of_the_device_are_held_against_its_own_least_time(setting_of: Make) -> None:
    """The host launches in 2 us, but may run ahead: a kernel itself takes 0.5 us at least."""
    setting = setting_of([timed(0, "commit", 1, "device")], [cost("commit", 1000, 0)])
    found = rooflines(setting, MADE)
    assert isinstance(found, tuple)
    assert (found[0].bound, found[0].floor_ms) == ("launch", pytest.approx(0.0005))
    without = rooflines(setting, ceilings_of(HOT, COLD, MATMUL, LAUNCH))
    assert isinstance(without, tuple)
    assert (without[0].bound, without[0].floor_ms) == ("bytes", pytest.approx(1e-5))


def test_the_better_of_before_and_after_counts() -> None:
    after = [
        sample("read", "cold", 20e9, when="after"),
        sample("matmul", "none", 0.5e12, when="after"),
        sample("launch", "none", 1000, when="after"),
    ]
    found = machine_of(ceilings_of(HOT, COLD, MATMUL, LAUNCH, *after), "float32", 2)
    assert isinstance(found, Machine)
    rates = found.typical
    assert (rates.hot, rates.cold, rates.matmul, rates.op_ms) == (100e9, 20e9, 1e12, pytest.approx(0.001))


def test_a_cache_slower_than_memory_was_disturbed() -> None:
    found = machine_of(ceilings_of(sample("read", "hot", 1e9), COLD, MATMUL), "float32", 2)
    assert isinstance(found, Machine)
    assert (found.typical.hot, found.typical.cold) == (10e9, 10e9)


def test_without_a_known_cache_everything_comes_from_memory(setting_of: Make) -> None:
    unknown = ceilings_of(COLD, MATMUL, cache=NotMeasured(not_measured="unknown"))
    floor = one_floor(setting_of, 6_000_000, 0, unknown)
    assert (floor.cache, floor.floor_ms, floor.cold_floor_ms) == ("cold", pytest.approx(0.6), pytest.approx(0.6))


def test_a_change_between_before_and_after_is_a_drift() -> None:
    found = drifts(
        ceilings_of(
            HOT, COLD, MATMUL, sample("read", "hot", 109e9, when="after"), sample("read", "cold", 8e9, when="after")
        )
    )
    assert [(drift.before.cache, drift.change, drift.is_large) for drift in found] == [
        ("hot", pytest.approx(0.09), False),
        ("cold", pytest.approx(-0.2), True),
    ]


@pytest.mark.parametrize(
    ("dtype", "num_threads", "reason"),
    [
        ("bfloat16", 2, "no read ceiling was measured for bfloat16 with 2 threads; after the cases: it broke"),
        ("float32", 4, "no read ceiling was measured for float32 with 4 threads; after the cases: it broke"),
        ("float32", None, "ceilings were measured for several thread counts"),
        ("float32", 1, "no matmul ceiling was measured for float32 with 1 thread; after the cases: it broke"),
    ],
)
def test_ceilings_of_another_kind_of_case_are_not_used(dtype: str, num_threads: int | None, reason: str) -> None:
    other = sample("read", "cold", 5e9, num_threads=1)
    found = machine_of(ceilings_of(HOT, COLD, MATMUL, other, faults=["after the cases: it broke"]), dtype, num_threads)
    assert isinstance(found, NotMeasured)
    assert found.not_measured.startswith(reason)


def test_the_runs_own_default_decides_between_thread_counts(setting_of: Make) -> None:
    setting = setting_of([timed(0, "verify", 12)], [cost("verify", 0, 1_000_000_000)])
    fewer = [sample("read", "cold", 5e9, num_threads=1), sample("matmul", "none", 0.25e12, num_threads=1)]
    both = ceilings_of(HOT, COLD, MATMUL, *fewer)
    assert isinstance(rooflines(setting, both), NotMeasured)
    found = rooflines(setting, both, default_threads=1)
    assert isinstance(found, tuple)
    assert found[0].floor_ms == pytest.approx(4.0)


# ------------------------------------------------------------------------------------------------------- not measured


def test_every_gap_has_its_reason(setting_of: Make) -> None:
    absent = NotMeasured(not_measured="the run has no ceilings.json: its machine's ceilings were not measured")
    stages = [timed(0, "verify", 12), timed(0, "commit", 0)]
    setting = setting_of(stages, [cost("commit", 10, 0)])
    assert rooflines(setting, absent) == absent
    assert rooflines(setting, MADE) == NotMeasured(not_measured="no stage that was timed has work of known cost")


def test_without_attributed_pass_there_is_no_distance(setting_of: Make) -> None:
    setting = setting_of(attributed_ms=())
    assert rooflines(setting, MADE) == NotMeasured(not_measured="no attributed pass was run: capture mode 'none'")


def test_a_stage_that_has_nothing_to_do_is_left_out(setting_of: Make) -> None:
    setting = setting_of([timed(0, "verify", 12), timed(0, "commit", 1)], [cost("verify", 1, 1), cost("commit", 0, 0)])
    found = rooflines(setting, MADE)
    assert isinstance(found, tuple)
    assert [floor.stage for floor in found] == ["verify"]
