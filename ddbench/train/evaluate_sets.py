"""Acceptance lengths of a drafter on prompt sets that it never saw: every arm, set by set, greedy and sampled.

Nothing here is timed; the engine runs as in a benchmark. A setting (arm, budget, temperature) serves the prompts of all
sets in one run. The first token of an answer, the prefill's, belongs to no round. Each setting's result is written as
soon as it is there, and not made again by a rerun with the same questions.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from ddbench.engine.types import Request
from ddbench.errors import DdbenchError, UserError
from ddbench.files import write_atomically
from ddbench.harness.observe import PassRows
from ddbench.harness.parity import compare, next_token_logits
from ddbench.harness.workload import build_workload
from ddbench.models.weights import Models, load_models
from ddbench.spec import ARMS, Device, EngineSpec, WorkloadSpec, first_message
from ddbench.train.card import software
from ddbench.train.device import require_device
from ddbench.train.evaluate import arm_facts, run_arm
from ddbench.train.loop import Report, time_left
from ddbench.workloads.cache import Cache, cache_folder
from ddbench.workloads.sets import find_set

RESULT, TABLE = "evaluation.json", "evaluation.md"
SHOWN = ("rounds", "tau", "tau_macro", "tau_novel", "tau_repeated", "repeated_rounds_share", "degenerate_share")


def run_evaluate_sets(*, out: Path, echo: Report, minutes: float | None, **options: Any) -> None:
    """Evaluate setting after setting; what is there already stays."""
    began = time.monotonic()
    asked = {name: str(value) for name, value in options.items() if name not in ("budgets", "temperatures", "command")}
    asked |= {name: Path(asked[name]).name for name in ("target", "drafter")}  # their digests tell which
    before = begun(out, asked)
    result = dict(before)
    base = _base(options)
    wanted = list(settings(base, options["budgets"], options["temperatures"], options["executor"]))
    models = load_models(base)
    names = tuple(dict.fromkeys(options["sets"].split(",")))
    requests = set_requests(names, models, options["num_prompts"], options["max_new_tokens"])
    result |= {
        "command": options["command"], "software": software(options["device"]),
        "target_sha256": models.facts.target_digest, "drafter_sha256": models.facts.drafter_digest,
        "block_size": models.drafter.shape.block_size,
        "requests": {name: sum(r.kind == name for r in requests) for name in names},
    }  # fmt: skip
    for role in ("target", "drafter"):
        then, now = (facts.get(f"{role}_sha256") for facts in (before, result))
        if then not in (None, now):
            raise UserError(f"{out / RESULT}: is of {role} {then}, now it is {now}; take another --out")
    truths = _truths(result, out)
    for number, (label, spec) in enumerate(wanted, start=1):
        if label in result["settings"]:
            echo(f"[{number}/{len(wanted)}] {label} is there")
            continue
        seconds = time.monotonic() - began
        if minutes is not None and seconds >= 60 * minutes:
            echo(f"time is up before {label}: the same command goes on from there")
            break
        try:
            rows = run_arm(spec, models, requests, options["concurrency"])
        except torch.OutOfMemoryError as error:
            raise DdbenchError(
                f"{label}: out of memory on {options['device']}, --concurrency {options['concurrency']} is too much; "
                f"{len(result['settings'])} finished settings are kept in {out}"
            ) from error
        if spec.draft == "none" and spec.sampling == "greedy":
            truths = {row.request_id: row.tokens for row in rows.requests}
            _write(out / "greedy-answers.json", {str(k): list(v) for k, v in truths.items()})
        ties = near_ties(spec, models, requests, truths, rows) if truths and spec.sampling == "greedy" else frozenset()
        result["settings"][label] = {name: set_facts(rows, name, truths, ties) for name in (*names, "all")}
        _write(out / RESULT, result)
        (out / TABLE).write_text(table(result), encoding="utf-8")
        tau = result["settings"][label]["all"]["tau"]
        left = time_left(number / len(wanted), time.monotonic() - began)
        echo(f"[{number}/{len(wanted)}] {label}: tau {tau:.3f}, {left}")
    echo(table(result))


def set_requests(names: Sequence[str], models: Models, num_prompts: int | None, max_new: int) -> list[Request]:
    """All prompts of the sets in the target's framing (no setting is chosen by them), `kind` the name of the set."""
    requests: list[Request] = []
    for name in names:
        number = num_prompts or len(Cache(cache_folder()).read(find_set(name)))
        workload = WorkloadSpec(prompts=name, prompt_split="all", num_requests=number, max_new_tokens=max_new)
        for one in build_workload(workload, models.target.shape, models.folder, 0).measured:
            requests.append(replace(one, request_id=len(requests), kind=name))
    return requests


