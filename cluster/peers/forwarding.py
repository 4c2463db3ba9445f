"""Asking a group's leader wherever it is: proposals and their outcomes over the links between
nodes.

A question that was sent over a link that broke before the answer came is *unknown*: it may have
been applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
from cluster.groups.outcome import Done, Outcome, outcome_of, refused, too_new
from cluster.machine.commands import Command
from cluster.machine.versions import MACHINE_VERSION
from cluster.peers.peer_rpc import Answers, NotSent, Requests, TooMany
from cluster.peers.retries import Retries
from cluster.raft.member import Role
from cluster.seams import Links
from cluster.types import GroupId, NodeId, Stamp

NODE_LEVEL = -1
ASK = "ask"
ANSWER = "answer"

#: Requests to one peer that may be unanswered at a time; more are refused, so a slow leader cannot
#: fill our memory.
ASKS_IN_FLIGHT_MAX = 10_000


class Forwarder:
    """Puts questions to leaders, here or elsewhere, and answers those of other nodes."""

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
        self._links = links
        self._random = random
        self._group_of = group_of
        self._leader_of = leader_of
        self._requests: Requests[Outcome] = Requests(
            self._send, links.incarnation, open_max=ASKS_IN_FLIGHT_MAX
        )
        #: Of this node to all that others ask of it.
        self.answers = Answers(self._send, links.connected)
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
        return await outcome_of(lambda done: self.propose(group_id, command, done))

    def new_retries(self) -> Retries:
        """What is proposed through it keeps its order while it waits for a leader."""
        self._all_retries.append(Retries(self.propose, self._leader_of, self._random))
        return self._all_retries[-1]

    def _request(self, peer: NodeId, group: GroupId, command: Command, done: Done | None) -> None:
        """`done` gets the outcome as `peer` tells it; refused when it cannot be reached."""

        def frame(number: int) -> list[Any]:
            return [NODE_LEVEL, ASK, number, group, encode_command(command)]

        def answered(answer: asyncio.Future[Outcome]) -> None:
            lost = answer.exception() is not None
            _finish(done, self._lost(peer) if lost else answer.result())

        try:
            _, answer = self._requests.send(peer, frame)
        except TooMany:
            _finish(done, refused("overloaded", f"too many questions to node {peer} are open"))
        except NotSent:
            _finish(done, refused("no_leader", f"node {peer}, the leader, cannot be reached"))
        else:
            answer.add_done_callback(answered)

    def _lost(self, peer: NodeId) -> Outcome:
        code, reason = "link_lost", f"the link to {peer} broke"
        if self._stopped:
            code, reason = "stopping", "this node is shutting down"
        return Outcome("unknown", None, None, code, reason, None)

    def _send(self, peer: NodeId, message: list[Any]) -> bool:
        sent = self._links.send(peer, message)
        self._links.flush()
        return sent

    def on_down(self, peer: NodeId) -> None:
        self._requests.link_lost(peer)
        self.answers.link_lost(peer)

    def on_message(self, peer: NodeId, message: list[Any]) -> None:
        """A question or an answer. Malformed ones are a peer's bug: answered or dropped, never
        raised.
        """
        match message:
            case [_, "ask", int(number), int(group), bytes(data)]:
                self._answer(peer, number, GroupId(group), data)
            case [_, "answer", int(number), *answer] if len(answer) == 6:
                self._requests.answered(peer, number, _outcome(answer))
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

    def _answer(self, peer: NodeId, number: int, group_id: GroupId, data: bytes) -> None:
        def done(outcome: Outcome) -> None:
            reply = None if outcome.reply is None else encode_reply(outcome.reply)
            stamp = None if outcome.stamp is None else (outcome.stamp.index, outcome.stamp.term)
            answer = [outcome.kind, reply, stamp, outcome.code, outcome.reason, outcome.leader]
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


def _finish(done: Done | None, outcome: Outcome) -> None:
    if done is not None:
        done(outcome)


def _outcome(answer: list[Any]) -> Outcome:
    kind, reply, at, code, reason, leader = answer
    try:
        decoded = None if reply is None else decode_reply(reply)
    except CodecError as error:
        return Outcome("unknown", None, None, "bad_answer", str(error), None)
    stamp = None if at is None else Stamp(at[0], at[1], 0)
    if kind == "ok" and decoded is not None:
        return Outcome("ok", decoded, stamp, None, None, None)
    if kind == "refused":
        return Outcome("refused", decoded, stamp, code, reason, leader)
    return Outcome("unknown", None, None, code, reason, leader)
