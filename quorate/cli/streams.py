"""`quorate stream ...` and `quorate cursor ...`: streams, and the places in them that are kept.

A cursor is what JetStream calls a consumer.
"""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from quorate.cli.api import AnyVhost, Commands, InVhost, no_vhost
from quorate.cli.asking import Yes, agree, counted
from quorate.cli.output import CommandError, emit, stdout
from quorate.cli.queues import arguments_of
from quorate.cli.tables import Alarm, Columns, Row, cell, printable, show_rows

if TYPE_CHECKING:
    from quorate.management import Management

stream_app = Commands()
cursor_app = Commands()

Stream = Annotated[str, typer.Argument(help="Name of the stream.")]
Cursor = Annotated[str, typer.Argument(help="Name of the cursor.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="max_age=24h, max_msgs=1000000, retention=workqueue, num_replicas=3 ...",
    ),
]
CursorSettings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="ack_wait=1m, max_deliver=5 ..."),
]
Subjects = Annotated[
    list[str] | None,
    typer.Option("--subject", help="What it stores, such as 'orders.>'; repeatable."),
]
Mirror = Annotated[
    str | None, typer.Option("--mirror", metavar="STREAM", help="It is a mirror of this stream.")
]
Sources = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="STREAM", help="It takes in this stream; repeatable."),
]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", help="Only these subjects, such as 'orders.*.paid'; repeatable."),
]


def _no_stream(stream: str, vhost: str) -> str:
    return f"there is no stream {stream!r} in vhost {vhost!r}\n  next: `quorate stream list`"


def _no_cursor(stream: str, cursor: str, vhost: str) -> str:
    return (
        f"there is no cursor {cursor!r} of a stream {stream!r} in vhost {vhost!r}"
        f"\n  next: `quorate cursor list {stream}`"
    )


def _settings(given: list[str] | None, example: str = "max_age=24h") -> dict[str, Any]:
    """Without a value it is the default."""
    return {
        name: None if value == "" else value for name, value in arguments_of(given, example).items()
    }


# --- what streams and cursors are like ------------------------------------------------------------


def _moment(text: str | None) -> str | None:
    """Of the API, for people; in UTC."""
    if not text or text.startswith("0001-"):
        return None
    return text.replace("T", " ").removesuffix("Z")


def _setting(name: str, value: Any) -> str:
    from node.protocols.nats.jetstream import consumer_config, stream_config

    if name in (*stream_config.SPANS, *consumer_config.SPANS):
        return ", ".join(map(_span, cast("list[int]", value if type(value) is list else [value])))
    return cell(value)


def _span(ns: int) -> str:
    """As it may be given: `24h`, and not `24h0m0s`."""
    from node.protocols.nats.jetstream.times import span_of_ns

    text = span_of_ns(ns)
    for unit, whole in (("m", "0s"), ("h", "0m")):
        text = text.removesuffix(whole) if text.endswith(unit + whole) else text
    return text


def _shown_settings(config: Row, defaults: Row, but: tuple[str, ...]) -> str:
    """What somebody has set, as it is given on the command line."""
    return ", ".join(
        f"{name}={_setting(name, value)}"
        for name, value in config.items()
        if name not in but
        and value not in (None, "", [], {}, False)
        and value != defaults.get(name)
    )


_DEFAULTS: Row = {
    **dict.fromkeys(
        ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"), -1
    ),
    "max_age": 0,
    "duplicate_window": 120 * 10**9,
    "retention": "limits",
    "discard": "old",
    "storage": "file",
    "compression": "none",
}
_CURSOR_DEFAULTS: Row = {
    "replay_policy": "instant",
    "max_deliver": -1,
    "max_waiting": 512,
    "max_ack_pending": 1_000,
    "num_replicas": 0,
    "ack_wait": 30 * 10**9,
}


#: Of a stream's settings, what is shown by itself, or by where the copies are.
_APART = ("name", "subjects", "description", "num_replicas", "mirror", "sources")


def _wanted(
    settings: list[str] | None,
    subjects: list[str] | None,
    mirror: str | None,
    sources: list[str] | None,
) -> dict[str, Any]:
    return (
        _settings(settings)
        | ({"subjects": subjects} if subjects else {})
        | ({"mirror": {"name": mirror}} if mirror else {})
        | ({"sources": [{"name": each} for each in sources]} if sources else {})
    )


