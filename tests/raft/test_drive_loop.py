from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from cluster.log import FatalDiskError, LogCorrupt
from cluster.raft.drive_loop import DriveLoop
from cluster.raft.messages import APPEND, APPENDED, BEATS, BEATS_ANSWERED, REJECTED
from cluster.raft.pysyncobj_core import NO_OP
from cluster.types import GroupId, NodeId
from tests.raft.nodes import Cluster, enqueue
from tests.testkit.clocks import FakeClock
from tests.testkit.virtual_time import running

pytestmark = pytest.mark.virtual_time


class FakeLog:
    def __init__(self, events: list) -> None:
        self.events = events
        self.must_sync = True
        self.release: asyncio.Event | None = None
        self.error: Exception | None = None
        self.record_count = self.written_bytes = 0

    def write(self) -> bool:
        self.events.append("write")
        return self.must_sync

    async def sync(self) -> float:
        self.events.append("sync begins")
        if self.release is not None:
            await self.release.wait()
        if self.error is not None:
            raise self.error
        self.events.append("sync ends")
        return 0.0


class FakeLinks:
    def __init__(self, events: list) -> None:
        self.events = events

    def send(self, peer, message) -> bool:
        group, events = message
        events.append(("late", group))
        return True

    def flush(self) -> None:
        self.events.append("flush")


class FakeGroup:
    wake = spawn = None

    def __init__(self, number: int, events: list) -> None:
        self.id = GroupId(number)
        self.events = events
        self.due = float("inf")
        self.again = False
        self.waits = True
        self.raises: Exception | None = None
        self.failed: Exception | None = None

    def receive(self, sender, message, joined=None) -> bool:
        self.events.append(("receive", self.id, message))
        if self.raises:
            raise self.raises
        return self.waits

    def step(self, now: float) -> list:
        self.events.append(("step", self.id))
        if self.raises:
            raise self.raises
        self.due = float("inf")
        return [(NodeId("n2"), [self.id, self.events])]

    def after(self, now: float) -> None:
        self.events.append(("after", self.id))
        if self.again:
            self.again, self.due = False, now

    def fail(self, error: Exception) -> None:
        self.failed = error

    def stop(self) -> None: ...


def loop_of(*numbers: int):
    events: list = []
    log, links = FakeLog(events), FakeLinks(events)
    loop = DriveLoop(log, links, FakeClock(running()))
    groups = [FakeGroup(number, events) for number in numbers]
    for group in groups:
        loop.add(group)
    return loop, log, events, groups


async def test_a_round_is_step_write_send_sync_and_only_then_the_late_messages():
    loop, log, events, _ = loop_of(1, 2)
    log.release = asyncio.Event()
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    assert events == [("step", 1), ("step", 2), "write", "flush", "sync begins"]

    log.release.set()
    await asyncio.sleep(0.01)
    sent = ["sync ends", ("late", 1), ("late", 2), "flush"]
    assert events[5:] == [*sent, ("after", 1), ("after", 2)]
    await loop.stop()
    await task


async def test_a_message_that_its_group_deals_with_at_once_costs_no_round():
    loop, _, events, groups = loop_of(1)
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    before = len(events)
    groups[0].waits = False
    loop.receive(GroupId(1), NodeId("n2"), [1, "x"])
    await asyncio.sleep(0.01)
    assert events[before:] == [("receive", 1, [1, "x"])]

    groups[0].due = asyncio.get_running_loop().time() + 0.1  # as that message has it
    loop.receive(GroupId(1), NodeId("n2"), [1, "x"])
    await asyncio.sleep(0.05)
    assert ("step", 1) not in events[before:]
    await asyncio.sleep(0.06)
    assert events[before:].count(("step", 1)) == 1
    await loop.stop()
    await task


