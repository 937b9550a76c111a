"""The stages of a speculative round: the only spelling of their names for NVTX, timers, columns and plots."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """In the order in which a round runs them; PREFILL happens once per request, before its first round."""

    PREFILL = "prefill"
    DRAFT = "draft"
    TREE_BUILD = "tree_build"
    TREE_COMPILE = "tree_compile"
    VERIFY = "verify"
    ACCEPT = "accept"
    COMMIT = "commit"
    MATERIALIZE = "materialize"


ROUND_STAGES: tuple[Stage, ...] = tuple(stage for stage in Stage if stage is not Stage.PREFILL)
