"""Q2: does verifying more candidates per round pay, up to which node budget at which concurrency, and what limits it?

Of several budgets the fastest is compared with the chain and with the others by intervals that hold together
(`frontier.field_of`), since the luckiest of them looks best. A tree pays at a concurrency where the interval of its
speedup over the chain lies above 1. How much compute is idle is the share of the matmul ceiling that verify reaches.
A chain has no more to build, compile and walk than a tree of as many nodes: where that takes longer all the same, the
chain is a weak baseline, and what the tree gains by it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddbench import units
from ddbench.analysis import contests
from ddbench.analysis.contests import Contest
from ddbench.analysis.decompose import Decomposition, decompose, rounds_part
from ddbench.analysis.findings import frontier
from ddbench.analysis.findings.answers import (
    FLOOR_NOTE,
    Finding,
    Number,
    Part,
    Verdict,
    at,
    computed,
    measured,
    named,
    overall,
    plain,
    reasons,
    told,
)
from ddbench.analysis.findings.basis import Basis
from ddbench.analysis.findings.frontier import Field, Sweep
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate, Value, missing
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

TREE_ARM = "ddtree"
_LEAST_HANDICAP = 0.01  # of the chain's round, that one of its stages must take longer to be told
_MACHINERY = (Stage.TREE_BUILD.value, Stage.TREE_COMPILE.value, Stage.ACCEPT.value)  # all else is the models' work
_WORDS: dict[contests.Standing, Verdict] = {"ahead": "yes", "behind": "no", "even": "undecided", "unknown": "undecided"}


@dataclass(frozen=True)
class Choice:
    """The best budget of a sweep, and what can be said of the others."""

    sweep: Sweep
    field: Field
    best: Setting
    told_apart: tuple[Setting, ...]  # trees that are slower beyond doubt

    @property
    def over_chain(self) -> Value:
        """Time per token of the chain over that of the best budget; the interval holds together with all others."""
        chain = self.sweep.chain
        return chain if isinstance(chain, NotMeasured) else self.field.speedup(self.best, chain)

    @property
    def contest(self) -> Contest | NotMeasured:
        """The best budget against the chain alone, for what the speedup is made of."""
        chain = self.sweep.chain
        return chain if isinstance(chain, NotMeasured) else contests.versus(self.best, chain)

    @property
    def tied(self) -> tuple[Setting, ...]:
        return tuple(tree for tree in self.sweep.trees if tree is not self.best and tree not in self.told_apart)

    @property
    def stops_at(self) -> Setting | None:
        """The narrowest tree, wider than the best, that is slower beyond doubt."""
        wider = [tree for tree in self.told_apart if tree.engine.node_budget > self.best.engine.node_budget]
        return wider[0] if wider else None

    @property
    def next_wider(self) -> Setting | None:
        wider = [tree for tree in self.sweep.trees if tree.engine.node_budget > self.best.engine.node_budget]
        return wider[0] if wider else None


def choose(sweep: Sweep) -> Choice | NotMeasured:
    """The tree with the lowest time per token, over the prompts that every setting of the sweep ran."""
    field = frontier.field_of(sweep.everyone)
    if isinstance(field, NotMeasured):
        return field
    best = min(sweep.trees, key=lambda tree: field.log_times[field.settings.index(tree)])
    slower = field.slower_than(best)
    return Choice(sweep, field, best, tuple(tree for tree in sweep.trees if tree in slower))


def compute(basis: Basis) -> Finding:
    """The answer of one run."""
    parts: list[Part] = []
    numbers: list[Number] = []
    gaps: list[object] = [] if basis.study.settings else [missing("no case has a result")]
    rests_on: list[str] = []
    for concurrency in basis.concurrencies:
        own = [sweep for sweep in basis.sweeps if sweep.concurrency == concurrency]
        for sweep in own:
            found = choose(sweep)
            gaps.append(found)
            if isinstance(found, Choice):
                gaps.append(found.over_chain)
                parts.append(_budgets(basis, found, frontier.place(sweep, own)))
                numbers += _numbers(basis, found.best, found.over_chain, sweep.everyone)
                rests_on += [named(setting) for setting in sweep.everyone]
        if not own:
            contest = _single(basis, concurrency)
            gaps += [
                at(concurrency, contest),
                missing("the best node budget: it takes at least two of them per concurrency"),
            ]
            if isinstance(contest, Contest):
                parts.append(_tree(basis, contest))
                numbers += _numbers(basis, contest.setting, contest.speedup, (contest.base, contest.setting))
                rests_on += [named(contest.base), named(contest.setting)]
    gaps += [number.value for number in numbers]
    return Finding(
        "Q2",
        overall(part.verdict for part in parts),
        " ".join(part.sentence for part in parts) or "No tree and chain were measured that conclusions may rest on.",
        measured(numbers),
        tuple(dict.fromkeys(rests_on)),
        _would_change(basis, parts),
        reasons(gaps),
        tuple(part.brief for part in parts) or reasons(gaps)[:1],
    )


def _single(basis: Basis, concurrency: int) -> Contest | NotMeasured:
    tree = basis.best(concurrency, lambda setting: setting.arm == TREE_ARM)
    if tree is None:
        return missing("no tree was measured that conclusions may rest on")
    why = basis.why_no_chain(tree)
    return why or contests.contest(tree, "chain", basis.study)


# --- words ------------------------------------------------------------------------------------------------------------


def _budgets(basis: Basis, found: Choice, place: Sequence[str]) -> Part:
    """One sweep: the best budget, which others are as good, where it stops paying, and through what.

    `place`: what tells it from the other sweeps of its concurrency.
    """
    budget, value = found.best.engine.node_budget, found.over_chain
    tried = len(found.sweep.trees)
    verdict: Verdict = "not_measured" if isinstance(value, NotMeasured) else _WORDS[contests.standing(value)]
    where = f" with {units.listed(place)}" if place else ""
    text = f"At concurrency {found.sweep.concurrency}{where} the fastest of {tried} node budgets is {budget}"
    contest = found.contest
    parts = None if isinstance(contest, NotMeasured) else decompose(contest, basis.shares)
    if verdict != "not_measured":
        text += f", {told(value)} over the chain{_doubt(verdict)}{_made_of(parts)}"
    tied = [tree.engine.node_budget for tree in found.tied]
    if tied:
        text += f"; {units.listed(tied)} cannot be told from it"
    if found.stops_at is not None:
        text += f"; from {found.stops_at.engine.node_budget} on it is slower"
    elif found.next_wider is None:
        text += "; no wider tree was tried"
    brief = f"{' '.join((f'c={found.sweep.concurrency}', *place))}: {budget} nodes, fastest of {tried} budgets, "
    brief += f"{told(value)} over the chain" if verdict != "not_measured" else "without a chain to compare with"
    told_of = dict.fromkeys((*found.sweep.everyone[:1], found.best, found.sweep.trees[-1]))
    weak = _handicap(parts, value)
    text += f"{_limit(basis, found)}.{weak.sentence}{_unused(basis, tuple(told_of))}"
    return Part(verdict, text, brief + weak.brief)


def _unused(basis: Basis, settings: Sequence[Setting]) -> str:
    """The arithmetic that verify leaves idle, in a sentence of its own."""
    shares = {setting: _of_matmul(basis, setting) for setting in settings}
    texts = [
        f"{units.significant(100 * (1 - share.value))} % {_width(setting)}"
        for setting, share in shares.items()
        if isinstance(share, Estimate)
    ]
    return f" Of the matmul rate verify leaves {units.listed(texts)} unused." if texts else ""


def _width(setting: Setting) -> str:
    return f"at {setting.engine.node_budget} nodes" if setting.arm == TREE_ARM else f"with the {setting.arm}"


def _of_matmul(basis: Basis, setting: Setting) -> Value:
    """The share of the matmul rate that verify reaches."""
    floor = basis.floor(setting, Stage.VERIFY.value)
    return floor if isinstance(floor, NotMeasured) else computed(floor.share_of_matmul, "share", FLOOR_NOTE)


def _doubt(verdict: Verdict) -> str:
    return ", which the interval does not tell from 1" if verdict == "undecided" else ""


def _made_of(found: Decomposition | None) -> str:
    """What the speedup over the chain is made of."""
    if found is None:
        return ""
    return f": tau {told(found.contest.length)}, rounds of {told(found.contest.cost)}{added(found)}"


@dataclass(frozen=True)
class Handicap:
    """Stages of the tree's machinery that take the chain longer than the tree; none in most contests."""

    stages: tuple[str, ...]
    share: float  # of the chain's round, that they take longer
    without: Value  # the tree over the chain if they took the chain no longer

    @property
    def sentence(self) -> str:
        if not self.stages:
            return ""
        return (
            f" The chain spends {units.significant(100 * self.share, 2)} % of its round more than the tree on "
            f"{units.listed(self.stages)}: without that the tree would be {told(self.without)} over it."
        )

    @property
    def brief(self) -> str:
        if not self.stages:
            return ""
        return f" ({told(self.without)} if {units.listed(self.stages)} took the chain no longer)"


