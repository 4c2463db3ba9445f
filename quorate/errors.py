"""The three outcomes of a call, as exceptions: it returns (ok), `Refused` (surely not done),
`OutcomeUnknown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Ranges = Sequence[tuple[int, int]]


class QuorateError(Exception):
    """Anything that this client raises on purpose."""


class Refused(QuorateError):
    """Surely did not happen. `code` is a word from docs/protocol.md, `reason` says what to do about
    it.

    `ranges`: for `publish_many`, which of the given bodies (indexes from 0, both ends included)
    were refused; `confirmed`: how many of the others are safe.
    """

    def __init__(
        self,
        code: str,
        reason: str,
        detail: Any = None,
        *,
        ranges: Ranges = (),
        confirmed: int = 0,
    ) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason
        self.detail = detail
        self.ranges = list(ranges)
        self.confirmed = confirmed
        self.again = False  # an earlier attempt was sent and its answer lost


class Unreachable(Refused):
    """No node could be asked before the deadline: nothing was sent, so it surely did not happen."""

    def __init__(self, reason: str, *, ranges: Ranges = (), confirmed: int = 0) -> None:
        super().__init__("unreachable", reason, ranges=ranges, confirmed=confirmed)


class OutcomeUnknown(QuorateError):
    """It was sent, and the deadline passed without an answer: it may have happened, or may still
    happen.

    `ranges` and `confirmed` as in `Refused`.
    """

    def __init__(self, reason: str, *, ranges: Ranges = (), confirmed: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.ranges = list(ranges)
        self.confirmed = confirmed


class ConsumerEnded(QuorateError):
    """The node ended the consumer: `reason` is `queue_deleted` or `timeout` (held a message for too
    long).
    """

    def __init__(self, queue: str, reason: str) -> None:
        advice = {
            "queue_deleted": "declare the queue again before consuming from it",
            "timeout": "settle or extend deliveries sooner, or raise x-consumer-timeout",
        }.get(reason, "consume again")
        super().__init__(f"the consumer of queue {queue!r} was ended ({reason}): {advice}")
        self.queue = queue
        self.reason = reason


class ClientClosed(QuorateError):
    """The client was closed, or can never work: another took its session, or speaks another
    version.
    """
