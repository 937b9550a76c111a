"""Captures of an H200, from the tools' own files to report, timeline and scrubbed copy; none of them names anybody.

The raw files are those of the readers' own tests (nano-k2, ddtree: eager, and a round as one graph; nsys 2025.3, ncu
2025.3); the clean passes beside them are made up. Into every raw file go a user, a host, a path and an environment
variable first.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from ddbench.analysis.digest import digest
from ddbench.analysis.frames import load_run
from ddbench.analysis.profile.device_time import DeviceTime
from ddbench.analysis.profile.profile import Profile, profiles_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.captured import CAPTURE_TABLES, Capture, CapturedRun, CaptureStart
from ddbench.errors import UserError
from ddbench.report.build import build_report
from ddbench.scrub.folder import scrub
from ddbench.spec import CaptureSpec, Tool
from ddbench.timeline.command import show_timeline

HERE = Path(__file__).parent / "analysis"
NSYS, NCU = HERE / "nsys" / "fixtures", HERE / "ncu" / "fixtures"
USER, HOST, TOKEN = "zquserxj7", "zqhostxj7", "zqtokenxj7"
SECRETS = (USER, HOST, TOKEN)
ROWS = [
    ("USER", USER),
    ("HOSTNAME", HOST),
    ("API_TOKEN", TOKEN),
    ("PWD", f"/home/{USER}/secret"),
    ("said", f"{USER}@{HOST}: API_TOKEN={TOKEN} python /home/{USER}/run.py"),
]
WARNINGS = [
    f"cannot open /home/{USER}/lib.so",
    f"API_TOKEN={TOKEN} is set",
    f"the session belongs to {USER}@{HOST}",
]
STRANGERS = ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "PROCESSES", "ProcessStreams")  # tables of nsys
EAGER, GRAPH = 0, 1  # places of the cases
ROUNDS = 9  # in the window of both


def plant_in_sqlite(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        for table in STRANGERS:
            database.execute(f'CREATE TABLE "{table}" (name TEXT, value TEXT)')
            database.executemany(f'INSERT INTO "{table}" VALUES (?, ?)', ROWS)
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(900_000 + place, row[1]) for place, row in enumerate(ROWS)]
        )
        database.executemany(
            "INSERT INTO DIAGNOSTIC_EVENT (timestamp, source, severity, text) VALUES (0, 3, 3, ?)",
            [(text,) for text in WARNINGS],
        )
        database.commit()


def plant_in_parquet(folder: Path) -> None:
    for table in STRANGERS:
        names, values = zip(*ROWS, strict=True)
        pq.write_table(pa.table({"name": names, "value": values}), folder / f"{table}.parquet")
    texts = pq.read_table(folder / "StringIds.parquet")
    more = {"id": [900_000 + place for place in range(len(ROWS))], "value": [value for _, value in ROWS]}
    pq.write_table(pa.concat_tables([texts, pa.table(more, texts.schema)]), folder / "StringIds.parquet")
    said = pq.read_table(folder / "DIAGNOSTIC_EVENT.parquet").to_pylist()
    said += [{**said[0], "severity": 3, "text": text} for text in WARNINGS]
    pq.write_table(pa.Table.from_pylist(said), folder / "DIAGNOSTIC_EVENT.parquet")


def planted_page(name: str) -> str:
    """A page of ncu with the process and the host by their names, and what ncu and the program say around it."""
    page = gzip.decompress((NCU / f"{name}.csv.gz").read_bytes()).decode()
    page = page.replace('"python","host"', f'"/home/{USER}/python","{HOST}"')
    said = f"==PROF== Connected to process 1 (/home/{USER}/python)\nAPI_TOKEN={TOKEN}\n"
    assert page.count(HOST) > 100
    return said + page


def capture(folder: Path, tool: Tool, reads: str, raw: str, num_rounds: int, first: int) -> Capture:
    """What a driver leaves, digested."""
    (folder / "raw" / raw).write_text(" ".join(value for _, value in ROWS), encoding="utf-8")
    start = CaptureStart(tool=tool, tool_version="2025.3", seconds=9.0, reads=reads, raw=(raw,), command=f"{tool} ...")
    run = CapturedRun(first_round=first, round_ns=(1_700_000,) * num_rounds, num_emitted=20, outputs={"0": (1,)})
    (folder / f"{tool}.start.json").write_text(start.model_dump_json(), encoding="utf-8")
    (folder / f"{tool}.run.json").write_text(run.model_dump_json(), encoding="utf-8")
    found = digest(folder, tool)
    for name in ("start", "run"):
        (folder / f"{tool}.{name}.json").unlink()
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cases, captured by nsys and ncu each; what the digest has read is gone, as after a sweep."""
    asked = CaptureSpec(tools=("nsys", "ncu"), first_round=0, num_rounds=ROUNDS)
    cases = [
        make_cases(arms=("ddtree",), concurrencies=(1,), executor=executor)[0].model_copy(update={"capture": asked})
        for executor in ("eager", "round_graph")
    ]
    folder = build_run(tmp_path_factory.mktemp("real") / "20250101T000000Z-real", SyntheticPlan(cases=tuple(cases)))
    for place, export in ((EAGER, NSYS / "eager"), (GRAPH, NSYS / "round_graph.sqlite")):
        captures = captures_of(folder, place)
        (captures / "raw").mkdir(parents=True)
        target = captures / "raw" / "nsys-export"
        if export.is_dir():
            shutil.copytree(export, target)
            plant_in_parquet(target)
        else:
            shutil.copy(export, target)
            plant_in_sqlite(target)
        (captures / "raw" / "ncu.csv").write_text(planted_page(export.stem), encoding="utf-8")
        assert capture(captures, "nsys", "nsys-export", "nsys.nsys-rep", ROUNDS, 0).fault is None
        assert capture(captures, "ncu", "ncu.csv", "ncu.ncu-rep", 1, 1).fault is None
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        (captures / "raw" / "ncu.csv").unlink()
    return folder


