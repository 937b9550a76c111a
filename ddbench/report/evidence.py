"""What every section looks at: frames, settings, values and checks, computed once per report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddbench.analysis.frames import RunFrames
from ddbench.analysis.identities import IdentityRow, check_identities
from ddbench.analysis.metrics import measure_all
from ddbench.analysis.settings import Setting, Study, study_of
from ddbench.analysis.values import Estimate, Value
from ddbench.analysis.variants import Variant, variants_of

DEGENERATE_LIMIT = 0.5  # a setting of whose outputs at least this share loops is never called best


@dataclass(frozen=True)
class Evidence:
    frames: RunFrames
    study: Study
    values: Mapping[str, Mapping[str, Value]]  # setting key -> metric -> value
    identities: Sequence[IdentityRow]
    variants: Sequence[Variant]

    def value(self, setting: Setting, metric: str) -> Value:
        return self.values[setting.key][metric]

    @property
    def has_measurements(self) -> bool:
        return any(setting.is_ok for setting in self.study.settings)

    def name(self, setting: Setting) -> str:
        """The setting's label within one concurrency; with its run where there are several."""
        return f"{setting.label} ({setting.run})" if self.frames.is_merged else setting.label

    def arms_at(self, concurrency: int) -> tuple[Setting, ...]:
        """Settings that are not variants of the ablated arm."""
        variants = {variant.setting.key for variant in self.variants}
        return tuple(s for s in self.study.at(concurrency) if s.key not in variants)

    def is_trusted(self, setting: Setting) -> bool:
        """False if a book-keeping identity of one of its cases fails."""
        case_ids = {(setting.run, result.case_id) for result in setting.results}
        return not any((row.run, row.case_id) in case_ids and not row.is_ok for row in self.identities)

    def is_degenerate(self, setting: Setting) -> bool:
        value = self.value(setting, "degenerate_share")
        return isinstance(value, Estimate) and value.value >= DEGENERATE_LIMIT

    def may_be_best(self, setting: Setting) -> bool:
        return setting.is_ok and self.is_trusted(setting) and not self.is_degenerate(setting)


def evidence_of(frames: RunFrames) -> Evidence:
    study = study_of(frames)
    return Evidence(
        frames=frames,
        study=study,
        values=measure_all(study),
        identities=check_identities(frames),
        variants=variants_of(study, frames.manifests),
    )
