"""Under what conditions a setting was measured: load of the host, throttling of the device. Of the clean passes.

Between settings and whatever judges their times: comparisons, the gate, the report.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddbench.analysis.settings import Setting
from ddbench.records import LoadSample, NotMeasured, OkResult

_STEADY = ("applications clocks setting", "display clock setting")  # clocks as configured, the same all along


def host_loads(result: OkResult) -> list[float]:
    """The busier of before and after of every clean pass; what could not be read is left out."""
    sides = ((load.host_load_before, load.host_load_after) for load in _clean_loads(result))
    known = ([share for share in both if isinstance(share, float)] for both in sides)
    return [max(shares) for shares in known if shares]


def host_load(setting: Setting) -> float | None:
    """The middle one over all clean passes; None where it could not be read."""
    shares = sorted(share for result in setting.results for share in host_loads(result))
    return shares[len(shares) // 2] if shares else None


def throttled_blocks(setting: Setting) -> dict[int, tuple[str, ...]]:
    """Interleaved repeats whose clean passes ran on a throttled device, and what throttled it."""
    found: dict[int, tuple[str, ...]] = {}
    for result in setting.results:
        reasons = [one.throttle_reasons for one in _clean_loads(result)]
        names = {name for names in reasons if not isinstance(names, NotMeasured) for name in names}
        names -= set(_STEADY)
        if names:
            found[result.case.block] = tuple(sorted(names))
    return found


def _clean_loads(result: OkResult) -> Iterator[LoadSample]:
    return (summary.load for summary in result.passes if summary.pass_name == "clean")
