from __future__ import annotations

import asyncio

import cbor2
import pytest

from cluster.codec.entries import encode_entry
from cluster.groups import applying, proposals
from cluster.groups.group import GroupOptions, Outcome, Role
from cluster.log import KIND_DIGEST, KIND_ROLE
from cluster.machine.commands import (
    Barrier,
    DeleteQueue,
    Enqueue,
    Pause,
    Purge,
    Settle,
    Transaction,
    TransactionPart,
)
from cluster.machine.replies import Enqueued, Refused
from cluster.types import BodyRef, ConsumerKey, GroupId, NodeId, QueueId
from tests.raft.nodes import Cluster, ListMachine, enqueue

pytestmark = pytest.mark.virtual_time


def followers(cluster: Cluster, leader):
    return [n.groups[1] for n in cluster.nodes.values() if n.groups[1] is not leader]


async def test_what_is_proposed_together_is_one_entry():
    cluster = await Cluster().start()
    group = await cluster.elect()
    before = group.last_index
    outcomes: list[Outcome] = []
    for n in range(10):
        group.propose(enqueue(b"%d" % n), outcomes.append)
    await cluster.until(lambda: len(outcomes) == 10)

    assert group.last_index == before + 1
    assert [o.kind for o in outcomes] == ["ok"] * 10
    assert [o.stamp.ordinal for o in outcomes] == list(range(10))
    assert [o.stamp.body_offset for o in outcomes] == list(range(10))


async def test_a_large_batch_is_split_at_the_target_size():
    cluster = await Cluster().start()
    group = await cluster.elect()
    before = group.last_index
    outcomes: list[Outcome] = []
    for _ in range(10):
        group.propose(enqueue(bytes(400_000)), outcomes.append)
    await cluster.until(lambda: len(outcomes) == 10)

    assert group.last_index == before + 5
    assert {o.stamp.index for o in outcomes} == set(range(before + 1, before + 6))


async def test_an_entry_holds_no_more_commands_than_ordinals_can_number():
    old, proposals.ENTRY_COMMANDS_MAX = proposals.ENTRY_COMMANDS_MAX, 100
    try:
        nodes = await Cluster().start()
        group = await nodes.elect()
        before = group.last_index
        outcomes: list[Outcome] = []
        for _ in range(250):
            group.propose(Barrier(), outcomes.append)
        await nodes.until(lambda: len(outcomes) == 250)
        assert group.last_index == before + 3
        assert max(o.stamp.ordinal for o in outcomes) == 99
    finally:
        proposals.ENTRY_COMMANDS_MAX = old


async def test_what_arrives_during_a_sync_becomes_the_next_entry():
    cluster = await Cluster().start()
    group = await cluster.elect()
    log = cluster.nodes[group.node].log.wal

    async def slow_sync(sync=log.sync) -> float:
        await asyncio.sleep(0.002)
        return await sync()

    log.sync = slow_sync
    before = group.last_index
    tasks = []
    for n in range(100):
        tasks.append(asyncio.create_task(group.ask(enqueue(b"%d" % n))))
        await asyncio.sleep(0.0001)
    outcomes = await asyncio.gather(*tasks)

    assert all(o.kind == "ok" for o in outcomes)
    assert group.last_index - before <= 10


async def test_every_member_applies_the_same_stamps():
    cluster = await Cluster().start()
    group = await cluster.elect()
    for n in range(20):
        await group.ask(enqueue(b"%d" % n, b"x"))
    await cluster.until(lambda: cluster.all_applied(group.last_index))

    traces = [n.groups[1].machine.applied for n in cluster.nodes.values()]
    assert traces[0] == traces[1] == traces[2]
    assert len({n.groups[1].machine.digest() for n in cluster.nodes.values()}) == 1


async def test_a_refusal_of_the_machine_is_refused_with_its_reply():
    cluster = await Cluster().start()
    group = await cluster.elect()
    outcome = await group.ask(DeleteQueue(QueueId(9)))

    assert outcome.kind == "refused"
    assert outcome.code == "no_queue"
    assert outcome.reply == Refused("no_queue", "there is none")
    assert outcome.stamp is not None


async def test_a_follower_refuses_and_names_the_leader():
    cluster = await Cluster().start()
    group = await cluster.elect()
    await cluster.until(lambda: all(f.leader is not None for f in followers(cluster, group)))
    for follower in followers(cluster, group):
        outcome = await follower.ask(Barrier())
        assert (outcome.kind, outcome.code, outcome.leader) == ("refused", "not_leader", group.node)


