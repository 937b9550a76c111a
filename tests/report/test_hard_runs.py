"""Runs that went wrong, resumed runs, old runs, damaged runs: the report is right, calm and whole in every format."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from ddbench.analysis.frames import load_run, merge_runs, setting_key
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.cli import main
from ddbench.errors import SchemaError, UserError
from ddbench.records import NotMeasured, SkippedCase
from ddbench.report.arms import arms
from ddbench.report.build import build_report
from ddbench.report.console import print_report
from ddbench.report.document import Report, Section
from ddbench.report.downloads import downloads
from ddbench.report.evidence import evidence_of
from ddbench.report.headline import headline
from ddbench.report.html import render_html
from ddbench.report.markdown import render_markdown
from ddbench.report.sections import make_report
from ddbench.spec import Case

ROOT = Path(__file__).resolve().parents[2]
FIRST_SCHEMA = Path(__file__).parent / "fixtures" / "first-schema"
SMALL = {"num_requests": 6, "max_new_tokens": 16}
LOG = "loading\r\nwarming up\r\nRuntimeError: illegal ``` access at <0x7f> | see &docs"


@pytest.fixture(scope="module")
def hard_run(tmp_path_factory: pytest.TempPathFactory, edited) -> Path:
    """Every fate that a case can have, beside cases that are fine."""
    cases = make_cases(concurrencies=(1, 4), node_budgets=(8, 16), **SMALL)
    plan = SyntheticPlan(
        name="hard",
        cases=cases,
        failed=(1, 6, 7, 8),
        incorrect=(9,),
        not_run=(11,),
        skipped=(SkippedCase(arm="ddtree", label="ddtree tree_build=device c=1", reason="needs a CUDA device"),),
    )
    run = build_run(tmp_path_factory.mktemp("hard") / "run", plan)
    edited(run, 6, lambda r: r.update(outcome="crash", reason="its process ended with signal 11", log_tail=LOG))
    edited(run, 7, lambda r: r.update(outcome="timeout", reason="not done after 600 s", log_tail="round 1041"))
    edited(run, 8, lambda r: r.update(outcome="error", reason="ValueError: expected a positive temperature"))
    tie = {"prompt_id": "p1", "position": 11, "expected": 5, "got": 8, "logit_margin": 0.0008}
    edited(run, 4, lambda r: r["parity"].update(status="near_tie", divergences=[tie], detail="1 of 4 prompts"))
    return run


@pytest.fixture(scope="module")
def hard(hard_run: Path) -> Report:
    return make_report(evidence_of(load_run(hard_run)))


def rows_of(report: Report) -> Iterator[tuple[str, ...]]:
    for section in report.sections:
        if isinstance(section, Section):
            yield from (tuple(cell.text for cell in row) for table in section.tables for row in table.rows)


def shown_on(page: str) -> str:
    return html.unescape(re.sub("(?s)<(script|style).*?</\\1>|<[^>]*>", "", page))


def printed(report: Report, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    print_report(report, console, is_compact=False)
    return console.file.getvalue()


# --- what went wrong --------------------------------------------------------------------------------------------------


def test_every_fate_is_named_with_its_reason_in_every_format(hard: Report) -> None:
    page, (markdown, _), console = render_html(hard), render_markdown(hard), printed(hard, 200)
    shown = " ".join(shown_on(page).split())
    for outcome, reason in (
        ("out of memory", "the allocator gave up at 7.9 GB"),
        ("crash", "its process ended with signal 11"),
        ("timeout", "not done after 600 s"),
        ("error", "ValueError: expected a positive temperature"),
        ("incorrect", "position 17: expected 12, got 99"),
        ("not run", "the plan holds it but there is no result"),
    ):
        for text in (shown, markdown, " ".join(console.split())):
            assert outcome in text
            assert reason in text
    for text in (shown, markdown, console):
        assert "needs a CUDA device" in text
        assert "near tie" in text


def test_logs_come_whole(hard: Report) -> None:
    """The last line in the table, all of it in a fold; backticks do not end a Markdown fence."""
    assert '<pre tabindex="0">loading\nwarming up\nRuntimeError: illegal ``` access at &lt;0x7f&gt;' in render_html(
        hard
    )
    markdown, _ = render_markdown(hard)
    assert f"````text\n{LOG.replace(chr(13), '')}\n````\n" in markdown
    assert "RuntimeError: illegal ``` access" in printed(hard, 200)
    (section,) = (section for section in hard.sections if section.name == "failures")
    assert [listing.title for listing in section.listings] == ["Log of ar c=4: crash"]


def test_what_was_not_measured_has_no_number(hard_run: Path) -> None:
    """H57: a dash with a reason on the page, an empty value with a reason in the rows."""
    evidence = evidence_of(load_run(hard_run))
    lost = {s.label for s in evidence.study.settings if not s.is_ok and s.concurrency == 1}
    assert lost == {"prompt_lookup"}
    for row in arms(evidence).tables[0].rows:
        assert all(cell.text.startswith("–") for cell in row[1:]) == (row[0].text in lost)
    (file,) = (file for file in downloads(evidence) if file.name == "metrics.csv")
    rows = list(csv.DictReader(io.StringIO(file.text)))
    assert len(rows) == len(evidence.study.settings) * len(next(iter(evidence.values.values())))
    for row in rows:
        assert (row["value"] == "") == row["note"].startswith("not measured: ")
        assert row["value"] != "nan"


def test_outputs_of_one_token_have_no_time_per_token(run_of) -> None:
    """H57: no TPOT where no second token was seen, and no 0 ms in its place."""
    run = run_of(cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), num_requests=4, max_new_tokens=1))
    evidence = evidence_of(load_run(run))
    for setting in evidence.study.settings:
        for name in ("tpot_ms", "acceptance_length", "speedup_vs_ar", "round_ms"):
            value = evidence.value(setting, name)
            assert isinstance(value, NotMeasured), name
            assert value.not_measured
    report = make_report(evidence)
    assert not [
        text for row in rows_of(report) for text in row if re.fullmatch(r"0(\.0*)?( ms)?", text) and row[0] == "ar"
    ]
    assert "no best arm" in render_html(report)
    assert render_markdown(report)[0]


# --- what is compared -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "change"),
    [
        ("engine", {"sampling": "stochastic"}),
        ("engine", {"temperature": 0.5}),
        ("engine", {"seed": 1}),
        ("workload", {"ignore_stop": True}),
        ("workload", {"prompts": "random"}),
        ("workload", {"prompt_seed": 1}),
        ("workload", {"kinds": ("code",)}),
        ("capture", {"num_warmup_requests": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_changes_the_work_is_part_of_the_case_and_is_never_compared_across(
    run_of, owner: str, change: dict
) -> None:
    """H61, H62: random prompts, ignored stop tokens, sampling, temperature, and how the caches were warmed."""
    ar, chain = make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL)
    other = Case(**{**dict(chain), owner: getattr(chain, owner).model_copy(update=change)})
    assert other.digest() != chain.digest()
    assert setting_key("run", other) != setting_key("run", chain)
    if owner == "capture":
        return  # another case, of the same work
    evidence = evidence_of(load_run(run_of(cases=(ar, other))))
    (setting,) = (s for s in evidence.study.settings if s.arm == "chain")
    found = evidence.study.counterpart(setting, "ar")
    assert isinstance(found, NotMeasured)
    assert found.not_measured.startswith("no ar case with ")
    assert evidence.value(setting, "speedup_vs_ar") == found


# --- same bytes -------------------------------------------------------------------------------------------------------


def contents(paths: list[Path], root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def test_bytes_depend_on_nothing_around_the_run(hard_run: Path, tmp_path: Path) -> None:
    """H71: another process, hash seed, time zone, locale, and matplotlib settings of the user."""
    (tmp_path / "matplotlibrc").write_text("font.size: 31\naxes.grid: True\nsvg.fonttype: path\nsvg.hashsalt: me\n")
    surroundings = {
        "PYTHONHASHSEED": "77",
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C",
        "LANG": "de_DE",
        "MATPLOTLIBRC": str(tmp_path / "matplotlibrc"),
        "COLUMNS": "40",
        "PYTHONWARNINGS": "error",
    }
    there = [sys.executable, "-m", "ddbench", "report", str(hard_run), "--out", str(tmp_path / "there")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **surroundings}
    done = subprocess.run(there, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    here = contents(build_report([hard_run], ("html", "md"), tmp_path / "here"), tmp_path / "here")
    assert {"report.html", "report.md", "data/metrics.csv"} < here.keys()
    assert here == {name: (tmp_path / "there" / name).read_bytes() for name in here}


def test_a_resumed_run_reports_the_same_bytes(tmp_path: Path) -> None:
    """H71, H64: cases that came later and in another order, and what a killed process left behind, change nothing."""
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1, 4), **SMALL)
    whole = build_run(tmp_path / "whole", SyntheticPlan(name="one", cases=cases))
    resumed = build_run(tmp_path / "resumed", SyntheticPlan(name="one", cases=cases, not_run=(0, 3, 5)))
    interrupted = make_report(evidence_of(load_run(resumed)))
    for folder in sorted((whole / "cases").iterdir(), reverse=True):
        if not (resumed / "cases" / folder.name).exists():
            shutil.copytree(folder, resumed / "cases" / folder.name)
    half = resumed / "cases" / ".partial-0000-1234"
    half.mkdir()
    (half / "result.json").write_text('{"result": ')
    files = [
        contents(build_report([run], ("html", "md"), tmp_path / out), tmp_path / out)
        for run, out in ((whole, "a"), (resumed, "b"))
    ]
    assert files[0] == files[1]
    assert render_html(interrupted).encode() != files[0]["report.html"]


def test_runs_merge_in_the_order_given_and_to_the_same_bytes(run_of) -> None:
    """H71: loading anew, and in another process's order of files, is the same document."""
    cases = make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL)
    runs = [run_of(name, cases=cases, seed=seed) for seed, name in enumerate(("left", "right"))]
    texts = {render_html(make_report(evidence_of(merge_runs([load_run(run) for run in runs])))) for _ in range(2)}
    assert len(texts) == 1


