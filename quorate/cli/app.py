"""The commands and their help; what each does is in a module of its own, imported when it runs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer
import typer.main

from quorate.cli.api import Cluster, Commands, InVhost, Patient, Queue
from quorate.cli.backup import backup, restore
from quorate.cli.lost import recover_messages
from quorate.cli.message import message
from quorate.cli.output import CommandError, Json, Timeout, login, viewing
from quorate.cli.postmortem import Judging, postmortem
from quorate.cli.tree import ADMINISTRATION, LOOKING, RUNNING, USING, Root
from quorate.places import FOLDER

app = Commands(
    name="quorate",
    cls=Root,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A message broker whose queues are replicated by Raft.\n\n"
    "Try it: `quorate up` in one terminal; in another `quorate publish orders --count 100000`"
    " and `quorate consume orders --count 100000`.\n\n"
    "Exit status: 0 done, 1 refused or failed, 2 wrong usage or settings, 3 corrupt input,"
    " 4 nobody answered or the outcome is unknown, 5 a promise was broken, 130 interrupted.",
)
log_app = Commands(help="Read a node's log from its files alone.")
app.add_typer(log_app, name="log", rich_help_panel=LOOKING)
app.command(rich_help_panel=ADMINISTRATION)(backup)
app.command(rich_help_panel=ADMINISTRATION)(restore)
app.command("recover-messages", rich_help_panel=ADMINISTRATION)(recover_messages)
app.command(rich_help_panel=LOOKING)(message)
app.command(cls=Judging, rich_help_panel=LOOKING)(postmortem)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            sys.stdout.write(f"quorate {version('quorate')}\n")
        except PackageNotFoundError:
            raise CommandError("it is not installed, but runs from its sources", 1) from None
        raise typer.Exit


@app.callback()
def everywhere(
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="QUORATE_URL",
            metavar="ADDRESS,...",
            help="Any nodes of the cluster, as host:port, or the folder of `quorate up --dir`.",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", envvar="QUORATE_USER", help="Who we are, where guest will not do."),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file", help="File with the user's password. Default: QUORATE_PASSWORD."
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            envvar="QUORATE_CA",
            help="The authority that signs the nodes' certificates (PEM file), for addresses that"
            " begin with https://. Default: those of this machine.",
        ),
    ] = None,
    cert: Annotated[
        Path | None,
        typer.Option(
            "--cert",
            envvar="QUORATE_CERT",
            help="Our certificate and its key (one PEM file), where nodes ask for one.",
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar="QUORATE_CONTEXT",
            help="Which cluster, by the name that `quorate context add` gave it.",
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch", metavar="SECONDS", min=0.1, hidden=True, help="Show it again and again."
        ),
    ] = None,
    filter: Annotated[  # noqa: A002 -- it is what people type
        str | None,
        typer.Option(
            "--filter",
            metavar="TEXT",
            hidden=True,
            help="Only rows that contain this in a column, or COLUMN=TEXT: in that one.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            hidden=True,
            help="By this column; -COLUMN: the largest first.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and end.")
    ] = False,
) -> None:
    """These options may also stand after a command that talks to a cluster."""
    login.url, login.user, login.password_file = url, user, password_file
    login.ca, login.cert, login.context = ca, cert, context
    viewing.watch, viewing.filter, viewing.sort = watch, filter, sort


#: By this a shell's script asks what a word can become.
COMPLETE_VAR = "_QUORATE_COMPLETE"


def command_line() -> Root:
    """All commands, with the options of `everywhere` after those that they fit."""
    if COMPLETE_VAR in os.environ:
        from typer.completion import (
            completion_init,  # pyright: ignore[reportPrivateImportUsage] -- there is no other door
        )

        completion_init()
    root = cast("Root", typer.main.get_command(app))
    root.grow()
    return root


# --- running a cluster ----------------------------------------------------------------------------


@app.command(rich_help_panel=RUNNING)
def up(
    folder: Annotated[
        Path, typer.Option("--dir", help="Folder for data, logs and addresses of the nodes.")
    ] = Path(FOLDER),
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=9, help="How many.")] = 3,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete what the folder holds, and begin anew.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Start a cluster on loopback and show it until Ctrl-C, which stops all of it.

    Ports and data stay the same at the next start. Other commands, run here, find the cluster by
    themselves.
    """
    from quorate.cli.up import run_up

    return run_up(folder, nodes=nodes, fresh=fresh, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Quick(Cluster):
    """For what is looked at when something is wrong."""

    timeout: Timeout = 5.0


@dataclass(frozen=True, slots=True)
class Repeated(Cluster):
    """It is asked again and again."""

    timeout: Timeout = 6.0


@app.command(rich_help_panel=RUNNING)
def status(cluster: Quick) -> int:
    """Nodes, groups, their leaders, and how far each copy is behind."""
    from quorate.cli.nodes import run_status

    return run_status(cluster)


@app.command(rich_help_panel=RUNNING)
def top(
    cluster: Repeated,
    once: Annotated[
        bool, typer.Option("--once", help="Show it once and end, as on a pipe.")
    ] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="Queues by oldest (the default), ready, unacked, in, out, consumers or queue;"
            " -COLUMN: the other way round.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--filter", metavar="TEXT", help="Only queues with this in their names."),
    ] = None,
) -> int:
    """How the cluster is, now and until you press q: rates, what needs attention, nodes with their
    load, leaders that move, and the queues whose messages have waited longest.
    """
    from quorate.cli.top import run_top

    return run_top(cluster, once=once, sort=sort, text=text)


