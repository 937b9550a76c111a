"""Hazards of what is said about a run: the alarm of a dead draft, and keys that keep unlike runs apart."""

from __future__ import annotations

import pytest

from ddbench.analysis.frames import load_run
from ddbench.analysis.metrics import METRICS, evaluate
from ddbench.analysis.settings import study_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.harness import measure
from ddbench.harness.measure import measure_case
from ddbench.harness.plan import case_key
from ddbench.harness.run import Job
from ddbench.models.weights import load_models
from ddbench.records import NotMeasured, OkResult
from ddbench.spec import ARMS, CaptureSpec, Case, EngineSpec, WorkloadSpec

ALARM = "no drafted token was ever accepted"


@pytest.mark.parametrize("is_broken", [True, False])
def test_an_acceptance_length_of_exactly_one_is_an_alarm(monkeypatch, is_broken):
    """H91: output and parity are right; only the acceptance tells that the drafter says nothing of use."""

    def load(spec):
        models = load_models(spec)
        if is_broken:
            models.drafter.norm.weight.zero_()  # equal logits: the lowest id, everywhere
        return models

    monkeypatch.setattr(measure, "load_models", load)
    workload = WorkloadSpec(num_requests=2, max_new_tokens=14, concurrency=2, ignore_stop=True)
    capture = CaptureSpec(mode="none", num_warmup_requests=0, parity_prompts=1, parity_tokens=4)
    case = Case(arm="chain", engine=EngineSpec(**ARMS["chain"], num_threads=1), workload=workload, capture=capture)
    result, _ = measure_case(Job(case_id="c", case=case, reference=None), lambda phase: None)
    assert isinstance(result, OkResult)
    assert result.parity.status == "identical"
    assert any(ALARM in text for text in result.warnings) == is_broken
    assert (result.counters["tokens_accepted"] == 0) == is_broken


BASE = {"sampling": "stochastic", "temperature": 1.0}
UNLIKE = [  # what may not be compared with the base
    ("workload", {"prompts": "random"}),
    ("workload", {"ignore_stop": True}),
    ("workload", {"max_new_tokens": 17}),
    ("workload", {"concurrency": 2}),
    ("workload", {"kinds": ("code",)}),
    ("workload", {"prompt_seed": 7}),
    ("engine", {"temperature": 0.5}),
    ("engine", {"sampling": "greedy"}),
    ("engine", {"dtype": "bfloat16"}),
    ("engine", {"num_threads": 1}),
]


@pytest.mark.parametrize(("owner", "change"), UNLIKE, ids=[str(change) for _, change in UNLIKE])
def test_unlike_runs_have_keys_of_their_own_and_no_speedup(tmp_path, owner, change):
    """Measurement case 61: what was asked and decoded is in the case's key, and never on two sides of one ratio."""
    base, arm = make_cases(("ar", "chain"), (1,), num_requests=3, max_new_tokens=16, **BASE)
    asked = getattr(arm, owner)
    other = arm.model_copy(update={owner: type(asked)(**{**asked.model_dump(), **change})})
    assert case_key(other) != case_key(arm)
    study = study_of(load_run(build_run(tmp_path / "run", SyntheticPlan(cases=(base, arm, other)))))
    speedups = [evaluate(METRICS["speedup_vs_ar"], s, study) for s in study.settings if s.arm == "chain"]
    assert len(speedups) == 2
    assert [isinstance(value, NotMeasured) for value in speedups].count(True) == 1
