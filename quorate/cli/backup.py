"""`quorate backup` and `quorate restore`: all of a cluster into a folder, and out of one."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli.api import with_api
from quorate.cli.output import CommandError, Json, Timeout, Url, emit, say, stdout
from quorate.cli.progress import Bar

if TYPE_CHECKING:
    from cluster.restoring import Replayed
    from quorate.management import Management

CORRUPT = 3
MEGABYTE = 1_000_000

Object = dict[str, Any]


def backup(
    words: Annotated[
        list[str], typer.Argument(metavar="[verify] DIR", help="A folder that is new or empty.")
    ],
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 60.0,
) -> int:
    """Write all of a running cluster into a folder: definitions, queues and their messages, as of
    one moment. With `verify`: read one and check all of it, which needs no cluster.
    """
    match words:
        case ["verify", folder]:
            return run_verify(Path(folder), as_json=as_json)
        case [folder]:
            return run_backup(Path(folder), url, as_json=as_json, timeout=timeout)
        case _:
            raise typer.BadParameter("give one folder, or `verify` and one folder")


def restore(
    folder: Annotated[Path, typer.Argument(metavar="BACKUP", help="Folder of a backup.")],
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", help="Data folder to make; of several nodes, DIR/NODE each."),
    ],
    nodes: Annotated[
        list[str], typer.Option("--node", help="A node of the new cluster; repeatable.")
    ],
    cluster: Annotated[str, typer.Option("--cluster", help="Name of the new cluster.")],
    as_json: Json = False,
) -> int:
    """Make the data folders of a new cluster out of a backup. Nothing is overwritten.

    All nodes that it shall begin with are named in one call, since their folders must be alike;
    others join it later.
    """
    return run_restore(folder, data_dir, cluster, nodes, as_json=as_json)


def run_backup(folder: Path, url: str | None, *, as_json: bool, timeout: float) -> int:
    from node.backup_folder import FORMAT, file_of, write_manifest

    _make_empty(folder)

    async def work(api: Management) -> Object:
        nodes = await api.nodes_here()
        cut: Object = await api.post("backup", body={})
        groups = list[Object]()
        with Bar("backing up, MB", None, shown=not as_json) as bar:
            for about in cut.pop("groups"):
                path = folder / file_of(about["group"])
                size, digest = await _fetch(api, nodes, about, path, bar)
                about.pop("http")
                groups.append({**about, "file": path.name, "bytes": size, "sha256": digest})
        manifest: Object = {"format": FORMAT, **cut, "groups": groups}
        write_manifest(folder, manifest)
        return manifest

    manifest = with_api(url, work, timeout=timeout)
    total = {
        "messages": sum(group["messages"] for group in manifest["groups"]),
        "bytes": sum(group["bytes"] for group in manifest["groups"]),
    }
    if as_json:
        emit({"folder": str(folder), **total, "time": manifest["time"]})
    else:
        say(
            f"{folder}: {total['messages']:,} messages in {len(manifest['groups'])} groups as of"
            f" {manifest['time']}, {total['bytes']:,} bytes; transient queues are not contained\n"
            f"  next: `quorate backup verify {folder}`"
        )
    return 0


async def _fetch(
    api: Management, nodes: dict[str, str], about: Object, path: Path, bar: Bar
) -> tuple[int, str]:
    """Size and sum of what was written."""
    at = nodes.get(about["node"]) or about["http"]
    if at is None:
        raise CommandError(f"node {about['node']} is not reached: name it with --url", 4)
    asked = {name: str(about[name]) for name in ("index", "term", "digest", "messages")}
    state, size, shown = hashlib.sha256(), 0, 0
    # A thread for each write would cost more than the write: nobody else is on this loop.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        async for chunk in api.stream(at, "backup", str(about["group"]), **asked):
            file.write(chunk)
            state.update(chunk)
            size += len(chunk)
            bar.add(size // MEGABYTE - shown)
            shown = size // MEGABYTE
        file.flush()
        await asyncio.to_thread(os.fsync, file.fileno())
    return size, state.hexdigest()


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        busy = any(folder.iterdir())
    except OSError as error:
        raise CommandError(f"{folder} cannot be used: {error.strerror}", 2) from error
    if busy:
        raise CommandError(f"{folder} is not empty: give a folder that is new or empty", 2)


def _replay(folder: Path, *, shown: bool) -> tuple[Object, list[Replayed]]:
    from cluster.log import LogError
    from node.backup_folder import BadBackup, read_manifest, replay_all

    try:
        total = sum(group["bytes"] for group in read_manifest(folder)["groups"])
        with Bar("checking, bytes", total, shown=shown) as bar:
            return replay_all(folder, bar.add)
    except (BadBackup, LogError) as error:
        raise CommandError(str(error), CORRUPT) from error


def run_verify(folder: Path, *, as_json: bool) -> int:
    manifest, groups = _replay(folder, shown=not as_json)
    if as_json:
        emit({"folder": str(folder), "ok": True, "groups": manifest["groups"]})
        return 0
    from rich.table import Table

    table = Table("group", "entry", "term", "messages", "bytes", "state")
    for about, found in zip(manifest["groups"], groups, strict=True):
        table.add_row(
            found.name,
            f"{found.index:,}",
            str(found.term),
            f"{about['messages']:,}",
            f"{about['bytes']:,}",
            about["digest"][:12],
        )
    stdout().print(table)
    say(f"{folder}: whole; cluster {manifest['cluster']} as of {manifest['time']}")
    return 0


def run_restore(
    folder: Path, data_dir: Path, cluster: str, nodes: Sequence[str], *, as_json: bool
) -> int:
    from cluster.log import LogError
    from cluster.types import NodeId
    from node.restore import Target, check_targets, found_cluster
    from node.settings import SettingsError

    single = len(nodes) == 1
    targets = [Target(NodeId(node), data_dir if single else data_dir / node) for node in nodes]
    try:
        check_targets(targets)
        manifest, groups = _replay(folder, shown=not as_json)
        origin = {"backup": str(folder), "cluster": manifest["cluster"], "time": manifest["time"]}
        asyncio.run(found_cluster(targets, cluster, groups, origin))
    except SettingsError as error:
        raise CommandError(str(error), 2) from error
    except LogError as error:
        raise CommandError(str(error), CORRUPT) from error
    if as_json:
        emit({"cluster": cluster, "folders": {t.node: str(t.folder) for t in targets}})
        return 0
    for target in targets:
        say(f"{target.folder}: node {target.node} of cluster {cluster}")
    say(
        "  next: bring each folder to its machine, and start all of them with"
        f" `cluster = {cluster!r}` and `peers` that name these nodes;"
        " never start a node of the old cluster beside them"
    )
    return 0
