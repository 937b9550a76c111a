"""Ceilings: which cache, which working set, which spell counts, and that a sweep never ends because of them."""

from __future__ import annotations

import gc
import io
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console

from ddbench.harness import bracket, ceilings
from ddbench.harness.bracket import around, keep, known_ceilings
from ddbench.harness.caches import LastLevelCache, host_cache
from ddbench.harness.ceilings import MB, Bench, Candidate, Replays, best_spells, measure
from ddbench.harness.store import RunFolder
from ddbench.harness.sweep import execute
from ddbench.records import Ceilings, CeilingSample, NotMeasured
from ddbench.spec import from_json

UNKNOWN = NotMeasured(not_measured="made up")


# --------------------------------------------------------------------------------------------------- last-level cache


def describe(root: Path, cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
    folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(text + "\n", encoding="ascii")


def test_the_highest_level_counts_and_shared_caches_count_once(tmp_path: Path) -> None:
    for cpu in range(4):
        describe(tmp_path, cpu, 0, 1, "Data", "48K", str(cpu))
        describe(tmp_path, cpu, 1, 1, "Instruction", "32K", str(cpu))
        describe(tmp_path, cpu, 2, 2, "Unified", "1M", str(cpu))
        describe(tmp_path, cpu, 3, 3, "Unified", "32768K", "0-1" if cpu < 2 else "2-3")
    both = host_cache(tmp_path, range(4))
    assert both == LastLevelCache(32 * MB, 2)
    assert (both.num_bytes, both.reached_by(1), both.reached_by(64)) == (64 * MB, 32 * MB, 64 * MB)
    assert host_cache(tmp_path, [0, 1]) == LastLevelCache(32 * MB), "only what this process may run on"


def test_a_system_that_does_not_tell_is_not_measured(tmp_path: Path) -> None:
    assert host_cache(tmp_path, [0]) == NotMeasured(not_measured="the system does not describe its caches")
    describe(tmp_path, 0, 0, 1, "Data", "plenty", "0")
    found = host_cache(tmp_path, [0])
    assert isinstance(found, NotMeasured)
    assert "could not be read" in found.not_measured


@pytest.mark.parametrize(
    ("cache", "hot", "cold"),
    [
        (LastLevelCache(8 * MB), 4 * MB, 128 * MB),  # at least
        (LastLevelCache(64 * MB), 32 * MB, 256 * MB),
        (LastLevelCache(200 * MB), 100 * MB, 512 * MB),  # at most
        (LastLevelCache(32 * MB, 12), 16 * MB, 768 * MB),  # one thread reaches one of them; never under twice all
        (UNKNOWN, None, 512 * MB),
    ],
)
def test_hot_is_half_of_the_cache_and_cold_several_times_it(
    cache: LastLevelCache | NotMeasured, hot: int | None, cold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = type("Memory", (), {"available": 1 << 40})
    monkeypatch.setattr(ceilings.psutil, "virtual_memory", lambda: memory)
    sets = Bench("cpu", "float32", 1, cache).working_sets()
    assert (sets.get("hot"), sets["cold"]) == (hot, cold)


def test_memory_is_never_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = type("Memory", (), {"available": 100 * MB})
    monkeypatch.setattr(ceilings.psutil, "virtual_memory", lambda: memory)
    assert Bench("cpu", "float32", 1, LastLevelCache(32 * MB)).working_sets()["cold"] == 25 * MB


# --------------------------------------------------------------------------------------------------------- measuring


def candidate(kind: str, amount: float, spells: Sequence[Sequence[float]]) -> Candidate:
    left = iter(spells)
    return Candidate(kind, "none", 1, amount, lambda: list(next(left)))  # type: ignore[arg-type]


def test_the_best_spell_of_the_best_candidate_counts() -> None:
    """2 flops in 4, 1, 2 s and 6 flops in 2, 3, 4 s: 3 flop/s. Of times the shortest, in ns."""
    small = candidate("matmul", 2.0, [[4.0] * 3, [1.0] * 3, [2.0] * 3])
    large = candidate("matmul", 6.0, [[2.0] * 3, [3.0] * 3, [4.0] * 3])
    launch = candidate("launch", 0.0, [[3e-6] * 3, [2e-6, 1e-6, 9e-6], [4e-6] * 3])
    best = best_spells([small, large, launch])
    assert best["matmul", "none"] == (large, [3.0, 3.0, 3.0])
    assert best["launch", "none"][1] == pytest.approx([2e3, 1e3, 9e3])


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One short spell on a small cache; the thread count of this process as before."""
    monkeypatch.setattr(ceilings, "NUM_SPELLS", 1)
    monkeypatch.setattr(ceilings, "BUDGET_S", 0.001)
    monkeypatch.setattr(ceilings, "COLD_SETS", {"cpu": (4, 1, 4)})
    monkeypatch.setattr(ceilings, "MATMUL_SIZES", {"cpu": (32, 64)})
    monkeypatch.setattr(ceilings, "last_level_cache", lambda device: LastLevelCache(MB))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_quick")
def test_a_real_measurement_has_every_ceiling_with_its_quartiles() -> None:
    found = measure("cpu", "after", [("float32", 1), ("bfloat16", 1)])
    assert (found.faults, found.device, found.last_level_cache_bytes) == ((), "cpu", MB)
    assert all(0 < one.low <= one.amount <= one.high for one in found.samples)
    assert {(one.when, one.num_threads) for one in found.samples} == {("after", 1)}
    for dtype in ("float32", "bfloat16"):
        own = [(one.kind, one.cache) for one in found.samples if one.dtype == dtype]
        assert sorted(own) == [
            ("copy", "cold"), ("copy", "hot"), ("launch", "none"), ("matmul", "none"), ("read", "cold"), ("read", "hot")
        ]  # fmt: skip


@pytest.mark.usefixtures("_quick")
def test_what_fails_is_a_fault_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory_candidates(bench: Bench) -> Iterator[Candidate]:
        raise RuntimeError("out of memory\nin detail")
        yield

    monkeypatch.setattr(ceilings, "memory_candidates", memory_candidates)
    found = measure("cpu", "before", [("float32", 1)])
    assert found.faults == ("before the cases: memory in float32: out of memory",)
    assert {one.kind for one in found.samples} == {"matmul", "launch"}


@pytest.mark.usefixtures("_quick")
def test_the_process_answers_with_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = from_json(Ceilings, ceilings.main(["cpu", "before", "float32:1"]), "answer")
    assert {one.kind for one in answer.samples} == {"read", "copy", "matmul", "launch"}


# ------------------------------------------------------------------------------------------------ around the cases


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def sample(when: str, amount: float = 1.0) -> CeilingSample:
    return CeilingSample(
        kind="read", cache="cold", when=when, dtype="float32", num_threads=1, working_set_bytes=1,
        amount=amount, low=amount, high=amount, num_samples=1,
    )  # fmt: skip


Script = Callable[[str], tuple[str, ...]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A command made of lines of Python."""

    def make(lines: str) -> tuple[str, ...]:
        (tmp_path / "script.py").write_text(lines, encoding="utf-8")
        return (sys.executable, "-S", str(tmp_path / "script.py"))

    return make


@pytest.fixture
def answering(script: Script, tmp_path: Path) -> tuple[str, ...]:
    """Answers with one sample whose amount counts the calls, and keeps a diary of what it was asked."""
    answer = Ceilings(device="cpu", last_level_cache_bytes=1, samples=(sample("before"),))
    text = answer.model_dump_json().replace('"before"', '"WHEN"').replace('"amount":1.0', '"amount":AMOUNT')
    text = text.replace('"high":1.0', '"high":99.0')
    return script(f"""
import sys
with open({str(tmp_path / "asked")!r}, "a") as diary:
    print(*sys.argv[1:], file=diary)
calls = len(open({str(tmp_path / "asked")!r}).readlines())
print({text!r}.replace("WHEN", sys.argv[2]).replace("AMOUNT", str(calls)))
""")


def amounts(run: RunFolder) -> dict[str, float]:
    return {one.when: one.amount for one in known_ceilings(run).samples}


def test_before_and_after_stand_around_the_cases(
    run: RunFolder, answering: tuple[str, ...], console: Console, tmp_path: Path
) -> None:
    with around([run], True, console, answering):
        assert amounts(run) == {"before": 1}
    assert amounts(run) == {"before": 1, "after": 2}
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert asked == ["cpu before float32:0", "cpu after float32:0"]
    assert said(console) == ""


def test_a_resumed_run_keeps_its_first_before_and_renews_its_after(
    run: RunFolder, answering: tuple[str, ...], console: Console
) -> None:
    for _ in range(2):
        with around([run], True, console, answering):
            pass
    assert amounts(run) == {"before": 1, "after": 3}
    with around([run], False, console, answering):
        pass
    assert amounts(run) == {"before": 1, "after": 3}, "nothing was left to do"


def test_an_interrupted_run_has_no_after(run: RunFolder, answering: tuple[str, ...], console: Console) -> None:
    with pytest.raises(KeyboardInterrupt), around([run], True, console, answering):
        raise KeyboardInterrupt
    assert amounts(run) == {"before": 1}


def test_runs_in_turns_share_one_measurement(
    run: RunFolder, answering: tuple[str, ...], console: Console, tmp_path: Path
) -> None:
    other = RunFolder(tmp_path / "other", run.manifest)
    other.path.mkdir()
    with around([run, other], True, console, answering):
        pass
    assert amounts(run) == amounts(other) == {"before": 1, "after": 2}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("raise SystemExit('it broke')", "the process ended with exit code 1 (it broke)"),
        ("print('not a record')", "the answer: damaged or from another version"),
        ("import time; time.sleep(60)", "not finished after 1 s"),
    ],
)
def test_a_measurement_that_fails_is_one_line_and_the_sweep_goes_on(
    run: RunFolder, script: Script, console: Console, lines: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bracket, "TIMEOUT_S", 1.0)
    keep([run], "before", console, script(lines))
    known = known_ceilings(run)
    assert known.samples == ()
    assert known.faults[0].startswith(f"before the cases: {fault}")
    assert said(console).count("\n") == 1
    assert f"a ceiling was not measured before the cases: {fault}" in said(console)


