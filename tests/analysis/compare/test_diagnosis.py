"""The cause of a change is the one that was planted: tau or cost, the stage, the counter, where, and whose fault."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddbench.analysis.compare.comparison import Comparisons, compare_arms, compare_runs
from ddbench.analysis.compare.diagnosis import Diagnosis, diagnose, work_changes
from ddbench.analysis.compare.exact import CounterChange
from ddbench.analysis.compare.shifts import depth_shift, prefill_us, round_shift
from ddbench.analysis.frames import load_run
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.synthetic_rounds import Simulation

ARMS = ("ar", "chain", "ddtree")
CASES = make_cases(arms=ARMS, concurrencies=(1, 4), num_requests=6, max_new_tokens=24, num_blocks=8)
Against = Callable[..., Comparisons]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = SyntheticPlan(name="a", cases=CASES, machine=0, interleaved_with="20250101T000000Z-b")
    return build_run(tmp_path_factory.mktemp("base") / "a", plan)


@pytest.fixture
def against(base: Path, tmp_path: Path) -> Against:
    """The base run against one with a planted change."""

    def build(cases: Any = CASES, **plan: Any) -> Comparisons:
        run = build_run(tmp_path / "b", SyntheticPlan(name="b", cases=cases, machine=2, turn=1, **plan))
        return compare_runs(load_run(base), load_run(run))

    return build


def diagnosed(found: Comparisons) -> Diagnosis:
    diagnosis = diagnose(found)
    assert diagnosis is not None
    return diagnosis


@pytest.mark.parametrize("stage", ["draft", "verify", "materialize"])
def test_a_slower_stage_is_named_as_cost_and_not_tau(against: Against, stage: str) -> None:
    found = diagnosed(against(slow={stage: 2.0}))
    assert found.cause == "cost"
    assert found.sentences[0].startswith("It is cost, not tau: a round costs more")
    assert found.round is not None
    assert found.round.parts[0].part == stage
    assert found.round.parts[0].share == pytest.approx(1.0, abs=0.15)
    assert found.sentences[1].startswith(f"{stage} ")
    assert "No counter of a round's work differs: the same work takes longer." in found.sentences


def test_the_planted_time_is_found_in_its_stage(against: Against) -> None:
    shift = diagnosed(against(slow={"draft": 1.5})).round
    assert shift is not None
    top = shift.parts[0]
    assert top.low is not None
    assert top.high is not None
    assert top.low < top.delta_us < top.high
    assert top.delta_us == pytest.approx(0.5 * top.a_us, rel=0.05)
    assert sum(part.delta_us for part in shift.parts) == pytest.approx(shift.delta_us)


def test_fewer_accepted_tokens_are_named_as_tau_and_not_cost(against: Against) -> None:
    found = diagnosed(against(agreement=0.7))
    assert found.cause == "tau"
    assert found.sentences[0].startswith(("It is tau, not cost: tau fell", "It is tau: tau fell"))
    about_cost = ("a round costs no more", "a round costs the same", "whether a round costs more is open")
    assert any(words in found.sentences[0] for words in about_cost)
    assert "at depth 1: the first drafted token" in found.sentences[1]


def test_both_at_once_are_told_with_their_parts(against: Against) -> None:
    found = diagnosed(against(agreement=0.8, slow={"verify": 1.4}))
    assert found.cause == "both"
    assert found.sentences[0].startswith("It is tau and cost (")


def test_the_stage_with_more_ops_is_named(against: Against) -> None:
    found = diagnosed(against(slow={"draft": 1.6}, extra_ops={"draft": 20}))
    assert "Exact counters per round: torch ops in draft 40.0 -> 60.0." in found.sentences


def test_a_change_of_every_drafting_arm_is_told_from_the_machine(against: Against) -> None:
    found = diagnosed(against(slow={"verify": 1.5}))
    text = " ".join(found.sentences)
    assert "Slower in 4 of 6: every arm that drafts, at every concurrency" in text
    assert found.control == "still"
    assert "The control arm ar is the same" in text
    assert "speedup over ar" in text


def test_a_control_that_moved_withholds_its_ratios(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H63: everything is slower, so it is not the draft."""
    usual = Simulation._round

    def slow(self: Any, step: int, running: Any, rows: Any) -> None:
        before = self.now
        usual(self, step, running, rows)
        row = list(rows["steps"][-1])
        row[-1] = self.now = before + int((1.2 if self.case.arm == "ar" else 1.5) * (self.now - before))
        rows["steps"][-1] = tuple(row)
        for request in running:
            request.last_ns = self.now

    monkeypatch.setattr(Simulation, "_round", slow)
    run = build_run(tmp_path / "b", SyntheticPlan(name="b", cases=CASES, machine=1, turn=1))
    found = diagnosed(compare_runs(load_run(base), load_run(run)))
    text = " ".join(found.sentences)
    assert found.control == "moved"
    assert "speedups over ar are withheld" in text
    assert "All 6 compared settings are slower." in text
    assert "speedup over ar" not in text
    assert "clocks, power cap, temperature and host load" in found.next_step