async def test_without_a_leader_it_is_refused_with_no_leader():
    cluster = await Cluster().start()
    outcome = await cluster.nodes["n1"].groups[1].ask(Barrier())

    assert (outcome.kind, outcome.code) == ("refused", "no_leader")


async def test_a_command_over_the_limit_is_refused():
    cluster = await Cluster(1).start()
    group = await cluster.elect()
    outcome = await group.ask(enqueue(bytes(cluster_max() + 1)))
    assert (outcome.kind, outcome.code) == ("refused", "too_large")

    # what the estimate did not see: the meta; the others of the same entry are stored
    outcomes: list[Outcome] = []
    huge = Enqueue(QueueId(1), None, 0, [b"x"], "m" * cluster_max())
    for command in (enqueue(b"1"), huge, enqueue(b"2")):
        group.propose(command, outcomes.append)
    await cluster.until(lambda: len(outcomes) == 3)
    assert sorted(o.kind for o in outcomes) == ["ok", "ok", "refused"]
    assert group.pending_bytes == 0


async def test_a_part_of_what_was_decided_is_taken_though_its_numbers_are_longer():
    """Refused, it would wait for ever, and what it brings had left another queue already."""
    cluster = await Cluster(1).start()
    group = await cluster.elect()
    largest = cluster_max() - len(encode_entry(1_700_000_000_123, [decided(1 << 20)])) + (1 << 20)
    assert (await group.ask(decided(largest + 1))).code == "too_large"
    transaction = decided(largest)
    assert (await group.ask(transaction)).kind == "ok"

    ((_, steps),) = transaction.others
    part = TransactionPart(GroupId(2), 1 << 32, 1 << 32, steps)

    assert (await group.ask(part)).kind == "ok"


def decided(size: int) -> Transaction:
    enqueued = Enqueue(QueueId(1), None, 0, [b"x"], "m" * size)
    return Transaction(NodeId("n1"), 1, 1, 1, (), [(GroupId(2), [enqueued])])


def cluster_max() -> int:
    return proposals.ENTRY_BYTES_MAX


async def test_bytes_that_wait_are_bounded():
    cluster = await Cluster(options=GroupOptions(1000, 2000, 200, propose_bytes_max=10_000)).start()
    group = await cluster.elect()
    outcomes: list[Outcome] = []
    for _ in range(20):
        group.propose(enqueue(bytes(1000)), outcomes.append)
    refused = [o for o in outcomes if o.kind == "refused"]
    assert {o.code for o in refused} == {"overloaded"}
    assert 9 <= len(refused) <= 12

    await cluster.until(lambda: len(outcomes) == 20)
    assert group.pending_bytes == 0
    assert (await group.ask(enqueue(bytes(1000)))).kind == "ok"


async def test_a_leader_that_is_cut_off_answers_unknown_or_what_became_of_it_and_once():
    cluster = await Cluster().start()
    group = await cluster.elect()
    calls: list[Outcome] = []
    cluster.isolate(group.node)
    for n in range(5):
        group.propose(enqueue(b"%d" % n), calls.append)
    await cluster.until(lambda: len(calls) == 5)
    assert {o.kind for o in calls} == {"unknown"}
    assert group.role is not Role.LEADER
    cluster.heal()
    await asyncio.sleep(5)

    assert len(calls) == 5
    assert group.pending_bytes == 0


async def test_an_entry_of_a_lost_leadership_that_commits_after_all_is_ok():
    cluster = await Cluster().start()
    group = await cluster.elect()
    calls: list[Outcome] = []
    group.propose(enqueue(b"x"), calls.append)
    await asyncio.sleep(0.0008)  # on its way, not yet acknowledged
    index = group.last_index
    for other in followers(cluster, group):
        await cluster.until(lambda other=other: other.last_index >= index)
    group.member.step_down(None)
    await cluster.until(lambda: len(calls) == 1)

    assert calls[0].kind == "ok"
    assert isinstance(calls[0].reply, Enqueued)


