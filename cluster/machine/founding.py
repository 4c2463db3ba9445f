"""What must be changed in states of a cluster so that another one may begin with them.

Pure, and on states as plain data: the machines themselves never do this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import cbor2

from cluster.machine import snapshot
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import CloseSession, ForgetNode
from cluster.machine.machine import QueueMachine
from cluster.machine.publishers import is_carrier
from cluster.types import ORDINAL_BITS, GroupId, NodeId, SessionId, Stamp

#: Where in a queue's row are what it knows of publishers, and its letters on their way.
_PUBLISHERS = 5
_OUTBOX = 7


def end_sessions(machine: QueueMachine, index: int, term: int) -> int:
    """Their clients are connected to another cluster: what they held is ready again. How many."""
    _, _, sessions, *_ = snapshot.decode(machine.snapshot())
    ids = [SessionId(row[0]) for row in sessions[0]]
    for ordinal, session in enumerate(ids):
        stamp = Stamp(index, term, machine.now_ms, ordinal % (1 << ORDINAL_BITS))
        machine.apply(stamp, CloseSession(session))
    return len(ids)


def agreed(states: dict[GroupId, bytes]) -> dict[GroupId, bytes]:
    """States of queues' groups, of moments that may differ, made to agree about what one of them
    sent and another has.

    Who receives dead letters, or parts of transactions, remembers how far it has them by their
    numbers. When the sender is at an earlier moment it will give these numbers again, to others:
    they must not be taken for repeated.
    """
    parts = {group: snapshot.decode(data) for group, data in states.items()}
    next_letter = {row[0]: row[4][_OUTBOX][0] for part in parts.values() for row in part[3]}
    decided = {group: part[4][0] if len(part) > 4 else 0 for group, part in parts.items()}
    for part in parts.values():
        for row in part[3]:
            for publisher in row[4][_PUBLISHERS]:
                _forget_letters(publisher, next_letter)
        if len(part) > 4:
            for source in part[4][3]:
                _forget_parts(source, decided.get(GroupId(source[0]), 0))
    return {group: snapshot.encode(part) for group, part in parts.items()}


def _forget_letters(publisher: list[Any], next_letter: dict[int, int]) -> None:
    name, last = publisher[0], publisher[1]
    source = name.partition(":")[2] if is_carrier(name) else ""
    known = next_letter.get(int(source)) if source.isdecimal() else None
    if known is not None and last >= known:
        publisher[1] = known - 1
        publisher[3] = [
            [first, min(end, known - 1)] for first, end in publisher[3] if first < known
        ]


def _forget_parts(source: list[Any], decided: int) -> None:
    source[1] = min(source[1], decided + 1)
    source[2] = [[first, min(last, decided)] for first, last in source[2] if first <= decided]


def queue_ids(states: Iterable[bytes]) -> set[int]:
    """Of the queues in the states of groups."""
    return {row[0] for data in states for row in snapshot.decode(data)[3]}


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
        row[2], row[4], row[5], row[6], row[7] = places, places, places, 0, 0  # as when it is born
    state["next_queue_id"] = max([state["next_queue_id"], *(queue + 1 for queue in queues)])
    return cbor2.dumps(state, canonical=True)
