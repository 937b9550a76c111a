"""What the target is asked when a drafter's training data are made: user messages for code, math, chat and prose.

Made from a corpus of documents (`corpus.py`), templates and word lists, the same for the same seed. The overlap check
(`overlap.py`) takes out what shares text with the sets that a drafter is judged on; their texts are never used, the
published wording around them is, with other problems in it.
"""

from __future__ import annotations

import ast
import lzma
import random
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ddbench.files import replacing
from ddbench.train import prompt_words as words
from ddbench.train.corpus import Document, read_records
from ddbench.train.math_prompts import math_message

PromptKind = Literal["chat", "code", "math", "prose"]
SHARES: dict[PromptKind, float] = {"code": 0.32, "math": 0.24, "chat": 0.28, "prose": 0.16}
MOST_CHARACTERS = 1000  # of quoted code; messages that come out much longer are left out
CODING = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{text}\n```"
REASONING = "{text}\nPlease reason step by step, and put your final answer within \\boxed{{}}."


class ChatPrompt(BaseModel):
    """One user message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: PromptKind
    text: str


def make_prompts(documents: Iterable[Document], count: int, seed: int) -> list[ChatPrompt]:
    """`count` different messages of all kinds, shuffled. The documents give snippets; fewer of them, fewer messages."""
    rng = random.Random(f"chat prompts/{seed}")
    snippets = _Snippets(documents, rng)
    makers: dict[PromptKind, Callable[[], str | None]] = {
        "code": lambda: code_message(snippets.functions, rng),
        "math": lambda: _math(rng),
        "chat": lambda: chat_message(snippets.passages, rng),
        "prose": lambda: prose_message(snippets.prose, rng),
    }
    found: dict[str, ChatPrompt] = {}
    for kind, share in SHARES.items():
        wanted = len(found) + round(share * count)
        for _ in range(20 * count):
            if len(found) >= wanted:
                break
            text = makers[kind]()
            if text is not None and len(text) <= MOST_CHARACTERS + 200:
                found.setdefault(text, ChatPrompt(kind=kind, text=text))
    prompts = list(found.values())
    rng.shuffle(prompts)
    return prompts


class _Snippets:
    """Pieces of the documents that messages quote."""

    def __init__(self, documents: Iterable[Document], rng: random.Random) -> None:
        self.functions: list[tuple[str, str, str]] = []  # head with docstring, first sentence, whole source
        self.passages: list[str] = []
        self.prose: list[str] = []
        for document in documents:
            if document.kind == "code":
                self.functions += functions_of(document.text)
            else:
                pieces = passages_of(document.text)
                (self.prose if document.kind == "prose" else self.passages).extend(
                    rng.sample(pieces, min(12, len(pieces)))
                )


def functions_of(source: str) -> list[tuple[str, str, str]]:
    """Top-level functions and methods with a docstring of their own: head, first sentence, whole source."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []  # code of another version, or no code
    lines = source.splitlines()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        text = ast.get_docstring(node)
        if text is None or not 30 <= len(text) <= 700 or len(node.body) < 2 or len(node.args.args) > 5:
            continue
        names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
        head = f'def {node.name}({", ".join(names)}):\n    """{_indented(text)}\n    """'
        sentence = " ".join(re.split(r"(?<=[.!?])\s|\n\n", text, maxsplit=1)[0].split()).rstrip(".")
        whole = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        found.append((head, f"`{node.name}({', '.join(names)})`: {sentence}", _unindented(whole)))
    return found


def _indented(text: str) -> str:
    return text.strip().replace("\n", "\n    ")


def _unindented(text: str) -> str:
    lines = text.split("\n")
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)


def passages_of(text: str) -> list[str]:
    """Paragraphs of 200 to 900 characters that read as sentences."""
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if 200 <= len(part) <= 900 and part.count(". ") >= 1 and part[0].isalpha()]


def code_message(functions: Sequence[tuple[str, str, str]], rng: random.Random) -> str | None:
    """A programming task: a head to be filled in, a wish in words, or code to be explained or changed."""
    roll = rng.random()
    if roll < 0.2 or not functions:
        task, language = rng.choice(words.TASKS), rng.choice(words.LANGUAGES)
        forms = (
            f"Write a {language} function that {task}.",
            f"How do I write a program in {language} that {task}? Explain your code.",
            f"I need {language} code that {task}. Include an example of its use.",
            f"Implement a {language} function that {task} and test it with three inputs.",
            f"Show two ways to write a {language} function that {task}, and compare them.",
            f"Write a {language} class with a method that {task}.",
        )
        return rng.choice(forms) + rng.choice(("", "", " Add comments.", " Keep it short.", " Handle invalid input."))
    head, sentence, whole = rng.choice(functions)
    if roll < 0.6:
        return CODING.format(text=head) if rng.random() < 0.7 else f"Complete this function:\n```python\n{head}\n```"
    if roll < 0.75:
        return (
            rng.choice(("Write a Python function ", "Please implement ", "Give me Python code for ")) + sentence + "."
        )
    if len(whole) > MOST_CHARACTERS:
        return None
    asks = (
        "Explain what this code does:", "Write a docstring for this function:", "Write unit tests for this function:",
        "Can this code be made simpler?", "Add type annotations to this code:", "Find possible bugs in this code:",
        "Rewrite this function in JavaScript:", "What does this return, and when does it fail?",
    )  # fmt: skip
    return f"{rng.choice(asks)}\n```python\n{whole}\n```"


def _math(rng: random.Random) -> str:
    message = math_message(rng)
    return REASONING.format(text=message) if rng.random() < 0.5 else message


def chat_message(passages: Sequence[str], rng: random.Random) -> str:
    """A question, a wish for a text, or something to be done with a given passage."""
    roll = rng.random()
    if roll < 0.55 or not passages:
        ask = rng.choice(words.ASKS)
        first, second = rng.sample(words.TOPICS, 2)
        tail = rng.choice(("", "", "", " Answer in one paragraph.", " Use bullet points.", " Give an example.",
                           " Keep it under 100 words.", " Write for a general audience."))  # fmt: skip
        return ask.format(t=first, u=second) + tail
    if roll < 0.65:
        name, other = rng.sample(words.NAMES, 2)
        return f"Write an email from {name} to {other} {rng.choice(words.EMAILS)}. {_tone(rng)}"
    asks = (
        "Summarize the following text:",
        "Summarize the following text in one sentence:",
        "Rewrite this more simply:",
        "List the key points of this text:",
        "What questions does this text answer?",
        "Extract all names and numbers:",
        "Write a title for this text and explain your choice:",
        "Turn this into bullet points:",
        "Explain this to a beginner:",
        "Is the following text clear? Suggest improvements:",
        "Paraphrase this paragraph:",
        "Write three quiz questions about this text, with answers:",
        "Which terms in this text need a definition? Define them:",
    )
    return f"{rng.choice(asks)}\n\n{rng.choice(passages)}"


def _tone(rng: random.Random) -> str:
    return rng.choice(("Be brief and polite.", "Be friendly.", "Be formal.", "Use a subject line.", "Be direct."))


def prose_message(prose: Sequence[str], rng: random.Random) -> str:
    """A story, a scene, or an excerpt to be continued or retold."""
    if rng.random() < 0.5 or not prose:
        first, second = rng.sample(words.PEOPLE, 2)
        story = rng.choice(words.STORIES).format(
            p=first, q=second, w=rng.choice(words.PLACES), v=rng.choice(words.VERBS)
        )
        tails = (
            "",
            "",
            f" The main character is called {rng.choice(words.NAMES)}.",
            " Be brief.",
            " Use vivid language.",
        )
        return story + rng.choice((*tails, " End with a surprise.", " Write at least 200 words."))
    asks = (
        "Continue this text:", "Write the next paragraph:", "Retell this in modern English:",
        "What is happening in this passage?", "Describe the mood and style of this passage:",
        "Continue this story in the same style:", "Rewrite this passage as a dialogue:",
        "Who is speaking here, and what do they want?",
    )  # fmt: skip
    return f"{rng.choice(asks)}\n\n{rng.choice(prose)}"


# ---------------------------------------------------------------------------------------------------------- files


def write_chat_prompts(path: Path, prompts: Sequence[ChatPrompt]) -> None:
    """One JSON object per line, xz; in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, lzma.open(partial, "wt", encoding="utf-8", preset=9, newline="\n") as file:
        file.writelines(f"{prompt.model_dump_json()}\n" for prompt in prompts)


def read_chat_prompts(path: Path) -> list[ChatPrompt]:
    """All prompts of a file; one that is none is a UserError."""
    return read_records(path, ChatPrompt, "no prompts file (make one with `ddbench train prompts`)")
