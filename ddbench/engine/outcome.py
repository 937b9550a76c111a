"""What the host learns from a round: one row per request, packed by `kernels/advance.py`, brought by one copy.

Letters: B batch rows, P = draft horizon + 1.
"""

from __future__ import annotations

from ddbench.engine.types import RoundOutcome
from ddbench.errors import DdbenchError

_NUM_SCALARS = 4  # columns besides path and tokens


def unpack(rows: list[list[float]], request_ids: tuple[int, ...], verify_width: int) -> RoundOutcome:
    """A report's rows, as the host has read them -> what they say; idle rows say nothing."""
    width = (len(rows[0]) - _NUM_SCALARS) // 2  # P
    took_part, paths, tokens, num_accepted, num_nodes, expected = [], [], [], [], [], []
    for request_id, row in zip(request_ids, rows, strict=True):
        accepted, emitted, nodes, length = row[2 * width :]
        if length != length:
            raise DdbenchError(f"request {request_id}: NaN in the draft logits; check the drafter's weights and dtype")
        if not emitted:
            continue
        took_part.append(request_id)
        paths.append(row[: int(accepted) + 1])
        tokens.append(tuple(int(token) for token in row[width : width + int(emitted)]))
        num_accepted.append(int(accepted))
        num_nodes.append(int(nodes))
        expected.append(length)
    return RoundOutcome(
        request_ids=tuple(took_part),
        num_nodes=tuple(num_nodes),
        num_accepted=tuple(num_accepted),
        tokens=tuple(tokens),
        expected_length=tuple(expected),
        is_identity_path=tuple(path == list(range(len(path))) for path in paths),
        verify_width=verify_width,
    )
