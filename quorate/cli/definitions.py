"""`quorate definitions ...`: all that was declared, as one document, out of a cluster and into
one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from quorate.cli.api import done, with_api
from quorate.cli.output import CommandError, Json, Timeout, Url
from quorate.cli.progress import Bar
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from quorate.management import Management

definitions_app = typer.Typer(
    no_args_is_help=True,
    help="Users, virtual hosts, policies, queues, exchanges and bindings as one JSON document.",
)

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
#: What is sent at a time.
PART_COUNT = 200
#: With more than this a bar shows how far it is.
BAR_COUNT = 1_000
CORRUPT = 3

Definitions = dict[str, list[dict[str, Any]]]
OneVhost = Annotated[
    str | None, typer.Option("--vhost", help="Only this virtual host. Default: the cluster.")
]


class Part(NamedTuple):
    section: str
    items: list[dict[str, Any]]


@definitions_app.command("export")
def definitions_export(
    file: Annotated[Path | None, typer.Argument(help="Default: standard output.")] = None,
    vhost: OneVhost = None,
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 60.0,
) -> int:
    """Write all definitions, without messages. They hold hashes of passwords: a file is readable
    for you only.
    """
    found = with_api(
        url,
        lambda api: api.get("definitions", *_of(vhost)),
        timeout=timeout,
        missing=_missing(vhost),
    )
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if file is None or str(file) == "-":
        sys.stdout.write(text)
        return 0
    try:
        _write(file, text)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error}", 2) from error
    counts = {name: len(found[name]) for name in SECTIONS if found.get(name)}
    return done(as_json, f"{file}: {_counted(counts)}", file=str(file), **counts)


@definitions_app.command("import")
def definitions_import(
    file: Annotated[Path, typer.Argument(help="JSON of an export; - is standard input.")],
    vhost: OneVhost = None,
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 60.0,
) -> int:
    """Make all that a file holds, also one of RabbitMQ's. What is there already stays; queues and
    exchanges are not changed. It may be repeated.
    """
    definitions = read_definitions(file)
    if vhost is not None:
        definitions = of_vhost(definitions, vhost)
    counts = {name: len(items) for name, items in definitions.items() if items}
    total = sum(counts.values())

    async def send(api: Management) -> None:
        done_count = 0
        with Bar("importing", total, shown=total > BAR_COUNT and not as_json) as bar:
            for part in parts_of(definitions):
                try:
                    await api.post("definitions", *_of(vhost), body={part.section: part.items})
                except QuorateError as error:
                    error.add_note(f"{done_count:,} of {total:,} were imported before it")
                    raise
                done_count += len(part.items)
                bar.add(len(part.items))

    with_api(url, send, timeout=timeout, missing=_missing(vhost))
    return done(as_json, f"imported {_counted(counts)}", **counts)


def _of(vhost: str | None) -> tuple[str, ...]:
    return () if vhost is None else (vhost,)


def _missing(vhost: str | None) -> str:
    return f"there is no virtual host {vhost!r}\n  next: `quorate vhost list`"


def _counted(counts: dict[str, int]) -> str:
    words = [f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items()]
    return ", ".join(words) or "nothing"


def read_definitions(file: Path) -> Definitions:
    """Raises CommandError."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CommandError(f"{file} cannot be read: {error}", 2) from error
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


def parts_of(definitions: Definitions) -> Iterator[Part]:
    for section, items in definitions.items():
        for start in range(0, len(items), PART_COUNT):
            yield Part(section, items[start : start + PART_COUNT])


def _write(file: Path, text: str) -> None:
    """Whole or not at all."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
