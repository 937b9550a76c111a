"""How long the accepted paths of a trained pair are: every arm, greedy, on the pair's held-out prompts, in the engine.

Last step of training, and nothing here is timed. A round counts as repeated text when most of the tokens it emitted
complete a 4-gram seen before in its request's prompt or output; an output is degenerate when it loops to its end
(`analysis.acceptance.is_degenerate`). All acceptance lengths are those of the emitted tokens: the first token, which
the prefill gives, belongs to no round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddbench import units
from ddbench.analysis.acceptance import is_degenerate
from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.errors import UserError
from ddbench.harness.capture import CleanProbe
from ddbench.harness.observe import PassRows, pass_rows
from ddbench.harness.workload import build_workload
from ddbench.models.weights import Models, checkpoint_folder, load_models
from ddbench.records import RoundRecord
from ddbench.spec import ARMS, Device, EngineSpec, WorkloadSpec
from ddbench.train.card import software, update_card
from ddbench.train.device import require_device
from ddbench.train.loop import Report, time_left
from ddbench.wheels import sha256_of

BUDGETS = (8, 16, 32, 64)
LENGTHS = ("tau", "tau_macro", "tau_uncut", "tau_novel", "tau_repeated")


def run_evaluate(*, pair: str, save: bool, echo: Report, **options: Any) -> None:
    """Evaluate, show the table and, if asked to, write the result into the pair's training card."""
    evaluation = evaluate_pair(pair=pair, report=echo, **options)
    echo(table(evaluation))
    if save:
        echo(f"card: {update_card(_pair_folder(pair), 'evaluation', evaluation)}")


def evaluate_pair(
    *,
    pair: str,
    num_prompts: int | None,
    max_new_tokens: int,
    concurrency: int,
    device: Device,
    command: str,
    report: Report,
) -> dict[str, Any]:
    """Run every arm on the same requests; -> what the training card says under 'evaluation'."""
    require_device(device)
    folder = _pair_folder(pair)
    prompts = folder / "prompts.jsonl"
    base = EngineSpec(target=pair, device=device)
    models = load_models(base)
    workload = WorkloadSpec(num_requests=num_prompts or count_prompts(prompts), max_new_tokens=max_new_tokens)
    requests = build_workload(workload, models.target.shape, folder, 0).measured
    specs = arm_specs(base)
    arms: dict[str, dict[str, Any]] = {}
    truth: dict[int, tuple[int, ...]] = {}
    began = time.monotonic()
    for number, (name, spec) in enumerate(specs.items(), start=1):
        rows = run_arm(spec, models, requests, concurrency)
        if not rows.rounds:
            raise UserError("every request ended with its first token: nothing was drafted; raise --max-new-tokens")
        truth = truth or {row.request_id: row.tokens for row in rows.requests}
        arms[name] = arm_facts(rows, truth)
        seconds = time.monotonic() - began
        left = "" if number == len(specs) else f", {time_left(number / len(specs), seconds)}"
        report(f"[{number}/{len(specs)}] {name:<13} tau {arms[name]['tau']:.3f}  {units.duration(seconds * 1e9)}{left}")
    return {
        "command": command,
        "prompts": {
            "sha256": sha256_of(prompts),
            "number": len(requests),
            "kinds": Counter(r.kind for r in requests),
        },
        "max_new_tokens": max_new_tokens,
        "concurrency": concurrency,
        "block_size": models.drafter.shape.block_size,
        "sampling": "greedy",
        "dtype": base.dtype,
        "target_sha256": models.facts.target_digest,
        "drafter_sha256": models.facts.drafter_digest,
        "software": software(device),
        "arms": arms,
    }


def arm_specs(base: EngineSpec) -> dict[str, EngineSpec]:
    """Plain decoding first, then every arm that a drafter is judged by."""
    arms = {name: base.model_copy(update=ARMS[name]) for name in ("ar", "prompt_lookup", "chain")}
    trees = {f"ddtree {budget}": {**ARMS["ddtree"], "node_budget": budget} for budget in BUDGETS}
    return arms | {name: base.model_copy(update=changes) for name, changes in trees.items()}


