"""How a sweep ends before its last case: Ctrl-C, SIGTERM, a lost terminal, a full disk. What is finished is kept.

Around the loop over the cases in `sweep.py`; a process that is killed outright needs none of this, since a
case's folder is there as a whole or not at all.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ddbench.errors import DdbenchError
from ddbench.harness.store import RunFolder

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SweepInterrupted(DdbenchError):
    """Stopped from outside; what is finished is kept."""

    exit_code = 130


@contextmanager
def resumable(run: RunFolder, words: str = "") -> Iterator[None]:
    """Turn a signal or an OSError within into one line that says how to go on; `words` are what that takes besides.

    The first signal counts. From then on the process is about to end, in seconds at most, and signals are ignored: they
    would only disturb the tidying up.
    """
    before = {number: signal.getsignal(number) for number in ENDINGS}
    mine = [number for number in ENDINGS if before[number] is not signal.SIG_IGN]  # nohup stays nohup

    def interrupt(number: int, frame: FrameType | None) -> None:
        for one in mine:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in mine:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt as error:
        mine.clear()
        raise SweepInterrupted(f"interrupted; {_kept(run)}{words}") from error
    except OSError as error:
        raise DdbenchError(f"the sweep cannot go on ({error.strerror or error}); {_kept(run)}{words}") from error
    finally:
        for number in mine:
            signal.signal(number, before[number])


def _kept(run: RunFolder) -> str:
    kept = f"{len(run.done)} of {len(run.manifest.case_ids)} cases are kept"
    return f"{kept}. Go on with: ddbench sweep --resume {shlex.quote(str(run.path))}"
