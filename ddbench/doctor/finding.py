"""What a check finds: there and working, missing, or there and not working; with the cure on one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`missing` is no fault where it is not needed; `failed` always is one."""

    status: Status
    detail: str
    cure: str = ""

    def __post_init__(self) -> None:
        assert "\n" not in self.detail + self.cure
        assert self.cure or self.status != "failed", self.detail


def ok(detail: str) -> Finding:
    return Finding("ok", detail)


def missing(detail: str, cure: str = "") -> Finding:
    return Finding("missing", detail, cure)


def failed(detail: str, cure: str) -> Finding:
    return Finding("failed", detail, cure)


NO_GPU = missing("no GPU here")