@pytest.mark.parametrize("syncing", [False, True])
async def test_what_a_message_finds_broken_ends_its_group_or_the_rounds(syncing: bool):
    loop, log, _, groups = loop_of(1, 2)
    log.release = asyncio.Event()
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    if not syncing:
        log.release.set()
        await asyncio.sleep(0.01)
    groups[1].raises = ValueError("a bug")
    loop.receive(GroupId(2), NodeId("n2"), [2, "x"])
    assert groups[1].failed is groups[1].raises
    groups[0].raises = LogCorrupt("file", 0, "damaged")
    loop.receive(GroupId(1), NodeId("n2"), [1, "x"])
    log.release.set()
    with pytest.raises(LogCorrupt):
        await task


async def test_what_arrives_during_the_sync_waits_for_the_next_round():
    loop, log, events, _ = loop_of(1)
    log.release = asyncio.Event()
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    loop.receive(GroupId(1), NodeId("n2"), [1, "x"])
    await asyncio.sleep(0.01)
    assert events.count(("step", 1)) == 1

    log.release.set()
    await asyncio.sleep(0.01)
    assert events.count(("step", 1)) == 2
    await loop.stop()
    await task


async def test_nothing_is_synced_when_nothing_needs_it():
    loop, log, events, _ = loop_of(1)
    log.must_sync = False
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)

    assert events == [("step", 1), "write", "flush", ("late", 1), "flush", ("after", 1)]
    await loop.stop()
    await task


async def test_only_groups_with_something_to_do_are_stepped():
    loop, log, events, groups = loop_of(1, 2, 3)
    log.must_sync = False
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    events.clear()
    groups[1].wake()
    await asyncio.sleep(0.01)
    assert [e for e in events if e[0] == "step"] == [("step", 2)]

    events.clear()
    now = asyncio.get_running_loop().time()
    groups[2].waits = False
    groups[2].due = now + 1
    loop.receive(GroupId(3), NodeId("n2"), [3, "x"])
    events.clear()
    await asyncio.sleep(0.98)
    assert events == []
    await asyncio.sleep(0.03)
    assert [e for e in events if e[0] == "step"][:1] == [("step", 3)]
    await loop.stop()
    await task


async def test_a_group_that_is_due_after_its_round_gets_another_one():
    loop, _, events, groups = loop_of(1)
    groups[0].again = True
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)

    assert events.count(("step", 1)) == 2
    await loop.stop()
    await task


async def test_a_bug_in_one_group_stops_that_group_only():
    loop, log, events, groups = loop_of(1, 2)
    log.must_sync = False
    groups[0].raises = ValueError("a bug")
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)

    assert groups[0].failed is groups[0].raises
    assert ("step", 2) in events
    assert not task.done()
    await loop.stop()
    await task


async def test_a_disk_that_fails_ends_the_rounds_with_its_error_and_nothing_late_leaves():
    loop, log, events, _ = loop_of(1)
    log.error = FatalDiskError("sync failed")
    task = asyncio.create_task(loop.run())
    with pytest.raises(FatalDiskError):
        await task

    assert ("late", 1) not in events
    loop.receive(GroupId(1), NodeId("n2"), [1, "x"])
    assert ("receive", 1, [1, "x"]) not in events


async def test_a_disk_that_fails_while_something_is_received_ends_the_rounds_too():
    loop, log, events, groups = loop_of(1)
    log.must_sync = False
    task = asyncio.create_task(loop.run())
    groups[0].raises = FatalDiskError("the log is full")
    for number in range(2):
        loop.receive(GroupId(1), NodeId("n2"), [1, number])
    with pytest.raises(FatalDiskError):
        await task

    assert groups[0].failed is None
    assert ("receive", 1, [1, 1]) not in events


async def test_a_job_that_fails_ends_the_rounds_too():
    loop, log, _, groups = loop_of(1)
    log.must_sync = False
    task = asyncio.create_task(loop.run())

    async def job() -> None:
        raise FatalDiskError("snapshot failed")

    groups[0].spawn(job())
    with pytest.raises(FatalDiskError):
        await task


async def test_messages_for_unknown_or_removed_groups_are_dropped():
    loop, log, events, _ = loop_of(1)
    log.must_sync = False
    loop.receive(GroupId(9), NodeId("n2"), [9, "x"])
    loop.remove(GroupId(1))
    loop.receive(GroupId(1), NodeId("n2"), [1, "x"])

    assert events == []