def _handicap(found: Decomposition | None, over_chain: Value) -> Handicap:
    """In both passes, and of a tree that is no narrower: a chain has no more to build, to compile or to walk than that.

    Of a chain's time only its rounds become shorter, not what it waits between them.
    """
    none = Handicap((), 0.0, over_chain)
    if found is None or isinstance(found.contributions, NotMeasured) or isinstance(over_chain, NotMeasured):
        return none
    rounds = rounds_part(found.contest.base)
    if isinstance(rounds, NotMeasured) or _mean_width(found.contest.setting) < _mean_width(found.contest.base):
        return none
    saved = {
        plain(one.part): -one.share.value
        for one in found.contributions
        if one.part in _MACHINERY and isinstance(one.share, Estimate) and one.attributed <= -_LEAST_HANDICAP
        if one.share.high is not None and one.share.high < 0 and one.share.value <= -_LEAST_HANDICAP
    }
    left = 1 - sum(saved.values()) * rounds.value
    low, high = (None if end is None else end * left for end in (over_chain.low, over_chain.high))
    return Handicap(
        tuple(saved), sum(saved.values()), replace(over_chain, value=over_chain.value * left, low=low, high=high)
    )


def _mean_width(setting: Setting) -> float:
    """Tokens per request that verify takes, in the clean pass."""
    return float(setting.steps["verify_width"].mean())


