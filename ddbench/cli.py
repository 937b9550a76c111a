"""The command line. Commands only translate: words in, one call, an exit code out; everything heavy is imported inside
the command, so that reports can be made where no torch is installed.

Exit codes: 0 fine; 1 a check failed; 2 the request is wrong; 4 nothing was measured, or a case failed or was incorrect;
130 interrupted, to be resumed; those of a gate are in `analysis/gate/rows.py`. Whatever is meant for the user is one
line on standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ddbench
from ddbench.commands import Commands, Folder, complain
from ddbench.errors import UserError, did_you_mean, shown

if TYPE_CHECKING:
    from rich.console import Console

    from ddbench.harness.plan import Plan
    from ddbench.harness.sweep import Tally

FORMATS = ("html", "md", "console", "summary")
RUNS = Path("runs")
FOLDER = Folder()
FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ddbench.__version__, prog_name="ddbench")
@click.pass_context
def main(context: click.Context) -> None:
    """A profiling and benchmark laboratory for the DFlash + DDTree speculative-decoding engine.

    \b
    Start with:
      ddbench list                  what there is
      ddbench check                 is it correct here
      ddbench sweep                 measure, and report
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _plan_options(command: Any) -> Any:
    """What `plan` and `sweep` share: how the experiment is narrowed, widened or placed."""
    for option in reversed(
        (
            click.option(
                "--concurrency", metavar="N[,N...]", help="Requests in flight; short for --set concurrency=..."
            ),
            click.option("--workload", metavar="NAME[,NAME...]", help="Prompt sets; short for --set prompts=..."),
            click.option("--set", "sets", metavar="AXIS=V[,V...]", multiple=True, help="Replace or add an axis."),
            click.option("--arms", metavar="ARM[,ARM...]", help="Only these arms."),
            click.option("--capture", metavar="PASS[,...]", help="stages, nsys, ncu, torch; or none. Ops are counted."),
            click.option("--target", help="Named shape, shipped pair, or checkpoint folder."),
            click.option("--drafter", help="Folder with a drafter checkpoint."),
            click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: a GPU where there is one."),
            click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="Of weights and activations."),
            click.option("--blocks", type=click.IntRange(1), help="Interleaved repeats of every case."),
            click.option("--seed", type=int, help="Order of the cases."),
        )
    ):
        command = option(command)
    return command


@main.command("list")
def list_command() -> None:
    """Arms, parts with their variants, targets, experiments and axes.

    \b
    Example:
      ddbench list
    """
    from ddbench.harness.show import listing

    for table in listing():
        _console().print(table)


@main.command("plan", short_help="Show what an experiment would run, and run nothing.")
@click.argument("experiment", default="default")
@_plan_options
def plan_command(experiment: str, **options: Any) -> None:
    """Show which cases an experiment would run, in order, and which it would skip and why.

    EXPERIMENT is a name from `ddbench list` or a .toml file; without one, `default`.

    \b
    Examples:
      ddbench plan
      ddbench plan tree_budget --concurrency 1 --set node_budget=16,32
    """
    _show_plan(_planned(experiment, **options), with_cases=True)


@main.command("sweep", short_help="Measure an experiment and write its report.")
@click.argument("experiment", required=False)
@_plan_options
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option("--resume", metavar="RUN", type=FOLDER, help="Go on with an interrupted run.")
@click.option("--against", metavar="CHECKOUT", type=FOLDER, help="Measure another checkout's code in turns with this.")
@click.option("--out", type=FOLDER, help="Where run folders go  [default: runs]")
@click.option("--no-report", is_flag=True, help="Measure only.")
def sweep_command(
    experiment: str | None, dry_run: bool, resume: Path | None, against: Path | None, no_report: bool, **options: Any
) -> None:
    """Run an experiment: every case in its own process, checked before it is timed; then write the report.

    EXPERIMENT is a name from `ddbench list` or a .toml file; without one, `default`.

    \b
    Examples:
      ddbench sweep
      ddbench sweep smoke --device cpu
      ddbench sweep tree_budget --concurrency 1,4,16 --set node_budget=16,64
      ddbench sweep my_question.toml --arms ar,chain,ddtree --blocks 6
      ddbench sweep --capture stages,nsys,ncu
      ddbench sweep --resume runs/20250101T120000Z-default-1a2b3c4d
      ddbench sweep --blocks 10 --against ../ddbench-before
    """
    out = options.pop("out")
    if resume is not None:
        given = {"set": options.pop("sets"), **options, "out": out}
        _refuse_with("--resume goes on with a run as it was planned", experiment, given, dry_run)
        _conclude(*_resumed(resume, against), has_report=not no_report)
    plan = _planned(experiment or "default", **options)
    _show_plan(plan, with_cases=dry_run)
    if not dry_run:
        _conclude(*_measured(plan, out or RUNS, against), has_report=not no_report)


