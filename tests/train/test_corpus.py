"""Properties of the corpus builder, on a few small folders, and of its table of sources."""

import json
import zlib
from pathlib import Path

import pytest

from ddbench.errors import UserError
from ddbench.train.corpus import SOURCES, Source, build_corpus, clean, corpus_documents, refusal

ALLOWED = {"PSF-2.0", "PostgreSQL", "public domain", "Apache-2.0", "MIT", "MIT OR Apache-2.0", "BSD-2-Clause"}
NAMES = ["ember", "harbour", "lantern", "meadow", "orchard", "quarry", "saddle", "thicket", "willow", "yonder"]


def source(name: str, kind: str = "code", reader: str = "text") -> Source:
    row = {"name": name, "kind": kind, "licence": "MIT", "origin": "a test", "reader": reader, "glob": "**/*.txt"}
    return Source.model_validate(row)


def story(number: int) -> str:
    lines = (f"the {NAMES[(number + i) % 10]} of {NAMES[i % 10]} and {NAMES[number // 10]}" for i in range(14))
    return "\n".join(f"{line} number {chr(97 + number % 26)}" for line in lines) + "\n"


def write(folder: Path, texts: list[str]) -> Path:
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"{number:02d}.txt").write_text(text)
    return folder


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, dict[str, object]]:
    folder = write(tmp_path / "in", [story(i) for i in range(30)])
    sources = [source("here"), source("nowhere", "prose")]
    return tmp_path / "out", build_corpus(tmp_path / "out", {"here": folder}, sources, share=0.1, least=4)


def test_heldout_documents_never_reach_training(built: tuple[Path, dict[str, object]]) -> None:
    out, _ = built
    train = {d.text for d in corpus_documents(out / "corpus-train.jsonl.xz")}
    heldout = {d.text for d in corpus_documents(out / "corpus-heldout.jsonl.xz")}
    assert len(heldout) == 4
    assert len(train) == 26
    assert not train & heldout


def test_absent_source_is_listed_with_a_reason(built: tuple[Path, dict[str, object]]) -> None:
    out, _ = built
    rows = {row["name"]: row for row in json.loads((out / "corpus.json").read_text())["sources"]}
    assert rows["nowhere"]["skipped"] == "no root given"
    assert "skipped" not in rows["here"]


def test_root_without_any_document_is_listed_with_a_reason(tmp_path: Path) -> None:
    roots = {"full": write(tmp_path / "full", [story(i) for i in range(8)]), "empty": write(tmp_path / "empty", [])}
    manifest = build_corpus(tmp_path / "out", roots, [source("full"), source("empty")], least=2)
    rows = {row["name"]: row for row in json.loads(json.dumps(manifest["sources"]))}
    assert rows["empty"]["skipped"].startswith("no document under the root")


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", [story(i) for i in range(12)])
    for out in ("one", "two"):
        build_corpus(tmp_path / out, {"here": folder}, [source("here")], least=2)
    for name in ("corpus-train.jsonl.xz", "corpus-heldout.jsonl.xz", "corpus.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_near_duplicates_are_read_once(tmp_path: Path) -> None:
    texts = [story(i) for i in range(8)]
    copies = [text.upper().replace(" ", "  ") + "\n\n" for text in texts]
    roots = {"first": write(tmp_path / "a", texts), "second": write(tmp_path / "b", copies)}
    manifest = build_corpus(tmp_path / "out", roots, [source("first"), source("second")], least=2)
    rows = json.loads(json.dumps(manifest["sources"]))
    assert [row["documents"] for row in rows] == [8, 0]
    assert rows[1]["dropped"] == {"duplicate": 8}


def test_too_few_documents_to_hold_out_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", [story(i) for i in range(5)])
    with pytest.raises(UserError, match="expected at least 8"):
        build_corpus(tmp_path / "out", {"here": folder}, [source("here")], least=4)


def test_root_of_unknown_source_names_the_closest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'austen'"):
        build_corpus(tmp_path, {"austin": tmp_path})


def test_cleaning_twice_changes_nothing() -> None:
    text = "# Copyright Someone\n# Licence: MIT\nimport os  \r\n\r\n\n\n\n\nx = 1\t\n"
    once = clean(text, "code")
    assert once == "import os\n\n\nx = 1\n"
    assert clean(once, "code") == once


def test_prose_paragraphs_become_single_lines() -> None:
    assert clean("It was\na fine\nday.\n\nThen rain.", "prose") == "It was a fine day.\n\nThen rain.\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1\n", "short"),
        (story(1) + "\x00", "binary"),
        ("# under the GNU General Public License\n" + story(1), "mentions a copyleft licence"),
        ("# This file is auto-generated\n" + story(1), "generated"),
        (story(1) + "word " * 100, "very long lines"),
        ("0x00, 0x01, 0x02,\n" * 60, "mostly not letters"),
        (story(1), None),
    ],
)
def test_refusal_says_why(text: str, reason: str | None) -> None:
    assert refusal(text, "code") == reason


def test_pages_lose_their_navigation_and_keep_their_code(tmp_path: Path) -> None:
    page = (
        "<html><head><title>t</title><script>if (a<b) {}</script></head><body>"
        "<div class='navheader'>Prev <b>Up</b><hr/></div><h2>Title{n}</h2>"
        "<p>Some &lt;b&gt; text\n here.<br>Next</p><ul><li>one<li>two</ul><pre>if x:\n    y</pre>"
        "<p>" + "word {n} " * 80 + "</p></body></html>"
    )
    folder = write(tmp_path / "in", [page.replace("{n}", NAMES[n]) for n in range(2)])
    build_corpus(tmp_path / "out", {"web": folder}, [source("web", "docs", "html")], least=1)
    (document,) = corpus_documents(tmp_path / "out" / "corpus-heldout.jsonl.xz")
    assert document.text.startswith("## Title")
    assert "\n\nSome <b> text here.\nNext\n\n- one\n- two\n\nif x:\n    y\n\nword" in document.text
    assert "Prev" not in document.text


def test_r_data_is_decoded_into_chapters(tmp_path: Path) -> None:
    lines = [f"Chapter {1 + i // 15}" if i % 15 == 0 else story(i % 20).split("\n")[i % 14] for i in range(60)]
    strings = b"".join(b"\x00\x04\x00\x09" + len(s).to_bytes(4, "big") + s.encode() for s in lines)
    chunk = b"X\nheader" + strings + b"\x00\x00\x00\xfe"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "book.txt").write_bytes(len(chunk).to_bytes(4, "big") + zlib.compress(chunk))
    build_corpus(tmp_path / "out", {"r": tmp_path / "in"}, [source("r", "prose", "rdata")], least=1)
    documents = [d for p in ("train", "heldout") for d in corpus_documents(tmp_path / "out" / f"corpus-{p}.jsonl.xz")]
    assert sorted(d.text[:9] for d in documents) == ["Chapter 1", "Chapter 2", "Chapter 3", "Chapter 4"]


def test_every_source_has_a_permissive_licence_and_an_own_name() -> None:
    assert {s.licence for s in SOURCES} <= ALLOWED | {"BSD-3-Clause"}
    assert len({s.name for s in SOURCES}) == len(SOURCES)
