"""What this node itself publishes: answers, statuses, advisories."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from node.protocols.nats.jetstream.times import text_of_ms
from node.protocols.nats.reader import CRLF, Burst, Publish, plain_messages
from node.protocols.nats.subjects import Subjects


class Inbox(NamedTuple):
    """Where an answer is wanted."""

    vhost: str
    subject: bytes


def json_of(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Post:
    """One per node."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects
        #: Of advisories and metrics: whether a stream has such a subject, and that it stores one.
        self.is_stored: Callable[[Inbox], bool] = lambda _: False
        self.store: Callable[[Inbox, bytes], None] = lambda _, __: None

    def send(self, inbox: Inbox, body: bytes, header: bytes = b"", reply: bytes = b"") -> None:
        """Nothing, without a subject."""
        if inbox.subject:
            message = Publish(
                inbox.subject,
                reply,
                len(header),
                len(header) + len(body),
                [b"%b%b%b" % (header, body, CRLF)],
            )
            self._subjects.send(inbox.vhost, inbox.subject, (message,))

    def answer_each(self, vhost: str, replies: Sequence[bytes], bodies: Sequence[bytes]) -> None:
        """Each to its subject; nothing where there is none."""
        start = _start_of(replies)
        if start is not None:
            self._subjects.send_alike(vhost, start, replies, bodies)
        else:
            self._subjects.send_each(vhost, plain_messages(replies, bodies))

    def json(self, inbox: Inbox, value: Any) -> None:
        if inbox.subject:
            self.send(inbox, json_of(value))

    def deliver(self, inbox: Inbox, bursts: Sequence[Burst]) -> bool:
        """True: whoever published or fetched this shall wait a little."""
        subjects = self._subjects
        before, subjects.backlogged = subjects.backlogged, False
        for burst in bursts:
            subjects.send_burst(inbox.vhost, inbox.subject, burst)
        slower = subjects.backlogged
        subjects.backlogged |= before
        return slower

    def wanted(self, inbox: Inbox, queue: bytes = b"") -> bool:
        return self._subjects.wanted_now(inbox.vhost, inbox.subject, queue)

    def heard(self, inbox: Inbox) -> bool:
        """Is what is told of by this subject for anybody?"""
        return self.wanted(inbox) or self.is_stored(inbox)

    def subscribed(self, inbox: Inbox) -> bool:
        return self._subjects.subscribed_now(inbox.vhost, inbox.subject)

    def advise(self, vhost: str, subject: str, kind: str, now_ms: int, /, **more: Any) -> None:
        """Of something that happened: `kind` is the last of its type."""
        self._tell(vhost, "advisory", subject, kind, now_ms, more)

    def measure(self, vhost: str, subject: str, kind: str, now_ms: int, **more: Any) -> None:
        """The same of something that was measured."""
        self._tell(vhost, "metric", subject, kind, now_ms, more)

    def _tell(
        self, vhost: str, event: str, subject: str, kind: str, now_ms: int, more: dict[str, Any]
    ) -> None:
        inbox = Inbox(vhost, f"$JS.EVENT.{event.upper()}.{subject}".encode())
        if self.heard(inbox):
            about = {
                "type": f"io.nats.jetstream.{event}.v1.{kind}",
                "id": secrets.token_urlsafe(16),
                "timestamp": text_of_ms(now_ms),
            }
            body = json_of(about | more)
            self.send(inbox, body)
            self.store(inbox, body)


def _start_of(subjects: Sequence[bytes]) -> bytes | None:
    """What comes before the last dot, if that is the same for all."""
    start, dot, _ = subjects[0].rpartition(b".")
    joined = b"\n" + b"\n".join(subjects)
    count = len(subjects)
    alike = (
        dot
        and joined.count(b"\n" + start + dot) == count
        and joined.count(dot) == count * (start.count(dot) + 1)
    )
    return start if alike else None
