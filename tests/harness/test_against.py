"""Two codes in turns: order, pairing, resumption, refusals. Both workers are scripts; what they say is made up."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from ddbench.errors import DdbenchError, UserError
from ddbench.harness.against import Turns, environment_of_checkout, resume_in_turns, run_in_turns
from ddbench.harness.environment import environment_of, module_of
from ddbench.harness.plan import Capabilities, make_plan
from ddbench.harness.store import CaseTables, write_case
from ddbench.harness.sweep import resumed_run
from ddbench.records import OkResult
from ddbench.spec import CaptureSpec, Case, EngineSpec, ExperimentSpec, WorkloadSpec

MakeResult = Callable[[str, Case], OkResult]

# Every field that came after the first released code.
UNKNOWN: dict[str, tuple[str, ...]] = {
    "engine": EngineSpec.ADDED,
    "workload": WorkloadSpec.ADDED,
    "capture": CaptureSpec.ADDED,
}
# Copies a prepared case, puts its own name into the diary, and takes the case and its id from the job.
WORKER = """
import json, shutil, sys
from pathlib import Path
def main(job_file, out, name={name!r}):
    job = json.loads(Path(job_file).read_text())
    for place, names in {unknown!r}.items():  # as records refuse what they do not know
        assert not set(names) & set(job["case"][place]), job["case"][place]
    with open({diary!r}, "a") as diary:
        diary.write(name + " " + job["case"]["arm"] + " " + str(job["case"]["block"]) + "\\n")
    if Path({broken!r}).exists() and len(Path({diary!r}).read_text().splitlines()) > int(Path({broken!r}).read_text()):
        sys.exit(3)
    for file in Path({prepared!r}).glob("*.parquet"):
        shutil.copy(file, out)
    result = json.loads((Path({prepared!r}) / "result.json").read_text())
    result["result"].update(case_id=job["case_id"], case=job["case"])
    Path(out, "result.json").write_text(json.dumps(result))
if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@dataclass
class Bench:
    """An experiment, a fake checkout of other code, and this code's fake worker."""

    folder: Path
    experiment: ExperimentSpec
    can: Capabilities

    @property
    def checkout(self) -> Path:
        return self.folder / "other"

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-S", str(self.folder / "worker.py"))

    @property
    def diary(self) -> list[str]:
        return (self.folder / "diary").read_text(encoding="utf-8").splitlines()

    def fail_after(self, count: int) -> None:
        (self.folder / "broken").write_text(str(count), encoding="utf-8")

    def repair(self) -> None:
        (self.folder / "broken").unlink()
        (self.folder / "diary").unlink()

    def run(self) -> Turns:
        plan = make_plan(self.experiment, self.can)
        return run_in_turns(
            plan, self.folder / "runs", self.checkout, console(), self.command, None, self.folder / "locks"
        )

    def resume(self, path: Path) -> Turns:
        return resume_in_turns(path, self.checkout, console(), self.command, None, self.folder / "locks")


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


@pytest.fixture
def bench(
    tmp_path: Path, experiment: ExperimentSpec, can: Capabilities, ok_result: MakeResult, tables: CaseTables,
    new_case: Callable[..., Case],
) -> Bench:  # fmt: skip
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    write_case(prepared, ok_result("x", new_case()), tables)
    paths = {name: str(tmp_path / name) for name in ("diary", "broken", "prepared")}
    (tmp_path / "worker.py").write_text(WORKER.format(name="after", unknown={}, **paths), encoding="utf-8")
    package = tmp_path / "other" / "ddbench" / "harness"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "worker.py").write_text(WORKER.format(name="before", unknown=UNKNOWN, **paths), encoding="utf-8")
    other = environment_of("cpu").model_copy(update={"code_digest": "0ther", "parts_origin": "checkout"})
    (package / "environment.py").write_text(f"print({other.model_dump_json()!r})", encoding="utf-8")
    spec = experiment.model_copy(update={"arms": ("ar", "ddtree"), "num_blocks": 2})
    return Bench(tmp_path, spec, can)


def test_twins_stand_side_by_side_and_the_order_turns_in_odd_blocks(bench: Bench) -> None:
    bench.run()
    words = [line.split() for line in bench.diary]
    pairs = [(words[place], words[place + 1]) for place in range(0, len(words), 2)]
    assert len(pairs) == 4
    for first, second in pairs:
        assert first[1:] == second[1:]
        assert (first[0], second[0]) == (("before", "after") if first[2] == "0" else ("after", "before"))


