"""Alarms: publishers wait while any node that is up is low on memory or disk; consumers never."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.types import NodeId
from node.broker.alarms import Alarms, Lack
from node.memory import available_bytes, resident_bytes
from node.peer_rpc import Handler
from tests.node.nodes import Client, Nodes, until

MIB = 1 << 20


class Network:
    """Notices between nodes, delivered at once."""

    def __init__(self) -> None:
        self.nodes: dict[str, Link] = {}
        self.down: set[str] = set()
        self.lost = False
        self.told = 0

    def add(self, name: str, **options: Any) -> Alarms:
        link = self.nodes[name] = Link(self, name)
        return Alarms(link, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Link:
    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.handlers: dict[str, Handler] = {}

    def on(self, kind: str, handler: Handler) -> None:
        self.handlers[kind] = handler

    def others(self) -> list[NodeId]:
        up = set(self.network.nodes) - self.network.down - {self.name}
        return [NodeId(name) for name in sorted(up)]

    def notify(self, node: NodeId, kind: str, *fields: Any) -> bool:
        self.network.told += 1
        if not self.network.lost:
            self.network.nodes[node].handlers[kind](NodeId(self.name), list(fields))
        return True


class Memory:
    def __init__(self) -> None:
        self.used = 10

    def __call__(self) -> int:
        return self.used


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def first(network: Network, memory: Memory) -> Alarms:
    return network.add("a", memory_bytes_max=100, memory_bytes=memory)


@pytest.fixture
def second(network: Network) -> Alarms:
    return network.add("b", memory_bytes_max=100, memory_bytes=Memory())


def test_memory_comes_at_the_limit_and_goes_a_little_below(first: Alarms, memory: Memory):
    seen: list[str | None] = []
    first.on_change.append(lambda: seen.append(first.blocked))
    for used in (99, 100, 96, 95, 94, 99, 120):
        memory.used = used
        first.sample(disk=False)

    assert seen == ["low on memory", None, "low on memory"]
    assert (first.memory, first.disk) == (True, False)


def test_the_reason_has_the_words_of_rabbitmq(first: Alarms, memory: Memory):
    first.sample(disk=True)
    assert first.blocked == "low on disk"
    memory.used = 100
    first.sample(disk=True)
    assert first.blocked == "low on memory & disk"


def test_what_one_node_lacks_blocks_all(first: Alarms, second: Alarms, memory: Memory):
    memory.used = 100
    first.sample(disk=False)

    assert second.blocked == "low on memory"
    assert not second.memory
    assert second.lacks == {"a": Lack(memory=True)}

    memory.used = 10
    first.sample(disk=False)
    assert second.blocked is None


def test_a_node_that_comes_up_is_told(network: Network, first: Alarms, memory: Memory):
    memory.used = 100
    first.sample(disk=False)

    second = network.add("b", memory_bytes_max=100, memory_bytes=Memory())
    first.sample(disk=False)
    assert second.blocked == "low on memory"


def test_a_node_that_is_down_lacks_nothing(
    network: Network, first: Alarms, second: Alarms, memory: Memory
):
    memory.used = 100
    first.sample(disk=False)
    network.down.add("a")
    second.sample(disk=False)

    assert second.blocked is None


def test_news_that_were_lost_are_told_again(
    network: Network, first: Alarms, second: Alarms, memory: Memory
):
    network.lost = True
    memory.used = 100
    first.sample(disk=False)
    network.lost = False
    for _ in range(5):
        first.sample(disk=False)
    assert second.blocked == "low on memory"

    told = network.told
    for _ in range(10):
        first.sample(disk=False)
    assert network.told - told == 2  # not with every sample


def test_what_cannot_be_read_changes_nothing(network: Network, second: Alarms):
    for fields in ([], [1, 0], [True], ["x", None], [True, True, True]):
        network.nodes["b"].handlers["alarm"](NodeId("a"), fields)
    assert second.blocked is None


# --- how much memory there is ---------------------------------------------------------------------


def test_this_process_uses_some_of_the_memory_there_is():
    assert 10 * MIB < resident_bytes() < available_bytes()


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_control_group_has_less_than_the_machine(tmp_path: Path, file: str):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    machine = available_bytes(tmp_path)

    (tmp_path / file).write_text(f"{512 * MIB}\n")
    assert available_bytes(tmp_path) == 512 * MIB
    for without in ("max\n", f"{2**63 - 4096}\n", "0\n"):
        (tmp_path / file).write_text(without)
        assert available_bytes(tmp_path) == machine


# --- real nodes -----------------------------------------------------------------------------------


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 2) as nodes:
        await nodes.declare("orders")
        yield nodes


async def test_publishers_of_every_node_are_refused_while_one_is_low_on_memory(nodes: Nodes):
    name = await nodes.leader("orders")
    other = next(n for n in nodes.nodes.values() if n.settings.node != name)
    limit = other.alarms.memory_bytes_max
    async with Client(nodes.url(name)) as client:
        assert (await client.publish("orders", b"a"))[0] == 11
        _, _, consumer, _ = await client.ask(20, 2, "orders", {"tag": "t"})

        other.alarms.memory_bytes_max = 1
        await until(lambda: nodes.nodes[name].alarms.blocked)
        assert not nodes.nodes[name].alarms.memory
        refusal = await client.publish("orders", b"b", request=3)
        assert refusal[:3] == [4, 3, "memory_full"]

        # Consumers go on.
        assert await client.deliveries(1) == [(1, b"a")]
        assert await client.ask(30, 4, "orders", consumer, [[1, 1]]) == [3, 4, 1]

        other.alarms.memory_bytes_max = limit
        await until(lambda: nodes.nodes[name].alarms.blocked is None)
        assert (await client.publish("orders", b"c", request=5))[0] == 11


async def test_a_node_short_of_disk_blocks_publishers(tmp_path: Path):
    async with Nodes(tmp_path, **{"log.min_free_bytes": 1 << 60}) as nodes:
        await nodes.declare("orders")
        await until(lambda: nodes.one.alarms.blocked == "low on disk")
        async with Client(nodes.url("n1")) as client:
            refusal = await client.publish("orders", b"a")

    assert refusal[:3] == [4, 1, "disk_full"]


async def test_the_watermark_is_a_setting(tmp_path: Path):
    flags: dict[str, Any] = {"limits.memory_high_watermark": "1MiB"}
    async with Nodes(tmp_path, **flags) as nodes:
        await until(lambda: nodes.one.alarms.blocked == "low on memory")