@main.command("check", short_help="Prove the implementations correct on this machine.")
@click.option("--only", type=click.Choice(["ops", "parity", "distribution", "replay"]), help="One suite.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: a GPU where there is one.")
def check_command(only: str | None, device: Any) -> None:
    """Prove the implementations correct on this machine: ops, variants, sampling. Nothing is timed.

    \b
    Examples:
      ddbench check
      ddbench check --only parity --device cpu
    """
    from ddbench.harness.check import run_checks
    from ddbench.harness.plan import default_device
    from ddbench.harness.show import show_checks

    rows = show_checks(_console(), run_checks(only, default_device(device)))
    raise SystemExit(1 if any(row.status == "failed" for row in rows) else 0)


@main.command("report")
@click.argument("runs", nargs=-1, required=True, type=FOLDER, metavar="RUN [RUN...]")
@click.option(
    "--format", "formats", default="html,md", show_default=True, help="Of html, md, console, summary; comma-separated."
)
@click.option("--out", type=FOLDER, help="Folder for the files [the run's own].")
def report_command(runs: tuple[Path, ...], formats: str, out: Path | None) -> None:
    """Write the report of one run, or of several side by side.

    \b
    Examples:
      ddbench report runs/20250101T120000Z-default-1a2b3c4d
      ddbench report runs/before runs/after --format html --out comparison
    """
    from ddbench.harness.store import check_run_folder
    from ddbench.report.build import build_report

    chosen = _formats(formats)
    for run in runs:
        check_run_folder(run)
    _name_reports(build_report(list(runs), chosen, out))


@main.command("qualify", short_help="Measure one code's own noise and counters: a baseline for the gate.")
@click.argument("experiment", required=False)
@_plan_options
@click.option("--ops", "has_ops", is_flag=True, help="Of single ops (ddbench bench-ops) instead of an experiment.")
@click.option("--op", "op", metavar="OP[,OP...]", help="With --ops: only these.")
@click.option("--from", "runs", metavar="RUN", type=FOLDER, multiple=True, help="Finished runs instead of a new one.")
@click.option("--runs", "folder", type=FOLDER, help="Where the run folder goes  [default: runs]")
@click.option("--out", "file", type=FILE, required=True, help="The baseline, a JSON file.")
def qualify_command(
    experiment: str | None, has_ops: bool, runs: tuple[Path, ...], folder: Path | None, file: Path, **options: Any
) -> None:
    """Run an experiment 12 times in turns (--blocks), all the same code, and keep it as a baseline: exact counters,
    outputs, times, and the noise floor under which no difference means anything.

    With --from, the baseline is made of finished runs of the same code. Several of them also tell what differs
    between runs. With --ops it is of single ops: 5 repeats of `bench-ops --ours`, each in a process of its own.

    \b
    Examples:
      ddbench qualify gate --out baseline.json
      ddbench qualify --from runs/RUN --from runs/OTHER --out baseline.json
      ddbench qualify --ops --out ops.json
    """
    from ddbench.analysis.gate.baseline import baseline_of_folders, write_baseline
    from ddbench.opbench.gate.command import hold_ops, qualify_ops
    from ddbench.report.console import print_report
    from ddbench.report.floors import baseline_report

    is_about_ops = has_ops or hold_ops(runs)
    if runs:
        given = {"set": options.pop("sets"), **options, "runs": folder}
        _refuse_with("--from takes finished runs as they are", experiment, given)
    elif is_about_ops:
        asked = {name: options.pop(name) for name in ("op", "device", "blocks")}
        _refuse_with("--ops repeats `ddbench bench-ops`", experiment, {"set": options.pop("sets"), **options})
    elif options.pop("op") is not None:
        raise UserError("--op is about single ops: say --ops too")
    if is_about_ops:
        qualify_ops(_console(), runs, folder or RUNS, file, **({} if runs else asked))
        return
    baseline = baseline_of_folders(runs or _repeats(experiment or "default", folder or RUNS, file, **options))
    write_baseline(file, baseline)
    print_report(baseline_report(baseline), _console())
    click.echo(f"baseline: {file}")


