"""What text may stay."""

from __future__ import annotations

import getpass
import platform
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ddbench.scrub.traces import scrub_sqlite
from ddbench.scrub.words import Redactor, names_here, vocabulary

from .conftest import write_export


@pytest.fixture(scope="module")
def known() -> frozenset[str]:
    return vocabulary()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ddtree node_budget=8 c=2",
        "executor 'round_graph' needs a CUDA device",
        "NVML: the device is no GPU",
        "2.13.0+cu130",
        "2025-01-01T00:00:00+00:00",
        "19.8 tok/s at 1.5 us",
    ],
)
def test_our_own_words_and_numbers_stay(text: str, known: frozenset[str]) -> None:
    assert Redactor(known).text(text, "x") == text


@pytest.mark.parametrize(
    "text",
    [
        "/home/data",
        "~/models",
        "C:\\data\\models",
        "\\\\server\\data",
        "file:///data",
        "HOME=data",
        "engine@data",
        "123456789012",
        "draft-zqfoo",
        "\U0001f511",
        "tree\u200btree",
    ],
)
def test_paths_addresses_assignments_long_numbers_and_strangers_go(text: str, known: frozenset[str]) -> None:
    """Though all their words may be known."""
    redactor = Redactor(known)
    assert redactor.text(f"case {text} failed", "x") == "case removed-1 failed"
    assert redactor.text(text, "x") == "removed-1", "the same piece has the same number"
    assert redactor.removed["x"] == 2


def test_a_path_with_blanks_goes_as_a_whole(known: frozenset[str]) -> None:
    assert Redactor(known).text("/data/my secret models/target", "x") == "removed-1"


def test_names_that_are_given_go_where_they_are_words_of_ours_too(known: frozenset[str]) -> None:
    assert Redactor(known).text("host gpu-node-7 failed", "x") == "host gpu-node-7 failed"
    assert Redactor(known, ["gpu-node-7"]).text("host gpu-node-7, failed", "x") == "host removed-1 failed"
    assert Redactor(known, ["tree"]).text("tree", "x") == "tree", "a word of ours by itself tells nothing"


def test_this_machine_and_its_user_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "gpu-7.lab.example")
    for user, known_by in (("alice", {"alice"}), ("root", set()), ("me", set())):
        monkeypatch.setattr(getpass, "getuser", lambda user=user: user)
        assert names_here() == {"gpu-7.lab.example", "gpu-7"} | known_by

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert names_here() == {"gpu-7.lab.example", "gpu-7"}


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA H200",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        "AMD EPYC 9654 96-Core Processor",
        "580.95.05",
        "Linux-6.1",
        "x86_64",
    ],
)
def test_hardware_stays(text: str, known: frozenset[str]) -> None:
    assert Redactor(known).hardware(text, "x") == text
    assert "zqfoobar" not in Redactor(known).hardware(f"{text} zqfoobar", "x")


def test_an_export_keeps_kernels_ranges_and_numbers(known: frozenset[str], tmp_path: Path) -> None:
    write_export(tmp_path / "export.sqlite", "zqPlanted7xj")
    redactor = Redactor(known)
    dropped = scrub_sqlite(tmp_path / "export.sqlite", tmp_path / "copy.sqlite", redactor, "traces")
    assert dropped == ("ProcessStreams", "TARGET_INFO_SYSTEM_ENV")
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as database:
        kernels = database.execute("SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
        strings = dict(database.execute("SELECT id, value FROM StringIds").fetchall())
        ranges = database.execute("SELECT * FROM NVTX_EVENTS").fetchall()
        cards = database.execute("SELECT * FROM TARGET_INFO_GPU").fetchall()
        stamps = dict(database.execute("SELECT name, value FROM META_DATA_EXPORT").fetchall())
    assert kernels == [(1, 2, 1), (3, 4, 4)]
    assert strings[1] == "void add_kernel<float, 4>(float*)"
    assert strings[3] == "verify"
    assert all(strings[number].startswith("removed-") for number in (2, 4))
    assert ranges[0][0] == 1
    assert ranges[0][2] == 3
    assert cards == [(0, "NVIDIA H200")]
    assert stamps["EXPORT_SCHEMA_VERSION"] == "3.20.3"