def _limit(basis: Basis, found: Choice) -> str:
    """What the next wider tree brings and costs, and which stage it costs it in."""
    if found.next_wider is None:
        return ""
    contest = contests.versus(found.next_wider, found.best)
    if isinstance(contest, NotMeasured):
        return ""
    text = f". A tree of {found.next_wider.engine.node_budget} brings tau {told(contest.length)} for rounds of "
    return f"{text}{told(contest.cost)}{added(decompose(contest, basis.shares))}"


def added(found: Decomposition) -> str:
    """` (verify adds 12 %)`: where rounds are dearer beyond doubt and one part adds most; nothing elsewhere."""
    largest = found.largest
    if contests.standing(found.contest.cost) != "ahead" or largest is None or isinstance(largest.share, NotMeasured):
        return ""
    return f" ({plain(largest.part)} adds {units.significant(100 * largest.share.value, 2)} %)"


def _tree(basis: Basis, contest: Contest) -> Part:
    """The only tree of a concurrency against its chain."""
    verdict: Verdict = _WORDS[contests.standing(contest.speedup)]
    text = f"At concurrency {contest.setting.concurrency} the tree of {contest.setting.engine.node_budget} nodes is "
    text += f"{told(contest.speedup)} over the chain{_doubt(verdict)}: tau {told(contest.length)}, rounds of "
    brief = f"c={contest.setting.concurrency}: {told(contest.speedup)} over the chain"
    parts = decompose(contest, basis.shares)
    weak = _handicap(parts, contest.speedup)
    text += f"{told(contest.cost)}{added(parts)}.{weak.sentence}{_unused(basis, (contest.base, contest.setting))}"
    return Part(verdict, text, brief + weak.brief)


def _numbers(basis: Basis, best: Setting, over_chain: Value, settings: Sequence[Setting]) -> list[Number]:
    """The speedup, and what part of the arithmetic each width uses."""
    label = "share of the matmul rate that verify reaches"
    used = (Number(label, _of_matmul(basis, setting), named(setting)) for setting in settings)
    return [Number("speedup of the tree over the chain", over_chain, named(best)), *used]


def _would_change(basis: Basis, parts: list[Part]) -> str:
    texts = []
    if any(part.verdict == "undecided" for part in parts):
        texts.append("More prompts or repeats (--blocks) narrow intervals that hold 1.")
    executors = {s.engine.executor for s in basis.study.settings if s.is_ok and s.arm == TREE_ARM}
    if executors == {"eager"}:
        texts.append("Rounds were launched op by op, which hides what a node costs: in a graph the tree may pay less.")
    return " ".join(texts) or "Cheaper rounds or more requests make a node relatively dearer and favour narrower trees."
