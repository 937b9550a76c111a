"""May two settings be compared at all? Reasons against it, and what is to be said of a pair that may.

Before any verdict: a number of another machine, another precision or another workload is context, never a finding. A
`Reason` has a code for programs and a sentence for readers. Code is what gets compared, so its digest may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddbench import units
from ddbench.analysis.acceptance import DEGENERATE_LIMIT, is_degenerate
from ddbench.analysis.conditions import host_load, throttled_blocks
from ddbench.analysis.settings import Setting
from ddbench.records import BUSY_HOST, Environment, Manifest, NotMeasured

LOAD_SHIFT = 0.15  # a difference of host load between the sides that is worth a sentence

# What a user may declare to be the very thing under test (`--allow libraries`); the others never can be.
ALLOWABLE: tuple[str, ...] = (
    "device",
    "driver",
    "power_cap",
    "machine",
    "libraries",
    "threads",
    "weights",
    "precision",
    "capture",
)
# Fields that both sides must agree in, whatever else is compared. Target and drafter are compared by their weights.
FIELD_CODES: dict[str, str] = {
    "device": "device",
    "dtype": "precision",
    "experts": "precision",
    "sampling": "sampling",
    "temperature": "sampling",
    "seed": "sampling",
}
LOST_CODES: tuple[str, ...] = ("failed", "incorrect", "not_run")  # the side did not deliver what was asked of it
_NO_MATTER = ("timeout_s",)  # of a capture: it decides whether a case ends, not what it measures


@dataclass(frozen=True, slots=True)
class Reason:
    """A code for programs, a sentence (no full stop) for readers."""

    code: str
    text: str


def environment_obstacles(a: Manifest, b: Manifest) -> tuple[Reason, ...]:
    """In what the places of two runs differ that decides their times."""
    ours, theirs = a.environment, b.environment
    facts: tuple[tuple[str, str, str, str], ...] = (
        ("device", "the device", ours.device, theirs.device),
        ("driver", "the driver", _known(ours.driver), _known(theirs.driver)),
        ("power_cap", "the power cap", _known(ours.power_cap_w, " W"), _known(theirs.power_cap_w, " W")),
        ("machine", "the host", _host(ours), _host(theirs)),
    )
    found = [_differs(code, what, one, other) for code, what, one, other in facts if one != other]
    unlike = _unlike(ours.libraries, theirs.libraries)
    if unlike:
        texts = (f"{n} {ours.libraries.get(n, 'absent')} / {theirs.libraries.get(n, 'absent')}" for n in unlike)
        found.append(Reason("libraries", f"library versions differ: {', '.join(texts)}"))
    return tuple(found)


def _known(value: object, unit: str = "") -> str:
    return "unknown" if isinstance(value, NotMeasured) else f"{value}{unit}"


def _host(place: Environment) -> str:
    return f"{place.cpu_model}, {place.num_cpus} CPUs, {place.machine}, {place.platform}"


def _differs(code: str, what: str, one: object, other: object) -> Reason:
    return Reason(code, f"{what} differs: {one} / {other}")


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


# --- one pair of settings ---------------------------------------------------------------------------------------------


def setting_obstacles(a: Setting, b: Setting, places: tuple[Environment, Environment]) -> Iterator[Reason]:
    """What stands against comparing two settings, whatever else was meant to differ."""
    for side, setting in (("A", a), ("B", b)):
        if not setting.is_ok:
            code = "incorrect" if setting.reason.startswith("incorrect") else "failed"
            yield Reason(code, f"{side} has no timings: {setting.reason}")
    for name, code in FIELD_CODES.items():
        one, other = getattr(a.engine, name), getattr(b.engine, name)
        if one != other:
            yield _differs(code, name, one, other)
    threads = [s.engine.num_threads or place.num_threads for s, place in zip((a, b), places, strict=True)]
    if threads[0] != threads[1]:
        yield _differs("threads", "the number of CPU threads", *threads)
    for name in _unlike(a.workload.model_dump(), b.workload.model_dump()):
        yield _differs("workload", f"the workload's {name}", getattr(a.workload, name), getattr(b.workload, name))
    if a.is_ok and b.is_ok:
        yield from _result_obstacles(a, b)


def _result_obstacles(a: Setting, b: Setting) -> Iterator[Reason]:
    throttled = throttled_blocks(a) | throttled_blocks(b)
    if throttled and a.blocks & b.blocks <= throttled.keys():
        names = ", ".join(sorted({name for reasons in throttled.values() for name in reasons}))
        yield Reason("throttled", f"the device was throttled in every repeat ({names})")
    captures = [setting.results[0].case.capture.model_dump() for setting in (a, b)]
    for name in _unlike(*captures):
        if name not in _NO_MATTER:
            yield _differs("capture", f"the capture's {name}", captures[0][name], captures[1][name])
    facts = ["target_digest"]
    if a.has_drafter and b.has_drafter:
        facts += ["drafter_digest", "acceptance"]
        if any(getattr(a.engine, name) != getattr(b.engine, name) for name in ("oracle_quality", "oracle_profile")):
            yield Reason("weights", "the quality that the oracle draft replays differs")
    for name in facts:
        one, other = _cards(a, name), _cards(b, name)
        if one != other:
            yield _differs("weights", f"the {name.replace('_', ' ')}", one, other)
    for name, words in (("set_digest", "the prompt set"), ("framing_digest", "how prompts are put to the target")):
        one, other = _prompts(a, name), _prompts(b, name)
        if one != other:
            yield _differs("workload", words, one, other)
    looping = [side for side, setting in (("A", a), ("B", b)) if loop_share(setting) >= DEGENERATE_LIMIT]
    if looping and has_same_outputs(a, b) is not True:
        yield Reason("degenerate", f"outputs of {' and '.join(looping)} loop, so that speed and acceptance mislead")


def _cards(setting: Setting, name: str) -> str:
    return ", ".join(sorted({str(getattr(result.models, name)) for result in setting.results}))


def _prompts(setting: Setting, name: str) -> str:
    """Of a standard prompt set; other prompts are told apart by the workload and the weights."""
    cards = {result.prompts for result in setting.results}
    return ", ".join(sorted(getattr(card, name) for card in cards if card is not None)) or "none"


def loop_share(setting: Setting) -> float:
    """Share of the outputs long enough to be judged that loop to their end; 0 where none is."""
    verdicts = [verdict for verdict in map(is_degenerate, setting.requests["tokens"]) if verdict is not None]
    return sum(verdicts) / len(verdicts) if verdicts else 0.0


def has_same_outputs(a: Setting, b: Setting) -> bool | None:
    """Every prompt was answered alike in every pass of both; None where they share no prompt."""
    ours, theirs = _outputs(a), _outputs(b)
    return None if not ours.keys() & theirs.keys() else not _other_outputs(ours, theirs)


def _outputs(setting: Setting) -> dict[str, frozenset[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = {}
    for unit, tokens in zip(setting.requests["unit"], setting.requests["tokens"], strict=True):
        found.setdefault(str(unit), set()).add(tuple(tokens))
    return {unit: frozenset(answers) for unit, answers in found.items()}


def _other_outputs(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    return [unit for unit in ours if unit in theirs and ours[unit] != theirs[unit]]


# --- what is to be said of a pair that may be compared ----------------------------------------------------------------


def remarks(a: Setting, b: Setting) -> Iterator[Reason]:
    """Changes of behaviour and doubts that do not forbid a comparison."""
    if a.engine.sampling == b.engine.sampling == "greedy":
        ours, theirs = _outputs(a), _outputs(b)
        other = _other_outputs(ours, theirs)
        if other:
            shared = len(ours.keys() & theirs.keys())
            text = f"outputs differ on {len(other)} of {shared} prompts under greedy decoding: a change of behaviour"
            yield Reason("outputs_differ", text)
        elif loop_share(a) >= DEGENERATE_LIMIT:
            yield Reason("outputs_loop", "outputs of both sides loop alike: times compare, acceptance means little")
    for part in _unlike(*(_paths(setting) for setting in (a, b))):
        one, other_path = (_paths(setting).get(part, "none") for setting in (a, b))
        asked = [getattr(setting.engine, part, None) for setting in (a, b)]
        if asked[0] == asked[1]:
            yield Reason("path_differs", f"{part} was asked for alike but ran as {one} / {other_path}")
    for side, setting in (("A", a), ("B", b)):
        if any(result.parity.status == "near_tie" for result in setting.results):
            yield Reason("near_tie", f"{side} equals plain decoding only up to a near tie of logits")
    if a.blocks != b.blocks:
        num_both = len(a.blocks & b.blocks)
        text = f"A delivered {len(a.blocks)} repeats, B {len(b.blocks)}: the {num_both} that both have are compared"
        yield Reason("repeats_missing", text)
    yield from _load_remarks(a, b)


def _paths(setting: Setting) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for result in setting.results:
        for part, path in result.path_used.items():
            found.setdefault(part, set()).add(path)
    return {part: " and ".join(sorted(paths)) for part, paths in found.items()}


def _load_remarks(a: Setting, b: Setting) -> Iterator[Reason]:
    loads = [host_load(setting) for setting in (a, b)]
    if loads[0] is None or loads[1] is None:
        return
    texts = [f"{units.significant(100 * load, 2)} %" for load in loads if load is not None]
    if max(loads[0], loads[1]) > BUSY_HOST:
        yield Reason("busy_host", f"other processes kept the host busy ({texts[0]} / {texts[1]} of all CPU time)")
    elif abs(loads[1] - loads[0]) > LOAD_SHIFT:
        yield Reason("load_shift", f"host load around the passes was not alike: {texts[0]} / {texts[1]}")
