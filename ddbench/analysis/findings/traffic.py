"""The part of Q1 that captures answer: bytes that were counted, or sampled, in place of what times let one infer.

Between the profiles of captured cases and `bandwidth.py`. A context is shared if the kernels of attention read hardly
more than one of it, or if the bytes of verify leave no room for a second reading; bandwidth is wasted where a stage
moves far more than its fewest bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddbench import units
from ddbench.analysis.findings.answers import Number, Part, Verdict, captured, named, plain
from ddbench.analysis.findings.basis import Basis, has_drafter
from ddbench.analysis.profile.attention_reads import AttentionReads
from ddbench.analysis.profile.captured_case import ToolPass
from ddbench.analysis.profile.moved import StageBytes
from ddbench.analysis.profile.profile import Profile
from ddbench.analysis.profile.sharing import Readings
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

WASTE = 2.0  # a stage that moves more than this many times its fewest bytes wastes bandwidth
SHOWN = 2  # wasteful stages that a card names
MATTERS = 0.05  # share of a round below which a stage is left out of the answer


@dataclass(frozen=True)
class Traffic:
    """What a capture says about the bytes of one setting."""

    setting: Setting
    profile: Profile
    stages: tuple[StageBytes, ...]  # of a known waste, that take a part of the round worth speaking of

    @property
    def sharing(self) -> AttentionReads | Readings | NotMeasured:
        return self.profile.sharing

    @property
    def wasteful(self) -> list[StageBytes]:
        """The most wasted bytes first; samples have to tell it in spite of their whole percents."""
        found = [one for one in self.stages if is_wasteful(one)]
        return sorted(found, key=lambda one: _number(one.fewest) - _number(one.moved))

    @property
    def is_counted(self) -> bool:
        """Of the stages' bytes."""
        return any(one.is_counted for one in self.stages)

    @property
    def sources(self) -> set[str]:
        """How what is told of the setting was measured."""
        direct = {"counted"} if isinstance(self.sharing, AttentionReads) else set()
        return direct | {"counted" if one.is_counted else "sampled" for one in self.stages}


def is_wasteful(one: StageBytes) -> bool:
    """Of a known waste, and beyond what the samples' whole percents leave open."""
    if isinstance(one.waste, NotMeasured):
        return False
    return _number(one.moved) - one.error > WASTE * _number(one.fewest)


def traffic(basis: Basis, concurrency: int) -> Traffic | None:
    """Of the best arm with a drafter if its bytes were measured, else of the first other one; None: of none."""
    best = basis.best_drafter(concurrency)
    others = [s for s in basis.study.at(concurrency) if basis.is_trusted(s) and has_drafter(s) and s is not best]
    for setting in [best, *others] if best is not None else others:
        profile = basis.profiles.get(setting.key)
        if profile is not None and profile.has_bytes:
            own = (one for one in profile.stage_bytes if one.stage and not isinstance(one.waste, NotMeasured))
            known = tuple(one for one in own if _matters(basis, setting, one))
            if known or not isinstance(profile.attention_reads, NotMeasured):
                return Traffic(setting, profile, known)
    return None


def _matters(basis: Basis, setting: Setting, one: StageBytes) -> bool:
    """Without an attributed pass every stage does."""
    share = basis.share(setting, one.stage)
    return not isinstance(share, Estimate) or share.value >= MATTERS


def traffic_part(concurrency: int, found: Traffic) -> Part:
    """Sharing and waste in one."""
    sharing, wasteful = _sharing(found.sharing), found.wasteful
    verdict: Verdict = sharing.verdict
    how = "counted" if found.is_counted else "sampled"
    unsure = _of_experts(found.stages)
    sentences = [sharing.sentence] if sharing.sentence else []
    if wasteful:
        stages = [f"{plain(one.stage)} ({_times(one)})" for one in wasteful]
        sentences.append(f"bandwidth is wasted in {units.listed(stages)}: bytes moved, {how}, over the fewest{unsure}")
        shown = units.listed([f"{plain(one.stage)} {_times(one)}" for one in wasteful[:SHOWN]])
        brief = f"{sharing.brief + '; ' if sharing.brief else ''}{shown} the fewest bytes, {how}"
        verdict = "mixed" if sharing.verdict == "yes" else "no"
    elif not found.stages:
        brief = sharing.brief
    else:
        most = max(found.stages, key=_waste)
        sentences.append(f"no stage that matters moves more than {_times(most)} its fewest bytes, as {how}{unsure}")
        brief = f"{sharing.brief + '; ' if sharing.brief else ''}at most {_times(most)} the fewest bytes, {how}"
    return Part(verdict, f"At concurrency {concurrency}: {'; '.join(sentences)}.", f"c={concurrency}: {brief}")


def _of_experts(stages: Sequence[StageBytes]) -> str:
    """What the fewest bytes rest on, as an aside."""
    if any(not isinstance(one.expected, NotMeasured) and one.expected > 0 for one in stages):
        return " (of routed experts these are an expectation)"
    num_rounds = max((one.expert_rounds for one in stages), default=0)
    return f" (the routed experts among these counted in {num_rounds} rounds)" if num_rounds else ""


def _sharing(found: AttentionReads | Readings | NotMeasured) -> Part:
    if isinstance(found, NotMeasured):
        return Part("not_measured", "")
    return _by_kernels(found) if isinstance(found, AttentionReads) else _by_room(found)


