"""Sections: where the run happened, with which weights, what the metrics mean, where the raw data is."""

from __future__ import annotations

from collections.abc import Iterator

from ddbench import units
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.profile.captured_case import FRAMES
from ddbench.analysis.settings import uses_drafter
from ddbench.analysis.tables import TABLES
from ddbench.captured import CAPTURE_TABLES
from ddbench.records import Environment, LoadSample, Manifest, ModelCard, NotMeasured, OkResult, PromptCard
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Section, Skipped, Table
from ddbench.report.downloads import downloads
from ddbench.report.evidence import Evidence, Warned
from ddbench.report.launched import kernel_tables

MAX_NAMED = 4  # cases that a warning names
RUN_FILES = "Files of the run folder"  # the table whose second column holds paths


def environment(evidence: Evidence) -> Section | Skipped:
    """One column per run."""
    tables = [_machine_table(evidence)]
    models = _model_table(evidence)
    if models.rows:
        tables.append(models)
    tables += _prompt_tables(evidence)
    tables += kernel_tables(evidence)
    tables.append(_library_table(evidence))
    loads = _load_table(evidence)
    if loads.rows:
        tables.append(loads)
    return Section("environment", "Environment", tables=tuple(tables), notes=tuple(_warnings(evidence)))


def _machine_table(evidence: Evidence) -> Table:
    manifests = evidence.frames.manifests
    columns = [dict(_facts(evidence, manifest)) for manifest in manifests]
    rows = tuple((cells.text_cell(name), *(column[name] for column in columns)) for name in columns[0])
    titles = ["Value"] if len(manifests) == 1 else [f"Run {evidence.run_names[run]}" for run in evidence.runs]
    columns_of_text = cells.text_columns("Fact", *titles)
    return cells.with_notes(Table("Machine and code", columns_of_text, rows, is_pairs=len(manifests) == 1))


def threads_of(evidence: Evidence, manifest: Manifest) -> tuple[int, ...]:
    """CPU threads that the cases of a run used: what each asked for, else the run's default."""
    asked = {
        result.case.engine.num_threads or manifest.environment.num_threads
        for (run, _), result in evidence.frames.results.items()
        if run == manifest.run_id
    }
    return tuple(sorted(asked)) or (manifest.environment.num_threads,)


def _facts(evidence: Evidence, manifest: Manifest) -> Iterator[tuple[str, Cell]]:
    place: Environment = manifest.environment
    yield "Run", cells.text_cell(manifest.run_id)
    yield "Started", cells.text_cell(manifest.created_at)
    yield "Device", cells.text_cell(place.device)
    yield "Device memory", _bytes_or_missing(place.device_memory_bytes)
    yield "Driver", _or_missing(place.driver)
    yield "Power cap", _or_missing(place.power_cap_w, " W")
    yield "Host", cells.text_cell(f"{place.cpu_model}, {place.num_cpus} CPUs, {place.machine}, {place.platform}")
    yield "Host memory", _bytes_or_missing(place.memory_bytes)
    yield "Threads", cells.text_cell(", ".join(map(str, threads_of(evidence, manifest))), tip="CPU threads of a case")
    yield "ddbench", cells.text_cell(f"{manifest.ddbench_version}, {place.parts_origin}")
    yield "Commit", _commit(place)
    yield "Code digest", cells.text_cell(place.code_digest[:16])


def _commit(place: Environment) -> Cell:
    if isinstance(place.commit, NotMeasured):
        return cells.missing_cell(place.commit.not_measured)
    is_dirty = not isinstance(place.is_dirty, NotMeasured) and place.is_dirty
    text = place.commit[:12] + (" with uncommitted changes" if is_dirty else "")
    return cells.text_cell(text, tone="warn" if is_dirty else "plain")


def _or_missing(value: str | float | NotMeasured, unit: str = "") -> Cell:
    return (
        cells.missing_cell(value.not_measured) if isinstance(value, NotMeasured) else cells.text_cell(f"{value}{unit}")
    )


def _bytes_or_missing(value: int | NotMeasured) -> Cell:
    if isinstance(value, NotMeasured):
        return cells.missing_cell(value.not_measured)
    return cells.text_cell(units.byte_count(value))


def _model_table(evidence: Evidence) -> Table:
    """Targets with the drafters that drafted for them; an arm without a drafter adds nothing to its target's row."""
    found: dict[tuple[str, str, str], tuple[ModelCard, bool]] = {}
    for (run, _), result in evidence.frames.results.items():
        if isinstance(result, OkResult):
            card, has_drafter = result.models, uses_drafter(result.case.engine)
            drafter = f"{card.drafter_digest} {card.block_size} {card.acceptance}" if has_drafter else ""
            key = (run, card.target_digest, drafter)
            found.setdefault(key, (card, has_drafter))
    drafted = {key[:2] for key, (_, has_drafter) in found.items() if has_drafter}
    rows = []
    for (run, target, _), (card, has_drafter) in found.items():
        if has_drafter or (run, target) not in drafted:
            place = (cells.text_cell(evidence.run_names[run]),) if evidence.frames.is_merged else ()
            rows.append((*place, *_model_cells(card, has_drafter)))
    columns = (
        *(cells.text_columns("Run") if evidence.frames.is_merged else ()),
        Column("Target", is_number=False),
        Column("Parameters"),
        Column("Digest", is_number=False),
        Column("Drafter", is_number=False),
        Column("Parameters"),
        Column("Digest", is_number=False),
        Column("Block", tip="positions of a draft block as it ran, the anchor included"),
        Column("Acceptance", is_number=False),
    )
    return cells.with_notes(Table("Weights", columns, tuple(rows)))


