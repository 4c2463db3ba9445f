"""`quorate backup` and `quorate restore`: all of a cluster into a folder, and out of one."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from quorate.cli.api import Cluster, Patient
from quorate.cli.output import CommandError, Json, complain, emit, run_async, say, stdout
from quorate.cli.progress import Bar
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from cluster.recovery.restoring import Replayed
    from quorate.management import Management

CORRUPT = 3
MEGABYTE = 1_000_000
#: Name of a backup in a folder of them, in UTC: sorts by time.
DATED = "%Y-%m-%dT%H-%M-%SZ"

Object = dict[str, Any]


def backup(
    cluster: Patient,
    words: Annotated[
        list[str], typer.Argument(metavar="[verify] DIR", help="A folder that is new or empty.")
    ],
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            min=1,
            help="Make the backup in DIR/TIME, verify it, and remove all but the newest so many.",
        ),
    ] = None,
) -> int:
    """Write all of a running cluster into a folder: definitions, queues and their messages, as of
    one moment. With `verify`: read one and check all of it, which needs no cluster.
    """
    match words:
        case ["verify"]:
            raise CommandError(
                "which backup? `quorate backup verify DIR`; to make one in a folder of that name,"
                " `quorate backup ./verify`",
                2,
            )
        case ["verify", folder] if keep is None:
            return run_verify(Path(folder), as_json=cluster.as_json)
        case [folder] if keep is not None:
            return run_kept(cluster, Path(folder), keep)
        case [folder]:
            return run_backup(cluster, Path(folder))
        case _:
            raise typer.BadParameter(
                "give one folder, or `verify` and one folder; --keep is not for verify"
            )


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
    archive: Annotated[
        list[Path] | None,
        typer.Option("--archive", help="Go on with the segments in this folder; repeatable."),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", help="GROUP=INDEX: its last entry; repeatable. Default: the end."),
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", help="As of then, as 2026-11-21T20:00:00Z.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Make the data folders of a new cluster out of a backup. Nothing is overwritten.

    All nodes that it shall begin with are named in one call, since their folders must be alike;
    others join it later.
    """
    further = _Further(archive or [], _indexes(to or []), _ms(to_time))
    if (further.to or further.to_ms is not None) and not further.archive:
        raise CommandError("--to and --to-time need an --archive with what came later", 2)
    return run_restore(folder, data_dir, cluster, nodes, further, as_json=as_json)


class _Further(NamedTuple):
    """Beyond the backup."""

    archive: list[Path]
    to: dict[str, int]
    to_ms: int | None


def _indexes(texts: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts:
        name, _, index = text.rpartition("=")
        if not name or not index.isdecimal():
            raise CommandError(f"--to {text}: give a group and an entry, as default-1=1000", 2)
        found[name] = int(index)
    return found


def _ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"--to-time {text}: give it as 2026-11-21T20:00:00Z", 2) from error
    if time.tzinfo is None:
        raise CommandError(f"--to-time {text}: say which zone, as in {text}Z for UTC", 2)
    return int(time.timestamp() * 1000)


def run_kept(cluster: Cluster, folder: Path, keep: int) -> int:
    """One more in a folder of backups. Older ones go when it is whole, never before."""
    made = dated(folder)
    status = run_backup(cluster, made) or run_verify(made, as_json=cluster.as_json)
    if status == 0:
        for old in _surplus(folder, made, keep):
            shutil.rmtree(old)
            complain(f"{old}: removed, {keep} are kept")
    return status


def dated(folder: Path) -> Path:
    """Made here, so that another run within the same second takes the next one."""
    while True:
        named = folder / datetime.now(UTC).strftime(DATED)
        try:
            named.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            sleep(0.1)
        except OSError as error:
            raise _unusable(named, error) from error
        else:
            return named


def _surplus(folder: Path, made: Path, keep: int) -> list[Path]:
    """Whole ones beyond the newest, and what a run left that did not end."""
    from node.operating.backup_folder import MANIFEST

    dated = sorted((each for each in folder.iterdir() if _is_dated(each.name)), reverse=True)
    dated = [each for each in dated if each <= made]  # a later one is another run's
    whole = [each for each in dated if (each / MANIFEST).exists()]
    return [each for each in dated if each not in whole[:keep]]


