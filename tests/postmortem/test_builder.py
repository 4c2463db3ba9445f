"""The folders that the tests read are such as nodes leave them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chaos.checker.log_safety import log_safety
from cluster.codec.entries import body_offsets, decode_entry
from cluster.log import Log, LogIdentity, RealDisk, SystemClock
from cluster.log.reader import CORRUPT, TORN, read
from cluster.machine import QueueMachine
from cluster.machine.commands import (
    CreateQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Settle,
    Subscribe,
)
from cluster.machine.effects import Deliver
from cluster.machine.replies import Enqueued, Refused, Subscribed
from cluster.raft.pysyncobj_core import REGULAR
from cluster.types import NodeId, QueueId, SessionId, Stamp
from tests.postmortem.builder import Built, flip
from tests.postmortem.generator import generate

QUEUE = QueueId(1)
SESSION = SessionId("s1")


def used(cluster: Built, messages: int = 20) -> None:
    """A queue with a consumer, and messages through it."""
    cluster.elect(1, "n1")
    consuming = [
        CreateQueue(QUEUE, "/", "orders", QueueConfig()),
        OpenSession(SESSION, NodeId("n1"), 1),
        Subscribe(QUEUE, SESSION, "c"),
    ]
    cluster.propose(1, *consuming)
    reply = cluster.replies[-1]
    assert isinstance(reply, Subscribed)
    for number in range(messages):
        cluster.propose(1, Enqueue(QUEUE, "p", number + 1, [b"m%d" % number]))
        (delivery,) = [each for each in cluster.effects if isinstance(each, Deliver)]
        (chunk,) = delivery.chunks
        cluster.propose(1, Settle(QUEUE, reply.consumer, [(chunk.first, chunk.first)], chunk.token))


def kinds(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in read(str(folder / "log")):
        found[record.kind] = found.get(record.kind, 0) + 1
    return found


def recovered(folder: str, node: str, cluster: str) -> Log:
    async def start() -> Log:
        identity = LogIdentity(node, cluster)
        return await Log.open(folder, disk=RealDisk(), clock=SystemClock(), identity=identity)

    return asyncio.run(start())


def test_what_nodes_leave_after_an_eventful_life_is_sound(tmp_path: Path):
    with Built(tmp_path, archive=True, segment_bytes=64 << 10) as cluster:
        used(cluster, 300)
        cluster.wait(5)
        cluster.kill("n3", torn=9)
        used_again = cluster.propose(1, Enqueue(QUEUE, "p", 301, [b"while n3 is away"]))
        cluster.append(1, Enqueue(QUEUE, "p", 302, [b"only n1 has it"]), nodes=["n1"])
        lost = cluster.hash("n1", 1, used_again + 1)
        cluster.kill("n1")
        cluster.start("n3")
        cluster.elect(1, "n2")
        cluster.start("n1")
        for number in range(302, 800):
            cluster.propose(1, Enqueue(QUEUE, "p", number, [bytes(100)]))
        cluster.snapshot(1)
        cluster.roll()
        cluster.maintain()
        cluster.pause("n3", 6)
        cluster.stop("n2")
        cluster.wait(2)
        cluster.start("n2")
        cluster.propose(1, Enqueue(QUEUE, "p", 800, [b"the last one"]))
        state = cluster.groups[1].machine.digest()
        commit = cluster.groups[1].commit

    verdict = log_safety(cluster.logs, voters={1: list(cluster.logs)})
    assert verdict.valid is True, verdict
    for node in cluster.nodes.values():
        found = kinds(node.folder)
        assert not found.keys() & {CORRUPT, TORN}
        assert {"entry", "commit", "synced", "round", "clock"} <= found.keys()
        log = recovered(str(node.folder / "log"), node.name, cluster.cluster)
        journal = log.journal(1)
        assert journal.last_index == commit
        assert journal.hash_at(used_again + 1) != lost
        data = journal.read(commit)
        assert data is not None
        assert decode_entry(data[1:]).commands
        log.wal.close()
    assert {path.parent.name for path in cluster.archive_folder.rglob("*.log")} >= {"n1", "n3"}
    assert state == cluster.groups[1].machine.digest()
    assert sum("digest" in kinds(node.folder) for node in cluster.nodes.values()) == 3


def test_a_flipped_bit_is_where_it_was_said_to_be(tmp_path: Path):
    with Built(tmp_path) as cluster:
        used(cluster)
        place = cluster.where("n2", 1, 10)
    flip(place.file, place.offset + 60)

    (bad,) = [r for r in read(str(tmp_path / "n2" / "log")) if r.kind == CORRUPT]

    assert (bad.file, bad.offset) == place
    assert log_safety(cluster.logs).valid is not True


def test_generated_traffic_is_accepted_by_the_machine_and_by_a_node(tmp_path: Path):
    made = generate(tmp_path, 4_000, groups=3, segment_bytes=256 << 10)
    logs = {NodeId(name): tmp_path / name / "log" for name in ("n1", "n2", "n3")}

    verdict = log_safety(logs)
    assert verdict.valid is True, verdict
    assert verdict.counts["records"] == made.records
    journal = recovered(str(logs[NodeId("n2")]), "n2", "generated").journal(2)
    assert journal.commit_index == journal.last_index
    machine, stored = QueueMachine(), 0
    for command, index, term in journal.entries(2):
        entry = decode_entry(command[1:]) if command[:1] == REGULAR else None
        commands = entry.commands if entry else ()
        for ordinal, (each, at) in enumerate(zip(commands, body_offsets(commands), strict=True)):
            assert entry
            reply, _ = machine.apply(Stamp(index, term, entry.now_ms, ordinal, at), each)
            assert not isinstance(reply, Refused), (index, each, reply)
            stored += reply.stored if isinstance(reply, Enqueued) else 0
    views = [view for each in machine.queues() if (view := machine.queue(each))]
    assert stored > 1_000
    assert 0 < sum(view.unsettled_count for view in views) < stored / 4
    assert sum(view.ready_count for view in views) == 0
