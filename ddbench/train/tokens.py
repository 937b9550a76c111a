"""From corpus files to token arrays: what both trainers sample from.

A corpus file (`corpus.py`) becomes one uint16 array, every document followed by the end token; the array is cached
beside the run so that a resumed training does not tokenise again.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ddbench.errors import UserError
from ddbench.files import replacing
from ddbench.train.corpus import Document, corpus_documents
from ddbench.train.loop import REPORT_SECONDS, Report, time_left
from ddbench.train.tokenizer import load_tokenizer
from ddbench.wheels import sha256_of

END_ID = 0


@dataclass(frozen=True, slots=True)
class TokenStream:
    """All documents in a row. `starts[i]` is where document i begins; `kinds[i]` its kind."""

    tokens: np.ndarray  # [T] uint16
    starts: np.ndarray  # [documents] int64
    kinds: tuple[str, ...]
    doc_bytes: np.ndarray  # [documents] int64, UTF-8 bytes
    digest: str  # SHA-256 of the corpus file

    @property
    def num_bytes(self) -> int:
        return int(self.doc_bytes.sum())

    def only(self, kind: str) -> TokenStream:
        """The documents of one kind."""
        chosen = [i for i, own in enumerate(self.kinds) if own == kind]
        pieces = [self.tokens[self.starts[i] : self.starts[i] + self._length(i)] for i in chosen]
        lengths = np.array([len(p) for p in pieces])
        return TokenStream(
            np.concatenate(pieces),
            np.cumsum(lengths) - lengths,
            (kind,) * len(chosen),
            self.doc_bytes[chosen],
            self.digest,
        )

    def _length(self, document: int) -> int:
        end = self.starts[document + 1] if document + 1 < len(self.starts) else len(self.tokens)
        return int(end - self.starts[document])


def load_tokens(corpus: Path, tokenizer_path: Path, cache: Path | None, report: Report) -> TokenStream:
    """Tokenise a corpus file, or take the array that `cache` holds of the same corpus and tokenizer."""
    digest = sha256_of(corpus)
    key = hashlib.sha256(f"{digest}{sha256_of(tokenizer_path)}".encode()).hexdigest()[:16]
    cached = None if cache is None else cache / f"tokens-{key}.npz"
    if cached is not None and cached.is_file():
        data = np.load(cached)
        return TokenStream(data["tokens"], data["starts"], tuple(data["kinds"].tolist()), data["doc_bytes"], digest)
    stream = _tokenize(corpus_documents(corpus), tokenizer_path, digest, report)
    if cached is not None:
        kinds = np.array(stream.kinds)
        save_arrays(cached, tokens=stream.tokens, starts=stream.starts, kinds=kinds, doc_bytes=stream.doc_bytes)
    return stream


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    """An .npz file, in place in one step: a kill leaves no half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _tokenize(documents: list[Document], tokenizer_path: Path, digest: str, report: Report) -> TokenStream:
    tokenizer = load_tokenizer(tokenizer_path)
    if tokenizer.get_vocab_size() > np.iinfo(np.uint16).max + 1:
        raise UserError(f"{tokenizer_path}: {tokenizer.get_vocab_size()} tokens; streams hold 16-bit token ids")
    pieces: list[np.ndarray] = []
    began = reported = time.monotonic()
    for first in range(0, len(documents), 256):
        texts = [d.text for d in documents[first : first + 256]]
        pieces += [np.array([*e.ids, END_ID], dtype=np.uint16) for e in tokenizer.encode_batch_fast(texts)]
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            left = time_left(len(pieces) / len(documents), reported - began)
            report(f"tokenised {len(pieces)}/{len(documents)} documents, {left}")
    if not pieces:
        raise UserError("the corpus has no documents")
    lengths = np.array([len(p) for p in pieces], dtype=np.int64)
    return TokenStream(
        tokens=np.concatenate(pieces),
        starts=np.cumsum(lengths) - lengths,
        kinds=tuple(d.kind for d in documents),
        doc_bytes=np.array([len(d.text.encode()) for d in documents], dtype=np.int64),
        digest=digest,
    )


class Windows:
    """Seeded random windows of a stream, resident on the training device."""

    def __init__(self, stream: TokenStream, device: str, seed: int) -> None:
        self.tokens = torch.from_numpy(stream.tokens.astype(np.int32)).to(device)
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def sample(self, num_rows: int, length: int) -> torch.Tensor:
        """[num_rows, length] int64 token ids, starting anywhere."""
        num_starts = len(self.tokens) - length + 1
        if num_starts <= 0:
            raise UserError(f"the corpus has {len(self.tokens)} tokens, a training window needs {length}")
        starts = torch.randint(num_starts, (num_rows,), generator=self.generator, device=self.tokens.device)
        return self.tokens[starts[:, None] + torch.arange(length, device=self.tokens.device)].long()