def captures_of(run: Path, place: int) -> Path:
    return sorted((run / "cases").iterdir())[place] / "captures"


def profiles(run: Path) -> list[Profile]:
    return list(profiles_of(load_run(run)).values())


def all_bytes(folder: Path, leave_out: str = "") -> bytes:
    """Names and contents of all files, of tables also what is packed in them."""
    parts = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not (leave_out and leave_out in name):
            parts += [name.encode(), path.read_bytes()]
            if path.suffix == ".parquet":
                table = pq.read_table(path)
                parts.append(f"{table.to_pylist()} {table.schema.metadata}".encode())
    return b"\n".join(parts)


def found_in(content: bytes) -> list[str]:
    return [secret for secret in SECRETS if secret.encode() in content]


def timeline(run: Path, out: Path, *cases: str) -> str:
    """What the console says; the files are in `out`."""
    console = Console(file=io.StringIO(), width=200)
    show_timeline(console, run, cases, None, ("console", "html", "json"), out)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_planted_is_in_the_raw_files(run: Path) -> None:
    """Otherwise the tests below would claim nothing."""
    assert found_in(all_bytes(run)) == list(SECRETS)
    notes = [note for place in (EAGER, GRAPH) for note in account(run, place)["notes"]]
    assert {"nsys: cannot open <path>", "nsys: <variable> is set", "nsys: the session belongs to <address>"} <= {*notes}


def account(run: Path, place: int) -> dict[str, Any]:
    return json.loads((captures_of(run, place) / "nsys.json").read_text(encoding="utf-8"))


def test_a_digest_keeps_nothing_of_who_and_where(run: Path) -> None:
    """H28."""
    assert found_in(all_bytes(run, leave_out="/raw/")) == []