async def test_a_copy_that_was_removed_says_nothing_more_and_is_not_taken_for_the_next():
    loop, log, events, (before,) = loop_of(1)
    log.release = asyncio.Event()
    before.again = True
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.01)
    loop.remove(GroupId(1))
    loop.add(FakeGroup(1, after := []))
    loop.wake(before)
    log.release.set()
    await asyncio.sleep(0.01)
    assert ("late", 1) not in events
    assert events.count(("step", 1)) == 1
    assert ("step", 1) in after
    await loop.stop()
    await task


async def test_one_sync_serves_all_groups():
    cluster = await Cluster(1, groups=8).start()
    groups = [await cluster.elect(n) for n in range(1, 9)]
    await asyncio.sleep(0.5)
    loop = cluster.nodes["n1"].drive_loop
    before = loop.syncs
    await asyncio.gather(*(g.ask(enqueue(b"x")) for g in groups))

    assert loop.syncs - before <= 2
    await cluster.stop()


async def test_appends_leave_before_the_sync_and_acknowledgements_after_it():
    cluster = await Cluster().start()
    group = await cluster.elect()
    order: list[tuple[str, str]] = []
    for name, node in cluster.nodes.items():

        def watch_send(peer, message, name=name, send=node.links.send):
            if message[1] in (APPEND, APPENDED) and (message[1] == APPENDED or message[6]):
                order.append((name, message[1]))
            return send(peer, message)

        async def watch_sync(name=name, sync=node.log.wal.sync):
            result = await sync()
            order.append((name, "synced"))
            return result

        node.links.send = watch_send
        node.log.wal.sync = watch_sync
        for each in node.groups.values():
            each.member._links.send = watch_send
    await group.ask(enqueue(b"x"))

    leader = [what for name, what in order if name == group.node]
    assert leader[:3] == [APPEND, APPEND, "synced"]
    follower = next(n for n in cluster.names if n != group.node)
    assert [what for name, what in order if name == follower][:2] == ["synced", APPENDED]
    await cluster.stop()


async def test_an_idle_node_rests():
    cluster = await Cluster(groups=5).start()
    for n in range(1, 6):
        await cluster.elect(n)
    await asyncio.sleep(3)
    before = {name: (n.drive_loop.count, n.drive_loop.syncs) for name, n in cluster.nodes.items()}
    await asyncio.sleep(10)

    for name, node in cluster.nodes.items():
        count, syncs = before[name]
        assert node.drive_loop.syncs == syncs
        assert node.drive_loop.count - count < 10 * 20
    await cluster.stop()


async def _with_one_in_flight():
    """A group whose leader's disk syncs the entry that it has, and the next when it is released."""
    cluster = await Cluster().start()
    group = await cluster.elect()
    await asyncio.sleep(0.5)
    held = False
    release = asyncio.Event()

    async def pause(operation: str) -> None:
        if held:
            await release.wait()

    cluster.disks[group.node]._pause = pause
    first = asyncio.create_task(group.ask(enqueue(b"first")))
    await asyncio.sleep(0.0001)
    held = True
    return cluster, group, first, release


async def test_a_follower_acknowledges_before_it_applies():
    cluster = await Cluster().start()
    group = await cluster.elect()
    name = next(n for n in cluster.names if n != group.node)
    follower, send = cluster.nodes[name].groups[1], cluster.nodes[name].links.send
    order: list[str] = []

    def watch_send(peer, message):
        if message[1] == APPENDED:
            order.append(message[1])
        return send(peer, message)

    cluster.nodes[name].links.send = watch_send
    follower.member._links.send = watch_send
    follower.on_effects.append(lambda *_: order.append("applied"))
    await group.ask(enqueue(b"x"))
    order.clear()
    await group.ask(enqueue(b"y"))  # which tells that x is committed
    await asyncio.sleep(0.005)
    assert follower.applied_index == follower.commit_index == group.last_index - 1
    assert order[0] == APPENDED
    await cluster.stop()


