"""The commands and their help; what each does is in a module of its own, imported when it runs."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer
import typer.main

from quorate.cli.asking import Yes
from quorate.cli.backup import backup, restore
from quorate.cli.drain import node_app
from quorate.cli.lost import recover_messages
from quorate.cli.message import message
from quorate.cli.output import (
    CommandError,
    Json,
    Timeout,
    Url,
    Vhost,
    login,
    viewing,
)
from quorate.cli.postmortem import Judging, postmortem
from quorate.cli.tree import ADMINISTRATION, LOOKING, RUNNING, USING, Root
from quorate.places import FOLDER

app = typer.Typer(
    name="quorate",
    cls=Root,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A message broker whose queues are replicated by Raft.\n\n"
    "Try it: `quorate up` in one terminal; in another `quorate publish orders --count 100000`"
    " and `quorate consume orders --count 100000`.\n\n"
    "Exit status: 0 done, 1 refused or failed, 2 wrong usage or settings, 3 corrupt input,"
    " 4 nobody answered or the outcome is unknown.",
)
queue_app = typer.Typer(no_args_is_help=True, help="Declare, list, look into and delete queues.")
log_app = typer.Typer(no_args_is_help=True, help="Read a node's log from its files alone.")
app.add_typer(node_app, name="node", rich_help_panel=RUNNING)
app.add_typer(queue_app, name="queue", rich_help_panel=USING)
app.add_typer(log_app, name="log", rich_help_panel=LOOKING)
app.command(rich_help_panel=ADMINISTRATION)(backup)
app.command(rich_help_panel=ADMINISTRATION)(restore)
app.command("recover-messages", rich_help_panel=ADMINISTRATION)(recover_messages)
app.command(rich_help_panel=LOOKING)(message)
app.command(cls=Judging, rich_help_panel=LOOKING)(postmortem)

Queue = Annotated[str, typer.Argument(help="Name of the queue.")]


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


@node_app.command(
    "start", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def node_start(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings.")
    ] = None,
) -> int:
    """Run one node until SIGTERM, which first hands its leaderships to others.

    Every setting of docs/configuration.md is a flag, as in `--node n1 --log.retain-hours 24`, and
    an environment variable, as in QUORATE_LOG__RETAIN_HOURS. Flags win over the environment, that
    over the file.
    """
    from quorate.cli.nodes import run_node

    return run_node(config, list(context.args))


@node_app.command(
    "recover", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def node_recover(
    context: typer.Context,
    lost: Annotated[
        list[str], typer.Option("--lost", help="A node that is gone for good; repeatable.")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings of this node.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Go on without a majority that is lost for good. Messages may be lost: it says which.

    Run it on every node that is left, while these are stopped. Settings are given as to
    `quorate node start`.
    """
    from quorate.cli.recovery import run_recover

    return run_recover(config, list(context.args), lost, yes=yes, as_json=as_json)


@app.command(rich_help_panel=RUNNING)
def status(url: Url = None, as_json: Json = False, timeout: Timeout = 5.0) -> int:
    """Nodes, groups, their leaders, and how far each copy is behind."""
    from quorate.cli.nodes import run_status

    return run_status(url, as_json=as_json, timeout=timeout)


@app.command(rich_help_panel=RUNNING)
def doctor(url: Url = None, as_json: Json = False, timeout: Timeout = 30.0) -> int:
    """Look for what is wrong with a cluster, or soon will be, and say what mends it. Exit status 1:
    something is wrong now.
    """
    from quorate.cli.doctor import run_doctor

    return run_doctor(url, as_json=as_json, timeout=timeout)


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


# --- queues ---------------------------------------------------------------------------------------


