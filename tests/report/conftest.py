"""Run folders for the report tests, built once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases, synthetic_ceilings
from ddbench.analysis.synthetic_captures import CapturePlan
from ddbench.captured import CaptureFault
from ddbench.records import Ceilings, SkippedCase
from ddbench.spec import make_axis

HOSTILE = "<script>alert('x')</script>|`a`*b*_c_[d](e) & \"f\"\n# g $h$ [red]i[/red]"

NO_COUNTERS = CaptureFault(
    reason="no_permission", what="counters are for administrators only (ERR_NVGPUCTRPERM)", cure="run as root"
)


@pytest.fixture(scope="session")
def hostile() -> str:
    """Text that breaks HTML, Markdown, matplotlib's mathtext and the console, where it is not escaped."""
    return HOSTILE


def made_up_ceilings() -> Ceilings:
    """Before and after: 100 GB/s hot, 10 GB/s cold, 1 Tflop/s, launches of 1.5 us; a cache of 32 MB."""
    amounts = {
        ("read", "hot"): 100e9,
        ("read", "cold"): 10e9,
        ("copy", "cold"): 9e9,
        ("matmul", "none"): 1e12,
        ("launch", "none"): 1500.0,
    }
    return synthetic_ceilings(amounts, spread=0.1, moments=("before", "after"), cache_bytes=32_000_000)


@pytest.fixture(scope="session")
def edited() -> Callable[[Path, int, Callable[[dict[str, Any]], None]], None]:
    """Changes the stored result of one case."""

    def edit(run: Path, index: int, change: Callable[[dict[str, Any]], None]) -> None:
        (path,) = (run / "cases").glob(f"{index:04d}-*/result.json")
        data = json.loads(path.read_text(encoding="utf-8"))
        change(data["result"])
        path.write_text(json.dumps(data), encoding="utf-8")

    return edit


@pytest.fixture(scope="session")
def some_ceilings() -> Ceilings:
    return made_up_ceilings()


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arms, budgets, variants, and one case of every kind that did not deliver."""
    small = {"num_requests": 6, "max_new_tokens": 24}
    base = make_cases(concurrencies=(1, 4), node_budgets=(8, 16, 32), **small)
    changed = make_cases(arms=("ddtree",), concurrencies=(1,), node_budgets=(16,), materialize="sequential", **small)
    plan = SyntheticPlan(
        name="full",
        cases=(*base, *changed, *make_cases(arms=("chain",), concurrencies=(8, 16), **small)),
        failed=(3,),
        incorrect=(9,),
        not_run=(len(base) + 2,),
        skipped=(SkippedCase(arm="ddtree", label="ddtree attention=tree_triton c=1", reason="needs a CUDA device"),),
        ceilings=made_up_ceilings(),
        captures={
            2: CapturePlan(),
            5: CapturePlan(faults={"ncu": NO_COUNTERS}),
            6: CapturePlan(is_graph=True, tools=("nsys",), lost_replays=1),
        },
        experiment={
            "engine": base[-1].engine,
            "axes": (make_axis("node_budget", (8, 16, 32)),),
            "ablate": (make_axis("materialize", ("sequential",)),),
        },
    )
    return build_run(tmp_path_factory.mktemp("full") / "run", plan)


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hostile text wherever a run can hold text of others: labels, reasons, the question."""
    cases = make_cases(concurrencies=(1,), num_requests=4, max_new_tokens=12, materialize=HOSTILE)
    plan = SyntheticPlan(
        name="hostile",
        question=HOSTILE,
        cases=cases,
        incorrect=(1,),
        skipped=(SkippedCase(arm="ddtree", label=HOSTILE, reason=HOSTILE),),
        captures={
            2: CapturePlan(prefix=HOSTILE, notes=(HOSTILE,), unattributed=1),
            3: CapturePlan(faults={"nsys": CaptureFault(reason="crash", what=HOSTILE, cure=HOSTILE)}),
        },
    )
    return build_run(tmp_path_factory.mktemp("hostile") / "run", plan)


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Path]:
    """Builds a small run of its own."""

    def build(name: str = "own", **plan: Any) -> Path:
        return build_run(tmp_path / name, SyntheticPlan(name=name, **plan))

    return build
