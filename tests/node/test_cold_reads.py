"""Old messages are read from the disk while the event loop goes on with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from cluster.groups import entry_cache
from cluster.log import LogCorrupt, LogOptions
from cluster.machine.commands import DeleteQueue
from cluster.machine.replies import Declared
from cluster.types import SessionId
from tests.cluster.world import MakeWorld, World
from tests.log.memory_disk import MemoryFile
from tests.node.test_transient import SESSION, Client
from tests.testkit.waiting import stays

pytestmark = pytest.mark.virtual_time


class Disks:
    """Reads of all disks: while they are held, each waits for its turn. Those on the event loop
    are an error while `forbidden`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = self.forbidden = False
        self.fetches = 0
        self.waiting: list[asyncio.Future[None]] = []
        read = MemoryFile.read

        def on_loop(file: MemoryFile, offset: int, size: int) -> bytes:
            assert not self.forbidden, "a read on the event loop"
            return read(file, offset, size)

        async def fetch(file: MemoryFile, offset: int, size: int) -> bytes:
            self.fetches += 1
            if self.held:
                self.waiting.append(asyncio.get_running_loop().create_future())
                await self.waiting[-1]
            return read(file, offset, size)

        monkeypatch.setattr(MemoryFile, "read", on_loop)
        monkeypatch.setattr(MemoryFile, "fetch", fetch, raising=False)

    def let_go(self) -> None:
        self.held = False
        for each in self.waiting:
            each.set_result(None)
        self.waiting.clear()


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    return Disks(monkeypatch)


class Cold:
    """One node that was just started again: what its queue `cold` holds is on the disk only."""

    def __init__(self, world: World, declared: Declared) -> None:
        self.world = world
        self.declared = declared
        self.client = Client(world, "n1")

    @classmethod
    async def made(cls, make_world: MakeWorld, disks: Disks, entries: list[list[bytes]]) -> Cold:
        world = await make_world(1, log=LogOptions(min_free_bytes=0, hot_bytes=0)).born()
        outcome = await world["n1"].declare_queue("/", "cold", {})
        declared = outcome.reply
        assert isinstance(declared, Declared)
        for bodies in entries:
            await world.publish("cold", *bodies)
        world.kill("n1")
        await world.start("n1")
        await world.settled()
        disks.forbidden = True
        return cls(world, declared)

    @property
    def group(self) -> Any:
        return self.world.group(self.declared.group)

    async def until_delivered(self, *bodies: bytes) -> None:
        await self.world.until(lambda: len(self.client.bodies()) >= len(bodies))
        assert self.client.bodies() == list(bodies)


MakeCold = Callable[[list[list[bytes]]], Coroutine[Any, Any, Cold]]


@pytest.fixture
def make_cold(make_world: MakeWorld, disks: Disks) -> MakeCold:
    return partial(Cold.made, make_world, disks)


async def test_while_a_read_blocks_another_queue_is_served(
    make_cold: MakeCold, disks: Disks
) -> None:
    cold = await make_cold([[b"1", b"2"], [b"3"]])
    other = await cold.world["n1"].declare_queue("/", "warm", {})
    assert isinstance(other.reply, Declared)
    neighbour = Client(cold.world, "n1")
    await neighbour.subscribe(other.reply)
    disks.held = True
    await cold.client.subscribe(cold.declared)
    await cold.world.until(lambda: disks.waiting)
    await cold.world.publish("warm", b"warm")
    await cold.world.until(neighbour.bodies)
    assert neighbour.bodies() == [b"warm"]
    assert cold.client.bodies() == []
    disks.let_go()
    await cold.until_delivered(b"1", b"2", b"3")
    assert disks.fetches == 1, "what lies close together comes with one read"


async def test_what_is_in_memory_waits_for_what_comes_before_it(
    make_cold: MakeCold, disks: Disks
) -> None:
    cold = await make_cold([[b"old"]])
    disks.held = True
    await cold.client.subscribe(cold.declared)
    await cold.world.until(lambda: disks.waiting)
    await cold.world.publish("cold", b"new")  # this one is in memory
    await stays(lambda: cold.client.bodies() == [])
    disks.let_go()
    await cold.until_delivered(b"old", b"new")


async def connection_closed(cold: Cold) -> None:
    cold.client.traffic.close(cold.client.connection)


async def queue_deleted(cold: Cold) -> None:
    await cold.world["n1"].ask(cold.declared.group, DeleteQueue(cold.declared.queue))


