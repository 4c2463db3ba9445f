"""What commands share: where the cluster is, how results and errors are shown."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from quorate.credentials import split_credentials
from quorate.errors import OutcomeUnknown, QuorateError, Refused, Unreachable
from quorate.places import Contexts, local_cluster, named_by

if TYPE_CHECKING:
    import ssl

    from rich.console import Console

PIPE_COLUMNS = 1_000
#: The exit status of a command that was interrupted.
EXIT_INTERRUPTED = 130
Result = TypeVar("Result")

Json = Annotated[
    bool, typer.Option("--json", help="Results as JSON on standard output, words on the other.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", help="Seconds after which an outcome is given up as unknown.")
]


@dataclass(slots=True)
class Login:
    """Where this command goes, and as whom. What stands after its name beats what stands before."""

    url: str | None = None
    context: str | None = None
    user: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None

    @property
    def password(self) -> str | None:
        """Raises CommandError."""
        if self.user is None:
            return None
        if self.password_file is None:
            return os.environ.get("QUORATE_PASSWORD")
        try:
            return self.password_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise CommandError(f"{self.password_file} cannot be read: {why(error)}", 2) from error

    def tls(self) -> ssl.SSLContext | None:
        """None: as it is usual. Raises CommandError."""
        if self.ca is None and self.cert is None:
            return None
        import ssl

        file = self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca)
            file = self.cert
            if self.cert is not None:
                context.load_cert_chain(self.cert)
        except (OSError, ValueError) as error:
            raise CommandError(
                f"{file} cannot be used: {why(error)}; give a PEM file", 2
            ) from error
        return context


login = Login()


@dataclass(slots=True)
class Viewing:
    """How what is shown is chosen, ordered and repeated."""

    watch: float | None = None  # seconds
    filter: str | None = None
    sort: str | None = None
    _title: str | None = None

    def begin(self, title: str) -> None:
        """What is shown next takes the place of what is on the screen."""
        self._title = title

    def clear(self) -> None:
        if self._title is not None and sys.stdout.isatty():
            sys.stdout.write(f"\x1b[H\x1b[2J{self._title}\n\n")
            sys.stdout.flush()
        self._title = None


viewing = Viewing()


def _given_here(value: str | None) -> str | None:
    return login.url if value is None else value


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="ADDRESS,...",
        callback=_given_here,
        help="Any nodes of the cluster, as host:port, or the folder of `quorate up --dir`."
        " Default: those that `quorate up` wrote into .quorate/ here or in a folder above.",
    ),
]


class CommandError(Exception):
    """A command cannot go on; the text says what to do next."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def stdout() -> Console:
    """A file or a pipe gets tables of any width: their lines are whole, for grep."""
    from rich.console import Console

    viewing.clear()
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return Console()
    return Console(soft_wrap=True, width=PIPE_COLUMNS)


def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, soft_wrap=not sys.stderr.isatty())


