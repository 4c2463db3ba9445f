"""`quorate node add`, `remove`, `replace` and `list`: which nodes the cluster has."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from quorate.cli.api import Cluster, Commands, no_node
from quorate.cli.asking import Yes, agree
from quorate.cli.groups import GOES_ON, Wait
from quorate.cli.moves import Anybody, Stage, View, until, watched
from quorate.cli.output import CommandError, complain, run_async, say
from quorate.cli.tables import show_rows
from quorate.errors import Refused

node_app = Commands(help="Run one node; let nodes into the cluster, and remove them.")

Name = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")]
Address = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="Where the other nodes reach it: its `peer`.")
]


@node_app.command("list")
def node_list(cluster: Cluster) -> None:
    """Nodes that the cluster has, with how many copies of groups each holds."""
    view = run_async(Anybody(cluster).view())
    show_rows(
        view.nodes,
        {
            "node": lambda row: row["name"],
            "state": lambda row: row["state"] + (", drained" if row.get("being_drained") else ""),
            "up": lambda row: row["running"],
            "copies": lambda row: row["copies"],
            "peer": lambda row: row["addresses"].get("peer"),
            "http": lambda row: row["addresses"].get("http"),
            "amqp": lambda row: row["addresses"].get("amqp"),
        },
        as_json=cluster.as_json,
        none="there are no nodes",
    )


@node_app.command("add")
def node_add(cluster: Cluster, node: Name, address: Address) -> int:
    """Let a new node into the cluster. It is started on its own machine, before this or after."""
    stage = Stage()

    async def work() -> int:
        anybody = Anybody(cluster)
        view = await _added(anybody, node, address)
        state = (view.node(node) or {}).get("state")
        words = f"node {node}: is a member"
        if state != "member":
            words = _let_in(node, address, view)
            words += "; then `quorate group spread` gives it groups"
        return cluster.done(words, node=node, state=state)

    return watched(work(), stage)


async def _added(anybody: Anybody, node: str, address: str) -> View:
    await anybody.ask(lambda api: api.put("nodes", node, body={"address": address}))
    return await anybody.view()


def _let_in(node: str, address: str, view: View) -> str:
    peers = [f"{row['name']}={row['addresses'].get('peer', '?')}" for row in view.nodes]
    return (
        f"node {node}: let in, expected at {address}"
        f"\n  next: start it with `join = true` and `peers = {json.dumps(peers)}`"
    )


@node_app.command("remove")
def node_remove(
    cluster: Cluster,
    node: Name,
    successor: Annotated[
        str | None,
        typer.Option(
            "--successor", "--heir", help="Takes over all that it has. Default: who has the least."
        ),
    ] = None,
    wait: Wait = True,
    yes: Yes = False,
) -> int:
    """Remove a node for good, up or down: others take over what it has, and its process ends."""
    stage = Stage()

    async def work() -> int:
        anybody = Anybody(cluster)
        view = await anybody.view()
        if (view.node(node) or {}).get("state") != "leaving":
            _check(view, node, successor, yes=yes)
        stage.words = f"node {node} leaves; {GOES_ON}"
        view = await _removed(anybody, node, successor, wait=wait)
        words = _gone(node, view)
        if not wait and view.node(node) is not None:
            words = f"node {node}: leaves\n  next: `quorate group list` shows how far"
        return cluster.done(words, node=node, removed=view.node(node) is None)

    return watched(work(), stage)


@node_app.command("replace")
def node_replace(
    cluster: Cluster,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The node that goes.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The node that comes.")],
    address: Address,
    yes: Yes = False,
) -> int:
    """Let a node in, wait until it has joined, and give it all that another has, which is removed.

    May be repeated when it was interrupted.
    """
    stage = Stage()

    async def work() -> int:
        anybody = Anybody(cluster)
        view = await anybody.view()
        if view.node(old) is None:
            raise CommandError(no_node(old))
        view = await _added(anybody, new, address)
        stage.words = (
            f"node {new} is let in, node {old} stays until this command is given once more"
        )
        if not _is_member(view, new):
            say(_let_in(new, address, view))
        waits = f"waiting until {new} has come and has the catalog"
        view = await until(anybody, lambda view: _is_member(view, new), waits)
        if (view.node(old) or {}).get("state") != "leaving":
            _check(view, old, new, yes=yes)
        stage.words = f"node {old} leaves, {new} takes over; {GOES_ON}"
        view = await _removed(anybody, old, new, wait=True)
        return cluster.done(_gone(old, view), node=old, successor=new, removed=True)

    return watched(work(), stage)


def _is_member(view: View, node: str) -> bool:
    return (view.node(node) or {}).get("state") == "member"


async def _removed(anybody: Anybody, node: str, successor: str | None, *, wait: bool) -> View:
    # Whoever gives the command has agreed to what it costs: see `_check`.
    query = {"fewer": "true"} if successor is None else {"fewer": "true", "heir": successor}
    try:
        await anybody.ask(lambda api: api.delete("nodes", node, **query))
    except Refused as refused:
        if refused.code != "not_found":
            raise
        # It was there a moment ago: an answer was lost, and the question repeated.
    if not wait:
        return await anybody.view()
    return await until(
        anybody, lambda view: view.node(node) is None, f"waiting until {node} has heard of it"
    )


def _gone(node: str, view: View) -> str:
    return f"node {node}: removed; copies: {view.copies}"


def _check(view: View, node: str, successor: str | None, *, yes: bool) -> None:
    from node.operating.removal import risks_of

    if view.node(node) is None:
        raise CommandError(no_node(node))
    risks = risks_of(view.nodes, view.groups, node, successor)
    if not risks:
        return
    agree(f"remove node {node}", "; ".join(risks), yes=yes, instead="add or start nodes first, or ")
    for risk in risks:
        complain(f"warning: {risk}")
