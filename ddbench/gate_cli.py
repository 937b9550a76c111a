"""`ddbench gate`: the command itself, for runs and for single ops alike; imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ddbench.commands import Folder, named

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("gate", short_help="Hold a run against a baseline: pass or fail.")
@click.argument("run", type=Folder())
@click.option("--baseline", type=FILE, required=True, help="What `ddbench qualify` made.")
@click.option("--only", type=click.Choice(["counters", "timings"]), help="One kind of number.")
@click.option("--op", "op", metavar="OP[,OP...]", help="Of single ops: hold only these.")
@click.option("--threshold", "thresholds", metavar="METRIC=PCT", multiple=True, help="How much worse a time may get.")
@click.option("--confirm", metavar="RUN2", type=Folder(), help="A second run of the code: must show a slowdown too.")
@click.option("--undecided-passes", is_flag=True, help="Exit code 0 in place of 3.")
@click.option("--out", type=Folder(), help="Folder for gate.html, gate.md, gate.json, comment.md  [default: RUN/gate]")
@click.option("--junit", type=FILE, help="[default: junit.xml in that folder]")
@click.option("--summary", type=FILE, envvar="GITHUB_STEP_SUMMARY", show_envvar=True, help="Append the report to it.")
@click.option("--annotations/--no-annotations", envvar="GITHUB_ACTIONS", show_envvar=True, help="Print annotations.")
def gate_command(run: Path, baseline: Path, out: Path | None, annotations: bool, **options: Any) -> None:
    """Hold a run against a baseline: exact counters and outputs first, then paired times. The report is written before
    anything fails. RUN is a run folder, or one of `ddbench bench-ops`.

    Exit codes: 0 passed, 1 regression, 2 wrong request, 3 undecided, 4 not everything was measured, 5 not comparable.

    \b
    Examples:
      ddbench gate runs/RUN --baseline baseline.json --only counters
      ddbench gate runs/RUN --baseline baseline.json --threshold tpot_ms=5 --confirm runs/RUN2
      ddbench gate ops --baseline ops-baseline.json --threshold time_us=5
    """
    from rich.console import Console

    from ddbench.analysis.gate.policies import request_of
    from ddbench.opbench.gate.command import gated
    from ddbench.report.console import print_report
    from ddbench.report.gate_files import Places, lines, publish
    from ddbench.report.gate_report import gate_report

    ops = named("op", options["op"])
    request = request_of(options["only"], options["thresholds"], options["undecided_passes"], ops)
    result = gated(run, baseline, request, options["confirm"])
    published = publish(result, Places(out or run / "gate", options["junit"], options["summary"]))
    console = Console()
    print_report(gate_report(result), console)
    console.out("\n".join(lines(result, published, annotations)), highlight=False)
    raise SystemExit(published.exit_code(result))