async def test_an_acknowledgement_costs_the_leader_no_round():
    cluster = await Cluster().start()
    group = await cluster.elect()
    await asyncio.sleep(0.5)
    loop = cluster.nodes[group.node].drive_loop
    before = loop.count
    for _ in range(50):
        assert (await group.ask(enqueue(b"x"))).kind == "ok"
    assert loop.count - before <= 55
    await cluster.stop()


async def test_a_heartbeat_that_brings_nothing_costs_a_follower_no_round():
    cluster = await Cluster().start()
    group = await cluster.elect()
    assert (await group.ask(enqueue(b"x"))).kind == "ok"
    await asyncio.sleep(1)
    term = group.term
    followers = [node for name, node in cluster.nodes.items() if name != group.node]
    before = [node.drive_loop.count for node in followers]
    await asyncio.sleep(10)  # five election timeouts
    assert [node.drive_loop.count - was for node, was in zip(followers, before, strict=True)] == [
        0,
        0,
    ]
    assert (group.ready, group.term) == (True, term)
    await cluster.stop()


async def test_a_heartbeat_is_not_answered_before_its_term_is_on_disk():
    cluster = await Cluster().start()
    group = await cluster.elect()
    assert (await group.ask(enqueue(b"x"))).kind == "ok"
    await asyncio.sleep(1)
    name, other = (n for n in cluster.names if n != group.node)
    node = cluster.nodes[name]
    follower = node.groups[1]
    release = asyncio.Event()

    async def pause(operation: str) -> None:
        await release.wait()

    cluster.disks[name]._pause = pause
    answered: list[int] = []

    def watch(peer, message, send=node.links.send):
        if message[1] == APPENDED and peer == other:
            answered.append(message[2])
        return send(peer, message)

    node.links.send = watch
    term, last = group.term + 1, follower.last_index
    heartbeat = [1, APPEND, term, last, follower.member.last_term, follower.commit_index, []]
    for _ in range(3):
        node.drive_loop.receive(GroupId(1), NodeId(other), list(heartbeat))
        await asyncio.sleep(0.01)
    assert (follower.term, answered) == (term, [])
    release.set()
    await asyncio.sleep(0.01)
    assert set(answered) == {term}
    await cluster.stop()


def _watched(cluster: Cluster, seen) -> None:
    """`seen(sender, peer, message)` before each message of any node."""
    for name, node in cluster.nodes.items():

        def watch(peer, message, name=name, send=node.links.send):
            seen(name, peer, message)
            return send(peer, message)

        node.links.send = watch


async def _led_by_all(groups: int) -> Cluster:
    """An idle cluster, whose groups are led by its nodes in turn."""
    cluster = await Cluster(groups=groups).start()
    for n in range(1, groups + 1):
        to = cluster.names[n % len(cluster.names)]
        if (await cluster.elect(n)).node != to:
            assert (await cluster.elect(n)).transfer(NodeId(to))
            await cluster.until(
                lambda n=n, to=to: (cluster.leader(n) or to) is cluster.nodes[to].groups[n]
            )
    await asyncio.sleep(2)
    return cluster


async def test_two_idle_nodes_say_and_answer_one_heartbeat_for_all_groups():
    cluster = await _led_by_all(6)
    terms = [cluster.leader(n).term for n in range(1, 7)]
    sent: dict[tuple[str, str], Counter[str]] = {}
    _watched(cluster, lambda a, b, m: sent.setdefault((a, b), Counter()).update([m[1]]))
    await asyncio.sleep(10)
    assert len(sent) == 6
    for each in sent.values():
        assert {*each} == {BEATS, BEATS_ANSWERED}
        assert all(49 <= count <= 51 for count in each.values())
    assert [cluster.leader(n).term for n in range(1, 7)] == terms
    leaders = [cluster.leader(n) for n in range(1, 7)]
    assert all(s < 0.5 for leader in leaders for s in leader.heard_s().values())
    assert None not in [leader.member.heard_since() for leader in leaders]
    await cluster.stop()


async def test_a_node_that_leads_nothing_answers_all_the_same():
    cluster = await Cluster(groups=2).start()
    for n in (1, 2):
        leader = await cluster.elect(n)
        if leader.node != "n1":
            leader.transfer(NodeId("n1"))
            await cluster.until(lambda n=n: cluster.nodes["n1"].groups[n].ready)
    await asyncio.sleep(20)
    assert all(cluster.nodes["n1"].groups[n].ready for n in (1, 2))
    await cluster.stop()