# --- old and bad files ------------------------------------------------------------------------------------------------


def test_a_run_of_the_first_schema_is_still_read(tmp_path: Path) -> None:
    """Two of its twelve cases are left: it is a report of a run that was interrupted."""
    paths = build_report([FIRST_SCHEMA], ("html", "md"), tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "2 of 12 planned cases were measured on NVIDIA H200" in text
    assert all(path.is_relative_to(tmp_path) for path in paths)
    assert "../cases" not in text


def report_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["report", *arguments])
    assert "Traceback" not in result.output
    return result.exit_code, result.stderr


def test_a_run_of_the_future_is_refused_with_its_cure(hard_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(hard_run, tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    (run / "manifest.json").write_text(
        json.dumps({**manifest, "schema_version": 9, "ddbench_version": "9.1", "new": 1})
    )
    code, message = report_command(str(run))
    assert (code, message.count("\n")) == (2, 1)
    assert "schema version 9, this ddbench reads 1 and 2: use ddbench 9.1, or run the experiment again" in message


@pytest.mark.parametrize("damage", [b"", b"PAR1 and then nothing", None], ids=["empty", "cut", "missing"])
def test_a_damaged_table_is_named_with_the_command_that_mends_it(hard_run: Path, tmp_path: Path, damage) -> None:
    run = shutil.copytree(hard_run, tmp_path / "run")
    table = next((run / "cases").glob("0000-*/rounds.parquet"))
    if damage is None:
        table.unlink()
    else:
        table.write_bytes(damage)
    code, message = report_command(str(run))
    assert (code, message.count("\n")) == (2, 1)
    assert str(table) in message
    assert f"`ddbench sweep --resume {run}`" in message
    with pytest.raises(SchemaError):
        load_run(run)


def test_a_run_given_twice_is_said_before_a_place_is_asked_for(hard_run: Path) -> None:
    again = hard_run.parent / "." / "run"
    with pytest.raises(UserError, match="given twice"):
        build_report([hard_run, again], ("html",))
    assert "given twice" in report_command(str(hard_run), f"{hard_run}/")[1]


@pytest.mark.parametrize("formats", ["html", "md", "console", "html,md,console"])
def test_every_format_of_one_run_and_of_several(hard_run: Path, run_of, tmp_path: Path, formats: str) -> None:
    other = run_of("other", cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL))
    for runs in ([hard_run], [hard_run, other]):
        result = CliRunner().invoke(
            main, ["report", *map(str, runs), "--format", formats, "--out", str(tmp_path / str(len(runs)))]
        )
        assert (result.exit_code, result.stderr) == (0, "")
        written = {path.suffix for path in (tmp_path / str(len(runs))).glob("report.*")}
        assert written == {f".{name}" for name in formats.split(",") if name != "console"}
        assert ("Headline" in result.stdout) == ("console" in formats)


def test_paths_lead_from_a_report_to_its_own_run_only(run_of, tmp_path: Path) -> None:
    run = run_of(cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL))
    inside, *_ = build_report([run], ("html",))
    deep, *_ = build_report([run], ("html",), run / "report" / "deep")
    outside, *_ = build_report([run], ("html",), tmp_path / "elsewhere")
    for page, path in ((inside, "../manifest.json"), (deep, "../../manifest.json"), (outside, "manifest.json")):
        assert f">{path}</td>" in page.read_text(encoding="utf-8")
        assert page == outside or (page.parent / path).is_file()


