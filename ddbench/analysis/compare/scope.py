"""Where a change happened, and whether plain decoding changed as well. Below the diagnosis.

`ar`, which drafts nothing, is the control: where it moved, the machine or the target did, and what is a ratio to it is
withheld.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from ddbench import units
from ddbench.analysis import speed
from ddbench.analysis.compare.comparison import Comparisons, Match
from ddbench.analysis.compare.phrases import ratio_text
from ddbench.records import NotMeasured

CONTROL = "ar"
Control = Literal["still", "moved", "open", "absent", "itself", "same run"]


def where(found: Comparisons, match: Match) -> Iterator[str]:
    """Whether it is confined to an arm or to a concurrency."""
    if match.verdict not in ("slower", "faster") or len(found.comparable) < 2:
        return
    hits = [one for one in found.comparable if one.verdict == match.verdict]
    others = [one for one in found.comparable if one.verdict != match.verdict]
    if not others:
        yield f"All {len(hits)} compared settings are {match.verdict}."
        return
    labels, places = {one.label for one in hits}, {one.concurrency for one in hits}
    if places.isdisjoint(one.concurrency for one in others):
        scope = f"every setting at concurrency {units.listed([str(c) for c in sorted(places)])}, at no other"
    elif all(one.b.has_draft for one in hits) and not any(one.b.has_draft for one in others):
        scope = "every arm that drafts, at every concurrency"
    elif labels.isdisjoint(one.label for one in others):
        scope = f"{units.listed(sorted(labels))}, at every concurrency"
    else:
        by_label: dict[str, list[str]] = {}
        for one in hits:
            by_label.setdefault(one.label, []).append(str(one.concurrency))
        scope = units.listed([f"{label} at concurrency {units.listed(own)}" for label, own in by_label.items()])
    counts = {v: sum(one.verdict == v for one in others) for v in ("slower", "faster", "same", "undecided")}
    rest = units.listed([f"{count} {verdict}" for verdict, count in counts.items() if count])
    yield f"{match.verdict.capitalize()} in {len(hits)} of {len(found.comparable)}: {scope}; of the others {rest}."


def control_of(found: Comparisons, match: Match) -> tuple[Control, str]:
    """Whether plain decoding moved as well, and what follows."""
    if found.kind != "runs":
        return "same run", ""
    if match.a.arm == CONTROL:
        if match.verdict == "same":
            return "itself", ""
        return "itself", "It is the control arm itself: the machine or the target, whatever drafts."
    controls = [one for one in found.comparable if one.a.arm == CONTROL and one.concurrency == match.concurrency]
    if not controls:
        return "absent", "Neither side has an ar arm to compare with: nothing tells draft from machine."
    control = controls[0]
    tpot = control.comparisons["tpot_ms"]
    if tpot.verdict in ("slower", "faster"):
        return "moved", (
            f"The control arm ar moved too ({ratio_text(tpot)} in TPOT): the machine or the target, not the draft "
            "alone; speedups over ar are withheld."
        )
    if tpot.verdict == "undecided" and abs(control.log_change) > math.log1p(found.min_effect):
        return "open", (
            f"The control arm ar may have moved too ({ratio_text(tpot)} in TPOT): machine and draft are not told "
            "apart; speedups over ar are withheld."
        )
    if tpot.verdict == "undecided":
        return "still", f"The control arm ar shows no such change ({ratio_text(tpot)} in TPOT)."
    speedups = [speed.tpot_ratio(base, own) for base, own in ((control.a, match.a), (control.b, match.b))]
    text = f"The control arm ar is the same ({ratio_text(tpot)} in TPOT): not the machine"
    known = [one for one in speedups if not isinstance(one, NotMeasured)]
    if len(known) == 2:
        text += f"; speedup over ar {units.ratio(known[0].value)} -> {units.ratio(known[1].value)}"
    return "still", f"{text}."