async def test_an_entry_that_was_overwritten_is_refused():
    cluster = await Cluster().start()
    group = await cluster.elect()
    calls: list[Outcome] = []
    cluster.isolate(group.node)
    group.propose(enqueue(b"lost"), calls.append)
    await cluster.until(lambda: cluster.leader() is not group and cluster.leader() is not None)
    new = cluster.leader()
    assert new is not None
    for n in range(3):
        await new.ask(enqueue(b"%d" % n))
    cluster.heal()
    await cluster.until(lambda: len(calls) == 1)

    assert (calls[0].kind, calls[0].code) == ("refused", "not_leader")
    await asyncio.sleep(1)
    assert group.machine.digest() == new.machine.digest()


async def test_proposals_not_yet_appended_are_refused_when_leadership_is_lost():
    cluster = await Cluster().start()
    group = await cluster.elect()
    calls: list[Outcome] = []
    group.propose(enqueue(b"x"), calls.append)
    group.member.step_down(None)
    await cluster.until(lambda: calls)

    assert (calls[0].kind, calls[0].code) == ("refused", "no_leader")
    assert group.pending_bytes == 0


async def test_stop_answers_everything():
    cluster = await Cluster().start()
    group = await cluster.elect()
    calls: list[Outcome] = []
    cluster.isolate(group.node)
    group.propose(enqueue(b"appended"), calls.append)
    await asyncio.sleep(0.01)
    group.propose(enqueue(b"waits"), calls.append)
    await cluster.nodes[group.node].drive_loop.stop()
    outcome = await group.ask(Barrier())

    assert sorted(o.kind for o in calls) == ["refused", "unknown"]
    assert outcome.kind == "refused"
    assert outcome.code in ("stopping", "no_leader")


async def test_a_barrier_is_not_ok_at_a_leader_that_was_replaced():
    """The stock class has no such thing: see test_stock_gaps."""
    cluster = await Cluster().start()
    old = await cluster.elect()
    cluster.isolate(old.node)
    barrier = asyncio.create_task(old.barrier())
    await cluster.until(lambda: cluster.leader() not in (old, None))
    new = cluster.leader()
    assert new is not None
    assert (await new.barrier()).kind == "ok"

    assert (await barrier).kind == "unknown"


async def test_after_a_barrier_everything_confirmed_before_is_in_this_machine():
    cluster = await Cluster().start()
    group = await cluster.elect()
    await group.ask(enqueue(b"x"))
    cluster.kill(group.node)
    new = await cluster.elect()
    assert (await new.barrier()).kind == "ok"

    assert len(new.machine.refs) == 1


async def test_a_new_leader_is_told_to_listeners_when_its_machine_is_up_to_date():
    cluster = await Cluster().start()
    group = await cluster.elect()
    for n in range(30):
        await group.ask(enqueue(b"%d" % n))
    told = []
    for other in followers(cluster, group):
        other.on_role.append(lambda g, role, term: told.append((role, len(g.machine.refs))))
    cluster.kill(group.node)
    await cluster.elect()

    assert [count for role, count in told if role is Role.LEADER] == [30]


async def test_listeners_hear_of_effects_on_every_member_and_a_broken_one_stops_nothing():
    cluster = await Cluster().start()
    group = await cluster.elect()
    heard: list[tuple[str, int]] = []

    def broken(*_args):
        raise RuntimeError("a listener's bug")

    for node in cluster.nodes.values():
        node.groups[1].on_effects += [
            broken,
            lambda g, stamp, effects: heard.append((g.node, stamp.index)),
        ]
    index = (await group.ask(enqueue(b"x"))).stamp.index
    await cluster.until(lambda: cluster.all_applied(index))

    assert sorted(heard) == [(name, index) for name in cluster.names]
    assert group.poisoned is None
    await group.ask(Purge(QueueId(1)))
    assert len(heard) == 3  # no effects, nothing to hear


async def test_a_bug_in_the_machine_costs_one_command_and_not_the_group():
    cluster = await Cluster().start()
    group = await cluster.elect(1)
    for node in cluster.nodes.values():
        node.groups[1].machine.raises_on = Pause
    calls: list[Outcome] = []
    group.propose(enqueue(b"before"), calls.append)
    group.propose(Pause(QueueId(1), True), calls.append)
    group.propose(enqueue(b"behind"), calls.append)
    await cluster.until(lambda: len(calls) == 3)

    assert [o.code for o in calls] == [None, "command_skipped", None]
    copies = [n.groups[1] for n in cluster.nodes.values()]
    await cluster.until(lambda: all(len(copy.machine.refs) == 2 for copy in copies))
    assert [copy.poisoned for copy in copies] == [None] * 3
    assert len({copy.machine.digest() for copy in copies}) == 1


