"""What a gate publishes: whole, within the limits of whoever shows it, and before anything fails."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml

from ddbench.analysis.gate.baseline import baseline_of_folders, write_baseline
from ddbench.analysis.gate.rows import EXIT_CODES, GateResult, Row, Timing, Verdict
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.cli import main
from ddbench.records import NotMeasured
from ddbench.report.gate_files import Places, gate_json, lines, publish
from ddbench.report.gate_report import attention_lines, change, gate_report, lean, row_line
from ddbench.report.github import (
    COMMENT_BYTES,
    MOST_ANNOTATIONS,
    SUMMARY_BYTES,
    annotation,
    annotation_lines,
    bounded,
    escape_data,
    escape_property,
    summary_text,
)
from ddbench.report.html import render_html
from ddbench.report.junit import junit_text
from ddbench.report.markdown import render_markdown

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"arms": ("ar", "ddtree"), "concurrencies": (1,), "num_requests": 4, "max_new_tokens": 12}
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


def row(verdict: Verdict, shape: str = "ddtree c=1", name: str = "torch_ops", **fields: Any) -> Row:
    return Row(**{"kind": "counter", "before": 100, "now": 103, "reason": "why", **fields}, shape=shape, name=name,
               verdict=verdict)  # fmt: skip


def result_of(*rows: Row, **fields: Any) -> GateResult:
    return GateResult(**{"run": "r", "baseline": ("b",), "experiment": "e", "question": "q?", "rows": rows, **fields})


def timing(**fields: Any) -> Timing:
    values = {"ratio": 1.1, "low": 1.05, "high": 1.15, "num_pairs": 8, "is_interleaved": False, "floor": 0.03,
              "threshold": 0.02, "absolute_floor": 0.02, "q_value": 0.001}  # fmt: skip
    return Timing(**{**values, **fields})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight repeats and its baseline.json beside it."""
    place = tmp_path_factory.mktemp("gate")
    cases = make_cases(num_blocks=8, **SMALL)
    run = build_run(place / "base", SyntheticPlan(name="base", cases=cases, machine=1))
    write_baseline(place / "baseline.json", baseline_of_folders([run]))
    return place / "baseline.json"


def call(*words: object, env: dict[str, str] | None = None) -> Result:
    clean = {"GITHUB_STEP_SUMMARY": None, "GITHUB_ACTIONS": None}
    return CliRunner().invoke(main, [str(word) for word in words], env={**clean, **(env or {})})


# ------------------------------------------------------------------------------------------- published, then failing


def is_published(folder: Path) -> bool:
    names = {"gate.html", "gate.md", "gate.json", "comment.md", "junit.xml"}
    return names <= {file.name for file in folder.iterdir()}


