"""`quorate shovel ...`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quorate.cli.api import AnyVhost, Commands, InVhost, no_vhost
from quorate.cli.output import emit
from quorate.cli.policies import definition_of
from quorate.cli.tables import Alarm, Columns, Row, show_rows

shovel_app = Commands()

Name = Annotated[str, typer.Argument(metavar="SHOVEL", help="Name of the shovel.")]
NONE = "there are no shovels: `quorate shovel add` makes one"

_COLUMNS: Columns = {
    "shovel": lambda row: row["name"],
    "vhost": lambda row: row["vhost"],
    "state": lambda row: Alarm(row["state"]) if row.get("reason") else row["state"],
    "node": lambda row: row["node"],
    "from": lambda row: _end(row, "src"),
    "to": lambda row: _end(row, "dest"),
    "messages": lambda row: row["messages"],
    "failures": lambda row: row["failures"],
    "reason": lambda row: row.get("reason"),
}


def _end(row: Row, end: str) -> str:
    """Where a message is taken from, or goes."""
    names = ("queue", "exchange", "stream", "subject")
    what = next((row[f"{end}_{name}"] for name in names if row.get(f"{end}_{name}")), "")
    return f"{row[f'{end}_uri']} {what}".strip()


def _unknown(shovel: str, vhost: str) -> str:
    return f"there is no shovel {shovel!r} in vhost {vhost!r}\n  next: `quorate shovel list`"


@shovel_app.command("list")
def shovel_list(cluster: AnyVhost) -> None:
    """Shovels: which node runs each, and how it goes."""
    path = ("shovels",) if cluster.vhost is None else ("shovels", cluster.vhost)
    rows = cluster.api(lambda api: api.all(*path), missing=no_vhost(cluster.vhost))
    show_rows(rows, _COLUMNS, as_json=cluster.as_json, none=NONE)


@shovel_app.command("show")
def shovel_show(cluster: InVhost, shovel: Name) -> None:
    """All of one shovel."""
    row = cluster.api(
        lambda api: api.get("shovels", "vhost", cluster.vhost, shovel),
        missing=_unknown(shovel, cluster.vhost),
    )
    if cluster.as_json:
        emit(row)
        return
    fields: list[Row] = [{"field": name, "value": value} for name, value in sorted(row.items())]
    columns: Columns = {"field": lambda each: each["field"], "value": lambda each: each["value"]}
    show_rows(fields, columns, as_json=False, none=NONE)


@shovel_app.command("add")
def shovel_add(
    cluster: InVhost,
    shovel: Name,
    definition: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE...|JSON", help="Fields of docs/shovel.md."),
    ],
) -> int:
    """Make a shovel, or replace it: `quorate shovel add away src-uri=amqp:// src-queue=orders
    dest-uri=amqp://u:p@there dest-queue=orders`.
    """
    value: dict[str, Any] = definition_of(definition, "src-queue=orders")
    created = cluster.api(
        lambda api: api.put("parameters", "shovel", cluster.vhost, shovel, body={"value": value}),
        missing=no_vhost(cluster.vhost),
    )
    words = f"shovel {shovel}: {'made' if created else 'replaced'}"
    return cluster.done(words, shovel=shovel, vhost=cluster.vhost, created=created)


@shovel_app.command("delete")
def shovel_delete(cluster: InVhost, shovel: Name) -> int:
    """End a shovel. What it has not moved stays where it is."""
    cluster.api(
        lambda api: api.delete("shovels", "vhost", cluster.vhost, shovel),
        missing=_unknown(shovel, cluster.vhost),
    )
    return cluster.done(
        f"shovel {shovel}: deleted", shovel=shovel, vhost=cluster.vhost, deleted=True
    )


@shovel_app.command("restart")
def shovel_restart(cluster: InVhost, shovel: Name) -> int:
    """Connect anew, at once."""
    cluster.api(
        lambda api: api.delete("shovels", "vhost", cluster.vhost, shovel, "restart"),
        missing=_unknown(shovel, cluster.vhost),
    )
    return cluster.done(
        f"shovel {shovel}: restarted", shovel=shovel, vhost=cluster.vhost, restarted=True
    )