def _follows(row: Row) -> list[str]:
    """The streams that it takes from, and how far it is."""
    config, mirror = row["config"], row.get("mirror")
    known = {each["name"]: each for each in [*([mirror] if mirror else row.get("sources") or ())]}
    words: list[str] = []
    for kind, given in (
        *([("mirror of", config["mirror"])] if config.get("mirror") else ()),
        *(("source", each) for each in config.get("sources") or ()),
    ):
        name = given["name"]
        subject = given.get("filter_subject")
        about = known.get(name, {})
        words.append(
            f"{kind} {name}"
            + (f" ({subject})" if subject else "")
            + (f" ({about['lag']:,} behind)" if about.get("lag") else "")
            + (f": {about['error']['description']}" if about.get("error") else "")
        )
    return words


def _leader(row: Row) -> str:
    return row["cluster"].get("leader") or Alarm("none")


def _copies(row: Row) -> str | None:
    """The other ones, and how far each is."""
    words = [
        each["name"]
        + (f" ({each['lag']:,} behind)" if each.get("lag") else "")
        + (" (down)" if each.get("offline") else "")
        for each in row["cluster"].get("replicas", [])
    ]
    return ", ".join(words) or None


def _state(row: Row, name: str) -> Any:
    return cast("Row", row["state"] or {}).get(name)


def _about(row: Row) -> dict[str, Any]:
    state, config = row["state"], row["config"]
    held = f"{state['messages']:,} ({state['bytes']:,} bytes)"
    if state.get("num_subjects"):
        held += f", of {counted(state['num_subjects'], 'subject')}"
    sequences = "none yet"
    if state["messages"]:
        sequences = f"{state['first_seq']:,} to {state['last_seq']:,}"
    elif state["last_seq"]:
        sequences = f"none left; the last was {state['last_seq']:,}"
    if state.get("num_deleted"):
        sequences += f", {state['num_deleted']:,} of them deleted"
    from_, to = _moment(state["first_ts"]), _moment(state["last_ts"])
    return {
        "stream": row["name"],
        "vhost": row["vhost"],
        "description": config.get("description"),
        "subjects": config.get("subjects"),
        "follows": _follows(row),
        "messages": held,
        "sequences": sequences,
        "stored (UTC)": f"{from_} to {to}" if from_ else None,
        "settings": _shown_settings(config, _DEFAULTS, _APART),
        "made (UTC)": _moment(row["created"]),
        "leader": _leader(row),
        "copies": _copies(row),
    }


def _filters(row: Row) -> Any:
    config = row["config"]
    return config.get("filter_subject") or config.get("filter_subjects")


def _paused(row: Row) -> str | None:
    return f"until {_moment(row['config'].get('pause_until'))}" if row.get("paused") else None


_CURSOR_COLUMNS: Columns = {
    "cursor": lambda row: row["name"] + (" (paused)" if row.get("paused") else ""),
    "filter": _filters,
    "acked to": lambda row: row["ack_floor"]["stream_seq"],
    "unacked": lambda row: row["num_ack_pending"],
    "redelivered": lambda row: row["num_redelivered"],
    "pending": lambda row: row["num_pending"],
}


