"""Dead letters for queues of other groups: each arrives, and is stored once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cluster.codec.entries import encode_entry
from cluster.groups.group import Outcome
from cluster.groups.proposals import ENTRY_BYTES_MAX, WHOLE_BODY_BYTES_MAX, too_large
from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.admission import BODIES_MAX
from cluster.machine.arguments import QUEUE_TYPE, STREAM, STREAM_CONFIG
from cluster.machine.catalog import QueueInfo
from cluster.machine.catalog_commands import PutEntry
from cluster.machine.commands import (
    BodyPart,
    Command,
    CreateQueue,
    DeadLettersMoved,
    Enqueue,
    Purge,
    QueueConfig,
    Tick,
    UpdateQueue,
    UpgradeMachine,
)
from cluster.machine.replies import Enqueued, Ok, PartKept, Refused, Reply
from cluster.types import Body, BodyRef, GroupId, LargeBody, QueueId, Stamp
from node.broker.bodies import HEAD_BYTES
from node.broker.dead_letters import DeadLetters, RoutedDeadLetter, runs
from node.errors import Elsewhere, OutcomeUnknown
from node.metrics.metrics import Metrics
from node.tasks import Tasks
from tests.node.nodes import Client, Nodes, until

SOURCE = QueueId(1)


def queue(number: int, **arguments: Any) -> QueueInfo:
    return QueueInfo(QueueId(number), GroupId(number), "/", f"q{number}", arguments)


A, B = queue(10), queue(11)


class Target:
    """A real queue, whose bodies are kept beside it."""

    def __init__(self, number: int, **config: Any) -> None:
        self.queue = QueueId(number)
        self.machine = QueueMachine()
        self.stored: list[bytes] = []
        self.index = 1
        self.now_ms = 1_000_000
        self.configure(CreateQueue, **config)

    def configure(self, command: Any, **config: Any) -> None:
        settings = QueueConfig(**config)
        if command is CreateQueue:
            self.apply(CreateQueue(self.queue, "/", f"q{self.queue}", settings))
        else:
            self.apply(UpdateQueue(self.queue, settings))

    def apply(self, command: Command) -> Reply | None:
        self.index += 1
        return self.machine.apply(Stamp(self.index, 1, self.now_ms), command).reply

    def enqueue(self, command: Enqueue) -> Outcome:
        reply = self.apply(command)
        if isinstance(reply, Refused):
            return Outcome("refused", reply, None, reply.code, reply.reason)
        assert isinstance(reply, Enqueued)
        if reply.stored:
            # Only what is stored is new, and a queue with room for some takes the first ones.
            end = reply.duplicates + reply.stored
            self.stored += command.bodies[reply.duplicates : end]
        return Outcome("ok", reply)


class Cluster:
    """Targets by group; an answer can be lost after the fact."""

    def __init__(self) -> None:
        self.targets = {A.group: Target(10), B.group: Target(11)}
        self.catalog_machine = self  # it knows of each target what that knows
        self.lose_next = 0
        self.lose_before = 0
        self.most = BODIES_MAX  # that fit into an entry,
        self.bytes_most = ENTRY_BYTES_MAX  # of bodies,
        self.metas_most = ENTRY_BYTES_MAX  # and of what is said of them

    def config_for(self, info: QueueInfo) -> QueueConfig:
        return self.targets[info.group].machine.queue(info.queue).config

    async def ask(self, group: GroupId, command: Enqueue) -> Outcome:
        if self.lose_before:
            self.lose_before -= 1
            return Outcome("refused", None, None, "overloaded", "try again")
        metas = sum(len(str(meta)) for meta in command.meta if meta)
        size = sum(map(len, command.bodies))
        if len(command.bodies) > self.most or size > self.bytes_most or metas > self.metas_most:
            return too_large(ENTRY_BYTES_MAX + 1)
        outcome = self.targets[group].enqueue(command)
        if self.lose_next:
            self.lose_next -= 1
            return Outcome("unknown", None, None, "link_lost", "lost")
        return outcome


class Source(DeadLetters):
    """A worker whose outbox is a list."""

    def __init__(
        self, cluster: Cluster, dead_letters: Sequence[RoutedDeadLetter], at_once: int
    ) -> None:
        broker: Any = type("Broker", (), {})()
        self.broker = broker
        broker.cluster = cluster
        broker.ask = self.moved_up_to
        broker.catch_up = self.catch_up
        broker.cut_off = False
        metrics: Any = type("Counts", (), {"dead_letters_moved": 0, "dead_letters_dropped": 0})()
        no_bodies: Any = None
        super().__init__(broker, Tasks(), metrics, no_bodies)
        self.metrics: Metrics = metrics
        self.outbox = list(dead_letters)
        self.at_once = at_once
        self.leads = True
        self.fail_next = 0
        self.keeps = False
        self.late: dict[int, QueueInfo] = {}  # targets that a caught up catalog knows

    async def catch_up(self) -> bool:
        self.outbox = [
            replace(dead_letter, targets=self._late(dead_letter)) for dead_letter in self.outbox
        ]
        return True

    def _late(self, dead_letter: RoutedDeadLetter) -> tuple[QueueInfo, ...]:
        late = self.late.get(dead_letter.number)
        return dead_letter.targets if late is None else (late,)

    async def moved_up_to(self, group: GroupId, command: DeadLettersMoved) -> Ok:
        if self.fail_next:
            self.fail_next -= 1
            raise OutcomeUnknown("lost")
        self.outbox = [
            dead_letter for dead_letter in self.outbox if dead_letter.number > command.number
        ]
        return Ok()

    def _keeps(self, group: GroupId, queue: QueueId) -> bool:
        return self.keeps

    async def _routed(self, group_id: GroupId, queue: QueueId) -> list[RoutedDeadLetter]:
        if not self.leads:
            raise Elsewhere(None)
        return self.outbox[: self.at_once]


def dead_letters(*targets: QueueInfo | tuple[QueueInfo, ...] | None) -> list[RoutedDeadLetter]:
    """One letter each: for one queue, for several, or for none."""
    several = [() if to is None else to if isinstance(to, tuple) else (to,) for to in targets]
    return [
        RoutedDeadLetter(number, str(number).encode(), None, [], to)
        for number, to in enumerate(several, 1)
    ]


async def drained(source: Source) -> None:
    source.ready(GroupId(1), SOURCE)
    await until(lambda: not source.outbox)


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
async def test_letters_to_several_targets_arrive_once_each(at_once: int):
    cluster = Cluster()
    source = Source(cluster, dead_letters(A, A, B, A, B, B, None, A, A), at_once)

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"4", b"8", b"9"]
    assert cluster.targets[B.group].stored == [b"3", b"5", b"6"]
    assert source.metrics.dead_letters_dropped == 1
    assert source.metrics.dead_letters_moved == 8


@pytest.mark.parametrize("at_once", [1, 2, 100])
async def test_a_crash_after_any_send_stores_nothing_twice(at_once: int):
    """The next leader sends again what was not yet marked as moved, cut in other batches."""
    cluster = Cluster()
    every = dead_letters(A, A, B, A, B, A, A)
    for moved in range(len(every)):
        for upto in range(moved + 1, len(every) + 1):
            source = Source(cluster, every[moved:upto], at_once)
            await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"4", b"6", b"7"]
    assert cluster.targets[B.group].stored == [b"3", b"5"]


async def test_a_node_that_is_cut_off_routes_by_what_was_bound_meanwhile():
    """Its copy of the catalog has a target, and what was bound elsewhere since has another."""
    cluster = Cluster()
    source = Source(cluster, dead_letters(A, A), 100)
    source.late = {2: B}
    source.broker.cut_off = True

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1"]
    assert cluster.targets[B.group].stored == [b"2"]


async def test_letters_read_while_cut_off_are_routed_anew_when_somebody_else_caught_up():
    cluster = Cluster()
    source = Source(cluster, dead_letters(A, A), 100)
    source.late = {2: B}
    source.broker.cut_off = True
    read = source._routed

    async def slowly(group: GroupId, queue: QueueId) -> list[RoutedDeadLetter]:
        found = await read(group, queue)
        await source.catch_up()
        source.broker.cut_off = False
        return found

    source._routed = slowly

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1"]
    assert cluster.targets[B.group].stored == [b"2"]


async def test_an_answer_that_is_lost_is_asked_again_and_stored_once():
    cluster = Cluster()
    cluster.lose_next = 3
    source = Source(cluster, dead_letters(A, A, B, A), 2)

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"4"]
    assert cluster.targets[B.group].stored == [b"3"]


async def test_letters_that_were_refused_before_the_log_are_not_taken_for_stored():
    cluster = Cluster()
    cluster.lose_before = 2
    source = Source(cluster, dead_letters(A, B, A), 1)

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"3"]
    assert cluster.targets[B.group].stored == [b"2"]


async def test_when_nobody_knows_whether_letters_are_marked_as_moved_they_go_again():
    cluster = Cluster()
    source = Source(cluster, dead_letters(A, A, B), 2)
    source.fail_next = 2

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2"]
    assert cluster.targets[B.group].stored == [b"3"]


async def test_a_target_that_this_nodes_catalog_does_not_know_yet_is_no_reason_to_drop():
    cluster = Cluster()
    source = Source(cluster, dead_letters(A, None, None), 100)
    source.late = {2: B}

    await drained(source)

    assert cluster.targets[B.group].stored == [b"2"]
    assert source.metrics.dead_letters_dropped == 1


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_a_full_target_gets_the_rest_when_it_has_room(at_once: int):
    cluster = Cluster()
    target = cluster.targets[A.group]
    target.configure(UpdateQueue, max_length=2, overflow="reject-publish")
    source = Source(cluster, dead_letters(A, A, A, B, A), at_once)
    source.ready(GroupId(1), SOURCE)
    await until(lambda: [dead_letter.number for dead_letter in source.outbox] == [3, 4, 5])
    assert target.stored == [b"1", b"2"]

    again = Source(
        cluster, dead_letters(A, A, A, B, A), at_once
    )  # another leader, from the beginning
    source.leads = False
    again.ready(GroupId(1), SOURCE)
    await until(lambda: [dead_letter.number for dead_letter in again.outbox] == [3, 4, 5])
    target.apply(Purge(target.queue))
    await until(lambda: not again.outbox)

    assert target.stored == [b"1", b"2", b"3", b"5"]
    assert cluster.targets[B.group].stored == [b"4"]


@pytest.mark.parametrize("at_once", [1, 2, 100])
async def test_a_letter_for_several_queues_arrives_once_in_each(at_once: int):
    cluster = Cluster()
    cluster.lose_next = 2
    source = Source(cluster, dead_letters(A, (A, B), (A, B), B, None, (B, A)), at_once)

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"3", b"6"]
    assert cluster.targets[B.group].stored == [b"2", b"3", b"4", b"6"]
    assert source.metrics.dead_letters_dropped == 1


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_a_letter_for_several_queues_waits_for_the_full_one(at_once: int):
    cluster = Cluster()
    target = cluster.targets[B.group]
    target.configure(UpdateQueue, max_length=2, overflow="reject-publish")
    source = Source(cluster, dead_letters((A, B), (A, B), (A, B), (B, A)), at_once)
    source.ready(GroupId(1), SOURCE)
    await until(lambda: [dead_letter.number for dead_letter in source.outbox] == [3, 4])

    target.apply(Purge(target.queue))
    await until(lambda: not source.outbox)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"3", b"4"]
    assert target.stored == [b"1", b"2", b"3", b"4"]


async def test_a_target_that_dead_letters_what_it_refuses_is_not_asked_twice():
    cluster = Cluster()
    limits: Any = {"max_length": 1, "overflow": "reject-publish-dlx"}
    cluster.targets[A.group].configure(UpdateQueue, **limits)
    source = Source(cluster, dead_letters(A, A), 100)

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1"]


def stream_target(cluster: Cluster, **config: Any) -> QueueInfo:
    """B is one, with this of its configuration."""
    cluster.targets[B.group].machine = QueueMachine()
    cluster.targets[B.group].apply(UpgradeMachine(MACHINE_VERSION))
    cluster.targets[B.group].configure(CreateQueue, type="stream", stream=config)
    return replace(B, arguments={QUEUE_TYPE: STREAM, STREAM_CONFIG: config})


@pytest.mark.parametrize("at_once", [1, 100])
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sealed": True}, "sealed"),
        ({"allow_msg_counter": True}, "increments"),
    ],
)
async def test_a_stream_that_takes_none_for_good_holds_up_no_others(
    config: dict[str, Any], words: str, at_once: int
):
    """They are dropped, as when there is no target, and each is named once with the reason."""
    cluster = Cluster()
    closed = stream_target(cluster, **config)
    full = cluster.targets[A.group]
    full.configure(UpdateQueue, max_length=1, overflow="reject-publish")
    source = Source(cluster, dead_letters(closed, closed, (closed, A), (closed, A), A), at_once)

    with capture_logs() as logs:
        source.ready(GroupId(1), SOURCE)
        await until(lambda: [dead_letter.number for dead_letter in source.outbox] == [4, 5])
        await until(lambda: sum(each["event"] == "dead_letters_wait" for each in logs) > 2)
        full.configure(UpdateQueue)
        await until(lambda: not source.outbox)

    assert full.stored == [b"3", b"4", b"5"]
    dropped = [each for each in logs if each["event"] == "dead_letter_dropped"]
    assert [each["number"] for each in dropped] == [1, 2, 3, 4]
    assert all(words in each["reason"] and each["target"] == B.name for each in dropped)
    assert source.metrics.dead_letters_dropped == 4


@pytest.mark.parametrize("at_once", [1, 100])
async def test_a_letter_that_never_fits_into_a_stream_holds_up_no_others(at_once: int):
    cluster = Cluster()
    small = stream_target(cluster, max_bytes=60, discard="new")
    letters = dead_letters(small, small, small)
    letters[1] = replace(letters[1], body=bytes(100))
    source = Source(cluster, letters, at_once)

    with capture_logs() as logs:
        await drained(source)

    assert cluster.targets[B.group].stored == [b"1", b"3"]
    (dropped,) = [each for each in logs if each["event"] == "dead_letter_dropped"]
    assert dropped["number"] == 2
    assert "too large" in dropped["reason"]


async def test_letters_wait_for_a_stream_whose_subjects_are_not_settled_yet():
    """The group has yet to hear what the catalog says of it."""
    cluster = Cluster()
    stream = stream_target(cluster, subjects=["old"])
    changed = replace(stream, arguments={**stream.arguments, STREAM_CONFIG: {"subjects": ["new"]}})
    source = Source(cluster, [replace(dead_letters(changed)[0], key="new")], 1)

    with capture_logs() as logs:
        source.ready(GroupId(1), SOURCE)
        await until(lambda: any(each["event"] == "dead_letters_wait" for each in logs))
        assert "full" not in logs[0]["reason"]
        cluster.targets[B.group].configure(UpdateQueue, type="stream", stream=changed.stream)
        await until(lambda: not source.outbox)

    assert cluster.targets[B.group].stored == [b"1"]
    assert source.metrics.dead_letters_dropped == 0


async def test_letters_wait_for_a_mirror_which_may_become_a_stream_of_its_own():
    """A stream that is being restored is one as long as that takes."""
    cluster = Cluster()
    mirror = stream_target(cluster, mirror={"name": "origin"})
    source = Source(cluster, dead_letters(mirror, mirror), 100)

    with capture_logs() as logs:
        source.ready(GroupId(1), SOURCE)
        await until(lambda: any("mirror" in str(each.get("reason")) for each in logs))
        cluster.targets[B.group].configure(UpdateQueue, type="stream", stream={})
        await until(lambda: not source.outbox)

    assert cluster.targets[B.group].stored == [b"1", b"2"]
    assert source.metrics.dead_letters_dropped == 0


async def test_letters_that_are_too_large_together_go_one_by_one():
    """Their headers are no part of what is read at once."""
    cluster = Cluster()
    source = Source(cluster, dead_letters(A, A, A, A, A), 100)
    cluster.most = 2

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_letter_that_is_too_large_for_an_entry_goes_in_parts():
    """As a large publish does: once in all, whatever answer is lost."""
    cluster = Cluster()
    target = cluster.targets[A.group]
    target.machine = QueueMachine(3)
    target.configure(CreateQueue)
    cluster.bytes_most = WHOLE_BODY_BYTES_MAX - 1
    cluster.lose_next = 2
    first, large, last = dead_letters(A, A, A)
    large = replace(large, body=bytes(WHOLE_BODY_BYTES_MAX))
    source: Any = Source(cluster, [first, large, last], 100)
    copies = source._bodies = Copies(target)

    await drained(source)

    assert target.stored == [b"1", bytes(HEAD_BYTES), b"3"]
    assert target.machine.queue(target.queue).bytes == WHOLE_BODY_BYTES_MAX + 2
    assert copies.count == 1
    assert not source._copied
    assert source.metrics.dead_letters_dropped == 0


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("body", [b"1", bytes(9_000), LargeBody(b"head", ((1, 0, 9),))])
async def test_a_letter_whose_headers_fit_into_no_entry_is_dropped_and_named(
    body: Body, keeps: bool
):
    """Unless nothing of its queue is to be dropped."""
    cluster = Cluster()
    cluster.targets[A.group].machine = QueueMachine(3)
    cluster.targets[A.group].configure(CreateQueue)
    cluster.metas_most = 10
    first, huge, last = dead_letters(A, A, A)
    huge = replace(huge, body=body, meta={"headers": {"h": "x" * 20}})
    source: Any = Source(cluster, [first, huge, last], 100)
    source._bodies = Copies(cluster.targets[A.group])
    source.keeps = keeps

    with capture_logs() as logs:
        source.ready(GroupId(1), SOURCE)
        if keeps:
            await until(lambda: sum(each["event"] == "dead_letters_wait" for each in logs) > 2)
            source.leads = False
            assert [each.number for each in source.outbox] == [2, 3]
            assert "more than an entry of the log holds" in logs[-1]["reason"]
            assert source._bodies.count == (len(body) > 1)
            return
        await until(lambda: not source.outbox)

    assert cluster.targets[A.group].stored == [b"1", b"3"]
    assert source.metrics.dead_letters_dropped == 1
    (dropped,) = [each for each in logs if each["event"] == "dead_letter_dropped"]
    assert (dropped["number"], dropped["target"]) == (2, A.name)
    assert "more than an entry of the log holds" in dropped["reason"]


class Copies:
    """Large bodies, copied into the target's machine."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.count = 0

    async def upload(self, target: QueueInfo, source: Any, name: str) -> tuple[str, list[Any]]:
        self.count += 1
        kept: list[Any] = []
        for number, size in enumerate(source.sizes):
            reply = self.target.apply(BodyPart(target.queue, name, number, bytes(size)))
            assert isinstance(reply, PartKept)
            kept.append([reply.index, reply.offset, size])
        return name, kept


