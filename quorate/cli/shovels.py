"""`quorate shovel ...`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quorate.cli.api import AnyVhost, Vhost, done, with_api
from quorate.cli.output import Json, Timeout, Url, emit
from quorate.cli.policies import definition_of
from quorate.cli.tables import Alarm, Columns, Row, show_rows

shovel_app = typer.Typer(no_args_is_help=True)

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
def shovel_list(
    vhost: AnyVhost = None, url: Url = None, as_json: Json = False, timeout: Timeout = 30.0
) -> None:
    """Shovels: which node runs each, and how it goes."""
    path = ("shovels",) if vhost is None else ("shovels", vhost)
    rows = with_api(
        url,
        lambda api: api.all(*path),
        timeout=timeout,
        missing=f"there is no virtual host {vhost!r}\n  next: `quorate vhost list`",
    )
    show_rows(rows, _COLUMNS, as_json=as_json, none=NONE)


@shovel_app.command("show")
def shovel_show(
    shovel: Name,
    vhost: Vhost = "/",
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """All of one shovel."""
    row = with_api(
        url,
        lambda api: api.get("shovels", "vhost", vhost, shovel),
        timeout=timeout,
        missing=_unknown(shovel, vhost),
    )
    if as_json:
        emit(row)
        return
    fields: list[Row] = [{"field": name, "value": value} for name, value in sorted(row.items())]
    columns: Columns = {"field": lambda each: each["field"], "value": lambda each: each["value"]}
    show_rows(fields, columns, as_json=False, none=NONE)


@shovel_app.command("add")
def shovel_add(
    shovel: Name,
    definition: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE...|JSON", help="Fields of docs/shovel.md."),
    ],
    vhost: Vhost = "/",
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Make a shovel, or replace it: `quorate shovel add away src-uri=amqp:// src-queue=orders
    dest-uri=amqp://u:p@there dest-queue=orders`.
    """
    value: dict[str, Any] = definition_of(definition)
    created = with_api(
        url,
        lambda api: api.put("parameters", "shovel", vhost, shovel, body={"value": value}),
        timeout=timeout,
        missing=f"there is no virtual host {vhost!r}\n  next: `quorate vhost list`",
    )
    words = f"shovel {shovel}: {'made' if created else 'replaced'}"
    return done(as_json, words, shovel=shovel, vhost=vhost, created=created)


@shovel_app.command("delete")
def shovel_delete(
    shovel: Name,
    vhost: Vhost = "/",
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """End a shovel. What it has not moved stays where it is."""
    with_api(
        url,
        lambda api: api.delete("shovels", "vhost", vhost, shovel),
        timeout=timeout,
        missing=_unknown(shovel, vhost),
    )
    return done(as_json, f"shovel {shovel}: deleted", shovel=shovel, vhost=vhost, deleted=True)


@shovel_app.command("restart")
def shovel_restart(
    shovel: Name,
    vhost: Vhost = "/",
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Connect anew, at once."""
    with_api(
        url,
        lambda api: api.delete("shovels", "vhost", vhost, shovel, "restart"),
        timeout=timeout,
        missing=_unknown(shovel, vhost),
    )
    return done(as_json, f"shovel {shovel}: restarted", shovel=shovel, vhost=vhost, restarted=True)