async def test_a_bug_that_cannot_be_left_out_poisons_the_group_and_no_other():
    cluster = await Cluster(groups=2).start()
    group = await cluster.elect(1)
    other = await cluster.elect(2)
    broken(cluster)
    calls: list[Outcome] = []
    group.propose(enqueue(b"before"), calls.append)
    group.propose(Pause(QueueId(1), True), calls.append)
    group.propose(enqueue(b"behind"), calls.append)
    await cluster.until(lambda: len(calls) == 3)
    assert [o.kind for o in calls] == ["ok", "unknown", "unknown"]
    # Each of the others leads once, learns of the commit, and stops there too.
    copies = [n.groups[1] for n in cluster.nodes.values()]
    await cluster.until(lambda: all(copy.poisoned for copy in copies))

    for node in cluster.nodes.values():
        copy = node.groups[1]
        assert copy.poisoned is not None
        assert "ZeroDivisionError" in copy.poisoned
        assert len(copy.machine.refs) == 1
        assert copy.status()["poisoned"] == copy.poisoned
    assert (await group.ask(Barrier())).code == "poisoned"
    assert (await other.ask(enqueue(b"x"))).kind == "ok"
    assert len(calls) == 3


def broken(cluster: Cluster) -> None:
    """Nor can the state of before be had again."""

    def restore(_: bytes) -> None:
        raise ZeroDivisionError("another bug")

    for node in cluster.nodes.values():
        node.groups[1].machine.raises_on = Pause
        node.groups[1].machine.restore = restore


async def test_a_poisoned_group_goes_on_after_a_restart_with_a_release_that_can():
    cluster = await Cluster().start()
    group = await cluster.elect(1)
    broken(cluster)
    await group.ask(Pause(QueueId(1), True))
    for name in cluster.names:
        await cluster.until(lambda name=name: cluster.nodes[name].groups[1].poisoned)
        cluster.kill(name)
        await cluster.start_node(name)

    group = await cluster.elect(1)
    assert (await group.ask(enqueue(b"x"))).kind == "ok"


async def test_time_is_stamped_by_the_leader_and_does_not_step_back_with_its_clock():
    cluster = await Cluster().start()
    group = await cluster.elect()
    clock = cluster.nodes[group.node].clock
    first = (await group.ask(enqueue(b"x"))).stamp.now_ms
    assert abs(first - clock.wall_ms()) < 50
    clock.skew_ms = -60_000
    second = (await group.ask(enqueue(b"x"))).stamp.now_ms

    assert second >= first


async def test_a_tick_is_proposed_when_the_machine_waits_for_time():
    cluster = await Cluster().start()
    group = await cluster.elect()
    clock = cluster.nodes[group.node].clock
    for node in cluster.nodes.values():
        node.groups[1].machine.due_ms = clock.wall_ms() + 500
    await group.ask(enqueue(b"a"))  # what a machine waits for, it waits for since some entry
    await asyncio.sleep(0.4)
    assert group.machine.ticks == 0
    await asyncio.sleep(0.3)

    assert [n.groups[1].machine.ticks for n in cluster.nodes.values()] == [1, 1, 1]


async def test_bodies_are_read_from_what_was_just_applied_or_from_the_log():
    cluster = await Cluster().start()
    group = await cluster.elect()
    group.propose(enqueue(b"a", b"b", meta=["ma", "mb"]))
    stamp = (await group.ask(enqueue(b"c", b"d", meta={"k": 1}))).stamp
    ref = BodyRef(stamp.index, 0, 4)
    expected = [(b"a", "ma"), (b"b", "mb"), (b"c", {"k": 1}), (b"d", {"k": 1})]
    assert group.read_bodies(ref) == expected
    assert group.read_bodies(BodyRef(stamp.index, 1, 2)) == expected[1:3]
    cluster.kill(group.node)
    new = await cluster.elect()
    new._applying._cache.clear()

    assert await new.load_bodies(ref) == expected
    assert new.read_bodies(BodyRef(10**6, 0, 1)) == []
    assert await new.load_bodies(BodyRef(10**6, 0, 1)) == []
    assert await new.load_bodies(BodyRef(1, 0, 1)) == []