async def test_a_peer_of_an_earlier_release_gets_heartbeats_one_by_one():
    cluster = await _led_by_all(3)
    cluster.link_version = 2
    kinds: Counter[str] = Counter()
    _watched(cluster, lambda _a, _b, message: kinds.update([message[1]]))
    await asyncio.sleep(10)
    assert set(kinds) == {APPEND, APPENDED}
    assert all(cluster.leader(n) for n in (1, 2, 3))
    await cluster.stop()


async def test_a_follower_that_lacks_something_gets_its_heartbeat_alone():
    cluster = await Cluster().start()
    group = await cluster.elect()
    assert (await group.ask(enqueue(b"x"))).kind == "ok"
    await asyncio.sleep(1)
    slow, other = (n for n in cluster.names if n != group.node)
    joined: list[tuple[str, str]] = []

    def seen(sender, peer, message):
        if message[1] == BEATS:
            joined.append((sender, peer))

    _watched(cluster, seen)
    release = asyncio.Event()

    async def pause(operation: str) -> None:
        await release.wait()

    cluster.disks[slow]._pause = pause
    assert (await group.ask(enqueue(b"y"))).kind == "ok"
    joined.clear()
    await asyncio.sleep(0.9)
    assert set(joined) == {(group.node, other)}
    release.set()
    await asyncio.sleep(0.5)
    assert set(joined) == {(group.node, other), (group.node, slow)}
    await cluster.stop()


async def test_what_two_idle_nodes_say_to_each_other_leaves_as_one():
    """Each wakes the other once a beat: its answers are flushed with its own heartbeats."""
    cluster = await _led_by_all(3)
    order: list[tuple[str, str, str]] = []
    _watched(cluster, lambda sender, peer, message: order.append((sender, peer, message[1])))
    for name, node in cluster.nodes.items():

        def watch(name=name, flush=node.links.flush):
            order.append((name, "", "flushed"))
            flush()

        node.links.flush = watch
    await asyncio.sleep(10)
    for name in cluster.names:
        own = [(peer, kind) for sender, peer, kind in order if sender == name]
        said = "".join("." if kind == "flushed" else kind[5:6] or "b" for _, kind in own)
        bursts = [burst for burst in said.split(".") if burst]
        assert set(bursts[1:-1]) == {"_b_b"}, "answered, beats: to the one peer, then to the other"
        assert 49 <= len(bursts) <= 51
    await cluster.stop()


async def _followed_by_a_leader_of_another() -> tuple[Cluster, NodeId, str]:
    """Two idle groups, a leader, and a follower of it in group 1, which leads group 2."""
    cluster = await Cluster(groups=2).start()
    leader = (await cluster.elect(1)).node
    name = next(n for n in cluster.names if n != leader)
    if (other := await cluster.elect(2)).node != name:
        assert other.transfer(NodeId(name))
        await cluster.until(lambda: cluster.nodes[name].groups[2].ready)
    await asyncio.sleep(2.1)
    cluster.cut.add(frozenset((name, leader)))  # it hears only what follows
    await asyncio.sleep(0.3)
    return cluster, NodeId(leader), name


async def test_an_answer_that_waits_goes_when_its_log_is_another_or_it_votes_no_more():
    cluster, leader, name = await _followed_by_a_leader_of_another()
    node = cluster.nodes[name]
    group, member = node.groups[1], node.groups[1].member
    beat = [1, group.term, group.last_index, member.last_term, group.commit_index]
    sent: list[list] = []
    _watched(cluster, lambda a, b, m: sent.append(m) if (a, b) == (name, leader) else None)

    node.drive_loop.receive_joined(leader, BEATS, [beat])
    assert not sent, "it waits for the heartbeats of group 2"
    await asyncio.sleep(0.25)
    assert sent[0] == [-1, BEATS_ANSWERED, [[1, group.term, group.last_index]]]
    assert sent[1][1] == BEATS

    sent.clear()
    node.drive_loop.receive_joined(leader, BEATS, [beat])
    member.journal.set_votes_suspended(True)
    await asyncio.sleep(0.25)
    assert {each[1] for each in sent} == {BEATS}
    member.journal.set_votes_suspended(False)

    sent.clear()
    node.drive_loop.receive_joined(leader, BEATS, [beat])
    entry = [1, APPEND, *beat[1:], [[NO_OP, group.term]]]
    node.drive_loop.receive(GroupId(1), leader, entry)
    await asyncio.sleep(0.25)
    assert {each[1] for each in sent} == {APPENDED, BEATS}
    await cluster.stop()


