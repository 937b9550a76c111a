"""What findings are drawn from: the settings of one run, their metrics, round shares and floors, and which to trust.

Between the measurements (metrics, decompose, roofline) and the questions. A setting whose outputs loop or whose books
do not balance may be shown, but nothing is concluded from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ddbench.analysis.decompose import Shares
from ddbench.analysis.findings.frontier import Sweep, sweeps_of
from ddbench.analysis.profile.profile import Profile
from ddbench.analysis.roofline import Machine, StageFloor, machine_of
from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.values import Estimate, Value, missing
from ddbench.records import Ceilings, NotMeasured

CONTROL_ARMS: tuple[str, ...] = ("chain_via_tree",)  # prices the tree's machinery; nobody would deploy it


@dataclass(frozen=True)
class Basis:
    """One run as the questions see it."""

    study: Study  # of this run only
    values: Mapping[str, Mapping[str, Value]]  # setting key -> metric -> value
    shares: Mapping[str, Shares | NotMeasured]  # by setting key
    floors: Mapping[str, tuple[StageFloor, ...] | NotMeasured]  # by setting key
    ceilings: Ceilings | NotMeasured
    default_threads: int  # what num_threads=None stood for
    trusted: frozenset[str]  # keys of settings that conclusions may rest on
    variants: frozenset[str]  # keys of settings that change one part of another
    skipped: tuple[tuple[str, str], ...]  # (label, reason) of points that could not run
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # by setting key, of those with captures

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return self.study.concurrencies

    def is_trusted(self, setting: Setting) -> bool:
        return setting.is_ok and setting.key in self.trusted

    def value(self, setting: Setting, metric: str) -> Value:
        return self.values[setting.key][metric]

    @cached_property
    def sweeps(self) -> tuple[Sweep, ...]:
        """Node budgets that differ in nothing else, trusted settings only; variants of parts are not swept."""
        own = (s for s in self.study.settings if self.is_trusted(s) and s.key not in self.variants)
        found = []
        for sweep in sweeps_of(Study(tuple(own))):
            chain = sweep.chain
            why = self.why_no_chain(sweep.trees[0])
            found.append(sweep if not isinstance(chain, NotMeasured) else Sweep(sweep.trees, why or chain))
        return tuple(found)

    def sweep_of(self, setting: Setting) -> Sweep | None:
        return next((sweep for sweep in self.sweeps if setting in sweep.trees), None)

    def why_no_chain(self, setting: Setting) -> NotMeasured | None:
        """Why `setting` has no chain to be compared with; None: it has one that may be trusted."""
        chain = self.study.counterpart(setting, "chain")
        if isinstance(chain, NotMeasured):
            return chain
        return None if self.is_trusted(chain) else missing("the outputs or the book-keeping of chain are not trusted")

    def best(self, concurrency: int, is_meant: Callable[[Setting], bool], metric: str = "tpot_ms") -> Setting | None:
        """The trusted setting with the lowest time per token, or the longest tau; variants of parts are left out."""
        found = [
            (setting, value.value)
            for setting in self.study.at(concurrency)
            if self.is_trusted(setting) and setting.key not in self.variants and is_meant(setting)
            if isinstance(value := self.value(setting, metric), Estimate)
        ]
        pick = min if metric == "tpot_ms" else max
        return pick(found, key=lambda pair: pair[1])[0] if found else None

    def best_drafter(self, concurrency: int) -> Setting | None:
        """The fastest arm with a drafter."""
        return self.best(concurrency, has_drafter)

    def floor(self, setting: Setting, stage: str) -> StageFloor | NotMeasured:
        floors = self.floors[setting.key]
        if isinstance(floors, NotMeasured):
            return floors
        found = next((floor for floor in floors if floor.stage == stage), None)
        return found or missing(f"nothing says what {stage.replace('_', ' ')} has to move and compute")

    def share(self, setting: Setting, part: str) -> Value:
        """Part of a round's time, from the attributed pass."""
        shares = self.shares[setting.key]
        return shares if isinstance(shares, NotMeasured) else shares.of(part)

    def machine(self, setting: Setting) -> Machine | NotMeasured:
        """What the machine can do at best in the setting's dtype and with its threads."""
        return machine_of(self.ceilings, setting.engine.dtype, setting.engine.num_threads or self.default_threads)


def has_drafter(setting: Setting) -> bool:
    """An arm with a drafter that somebody would deploy."""
    return setting.has_drafter and setting.arm not in CONTROL_ARMS
