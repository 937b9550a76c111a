"""Matching of two tools' kernels: rounds made of stages whose branches run side by side, with the truth known."""

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.analysis.ncu.profile import Kernel
from ddbench.analysis.ncu.stages import place
from ddbench.analysis.nsys.names import STAGE_NAMES

# A stage: pieces one after the other, each of branches side by side, each of kernels one after the other.
BRANCHES = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3), min_size=1, max_size=3)
ROUNDS = st.lists(st.tuples(st.sampled_from(STAGE_NAMES), st.lists(BRANCHES, max_size=3)), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(round_=ROUNDS, data=st.data())
def test_stages_are_right_however_branches_interleave(round_: list[tuple[str, list]], data: st.DataObject) -> None:
    """ncu: branch after branch, in any order of branches; nsys: any order that keeps that within each branch."""
    serial: list[tuple[str, str]] = []
    timed: list[tuple[str, str]] = []
    for stage, pieces in round_:
        for branches in pieces:
            serial += [(name, stage) for branch in data.draw(st.permutations(branches)) for name in branch]
            left = [list(branch) for branch in branches]
            while any(left):
                branch = data.draw(st.sampled_from([branch for branch in left if branch]))
                timed.append((branch.pop(0), stage))
    kernels = [Kernel(name, ("window", "round/4"), {}) for name, _ in serial]
    facts = {"kind": "kernel", "basis": "capture", "round": 4, "is_replayed": True}
    timeline = pd.DataFrame(
        [{"name": name, "stage": stage} | facts for name, stage in timed], columns=["name", "stage", *facts]
    )
    found, _ = place(kernels, timeline)
    assert [one.stage for one in found] == [stage for _, stage in serial]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(names=st.lists(st.sampled_from("abc"), min_size=2, max_size=12), data=st.data())
def test_rounds_of_other_kernels_are_never_matched(names: list[str], data: st.DataObject) -> None:
    """H38: one kernel more, fewer or another."""
    index = data.draw(st.integers(0, len(names) - 1))
    other = data.draw(st.sampled_from([[], ["d"], [names[index]] * 2]))
    changed = names[:index] + other + names[index + 1 :]
    facts = {"kind": "kernel", "stage": "verify", "basis": "capture", "round": 4, "is_replayed": True}
    timeline = pd.DataFrame([{"name": name} | facts for name in changed])
    found, notes = place([Kernel(name, ("round/4",), {}) for name in names], timeline)
    assert {one.stage for one in found} == {""}
    assert len(notes) == 1
