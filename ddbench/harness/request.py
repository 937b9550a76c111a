"""The words of a command line -> a plan: an experiment by name, changed as the words say, its device decided.

Between `cli.py` and `plan.py`; what is wrong with the words is a UserError that names the option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddbench.errors import UserError, did_you_mean, shown
from ddbench.harness import sweep
from ddbench.harness.plan import (
    Plan,
    check_axes_are_read,
    engine_capabilities,
    make_plan,
    resolve_device,
    with_overrides,
)
from ddbench.harness.preflight import check_requests
from ddbench.spec import ARMS, Axis, parse_axis


def planned(
    name: str,
    *,
    concurrency: str | None,
    sets: Sequence[str],
    arms: str | None,
    blocks: int | None,
    seed: int | None,
    device: Any,
    **engine: Any,
) -> Plan:
    """The plan of an experiment with the command line's changes."""
    experiment = sweep.find_experiment(name)
    axes = _axes(concurrency, sets)
    chosen = tuple(word.strip() for word in (arms or "").split(",") if word.strip())
    if arms is not None and not chosen:
        raise UserError(f"--arms names no arm: {did_you_mean('', ARMS)}")
    engine["device"] = resolve_device(device, experiment)
    changed = with_overrides(experiment, arms=chosen, axes=axes, engine=engine, num_blocks=blocks, seed=seed)
    plan = make_plan(changed, engine_capabilities())
    check_axes_are_read(changed, axes)
    check_requests(plan)
    return plan


def _axes(concurrency: str | None, sets: Sequence[str]) -> list[Axis]:
    texts = [*([f"concurrency={concurrency}"] if concurrency is not None else []), *sets]
    axes = []
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise UserError(f"--set: expected AXIS=VALUE[,VALUE...], got {shown(text)}")
        axes.append(parse_axis(name.strip(), values))
    return axes
