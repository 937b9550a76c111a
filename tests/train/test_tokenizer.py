"""Properties of the tokenizer and of the prompts, on toy text and on the files that we ship for `nano-k2`."""

from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import ddbench.train
from ddbench.errors import UserError
from ddbench.train.corpus import Document
from ddbench.train.tokenizer import (
    LEAST_TOKENS,
    MOST_TOKENS,
    PROMPT_ENDS,
    SPECIAL_TOKENS,
    Prompt,
    balanced_sample,
    clashing,
    cut_prompts,
    load_tokenizer,
    train_tokenizer,
    windows,
    write_prompts,
)

SHIPPED = Path(ddbench.train.__file__).parents[1] / "models" / "pretrained" / "nano-k2"
WORDS = "amber basin cedar delta ember fjord grove heath inlet jetty knoll ledge marsh oasis prairie ridge".split(" ")
WEIRD = [
    "",
    " ",
    "\n\n\n    \t\r\n",
    "naïve café, Ægir, 𝔘𝔫𝔦, 日本語, עברית, 👩‍👩‍👧, \u2028 \u200d \u0301 \ufeff \ud7ff",
    "0123456789 3.14e-10 0xDEADBEEF",
    "a <|end|> b <|mask|> c <|pad|>",
    "\x00\x01\x7f",
    "def f(x):\n        return x  # \u00a0trailing   ",
]


def prose(number: int, sentences: int = 40) -> str:
    pick = [WORDS[(number * 7 + i * (number + 3) + i * i) % 16] for i in range(sentences * 8)]
    lines = (" ".join(pick[8 * i : 8 * i + 8]).capitalize() + f" {number} {i}." for i in range(sentences))
    return " ".join(lines) + "\n"


def document(text: str, kind: str = "prose", source: str = "here") -> Document:
    row = {"text": text, "source": source, "kind": kind, "licence": "MIT", "path": "p"}
    return Document.model_validate(row)


def read_prompts(path: Path) -> list[Prompt]:
    return [Prompt.model_validate_json(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train_tokenizer([prose(i) for i in range(8)], 300, tmp_path_factory.mktemp("toy") / "tokenizer.json")


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return load_tokenizer(SHIPPED / "tokenizer.json")


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return read_prompts(SHIPPED / "prompts.jsonl")


@pytest.mark.parametrize("text", WEIRD)
def test_round_trip_is_exact(shipped: Tokenizer, toy: Tokenizer, text: str) -> None:
    for tokenizer in (shipped, toy):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_come_first_and_never_out_of_text(shipped: Tokenizer) -> None:
    assert [shipped.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert not {0, 1, 2} & set(shipped.encode("".join(SPECIAL_TOKENS)).ids)


def test_shipped_vocabulary_has_4096_tokens(shipped: Tokenizer) -> None:
    assert shipped.get_vocab_size() == 4096


def test_digits_stand_alone(shipped: Tokenizer) -> None:
    assert shipped.encode("1234567890").tokens == list("1234567890")


@pytest.mark.parametrize("width", [4, 8, 12, 16])
def test_line_break_and_indentation_are_one_token(shipped: Tokenizer, width: int) -> None:
    indented = shipped.encode("x:\n" + " " * width + "return").tokens
    assert len(indented) == len(shipped.encode("x:\n").tokens) + 1


def test_training_twice_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        train_tokenizer([prose(i) for i in range(4)], 280, tmp_path / name)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


@pytest.mark.parametrize(("size", "message"), [(200, "expected at least 259"), (4096, "give more text")])
def test_unreachable_vocabulary_is_refused(tmp_path: Path, size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train_tokenizer(["abc abc"], size, tmp_path / "tokenizer.json")


def test_sample_is_balanced_and_ignores_the_order() -> None:
    documents = [document(prose(i), kind) for kind in ("code", "prose", "docs") for i in range(5)]
    room = len(prose(0)) // 2
    sample = balanced_sample(documents, room)
    assert len(sample) == 3
    assert sample == balanced_sample(documents[::-1], room)


def test_prompts_are_cut_from_their_documents_within_the_bounds(toy: Tokenizer) -> None:
    documents = [document(prose(i), source=f"s{i % 2}") for i in range(4)]
    cut = cut_prompts(toy, documents, per_kind=4, spare=2)
    assert [{cut[i].source, cut[i + 1].source} for i in (0, 2, 4)] == [{"s0", "s1"}] * 3
    for prompt in cut:
        assert any(prompt.text in d.text and prompt.source == d.source for d in documents)
        assert LEAST_TOKENS <= len(toy.encode(prompt.text).ids) <= MOST_TOKENS


def test_overlap_with_training_or_an_earlier_prompt_is_found(toy: Tokenizer) -> None:
    row = {"kind": "prose", "source": "s", "licence": "MIT"}
    texts = {"fresh": prose(9, 5), "trained": prose(11, 5), "copy": "So. " + prose(9, 5)}
    candidates = [Prompt.model_validate({"id": name, "text": text.strip(), **row}) for name, text in texts.items()]
    assert clashing(toy, candidates, [prose(1), "Begin. " + prose(11, 9)]) == {"trained", "copy"}


def test_prompt_file_round_trip(tmp_path: Path) -> None:
    row = {"id": "prose-00", "kind": "prose", "source": "s", "licence": "MIT", "text": "a \u2028 b\n\u0085 c"}
    write_prompts(tmp_path / "prompts.jsonl", [Prompt.model_validate(row)])
    assert [p.model_dump() for p in read_prompts(tmp_path / "prompts.jsonl")] == [row]


def test_shipped_prompts_are_32_of_each_kind_and_small(prompts: list[Prompt]) -> None:
    assert Counter(p.kind for p in prompts) == {"code": 32, "prose": 32, "docs": 32}
    assert len({p.id for p in prompts}) == 96
    assert (SHIPPED / "prompts.jsonl").stat().st_size < 120_000


def test_shipped_prompts_are_unequal_in_length_and_end_at_a_boundary(shipped: Tokenizer, prompts: list[Prompt]) -> None:
    lengths = [len(shipped.encode(p.text).ids) for p in prompts]
    assert min(lengths) >= LEAST_TOKENS
    assert max(lengths) <= MOST_TOKENS
    assert len(set(lengths)) > 40
    for prompt in prompts:
        assert any(m.start() == len(prompt.text) for m in PROMPT_ENDS[prompt.kind].finditer(prompt.text + "\n"))


def test_shipped_prompts_share_no_window(shipped: Tokenizer, prompts: list[Prompt]) -> None:
    seen: set[tuple[int, ...]] = set()
    for prompt in prompts:
        own = windows(shipped.encode(prompt.text).ids)
        assert not own & seen
        seen |= own
