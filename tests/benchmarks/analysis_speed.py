"""Times the way from a run folder to HTML and Markdown: 100 cases, 100,000 rounds, wanted under 10 s on two cores.

    PYTHONPATH=. python tests/benchmarks/analysis_speed.py [NUM_CASES]

Builds a synthetic run in a temporary folder first; only loading, analysis and rendering are timed. Not a test: times on
a shared machine prove nothing.
"""

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from ddbench.analysis.frames import load_run
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.report.build import build_report
from ddbench.spec import Case


def distinct_cases(num_cases: int) -> tuple[Case, ...]:
    """Arms x concurrencies x budgets, again with another seed until there are enough."""
    cases = make_cases(concurrencies=(1, 2, 4, 8, 16), node_budgets=(8, 16, 32, 64), num_requests=24, max_new_tokens=56)
    found = []
    for index in range(num_cases):
        case = cases[index % len(cases)]
        found.append(case.model_copy(update={"engine": case.engine.model_copy(update={"seed": index // len(cases)})}))
    return tuple(found)


def main(num_cases: int) -> None:
    """Print cases, rounds and seconds."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        run = build_run(Path(folder) / "run", SyntheticPlan(cases=distinct_cases(num_cases)))
        console.print(f"{num_cases} cases, {len(load_run(run).rounds)} rounds")
        started, cpu = time.perf_counter(), time.process_time()
        build_report([run], ("html", "md"))
        console.print(f"{time.perf_counter() - started:.2f} s wall, {time.process_time() - cpu:.2f} s CPU")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
