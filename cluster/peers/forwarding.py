"""Proposals to a group's leader, wherever it is, over the links between nodes: one try, or as many
as it takes until a leader has decided.

A proposal that was sent over a link that broke before the answer came is *unknown*: it may have
been applied. What a repetition can change is told in `cluster.groups.outcome`.

What has to wait for a leader waits in its order within its group, and later proposals behind it.
What is refused on its way comes after those that were taken meanwhile; if it would undo one of
them, its caller says that it is `unwanted`. One timer per group looks for the next leader. A
repetition may find that an earlier try was carried out: the machine answers the same again where it
can, and refuses what it did before elsewhere; such a refusal is `in_doubt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from cluster.codec.entries import (
    CodecError,
    Unknown,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
    version_needed,
)
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import Done, Outcome, called_back, decided, refused, too_new
from cluster.machine.commands import Command
from cluster.machine.versions import MACHINE_VERSION
from cluster.peers.peer_rpc import Answers, LinkBatches, NotSent, Requests, TooMany
from cluster.raft.member import Role
from cluster.raft.messages import NODE_LEVEL
from cluster.seams import Links
from cluster.types import GroupId, NodeId, Stamp

ASK = "ask"
ANSWER = "answer"

#: Requests to one peer that may be unanswered at a time; more are refused, so a slow leader cannot
#: fill our memory.
ASKS_IN_FLIGHT_MAX = 10_000
#: How long a proposal is made again.
PATIENCE_S = 15.0
#: Seconds between two looks for a leader. A proposal that was refused waits so long times its
#: number of tries...
AGAIN_S = 0.02
#: ...but no more than so many times.
TRIES_SLOWER_MAX = 8
#: While there is no leader, proposals that wait are asked whether they are still wanted: every so
#: many seconds for each of them.
LOOK_UNWANTED_S = 1e-4

Unwanted = Callable[[], bool]
Ends = Callable[[Outcome], bool]
_What = tuple[int, GroupId, Command, Done, float, Unwanted | None, Ends]
Propose = Callable[[GroupId, Command, Done], None]


class Forwarder:
    """One try at a time: at the leader, here or elsewhere; and answers to other nodes' tries."""

    def __init__(
        self,
        node: NodeId,
        links: Links,
        *,
        random: Random,
        group_of: Callable[[GroupId], GroupLike | None],
        leader_of: Callable[[GroupId], NodeId | None],
    ) -> None:
        self._node = node
        self.batches = LinkBatches(links)
        self._random = random
        self._group_of = group_of
        self._leader_of = leader_of
        self._requests: Requests[Outcome] = Requests(
            self.batches.send, links.incarnation, open_max=ASKS_IN_FLIGHT_MAX
        )
        #: Of this node to all that others ask of it.
        self.answers = Answers(self.batches.send, links.connected)
        self._all_retries: list[Retries] = []
        self._stopped = False
        #: Set by the cluster node: what to say of a group without a leader.
        self.why_no_leader: Callable[[GroupId], str] = lambda group_id: (
            f"group {group_id} has no known leader now; try again"
        )
        #: Set by the cluster node: the machine version of the catalog. No group has a later one,
        #: and a leader of an older release would drop what is new in a command without a word.
        self.cluster_version: Callable[[], int] = lambda: MACHINE_VERSION

    def stop(self) -> None:
        """No answer comes any more."""
        self._stopped = True
        for retries in self._all_retries:
            retries.stop()
        self._requests.stop()
        self.answers.stop()
        self.batches.stop()

    def propose(self, group_id: GroupId, command: Command, done: Done | None = None) -> None:
        """Propose at the group's leader, in the order of the calls. One try: see the outcome."""
        group = self._group_of(group_id)
        if self._stopped:
            _finish(done, refused("stopping", "this node is shutting down; ask another one"))
        elif group is not None and group.role is Role.LEADER:
            group.propose(command, done)
        elif (leader := self._leader_of(group_id)) is None:
            _finish(done, refused("no_leader", self.why_no_leader(group_id)))
        elif (needed := version_needed(command)) > 1 and needed > self.cluster_version():
            _finish(done, too_new(needed, self.cluster_version()))
        else:
            self._request(leader, group_id, command, done)

    async def ask(self, group_id: GroupId, command: Command) -> Outcome:
        """The same, waiting for the outcome."""
        return await called_back(lambda done: self.propose(group_id, command, done))

    def new_retries(self) -> Retries:
        """What is proposed through it keeps its order while it waits for a leader."""
        self._all_retries.append(Retries(self.propose, self._leader_of, self._random))
        return self._all_retries[-1]

    def _request(self, peer: NodeId, group: GroupId, command: Command, done: Done | None) -> None:
        """`done` gets the outcome as `peer` tells it; refused when it cannot be reached."""

        def frame(number: int) -> list[Any]:
            return [NODE_LEVEL, ASK, number, group, encode_command(command)]

        def answered(answer: Outcome | Exception) -> None:
            _finish(done, self._lost(peer) if isinstance(answer, Exception) else answer)

        try:
            self._requests.send(peer, frame, answered)
        except TooMany:
            _finish(done, refused("overloaded", f"too many questions to node {peer} are open"))
        except NotSent:
            _finish(done, refused("no_leader", f"node {peer}, the leader, cannot be reached"))
        except CodecError as error:  # it cannot be written
            _finish(done, refused("bad_argument", str(error)))

    def _lost(self, peer: NodeId) -> Outcome:
        code, reason = "link_lost", f"the link to {peer} broke"
        if self._stopped:
            code, reason = "stopping", "this node is shutting down"
        return Outcome("unknown", None, None, code, reason, None)

    def on_down(self, peer: NodeId) -> None:
        self._requests.link_lost(peer)
        self.answers.link_lost(peer)

    def on_message(self, peer: NodeId, message: list[Any]) -> None:
        """A question or an answer. Malformed ones are a peer's bug: answered or dropped, never
        raised.
        """
        match message:
            case [_, "ask", int(number), int(group), bytes(data)]:  # ASK
                self._propose_for(peer, number, GroupId(group), data)
            case [_, "answer", int(number), *answer] if len(answer) == 6:  # ANSWER
                self._requests.answered(peer, number, _decoded(answer))
            case _:
                pass

    def _send_answer(self, peer: NodeId, number: int, answer: list[Any]) -> None:
        reason = f"the answer of node {self._node} found no room on the link"
        dropped = ["unknown", None, None, "answer_dropped", reason, None]
        head = [NODE_LEVEL, ANSWER, number]
        self.answers.send(peer, [*head, *answer], dropped=[*head, *dropped])

    def refuse(self, peer: NodeId, message: list[Any]) -> None:
        """A question of a node that is no member as far as is known here."""
        match message:
            case [_, "ask", int(number), *_]:
                reason = f"node {self._node} has not heard yet that {peer} is a member"
                answer = ["refused", None, None, "no_leader", reason, None]
                self._send_answer(peer, number, answer)
            case _:
                pass

    def _propose_for(self, peer: NodeId, number: int, group_id: GroupId, data: bytes) -> None:
        def done(outcome: Outcome) -> None:
            stamp = None if outcome.stamp is None else (outcome.stamp.index, outcome.stamp.term)
            try:
                reply = None if outcome.reply is None else encode_reply(outcome.reply)
                answer = [outcome.kind, reply, stamp, outcome.code, outcome.reason, outcome.leader]
            except CodecError as error:
                answer = ["unknown", None, None, "bad_answer", str(error), None]
            self._send_answer(peer, number, answer)

        group = self._group_of(group_id)
        if group is None:
            done(refused("no_leader", f"group {group_id} has no copy on this node"))
            return
        try:
            command = decode_command(data)
        except CodecError as error:
            done(refused("bad_argument", str(error)))
            return
        if isinstance(command, Unknown):
            done(refused("unknown_command", f"this node does not know command {command.tag}"))
            return
        group.propose(command, done)


