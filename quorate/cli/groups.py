"""`quorate group ...`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from quorate.cli.api import Cluster, Commands, no_node
from quorate.cli.asking import Yes, agree
from quorate.cli.copies import copies_on
from quorate.cli.moves import LOOK_S, Anybody, Row, Stage, View, until, watched, word_of
from quorate.cli.output import CommandError, run_async, say
from quorate.cli.tables import Alarm, show_rows

group_app = Commands()

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until all of it has been done.")]
GOES_ON = "it goes on without this command: `quorate group list` shows how far"


@group_app.command("list")
def group_list(cluster: Cluster) -> None:
    """Groups, the nodes that have a copy, and what those that move wait for."""
    view = run_async(Anybody(cluster).view())

    def on_its_way(row: Row) -> str | None:
        return word_of(row, view.down).partition(": ")[2] if row["moving"] else None

    show_rows(
        view.groups,
        {
            "group": lambda row: row["name"],
            "leader": lambda row: row["leader"] or Alarm("none"),
            "copies on": lambda row: copies_on(row, view.down),
            "shall be on": lambda row: row["members"] if row["moving"] else None,
            "lag": lambda row: max(row["lag"].values(), default=None),
            "moving": on_its_way,
        },
        as_json=cluster.as_json,
        none="there are no groups",
    )


@group_app.command("move")
def group_move(
    cluster: Cluster,
    group: Annotated[str, typer.Argument(help="Name of the group.")],
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="All that shall have it.")],
    wait: Wait = True,
    yes: Yes = False,
) -> int:
    """Give a group other members, one at a time, while it goes on working."""
    stage = Stage()

    async def work() -> int:
        anybody = Anybody(cluster)
        view = await anybody.view()
        _row(view, group)
        for node in nodes:
            if view.node(node) is None:
                raise CommandError(no_node(node))
        if not yes:
            _check(view, group, nodes)
        body = {"members": nodes, "fewer": yes}
        await anybody.ask(lambda api: api.put("groups", group, "members", body=body))
        stage.words = GOES_ON
        view = await anybody.view()
        if wait:
            view = await until(anybody, lambda view: not _moves(view, {group}), f"{group}: begins")
        row = view.group(group) or {}
        words = f"group {group}: on {', '.join(row.get('held', []))}; leader: {row.get('leader')}"
        if row.get("moving"):
            words += f"; shall be on {', '.join(row['members'])}\n  next: `quorate group list`"
        return cluster.done(words, **row)

    return watched(work(), stage)


@group_app.command("rebuild")
def group_rebuild(
    cluster: Cluster,
    group: Annotated[str, typer.Argument(help="Name of the group.")],
    node: Annotated[str, typer.Argument(help="The node whose copy is dropped and got anew.")],
    yes: Yes = False,
) -> int:
    """Drop a node's copy of a group and get it from the leader: for one that has diverged."""
    stage = Stage()

    async def work() -> int:
        anybody = Anybody(cluster)
        row = _row(await anybody.view(), group)
        if row["name"] == "catalog":
            raise CommandError(
                "every node has the catalog\n  next: stop the node, move its data folder away and"
                " start it again: it gets everything from the others"
            )
        members: list[str] = row["members"]
        if node not in members:
            raise CommandError(
                f"node {node} holds no copy of group {group}; these hold one: {', '.join(members)}"
            )
        if len(members) < 2:
            raise CommandError(f"node {node} holds the only copy of group {group}")
        agree(
            f"rebuild group {group} on node {node}",
            f"it will be on {len(members) - 1} nodes until node {node} has it again",
            yes=yes,
        )
        stage.words = f"it goes on; then `quorate group move {group} {' '.join(members)}`"
        others = [each for each in members if each != node]
        import asyncio

        await _moved(anybody, group, others)
        while node in await anybody.ask(lambda api: api.get("groups", group, "copies")):  # noqa: ASYNC110 -- it is no event
            await asyncio.sleep(LOOK_S)  # what it has must be gone before it gets it again
        view = await _moved(anybody, group, members)
        row = view.group(group) or {}
        return cluster.done(f"group {group}: node {node} has it anew", **row)

    return watched(work(), stage)


async def _moved(anybody: Anybody, group: str, members: list[str]) -> View:
    body = {"members": members, "fewer": True}
    await anybody.ask(lambda api: api.put("groups", group, "members", body=body))
    words = f"{group}: on {', '.join(members)}"
    return await until(anybody, lambda view: not _moves(view, {group}), words)


def _row(view: View, group: str) -> Row:
    row = view.group(group)
    if row is None:
        raise CommandError(f"there is no group {group}\n  next: `quorate group list`")
    return row


def _check(view: View, group: str, nodes: Sequence[str]) -> None:
    copies = len((view.group(group) or {}).get("members", []))
    if len(nodes) < copies:
        agree(
            f"move group {group}",
            f"it would have {len(nodes)} copies instead of {copies}",
            yes=False,
            instead="name all nodes that shall have a copy, or ",
        )


@group_app.command("spread")
def group_spread(
    cluster: Cluster,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be moved.")
    ] = False,
    wait: Wait = True,
) -> int:
    """Move as few copies as can be until all nodes have about as many."""
    stage = Stage()

    async def work() -> int:
        anybody = Anybody(cluster)
        view = await anybody.view()
        dry = {"dry-run": "true"}
        asked = await anybody.ask(lambda api: api.post("groups", "spread", body={}, query=dry))
        moves: list[Row] = asked["moves"]
        if not cluster.as_json:
            for move in moves:
                say(f"{move['group']}: {', '.join(move['from'])} -> {', '.join(move['to'])}")
        if dry_run or not moves:
            words = f"{len(moves)} of {len(view.groups) - 1} groups would move"
            if not moves:
                words = f"nothing to move; copies: {view.copies}"
            return cluster.done(words, moves=moves, copies=_copies(view))
        stage.words = GOES_ON
        await anybody.ask(lambda api: api.post("groups", "spread", body={}))
        names = {move["group"] for move in moves}
        if wait:
            view = await until(anybody, lambda view: not _moves(view, names), "it begins")
        words = f"{len(moves)} groups moved; copies: {view.copies}"
        if not wait:
            words = f"{len(moves)} groups move\n  next: `quorate group list` shows how far"
        return cluster.done(words, moves=moves, copies=_copies(view))

    return watched(work(), stage)


def _moves(view: View, names: set[str]) -> bool:
    return any(row["name"] in names for row in view.moving)


def _copies(view: View) -> dict[str, int]:
    return {row["name"]: row["copies"] for row in view.nodes}