def _model_cells(card: ModelCard, has_drafter: bool) -> Iterator[Cell]:
    yield cells.text_cell(card.target)
    yield Cell(units.rate(card.num_target_parameters, ""), sort=card.num_target_parameters)
    yield cells.text_cell(card.target_digest[:12])
    if not has_drafter:
        yield from (cells.missing_cell("no arm with a drafter was measured"),) * 5
        return
    yield cells.text_cell(card.drafter)
    yield Cell(units.rate(card.num_drafter_parameters, ""), sort=card.num_drafter_parameters)
    yield cells.text_cell(card.drafter_digest[:12])
    yield _block_cell(card)
    yield cells.text_cell(card.acceptance.replace("_", " "))


def _block_cell(card: ModelCard) -> Cell:
    if card.block_size is None:
        return cells.missing_cell("nothing was drafted")
    if not is_cut_block(card):
        return cells.count_cell(card.block_size)
    return Cell(str(card.block_size), f"trained: {card.trained_block_size}", sort=card.block_size, tone="warn")


def _prompt_tables(evidence: Evidence) -> list[Table]:
    """Standard prompt sets: what was given, from where, under which licence, how it was put to the target."""
    found: dict[tuple[str, str, PromptCard], None] = {}
    for (run, _), result in evidence.frames.results.items():
        if isinstance(result, OkResult) and result.prompts is not None:
            found.setdefault((run, result.models.target, result.prompts))
    rows = []
    for run, target, card in found:
        place = (cells.text_cell(evidence.run_names[run]),) if evidence.frames.is_merged else ()
        rows.append((*place, *_prompt_cells(target, card)))
    columns = (
        *(cells.text_columns("Run") if evidence.frames.is_merged else ()),
        *cells.text_columns("Set", "Split"),
        Column("Prompts", tip="of the split and the wanted kinds; a workload takes some of them"),
        *cells.text_columns("Licence", "Source", "Digest", "Put to", "As", "Framing"),
    )
    return [Table("Prompts", columns, tuple(rows))] if rows else []


def _prompt_cells(target: str, card: PromptCard) -> Iterator[Cell]:
    yield cells.text_cell(card.name + (", first turn only" if card.turns == "first" else ""))
    yield cells.text_cell(card.split, tone="plain" if card.split == "test" else "warn")
    yield cells.count_cell(card.num_prompts)
    yield cells.text_cell(card.licence)
    yield cells.text_cell(card.source)
    yield cells.text_cell(card.set_digest[:12])
    yield cells.text_cell(target, tone="warn" if card.is_foreign else "plain")
    words = {"chat": "an instruction in its chat template", "plain": "plain text to go on with"}[card.framing]
    yield cells.text_cell(words + (", foreign to it" if card.is_foreign else ""))
    yield cells.text_cell(card.framing_digest[:12], tip="of the template and the wording around a prompt")


def is_cut_block(card: ModelCard) -> bool:
    """The drafter ran with a smaller block than it was trained for."""
    return None not in (card.block_size, card.trained_block_size) and card.block_size != card.trained_block_size


def _library_table(evidence: Evidence) -> Table:
    manifests = evidence.frames.manifests
    names = sorted({name for manifest in manifests for name in manifest.environment.libraries})
    rows = tuple(
        (cells.text_cell(name), *(cells.text_cell(m.environment.libraries.get(name, "absent")) for m in manifests))
        for name in names
    )
    titles = ["Version"] if len(manifests) == 1 else [f"Run {evidence.run_names[run]}" for run in evidence.runs]
    columns = cells.text_columns("Library", *titles)
    return Table("Libraries", columns, rows, is_folded=True, is_pairs=len(manifests) == 1)


def _load_table(evidence: Evidence) -> Table:
    labels = evidence.case_labels
    rows = []
    for key, result in evidence.frames.results.items():
        if isinstance(result, OkResult):
            for summary in result.passes:
                name = f"{summary.pass_name} {summary.index}"
                rows.append((cells.text_cell(labels[key]), cells.text_cell(name), *_load_cells(summary.load)))
    columns = (
        *cells.text_columns("Case", "Pass"),
        Column("Load before", tip="share of all CPU time busy"),
        Column("Load after"),
        Column("SM clock", "MHz"),
        Column("Temperature", "°C"),
        Column("Throttling", is_number=False),
    )
    return cells.with_notes(Table("State of the machine around each pass", columns, tuple(rows), is_folded=True))


