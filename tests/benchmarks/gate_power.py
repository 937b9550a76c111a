"""Prints how often the paired verdicts cry wolf and how often they see a change, on simulated runs (no clock involved).

    PYTHONPATH=. python tests/benchmarks/gate_power.py [NUM_RUNS]

Limits: minimum effect 2 %, no floors, alpha 5 %. Noise is per measurement, so a ratio of two has 1.4 times as much.
Controls are the same simulated machine with an analysis or an order of measuring that ignores it.
"""

import runpy
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import log1p
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console
from rich.table import Table

from ddbench.analysis.effects import Pair
from ddbench.analysis.paired import Cell, Limits, decide

SIMULATOR = Path(__file__).parent.parent / "analysis" / "simulate_pairs.py"
sim = SimpleNamespace(**runpy.run_path(str(SIMULATOR)))
BLOCKS = (6, 10, 20)
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10)
WORLDS = {
    "quiet": sim.World(),
    "drift + walk + ramp + slot": sim.HARD,
    "the same, orders drawn 7:3": replace(sim.HARD, order="drawn"),
    "heavy tails": sim.World(tails="heavy", slot=0.03),
    "skewed": sim.World(tails="skewed", slot=0.03),
    "slow mode + 20 %": sim.World(slow=0.2),
}
CONTROLS = {
    "paired t, always a first": (sim.alarms_of_pairs, "fixed"),
    "paired t, orders drawn 7:3": (sim.alarms_of_pairs, "drawn"),
    "paired t, in turns": (sim.alarms_of_pairs, "turns"),
    "Welch, in turns": (sim.alarms_without_pairing, "turns"),
    "Welch, first a then b": (sim.alarms_without_pairing, "sequential"),
    "medians 2 % apart, in turns": (sim.alarms_of_medians, "turns"),
    "medians 2 % apart, first a then b": (sim.alarms_of_medians, "sequential"),
}


def verdicts(all_pairs: Sequence[tuple[Pair, ...]]) -> Counter[str]:
    """Each run decided on its own."""
    limits = Limits(min_effect=0.02)
    return Counter(decide([Cell(0, pairs, "lower", limits)])[0].verdict for pairs in all_pairs)


def percent(count: float, total: float = 1) -> str:
    return f"{100 * count / total:.1f}"


def table(title: str, *columns: str) -> Table:
    found = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        found.add_column(column, justify="right" if index else "left")
    return found


def false_alarms(num_runs: int) -> Table:
    found = table("A/A, % of runs: called different / same", "machine", *(f"{blocks} blocks" for blocks in BLOCKS))
    for name, world in WORLDS.items():
        row = []
        for blocks in BLOCKS:
            counts = verdicts(sim.simulate(world, num_runs, blocks, seed=1).all_pairs())
            alarms = counts["faster"] + counts["slower"]
            row.append(f"{percent(alarms, num_runs)} / {percent(counts['same'], num_runs)}")
        found.add_row(name, *row)
    return found


def controls(num_runs: int) -> Table:
    title = "A/A controls on drift + walk + ramp + slot, % of runs called different"
    found = table(title, "analysis and order", *(f"{blocks} blocks" for blocks in BLOCKS))
    for name, (alarms, order) in CONTROLS.items():
        world = replace(sim.HARD, order=order)
        found.add_row(name, *(percent(alarms(sim.simulate(world, num_runs, blocks, seed=1))) for blocks in BLOCKS))
    return found


def detection(num_runs: int, noise: float, name: str) -> Table:
    title = f"Seen as slower, % of runs ({name}, noise {percent(noise)} %)"
    found = table(title, "slowdown", *(f"{blocks} blocks" for blocks in BLOCKS))
    for effect in EFFECTS:
        world = replace(WORLDS[name], effect=log1p(effect), noise=noise)
        counts = [verdicts(sim.simulate(world, num_runs, blocks, seed=2).all_pairs()) for blocks in BLOCKS]
        found.add_row(f"{100 * effect:.0f} %", *(percent(count["slower"], num_runs) for count in counts))
    return found


def main(num_runs: int) -> None:
    """Print all tables."""
    console = Console(width=100)
    for one in (
        false_alarms(num_runs),
        controls(num_runs),
        detection(num_runs, 0.02, "quiet"),
        detection(num_runs, 0.02 / 2**0.5, "quiet"),
        detection(num_runs, 0.02, "drift + walk + ramp + slot"),
        detection(num_runs, 0.02, "heavy tails"),
    ):
        console.print(one)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
