"""Section: the answers to the three questions with what they rest on, and what to optimise next, ranked.

The headline shows each answer as a card (`answer_cards`) and the best proposals (`next_cards`); here stand the whole
sentences, every number with its interval, what is missing, and what would change an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddbench import units
from ddbench.analysis.findings.answers import QUESTIONS, Finding, Number, Verdict, told
from ddbench.analysis.findings.next_step import Proposal
from ddbench.analysis.values import Estimate
from ddbench.records import NotMeasured
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Fact, Section, Skipped, Table, Tone
from ddbench.report.evidence import Evidence

WORDS: dict[Verdict, str] = {
    "yes": "Yes",
    "no": "No",
    "mixed": "In part",
    "undecided": "Cannot tell",
    "not_measured": "Not measured",
}
TONES: dict[Verdict, Tone] = {
    "yes": "good",
    "no": "warn",
    "mixed": "warn",
    "undecided": "quiet",
    "not_measured": "quiet",
}
CARDS: dict[str, str] = {
    "Q1": "Q1 Is context read once and shared, no bandwidth wasted?",
    "Q2": "Q2 Does a tree pay over the chain?",
    "Q3": "Q3 Do graphs and a tree built on the device pay?",
}
MAX_RUNNERS_UP = 2  # proposals that a card names after the first


def findings(evidence: Evidence) -> Section | Skipped:
    """Sentences, then the numbers, then the ranking."""
    if not evidence.has_measurements:
        return Skipped("findings", "Findings", "nothing was measured")
    intro, notes, numbers, ranking, changes = [], [], [], [], []
    for run in evidence.runs:
        own = evidence.findings[run]
        for answer in own.answers:
            intro.append(f"{evidence.of_run(run)}{_sentence(answer)}")
            changes.append(_change_row(evidence, run, answer))
            numbers += [_number_row(evidence, run, answer, number) for number in answer.numbers]
            notes += [f"{evidence.of_run(run)}{answer.question} not measured: {text}." for text in answer.missing]
        for group in own.proposals:
            ranking += [_proposal_row(evidence, place, one) for place, one in enumerate(group, start=1)]
    columns = cells.text_columns("Question", "Answer", "What would change it", "Rests on")
    tables = [Table("How firm the answers are", columns, tuple(changes))]
    if ranking:
        tables.append(cells.with_notes(Table(RANKING, _ranking_columns(), tuple(ranking))))
    if numbers:
        columns = (*cells.text_columns("Question", "Number"), Column("Value"), Column("n"))
        columns += cells.text_columns("Rests on")
        tables.append(cells.with_notes(Table("What the answers rest on", columns, tuple(numbers), is_folded=True)))
    return Section("findings", "Findings", tuple(intro), tables=tuple(tables), notes=tuple(notes))


# --- the three questions ----------------------------------------------------------------------------------------------


def answer_cards(evidence: Evidence) -> Iterator[Fact]:
    """One per run and question: the verdict, and in a few words why."""
    for run in evidence.runs:
        for answer in evidence.findings[run].answers:
            word = WORDS[answer.verdict]
            if answer.is_inferred and answer.verdict == "yes":
                word += ", by inference"
            label = CARDS[answer.question] + (f" (run {evidence.run_names[run]})" if evidence.frames.is_merged else "")
            yield Fact(label, word, details=answer.brief, tone=_tone(evidence, run, answer.verdict))


def _sentence(answer: Finding) -> str:
    return f"{answer.question}: {QUESTIONS[answer.question]} {WORDS[answer.verdict]}. {answer.answer}"


def _change_row(evidence: Evidence, run: str, answer: Finding) -> tuple[Cell, ...]:
    count = len(answer.rests_on)
    settings = "nothing" if not count else answer.rests_on[0] if count == 1 else f"{count} settings"
    return (
        cells.text_cell(f"{evidence.of_run(run)}{answer.question}"),
        cells.text_cell(WORDS[answer.verdict], tone=_tone(evidence, run, answer.verdict)),
        cells.text_cell(answer.would_change),
        cells.text_cell(settings, ", ".join(answer.rests_on)),
    )


def _tone(evidence: Evidence, run: str, verdict: Verdict) -> Tone:
    """Nothing is good news from a machine that others kept busy."""
    tone = TONES[verdict]
    return "plain" if tone == "good" and evidence.is_busy(run) else tone


def _number_row(evidence: Evidence, run: str, answer: Finding, number: Number) -> tuple[Cell, ...]:
    value = number.value
    count = cells.count_cell(value.n) if isinstance(value, Estimate) else cells.missing_cell(value.not_measured)
    return (
        cells.text_cell(f"{evidence.of_run(run)}{answer.question}"),
        cells.text_cell(number.label),
        _value_cell(value),
        count,
        cells.text_cell(number.about),
    )


def _value_cell(value: Estimate | NotMeasured) -> Cell:
    """With its unit, since a column holds values of several."""
    cell = cells.value_cell(value)
    if isinstance(value, NotMeasured):
        return cell
    text = told(Estimate(value.value, None, None, value.n, value.unit, value.pass_name, "unit only"))
    return Cell(text, cell.detail, cell.tip, cell.sort, cell.tone)


# --- what to do next --------------------------------------------------------------------------------------------------

RANKING = "What to optimise next, by predicted gain"


def next_cards(evidence: Evidence) -> Iterator[Fact]:
    """One per run and concurrency: the proposal with the largest predicted gain, and those after it."""
    for run in evidence.runs:
        for group in evidence.findings[run].proposals:
            known = [one for one in group if isinstance(one.gain, Estimate)]
            if not group:
                continue
            setting = group[0].setting
            label = f"Next to optimise at concurrency {setting.concurrency}"
            label += f", run {evidence.run_names[run]}" if evidence.frames.is_merged else ""
            if not known:
                yield Fact(label, "no prediction", setting.label, (told(group[0].gain),), "quiet")
                continue
            yield Fact(label, f"up to {told_value(known[0].gain)}", known[0].title, tuple(_details(known)))


def told_value(value: Estimate | NotMeasured) -> str:
    return cells.number(value.value, value.unit) if isinstance(value, Estimate) else cells.DASH


def _details(known: Sequence[Proposal]) -> Iterator[str]:
    first = known[0]
    assert isinstance(first.gain, Estimate), "only proposals with a prediction are shown"
    yield f"{cells.interval(first.gain)} for {units.shortened(first.setting.label)}, if {first.assumption}"
    if len(known) > 1:
        yield "then " + ", ".join(f"{one.title} {told(one.gain)}" for one in known[1 : 1 + MAX_RUNNERS_UP])


def _ranking_columns() -> tuple[Column, ...]:
    return (
        Column("Arm", is_number=False),
        Column("c", tip="concurrency"),
        Column("Rank"),
        Column("What", is_number=False),
        Column("Predicted", tip="speedup of the time per token under the assumption; the interval covers the shares"),
        Column("At most", tip="speedup if it took no time at all, or if every drafted token were accepted"),
        Column("Share", "%", tip="of the time per token after the first"),
        Column("If", tip="the assumption, and what the prediction rests on", is_number=False),
    )


def _proposal_row(evidence: Evidence, place: int, one: Proposal) -> tuple[Cell, ...]:
    return (
        cells.text_cell(evidence.name(one.setting)),
        cells.count_cell(one.setting.concurrency),
        cells.count_cell(place),
        cells.text_cell(one.title),
        cells.value_cell(one.gain, tone="strong" if place == 1 and isinstance(one.gain, Estimate) else "plain"),
        cells.value_cell(one.at_most),
        cells.value_cell(one.share),
        cells.text_cell(one.assumption, detail=f"rests on {one.rests_on}"),
    )