async def test_what_comes_along_with_a_read_is_never_an_entry_that_another_takes_the_place_of():
    cluster = await Cluster().start()
    group = await cluster.elect()
    first = (await group.ask(enqueue(b"first"))).stamp.index
    cluster.isolate(group.node)
    for body in (b"lost", b"lost too"):
        group.propose(enqueue(body))
        await asyncio.sleep(0.01)
    assert group.last_index == first + 2
    release = asyncio.Event()

    async def pause(operation: str) -> None:
        if operation == "read":
            await release.wait()

    cluster.disks[group.node]._pause = pause
    group.fetch(first, first, lambda _: None)
    await cluster.until(lambda: not group.ready)
    other = await cluster.elect()
    stamp = (await other.ask(enqueue(b"kept"))).stamp
    assert stamp.index == first + 2, "its own first entry is before"
    cluster.heal()
    await cluster.until(lambda: group.applied_index >= stamp.index)
    other.transfer(NodeId(group.node))
    await cluster.until(lambda: group.ready)
    release.set()
    await asyncio.sleep(0.01)

    ref = BodyRef(stamp.index, 0, 1)
    assert await group.load_bodies(ref) == await other.load_bodies(ref) == [(b"kept", None)]


async def test_a_bug_of_who_waits_for_a_read_is_its_own():
    cluster = await Cluster().start()
    group = await cluster.elect()
    index = (await group.ask(enqueue(b"a"))).stamp.index
    arrived = []

    def bug(_: object) -> None:
        raise ZeroDivisionError

    group.fetch(index, index, bug)
    group.fetch(index, index, arrived.append)
    await asyncio.sleep(0.01)
    assert len(arrived) == 1
    assert (await group.ask(enqueue(b"b"))).kind == "ok"
    await cluster.stop()


async def test_what_was_just_published_is_not_decoded_again():
    cluster_ = await Cluster().start()
    group = await cluster_.elect()
    stamp = (await group.ask(enqueue(b"a"))).stamp
    kept, applying.decode_entry = applying.decode_entry, None
    try:
        assert group.read_bodies(BodyRef(stamp.index, 0, 1)) == [(b"a", None)]
    finally:
        applying.decode_entry = kept


async def test_snapshots_are_taken_and_a_restart_starts_from_one():
    options = GroupOptions(1000, 2000, 200, snapshot_entries=40)
    cluster = await Cluster(options=options).start()
    group = await cluster.elect()
    for n in range(150):
        await group.ask(enqueue(b"%d" % n))
    await group.ask(Purge(QueueId(1)))
    for n in range(60):
        await group.ask(enqueue(b"%d" % n))
    await cluster.until(
        lambda: all(n.groups[1].journal.base_index > 150 for n in cluster.nodes.values())
    )
    await cluster.until(lambda: cluster.all_applied(group.last_index))
    digest = group.machine.digest()
    for name in cluster.names:
        cluster.kill(name)
    for name in cluster.names:
        await cluster.start_node(name)
    group = await cluster.elect()

    assert group.machine.digest() == digest
    assert len(group.machine.applied) < 60
    assert await group.load_bodies(BodyRef(*group.machine.refs[0])) == [(b"0", None)]


async def test_a_snapshot_is_due_after_many_commands_also_in_few_entries():
    """A start applies commands, and it is they that take the time."""
    options = GroupOptions(1000, 2000, 200, snapshot_commands=300)
    cluster = await Cluster(options=options).start()
    group = await cluster.elect()
    for _ in range(2):
        await asyncio.gather(*(group.ask(enqueue(b"x")) for _ in range(100)))
    assert all(n.groups[1].journal.base_index == 1 for n in cluster.nodes.values())
    await asyncio.gather(*(group.ask(enqueue(b"x")) for _ in range(100)))
    await cluster.until(
        lambda: all(n.groups[1].journal.base_index > 1 for n in cluster.nodes.values())
    )
    assert group.last_index < 40


async def test_roles_and_digests_are_noted_in_the_log():
    cluster = await Cluster(1).start()
    notes: list[tuple[int, int, bytes]] = []
    node = cluster.nodes["n1"]
    node.log.note = lambda kind, group, index, term, payload: notes.append((kind, index, payload))
    for each in node.groups.values():
        each._notes = each._applying._notes = node.log
    group = await cluster.elect()
    while group.applied_index < 2050:
        group.propose(enqueue(b"x"))
        await asyncio.sleep(0.001)

    roles = [cbor2.loads(payload) for kind, _, payload in notes if kind == KIND_ROLE]
    assert roles[-1][0] == "leader"
    digests = [(index, payload) for kind, index, payload in notes if kind == KIND_DIGEST]
    assert [index for index, _ in digests] == [1000, 2000]
    assert all(len(payload) == 16 for _, payload in digests)


