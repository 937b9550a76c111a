"""A scrubbed run: nothing planted is found in it, everything that is measured is, and it is a run."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ddbench.cli import main
from ddbench.errors import UserError
from ddbench.harness.store import json_text, open_run
from ddbench.records import OkResult, ResultFile
from ddbench.scrub.folder import on_one_line, scrub

from .conftest import MARK, everything_in, words_of, write_export, write_run

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
WORDS = st.text(LETTERS, min_size=6, max_size=12).map(lambda text: f"zq{text}xj")  # of no language
SHAPES = st.sampled_from(
    [
        "{0}",
        "/home/{0}/runs",
        "~/{0}",
        "C:\\Users\\{0}\\x",
        "{0}@{1}.org",
        "API_TOKEN={0}",
        "https://{0}/x?key={1}",
        "stage {0} of {1}",
        "draft-{0}_2",
        "'{0}'",
        "é{0}",
        "tokens\n{0}",
    ]
)
SECRETS = st.builds(lambda shape, one, two: shape.format(one, two), SHAPES, WORDS, WORDS)


@settings(
    max_examples=16,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a counterexample says enough as it is
    suppress_health_check=list(HealthCheck),
)
@given(secret=SECRETS)
def test_a_planted_secret_is_found_in_no_output_byte(secret: str, marked: dict[str, Any]) -> None:
    """In every text of every record, in tables, their columns and metadata, in an export, in logs and reports."""
    with tempfile.TemporaryDirectory() as name:
        run = write_run(Path(name, "run"), marked, secret)
        write_export(run / "traces" / "export.sqlite", secret)
        (run / "report").mkdir()
        (run / "report" / "report.html").write_text(secret, encoding="utf-8")
        (run / "trace.nsys-rep").write_bytes(secret.encode())
        done = scrub(run, Path(name, "copy"), (), drop_traces=True)
        found = everything_in(done.path)
        assert [word for word in words_of(secret) if word in found or repr(word)[1:-1] in found] == []
        assert [word for word in words_of(secret) if word in str(done.num_pieces) + str(done.left_out)] == []


def test_the_mark_is_planted_where_it_matters(marked: dict[str, Any], tmp_path: Path) -> None:
    """Otherwise the test above would claim nothing."""
    text = str({name: content for name, content in marked.items() if name.endswith(".json")})
    assert text.count(MARK) > 60
    for field in ("question", "cpu_model", "not_measured", "reason", "log_tail", "detail", "target", "run_id", "label"):
        assert f"'{field}': '{MARK}'" in text, field
    write_run(tmp_path, marked, "zqPlanted7xj")
    assert everything_in(tmp_path).count("zqPlanted7xj") > 60


def test_a_run_without_strangers_words_stays_as_it_is(plain_run: Path, tmp_path: Path) -> None:
    """What is measured, and what ddbench itself says about it, is what a reader wants."""
    done = scrub(plain_run, tmp_path / "copy", (), drop_traces=False)
    before, after = open_run(plain_run), open_run(done.path)
    assert after.manifest.cases == before.manifest.cases
    assert after.done == before.done
    for case_id in before.done:
        assert after.result(case_id).case == before.result(case_id).case
        for name in ("requests", "rounds", "steps", "stages"):
            if isinstance(before.result(case_id), OkResult):
                assert after.table(case_id, name).equals(before.table(case_id, name)), name


def test_a_copied_result_is_one_line_that_says_the_same(plain_run: Path, tmp_path: Path) -> None:
    done = scrub(plain_run, tmp_path / "copy", (), drop_traces=False)
    for case_id in open_run(plain_run).done:
        text = (done.path / "cases" / case_id / "result.json").read_text(encoding="utf-8")
        assert text.count("\n") == 1
        assert text == on_one_line(json_text(ResultFile(result=open_run(done.path).result(case_id))))
        assert json.loads(on_one_line(text)) == json.loads(text)


def test_a_scrubbed_run_is_read_and_scrubbing_it_again_changes_nothing(marked: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", marked, "/home/zqsomebody/x")
    once = scrub(run, tmp_path / "once", (), drop_traces=False).path
    assert open_run(once).damaged() == {}
    twice = scrub(once, tmp_path / "twice", (), drop_traces=False).path
    assert open_run(twice).manifest.environment == open_run(once).manifest.environment


def test_scrubbing_is_deterministic(marked: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", marked, "zqPlanted7xj")
    write_export(run / "traces" / "export.sqlite", "zqPlanted7xj")
    copies = [scrub(run, tmp_path / name, (), drop_traces=False).path for name in ("one", "two")]
    files = [{path.relative_to(copy): path.read_bytes() for path in copy.rglob("*.*")} for copy in copies]
    assert files[0] == files[1]


def test_what_differed_still_differs(plain_run: Path, tmp_path: Path) -> None:
    """Two checkpoints in folders become two names, the same ones everywhere."""
    run = open_run(plain_run)
    shutil.copytree(plain_run, tmp_path / "run")
    for number, case_id in enumerate(run.done[:2]):
        file = tmp_path / "run" / "cases" / case_id / "result.json"
        old = f'"target": "{run.case(case_id).engine.target}"'
        text = file.read_text(encoding="utf-8").replace(old, f'"target": "/models/zqfolder{number}"')
        file.write_text(text, encoding="utf-8")
    after = open_run(scrub(tmp_path / "run", tmp_path / "copy", (), drop_traces=False).path)
    targets = [after.result(case_id).case.engine.target for case_id in after.done[:2]]
    assert targets == ["removed-1", "removed-2"]


@pytest.mark.parametrize("name", ["x.nsys-rep", "x.ncu-rep", "x.qdstrm", "notes.txt", "traces/x.parquet"])
def test_what_cannot_be_scrubbed_is_refused_unless_it_is_dropped(name: str, plain_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(plain_run, run)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(b"anything")
    with pytest.raises(UserError, match="--drop-traces"):
        scrub(run, tmp_path / "copy", (), drop_traces=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"], "a refusal leaves nothing behind"
    done = scrub(run, tmp_path / "copy", (), drop_traces=True)
    assert done.left_out == ("1 files that cannot be scrubbed",)
    assert not list(done.path.rglob(Path(name).name))


def test_a_link_out_of_the_run_is_not_followed(plain_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(plain_run, run)
    write_export(tmp_path / "elsewhere.sqlite", "zqPlanted7xj")
    (run / "trace.sqlite").symlink_to(tmp_path / "elsewhere.sqlite")
    with pytest.raises(UserError, match="cannot be scrubbed"):
        scrub(run, tmp_path / "copy", (), drop_traces=False)


def test_a_damaged_export_is_refused_and_leaves_nothing(plain_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(plain_run, run)
    (run / "trace.sqlite").write_bytes(b"no database at all, whatever its name says")
    with pytest.raises(UserError, match="no SQLite export"):
        scrub(run, tmp_path / "copy", (), drop_traces=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_the_command_says_what_it_removed_and_refuses_a_place_that_is_taken(
    marked: dict[str, Any], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "zqrun", marked, "zqPlanted7xj")
    done = CliRunner().invoke(main, ["scrub", str(run)])
    assert done.exit_code == 0, done.output
    assert "removed: " in done.output
    assert "in log_tail" in done.output
    (copy,) = [path for path in tmp_path.iterdir() if path != run]
    assert copy.name.endswith("-scrubbed")
    assert "zq" not in copy.name
    again = CliRunner().invoke(main, ["scrub", str(run)])
    assert again.exit_code == 2
    assert "--out" in again.stderr
