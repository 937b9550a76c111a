"""A whole sweep: plan -> run folder -> every case in its process -> tally. New or resumed.

Above `run.py` (one case) and below the command line. What is on disk is complete after every case, so an interrupted
sweep loses at most the case that was running.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

import ddbench
from ddbench.captured import Capture
from ddbench.errors import DdbenchError, SchemaError, UserError
from ddbench.harness.bracket import CEILINGS, around
from ddbench.harness.environment import environment_of
from ddbench.harness.interrupt import resumable
from ddbench.harness.lock import device_lock
from ddbench.harness.plan import Plan, case_key, default_device, reference_key
from ddbench.harness.profilers import drive
from ddbench.harness.progress import SweepDisplay, escaped
from ddbench.harness.run import WORKER, Job, run_case
from ddbench.harness.store import RunFolder, case_id, create_run, open_run, run_id
from ddbench.records import CaseResult, Environment, Manifest, OkResult
from ddbench.spec import Case, Device, EngineSpec, ExperimentSpec
from ddbench.wheels import sha256_of


@dataclass(slots=True)
class Tally:
    """How the cases of a run ended."""

    counts: dict[str, int] = field(default_factory=lambda: {"ok": 0, "incorrect": 0, "failed": 0})
    captures: list[Capture] = field(default_factory=list)

    def add(self, result: CaseResult, captures: Sequence[Capture] = ()) -> None:
        self.counts[result.status] += 1
        self.captures.extend(captures)

    @property
    def exit_code(self) -> int:
        """0: everything that could run was measured; 4: nothing was, or a case failed or was incorrect."""
        return 0 if self.counts["ok"] and not self.num_bad else 4

    @property
    def num_bad(self) -> int:
        return self.counts["incorrect"] + self.counts["failed"]

    def __str__(self) -> str:
        cases = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        return (cases or "nothing was measured") + self._captures()

    def _captures(self) -> str:
        if not self.captures:
            return ""
        num_failed = sum(capture.fault is not None for capture in self.captures)
        num_made = len(self.captures) - num_failed
        made = f"; {num_made} {'capture' if num_made == 1 else 'captures'}"
        return made + (f", {num_failed} failed" if num_failed else "")

    def capture_faults(self) -> list[str]:
        """What failed captures lacked, each once; a case without its captures is ok."""
        faults = Counter(
            f"{capture.tool}: {capture.fault.what}: {capture.fault.cure}"
            for capture in self.captures
            if capture.fault is not None
        )
        return [f"{text} ({count} captures)" if count > 1 else text for text, count in faults.items()]


# ------------------------------------------------------------------------------------------------------ whole sweeps


def run_plan(plan: Plan, out: Path, console: Console, lock_folder: Path | None = None) -> tuple[RunFolder, Tally]:
    """A new run, from its folder to its last case."""
    with _held(plan.experiment, lock_folder):
        run = new_run(plan, out)
        return run, execute(run, console, WORKER, CEILINGS)


def resume(path: Path, console: Console, lock_folder: Path | None = None) -> tuple[RunFolder, Tally]:
    """The rest of a run. Nothing in its folder is touched before the device is ours: the run may still be going."""
    with _held(open_run(path).manifest.experiment, lock_folder):
        run = resumed_run(path)
        return run, execute(run, console, WORKER, CEILINGS)


def _held(experiment: ExperimentSpec, lock_folder: Path | None) -> AbstractContextManager[None]:
    return device_lock(experiment.engine.device, f"sweep '{experiment.name}'", lock_folder)


# ------------------------------------------------------------------------------------------------------- new, resumed


def new_run(plan: Plan, out: Path) -> RunFolder:
    """The folder of a new run, its manifest written."""
    return create_run(out, manifest_of(plan, environment_of(plan.experiment.engine.device)))


def manifest_of(plan: Plan, environment: Environment, role: str = "") -> Manifest:
    """What a new run of this plan is; `role` tells runs of one start apart."""
    if not plan.cases:
        why = "".join(f"; {reason}" for reason in dict.fromkeys(case.reason for case in plan.skipped))
        raise DdbenchError(f"nothing to measure: all {len(plan.skipped)} cases of the plan are skipped{why}")
    engine = plan.experiment.engine
    if engine.num_threads is not None:
        environment = environment.model_copy(update={"num_threads": engine.num_threads})
    now = datetime.now(UTC)
    name = plan.experiment.name + (f"-{role}" if role else "")
    return Manifest(
        run_id=run_id(now.strftime("%Y%m%dT%H%M%SZ"), name, _plan_digest(plan, environment)),
        ddbench_version=ddbench.__version__,
        created_at=now.isoformat(timespec="seconds"),
        experiment=plan.experiment,
        environment=environment,
        case_ids=case_ids(plan.cases, environment),
        cases=plan.cases,
        skipped=plan.skipped,
    )


def _plan_digest(plan: Plan, environment: Environment) -> str:
    text = "".join(case.digest() for case in plan.cases) + environment.code_digest
    return hashlib.sha256(text.encode()).hexdigest()


def resumed_run(path: Path) -> RunFolder:
    """An unfinished run of this code to go on with."""
    run = open_run(path)
    if run.manifest.interleaved_with is not None:
        raise UserError(f"{path}: ran in turns with other code: name its checkout with --against")
    return as_it_was(run, environment_of(device_of(run)))


def device_of(run: RunFolder) -> Device:
    """The device of a run that can be resumed, which must be here."""
    if not run.manifest.cases:
        raise SchemaError(f"{run.path}: its manifest does not hold the cases: it cannot be resumed, start a new run")
    return default_device(run.manifest.cases[0].engine.device)


def as_it_was(run: RunFolder, now: Environment) -> RunFolder:
    """The run, cleared for going on: the code, the place and the weights must be what they were."""
    path, manifest = run.path, run.manifest
    if now.code_digest != manifest.environment.code_digest:
        raise UserError(
            f"{path}: was made by other code (digest {manifest.environment.code_digest[:12]}, "
            f"now {now.code_digest[:12]}): start a new run"
        )
    changes = _differences(manifest.environment, now)
    if changes:
        raise UserError(f"{path}: was made in another environment ({changes}): start a new run")
    for then_id, now_id, case in zip(manifest.case_ids, case_ids(manifest.cases, now), manifest.cases, strict=True):
        if now_id != then_id:
            raise UserError(
                f"{path}: the weights of '{case.engine.target}' are not the ones of then, or its prompts, or "
                "its oracle_profile: start a new run"
            )
    run.sweep_leftovers()
    return run


def _differences(then: Environment, now: Environment) -> str:
    pairs = zip(then.fingerprint(), now.fingerprint(), strict=False)
    texts = [f"{old} then, {new} now" for old, new in pairs if old != new]
    return "; ".join(texts) or ("another set of libraries" if then.fingerprint() != now.fingerprint() else "")


def case_ids(cases: Sequence[Case], environment: Environment) -> tuple[str, ...]:
    """The content address of every case: its weights, the profile that it replays and its prompts included.

    Weights are read once per pair of models.
    """
    from ddbench.engine.profiles import profile_digest
    from ddbench.harness.workload import prompts_digest
    from ddbench.models.weights import checkpoint_folder

    digests: dict[EngineSpec, str] = {}
    known: dict[tuple[str, str | None, int], str] = {}
    for engine in dict.fromkeys(case.engine for case in cases):
        pair = (engine.target, engine.drafter, engine.seed)
        if pair not in known:
            known[pair] = models_digest(engine)
        digests[engine] = known[pair] + profile_digest(engine)
    found = []
    for case in cases:
        prompts = prompts_digest(case.workload, checkpoint_folder(case.engine.target))
        found.append(case_id(case_key(case), digests[case.engine] + prompts, environment))
    return tuple(found)


def models_digest(engine: EngineSpec) -> str:
    """The weights by the content of their files; random weights are named by their seed."""
    from ddbench.models.weights import checkpoint_folder, published_digest

    folder = checkpoint_folder(engine.target)
    if folder is None:
        return f"random-{engine.seed}"
    if (published := published_digest(engine)) is not None:
        return published
    drafter = folder if engine.drafter is None else Path(engine.drafter)
    names = ("config.json", "tokenizer.json", "prompts.jsonl", "target.safetensors")
    files = [*(folder / name for name in names), drafter / "config.json", drafter / "drafter.safetensors"]
    digests = (sha256_of(file) if file.is_file() else "absent" for file in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


# ---------------------------------------------------------------------------------------------------------- execution


def execute(
    run: RunFolder, console: Console, command: Sequence[str] = WORKER, ceilings: Sequence[str] | None = None
) -> Tally:
    """Run every case that has no result yet; the tally counts all cases of the run. The caller holds the device.

    `ceilings` is the command that measures what the machine can do; without one that is left out.
    """
    leg = Leg(run, console, command)
    display = SweepDisplay(console, run.manifest.cases, len(leg.missing))
    with resumable(run), display, around([run], bool(leg.missing), console, ceilings):
        for one in leg.missing:
            leg.measure(one, display)
    tell_capture_faults(leg.tally, console)
    return leg.tally


def tell_capture_faults(tally: Tally, console: Console) -> None:
    """Why captures are missing, and what to do about it."""
    for text in tally.capture_faults():
        console.print(f"not captured: {escaped(text)}", highlight=False, soft_wrap=True)


class Leg:
    """A run being executed, case by case: what is done, what is missing, whose outputs the others are held against."""

    def __init__(
        self,
        run: RunFolder,
        console: Console,
        command: Sequence[str],
        capture: Sequence[str] = drive.WORKER,  # the command of a case's process under a profiler
    ) -> None:
        self.run = run
        self.tally = Tally()
        self._command = command
        self._capture = capture
        self._references: dict[str, str] = {}
        for fault in run.damaged().values():
            console.print(f"measured again: {escaped(fault)}", highlight=False, soft_wrap=True)
        self.missing = run.missing()
        if not self.missing:
            console.print("nothing is left to do: every case has a result", highlight=False)
        for one in run.manifest.case_ids:
            if one not in self.missing:
                result = run.result(one)
                self._note(one, result, drive.known_captures(run.case_folder(one), result.case))

    def measure(self, one: str, display: SweepDisplay) -> None:
        """Run a case and put it in its place."""
        case = self.run.case(one)
        display.started(case)
        job = Job(case_id=one, case=case, reference=self._references.get(reference_key(case)))
        captures: list[Capture] = []

        def afterwards(job_file: Path, folder: Path, case: Case) -> None:
            captures.extend(drive.capture_case(job_file, folder, case, display.phase, self._capture))

        result = run_case(self.run, job, display.phase, self._command, afterwards)
        display.finished(result, captures)
        self._note(one, result, captures)

    def _note(self, one: str, result: CaseResult, captures: Sequence[Capture]) -> None:
        self.tally.add(result, captures)
        if isinstance(result, OkResult) and result.case.arm == "ar" and result.case.engine.sampling == "greedy":
            outputs = self.run.case_folder(one) / "requests.parquet"
            self._references.setdefault(reference_key(result.case), str(outputs))