def _show_about(about: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    for name, value in about.items():
        if value not in (None, "", []):
            table.add_row(name, Text(cell(value), style="red" if type(value) is Alarm else ""))
    stdout().print(table)


# --- streams --------------------------------------------------------------------------------------


@stream_app.command("add")
def stream_add(
    cluster: InVhost,
    stream: Stream,
    settings: Settings = None,
    subjects: Subjects = None,
    mirror: Mirror = None,
    sources: Sources = None,
) -> int:
    """Make a stream, or make sure that it exists like this: `quorate stream add orders --subject
    'orders.>' max_age=24h`. Without a subject it stores what is published to its own name; or what
    the streams have that it mirrors or takes in.
    """
    body = _wanted(settings, subjects, mirror, sources)
    created = cluster.api(
        lambda api: api.put("streams", cluster.vhost, stream, body=body),
        missing=no_vhost(cluster.vhost),
    )
    follows = _follows({"config": body})
    stores = cell(follows or body.get("subjects") or stream)
    words = f"stream {stream}: {'made' if created else 'exists already'}; it stores {stores}"
    return cluster.done(words, stream=stream, vhost=cluster.vhost, created=created)


@stream_app.command("edit")
def stream_edit(
    cluster: InVhost,
    stream: Stream,
    settings: Settings = None,
    subjects: Subjects = None,
    sources: Sources = None,
    yes: Yes = False,
) -> int:
    """Change some settings of a stream; KEY= without a value is the default again, and `mirror=`
    ends what it was a mirror of. It asks first where messages that are there may go at once.
    """
    body = _wanted(settings, subjects, None, sources)
    if not body:
        raise CommandError("what shall change? such as max_age=24h or --subject 'orders.>'", 2)
    missing = _no_stream(stream, cluster.vhost)
    if not yes:
        before = cluster.api(lambda api: api.get("streams", cluster.vhost, stream), missing=missing)
        if lower := [name for name in body if _costs(name, body[name], before["config"])]:
            lost = "messages that are over it would be lost"
            agree(f"change {', '.join(lower)} of stream {stream}", lost, yes=yes)
    row = cluster.api(
        lambda api: api.patch("streams", cluster.vhost, stream, body=body), missing=missing
    )
    given = ", ".join(f"{name}={_setting(name, row['config'].get(name))}" for name in body)
    return cluster.done(f"stream {stream}: {given}", **row)


def _costs(name: str, value: Any, config: Row) -> bool:
    """Whether messages may go by this change, as far as it can be told here."""
    from node.protocols.nats.jetstream.times import ns_of_span

    if name == "retention":
        return (value or _DEFAULTS[name]) != config[name]
    if name not in ("max_age", "max_bytes", "max_msgs", "max_msgs_per_subject"):
        return False
    limit = ns_of_span(value) if isinstance(value, str) else value
    if type(limit) is not int or limit <= 0:
        return False  # none, or what will be refused
    return not 0 < config[name] <= limit


@stream_app.command("list")
def stream_list(cluster: AnyVhost) -> None:
    """All streams that you may see."""
    path = ("streams",) if cluster.vhost is None else ("streams", cluster.vhost)
    rows = cluster.api(lambda api: api.all(*path), missing=no_vhost(cluster.vhost))
    show_rows(
        rows,
        {
            "stream": lambda row: row["name"],
            "vhost": lambda row: row["vhost"],
            "subjects": lambda row: [*row["config"].get("subjects", ()), *_follows(row)],
            "messages": lambda row: _state(row, "messages"),
            "bytes": lambda row: _state(row, "bytes"),
            "last": lambda row: _state(row, "last_seq"),
            "cursors": lambda row: _state(row, "consumer_count"),
            "leader": _leader,
            "copies": _copies,
        },
        as_json=cluster.as_json,
        none="there are no streams: `quorate stream add NAME --subject 'orders.>'` makes one",
    )


@stream_app.command("show")
def stream_show(
    cluster: InVhost,
    stream: Stream,
    subjects: Annotated[
        str | None,
        typer.Option("--subjects", metavar="PATTERN", help="Count messages of these subjects."),
    ] = None,
) -> int:
    """What a stream holds, where it is, and its cursors."""
    query = {} if subjects is None else {"subjects_filter": subjects}

    async def look(api: Management) -> tuple[Row, list[Row]]:
        row = await api.get("streams", cluster.vhost, stream, **query)
        return row, await api.all("streams", cluster.vhost, stream, "consumers")

    row, cursors = cluster.api(look, missing=_no_stream(stream, cluster.vhost))
    if cluster.as_json:
        emit({**row, "cursors": cursors})
        return 0
    _show_about(_about(row))
    if cursors:
        show_rows(cursors, _CURSOR_COLUMNS, as_json=False, none="")
    if subjects is not None:
        counts = cast("dict[str, int]", _state(row, "subjects") or {}).items()
        show_rows(
            [{"subject": name, "messages": count} for name, count in counts],
            {"subject": lambda row: row["subject"], "messages": lambda row: row["messages"]},
            as_json=False,
            none=f"it holds no message of {subjects}",
        )
    return 0


@stream_app.command("delete")
def stream_delete(cluster: InVhost, stream: Stream, yes: Yes = False) -> int:
    """Delete a stream with its messages and cursors. It asks first."""
    missing = _no_stream(stream, cluster.vhost)
    if not yes:
        row = cluster.api(lambda api: api.get("streams", cluster.vhost, stream), missing=missing)
        state = row["state"]
        lost = f"{counted(state['messages'], 'message')} and"
        lost += f" {counted(state['consumer_count'], 'cursor')} would be lost"
        agree(f"delete stream {stream}", lost, yes=yes)
    cluster.api(lambda api: api.delete("streams", cluster.vhost, stream), missing=missing)
    return cluster.done(f"stream {stream}: deleted", stream=stream, deleted=True)


@stream_app.command("purge")
def stream_purge(
    cluster: InVhost,
    stream: Stream,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Only of these subjects, such as 'orders.*'.")
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", min=1, help="Only before this sequence.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="All but so many, the last ones.")
    ] = None,
    yes: Yes = False,
) -> int:
    """Drop messages of a stream, all or some; its cursors go on behind them. It asks first."""
    if before is not None and keep is not None:
        raise CommandError("--before and --keep do not go together", 2)
    given = {"filter": subject, "seq": before, "keep": keep}
    body = {name: value for name, value in given.items() if value is not None}
    missing = _no_stream(stream, cluster.vhost)
    if not yes:
        row = cluster.api(lambda api: api.get("streams", cluster.vhost, stream), missing=missing)
        if count := row["state"]["messages"]:
            most = "up to " if body else ""
            lost = f"{most}{counted(count, 'message')} would be lost"
            agree(f"purge stream {stream}", lost, yes=yes)
    answer = cluster.api(
        lambda api: api.post("streams", cluster.vhost, stream, "purge", body=body, repeat=not keep),
        missing=missing,
    )
    words = f"stream {stream}: {counted(answer['purged'], 'message')} dropped"
    return cluster.done(words, stream=stream, purged=answer["purged"])