async def test_a_large_body_is_not_copied_again_while_its_target_is_full():
    cluster = Cluster()
    target = cluster.targets[A.group]
    target.machine = QueueMachine(3)
    full: Any = {"max_length": 1, "overflow": "reject-publish"}
    target.configure(CreateQueue, **full)
    small, large = dead_letters(A, A)
    large = replace(large, body=LargeBody(b"head", ((1, 0, 9), (2, 0, 9))))
    source: Any = Source(cluster, [small, large], 100)
    copies = source._bodies = Copies(target)

    for _ in range(3):
        assert await source._move(SOURCE, GroupId(9), [small, large]) == 1
    assert copies.count == 1
    # Its parts are forgotten: another copy is made, once.
    target.now_ms += 400_000
    target.apply(Tick())
    for _ in range(3):
        assert await source._move(SOURCE, GroupId(9), [small, large]) == 1
    assert copies.count == 2
    # Nor when it was put off meanwhile.
    again = replace(large, number=7, died=2)
    assert await source._move(SOURCE, GroupId(9), [again]) == 0
    assert copies.count == 2
    target.configure(UpdateQueue)
    assert await source._move(SOURCE, GroupId(9), [again]) == 7
    assert target.stored == [b"1", b"head"]
    assert not source._copied


def test_runs_are_neighbours_with_one_target():
    found = [(to, [each.number for each in run]) for to, run in runs(dead_letters(A, A, B, None))]

    assert found == [((A,), [1, 2]), ((B,), [3]), ((), [4])]
    assert list(runs([])) == []


