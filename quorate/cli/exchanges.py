"""`quorate exchange ...` and `quorate binding ...`"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import typer

from quorate.cli.api import AnyVhost, Commands, InVhost, exchange_word, no_vhost, shown_exchange
from quorate.cli.output import CommandError, why
from quorate.cli.queues import arguments_of
from quorate.cli.tables import show_rows
from quorate.errors import Refused

if TYPE_CHECKING:
    from quorate.management import Management

exchange_app = Commands()
binding_app = Commands()

Type = Literal[
    "direct",
    "fanout",
    "topic",
    "headers",
    "x-consistent-hash",
    "x-delayed-message",
    "x-modulus-hash",
    "x-random",
]
Name = Annotated[str, typer.Argument(metavar="EXCHANGE", help="Name of the exchange.")]
#: Of a headers exchange's binding, or of a message.
_HEADER: Final = "x-match=any"
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments.")
]


def _missing(exchange: str, vhost: str) -> str:
    return f"there is no exchange {exchange!r} in vhost {vhost!r}\n  next: `quorate exchange list`"


def _traits(row: dict[str, Any]) -> str:
    lifetime = "durable" if row["durable"] else "transient"
    others = [name for name in ("auto_delete", "internal") if row[name]]
    return ", ".join([lifetime, *(name.replace("_", "-") for name in others)])


@exchange_app.command("list")
def exchange_list(cluster: AnyVhost) -> None:
    """All exchanges, those of every virtual host included."""
    path = ("exchanges",) if cluster.vhost is None else ("exchanges", cluster.vhost)
    rows = cluster.api(lambda api: api.all(*path), missing=no_vhost(cluster.vhost))
    show_rows(
        rows,
        {
            "exchange": lambda row: shown_exchange(row["name"]),
            "vhost": lambda row: row["vhost"],
            "type": lambda row: row["type"],
            "kind": _traits,
            "policy": lambda row: row["policy"],
            "arguments": lambda row: row["arguments"],
        },
        as_json=cluster.as_json,
        none="there are no exchanges that you may see",
    )


@exchange_app.command("declare")
def exchange_declare(
    cluster: InVhost,
    exchange: Name,
    arguments: Arguments = None,
    kind: Annotated[Type, typer.Option("--type", help="How it routes.")] = "direct",
    durable: Annotated[
        bool, typer.Option("--durable/--transient", help="Whether it outlives the cluster's stop.")
    ] = True,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="It goes with its last binding.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Only other exchanges publish to it.")
    ] = False,
) -> int:
    """Make an exchange, or make sure that it exists like this: `quorate exchange declare events
    --type topic alternate-exchange=unrouted`.
    """
    for word in arguments or []:
        if "=" not in word:
            types = get_args(Type)
            which = word if word in types else f"TYPE, one of {', '.join(types)}"
            raise CommandError(
                f"{word!r} is not KEY=VALUE; if it is its type, that is an option: --type {which}",
                2,
            )
    body = {
        "type": kind,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": arguments_of(arguments, "alternate-exchange=unrouted"),
    }
    try:
        created = cluster.api(
            lambda api: api.put("exchanges", cluster.vhost, exchange, body=body),
            missing=no_vhost(cluster.vhost),
        )
    except Refused as refused:
        if refused.reason.startswith("inequivalent"):
            refused.add_note("next: `quorate exchange list` tells what it was declared with")
        raise
    words = f"exchange {exchange}: {'made' if created else 'exists already'}, {kind}"
    return cluster.done(words, exchange=exchange, vhost=cluster.vhost, created=created)


@exchange_app.command("delete")
def exchange_delete(
    cluster: InVhost,
    exchange: Name,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only without bindings.")] = False,
) -> int:
    """Delete an exchange and its bindings."""
    query = {"if-unused": "true"} if if_unused else {}
    cluster.api(
        lambda api: api.delete("exchanges", cluster.vhost, exchange_word(exchange), **query),
        missing=_missing(exchange, cluster.vhost),
    )
    words = f"exchange {exchange}: deleted"
    return cluster.done(words, exchange=exchange, vhost=cluster.vhost, deleted=True)


@exchange_app.command("publish")
def exchange_publish(
    cluster: InVhost,
    exchange: Name,
    body: Annotated[str | None, typer.Argument(help="The message.")] = None,
    key: Annotated[str, typer.Option("--key", help="Routing key.")] = "",
    file: Annotated[
        Path | None, typer.Option("--file", help="It is the message; - is standard input.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="KEY=VALUE",
            help="Such as content_type=text/plain or priority=5; repeatable.",
        ),
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="KEY=VALUE", help="Repeatable.")
    ] = None,
) -> int:
    """Publish one message by hand, and wait until its queues have it. Exit status 1 when no queue
    gets it. Many messages go by `quorate publish`, or by AMQP.
    """
    values = arguments_of(properties, "content_type=text/plain")
    if headers:
        values["headers"] = arguments_of(headers, _HEADER)
    message = {
        "routing_key": key,
        "payload": base64.b64encode(_payload(body, file)).decode(),
        "payload_encoding": "base64",
        "properties": values,
    }
    answer = cluster.api(
        lambda api: api.post(
            "exchanges",
            cluster.vhost,
            exchange_word(exchange),
            "publish",
            body=message,
            repeat=False,
        ),
        missing=_missing(exchange, cluster.vhost),
    )
    routed = bool(answer["routed"])
    words = f"exchange {exchange}: " + (
        "published"
        if routed
        else f"no queue gets the key {key!r}"
        f"\n  next: `quorate binding list --exchange {exchange_word(exchange)}`"
    )
    cluster.done(words, exchange=exchange, vhost=cluster.vhost, routed=routed)
    return 0 if routed else 1


def _payload(body: str | None, file: Path | None) -> bytes:
    if (body is None) == (file is None):
        raise CommandError("give a message, or --file with one", 2)
    if file is None:
        return (body or "").encode()
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {why(error)}", 2) from error


# --- bindings -------------------------------------------------------------------------------------

Source = Annotated[str, typer.Argument(metavar="EXCHANGE", help="From this exchange.")]
Destination = Annotated[str, typer.Argument(metavar="QUEUE", help="To this queue.")]
ToExchange = Annotated[
    bool, typer.Option("--to-exchange", help="The second name is that of an exchange.")
]
Key = Annotated[str, typer.Option("--key", help="Routing key, or pattern of a topic.")]


@binding_app.command("list")
def binding_list(
    cluster: AnyVhost,
    exchange: Annotated[
        str | None, typer.Option("--exchange", help="Only those from this exchange.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only those to this queue.")] = None,
) -> None:
    """Bindings that were made. Every queue is also bound to the default exchange by its own
    name.
    """
    path = ("bindings",) if cluster.vhost is None else ("bindings", cluster.vhost)
    every = cluster.api(lambda api: api.all(*path), missing=no_vhost(cluster.vhost))
    rows = [
        row
        for row in every
        if row["source"]
        and exchange in (None, row["source"])
        and (queue is None or (row["destination_type"], row["destination"]) == ("queue", queue))
    ]
    show_rows(
        sorted(rows, key=lambda row: (row["vhost"], row["source"], row["routing_key"])),
        {
            "exchange": lambda row: row["source"],
            "vhost": lambda row: row["vhost"],
            "key": lambda row: row["routing_key"],
            "to": lambda row: row["destination_type"],
            "name": lambda row: row["destination"],
            "arguments": lambda row: row["arguments"],
        },
        as_json=cluster.as_json,
        none="there are no such bindings: `quorate binding add EXCHANGE QUEUE` makes one",
    )


def _bindings(
    cluster: InVhost, exchange: str, destination: str, to_exchange: bool
) -> tuple[str, ...]:
    """The path of those between the two."""
    kind = "e" if to_exchange else "q"
    return ("bindings", cluster.vhost, "e", exchange_word(exchange), kind, destination)


@binding_app.command("add")
def binding_add(
    cluster: InVhost,
    exchange: Source,
    destination: Destination,
    arguments: Arguments = None,
    key: Key = "",
    to_exchange: ToExchange = False,
) -> int:
    """Bind a queue to an exchange, or with --to-exchange an exchange to another one."""
    path = _bindings(cluster, exchange, destination, to_exchange)
    body = {"routing_key": key, "arguments": arguments_of(arguments, _HEADER)}
    cluster.api(
        lambda api: api.post(*path, body=body),
        missing=f"there is no {exchange!r} or no {destination!r} in vhost {cluster.vhost!r}"
        "\n  next: `quorate exchange list`, `quorate queue list`",
    )
    words = f"{destination}: gets {key!r} of {exchange}"
    return cluster.done(words, exchange=exchange, destination=destination, key=key, bound=True)


@binding_app.command("delete")
def binding_delete(
    cluster: InVhost,
    exchange: Source,
    destination: Destination,
    arguments: Arguments = None,
    key: Key = "",
    to_exchange: ToExchange = False,
) -> int:
    """Take the binding with this key and these arguments away."""
    values = arguments_of(arguments, _HEADER)
    path = _bindings(cluster, exchange, destination, to_exchange)

    async def unbind(api: Management) -> None:
        for row in await api.all(*path):
            if row["routing_key"] == key and row["arguments"] == values:
                return await api.delete(*path, row["properties_key"])
        raise Refused("not_found", "no such binding")

    cluster.api(
        unbind,
        missing=f"there is no such binding from {exchange!r} to {destination!r}"
        f"\n  next: `quorate binding list --exchange {exchange_word(exchange)}`",
    )
    words = f"{destination}: gets {key!r} of {exchange} no more"
    return cluster.done(words, exchange=exchange, destination=destination, key=key, bound=False)
