"""What all commands share: every error that is meant for the user ends in one line on standard error and an exit code.

Below `cli.py`, which holds the commands themselves. Tracebacks are left to our own faults.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from ddbench.errors import DdbenchError, UserError, did_you_mean, shown

OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class Folder(click.ParamType):
    """A folder, which need not be there yet."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not value:
            self.fail("expected a folder, got an empty name", param, ctx)
        if os.path.exists(value) and not os.path.isdir(value):
            self.fail(f"expected a folder, {shown(str(value))} is a file", param, ctx)
        return Path(value)


class Commands(click.Group):
    """Turns errors that are meant for the user into one line and an exit code; finds those that live elsewhere."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            code: object = super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # a group by itself: its help
                click.echo(error.format_message())
                sys.exit(0)
            complain(wrong_usage(error))
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # we are about to end; a second one would only make noise
            complain("interrupted")
            code = 130
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # as click would have it, but for its empty line
            raise click.Abort from error
        except DdbenchError as error:
            complain(str(error))
            ctx.exit(error.exit_code)
        except BrokenPipeError:  # whoever read our output has seen enough
            raise
        except OSError as error:
            is_full = error.errno in OUT_OF_SPACE
            if error.filename is None and not is_full:
                raise
            complain(f"{shown(str(error.filename)) if error.filename else 'standard output'}: {error.strerror}")
            ctx.exit(4 if is_full else 2)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UserError(f"unknown command {shown(args[0])}: {did_you_mean(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        elsewhere = ("bench-ops", "doctor", "gate", "models", "scrub", "timeline", "train", "workloads")
        return sorted([*super().list_commands(ctx), *elsewhere])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "train":
            from ddbench.train.cli import train

            return train
        if cmd_name == "bench-ops":
            from ddbench.opbench.cli import bench_ops_command

            return bench_ops_command
        if cmd_name == "doctor":
            from ddbench.doctor.cli import doctor_command

            return doctor_command
        if cmd_name == "gate":
            from ddbench.gate_cli import gate_command

            return gate_command
        if cmd_name == "models":
            from ddbench.modelstore.cli import models

            return models
        if cmd_name == "scrub":
            from ddbench.scrub.cli import scrub_command

            return scrub_command
        if cmd_name == "timeline":
            from ddbench.timeline.cli import timeline_command

            return timeline_command
        if cmd_name == "workloads":
            from ddbench.workloads.cli import workloads

            return workloads
        return super().get_command(ctx, cmd_name)


def named(option: str, text: str | None) -> tuple[str, ...]:
    """The comma-separated words of an option, which has some where it is given."""
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    if text is not None and not words:
        raise UserError(f"--{option} names nothing: leave it out, or give a name")
    return words


def complain(message: str) -> None:
    """One line on standard error."""
    from rich.console import Console
    from rich.text import Text

    line = " ".join(f"error: {message}".splitlines())
    Console(stderr=True).print(Text(line, style="red"), soft_wrap=True)


def wrong_usage(error: click.ClickException) -> str:
    """click's complaint with what is there instead, and where to read on."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and context is not None:
        options = [
            name for one in context.command.get_params(context) if one.param_type_name == "option" for name in one.opts
        ]
        axis = error.option_name.lstrip("-").replace("-", "_")
        text = f"unknown option '{error.option_name}': " + (
            f"an axis is set with --set {axis}=VALUE"
            if axis in _axis_names()
            else did_you_mean(error.option_name, options)
        )
    return f"{text[0].lower()}{text[1:]}" + (f"; see {context.command_path} --help" if context is not None else "")


def _axis_names() -> tuple[str, ...]:
    from ddbench.spec import axis_names

    return axis_names()
