"""What is shown while a sweep runs: the same numbers as in the report, whatever the terminal is like."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from ddbench import units
from ddbench.analysis.frames import load_run
from ddbench.analysis.metrics import measure
from ddbench.analysis.settings import study_of
from ddbench.analysis.values import Estimate
from ddbench.harness.measure import measure_case
from ddbench.harness.progress import SweepDisplay, result_row
from ddbench.harness.run import Job
from ddbench.harness.store import RunFolder, write_case
from ddbench.records import FailedResult, Manifest, OkResult
from ddbench.spec import ARMS, Case, EngineSpec, WorkloadSpec

MakeResult = Callable[[str, Case], OkResult]


def test_a_row_shows_the_reports_own_speed_and_acceptance_length(run: RunFolder) -> None:
    """Tokens per round after the cut by the length limit, without the prefill's token, in both places."""
    workload = WorkloadSpec(prompts="random", num_requests=3, max_new_tokens=7, concurrency=2)
    capture = {"num_warmup_requests": 0, "parity_prompts": 1, "parity_tokens": 2, "num_clean_passes": 2}
    cases = [
        Case(arm=arm, engine=EngineSpec(target="tiny-gqa", **ARMS[arm], **more), workload=workload, capture=capture)
        for arm, more in (("ar", {}), ("ddtree", {"draft": "oracle", "oracle_quality": (0.9,) * 4}))
    ]
    rows = {}
    for one, case in zip("ab", cases, strict=True):
        result, tables = measure_case(Job(case_id=one, case=case), lambda phase: None)
        with run.new_case_folder(one) as folder:
            write_case(folder, result, tables)
            run.keep(folder, one)
        rows[case.arm] = result_row(result)
        assert isinstance(result, OkResult)
    uncut = result.counters["tokens_accepted"] / result.counters["num_rounds"] + 1
    manifest = run.manifest.model_dump() | {"cases": cases, "case_ids": ("a", "b")}
    (run.path / "manifest.json").write_text(Manifest(**manifest).model_dump_json(), encoding="utf-8")
    study = study_of(load_run(run.path))
    for setting in study.settings:
        values = measure(setting, study)
        tau, speed = values["acceptance_length"], values["output_tok_per_s"]
        assert isinstance(tau, Estimate)
        assert isinstance(speed, Estimate)
        assert f"  {units.significant(speed.value)} tok/s  tau {units.significant(tau.value)}" in rows[setting.arm]
        assert (tau.value == 1) if setting.arm == "ar" else (1 < tau.value < uncut)


def shown(console: Console, run: RunFolder, ok_result: MakeResult, seconds: float = 40.0) -> list[str]:
    """The lines of a sweep whose first case took `seconds` and whose second failed."""
    ticks = iter([0.0, 0.0, seconds, seconds, 2 * seconds])
    display = SweepDisplay(console, run.manifest.cases, 3, clock=lambda: next(ticks))
    first, second = run.manifest.cases[:2]
    with display:
        display.started(first)
        display.phase("clean pass")
        display.finished(ok_result("a", first))
        display.started(second)
        display.finished(
            FailedResult(case_id="b", case=second, started_at="", seconds=1.0, outcome="crash", reason="killed [x]")
        )
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("kind", ["pipe", "dumb terminal"])
def test_without_a_live_terminal_every_case_is_a_plain_line_with_the_time_left(
    kind: str, run: RunFolder, ok_result: MakeResult
) -> None:
    is_dumb = kind == "dumb terminal"
    console = Console(
        file=io.StringIO(), width=100, force_terminal=is_dumb, _environ={"TERM": "dumb"} if is_dumb else {}
    )
    assert shown(console, run, ok_result) == [
        "[1/3] ok        ar c=1      3.00 tok/s  tau 1.50  (about 80 s left)",
        "[2/3] failed    chain c=1   crash: killed [x]  (about 40 s left)",
    ]


def test_on_a_narrow_terminal_nothing_is_padded(run: RunFolder, ok_result: MakeResult) -> None:
    lines = shown(Console(file=io.StringIO(), width=60), run, ok_result)
    assert lines[0].startswith("[1/3] ok        ar c=1  3.00 tok/s  tau 1.50")


def test_a_terminal_sees_the_bar_the_phase_and_the_time_left(run: RunFolder, ok_result: MakeResult) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, _environ={"TERM": "xterm", "NO_COLOR": "1"})
    text = "\n".join(shown(console, run, ok_result, seconds=100.0))
    assert "[1/3] ok        ar c=1      3.00 tok/s  tau 1.50\n" in text
    assert re.search(r"2/3 .* about 1 min 40 s left chain c=1", text)
    assert "\x1b[32m" not in text, "no colour where none is wanted"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (130, "2 min 10 s"), (3600, "1 h 0 min"), (5400, "1 h 30 min")]
)
def test_a_rough_time_is_said_roughly(seconds: float, text: str) -> None:
    assert units.about(seconds) == text
