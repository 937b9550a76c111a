"""What the repeats of one setting say together: the output that they agree on, and one value each.

Under `baseline` and the gate, which read a run in the same way. A repeat is one process; of the same code it must count
the same, and its times are worth nothing where the clocks were held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddbench.analysis.conditions import throttled_blocks
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.records import NotMeasured, OkResult


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
