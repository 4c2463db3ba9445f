"""Before something is lost, a person is asked, or has said so with --yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quorate.cli.output import CommandError, say

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def agree(change: str, loss: str, *, yes: bool, instead: str = "") -> None:
    """`change` will cause `loss`. Raises CommandError unless it is agreed to.

    Without a terminal nobody can be asked. `instead`: what would do without a loss.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{change}: not done: {loss}\n  next: {instead}repeat it with --yes", 2)
    if answer(f"{change}: {loss}. Do it? [y/N]").lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


def answer(question: str) -> str:
    """What a person types. Raises CommandError without a terminal."""
    if not sys.stdin.isatty():
        raise CommandError("it asks before it does this: run it in a terminal, or give --yes", 2)
    say(question)
    return sys.stdin.readline().strip()


def counted(count: int, one: str) -> str:
    return f"{count:,} {one}" + ("" if count == 1 else "s")