def emit(value: Any) -> None:
    """One JSON document or line on standard output."""
    sys.stdout.write(json.dumps(value, default=_plain) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def why(error: Exception) -> str:
    """Without the number and the path that an OSError names."""
    return getattr(error, "strerror", None) or str(error)


def say(text: str) -> None:
    """Words for a person, on standard error, so that standard output stays clean."""
    viewing.clear()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def complain(text: str) -> None:
    say(f"quorate: {text}")


_ADVICE = {
    "no_queue": "make it with `quorate queue declare NAME`, or see `quorate queue list`",
    "inequivalent_arguments": "`quorate queue show NAME` tells what it was declared with",
    "precondition_failed": "a virtual host that is protected from deletion may be deleted after"
    " `quorate vhost protect VHOST --undo`",
    "not_empty": "it has messages; leave --if-empty away to delete it all the same",
    "access_refused": "name a user who may with --user and --password-file",
    "queue_full": "consume from it, or raise its x-max-length",
    "no_leader": "a majority of the group's nodes must run: see `quorate status`",
    "no_message": "`quorate queue peek NAME` shows the ids of messages that are there",
    "conflict": "`quorate stream list` and `quorate cursor list STREAM` show what is there;"
    " `quorate stream edit` and `quorate cursor edit` change it",
    "login_refused": "check --user, and --password-file or QUORATE_PASSWORD; guest may only come"
    " from a node's own machine",
    "not_authorised": "if another user may, name it with --user and --password-file;"
    " `quorate user tags` and `quorate permission set` say who may what",
}


def explain(error: Exception) -> int | None:
    """Say what went wrong and what to do; the exit status, or None for a bug of ours."""
    status = _explain(error)
    for note in getattr(error, "__notes__", ()) if status is not None else ():
        say(f"  {note}")
    return status


def _explain(error: Exception) -> int | None:
    match error:
        case Unreachable():
            complain(
                f"{error.reason}\n  next: start a cluster with `quorate up`,"
                " or name its nodes with --url or QUORATE_URL"
            )
            return 4
        case Refused():
            advice = _ADVICE.get(error.code)
            complain(f"refused ({error.code}): {error.reason}")
            if advice:
                say(f"  next: {advice}")
            return 4 if error.code == "no_leader" else 1
        case OutcomeUnknown():
            complain(f"outcome unknown: {error.reason}\n  next: look at `quorate status`")
            return 4
        case CommandError():
            complain(str(error))
            return error.status
        case QuorateError():
            complain(str(error))
            return 1
        case _:
            pass
    if (message := getattr(error, "format_message", None)) is not None:
        # Wrong usage; typer's own copy of click has another class for it than click.
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "quorate"
        if text := message():  # none when help is the answer
            complain(f"{text}\n  next: {command} --help")
        return 2
    status = getattr(error, "exit_code", None)
    if isinstance(status, int):
        complain(str(error))
        return status
    from quorate.local import LocalClusterError

    if isinstance(error, LocalClusterError):
        complain(str(error))
        return 1
    if isinstance(error, OSError):
        complain(f"{error.filename}: {why(error)}" if error.filename else str(error))
        return 1
    return None


def addresses(url: str | None) -> list[str]:
    """Where the cluster is. Raises CommandError."""
    if login.context is not None:
        if url:
            raise CommandError(
                f"two clusters are named: {url} (by --url or QUORATE_URL) and the context"
                f" {login.context} (by --context or QUORATE_CONTEXT): give one of them",
                2,
            )
        return _of_context(login.context)
    if url:
        return _of_url(url)
    if (local := local_cluster()) is not None:
        return local
    if (chosen := Contexts.read().current) is not None:
        return _of_context(chosen)
    raise CommandError(
        "no cluster found here: start one with `quorate up`, or name its nodes with --url or"
        " QUORATE_URL, or its folder, where it was started with `up --dir`",
        4,
    )


def _of_context(name: str) -> list[str]:
    """What was given on the command line is not changed by it."""
    context = Contexts.read().named(name)
    for field in ("user", "password_file", "ca", "cert"):
        if getattr(login, field) is None:
            setattr(login, field, getattr(context, field))
    return _of_url(context.url)


def _of_url(url: str) -> list[str]:
    urls = named_by(url)
    try:
        split_credentials(urls, None, None)
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    return urls


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """On uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        import asyncio

        return asyncio.run(work)
    return uvloop.run(work)


def human_rate(count: float, span_s: float) -> str:
    return f"{count / span_s:,.0f}/s" if span_s > 0 else "-"


def percentile(sorted_values: list[float], share: float) -> float:
    """Nearest rank; 0 when there are none."""
    if not sorted_values:
        return 0.0
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def plain_terminal() -> bool:
    """No live output: standard error is a file or a pipe, or a terminal without a cursor."""
    return not sys.stderr.isatty() or os.environ.get("TERM") == "dumb"