def settings(base: EngineSpec, budgets: str, temperatures: str, executor: str) -> Iterator[tuple[str, EngineSpec]]:
    """Label and spec of everything that is run, plain greedy decoding first."""
    arms: dict[str, Mapping[str, Any]] = {name: ARMS[name] for name in ("ar", "prompt_lookup", "chain")}
    tree = "device" if base.device == "cuda" else "heap"
    for budget in _numbers(budgets, "--budgets"):
        if budget < 1 or budget != int(budget):
            raise UserError(f"--budgets {budgets!r}: expected whole numbers of at least 1, got {budget:g}")
        arms[f"ddtree {budget:.0f}"] = {**ARMS["ddtree"], "node_budget": int(budget), "tree_build": tree}
    for temperature in _numbers(temperatures, "--temperatures"):
        sampled = {} if temperature == 0 else {"sampling": "stochastic", "temperature": temperature}
        for name, changes in arms.items():
            if name == "ar" and temperature > 0:
                continue  # one token a round, whatever the temperature
            # A lookup reads the text on the host, between rounds.
            own = {**changes, **sampled, "executor": "eager" if name == "prompt_lookup" else executor}
            try:
                yield f"{name} T={temperature:g}", EngineSpec(**{**base.model_dump(), **own})
            except ValidationError as error:
                raise UserError(f"{name}: {first_message(error)}") from error


def near_ties(
    spec: EngineSpec, models: Models, requests: Sequence[Request], truths: Mapping[int, tuple[int, ...]], rows: PassRows
) -> frozenset[int]:
    """The requests whose first other token is one of two that the target could not tell apart in this precision."""
    got = {row.request_id: row.tokens for row in rows.requests}
    logits = next_token_logits(spec, models)
    statuses = {one.request_id: compare(spec, [one], truths, got, logits, "").status for one in requests}
    return frozenset(request_id for request_id, status in statuses.items() if status == "near_tie")


def set_facts(
    rows: PassRows, name: str, truths: Mapping[int, tuple[int, ...]], ties: frozenset[int] = frozenset()
) -> dict[str, Any] | None:
    """What `evaluate` says of an arm, of the requests of one set, or of all; None without a round.

    `ties`: the requests whose output leaves plain decoding's at a near tie.
    """
    ids = {row.request_id for row in rows.requests if name in ("all", row.kind)}
    requests = [row for row in rows.requests if row.request_id in ids]
    rounds = [row for row in rows.rounds if row.request_id in ids]
    if not rounds:
        return None
    known = truths or {row.request_id: () for row in requests}
    return {**arm_facts(PassRows(requests, rounds, [], [], rows.paths), known), "near_ties": len(ids & ties)}


def table(result: Mapping[str, Any]) -> str:
    """Acceptance lengths and histograms as Markdown, set by set."""
    lines = []
    for name in (*result["requests"], "all"):
        titles = f"{' | '.join(SHOWN)} | = ar | near ties | rounds accepting 0, 1, 2, ... (%)"
        lines += [f"## {name}", "", f"| setting | {titles} |", "| --- " * (len(SHOWN) + 4) + "|"]
        for label, facts in result["settings"].items():
            own = facts[name]
            if own is None:
                continue
            cells = ["-" if own[key] is None else f"{own[key]:.4g}" for key in SHOWN]
            shares = " ".join(f"{100 * count / own['rounds']:.1f}" for count in own["accepted_histogram"])
            is_greedy = label.endswith("T=0")
            same = f"{own['equal_to_ar']}/{own['requests']}" if is_greedy else "-"
            ties = f"{own['near_ties']}" if is_greedy else "-"
            lines.append(f"| {label} | {' | '.join(cells)} | {same} | {ties} | {shares} |")
        lines.append("")
    return "\n".join(lines)


def _base(options: Mapping[str, Any]) -> EngineSpec:
    device: Device = options["device"]
    require_device(device)
    on_gpu = {"kernels": "triton", "attention": "tree_triton", "prefill": "graph"}
    fast: dict[str, Any] = on_gpu if device == "cuda" else {}
    drafter = None if options["drafter"] is None else str(options["drafter"])
    return EngineSpec(target=options["target"], drafter=drafter, device=device, dtype=options["dtype"], **fast)


def _numbers(text: str, option: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {text!r}: expected numbers with commas between them") from error
    if not all(0 <= number < math.inf for number in found):
        raise UserError(f"{option} {text!r}: expected numbers that are not negative")
    return found


def begun(out: Path, asked: Mapping[str, str]) -> dict[str, Any]:
    """The result so far of the same questions; of others it is an error."""
    path = out / RESULT
    if not path.is_file():
        return {"asked": dict(asked), "settings": {}}
    found = _read(path)
    if not {"asked", "settings"} <= found.keys():
        raise UserError(f"{path}: no result of this command; take another --out")
    if found["asked"] != asked:
        raise UserError(f"{path}: answers {found['asked']}, asked is {dict(asked)}; take another --out")
    return found


def _truths(result: Mapping[str, Any], out: Path) -> dict[int, tuple[int, ...]]:
    path = out / "greedy-answers.json"
    if not path.is_file() or not result["settings"]:
        return {}
    return {int(k): tuple(v) for k, v in _read(path).items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}): remove it, or take another --out") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected a JSON object: remove it, or take another --out")
    return found


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1) + "\n")
