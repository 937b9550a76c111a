"""Run folder -> `RunFrames`: tidy tables with one row per request, round, step, stage sample, pass, device op.

First step of every analysis; reads JSON and parquet, computes nothing but keys. Every row carries the case that it came
from, and its setting; `cases` says what these are. Links between tables are resolved here: a
round knows its request's and its step's place in their tables of the same case (`request_row`, `step_row`), and `unit`,
which is what statistics resample: the prompt, since two requests for one prompt are not independent.

A file that is absent, damaged or of another shape is a `SchemaError` that names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa

from ddbench.analysis.captures import load_captures, sorted_categories
from ddbench.analysis.tables import TABLES, read_parquet, table_schema
from ddbench.captured import Capture
from ddbench.errors import SchemaError, UserError
from ddbench.files import read_text
from ddbench.records import (
    MANIFEST_CURE,
    CaseResult,
    Ceilings,
    FailedResult,
    IncorrectResult,
    Manifest,
    NotMeasured,
    OkResult,
    ResultFile,
)
from ddbench.spec import Case, Tool, from_json

READABLE_VERSIONS: tuple[int, ...] = (1, 2)  # what 2 added to 1 has defaults
CONTEXT_COLUMNS: tuple[str, ...] = ("run", "case_id", "setting", "block")  # what every row says about its case


@dataclass(frozen=True)
class RunFrames:
    """One run, or several merged ones (column `run` tells them apart)."""

    manifests: tuple[Manifest, ...]
    results: Mapping[tuple[str, str], CaseResult]  # (run, case_id) -> the whole record, for its nested facts
    cases: pd.DataFrame  # one row per case with a result, whatever its status
    requests: pd.DataFrame
    rounds: pd.DataFrame
    steps: pd.DataFrame
    stages: pd.DataFrame
    passes: pd.DataFrame
    failures: pd.DataFrame  # run, case_id, arm, label, outcome, reason, log_tail
    skipped: pd.DataFrame  # run, arm, label, reason
    ceilings: Mapping[str, Ceilings | NotMeasured]  # run -> what its machine can do at best
    captures: Mapping[tuple[str, str], Mapping[Tool, Capture]]  # (run, case_id) -> what each profiler recorded
    # Rows of captures, with the `tool` that recorded them: two tools tell of other runs of the same case.
    device_ops: pd.DataFrame
    host_calls: pd.DataFrame
    host_ranges: pd.DataFrame
    stage_samples: pd.DataFrame
    kernel_counters: pd.DataFrame

    @property
    def is_merged(self) -> bool:
        return len(self.manifests) > 1


def load_run(folder: Path) -> RunFrames:
    """Read one run folder. Cases of the plan without a result are failures with outcome `not_run`."""
    manifest = _read_manifest(folder)
    results = _read_results(folder, manifest)
    cases = _cases_frame(manifest, results)
    ok = {case_id: result for case_id, result in results.items() if isinstance(result, OkResult)}
    tables = {name: _read_table(folder, name, ok, cases) for name in TABLES}
    requests, rounds, steps = _linked(folder, tables)
    captures, captured = load_captures(folder, list(ok))
    return RunFrames(
        manifests=(manifest,),
        results={(manifest.run_id, case_id): result for case_id, result in results.items()},
        cases=cases,
        requests=requests,
        rounds=rounds,
        steps=steps,
        stages=tables["stages"],
        passes=_passes_frame(ok, cases),
        failures=_failures_frame(manifest, results, cases),
        skipped=pd.DataFrame(
            [{"run": manifest.run_id, "arm": s.arm, "label": s.label, "reason": s.reason} for s in manifest.skipped],
            columns=["run", "arm", "label", "reason"],
        ),
        ceilings={manifest.run_id: _read_ceilings(folder)},
        captures={(manifest.run_id, case_id): tools for case_id, tools in captures.items()},
        device_ops=_with_context(captured["ops"], cases),
        host_calls=_with_context(captured["calls"], cases),
        host_ranges=_with_context(captured["ranges"], cases),
        stage_samples=_with_context(captured["samples"], cases),
        kernel_counters=_with_context(captured["counters"], cases),
    )


def merge_runs(runs: Sequence[RunFrames]) -> RunFrames:
    """Several runs as one, told apart by `run`. The same run twice is a user error."""
    if len(runs) == 1:
        return runs[0]
    names = [manifest.run_id for run in runs for manifest in run.manifests]
    if len(set(names)) < len(names):
        raise UserError(f"run ids must differ to be merged, got {', '.join(names)}: give each run folder once")
    merged: dict[str, Any] = {
        "manifests": tuple(manifest for run in runs for manifest in run.manifests),
        "results": {key: result for run in runs for key, result in run.results.items()},
        "ceilings": {name: ceilings for run in runs for name, ceilings in run.ceilings.items()},
        "captures": {key: tools for run in runs for key, tools in run.captures.items()},
    }
    for field in fields(RunFrames):
        if field.name not in merged:
            merged[field.name] = _concat([getattr(run, field.name) for run in runs])
    return RunFrames(**merged)


def _concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return frames[0]
    categories = [name for name in filled[0].columns if filled[0][name].dtype == "category"]
    plain = [frame.astype(dict.fromkeys(categories, object)) for frame in filled]
    return pd.concat(plain, ignore_index=True).astype(dict.fromkeys(categories, "category"))


# --- the JSON side ---------------------------------------------------------------------------------------------------


def _read_text(path: Path) -> str:
    return read_text(path, ": is this the folder of a run?")


def _read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    text = _read_text(path)
    _check_version(text, path)
    manifest = from_json(Manifest, text, str(path), MANIFEST_CURE)
    if manifest.cases and len(manifest.cases) != len(manifest.case_ids):
        wrong = f"{len(manifest.case_ids)} case ids for {len(manifest.cases)} cases"
        raise SchemaError(f"{path}: {wrong}: damaged: {MANIFEST_CURE}")
    return manifest


def _check_version(text: str, path: Path) -> None:
    """Before anything else is read: a record of another version would only look damaged."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return  # damage is told better by whoever parses it all
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version not in READABLE_VERSIONS:
        raise SchemaError(
            f"{path}: schema version {version}, this ddbench reads {' and '.join(map(str, READABLE_VERSIONS))}: "
            f"use ddbench {data.get('ddbench_version', 'of that time')}, or run the experiment again"
        )


