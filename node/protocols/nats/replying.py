"""Who was sent a message may answer it, without a permission to write to its reply subject. Pure.

Not at any subject. Who publishes chooses the reply subject, and must not have another client write
for it into a stream, ask JetStream or acknowledge. So what a client published is answered at
inboxes, and only what JetStream delivered is acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

#: With what these reply subjects begin.
OF_REQUESTS: Final = b"_INBOX."
OF_DELIVERIES: Final = (b"$JS.ACK.", b"$JS.SNAPSHOT.ACK.")
#: From the message on.
ANSWER_S_MAX: Final = 120.0
#: To one message: an answer in parts, or work in progress.
ANSWERS_MAX: Final = 100
#: Messages of one connection; then the oldest is forgotten.
ASKED_MAX: Final = 10_000


class Replies:
    """Of one connection."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        #: By reply subject, oldest first: until when, and how many more.
        self._open: OrderedDict[bytes, tuple[float, int]] = OrderedDict()

    def asked(self, reply: bytes, now_s: float) -> None:
        """It was sent a message with this reply subject."""
        self._open[reply] = now_s + ANSWER_S_MAX, ANSWERS_MAX
        self._open.move_to_end(reply)
        if len(self._open) > ASKED_MAX:
            self._open.popitem(last=False)

    def take(self, subject: bytes, count: int, now_s: float) -> bool:
        """May so many messages be published there?"""
        until_s, left = self._open.get(subject, (0.0, 0))
        if now_s > until_s or count > left:
            return False
        self._open[subject] = until_s, left - count
        return True
