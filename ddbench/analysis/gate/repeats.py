"""What the repeats of one setting say together: the exact numbers that they agree on, and one value each.

Under `baseline` and the gate, which read a run in the same way. A repeat is one process; of the same code it must count
the same, and its times are worth nothing where the clocks were held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddbench.analysis.compare.comparability import throttled_blocks
from ddbench.analysis.counters import counters_of
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.records import NotMeasured, OkResult


def agreed_counters(results: Sequence[OkResult]) -> dict[str, int | NotMeasured]:
    """Counters that every repeat gives alike; one that differs, or is not there every time, is no exact number."""
    found = [counters_of(result) for result in results]
    names = sorted({name for counters in found for name in counters})
    return {name: agreed_value([counters.get(name) for counters in found]) for name in names}


def agreed_value(values: Sequence[int | None]) -> int | NotMeasured:
    if len(set(values)) == 1 and values[0] is not None:
        return values[0]
    shown = ", ".join(sorted({"absent" if value is None else str(value) for value in values}))
    return NotMeasured(not_measured=f"differs between repeats of the same code: {shown}")


def agreed_digest(results: Sequence[OkResult]) -> str | NotMeasured:
    """What was emitted, where every repeat emitted the same."""
    digests = [result.output_digest for result in results]
    missing = next((digest for digest in digests if isinstance(digest, NotMeasured)), None)
    if missing is not None:
        return missing
    if len(set(digests)) > 1:
        return NotMeasured(not_measured=f"repeats of the same code emit different tokens: {len(set(digests))} outputs")
    return digests[0]


def block_values(name: str, setting: Setting) -> dict[int, float | NotMeasured]:
    """Block -> value of a metric in that repeat; a repeat whose clean pass was throttled has none."""
    per_block = METRICS[name].per_block
    assert per_block is not None, f"{name} has no value per repeat"
    measured, throttled = per_block(setting), throttled_blocks(setting)
    found: dict[int, float | NotMeasured] = {}
    for block in sorted(setting.blocks):
        if block in throttled:
            found[block] = NotMeasured(not_measured=f"throttled: {', '.join(throttled[block])}")
        elif block in measured:
            found[block] = measured[block]
        else:
            found[block] = NotMeasured(not_measured=f"the clean pass gives no {name}")
    return found