def _read_ceilings(folder: Path) -> Ceilings | NotMeasured:
    path = folder / "ceilings.json"
    if not path.exists():
        return NotMeasured(not_measured="the run has no ceilings.json: its machine's ceilings were not measured")
    try:
        return from_json(Ceilings, _read_text(path), path.name)
    except SchemaError as error:  # what they are needed for can do without them, and says so
        return NotMeasured(not_measured=str(error))


def _read_results(folder: Path, manifest: Manifest) -> dict[str, CaseResult]:
    """Results by case id in execution order; a planned case that has no file yet is left out."""
    results: dict[str, CaseResult] = {}
    for case_id in manifest.case_ids:
        path = folder / "cases" / case_id / "result.json"
        if not path.exists():
            continue
        result = from_json(ResultFile, _read_text(path), str(path)).result
        if result.case_id != case_id:
            cure = f"run its case again with `ddbench sweep --resume {folder}`"
            raise SchemaError(f"{path}: holds case '{result.case_id}', expected '{case_id}': {cure}")
        results[case_id] = result
    return results


def setting_key(run: str, case: Case) -> str:
    """Names the setting of a case: everything that was asked for except which interleaved repeat it is."""
    return f"{run}:{case.model_copy(update={'block': 0, 'shown': ()}).digest()}"