@queue_app.command("declare")
def queue_declare(
    queue: Queue,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as x-max-length=1000."),
    ] = None,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Make a queue, or make sure that it exists with these arguments.

    Arguments have RabbitMQ's names: `quorate queue declare jobs x-max-priority=9
    x-message-ttl=60000`.
    """
    from quorate.cli.queues import run_declare

    return run_declare(queue, arguments or [], url, vhost=vhost, as_json=as_json, timeout=timeout)


@queue_app.command("list")
def queue_list(url: Url = None, as_json: Json = False, timeout: Timeout = 30.0) -> int:
    """All queues, with their leaders and how many messages they hold."""
    from quorate.cli.queues import run_list

    return run_list(url, as_json=as_json, timeout=timeout)


@queue_app.command("show")
def queue_show(
    queue: Queue,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Everything that its leader knows of a queue, behind a barrier."""
    from quorate.cli.queues import run_show

    return run_show(queue, url, vhost=vhost, as_json=as_json, timeout=timeout)


@queue_app.command("delete")
def queue_delete(
    queue: Queue,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only without consumers.")] = False,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only without messages.")] = False,
    yes: Yes = False,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Delete a queue and all messages in it. It asks first."""
    from quorate.cli.queues import run_delete

    return run_delete(
        queue,
        url,
        vhost=vhost,
        if_unused=if_unused,
        if_empty=if_empty,
        yes=yes,
        as_json=as_json,
        timeout=timeout,
    )


@queue_app.command("purge")
def queue_purge(
    queue: Queue,
    yes: Yes = False,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Drop all messages that nobody holds. It asks first when there are any."""
    from quorate.cli.queues import run_purge

    return run_purge(queue, url, vhost=vhost, yes=yes, as_json=as_json, timeout=timeout)


@queue_app.command("pause")
def queue_pause(
    queue: Queue,
    resume: Annotated[bool, typer.Option("--resume", help="Deliver again.")] = False,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Stop deliveries of a queue; publishing goes on. `--resume` ends it."""
    from quorate.cli.queues import run_pause

    return run_pause(queue, url, vhost=vhost, paused=not resume, as_json=as_json, timeout=timeout)


@queue_app.command("peek")
def queue_peek(
    queue: Queue,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 10,
    start: Annotated[int, typer.Option("--start", min=1, help="From this position on.")] = 1,
    state: Annotated[
        str | None, typer.Option("--state", help="Only ready, unsettled or delayed ones.")
    ] = None,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Look at messages without taking them."""
    from quorate.cli.queues import run_peek

    return run_peek(
        queue,
        url,
        vhost=vhost,
        start=start,
        count=count,
        state=state,
        as_json=as_json,
        timeout=timeout,
    )


@queue_app.command("why")
def queue_why(
    queue: Queue,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Why its messages do not move, in plain words, and what to do. Exit status 1: there is a
    reason; 0: nothing holds them up.
    """
    from quorate.cli.backlogs import run_why

    return run_why(queue, url, vhost=vhost, as_json=as_json, timeout=timeout)


Target = Annotated[str, typer.Argument(help="Name of the queue that gets them.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="NAME=VALUE,...",
        help="Only those with this key, exchange, header.NAME, priority, state (ready, delayed),"
        " reason (of their death), older-than or younger-than (1h); repeatable, all must hold.",
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="At most so many. Default: all.")
]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="At most so many a second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many it would be.")]


@queue_app.command("move")
def queue_move(
    queue: Queue,
    to: Target,
    count: Count = None,
    where: Where = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Move messages that wait to another queue, in their order. Each is in one of both at any
    time, so it may be ended and run again.
    """
    from quorate.cli.backlogs import Moving, conditions, run_move

    moving = Moving(
        queue, to, vhost, conditions(where or []), count=count, rate=rate, timeout=timeout
    )
    return run_move(moving, url, dry_run=dry_run, as_json=as_json)


@queue_app.command("copy")
def queue_copy(
    queue: Queue,
    to: Target,
    count: Count = None,
    where: Where = None,
    rate: Rate = None,
    start: Annotated[
        int, typer.Option("--start", min=1, help="From this position of the queue on.")
    ] = 1,
    operation: Annotated[
        str | None,
        typer.Option(
            "--operation",
            help="A name; what was copied under it is not copied again. Default: a new one.",
        ),
    ] = None,
    dry_run: DryRun = False,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Copy messages that wait to another queue, in their order."""
    from quorate.cli.backlogs import Moving, conditions, new_operation, run_move

    moving = Moving(
        queue,
        to,
        vhost,
        conditions(where or []),
        how="copy",
        count=count,
        start=start,
        rate=rate,
        operation=operation or new_operation(),
        timeout=timeout,
    )
    return run_move(moving, url, dry_run=dry_run, as_json=as_json)


@queue_app.command("drain-to")
def queue_drain_to(
    queue: Queue,
    to: Target,
    where: Where = None,
    rate: Rate = None,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Move all messages to another queue until none is left, also those that come meanwhile; a
    target that is full is waited for.
    """
    from quorate.cli.backlogs import Moving, conditions, run_move

    moving = Moving(
        queue, to, vhost, conditions(where or []), rate=rate, until_empty=True, timeout=timeout
    )
    return run_move(moving, url, dry_run=False, as_json=as_json)


@queue_app.command("relieve")
def queue_relieve(
    queue: Queue,
    to: Annotated[str, typer.Argument(help="Name of the queue where they wait meanwhile.")],
    above: Annotated[
        int, typer.Option("--above", min=1, help="Messages over which the oldest go there.")
    ] = 20_000_000,
    above_bytes: Annotated[int, typer.Option("--above-bytes", min=1)] = 10_000_000_000,
    until: Annotated[
        int | None, typer.Option("--until", min=1, help="Default: a twentieth of --above.")
    ] = None,
    back_below: Annotated[
        int | None,
        typer.Option(
            "--back-below",
            min=1,
            help="Messages below which they come back. Default: a two-hundredth of --above.",
        ),
    ] = None,
    back_until: Annotated[
        int | None, typer.Option("--back-until", min=1, help="Default: a twentieth of --above.")
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(
            "--uri",
            metavar="amqp://...",
            help="The broker that has the other queue, if not this cluster. Shovels carry messages"
            " there and back.",
        ),
    ] = None,
    rate: Rate = None,
    once: Annotated[bool, typer.Option("--once", help="End when there is nothing to do.")] = False,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Keep a queue between levels: when it holds too much its oldest messages wait in another one,
    and come back when it has nearly run empty. It goes on until it is ended, which harms nothing.
    """
    from quorate.cli.relief import Levels, run_relieve

    levels = Levels.of(above, above_bytes).with_messages(
        stop=until, back=back_below, full=back_until
    )
    return run_relieve(
        queue,
        to,
        levels,
        url,
        uri=uri,
        vhost=vhost,
        rate=rate,
        once=once,
        as_json=as_json,
        timeout=timeout,
    )


@queue_app.command("replay-dead-letters")
def queue_replay(
    queue: Queue,
    to: Annotated[
        str | None, typer.Option("--to", help="All to this queue. Default: where each has died.")
    ] = None,
    count: Count = None,
    where: Where = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Move dead letters back to the queues in which they died last."""
    from quorate.cli.backlogs import Moving, conditions, run_move

    moving = Moving(
        queue, to, vhost, conditions(where or []), count=count, rate=rate, timeout=timeout
    )
    return run_move(moving, url, dry_run=dry_run, as_json=as_json)


delayed_app = typer.Typer(no_args_is_help=True, help="Messages that are not ready yet, one by one.")
queue_app.add_typer(delayed_app, name="delayed")
Ids = Annotated[
    list[str], typer.Argument(metavar="ID...", help="As `delayed list` shows; or positions.")
]


@delayed_app.command("list")
def delayed_list(
    queue: Queue,
    start: Annotated[int, typer.Option("--start", min=1, help="From this position on.")] = 1,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1000, help="At most so many.")
    ] = 100,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Delayed messages, by position."""
    from quorate.cli.backlogs import run_delayed_list

    return run_delayed_list(
        queue, url, vhost=vhost, start=start, count=count, as_json=as_json, timeout=timeout
    )


@delayed_app.command("cancel")
def delayed_cancel(
    queue: Queue,
    ids: Ids,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Drop messages before they are delivered."""
    from quorate.cli.backlogs import run_delayed_change

    return run_delayed_change(
        queue, ids, url, vhost=vhost, delay=None, as_json=as_json, timeout=timeout
    )


@delayed_app.command("retime")
def delayed_retime(
    queue: Queue,
    ids: Ids,
    delay: Annotated[
        str, typer.Option("--in", metavar="10m", help="Ready after this, from now; 0: at once.")
    ],
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Deliver messages earlier or later. It may also put one off that is ready."""
    from quorate.cli.backlogs import run_delayed_change

    return run_delayed_change(
        queue, ids, url, vhost=vhost, delay=delay, as_json=as_json, timeout=timeout
    )


# --- messages -------------------------------------------------------------------------------------


@app.command(rich_help_panel=USING)
def publish(
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
    priority: Annotated[int | None, typer.Option("--priority", min=0, max=255)] = None,
    ttl_ms: Annotated[int | None, typer.Option("--ttl-ms", min=0)] = None,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Publish messages and wait until a majority has each of them on disk.

    Messages are the BODY arguments, the lines of a file or of standard input, or made up with
    --count: those carry numbers, by which `quorate consume` finds what is missing. The queue is
    declared when it does not exist.
    """
    from quorate.cli.publish import What, run_publish

    what = What(body or [], count, size, file, batch, key, priority, ttl_ms)
    return run_publish(queue, what, url, vhost=vhost, as_json=as_json, timeout=timeout)


@app.command(rich_help_panel=USING)
def consume(
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
        typer.Option("--idle", help="Give up after so many seconds without a message."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Give every message back at the end.")
    ] = False,
    url: Url = None,
    vhost: Vhost = "/",
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Take messages, settle them, and account for the numbered ones: missing, duplicates, out of
    order.

    Without --count it goes on until Ctrl-C. With it, it gives up after 10 seconds without a message
    (see --idle), and exits with status 1 when messages are missing.
    """
    from quorate.cli.consume import How, run_consume

    how = How(count, show, batch, credit, idle, keep)
    return run_consume(queue, how, url, vhost=vhost, as_json=as_json, timeout=timeout)


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
    count: Annotated[int, typer.Option("--count", "-n", min=1)] = 100_000,
    size: Annotated[int, typer.Option("--size", min=23)] = 100,
    batch: Annotated[int, typer.Option("--batch", min=1)] = 256,
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 60.0,
) -> int:
    """A quick look at a running cluster: publish, consume and latency on a queue of its own.

    `make bench` in the project's repository is the real one: it also measures memory, CPU and
    failover.
    """
    from quorate.cli.bench import run_bench

    return run_bench(count, size, batch, url, as_json=as_json, timeout=timeout)


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