@pytest.mark.parametrize("end", [connection_closed, queue_deleted])
async def test_nothing_comes_of_a_read_whose_consumer_is_gone(
    make_cold: MakeCold, disks: Disks, end: Any
) -> None:
    cold = await make_cold([[b"1", b"2"]])
    disks.held = True
    await cold.client.subscribe(cold.declared)
    await cold.world.until(lambda: disks.waiting)
    await end(cold)
    disks.let_go()
    await stays(lambda: cold.client.bodies() == [])
    # Others are served as before.
    other = await cold.world["n1"].declare_queue("/", "other", {})
    assert isinstance(other.reply, Declared)
    neighbour = Client(cold.world, "n1")
    await neighbour.subscribe(other.reply)
    await cold.world.publish("other", b"fine")
    await cold.world.until(neighbour.bodies)


async def test_a_segment_may_go_while_it_is_read(make_cold: MakeCold, disks: Disks) -> None:
    """The bytes come from the file that was opened, though its entry was given up meanwhile."""
    cold = await make_cold([[b"1", b"2"]])
    disks.held = True
    await cold.client.subscribe(cold.declared)
    await cold.world.until(lambda: disks.waiting)
    disks.held = False  # the cleaner reads, too
    await queue_deleted(cold)
    disks.forbidden = False
    group, node = cold.group, cold.world["n1"]
    group.take_snapshot()
    await cold.world.until(lambda: group.journal.base_index >= group.applied_index - 1)
    await node.log.wal.roll()
    await node.log.maintain()
    assert not disks.waiting[0].done()
    disks.let_go()
    await stays(lambda: cold.client.bodies() == [])
    assert not node._tasks[0].done()


async def test_a_damaged_record_ends_the_node(make_cold: MakeCold) -> None:
    cold = await make_cold([[b"1" * 1000]])
    for path, inode in cold.world.disks["n1"].names.items():
        if path.endswith(".log") and inode is not None and b"1" * 1000 in inode.content:
            inode.content[inode.content.index(b"1" * 1000)] ^= 1
    await cold.client.subscribe(cold.declared)
    rounds = cold.world["n1"]._tasks[0]
    await cold.world.until(rounds.done)
    assert isinstance(rounds.exception(), LogCorrupt)
    assert cold.client.bodies() == []


async def test_consumers_that_want_the_same_entry_wait_for_one_read(
    make_cold: MakeCold, disks: Disks
) -> None:
    """Each of ten sessions holds a message of the same entry."""
    cold = await make_cold([[b"%d" % n for n in range(10)]])
    disks.held = True
    clients = [Client(cold.world, "n1") for _ in range(10)]
    for number, client in enumerate(clients):
        await client.subscribe(cold.declared, SessionId(f"s{number}"), credit=1)
    await cold.world.until(lambda: disks.waiting)
    await asyncio.sleep(0.1)
    disks.let_go()
    await cold.world.until(lambda: all(client.bodies() for client in clients))
    assert [client.bodies() for client in clients] == [[b"%d" % n] for n in range(10)]
    assert disks.fetches == 1


async def test_a_cache_that_is_too_small_holds_nobody_up(
    make_cold: MakeCold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the cache holds is streamed to many consumers on one connection."""
    monkeypatch.setattr(entry_cache, "CACHE_BYTES_MAX", 4_000)
    bodies = [bytes([65 + n]) * 3_000 for n in range(20)]
    cold = await make_cold([[body] for body in bodies])
    for number in range(20):
        await cold.client.subscribe(cold.declared, SessionId(f"s{number}"), credit=1)
    await cold.world.until(lambda: len(cold.client.bodies()) == 20)
    assert {*cold.client.bodies()} == {*bodies}


async def test_get_and_peek_read_off_the_loop(make_cold: MakeCold, disks: Disks) -> None:
    """Get and peek read the same way."""
    cold = await make_cold([[b"1"], [b"2", b"3"]])
    broker, info = cold.client.broker, cold.world["n1"].queue_info("/", "cold")
    assert info is not None
    disks.held = True
    peeking = asyncio.create_task(broker.peek(info, start=1, count=3))
    await cold.world.until(lambda: disks.waiting)
    assert not peeking.done()
    disks.let_go()
    assert [row["body"] for row in await peeking] == [b"1", b"2", b"3"]
    cold.group._applying._cache.clear()
    await cold.client.open_session(cold.declared)
    _, _, batches = await broker.get(info, SESSION, count=3, auto_settle=True)
    assert [body for batch in batches for body in batch.bodies] == [b"1", b"2", b"3"]