def test_a_pass_is_exit_code_0_and_published(base: Path, tmp_path: Path) -> None:
    result = call("gate", base.parent / "base", "--baseline", base, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert is_published(tmp_path)
    assert result.output.splitlines()[-1].startswith("gate passed (exit 0): ")


@pytest.mark.parametrize(
    ("plan", "code"),
    [({"slow": {"verify": 1.6}}, 1), ({"failed": (1,)}, 4), ({"failed": tuple(range(16))}, 4), ({"num_blocks": 2}, 3)],
)
def test_the_report_is_there_before_the_command_fails(
    plan: dict[str, Any], code: int, base: Path, tmp_path: Path
) -> None:
    cases = make_cases(num_blocks=plan.pop("num_blocks", 8), **SMALL)
    run = build_run(tmp_path / "run", SyntheticPlan(name="run", cases=cases, machine=2, **plan))
    result = call("gate", run, "--baseline", base, "--summary", tmp_path / "summary.md")
    assert result.exit_code == code
    assert is_published(run / "gate")
    assert f"exit code {code}" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert json.loads((run / "gate" / "gate.json").read_text(encoding="utf-8"))["exit_code"] == code


def test_a_missing_baseline_is_published_too(base: Path, tmp_path: Path) -> None:
    result = call("gate", base.parent / "base", "--baseline", tmp_path / "none.json", "--out", tmp_path / "out")
    assert result.exit_code == 5
    assert is_published(tmp_path / "out")
    assert "ddbench qualify" in (tmp_path / "out" / "gate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", [["--threshold", "tpot_ms=0.1"], ["--threshold", "x=1"], ["--only", "all"], ["--confirm", "nowhere"]]
)
def test_a_wrong_request_is_exit_code_2(words: list[str], base: Path, tmp_path: Path) -> None:
    result = call("gate", base.parent / "base", "--baseline", base, "--out", tmp_path / "out", *words)
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_run_is_a_wrong_request(base: Path, tmp_path: Path) -> None:
    assert call("gate", tmp_path / "none", "--baseline", base).exit_code == 2


def test_the_same_runs_give_the_same_bytes(base: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        call("gate", base.parent / "base", "--baseline", base, "--out", tmp_path / name)
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert files == sorted(file.name for file in (tmp_path / "two").iterdir())
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_place_that_cannot_be_written_fails_unless_a_regression_does(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for verdict, code in (("same", 4), ("undecided", 4), ("incomparable", 4), ("regression", 1)):
        result = result_of(row(verdict))
        published = publish(result, Places(tmp_path / "out", junit=tmp_path / "file" / "junit.xml"))
        assert published.exit_code(result) == code
        assert len(published.faults) == 1
        assert (tmp_path / "out" / "gate.html").exists()
        last = lines(result, published, has_annotations=False)[-1]  # ends in the exit code that is taken
        assert last == f"{result.headline}{'' if code == 1 else '; exit 4: not every file could be written'}"


def test_github_is_recognised_by_its_environment(base: Path, tmp_path: Path) -> None:
    run = build_run(
        tmp_path / "run",
        SyntheticPlan(name="run", cases=make_cases(num_blocks=8, **SMALL), machine=2, agreement=0.5),
    )
    summary = tmp_path / "summary.md"
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    summary.write_text("before\n", encoding="utf-8")
    result = call("gate", run, "--baseline", base, "--only", "counters", env=env)
    assert result.exit_code == 1
    assert "\n::error title=ddbench gate%3A ddtree" in result.output
    assert summary.read_text(encoding="utf-8").startswith("before\n# Gate: run")
    assert "::error" not in call("gate", run, "--baseline", base, "--no-annotations", env=env).output
    assert "::error" not in call("gate", run, "--baseline", base).output


def test_a_gate_runs_where_there_is_no_torch(base: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Absent(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ImportError('torch was asked for')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from ddbench.cli import main; main(['gate', *sys.argv[2:]])\n"
    )
    words = [str(ROOT), str(base.parent / "base"), "--baseline", str(base), "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert is_published(tmp_path)


# ------------------------------------------------------------------------------------------------------- annotations


def unescaped(text: str) -> str:
    """GitHub's own reading: the five codes, `%25` last."""
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ",")):
        text = text.replace(code, char)
    return text.replace("%25", "%")


@given(TEXT, TEXT)
def test_an_annotation_is_one_line_that_reads_back(title: str, message: str) -> None:
    """H51."""
    line = annotation("error", title, message)
    assert "\n" not in line
    assert "\r" not in line
    head, _, body = line.removeprefix("::error title=").partition("::")
    assert not set(head) & set(":,\r\n")
    assert unescaped(head) == title
    assert unescaped(body) == message


@given(TEXT)
def test_escapes_in_names_stay_text(text: str) -> None:
    """H51: a `%0A` that somebody wrote is no newline."""
    assert unescaped(escape_data(f"%0A{text}%25")) == f"%0A{text}%25"
    assert unescaped(escape_property(f"a:b,c%3A{text}")) == f"a:b,c%3A{text}"


def test_annotations_are_at_most_ten_of_a_level_and_a_note() -> None:
    """H51."""
    rows = [row(verdict, f"shape {place}") for verdict in ("regression", "undecided") for place in range(25)]
    rows = [row(one.verdict, f"{one.verdict} {one.shape}") for one in rows]
    shown = annotation_lines(result_of(*rows))
    assert sum(line.startswith("::error ") for line in shown) == MOST_ANNOTATIONS
    assert sum(line.startswith("::warning ") for line in shown) == MOST_ANNOTATIONS
    assert shown[-1] == "::notice title=ddbench gate::30 more are not shown here: see the report"
    assert shown[0].startswith("::error title=ddbench gate%3A regression shape 0::regression: torch_ops 100 -> 103 (+")


def test_what_passes_is_not_annotated() -> None:
    assert annotation_lines(result_of(row("same"), row("improved"), row("not_gated"))) == ()
    assert annotation_lines(result_of(row("undecided"), is_undecided_passing=True)) == ()


@pytest.mark.parametrize("verdict", EXIT_CODES)
def test_errors_are_what_fails_the_code_and_warnings_what_cannot_tell(verdict: Verdict) -> None:
    levels = {0: None, 1: "::error", 4: "::error", 3: "::warning", 5: "::warning"}
    lines = annotation_lines(result_of(row(verdict)))
    expected = levels[EXIT_CODES[verdict]]
    assert [line.split()[0] for line in lines] == ([expected] if expected else [])


# ------------------------------------------------------------------------------------------------- bounded documents


@given(st.lists(TEXT, max_size=30), st.integers(0, 1500))
def test_what_is_cut_is_cut_between_lines_and_says_so(lines: list[str], most: int) -> None:
    """H51."""
    text = "\n".join(lines)
    cut = bounded(text, most)
    assert len(cut.encode()) <= most
    if len(text.encode()) > most and cut:
        kept = cut.partition("\n\n_The rest does not fit here")[0]
        assert cut != kept
        assert text.startswith(kept)
    elif len(text.encode()) <= most:
        assert cut == text


def test_a_huge_result_fits_a_comment_and_a_summary(tmp_path: Path) -> None:
    """H51."""
    rows = [row("regression", f"shape {place} " + "é" * 200) for place in range(2600)]
    result = result_of(*rows)
    summary = tmp_path / "summary.md"
    summary.write_bytes(b"x" * 500_000)
    publish(result, Places(tmp_path / "out", summary=summary))
    comment = (tmp_path / "out" / "comment.md").read_bytes()
    assert 0.9 * COMMENT_BYTES < len(comment) < 60_001
    assert 0.9 * SUMMARY_BYTES < summary.stat().st_size < 1024 * 1024
    assert "does not fit" in comment.decode()
    assert summary.read_bytes().decode().endswith("gate.html and gate.md._\n")
    assert (tmp_path / "out" / "gate.md").stat().st_size > 1024 * 1024
    again = summary_text((tmp_path / "out" / "gate.md").read_text(encoding="utf-8"), summary.stat().st_size)
    assert summary.stat().st_size + len(again.encode()) < 1024 * 1024  # a second gate in the same step fits too


def test_a_comment_leaves_out_what_is_folded_away() -> None:
    report = gate_report(result_of(row("regression"), row("same", name="num_rounds")))
    whole, short = (render_markdown(one)[0] for one in (report, lean(report)))
    assert "num" in whole.partition("## Counters")[2]
    assert "## Counters" not in short
    assert "torch" in short


# ------------------------------------------------------------------------------------------------------ hostile text


def test_hostile_names_survive_everywhere(hostile: str, tmp_path: Path) -> None:
    """H30, H51."""
    nasty = f"{hostile}%0A\x1b[31m\x00\ufffe::error::x"
    bad = row("regression", nasty, nasty, kind="shape", before=nasty, now=NotMeasured(not_measured=nasty), reason=nasty)
    result = result_of(bad, experiment=nasty, question=nasty, notes=(nasty,))
    publish(result, Places(tmp_path))
    root = ET.parse(tmp_path / "junit.xml").getroot()
    case = next(root.iter("testcase"))
    assert "<script>alert('x')</script>|`a`*b*_c_[d](e) & \"f\"" in case.attrib["classname"]
    assert "[31m" in case.attrib["name"]
    page = (tmp_path / "gate.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    markdown = (tmp_path / "gate.md").read_text(encoding="utf-8")
    assert "<script>" not in markdown
    assert "\x1b" not in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert tables
    (line,) = annotation_lines(result)
    assert line.count("\n") == 0
    assert json.loads(gate_json(result))["rows"][0]["shape"] == nasty


@given(TEXT, TEXT, TEXT)
def test_any_text_makes_junit_that_can_be_read(shape: str, name: str, reason: str) -> None:
    """H51."""
    text = junit_text(result_of(row("regression", shape, name, reason=reason), row("same", shape, "other")))
    suite = next(iter(JUnitXml.fromstring(text.encode())))
    assert suite.failures == 1


# ------------------------------------------------------------------------------------------------------------- JUnit


def outcomes(result: GateResult) -> dict[str, str]:
    root = ET.fromstring(junit_text(result))
    return {
        f"{case.attrib['classname']} {case.attrib['name']}": "/".join(child.tag for child in case)
        for case in root.iter("testcase")
    }


def test_counters_of_a_shape_are_one_test_and_every_time_its_own() -> None:
    rows = (
        row("same", "a"),
        row("regression", "a", "num_rounds"),
        row("same", "b"),
        row("not_gated", "b", "new"),
        row("undecided", "b", "tpot_ms", kind="timing", timing=timing()),
        row("same", "b", "ttft_ms", kind="timing", timing=timing()),
        row("missing", "c", "case", kind="shape"),
        row("not_gated", "d"),
        row("incomparable", "", "baseline", kind="baseline"),
    )
    assert outcomes(result_of(*rows)) == {
        "a counters": "failure",
        "b counters": "",
        "b tpot_ms": "error",
        "b ttft_ms": "",
        "c case": "error",
        "d counters": "skipped",
        "run baseline": "error",
    }
    assert outcomes(result_of(*rows, is_undecided_passing=True))["b tpot_ms"] == "skipped"


@pytest.mark.parametrize("verdict", EXIT_CODES)
def test_junit_is_red_where_the_exit_code_is(verdict: Verdict) -> None:
    result = result_of(row(verdict))
    (tag,) = outcomes(result).values()
    assert (tag in ("failure", "error")) is (result.exit_code != 0)
    assert (tag == "failure") is (result.exit_code == 1)


# ---------------------------------------------------------------------------------------------------------- the page


def test_changes_are_signed_and_never_nan() -> None:
    assert change(row("regression")) == "+3.0 %"
    assert change(row("improved", now=50)) == "−50 %"
    assert change(row("regression", before=0, now=4)) == "+4"
    assert change(row("changed", before="a", now="b")) == ""
    assert change(row("same", now=100)) == "0 %"
    assert change(row("regression", timing=timing(ratio=2.5))) == "+150 %"
    text = row_line(row("regression", before=0.5, now=1.25, unit="ms", timing=timing(ratio=2.5)))
    assert text == "regression: torch_ops 0.500 -> 1.25 ms (in pairs +150 %); why"


def test_the_worst_is_told_first_and_not_all_of_it() -> None:
    rows = [row("improved", f"s{place}") for place in range(60)] + [row("regression", "last"), row("same", "fine")]
    lines = attention_lines(result_of(*rows))
    assert lines[0].startswith("last: regression: ")
    assert lines[-1] == "... and 21 more, in gate.md"
    assert not any("fine" in line for line in lines)


def test_the_page_shows_effect_interval_pairs_floor_threshold_and_reason() -> None:
    one = row("undecided", name="tpot_ms", kind="timing", unit="ms", before=1.0, now=1.1, timing=timing())
    page = render_html(gate_report(result_of(one)))
    for text in ("1.00 ms", "1.10 ms", "+10 %", "[+5.0 %, +15 %]", "3.00 %", "2.00 %", "undecided", "why"):
        assert text in page
    assert "nan" not in page.lower().replace("provenance", "")


def test_a_throttled_timing_has_dashes_and_no_numbers() -> None:
    """H46."""
    one = row("undecided", name="tpot_ms", kind="timing", before=None, now=None, reason="throttled: heat")
    section = render_markdown(gate_report(result_of(one)))[0].partition("## Times")[2]
    (line,) = [line for line in section.splitlines() if line.startswith("| ddtree")]
    assert "throttled: heat" in line
    assert "nan" not in line.lower()
    assert line.count("–") == 6
