"""The words of the native protocol: opcodes, close codes, what clients ask, and what can be wrong.

docs/protocol.md is the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from cluster.machine.catalog_commands import DestinationKind

VERSION = 1


class Opcode(IntEnum):
    HELLO = 1
    WELCOME = 2
    OK = 3
    ERROR = 4
    REDIRECT = 5
    PING = 6
    PONG = 7
    CLOSE = 8
    PUBLISH = 10
    CONFIRM = 11
    PUBLISH_PART = 12
    PUBLISH_TO = 13
    TRANSACT = 14
    SUBSCRIBE = 20
    SUBSCRIBED = 21
    CANCEL = 22
    CREDIT = 23
    DELIVER = 24
    ENDED = 25
    ACTIVE = 26
    DELIVER_PART = 27
    SHARDS = 28
    SETTLE = 30
    RETURN = 31
    DISCARD = 32
    EXTEND = 33
    WITHDRAW = 34
    RETIME = 35
    GET = 40
    GOT = 41
    READ = 42
    MESSAGES = 43
    DECLARE = 50
    DELETE = 51
    PURGE = 52
    PAUSE = 53
    INFO = 54
    PUT_CURSOR = 55
    DELETE_CURSOR = 56
    DECLARE_EXCHANGE = 57
    DELETE_EXCHANGE = 58
    BIND = 59
    UNBIND = 60


class CloseCode(IntEnum):
    """Why a WebSocket was closed."""

    NORMAL = 1000
    PROTOCOL_ERROR = 4000
    UNSUPPORTED_VERSION = 4001
    FRAME_TOO_LARGE = 4002
    HELLO_MISSING = 4003
    TAKEN_OVER = 4009
    SESSION_ENDED = 4010
    STOPPING = 4013
    TOO_MANY = 4029
    ACCESS_REFUSED = 4030


# --- what can be wrong ----------------------------------------------------------------------------


class FrameError(Exception):
    """The client sent something that this protocol does not have."""

    code = "bad_frame"
    close_code: CloseCode | None = None  # None: only this frame is refused

    def __init__(self, reason: str, request: int = 0, detail: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.request = request
        self.detail = detail


class MalformedFrame(FrameError):
    """Which request it was cannot be known, so the client could wait for its answer for ever."""

    code = "malformed_frame"
    close_code = CloseCode.PROTOCOL_ERROR


class UnknownOpcode(FrameError):
    code = "unknown_opcode"


class BadField(FrameError):
    code = "bad_frame"


class FrameTooLarge(FrameError):
    code = "frame_too_large"
    close_code = CloseCode.FRAME_TOO_LARGE


class UnsupportedVersion(FrameError):
    code = "unsupported_version"
    close_code = CloseCode.UNSUPPORTED_VERSION


class HelloMissing(FrameError):
    code = "hello_missing"
    close_code = CloseCode.HELLO_MISSING


# --- requests -------------------------------------------------------------------------------------


class Hello(NamedTuple):
    session: str | None
    resume_ms: int
    client: str
    vhost: str
    forward: bool
    shards: bool = False


class Ping(NamedTuple):
    number: int


class Pong(NamedTuple):
    number: int


class Goodbye(NamedTuple):
    code: int
    reason: str


class Publish(NamedTuple):
    request: int
    queue: str
    publisher: str | None
    seqno: int
    bodies: list[bytes]
    meta: Any
    attrs: Any
    large: Any = None


class PublishPart(NamedTuple):
    request: int
    queue: str
    upload: str
    number: int
    data: bytes


class PublishTo(NamedTuple):
    """Through an exchange: to the queues that are bound to it for this key."""

    request: int
    exchange: str
    key: str
    bodies: list[bytes]
    meta: Any
    attrs: Any

    @property
    def queue(self) -> str:
        """What a refusal is about."""
        return self.exchange


class Transact(NamedTuple):
    """All of it or nothing, in any queues. The requests in it have no numbers of their own."""

    request: int
    steps: Sequence[TransactionStep]

    @property
    def queue(self) -> str:
        """None of its own."""
        return ""


class Subscribe(NamedTuple):
    request: int
    queue: str
    tag: str
    credit: int | None
    priority: int
    exclusive: bool
    auto_settle: bool
    timeout_ms: int | None
    held: Sequence[tuple[int, int, int]]


class Cancel(NamedTuple):
    request: int
    queue: str
    consumer: int | str  # or a stream's cursor
    give_back: bool = False


class Credit(NamedTuple):
    request: int
    queue: str
    consumer: int
    credit: int


class Settle(NamedTuple):
    request: int
    queue: str
    consumer: int | str  # or a stream's cursor
    ranges: Sequence[tuple[int, int]]
    token: int | None = None


class Return(NamedTuple):
    request: int
    queue: str
    consumer: int | str  # or a stream's cursor
    ranges: Sequence[tuple[int, int]]
    failed: bool
    delay_ms: int | None
    token: int | None = None


class Discard(NamedTuple):
    request: int
    queue: str
    consumer: int | str  # or a stream's cursor
    ranges: Sequence[tuple[int, int]]
    token: int | None = None


class Extend(NamedTuple):
    request: int
    queue: str
    consumer: int | str  # or a stream's cursor
    ranges: Sequence[tuple[int, int]]
    timeout_ms: int | None


class Withdraw(NamedTuple):
    """Messages that wait, ready or delayed, leave the queue: all of these, or none."""

    request: int
    queue: str
    ranges: Sequence[tuple[int, int]]


class Retime(NamedTuple):
    """Those of these that wait are ready then: at a time, or so long from now."""

    request: int
    queue: str
    ranges: Sequence[tuple[int, int]]
    due_ms: int | None  # since the epoch
    delay_ms: int | None = None


class Get(NamedTuple):
    request: int
    queue: str
    messages: int
    auto_settle: bool
    ranges: Sequence[tuple[int, int]] | None = None  # those of these that wait, not the next ones


class Read(NamedTuple):
    """Of a stream: by a cursor, or from a place."""

    request: int
    queue: str
    cursor: str | None
    start: Any  # a sequence, "first", "last", "next", or {"time": ms since the epoch}
    messages: int
    wait_ms: int
    have: int = 0  # the last one that was got by the cursor


class Declare(NamedTuple):
    request: int
    queue: str
    arguments: dict[str, Any]


class Delete(NamedTuple):
    request: int
    queue: str
    if_unused: bool
    if_empty: bool


class Purge(NamedTuple):
    request: int
    queue: str


class Pause(NamedTuple):
    request: int
    queue: str
    paused: bool


class Info(NamedTuple):
    request: int
    queue: str


class PutCursor(NamedTuple):
    request: int
    queue: str
    cursor: str
    settings: dict[str, Any]


class DeleteCursor(NamedTuple):
    request: int
    queue: str
    cursor: str


class DeclareExchange(NamedTuple):
    request: int
    exchange: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]

    @property
    def queue(self) -> str:
        """What a refusal is about."""
        return self.exchange


class DeleteExchange(NamedTuple):
    request: int
    exchange: str
    if_unused: bool

    @property
    def queue(self) -> str:
        """What a refusal is about."""
        return self.exchange


class Bind(NamedTuple):
    """Or unbind."""

    request: int
    source: str
    kind: DestinationKind
    destination: str
    key: str
    arguments: dict[str, Any]
    bound: bool = True

    @property
    def queue(self) -> str:
        """What a refusal is about."""
        return self.destination


TransactionStep = Publish | PublishTo | Settle | Return | Discard

Request = (
    Hello
    | Ping
    | Pong
    | Goodbye
    | Publish
    | PublishPart
    | PublishTo
    | Transact
    | Subscribe
    | Cancel
    | Credit
    | Settle
    | Return
    | Discard
    | Extend
    | Withdraw
    | Retime
    | Get
    | Read
    | Declare
    | Delete
    | Purge
    | Pause
    | Info
    | PutCursor
    | DeleteCursor
    | DeclareExchange
    | DeleteExchange
    | Bind
)
