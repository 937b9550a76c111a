"""GateResult -> what GitHub shows: workflow annotations, the step's summary, a comment. Escaped, and within its limits.

GitHub drops a summary above 1 MiB and refuses a comment above 64 kB; of annotations it shows ten errors and ten
warnings a step. What does not fit is left out with a note that says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddbench.analysis.gate.rows import GateResult
from ddbench.report.gate_report import row_line, rows_by_shape

SUMMARY_BYTES = 1024 * 1024 - 1  # of one step, whoever wrote it
COMMENT_BYTES = 60_000
MOST_ANNOTATIONS = 10  # of each level and step
_MESSAGE_CHARACTERS = 500
_CUT = "\n\n_The rest does not fit here; the whole of it is in gate.html and gate.md._\n"


def escape_data(text: str) -> str:
    """The message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """The value of a property of a workflow command."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def annotation(level: str, title: str, message: str) -> str:
    """One workflow command, on one line."""
    return f"::{level} title={escape_property(title)}::{escape_data(_shortened(message))}"


def annotation_lines(result: GateResult) -> tuple[str, ...]:
    """One per shape and level, errors first; the ones that GitHub would not show are counted in a notice."""
    errors = list(_of_level(result, "error"))
    warnings = list(_of_level(result, "warning"))
    shown = errors[:MOST_ANNOTATIONS] + warnings[:MOST_ANNOTATIONS]
    left = len(errors) + len(warnings) - len(shown)
    if left:
        shown.append(annotation("notice", "ddbench gate", f"{left} more are not shown here: see the report"))
    return tuple(shown)


def _of_level(result: GateResult, level: str) -> Iterator[str]:
    wanted = (1, 4) if level == "error" else (3, 5)
    for shape, rows in rows_by_shape(result.rows).items():
        own = [row for row in rows if result.code_of(row) in wanted]
        if own:
            lines = [row_line(row) for row in own]
            yield annotation(level, f"ddbench gate: {shape or own[0].name}", "\n".join(lines))


def _shortened(message: str) -> str:
    if len(message) <= _MESSAGE_CHARACTERS:
        return message
    return message[: _MESSAGE_CHARACTERS - 4].rstrip() + " ..."


def bounded(text: str, most: int) -> str:
    """`text` in at most that many bytes of UTF-8: whole lines, and a note where some are left out."""
    if len(text.encode("utf-8", "replace")) <= most:
        return text
    room = most - len(_CUT.encode())
    if room <= 0:
        return ""
    kept, used = [], 0
    for line in text.splitlines(keepends=True):
        used += len(line.encode("utf-8", "replace"))
        if used > room:
            break
        kept.append(line)
    return "".join(kept).rstrip("\n") + _CUT


def comment_text(markdown: str) -> str:
    """The report as a comment on a pull request."""
    return bounded(markdown, COMMENT_BYTES)


def summary_text(markdown: str, used: int) -> str:
    """The report as far as it fits behind `used` bytes that the summary already holds."""
    return bounded(markdown, SUMMARY_BYTES - used)
