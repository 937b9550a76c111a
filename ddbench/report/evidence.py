"""What every section looks at: frames, settings, values and checks, computed once per report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ddbench.analysis.acceptance import DEGENERATE_LIMIT
from ddbench.analysis.breakdown import Breakdown, breakdown
from ddbench.analysis.conditions import host_loads
from ddbench.analysis.contests import Contest, contest
from ddbench.analysis.decompose import Decomposition, Shares, decompose, shares_by_setting
from ddbench.analysis.findings.basis import Basis
from ddbench.analysis.findings.findings import Findings, findings_of
from ddbench.analysis.frames import RunFrames
from ddbench.analysis.identities import IdentityRow, check_identities
from ddbench.analysis.metrics import measure_all
from ddbench.analysis.profile.profile import Profile, by_setting, profiles_of
from ddbench.analysis.roofline import Roofline, roofline_of
from ddbench.analysis.settings import Setting, Study, study_of
from ddbench.analysis.values import Estimate, Value
from ddbench.analysis.variants import Variant, variants_of
from ddbench.records import BUSY_HOST, Manifest, NotMeasured, OkResult
from ddbench.spec import EngineSpec

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def unusual(engine: EngineSpec) -> Iterator[tuple[str, object]]:
    """The target, and the fields that are not at their defaults."""
    for name, field in EngineSpec.model_fields.items():
        value = getattr(engine, name)
        if name == "target" or value != field.default:
            yield name, value


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning and the (run, case) keys that gave it."""

    text: str
    is_worst: bool  # the text has the highest of several figures
    cases: tuple[tuple[str, str], ...]
    num_cases: int  # of the run

    @property
    def is_common(self) -> bool:
        """At least half of the run's cases gave it."""
        return 2 * len(self.cases) >= self.num_cases


