"""The table of sets, their conversion, and the split that no seed can move."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.errors import UserError
from ddbench.workloads.cache import parse_items
from ddbench.workloads.sets import PROMPT_SETS, Item, find_set, lines_of, splits


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_a_set_is_pinned_by_version_and_content(name: str) -> None:
    one = PROMPT_SETS[name]
    assert one.name == name
    assert re.fullmatch("[0-9a-f]{64}", one.wheel_sha256)
    assert re.fullmatch("[0-9a-f]{64}", one.digest)
    assert one.wheel == f"{one.package.replace('-', '_')}-{one.version}-py3-none-any.whl"
    assert one.wording.count("{text}") == 1
    assert one.licence in ("MIT", "Apache-2.0")


def test_sets_are_told_apart() -> None:
    for facts in ([one.digest for one in PROMPT_SETS.values()], [one.wheel_sha256 for one in PROMPT_SETS.values()]):
        assert len(set(facts)) == len(PROMPT_SETS)
    assert not {"held-out", "random"} & PROMPT_SETS.keys(), "the names of prompts that are no set"


def test_an_unknown_set_is_answered_with_the_closest() -> None:
    with pytest.raises(UserError, match=r"unknown prompt set 'human-eval': did you mean 'humaneval'\?"):
        find_set("human-eval")


def test_each_form_becomes_items_of_questions_only(squeeze: Callable[[str], bytes]) -> None:
    """Solutions, tests and worked answers are no part of a prompt."""
    rows = {
        "humaneval": {"task_id": "HumanEval/7", "prompt": "def f():\n", "canonical_solution": "S", "test": "T"},
        "gsm8k-100": {"id": "gsm8k-test-0013", "prompt": "How\u2028many?", "expected": "18", "upstream_answer": "S"},
        "mt-bench": {"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."], "reference": ["S"]},
    }
    expected = {
        "humaneval": Item(id="HumanEval/7", category="code", turns=("def f():\n",)),
        "gsm8k-100": Item(id="gsm8k-test-0013", category="math", turns=("How\u2028many?",)),
        "mt-bench": Item(id="mt-bench/81", category="writing", turns=("Compose.", "Rewrite.")),
    }
    for name, row in rows.items():
        text = json.dumps(row, ensure_ascii=False) + "\n"
        data = squeeze(text) if name == "humaneval" else text.encode()
        assert list(PROMPT_SETS[name].convert(data)) == [expected[name]]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4))
def test_converted_lines_are_read_back_as_they_were(turns: list[str]) -> None:
    """Line separators of other alphabets included: only a newline ends a line."""
    items = (Item(id="a\u2028b", category="c\x85", turns=tuple(turns)), Item(id="d", category="c", turns=("\n",)))
    assert parse_items(lines_of(items), "x") == items


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10**6))
def test_the_split_is_a_quarter_of_each_category_whatever_the_order(num_code: int, num_prose: int, seed: int) -> None:
    items = [Item(id=f"code/{i}", category="code", turns=("x",)) for i in range(num_code)]
    items += [Item(id=f"prose/{i}", category="prose", turns=("x",)) for i in range(num_prose)]
    parts = splits(items)
    shuffled = list(items)
    random.Random(seed).shuffle(shuffled)
    assert splits(shuffled) == parts
    assert parts.keys() == {item.id for item in items}
    counted = Counter((item.category, parts[item.id]) for item in items)
    assert counted["code", "calibration"] == num_code // 4
    assert counted["prose", "calibration"] == num_prose // 4


def test_the_split_of_known_ids_is_known() -> None:
    """Settings chosen on these were never judged on them: the parts may not move between versions."""
    items = [Item(id=f"HumanEval/{i}", category="code", turns=("x",)) for i in range(164)]
    chosen = [item.id for item in items if splits(items)[item.id] == "calibration"]
    assert len(chosen) == 41
    assert chosen[:6] == ["HumanEval/1", "HumanEval/2", "HumanEval/5", "HumanEval/7", "HumanEval/17", "HumanEval/25"]
