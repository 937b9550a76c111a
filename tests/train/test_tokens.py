"""Token streams: what is in them, and that a cached one is that of the same corpus and tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ddbench.errors import UserError
from ddbench.train import tokens
from ddbench.train.corpus import corpus_documents, write_documents
from ddbench.train.tokenizer import load_tokenizer, train_tokenizer
from ddbench.train.tokens import END_ID, Windows, load_tokens


def test_a_stream_is_all_documents_each_with_its_end(toy, toy_stream):
    documents = corpus_documents(toy.corpus)
    tokenizer = load_tokenizer(toy.tokenizer)
    assert len(toy_stream.starts) == len(documents)
    for i, document in enumerate(documents):
        end = toy_stream.starts[i + 1] if i + 1 < len(documents) else len(toy_stream.tokens)
        ids = toy_stream.tokens[toy_stream.starts[i] : end].tolist()
        assert ids[-1] == END_ID
        assert tokenizer.decode(ids[:-1]) == document.text
        assert toy_stream.doc_bytes[i] == len(document.text.encode())
    assert toy_stream.kinds == tuple(document.kind for document in documents)
    assert toy_stream.num_bytes == sum(len(document.text.encode()) for document in documents)


def test_a_stream_of_one_kind_holds_its_documents_only(toy, toy_stream):
    prose = toy_stream.only("prose")
    wanted = [document.text for document in corpus_documents(toy.corpus) if document.kind == "prose"]
    assert load_tokenizer(toy.tokenizer).decode(prose.tokens.tolist(), skip_special_tokens=True) == "".join(wanted)
    assert prose.num_bytes == sum(len(text.encode()) for text in wanted)
    assert prose.starts[0] == 0
    assert set(prose.kinds) == {"prose"}


def test_the_cache_serves_the_same_corpus_and_tokenizer_only(toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    original = tokens._tokenize
    monkeypatch.setattr(tokens, "_tokenize", lambda *args: made.append("made") or original(*args))
    first = load_tokens(toy.corpus, toy.tokenizer, tmp_path, print)
    again = load_tokens(toy.corpus, toy.tokenizer, tmp_path, print)
    assert made == ["made"]
    for one, other in ((first.tokens, again.tokens), (first.starts, again.starts), (first.doc_bytes, again.doc_bytes)):
        assert np.array_equal(one, other)
    assert (first.kinds, first.digest) == (again.kinds, again.digest)

    documents = corpus_documents(toy.corpus)
    write_documents(tmp_path / "less.jsonl.xz", documents[:-1])
    assert len(load_tokens(tmp_path / "less.jsonl.xz", toy.tokenizer, tmp_path, print).starts) == len(documents) - 1
    train_tokenizer([document.text for document in documents], 290, tmp_path / "other.json")
    load_tokens(toy.corpus, tmp_path / "other.json", tmp_path, print)
    assert made == ["made"] * 3
    copied = shutil.copyfile(toy.corpus, tmp_path / "renamed.jsonl.xz")
    load_tokens(copied, toy.tokenizer, tmp_path, print)
    assert made == ["made"] * 3  # content counts, not the name
    assert sorted(path.suffix for path in tmp_path.glob("tokens-*")) == [".npz"] * 3


@pytest.mark.parametrize(
    ("content", "word"), [(b"no xz", "not a corpus file"), (None, "not a corpus file"), (b"", "not a corpus file")]
)
def test_a_file_that_is_no_corpus_is_named(toy, tmp_path: Path, content: bytes | None, word: str):
    path = tmp_path / "bad.jsonl.xz"
    path.write_bytes(toy.corpus.read_bytes()[:-30] if content is None else content)
    with pytest.raises(UserError, match=r"bad\.jsonl\.xz") as caught:
        load_tokens(path, toy.tokenizer, None, print)
    assert "\n" not in str(caught.value)
    assert word in str(caught.value)


def test_a_file_that_is_no_tokenizer_is_named(toy, tmp_path: Path):
    for content in ("{", "[]", "{}", "3"):
        path = tmp_path / "tokenizer.json"
        path.write_text(content)
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            load_tokens(toy.corpus, path, None, print)


def test_windows_are_seeded_and_lie_anywhere_in_the_stream(toy_stream):
    one, same, other = (Windows(toy_stream, "cpu", seed) for seed in (3, 3, 4))
    rows = one.sample(200, 40)
    assert torch.equal(rows, same.sample(200, 40))
    assert not torch.equal(rows, other.sample(200, 40))
    stream = torch.from_numpy(toy_stream.tokens.astype("int64"))
    places = {tuple(window.tolist()) for window in stream.unfold(0, 40, 1)}
    assert {tuple(row.tolist()) for row in rows} <= places


def test_a_window_as_long_as_the_stream_is_the_stream(toy_stream):
    windows = Windows(toy_stream, "cpu", 0)
    assert windows.sample(1, len(toy_stream.tokens))[0].tolist() == toy_stream.tokens.tolist()
    with pytest.raises(UserError, match="a training window needs"):
        windows.sample(1, len(toy_stream.tokens) + 1)
