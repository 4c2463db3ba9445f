"""What must be changed in states of a cluster so that another one may begin with them.

Pure, and on states as plain data: the machines themselves never do this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import cbor2

from cluster.machine import snapshot
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import CloseSession, ForgetNode, UpgradeMachine
from cluster.machine.machine import QueueMachine
from cluster.types import ORDINAL_BITS, NodeId, SessionId, Stamp


def begin_again(machine: QueueMachine, index: int, term: int) -> None:
    """At the newest version, so that what one group numbers for another from now on carries the
    term. States may be of moments that differ: a receiver may have more than its sender has sent.
    """
    ended = end_sessions(machine, index, term)
    stamp = Stamp(index, term, machine.now_ms, ended % (1 << ORDINAL_BITS))
    machine.apply(stamp, UpgradeMachine(machine.newest))


def end_sessions(machine: QueueMachine, index: int, term: int) -> int:
    """Their clients are connected to another cluster: what they held is ready again. How many."""
    _, _, sessions, *_ = snapshot.decode(machine.snapshot())
    ids = [SessionId(row[0]) for row in sessions[0]]
    for ordinal, session in enumerate(ids):
        stamp = Stamp(index, term, machine.now_ms, ordinal % (1 << ORDINAL_BITS))
        machine.apply(stamp, CloseSession(session))
    return len(ids)


def incarnations_known(states: Iterable[bytes]) -> dict[NodeId, int]:
    """The newest start of each node that these groups of queues know of. The catalog may not have
    heard of it: a node registers only when it has a leader.
    """
    found: dict[NodeId, int] = {}
    for data in states:
        for node, incarnation in snapshot.decode(data)[2][2]:
            found[node] = max(incarnation, found.get(node, 0))
    return found


def queue_ids(states: Iterable[bytes]) -> set[int]:
    """Of the queues in the states of groups, and of those whose ids are fenced there."""
    found: set[int] = set()
    for _, _, _, queues, *later in map(snapshot.decode, states):
        fenced = later[3] if len(later) > 3 else ()
        found |= {row[0] for row in (*queues, *fenced)}
    return found


def found_again(
    catalog: CatalogMachine, founders: Sequence[NodeId], index: int, term: int, queues: set[int]
) -> bytes:
    """The catalog's state when these nodes, and no others, begin with a copy of every group.

    Other nodes count as removed, transient queues went with their processes. No number of `queues`
    is given to another queue.
    """
    nodes = catalog.nodes_ever()
    for ordinal, info in enumerate(nodes):
        stamp = Stamp(index, term, 0, ordinal)
        catalog.apply(stamp, ForgetNode(info.node, info.incarnation))
    catalog.apply(Stamp(index, term, 0, len(nodes)), UpgradeMachine(catalog.newest))
    state = cast("dict[str, Any]", cbor2.loads(catalog.snapshot()))
    tables = state["tables"]
    known = {row[0]: row for row in tables["nodes"]}
    for row in known.values():
        row[2], row[4] = {}, "member" if row[0] in founders else "removed"
    for node in founders:
        known.setdefault(node, [node, 0, {}, len(known) + 1, "member"])
    tables["nodes"] = [known[node] for node in sorted(known)]
    places = sorted(founders)
    for row in tables["groups"]:
        row[2], row[4:] = places, [places, places, 0, 0]  # as when it is born
    state["next_queue_id"] = max([state["next_queue_id"], *(queue + 1 for queue in queues)])
    return cbor2.dumps(state, canonical=True)