def test_both_runs_name_each_other_and_their_own_code(bench: Bench) -> None:
    turns = bench.run()
    before, after = turns.before.manifest, turns.after.manifest
    assert (before.interleaved_with, after.interleaved_with) == (after.run_id, before.run_id)
    assert before.environment.code_digest == "0ther"
    assert after.environment.code_digest == environment_of("cpu").code_digest
    assert turns.tally.counts == {"ok": 8, "incorrect": 0, "failed": 0}


def test_older_code_is_not_told_what_it_does_not_know(bench: Bench) -> None:
    """The other worker refuses every added field, as its records do; it is asked for none of them, so all goes well."""
    assert all(len(names) >= 2 for names in UNKNOWN.values())
    turns = bench.run()
    assert [result.status for result in turns.before.results()] == ["ok"] * 4
    asked = bench.experiment.model_copy(update={"workload": WorkloadSpec(prompt_split="all", num_requests=3)})
    bench.experiment = asked
    turns = bench.run()
    assert {result.status for result in turns.before.results()} == {"failed"}, "what is set is never kept from it"
    assert {result.status for result in turns.after.results()} == {"ok"}


def test_code_from_before_captures_is_not_asked_for_any(bench: Bench) -> None:
    bench.experiment = bench.experiment.model_copy(update={"capture": CaptureSpec(tools=("torch",))})
    with pytest.raises(UserError, match="its code has no captures: leave torch out of --capture"):
        bench.run()
    assert not (bench.folder / "runs").exists(), "nothing was begun"


def test_a_checkout_against_itself_makes_two_runs(bench: Bench) -> None:
    own = environment_of("cpu").model_copy(update={"parts_origin": "checkout"})
    file = bench.checkout / "ddbench" / "harness" / "environment.py"
    file.write_text(f"print({own.model_dump_json()!r})", encoding="utf-8")
    turns = bench.run()
    assert turns.before.path != turns.after.path


@pytest.mark.parametrize("from_before", [True, False])
def test_a_broken_pair_is_measured_again_as_a_pair(bench: Bench, from_before: bool) -> None:
    bench.fail_after(3)  # the second pair loses its second half, all later ones both
    turns = bench.run()
    assert turns.tally.counts["failed"] == 5
    bench.repair()
    turns = bench.resume(turns.before.path if from_before else turns.after.path)
    assert turns.tally.counts == {"ok": 8, "incorrect": 0, "failed": 0}
    assert len(bench.diary) == 6
    assert turns.before.manifest.environment.code_digest == "0ther"


def test_a_run_in_turns_is_not_resumed_alone(bench: Bench) -> None:
    turns = bench.run()
    with pytest.raises(UserError, match="--against"):
        resumed_run(turns.after.path)


def test_a_lost_twin_is_named(bench: Bench) -> None:
    turns = bench.run()
    turns.before.path.rename(bench.folder / "elsewhere")
    with pytest.raises(UserError, match=turns.before.path.name):
        bench.resume(turns.after.path)


def test_other_code_than_then_is_refused_on_resumption(bench: Bench) -> None:
    turns = bench.run()
    changed = turns.before.manifest.environment.model_copy(update={"code_digest": "changed"})
    file = bench.checkout / "ddbench" / "harness" / "environment.py"
    file.write_text(f"print({changed.model_dump_json()!r})", encoding="utf-8")
    with pytest.raises(UserError, match="other code"):
        bench.resume(turns.after.path)


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkout of ddbench"):
        environment_of_checkout(tmp_path, "cpu")


def test_a_checkout_that_uses_installed_kernels_is_refused(bench: Bench) -> None:
    mixed = environment_of("cpu").model_copy(update={"parts_origin": "installed"})
    file = bench.checkout / "ddbench" / "harness" / "environment.py"
    file.write_text(f"print({mixed.model_dump_json()!r})", encoding="utf-8")
    with pytest.raises(DdbenchError, match="installed"):
        bench.run()


def test_a_result_of_another_version_is_a_failed_case(bench: Bench) -> None:
    file = bench.folder / "prepared" / "result.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    record["result"]["from_the_future"] = 1
    file.write_text(json.dumps(record), encoding="utf-8")
    turns = bench.run()
    assert turns.tally.counts == {"ok": 0, "incorrect": 0, "failed": 8}
    assert all("cannot be read" in result.reason for result in turns.before.results())  # type: ignore[union-attr]


def test_a_module_of_a_checkout_comes_from_there(tmp_path: Path) -> None:
    (tmp_path / "ddbench").mkdir()
    (tmp_path / "ddbench" / "__init__.py").touch()
    (tmp_path / "ddbench" / "told.py").write_text("import sys; print(__file__, *sys.argv[1:])", encoding="utf-8")
    done = subprocess.run((*module_of(tmp_path, "ddbench.told"), "x"), capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "ddbench" / "told.py"), "x"]