@stream_app.command("get")
def stream_get(
    cluster: InVhost,
    stream: Stream,
    sequence: Annotated[
        int | None, typer.Argument(metavar="[SEQUENCE]", min=1, help="Of the message.")
    ] = None,
    last: Annotated[
        str | None, typer.Option("--last", metavar="SUBJECT", help="The last one of a subject.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Its body alone, as it is, on standard output.")
    ] = False,
) -> int:
    """Show one message, by its sequence or as the last of a subject."""
    if (sequence is None) == (last is None):
        raise CommandError("give the SEQUENCE of a message, or --last SUBJECT", 2)
    query = {"seq": str(sequence)} if last is None else {"last_by_subj": last}
    what = f"no message {sequence}" if last is None else f"no message of {last!r}"
    found = cluster.api(
        lambda api: api.get("streams", cluster.vhost, stream, "message", **query),
        missing=f"there is {what} in a stream {stream!r}\n  next: `quorate stream show {stream}`",
    )
    payload: str = found["payload"]
    is_text = found["payload_encoding"] == "string"
    if raw:
        sys.stdout.buffer.write(payload.encode() if is_text else base64.b64decode(payload))
        sys.stdout.buffer.flush()
    elif cluster.as_json:
        emit(found)
    else:
        body = payload if is_text else base64.b64decode(payload).decode("utf-8", "backslashreplace")
        shown = "\n".join(map(printable, body.splitlines()))
        _show_about(
            {
                "subject": found["subject"],
                "sequence": found["seq"],
                "stored (UTC)": _moment(found["time"]),
                **{key: ", ".join(values) for key, values in found["headers"].items()},
                "bytes": found["payload_bytes"],
            }
        )
        sys.stdout.write(shown + "\n" if shown else "")
    return 0


