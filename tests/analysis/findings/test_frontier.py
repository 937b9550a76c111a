"""Budgets compared with each other at once: intervals that hold together, and what each step buys."""

import numpy as np
import pytest

from ddbench.analysis.findings import frontier
from ddbench.analysis.findings.frontier import Field, Sweep, field_of, steps_of, sweeps_of
from ddbench.analysis.frames import load_run
from ddbench.analysis.settings import Setting, Study, study_of
from ddbench.analysis.speed import tpot_ratio
from ddbench.analysis.stats import Summary
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.values import Estimate
from ddbench.records import NotMeasured

SMALL = {"num_requests": 16, "max_new_tokens": 32}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1, 16), node_budgets=(8, 16, 32, 64), **SMALL)
    return study_of(load_run(build_run(tmp_path_factory.mktemp("run") / "run", SyntheticPlan(cases=cases))))


def fastest(field: Field) -> Setting:
    return field.settings[int(np.argmin(field.log_times))]


def sweep_at(study: Study, concurrency: int) -> Sweep:
    return next(sweep for sweep in sweeps_of(study) if sweep.concurrency == concurrency)


# Quantiles of the studentized range for infinitely many degrees of freedom, over sqrt(2) (Tukey's tables).
@pytest.mark.parametrize(("num_settings", "expected"), [(2, 1.960), (3, 2.344), (5, 2.728), (8, 3.031)])
def test_intervals_widen_as_tukeys_do(num_settings: int, expected: float) -> None:
    """Independent settings of equal spread: the oracle is a table from a textbook."""
    resampled = np.random.default_rng(1).normal(size=(40_000, num_settings))
    assert frontier._width(resampled) == pytest.approx(expected, rel=0.015)


def test_every_pair_is_wider_together_than_alone(study: Study) -> None:
    sweep = sweep_at(study, 1)
    field = field_of(sweep.everyone)
    assert isinstance(field, Field)
    chain, tree = field.settings[0], field.settings[2]
    together, alone = field.speedup(tree, chain), tpot_ratio(chain, tree)
    assert isinstance(alone, Summary)
    assert together.value == pytest.approx(alone.value)
    assert together.low is not None
    assert together.high is not None
    assert alone.low is not None
    assert alone.high is not None
    assert together.high - together.low > alone.high - alone.low
    assert together.low * together.high == pytest.approx(together.value**2), "symmetric in the logarithm"
    assert "all pairs of 5 settings" in together.note


def test_a_budget_that_is_much_slower_is_told_apart(study: Study) -> None:
    """At concurrency 16 a node costs sixteen times as much: 64 of them lose against 8."""
    field = field_of(sweep_at(study, 16).everyone)
    assert isinstance(field, Field)
    best = fastest(field)
    slower = [setting.engine.node_budget for setting in field.slower_than(best)]
    assert best.engine.node_budget in (0, 8, 16)
    assert 64 in slower


def test_steps_start_at_the_chain_and_tell_what_a_node_costs(study: Study) -> None:
    """The simulator takes 3 us per verified token of every request in the batch."""
    for concurrency in (1, 16):
        steps = steps_of(sweep_at(study, concurrency))
        assert [step.contest.base.arm for step in steps] == ["chain", "ddtree", "ddtree", "ddtree"]
        assert [step.nodes for step in steps] == [1, 8, 16, 32]
        widest = steps[-1].ms_per_node
        assert isinstance(widest, Estimate)
        assert widest.low is not None
        assert widest.high is not None
        mean_batch = 1 if concurrency == 1 else steps[-1].contest.setting.steps["batch_size"].mean()
        assert widest.low < 1.3 * 0.003 * mean_batch + 0.002
        assert widest.high > 0.003 * mean_batch
        assert all(isinstance(step.tau_per_node, Estimate) for step in steps)


def test_few_prompts_give_no_interval(tmp_path) -> None:
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(1,), node_budgets=(8, 16), num_requests=2)
    sweep = sweep_at(study_of(load_run(build_run(tmp_path / "run", SyntheticPlan(cases=cases)))), 1)
    field = field_of(sweep.everyone)
    assert isinstance(field, Field)
    value = field.speedup(field.settings[1], field.settings[0])
    assert (value.low, value.note) == (None, "n=2: too few for an interval")
    assert field.slower_than(fastest(field)) == ()


def test_settings_without_a_common_prompt_cannot_be_compared(tmp_path) -> None:
    cases = [*make_cases(arms=("chain", "ddtree"), concurrencies=(1,), num_requests=4)]
    cases[1] = cases[1].model_copy(update={"block": 1})
    chain, tree = study_of(load_run(build_run(tmp_path / "run", SyntheticPlan(cases=tuple(cases))))).settings
    assert field_of((chain, tree)) == NotMeasured(not_measured="no prompt was timed in all of them")
