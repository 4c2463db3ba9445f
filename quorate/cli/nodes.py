"""`node start`, `status` and `log dump`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from quorate.cli.api import Cluster
from quorate.cli.copies import copies_up
from quorate.cli.output import CommandError, emit, stdout
from quorate.cli.tables import Alarm


def run_node(config: Path | None, flags: list[str]) -> int:
    # The broker is only imported by the process that is one.
    from node import node
    from node.settings.settings import load, parse_flags

    return node.main(load(file=config, flags=parse_flags(flags)))


def run_log_dump(
    directory: Path,
    group: int | None,
    first: int | None,
    last: int | None,
    kinds: list[str] | None,
    *,
    as_json: bool,
) -> int:
    from cluster.log import dump
    from cluster.log.format import KIND_NAMES
    from cluster.log.reader import CORRUPT, TORN

    if not directory.is_dir():
        raise CommandError(f"{directory} is no folder: give a node's data folder", 2)
    names = sorted((*KIND_NAMES.values(), CORRUPT, TORN))
    for kind in kinds or ():
        if kind not in names:
            raise CommandError(f"--kind {kind}: there are {', '.join(names)}", 2)
    return dump.dump(
        str(log_folder(directory)),
        out=sys.stdout,
        group=group,
        first=first,
        last=last,
        kinds=kinds,
        as_json=as_json,
    )


def log_folder(directory: Path) -> Path:
    """The folder with the segments, when one above it was given."""
    for candidate in (directory, directory / "log", directory / "data" / "log", directory / "data"):
        if any(candidate.glob("[0-9]*.log")):
            return candidate
    return directory


def run_status(cluster: Cluster) -> int:
    about = cluster.client(lambda client: client.status())
    if cluster.as_json:
        emit(about)
        return 0
    console = stdout()
    console.print(
        f"cluster [bold]{about.get('cluster', '?')}[/bold], as seen by {about.get('node', '?')}"
    )
    console.print(nodes_table(about))
    console.print(groups_table(about))
    if about.get("moving"):
        console.print(
            f"{len(about['moving'])} groups are moving: `quorate group list` shows how far"
        )
    clock: dict[str, Any] = about.get("clock") or {}
    for alarm in clock.get("alarms") or ():
        console.print(f"[red]wrong clock:[/red] {alarm}")
    if any(isinstance(copies_up(row, _down(about)), Alarm) for row in about.get("groups", [])):
        console.print(
            "[red]groups have too few copies that are up:[/red] start the nodes that are down, or"
            " give the groups others with `quorate group move` or `quorate group spread`"
        )
    leaderless = [row for row in about.get("groups", []) if not row.get("leader")]
    if leaderless:
        console.print(
            f"[red]{len(leaderless)} groups have no leader:[/red]"
            " a majority of their members must run and reach each other"
        )
        return 1
    return 0


def nodes_table(about: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("node", "state", "http", "peer", "leads", title=None)
    leads: dict[str, int] = {}
    for group in about.get("groups", []):
        leads[group.get("leader")] = leads.get(group.get("leader"), 0) + 1
    for row in about.get("nodes", []):
        reached: dict[str, Any] = row.get("addresses") or {}
        here = row.get("node") == about.get("node")
        state = "[green]up[/green]" if row.get("up") or here else "[red]down[/red]"
        membership = row.get("state", "member")
        table.add_row(
            str(row.get("node")),
            state if membership == "member" else f"{state}, {membership}",
            reached.get("http", "-"),
            reached.get("peer", "-"),
            f"{leads.get(row.get('node'), 0)} groups",
        )
    return table


def _down(about: dict[str, Any]) -> set[str]:
    """By the node that tells; itself is up."""
    down = {str(row["node"]) for row in about.get("nodes", ()) if not row.get("up")}
    return down - {about.get("node")}


def lag_of(group: dict[str, Any]) -> str:
    """How many entries each other member is behind, as the leader counts them."""
    lag: dict[str, int] = group.get("lag") or {}
    if lag and not any(lag.values()):
        return "0"
    return (
        ", ".join(f"{member} {behind}" for member, behind in sorted(lag.items()) if behind) or "-"
    )


def groups_table(about: dict[str, Any]) -> Any:
    from rich.table import Table

    down = _down(about)
    table = Table(
        "group", "leader", "copies", "term", "commit", "applied", "lag", "queues", "ready"
    )
    for group in about.get("groups", []):
        machine: dict[str, Any] = group.get("machine") or {}
        leader = group.get("leader")
        poisoned = group.get("poisoned")
        copies = copies_up(group, down)
        table.add_row(
            f"{group.get('name', group.get('id'))}",
            str(leader) if leader else "[red]none[/red]",
            f"[red]{copies}[/red]" if isinstance(copies, Alarm) else str(copies),
            str(group.get("term", "-")),
            str(group.get("commit", group.get("commit_index", "-"))),
            str(group.get("applied", group.get("applied_index", "-")))
            + (" [red]poisoned[/red]" if poisoned else ""),
            lag_of(group),
            str(machine.get("queues", "-")),
            f"{machine['ready']:,}" if "ready" in machine else "-",
        )
    return table
