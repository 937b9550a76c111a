"""Section: what was run, what came out best at each concurrency and why, and how far it is to be believed.

Three sentences and a card per concurrency; what a number needs to be read rightly stands in the notes below them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddbench import units
from ddbench.analysis.contests import standing
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.stats import FEWEST_UNITS
from ddbench.analysis.values import Estimate
from ddbench.report import cells
from ddbench.report.document import Fact, Section, Tone
from ddbench.report.evidence import Evidence
from ddbench.report.provenance import common_warnings, threads_of
from ddbench.report.verdicts import best_drafter, verdicts

ACCEPTANCE_LABELS: dict[str, str] = {
    "measured": "Acceptance is measured on the trained pair {target}: real for this pair only, not for other models.",
    "replayed": "Acceptance is replayed on {target}: the drafter runs in full, then its logits are replaced by a "
    "recorded quality profile around the target's own continuation. It is an assumption, not a result.",
    "random_drafter": "The drafter of {target} is random: acceptance is the worst case, not a result.",
    "random_weights": "{target} has random weights: times are real for these shapes, acceptance means nothing.",
    "none": "No case drafts anything: there is no acceptance.",
}


BUSY = (
    "Other processes kept the CPUs busy around most of what was measured: differences of times may be their doing, and "
    "the intervals do not cover that."
)
STANDINGS: dict[str, str] = {
    "ahead": "faster than ar",
    "even": "not separated from ar",
    "behind": "slower than ar, which nothing here beats",
    "unknown": "without an interval",
}


def headline(evidence: Evidence) -> Section:
    """What was run, the verdicts, one card per concurrency, and the caveats that go with every number below."""
    notes = tuple(_caveats(evidence))
    if not evidence.has_measurements:
        return Section("headline", "Headline", (_what_was_run(evidence), "Nothing was measured."), notes=notes)
    facts = tuple(fact for c in evidence.study.concurrencies for fact in _best_at(evidence, c))
    doubt = (BUSY,) if evidence.is_busy else ()
    intro = (_what_was_run(evidence), *doubt, *verdicts(evidence))
    return Section("headline", "Headline", intro, facts, notes=notes)


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


def _acceptance(evidence: Evidence) -> Iterator[str]:
    drafting = [s for s in evidence.study.settings if s.is_ok and s.has_draft]
    labels = dict.fromkeys((result.models.acceptance, s.engine.target) for s in drafting for result in s.results)
    if evidence.has_measurements and not labels:
        yield ACCEPTANCE_LABELS["none"]
    for label, target in labels:
        yield ACCEPTANCE_LABELS[label].format(target=target)


def _best_at(evidence: Evidence, concurrency: int) -> Iterator[Fact]:
    """The arm with the highest speedup over ar, or with the lowest time per token where there is no ar."""
    speedups = {}
    for setting in evidence.arms_at(concurrency):
        value = evidence.value(setting, "speedup_vs_ar")
        if evidence.may_be_best(setting) and isinstance(value, Estimate):
            speedups[setting.key] = (setting, value)
    if not speedups:
        yield _fastest_at(evidence, concurrency)
        return
    setting, best = max(speedups.values(), key=lambda pair: pair[1].value)
    place = standing(best)
    details = [f"{STANDINGS[place]}: {cells.interval(best)}, n={best.n} prompts"]
    chain = evidence.value(setting, "speedup_vs_chain")
    if isinstance(chain, Estimate):
        details.append(f"{cells.number(chain.value, 'x')} vs chain {cells.interval(chain)}")
    details += _runners_up(evidence, concurrency, setting, speedups)
    tone: Tone = {"ahead": "plain" if evidence.is_busy else "good", "behind": "warn"}.get(place, "plain")  # type: ignore[assignment]
    label = f"Best vs ar at concurrency {concurrency}"
    yield Fact(label, cells.number(best.value, "x"), evidence.name(setting), tuple(details), tone)


def _runners_up(
    evidence: Evidence, concurrency: int, best: Setting, speedups: dict[str, tuple[Setting, Estimate]]
) -> Iterator[str]:
    """The best arm with a drafter, where the best has none; and what cannot be told from the best."""
    own = speedups[best.key][1]
    drafter = None if best.has_drafter else best_drafter(evidence, concurrency)
    if drafter is not None and drafter.key in speedups:
        value = speedups[drafter.key][1]
        yield f"with a drafter: {evidence.name(drafter)} {cells.number(value.value, 'x')} {cells.interval(value)}"
    close = [evidence.name(s) for s, value in speedups.values() if s is not best and _overlap(own, value)]
    if close:
        yield f"intervals overlap with {_few(close)}"


def _fastest_at(evidence: Evidence, concurrency: int) -> Fact:
    """The lowest time per token, or the only one."""
    settings = evidence.arms_at(concurrency)
    usable = [s for s in settings if evidence.may_be_best(s)]
    metric = METRICS["tpot_ms"]
    key = cells.best_of(((s.key, evidence.value(s, metric.name)) for s in usable), metric, fewest=1)
    if key is None:
        looping = [s for s in settings if s.is_ok and evidence.is_degenerate(s)]
        why = "the outputs of every measured arm loop" if looping else "nothing was measured"
        return Fact(f"Concurrency {concurrency}", "no best arm", why, tone="quiet")
    setting = next(s for s in usable if s.key == key)
    value = evidence.value(setting, metric.name)
    assert isinstance(value, Estimate), "the best of measured values is one"
    is_alone = len(usable) == 1
    why = "there is nothing to compare it with" if is_alone else "there is no ar arm to compare with"
    label = f"{'TPOT' if is_alone else 'Lowest TPOT'} at concurrency {concurrency}"
    details = (f"{cells.interval(value)}, n={value.n} prompts", why)
    return Fact(label, cells.with_unit(value.value, metric.unit), evidence.name(setting), details)


def _overlap(one: Estimate, other: Estimate) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return True
    return one.low <= other.high and other.low <= one.high


def _few(names: list[str]) -> str:
    shown = [units.shortened(name) for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _caveats(evidence: Evidence) -> Iterator[str]:
    """What a reader must know before using a number of this page."""
    yield from common_warnings(evidence)
    yield from _acceptance(evidence)
    if evidence.has_measurements:
        yield _coverage(evidence)
    wrong = [row for row in evidence.identities if not row.is_ok]
    if wrong:
        labels = _few(list(dict.fromkeys(row.label for row in wrong)))
        yield f"{len(wrong)} book-keeping checks fail ({labels}): numbers of these cases are not to be believed."
    elif evidence.identities:
        yield f"All {len(evidence.identities)} book-keeping checks hold."
    for outcome, rows in evidence.frames.failures.groupby("outcome", sort=True):
        labels = _few([str(label) for label in rows["label"]])
        yield f"{len(rows)} {'case' if len(rows) == 1 else 'cases'} {str(outcome).replace('_', ' ')}: {labels}."
    looping = [evidence.name(s) for s in evidence.study.settings if s.is_ok and evidence.is_degenerate(s)]
    if looping:
        names = _few(list(dict.fromkeys(looping)))
        yield f"Outputs loop in at least half of the requests of {names}: never named best here."
    yield from _workload_labels(evidence)


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