def test_a_change_of_one_concurrency_is_confined_to_it(base: Path, tmp_path: Path) -> None:
    one = tuple(case for case in CASES if case.workload.concurrency == 1)
    four = tuple(case for case in CASES if case.workload.concurrency == 4)
    build_run(tmp_path / "b", SyntheticPlan(name="b", cases=(*one, *four), machine=1, turn=1))
    slow = build_run(
        tmp_path / "slow", SyntheticPlan(name="b", cases=(*one, *four), machine=1, turn=1, slow={"verify": 2.0})
    )
    for folder in sorted((slow / "cases").iterdir())[len(one) :]:
        target = tmp_path / "b" / "cases" / folder.name
        for file in folder.iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    found = diagnosed(compare_runs(load_run(base), load_run(tmp_path / "b")))
    assert "every setting at concurrency 4, at no other" in " ".join(found.sentences) or (
        "chain at concurrency 4 and ddtree node_budget=16 at concurrency 4" in " ".join(found.sentences)
    )


def test_nothing_to_explain_is_said_as_such(against: Against) -> None:
    diagnosis = diagnosed(against())
    assert diagnosis.cause in ("none", "open")
    assert not any("It is" in sentence for sentence in diagnosis.sentences)


def test_runs_that_took_no_turns_say_how_to_get_a_verdict(base: Path, tmp_path: Path) -> None:
    runs = [
        build_run(tmp_path / name, SyntheticPlan(name=name, cases=CASES, machine=place, slow=slow))
        for place, (name, slow) in enumerate((("x", {}), ("y", {"verify": 1.5})))
    ]
    found = diagnosed(compare_runs(*(load_run(run) for run in runs)))
    assert found.cause == "open"
    assert found.control in ("still", "open")
    assert found.next_step.endswith("ddbench sweep y --blocks 10 --against OTHER_CHECKOUT.")


def test_two_arms_of_one_run_need_no_control(base: Path) -> None:
    found = diagnosed(compare_arms(load_run(base), "ar", "ddtree"))
    assert found.control == "same run"
    assert found.cause == "tau"
    assert found.sentences[0].startswith("It is tau: tau rose")


def test_the_same_data_gives_the_same_sentences(base: Path) -> None:
    once, again = (diagnosed(compare_arms(load_run(base), "chain", "ddtree")) for _ in range(2))
    assert once.sentences == again.sentences


def test_shifts_of_a_setting_against_itself_are_zero(base: Path) -> None:
    setting = compare_arms(load_run(base), "ar", "ddtree").matches[0].b
    shift = round_shift(setting, setting, is_paired=True)
    assert shift is not None
    assert {(part.delta_us, part.low, part.high, part.share) for part in shift.parts} == {(0.0, 0.0, 0.0, None)}
    found = depth_shift(setting, setting)
    assert found is not None
    assert found.a == found.b
    assert prefill_us(setting) == pytest.approx(4e3 * 1.08 * 0.95, rel=0.05)


@pytest.mark.parametrize(("block_sizes", "depth"), [((8, 8), 3), ((8, 3), 2)])
def test_a_depth_that_one_side_never_reaches_counts_where_both_draft_it(
    block_sizes: tuple[int, int], depth: int
) -> None:
    """From depth 3 on nothing is accepted any more; with a shorter block it is not even drafted."""
    whole, cut = ([1, 9, 12, 3, 4, 1], [1, 13, 22])
    settings = [
        SimpleNamespace(
            rounds={"num_accepted": np.repeat(np.arange(len(counts)), counts)},
            engine=SimpleNamespace(draft="dflash", block_size=size),
        )
        for counts, size in zip((whole, cut), block_sizes, strict=True)
    ]
    there, back = depth_shift(*settings), depth_shift(*reversed(settings))  # type: ignore[arg-type]
    assert there is not None
    assert back is not None
    assert (there.depth, back.depth) == (depth, depth)
    assert (there.a, there.b) == (back.b, back.a)
    assert depth == 2 or (there.a, there.b) == (8 / 20, 0.0)


def test_the_sum_of_a_counter_gives_way_to_its_stages() -> None:
    changes = (
        CounterChange("torch_ops", 100, 130, "worse", (10.0, 13.0)),
        CounterChange("torch_ops.draft", 40, 70, "worse", (4.0, 7.0)),
        CounterChange("num_rounds", 50, 60, "worse", None),
        CounterChange("nodes_verified", 100, 120, "worse", (2.0, 2.0)),
    )
    assert [change.name for change in work_changes(changes)] == ["torch_ops.draft"]