def _cases_frame(manifest: Manifest, results: Mapping[str, CaseResult]) -> pd.DataFrame:
    labels = _distinct_labels({case_id: result.case for case_id, result in results.items()})
    rows = []
    for case_id, result in results.items():
        engine, workload = result.case.engine, result.case.workload
        rows.append(
            {
                "run": manifest.run_id,
                "case_id": case_id,
                "setting": setting_key(manifest.run_id, result.case),
                "block": result.case.block,
                "status": result.status,
                "arm": result.case.arm,
                "label": labels[case_id],
                **{name: getattr(engine, name) for name in ("target", "dtype")},
                **{name: getattr(workload, name) for name in ("concurrency", "num_requests", "max_new_tokens")},
            }
        )
    columns = ["status", "arm", "label", "target", "dtype", "concurrency", "num_requests", "max_new_tokens"]
    return pd.DataFrame(rows, columns=[*CONTEXT_COLUMNS, *columns])


def _distinct_labels(cases: Mapping[str, Case]) -> dict[str, str]:
    """`Case.label`, plus whatever else tells apart two settings whose labels are the same (dtype, lengths, ...)."""
    twins: dict[str, list[str]] = {}
    for case_id, case in cases.items():
        twins.setdefault(case.label, []).append(case_id)
    labels: dict[str, str] = {}
    for label, case_ids in twins.items():
        asked = {case_id: _asked(cases[case_id]) for case_id in case_ids}
        first = asked[case_ids[0]]
        varying = [name for name in first if any(other[name] != first[name] for other in asked.values())]
        for case_id in case_ids:
            suffix = f" c={cases[case_id].workload.concurrency}"
            extra = "".join(f" {name}={asked[case_id][name]}" for name in varying)
            labels[case_id] = label.removesuffix(suffix) + extra + suffix
    return labels


def _asked(case: Case) -> dict[str, Any]:
    return {**case.engine.__dict__, **case.workload.__dict__, **case.capture.__dict__}


def _failures_frame(manifest: Manifest, results: Mapping[str, CaseResult], cases: pd.DataFrame) -> pd.DataFrame:
    planned = dict(zip(manifest.case_ids, manifest.cases, strict=True)) if manifest.cases else {}
    labels = {case_id: case.label for case_id, case in planned.items()}
    labels.update(zip(cases["case_id"], cases["label"], strict=True))
    rows = []
    for case_id in manifest.case_ids:
        arm = planned[case_id].arm if case_id in planned else ""
        row = {"run": manifest.run_id, "case_id": case_id, "arm": arm, "label": labels.get(case_id, case_id)}
        result = results.get(case_id)
        if result is None:
            reason = "the plan holds it but there is no result: the run was interrupted or is still going"
            rows.append({**row, "outcome": "not_run", "reason": reason, "log_tail": ""})
        elif isinstance(result, FailedResult):
            details = {"outcome": result.outcome, "reason": result.reason, "log_tail": result.log_tail}
            rows.append({**row, "arm": result.case.arm, **details})
        elif isinstance(result, IncorrectResult):
            details = {"outcome": "incorrect", "reason": parity_reason(result), "log_tail": ""}
            rows.append({**row, "arm": result.case.arm, **details})
    return pd.DataFrame(rows, columns=["run", "case_id", "arm", "label", "outcome", "reason", "log_tail"])


def parity_reason(result: IncorrectResult) -> str:
    """One line: how the speculative output left the autoregressive one."""
    parity = result.parity
    text = f"parity {parity.status}" + (f": {parity.detail}" if parity.detail else "")
    if parity.divergences:
        first = parity.divergences[0]
        text += f"; prompt {first.prompt_id}, position {first.position}: expected {first.expected}, got {first.got}"
    return text


def _passes_frame(results: Mapping[str, OkResult], cases: pd.DataFrame) -> pd.DataFrame:
    rows = [
        {
            "case_id": case_id,
            **summary.model_dump(exclude={"index", "load", "replayed_ns"}),
            "pass_index": summary.index,
        }
        for case_id, result in results.items()
        for summary in result.passes
    ]
    columns = ["case_id", "pass_name", "pass_index", "wall_ns", "num_emitted"]
    return _with_context(pd.DataFrame(rows, columns=columns), cases)


