"""The production parts together: TCP links, a real disk, real time."""

from __future__ import annotations

import random
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cluster.cluster_node import ClusterConfig, ClusterNode
from cluster.log import RealDisk, SystemClock
from cluster.machine import QueueMachine
from cluster.machine.commands import AddNode, Command, Enqueue, RemoveNode
from cluster.machine.replies import Declared
from cluster.raft import links
from cluster.raft.links import TcpLinks
from cluster.types import CATALOG_GROUP, NodeId
from quorate.ports import free_port
from tests.testkit.waiting import stays, until

NAMES = [NodeId(f"n{i}") for i in (1, 2, 3)]
LATER = NodeId("n4")  # in no settings


class Loopback:
    """Three nodes on free ports, their folders under one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in [*NAMES, LATER]}
        self.disk = RealDisk()
        self.nodes: dict[NodeId, ClusterNode] = {}
        self.starts = 0

    async def start(self, *names: NodeId, **links: Any) -> None:
        for name in names:
            self.starts += 1
            clock, dice = SystemClock(), random.Random(name)
            settings: dict[str, Any] = {"cluster": "c", "secret": b"secret", **links}
            node = ClusterNode(
                ClusterConfig(
                    name,
                    settings["cluster"],
                    sorted({*NAMES, name}),
                    str(self.folder / name),
                    default_groups=2,
                    # Nodes that end are replaced without a timeout. All share a loop, which may
                    # stand still for seconds: no reason for an election.
                    election_min_ms=6_000,
                    election_max_ms=9_000,
                    heartbeat_ms=50,
                    addresses={"peer": self.addresses[name]},
                    join=name == LATER,
                ),
                disk=self.disk,
                clock=clock,
                links=TcpLinks(
                    name,
                    settings["cluster"],
                    self.starts,
                    self.addresses[name],
                    {peer: self.addresses[peer] for peer in NAMES},
                    secret=settings["secret"],
                    tls=None,
                    clock=clock,
                    random=dice,
                ),
                random=dice,
            )
            await node.start()
            self.nodes[name] = node

    def leading(self, group: int) -> NodeId | None:
        for name, node in self.nodes.items():
            if any(g.id == group and g.ready for g in node.groups.values()):
                return name
        return None

    async def stop(self) -> None:
        for name in list(self.nodes):
            await self.nodes.pop(name).stop(transfer=False)
        self.disk.close()


async def test_messages_survive_an_abrupt_end_a_graceful_one_and_a_restart(tmp_path: Path) -> None:
    cluster = Loopback(tmp_path)
    await cluster.start(*NAMES)
    declared = await cluster.nodes[NAMES[1]].declare_queue("/", "q", {})
    assert isinstance(declared.reply, Declared)
    queue, group = declared.reply.queue, declared.reply.group

    numbers = count(1)

    async def publish(body: bytes) -> None:
        """Until it is stored: once, since it has a number."""
        command = Enqueue(queue, "publisher", next(numbers), [body])

        async def stored() -> bool:
            node = next(iter(cluster.nodes.values()))
            return (await node.ask(group, command)).kind == "ok"

        await until(stored)

    def ready(name: NodeId) -> int | None:
        node = cluster.nodes[name]
        machine = node.groups[group].machine if group in node.groups else None
        view = machine.queue(queue) if isinstance(machine, QueueMachine) else None
        return None if view is None else view.ready_count

    await publish(b"one")
    for graceful in (False, True):
        await until(lambda: cluster.leading(group))
        name = cluster.leading(group)
        assert name is not None
        await cluster.nodes.pop(name).stop(transfer=graceful)
        await publish(b"more")
        await cluster.start(name)
        await until(lambda name=name, stored=2 + graceful: ready(name) == stored)
    await cluster.stop()


async def test_two_of_three_elect_though_the_one_does_not_know_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n2 was away while n4 took the place of n3; then n1 dies, and n2 is back."""
    monkeypatch.setattr(links, "PROBE_S", 0.05)
    monkeypatch.setattr(links, "CALL_S", 0.5)
    cluster = Loopback(tmp_path)
    one, two, three = NAMES
    await cluster.start(*NAMES)
    # A copy that is made when its group has moved already could not vote.
    copies = cluster.nodes[two].groups
    await until(lambda: len(copies) == 3 and all(copy.leader for copy in copies.values()))
    await cluster.nodes.pop(two).stop()

    async def is_changed(command: Command) -> bool:
        return (await cluster.nodes[one].change(command)).kind == "ok"

    async def changed(command: Command) -> None:
        await until(lambda: is_changed(command))

    await changed(AddNode(LATER, {"peer": cluster.addresses[LATER]}))
    await cluster.start(LATER)
    await until(lambda: LATER in cluster.nodes[one].catalog.configuration.voters)
    await changed(RemoveNode(three, LATER))
    await until(lambda: cluster.nodes[three].left)
    await cluster.nodes.pop(three).stop()
    await cluster.nodes.pop(one).stop(transfer=False)
    assert cluster.leading(CATALOG_GROUP) is None

    await cluster.start(two)
    await until(lambda: cluster.leading(CATALOG_GROUP) == LATER)
    for info in cluster.nodes[LATER].catalog_machine.groups():
        await until(lambda group=info.id: cluster.leading(group))
    await until(lambda: LATER in cluster.nodes[two].peers.states)
    await cluster.stop()


async def test_a_link_that_comes_or_goes_is_one_line_of_the_log(tmp_path: Path) -> None:
    cluster = Loopback(tmp_path)
    with capture_logs() as logs:
        await cluster.start(NAMES[0], NAMES[1])

        def lines(event: str, peer: NodeId) -> list[Any]:
            return [e for e in logs if e["event"] == event and e["peer"] == peer]

        # Both nodes log here.
        await until(lambda: all(lines("link_up", name) for name in NAMES[:2]))
        before = len(lines("link_down", NAMES[1]))  # one waits for the other to listen
        await cluster.nodes.pop(NAMES[1]).stop()
        await until(lambda: len(lines("link_down", NAMES[1])) > before)
        await cluster.stop()
    for name in NAMES[:2]:
        (up,) = lines("link_up", name)
        assert {"address", "incarnation"} <= set(up)
    assert [e["why"] for e in lines("link_down", NAMES[1])[before:]] == ["gone"]


async def test_a_node_of_another_cluster_or_with_another_secret_gets_no_part(
    tmp_path: Path,
) -> None:
    cluster = Loopback(tmp_path)
    await cluster.start(NAMES[0], NAMES[1])
    await until(lambda: cluster.leading(CATALOG_GROUP) and cluster.leading(2))

    def outside(node: ClusterNode) -> bool:
        return not node.links.connected(NAMES[0]) and node.leader_of(CATALOG_GROUP) is None

    for wrong in ({"cluster": "other"}, {"secret": b"guess"}):
        await cluster.start(NAMES[2], **wrong)
        stranger = cluster.nodes.pop(NAMES[2])
        await stays(partial(outside, stranger))
        await stranger.stop(transfer=False)
        for file in (tmp_path / NAMES[2]).rglob("*"):
            if file.is_file():
                file.unlink()
    assert (await cluster.nodes[NAMES[0]].declare_queue("/", "q", {})).kind == "ok"
    await cluster.start(NAMES[2])
    await until(lambda: cluster.nodes[NAMES[2]].queue_info("/", "q"))
    await cluster.stop()
