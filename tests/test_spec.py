"""Specs: what an experiment file may say, and the one-line errors for everything else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from ddbench.errors import SchemaError, UserError
from ddbench.experiment_file import experiment_from_mapping, load_experiment
from ddbench.spec import (
    ARMS,
    CaptureSpec,
    Case,
    EngineSpec,
    Record,
    WorkloadSpec,
    from_json,
    make_axis,
    parse_axis,
)


def loaded(tmp_path: Path, text: str) -> object:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_experiment(path)


def test_a_file_becomes_an_experiment_with_typed_axes(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'question = "?"\n[engine]\ntarget = "tiny-gqa"\n[axes]\nconcurrency = [1, 4]\n'
        '[ablate]\nmaterialize = "batched"\n',
        encoding="utf-8",
    )
    experiment = load_experiment(path)
    assert experiment.name == "mine"
    assert experiment.engine.target == "tiny-gqa"
    assert [(axis.name, axis.values) for axis in experiment.axes] == [("concurrency", (1, 4))]
    assert [(axis.name, axis.values) for axis in experiment.ablate] == [("materialize", ("batched",))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("question = ", "not valid TOML"),
        ('question = "?"\nqestion = 1', "unknown key 'qestion': did you mean 'question'"),
        ('question = "?"\n[engine]\nnode_bugdet = 3', r"\[engine\].*'node_bugdet': did you mean 'node_budget'"),
        ('question = "?"\n[engine]\nnode_budget = "many"', "node_budget.*integer"),
        ('question = "?"\nengine = 3', r"\[engine\].*table.*got 3"),
        ('question = "?"\naxes = [1]', r"\[axes\].*expected a table"),
        ('question = "?"\n[axes]\nconcurency = [1]', r"\[axes\].*'concurency': did you mean 'concurrency'"),
        ('question = "?"\n[axes]\nconcurrency = [0]', "concurrency.*at least 1, got 0"),
        ('question = "?"\n[axes]\nconcurrency = []', "no values"),
        ('question = "?"\narms = ["dtree"]', "unknown arm 'dtree': did you mean 'ddtree'"),
        ("num_blocks = 1", "question"),
        ('question = "?"\nnum_blocks = 0', "num_blocks"),
    ],
)
def test_a_faulty_file_is_one_line_that_names_the_file(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        loaded(tmp_path, text)
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"x\.toml: cannot be read \(not UTF-8 text\)"):
        load_experiment(tmp_path / "x.toml")
    with pytest.raises(UserError, match=r"y\.toml: there is no such file"):
        load_experiment(tmp_path / "y.toml")


def test_axis_values_take_the_type_of_the_field_and_lose_repeats() -> None:
    assert parse_axis("concurrency", "1, 4,,4").values == (1, 4)
    assert parse_axis("temperature", "0.5").values == (0.5,)
    assert parse_axis("ignore_stop", "true,false").values == (True, False)
    assert parse_axis("kinds", "code,prose").values == (("code",), ("prose",))
    assert make_axis("kinds", (["code", "prose"],)).values == (("code", "prose"),)


@pytest.mark.parametrize(("name", "text"), [("concurrency", "one"), ("dtype", "int4"), ("node_budget", "-1")])
def test_a_bad_axis_value_is_named(name: str, text: str) -> None:
    with pytest.raises(UserError, match=f"axis '{name}': expected .*, got '{text}'"):
        parse_axis(name, text)


def test_unknown_keys_of_a_record_are_errors() -> None:
    with pytest.raises(ValidationError):
        EngineSpec(node_bugdet=1)  # type: ignore[call-arg]


def test_a_label_says_what_differs_from_the_arm() -> None:
    engine = EngineSpec(**ARMS["ddtree"], tree_build="device", block_size=4)
    case = Case(arm="ddtree", engine=engine, workload=WorkloadSpec(concurrency=4))
    assert case.label == "ddtree tree_build=device block_size=4 c=4"
    assert case.model_copy(update={"shown": ("node_budget",)}).label.endswith("block_size=4 node_budget=32 c=4")


def test_a_digest_follows_the_values() -> None:
    assert EngineSpec().digest() == EngineSpec().digest()
    assert EngineSpec(seed=1).digest() != EngineSpec().digest()


def test_a_field_added_later_changes_no_digest_until_it_is_set() -> None:
    """Baselines are kept by the digest of what was asked for."""
    case = Case(arm="ar", engine=EngineSpec(), workload=WorkloadSpec())
    for engine, workload in (({"oracle_profile": "nano-k2-docs"}, {}), ({}, {"prompt_tokens": 9})):
        changed = Case(arm="ar", engine=EngineSpec(**engine), workload=WorkloadSpec(**workload))  # type: ignore[arg-type]
        assert changed.digest() != case.digest()
    values = case.model_dump(mode="json")
    for name, model in (("engine", EngineSpec), ("workload", WorkloadSpec), ("capture", CaptureSpec)):
        values[name] = {field: value for field, value in values[name].items() if field not in model.ADDED}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    assert case.digest() == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert Case.model_validate(values) == case, "what was written before the fields still loads"


def test_a_choice_of_kernels_is_an_expression() -> None:
    assert CaptureSpec(counted_kernels="_mla_.*|other").counted_kernels == "_mla_.*|other"
    with pytest.raises(ValueError, match="expected a regular expression, got '_mla_\\('"):
        CaptureSpec(counted_kernels="_mla_(")


@pytest.mark.parametrize("model", [EngineSpec, WorkloadSpec, CaptureSpec])
def test_added_fields_exist_and_have_defaults(model: type[Record]) -> None:
    assert model.ADDED
    assert all(not model.model_fields[name].is_required() for name in model.ADDED)


def test_damaged_json_of_ours_names_the_file() -> None:
    with pytest.raises(SchemaError, match=r"case\.json: damaged"):
        from_json(Case, '{"arm": 3}', "case.json")
    with pytest.raises(SchemaError, match=r"case\.json: damaged"):
        from_json(Case, '{"arm": "ar"', "case.json")


def test_an_experiment_survives_its_own_json() -> None:
    experiment = experiment_from_mapping(
        {"question": "?", "axes": {"kinds": [["code"]], "concurrency": [1]}}, name="x", where="x"
    )
    again = type(experiment).model_validate_json(experiment.model_dump_json())
    assert again.model_dump_json() == experiment.model_dump_json()
