"""`quorate postmortem`: what happened, from the logs of nodes that need not run any more."""

from __future__ import annotations

import json
import re
import traceback
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from quorate.cli.output import CommandError, Json, emit, plain_terminal, say, stderr, stdout

if TYPE_CHECKING:
    from chaos.postmortem.limits import Limits

#: The input cannot be read, or there is none.
UNREADABLE = 3
#: It could not run at all: what it needs is not installed.
CANNOT = 4
#: As of other commands: nothing is said of the logs.
USAGE = 2
#: Of sysexits.h; 1, as of other commands, would accuse the logs.
FAILED = 70
#: Steps that took less are not told; what was read is, and what was there.
TOLD_S = 1.0
TOLD = ("read ", "take ")
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Engine(StrEnum):
    SAIL = "sail"
    SPARK = "spark"


class Judging(TyperCommand):
    """A command whose exit status judges what was read, so no error may end in such a status."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except Exception as error:
            formatted = getattr(
                error, "format_message", None
            )  # typer's copy of click has its own class
            if formatted is None:
                raise
            raise CommandError(
                f"{formatted()}\n  next: quorate postmortem --help", USAGE
            ) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (CommandError, typer.Exit, typer.Abort):
            raise
        except Exception as error:
            traceback.print_exc()
            raise CommandError(f"the post-mortem itself failed: {error!r}", FAILED) from error


def postmortem(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...",
            help="Data folders of nodes, archives, or folders of those; a path, or an address"
            " on any file system that Spark is set up for.",
        ),
    ],
    archives: Annotated[
        list[str] | None,
        typer.Option("--archive", metavar="ADDRESS", help="One more to read; repeatable."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for the report. Default: postmortem-DATE-TIME here.",
        ),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            "--tables",
            metavar="DIR",
            help="Folder for the Parquet tables; an address that all see, when Spark is a cluster."
            " Default: OUT/tables.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Only what is later: ISO 8601 in UTC, or 24h ago."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only what is earlier.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Only this queue's messages: NAME, or VHOST/NAME.")
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(
            "--message", metavar="ID", help="A page about this message, GROUP-ENTRY-OFFSET."
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history", exists=True, help="What clients saw (history.jsonl of `make chaos`)."
        ),
    ] = None,
    confirmed: Annotated[
        Path | None,
        typer.Option(
            "--confirmed",
            exists=True,
            help="What clients were told is safe: CSV or Parquet with queue, publisher and number"
            " (or message), time.",
        ),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="NAME=NUMBER", help="A threshold; repeatable. See the docs."
        ),
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--engine",
            help="What computes: sail, without Java, or spark. Default: sail for less than 1 GiB of"
            " logs on this machine.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", help="Of Spark. Default: this machine, all cores."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--spark", metavar="NAME=VALUE", help="A setting of Spark's; repeatable."),
    ] = None,
    spark_log: Annotated[
        bool,
        typer.Option("--spark-log", help="Show what Spark says; else it is in OUT/spark.log."),
    ] = False,
    ticket: Annotated[
        bool,
        typer.Option("--ticket", help="Say it as a ticket to paste; it is in OUT/ticket.txt, too."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Find out what happened, from the logs of the nodes alone, and write a report of it.

    Exit status: 0 clean, 1 warnings, 2 wrong usage, 3 input that cannot be read, 4 what it needs is
    missing, 5 a promise was broken, 70 it failed itself.
    """
    from chaos.postmortem.command import post_mortem
    from chaos.postmortem.options import Options, WrongArgument
    from chaos.postmortem.reading.inputs import BadInput
    from chaos.postmortem.session import NotHere

    since_ns, until_ns = _time(since, "--since"), _time(until, "--until")
    if out == "" or (out is not None and "://" in out):
        raise CommandError(f"--out {out}: name a folder of this machine", USAGE)
    folder = Path(out or datetime.now(UTC).strftime("postmortem-%Y%m%d-%H%M%S"))
    options = dict(_pair(each) for each in settings or [])
    progress = Progress(shown=not as_json and not ticket)
    try:
        thresholds = _limits(limits or [])
        asked = Options(thresholds, history, confirmed, since_ns, until_ns, queue, message)
        result = post_mortem(
            [*folders, *(archives or [])],
            folder,
            engine=None if engine is None else engine.value,
            master=master,
            options=options,
            noise=None if spark_log else folder / "spark.log",
            tables=tables,
            progress=progress,
            asked=asked,
        )
    except WrongArgument as error:
        raise CommandError(str(error), USAGE) from error
    except NotHere as error:
        raise CommandError(str(error), CANNOT) from error
    except BadInput as error:
        raise CommandError(str(error), UNREADABLE) from error
    finally:
        progress.end()
    if as_json:
        emit(json.loads((result.folder / "summary.json").read_text(encoding="utf-8")))
    elif ticket:
        text = (result.folder / "ticket.txt").read_text(encoding="utf-8")
        stdout().print(text, end="", markup=False, highlight=False, soft_wrap=True)
    else:
        from chaos.postmortem.report.terminal import print_summary

        print_summary(stdout(), result.folder)
    return result.status


def _time(text: str | None, option: str) -> int | None:
    """Nanoseconds since 1970. Without a zone it is UTC."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            at = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        else:
            at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise CommandError(
            f"{option} {text}: give a time such as 2026-11-22T06:30:00, or 24h", USAGE
        ) from error
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise CommandError(f"--spark {text}: give NAME=VALUE, as in spark.driver.memory=8g", USAGE)
    return name, value


def _limits(given: list[str]) -> Limits:
    from chaos.postmortem.limits import Limits

    known = get_type_hints(Limits)
    values: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        name = name.replace("-", "_")
        try:
            values[name] = known[name](value)
        except (KeyError, ValueError) as error:
            raise CommandError(
                f"--limit {text}: give NAME=NUMBER; names are {', '.join(known)}", USAGE
            ) from error
    return Limits(**values)


class Progress:
    """The steps at work, and the seconds that each took if one could have wondered."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._running: dict[str, None] = {}
        self._status: Any = None
        if shown and not plain_terminal():
            self._status = stderr().status("")
            self._status.start()

    def __call__(self, what: str, seconds: float | None) -> None:
        if seconds is None:
            self._running[what] = None
        else:
            self._running.pop(what, None)
            if self._shown and (seconds >= TOLD_S or what.startswith(TOLD)):
                say(f"  {what:<44}{seconds:7.1f} s")
        if self._status is not None:
            self._status.update(f"{', '.join(list(self._running))} ...")

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