@app.command(rich_help_panel=RUNNING)
def doctor(cluster: Cluster) -> int:
    """Look for what is wrong with a cluster, or soon will be, and say what mends it. Exit status 1:
    something is wrong now.
    """
    from quorate.cli.doctor import run_doctor

    return run_doctor(cluster)


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(rich_help_panel=LOOKING)
def completion(shell: Annotated[Shell, typer.Argument(help="For which shell.")]) -> int:
    """Print a script that completes commands and options: `source <(quorate completion bash)`; for
    zsh the same; for fish `quorate completion fish | source`.
    """
    from typer.completion import (
        get_completion_script,  # pyright: ignore[reportPrivateImportUsage] -- as above
    )

    script = get_completion_script(
        prog_name="quorate", complete_var=COMPLETE_VAR, shell=shell.value
    )
    sys.stdout.write(script + "\n")
    return 0


# --- messages -------------------------------------------------------------------------------------


@app.command(rich_help_panel=USING)
def publish(
    cluster: InVhost,
    queue: Queue,
    body: Annotated[list[str] | None, typer.Argument(help="One message each.")] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Make this many numbered messages.")
    ] = 0,
    size: Annotated[int, typer.Option("--size", min=23, help="Bytes of each of those.")] = 100,
    file: Annotated[
        Path | None, typer.Option("--file", help="One line, one message; - is standard input.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Messages in a frame.")] = 256,
    key: Annotated[str | None, typer.Option("--key", help="Key, for all of them.")] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", min=0, max=255, help="In queues with x-max-priority."),
    ] = None,
    ttl_ms: Annotated[
        int | None, typer.Option("--ttl-ms", min=0, help="Each is dropped after so long.")
    ] = None,
) -> int:
    """Publish messages and wait until a majority has each of them on disk.

    Messages are the BODY arguments, the lines of a file or of standard input, or made up with
    --count: those carry numbers, by which `quorate consume` finds what is missing. The queue is
    declared when it does not exist.
    """
    from quorate.cli.publish import What, run_publish

    what = What(body or [], count, size, file, batch, key, priority, ttl_ms)
    return run_publish(cluster, queue, what)


@app.command(rich_help_panel=USING)
def consume(
    cluster: InVhost,
    queue: Queue,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")
    ] = None,
    show: Annotated[
        bool | None,
        typer.Option("--print/--quiet", help="Write each body as a line. Default: up to 20."),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch/--one-by-one", help="Settle batches, or single messages.")
    ] = True,
    credit: Annotated[int, typer.Option("--credit", min=1, help="Most unsettled ones.")] = 4_096,
    idle: Annotated[
        float | None,
        typer.Option("--idle", min=0, help="Give up after so many seconds without a message."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Give every message back at the end.")
    ] = False,
) -> int:
    """Take messages, settle them, and account for the numbered ones: missing, duplicates, out of
    order.

    Without --count it goes on until Ctrl-C. With it, it gives up after 10 seconds without a message
    (see --idle), and exits with status 1 when messages are missing.
    """
    from quorate.cli.consume import How, run_consume

    how = How(count, show, batch, credit, idle, keep)
    return run_consume(cluster, queue, how)


# --- looking closer -------------------------------------------------------------------------------


@log_app.command("dump")
def log_dump(
    directory: Annotated[
        Path, typer.Argument(help="A node's data folder, or the log folder in it.")
    ],
    group: Annotated[int | None, typer.Option("--group", help="Only this group.")] = None,
    first: Annotated[int | None, typer.Option("--first", help="From this index on.")] = None,
    last: Annotated[int | None, typer.Option("--last", help="Up to this index.")] = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="Only records of this kind; repeatable.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Print every record of a log, and verify every checksum. Exit status 3 when something is
    damaged.
    """
    from quorate.cli.nodes import run_log_dump

    return run_log_dump(directory, group, first, last, kinds, as_json=as_json)


@app.command(rich_help_panel=LOOKING)
def bench(
    cluster: Patient,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="So many.")] = 100_000,
    size: Annotated[int, typer.Option("--size", min=23, help="Bytes of each.")] = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Messages in a frame.")] = 256,
) -> int:
    """A quick look at a running cluster: publish, consume and latency on a queue of its own.

    `make bench` in the project's repository is the real one: it also measures memory, CPU and
    failover.
    """
    from quorate.cli.bench import run_bench

    return run_bench(cluster, count, size, batch)


@app.command(rich_help_panel=LOOKING)
def failover(
    kills: Annotated[int, typer.Option("--kills", min=1, help="How many times.")] = 10,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Messages a second.")] = 1_000,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Keep the nodes' data here. Default: a new one.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Start three nodes, kill the leader again and again, and count: no confirmed message may be
    lost.

    Exit status 1 when one is, or when a duplicate was not flagged as redelivered.
    """
    from quorate.failover import run_failover

    return run_failover(kills, rate=rate, folder=folder, as_json=as_json)
