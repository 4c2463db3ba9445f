"""Members of one group alone, driven at random: no broker, no files, no event loop.

`python -m tests.raft.fuzz --seconds 60`: as many seeds as it can; 1 when a promise was broken.
`--seed N` plays one again and prints each step. A step delivers a message, ends an fsync, moves
time, proposes, cuts a link, takes a member's power, changes the membership, takes a snapshot; and
in some seeds a majority of disks is lost for good, and the survivors are ordered to go on. In
others, half of which have five voters, heartbeats that bring nothing and their answers are joined
ones on those links that can, and followers take them between two steps, as nodes do. How likely
each is, the seed decides too, so that rare things meet in some of them. After every step:

- election safety: one leader a term; and one vote a member and term, restarts included;
- log matching: the same index and term means the same entry on the same history;
- leader completeness: who leads has all that was committed in earlier terms;
- state machine safety: every member applies the same, from its log or from a snapshot;
- what a leader commits is on the disks of a majority of the voters;
- a member goes by the newest members that its own log names;
- a voter is added or removed only when the change before is committed.

After a lost majority what a survivor has, and knows to be committed, is still committed. A copy
that was not told yet that it is one is given no order, as the command gives it none: what it alone
has is lost (docs/members.md).

When the faults end, a leader is found and all members become equal. So it is after a lost majority,
though some survivor was never told that it is a member, unless that one has more than those who
were: then the command's tables differ, and a person must decide whom to name as lost, too.
"""

from __future__ import annotations

import argparse
import itertools
import math
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Any

from cluster.log import MEMBERSHIP, SnapshotRefused
from cluster.raft.configuration import Configuration, Configurations, decode, split
from cluster.raft.host import Role
from cluster.raft.member import Member
from cluster.raft.messages import (
    BEATS,
    BEATS_ANSWERED,
    BEATS_SINCE,
    NODE_LEVEL,
    VOTE,
    VOTED,
    Message,
    singles,
)
from cluster.raft.options import RaftOptions
from cluster.recovery.lost_majority import go_on, lacks_majority
from cluster.types import NodeId
from tests.raft.world import GROUP, MemoryJournal
from tests.testkit.clocks import FakeClock

OPTIONS = RaftOptions(election_min_ms=1000, election_max_ms=2000, heartbeat_ms=200)
STEPS = 350
#: Rounds of all members after the faults ended, 50 ms apart: some elections and a snapshot.
CALM_ROUNDS = 400
#: A quick seed judges convergence too; it costs as much as all steps.
CALM_SHARE = 0.25
#: In so many seeds a majority may be lost for good.
RECOVERY_SHARE = 0.3
FIRST_VOTERS = 3
#: In so many seeds heartbeats are joined, on so many of the links as often as they come up.
JOINED_SHARE = 0.33
JOINED_LINKS = 0.8
#: Of the answers to them, and in each later step of those that wait.
ANSWERED_AT_ONCE = 0.5

Entry = tuple[bytes, int]


class Broken(AssertionError):
    """A promise was broken."""


