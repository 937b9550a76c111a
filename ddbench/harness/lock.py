"""One sweep per device: two that share it would measure each other."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ddbench.errors import DdbenchError


class DeviceBusy(DdbenchError):
    """Another sweep has the device. Exit code 4: nothing is wrong with the request."""


@contextmanager
def device_lock(device: str, purpose: str, folder: Path | None = None) -> Iterator[None]:
    """Hold the device's lock file; a device that is taken is an error that names the holder."""
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    lock = FileLock(folder / f"ddbench-{device}.lock", timeout=0, mode=0o666)
    holder = folder / f"ddbench-{device}.holder"
    try:
        lock.acquire()
    except Timeout as error:
        raise DeviceBusy(f"device '{device}' is in use by {_describe(holder)}: wait for it or stop it") from error
    except OSError as error:
        raise DeviceBusy(f"device '{device}': its lock file cannot be opened ({error.strerror})") from error
    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with suppress(OSError):  # a note for whoever waits; the lock holds without it
            holder.write_text(json.dumps({"pid": os.getpid(), "purpose": purpose, "since": now}), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _describe(holder: Path) -> str:
    try:
        facts = json.loads(holder.read_text(encoding="utf-8"))
        return f"process {facts['pid']} ({facts['purpose']}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another ddbench process"
