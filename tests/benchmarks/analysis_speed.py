"""Times the way from a run folder to HTML and Markdown: 1,000 cases, 1,000,000 rounds, wanted under 30 s and 2 GB.

    PYTHONPATH=. python tests/benchmarks/analysis_speed.py [NUM_CASES] [--blocks BLOCKS] [--run FOLDER]

Builds a synthetic run first, or takes the one in FOLDER if it is there; loading, analysis and rendering happen in a
process of their own, so that its peak memory is theirs. Prints wall and CPU seconds of every phase, the peak memory up
to its end, and how large the files are. Not a test: times on a shared machine prove nothing.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases, synthetic_ceilings
from ddbench.records import Ceilings
from ddbench.spec import Case

WANTED = "wanted for 1,000 cases and 1,000,000 rounds: under 30 s and 2 GB on two cores"


# --- the run ----------------------------------------------------------------------------------------------------------


def distinct_cases(num_cases: int, num_blocks: int) -> tuple[Case, ...]:
    """Blocks x concurrencies x arms x budgets, again with another seed until there are enough."""
    cases = make_cases(
        concurrencies=(1, 2, 4, 8, 16),
        node_budgets=(8, 16, 32, 64),
        num_requests=24,
        max_new_tokens=56,
        num_blocks=num_blocks,
    )
    found = []
    for index in range(num_cases):
        case = cases[index % len(cases)]
        found.append(case.model_copy(update={"engine": case.engine.model_copy(update={"seed": index // len(cases)})}))
    return tuple(found)


def build(folder: Path, num_cases: int, num_blocks: int) -> None:
    """Write the run next to its place and move it there, so that what is there is whole."""
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    cases = distinct_cases(num_cases, num_blocks)
    build_run(partial, SyntheticPlan(cases=cases, ceilings=ceilings(cases[0].engine.dtype)))
    partial.rename(folder)


def ceilings(dtype: str) -> Ceilings:
    """What a machine that does not exist can do."""
    reading = {("read", "hot"): 4e10, ("read", "cold"): 1e10, ("copy", "cold"): 1e10}
    amounts = {**reading, ("matmul", "none"): 1e11, ("launch", "none"): 2e3}
    return synthetic_ceilings(amounts, 0.05, ("before", "after"), cache_bytes=32_000_000, dtype=dtype)


# --- the measurement --------------------------------------------------------------------------------------------------


class Phases:
    """Wall and CPU seconds of every phase and the peak memory up to its end; a phase may hold others."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float, float]] = []
        self.depth = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        place, label, self.depth = len(self.rows), "  " * self.depth + name, self.depth + 1
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.depth -= 1
        self.rows.insert(place, (label, time.perf_counter() - wall, time.process_time() - cpu, peak_gigabytes()))

    def watch(self, place: Any, names: Iterable[str]) -> None:
        """Time functions of a module, or of a table of functions."""
        for name in names:
            table = place if isinstance(place, dict) else vars(place)
            table[name] = self._timed(name, table[name])

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with self.phase(name):
                return function(*arguments)

        return call

    def print(self, console: Console) -> None:
        table = Table("phase", "wall s", "CPU s", "peak GB", box=None)
        for name, wall, cpu, peak in self.rows:
            table.add_row(name, f"{wall:.2f}", f"{cpu:.2f}", f"{peak:.2f}")
        console.print(table)


def peak_gigabytes() -> float:
    """The most memory that this process ever had resident (Linux counts in kB, macOS in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1e-9 if sys.platform == "darwin" else 1e-6)


def measure(folder: Path, place: Path, console: Console) -> None:
    """`ddbench report --format html --format md` phase by phase."""
    phases = Phases()
    with phases.phase("all"):
        with phases.phase("import"):
            from ddbench.report import build, evidence, sections
        phases.watch(build, ("load_run", "merge_runs", "evidence_of", "make_report"))
        phases.watch(evidence, ("study_of", "variants_of", "measure_all", "check_identities"))
        phases.watch(sections.SECTIONS, list(sections.SECTIONS))
        phases.watch(build.FORMATS, list(build.FORMATS))
        build.build_report([folder], ("html", "md"), place)
    phases.print(console)
    for path in sorted(place.iterdir()):
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        console.print(f"{path.name}: {sum(file.stat().st_size for file in files) / 1e6:.2f} MB in {len(files)} files")


def count_rounds(folder: Path) -> int:
    """Rows of all rounds tables, from their footers."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("cases/*/rounds.parquet"))


def main(num_cases: int, num_blocks: int, folder: Path | None) -> None:
    """Build where needed, measure in another process."""
    with tempfile.TemporaryDirectory() as temporary:
        run = folder if folder is not None else Path(temporary) / "run"
        if not run.exists():
            started = time.perf_counter()
            build(run, num_cases, num_blocks)
            Console().print(f"built in {time.perf_counter() - started:.1f} s")
        Console().print(f"{len(list(run.glob('cases/*')))} cases, {count_rounds(run)} rounds")
        measuring = [sys.executable, __file__, "--measure", str(run), str(Path(temporary) / "report")]
        subprocess.run(measuring, check=True)
    Console().print(WANTED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Seconds and memory from a run folder to its report.")
    parser.add_argument("num_cases", nargs="?", type=int, default=1000)
    parser.add_argument("--blocks", type=int, default=1, help="interleaved repeats: cases of one setting")
    parser.add_argument("--run", type=Path, help="folder to build the run in, or that holds it from before")
    parser.add_argument("--measure", nargs=2, type=Path, metavar=("RUN", "PLACE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(*asked.measure, Console())
    else:
        main(asked.num_cases, asked.blocks, asked.run)
