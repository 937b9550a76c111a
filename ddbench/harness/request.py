"""The words of a command line -> a plan: an experiment by name, changed as the words say, its device decided.

Between `cli.py` and `plan.py`; what is wrong with the words is a UserError that names the option.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, get_args

from ddbench.errors import UserError, did_you_mean, shown
from ddbench.experiment_file import find_experiment
from ddbench.harness.plan import (
    Plan,
    check_axes_are_read,
    engine_capabilities,
    make_plan,
    resolve_device,
    with_overrides,
)
from ddbench.harness.preflight import check_requests
from ddbench.spec import ARMS, Axis, Tool, make_axis, parse_axis

NO_CAPTURE = "none"
CAPTURES = (NO_CAPTURE, "stages", *get_args(Tool))  # what `--capture` may name


def planned(
    name: str,
    *,
    concurrency: str | None,
    workload: str | None = None,
    sets: Sequence[str],
    arms: str | None,
    blocks: int | None,
    seed: int | None,
    device: Any,
    capture: str | None = None,
    **engine: Any,
) -> Plan:
    """The plan of an experiment with the command line's changes."""
    experiment = find_experiment(name)
    axes = _axes(concurrency, workload, sets)
    axes += _capture_axes(capture, axes)
    chosen = tuple(word.strip() for word in (arms or "").split(",") if word.strip())
    if arms is not None and not chosen:
        raise UserError(f"--arms names no arm: {did_you_mean('', ARMS)}")
    engine["device"] = resolve_device(device, experiment)
    changed = with_overrides(experiment, arms=chosen, axes=axes, engine=engine, num_blocks=blocks, seed=seed)
    plan = make_plan(changed, engine_capabilities())
    check_axes_are_read(changed, axes)
    check_requests(plan)
    return plan


def _capture_axes(text: str | None, others: Sequence[Axis]) -> list[Axis]:
    """`stages,nsys`: all passes beside the clean one, as the two axes that they are; `none` of them."""
    if text is None:
        return []
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UserError(f"--capture names nothing: {did_you_mean('', CAPTURES)}")
    for word in words:
        if word not in CAPTURES:
            raise UserError(f"--capture: {_no_capture(word)}")
    if NO_CAPTURE in words and len(set(words)) > 1:
        raise UserError(f"--capture: 'none' stands alone, got {shown(text)}")
    for name in ("mode", "tools"):
        if any(axis.name == name for axis in others):
            raise UserError(f"--capture and --set {name}=... are both given: keep one of them")
    mode = "stages" if "stages" in words else "none"
    tools = tuple(dict.fromkeys(word for word in words if word in get_args(Tool)))
    return [make_axis("mode", (mode,)), make_axis("tools", (tools,))]


def _no_capture(word: str) -> str:
    if word == "counters":
        return "'counters' is no choice: ops are counted in every case; counters of the GPU are read by 'ncu'"
    return f"unknown capture {shown(word)}: {did_you_mean(word, CAPTURES)}"


def _axes(concurrency: str | None, workload: str | None, sets: Sequence[str]) -> list[Axis]:
    short = {"concurrency": concurrency, "prompts": workload}
    texts = [*(f"{name}={values}" for name, values in short.items() if values is not None), *sets]
    axes = []
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise UserError(f"--set: expected AXIS=VALUE[,VALUE...], got {shown(text)}")
        _refuse_several(text)
        axes.append(parse_axis(name.strip(), values))
    return axes


def _refuse_several(text: str) -> None:
    """`a=1,b=2`: a value that looks like an axis of its own."""
    apart: list[str] = []
    for part in text.split(","):
        is_axis = part.partition("=")[0].strip().isidentifier() and "=" in part
        apart = [*apart, part.strip()] if is_axis or not apart else [*apart[:-1], f"{apart[-1]},{part.strip()}"]
    if len(apart) > 1:
        instead = " ".join(f"--set {shlex.quote(one)}" for one in apart)
        raise UserError(f"--set {shown(text)} holds {len(apart)} axes: each takes its own: {instead}")
