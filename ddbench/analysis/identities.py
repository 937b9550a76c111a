"""Book-keeping that must hold in every run: one row per case and identity, whether it holds, and both sides of it.

An identity that fails means that the harness, the engine or the analysis miscounts; no number of that case is to be
believed before it is explained. Each function gets the rows of one case, all passes, and returns a `Check`, or None
where the identity does not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddbench.analysis.columns import Columns, grouped, no_rows
from ddbench.analysis.frames import RunFrames
from ddbench.analysis.profile.agreement import TOLERANCE, agreements
from ddbench.analysis.profile.captured_case import CapturedCase, captured_cases
from ddbench.analysis.values import missing
from ddbench.records import NotMeasured, OkResult
from ddbench.spec import PART_FIELDS

TPOT_TOLERANCE = 0.10  # host work between rounds belongs to no round
TIME_TOLERANCE = 0.01  # stage clocks and round clocks are read apart


@dataclass(frozen=True)
class CaseRows:
    """One ok case with its rows, every pass."""

    result: OkResult
    requests: Columns
    rounds: Columns
    steps: Columns
    stages: Columns
    passes: Columns
    captured: CapturedCase | None = None  # None: no profiler made a pass over it

    @cached_property
    def lengths(self) -> np.ndarray:
        """Emitted tokens of every request."""
        return np.array([len(tokens) for tokens in self.requests["tokens"]], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Check:
    """Does it hold, and what stands on the two sides."""

    is_ok: bool
    left: float
    right: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class IdentityRow:
    run: str
    case_id: str
    label: str
    identity: str
    is_ok: bool
    left: float
    right: float
    detail: str


def _tokens_add_up(case: CaseRows) -> Check | None:
    emitted = _per_request(case, case.rounds["num_emitted"])
    wrong = int((case.lengths != 1 + emitted).sum())
    detail = f"{wrong} of {emitted.size} requests differ" if wrong else ""
    return Check(wrong == 0, float(case.lengths.sum()), float(emitted.size + emitted.sum()), detail)


def _rounds_counted(case: CaseRows) -> Check | None:
    counted = _per_request(case)
    claimed = case.requests["num_rounds"]
    wrong = int((claimed != counted).sum())
    return Check(wrong == 0, float(claimed.sum()), float(counted.sum()), f"{wrong} requests differ" if wrong else "")


def _emitted_is_accepted_plus_one(case: CaseRows) -> Check | None:
    rounds = case.rounds
    if not len(rounds):
        return None
    order, request = rounds["request_round"], rounds["request_row"]
    last = np.zeros(len(case.requests), dtype=np.int64)
    np.maximum.at(last, request, order)
    is_last = order == last[request]
    committed = rounds["num_accepted"] + 1
    emitted = rounds["num_emitted"]
    holds = np.where(is_last, (emitted >= 1) & (emitted <= committed), emitted == committed)
    cut, wrong = int((committed - emitted)[is_last].sum()), int((~holds).sum())
    detail = f"{wrong} rounds differ" if wrong else f"{cut} tokens cut off in last rounds"
    return Check(wrong == 0, float(emitted.sum()), float(committed.sum() - cut), detail)


def _pooled_length(case: CaseRows) -> Check | None:
    claimed = case.requests["num_rounds"].sum()
    if not len(case.rounds) or claimed == 0:
        return None
    left = float((case.lengths - 1).sum() / claimed)
    right = float(case.rounds["num_emitted"].sum() / len(case.rounds))
    return Check(bool(np.isclose(left, right, rtol=1e-9)), left, right)


def _length_within_horizon(case: CaseRows) -> Check | None:
    if not len(case.rounds):
        return None
    block_size = case.result.models.block_size
    deepest = int(case.rounds["num_nodes"].max())
    horizon = deepest if block_size is None else min(deepest, block_size - 1)
    length = float(case.rounds["num_emitted"].sum() / len(case.rounds))
    basis = "nothing was drafted" if block_size is None else f"block size {block_size}, at most {deepest} nodes"
    return Check(length <= horizon + 1, length, horizon + 1, basis)


def _accepted_within_tree(case: CaseRows) -> Check | None:
    if not len(case.rounds):
        return None
    accepted, nodes = case.rounds["num_accepted"], case.rounds["num_nodes"]
    block_size = case.result.models.block_size
    limit = nodes if block_size is None else np.minimum(nodes, block_size - 1)
    wrong = int(((accepted > limit) | (accepted < 0)).sum())
    worst = int((accepted - limit).argmax())
    detail = f"{wrong} rounds accept more than was drafted" if wrong else ""
    return Check(wrong == 0, float(accepted[worst]), float(limit[worst]), detail)


def _nodes_within_budget(case: CaseRows) -> Check | None:
    budget = case.result.case.engine.node_budget
    if not len(case.rounds) or budget == 0:  # a chain's length is its block size, not a budget
        return None
    most = float(case.rounds["num_nodes"].max())
    return Check(most <= budget, most, float(budget))


def _nodes_within_width(case: CaseRows) -> Check | None:
    if not len(case.rounds):
        return None
    nodes, widths = case.rounds["num_nodes"], case.rounds["verify_width"]
    wrong = int((nodes + 1 > widths).sum())
    detail = f"{wrong} requests in rounds exceed it" if wrong else ""
    worst = int((nodes + 1 - widths).argmax())
    return Check(wrong == 0, float(nodes[worst] + 1), float(widths[worst]), detail)


def _batch_is_its_rows(case: CaseRows) -> Check | None:
    if not len(case.steps):
        return None
    took_part = np.bincount(case.rounds["step_row"], minlength=len(case.steps))
    wrong = int((case.steps["batch_size"] != took_part).sum())
    detail = f"{wrong} rounds differ" if wrong else ""
    return Check(wrong == 0, float(case.steps["batch_size"].sum()), float(len(case.rounds)), detail)


def _pass_totals(case: CaseRows) -> Check | None:
    claimed = dict(zip(_passes(case.passes), case.passes["num_emitted"].tolist(), strict=True))
    counted = dict.fromkeys(claimed, 0)
    for key, length in zip(_passes(case.requests), case.lengths.tolist(), strict=True):
        counted[key] = counted.get(key, 0) + length
    wrong = sum(counted[key] != claimed.get(key) for key in counted)
    detail = f"{wrong} passes differ" if wrong else ""
    return Check(wrong == 0, float(sum(claimed.values())), float(sum(counted.values())), detail)


def _times_in_order(case: CaseRows) -> Check | None:
    walls = dict(zip(_passes(case.passes), case.passes["wall_ns"].tolist(), strict=True))
    ends = np.array([walls.get(key, -1) for key in _passes(case.requests)], dtype=np.int64)
    admitted, first, last = (case.requests[name] for name in ("admitted_ns", "first_token_ns", "last_token_ns"))
    wrong = int((~((admitted >= 0) & (admitted <= first) & (first <= last) & (last <= ends))).sum())
    detail = f"{wrong} requests are out of order" if wrong else ""
    return Check(wrong == 0, float(last.max(initial=0)), float(ends.max(initial=0)), detail)


def _occupancy(case: CaseRows) -> Check | None:
    requests, wall = case.requests, float(case.passes["wall_ns"].sum())
    if wall <= 0:
        return Check(False, wall, 0.0, "the passes took no time")
    running = float((requests["last_token_ns"] - requests["admitted_ns"]).sum()) / wall
    limit = case.result.case.workload.concurrency
    return Check(running <= limit * (1 + TIME_TOLERANCE), running, float(limit), "mean requests in flight")


def _tpot_is_round_over_length(case: CaseRows) -> Check | None:
    requests, steps = case.requests, case.steps
    num_tokens = int((case.lengths - 1).sum())
    emitted = int(case.rounds["num_emitted"].sum())
    if case.result.case.workload.concurrency != 1 or not len(steps) or num_tokens == 0 or emitted == 0:
        return None
    left = float((requests["last_token_ns"] - requests["first_token_ns"]).sum()) / num_tokens
    mean_round = float((steps["end_ns"] - steps["start_ns"]).mean())
    right = mean_round / (emitted / len(case.rounds))
    return Check(abs(left - right) <= TPOT_TOLERANCE * max(left, right), left, right, "nanoseconds per token")


def _stages_within_round(case: CaseRows) -> Check | None:
    is_inside, is_attributed = case.stages["step"] >= 0, case.steps["pass_name"] == "attributed"
    if not is_inside.any() or not is_attributed.any():
        return None
    stages, times = case.stages["step"][is_inside], case.stages["duration_ns"][is_inside]
    steps = case.steps["step"][is_attributed]
    durations = (case.steps["end_ns"] - case.steps["start_ns"])[is_attributed].astype(np.float64)
    num_steps = 1 + max(int(steps.max()), int(stages.max()))
    inside = np.bincount(stages, weights=times, minlength=num_steps)
    around = np.bincount(steps, weights=durations, minlength=num_steps)
    wrong = int((inside > around * (1 + TIME_TOLERANCE)).sum())
    detail = f"{wrong} of {len(steps)} rounds hold more stage time than time" if wrong else ""
    return Check(wrong == 0, float(inside.sum()), float(around.sum()), detail or "nanoseconds; the gap is host time")


def _path_is_what_was_asked(case: CaseRows) -> Check | None:
    ran = {part: path for part, path in case.result.path_used.items() if part in PART_FIELDS}
    if not ran:
        return None
    other = [f"{part}: {path}" for part, path in ran.items() if path != getattr(case.result.case.engine, part)]
    return Check(not other, float(len(ran) - len(other)), float(len(ran)), "; ".join(other))


def _captured_ops_add_up(case: CaseRows) -> Check | None:
    """Whatever may be withheld: what the digest counted is what its tables hold."""
    passes = [] if case.captured is None else [one for one in case.captured.passes.values() if one.capture.ledger]
    if not passes:
        return None
    claimed = sum(line.time_ns for one in passes for line in one.capture.ledger)
    count = sum(line.count for one in passes for line in one.capture.ledger)
    found, rows = sum(one.device_ns for one in passes), sum(one.num_ops for one in passes)
    detail = "nanoseconds" if count == rows else f"{rows} ops in the tables, {count} in the ledger"
    return Check(claimed == found and count == rows, float(claimed), float(found), detail)


def _captured_stages_fit(case: CaseRows) -> Check | None:
    found = missing("no capture") if case.captured is None else agreements(case.captured)
    if isinstance(found, NotMeasured):
        return None
    wrong = [one.stage.replace("_", " ") for one in found if not one.is_ok]
    whole = found[-1]
    detail = f"longer than their own time: {', '.join(wrong)}" if wrong else "nanoseconds per round"
    return Check(not wrong, whole.captured_ns, whole.limit_ns, detail)


def _per_request(case: CaseRows, weights: np.ndarray | None = None) -> np.ndarray:
    """Rounds of every request, or the sum of `weights` over them, aligned with `case.requests`."""
    rows = case.rounds["request_row"]
    return np.bincount(rows, weights=weights, minlength=len(case.requests)).astype(np.int64)


def _passes(table: Columns) -> list[tuple[str, int]]:
    return list(zip(table["pass_name"], table["pass_index"], strict=True))


# identity -> (what it says, how it is checked)
IDENTITIES: dict[str, tuple[str, Callable[[CaseRows], Check | None]]] = {
    "tokens_add_up": ("a request's tokens = 1 (prefill) + what its rounds emitted", _tokens_add_up),
    "rounds_counted": ("a request's number of rounds = its rows in the rounds table", _rounds_counted),
    "emitted_is_accepted_plus_one": (
        "a round emits accepted + 1 tokens, fewer only in a request's last round",
        _emitted_is_accepted_plus_one,
    ),
    "pooled_length": ("tau from requests = tau from rounds", _pooled_length),
    "length_within_horizon": ("tau <= block size, and <= most nodes + 1", _length_within_horizon),
    "accepted_within_tree": ("accepted tokens <= drafted nodes, and <= block size - 1", _accepted_within_tree),
    "nodes_within_budget": ("nodes <= node budget", _nodes_within_budget),
    "nodes_within_width": ("nodes + 1 <= verified width of the round", _nodes_within_width),
    "batch_is_its_rows": ("batch size of a round = requests that took part in it", _batch_is_its_rows),
    "pass_totals": ("tokens of a pass = tokens of its requests", _pass_totals),
    "times_in_order": ("admitted <= first token <= last token <= wall time of the pass", _times_in_order),
    "occupancy": ("time in flight summed over requests <= concurrency x wall time", _occupancy),
    "tpot_is_round_over_length": (
        f"at concurrency 1: TPOT = mean round / tau within {TPOT_TOLERANCE:.0%}",
        _tpot_is_round_over_length,
    ),
    "stages_within_round": (
        f"stage times of a round <= its duration, within {TIME_TOLERANCE:.0%}",
        _stages_within_round,
    ),
    "captured_ops_add_up": ("device ops of a capture = its ledger, in number and in time", _captured_ops_add_up),
    "captured_stages_fit": (
        f"device time of a captured stage <= its time in the attributed pass x tax, within {TOLERANCE:.0%}",
        _captured_stages_fit,
    ),
    "path_is_what_was_asked": ("every part ran the path that it is named by", _path_is_what_was_asked),
}


def check_identities(frames: RunFrames) -> tuple[IdentityRow, ...]:
    """Every identity of every ok case."""
    names = ("requests", "rounds", "steps", "stages", "passes")
    groups = {name: grouped(getattr(frames, name), ["run", "case_id"]) for name in names}
    nothing = {name: no_rows(getattr(frames, name)) for name in names}
    captured = captured_cases(frames)
    rows = []
    ok = frames.cases[frames.cases["status"] == "ok"]
    for run, case_id, label in zip(ok["run"], ok["case_id"], ok["label"], strict=True):
        key = (run, case_id)
        result = frames.results[key]
        assert isinstance(result, OkResult), "the cases frame says ok"
        own = {name: groups[name].get(key, nothing[name]) for name in names}
        rows_of_case = CaseRows(result=result, captured=captured.get(key), **own)
        for identity, (_, check) in IDENTITIES.items():
            found = check(rows_of_case)
            if found is not None:
                sides = (found.is_ok, found.left, found.right, found.detail)
                rows.append(IdentityRow(run, case_id, label, identity, *sides))
    return tuple(rows)
