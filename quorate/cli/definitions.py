"""`quorate definitions ...`: all that was declared, as one document, out of a cluster and into
one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from quorate.cli.api import Commands, Patient, no_vhost
from quorate.cli.output import CommandError, say, why
from quorate.errors import Refused

definitions_app = Commands()

#: In the order in which they need each other.
SECTIONS = (
    "vhosts",
    "users",
    "permissions",
    "topic_permissions",
    "global_parameters",
    "parameters",
    "policies",
    "queues",
    "exchanges",
    "bindings",
)
IN_VHOST = SECTIONS[SECTIONS.index("parameters") :]
#: Objects named when an import is refused, or leaves some out.
NAMED_MAX = 100
CORRUPT = 3

Definitions = dict[str, list[dict[str, Any]]]
OneVhost = Annotated[
    str | None, typer.Option("--vhost", help="Only this virtual host. Default: the cluster.")
]


@definitions_app.command("export")
def definitions_export(
    cluster: Patient,
    file: Annotated[Path | None, typer.Argument(help="Default: standard output.")] = None,
    vhost: OneVhost = None,
    rabbitmq_hashes: Annotated[
        bool,
        typer.Option(
            "--rabbitmq-hashes",
            help="Only hashes that RabbitMQ can import; users with others have no password in it.",
        ),
    ] = False,
) -> int:
    """Write all definitions, without messages. They hold hashes of passwords: a file is readable
    for you only.
    """
    query = {"hashes": "rabbitmq"} if rabbitmq_hashes and vhost is None else {}
    found = cluster.api(
        lambda api: api.get("definitions", *_of(vhost), **query), missing=no_vhost(vhost)
    )
    if query:
        for user in found["users"]:
            if not user["password_hash"]:
                say(f"user {user['name']!r} has no password in it: its hash is not RabbitMQ's")
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if file is None or str(file) == "-":
        sys.stdout.write(text)
        return 0
    try:
        _write(file, text)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {why(error)}", 2) from error
    counts = {name: len(found[name]) for name in SECTIONS if found.get(name)}
    return cluster.done(f"{file}: {_counted(counts)}", file=str(file), **counts)


@definitions_app.command("import")
def definitions_import(
    cluster: Patient,
    file: Annotated[Path, typer.Argument(help="JSON of an export; - is standard input.")],
    vhost: OneVhost = None,
    skip_unsupported: Annotated[
        bool,
        typer.Option(
            "--skip-unsupported",
            help="Leave out what is not there, such as ha-* of policies.",
        ),
    ] = False,
) -> int:
    """Make all that a file holds, also one of RabbitMQ's, or nothing. What is there already stays;
    queues and exchanges are not changed. It may be repeated.
    """
    definitions = read_definitions(file)
    if vhost is not None:
        definitions = of_vhost(definitions, vhost)
    counts = {name: len(items) for name, items in definitions.items() if items}
    query = {"skip": "unsupported"} if skip_unsupported else None
    try:
        found = cluster.api(
            lambda api: api.post("definitions", *_of(vhost), query=query, body=definitions),
            missing=no_vhost(vhost),
        )
    except Refused as refused:
        report = cast("list[dict[str, Any]] | None", refused.detail)
        if not report:
            raise
        words = ["nothing was imported:", *_lines(report)]
        if any(row["outcome"] == "unsupported" for row in report):
            words.append("  next: --skip-unsupported leaves out what is not supported")
        raise CommandError(f"refused ({refused.code}): " + "\n".join(words)) from refused
    report = [] if found is None else cast("list[dict[str, Any]]", found["report"])
    left_out = [row for row in report if row["outcome"] == "left_out"]
    idle = [row for row in report if row["outcome"] == "without_effect"]
    if not cluster.as_json:
        for line in _lines(left_out):
            say(f"left out {line.strip()}")
        for line in _lines(idle):
            say(f"without effect in {line.strip()}")
    named = {
        name: rows for name, rows in (("left_out", left_out), ("without_effect", idle)) if rows
    }
    facts: dict[str, Any] = {**counts, **named}
    words = f"imported {_counted(counts)}"
    return cluster.done(words + (f"; left out {len(left_out)}" if left_out else ""), **facts)


def _lines(report: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"  {row['section'].replace('_', ' ')} {row['name']!r}"
        + (f" in vhost {row['vhost']!r}" if row["vhost"] else "")
        + f": {row['reason']}"
        for row in report[:NAMED_MAX]
    ]
    more = len(report) - NAMED_MAX
    return [*lines, f"  and {more:,} more"] if more > 0 else lines


def _of(vhost: str | None) -> tuple[str, ...]:
    return () if vhost is None else (vhost,)


def _counted(counts: dict[str, int]) -> str:
    words = [f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items()]
    return ", ".join(words) or "nothing"


def read_definitions(file: Path) -> Definitions:
    """Raises CommandError."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CommandError(f"{file} cannot be read: {why(error)}", 2) from error
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{file} is no JSON: {error}", CORRUPT) from error
    if not isinstance(found, dict) or not any(name in found for name in SECTIONS):
        raise CommandError(
            f"{file} holds no definitions: `quorate definitions export` writes such a file",
            CORRUPT,
        )
    definitions: Definitions = {}
    for name in SECTIONS:
        items: Any = cast("dict[str, Any]", found).get(name) or []
        if not isinstance(items, list) or not all(
            isinstance(item, dict) for item in cast("list[Any]", items)
        ):
            raise CommandError(f"{file}: {name} is no list of objects", CORRUPT)
        definitions[name] = items
    return definitions


def of_vhost(definitions: Definitions, vhost: str) -> Definitions:
    """What is in it; an export of a single one does not say which it was."""
    return {
        name: [item for item in definitions[name] if item.get("vhost", vhost) == vhost]
        for name in IN_VHOST
    }


def _write(file: Path, text: str) -> None:
    """Whole or not at all."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