@main.command("compare", short_help="Is one run, arm or variant slower than another, and why?")
@click.argument("runs", nargs=-1, required=True, type=FOLDER, metavar="A [B]")
@click.option("--arms", metavar="BASE,ARM", help="Two arms of one run instead of two runs.")
@click.option("--where", metavar="FIELD=BASE,VALUE", help="Two variants of one run: tree_build=heap,device.")
@click.option("--metrics", metavar="NAME[,NAME...]", help="Only these decide  [output_tok_per_s,tpot_ms,ttft_ms].")
@click.option("--min-effect", type=click.FloatRange(0, 100), default=2.0, show_default=True, help="Percent that count.")
@click.option("--allow", metavar="WHAT[,WHAT...]", help="What is meant to differ: libraries, driver, weights, ...")
@click.option("--floors", metavar="BASELINE", type=FILE, help="Noise floors for runs that did not take turns.")
@click.option(
    "--format", "formats", default="console", show_default=True, help="Of html, md, console, json; comma-separated."
)
@click.option("--out", type=FOLDER, help="Folder for the files.")
def compare_command(runs: tuple[Path, ...], formats: str, out: Path | None, **options: Any) -> None:
    """Compare B (after) with A (before): faster, slower, same or undecided, and what made the difference.

    A and B are run folders, measured in turns with `ddbench sweep --against`; or two arms, or variants, of one run.
    Exit code: 0 nothing is slower, 1 something is, 3 it cannot be told, 4 not measured, 5 nothing may be compared.

    \b
    Examples:
      ddbench compare runs/before runs/after
      ddbench compare runs/before runs/after --format console,html,json --out comparison
      ddbench compare runs/after --arms chain,ddtree
      ddbench compare runs/after --where tree_build=heap,device --metrics tpot_ms
    """
    from ddbench.harness.store import check_run_folder
    from ddbench.report.comparison_files import check_formats, compare_folders, publish

    check_formats(_words(formats), out)
    for run in runs:
        check_run_folder(run)
    for name in ("arms", "metrics", "allow"):
        options[name] = _named(name, options[name])
    options["min_effect"] /= 100
    found = compare_folders(runs, **options)
    files, text = publish(found, _words(formats), out)
    click.echo(text + "".join(f"comparison: {file}\n" for file in files if file.suffix != ".svg"), nl=False)
    raise SystemExit(found.exit_code)


# --------------------------------------------------------------------------------------------------- behind commands


def _console() -> Console:
    from rich.console import Console

    return Console()


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _named(option: str, text: str | None) -> tuple[str, ...]:
    """The words of an option, which has some where it is given."""
    words = _words(text)
    if text is not None and not words:
        raise UserError(f"--{option} names nothing: leave it out, or give a name")
    return words


def _formats(text: str) -> tuple[str, ...]:
    formats = _words(text)
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"unknown format {shown(name)}: {did_you_mean(name, FORMATS)}")
    if not formats:
        raise UserError(f"--format names no format: {', '.join(FORMATS)}")
    return formats


def _name_reports(files: Sequence[Path]) -> None:
    for file in files:
        if file.suffix in (".html", ".md"):
            click.echo(f"report: {file}")


def _planned(experiment: str, **options: Any) -> Plan:
    from ddbench.harness.request import planned

    return planned(experiment, **options)


def _show_plan(plan: Plan, with_cases: bool) -> None:
    from ddbench.harness.show import show_plan

    show_plan(_console(), plan, with_cases)


def _refuse_with(words: str, experiment: str | None, options: dict[str, Any], dry_run: bool = False) -> None:
    given = [f"--{name}" for name, value in options.items() if value not in (None, ())]
    given += ["EXPERIMENT"] * bool(experiment) + ["--dry-run"] * dry_run
    if given:
        raise UserError(f"{words}: leave out {', '.join(given)}")


def _measured(plan: Plan, out: Path, checkout: Path | None) -> tuple[Tally, Path, Path | None]:
    """A new run; with another checkout's run before it, where they ran in turns."""
    from ddbench.harness import against, sweep

    if checkout is None:
        run, tally = sweep.run_plan(plan, out, _console())
        return tally, run.path, None
    turns = against.run_in_turns(plan, out, checkout, _console())
    return turns.tally, turns.after.path, turns.before.path


def _resumed(path: Path, checkout: Path | None) -> tuple[Tally, Path, Path | None]:
    from ddbench.harness import against, sweep

    if checkout is None:
        run, tally = sweep.resume(path, _console())
        return tally, run.path, None
    turns = against.resume_in_turns(path, checkout, _console())
    return turns.tally, turns.after.path, turns.before.path


def _repeats(experiment: str, folder: Path, file: Path, *, blocks: int | None, **options: Any) -> tuple[Path]:
    from ddbench.harness.qualify import NUM_BLOCKS, check_blocks, run_repeats

    plan = check_blocks(_planned(experiment, blocks=blocks or NUM_BLOCKS, **options))
    _show_plan(plan, with_cases=False)
    return (run_repeats(plan, folder, file, _console()).path,)


def _conclude(tally: Tally, path: Path, before: Path | None, has_report: bool) -> None:
    """Publish first, fail last."""
    from ddbench.harness.interrupt import SweepInterrupted

    click.echo(f"{tally}; run: {path}" + (f"; in turns with: {before}" if before else ""))
    if before is not None:
        click.echo(f"compare: ddbench compare {before} {path}")
    if has_report and tally.counts["ok"]:
        try:
            _print_and_write_report(path)
        except KeyboardInterrupt as error:
            raise SweepInterrupted(f"interrupted; every case is kept. The report: ddbench report {path}") from error
    if tally.exit_code:
        again = f"ddbench sweep --resume {path}" + (" --against CHECKOUT" if before else "")
        failed = f"; failed ones run again with: {again}" if tally.counts["failed"] else ""
        complain(f"{tally.num_bad} of {sum(tally.counts.values())} cases were not measured and correct{failed}")
    raise SystemExit(tally.exit_code)


def _print_and_write_report(path: Path) -> None:
    from ddbench.report.build import build_report

    _name_reports(build_report([path], ("summary", "html", "md"), None))
