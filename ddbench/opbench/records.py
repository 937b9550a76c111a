"""What `ddbench bench-ops` observed: one record per op, shape, implementation and cache state; what ops.json holds.

Standard library and pydantic only. Times are nanoseconds, everything that is derived from them is in `derived.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from ddbench.records import Ceilings, Environment, NotMeasured
from ddbench.spec import Record

Kind = Literal["ours", "torch", "peer"]  # a kernel of ours; our plain torch; what torch itself offers
KINDS: tuple[Kind, ...] = ("ours", "torch", "peer")
Cache = Literal["cold", "hot"]
Clock = Literal["graph", "host"]  # the device's events around a replayed CUDA graph; the host's clock
Metric = Literal["time_us", "share_of_floor", "share_of_read", "speedup", "launches"]


def foremost(kinds: Iterable[Kind]) -> Kind | None:
    """What a gate holds of an op: our kernels where they run, else our plain torch; else torch's, as a control."""
    return min(kinds, key=KINDS.index, default=None)


class Target(Record):
    """What our implementations must reach on a shape, with a cold cache: at most a time or launches, at least the rest.

    `share_of_read`: time of the fewest bytes at the measured read ceiling / time. `speedup`: over the fastest correct
    one of the implementations `against`.
    """

    metric: Metric
    limit: float
    against: tuple[str, ...] = ()

    @property
    def is_ceiling(self) -> bool:
        return self.metric in ("time_us", "launches")


class _Row(Record):
    op: str
    shape: str
    about: str  # the shape in words
    implementation: str
    kind: Kind
    targets: tuple[Target, ...] = ()


class OkRow(_Row):
    """Correct, and timed."""

    status: Literal["ok"] = "ok"
    cache: Cache
    num_bytes: float = Field(ge=0)  # fewest bytes of a call, mean over the sets of inputs
    num_flops: float = Field(ge=0)
    time_ns: float = Field(gt=0)  # per call, median over samples
    low_ns: float | NotMeasured  # of the 95 % interval of the median
    high_ns: float | NotMeasured
    num_samples: int = Field(ge=1)
    calls_per_sample: int = Field(ge=1)
    num_sets: int = Field(ge=1)  # of inputs that the calls take in turn
    clock: Clock
    eager_ns: float | NotMeasured  # per call, launched from the host back to back
    launches: int | NotMeasured  # kernels of one call
    error: float  # largest error over largest magnitude, against the computation in fp32
    tolerance: float


class IncorrectRow(_Row):
    """The result is wrong: no time by construction."""

    status: Literal["incorrect"] = "incorrect"
    detail: str


class NotMeasuredRow(_Row):
    """Cannot run here, or failed."""

    status: Literal["not_measured"] = "not_measured"
    reason: str


OpRow = Annotated[OkRow | IncorrectRow | NotMeasuredRow, Field(discriminator="status")]


class OpsFile(Record):
    """What ops.json holds."""

    schema_version: int = 1
    ddbench_version: str
    created_at: str  # UTC, ISO 8601
    selection: Literal["quick", "default", "full"]
    dtype: str
    seconds: float
    environment: Environment
    ceilings: Ceilings
    rows: tuple[OpRow, ...]