@stream_app.command("forget")
def stream_forget(
    cluster: InVhost,
    stream: Stream,
    sequence: Annotated[int, typer.Argument(min=1, help="Of the message.")],
    yes: Yes = False,
) -> int:
    """Delete one message of a stream. It asks first."""
    agree(f"delete message {sequence} of stream {stream}", "it would be lost", yes=yes)
    cluster.api(
        lambda api: api.delete("streams", cluster.vhost, stream, "message", seq=str(sequence)),
        missing=f"there is no message {sequence} in a stream {stream!r}"
        f"\n  next: `quorate stream show {stream}`",
    )
    words = f"stream {stream}: message {sequence} deleted"
    return cluster.done(words, stream=stream, sequence=sequence, deleted=True)


# --- cursors --------------------------------------------------------------------------------------


def _start(text: str) -> dict[str, Any]:
    """Where a new cursor begins, in JetStream's words."""
    from node.protocols.nats.jetstream.times import ms_of_text, ns_of_span

    words = {"first": "all", "last": "last", "next": "new", "last-of-each": "last_per_subject"}
    if text in words:
        return {"deliver_policy": words[text]}
    if text.isascii() and text.isdecimal():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    span_ns = ns_of_span(text)
    if span_ns is not None:
        text = _from_now(-span_ns)
    elif ms_of_text(text) is None:
        raise CommandError(
            f"--from {text}: give first, last, next, last-of-each, a sequence, a time such as"
            " 2026-01-31T12:00:00Z, or how long ago, such as 1h30m",
            2,
        )
    return {"deliver_policy": "by_start_time", "opt_start_time": text}


def _from_now(span_ns: int) -> str:
    point = datetime.now(UTC) + timedelta(microseconds=span_ns // 1000)
    return point.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


@cursor_app.command("add")
def cursor_add(
    cluster: InVhost,
    stream: Stream,
    cursor: Cursor,
    settings: CursorSettings = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="first, last, next, last-of-each (subject), a sequence, a time in UTC, or how"
            " long ago, such as 1h.",
        ),
    ] = "first",
    acks: Annotated[
        Literal["explicit", "all", "none"],
        typer.Option("--ack", help="Each message, all up to one, or none is acknowledged."),
    ] = "explicit",
    filters: Filters = None,
) -> int:
    """Make a cursor, or make sure that it exists like this. Who reads by its name gets what is not
    acknowledged yet: `quorate cursor add orders billing --filter 'orders.*.paid'`.
    """
    body = {
        "ack_policy": acks,
        **_start(start),
        **_filtered(filters),
        **_settings(settings, "ack_wait=1m"),
    }
    created = cluster.api(
        lambda api: api.put("streams", cluster.vhost, stream, "consumers", cursor, body=body),
        missing=_no_stream(stream, cluster.vhost),
    )
    words = f"cursor {cursor} of {stream}: {'made' if created else 'exists already'}"
    return cluster.done(words, stream=stream, cursor=cursor, created=created)