async def test_an_answer_that_waited_for_heartbeats_in_vain_leaves_with_the_next():
    cluster, leader, name = await _followed_by_a_leader_of_another()
    node = cluster.nodes[name]
    group, member = node.groups[1], node.groups[1].member
    beat = [1, group.term, group.last_index, member.last_term, group.commit_index]
    answer = [-1, BEATS_ANSWERED, [[1, group.term, group.last_index]]]
    sent: list[list] = []
    _watched(cluster, lambda a, b, m: sent.append(m) if (a, b) == (name, leader) else None)
    node.groups[2].member.step_down(None)
    node.drive_loop.receive_joined(leader, BEATS, [beat])
    await asyncio.sleep(0.1)
    node.drive_loop.receive_joined(leader, BEATS, [beat])
    assert answer not in sent, "the last beats are not long ago"
    await asyncio.sleep(0.35)
    node.drive_loop.receive_joined(leader, BEATS, [beat])
    assert sent.count(answer) == 1
    await cluster.stop()


async def test_a_joined_heartbeat_is_answered_in_its_own_term_only():
    """Later the log may have got what was compared with no leader's: as good a term, and as long,
    does not make it equal.
    """
    cluster = await Cluster(count=5).start()
    group = await cluster.elect()
    assert (await group.ask(enqueue(b"x"))).kind == "ok"
    await asyncio.sleep(1)
    leader = NodeId(group.node)
    name, other = [n for n in cluster.names if n != leader][:2]
    node = cluster.nodes[name]
    follower = node.groups[1]
    for each in cluster.names:
        if each != name:
            cluster.cut.add(frozenset((name, each)))  # it hears only what follows
    sent: list[list] = []
    _watched(cluster, lambda sender, _peer, m: sent.append(m) if sender == name else None)
    term, last, commit = follower.term, follower.last_index, follower.commit_index
    before = follower.member.last_term

    node.drive_loop.receive_joined(leader, BEATS, [[1, term, last, before, commit]])
    assert sent == [[-1, BEATS_ANSWERED, [[1, term, last]]]]
    # The other one wins a term, and its first entries come here alone.
    entries = [[NO_OP, term + 1]] * 3
    message = [1, APPEND, term + 1, last, before, commit, entries]
    node.drive_loop.receive(GroupId(1), NodeId(other), message)
    await asyncio.sleep(0.01)
    # The leader had an entry that nobody else got, and wins the next term by the others.
    message = [1, APPEND, term + 2, last + 1, term, commit, [[NO_OP, term + 2]]]
    node.drive_loop.receive(GroupId(1), leader, message)
    await asyncio.sleep(0.3)
    assert [each[1] for each in sent] == [BEATS_ANSWERED, APPENDED, REJECTED]
    await cluster.stop()


