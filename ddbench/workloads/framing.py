"""How an item becomes the text that a target reads: the chat template of its tokenizer, or the item as it is.

A chat model gets the item as an instruction, worded as DFlash's and DDTree's benchmarks word it, thinking switched off
as there; a target without a template gets the bare text to go on with (of HumanEval: the head of a function). Which of
the two, the template and the wording are part of a case's identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ddbench.errors import CheckpointError, shown
from ddbench.files import why_unread
from ddbench.workloads.sets import PromptSet

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
# What other people's templates end in; the sandbox keeps them from doing more.
TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError)
# What the templates that know about thinking are told; others do not look at it.
SWITCHES: Mapping[str, Any] = {"add_generation_prompt": True, "enable_thinking": False}


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A tokenizer's Jinja template and the special tokens that it may name."""

    text: str
    tokens: tuple[tuple[str, str], ...] = ()

    def render(self, message: str) -> str:
        """One user message and the opening of the answer. Dates are not told: a prompt is the same every day."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = _to_json
        messages = [{"role": "user", "content": message}]
        try:
            text = environment.from_string(self.text).render(messages=messages, **dict(self.tokens), **SWITCHES)
        except TEMPLATE_FAULTS as error:
            raise CheckpointError(f"the chat template cannot be used: {shown(str(error), 120)}") from error
        if message.strip() not in text:
            raise CheckpointError("the chat template cannot be used: it does not hand on what the user says")
        return text


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """As tokenizers render it: not escaped for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


@dataclass(frozen=True, slots=True)
class Framing:
    """How one target is given the items of one set."""

    wording: str
    template: ChatTemplate | None

    @property
    def mode(self) -> Literal["chat", "plain"]:
        return "plain" if self.template is None else "chat"

    @property
    def digest(self) -> str:
        """Of everything that is put around an item's own text."""
        around = None if self.template is None else [self.wording, self.template.text, self.template.tokens]
        return hashlib.sha256(json.dumps([self.mode, around, dict(SWITCHES)]).encode()).hexdigest()[:16]

    def text(self, item: str) -> str:
        """The prompt, special tokens of the template spelled out."""
        return item if self.template is None else self.template.render(self.wording.replace("{text}", item))


def framing_for(wanted: PromptSet, folder: Path) -> Framing:
    """How the target in this checkpoint folder is given the set."""
    return Framing(wanted.wording, chat_template(folder))


def chat_template(folder: Path) -> ChatTemplate | None:
    """The template that comes with a tokenizer, in a file of its own or in its configuration; None: there is none."""
    config = _config(folder / CONFIG_FILE)
    text = _text(folder / TEMPLATE_FILE)
    if text is None:
        text = _default(config.get("chat_template"), folder / CONFIG_FILE)
    if text is None:
        return None
    tokens = ((name, config.get(name)) for name in SPECIAL_TOKENS)
    spelled = ((name, token.get("content") if isinstance(token, dict) else token) for name, token in tokens)
    return ChatTemplate(text, tuple((name, token) for name, token in spelled if isinstance(token, str)))


def _default(found: Any, path: Path) -> str | None:
    """The template itself, or of several the one for plain chat."""
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
        if found is None:
            raise CheckpointError(f"{path.name}: several chat templates and none called 'default'")
    if found is not None and not isinstance(found, str):
        raise CheckpointError(f"{path.name}: chat_template: expected a text, got {type(found).__name__}")
    return found


def _config(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        found = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path.name}: expected a JSON object, got {type(found).__name__}")
    return found


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name}: cannot be read ({why_unread(error)})") from error