def _load_cells(load: LoadSample) -> Iterator[Cell]:
    for share in (load.host_load_before, load.host_load_after):
        known = not isinstance(share, NotMeasured)
        yield Cell(cells.percent(share), sort=share) if known else cells.missing_cell(share.not_measured)  # type: ignore
    for reading in (load.sm_clock_mhz, load.temperature_c):
        known = not isinstance(reading, NotMeasured)
        yield Cell(str(reading), sort=reading) if known else cells.missing_cell(reading.not_measured)  # type: ignore
    reasons = load.throttle_reasons
    if isinstance(reasons, NotMeasured):
        yield cells.missing_cell(reasons.not_measured)
    else:
        yield cells.text_cell(", ".join(reasons) or "none", tone="warn" if reasons else "plain")


def _warnings(evidence: Evidence) -> Iterator[str]:
    """Those of few cases, with their names; the headline has the others."""
    for warned in evidence.warnings:
        if not warned.is_common:
            names = [evidence.case_labels[key] for key in warned.cases[:MAX_NAMED]]
            more = f" and {len(warned.cases) - MAX_NAMED} more" if len(warned.cases) > MAX_NAMED else ""
            yield f"{warned.text} ({_out_of(warned)}: {', '.join(names)}{more})."


def common_warnings(evidence: Evidence) -> Iterator[str]:
    """Those that concern most cases."""
    for warned in evidence.warnings:
        if warned.is_common:
            yield f"{warned.text} ({_out_of(warned)})."


def _out_of(warned: Warned) -> str:
    worst, count, total = "worst of " if warned.is_worst else "", len(warned.cases), warned.num_cases
    return f"{worst}all {total} cases" if count == total else f"{worst}{count} in {total} cases"


def glossary(evidence: Evidence) -> Section | Skipped:
    """Every metric with its formula."""
    rows = tuple(
        (
            cells.text_cell(metric.title),
            cells.text_cell(metric.name),
            cells.text_cell(metric.unit),
            cells.text_cell("" if metric.direction == "neither" else metric.direction),
            cells.text_cell(metric.counted),
            cells.text_cell(metric.formula),
        )
        for metric in METRICS.values()
    )
    intro = (
        "Intervals are 95 % bootstrap intervals (1000 resamples, fixed seed). Over prompts: pooled ratios by the BCa "
        "method, medians and ratios of two settings by percentiles; under 3 prompts there is none, under 8 it is too "
        "narrow and says so. Over rounds: circular blocks of about sqrt(n) neighbouring rounds, by percentiles. From 3 "
        "interleaved processes on (--blocks 3) processes are resampled too, else from 3 passes on passes.",
    )
    table = Table("Metrics", cells.text_columns("Metric", "Name", "Unit", "Better", "n counts", "Formula"), rows)
    return Section("glossary", "Metrics", intro, tables=(table,))


def raw_data(evidence: Evidence) -> Section | Skipped:
    """The rows behind this page: those that come with it, and what the run folders hold."""
    rows = []
    for manifest in evidence.frames.manifests:
        run = manifest.run_id
        rows.append(_file_row(run, "manifest.json", 1, "question, plan, environment"))
        cases = evidence.frames.cases[evidence.frames.cases["run"] == run]
        rows.append(_file_row(run, "cases/*/result.json", len(cases), "status, parity, weights, passes, counters"))
        for name, record in TABLES.items():
            table = getattr(evidence.frames, name)
            about = (record.__doc__ or "").splitlines()[0]
            rows.append(_file_row(run, f"cases/*/{name}.parquet", int((table["run"] == run).sum()), about))
        rows += _capture_files(evidence, run)
    columns = (*cells.text_columns("Run", "File"), Column("Rows"), Column("One row is", is_number=False))
    intro = (
        "Every number of this report comes from the files of its runs. What one needs to draw it anew comes along as "
        "CSV, in full precision; what happened in every single round stays in the run's parquet tables.",
    )
    table = Table(RUN_FILES, columns, tuple(rows))
    return Section("raw-data", "Raw data", intro, tables=(table,), downloads=downloads(evidence))


def _capture_files(evidence: Evidence, run: str) -> Iterator[tuple[Cell, ...]]:
    """Tables of captures that have a row."""
    for (name, record), frame in zip(CAPTURE_TABLES.items(), FRAMES, strict=True):
        table = getattr(evidence.frames, frame)
        count = int((table["run"] == run).sum())
        if count:
            about = (record.__doc__ or "").splitlines()[0]
            yield _file_row(run, f"cases/*/captures/*-{name}.parquet", count, about)


def _file_row(run: str, name: str, count: int, about: str) -> tuple[Cell, ...]:
    return (cells.text_cell(run), cells.text_cell(name), cells.count_cell(count), cells.text_cell(about))
