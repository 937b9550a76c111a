"""The answers to the three questions for every run of a report, and what to optimise next.

Last step of the analysis: metrics, contests, decompositions, floors and counters -> `Findings`. Deterministic, from the
data alone; every number keeps its interval and every missing one its reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddbench.analysis.findings.answers import Finding
from ddbench.analysis.findings.bandwidth import bandwidth
from ddbench.analysis.findings.basis import Basis
from ddbench.analysis.findings.compute import compute
from ddbench.analysis.findings.launch import launch
from ddbench.analysis.findings.next_step import Proposal, proposals


@dataclass(frozen=True)
class Findings:
    """What one run says."""

    answers: tuple[Finding, Finding, Finding]  # Q1, Q2, Q3
    proposals: tuple[tuple[Proposal, ...], ...]  # one ranking per concurrency


def findings_of(basis: Basis) -> Findings:
    """All three answers and the rankings of one run."""
    return Findings((bandwidth(basis), compute(basis), launch(basis)), proposals(basis))
