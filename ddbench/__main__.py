"""The command line as a process: `ddbench`, and `python -m ddbench` from a checkout that is not installed."""

import signal


def program() -> None:
    """Ends in SystemExit. Ctrl-C while it starts, or when all is done, is as good as ever: one line, exit code 130."""
    try:
        try:
            from ddbench.cli import main

            main(prog_name="ddbench")
        finally:
            _end()
    except KeyboardInterrupt:
        from ddbench.commands import complain

        _end()
        complain("interrupted")
        raise SystemExit(130) from None


def _end() -> None:
    """From here on Ctrl-C is ignored: what Python and torch do at their end cannot be interrupted in good order.

    `python -m` ends by SIGINT, whatever the exit code, once an interrupt has come out of code that was given to `exec`
    as text, which is how dataclasses are made; the next code of that kind makes it forget.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exec("")


if __name__ == "__main__":
    program()