def test_a_process_that_cannot_be_started_is_a_fault(run: RunFolder, console: Console) -> None:
    keep([run], "after", console, ("/nowhere/python",))
    assert known_ceilings(run).faults == ("after the cases: no process could be started (No such file or directory)",)


def test_a_later_fault_leaves_what_was_measured(
    run: RunFolder, answering: tuple[str, ...], script: Script, console: Console
) -> None:
    keep([run], "before", console, answering)
    keep([run], "after", console, ("/nowhere/python",))
    known = known_ceilings(run)
    assert (amounts(run), known.last_level_cache_bytes, len(known.faults)) == ({"before": 1}, 1, 1)
    keep([run], "after", console, answering)
    assert (amounts(run), known_ceilings(run).faults) == ({"before": 1, "after": 2}, ())


def test_a_damaged_file_is_measured_again(run: RunFolder, answering: tuple[str, ...], console: Console) -> None:
    (run.path / bracket.FILE).write_text("{", encoding="utf-8")
    with around([run], True, console, answering):
        assert amounts(run) == {"before": 1}


def test_a_sweep_measures_around_its_cases_if_it_is_told_how(
    run: RunFolder, answering: tuple[str, ...], console: Console, tmp_path: Path
) -> None:
    crashing = (sys.executable, "-S", "-c", "raise SystemExit(5)")
    execute(run, console, crashing)
    assert not (run.path / bracket.FILE).exists()
    execute(run, console, crashing, answering)
    assert amounts(run) == {"before": 1, "after": 2}


def test_a_captured_op_keeps_its_tensors() -> None:
    """A replayed graph reads addresses: tensors that only the op holds must outlive the capture."""

    class Data:
        """Stands for a tensor."""

    data = Data()
    held = weakref.ref(data)
    sampler = Replays(lambda kept=data: None, graph=object(), num_calls=1)
    del data
    gc.collect()
    assert held() is not None, sampler
