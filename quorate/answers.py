"""A consumer's answers on their way: ranges gathered in one turn of the loop, sent as one frame,
kept until confirmed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from quorate import wire
from quorate.connection import Connection
from quorate.delivery import Range
from quorate.errors import OutcomeUnknown, QuorateError, Refused
from quorate.holdings import add_range, merged, without


class AnswersOwner(Protocol):
    """The consumer: it is told what became of its answers."""

    queue: str

    def answer_done(self, opcode: int, ranges: list[list[int]], token: int) -> None: ...
    def answer_refused(self, refused: Refused) -> None: ...
    def resubscribe(self) -> None: ...


class Answer:
    """One SETTLE, RETURN, DISCARD or EXTEND."""

    __slots__ = (
        "_answers",
        "arguments",
        "opcode",
        "ranges",
        "refusal",
        "refused",
        "request",
        "token",
        "unsure",
        "waiters",
    )

    def __init__(self, answers: Answers, opcode: int, arguments: tuple[Any, ...]) -> None:
        self._answers = answers
        self.opcode = opcode
        self.arguments = arguments
        self.ranges: list[list[int]] = []
        self.token = 0  # the newest of these deliveries: a repeat does not mean later ones
        self.waiters: list[tuple[asyncio.Future[None], list[Range]]] = []
        self.refused: list[int] = []  # positions that the node says are not held
        self.refusal: Refused | None = None
        self.request = 0
        self.unsure = False  # an earlier sending was neither confirmed nor refused

    def answered(self, request: int, opcode: int, frame: list[Any]) -> None:
        if request == self.request:
            self._answers.answered(self, opcode, frame)

    def resolve(self, error: QuorateError | None) -> None:
        """Tell those who wait; `error` is for those whose positions it concerns, or for all."""
        for waiter, ranges in self.waiters:
            if waiter.done():
                continue
            mine = not self.refused or any(
                first <= position <= last for position in self.refused for first, last in ranges
            )
            if error is None or not mine:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


class Answers:
    """All answers of one consumer under one key."""

    def __init__(self, owner: AnswersOwner) -> None:
        self._owner = owner
        self._connection: Connection | None = None
        self._key: int | str = 0  # of a queue's consumer, or a stream's cursor
        self._gathering: dict[tuple[int, tuple[Any, ...]], Answer] = {}
        self._sent: dict[Answer, None] = {}
        self._scheduled = False
        self._refusal: Refused | None = None  # the first one since the last flush
        self._idle: list[asyncio.Future[None]] = []

    @property
    def waiting(self) -> bool:
        """Whether any answer is not confirmed yet."""
        return bool(self._gathering or self._sent)

    def add(
        self,
        opcode: int,
        ranges: list[Range],
        token: int,
        arguments: tuple[Any, ...],
        waiter: asyncio.Future[None] | None,
    ) -> None:
        """Gather; it leaves at the end of this turn of the loop."""
        answer = self._gathering.get((opcode, arguments))
        if answer is None:
            answer = self._gathering[opcode, arguments] = Answer(self, opcode, arguments)
        answer.token = max(answer.token, token)
        for first, last in ranges:
            add_range(answer.ranges, first, last)
        if waiter is not None:
            answer.waiters.append((waiter, ranges))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def connected(self, connection: Connection, key: int | str) -> None:
        """The consumer is known to this node under `key`: what is not confirmed goes out again."""
        if self._key and key != self._key:
            self.forget(
                Refused("unknown_delivery", "the session had ended: the message was returned")
            )
        self._connection = connection
        self._key = key
        for answer in self._sent:
            self._send(answer, connection)
        self._flush()

    def disconnected(self) -> None:
        self._connection = None
        for answer in self._sent:
            answer.request = 0
            answer.unsure = True
        self._let_go()

    def forget(self, error: QuorateError) -> None:
        """Nothing more will be heard of them. What was sent before may have been done all the
        same.
        """
        for answer in [*self._sent, *self._gathering.values()]:
            if answer.unsure and isinstance(error, Refused):
                answer.resolve(OutcomeUnknown(error.reason))
            else:
                answer.resolve(error)
        self._sent.clear()
        self._gathering.clear()
        self._wake()

    async def idle(self) -> None:
        """Wait until all are confirmed. Raises the first refusal since the last time."""
        while self.waiting:
            await self._news()
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    async def idle_here(self) -> bool:
        """Wait until all are confirmed; False: the connection was lost before."""
        while self.waiting and self._connection is not None:
            await self._news()
        return not self.waiting

    async def _news(self) -> None:
        """Wait until all are confirmed, or the connection is lost."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        await future

    def _wake(self) -> None:
        if not self.waiting:
            self._let_go()

    def _let_go(self) -> None:
        for future in self._idle:
            if not future.done():
                future.set_result(None)
        self._idle.clear()

    def _flush(self) -> None:
        self._scheduled = False
        connection = self._connection
        if connection is None or not self._gathering:
            return
        gathered, self._gathering = self._gathering, {}
        for answer in gathered.values():
            answer.ranges = merged(answer.ranges)
            self._sent[answer] = None
            self._send(answer, connection)

    def _send(self, answer: Answer, connection: Connection) -> None:
        answer.request = connection.next_request()
        frame = [
            answer.opcode,
            answer.request,
            self._owner.queue,
            self._key,
            answer.ranges,
            *answer.arguments,
        ]
        if answer.opcode != wire.EXTEND:
            frame.append(answer.token)
        connection.ask(answer.request, wire.encode(frame), answer)

    def answered(self, answer: Answer, opcode: int, frame: list[Any]) -> None:
        """Confirmed, refused, or to be sent again after the consumer has found the leader."""
        if opcode == wire.OK:
            self._finish(answer, self._error_of(answer))
        elif opcode == wire.ERROR and frame[2] not in wire.PASSING:
            refused = Refused(frame[2], frame[3], frame[4] if len(frame) > 4 else None)
            self._refused(answer, refused)
        else:
            answer.request = 0
            self._owner.resubscribe()

    def _refused(self, answer: Answer, refused: Refused) -> None:
        """The node refuses a frame as a whole when one position of it is another's by now."""
        position = refused.detail
        answer.refusal = answer.refusal or refused
        if refused.code == "unknown_delivery" and isinstance(position, int):
            rest = without(answer.ranges, position)
            if rest != answer.ranges:
                answer.refused.append(position)
                answer.ranges = rest
                self._owner.answer_done(answer.opcode, [[position, position]], answer.token)
                if rest and self._connection is not None:
                    self._send(answer, self._connection)
                elif not rest:
                    self._finish(answer, self._error_of(answer))
                return
        answer.refused.clear()  # all of it
        self._finish(answer, self._error_of(answer))

    def _error_of(self, answer: Answer) -> QuorateError | None:
        refusal = answer.refusal
        if refusal is None:
            return None
        if answer.unsure:
            # Perhaps refused because the first sending did it.
            return OutcomeUnknown(f"sent again, and then: {refusal}")
        self._refusal = self._refusal or refusal
        self._owner.answer_refused(refusal)
        return refusal

    def _finish(self, answer: Answer, error: QuorateError | None) -> None:
        self._sent.pop(answer, None)
        self._owner.answer_done(answer.opcode, answer.ranges, answer.token)
        answer.resolve(error)
        self._wake()
