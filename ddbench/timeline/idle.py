"""Idle time of a window, piece by piece: its causes, as `analysis/profile/idle.py` judges them, and its rounds.

Between rounds and summary.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddbench.analysis.profile.idle import host_doings, idle_pieces
from ddbench.timeline.rounds import Rounds
from ddbench.timeline.window import Window


def idle_of(window: Window, rounds: Rounds) -> pd.DataFrame:
    """Pieces in order: start_ns, end_ns, cause, stage (of the host, where it was late), next_stage, place (of the
    round), is_between (the round had not begun on the device). Where there are several GPUs all of them are idle."""
    host = host_doings(window.calls, window.ranges, window.end_ns)
    pieces = idle_pieces(window.ops, host, window.end_ns)
    gap_end = pieces["gap_end_ns"].to_numpy()
    place = rounds.at(gap_end)
    begins = np.append(rounds.first_ns, np.iinfo(np.int64).max)[place]
    next_stage = np.append(window.ops["stage"].to_numpy(dtype=object), "")[pieces["after"].to_numpy()]
    own = pieces[["start_ns", "end_ns", "cause", "stage"]]
    return own.assign(next_stage=next_stage, place=place, is_between=gap_end <= begins)
