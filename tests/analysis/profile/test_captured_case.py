"""What a capture says of what it lacks."""

from __future__ import annotations

from collections.abc import Callable

from ddbench.analysis.profile.captured_case import ToolPass


def test_a_buffer_that_overflowed_is_not_taken_for_a_lack_of_rights(make_pass: Callable[..., ToolPass]) -> None:
    """Seen on an H200: samples of every metric 100,000 times a second, in rounds of 20 ms."""
    lost = make_pass(notes=("nsys: GPU Metrics [0]: Sampling buffer overflow",))
    assert "set capture.samples_per_s lower" in lost.why_not_sampled
    assert "as a user who may read counters" in make_pass().why_not_sampled
