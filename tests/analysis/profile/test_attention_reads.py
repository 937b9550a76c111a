"""Readings of the context by the kernels of attention: against sums done row by row, and only where they bound them."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddbench.analysis.frames import RunFrames, load_run
from ddbench.analysis.profile.attention_reads import READERS, AttentionReads
from ddbench.analysis.profile.moved import kernel_bytes
from ddbench.analysis.profile.occupancy import kernel_occupancy
from ddbench.analysis.profile.profile import Profile, profiles_of
from ddbench.analysis.profile.rounds import loads_of
from ddbench.analysis.profile.sharing import Readings
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases, synthetic_ceilings
from ddbench.analysis.synthetic_captures import NCU_ROUNDS, CapturePlan
from ddbench.records import NotMeasured

KERNELS = Path(__file__).parents[3] / "kernels"
FIRST = 4  # round of the window
CONTEXT = 400_000  # bytes of one reading in the typical round
ATTENTION = "_mla_hopper_kernel"


@pytest.fixture(scope="module")
def frames_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunFrames]:
    def build(attention: str = "tree_triton", **plan: Any) -> RunFrames:
        folder = tmp_path_factory.mktemp("reads") / "run"
        about = {"arms": ("ddtree",), "concurrencies": (2,), "num_requests": 6, "max_new_tokens": 24}
        cases = make_cases(**about, attention=attention)
        ceilings = synthetic_ceilings({("read", "cold"): 1e10, ("matmul", "none"): 1e12, ("launch", "none"): 1000.0})
        run = SyntheticPlan(cases=cases, ceilings=ceilings, captures={0: CapturePlan(**plan)})
        return load_run(build_run(folder, run))

    return build


@pytest.fixture(scope="module")
def frames(frames_of) -> RunFrames:
    return frames_of()


def renamed(frames: RunFrames, read: float, old: str = "verify_kernel_0", timeline: bool = True) -> RunFrames:
    """One kernel of verify is attention, and reads so many bytes per round."""
    changed = {}
    for table in ("kernel_counters", "device_ops") if timeline else ("kernel_counters",):
        own = getattr(frames, table)
        changed[table] = own.assign(name=own["name"].astype(object).replace(old, ATTENTION))
    counters = changed["kernel_counters"]
    is_read = (counters["name"] == ATTENTION) & (counters["metric"] == "dram_read")
    changed["kernel_counters"] = counters.assign(value=counters["value"].where(~is_read, read))
    return dataclasses.replace(frames, **changed)


def with_costs(frames: RunFrames, **fields: Any) -> RunFrames:
    results = {
        key: result.model_copy(update={"stage_costs": tuple(c.model_copy(update=fields) for c in result.stage_costs)})
        for key, result in frames.results.items()
    }
    return dataclasses.replace(frames, results=results)


def with_capture(frames: RunFrames, **fields: Any) -> RunFrames:
    captures = {
        key: {**own, "ncu": own["ncu"].model_copy(update=fields)} for key, own in frames.captures.items()
    }  # fmt: skip
    return dataclasses.replace(frames, captures=captures)


def profile_of(frames: RunFrames) -> Profile:
    (found,) = profiles_of(frames).values()
    return found


def rows_by_hand(frames: RunFrames) -> tuple[dict[int, int], dict[int, int]]:
    """Step -> context rows of all its requests, and verified tokens, in the first clean pass; row by row."""
    requests, rounds, steps = (
        frame[(frame["pass_name"] == "clean").to_numpy() & (frame["pass_index"] == 0).to_numpy()]
        for frame in (frames.requests, frames.rounds, frames.steps)
    )
    length = {row.request_id: row.num_prompt_tokens for row in requests.itertuples()}
    context: dict[int, int] = {}
    for row in sorted(rounds.itertuples(), key=lambda row: row.step):
        context[row.step] = context.get(row.step, 0) + length[row.request_id]
        length[row.request_id] += row.num_emitted
    return context, {row.step: row.batch_size * row.verify_width for row in steps.itertuples()}


def test_every_kernel_of_the_attention_ops_is_known_as_reading_the_cache_or_not() -> None:
    """A new kernel has to be told apart here, else its readings would be missed."""
    found = set()
    for file in KERNELS.glob("*tree_attention_*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and "_kernel" in node.name}
    joining = {"_mla_combine_kernel", "_tree_attention_combine_kernel"}
    packing = {"_pack_ancestors_kernel", "_pack_visible_kernel"}
    assert found == READERS | joining | packing


def test_the_context_is_that_of_the_counted_rounds(frames) -> None:
    profile = profile_of(renamed(frames, 1e6))
    context, tokens = rows_by_hand(frames)
    steps = range(FIRST, FIRST + NCU_ROUNDS)
    share = sum(context[step] for step in steps) / NCU_ROUNDS / (sum(context.values()) / len(context))
    assert share != pytest.approx(1), "an early round reads less than the mean"
    found = profile.attention_reads
    assert isinstance(found, AttentionReads)
    assert found.context == pytest.approx(CONTEXT * share)
    loads = loads_of(profile.case, steps)
    assert not isinstance(loads, NotMeasured)
    mean = sum(tokens.values()) / len(tokens)
    assert loads.tokens_share == pytest.approx(sum(tokens[step] for step in steps) / NCU_ROUNDS / mean)


@pytest.mark.parametrize(
    ("contexts", "is_once", "is_shared"), [(1.04, True, True), (3.0, False, True), (17.5, False, False)]
)
def test_readings_are_bytes_over_one_reading(frames, contexts, is_once, is_shared) -> None:
    plain = profile_of(renamed(frames, 1.0)).attention_reads
    assert isinstance(plain, AttentionReads)
    found = profile_of(renamed(frames, contexts * plain.context)).attention_reads
    assert isinstance(found, AttentionReads)
    assert (found.times, found.num_launches, found.width) == (pytest.approx(contexts), 1.0, 17.0)
    assert (found.is_telling, found.is_once, found.is_shared) == (True, is_once, is_shared)


def test_queries_that_are_known_are_no_readings(frames) -> None:
    """Half of what was read were the queries of the round: what is left is one context."""
    known = with_costs(frames, query_bytes=CONTEXT)
    loads = loads_of(profile_of(known).case, range(FIRST, FIRST + NCU_ROUNDS))
    assert not isinstance(loads, NotMeasured)
    read = CONTEXT * (loads.context_share + loads.tokens_share)
    found = profile_of(renamed(known, read)).attention_reads
    assert isinstance(found, AttentionReads)
    assert found.times == pytest.approx(1)
    unknown = profile_of(renamed(frames, read)).attention_reads
    assert isinstance(unknown, AttentionReads)
    assert unknown.times == pytest.approx(read / (CONTEXT * loads.context_share))


def test_caches_that_were_kept_leave_no_bound(frames_of) -> None:
    found = profile_of(renamed(frames_of(cache="as it ran"), 0.3 * CONTEXT)).attention_reads
    assert isinstance(found, AttentionReads)
    assert not found.is_telling
    assert not found.is_contradicted, "a cache may have served the rest"


def test_less_than_one_reading_from_flushed_caches_is_no_answer(frames) -> None:
    found = profile_of(renamed(frames, 0.3 * CONTEXT)).attention_reads
    assert isinstance(found, AttentionReads)
    assert found.is_contradicted
    assert not found.is_telling


def test_what_was_not_counted_whole_gives_no_readings(frames, frames_of) -> None:
    """H38: no kernel known, one more in the timeline, one without a stage, an attention that others compute."""
    homeless = renamed(frames, 1e6)
    counters = homeless.kernel_counters
    is_own = (counters["name"] == ATTENTION).to_numpy()
    homeless = dataclasses.replace(
        homeless, kernel_counters=counters.assign(stage=counters["stage"].astype(object).mask(is_own, ""))
    )
    more = renamed(renamed(frames, 1e6), 1e6, old="verify_kernel_1")
    more = dataclasses.replace(more, kernel_counters=renamed(frames, 1e6).kernel_counters)
    for own, words in (
        (frames, "no attention kernel of verify was counted"),
        (more, "2 attention kernels of verify were counted where the timeline has 4"),
        (homeless, "of which no stage is known"),
        (renamed(frames_of(attention="dense_mask"), 1e6), "attention 'tree_triton' alone"),
    ):
        found = profile_of(own).attention_reads
        assert isinstance(found, NotMeasured)
        assert words in found.not_measured


def test_kernels_of_other_stages_are_no_readings_of_verify(frames) -> None:
    """The drafter attends with a kernel of the same name."""
    found = profile_of(renamed(frames, 1e6, old="draft_kernel_0")).attention_reads
    assert isinstance(found, NotMeasured)


# --- some kernels, by choice ------------------------------------------------------------------------------------------


def chosen(frames: RunFrames) -> RunFrames:
    """A capture that counted the bytes of attention alone."""
    own = renamed(frames, 1.5 * CONTEXT)
    rows = own.kernel_counters
    is_own = (rows["name"] == ATTENTION) & rows["metric"].isin(["time", "dram_read", "dram_write"])
    own = dataclasses.replace(own, kernel_counters=rows[is_own.to_numpy()])
    return with_capture(own, counted_kernels=ATTENTION, counters="bytes", num_left_out=40)


def test_some_kernels_are_no_stage_and_yet_tell_of_the_context(frames) -> None:
    profile = profile_of(chosen(frames))
    for one in profile.stage_bytes:
        assert isinstance(one.counted, NotMeasured)
        assert "by choice" in one.counted.not_measured
        assert one.moved == one.sampled
    assert isinstance(profile.attention_reads, AttentionReads)
    assert profile.sharing is profile.attention_reads
    kernels = kernel_bytes(profile.case)
    assert not isinstance(kernels, NotMeasured)
    assert [kernel.name for kernel in kernels] == [ATTENTION]


def test_counters_that_were_not_asked_for_are_missing_by_choice(frames) -> None:
    found = kernel_occupancy(profile_of(chosen(frames)).case)
    assert not isinstance(found, NotMeasured)
    (one,) = found
    assert isinstance(one.time_ns, float)
    for value in (one.achieved, one.theoretical, one.tensor):
        assert isinstance(value, NotMeasured)
        assert "by choice" in value.not_measured


def test_without_the_kernels_the_room_in_the_stage_tells(frames) -> None:
    profile = profile_of(frames)
    assert isinstance(profile.sharing, Readings)
    assert profile.sharing is profile.readings


def test_a_room_that_tells_is_preferred_to_kernels_that_do_not(frames) -> None:
    """Contradictory kernels beside a sum that leaves room for few."""
    profile = profile_of(renamed(frames, 0.3 * CONTEXT))
    assert isinstance(profile.readings, Readings)
    assert profile.readings.is_telling
    assert profile.sharing is profile.readings


def test_the_experiment_of_k26_counts_what_reads_the_context() -> None:
    """With the kernels of both attention ops, and with nothing else of a round."""
    text = (KERNELS.parent / "experiments" / "k26_captures.toml").read_text(encoding="utf-8")
    capture = tomllib.loads(text)["capture"]
    expression = re.compile(capture["counted_kernels"])
    assert {name for name in READERS if expression.fullmatch(name)} == READERS
    for name in (
        "_combine_kernel",
        "_linear_kernel",
        "_product_kernel",
        "_pack_ancestors_kernel",
        "_latent_rows_kernel",
    ):
        assert not expression.fullmatch(name)
    assert (capture["tools"], capture["counters"]) == (["nsys", "ncu"], "bytes")
