"""What text may stay: numbers, and words that ddbench's own sources use. Everything else goes, whatever it is.

A list of what to look for would miss what nobody thought of, so it is the other way round: a text is cut at its white
space, and a piece stays if each word in it is known. A piece with an unknown word, a path, an address or an assignment
of an environment variable becomes `removed-N`, the same N for the same piece, so that cases that differed still do.
"""

from __future__ import annotations

import getpass
import platform
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from ddbench.harness.environment import source_texts

_WORD = re.compile(r"[^\W_]+")
_SPACE = re.compile(r"(\s+)")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?")
_RUN = re.compile(r"(\d{8}T\d{6}Z)-(.*)-([0-9a-f]{8})", flags=re.DOTALL)
_COUNTED = re.compile(r"([a-z]+)(\d{1,8})")  # cu130, k2, block3
_PATH = re.compile(r"(?<!\w)(~[\w-]*)?[/\\]+[\w.~-]|\b[A-Za-z]:[/\\]|://|(?<!\w)~\w|^~")
_ADDRESS = re.compile(r"\w@\w")
_ASSIGNMENT = re.compile(r"(?<![\w-])[A-Z][A-Z0-9_]*=")
_SIGNS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~×·°–—…µ≤≥±→\u202f")  # that may stand beside words
_LONGEST_NUMBER = 8  # digits, in text; a longer one may be a key
_SHORTEST_NAME = 3
# Words of processors, cards and drivers, which name no machine in particular.
HARDWARE_WORDS = frozenset(
    "intel r tm core xeon platinum gold silver bronze cpu gpu ghz mhz amd epyc ryzen threadripper pro processor "
    "arm neoverse cortex ampere altra graviton apple m max ultra nvidia geforce rtx gtx tesla quadro titan grace "
    "hopper blackwell ada generation laptop super ti sxm pcie nvl hbm with radeon graphics eight six twelve sixteen "
    "linux darwin windows x86 aarch64 arm64 amd64 server edition workstation mig i3 i5 i7 i9 v2 v3 v4".split()
)
_MODEL = re.compile(r"[a-z]{0,2}\d{1,5}[a-z]{0,3}")  # h200, 8481c, i9 ... of hardware only


def vocabulary() -> frozenset[str]:
    """Every word in the sources, lower-case."""
    return frozenset(word.lower() for text in source_texts() for word in _WORD.findall(text))


def names_here() -> frozenset[str]:
    """What this machine and its user are called, even where it is a word that the sources use."""
    names = {platform.node(), platform.node().partition(".")[0]}
    with suppress(OSError, KeyError):  # a user id without a name
        names.add(getpass.getuser())
    return frozenset(name for name in names if len(name) >= _SHORTEST_NAME and name not in ("root", "localhost"))


class Redactor:
    """Text in, text out. It remembers what it removed, and how often."""

    def __init__(self, known: frozenset[str], names: Iterable[str] = ()) -> None:
        self._known = known
        listed = "|".join(re.escape(name) for name in sorted(names) if name)
        self._names = re.compile(rf"(?<![^\W_])({listed})(?![^\W_])", flags=re.IGNORECASE) if listed else None
        self._numbers: dict[str, int] = {}
        self.removed: Counter[str] = Counter()  # where -> pieces

    def text(self, text: str, where: str) -> str:
        """A text without the pieces that may not stay; one that is a path as a whole goes as a whole."""
        if _PATH.match(text.strip()):
            return self._placeholder(text, where)
        return "".join(
            _spaces(piece) if index % 2 else piece if self._may_stay(piece) else self._placeholder(piece, where)
            for index, piece in enumerate(_SPACE.split(text))
        )

    def name(self, text: str, where: str) -> str:
        """A name: all of it, or a placeholder."""
        is_known = all(self._may_stay(piece) for piece in text.split()) and not _PATH.match(text.strip())
        return " ".join(text.split()) if is_known else self._placeholder(text, where)

    def run_name(self, text: str, where: str) -> str:
        """The id of a run: its time and digest stay, its experiment is a name."""
        parts = _RUN.fullmatch(text)
        if parts is None:
            return self.name(text, where)
        return f"{parts[1]}-{self.name(parts[2], where)}-{parts[3]}"

    def digest(self, text: str, where: str) -> str:
        """Hexadecimal digits and nothing else."""
        return text if re.fullmatch(r"[0-9a-f]{4,64}(-[0-9a-f]{4,64})?", text) else self.name(text, where)

    def hardware(self, text: str, where: str) -> str:
        """The name of a processor, a card, a driver or a platform."""
        words = [word.lower() for word in _WORD.findall(text)]
        is_hardware = all(word in HARDWARE_WORDS or _MODEL.fullmatch(word) or self._is_known(word) for word in words)
        return text if is_hardware and self._is_plain(text) else self.text(text, where)

    def symbol(self, text: str, where: str) -> str:
        """The name of a kernel or an API call: the identifiers of a program, no path and no text."""
        is_symbol = re.fullmatch(r"[\w:<>,()&*~\[\]{} .#+-]+", text, flags=re.ASCII) and self._is_plain(text)
        return text if is_symbol else self.name(text, where)

    def _may_stay(self, piece: str) -> bool:
        if _TIME.fullmatch(piece):
            return True
        return self._is_plain(piece) and all(self._is_known(word.lower()) for word in _WORD.findall(piece))

    def _is_plain(self, text: str) -> bool:
        """No path, no address, no assignment, no name that was given, no sign that is not in use here."""
        is_shaped = _PATH.search(text) or _ADDRESS.search(text) or _ASSIGNMENT.search(text)
        is_named = self._names is not None and self._names.search(text) and text.lower() not in self._known
        return not (is_shaped or is_named) and all(char in _SIGNS or char.isalnum() or char == " " for char in text)

    def _is_known(self, word: str) -> bool:
        if word.isascii() and word.isdigit():
            return len(word) <= _LONGEST_NUMBER
        counted = _COUNTED.fullmatch(word)
        return word in self._known or (counted is not None and counted[1] in self._known)

    def _placeholder(self, piece: str, where: str) -> str:
        self.removed[where] += 1
        return f"removed-{self._numbers.setdefault(piece, len(self._numbers) + 1)}"


def _spaces(text: str) -> str:
    """White space as newlines or blanks: nothing can be written in it."""
    return "\n" if "\n" in text else " " if text else ""
