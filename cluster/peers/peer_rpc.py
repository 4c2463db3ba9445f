"""One way between nodes: requests and their answers over the links.

What the frames look like is said by those who use this (`cluster.peers.forwarding`,
`cluster.catalog.catalog_read_index`, `node.peer_rpc`, `node.clients.relay`). What holds for all of
them stands here:

- A number is never used by two processes of a node, so an answer, or a delivery, that was meant for
  the process before finds nobody.
- A link that breaks ends all that goes on over it. Whatever was asked may have been done.
- An answer that finds its link full waits for room, as long as that link lasts. One that waited too
  long is dropped, and who asked is told so, once there is room for that.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from cluster.seams import Links
from cluster.types import NodeId

#: Numbers that each process of a node has for itself.
NUMBERS_OF_A_PROCESS = 1 << 22
#: Seconds between two checks whether a full link has room again.
ROOM_LOOK_S = 0.1
#: How long an answer waits for room. Then, and the first time when more wait than may, what is said
#: instead of it does, which is a few bytes.
ROOM_S_MAX = 30.0
#: Answers to one node that wait. There are no more questions than those may ask at a time.
WAITING_MAX = 10_000

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer")
#: Called once, with the answer, the error that was answered, or LinkLost.
Done = Callable[[Answer | Exception], object]
#: Gives a message to the link of a node. False: it surely does not arrive.
Send = Callable[[NodeId, list[Any]], bool]


class LinkLost(Exception):
    """Before the answer came: what was asked may have been done."""


class NotSent(Exception):
    """Surely nothing was asked."""


class TooMany(NotSent):
    """Of the requests to that node have no answer yet."""


class LinkBatches:
    """Messages to other nodes beside those of Raft. The first of a turn of the event loop leaves at
    once. Those behind it leave together when the turn ends: a frame and a write for each peer.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._turn: asyncio.Handle | None = None  # its end

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        """False: it surely does not arrive."""
        sent = self._links.send(peer, message)
        if sent and self._turn is None:
            self._links.flush()
            self._turn = asyncio.get_running_loop().call_soon(self._end_of_turn)
        return sent

    def _end_of_turn(self) -> None:
        self._turn = None
        self._links.flush()

    def stop(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._end_of_turn()


def numbers(incarnation: int) -> Iterator[int]:
    """For the requests of one process. Another node may answer what was asked before this node was
    killed and started again; that answer must not be taken for one to a request of this process.
    """
    return count(incarnation * NUMBERS_OF_A_PROCESS)


class Requests(Generic[Answer]):
    """What this process has asked of other nodes, until it is answered."""

    def __init__(self, send: Send, incarnation: int, *, open_max: int) -> None:
        """`open_max`: to one node at a time, so that a slow one cannot fill our memory."""
        self._send = send
        self._open_max = open_max
        self._numbers = numbers(incarnation)
        self._open: dict[NodeId, dict[int, Done[Answer]]] = {}

    def send(
        self,
        peer: NodeId,
        frame: Callable[[int], list[Any]],
        done: Done[Answer],
    ) -> int:
        """`frame` makes the message with this number, which is returned. NotSent. `done` is called
        unless it is forgotten.
        """
        waiting = self._open.get(peer)
        if waiting is None:
            waiting = self._open[peer] = {}
        elif len(waiting) >= self._open_max:
            raise TooMany
        number = next(self._numbers)
        if not self._send(peer, frame(number)):
            raise NotSent
        waiting[number] = done
        return number

    def forget(self, peer: NodeId, number: int) -> None:
        """Nobody waits for the answer any more."""
        self._open.get(peer, {}).pop(number, None)

    async def ask(
        self, peer: NodeId, frame: Callable[[int], list[Any]], *, within_s: float
    ) -> Answer:
        """The answer. NotSent, LinkLost, TimeoutError, or the error that was answered."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(answer: Answer | Exception) -> None:
            if future.done():
                return
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        number = self.send(peer, frame, done)
        try:
            async with asyncio.timeout(within_s):
                return await future
        finally:
            self.forget(peer, number)

    def answered(self, peer: NodeId, number: int, answer: Answer | Exception) -> None:
        """By that node. What nobody waits for is dropped."""
        waiting = self._open.get(peer)
        done = None if waiting is None else waiting.pop(number, None)
        if done is not None:
            self._tell(peer, done, answer)

    def link_lost(self, peer: NodeId) -> None:
        for done in self._open.pop(peer, {}).values():
            self._tell(peer, done, LinkLost())

    def _tell(self, peer: NodeId, done: Done[Answer], answer: Answer | Exception) -> None:
        """A bug of who asked is its own: others wait for answers, and the link goes on."""
        try:
            done(answer)
        except Exception as error:
            name = getattr(done, "__qualname__", type(done).__name__)
            log.error("answer_not_taken", peer=peer, by=name, exc_info=error)

    def stop(self) -> None:
        """No answer comes any more."""
        for peer in list(self._open):
            self.link_lost(peer)


class _Waiting(NamedTuple):
    """An answer without room, and what takes its place then."""

    answer: list[Any]
    until_s: float = math.inf
    dropped: list[Any] = []  # noqa: RUF012 -- it is not changed


class Answers:
    """The other end: answers on their way to who asked."""

    def __init__(self, send: Send, connected: Callable[[NodeId], bool]) -> None:
        self._send = send
        self._connected = connected
        self._waiting: dict[NodeId, deque[_Waiting]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def send(self, peer: NodeId, answer: list[Any], *, dropped: list[Any]) -> None:
        """Now, or once there is room; `dropped` when that takes too long: a few bytes that end the
        request as well.
        """
        if self._send(peer, answer) or self._stopped or not self._connected(peer):
            return
        waiting = self._waiting.setdefault(peer, deque())
        until_s = asyncio.get_running_loop().time() + ROOM_S_MAX
        if len(waiting) < WAITING_MAX:
            waiting.append(_Waiting(answer, until_s, dropped))
        else:
            waiting.append(_Waiting(dropped))
        self._look_later()

    @property
    def waiting(self) -> int:
        """For room."""
        return sum(map(len, self._waiting.values()))

    def _look_later(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = asyncio.get_running_loop().call_later(ROOM_LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for peer, waiting in list(self._waiting.items()):
            while waiting:
                each = waiting.popleft()
                if each.until_s <= now_s:
                    each = _Waiting(each.dropped)
                if not self._send(peer, each.answer):
                    # Behind the others: one that fits no link must not keep them.
                    waiting.append(each)
                    break
            if not waiting:
                del self._waiting[peer]
        self._look_later()

    def link_lost(self, peer: NodeId) -> None:
        """Who asked knows it, too."""
        self._waiting.pop(peer, None)

    def stop(self) -> None:
        """From now on none waits."""
        self._stopped = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