def _by_kernels(found: AttentionReads) -> Part:
    times = f"{units.significant(found.times, 3)} times the context"
    read = f"the attention kernels of verify read {times} from device memory"
    if not found.is_flushed:
        text = f"{read}, with caches left as they were: these may have served any more of it, nothing is excluded"
        return Part("undecided", text, "caches kept: re-reading is not excluded")
    if found.is_contradicted:
        text = f"{read}, after caches were flushed: less than one reading cannot be, so nothing rests on it"
        return Part("undecided", text, "counted bytes make no sense")
    tokens = f"{units.significant(found.width, 3)} tokens"
    besides = "its queries taken off" if found.queries else "queries included"
    read += f", {besides}, at most so many readings by {tokens}"
    if found.is_once:
        return Part("yes", f"{read}: memory is asked for it once, and it is shared", "context read once")
    if found.is_shared:
        return Part("undecided", f"{read}: shared, perhaps not by all", "context shared, perhaps not by all")
    return Part("undecided", f"{read}: a reading per token is not excluded", "re-reading is not excluded")


def _by_room(found: Readings) -> Part:
    room = f"its bytes have room for {units.significant(found.most, 2)} readings of the context by "
    room += f"{units.significant(found.width, 3)} tokens"
    moved = f"verify moved {units.byte_count(found.moved)} where {units.byte_count(found.fewest)} are the fewest"
    if not isinstance(found.expected, NotMeasured) and found.expected:
        moved += f", {units.byte_count(found.expected)} of them by an expectation of how many experts are touched"
    if found.expert_rounds:
        moved += f", routed experts as counted in {found.expert_rounds} rounds"
    if found.is_contradicted:
        return Part("undecided", f"{moved}: {contradiction(found)}", "cannot tell: moved less than the fewest bytes")
    if not found.is_visible:
        text = f"the context ({units.byte_count(found.context)}) is too small beside these: even a reading per token "
        return Part("undecided", f"{moved}; {text}would not show", "context too small to tell")
    if found.is_once:
        return Part("yes", f"{moved}: {room}: it is read once and shared", "context read once")
    if found.is_shared:
        return Part("undecided", f"{moved}: {room}: shared, perhaps not by all", "context shared, perhaps not by all")
    return Part("undecided", f"{moved}: {room}: a reading per token is not excluded", "re-reading is not excluded")


def contradiction(found: Readings) -> str:
    """Why nothing is told by bytes that are fewer than the fewest."""
    if isinstance(found.expected, NotMeasured):
        return (
            "cannot tell, as verify moved less than its fewest bytes, which for a target of routed experts rest on an "
            "expectation of how many are touched"
        )
    return "cannot tell, as verify moved less than it surely must: the measurement or the fewest bytes are wrong"


def traffic_numbers(found: Traffic) -> Iterator[Number]:
    """Bytes of the stages that matter, the readings, and whether the two sources agree."""
    about = named(found.setting)
    for one in found.stages:
        stage, rounds = plain(one.stage), _source(found, one).num_rounds
        yield Number(f"{stage}: bytes moved per round", captured(_number(one.moved), "bytes", rounds), about)
        yield Number(f"{stage}: bytes moved over its fewest", captured(_waste(one), "x", rounds), about)
        if isinstance(one.agreement, float):
            yield Number(f"{stage}: sampled bytes over counted ones", captured(one.agreement, "x", rounds), about)
    yield from _sharing_numbers(found, about)


def _sharing_numbers(found: Traffic, about: str) -> Iterator[Number]:
    """Of the kernels whenever they were counted; of the room in the stage's bytes unless these are contradictory."""
    direct, room = found.profile.attention_reads, found.profile.readings
    counted = found.profile.case.counted
    if not isinstance(direct, NotMeasured) and not isinstance(counted, NotMeasured):
        bound = "at most" if direct.is_telling else "no bound"
        label = f"attention kernels of verify: bytes read over one reading of the context ({bound})"
        yield Number(label, captured(direct.times, "x", counted.num_rounds), about)
    if not isinstance(room, NotMeasured) and not room.is_contradicted:
        verify = next(one for one in found.profile.stage_bytes if one.stage == Stage.VERIFY.value)
        rounds = _source(found, verify).num_rounds
        yield Number("readings of the context by verify, at most", captured(room.most, "count", rounds), about)


def _source(found: Traffic, one: StageBytes) -> ToolPass:
    """The pass that the bytes of a stage are from."""
    source = found.profile.case.counted if one.is_counted else found.profile.case.timeline
    assert not isinstance(source, NotMeasured), "bytes come from a usable pass"
    return source


def traffic_gaps(found: Traffic) -> Sequence[object]:
    """Reasons of what is missing."""
    own = (found.profile.readings, found.profile.attention_reads)
    return [*own, *(one.sampled for one in found.stages), *(one.counted for one in found.stages)]


def _waste(one: StageBytes) -> float:
    return _number(one.waste)


def _number(value: float | NotMeasured) -> float:
    assert not isinstance(value, NotMeasured), "stages of a known waste only"
    return float(value)


def _times(one: StageBytes) -> str:
    return f"{units.significant(_waste(one), 2)}x"
