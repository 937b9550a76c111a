"""`Profile`: all that the captures of one case say, each part computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ddbench.analysis.frames import RunFrames
from ddbench.analysis.profile.attention_reads import AttentionReads, attention_reads
from ddbench.analysis.profile.captured_case import CapturedCase, Key, captured_cases
from ddbench.analysis.profile.device_time import DeviceTime, device_time
from ddbench.analysis.profile.launches import RoundLaunches, round_launches
from ddbench.analysis.profile.moved import StageBytes, stage_bytes
from ddbench.analysis.profile.sharing import SAMPLED, Readings, readings_of
from ddbench.analysis.profile.tax import Tax, tax_of
from ddbench.analysis.roofline import Machine, machine_of
from ddbench.analysis.values import missing
from ddbench.records import NotMeasured


@dataclass(frozen=True, eq=False)
class Profile:
    """One captured case."""

    case: CapturedCase
    machine: Machine | NotMeasured  # what its machine can do at best

    @cached_property
    def tax(self) -> Tax | NotMeasured:
        """Of the timeline."""
        one = self.case.timeline
        return one if isinstance(one, NotMeasured) else tax_of(self.case, one)

    @cached_property
    def device_time(self) -> DeviceTime | NotMeasured:
        one = self.case.timeline
        return one if isinstance(one, NotMeasured) else device_time(one)

    @cached_property
    def launches(self) -> RoundLaunches | NotMeasured:
        one = self.case.timeline
        return one if isinstance(one, NotMeasured) else round_launches(one)

    @cached_property
    def stage_bytes(self) -> tuple[StageBytes, ...]:
        return stage_bytes(self.case)

    @cached_property
    def readings(self) -> Readings | NotMeasured:
        """Of the context by verify."""
        machine = self.machine
        return readings_of(
            self.case, self.stage_bytes, machine if isinstance(machine, NotMeasured) else machine.cache_bytes
        )

    @cached_property
    def attention_reads(self) -> AttentionReads | NotMeasured:
        """Of the context by verify's attention kernels."""
        return attention_reads(self.case)

    @property
    def sharing(self) -> AttentionReads | Readings | NotMeasured:
        """What tells most of how often the context was read: its kernels, where they bound it, else all of verify."""
        direct, room = self.attention_reads, self.readings
        if isinstance(direct, NotMeasured):
            return room
        if direct.is_telling or isinstance(room, NotMeasured) or not room.is_telling:
            return direct
        # Of caches that were kept, counters of the whole stage see no more than those of its kernels.
        return room if direct.is_flushed or room.source == SAMPLED else direct

    @property
    def has_bytes(self) -> bool:
        """Something was counted or sampled."""
        counted = not isinstance(self.attention_reads, NotMeasured)
        return counted or any(not isinstance(one.moved, NotMeasured) for one in self.stage_bytes)


def profiles_of(frames: RunFrames) -> Mapping[Key, Profile]:
    """(run, case) -> its profile; ok cases with captures only."""
    threads = {manifest.run_id: manifest.environment.num_threads for manifest in frames.manifests}
    found = {}
    for key, case in captured_cases(frames).items():
        engine = case.result.case.engine
        machine = machine_of(frames.ceilings[case.run], engine.dtype, engine.num_threads or threads[case.run])
        found[key] = Profile(case, machine)
    return found


def by_setting(profiles: Iterable[Profile]) -> Mapping[str, Profile]:
    """Setting key -> the profile of its first case of which a pass is usable, else of its first one."""
    found: dict[str, Profile] = {}
    for profile in profiles:
        before = found.get(profile.case.setting)
        if before is None or (not _is_usable(before) and _is_usable(profile)):
            found[profile.case.setting] = profile
    return found


def _is_usable(profile: Profile) -> bool:
    return any(not one.unusable for one in profile.case.passes.values())


def no_captures() -> NotMeasured:
    return missing("no profiler made a pass over a case: run with --capture stages,nsys,ncu (on a CPU: stages,torch)")
