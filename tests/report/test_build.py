"""Run folders become reports: where they go, that they repeat to the byte, that no torch is needed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddbench.analysis.synthetic import make_cases
from ddbench.errors import SchemaError, UserError
from ddbench.report.build import FORMATS, build_report, report_on
from ddbench.report.document import Skipped
from ddbench.report.sections import SECTIONS

ROOT = Path(__file__).resolve().parents[2]


def contents(paths: list[Path], root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_rendering_again_gives_the_same_bytes(full_run: Path, tmp_path: Path) -> None:
    """H71."""
    once = contents(build_report([full_run], ("html", "md"), tmp_path / "a"), tmp_path / "a")
    again = contents(build_report([full_run], ("html", "md"), tmp_path / "b"), tmp_path / "b")
    assert once == again
    assert {"report.html", "report.md"} < once.keys()


def test_rendering_in_another_process_gives_the_same_bytes_without_torch(full_run: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from ddbench.report.build import build_report\n"
        "build_report([Path(sys.argv[2])], ('html', 'md'), Path(sys.argv[3]))\n"
    )
    command = [sys.executable, "-c", script, str(ROOT), str(full_run), str(tmp_path / "there")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    here = build_report([full_run], ("html", "md"), tmp_path / "here")
    there = [tmp_path / "there" / path.relative_to(tmp_path / "here") for path in here]
    assert contents(here, tmp_path / "here") == contents(there, tmp_path / "there")


def test_reports_go_into_the_run_folder_by_default(run_of) -> None:
    run = run_of(cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), num_requests=3, max_new_tokens=8))
    page, *rows = build_report([run], ("html",))
    assert page == run / "report" / "report.html"
    assert {path.parent for path in rows} == {run / "report" / "data"}
    assert {path.name for path in (run / "report").iterdir()} == {"report.html", "data"}


def test_unknown_format_names_the_close_one(full_run: Path) -> None:
    with pytest.raises(UserError, match="unknown report format 'htm': did you mean 'html'"):
        build_report([full_run], ("htm",))


def test_several_runs_need_a_place(full_run: Path, hostile_run: Path) -> None:
    with pytest.raises(UserError, match="say where it goes with --out"):
        build_report([full_run, hostile_run], ("html",))
    with pytest.raises(UserError, match="no run folder"):
        build_report([], ("html",))


def test_a_place_that_cannot_be_written_is_a_user_error(full_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        build_report([full_run], ("html",), tmp_path / "file" / "below")


def test_several_runs_make_one_report(run_of, tmp_path: Path) -> None:
    cases = make_cases(arms=("ar", "chain"), concurrencies=(1,), num_requests=4, max_new_tokens=12)
    runs = [run_of(name, cases=cases, seed=seed) for seed, name in enumerate(("left", "right"))]
    html, *_ = build_report(runs, ("html",), tmp_path / "out")
    text = html.read_text()
    for letter, name in (("A", "left"), ("B", "right")):
        assert f"Run {letter}: 20250101T000000Z-{name} (ddbench 0.1.0" in text
        assert f"chain ({letter})" in text
        assert f"Best vs ar at concurrency 1, run {letter}" in text
    assert "every speedup is within its own run." in text
    assert "They differ" not in text


def test_runs_that_differ_say_in_what(run_of, tmp_path: Path) -> None:
    """Numbers of another workload or other weights beside each other are no comparison."""
    plans = {"left": {"max_new_tokens": 12}, "right": {"max_new_tokens": 16}}
    runs = [
        run_of(name, cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), num_requests=4, **plan))
        for name, plan in plans.items()
    ]
    html, *_ = build_report(runs, ("html",), tmp_path / "out")
    assert "They differ in workload." in html.read_text()
    assert FORMATS.keys() == {"html", "md", "console", "summary"}


@pytest.mark.parametrize(
    "plan",
    [
        {"cases": ()},
        {"cases": make_cases(concurrencies=(1,)), "failed": range(5)},
        {"cases": make_cases(concurrencies=(1,)), "incorrect": range(5)},
        {"cases": make_cases(concurrencies=(1,)), "not_run": range(5)},
    ],
    ids=["empty", "failed", "incorrect", "not run"],
)
def test_a_run_without_measurements_says_so_in_every_format(run_of, tmp_path: Path, capsys, plan) -> None:
    """H57, H67: nothing measured is a report that says so."""
    run = run_of(**plan)
    paths = build_report([run], ("html", "md", "console"), tmp_path / "out")
    texts = [path.read_text() for path in paths if path.suffix in (".html", ".md")] + [capsys.readouterr().out]
    assert len(texts) == 3
    for text in texts:
        assert "Nothing was measured." in text
        assert "0 of" in text
        assert not re.search(r"\bnan\b", text, flags=re.IGNORECASE)


def test_damaged_runs_are_one_line(full_run: Path, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"manifest\.json") as caught:
        build_report([tmp_path], ("html",))
    assert "\n" not in str(caught.value)


def test_sections_come_in_the_order_of_the_table(full_run: Path) -> None:
    report = report_on([full_run])
    assert [section.name for section in report.sections] == list(SECTIONS)
    assert not any(isinstance(section, Skipped) for section in report.sections)
