"""Every identity holds on a consistent run and fails on the very fault that it is there for."""

import dataclasses
from collections.abc import Callable

import pandas as pd
import pytest

from ddbench.analysis.frames import RunFrames
from ddbench.analysis.identities import IDENTITIES, check_identities

Corrupt = Callable[[RunFrames], RunFrames]


def table(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Corrupt:
    """Replaces a table by a changed copy."""
    return lambda frames: dataclasses.replace(frames, **{name: change(getattr(frames, name).copy())})


def added(column: str, amount: int, row: int = 0) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[frame.index[row], column] += amount
        return frame

    return change


def scaled(column: str, factor: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**{column: frame[column] * factor})


def without_last_token(frame: pd.DataFrame) -> pd.DataFrame:
    frame.at[0, "tokens"] = frame.at[0, "tokens"][:-1]
    return frame


def drafted(column: str, value: int) -> Corrupt:
    """Sets the column in the rounds of the arms that draft a tree."""

    def change(frames: RunFrames) -> RunFrames:
        trees = frames.cases.loc[frames.cases["arm"] == "ddtree", "case_id"]
        rounds = frames.rounds
        changed = rounds.assign(**{column: rounds[column].where(~rounds["case_id"].isin(trees), value)})
        return dataclasses.replace(frames, rounds=changed)

    return change


def ran_something_else(frames: RunFrames) -> RunFrames:
    changed = {
        key: result.model_copy(update={"path_used": {"executor": "stage_graphs"}})
        for key, result in frames.results.items()
    }
    return dataclasses.replace(frames, results=changed)


CORRUPTIONS: dict[str, Corrupt] = {
    "tokens_add_up": table("requests", without_last_token),
    "rounds_counted": table("requests", added("num_rounds", 1)),
    "emitted_is_accepted_plus_one": table("rounds", added("num_emitted", -1)),
    "pooled_length": table("requests", added("num_rounds", 3)),
    "length_within_horizon": table("rounds", lambda frame: frame.assign(num_nodes=0)),
    "accepted_within_tree": drafted("num_accepted", 99),
    "nodes_within_budget": drafted("num_nodes", 33),
    "nodes_within_width": table("rounds", added("verify_width", -1)),
    "batch_is_its_rows": table("steps", added("batch_size", 1)),
    "pass_totals": table("passes", added("num_emitted", 1)),
    "times_in_order": table("requests", added("first_token_ns", -(10**9))),
    "occupancy": table("passes", lambda frame: frame.assign(wall_ns=frame["wall_ns"] // 2)),
    "tpot_is_round_over_length": table("requests", scaled("last_token_ns", 2)),
    "stages_within_round": table("stages", scaled("duration_ns", 2)),
    "captured_ops_add_up": table("device_ops", added("end_ns", 1)),
    "captured_stages_fit": table("device_ops", lambda frame: frame.assign(end_ns=3 * frame["end_ns"])),
    "path_is_what_was_asked": ran_something_else,
}


def cut_blocks(frames: RunFrames) -> RunFrames:
    """Blocks of 2: at most one drafted token, whatever the tree held."""
    changed = {
        key: result.model_copy(update={"models": result.models.model_copy(update={"block_size": 2})})
        for key, result in frames.results.items()
    }
    return dataclasses.replace(frames, results=changed)


def failing(frames: RunFrames) -> set[str]:
    return {row.identity for row in check_identities(frames) if not row.is_ok}


def test_all_identities_hold_on_a_consistent_run(synthetic_frames) -> None:
    rows = check_identities(synthetic_frames)
    assert [row for row in rows if not row.is_ok] == []
    assert {row.identity for row in rows} == IDENTITIES.keys()
    assert {row.case_id for row in rows} == set(synthetic_frames.cases["case_id"])


def test_every_identity_has_a_fault() -> None:
    assert CORRUPTIONS.keys() == IDENTITIES.keys()


@pytest.mark.parametrize("identity", CORRUPTIONS)
def test_identity_sees_its_fault(synthetic_frames, identity: str) -> None:
    assert identity in failing(CORRUPTIONS[identity](synthetic_frames))


def test_the_block_that_ran_limits_the_length(synthetic_frames) -> None:
    """Not the block that was asked for: by default none is."""
    assert all(result.case.engine.block_size is None for result in synthetic_frames.results.values())
    assert {"length_within_horizon", "accepted_within_tree"} <= failing(cut_blocks(synthetic_frames))


def test_a_miscounted_round_points_at_its_case_only(synthetic_frames) -> None:
    corrupt = CORRUPTIONS["batch_is_its_rows"](synthetic_frames)
    rows = [row for row in check_identities(corrupt) if not row.is_ok]
    assert {row.case_id for row in rows} == {synthetic_frames.steps["case_id"].iloc[0]}
    assert rows[0].detail == "1 rounds differ"


def test_gaps_between_rounds_are_tolerated_up_to_the_tolerance(synthetic_frames) -> None:
    """A twentieth more between the tokens is host work between rounds; a quarter is a clock that miscounts."""

    def stretched(factor: float) -> RunFrames:
        requests = synthetic_frames.requests
        spans = ((requests["last_token_ns"] - requests["first_token_ns"]) * factor).astype("int64")
        return dataclasses.replace(
            synthetic_frames, requests=requests.assign(last_token_ns=requests["first_token_ns"] + spans)
        )

    assert "tpot_is_round_over_length" not in failing(stretched(1.05))
    assert "tpot_is_round_over_length" in failing(stretched(1.25))
