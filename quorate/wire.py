"""The native protocol's words (docs/protocol.md) and this client's limits, each with its name."""

from __future__ import annotations

from typing import Any, Final

import cbor2

VERSION: Final = 1

LOST: Final = 0  # not on the wire: the connection ended before the answer came
HELLO: Final = 1
WELCOME: Final = 2
OK: Final = 3
ERROR: Final = 4
REDIRECT: Final = 5
PING: Final = 6
PONG: Final = 7
CLOSE: Final = 8
PUBLISH: Final = 10
CONFIRM: Final = 11
PUBLISH_PART: Final = 12
PUBLISH_TO: Final = 13
TRANSACT: Final = 14
SUBSCRIBE: Final = 20
SUBSCRIBED: Final = 21
CANCEL: Final = 22
CREDIT: Final = 23
DELIVER: Final = 24
ENDED: Final = 25
ACTIVE: Final = 26
DELIVER_PART: Final = 27
SHARDS: Final = 28
SETTLE: Final = 30
RETURN: Final = 31
DISCARD: Final = 32
EXTEND: Final = 33
WITHDRAW: Final = 34
RETIME: Final = 35
GET: Final = 40
GOT: Final = 41
READ: Final = 42
MESSAGES: Final = 43
DECLARE: Final = 50
DELETE: Final = 51
PURGE: Final = 52
PAUSE: Final = 53
INFO: Final = 54
PUT_CURSOR: Final = 55
DELETE_CURSOR: Final = 56
DECLARE_EXCHANGE: Final = 57
DELETE_EXCHANGE: Final = 58
BIND: Final = 59
UNBIND: Final = 60

CLOSED_VERSION: Final = 4001
CLOSED_TAKEN_OVER: Final = 4009

ATTR_PRIORITY: Final = 1
ATTR_TTL_MS: Final = 2
ATTR_DELIVER_AT_MS: Final = 3
ATTR_DEDUP_ID: Final = 4

#: The code of an ERROR that is no refusal: the node lost track of what was asked.
UNKNOWN: Final = "unknown"
#: What is asked of a queue that is split has to be asked of its shards, which `detail` names.
SPLIT_QUEUE: Final = "split_queue"
#: Refusals that pass by themselves: the client tries again until the deadline.
PASSING: Final = frozenset({"not_leader", "no_leader", "stopping", "overloaded"})

#: What a node of an earlier release says of a request that it does not know.
NOT_KNOWN: Final = "unknown_opcode"

#: Refusals of HELLO that do not pass: who we are, or where we want to be.
NEVER_ADMITTED: Final = frozenset({"access_refused", "no_vhost"})

#: Seconds a call may take before its outcome is reported as unknown.
TIMEOUT_S_DEFAULT: Final = 30.0
#: How long what this client holds waits for it when its connection is lost.
RESUME_MS_DEFAULT: Final = 30_000
#: Most unsettled deliveries that a consumer holds unless told otherwise.
CREDIT_DEFAULT: Final = 2_000
#: How long a deferred message waits to be fetched, unless told otherwise: ten years, the longest.
DEFER_MS_DEFAULT: Final = 10 * 365 * 24 * 3_600_000
#: Most messages that one read of a stream brings.
READ_COUNT_MAX: Final = 1_000
#: A publish frame is closed at this many messages or bytes of bodies, whichever comes first.
BATCH_COUNT_MAX: Final = 1_024
BATCH_BYTES_MAX: Final = 256 * 1024
#: Bytes of bodies that one publisher keeps unconfirmed; publishing waits above it.
WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
#: A body over this is published in parts: so large each, so many of them on their way at once.
WHOLE_BODY_BYTES_MAX: Final = 16 * 1024 * 1024
PART_BYTES: Final = 512 * 1024
PARTS_AT_ONCE: Final = 4
#: How such a body begins goes with the publish itself.
HEAD_BYTES: Final = 4 * 1024
#: Largest WebSocket message accepted from a node.
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024

CONNECT_TIMEOUT_S: Final = 2.0
#: A node that was not heard for so long is pinged; sooner while an answer of it is waited for.
PING_INTERVAL_S: Final = 2.0
PING_WAITING_S: Final = 0.5
#: A connection on which a ping is not answered in time is dropped, and another node is asked: in
#: ANSWER_TIMES the slowest answer of late, within these bounds.
SILENCE_S_MIN: Final = 1.5
SILENCE_S_MAX: Final = 6.0
ANSWER_TIMES: Final = 4.0
#: HTTP: a leader may have moved on while we were sent to it.
REDIRECTS_MAX: Final = 5
BACKOFF_S_MIN: Final = 0.02
BACKOFF_S_MAX: Final = 1.0


def encode(frame: list[Any]) -> bytes:
    """One WebSocket message."""
    return cbor2.dumps(frame)


def decode(data: bytes) -> list[Any]:
    """The frame in one WebSocket message; ValueError when it is none."""
    try:
        frame = cbor2.loads(data)
    except Exception as error:  # cbor2 raises several kinds for bad bytes
        raise ValueError(f"not a frame: {error}") from error
    if not isinstance(frame, list) or not frame or not isinstance(frame[0], int):
        raise ValueError("not a frame: a CBOR array that begins with an opcode is expected")
    return frame  # pyright: ignore[reportUnknownVariableType]  # the codec's edge: fields are checked by their users
