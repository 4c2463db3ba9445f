"""A backup of queues with large bodies, whose parts are entries of their own, and its restore."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pika.exceptions import NackError

from cluster.machine.commands import BodyPart, Get, OpenSession
from cluster.types import NodeId, SessionId
from quorate.cli.api import Patient
from quorate.cli.backup import _Further, run_backup, run_restore, run_verify
from tests.node.amqp.test_large_bodies import LIMIT, MIB, body_of, of, receive, send
from tests.node.nodes import Nodes, machine_of, until


async def test_large_bodies_are_backed_up_and_restored_whole(tmp_path: Path) -> None:
    """Those below the last snapshot and above it, held by a consumer, dead-lettered; and a part of
    which there is no message yet.
    """
    bodies = [body_of(20 * MIB, 1), b"small", body_of(2 * MIB, 2), body_of(20 * MIB + 1, 3)]
    limit = {"limits.message_bytes_max": LIMIT}
    async with Nodes(tmp_path / "old", 1, **limit) as nodes:
        await nodes.declare("dead")
        await nodes.declare("q")
        await nodes.declare(
            "rejected", max_length=0, overflow="reject-publish-dlx",
            dead_letter_exchange="", dead_letter_routing_key="dead",
        )  # fmt: skip
        await of(nodes, send, nodes.one, *bodies[:2])
        with pytest.raises(NackError):
            await of(nodes, send, nodes.one, bodies[0], queue="rejected")
        queue, _ = machine_of(nodes, "q")
        info = nodes.one.cluster.queue_info("/", "q")
        group = nodes.one.cluster.groups[info.group]
        session = SessionId("held")
        await group.ask(OpenSession(session, NodeId("n1"), 600_000))
        await group.ask(Get(queue, session, 1))
        await until(
            lambda: machine_of(nodes, "dead")[1].queue(machine_of(nodes, "dead")[0]).messages
        )
        group.take_snapshot()
        await of(nodes, send, nodes.one, *bodies[2:])
        await group.ask(BodyPart(queue, "unfinished", 0, bytes(MIB // 2)))

        backup = tmp_path / "backup"
        await asyncio.to_thread(run_backup, Patient(nodes.url("n1"), as_json=True), backup)

    assert await asyncio.to_thread(run_verify, backup, as_json=True) == 0
    restored = tmp_path / "restored"
    further = _Further([], {}, None)
    await asyncio.to_thread(
        run_restore, backup, restored, "restored", ["n1"], further, as_json=True
    )
    flags = {**limit, "cluster": "restored", "data_dir": str(restored)}
    async with Nodes(tmp_path / "new", 1, **flags) as nodes:
        machine = machine_of(nodes, "q")
        assert machine[1].queue(machine[0]).messages == len(bodies)
        await until(lambda: machine[1].queue(machine[0]).ready_count == len(bodies))
        assert await of(nodes, receive, nodes.one, len(bodies)) == bodies
        assert await of(nodes, receive, nodes.one, 1, "dead") == bodies[:1]