def test_a_letter_with_a_large_body_is_a_run_of_its_own():
    """Else the parts of the first would be forgotten while those of many others are copied."""
    small, large, behind, last = dead_letters(A, A, A, A)
    large = replace(large, body=LargeBody(b"head", ((1, 0, 9),)))

    found = [[each.number for each in run] for _, run in runs([small, large, behind, last])]

    assert found == [[1], [2], [3, 4]]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as nodes:
        yield nodes


async def two_queues(nodes: Nodes) -> tuple[QueueInfo, QueueInfo]:
    """Groups have one queue each: that for dead letters is in another one than their source."""
    await nodes.declare("dead")
    await nodes.declare("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    broker = nodes.one.broker
    work, dead = broker.locate("/", "work"), broker.locate("/", "dead")
    assert work is not None
    assert dead is not None
    assert work.group != dead.group
    return work, dead


async def test_rejected_messages_arrive_in_a_queue_of_another_group(nodes: Nodes):
    broker = nodes.one.broker
    work, _ = await two_queues(nodes)
    async with Client(nodes.url("n1")) as client:
        bodies = [str(number).encode() for number in range(300)]
        await client.publish("work", *bodies)
        _, _, consumer, _ = await client.ask(20, 2, "work", {"credit": 1000})
        await client.deliveries(300)
        assert await client.ask(32, 3, "work", consumer, [[1, 300]]) == [3, 3, 300]

        await client.ask(20, 4, "dead", {"credit": 1000})
        found: list[bytes] = []
        deaths: list[Any] = []
        while len(found) < 300:
            _, _, _, chunks = await client.expect(24)
            for chunk in chunks:
                found += chunk[4]
                deaths += chunk[6]

    assert found == bodies
    assert {(each["queue"], each["reason"], each["count"]) for each in deaths} == {
        ("work", "rejected", 1)
    }
    machine = broker.machine(work.group)
    await until(lambda: not machine.dead_letters(work.queue))


async def test_a_letter_that_its_death_made_too_large_for_an_entry_arrives(nodes: Nodes):
    """Body and headers filled one; its record of death came on top."""
    broker = nodes.one.broker
    work, dead = await two_queues(nodes)
    body = bytes(WHOLE_BODY_BYTES_MAX - 1) + b"!"
    empty = Enqueue(work.queue, None, 0, [body], {"headers": {"h": ""}})
    pad = ENTRY_BYTES_MAX - len(encode_entry(nodes.one.cluster.now_ms(), [empty])) - 64
    full = replace(empty, meta={"headers": {"h": "x" * pad}})
    assert (await nodes.one.cluster.ask(work.group, full)).kind == "ok"
    async with Client(nodes.url("n1")) as client:
        _, _, consumer, _ = await client.ask(20, 2, "work", {"credit": 10})
        ((position, _),) = await client.deliveries(1)
        assert await client.ask(32, 3, "work", consumer, [[position] * 2]) == [3, 3, 1]
        await until(lambda: not broker.machine(work.group).dead_letters(work.queue))

        await client.ask(20, 4, "dead", {"credit": 10})
        assert [got for _, got in await client.deliveries(1)] == [body]
    assert broker.machine(dead.group).queue(dead.queue).bytes == len(body)


async def test_what_cannot_be_read_stays_holds_up_no_others_and_comes_when_it_can(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    broker = nodes.one.broker
    work, dead = await two_queues(nodes)
    source, target = broker.machine(work.group), broker.machine(dead.group)
    group = broker.led(work.group)
    load = group.load_bodies
    async with Client(nodes.url("n1")) as client:
        for body in (b"1", b"2", b"3", b"4"):
            await client.publish("work", body)
        lost = {source.browse(work.queue, at, 1)[0].chunk.bodies.index for at in (1, 3)}
        asked = 0

        async def lacking(ref: BodyRef) -> Any:
            nonlocal asked
            asked += ref.index in lost
            return [] if ref.index in lost else await load(ref)

        monkeypatch.setattr(group, "load_bodies", lacking)
        _, _, consumer, _ = await client.ask(20, 2, "work", {"credit": 1000})
        await client.deliveries(4)
        assert await client.ask(32, 3, "work", consumer, [[1, 4]]) == [3, 3, 4]
        await until(lambda: len(target.browse(dead.queue, 1, 9)) == 2)
        before = asked
        await until(lambda: asked > before + 4)
        assert {each.index for each in source.dead_letters(work.queue)} == lost
        statuses = await nodes.one.management.observer.group_statuses(work.group)
        (status,) = statuses.values()
        named = {"vhost": "/", "name": "work", "count": 2}
        assert status["unreadable_dead_letters"] == [named]

        monkeypatch.undo()
        await until(lambda: not source.dead_letters(work.queue))
        await client.ask(20, 4, "dead", {"credit": 1000})
        assert [body for _, body in await client.deliveries(4)] == [b"2", b"4", b"1", b"3"]


AT_LEAST_ONCE = {"dead-letter-strategy": "at-least-once"}


@pytest.mark.parametrize("by_policy", [False, True])
@pytest.mark.parametrize("overflow", ["reject-publish", "drop-head"])
async def test_at_least_once_keeps_what_no_queue_takes_until_one_does(
    nodes: Nodes, by_policy: bool, overflow: str
):
    """Where a full queue refuses publishes; else it is dropped, as in RabbitMQ."""
    broker = nodes.one.broker
    said = {} if by_policy else {"dead_letter_strategy": "at-least-once"}
    await nodes.declare(
        "work",
        dead_letter_exchange="",
        dead_letter_routing_key="later",
        overflow=overflow,
        **said,
    )
    if by_policy:
        policy = {"pattern": "work", "apply_to": "all", "priority": 0, "definition": AT_LEAST_ONCE}
        outcome = await nodes.one.cluster.change(PutEntry("policies", ("/", "p"), policy))
        assert outcome.kind == "ok"
    work = broker.locate("/", "work")
    assert work is not None
    source = broker.machine(work.group)
    with capture_logs() as logs:
        async with Client(nodes.url("n1")) as client:
            await client.publish("work", b"1", b"2")
            _, _, consumer, _ = await client.ask(20, 2, "work", {"credit": 1000})
            await client.deliveries(2)
            assert await client.ask(32, 3, "work", consumer, [[1, 2]]) == [3, 3, 2]
            if overflow == "drop-head":
                await until(lambda: not source.dead_letters(work.queue))
                assert sum(each["event"] == "dead_letter_dropped" for each in logs) == 2
                return
            kept = "dead_letter_kept"
            await until(lambda: sum(each["event"] == kept for each in logs) == 2)
            assert len(source.dead_letters(work.queue)) == 2

            await nodes.declare("later")
            await until(lambda: not source.dead_letters(work.queue))
            await client.ask(20, 4, "later", {"credit": 1000})
            assert [body for _, body in await client.deliveries(2)] == [b"1", b"2"]
    assert not [each for each in logs if each["event"] == "dead_letter_dropped"]


async def dead_by_key(client: Client, *letters: tuple[str, bytes]) -> None:
    """Published to `work`, each with its key, and rejected."""
    for number, (key, body) in enumerate(letters):
        await client.ask(10, number, "work", None, 0, [body], {"key": key}, None)
    _, _, consumer, _ = await client.ask(20, 9_001, "work", {"credit": 1000})
    found = await client.deliveries(len(letters))
    span = [found[0][0], found[-1][0]]
    assert await client.ask(32, 9_002, "work", consumer, [span]) == [3, 9_002, len(letters)]
    await client.ask(22, 9_003, "work", consumer)


async def waiting_source(nodes: Nodes) -> tuple[QueueInfo, QueueMachine]:
    await nodes.declare(
        "work",
        dead_letter_exchange="",
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
    )
    work = nodes.one.broker.locate("/", "work")
    assert work is not None
    return work, nodes.one.broker.machine(work.group)


async def test_many_letters_that_all_wait_stay_in_order_and_nothing_is_written(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("node.broker.dead_letters.BACKOFF_S_MAX", 0.05)
    work, source = await waiting_source(nodes)
    group = nodes.one.broker.led(work.group)
    bodies = [b"%d" % number for number in range(600)]
    looks = 0
    dead_letters = nodes.one.management._services.dead_letters
    state = dead_letters._state

    def looking(group: GroupId, queue: QueueId) -> Any:
        nonlocal looks
        looks += 1
        return state(group, queue)

    monkeypatch.setattr(dead_letters, "_state", looking)
    async with Client(nodes.url("n1")) as client:
        await dead_by_key(client, *[("later", body) for body in bodies])
        await until(lambda: [each.count for each in dead_letters.kept(source)] == [600])
        before, looked = group.applied_index, looks
        await until(lambda: looks > looked + 5)
        assert group.applied_index == before

        await nodes.declare("later")
        await until(lambda: not source.dead_letters(work.queue))
        await client.ask(20, 4, "later", {"credit": 1000})
        assert [body for _, body in await client.deliveries(600)] == bodies


async def test_letters_that_wait_let_others_pass_and_keep_their_order(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("node.broker.dead_letters.BACKOFF_S_MAX", 0.05)
    work, source = await waiting_source(nodes)
    await nodes.declare("now")
    later = [b"later%d" % number for number in range(302)]
    observer = nodes.one.management.observer

    async def said() -> Any:
        (status,) = (await observer.group_statuses(work.group)).values()
        named = {"vhost": "/", "name": "work", "count": 302, "exchange": "", "key": "later"}
        return status["waiting_dead_letters"] == [named]

    async with Client(nodes.url("n1")) as client:
        await dead_by_key(client, *[("later", body) for body in later[:300]], ("now", b"now1"))
        await until(lambda: len(source.dead_letters(work.queue)) == 300)
        await dead_by_key(client, ("later", later[300]), ("now", b"now2"), ("later", later[301]))
        await until(said)
        await client.ask(20, 4, "now", {"credit": 1000})
        assert [body for _, body in await client.deliveries(2)] == [b"now1", b"now2"]

        await nodes.declare("later")
        await until(lambda: not source.dead_letters(work.queue))
        await client.ask(20, 5, "later", {"credit": 1000})
        assert [body for _, body in await client.deliveries(302)] == later


async def test_a_full_target_holds_up_no_others_and_is_named(nodes: Nodes):
    work, source = await waiting_source(nodes)
    await nodes.declare("now")
    await nodes.declare("full", max_length=1, overflow="reject-publish")
    full = [b"full%d" % number for number in range(5)]
    observer = nodes.one.management.observer

    async def said() -> Any:
        (status,) = (await observer.group_statuses(work.group)).values()
        named = {"vhost": "/", "name": "work", "count": 4, "target": "full", "reason": "is full"}
        return status["refused_dead_letters"] == [named]

    async with Client(nodes.url("n1")) as client:
        await dead_by_key(client, *[("full", body) for body in full], ("now", b"now1"))
        await until(lambda: len(source.dead_letters(work.queue)) == 4)
        await dead_by_key(client, ("now", b"now2"))
        await until(said)
        await client.ask(20, 4, "now", {"credit": 1000})
        assert [body for _, body in await client.deliveries(2)] == [b"now1", b"now2"]

        await client.ask(20, 5, "full", {"credit": 1000})
        assert [body for _, body in await client.deliveries(5)] == full
        await until(lambda: not source.dead_letters(work.queue))


async def test_letters_that_were_put_off_are_so_after_a_restart(nodes: Nodes):
    work, source = await waiting_source(nodes)
    await nodes.declare("now")
    later = [b"later%d" % number for number in range(5)]
    async with Client(nodes.url("n1")) as client:
        await dead_by_key(client, *[("later", body) for body in later[:3]], ("now", b"now1"))
        await until(
            lambda: [each.put_off for each in source.dead_letters(work.queue)] == [True] * 3
        )
        await dead_by_key(client, *[("later", body) for body in later[3:]])
    await nodes.stop("n1")
    await nodes.start("n1")
    await until(nodes.settled)

    source = nodes.one.broker.machine(work.group)
    assert [each.put_off for each in source.dead_letters(work.queue)] == [True] * 5
    await nodes.declare("later")
    await until(lambda: not source.dead_letters(work.queue))
    async with Client(nodes.url("n1")) as client:
        await client.ask(20, 4, "later", {"credit": 1000})
        assert [body for _, body in await client.deliveries(5)] == later


async def test_at_least_once_keeps_what_a_stream_refuses_for_good():
    cluster = Cluster()
    stream = stream_target(cluster, sealed=True)
    source = Source(cluster, dead_letters(stream), at_once=100)
    source.keeps = True
    with capture_logs() as logs:
        source.ready(GroupId(1), SOURCE)
        await until(lambda: any(each["event"] == "dead_letters_wait" for each in logs))
    assert len(source.outbox) == 1
    assert "the stream is sealed" in logs[-1]["reason"]
    source.leads = False
    await until(lambda: not source._working)


async def test_a_letter_keeps_its_priority_in_a_queue_of_another_group(nodes: Nodes):
    await nodes.declare("dead", max_priority=9)
    await nodes.declare("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    broker = nodes.one.broker
    work, dead = broker.locate("/", "work"), broker.locate("/", "dead")
    assert work is not None
    assert dead is not None
    assert work.group != dead.group
    async with Client(nodes.url("n1")) as client:
        await client.ask(10, 1, "work", None, 0, [b"low", b"high"], None, [None, {1: 7}])
        _, _, consumer, _ = await client.ask(20, 2, "work", {"credit": 10})
        await client.deliveries(2)
        assert await client.ask(32, 3, "work", consumer, [[1, 2]]) == [3, 3, 2]
        machine = broker.machine(dead.group)
        await until(lambda: (view := machine.queue(dead.queue)) and view.ready_count == 2)

        _, _, _, _, _, chunks = await client.ask(40, 4, "dead", 2, False)

    assert [body for chunk in chunks for body in chunk[4]] == [b"high", b"low"]


async def test_an_expired_queue_is_removed_from_the_catalog(nodes: Nodes):
    await nodes.declare("brief", expires=500)

    await until(lambda: nodes.one.broker.locate("/", "brief") is None)
