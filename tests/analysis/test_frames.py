"""Run folders are read whole or not at all."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddbench.analysis.frames import CONTEXT_COLUMNS, load_run, merge_runs
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.tables import TABLES, table_schema
from ddbench.errors import SchemaError, UserError
from ddbench.harness import store
from ddbench.records import SkippedCase


@pytest.fixture
def run(synthetic_folder: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(synthetic_folder, tmp_path / "run"))


def first_case(run: Path) -> Path:
    return sorted((run / "cases").iterdir())[0]


def test_every_row_says_what_its_case_is(synthetic_frames) -> None:
    cases = synthetic_frames.cases.set_index("case_id")
    for name in (*TABLES, "passes"):
        table = getattr(synthetic_frames, name)
        assert len(table)
        assert set(CONTEXT_COLUMNS) <= set(table.columns)
        for column in ("run", "block", "setting"):
            assert (table[column].astype(object) == table["case_id"].map(cases[column]).astype(object)).all(), column


def test_links_lead_to_the_row_of_the_same_case(synthetic_frames) -> None:
    for case_id in synthetic_frames.cases["case_id"]:
        rounds, requests, steps = (
            table[table["case_id"] == case_id]
            for table in (synthetic_frames.rounds, synthetic_frames.requests, synthetic_frames.steps)
        )
        mine = requests.iloc[rounds["request_row"].to_numpy()]
        assert (mine["request_id"].to_numpy() == rounds["request_id"].to_numpy()).all()
        assert (mine["pass_name"].to_numpy() == rounds["pass_name"].to_numpy()).all()
        assert (steps.iloc[rounds["step_row"].to_numpy()]["step"].to_numpy() == rounds["step"].to_numpy()).all()


def test_schemas_agree_with_the_store() -> None:
    for name, record in TABLES.items():
        ours, theirs = table_schema(record), store.table_schema(store.TABLES[name])
        assert [(field.name, field.type) for field in ours if field.name != "tokens"] == [
            (field.name, field.type) for field in theirs if field.name != "tokens"
        ]
    assert TABLES.keys() == store.TABLES.keys()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rewrite(path: Path, change) -> None:
    table = pq.read_table(path)
    pq.write_table(change(table), path)


def drop_first_row(table: pa.Table) -> pa.Table:
    return table.slice(1)


def double_first_row(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1), table])


def as_text(table: pa.Table) -> pa.Table:
    return table.set_column(0, table.schema.names[0], [pa.array([["x"]] * table.num_rows)])


def with_nulls(table: pa.Table) -> pa.Table:
    schema = pa.schema([pa.field(field.name, field.type) for field in table.schema])
    columns = [table.column(name) for name in table.schema.names]
    columns[-1] = pa.array([None] * table.num_rows, type=schema.types[-1])
    return pa.table(columns, schema=schema)


def change_json(path: Path, **changes) -> None:
    data = json.loads(path.read_text())
    data = {**data, **changes} if "result" not in changes else {"result": {**data["result"], **changes["result"]}}
    path.write_text(json.dumps(data))


DAMAGE = {
    "no manifest": ("manifest.json", lambda run: (run / "manifest.json").unlink()),
    "half a manifest": ("manifest.json", lambda run: truncate(run / "manifest.json")),
    "another schema": ("schema version 99", lambda run: change_json(run / "manifest.json", schema_version=99)),
    "ids without cases": ("case ids", lambda run: change_json(run / "manifest.json", case_ids=["x"])),
    "half a result": ("result.json", lambda run: truncate(first_case(run) / "result.json")),
    "another case's result": (
        "holds case 'other'",
        lambda run: change_json(first_case(run) / "result.json", result={"case_id": "other"}),
    ),
    "no table": ("steps.parquet", lambda run: (first_case(run) / "steps.parquet").unlink()),
    "half a table": ("rounds.parquet", lambda run: truncate(first_case(run) / "rounds.parquet")),
    "not a table": ("stages.parquet", lambda run: (first_case(run) / "stages.parquet").write_bytes(b"")),
    "a column short": (
        "column 'step'",
        lambda run: rewrite(first_case(run) / "rounds.parquet", lambda table: table.drop(["step"])),
    ),
    "another type": ("requests.parquet", lambda run: rewrite(first_case(run) / "requests.parquet", as_text)),
    "empty values": ("is_identity_path", lambda run: rewrite(first_case(run) / "rounds.parquet", with_nulls)),
    "a lost request": ("requests.parquet", lambda run: rewrite(first_case(run) / "requests.parquet", drop_first_row)),
    "a request twice": ("is there twice", lambda run: rewrite(first_case(run) / "requests.parquet", double_first_row)),
    "a lost step": ("steps.parquet", lambda run: rewrite(first_case(run) / "steps.parquet", drop_first_row)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_line_that_names_the_file(run: Path, name: str) -> None:
    """H64: no half file is ever read."""
    expected, damage = DAMAGE[name]
    damage(run)
    with pytest.raises(SchemaError) as caught:
        load_run(run)
    text = str(caught.value)
    assert expected in text
    assert str(run) in text
    assert "\n" not in text
    assert caught.value.exit_code == 2


def test_cases_without_result_are_failures_not_gaps(tmp_path: Path) -> None:
    """H67, H68: an interrupted run says what it lacks."""
    cases = make_cases(concurrencies=(1,), num_requests=4, max_new_tokens=12)
    gap = SkippedCase(arm="ddtree", label="ddtree attention=x c=1", reason="needs CUDA")
    plan = SyntheticPlan(cases=cases, incorrect=(1,), failed=(2,), not_run=(3,), skipped=(gap,))
    frames = load_run(build_run(tmp_path / "run", plan))
    outcomes = dict(zip(frames.failures["label"], frames.failures["outcome"], strict=True))
    assert outcomes == {
        "prompt_lookup c=1": "incorrect",
        "chain c=1": "out_of_memory",
        "chain_via_tree c=1": "not_run",
    }
    assert frames.cases["status"].tolist() == ["ok", "incorrect", "failed", "ok"]
    assert set(frames.requests["case_id"]) == set(
        frames.cases.loc[frames.cases["arm"].isin(("ar", "ddtree")), "case_id"]
    )
    assert frames.skipped["reason"].tolist() == ["needs CUDA"]
    assert "position 17: expected 12, got 99" in frames.failures["reason"].iloc[0]


def test_settings_with_one_label_are_told_apart(tmp_path: Path) -> None:
    (case,) = make_cases(arms=("chain",), concurrencies=(2,), num_requests=3, max_new_tokens=8)
    other = case.model_copy(update={"engine": case.engine.model_copy(update={"dtype": "bfloat16"})})
    frames = load_run(build_run(tmp_path / "run", SyntheticPlan(cases=(case, other))))
    assert frames.cases["label"].tolist() == ["chain dtype=float32 c=2", "chain dtype=bfloat16 c=2"]


def test_runs_merge_without_mixing(tmp_path: Path) -> None:
    cases = make_cases(arms=("ar", "chain"), concurrencies=(1,), num_requests=4, max_new_tokens=12)
    one, two = (
        load_run(build_run(tmp_path / name, SyntheticPlan(name=name, cases=cases, seed=seed)))
        for seed, name in enumerate(("one", "two"))
    )
    merged = merge_runs([one, two])
    assert len(merged.rounds) == len(one.rounds) + len(two.rounds)
    assert merged.cases["setting"].nunique() == 4
    assert merged.is_merged
    with pytest.raises(UserError, match="give each run folder once"):
        merge_runs([one, one])
