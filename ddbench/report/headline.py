"""Section: the first screen. What was run, what speaks against it, the answers, the best arms, what to optimise next.

What a reader has to know before believing any speed (wrong outputs, looping outputs, a busy machine, acceptance that
was not measured) stands above the cards; what helps to read the numbers stands below them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddbench.analysis.settings import Setting
from ddbench.analysis.stats import FEWEST_UNITS
from ddbench.records import OkResult
from ddbench.report.cards import cards, few
from ddbench.report.document import Section
from ddbench.report.evidence import Evidence
from ddbench.report.findings import answer_cards, next_cards
from ddbench.report.provenance import common_warnings, is_cut_block, threads_of
from ddbench.report.verdicts import verdicts

ACCEPTANCE_LABELS: dict[str, str] = {
    "measured": "Acceptance is measured on the trained pair {target}: real for this pair only, not for other models.",
    "replayed": "Acceptance is replayed on {target}: the drafter runs in full, then its logits are replaced by a "
    "recorded quality profile around the target's own continuation. It is an assumption, not a result.",
    "random_drafter": "The drafter of {target} is random: acceptance is the worst case, not a result.",
    "random_weights": "{target} has random weights: times are real for these shapes, acceptance means nothing.",
    "none": "No case drafts anything: there is no acceptance.",
}


SOUND_ACCEPTANCE: tuple[str, ...] = ("measured", "none")  # the others are told before any number

BUSY = (
    "Other processes kept the CPUs busy around most of what was measured: differences of times may be their doing, and "
    "the intervals do not cover that."
)


def headline(evidence: Evidence) -> Section:
    """What was run, what speaks against it, verdicts, cards, and the notes that go with every number below."""
    notes, doubts = tuple(_notes(evidence)), tuple(_doubts(evidence))
    if not evidence.has_measurements:
        intro = (_what_was_run(evidence), "Nothing was measured.", *doubts)
        return Section("headline", "Headline", intro, notes=notes)
    facts = (*answer_cards(evidence), *cards(evidence), *next_cards(evidence))
    intro = (_what_was_run(evidence), *doubts, *verdicts(evidence))
    return Section("headline", "Headline", intro, facts, notes=notes)


def _doubts(evidence: Evidence) -> Iterator[str]:
    """What speaks against the numbers of this page, the worst first."""
    wrong = [row for row in evidence.identities if not row.is_ok]
    if wrong:
        labels = few(list(dict.fromkeys(row.label for row in wrong)))
        yield f"{len(wrong)} book-keeping checks fail ({labels}): numbers of these cases are not to be believed."
    failures = evidence.frames.failures
    incorrect = [str(label) for label in failures[failures["outcome"] == "incorrect"]["label"]]
    if incorrect:
        many = (
            "1 case is incorrect and has" if len(incorrect) == 1 else f"{len(incorrect)} cases are incorrect and have"
        )
        yield f"{many} no timings: {few(incorrect)}."
    looping = [evidence.name(s) for s in evidence.study.settings if s.is_ok and evidence.is_degenerate(s)]
    if looping:
        names = few(list(dict.fromkeys(looping)))
        yield f"Outputs loop in at least half of the requests of {names}: never named best here."
    for run in evidence.runs:
        if evidence.is_busy(run):
            yield evidence.of_run(run) + BUSY
    yield from (text for label, text in _acceptance(evidence) if label not in SOUND_ACCEPTANCE)


def _what_was_run(evidence: Evidence) -> str:
    cases, frames = evidence.frames.cases, evidence.frames
    num_ok = int((cases["status"] == "ok").sum())
    num_planned = sum(len(manifest.case_ids) for manifest in frames.manifests)
    text = f"{num_ok} of {num_planned} planned cases were measured"
    if num_ok:
        ok = cases[cases["status"] == "ok"]
        machines = dict.fromkeys(_machine(evidence, str(run)) for run in ok["run"].unique())
        targets = ", ".join(f"{target} in {dtype}" for target, dtype in _pairs(ok["target"], ok["dtype"]))
        sizes = ", ".join(
            f"{requests} requests of at most {tokens} new tokens"
            for requests, tokens in _pairs(ok["num_requests"], ok["max_new_tokens"])
        )
        concurrencies = ", ".join(str(c) for c in sorted(ok["concurrency"].unique()))
        text += f" on {', '.join(machines)}: {targets}; {sizes}; concurrency {concurrencies}"
    if len(frames.skipped):
        text += f"; {len(frames.skipped)} more cannot run here"
    return text + "."


def _pairs(first: object, second: object) -> list[tuple[object, object]]:
    return list(dict.fromkeys(zip(first, second, strict=True)))  # type: ignore[call-overload]


def _machine(evidence: Evidence, run: str) -> str:
    manifest = next(manifest for manifest in evidence.frames.manifests if manifest.run_id == run)
    environment = manifest.environment
    if environment.device == "cpu":
        used = threads_of(evidence, manifest)
        counts = " or ".join(str(count) for count in used)
        return f"CPU ({environment.cpu_model}, {counts} {'thread' if used == (1,) else 'threads'})"
    return environment.device


def _acceptance(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """(label, what it means) of everything that drafted."""
    drafting = [s for s in evidence.study.settings if s.is_ok and s.has_draft]
    labels = dict.fromkeys((result.models.acceptance, s.engine.target) for s in drafting for result in s.results)
    if evidence.has_measurements and not labels:
        yield "none", ACCEPTANCE_LABELS["none"]
    for label, target in labels:
        yield label, ACCEPTANCE_LABELS[label].format(target=target)


def _notes(evidence: Evidence) -> Iterator[str]:
    """What helps to read the numbers rightly."""
    if evidence.frames.is_merged:
        yield _side_by_side(evidence)
    yield from common_warnings(evidence)
    yield from (text for label, text in _acceptance(evidence) if label in SOUND_ACCEPTANCE)
    if evidence.has_measurements:
        yield _coverage(evidence)
    if evidence.identities and all(row.is_ok for row in evidence.identities):
        yield f"All {len(evidence.identities)} book-keeping checks hold."
    failures = evidence.frames.failures
    for outcome, rows in failures[failures["outcome"] != "incorrect"].groupby("outcome", sort=True):
        labels = few([str(label) for label in rows["label"]])
        yield f"{len(rows)} {'case' if len(rows) == 1 else 'cases'} {str(outcome).replace('_', ' ')}: {labels}."
    yield from _workload_labels(evidence)
    yield from _cut_blocks(evidence)


def _cut_blocks(evidence: Evidence) -> Iterator[str]:
    """Drafters that ran with a smaller block than they were trained for."""
    cut: dict[tuple[int | None, int | None], list[str]] = {}
    for setting in evidence.study.settings:
        for card in {result.models.block_size: result.models for result in setting.results}.values():
            if is_cut_block(card):
                cut.setdefault((card.block_size, card.trained_block_size), []).append(evidence.name(setting))
    for (block_size, trained), names in cut.items():
        yield (
            f"{few(list(dict.fromkeys(names)))} drafted blocks of {block_size}, the drafter was trained for {trained}: "
            "a shorter block costs acceptance."
        )


def _side_by_side(evidence: Evidence) -> str:
    """In what the runs differ, so that a difference of numbers is not read as one of the engine."""
    results = evidence.frames.results.items()
    ok = [(key[0], result) for key, result in results if isinstance(result, OkResult)]
    facts: dict[str, list[object]] = {
        "machine or libraries": [manifest.environment.fingerprint() for manifest in evidence.frames.manifests],
        "code": [manifest.environment.code_digest for manifest in evidence.frames.manifests],
        "weights": [
            {(r.models.target_digest, r.models.drafter_digest) for own, r in ok if own == run} for run in evidence.runs
        ],
        "workload": [
            {r.case.workload.model_copy(update={"concurrency": 1}).digest() for own, r in ok if own == run}
            for run in evidence.runs
        ],
    }
    unlike = [name for name, values in facts.items() if any(value != values[0] for value in values)]
    text = "The runs stand side by side; every speedup is within its own run"
    return f"{text}. They differ in {', '.join(unlike)}." if unlike else f"{text}."


def _coverage(evidence: Evidence) -> str:
    """What the intervals are about, so that nobody reads more into them."""
    about = "Intervals (95 %) are over prompts for TPOT, TTFT, tau and speedups, over rounds for output and round times"
    count = evidence.num_processes
    if count >= FEWEST_UNITS:
        return f"{about}; those of times also cover what differs between the {count} processes of a case."
    ran = "one process that" if count == 1 else f"{count} processes that"
    return f"{about}, within the {ran} ran a case. What another process would measure takes --blocks 3 or more."


def _workload_labels(evidence: Evidence) -> Iterator[str]:
    ok: list[Setting] = [s for s in evidence.study.settings if s.is_ok]
    if any(s.workload.prompts == "random" for s in ok):
        yield "Prompts are random token ids: acceptance on them says nothing about text."
    if any(s.workload.ignore_stop for s in ok):
        yield "Stop tokens are ignored: outputs run to the length limit."
