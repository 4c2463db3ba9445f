"""Each row of the table in docs/raft.md: the stock class misbehaves, ours does not."""

from __future__ import annotations

import contextlib
import os
import pickle  # noqa: TID251 -- the stock class is fed some
from types import SimpleNamespace

import pytest
from pysyncobj.syncobj import SyncObj

from cluster.machine import QueueMachine
from cluster.machine.commands import CreateQueue, Enqueue, QueueConfig
from cluster.raft.member import Role
from cluster.raft.messages import APPEND, APPENDED, REJECTED, VOTE, VOTED
from cluster.raft.progress import WINDOW_BYTES_MAX
from cluster.raft.pysyncobj_core import REGULAR, PickleRefused
from cluster.types import NodeId, QueueId, Stamp
from tests.raft.stock_world import StockWorld
from tests.raft.world import GROUP, World


class Boom:
    """A pickle that does something when it is loaded."""

    loaded = 0

    @staticmethod
    def bang() -> str:
        Boom.loaded += 1
        return "bang"

    def __reduce__(self):
        return (Boom.bang, ())


def appended(term: int, prev: int, prev_term: int, commit: int, entries: list) -> list:
    return [GROUP, APPEND, term, prev, prev_term, commit, entries]


def follower(world: World, name: str = "n3"):
    """A member that is fed by hand: nothing else runs."""
    node = world[name]
    node.member.now = world.now
    return node


# --- the journal: written, never synced


def test_stock_a_vote_leaves_before_it_is_on_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    world = StockWorld(3, start=False, journalFile=str(tmp_path / "journal"))
    world.start("n1")

    request = {"type": "request_vote", "term": 5, "last_log_index": 9, "last_log_term": 4}
    world.receive("n1", "n2", request)

    assert [m["type"] for m in world.sent_by("n1")] == ["response_vote"]
    assert synced == []


def test_ours_a_vote_leaves_after_it_is_on_disk():
    world = World(3)
    node = follower(world)
    node.sync_ms = 5

    node.inbox.append(("n2", [GROUP, VOTE, 5, 9, 4]))
    world.step()
    assert node.journal.voted_for == "n2"
    assert not any(a == "n3" for a, _, _ in world.wires.sent)

    world.run(6)
    assert ("n3", "n2", [GROUP, VOTED, 5, True]) in world.wires.sent


def test_stock_a_leader_counts_an_entry_that_is_not_on_its_disk():
    world = StockWorld(1)
    leader = world.elect()

    leader._applyCommand(b"x", None, 0)
    world.run(2)  # nothing was ever synced: its journal cannot

    assert leader.applied == [b"x"]


def test_ours_a_leader_counts_itself_only_up_to_what_it_synced():
    world = World(1)
    leader = world.elect()
    leader.sync_ms = 50

    index = world.propose(b"x")
    world.run(40)
    assert leader.member.commit_index < index

    world.run(20)
    assert leader.member.commit_index == index


def test_stock_a_flipped_bit_on_disk_is_applied_as_if_it_were_true(tmp_path):
    """Ours: tests/log proves that the node stops and says where."""
    path = tmp_path / "journal"
    world = StockWorld(1, journalFile=str(path))
    leader = world.elect()
    leader._applyCommand(b"payout=100", None, 0)
    world.run(5)
    leader._SyncObj__raftLog._destroy()
    path.write_bytes(path.read_bytes().replace(b"payout=100", b"payout=900"))

    again = StockWorld(1, journalFile=str(path))
    again.elect()
    assert again["n1"].applied == [b"payout=900"]


# --- pickle


def test_stock_a_message_from_the_network_is_unpickled():
    Boom.loaded = 0
    world = StockWorld(3)
    message = {
        "type": "append_entries",
        "term": 3,
        "commit_index": 1,
        "prevLogIdx": 1,
        "prevLogTerm": 0,
        "transmission": "finish",
        "data": pickle.dumps(Boom()),
    }
    world["n1"]._SyncObj__recvTransmission = b""

    with pytest.raises(TypeError):  # it then fails to use the result
        world.receive("n1", "n2", message)

    assert Boom.loaded == 1