# --- the parquet side ------------------------------------------------------------------------------------------------


def _read_table(folder: Path, name: str, ok: Mapping[str, OkResult], cases: pd.DataFrame) -> pd.DataFrame:
    """All cases' rows of one table. Only ok cases have tables."""
    schema = table_schema(TABLES[name])
    parts, case_ids, lengths = [], [], []
    for case_id in ok:
        part = read_parquet(folder / "cases" / case_id / f"{name}.parquet", schema)
        parts.append(part)
        case_ids.append(case_id)
        lengths.append(part.num_rows)
    table = pa.concat_tables(parts) if parts else schema.empty_table()
    frame = sorted_categories(table.to_pandas(strings_to_categorical=True))
    frame["case_id"] = pd.Categorical.from_codes(np.repeat(np.arange(len(case_ids)), lengths), categories=case_ids)
    return _with_context(frame, cases)


def _with_context(frame: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """`frame` (which has `case_id`) with the columns that say what the case is, repeated strings as categories."""
    position = {case_id: index for index, case_id in enumerate(cases["case_id"])}
    order = frame["case_id"].map(position).to_numpy(dtype=np.int64)
    for name in CONTEXT_COLUMNS:
        values = cases[name]
        is_text = values.dtype.kind not in "iuf"
        frame[name] = pd.Categorical(values).take(order) if is_text else values.to_numpy()[order]
    return frame


def _linked(folder: Path, tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Requests, rounds and steps with their links; a round must belong to a finished request and to a step."""
    requests, steps = tables["requests"], tables["steps"]
    prompts = requests["prompt_id"].astype(object)
    units = prompts.where(prompts != "", "request " + requests["request_id"].astype(str).astype(object))
    requests = requests.assign(unit=pd.Categorical(units))
    rounds = tables["rounds"]
    request_row = _places(folder, requests, rounds, "requests", "request_id")
    step_row = _places(folder, steps, rounds, "steps", "step")
    emitted = np.bincount(step_row, weights=rounds["num_emitted"], minlength=len(steps)).astype(np.int64)
    rounds = rounds.assign(
        request_row=_within_case(requests)[request_row],
        step_row=_within_case(steps)[step_row],
        verify_width=steps["verify_width"].to_numpy()[step_row],
        unit=requests["unit"].array.take(request_row),
        kind=pd.Categorical(requests["kind"]).take(request_row),
    )
    return requests, rounds, steps.assign(num_emitted=emitted)


def _places(folder: Path, table: pd.DataFrame, rounds: pd.DataFrame, name: str, key: str) -> np.ndarray:
    """For every round the row of `table` that it belongs to."""
    keys = ["case_id", "pass_name", "pass_index", key]
    lookup = table[keys].astype({"case_id": object})
    twice = lookup.duplicated()
    if twice.any():
        _damaged(folder, lookup[twice].iloc[0], name, key, "is there twice")
    lookup = lookup.assign(place=np.arange(len(lookup)))
    joined = rounds[keys].astype({"case_id": object}).merge(lookup, on=keys, how="left")
    lost = joined["place"].isna()
    if lost.any():
        _damaged(folder, joined[lost].iloc[0], name, key, "has rows in rounds.parquet and none here")
    return joined["place"].to_numpy(dtype=np.int64)


def _within_case(table: pd.DataFrame) -> np.ndarray:
    return table.groupby("case_id", observed=True, sort=False).cumcount().to_numpy()


def _damaged(folder: Path, row: pd.Series, name: str, key: str, what: str) -> NoReturn:
    path = folder / "cases" / str(row["case_id"]) / f"{name}.parquet"
    raise SchemaError(
        f"{path}: {key} {row[key]} of {row['pass_name']} pass {row['pass_index']} {what}: damaged; remove its case's "
        f"folder, then `ddbench sweep --resume {folder}`"
    )