def _filtered(filters: list[str] | None) -> dict[str, Any]:
    if not filters:
        return {}
    return {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": filters}


@cursor_app.command("edit")
def cursor_edit(
    cluster: InVhost,
    stream: Stream,
    cursor: Cursor,
    settings: CursorSettings = None,
    filters: Filters = None,
) -> int:
    """Change some settings of a cursor; KEY= without a value is the default again."""
    body = {**_filtered(filters), **_settings(settings, "ack_wait=1m")}
    if not body:
        raise CommandError("what shall change? such as ack_wait=1m or --filter 'orders.*'", 2)
    row = cluster.api(
        lambda api: api.patch("streams", cluster.vhost, stream, "consumers", cursor, body=body),
        missing=_no_cursor(stream, cursor, cluster.vhost),
    )
    given = ", ".join(f"{name}={_setting(name, row['config'].get(name))}" for name in body)
    return cluster.done(f"cursor {cursor} of {stream}: {given}", **row)


@cursor_app.command("list")
def cursor_list(cluster: InVhost, stream: Stream) -> None:
    """The cursors of a stream, and how far each is."""
    rows = cluster.api(
        lambda api: api.all("streams", cluster.vhost, stream, "consumers"),
        missing=_no_stream(stream, cluster.vhost),
    )
    none = f"it has no cursors: `quorate cursor add {stream} NAME` makes one"
    show_rows(rows, _CURSOR_COLUMNS, as_json=cluster.as_json, none=none)


@cursor_app.command("show")
def cursor_show(cluster: InVhost, stream: Stream, cursor: Cursor) -> int:
    """How far a cursor is, and what it waits for."""
    row = cluster.api(
        lambda api: api.get("streams", cluster.vhost, stream, "consumers", cursor),
        missing=_no_cursor(stream, cursor, cluster.vhost),
    )
    if cluster.as_json:
        emit(row)
        return 0
    config, delivered, floor = row["config"], row["delivered"], row["ack_floor"]
    hidden = ("name", "durable_name", "description", "deliver_policy", "ack_policy", *_PLACE)
    _show_about(
        {
            "cursor": row["name"],
            "stream": row["stream_name"],
            "description": config.get("description"),
            "filter": _filters(row),
            "began": _began(config),
            "acks": config["ack_policy"],
            "settings": _shown_settings(config, _CURSOR_DEFAULTS, hidden),
            "made (UTC)": _moment(row["created"]),
            "delivered to": _place(delivered),
            "acknowledged to": _place(floor),
            "unacknowledged": row["num_ack_pending"],
            "redelivered": row["num_redelivered"],
            "pending": row["num_pending"],
            "requests waiting": row["num_waiting"],
            "paused (UTC)": _paused(row),
            "leader": _leader(row),
        }
    )
    return 0


_PLACE = ("opt_start_seq", "opt_start_time", "filter_subject", "filter_subjects", "pause_until")


def _began(config: Row) -> str:
    policy = config["deliver_policy"].replace("_", " ")
    place = config.get("opt_start_seq") or config.get("opt_start_time")
    return f"{policy}: {place}" if place else policy


def _place(pair: Row) -> str:
    if not pair["consumer_seq"]:
        return "nothing yet"
    active = _moment(pair.get("last_active"))
    return f"{pair['stream_seq']:,}" + (f", at {active} UTC" if active else "")


@cursor_app.command("delete")
def cursor_delete(cluster: InVhost, stream: Stream, cursor: Cursor, yes: Yes = False) -> int:
    """Delete a cursor: the place is lost, the messages of the stream stay. It asks first."""
    agree(f"delete cursor {cursor} of {stream}", "its place in the stream would be lost", yes=yes)
    cluster.api(
        lambda api: api.delete("streams", cluster.vhost, stream, "consumers", cursor),
        missing=_no_cursor(stream, cursor, cluster.vhost),
    )
    words = f"cursor {cursor} of {stream}: deleted"
    return cluster.done(words, stream=stream, cursor=cursor, deleted=True)


@cursor_app.command("pause")
def cursor_pause(
    cluster: InVhost,
    stream: Stream,
    cursor: Cursor,
    span: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="For so long, such as 1h30m.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Such as 2026-01-31T12:00:00Z.")
    ] = None,
) -> int:
    """Deliver nothing by this cursor for a while; `quorate cursor resume` ends it."""
    from node.protocols.nats.jetstream.times import ns_of_span

    if (span is None) == (until is None):
        raise CommandError("for how long? give --for 1h, or --until 2026-01-31T12:00:00Z", 2)
    if span is not None:
        span_ns = ns_of_span(span)
        if span_ns is None or span_ns <= 0:
            raise CommandError(f"--for {span}: give a length of time, such as 90s or 1h30m", 2)
        until = _from_now(span_ns)
    body = {"pause_until": until}
    answer = cluster.api(
        lambda api: api.put_and_get(
            "streams", cluster.vhost, stream, "consumers", cursor, "pause", body=body
        ),
        missing=_no_cursor(stream, cursor, cluster.vhost),
    )
    paused = bool(answer["paused"])
    words = f"paused until {_moment(answer['pause_until'])} UTC" if paused else "goes on"
    return cluster.done(f"cursor {cursor} of {stream}: {words}", cursor=cursor, **answer)


@cursor_app.command("resume")
def cursor_resume(cluster: InVhost, stream: Stream, cursor: Cursor) -> int:
    """Let a cursor that is paused go on."""
    cluster.api(
        lambda api: api.delete("streams", cluster.vhost, stream, "consumers", cursor, "pause"),
        missing=_no_cursor(stream, cursor, cluster.vhost),
    )
    words = f"cursor {cursor} of {stream}: goes on"
    return cluster.done(words, stream=stream, cursor=cursor, paused=False)