@dataclass(frozen=True)
class Evidence:
    frames: RunFrames
    study: Study
    values: Mapping[str, Mapping[str, Value]]  # setting key -> metric -> value
    identities: Sequence[IdentityRow]
    variants: Sequence[Variant]
    contests: Mapping[tuple[str, str], Contest | NotMeasured]  # (setting key, arm that it is set against)

    @cached_property
    def common_fields(self) -> Mapping[str, object]:
        """Of all settings' engines: what is worth telling and the same in every one, where there are several."""
        if len(self.study.settings) < 2:
            return {}
        first, *others = (dict(unusual(setting.engine)) for setting in self.study.settings)
        return {n: value for n, value in first.items() if all(n in one and one[n] == value for one in others)}

    def value(self, setting: Setting, metric: str) -> Value:
        return self.values[setting.key][metric]

    @cached_property
    def shares(self) -> Mapping[str, Shares | NotMeasured]:
        """Setting key -> the parts of its rounds."""
        return shares_by_setting(self.study.settings)

    @cached_property
    def decompositions(self) -> Mapping[tuple[str, str], Decomposition]:
        """(setting key, arm that it is set against) -> what the speedup is made of."""
        found = ((key, one) for key, one in self.contests.items() if isinstance(one, Contest))
        return {key: decompose(one, self.shares) for key, one in found}

    @cached_property
    def rooflines(self) -> Mapping[str, Roofline | NotMeasured]:
        """Setting key -> how far its stages are from the least time that the machine could do them in."""
        threads = {manifest.run_id: manifest.environment.num_threads for manifest in self.frames.manifests}
        return {
            s.key: roofline_of(s, self.breakdowns[s.key], self.frames.ceilings[s.run], threads[s.run])
            for s in self.study.settings
        }

    @cached_property
    def profiles(self) -> Mapping[tuple[str, str], Profile]:
        """(run, case) -> what its captures say; ok cases with captures only."""
        return profiles_of(self.frames)

    @cached_property
    def bases(self) -> Mapping[str, Basis]:
        """Run -> what conclusions about it rest on."""
        return {manifest.run_id: self._basis(manifest) for manifest in self.frames.manifests}

    @cached_property
    def findings(self) -> Mapping[str, Findings]:
        """Run -> the answers to the three questions, and what to optimise next."""
        return {run: findings_of(basis) for run, basis in self.bases.items()}

    def _basis(self, manifest: Manifest) -> Basis:
        run, threads = manifest.run_id, manifest.environment.num_threads
        settings = tuple(setting for setting in self.study.settings if setting.run == run)
        skipped = self.frames.skipped
        own = skipped[(skipped["run"] == run).to_numpy(dtype=bool)]
        floors = {setting.key: self.rooflines[setting.key] for setting in settings}
        return Basis(
            study=Study(settings),
            values=self.values,
            shares=self.shares,
            floors={key: one.stages if isinstance(one, Roofline) else one for key, one in floors.items()},
            ceilings=self.frames.ceilings[run],
            default_threads=threads,
            trusted=frozenset(setting.key for setting in settings if self.may_be_best(setting)),
            variants=frozenset(variant.setting.key for variant in self.variants),
            skipped=tuple(zip(own["label"], own["reason"], strict=True)),
            profiles=by_setting(profile for (of_run, _), profile in self.profiles.items() if of_run == run),
        )

    @property
    def has_measurements(self) -> bool:
        return any(setting.is_ok for setting in self.study.settings)

    def name(self, setting: Setting) -> str:
        """The setting's label within one concurrency; with its run where there are several."""
        return f"{setting.label} ({self.run_names[setting.run]})" if self.frames.is_merged else setting.label

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(manifest.run_id for manifest in self.frames.manifests)

    @cached_property
    def run_names(self) -> Mapping[str, str]:
        """Run id -> the letter that it goes by in this report, where there are several."""
        return {run: chr(ord("A") + place) if place < 26 else str(place + 1) for place, run in enumerate(self.runs)}

    def of_run(self, run: str) -> str:
        """What a sentence about one of several runs begins with."""
        return f"Run {self.run_names[run]}: " if self.frames.is_merged else ""

    @cached_property
    def case_labels(self) -> Mapping[tuple[str, str], str]:
        """(run, case) -> its label, with the interleaved repeat and the run where there are several."""
        cases = self.frames.cases
        suffix = cases["run"].map(lambda run: f" ({self.run_names[run]})") if self.frames.is_merged else ""
        block = cases["block"].map(lambda block: f" #{block}") if cases["block"].nunique() > 1 else ""
        return dict(zip(zip(cases["run"], cases["case_id"], strict=True), cases["label"] + block + suffix, strict=True))

    @property
    def num_processes(self) -> int:
        """The most processes that one setting ran in."""
        return max((len(setting.blocks) for setting in self.study.settings), default=0)

    def arms_at(self, concurrency: int) -> tuple[Setting, ...]:
        """Settings that are not variants of the ablated arm."""
        return self._arms.get(concurrency, ())

    @cached_property
    def _arms(self) -> Mapping[int, tuple[Setting, ...]]:
        variants = {variant.setting.key for variant in self.variants}
        concurrencies = self.study.concurrencies
        return {c: tuple(s for s in self.study.at(c) if s.key not in variants) for c in concurrencies}

    def is_trusted(self, setting: Setting) -> bool:
        """False if a book-keeping identity of one of its cases fails."""
        return not any((setting.run, result.case_id) in self._broken for result in setting.results)

    @cached_property
    def _broken(self) -> frozenset[tuple[str, str]]:
        """(run, case) of which an identity fails."""
        return frozenset((row.run, row.case_id) for row in self.identities if not row.is_ok)

    @cached_property
    def breakdowns(self) -> Mapping[str, Breakdown | NotMeasured]:
        """Setting key -> where the time of its rounds goes."""
        return {setting.key: breakdown(setting) for setting in self.study.settings}

    def is_degenerate(self, setting: Setting) -> bool:
        value = self.value(setting, "degenerate_share")
        return isinstance(value, Estimate) and value.value >= DEGENERATE_LIMIT

    @cached_property
    def warnings(self) -> Sequence[Warned]:
        """What the cases of each run warned about; texts that differ in numbers only are one, told by the highest."""
        groups: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
        for key, result in self.frames.results.items():
            for text in result.warnings:
                groups.setdefault((key[0], _NUMBER.sub("0", text)), {})[key] = text
        found = []
        for (run, _), texts in groups.items():
            text = max(texts.values(), key=lambda text: [float(number) for number in _NUMBER.findall(text)])
            num_cases = sum(key[0] == run for key in self.frames.results)
            text = self.of_run(run) + text[:1].upper() + text[1:]
            found.append(Warned(text, len(set(texts.values())) > 1, tuple(texts), num_cases))
        return tuple(found)

    def is_busy(self, run: str) -> bool:
        """Other processes took much of the machine around the clean pass of at least half of the measured cases."""
        results = [result for key, result in self.frames.results.items() if key[0] == run]
        loads = [max(host_loads(result), default=0.0) for result in results if isinstance(result, OkResult)]
        return bool(loads) and 2 * sum(load > BUSY_HOST for load in loads) >= len(loads)  # nothing known: not busy

    def own_warnings(self, setting: Setting) -> tuple[str, ...]:
        """Warnings of the setting's cases that most of the other cases do not share."""
        keys = {(setting.run, result.case_id) for result in setting.results}
        return tuple(warned.text for warned in self.warnings if not warned.is_common and keys & set(warned.cases))

    def may_be_best(self, setting: Setting) -> bool:
        return setting.is_ok and self.is_trusted(setting) and not self.is_degenerate(setting)


def evidence_of(frames: RunFrames) -> Evidence:
    study = study_of(frames)
    variants = variants_of(study, frames.manifests)
    return Evidence(
        frames=frames,
        study=study,
        values=measure_all(study),
        identities=check_identities(frames),
        variants=variants,
        contests=_contests(study, {variant.setting.key for variant in variants}),
    )


def _contests(study: Study, left_out: set[str]) -> dict[tuple[str, str], Contest | NotMeasured]:
    """Every arm that drafts against ar, drafters also against prompt_lookup, trees also against chain."""
    found = {}
    for setting in study.settings:
        if setting.is_ok and setting.has_draft and setting.key not in left_out:
            against = ["ar"]
            if setting.has_drafter:
                against += ["prompt_lookup", "chain"] if setting.arm != "chain" else ["prompt_lookup"]
            found.update({(setting.key, arm): contest(setting, arm, study) for arm in against})
    return found
