"""The section table: what a report consists of, in reading order. To add a section: a function and one line here."""

from __future__ import annotations

from collections.abc import Callable

from ddbench.report import checks, provenance
from ddbench.report.acceptance import acceptance
from ddbench.report.arms import arms
from ddbench.report.bandwidth import bandwidth
from ddbench.report.budget import budget
from ddbench.report.captures import captures
from ddbench.report.copies import copies
from ddbench.report.document import Report, Section, Skipped
from ddbench.report.evidence import Evidence
from ddbench.report.findings import findings
from ddbench.report.headline import headline
from ddbench.report.launches import launches
from ddbench.report.occupancy import occupancy
from ddbench.report.roofline import roofline
from ddbench.report.stages import stages
from ddbench.report.variants import variants

SECTIONS: dict[str, Callable[[Evidence], Section | Skipped]] = {
    "headline": headline,
    "findings": findings,
    "arms": arms,
    "budget": budget,
    "acceptance": acceptance,
    "stages": stages,
    "roofline": roofline,
    "captures": captures,
    "bandwidth": bandwidth,
    "occupancy": occupancy,
    "launches": launches,
    "copies": copies,
    "variants": variants,
    "parity": checks.parity,
    "identities": checks.identities,
    "failures": checks.failures,
    "skipped": checks.skipped,
    "environment": provenance.environment,
    "glossary": provenance.glossary,
    "raw-data": provenance.raw_data,
}


def make_report(evidence: Evidence) -> Report:
    """Every section of one run, or of several merged ones."""
    manifests = evidence.frames.manifests
    names = dict.fromkeys(manifest.experiment.name for manifest in manifests)
    questions = dict.fromkeys(manifest.experiment.question for manifest in manifests)
    origins = [
        evidence.of_run(manifest.run_id)
        + f"{manifest.run_id} (ddbench {manifest.ddbench_version}, {manifest.created_at})"
        for manifest in manifests
    ]
    return Report(
        title=", ".join(names),
        question=" ".join(questions),
        origin="; ".join(origins),
        sections=tuple(section(evidence) for section in SECTIONS.values()),
        runs=evidence.runs,
    )
