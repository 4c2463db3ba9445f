"""`quorate message`: what happened to one message, from a running cluster or a node's folder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from quorate.cli.api import PatientInVhost
from quorate.cli.output import CommandError, emit, say, stdout
from quorate.cli.tables import printable

Object = dict[str, Any]

#: Of a node that told what it could not.
REFUSED = 1


class Named(NamedTuple):
    """By which words a message was named."""

    message: str | None = None
    position: int | None = None
    publisher: str | None = None
    seqno: int | None = None


def message(
    cluster: PatientInVhost,
    which: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="GROUP-ENTRY-OFFSET, as `quorate queue peek` shows it; with --queue also"
            " a POSITION, or PUBLISHER:SEQNO.",
        ),
    ],
    queue: Annotated[
        str | None, typer.Option("--queue", help="The queue that POSITION or PUBLISHER is about.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Read a node's data folder instead of asking a cluster."),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="With --data: also this folder with that node's archive."),
    ] = None,
) -> int:
    """What happened to one message: publish, deliveries, returns, its end, where it is now.

    A node that has a copy reads its own log for it, as far back as that goes.
    """
    named = _named(which, queue)
    if archive is not None and data is None:
        raise CommandError("--archive is for reading a folder: give --data too", 2)
    if data is not None:
        history = _from_folder([data, *([archive] if archive else [])], named, cluster.vhost, queue)
    else:
        history = cluster.client(
            lambda client: client.history(
                named.message,
                queue=queue,
                position=named.position,
                publisher=named.publisher,
                seqno=named.seqno,
            )
        )
    if cluster.as_json:
        emit(history)
    else:
        _show(history)
    return 0


def _named(which: str, queue: str | None) -> Named:
    if queue is None:
        return Named(which)
    publisher, colon, seqno = which.rpartition(":")
    if colon and publisher and _is_number(seqno):
        return Named(publisher=publisher, seqno=int(seqno))
    if _is_number(which):
        return Named(position=int(which))
    raise CommandError(
        f"{which!r} is no message of a queue: with --queue give a POSITION such as 17, or"
        " PUBLISHER:SEQNO such as shop:17; an id such as 1-18200-0 goes without --queue",
        2,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19 and int(text) > 0


# --- a folder -------------------------------------------------------------------------------------


def _from_folder(folders: Sequence[Path], named: Named, vhost: str, queue: str | None) -> Object:
    from cluster.history.message_events import Wanted
    from cluster.history.message_history import NoHistory, find_queue, history
    from cluster.types import MessageId
    from quorate.cli.nodes import log_folder

    paths = [str(log_folder(folder)) for folder in folders]
    if not any(Path(paths[0]).glob("[0-9]*.log")):
        raise CommandError(f"no log segments in {folders[0]}: give the data folder of a node", 2)
    try:
        if queue is None:
            found = MessageId.parse(named.message or "")
            if found is None:
                raise CommandError(
                    f"{named.message!r} is no message's id: it is GROUP-ENTRY-OFFSET, such as"
                    " 1-18200-0; or name its --queue and give a position",
                    2,
                )
            return history(paths, Wanted.of(found))
        group, number = find_queue(paths, vhost, queue)
        wanted = Wanted(
            group,
            queue=number,
            position=named.position,
            publisher=named.publisher,
            seqno=named.seqno or 0,
        )
        return history(paths, wanted)
    except NoHistory as none:
        advice = "\n  next: if it was deleted, give the message's id, as GROUP-ENTRY-OFFSET"
        words = none.reason + (advice if none.code == "no_queue" else "")
        raise CommandError(words, REFUSED) from none


# --- for people -----------------------------------------------------------------------------------

_WORDS: dict[str, str] = {
    "published": "published",
    "letter": "arrived as a dead letter",
    "known": "was there",
    "duplicate": "sent again, not stored",
    "refused": "refused",
    "delivered": "delivered",
    "got": "taken by a get",
    "settled": "settled",
    "returned": "returned",
    "died": "died",
    "moved": "carried to another group",
    "purged": "purged",
    "withdrawn": "withdrawn",
    "deleted": "gone with its queue",
}
_RETURNED: dict[str | None, str] = {
    "ended": "its consumer ended",
    "unsent": "it was never sent",
}
_STATES: dict[str, str] = {
    "settled": "settled",
    "died": "dead",
    "moved": "a dead letter in another group",
    "purged": "purged",
    "withdrawn": "withdrawn",
    "deleted": "gone with its queue",
    "refused": "was not stored",
    "duplicate": "was not stored again",
    "withheld": "in a queue that you may not read",
}


def _show(history: Object) -> None:
    from rich.table import Table
    from rich.text import Text

    events: list[Object] = history["events"]
    several = len({(event["vhost"], event["queue"]) for event in events}) > 1
    heads = ["time (UTC)", "what", "entry", "term", "consumer", "session", "token", "more"]
    if several:
        heads.insert(1, "queue")
    table = Table(*heads)
    for event in events:
        cells: list[str] = [
            time_of(event["at_ms"]),
            _WORDS.get(event["event"]) or str(event["event"]),
            str(event["entry"]),
            str(event["term"]),
            str(event.get("consumer", "-")),
            str(event.get("session", "-")),
            str(event.get("token", "-")),
            more(event),
        ]
        if several:
            cells.insert(1, f"{event['queue']} {event['position']}")
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console = stdout()
    console.print(Text(printable(headline(history))))
    console.print(table)
    for line in remarks(history):
        say(f"  {line}")


def headline(history: Object) -> str:
    """Which message it is, and where it is now."""
    now: Object = history["now"]
    name: str = history["message"] or "no message"
    place = ""
    state: str = now["state"]
    if now.get("queue") is not None:
        place = f", queue {now['queue']} in vhost {now['vhost']}"
    if now.get("position") is not None:
        place += f", position {now['position']}"
    words = _STATES.get(state) or state
    if state == "unsettled":
        words = f"held by consumer {now.get('consumer')}, not settled"
    elif state == "died":
        words += f" ({now.get('reason')})" + (
            ", on its way as a dead letter" if now.get("goes") else ""
        )
    return f"message {name}{place}: {words}"


def more(event: Object) -> str:
    """What only this kind of event has."""
    parts: list[str] = []
    if event.get("publisher"):
        parts.append(f"by {event['publisher']}")
    if event.get("seqno"):
        parts.append(f"number {event['seqno']}")
    written, committed = event.get("written_ms"), event.get("committed_ms")
    if committed is not None and written is not None:
        parts.append(f"committed after {committed - written} ms")
    if event.get("acquired") is not None:
        parts.append(
            f"redelivered, {_times(event['acquired'])} before" if event["acquired"] else ""
        )
    if event["event"] in {"delivered", "got", "known"} and event.get("failed"):
        parts.append(f"{event['failed']} failed")
    if event["event"] == "returned":
        parts.append("as failed" if event.get("failed") else "not as failed")
        parts.append(_RETURNED.get(event.get("reason"), ""))
    elif event.get("reason"):
        parts.append("by its delivery" if event["reason"] == "auto" else event["reason"])
    if event.get("goes"):
        parts.append("goes on as a dead letter")
    return ", ".join(part for part in parts if part) or "-"


def remarks(history: Object) -> list[str]:
    """What the answer does not cover."""
    read = history["read"]
    lines = [f"from the log of node {read['node']}, entries {read['from'] + 1} to {read['to']}"]
    if not read["whole"]:
        begins = (
            "there was no time for segments older than"
            if read["cut_short"]
            else "the log begins behind"
        )
        lines.append(f"{begins} entry {read['from']}: what happened before is not told")
    if read.get("current") is False:
        lines.append("the group has no leader now, or this copy is behind: more may have happened")
    if history["left_out"]:
        lines.append(f"{history['left_out']:,} events in the middle are left out")
    if history.get("withheld"):
        lines.append(f"{history['withheld']:,} events in queues that you may not read are left out")
    lines += [f"damaged: {place}" for place in read["damage"]]
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def time_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