# --- until a leader has decided -------------------------------------------------------------------


class _Proposal:
    __slots__ = (
        "command",
        "done",
        "doubt",
        "ends",
        "group",
        "number",
        "tries",
        "until_s",
        "unwanted",
    )

    def __init__(
        self,
        number: int,
        group: GroupId,
        command: Command,
        done: Done,
        until_s: float,
        unwanted: Unwanted | None,
        ends: Ends,
    ) -> None:
        self.number = number
        self.group = group
        self.command = command
        self.done = done
        self.until_s = until_s
        self.unwanted = unwanted
        self.ends = ends
        self.tries = 0
        self.doubt: Outcome | None = None  # of the first try of which nobody knows what it did


class _Waiting:
    """What waits for the leader of one group."""

    __slots__ = ("look_at_s", "proposals", "timer")

    def __init__(self, proposal: _Proposal) -> None:
        self.proposals = [proposal]
        self.timer: asyncio.TimerHandle
        self.look_at_s = 0.0  # when they are asked next whether they are wanted


class Retries:
    """What one caller proposes, in its order, repeated until a leader has decided."""

    def __init__(
        self, propose: Propose, leader_of: Callable[[GroupId], NodeId | None], random: Random
    ) -> None:
        """`propose`: one try."""
        self._propose = propose
        self._leader_of = leader_of
        self._random = random
        self._waiting: dict[GroupId, _Waiting] = {}
        self._number = 0
        self._stopped = False

    def propose(
        self,
        group: GroupId,
        command: Command,
        done: Done,
        *,
        within_s: float | None = None,
        unwanted: Unwanted | None = None,
        ends: Ends = decided,
    ) -> None:
        """`done` is called once, with the outcome that `ends` the tries; or, after `within_s` or
        when it is `unwanted`, with the last one: unknown if any try may have been carried out.
        """
        self._number += 1
        now_s = asyncio.get_running_loop().time()
        until_s = now_s + (PATIENCE_S if within_s is None else within_s)
        what = self._number, group, command, done, until_s, unwanted, ends
        queue = self._waiting.get(group)
        if queue is None:
            self._propose(group, command, partial(self._first_outcome, what))
        else:
            queue.proposals.append(_Proposal(*what))

    async def ask(
        self,
        group: GroupId,
        command: Command,
        *,
        within_s: float | None = None,
        unwanted: Unwanted | None = None,
        ends: Ends = decided,
    ) -> Outcome:
        """The same; whoever is cancelled meanwhile asks no more."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        def is_unwanted() -> bool:
            return future.done() or (unwanted is not None and unwanted())

        self.propose(group, command, done, within_s=within_s, unwanted=is_unwanted, ends=ends)
        return await future

    def stop(self) -> None:
        """This node stops: what waits is given up."""
        self._stopped = True
        waiting, self._waiting = self._waiting, {}
        outcome = refused("stopping", "this node is shutting down; ask another one")
        for queue in waiting.values():
            queue.timer.cancel()
            for proposal in queue.proposals:
                proposal.done(proposal.doubt or outcome)

    def _first_outcome(self, what: _What, outcome: Outcome) -> None:
        *_, done, _, _, ends = what
        if ends(outcome):
            done(outcome)
        else:
            self._outcome(_Proposal(*what), outcome)

    def _outcome(self, proposal: _Proposal, outcome: Outcome) -> None:
        doubt = proposal.doubt
        if proposal.ends(outcome):
            if doubt is not None:
                outcome = doubt if outcome.reply is None else replace(outcome, in_doubt=True)
            proposal.done(outcome)
            return
        if outcome.kind == "unknown" and doubt is None:
            doubt = proposal.doubt = outcome
        if self._stopped or self._is_ended(proposal):
            proposal.done(doubt or outcome)
            return
        proposal.tries += 1
        queue = self._waiting.get(proposal.group)
        if queue is not None:
            queue.proposals.append(proposal)
            return
        self._waiting[proposal.group] = queue = _Waiting(proposal)
        slower = min(proposal.tries, TRIES_SLOWER_MAX)
        self._look_later(proposal.group, queue, AGAIN_S * slower * (0.5 + self._random.random()))

    def _is_ended(self, proposal: _Proposal) -> bool:
        if asyncio.get_running_loop().time() >= proposal.until_s:
            return True
        return proposal.unwanted is not None and proposal.unwanted()

    def _look_later(self, group: GroupId, queue: _Waiting, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        queue.timer = loop.call_later(seconds, self._look, group, queue)

    def _look(self, group: GroupId, queue: _Waiting) -> None:
        """With a leader: propose again what is still wanted. Else: what waited too long?"""
        ended: list[_Proposal] = []
        if self._leader_of(group) is not None:
            del self._waiting[group]
            for proposal in sorted(queue.proposals, key=lambda each: each.number):
                if proposal.unwanted is not None and proposal.unwanted():
                    ended.append(proposal)
                else:
                    self._propose(group, proposal.command, partial(self._outcome, proposal))
        else:
            now_s = asyncio.get_running_loop().time()
            if now_s >= queue.look_at_s:
                left: list[_Proposal] = []
                for each in queue.proposals:
                    (ended if self._is_ended(each) else left).append(each)
                queue.proposals = left
                queue.look_at_s = now_s + LOOK_UNWANTED_S * len(queue.proposals)
            if queue.proposals:
                self._look_later(group, queue, AGAIN_S)
            else:
                del self._waiting[group]
        outcome = refused("no_leader", f"group {group} has no known leader now; try again")
        for proposal in ended:
            proposal.done(proposal.doubt or outcome)


def _finish(done: Done | None, outcome: Outcome) -> None:
    if done is not None:
        done(outcome)


def _decoded(answer: list[Any]) -> Outcome:
    kind, reply, at, code, reason, leader = answer
    try:
        known = None if reply is None else decode_reply(reply)
    except CodecError as error:
        return Outcome("unknown", None, None, "bad_answer", str(error), None)
    stamp = None if at is None else Stamp(at[0], at[1], 0)
    if kind == "ok" and known is not None:
        return Outcome("ok", known, stamp, None, None, None)
    if kind == "refused":
        return Outcome("refused", known, stamp, code, reason, leader)
    return Outcome("unknown", None, None, code, reason, leader)