def test_a_report_of_real_captures_says_nothing_of_who_and_where(run: Path, tmp_path: Path) -> None:
    """H28: pages, figures and rows; the sections of captures are all there."""
    files = build_report([run], ("html", "md"), tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    for words in ("Launches and gaps", "between nodes of a replay", "device to host", "materialize"):
        assert words in text
    assert "### Failing" not in text, "book-keeping holds, that of captures too"
    assert "device ops of a capture = its ledger" in text
    assert "148 of 148 counted kernels have no stage" in text, "counters that cannot be placed are no zeros"
    content = all_bytes(tmp_path / "report")
    assert found_in(content) == []
    assert str(run.parent).encode() not in content
    assert len(files) > 10


@pytest.mark.parametrize("cases", [("1",), ("2",), ("1", "2")])
def test_a_timeline_of_real_captures_says_nothing_of_who_and_where(
    run: Path, tmp_path: Path, cases: tuple[str, ...]
) -> None:
    said = timeline(run, tmp_path / "timeline", *cases)
    content = all_bytes(tmp_path / "timeline")
    assert found_in(content + said.encode()) == []
    assert str(run.parent).encode() not in content
    (trace,) = (tmp_path / "timeline").glob("*.json")
    record = json.loads(trace.read_text())
    shown = [case["case"] for case in json.loads(record["otherData"]["cases"])]
    counts = {place: sum(line["count"] for line in account(run, place)["ledger"]) for place in (EAGER, GRAPH)}
    by_case = {captures_of(run, place).parent.name: count for place, count in counts.items()}
    slices = [one for one in record["traceEvents"] if "basis" in one.get("args", {})]
    assert len(shown) == len(cases)
    assert len(slices) == sum(by_case[case] for case in shown)


def test_every_nanosecond_of_a_real_round_is_accounted_for(run: Path) -> None:
    """Busy time, causes and what belongs to no round are the window; under 1 % of the rounds' ops have no stage."""
    for profile in profiles(run):
        time = profile.device_time
        assert isinstance(time, DeviceTime)
        assert time.busy_ns + sum(time.causes.values()) + time.outside_ns == time.window_ns
        assert time.num_rounds == ROUNDS
        assert not time.num_empty
        ops = profile.case.passes["nsys"].ops
        own = ops[(ops["round"] > 0).to_numpy()]
        took = own["end_ns"] - own["start_ns"]
        assert took[(own["stage"] == "").to_numpy()].sum() < 0.01 * took.sum()
    eager, graph = profiles(run)
    assert eager.launches.whole.calls["launch"] > 100 > 5 > graph.launches.whole.calls["launch"]  # type: ignore[union-attr]
    assert eager.device_time.idle_share > graph.device_time.idle_share  # type: ignore[union-attr]


def test_a_report_and_a_timeline_of_real_captures_repeat_to_the_byte(run: Path, tmp_path: Path) -> None:
    """H71."""
    for name in ("a", "b"):
        build_report([run], ("md",), tmp_path / name)
        timeline(run, tmp_path / name, "1", "2")
    assert all_bytes(tmp_path / "a") == all_bytes(tmp_path / "b")


# --- the copy that is given away ---


@pytest.fixture
def marked(run: Path, tmp_path: Path) -> Path:
    """The run with secrets in the accounts of its captures and in texts of their tables, where they stand free."""
    folder = Path(shutil.copytree(run, tmp_path / run.name))
    for file in folder.rglob("captures/*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        record["notes"] = [*record["notes"], *WARNINGS, *(value for _, value in ROWS)]
        record["command"] = f"nsys profile --env-var API_TOKEN={TOKEN} -o /home/{USER}/x"
        record["tool_version"] = HOST
        file.write_text(json.dumps(record), encoding="utf-8")
    for file in folder.rglob("captures/*.parquet"):
        table = pq.read_table(file)
        for name in ("direction", "unit"):
            if name in table.column_names:
                place = table.column_names.index(name)
                text = pa.array([f"/home/{USER}/x"] * table.num_rows).dictionary_encode()
                table = table.set_column(place, name, text)
        pq.write_table(table.replace_schema_metadata({"made by": f"{USER}@{HOST}"}), file)
    return folder


def test_a_scrubbed_capture_holds_its_numbers_and_no_secret(marked: Path, run: Path, tmp_path: Path) -> None:
    done = scrub(marked, tmp_path / "copy", (), drop_traces=True)
    assert found_in(all_bytes(done.path)) == []
    assert not list(done.path.rglob("raw")), "the tools' own files stay behind"
    for place in (EAGER, GRAPH):
        here, there = captures_of(run, place), captures_of(done.path, place)
        assert {file.name for file in there.iterdir()} == {file.name for file in here.iterdir() if file.is_file()}
        for file in here.glob("*.parquet"):
            before, after = pd.read_parquet(file), pd.read_parquet(there / file.name)
            assert list(after) == list(CAPTURE_TABLES[file.stem.partition("-")[2]].model_fields)
            kept = [name for name in before if name not in ("direction", "unit")]
            for name in kept:
                assert before[name].astype(object).tolist() == after[name].astype(object).tolist(), (file.name, name)
    report = build_report([done.path], ("md",), tmp_path / "report")
    assert "between nodes of a replay" in report[0].read_text(encoding="utf-8")


def test_the_tools_own_files_are_refused_unless_they_are_dropped(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"4 files cannot be scrubbed.*\.n(sys|cu)-rep: --drop-traces"):
        scrub(run, tmp_path / "copy", (), drop_traces=False)
    assert not re.search("copy", " ".join(path.name for path in tmp_path.iterdir()))
