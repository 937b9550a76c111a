"""`ddbench compare`: one screen with the verdict first, exit codes, formats, escaping, one-line errors."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from ddbench.analysis.compare.comparison import compare_runs
from ddbench.analysis.frames import load_run
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.cli import main
from ddbench.errors import UserError
from ddbench.report.comparison import comparison_report
from ddbench.report.comparison_files import compare_folders, publish
from ddbench.report.console import print_report

ROOT = Path(__file__).resolve().parents[2]
CASES = make_cases(
    arms=("ar", "chain", "ddtree"), concurrencies=(1, 4), num_requests=4, max_new_tokens=20, num_blocks=8
)
Side = Callable[..., Path]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = SyntheticPlan(name="before", cases=CASES, machine=0, interleaved_with="20250101T000000Z-after")
    return build_run(tmp_path_factory.mktemp("before") / "before", plan)


@pytest.fixture
def after(tmp_path: Path) -> Side:
    def build(name: str = "after", cases: Any = CASES, **plan: Any) -> Path:
        return build_run(tmp_path / name, SyntheticPlan(name=name, cases=cases, machine=1, turn=1, **plan))

    return build


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def screen(before: Path, after: Path, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    print_report(comparison_report(compare_runs(load_run(before), load_run(after))), console)
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    "plan", [{}, {"slow": {"verify": 1.6}}, {"agreement": 0.7}, {"slow": {"draft": 2.0}, "agreement": 0.8}]
)
def test_a_regression_fits_one_screen(before: Path, after: Side, plan: dict[str, Any]) -> None:
    """40 lines at 100 columns; nothing is cut at 80."""
    run = after(**plan)
    lines = screen(before, run, 100)
    assert len(lines) <= 40
    assert all(len(line) <= 80 for line in screen(before, run, 80))


def test_the_verdict_comes_first_then_the_cause(before: Path, after: Side) -> None:
    text = "\n".join(screen(before, after(slow={"verify": 1.6}), 120))
    places = [
        text.index(words)
        for words in ("Slower: ", "It is cost, not tau", "verify makes", "The control arm ar", "Next: ", "TPOT, ms")
    ]
    assert places == sorted(places)


def test_exit_codes_follow_the_verdict(before: Path, after: Side) -> None:
    same = call(before, after(), "--min-effect", 20)
    assert (same.exit_code, "The same: no difference of 20.0 % or more." in same.output) == (0, True)
    assert call(before, after("slow", slow={"verify": 1.6})).exit_code == 3  # another run id: took no turns
    assert call(before, after(slow={"verify": 1.6})).exit_code == 1
    assert call(before, after(failed=range(len(CASES)))).exit_code == 4
    other = after()
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["environment"]["device"] = "Other GPU"
    (other / "manifest.json").write_text(json.dumps(manifest))
    refused = call(before, other)
    assert refused.exit_code == 5
    assert "The device differs: cpu / Other GPU (all settings)." in refused.output


def test_incomparable_numbers_are_context_without_a_verdict(before: Path, after: Side) -> None:
    """H40: shown, not judged, not coloured."""
    other = after(slow={"verify": 2.0})
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["environment"]["driver"] = "999"
    (other / "manifest.json").write_text(json.dumps(manifest))
    report = comparison_report(compare_runs(load_run(before), load_run(other)))
    tables = report.sections[0].tables
    cells = [cell for table in tables for row in table.rows for cell in row]
    assert {cell.tone for cell in cells} == {"quiet"}
    assert any(re.fullmatch(r"[\d.]+ / [\d.]+", cell.text) for cell in cells)
    text = "\n".join(screen(before, other, 100))
    assert "Incomparable: " in text
    assert not re.search(r"\b(slower|faster|[\d.]+x)\b", text.partition("Verdict")[2])


def test_every_format_is_written_and_says_the_same(before: Path, after: Side, tmp_path: Path) -> None:
    run = after(slow={"verify": 1.6})
    result = call(before, run, "--format", "html,md,json,console", "--out", tmp_path / "out")
    assert result.exit_code == 1
    html, markdown, text = ((tmp_path / "out" / f"comparison.{kind}").read_text() for kind in ("html", "md", "json"))
    record = json.loads(text)
    assert record["verdict"] == "slower"
    assert record["diagnosis"]["cause"] == "cost"
    for sentence in record["diagnosis"]["sentences"][:1]:
        start = sentence.partition(":")[0]
        assert start in html
        assert start in markdown
        assert start in result.output
    for title in ("Every setting", "Counters", "Not compared", "Code and place", "How verdicts are made"):
        assert title in html
        assert title in markdown
    named = [Path(line.split()[1]).name for line in result.output.splitlines() if line.startswith("comparison: ")]
    assert named == ["comparison.html", "comparison.md", "comparison.json"]
    images = re.findall(r"\]\((figures/[^)]+)\)", markdown)
    assert images
    assert all((tmp_path / "out" / image).is_file() for image in images)


def test_json_without_a_folder_goes_to_standard_output(before: Path) -> None:
    result = call(before, "--arms", "chain,ddtree", "--format", "json")
    assert json.loads(result.stdout)["sides"]["B"]["title"] == "ddtree"


def test_arms_are_compared_from_the_command_line(before: Path) -> None:
    assert call(before, "--arms", "ar,ddtree").exit_code in (0, 3)
    assert call(before, "--arms", "ddtree,ar").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("BEFORE",), "expected two run folders, A (before) and B (after), got 1"),
        (("BEFORE", "BEFORE"), "is both A and B"),
        (("BEFORE", "--arms", "chain"), "expected two arms, the base first"),
        (("BEFORE", "--arms", "chain,dtree"), "did you mean 'ddtree'"),
        (("BEFORE", "--arms", "chain,ddtree", "--where", "tree_build=heap,device"), "ask one at a time"),
        (("BEFORE", "--where", "tree_build=heap"), "expected ENGINE_FIELD=BASE,CANDIDATE"),
        (("BEFORE", "--where", "concurrency=1,4"), "expected ENGINE_FIELD=BASE,CANDIDATE"),
        (("BEFORE", "--where", "tree_build=heap,device"), "no case with tree_build=device"),
        (("BEFORE", "NOWHERE"), "there is no such run folder"),
        (("BEFORE", "--arms", "chain,ddtree", "--format", "html"), "say where the comparison goes with --out"),
        (("BEFORE", "--arms", "chain,ddtree", "--format", "htm"), "did you mean 'html'"),
        (("BEFORE", "--arms", "chain,ddtree", "--metrics", "tpot"), "did you mean 'tpot_ms'"),
        (("BEFORE", "--arms", "chain,ddtree", "--allow", "weight"), "did you mean 'weights'"),
    ],
)
def test_wrong_requests_are_one_line(before: Path, arguments: tuple[str, ...], message: str) -> None:
    result = call(*(str(before) if word == "BEFORE" else word for word in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_hostile_names_are_escaped(hostile: str, tmp_path: Path) -> None:
    """H30."""
    cases = make_cases(
        arms=("ar", "ddtree"), concurrencies=(1,), num_requests=3, max_new_tokens=8, num_blocks=2, materialize=hostile
    )
    runs = [
        build_run(tmp_path / name, SyntheticPlan(name=name, question=hostile, cases=cases, machine=place))
        for place, name in enumerate("xy")
    ]
    found = compare_folders(runs)
    files, _ = publish(found, ("html", "md", "json"), tmp_path / "out")
    html = next(file for file in files if file.suffix == ".html").read_text()
    assert "<script>alert" not in html
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["matches"]


def test_a_comparison_needs_no_torch(before: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Absent(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ImportError('torch was asked for')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from ddbench.cli import main; main(['compare', sys.argv[2], '--arms', 'chain,ddtree'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(ROOT), str(before)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1, 3)
    assert "Verdict" in done.stdout


def test_a_place_that_cannot_be_written_is_a_user_error(before: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = compare_folders([before], arms=("chain", "ddtree"))
    with pytest.raises(UserError, match="cannot be written"):
        publish(found, ("html",), tmp_path / "file" / "below")
