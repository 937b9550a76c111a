"""`ddbench timeline` from words to output: what is listed, chosen, written, refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.tables import read_capture_table, write_capture_table
from ddbench.captured import HostCall
from ddbench.cli import main
from ddbench.timeline.tables import kernel_name


def timeline(*words: str, width: int = 100) -> Result:
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, ["timeline", *words])


def refused(*words: str) -> str:
    """The one line that a wrong request gets."""
    result = timeline(*words)
    assert result.exit_code in (2, 4)
    assert result.output.startswith("error: ")
    assert result.output.count("\n") == 1
    return result.output


def test_without_a_case_those_with_captures_are_listed(captured_run: Path) -> None:
    result = timeline(str(captured_run), width=160)
    assert result.exit_code == 0
    assert "6 cases have captures" in result.output
    assert "ddtree node_budget=32 c=1" in result.output
    assert "nsys: 5 rounds from 4" in result.output
    assert "totals withheld" in result.output
    assert "install libdw1" in result.output


@pytest.mark.parametrize("formats", ["html", "json", "console,html,json"])
def test_a_file_of_one_of_several_cases_is_refused_with_their_names(captured_run: Path, formats: str) -> None:
    line = refused(str(captured_run), "--format", formats)
    assert f"--format {formats.removeprefix('console,')} shows one case or two" in line
    assert "5 (ddtree node_budget=8 c=1)" in line
    assert not (captured_run / "timeline").exists()


@pytest.mark.parametrize("word", ["5", "ddtree node_budget=8 c=1", "ddtree node_budget=8", "0004"])
def test_a_case_has_a_number_a_label_and_an_id(captured_run: Path, word: str) -> None:
    result = timeline(str(captured_run), "--case", word)
    assert result.exit_code == 0
    assert "Timeline: ddtree node_budget=8 c=1" in result.output
    assert "Why the device was idle" in result.output


@pytest.mark.parametrize("width", [80, 160])
def test_lines_fit_the_terminal(captured_run: Path, width: int) -> None:
    result = timeline(str(captured_run), "--case", "5", "--case", "6", width=width)
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if not line.startswith("open: ")]
    assert max(map(len, lines)) <= width


def test_a_torch_capture_has_a_timeline_too(captured_run: Path) -> None:
    result = timeline(str(captured_run), "--case", "prompt_lookup c=1")
    assert result.exit_code == 0
    assert "as torch saw it" in result.output


def test_files_are_written_where_they_are_asked_for(captured_run: Path, tmp_path: Path) -> None:
    result = timeline(str(captured_run), "--case", "5", "--case", "6", "--format", "html,json", "--out", str(tmp_path))
    assert result.exit_code == 0
    files = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(files) == {".html", ".json"}
    assert all(str(path) in result.output for path in files.values())
    assert json.loads(files[".json"].read_text())["traceEvents"]
    assert files[".html"].read_text().startswith("<!DOCTYPE html>")
    assert "Stages on the device" not in result.output, "the console was not asked for"


def test_the_same_capture_gives_the_same_bytes(captured_run: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        words = ("--case", "6", "--format", "html,json", "--out", str(tmp_path / name))
        assert timeline(str(captured_run), *words).exit_code == 0
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_nothing_names_the_machine(captured_run: Path, tmp_path: Path) -> None:
    timeline(str(captured_run), "--case", "6", "--format", "html,json", "--out", str(tmp_path))
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert str(captured_run.parent) not in text


def test_withheld_totals_are_not_shown(captured_run: Path) -> None:
    """H18: under-recorded."""
    result = timeline(str(captured_run), "--case", "chain_via_tree c=1")
    assert result.exit_code == 0
    assert "withheld" in result.output
    assert "5 graph launches, 3 replays found" in " ".join(result.output.split())
    assert "Stages on the device" not in result.output
    assert "Device busy" not in result.output


def test_one_withheld_case_is_not_compared(captured_run: Path) -> None:
    result = timeline(str(captured_run), "--case", "4", "--case", "5")
    assert "Not compared: the totals of chain_via_tree c=1 are withheld" in " ".join(result.output.split())


def test_the_tools_own_file_is_named_with_its_viewer(captured_run: Path) -> None:
    place = case_folder(captured_run, "0005") / "captures" / "raw"
    place.mkdir(exist_ok=True)
    (place / "case.nsys-rep").touch()
    shown = timeline(str(captured_run), "--case", "6", width=80).output
    assert f"\nopen: nsys-ui {place / 'case.nsys-rep'}\n" in shown, "on one line, to be copied"
    gone = timeline(str(captured_run), "--case", "5").output
    assert "case.nsys-rep: not in captures/raw/ any more" in gone


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--case", "ddtre node_budget=8 c=1"), "did you mean 'ddtree node_budget=8 c=1'"),
        (("--case", "7"), "6 cases with captures, 1 to 6"),
        (("--case", "000"), "1 to 6"),
        (("--case", "0000", "--case", "1"), "named twice"),
        (("--case", "1", "--case", "2", "--case", "3"), "2 cases at most"),
        (("--case", "3"), "only a .qdstrm was left; install libdw1"),
        (("--case", "1"), "counters, no times"),
        (("--case", "5", "--tool", "torch"), "no capture of torch: there is ncu and nsys"),
        (("--format", "htm"), "did you mean 'html'"),
        (("--format", ","), "names no format"),
        (("--tool", "ncu"), "'ncu' is not one of"),
    ],
)
def test_a_wrong_request_is_told_in_one_line(captured_run: Path, words: tuple[str, ...], answer: str) -> None:
    assert answer in refused(str(captured_run), *words)


def test_damage_is_told_in_one_line(captured_run: Path, tmp_path: Path) -> None:
    run = tmp_path / captured_run.name
    shutil.copytree(captured_run, run)
    captures = case_folder(run, "0004") / "captures"
    table = captures / "nsys-calls.parquet"
    whole = table.read_bytes()
    table.write_bytes(whole[: len(whole) // 2])
    assert str(table) in refused(str(run), "--case", "5")
    table.write_bytes(whole)
    calls = read_capture_table(table, HostCall, "").to_pandas()
    write_capture_table(table, HostCall, calls.assign(end_ns=-1))
    assert "ends before it starts" in refused(str(run), "--case", "5")
    (captures / "nsys.json").write_text("{")
    assert "nsys.json" in refused(str(run), "--case", "5")


def case_folder(run: Path, start: str) -> Path:
    return next(path for path in (run / "cases").iterdir() if path.name.startswith(start))


def test_a_run_without_captures_says_how_to_make_them(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", SyntheticPlan(cases=make_cases(arms=("ar",), num_requests=2, max_new_tokens=4)))
    assert "--capture nsys" in refused(str(run))
    assert "no such run folder" in refused(str(tmp_path / "nowhere"))


def test_torch_is_not_needed(captured_run: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv[0] = 'ddbench'; from ddbench.cli import main; "
        f"main(['timeline', {str(captured_run)!r}, '--case', '5'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Stages on the device" in done.stdout


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_rms_norm_kernel", "_rms_norm_kernel"),
        ("void at::native::unrolled_kernel<(int)4, at::native::AddFunctor<float>>(int)", "unrolled_kernel<AddFunctor>"),
        ("void ns::gemm<(int)3>(T1, T2)", "gemm"),
        ("void at::native::<unnamed>::indexSelectSmallIndex<c10::BFloat16>(int)", "indexSelectSmallIndex"),
        ("", ""),
        ("<unnamed>", "<unnamed>"),
        ("x" * 500, "x" * 20 + "…" + "x" * 19),
    ],
)
def test_kernel_names_are_shortened_to_what_tells_them_apart(name: str, short: str) -> None:
    assert kernel_name(name) == short


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_record_of_a_capture_says_what_to_remove(captured_run: Path, tmp_path: Path, text: str) -> None:
    run = Path(shutil.copytree(captured_run, tmp_path / "run"))
    record = next(run.glob("cases/*/captures/nsys.json"))
    record.write_text(text, encoding="utf-8")
    line = refused(str(run))
    assert f"{record}: damaged or from another version" in line
    assert f"remove {record.parent} to do without it" in line
