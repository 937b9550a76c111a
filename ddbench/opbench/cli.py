"""`ddbench bench-ops`: the command itself; its body is `command.py`, imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddbench.commands import Folder, complain, named
from ddbench.errors import UserError

if TYPE_CHECKING:
    from ddbench.opbench.shapes import Tier

OUT = Path("ops")


@click.command("bench-ops", short_help="Time single ops at the product's shapes, beside torch's own.")
@click.option("--op", "ops", metavar="OP[,OP...]", help="Only these ops.")
@click.option("--shape", "shapes", metavar="SHAPE[,SHAPE...]", help="Only these shapes, of any selection.")
@click.option("--implementation", "implementations", metavar="NAME[,NAME...]", help="Only these implementations.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: a GPU where there is one.")
@click.option("--quick", is_flag=True, help="Tiny shapes, few samples; what a CPU does unless shapes are named.")
@click.option("--full", is_flag=True, help="Every context, tree size and batch.")
@click.option("--ours", is_flag=True, help="Only what a gate holds: our kernels, and torch's where we have none.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured and stop.")
@click.option(
    "--format",
    "formats",
    default="console,json,md,csv",
    show_default=True,
    help="Of console, json, md, csv; comma-separated.",
)
@click.option("--out", type=Folder(), default=OUT, show_default=True, help="Folder for ops.json, ops.md, ops.csv.")
def bench_ops_command(
    ops: str | None,
    shapes: str | None,
    implementations: str | None,
    device: str | None,
    quick: bool,
    full: bool,
    ours: bool,
    dry_run: bool,
    formats: str,
    out: Path,
) -> None:
    """Time every op at every shape with every implementation, cold and hot: each checked first, then set against the
    least time that this machine could do it in, by ceilings measured in the same run.

    Exit codes: 0 fine, 1 something of ours is incorrect, 2 wrong request, 4 nothing was measured, 130 interrupted (what
    was measured by then is kept).

    \b
    Examples:
      ddbench bench-ops
      ddbench bench-ops --op tree_attention,mla_tree_attention --full
      ddbench bench-ops --op materialize_kv --shape kimi-k2.6-t8 --implementation triton
      ddbench bench-ops --quick --device cpu --out ops
      ddbench bench-ops --ours --out now
    """
    from rich.console import Console

    from ddbench.harness.plan import default_device
    from ddbench.opbench.command import bench_ops, exit_code, show_points
    from ddbench.opbench.table import Selection

    if quick and full:
        raise UserError("--quick and --full ask for opposite things: leave one out")
    place = default_device(device)  # type: ignore[arg-type]
    is_quick = quick or (place == "cpu" and not full and shapes is None)
    tier: Tier = "quick" if is_quick else "full" if full else "default"
    words = (named("op", ops), named("shape", shapes), named("implementation", implementations))
    asked = Selection(tier, *words, ours_on=place if ours else None)
    console = Console()
    if dry_run:
        show_points(console, asked.points(), place)
        return
    file, paths = bench_ops(console, asked, place, out, named("format", formats))
    for path in paths:
        console.print(f"ops: {path}", highlight=False, soft_wrap=True)
    code = exit_code(file)
    if code == 130:
        complain("interrupted; what was measured by then is kept")
    raise SystemExit(code)
