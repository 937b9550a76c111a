"""Table: routed experts that verify really touched, beside what a uniform router would; none where nobody counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddbench.records import ExpertUse, OkResult
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Table
from ddbench.report.profiled import number_cell, ratio_cell, share_cell, table

TITLE = "Routed experts touched"


def expert_tables(about: str, found: Iterable[tuple[Cell, OkResult]]) -> Iterator[Table]:
    """A row for every one whose experts were counted; `about`: what the first column names."""
    columns = (
        *cells.text_columns(about),
        Column("Touched", "per layer", "different experts held here that a round's tokens chose: mean over rounds"),
        Column("Held", "per layer", "experts whose weights are here"),
        Column("Uniform router", "per layer", "what it would be expected to touch for as many tokens"),
        Column("Of uniform", tip="touched / uniform router's; below 1 the tokens of a round choose alike"),
        Column("Spread", "% of mean", "standard deviation of that over rounds"),
        Column("Tokens", "per round", "verified ones, padding included"),
        Column("Rounds", tip="in which experts were counted, in a pass of its own"),
    )
    rows = [
        (
            label,
            number_cell(use.touched),
            number_cell(use.held),
            number_cell(use.uniform),
            ratio_cell(use.touched / use.uniform),
            share_cell(use.spread),
            number_cell(use.tokens),
            Cell(str(use.num_rounds), sort=use.num_rounds),
        )
        for label, result in found
        if isinstance(use := result.expert_use, ExpertUse)
    ]
    yield from table(TITLE, columns, rows)
