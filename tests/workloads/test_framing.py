"""What a target reads: its own chat template around the papers' wording, or the bare text; and what identifies it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddbench.errors import CheckpointError
from ddbench.workloads.framing import ChatTemplate, Framing, chat_template
from ddbench.workloads.sets import PROMPT_SETS

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def written(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_chatml_is_written_as_by_hand(tmp_path: Path) -> None:
    framing = Framing(PROMPT_SETS["gsm8k-100"].wording, chat_template(written(tmp_path, chat_template=CHATML)))
    assert framing.mode == "chat"
    assert framing.text("How many {apples}?") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow many {apples}?\n"
        "Please reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_code_is_put_to_a_chat_as_a_problem_in_a_fence() -> None:
    framing = Framing(PROMPT_SETS["humaneval"].wording, ChatTemplate("{{ messages[0].content }}"))
    assert framing.text('def f():\n    """Do {x}."""\n') == (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        '```python\ndef f():\n    """Do {x}."""\n\n```'
    )


def test_without_a_template_the_text_stands_alone(tmp_path: Path) -> None:
    """A base model goes on with the head of a function; an instruction around it would be foreign to it."""
    for folder in (tmp_path, written(tmp_path, bos_token="<s>", chat_template=None)):
        assert chat_template(folder) is None
    framing = Framing(PROMPT_SETS["humaneval"].wording, None)
    assert framing.mode == "plain"
    assert framing.text("def f():\n") == "def f():\n"


def test_a_template_knows_special_tokens_and_that_nobody_thinks(tmp_path: Path) -> None:
    text = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    text += "{% if enable_thinking is false %}<think></think>{% endif %}"
    template = chat_template(written(tmp_path, chat_template=text, bos_token="<s>", eos_token={"content": "</s>"}))
    assert template is not None
    assert template.render("hello") == "<s>hello</s><think></think>"


def test_whitespace_and_loops_are_as_templates_expect_them() -> None:
    """Blocks take their line's indentation and newline with them, loops may be left, JSON is not escaped for HTML."""
    text = (
        "{% for message in messages %}\n    {% if message.role == 'user' %}\n[{{ message.content }}]\n    {% endif %}\n"
        "{% break %}\n{% endfor %}\n{{ {'a': '<é>'} | tojson }}"
    )
    assert ChatTemplate(text).render("hi") == '[hi]\n{"a": "<é>"}'


def test_a_template_file_of_its_own_comes_first_and_of_several_the_default(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "T {{ messages[0].content }}"}, {"name": "default", "template": "D"}]
    assert chat_template(written(tmp_path, chat_template=several)) == ChatTemplate("D")
    (tmp_path / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert chat_template(tmp_path) == ChatTemplate("J")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ messages[0].content }", "cannot be used: .*unexpected '}'"),
        ("{{ raise_exception('no system prompt') }}", "cannot be used: 'no system prompt'"),
        ("{{ messages[7].content }}", "cannot be used"),
        ("{{ 1 / 0 }}", "cannot be used: 'division by zero'"),
        ("{{ strftime_now('%d') }}{{ messages[0].content }}", "cannot be used: .*strftime_now"),
        ("{{ ''.__class__.__mro__ }}", "cannot be used"),
        ("{{ messages.append(1) }}", "cannot be used"),
        ("hello", "does not hand on what the user says"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot be used"),
    ],
)
def test_a_template_that_cannot_be_used_is_a_one_line_error(text: str, expected: str) -> None:
    """The date is no part of a prompt either: the same case would be another one tomorrow."""
    with pytest.raises(CheckpointError, match=expected) as caught:
        ChatTemplate(text).render("hi there")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "tokenizer_config.json: not valid JSON"),
        ("[" * 100_000, "tokenizer_config.json: not valid JSON"),
        ("[]", "expected a JSON object, got list"),
        ('{"chat_template": 3}', "chat_template: expected a text, got int"),
        ('{"chat_template": [{"name": "tools", "template": "x"}]}', "none called 'default'"),
    ],
)
def test_a_damaged_configuration_names_its_file(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=expected):
        chat_template(tmp_path)


def test_a_template_that_is_no_text_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: cannot be read \(not UTF-8"):
        chat_template(tmp_path)


def test_whatever_stands_around_an_item_is_part_of_the_digest() -> None:
    framings = [
        Framing("{text}", None),
        Framing("{text}", ChatTemplate("a")),
        Framing("{text}", ChatTemplate("b")),
        Framing("x {text}", ChatTemplate("a")),
        Framing("{text}", ChatTemplate("a", (("bos_token", "<s>"),))),
    ]
    assert len({framing.digest for framing in framings}) == len(framings)
    assert Framing("{text}", ChatTemplate("a")).digest == framings[1].digest
    assert Framing("x {text}", None).digest == framings[0].digest, "plain text has no wording"