class Known:
    """What the members of one run did, all together: what no member may contradict."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], str] = {}
        #: (index, term) -> the entry and the term of the one before it.
        self.entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_in: dict[int, int] = {}  # in this term or before
        self.last_committed = 1
        self.states: dict[int, int] = {1: 0}  # after applying up to there
        self.counts: Counter[str] = Counter()


class Journal(MemoryJournal):
    """Shows what it is given to the judge."""

    known: Known

    def add(self, data: bytes, index: int, term: int) -> None:
        before = self.last_term
        super().add(data, index, term)
        entry = bytes(data), before
        if self.known.entries.setdefault((index, term), entry) != entry:
            raise Broken(f"log matching: entry {index} of term {term} is two things")

    def truncate_from(self, index: int) -> None:
        self.known.counts["truncations"] += 1
        super().truncate_from(index)

    def crash(self) -> Journal:
        after = super().crash()
        shown = Journal()
        shown.__dict__.update(after.__dict__)
        shown.known = self.known
        return shown

    @property
    def begins_anew(self) -> bool:
        return self.votes_suspended and self.last_index == 1

    @property
    def safe_last(self) -> tuple[int, int]:
        """Index and term of what is on the disk."""
        base, base_term, tail = self._safe[0], self._safe[1], self._safe[2]
        return (tail[-1][1], tail[-1][2]) if tail else (base, base_term)

    def safe_term_at(self, index: int) -> int | None:
        """Of what is on the disk. -1: behind a snapshot there, so committed."""
        base, base_term, tail = self._safe[0], self._safe[1], self._safe[2]
        if index < base:
            return -1
        if index == base:
            return base_term
        at = index - base - 1
        return tail[at][2] if at < len(tail) else None


class Links:
    """The links of one member."""

    incarnation = 1

    def __init__(self, fuzz: Fuzz, name: str) -> None:
        self._fuzz = fuzz
        self._name = name

    def peers(self) -> list[NodeId]:
        return []

    async def start(self, on_message: Any, on_up: Any, on_down: Any) -> None: ...
    async def stop(self) -> None: ...

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        return self._fuzz.send(self._name, peer, message)

    def flush(self) -> None: ...

    def connected(self, peer: NodeId) -> bool:
        return self._fuzz.connected(self._name, peer)

    def buffered(self, peer: NodeId) -> int:
        return 0

    def version(self, peer: NodeId) -> int:
        return self._fuzz.link_version(self._name, peer)


class Host:
    """Applies entries to a state that is the hash of all of them."""

    def __init__(
        self, known: Known, journal: Journal, stale: Collection[str], links: Links
    ) -> None:
        self._known = known
        self._links = links
        self.beats: list[tuple[NodeId, list[Any]]] = []
        self._stale = stale
        snapshot = journal.snapshot
        self.index = 1 if snapshot is None else snapshot.index
        self.state = 0 if snapshot is None else int.from_bytes(split(snapshot.data)[1])
        self.installing: Any = None

    def beyond(self, data: bytes) -> None:
        """All members are of one release."""

    def apply_entry(self, data: bytes, index: int, term: int) -> None:
        if index != self.index + 1:
            raise Broken(f"state machine safety: entry {index} applied after {self.index}")
        self.index, self.state = index, hash((self.state, data, term)) & (1 << 63) - 1
        self._check()

    def _check(self) -> None:
        if self._known.states.setdefault(self.index, self.state) != self.state:
            raise Broken(f"state machine safety: another state after entry {self.index}")

    def install(self, incoming: Any) -> None:
        self.installing = incoming

    def restore(self, data: bytes, index: int) -> None:
        self.index, self.state = index, int.from_bytes(data)
        self._known.counts["snapshots installed"] += 1
        self._check()

    def let_in(self, node: NodeId) -> bool:
        """A lost node that is back on a new disk says so when it is asked, as in `Readmission`."""
        return node not in self._stale

    def beat(self, peer: NodeId, beat: list[Any]) -> bool:
        """As `DriveLoop`: it leaves behind all else of the step."""
        if self._links.version(peer) < BEATS_SINCE:
            return False
        self.beats.append((peer, beat))
        return True

    def role_changed(self, role: Role, term: int) -> None:
        """Seen after each step."""

    def poison(self, index: int, error: Exception) -> None:
        raise error


class Node:
    """One member with its disk. While an fsync runs it only hears answers, as in `DriveLoop`."""

    def __init__(self, fuzz: Fuzz, name: str, *, new: bool) -> None:
        self.fuzz, self.name = fuzz, name
        self.journal = Journal()
        self.journal.known = fuzz.known
        if new:
            self.journal.set_votes_suspended(
                True
            )  # a copy that comes later may have been there before
            self.journal.keep()
        self.up = True
        self.commit = 0
        self.had: Journal | None = None  # the disk that it lost, until it starts on a new one
        self.start()

    def start(self) -> None:
        fuzz = self.fuzz
        self.syncing = False
        self.after_sync: list[tuple[NodeId, Any]] = []
        self.answers: list[tuple[NodeId, list[list[Any]]]] = []  # that wait
        self.up = True
        self.commit = 0
        self.had = None
        # What one that was given up had seen committed holds for nobody else.
        known = fuzz.past if self.name in fuzz.stale else fuzz.known
        self.links = Links(fuzz, self.name)
        self.host = Host(known, self.journal, fuzz.stale, self.links)
        self.starts = getattr(self, "starts", 0) + 1
        self.member = Member(
            GROUP,
            NodeId(self.name),
            [NodeId(name) for name in fuzz.names[: fuzz.founders]],
            host=self.host,  # type: ignore[arg-type]
            journal=self.journal,  # type: ignore[arg-type]
            links=self.links,  # type: ignore[arg-type]
            clock=fuzz.clock,
            random=Random(f"{fuzz.seed}{self.name}{self.starts}"),
            options=OPTIONS,
        )

    @property
    def idle(self) -> bool:
        return self.up and not self.syncing

    def take(self, sender: str, message: Message) -> bool:
        """As `DriveLoop.receive` and `Group.receive`: a leader takes answers at once, also while it
        syncs, and a follower heartbeats that bring nothing. False: it waits for the disk.
        """
        joined = message[0] == NODE_LEVEL
        if joined:
            (message,) = singles(message[1], message[2])  # there is one group
        fuzz, member, peer = self.fuzz, self.member, NodeId(sender)
        able = member.leads and not member.votes_suspended
        if self.up and able and member.is_plain_answer(message):
            self._say(f"hears {sender} {message[1:]}")
            fuzz.known.counts["heard"] += self.syncing
            fuzz.known.counts["joined answers"] += joined
            member.take_ack(peer, message, fuzz.now)
        elif not self.idle:
            return False
        elif fuzz.joins and not able and member.is_plain_heartbeat(peer, message):
            self._say(f"hears {sender} {message[1:]}")
            answers: list[list[Any]] | None = [] if joined else None
            member.acknowledge_heartbeat(peer, fuzz.now, answers)
            if answers:
                self.answer_joined(peer, answers)
        else:
            self._say(f"< {sender} {message[1:]}")
            self.step(sender, message)
        return True

    def _say(self, what: str) -> None:
        self.fuzz._say(f"{self.name} {what}")

    def answer_joined(self, peer: NodeId, answers: list[list[Any]]) -> None:
        """At once, or in a later step, if that is still true."""
        if self.fuzz.answering.random() < ANSWERED_AT_ONCE:
            self.links.send(peer, [NODE_LEVEL, BEATS_ANSWERED, answers])
        else:
            self.answers.append((peer, answers))

    def _answer(self) -> None:
        waited, self.answers = self.answers, []
        for peer, answers in waited:
            true = all(self.member.has_still(*answer[1:]) for answer in answers)
            self.fuzz.known.counts["late answers"] += true
            self.fuzz.known.counts["answers dropped"] += not true
            if true:
                self.links.send(peer, [NODE_LEVEL, BEATS_ANSWERED, answers])

    def step(self, sender: str | None = None, message: Any = None) -> None:
        """A round as `DriveLoop` has it: receive, tick, flush, write; then it syncs."""
        now = self.fuzz.now
        member = self.member
        member.now = now
        if sender is not None:
            member.receive(NodeId(sender), message)
            if self.host.installing is not None:
                self._install()
        member.tick(now)
        if member.leads:
            member.apply()
        if member.leads:
            member.replication.flush(now)
        if self.answers and self.fuzz.answering.random() < ANSWERED_AT_ONCE:
            self._answer()
        beats, self.host.beats = self.host.beats, []
        for peer, beat in beats:
            self.links.send(peer, [NODE_LEVEL, BEATS, [beat]])
        self.after_sync += member.take_after_sync()
        self.syncing = self.journal.dirty
        if not self.syncing:
            self._after()

    def _install(self) -> None:
        self.host.installing = None
        try:
            self.journal.finish_install().send(None)
        except StopIteration:
            self.member.installed(done=True)
        except SnapshotRefused:
            self.member.installed(done=False)

    def synced(self) -> None:
        self.journal.keep()
        self.syncing = False
        self.member.now = self.fuzz.now
        self._after()

    def _after(self) -> None:
        """As `Group.after`."""
        self._release()
        member = self.member
        if not member.leads:
            member.apply()
        elif not member.votes_suspended:
            member.advance(self.fuzz.now)

    def _release(self) -> None:
        due, self.after_sync = self.after_sync, []
        for peer, message in due:
            self.links.send(peer, message)

    def snapshot(self) -> None:
        """Of what is applied; the positions are the state."""
        index = self.host.index
        if self.syncing or index <= self.journal.base_index:
            return
        data = self.member.configurations.joined(index, self.host.state.to_bytes(8))
        term = self.journal.term_at(index)
        assert term is not None
        self.fuzz.known.counts["snapshots"] += 1
        dirty = self.journal.dirty
        try:
            self.journal.save_snapshot(index, term, data, [(index, index)]).send(None)
        except StopIteration:
            assert not dirty or self.journal.synced_index == self.journal.last_index


class Fuzz:
    """One seed."""

    def __init__(
        self, seed: int, show: Callable[[str], None] | None = None, calm_share: float = CALM_SHARE
    ) -> None:
        self.seed = seed
        self._calm_share = calm_share
        self.dice = dice = Random(f"raft/{seed}")
        self._show = show
        self.known = Known()
        self.clock = FakeClock()
        self.changes = dice.random() < 0.5  # of the members
        self.wipes = dice.random() < 0.25
        other = _about_recovery(seed)
        self.loses_majority = other.random() < RECOVERY_SHARE
        self._names_emptied = Random(f"copies/{seed}").random() < 0.5
        self.dead: set[str] = set()  # their disks are gone
        self.stale: set[str] = set()  # given up, and back on the disk that they had
        self.past = Known()  # what these say among themselves
        #: Copies that those who were given up had made, and of which no survivor knows. They would
        #: go on with these; but their nodes know of the recovery, and end these when they meet
        #: (`cluster/members/readmission.py`).
        self._unknown: set[str] = set()
        count = 5 if self.changes else dice.choice((3, 3, 5))
        self.founders = FIRST_VOTERS
        if self.loses_majority and other.random() < 0.5:
            count, self.founders = other.choice(((5, 5), (7, 7), (7, 5)))
        self.answering = Random(f"answers/{seed}")
        self._links = links = _about_links(seed)
        self.joins = links.random() < JOINED_SHARE
        if self.joins and not self.loses_majority and links.random() < 0.5:
            count = self.founders = 5
        self._joined: dict[frozenset[str], bool] = {}  # links on which they can be
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self._wires: dict[tuple[str, str], deque[list[Any]]] = {}
        self._cut: set[frozenset[str]] = set()
        self.proposed = 0
        self.nodes: dict[str, Node] = {}
        for number, name in enumerate(self.names):
            self.nodes[name] = Node(self, name, new=number >= self.founders)
        for a in self.names:
            for b in self.names:
                if a != b:
                    self.nodes[a].member.link_up(NodeId(b))
        self._forgot: str | None = None

    @property
    def now(self) -> float:
        return self.clock.ns / 1e9

    def _say(self, what: str) -> None:
        if self._show is not None:
            self._show(f"{self.now:10.3f}  {what}")

    # --- the network

    def connected(self, a: str, b: str) -> bool:
        return frozenset((a, b)) not in self._cut and self.nodes[a].up and self.nodes[b].up

    def link_version(self, a: str, b: str) -> int:
        """Another one each time that the link comes up: nodes are upgraded, and go back."""
        if not self.joins or not self.connected(a, b):
            return 0
        pair = frozenset((a, b))
        if pair not in self._joined:
            self._joined[pair] = self._links.random() < JOINED_LINKS
        return BEATS_SINCE if self._joined[pair] else BEATS_SINCE - 1

    def send(self, source: str, target: str, message: list[Any]) -> bool:
        if not self.connected(source, target):
            return False
        if source in self.stale and target in self._unknown:
            return False
        kind, term = message[1], message[2]
        self.known.counts["votes withheld"] += kind == VOTED and message[3] is None
        if kind == VOTE or (kind == VOTED and message[3]):
            candidate = source if kind == VOTE else target
            before = self.known.votes.setdefault((source, term), candidate)
            if before != candidate:
                raise Broken(f"one vote: {source} voted for {before} and {candidate} in {term}")
        # Entries are bytes, and whoever receives a list does not change it.
        self._wires.setdefault((source, target), deque()).append(message)
        return True

    def _cut_link(self, a: str, b: str, *, closed: bool) -> None:
        self._cut.add(frozenset((a, b)))
        self._joined.pop(frozenset((a, b)), None)
        for source, target in ((a, b), (b, a)):
            self._wires.pop((source, target), None)
            node = self.nodes[source]
            if node.up:
                node.member.now = self.now
                node.member.link_down(NodeId(target), closed=closed)

    def _heal_link(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        if pair in self._cut and self.nodes[a].up and self.nodes[b].up:
            self._cut.discard(pair)
            for source, target in ((a, b), (b, a)):
                self.nodes[source].member.now = self.now
                self.nodes[source].member.link_up(NodeId(target))

    # --- steps

    def run(self) -> Known:
        dice = self.dice
        steps: dict[Callable[[], None], float] = {
            self._deliver: 40,
            self._sync: 20,
            self._advance: dice.choice((4, 10)),
            self._propose: dice.choice((2, 6, 15)),
            self._cut_some: dice.choice((0, 0.5, 2)),
            self._heal_some: dice.choice((0.5, 2)),
            self._kill: dice.choice((0, 0.5, 1.5)),
            self._restart: 2,
            self._take_snapshot: dice.choice((0, 0.5, 3)),
            self._transfer: dice.choice((0, 0.5)),
            self._change: 4 if self.changes else 0,
            self._wipe: 0.5 if self.wipes else 0,
            self._isolate: dice.choice((0, 0.5, 1)),
            self._lose_majority: 1 if self.loses_majority else 0,
        }
        kinds, weights = list(steps), list(steps.values())
        for step in dice.choices(kinds, weights, k=STEPS):
            step()
            self._look()
        if dice.random() < self._calm_share:
            self._calm()
        return self.known

    def _deliver(self) -> None:
        """A burst on one link: the oldest first, as a connection has it."""
        ways = [way for way, queue in self._wires.items() if queue]
        if not ways:
            self._advance()
            return
        source, target = self.dice.choice(ways)
        for _ in range(self.dice.choice((1, 1, 4))):
            queue = self._wires.get((source, target))
            if not queue or not self.nodes[target].take(source, queue[0]):
                return
            queue.popleft()

    def _sync(self) -> None:
        busy = [node for node in self.nodes.values() if node.syncing and node.up]
        if busy:
            node = self.dice.choice(busy)
            self._say(f"{node.name} synced up to {node.journal.last_index}")
            node.synced()

    def _advance(self) -> None:
        """To the next moment at which somebody would act, or a little further."""
        idle = [node for node in self.nodes.values() if node.idle]
        if not idle:
            return
        due = min(node.member.due() for node in idle)
        ahead = due - self.now if due < math.inf else 0.0
        wait = min(max(ahead, 0.0), 2.0) + self.dice.choice((0.0, 0.001, 0.02, 0.3))
        self.clock.ns += round(wait * 1e9) + 1
        late = self.dice.random() < 0.3
        for node in [self.dice.choice(idle)] if late else idle:
            if node.member.due() <= self.now:
                node.step()

    def _leaders(self) -> list[Node]:
        there = [node for node in self.nodes.values() if node.name not in self.stale]
        return [node for node in there if node.idle and node.member.accepts]

    def _propose(self) -> None:
        leaders = self._leaders()
        if leaders:
            node = self.dice.choice(leaders)
            for _ in range(self.dice.choice((1, 1, 3))):
                self.proposed += 1
                node.member.append(b"%d" % self.proposed)
            self._say(f"{node.name} appends up to {node.journal.last_index}")
            node.step()

    def _pair(self) -> tuple[str, str]:
        a, b = self.dice.sample(self.names, 2)
        return a, b

    def _cut_some(self) -> None:
        a, b = self._pair()
        if frozenset((a, b)) not in self._cut:
            self._say(f"{a} and {b} are cut")
            self._cut_link(a, b, closed=False)

    def _isolate(self) -> None:
        leaders = [node.name for node in self.nodes.values() if node.member.leads]
        one = self.dice.choice(leaders or self.names)
        self._say(f"{one} is alone")
        for other in self.names:
            if other != one:
                self._cut_link(one, other, closed=False)

    def _heal_some(self) -> None:
        self._say("links heal")
        for pair in sorted(map(sorted, self._cut)):
            if self.dice.random() < 0.7:
                self._heal_link(*pair)

    def _kill(self) -> None:
        node = self.nodes[self.dice.choice(self.names)]
        if node.up:
            if self.dice.random() < 0.3:
                node.journal.keep()  # all of it had reached the disk, and nobody was told
            self._take_power(node)

    def _take_power(self, node: Node) -> None:
        self._say(f"{node.name} loses power")
        self.known.counts["kills"] += 1
        for other in self.names:
            if other != node.name:
                self._cut_link(node.name, other, closed=True)
        node.up = False
        node.journal = node.journal.crash()

    def _restart(self) -> None:
        down = [each for each in self.nodes.values() if not each.up and each.name not in self.dead]
        if down:
            self._start(self.dice.choice(down))

    def _start(self, node: Node) -> None:
        self._say(f"{node.name} starts")
        node.start()
        for other in self.names:
            if other != node.name:
                self._heal_link(node.name, other)

    def _take_snapshot(self) -> None:
        node = self.nodes[self.dice.choice(self.names)]
        if node.up:
            node.snapshot()

    def _transfer(self) -> None:
        for node in self._leaders():
            node.member.transfer(None)
            node.step()

    def _change(self) -> None:
        """One voter more or less, or a learner; only when the member says that it may."""
        leaders = [node for node in self._leaders() if node.member.may_change()]
        if not leaders:
            return
        node = self.dice.choice(leaders)
        member = node.member
        now = member.configuration
        self._check_may_change(node)
        others = [name for name in self.names if name not in (node.name, *self.stale)]
        if not others:
            return
        other = NodeId(self.dice.choice(others))
        if other in now.learners:
            ready = member.replication.lacks(other) <= 2
            after = now.with_voter(other) if ready else now.without(other)
        elif other in now.voters:
            if len(now.voters) <= 2 or (self._forgot is not None and len(now.voters) <= 3):
                return
            after = now.without(other)
        else:
            after = now.with_learner(other)
        self._say(f"{node.name} makes the members {after}")
        self.known.counts["changes of members"] += 1
        member.change(after)
        node.step()

    def _check_may_change(self, node: Node) -> None:
        """Raft thesis, 4.1, and the amendment: the change before is committed, and so is an entry
        of this term.
        """
        member = node.member
        known = self.known
        entry = self._entry(node, member.configurations.index)
        if entry is not None and known.committed.get(member.configurations.index) != entry:
            raise Broken("one change at a time: the one before is not committed")
        if known.committed_in.get(known.last_committed, 0) < member.term:
            raise Broken("one change at a time: nothing of this term is committed")

    def _wipe(self) -> None:
        """A disk is lost, of one member at a time; the others know."""
        forgot = self._forgot
        if self.stale or self.dead or not self.wipes:
            return
        if forgot is not None:
            node = self.nodes[forgot]
            if not node.up or node.journal.votes_suspended:
                return
            self._forgot = None
        configurations = [node.member.configuration for node in self.nodes.values()]
        voters = {voter for each in configurations for voter in each.voters}
        if min(len(each.voters) for each in configurations) < FIRST_VOTERS or any(
            self.nodes[name].journal.votes_suspended for name in voters
        ):
            return  # what a majority forgot nobody can know
        node = self.nodes[self.dice.choice(self.names[:FIRST_VOTERS])]
        if node.up:
            self._take_power(node)
            self._say(f"{node.name} loses its disk")
            self.known.counts["disks lost"] += 1
            node.had = node.journal
            node.journal = Journal()
            node.journal.known = self.known
            node.journal.set_votes_suspended(True)
            node.journal.keep()
            self._forgot = node.name

    # --- a majority is lost for good

    def _lose_majority(self) -> None:
        """All lose power, some for good; the others are told so, and go on."""
        lost = set(self.dice.sample(self.names, self.dice.randint(1, len(self.names) - 1)))
        # A copy that began anew and was told nothing yet is none; it may be named as lost, or not.
        anew = {n for n in self.names if self.nodes[n].journal.crash().begins_anew}
        if self._names_emptied:
            lost |= anew
        survivors = [name for name in self.names if name not in lost | self.stale]
        views = {name: self._view(name) for name in survivors if name not in anew}
        kept = {name: view for name, view in views.items() if name in view.current.members}
        if self.dead or self.stale or not kept:
            return
        if not all(lacks_majority(view, lost) for view in kept.values()):
            return  # it goes on by itself, as far as one of them knows
        alive = {n: [v for v in view.current.members if v not in lost] for n, view in kept.items()}
        named = {*kept, *(name for each in alive.values() for name in each)}
        most = max(named, key=lambda name: (*self._last_of(name)[::-1], name in kept))
        if most not in kept or any(most not in each for each in alive.values()):
            return  # the tables differ in who has most: a person must see that
        before = [v for v in views[most].voters_before if v not in lost] or alive[most]
        if sum(voter in kept for voter in before) <= len(before) // 2:
            return  # as many were emptied: those count as lost, and must be named
        commits = {name: self._known_by(self.nodes[name]) for name in kept}
        for node in self.nodes.values():
            if node.up:
                self._take_power(node)
        self._say(f"{sorted(lost)} are lost for good")
        self.known.counts["lost majorities"] += 1
        for name, view in kept.items():
            journal = self.nodes[name].journal
            go_on(journal, alive[name], {*map(NodeId, lost), *view.current.lost})
            journal.keep()
        known_to = (self._brought(self.nodes[n], at) for n, at in commits.items())
        self._forget_above(max(known_to, default=1))
        self._unknown = {*self.names} - lost - named
        self._after_loss(lost)

    def _last_of(self, name: str) -> tuple[int, int]:
        """Index and term of the newest entry on its disk."""
        return self.nodes[name].journal.safe_last

    def _view(self, name: str) -> Configurations:
        """Of what is on the disk."""
        journal = self.nodes[name].journal.crash()
        first = Configuration(tuple(map(NodeId, self.names[: self.founders])))
        snapshot = journal.load_snapshot()
        return Configurations(first, journal, None if snapshot is None else snapshot.data)  # type: ignore[arg-type]

    def _known_by(self, node: Node) -> int:
        """Up to where a member knows what is committed, or its disk does while it is down."""
        journal = node.journal
        return node.commit if node.up else max(journal.commit_index, journal.base_index)

    def _brought(self, node: Node, commit: int) -> int:
        """Up to where a survivor's disk has what it knew to be committed: it may have been told of
        a commit before it synced the entry, and have an older one there.
        """
        index = min(commit, node.journal.last_index)
        while index > node.journal.base_index:
            if self._entry(node, index) == self.known.committed.get(index):
                break
            index -= 1
        return index

    def _forget_above(self, index: int) -> None:
        """What was committed there is lost with the majority, unless a survivor brings it."""
        known = self.known
        for table in (known.committed, known.committed_in, known.states):
            for above in [each for each in table if each > index]:
                del table[above]
        known.last_committed = min(known.last_committed, index)

    def _after_loss(self, lost: set[str]) -> None:
        """Some never come back; the others do on new disks, or by mistake on their old ones."""
        self.wipes, self._forgot = False, None
        back = self.dice.choice(("new", "old"))
        for name in sorted(lost):
            node = self.nodes[name]
            fate = self.dice.choice(("dead", back))
            if fate == "old":
                self.stale.add(name)
            elif fate == "new":
                node.journal = Journal()
                node.journal.known = self.known
                node.journal.set_votes_suspended(True)
                node.journal.keep()
            else:
                self.dead.add(name)

    # --- what must hold

    def _look(self) -> None:
        for node in self.nodes.values():
            if node.up and node.name not in self.stale:
                self._look_at(node)

    def _entry(self, node: Node, index: int) -> Entry | None:
        journal = node.journal
        if not journal.base_index < index <= journal.last_index:
            return None
        data, _, term = journal.tail[index - journal.base_index - 1]
        return data, term

    def _look_at(self, node: Node) -> None:
        member, known = node.member, self.known
        if member.leads:
            other = known.leaders.setdefault(member.term, node.name)
            if other != node.name:
                raise Broken(f"election safety: {other} and {node.name} lead term {member.term}")
        last = known.last_committed
        if member.leads and known.committed_in.get(last, 0) < member.term:
            held = self._entry(node, last)
            if node.journal.last_index < last or (held and held != known.committed[last]):
                raise Broken(f"leader completeness: {node.name} leads without entry {last}")
        at = member.configurations.index
        entry = self._entry(node, at)
        if entry is not None and not node.journal.forced:
            named = decode(entry[0])
            if member.configuration != named:
                raise Broken(f"members: {node.name} does not go by {named}")
        if at > node.journal.last_index or (entry and entry[0][:1] != MEMBERSHIP):
            raise Broken(f"members: {node.name} goes by entry {at}, which is none that says so")
        commit = member.commit_index
        if commit == node.commit:
            return
        for index in range(max(node.commit, node.journal.base_index) + 1, commit + 1):
            entry = self._entry(node, index)
            if entry is None:
                continue
            if known.committed.setdefault(index, entry) != entry:
                raise Broken(f"committed for ever: {node.name} committed another entry {index}")
            known.committed_in.setdefault(index, member.term)
        if commit > node.journal.last_index:
            raise Broken(f"{node.name} committed {commit} and holds {node.journal.last_index}")
        known.last_committed = max(known.last_committed, commit)
        if member.leads:
            self._check_majority(node, commit)
        node.commit = commit

    def _check_majority(self, node: Node, index: int) -> None:
        term = node.journal.term_at(index)
        configuration = node.member.configuration
        # What a disk held when it was lost it had acknowledged: that is heard before the loss is.
        holders = [
            name
            for name in configuration.voters
            if (self.nodes[name].had or self.nodes[name].journal).safe_term_at(index) in (term, -1)
        ]
        if len(holders) < configuration.quorum:
            raise Broken(f"committed on a minority: {index} of {node.name}, only at {holders}")

    # --- after the faults

    def _calm(self) -> None:
        there = [node for node in self.nodes.values() if node.name not in self.dead]
        for node in there:
            if not node.up:
                self._start(node)
        for pair in sorted(map(sorted, self._cut)):
            self._heal_link(*pair)
        proposed = False
        for _ in range(CALM_ROUNDS):
            self.clock.ns += 50_000_000
            for node in there:
                if node.syncing:
                    node.synced()
                node.step()
                if node.syncing:
                    node.synced()
            for (source, target), queue in sorted(self._wires.items()):
                while queue:
                    node = self.nodes[target]
                    node.take(source, queue.popleft())
                    if node.syncing:
                        node.synced()
            self._look()
            leaders = self._leaders()
            if leaders and not proposed:
                leaders[-1].member.append(b"last")
                proposed = True
            elif proposed and self._equal():
                return
        state = {
            name: (n.member.role.name, n.member.term, n.member.commit_index, n.journal.last_index)
            for name, n in self.nodes.items()
        }
        raise Broken(f"convergence: (role, term, commit, last) {state}")

    def _equal(self) -> bool:
        leaders = self._leaders()
        if len(leaders) != 1:
            return False
        leader = leaders[0]
        last = leader.journal.last_index
        there = [n for n in leader.member.configuration.members if n not in self.dead]
        members = [self.nodes[name] for name in there]
        return all(node.host.index == last == node.journal.last_index for node in members)


def fuzz(
    seed: int, show: Callable[[str], None] | None = None, calm_share: float = CALM_SHARE
) -> Known:
    """Broken, or what the members assert of themselves: a promise was broken."""
    return Fuzz(seed, show, calm_share).run()


def _about_recovery(seed: int) -> Random:
    """Of its own, so that seeds without one stay what they are."""
    return Random(f"lost majority/{seed}")


def _about_links(seed: int) -> Random:
    """As above."""
    return Random(f"releases/{seed}")


def _recoveries(seed: int) -> Iterator[int]:
    """Those seeds from here on that may lose a majority."""
    return (
        each for each in itertools.count(seed) if _about_recovery(each).random() < RECOVERY_SHARE
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.raft.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seeds", type=int, help="so many seeds instead")
    parser.add_argument("--first", type=int, help="the first seed; by default a fresh one")
    parser.add_argument("--seed", type=int, help="this one, with its steps")
    parser.add_argument(
        "--recoveries",
        action="store_true",
        help="only seeds that may lose a majority, and each judged to the end",
    )
    args = parser.parse_args()
    calm_share = 1.0 if args.recoveries else CALM_SHARE
    if args.seed is not None:
        fuzz(args.seed, print, calm_share)
        return 0
    first = secrets.randbelow(1 << 40) if args.first is None else args.first
    print(f"seeds from {first} on; the same again: --first {first}", flush=True)
    began_s, done = time.monotonic(), 0
    counts: Counter[str] = Counter()
    seeds = _recoveries(first) if args.recoveries else itertools.count(first)
    while done < args.seeds if args.seeds else time.monotonic() - began_s < args.seconds:
        seed = next(seeds)
        try:
            known = fuzz(seed, calm_share=calm_share)
        except Exception as error:  # noqa: BLE001 -- a bug of a member is a finding as well
            how = " --recoveries" if args.recoveries else ""
            print(f"seed {seed}: {type(error).__name__}: {error}")
            print(f"after {done} seeds; its steps: python -m tests.raft.fuzz{how} --seed {seed}")
            return 1
        done += 1
        counts += known.counts
        counts["leaders"] += len(known.leaders)
        counts["entries committed"] += known.last_committed - 1
    seconds = time.monotonic() - began_s
    print(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    print(f"no violation in {done:,} seeds, {done / seconds * 60:,.0f} a minute")
    return 0


if __name__ == "__main__":
    sys.exit(main())