def arm_facts(rows: PassRows, truth: Mapping[int, tuple[int, ...]]) -> dict[str, Any]:
    """Everything the card says of one arm; `truth` holds the outputs of plain decoding by request id."""
    kinds = {request.request_id: request.kind for request in rows.requests}
    by_request = {
        request_id: [r for r in rows.rounds if r.request_id == request_id]
        for request_id in dict.fromkeys(r.request_id for r in rows.rounds)
    }
    lengths = [sum(r.num_emitted for r in rounds) / len(rounds) for rounds in by_request.values()]
    repeated = [r for r in rows.rounds if 2 * r.num_repeated > r.num_emitted]
    novel = [r for r in rows.rounds if 2 * r.num_repeated <= r.num_emitted]
    verdicts = [verdict for r in rows.requests if (verdict := is_degenerate(r.tokens)) is not None]
    histogram = Counter(r.num_accepted for r in rows.rounds)
    return {
        "rounds": len(rows.rounds),
        "tau": _tau(rows.rounds),
        "tau_macro": round(sum(lengths) / len(lengths), 4),  # mean over requests
        "tau_uncut": round(1 + sum(r.num_accepted for r in rows.rounds) / len(rows.rounds), 4),  # before stop and limit
        "tau_novel": _tau(novel),
        "tau_repeated": _tau(repeated),
        "repeated_rounds_share": round(len(repeated) / len(rows.rounds), 4),
        "tau_by_kind": {
            kind: _tau([r for r in rows.rounds if kinds[r.request_id] == kind]) for kind in sorted(set(kinds.values()))
        },
        "accepted_histogram": [histogram[accepted] for accepted in range(max(histogram) + 1)],
        "nodes_per_round": round(sum(r.num_nodes for r in rows.rounds) / len(rows.rounds), 4),
        "degenerate_share": round(sum(verdicts) / len(verdicts), 4) if verdicts else None,
        "equal_to_ar": sum(r.tokens == truth[r.request_id] for r in rows.requests),
        "requests": len(rows.requests),
    }


def table(evaluation: Mapping[str, Any]) -> str:
    """The evaluation as plain text: acceptance lengths, then how many rounds accepted 0, 1, 2, ... drafted tokens."""
    arms = evaluation["arms"]
    kinds = list(arms["ar"]["tau_by_kind"])
    titles = ("rounds", *(name.removeprefix("tau_") for name in LENGTHS), *kinds, "loops", "= ar")
    lines = [_line("acceptance length", titles)]
    lines += [_line(name, _cells(facts, kinds)) for name, facts in arms.items()]
    widest = max(len(facts["accepted_histogram"]) for facts in arms.values())
    lines += ["", _line("% accepting", [str(accepted) for accepted in range(widest)])]
    for name, facts in arms.items():
        lines.append(_line(name, [f"{100 * count / facts['rounds']:.1f}" for count in facts["accepted_histogram"]]))
    lines.append("")
    for name, over in (("tau", "all rounds"), ("tau_macro", "per request")):
        drafter, lookup = arms["chain"][name], arms["prompt_lookup"][name]
        verdict = "beats" if drafter > lookup else "does not beat"
        lines.append(f"{over}: the drafter's chain {verdict} prompt_lookup, {drafter:.3f} against {lookup:.3f}")
    return "\n".join(lines)


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<17}" + "".join(f"{cell:>9}" for cell in cells)


def _cells(facts: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
    lengths = [*(facts[name] for name in LENGTHS), *(facts["tau_by_kind"].get(kind) for kind in kinds)]
    texts = ["-" if length is None else f"{length:.3f}" for length in lengths]
    loops = "-" if facts["degenerate_share"] is None else f"{100 * facts['degenerate_share']:.1f} %"
    return [str(facts["rounds"]), *texts, loops, f"{facts['equal_to_ar']}/{facts['requests']}"]


def _tau(rounds: Sequence[RoundRecord]) -> float | None:
    """Tokens emitted per round; None without rounds."""
    return round(sum(r.num_emitted for r in rounds) / len(rounds), 4) if rounds else None


def run_arm(spec: EngineSpec, models: Models, requests: Sequence[Request], concurrency: int) -> PassRows:
    """What the engine did; its times mean nothing."""
    probe = CleanProbe()
    finished = Engine(spec, models).run(requests, concurrency, probe)
    return pass_rows(probe, requests, finished, "clean", 0, 0)


def _pair_folder(pair: str) -> Path:
    folder = checkpoint_folder(pair)
    if folder is None:
        raise UserError(f"pair '{pair}' has no trained weights; pass a shipped pair or a pair folder")
    return folder


def count_prompts(prompts: Path) -> int:
    """Lines of a prompts.jsonl."""
    if not prompts.is_file():
        raise UserError(f"{prompts}: missing; expected the pair's held-out prompts")
    return sum(1 for line in prompts.read_text(encoding="utf-8").split("\n") if line)
