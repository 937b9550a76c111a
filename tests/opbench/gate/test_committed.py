"""The committed proof of the gate over single ops on an H200: made again, it says the same.

`second` is the baseline's own code, run once more; in the others `tests/gpu/planted.py` slowed one op down by 5 %.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ddbench.cli import main

REPORTS = Path(__file__).parents[3] / "reports"
PROOF = REPORTS / "2026-11-ops-gate-h200"
BASELINE = REPORTS / "baselines" / "ops-h200.json"


@pytest.mark.parametrize(
    ("run", "options", "exit_code", "said"),
    [
        ("second", (), 0, "comment.md"),  # gate.md is a long list of what is the same
        ("planted-wait", ("--only", "timings", "--op", "moe_experts_int4"), 1, "gate.md"),  # the wait is a launch more
        ("planted-longer", ("--op", "tree_attention"), 1, "gate.md"),
    ],
)
def test_the_gate_passes_the_same_code_and_fails_five_percent_of_one_kernel(
    run: str, options: tuple[str, ...], exit_code: int, said: str, tmp_path: Path
) -> None:
    words = (
        "gate",
        str(PROOF / run),
        "--baseline",
        str(BASELINE),
        "--no-annotations",
        "--out",
        str(tmp_path),
        *options,
    )
    assert CliRunner().invoke(main, words).exit_code == exit_code
    assert (tmp_path / said).read_bytes() == (PROOF / run / said).read_bytes()
