"""What a workload asks of a broker, whichever protocol carries it.

A door is one client. It finds a node that answers and changes it when its connection breaks. No
call raises for what broker or network did: each ends within its time with an `Answer`. What may or
may not have happened is unknown, and a timeout is always unknown. Nothing is tried again behind the
caller's back, or one message could be stored twice: the exception is `numbered` publishing, which
is there for just that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from chaos.history import OpType

Protocols = Literal["native", "amqp"]
PROTOCOLS: Sequence[Protocols] = ("native", "amqp")

#: How long a call may take before its outcome counts as unknown.
CALL_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended, as far as the client can tell."""

    type: OpType  # ok, refused or unknown
    value: Any = None  # what was asked for
    reason: str = ""
    node: str | None = None  # the node that was asked
    refused: Sequence[tuple[int, int]] = ()  # ok publish: offsets that a limit kept out

    @property
    def ok(self) -> bool:
        return self.type == "ok"


NOT_OFFERED = Answer("refused", reason="not offered by this protocol")


@dataclass(frozen=True, slots=True)
class Received:
    """Messages handed to one consumer together: of one decision, or of one frame."""

    queue: str
    consumer: str  # unique in the run, another one after every new subscription
    messages: Sequence[str]  # ids, from the bodies
    redelivered: bool  # the flag
    delivery_count: int  # failed deliveries before, as the broker counts them
    token: int | None = None  # fencing token; None where the protocol does not tell it
    first: int | None = None  # position of the first message; None as above
    deaths: Sequence[Mapping[str, Any]] = ()  # of dead letters: why, from where
    node: str | None = None
    handle: Any = None  # what `Consumption` needs to settle them


class Consumption(Protocol):
    """One consumer. It ends when its connection does; the caller makes a new one."""

    @property
    def consumer(self) -> str: ...
    async def next(self) -> Received | None:
        """None: it has ended, and says no more."""
        ...

    async def settle(self, received: Received) -> Answer:
        """Acknowledge. Where the protocol has no answer to that, unknown at best."""
        ...

    async def give_back(self, received: Received, *, failed: bool) -> Answer:
        """To the queue again; `failed` counts towards the delivery limit."""
        ...

    async def discard(self, received: Received) -> Answer:
        """Reject for good: dead-lettered, where that is set."""
        ...

    async def close(self) -> Answer:
        """End it in good order: what it holds goes back to the queue."""
        ...


@dataclass(frozen=True, slots=True)
class Publish:
    """Messages to one place."""

    key: str  # routing key; of the default exchange: the queue
    messages: Sequence[str]  # ids; bodies are made of them
    exchange: str = ""
    bytes_each: int = 100
    ttl_ms: int | None = None
    delay_ms: int | None = None
    headers: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Driver(Protocol):
    """One client."""

    @property
    def name(self) -> str: ...
    @property
    def protocol(self) -> Protocols: ...

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> Answer: ...
    async def delete(self, queue: str) -> Answer: ...
    async def declare_exchange(self, exchange: str, kind: str) -> Answer: ...
    async def delete_exchange(self, exchange: str) -> Answer: ...
    async def bind(self, queue: str, exchange: str, key: str) -> Answer: ...
    async def unbind(self, queue: str, exchange: str, key: str) -> Answer: ...

    async def publish(self, publish: Publish) -> Answer:
        """One batch; ok: all of it is confirmed, but for `refused`."""
        ...

    async def numbered(self, publisher: str, first: int, publish: Publish) -> Answer:
        """As the named publisher's numbers from `first` on: may be repeated until it is ok, also
        by another door.
        """
        ...

    async def transaction(
        self, publishes: Sequence[Publish], settles: Sequence[Received], *, commit: bool = True
    ) -> Answer:
        """All of it or nothing, one after the other in time. Without `commit` it is rolled back,
        and so refused.
        """
        ...

    async def consume(self, queue: str, *, prefetch: int) -> Consumption | Answer: ...
    async def length(self, queue: str) -> Answer:
        """Linearizable: messages in the queue, ready and unsettled, as an int."""
        ...

    async def close(self) -> None:
        """In good order: what it holds goes back to its queues at once. Later calls are refused."""
        ...

    async def drop(self) -> None:
        """As `close`, but as a killed program leaves: its connections end without a word."""
        ...


def body_of(message: str, size: int) -> bytes:
    """The id, and padding."""
    return f"{message}|".encode().ljust(size, b".")


def id_of(body: bytes) -> str:
    return body.partition(b"|")[0].decode()