def test_rows_lie_beside_the_page_and_are_linked(run_of) -> None:
    """Whatever the format, every link leads to its rows, and no row lies there unlinked."""
    run = run_of(cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL))
    page, *beside = build_report([run], ("html",))
    links = re.findall(r'<a class="get" href="([^"]+)" download>', page.read_text(encoding="utf-8"))
    assert {"data/metrics.csv", "data/cases.csv", "data/counters.csv"} <= set(links)
    assert [page.parent / link for link in links] == beside
    assert build_report([run], ("html", "md")).count(beside[0]) == 1


def test_rows_name_their_run_where_there_are_several(run_of) -> None:
    """And a counter is told by its case alone, which cases.csv describes."""
    runs = [run_of(name, cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL)) for name in ("a", "b")]
    one, two = (
        {file.name: list(csv.DictReader(io.StringIO(file.text))) for file in downloads(evidence_of(frames))}
        for frames in (load_run(runs[0]), merge_runs([load_run(run) for run in runs]))
    )
    assert one.keys() == two.keys()
    for name, rows in one.items():
        assert "run" not in rows[0]
        assert {row["run"] for row in two[name]} == {load_run(run).manifests[0].run_id for run in runs}
        assert list(two[name][0]) == ["run", *rows[0]]
        assert len(two[name]) == 2 * len(rows)
    assert list(one["counters.csv"][0]) == ["case_id", "counter", "count", "better"]
    assert {row["case_id"] for row in one["counters.csv"]} <= {row["case_id"] for row in one["cases.csv"]}


def test_headlines_of_hard_runs_count_every_fate(hard_run: Path) -> None:
    """Whatever did not deliver is said where the best arm is named."""
    section = headline(evidence_of(load_run(hard_run)))
    said = " ".join((*section.intro, *section.notes))
    for outcome in ("incorrect", "not run", "out of memory", "crash", "timeout", "error"):
        assert outcome in said
