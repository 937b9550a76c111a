"""GateResult -> JUnit XML, which continuous integration shows as tests: one suite, one class a shape, one case a check.

A regression is a failure, what could not be measured or compared an error, what is only shown is skipped. Text survives
whatever it holds; characters that XML cannot hold become a replacement character.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from ddbench.analysis.gate.rows import PRECEDENCE, GateResult, Kind, Row
from ddbench.report.gate_report import row_line, rows_by_shape

_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_EXACT: tuple[Kind, ...] = ("counter", "output")
_FEW = 20  # lines of one failure


def junit_text(result: GateResult) -> str:
    """The document. No times and no dates: the same result gives the same text."""
    suite = TestSuite(_clean(f"ddbench gate {result.experiment}".strip()))
    cases = []
    for shape, rows in rows_by_shape(result.rows).items():
        exact = [row for row in rows if row.kind in _EXACT]
        if exact:
            cases.append(_case(shape, "counters", exact, result))
        cases += [_case(shape, row.name, [row], result) for row in rows if row.kind not in _EXACT]
    suite.add_testcases(cases)
    document = JUnitXml()
    document.add_testsuite(suite)
    buffer = io.BytesIO()
    document.write(buffer, pretty=True)
    return buffer.getvalue().decode("utf-8").rstrip() + "\n"


def _case(shape: str, name: str, rows: Sequence[Row], result: GateResult) -> TestCase:
    case = TestCase(_clean(name), classname=_clean(shape or "run"))
    worst = max(rows, key=lambda row: _weight(row, result))
    ours = [row for row in rows if row.verdict == worst.verdict]
    message = _clean(f"{row_line(worst)}" + (f" (and {len(ours) - 1} more)" if len(ours) > 1 else ""))
    code = result.code_of(worst)
    outcome: Error | Failure | Skipped
    if code == 1:
        outcome = Failure(message, worst.verdict)
    elif code:
        outcome = Error(message, worst.verdict)
    elif worst.verdict in ("not_gated", "undecided"):
        outcome = Skipped(message)
    else:
        return case
    lines = [row_line(row) for row in ours[:_FEW]] + ["..."] * (len(ours) > _FEW)
    outcome.text = _clean("\n".join(lines))
    case.result = [outcome]
    return case


def _weight(row: Row, result: GateResult) -> tuple[int, int]:
    """The worst row speaks for its case; one that is merely shown speaks only where all others are."""
    passes = {"not_gated": 0, "same": 1, "improved": 2}
    return (-PRECEDENCE.index(result.code_of(row)), passes.get(row.verdict, 3))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
