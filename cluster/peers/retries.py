"""Proposals that are made again until a leader has decided, wherever it is and however often it
changes. What this rests on is told in `cluster.groups.outcome`: which refusals a repetition can
change.

What has to wait for a leader waits in its order within its group, and later proposals behind it.
What is refused on its way comes after those that were taken meanwhile; who would undo one of them
drops it (`over`). One timer a group looks for the next leader. A repetition may find that an
earlier try was carried out: the machine answers the same again where it can, and refuses what it
did before elsewhere; such a refusal is `in_doubt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from cluster.groups.outcome import Done, Outcome, decided, refused
from cluster.machine.commands import Command
from cluster.types import GroupId, NodeId

#: How long a proposal is made again.
PATIENCE_S = 15.0
#: How often the next leader is looked for, and what it refused is proposed again: in between so
#: much longer for each try.
AGAIN_S = 0.02
TRIES_SLOWER_MAX = 8
#: While there is no leader: whether one that waits is over is asked so often, times how many wait.
LOOK_OVER_S = 1e-4

Over = Callable[[], bool]
Ends = Callable[[Outcome], bool]


_What = tuple[int, GroupId, Command, Done, float, Over | None, Ends]


Propose = Callable[[GroupId, Command, Done], None]


class _Proposal:
    __slots__ = ("command", "done", "doubt", "ends", "group", "number", "over", "tries", "until_s")

    def __init__(
        self,
        number: int,
        group: GroupId,
        command: Command,
        done: Done,
        until_s: float,
        over: Over | None,
        ends: Ends,
    ) -> None:
        self.number = number
        self.group = group
        self.command = command
        self.done = done
        self.until_s = until_s
        self.over = over
        self.ends = ends
        self.tries = 0
        self.doubt: Outcome | None = None  # of the first try of which nobody knows what it did


class _Queue:
    """What waits for the leader of one group."""

    __slots__ = ("look_over_s", "proposals", "timer")

    def __init__(self, proposal: _Proposal) -> None:
        self.proposals = [proposal]
        self.timer: asyncio.TimerHandle
        self.look_over_s = 0.0  # when it is looked who is over


class Retries:
    """Of those in a node who want an order kept among what they propose."""

    def __init__(
        self, propose: Propose, leader_of: Callable[[GroupId], NodeId | None], random: Random
    ) -> None:
        """`propose`: one try."""
        self._propose = propose
        self._leader_of = leader_of
        self._random = random
        self._waiting: dict[GroupId, _Queue] = {}
        self._number = 0
        self._stopped = False

    def propose(
        self,
        group: GroupId,
        command: Command,
        done: Done,
        *,
        within_s: float | None = None,
        over: Over | None = None,
        ends: Ends = decided,
    ) -> None:
        """`done` is called once, with the outcome that `ends` the tries; or, after `within_s` or
        when it is `over`, with the last one. That is unknown if any try may have been carried out.
        """
        self._number += 1
        now_s = asyncio.get_running_loop().time()
        until_s = now_s + (PATIENCE_S if within_s is None else within_s)
        what = self._number, group, command, done, until_s, over, ends
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
        over: Over | None = None,
        ends: Ends = decided,
    ) -> Outcome:
        """The same; whoever is cancelled meanwhile asks no more."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        def is_over() -> bool:
            return future.done() or (over is not None and over())

        self.propose(group, command, done, within_s=within_s, over=is_over, ends=ends)
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
        if self._stopped or self._is_over(proposal):
            proposal.done(doubt or outcome)
            return
        proposal.tries += 1
        queue = self._waiting.get(proposal.group)
        if queue is not None:
            queue.proposals.append(proposal)
            return
        self._waiting[proposal.group] = queue = _Queue(proposal)
        slower = min(proposal.tries, TRIES_SLOWER_MAX)
        self._look_later(proposal.group, queue, AGAIN_S * slower * (0.5 + self._random.random()))

    def _is_over(self, proposal: _Proposal) -> bool:
        if asyncio.get_running_loop().time() >= proposal.until_s:
            return True
        return proposal.over is not None and proposal.over()

    def _look_later(self, group: GroupId, queue: _Queue, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        queue.timer = loop.call_later(seconds, self._look, group, queue)

    def _look(self, group: GroupId, queue: _Queue) -> None:
        """Is there a leader, for who still wants one? Else: who has waited long enough?"""
        over: list[_Proposal] = []
        if self._leader_of(group) is not None:
            del self._waiting[group]
            for proposal in sorted(queue.proposals, key=lambda each: each.number):
                if proposal.over is not None and proposal.over():
                    over.append(proposal)
                else:
                    self._propose(group, proposal.command, partial(self._outcome, proposal))
        else:
            now_s = asyncio.get_running_loop().time()
            if now_s >= queue.look_over_s:
                left: list[_Proposal] = []
                for each in queue.proposals:
                    (over if self._is_over(each) else left).append(each)
                queue.proposals = left
                queue.look_over_s = now_s + LOOK_OVER_S * len(queue.proposals)
            if queue.proposals:
                self._look_later(group, queue, AGAIN_S)
            else:
                del self._waiting[group]
        outcome = refused("no_leader", f"group {group} has no known leader now; try again")
        for proposal in over:
            proposal.done(proposal.doubt or outcome)
