"""Repeats are pooled, counterparts are comparable, variants find what they were changed from."""

from pathlib import Path

import numpy as np
import pytest

from ddbench.analysis.frames import load_run
from ddbench.analysis.metrics import METRICS, evaluate
from ddbench.analysis.settings import Study, study_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.variants import variants_of
from ddbench.records import NotMeasured
from ddbench.spec import make_axis

SMALL = {"num_requests": 4, "max_new_tokens": 16}


def load(folder: Path, **plan):
    return load_run(build_run(folder / "run", SyntheticPlan(**plan)))


def test_interleaved_repeats_are_one_setting(tmp_path: Path) -> None:
    frames = load(tmp_path, cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), num_blocks=3, **SMALL))
    study = study_of(frames)
    assert [s.arm for s in study.settings] == ["ar", "chain"]
    for setting in study.settings:
        assert setting.blocks == {0, 1, 2}
        assert len(setting.passes) == 3
        assert len(setting.requests) == 12
        assert len(set(setting.requests["unit"])) == 4
        output = evaluate(METRICS["output_tok_per_s"], setting, study)
        assert (output.n, output.counted) == (len(setting.steps), "rounds")
        assert output.value == pytest.approx(
            1e9 * setting.passes["num_emitted"].sum() / setting.passes["wall_ns"].sum()
        )
        assert output.low < output.value < output.high
        assert evaluate(METRICS["tpot_ms"], setting, study).n == 4


def test_a_setting_is_measured_by_the_repeats_that_delivered(tmp_path: Path) -> None:
    cases = make_cases(arms=("ar", "chain"), concurrencies=(1,), num_blocks=2, **SMALL)
    study = study_of(load(tmp_path, cases=cases, failed=(1,), incorrect=()))
    ar, chain = study.settings
    assert chain.is_ok
    assert (ar.blocks, chain.blocks) == ({0, 1}, {1})
    value = evaluate(METRICS["speedup_vs_ar"], chain, study)
    assert value.value == pytest.approx(evaluate_only_block(ar, chain, 1))


def evaluate_only_block(ar, chain, block: int) -> float:
    def median_tpot(requests):
        spans = requests["last_token_ns"] - requests["first_token_ns"]
        lengths = np.array([len(tokens) for tokens in requests["tokens"]])
        return np.median((spans / (lengths - 1))[requests["block"] == block])

    return median_tpot(ar.requests) / median_tpot(chain.requests)


def test_a_setting_that_failed_everywhere_says_why_in_every_metric(tmp_path: Path) -> None:
    study = study_of(load(tmp_path, cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL), failed=(0,)))
    ar, chain = study.settings
    assert not ar.is_ok
    for metric in METRICS.values():
        value = evaluate(metric, ar, study)
        assert isinstance(value, NotMeasured)
        assert value.not_measured == "out_of_memory: the allocator gave up at 7.9 GB"
    speedup = evaluate(METRICS["speedup_vs_ar"], chain, study)
    assert speedup.not_measured == "the ar case has no timings: out_of_memory: the allocator gave up at 7.9 GB"


def test_the_most_similar_counterpart_is_taken(tmp_path: Path) -> None:
    kinds = {"fused": {}, "sequential": {"materialize": "sequential"}}
    cases = [
        case
        for changes in kinds.values()
        for case in make_cases(arms=("chain", "ddtree"), concurrencies=(1,), **SMALL, **changes)
    ]
    study = study_of(load(tmp_path, cases=tuple(cases)))
    for setting in study.settings:
        if setting.arm == "ddtree":
            other = study.counterpart(setting, "chain")
            assert other.engine.materialize == setting.engine.materialize


def test_a_speedup_compares_the_same_kernels_or_nothing(tmp_path: Path) -> None:
    cases = (
        *make_cases(arms=("ar", "ddtree"), concurrencies=(1,), **SMALL),
        *make_cases(arms=("ddtree",), concurrencies=(1,), **SMALL, kernels="triton"),
    )
    study = study_of(load(tmp_path, cases=cases))
    found = {s.engine.kernels: study.counterpart(s, "ar") for s in study.settings if s.arm == "ddtree"}
    assert found["torch"].engine.kernels == "torch"
    assert found["triton"].not_measured == "no ar case with kernels=triton to compare with"


def ablated(folder: Path, **axes):
    base = make_cases(arms=("ar", "ddtree"), concurrencies=(1, 2), **SMALL)
    changed = make_cases(arms=("ddtree",), concurrencies=(1, 2), **SMALL, materialize="sequential")
    experiment = {
        "axes": (make_axis("concurrency", (1, 2)),),
        "ablate": (make_axis("materialize", ("sequential", "fused")),),
        "engine": base[1].engine,
    }
    return load(folder, cases=(*base, *changed), experiment=experiment, **axes)


def test_variants_find_their_base_at_the_same_concurrency(tmp_path: Path) -> None:
    frames = ablated(tmp_path)
    found = variants_of(study_of(frames), frames.manifests)
    assert [(v.axis, v.value, v.setting.concurrency) for v in found] == [
        ("materialize", "sequential", 1),
        ("materialize", "sequential", 2),
    ]
    for variant in found:
        assert variant.base.concurrency == variant.setting.concurrency
        assert variant.base.engine.materialize == "fused"


def test_a_variant_without_base_says_so(tmp_path: Path) -> None:
    frames = ablated(tmp_path, not_run=(1, 3))
    found = variants_of(study_of(frames), frames.manifests)
    reason = NotMeasured(not_measured="the run has no case with materialize=fused to compare with")
    assert [variant.base for variant in found] == [reason, reason]


def test_an_empty_study_has_no_settings(tmp_path: Path) -> None:
    study = study_of(load(tmp_path, cases=()))
    assert study == Study(settings=())
    assert study.concurrencies == ()
