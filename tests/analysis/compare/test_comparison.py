"""Verdicts of comparisons: planted truths are found, what may not be compared is refused with its reason."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddbench.analysis.compare.comparison import Comparisons, compare_arms, compare_parts, compare_runs
from ddbench.analysis.frames import load_run
from ddbench.analysis.gate.baseline import shape_key
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.errors import UserError

SMALL: dict[str, Any] = {"num_requests": 6, "max_new_tokens": 24, "num_blocks": 8}
RUN = "20250101T000000Z-{}"
Build = Callable[..., Path]


@pytest.fixture
def side(tmp_path: Path) -> Build:
    """A run named a or b: the same question, another machine noise; the two took turns unless told otherwise."""

    def build(name: str, arms: tuple[str, ...] = ("ar", "ddtree"), is_apart: bool = False, **plan: Any) -> Path:
        engine = plan.pop("engine", {})
        cases = plan.pop("cases", None) or make_cases(arms=arms, concurrencies=(1,), **{**SMALL, **engine})
        other = None if is_apart or name == "b" else RUN.format("b")
        turn = {"machine": "ab".index(name), "turn": "ab".index(name)}
        return build_run(
            tmp_path / name, SyntheticPlan(name=name, cases=cases, interleaved_with=other, **{**turn, **plan})
        )

    return build


def compared(a: Path, b: Path, **options: Any) -> Comparisons:
    return compare_runs(load_run(a), load_run(b), **options)


def edit(path: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def results(run: Path, arm: str = "") -> Iterator[Path]:
    for path in sorted(run.glob("cases/*/result.json")):
        if arm in ("", json.loads(path.read_text())["result"]["case"]["arm"]):
            yield path


def codes(found: Comparisons) -> set[str]:
    return {reason.code for match in found.matches for reason in match.obstacles}


def test_the_same_code_is_never_slower(side: Build) -> None:
    """H43: three pairs of runs of one code."""
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1, 4), **SMALL)
    a = side("a", cases=cases)
    for machine in (11, 12, 13):
        found = compared(a, side("b", cases=cases, machine=machine))
        assert set(found.counts()) <= {"same", "undecided"}
        assert found.exit_code in (0, 3)


def test_a_slower_stage_is_slower_and_the_direction_flips_with_the_sides(side: Build) -> None:
    """H49: time per token is better low, output is better high."""
    a, b = side("a"), side("b", slow={"verify": 1.4})
    there, back = compared(a, b), compared(b, a)
    for found, verdict, code in ((there, "slower", 1), (back, "faster", 0)):
        match = next(match for match in found.matches if match.b.arm == "ddtree")
        assert {match.comparisons[name].verdict for name in ("output_tok_per_s", "tpot_ms", "round_cost_ms")} == {
            verdict
        }
        assert found.exit_code == code
    ratios = [next(m for m in f.matches if m.b.arm == "ddtree").comparisons["tpot_ms"].ratio for f in (there, back)]
    assert ratios[0] == pytest.approx(1 / ratios[1])
    assert ratios[0] == pytest.approx(1 + 0.5 * 0.4, rel=0.05)


def test_tau_is_exact_under_greedy_decoding_even_where_runs_took_no_turns(side: Build) -> None:
    found = compared(side("a", is_apart=True), side("b", agreement=0.7))
    tree = next(match for match in found.matches if match.b.arm == "ddtree")
    tau = tree.comparisons["acceptance_length"]
    assert (tau.verdict, tau.basis, tau.decision.q_value) == ("slower", "exact", None)
    assert tree.comparisons["tpot_ms"].verdict == "undecided"
    assert tree.verdict == "slower"
    rounds = next(change for change in tree.counters if change.name == "num_rounds")
    assert rounds.verdict == "worse"
    for change in (one for one in tree.counters if one.rates is not None):  # the verdict is that of the change shown
        assert (change.verdict == "changed") == (change.rates[0] == change.rates[1])  # type: ignore[index]
    assert rounds.a < rounds.b


def test_runs_that_took_no_turns_are_undecided_in_time(side: Build) -> None:
    found = compared(side("a", is_apart=True), side("b", slow={"verify": 1.4}))
    assert found.exit_code == 3
    tree = next(match for match in found.matches if match.b.arm == "ddtree")
    decision = tree.comparisons["tpot_ms"].decision
    assert decision.reasons == ("not_interleaved",)
    assert decision.effect.low is None


def test_noise_floors_of_a_qualified_machine_replace_the_turns(side: Build) -> None:
    a, b = side("a", is_apart=True), side("b", slow={"verify": 1.4})
    frames = load_run(b)
    keys = {shape_key(result.case) for result in frames.results.values()}
    for floor, is_slower in ((0.03, True), (0.5, False)):
        floors = {(key, name): floor for key in keys for name in ("tpot_ms", "output_tok_per_s")}
        tree = next(m for m in compared(a, b, floors=floors).matches if m.b.arm == "ddtree")
        assert (tree.comparisons["tpot_ms"].verdict == "slower") is is_slower


def test_too_few_repeats_are_undecided(side: Build) -> None:
    few = {"engine": {"num_blocks": 2}}
    found = compared(side("a", **few), side("b", slow={"verify": 1.6}, **few))
    tree = next(match for match in found.matches if match.b.arm == "ddtree")
    assert "too_few_blocks" in tree.comparisons["tpot_ms"].decision.reasons
    assert found.exit_code == 3


def test_sampling_compares_tau_over_prompts(side: Build) -> None:
    """Chance moves every prompt; no counter is exact, and nothing is called exact."""
    stochastic = {"engine": {"sampling": "stochastic", "num_requests": 24, "num_blocks": 6}}
    found = compared(side("a", **stochastic), side("b", agreement=0.3, **stochastic))
    tree = next(match for match in found.matches if match.b.arm == "ddtree")
    tau = tree.comparisons["acceptance_length"]
    assert (tau.basis, tau.verdict) == ("prompts", "slower")
    assert tau.decision.effect.n == 24
    assert not tree.counters


def test_only_what_is_asked_for_decides(side: Build) -> None:
    a, b = side("a"), side("b", slow={"verify": 1.4})
    assert compared(a, b, metrics=("acceptance_length",)).exit_code == 0
    with pytest.raises(UserError, match="unknown metric 'tpot': did you mean 'tpot_ms'"):
        compared(a, b, metrics=("tpot",))


def test_a_larger_minimum_effect_leaves_nothing_slower(side: Build) -> None:
    found = compared(side("a"), side("b", slow={"verify": 1.4}), min_effect=0.5)
    assert found.verdict == "same"


ENVIRONMENT = {
    "device": ("device", "Other GPU"),
    "driver": ("driver", "999.9"),
    "power_cap_w": ("power_cap", 300.0),
    "cpu_model": ("machine", "Other CPU"),
    "libraries": ("libraries", {"python": "3.11.0", "torch": "2.10.0", "triton": "absent"}),
    "num_threads": ("threads", 7),
}


@pytest.mark.parametrize("field", ENVIRONMENT)
def test_another_place_is_incomparable(side: Build, field: str) -> None:
    """H40."""
    code, value = ENVIRONMENT[field]
    a, b = side("a"), side("b")
    edit(b / "manifest.json", lambda data: data["environment"].update({field: value}))
    found = compared(a, b)
    assert codes(found) == {code}
    assert (found.verdict, found.exit_code) == ("incomparable", 5)
    assert compared(a, b, allow=(code,)).verdict != "incomparable"
    assert all(comparison.verdict == "incomparable" for m in found.matches for comparison in m.comparisons.values())


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        ({"dtype": "bfloat16"}, "precision"),
        ({"sampling": "stochastic"}, "sampling"),
        ({"seed": 3}, "sampling"),
        ({"max_new_tokens": 16}, "workload"),
        ({"num_requests": 4}, "workload"),
    ],
)
def test_other_conditions_are_incomparable(side: Build, engine: dict[str, Any], code: str) -> None:
    """H61."""
    found = compared(side("a"), side("b", engine=engine))
    assert codes(found) == {code}
    assert len(found.matches) == 2
    assert not found.unmatched


def test_other_weights_are_incomparable(side: Build) -> None:
    a, b = side("a"), side("b")
    for path in results(b):
        edit(path, lambda data: data["result"]["models"].update(target_digest="f" * 16))
    assert codes(compared(a, b)) == {"weights"}


def test_another_capture_is_incomparable(side: Build) -> None:
    a, b = side("a"), side("b")
    for path in results(b):
        edit(path, lambda data: data["result"]["case"]["capture"].update(num_warmup_requests=9))
    assert codes(compared(a, b)) == {"capture"}


@pytest.mark.parametrize("num_blocks", [3, 8])
def test_throttled_repeats_are_left_out_and_nothing_is_left_of_all(side: Build, num_blocks: int) -> None:
    """H46."""
    a, b = side("a"), side("b")
    for path in list(results(b))[: 2 * num_blocks]:
        edit(path, lambda data: data["result"]["passes"][0]["load"].update(throttle_reasons=["hardware slowdown"]))
    found = compared(a, b)
    if num_blocks == 8:
        assert codes(found) == {"throttled"}
    else:
        assert not codes(found)
        assert all("throttled" in {reason.code for reason in match.remarks} for match in found.matches)
        assert found.matches[0].comparisons["tpot_ms"].decision.effect.n == 5


@pytest.mark.parametrize(("how", "code"), [("incorrect", "incorrect"), ("failed", "failed")])
def test_a_side_without_timings_is_lost(side: Build, how: str, code: str) -> None:
    """What B did not deliver is no pass."""
    tree = tuple(range(1, 16, 2))
    found = compared(side("a"), side("b", **{how: tree}))
    assert codes(found) == {code}
    assert found.lost == ("ddtree node_budget=16 c=1",)
    assert found.exit_code == 4


def test_an_interrupted_side_is_lost(side: Build) -> None:
    found = compared(side("a"), side("b", not_run=tuple(range(1, 16, 2))))
    assert [one.reason.code for one in found.unmatched] == ["not_run"]
    assert found.exit_code == 4


def test_what_neither_side_has_run_yet_is_named(side: Build) -> None:
    tree = tuple(range(1, 16, 2))
    found = compared(side("a", not_run=tree), side("b", not_run=tree))
    assert [(one.label, one.side, one.reason.code) for one in found.unmatched] == [
        ("ddtree node_budget=16", "both", "not_run")
    ]
    assert found.awaited == ("ddtree node_budget=16 c=1",)
    assert found.lost == ()
    assert found.exit_code == 4


def test_nothing_measured_is_exit_code_4(side: Build) -> None:
    """H57, H67."""
    assert compared(side("a"), side("b", failed=tuple(range(16)))).exit_code == 4


def test_settings_of_one_side_only_are_named(side: Build) -> None:
    found = compared(side("a", arms=("ar", "chain")), side("b", arms=("ar", "ddtree")))
    assert {(one.label.partition(" ")[0], one.side, one.reason.code) for one in found.unmatched} == {
        ("chain", "A", "absent"),
        ("ddtree", "B", "absent"),
    }
    assert [match.b.arm for match in found.matches] == ["ar"]


def test_runs_that_share_nothing_are_a_user_error(side: Build) -> None:
    with pytest.raises(UserError, match="share no setting: A has chain c=1; B has ddtree node_budget=16 c=1"):
        compared(side("a", arms=("chain",)), side("b", arms=("ddtree",)))


def test_looping_outputs_are_incomparable_unless_they_are_alike(side: Build) -> None:
    """H52: a loop is the fastest arm; two equal loops are the same work."""
    loops = {"engine": {"num_requests": 1, "max_new_tokens": 64}, "loops": True}
    a = side("a", **loops)
    alike = compared(a, side("b", **loops))
    assert not codes(alike)
    assert all("outputs_loop" in {reason.code for reason in match.remarks} for match in alike.matches)
    assert codes(compared(a, side("b", seed=5, **loops))) == {"degenerate"}


def test_other_outputs_under_greedy_decoding_are_reported(side: Build) -> None:
    found = compared(side("a"), side("b", seed=5))
    assert not codes(found)
    assert all("outputs_differ" in {reason.code for reason in match.remarks} for match in found.matches)


def test_counters_that_differ_are_listed_with_their_direction(side: Build) -> None:
    found = compared(side("a"), side("b", extra_ops={"draft": 10}))
    tree = next(match for match in found.matches if match.b.arm == "ddtree")
    changes = {change.name: change for change in tree.counters}
    assert changes.keys() == {"torch_ops", "torch_ops.draft"}
    assert changes["torch_ops.draft"].verdict == "worse"
    assert changes["torch_ops.draft"].rates == (40.0, 50.0)
    assert not next(match for match in found.matches if match.b.arm == "ar").counters


def test_arms_of_one_run_are_compared_at_every_concurrency(side: Build) -> None:
    run = load_run(side("a", cases=make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1, 4), **SMALL)))
    found = compare_arms(run, "ar", "ddtree")
    assert [match.concurrency for match in found.matches] == [1, 4]
    assert {match.verdict for match in found.matches} == {"faster"}
    assert compare_arms(run, "ddtree", "ar").exit_code == 1


def test_one_base_arm_meets_every_budget(side: Build) -> None:
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(1,), node_budgets=(8, 16), **SMALL)
    run = load_run(side("a", cases=cases))
    for base, candidate in (("chain", "ddtree"), ("ddtree", "chain")):
        assert len(compare_arms(run, base, candidate).matches) == 2


@pytest.mark.parametrize(
    ("base", "candidate", "message"),
    [
        ("chain", "dtree", "unknown arm 'dtree': did you mean 'ddtree'"),
        ("chain", "prompt_lookup", "the run has no prompt_lookup arm: it has ar, ddtree"),
        ("ar", "ar", "names ar twice"),
    ],
)
def test_arms_that_cannot_be_compared_are_a_user_error(side: Build, base: str, candidate: str, message: str) -> None:
    base = base if base == "ar" else "ddtree"
    with pytest.raises(UserError, match=message):
        compare_arms(load_run(side("a")), base, candidate)


def test_variants_differ_in_one_field_only(side: Build) -> None:
    heap = make_cases(arms=("ddtree",), concurrencies=(1,), **SMALL)
    device = make_cases(arms=("ddtree",), concurrencies=(1,), tree_build="device", **SMALL)
    alone = make_cases(arms=("ddtree",), concurrencies=(2,), **SMALL)
    run = load_run(side("a", cases=(*heap, *device, *alone)))
    found = compare_parts(run, "tree_build", "heap", "device")
    assert [(m.a.engine.tree_build, m.b.engine.tree_build, m.concurrency) for m in found.matches] == [
        ("heap", "device", 1)
    ]
    assert [one.concurrency for one in found.unmatched] == [2]
    with pytest.raises(UserError, match="no case with tree_build=chain: it has heap, device"):
        compare_parts(run, "tree_build", "heap", "chain")


def test_repeats_of_one_side_only_are_left_out_and_said(side: Build) -> None:
    found = compared(side("a"), side("b", failed=(0, 2)))
    control = next(match for match in found.matches if match.b.arm == "ar")
    assert control.comparisons["tpot_ms"].decision.effect.n == 6
    assert "repeats_missing" in {reason.code for reason in control.remarks}


def test_arms_without_a_shared_workload_are_incomparable(side: Build) -> None:
    chain = make_cases(arms=("chain",), concurrencies=(1,), **SMALL)
    tree = make_cases(arms=("ddtree",), concurrencies=(4,), **SMALL)
    found = compare_arms(load_run(side("a", cases=(*chain, *tree))), "chain", "ddtree")
    assert not found.matches
    assert [one.reason.code for one in found.unmatched] == ["absent"]
    assert (found.verdict, found.exit_code) == ("incomparable", 5)


def test_a_run_is_not_compared_with_itself(side: Build) -> None:
    run = load_run(side("a"))
    with pytest.raises(UserError, match="the same run"):
        compare_runs(run, run)