def test_ours_no_pickle_is_reached_from_network_or_disk(monkeypatch):
    """Everything that can load one raises; elections, appends, restarts and membership entries go
    on as ever.
    """

    def refuse(*_args, **_kwargs):
        raise AssertionError("pickle was reached")

    for name in ("loads", "load", "dumps", "dump", "_loads", "_load", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    world = World(3)
    leader = world.elect()
    for body in (b"x", pickle.PROTO + b"\x04N.", b""):
        world.commit(body)
    leader.journal.add(b"\x02" + b"\x80\x04N.", leader.journal.last_index + 1, leader.member.term)
    world.commit(b"after a membership entry that is none")
    world.kill(leader.name)
    world.elect()
    world.restart(leader.name)
    world.elect()


def test_ours_refuses_even_to_name_pickle():
    import pysyncobj.syncobj

    with pytest.raises(PickleRefused):
        pysyncobj.syncobj.pickle.loads(b"N.")
    syncobj = World(1)["n1"].member.core._syncobj
    with pytest.raises(PickleRefused):
        syncobj.setCodeVersion(0)
    with pytest.raises(PickleRefused):
        syncobj._SyncObj__parseChangeClusterRequest(b"\x02N.")


def test_ours_no_message_reaches_pysyncobj_and_it_takes_the_step_to_leadership(monkeypatch):
    called: set[str] = set()

    def watch(name: str, real):
        def watched(*args, **kwargs):
            called.add(name.removeprefix("_SyncObj__"))
            return real(*args, **kwargs)

        return watched

    world = World(3)
    for name, real in vars(SyncObj).items():
        if callable(real) and name != "__init__":
            monkeypatch.setattr(SyncObj, name, watch(name, real))
    leader = world.elect()
    world.commit(b"x")
    world.kill(leader.name)
    world.elect()

    # The last two as parts of the third; there is nobody to send to.
    assert called == {
        "setCurrentTerm",
        "setState",
        "onBecomeLeader",
        "getCurrentLogIndex",
        "sendAppendEntries",
    }


# --- truncation


def test_stock_a_repeated_append_drops_entries_that_were_acknowledged():
    world = StockWorld(3)
    entries = [(b"\x01", index, 1) for index in range(2, 12)]
    message = {
        "type": "append_entries",
        "term": 1,
        "commit_index": 11,
        "prevLogIdx": 1,
        "prevLogTerm": 0,
    }
    world.receive("n3", "n1", {**message, "entries": entries})
    world["n3"].doTick(0)
    assert world.log("n3")[-1][1] == 11

    world.receive("n3", "n1", {**message, "commit_index": 1, "entries": entries[:3]})

    assert world.log("n3")[-1][1] == 4  # it had acknowledged 11


def test_ours_a_repeated_append_drops_nothing():
    world = World(3)
    node = follower(world)
    entries = [[REGULAR + b"%d" % index, 1] for index in range(2, 12)]

    node.member.receive(NodeId("n1"), appended(1, 1, 0, 11, entries))
    node.member.receive(NodeId("n1"), appended(1, 1, 0, 1, entries[:3]))
    node.member.receive(NodeId("n1"), appended(1, 4, 1, 1, entries[3:5]))

    assert node.journal.last_index == 11
    assert node.journal.truncations == []


def test_ours_only_a_real_conflict_truncates_and_only_from_there():
    world = World(3)
    node = follower(world)
    node.member.receive(NodeId("n1"), appended(1, 1, 0, 1, [[REGULAR + b"a", 1]] * 5))

    new = [[REGULAR + b"a", 1], [REGULAR + b"b", 2]]
    node.member.receive(NodeId("n2"), appended(2, 1, 0, 1, new))

    assert node.journal.truncations == [3]
    assert [term for _, _, term in node.journal.tail] == [1, 2]


def test_ours_commit_never_passes_the_last_entry_that_matched():
    """A stale tail behind the match must not be committed (Raft, figure 2)."""
    world = World(3)
    node = follower(world)
    node.member.receive(NodeId("n1"), appended(1, 1, 0, 1, [[REGULAR + b"stale", 1]] * 5))

    node.member.receive(NodeId("n2"), appended(2, 2, 1, 6, []))

    assert node.journal.last_index == 6
    assert node.member.commit_index == 2


# --- replies and votes


def test_stock_a_late_reply_of_an_earlier_term_counts():
    world = StockWorld(3)
    leader = world.elect()
    name = leader.selfNode.id
    others = [n for n in world.names if n != name]
    for other in others:
        world.isolate(other)
    index = world.log(name)[-1][1] + 1
    leader._applyCommand(b"x", None, 0)
    world.step()
    assert leader.raftCommitIndex < index

    late = {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True}
    world.receive(name, others[0], late)  # from whichever term
    world.step()

    assert leader.raftCommitIndex == index


def test_ours_a_reply_of_another_term_is_dropped():
    world = World(3)
    leader = world.elect()
    world.isolate(leader.name)
    index = world.propose(b"x", leader)
    other = next(n for n in world.names if n != leader.name)

    leader.member.receive(NodeId(other), [GROUP, APPENDED, leader.member.term - 1, index])
    leader.member.receive(NodeId(other), [GROUP, REJECTED, leader.member.term - 1, 5, 1, 0])
    world.run(5)

    assert leader.member.commit_index < index


def test_stock_one_voter_counts_twice():
    world = StockWorld(5)
    for name in world.names[1:]:
        world.isolate(name)
    member = world["n1"]
    world.run(2500)
    member._SyncObj__connectedNodes.add(world.node("n2"))
    member._SyncObj__raftElectionDeadline = 0
    member.doTick(0)
    term = member.raftCurrentTerm

    for _ in range(2):
        world.receive("n1", "n2", {"type": "response_vote", "term": term})

    assert member._isLeader()  # with two of five


def test_ours_one_voter_has_one_vote():
    world = World(5)
    node = follower(world, "n1")
    node.member.elections.campaign(world.now)
    term = node.member.term

    for _ in range(5):
        node.member.receive(NodeId("n2"), [GROUP, VOTED, term, True])
    assert node.member.role is Role.CANDIDATE

    node.member.receive(NodeId("n3"), [GROUP, VOTED, term, True])
    assert node.member.role is Role.LEADER


# --- stale leaders, and members that come back


def test_stock_a_member_that_does_not_hear_the_leader_ends_its_term():
    world = StockWorld(3)
    leader = world.elect()
    other = next(n for n in world.names if n != leader.selfNode.id)

    world.cut(leader.selfNode.id, other)  # the third one hears both
    world.run(6000)

    assert world.leader() is not leader


@pytest.mark.parametrize("partial", [True, False])
def test_ours_a_member_that_was_cut_off_disturbs_nobody(partial: bool):
    world = World(3)
    leader = world.elect()
    term = leader.member.term
    other = next(n for n in world.names if n != leader.name)

    if partial:
        world.cut(leader.name, other)
    else:
        world.isolate(other)
    world.run(10_000)
    assert world[other].member.term == term
    assert leader.member.leads
    world.heal_all()
    world.run(3000)

    assert leader.member.leads
    assert leader.member.term == term
    assert world[other].member.leader.id == leader.name


def test_stock_a_leader_that_is_cut_off_goes_on_for_half_a_minute():
    world = StockWorld(3)
    leader = world.elect()

    world.isolate(leader.selfNode.id)
    world.run(20_000)

    assert leader._isLeader()


def test_ours_a_leader_that_is_cut_off_steps_down_within_an_election_timeout():
    world = World(3)
    leader = world.elect()

    world.isolate(leader.name)
    world.run(world.options.election_max_ms + 250)

    assert not leader.member.leads
    assert leader.member.leader is None


# --- large entries


def test_stock_an_entry_of_about_the_batch_size_does_not_arrive():
    world = StockWorld(3)
    leader = world.elect()
    body = os.urandom(2**16 * 2 - 10)  # its pickle is a little longer than two batches

    arrived: list[list[bytes]] = []
    with contextlib.suppress(ValueError, TypeError, EOFError, pickle.UnpicklingError):
        leader._applyCommand(body, None, 0)
        world.run(2000)
        arrived = [m.applied for m in world.nodes.values()]

    assert arrived != [[body]] * 3


@pytest.mark.parametrize("size", [2**16 - 10, 2**16, 2**16 * 2 - 10, 2**20, 3 * 2**20])
def test_ours_entries_of_any_size_arrive(size: int):
    world = World(3)
    world.elect()
    body = os.urandom(size)

    index = world.commit(body)
    world.until(lambda: all(n.member.applied_index >= index for n in world.nodes.values()))

    assert all(n.host.applied[-1][0] == REGULAR + body for n in world.nodes.values())


# --- snapshots


def test_stock_a_snapshot_is_a_pickle_of_everything():
    world = StockWorld(1)
    leader = world.elect()
    pickled: list[tuple] = []
    dump = SimpleNamespace(dump=lambda data, _file: pickled.append(data))
    world.modules["serializer"].pickle = dump
    leader.messages = [os.urandom(1000) for _ in range(1000)]  # state lives in its attributes
    leader._applyCommand(b"x", None, 0)
    leader.forceLogCompaction()
    world.run(5)

    ((state, *_),) = pickled
    assert state["messages"] == leader.messages


def test_ours_a_snapshot_holds_positions_and_no_body():
    """A batch costs what one message costs; tests/raft/test_install.py shows how it travels."""
    machine = QueueMachine()
    queue = QueueId(1)
    machine.apply(Stamp(2, 1, 0), CreateQueue(queue, "/", "q", QueueConfig()))
    for index in range(3, 13):
        bodies = [os.urandom(1000) for _ in range(100)]
        machine.apply(Stamp(index, 1, 0), Enqueue(queue, None, 0, bodies))

    data = machine.snapshot()

    assert machine.queue(queue).ready_count == 1000
    assert len(data) < 3_000


# --- slow followers


def test_stock_a_follower_that_does_not_answer_is_sent_everything():
    world = StockWorld(3)
    leader = world.elect()
    slow = next(n for n in world.names if n != leader.selfNode.id)
    for _ in range(200):
        leader._applyCommand(bytes(60_000), None, 0)
        leader.doTick(0)

    unanswered = sum(
        len(e[0]) for _, b, m in world.wires.sent if b == slow for e in m.get("entries", [])
    )

    assert unanswered > WINDOW_BYTES_MAX


def test_ours_bytes_on_their_way_to_a_follower_are_bounded():
    world = World(3)
    leader = world.elect()
    slow = next(n for n in world.names if n != leader.name)
    world.run(5)
    world.wires.sent.clear()
    for _ in range(200):
        world.propose(bytes(60_000))
        leader.member.replication.flush(world.now)

    unanswered = sum(
        len(command)
        for _, b, m in world.wires.sent
        if b == slow and m[1] == APPEND
        for command, _term in m[6] or ()
    )

    assert WINDOW_BYTES_MAX // 2 < unanswered < WINDOW_BYTES_MAX + 2 * 2**20
    last = leader.journal.last_index
    world.until(lambda: all(n.member.applied_index == last for n in world.nodes.values()))


def test_ours_a_full_link_drops_and_the_follower_catches_up_from_the_log():
    world = World(3)
    leader = world.elect()
    slow = next(n for n in world.names if n != leader.name)
    leader.links.full.add(slow)
    for n in range(20):
        world.commit(b"%d" % n)
    assert world[slow].journal.last_index < leader.journal.last_index

    leader.links.full.clear()
    world.until(lambda: world[slow].member.applied_index == leader.journal.last_index, 500)


# --- a command that raises


def test_stock_a_command_that_raises_is_tried_for_ever():
    world = StockWorld(3)
    leader = world.elect()
    attempts = []

    def raises(_command):
        attempts.append(1)
        raise ValueError("a bug")

    leader._SyncObj__doApplyCommand = raises
    leader._applyCommand(b"x", None, 0)
    for _ in range(500):
        with contextlib.suppress(ValueError):
            world.step()

    assert len(attempts) > 100


def test_ours_a_command_that_raises_is_tried_once_and_the_member_says_so():
    world = World(3)
    leader = world.elect()
    index = leader.journal.last_index + 1
    for node in world.nodes.values():
        node.host.raises_at = index
    attempts = {name: node.host.attempts for name, node in world.nodes.items()}

    world.propose(b"x")
    world.run(5000)

    for name, node in world.nodes.items():
        assert node.host.attempts == attempts[name] + 1
        assert node.host.poisons == [index]
        assert node.member.poisoned is not None
        assert f"entry {index}" in node.member.poisoned
        assert node.member.applied_index == index - 1
        assert not node.member.leads


# --- reads


def test_stock_a_stale_leader_has_no_way_to_notice_before_it_answers_a_read():
    world = StockWorld(3)
    old = world.elect()
    world.isolate(old.selfNode.id)
    world.run(4000)
    new = world.leader()
    assert new is not old
    new._applyCommand(b"x", None, 0)
    world.run(100)

    assert new.applied == [b"x"]
    assert old._isLeader()  # and it would answer from this:
    assert old.applied == []
    assert not any("barrier" in name.lower() for name in dir(old))
