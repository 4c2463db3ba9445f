"""`quorate recover-messages`: what a queue lost to its TTL or a purge, published again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from quorate.cli.api import PatientInVhost
from quorate.cli.output import CommandError, emit, say
from quorate.cli.tables import Row, show_rows

if TYPE_CHECKING:
    import quorate
    from cluster.history.lost_messages import LostMessages

#: Messages that are shown.
SHOWN_MAX = 20
BODY_SHOWN = 60


def recover_messages(
    cluster: PatientInVhost,
    data: Annotated[Path, typer.Option("--data", help="The data folder of a node with a copy.")],
    queue: Annotated[str, typer.Option("--queue", help="The queue that lost them.")],
    since: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="Lost since then: 2026-11-25T12:00, in UTC."),
    ],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="And before then.")],
    archive: Annotated[
        Path | None, typer.Option("--archive", help="Also this folder with that node's archive.")
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish them again. Default: only show them.")
    ] = False,
    into: Annotated[
        str | None, typer.Option("--into", help="To this queue. Default: the one that lost them.")
    ] = None,
) -> int:
    """Find messages that expired or were purged in a node's log and archive, as far as these go
    back, and publish them again. Repeated with the same files and times, each is stored once.
    """
    from_ms, to_ms = _time_ms(since), _time_ms(until)
    lost = _read([data, *([archive] if archive else [])], cluster.vhost, queue, from_ms, to_ms)
    rows = [_row(each) for each in lost.found]
    shown = rows if cluster.as_json else rows[:SHOWN_MAX]
    columns = ("message", "position", "lost", "reason", "bytes", "body")
    show_rows(
        shown,
        {name: (lambda row, name=name: row[name]) for name in columns},
        as_json=cluster.as_json,
        none=f"queue {queue}: nothing was lost then, as far as these files tell",
    )
    if len(rows) > len(shown):
        say(f"and {len(rows) - len(shown):,} more")
    if lost.out_of_reach:
        say(f"{lost.out_of_reach:,} more were lost: their bodies are not in these files, or large")
    if not publish:
        if rows:
            say(f"{len(rows):,} messages; --publish publishes them again")
        return 0
    target = into or queue
    stored = cluster.client(lambda client: _publish(client, target, lost))
    if cluster.as_json:
        emit({"published": len(rows), "queue": target, "stored": stored})
    else:
        say(f"queue {target}: {len(rows):,} messages are there again, {stored:,} by this command")
    return 0


async def _publish(client: quorate.Client, target: str, lost: LostMessages) -> int:
    """By a name and numbers of their own. How many were not there already."""
    from node.messages.message import as_map

    if not lost.found:
        return 0
    publisher = client.publisher(target, name_of(lost), next_seqno=1)
    metas = [cast("dict[str, Any]", as_map(each.meta) or {}) for each in lost.found]
    done = await publisher.publish_many([each.body for each in lost.found], meta=metas)
    return done.count - done.duplicates


def name_of(lost: LostMessages) -> str:
    """The same for the same messages, in this order."""
    named = " ".join(f"{each.message}:{each.position}" for each in lost.found)
    return f"recovered:{blake2b(named.encode(), digest_size=16).hexdigest()}"


def _read(
    folders: Sequence[Path], vhost: str, queue: str, from_ms: int, to_ms: int
) -> LostMessages:
    from cluster.history.lost_messages import lost_messages
    from cluster.history.message_history import NoHistory, find_queue
    from quorate.cli.nodes import log_folder

    paths = [str(log_folder(folder)) for folder in folders]
    if not any(Path(paths[0]).glob("[0-9]*.log")):
        raise CommandError(f"no log segments in {folders[0]}: give the data folder of a node", 2)
    try:
        group, number = find_queue(paths, vhost, queue)
        return lost_messages(paths, group, number, from_ms=from_ms, to_ms=to_ms)
    except NoHistory as none:
        advice = "\n  next: name its --vhost, or the data folder of a node that has known it"
        raise CommandError(none.reason + (advice if none.code == "no_queue" else "")) from none


def _row(lost: Any) -> Row:
    at = datetime.fromtimestamp(lost.at_ms / 1000, UTC)
    return {
        "message": str(lost.message),
        "position": lost.position,
        "lost": at.isoformat(sep=" ", timespec="milliseconds"),
        "reason": lost.reason,
        "bytes": len(lost.body),
        "body": lost.body[:BODY_SHOWN].decode("utf-8", "backslashreplace"),
    }


def _time_ms(text: str) -> int:
    """Without a zone it is UTC. CommandError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{text!r} is no time such as 2026-11-25T12:00:00", 2) from None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
