"""How much some rounds had to do, against the mean of all: costs are known of the typical round alone.

From the rounds of the first clean pass, as `harness/observe.py` makes the typical round of them. Contexts grow: an
early round reads less than the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.profile.captured_case import CapturedCase
from ddbench.analysis.values import missing
from ddbench.records import NotMeasured


@dataclass(frozen=True, slots=True)
class Loads:
    """Of some rounds, each a mean over them."""

    context_share: float  # context rows of a round / those of the typical one
    tokens_share: float  # verified tokens of a round / those of the typical one
    width: float  # verified tokens per request


def loads_of(case: CapturedCase, steps: range) -> Loads | NotMeasured:
    """Of these steps as they ran clean."""
    rounds, all_steps = (_first_clean(frame) for frame in (case.rounds, case.steps))
    own = all_steps[np.isin(all_steps["step"].to_numpy(), list(steps))]
    if len(own) != len(steps):
        return missing("the counted rounds have no counterpart in the clean pass")
    rows = _context_rows(rounds, _first_clean(case.requests))
    chosen = rows[np.isin(rounds["step"].to_numpy(), list(steps))]
    typical = rows.sum() / len(all_steps)
    tokens = all_steps["batch_size"] * all_steps["verify_width"]
    if not typical:
        return missing("verify reads no context")
    return Loads(
        context_share=float(chosen.sum() / len(steps) / typical),
        tokens_share=float(tokens[own.index].mean() / tokens.mean()),
        width=float(np.average(own["verify_width"], weights=np.maximum(1, own["batch_size"]))),
    )


def _first_clean(frame: pd.DataFrame) -> pd.DataFrame:
    is_own = (frame["pass_name"] == "clean") & (frame["pass_index"] == 0)
    own = frame[is_own.to_numpy(dtype=bool)]
    return own.sort_values("step") if "step" in own else own


def _context_rows(rounds: pd.DataFrame, requests: pd.DataFrame) -> np.ndarray:
    """Rows in front of the root of each request's round: its prompt and what earlier rounds emitted."""
    prompts = rounds["request_id"].map(dict(zip(requests["request_id"], requests["num_prompt_tokens"], strict=True)))
    emitted = rounds.groupby("request_id", sort=False)["num_emitted"]
    before = emitted.cumsum() - rounds["num_emitted"]
    return (prompts + before).to_numpy(np.float64)