async def test_a_group_with_a_bug_stops_alone_when_a_joined_heartbeat_meets_it():
    cluster = await Cluster(groups=3).start()
    leaders = [await cluster.elect(n) for n in (1, 2, 3)]
    name = next(n for n in cluster.names if n not in [each.node for each in leaders])
    assert (await leaders[1].ask(enqueue(b"x"))).kind == "ok"
    await asyncio.sleep(1)
    node = cluster.nodes[name]
    sent: list[list] = []
    _watched(cluster, lambda sender, _peer, m: sent.append(m) if sender == name else None)

    def bug(*_) -> None:
        raise ValueError("a bug")

    node.groups[1].member.acknowledge_heartbeat = bug
    leader = leaders[1].node
    beats = []
    for n in (1, 2):
        group, member = node.groups[n], node.groups[n].member
        group.member.leader = member.peer(NodeId(leader))
        beats.append(
            [n, group.term, group.last_index, member.last_term, group.commit_index, "of later"]
        )
    node.drive_loop.receive_joined(NodeId(leader), BEATS, beats)

    assert node.groups[1].failed == "ValueError: a bug"
    two = node.groups[2]
    assert sent == [[-1, BEATS_ANSWERED, [[2, two.term, two.last_index]]]]
    message = [2, APPEND, two.term, two.last_index, two.member.last_term, two.commit_index, []]
    node.drive_loop.receive(GroupId(2), NodeId(leader), message)
    assert sent[1:] == [[2, APPENDED, two.term, two.last_index]], "alone, as it was asked"
    await cluster.stop()


async def test_a_joined_heartbeat_that_is_not_plain_is_taken_as_one_alone():
    """Of a later term: answered once that is on disk. Of an earlier one: refused."""
    cluster = await Cluster().start()
    group = await cluster.elect()
    assert (await group.ask(enqueue(b"x"))).kind == "ok"
    await asyncio.sleep(1)
    name, other = (n for n in cluster.names if n != group.node)
    node, last = cluster.nodes[name], group.last_index
    sent: list[list] = []
    _watched(
        cluster, lambda sender, peer, m: sent.append(m) if (sender, peer) == (name, other) else 0
    )
    term = group.term + 1
    beat = [1, term, last, node.groups[1].member.last_term, group.commit_index]
    node.drive_loop.receive_joined(NodeId(other), BEATS, [beat, [99, *beat[1:]]])
    await asyncio.sleep(0.01)
    assert sent == [[1, APPENDED, term, last]]
    node.drive_loop.receive_joined(NodeId(other), BEATS, [[1, term - 1, *beat[2:]]])
    await asyncio.sleep(0.01)
    assert sent[1][:3] == [1, REJECTED, term]
    await cluster.stop()


async def test_an_outcome_does_not_wait_for_the_sync_of_what_came_later():
    cluster, group, first, release = await _with_one_in_flight()
    second = asyncio.create_task(group.ask(enqueue(b"second")))
    await asyncio.sleep(0.1)
    assert first.done()
    assert first.result().kind == "ok"
    assert not second.done(), "both followers have it, and the leader's own disk has not"

    release.set()
    assert (await second).kind == "ok"
    await cluster.stop()


async def test_a_leader_whose_disk_forgot_commits_nothing_more_while_that_syncs():
    cluster, group, first, release = await _with_one_in_flight()
    group.propose(enqueue(b"second"))
    await asyncio.sleep(0.0001)
    group.suspend_votes()
    await asyncio.sleep(0.1)
    assert not first.done()
    release.set()
    await cluster.until(lambda: not group.member.leads)


async def test_who_waits_for_each_outcome_keeps_half_its_rate_beside_a_group_that_is_never_idle():
    """Every disk takes 3 to 7 ms for a sync; alone an entry takes one of them."""
    cluster = await Cluster(groups=2).start()
    dice, loop = Random(1), asyncio.get_running_loop()

    async def slow(operation: str) -> None:
        await asyncio.sleep(dice.uniform(0.003, 0.007))

    node = (await cluster.elect(1)).node
    while (other := await cluster.elect(2)).node != node:
        other.transfer(node)
        await asyncio.sleep(0.1)
    group = await cluster.elect(1)
    for disk in cluster.disks.values():
        disk._pause = slow

    async def rate() -> int:
        count, end_s = 0, loop.time() + 2
        while loop.time() < end_s:
            await group.ask(enqueue(b"waits"))
            count += 1
        return count

    async def stream() -> None:
        while True:
            other.propose(enqueue(b"never waits"))
            await asyncio.sleep(0.001)

    alone = await rate()
    streaming = asyncio.create_task(stream())
    beside = await rate()
    streaming.cancel()
    assert beside >= 0.5 * alone, (alone, beside)
    await cluster.stop()