def _is_dated(name: str) -> bool:
    try:
        datetime.strptime(name, DATED)  # noqa: DTZ007 -- only whether it is one
    except ValueError:
        return False
    return True


def run_backup(cluster: Cluster, folder: Path) -> int:
    from node.operating.backup_folder import FORMAT, file_of, write_manifest

    _make_empty(folder)
    whole = folder.absolute()

    async def work(api: Management) -> Object:
        nodes = await api.nodes_here()
        cut: Object = await api.post("backup", body={})
        groups = list[Object]()
        with Bar("backing up, MB", None, shown=not cluster.as_json) as bar:
            for about in cut.pop("groups"):
                path = folder / file_of(about["group"])
                size, digest = await _fetch(api, nodes, about, path, bar)
                about.pop("http")
                groups.append({**about, "file": path.name, "bytes": size, "sha256": digest})
        manifest: Object = {"format": FORMAT, **cut, "groups": groups}
        write_manifest(folder, manifest)
        await _record(api, whole, manifest)
        return manifest

    try:
        manifest = cluster.api(work)
    except QuorateError as error:
        error.add_note(f"{folder} holds no backup: remove it and begin again")
        raise
    total = _total(manifest)
    if cluster.as_json:
        emit({"folder": str(folder), **total, "time": manifest["time"]})
    else:
        say(
            f"{folder}: {total['messages']:,} messages in {len(manifest['groups'])} groups as of"
            f" {manifest['time']}, {total['bytes']:,} bytes; transient queues are not contained\n"
            f"  next: `quorate backup verify {folder}`"
        )
    return 0


def _total(manifest: Object) -> Object:
    return {
        name: sum(group[name] for group in manifest["groups"]) for name in ("messages", "bytes")
    }


async def _record(api: Management, folder: Path, manifest: Object) -> None:
    """For who asks the cluster when its last backup was made. Without it the backup is as good."""
    made = {"folder": str(folder), "host": gethostname(), "time": manifest["time"]}
    made |= {**_total(manifest), "groups": len(manifest["groups"])}
    try:
        await api.post("backups", body=made)
    except QuorateError as error:
        complain(f"{folder} is whole, but the cluster does not remember that it was made: {error}")


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
        os.fsync(file.fileno())
    return size, state.hexdigest()


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        busy = any(folder.iterdir())
    except OSError as error:
        raise _unusable(folder, error) from error
    if busy:
        raise CommandError(f"{folder} is not empty: give a folder that is new or empty", 2)


def _unusable(folder: Path, error: OSError) -> CommandError:
    return CommandError(f"{folder} cannot be used: {error.strerror}", 2)


def _replay(folder: Path, *, shown: bool) -> tuple[Object, list[Replayed]]:
    from cluster.log import LogError
    from node.operating.backup_folder import BadBackup, read_manifest, replay_all

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
    folder: Path,
    data_dir: Path,
    cluster: str,
    nodes: Sequence[str],
    further: _Further,
    *,
    as_json: bool,
) -> int:
    from cluster.log import LogError
    from cluster.recovery.archive import ArchiveGap
    from cluster.types import NodeId
    from node.operating.restore import Target, check_targets, found_cluster, roll_forward
    from node.settings.settings import SettingsError

    single = len(nodes) == 1
    targets = [Target(NodeId(node), data_dir if single else data_dir / node) for node in nodes]
    try:
        check_targets(targets)
        manifest, groups = _replay(folder, shown=not as_json)
        if further.archive:
            where = manifest["cluster"], further.archive
            roll_forward(groups, *where, to=further.to, to_ms=further.to_ms)
        origin = {"backup": str(folder), "cluster": manifest["cluster"], "time": manifest["time"]}
        run_async(found_cluster(targets, cluster, groups, origin))
    except SettingsError as error:
        raise CommandError(str(error), 2) from error
    except (ArchiveGap, LogError) as error:
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
