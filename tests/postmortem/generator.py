"""Much traffic, written fast: folders of nodes that took publishes, delivered and settled them.

The records are laid out by `cluster.log.format` alone, without the log and the machine, whose
answers are known here: each queue has one consumer without a limit, so what is published is
delivered at once, and positions and sequence numbers are counted. The machine accepts all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from cluster.codec.cbor import pack
from cluster.codec.entries import pack_command
from cluster.log import format as fmt
from cluster.machine.commands import CreateQueue, OpenSession, QueueConfig, Subscribe
from cluster.raft.pysyncobj_core import NO_OP, REGULAR
from cluster.types import ORDINAL_BITS, NodeId, QueueId, SessionId
from tests.postmortem.built_node import MS_NS, SECOND_NS, START_NS

QUEUES: Final = 4  # of a group
ROUND_NS: Final = 4 * MS_NS
BODY_BYTES: Final = 100
RETURNED_SHARE: Final = 0.01
TERM: Final = 1
FLUSH_RECORDS: Final = 4096
POOL: Final = 1 << 16


@dataclass
class Generated:
    """What was written."""

    paths: list[str]  # data folders
    entries: int = 0  # of all groups, on each node
    records: int = 0  # on all nodes
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0  # from the first record to the last, by the clocks in them


class Disk:
    """Segments of one node."""

    def __init__(self, folder: Path, name: str, number: int, segment_bytes: int) -> None:
        self.name = name
        self.records = 0
        self.bytes = 0
        self._folder = folder / "log"
        self._folder.mkdir(parents=True)
        self._identity = fmt.LogIdentity(name, "generated")
        self._mono_ns = START_NS - number * 1_000 * SECOND_NS
        self._segment_bytes = segment_bytes
        self._number = 0
        self._buffers: list[bytes] = []
        self._begin(START_NS)

    def _begin(self, wall_ns: int) -> None:
        self._number += 1
        boot = self.name.encode().ljust(16, b"\0")
        header = fmt.encode_file_header(
            self._number, wall_ns, wall_ns - self._mono_ns, boot, self._identity
        )
        self._path = self._folder / fmt.segment_name(self._number)
        self._file = open(self._path, "wb")  # noqa: SIM115 -- closed by `end`
        self._file.write(header)
        self._salt = fmt.decode_file_header(header, str(self._path)).salt
        self.size = len(header)

    def put(
        self, kind: int, group: int, index: int, term: int, wall_ns: int, payload: bytes
    ) -> None:
        extend = fmt.extend
        covered = fmt.COVERED.pack(
            len(payload), kind, fmt.MARKER, group, index, term, wall_ns, wall_ns - self._mono_ns
        )
        crc = extend(extend(self._salt, covered), payload)
        self._buffers += (covered[:4], crc.to_bytes(4, "little"), covered[4:], payload)
        self.size += fmt.RECORD_HEADER + len(payload)
        self.records += 1

    def sync(self, wall_ns: int) -> None:
        """All so far is safe; the next record says so, perhaps in a new segment."""
        number, size = self._number, self.size
        if self.size >= self._segment_bytes:
            self.end()
            self._begin(wall_ns)
        elif len(self._buffers) > FLUSH_RECORDS:
            self._flush()
        self.put(fmt.KIND_SYNCED, 0, 0, 0, wall_ns, fmt.encode_synced(number, size))

    def _flush(self) -> None:
        self._file.write(b"".join(self._buffers))
        self._buffers.clear()

    def end(self) -> None:
        self._flush()
        self._file.close()
        self.bytes += self.size


@dataclass
class GeneratedQueue:
    """What the machine would know of it."""

    number: int
    consumer: int
    publisher: str
    published: int = 0  # the next position and the next sequence number follow this
    held: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])


class GeneratedGroup:
    """Entries of one group, one after the other."""

    def __init__(self, number: int, random: Random) -> None:
        self.number = number
        self.index = 1
        self.hash = fmt.NO_HASH
        self.messages = 0
        self._random = random
        pool = random.randbytes(POOL)
        self._bodies = [pool[at : at + BODY_BYTES] for at in range(0, POOL - BODY_BYTES, 61)]
        session = SessionId(f"session-{number}")
        opening: list[Any] = [OpenSession(session, NodeId("n1"), 1)]
        self.queues: list[GeneratedQueue] = []
        for nth in range(QUEUES):
            queue = QueueId(number * 100 + nth)
            opening.append(CreateQueue(queue, "/", f"orders-{number}-{nth}", QueueConfig()))
            consumer = 3 << ORDINAL_BITS | len(opening)
            opening.append(Subscribe(queue, session, f"c{nth}"))
            self.queues.append(GeneratedQueue(queue, consumer, f"shop-{number}-{nth}"))
        self._opening = [pack_command(command) for command in opening]

    def payload(self, command: bytes) -> bytes:
        self.index += 1
        self.hash = fmt.chain(self.hash, TERM, command)
        return self.hash + command

    def opening(self, now_ms: int) -> Iterator[bytes]:
        yield self.payload(NO_OP)
        yield self.payload(REGULAR + pack([1, now_ms, self._opening]))

    def next(self, now_ms: int) -> bytes:
        """A publish, or a settle of what an earlier one delivered, or rarely a return."""
        random = self._random.random
        queue = self.queues[int(random() * QUEUES)]
        if len(queue.held) > 4 + int(random() * 8):
            first, last = queue.held.popleft()
            if random() < RETURNED_SHARE:
                queue.held.append((first, last))
                fields = [14, queue.number, queue.consumer, [[first, last]], False, None, None]
            else:
                while queue.held and queue.held[0][0] == last + 1 and random() < 0.7:
                    last = queue.held.popleft()[1]
                fields = [13, queue.number, queue.consumer, [[first, last]], None]
        else:
            count, start = 1 + int(random() * 4), int(random() * 1000)
            bodies = self._bodies[start : start + count]
            first = queue.published + 1
            queue.published += count
            queue.held.append((first, queue.published))
            self.messages += count
            fields = [9, queue.number, queue.publisher, first, bodies, None, None]
        return self.payload(REGULAR + pack([1, now_ms, [fields]]))


def generate(
    folder: Path,
    entries: int,
    nodes: int = 3,
    groups: int = 8,
    *,
    seed: int = 1,
    segment_bytes: int = 64 << 20,
) -> Generated:
    """`entries` entries of all groups together on each node, in rounds of a few of each group."""
    names = [f"n{number + 1}" for number in range(nodes)]
    disks = [
        Disk(folder / name, name, number, segment_bytes)
        for number, name in enumerate(names, start=1)
    ]
    random = Random(seed)
    groups_all = [GeneratedGroup(number + 1, random) for number in range(groups)]
    now = _found(disks, groups_all)
    result = Generated([str(folder / name) for name in names], entries=2 * groups)
    second_ns, syncs, written = now + SECOND_NS, 0, [(0, 0)] * nodes
    while result.entries < entries:
        now += ROUND_NS
        count = _round(disks, groups_all, now, random)
        result.entries += count
        syncs += 1
        if now >= second_ns:
            written = _notes(disks, now + ROUND_NS // 2, syncs, written)
            second_ns, syncs = now + SECOND_NS, 0
    for disk in disks:
        disk.end()
    result.records = sum(disk.records for disk in disks)
    result.bytes = sum(disk.bytes for disk in disks)
    result.messages = sum(group.messages for group in groups_all)
    result.seconds = (now - START_NS) / SECOND_NS
    return result


def _found(disks: list[Disk], groups: list[GeneratedGroup]) -> int:
    """The groups are created, elect leaders, one node after the other, and get their queues."""
    now = START_NS + 100 * MS_NS
    opened: list[tuple[int, int, bytes]] = []
    for group in groups:
        number, leader = group.number, disks[group.number % len(disks)].name
        for disk in disks:
            disk.put(fmt.KIND_GROUP_CREATED, number, 0, 0, now, b"")
            if disk.name == leader:
                disk.put(fmt.KIND_HARD_STATE, number, 0, TERM, now, pack([leader]))
                role = pack(["candidate", None])
                disk.put(fmt.KIND_ROLE, number, 1, TERM, now, role)
            else:
                disk.put(fmt.KIND_HARD_STATE, number, 0, TERM, now + MS_NS, pack([None]))
                disk.put(fmt.KIND_HARD_STATE, number, 0, TERM, now + MS_NS, pack([leader]))
        for payload in group.opening(now // MS_NS):
            opened.append((number, len(opened) % 2 + 2, payload))
    now += 3 * MS_NS
    for disk in disks:
        disk.sync(now)
        for group in groups:
            if disk.name == disks[group.number % len(disks)].name:
                role = pack(["leader", disk.name])
                disk.put(fmt.KIND_ROLE, group.number, 1, TERM, now, role)
        for number, index, payload in opened:
            disk.put(fmt.KIND_ENTRY, number, index, TERM, now + MS_NS, payload)
        disk.sync(now + 2 * MS_NS)
        for group in groups:
            disk.put(fmt.KIND_COMMIT, group.number, group.index, TERM, now + 3 * MS_NS, b"")
    return now


def _round(disks: list[Disk], groups: list[GeneratedGroup], now: int, random: Random) -> int:
    """Entries of each group, one sync, and what is committed by that."""
    now_ms = now // MS_NS
    made: list[tuple[int, int, bytes]] = []
    for group in groups:
        for _ in range(1 + int(random.random() * 3)):
            payload = group.next(now_ms)
            made.append((group.number, group.index, payload))
    for nth, disk in enumerate(disks):
        put, at = disk.put, now + nth * 200_000
        for number, index, payload in made:
            at += 15_000
            put(fmt.KIND_ENTRY, number, index, TERM, at, payload)
        at += 500_000
        disk.sync(at)
        for group in groups:
            put(fmt.KIND_COMMIT, group.number, group.index, TERM, at + 400_000, b"")
    return len(made)


def _notes(
    disks: list[Disk], now: int, syncs: int, before: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """What a node notes once a second: of its syncs, and of the clocks of its peers."""
    for disk, (records, size) in zip(disks, before, strict=True):
        done = [disk.records - records, disk.bytes + disk.size - size, syncs, MS_NS]
        disk.put(fmt.KIND_ROUND, 0, 0, 0, now, pack(done))
        for peer in disks:
            if peer is not disk:
                there = now - 200_000
                sample = [peer.name, now - 400_000, there, there + 10_000, now]
                disk.put(fmt.KIND_CLOCK, 0, 0, 0, now, pack(sample))
    return [(disk.records, disk.bytes + disk.size) for disk in disks]