async def test_transfer_hands_over_and_refuses_meanwhile():
    cluster = await Cluster().start()
    group = await cluster.elect()
    await group.ask(enqueue(b"x"))
    to = next(NodeId(n) for n in cluster.names if n != group.node)
    group.transfer(to)
    assert (await group.ask(Barrier())).kind == "refused"
    await cluster.until(lambda: cluster.leader() is not None and cluster.leader().node == to, 0.2)

    new = cluster.leader()
    assert new.term == group.term
    assert (await new.ask(enqueue(b"y"))).kind == "ok"


async def test_what_was_accepted_before_a_transfer_does_not_cost_the_heir_its_election():
    """Seen as a second without a leader in a rolling restart under load."""
    cluster = await Cluster().start()
    group = await cluster.elect()
    await group.ask(enqueue(b"x"))
    await asyncio.sleep(0.1)  # until all members have it
    to = next(NodeId(n) for n in cluster.names if n != group.node)
    accepted = asyncio.create_task(group.ask(enqueue(b"accepted")))
    await asyncio.sleep(0)
    group.transfer(to)
    await cluster.until(lambda: cluster.leader() is not None and cluster.leader().node == to, 0.2)

    assert cluster.leader().term == group.term
    assert (await accepted).kind == "ok"


async def test_transfer_to_whoever_is_closest():
    cluster = await Cluster(5).start()
    group = await cluster.elect()
    group.transfer(None)
    await cluster.until(lambda: cluster.leader() not in (None, group), 0.2)


async def test_status_tells_how_far_each_member_is():
    cluster = await Cluster().start()
    group = await cluster.elect()
    await group.ask(enqueue(b"x"))
    await asyncio.sleep(0.1)
    status = group.status()

    assert status["role"] == "leader"
    assert status["leader"] == group.node
    assert status["commit"] == status["applied"] == status["last"] == group.last_index
    assert set(status["lag"].values()) == {0}
    assert all(group.caught_up(NodeId(n)) for n in cluster.names if n != group.node)
    assert group.machine.overview() == {"stored": 1}


async def test_followers_learn_of_a_commit_soon_when_nothing_follows():
    cluster = await Cluster().start()
    group = await cluster.elect()
    index = (await group.ask(enqueue(b"x"))).stamp.index
    await cluster.until(lambda: cluster.all_applied(index), 0.03)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
async def test_any_number_of_members_serves(count: int):
    cluster = await Cluster(count).start()
    group = await cluster.elect()
    outcomes = await asyncio.gather(*(group.ask(enqueue(b"%d" % n)) for n in range(50)))
    assert {o.kind for o in outcomes} == {"ok"}
    await cluster.stop()


async def test_nothing_confirmed_is_lost_when_all_nodes_lose_power():
    cluster = await Cluster().start()
    confirmed: list[bytes] = []
    for n in range(6):
        group = await cluster.elect()
        outcomes: list[Outcome] = []
        for m in range(40):
            body = b"%d/%d" % (n, m)
            group.propose(
                enqueue(body),
                lambda o, body=body: confirmed.append(body) if o.kind == "ok" else None,
            )
            await asyncio.sleep(0.0003)
        for name in cluster.names:
            cluster.kill(name)
        assert not outcomes
        for name in cluster.names:
            await cluster.start_node(name)
    group = await cluster.elect()
    refs = [BodyRef(*ref) for ref in group.machine.refs]
    stored = {body for ref in refs for body, _ in await group.load_bodies(ref)}

    assert len(confirmed) > 100
    assert set(confirmed) <= stored


def test_the_group_under_test_satisfies_the_machine_protocol():
    from cluster.machine.interface import Machine

    machine: Machine = ListMachine()
    assert machine.digest() == ListMachine().digest()


async def test_a_transaction_that_only_settles_passes_when_the_disk_is_full():
    cluster = await Cluster().start()
    group = await cluster.elect()
    group.room_bytes = lambda: 0
    node, queue = NodeId("n1"), QueueId(1)
    settle = Settle(queue, ConsumerKey(7), [(1, 1)])

    assert (await group.ask(Transaction(node, 1, 1, 1, [settle]))).code != "disk_full"
    published = Transaction(node, 1, 2, 2, [settle, enqueue(b"x")])
    assert (await group.ask(published)).code == "disk_full"
