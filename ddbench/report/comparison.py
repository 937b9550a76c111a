"""Comparisons -> one screen, or a document in every format: verdict, why, every setting, counters, what was left out.

What `ddbench compare` shows. The verdict stands first, then its cause and its evidence, then what speaks against it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddbench import units
from ddbench.analysis.compare.comparison import Comparison, Comparisons, Match
from ddbench.analysis.compare.diagnosis import Diagnosis, diagnose
from ddbench.analysis.compare.judge import COMPARED, REASON_TEXTS, TAU
from ddbench.analysis.compare.phrases import ratio_text
from ddbench.analysis.effects import Effect
from ddbench.analysis.metrics import METRICS, Metric
from ddbench.records import Manifest, NotMeasured
from ddbench.report import cells, comparison_tables, plots
from ddbench.report.document import Figure, Panel, Report, Section, Skipped, Table


def comparison_report(found: Comparisons) -> Report:
    """Every section."""
    a, b = found.sides
    experiments = dict.fromkeys(side.manifest.experiment.name for side in found.sides)
    origin = "; ".join(f"{m.run_id} (ddbench {m.ddbench_version}, {m.created_at})" for m in _manifests(found))
    return Report(
        title=f"Compare: {', '.join(experiments)}",
        question=f"Is B, {b.title}, slower than A, {a.title}, and why?",
        origin=origin,
        sections=(_headline(found), _matches(found), _counters(found), _left_out(found), _place(found), _method(found)),
    )


def _manifests(found: Comparisons) -> list[Manifest]:
    return list({side.manifest.run_id: side.manifest for side in found.sides}.values())


def _headline(found: Comparisons) -> Section:
    diagnosis = diagnose(found)
    line = verdict_line(found, diagnosis)
    if diagnosis is None:
        context = (comparison_tables.context_table(found),) if found.matches else ()
        return Section("headline", "Verdict", (line,), notes=tuple(_why_nothing(found)), tables=context)
    cautions = (f"Caution: {text}" for text in (*_notes(found), *diagnosis.cautions))
    notes = (*diagnosis.sentences, *cautions, *([diagnosis.next_step] if diagnosis.next_step else []))
    tables = [comparison_tables.evidence_table(diagnosis.match)]
    stages = comparison_tables.stage_table(diagnosis)
    if stages is not None and diagnosis.cause not in ("none", "tau"):
        tables.append(stages)
    return Section("headline", "Verdict", (line,), notes=notes, tables=tuple(tables))


def verdict_line(found: Comparisons, diagnosis: Diagnosis | None) -> str:
    """One sentence that a reader may stop at, then the count."""
    counts = found.counts()
    tally = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "none"
    total = f"{len(found.matches)} settings on both sides: {tally}." if len(found.matches) != 1 else ""
    if diagnosis is None:
        return f"Incomparable: nothing that both sides have may be compared. {total}".strip()
    match, place = diagnosis.match, f"{diagnosis.match.label} at concurrency {diagnosis.match.concurrency}"
    if match.verdict in ("slower", "faster"):
        text = f"{match.verdict.capitalize()}: {place}: {_largest(match)}."
        if match.verdict == "faster" and found.verdict == "undecided":
            text += " Not every setting can be told."
    elif found.verdict == "same":
        text = f"The same: no difference of {cells.percent(found.min_effect)} or more."
    else:
        text = f"Undecided: {_why_undecided(found)}."
    return f"{text} {total}".strip()


def _largest(match: Match) -> str:
    """The outcome that decided: time per token where it did."""
    named = match.named(match.verdict)
    order = ("tpot_ms", "output_tok_per_s", "ttft_ms", TAU)
    own = {comparison.metric.name: comparison for comparison in named}
    return told(next((own[name] for name in order if name in own), named[0]))


def told(comparison: Comparison) -> str:
    """`TPOT 1.11 -> 1.39 ms (1.25x [1.24, 1.27], 10 pairs)`."""
    metric, effect = comparison.metric, comparison.decision.effect
    sides = [comparison_tables.value_text(value) for value in (comparison.a, comparison.b)]
    pairs = "" if isinstance(effect, NotMeasured) or comparison.basis == "exact" else f", {effect.n} pairs"
    return f"{metric.title} {sides[0]} -> {sides[1]} {metric.unit} ({ratio_text(comparison)}{pairs})"


def _why_undecided(found: Comparisons) -> str:
    codes = [
        code
        for match in found.comparable
        for name, comparison in match.comparisons.items()
        if name in match.asked and comparison.verdict == "undecided"
        for code in comparison.decision.reasons
    ]
    if not codes:
        return "not everything that was asked for could be compared"
    most = max(dict.fromkeys(codes), key=codes.count)
    return REASON_TEXTS.get(most, most.replace("_", " "))


def _why_nothing(found: Comparisons) -> Iterator[str]:
    """Each reason once, with how many settings it keeps apart."""
    for one in found.unmatched:
        yield f"{one.label} at concurrency {one.concurrency}: {one.reason.text}."
    texts = [reason.text for match in found.matches for reason in match.obstacles]
    for text in dict.fromkeys(texts):
        count = texts.count(text)
        where = "all settings" if count == len(found.matches) else f"{count} of {len(found.matches)} settings"
        yield f"{text[0].upper()}{text[1:]} ({where})."


def _notes(found: Comparisons) -> Iterator[str]:
    if found.lost:
        yield f"B did not deliver what A did: {', '.join(found.lost)}."
    if found.awaited:
        yield f"Neither side has a result of {', '.join(found.awaited)}: interrupted or going on."
    others = [match for match in found.matches if match.obstacles]
    if others and found.comparable:
        texts = list(dict.fromkeys(reason.text for match in others for reason in match.obstacles))
        more = f" and {len(texts) - 1} more reasons" if len(texts) > 1 else ""
        yield f"{len(others)} of {len(found.matches)} settings may not be compared: {texts[0]}{more}."
    absent = [one for one in found.unmatched if one.reason.code == "absent"]
    if absent:
        names = list(dict.fromkeys(f"{one.label} c={one.concurrency} ({one.side})" for one in absent))
        yield f"Only one side has {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}."


def _matches(found: Comparisons) -> Section | Skipped:
    if not found.comparable:
        return Skipped("comparisons", "Every setting", "nothing may be compared: the numbers stand under Verdict")
    intro = (
        "B over A with 95 % intervals: below 1 is better for TPOT, TTFT and round cost, above 1 for output and tau. "
        "Grey pairs of numbers are context: they may not be compared.",
    )
    tables = tuple(comparison_tables.match_tables(found))
    return Section("comparisons", "Every setting", intro, tables=tables, figures=_figures(found))


def _figures(found: Comparisons) -> tuple[Figure, ...]:
    """Time per token of every match that may be compared, one panel per concurrency, all on one scale."""
    points: dict[int, list[plots.Point]] = {}
    for match in found.comparable:
        effect = match.comparisons["tpot_ms"].decision.effect
        if isinstance(effect, Effect):
            color = plots.ARM_COLORS.get(match.b.arm, plots.GREY)
            point = plots.Point(match.label, effect.ratio, effect.low, effect.high, color)
            points.setdefault(match.concurrency, []).append(point)
    drawn = [point for group in points.values() for point in group]
    if not drawn:
        return ()
    limits = plots.limits(drawn, 1.0)
    panels = tuple(
        Panel(f"tpot-c{concurrency}", f"Concurrency {concurrency}", plots.forest(group, "TPOT, B / A", limits, 1.0))
        for concurrency, group in sorted(points.items())
    )
    caption = "Dot: ratio of time per token; line: its 95 % interval over pairs of repeats; dashed: no difference."
    return (Figure("Time per token, B over A", caption, panels),)


def _counters(found: Comparisons) -> Section | Skipped:
    table = comparison_tables.counter_table(found)
    if not table.rows:
        return Skipped("counters", "Counters", "no exact counter differs between settings that may be compared")
    return Section("counters", "Counters", ("Exact numbers, free of noise: what differs, differs.",), tables=(table,))


def _left_out(found: Comparisons) -> Section | Skipped:
    table = comparison_tables.left_out_table(found)
    if not table.rows:
        return Skipped("not-compared", "Not compared", "everything that either side has was compared")
    return Section("not-compared", "Not compared", tables=(table,))


def _place(found: Comparisons) -> Section | Skipped:
    if found.kind != "runs":
        return Skipped("environment", "Code and place", "both sides are of one run: the same code at the same place")
    manifests = [side.manifest for side in found.sides]
    return Section("environment", "Code and place", tables=(comparison_tables.place_table(manifests),))


def _method(found: Comparisons) -> Section:
    rows = tuple(
        (
            cells.text_cell(METRICS[name].title),
            cells.text_cell(METRICS[name].direction),
            cells.Cell(cells.percent(found.min_effect)),
            cells.text_cell("that of TPOT, as a rate" if name == "output_tok_per_s" else _floor(METRICS[name])),
        )
        for name in COMPARED
    )
    intro = (
        "A pair is one interleaved repeat of both sides; the effect is estimated from the log-ratios of the pairs with "
        "the effect of who ran first removed. A difference counts if it is significant after control of false "
        "discoveries over every cell of this page, exceeds the minimum effect and the absolute floor, and shows in "
        "both halves of the repeats. 'same' means that a difference that would count is excluded; 'undecided' that "
        "neither can be told. Under greedy decoding tau and counters repeat exactly and are compared without "
        "statistics; under sampling tau is compared over pairs of prompts.",
    )
    columns = (*cells.text_columns("Metric", "Better"), cells.Column("Minimum effect"), *cells.text_columns("Floor"))
    return Section("method", "How verdicts are made", intro, tables=(Table("Limits", columns, rows),))


def _floor(metric: Metric) -> str:
    return f"{units.significant(metric.absolute_floor)} {metric.unit}" if metric.absolute_floor else "none"
