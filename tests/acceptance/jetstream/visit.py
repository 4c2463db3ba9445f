"""What one check does with a server: its clients, fresh names, and leaving all as it was."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.acceptance.jetstream.servers import WAIT_S, NatsServer
from tests.node.nats.wire import Message, Wire

#: Within it, what must not come would have come.
QUIET_S = 0.12
POLL_S = 0.02
KNOWN_S_MAX = 3.0
NOBODY = 503
MS = 1_000_000  # in ns
S = 1_000 * MS
INBOX_SID = b"1"
#: Nodes that have just met hand leaderships over to where they belong.
LEADERSHIP_CHANGE = "409 Leadership Change"

Json = dict[str, Any]
Headers = Mapping[str, object]


class Subscription(NamedTuple):
    client: Client
    sid: bytes
    subject: str
    asked: tuple[str, bytes] | None = None  # of a pull: to where, and what

    def next(self) -> Message:
        """What comes next, which must come. A pull is asked again when somebody else leads."""
        message = self.client.next(self.sid)
        while self.asked is not None and status(message) == LEADERSHIP_CHANGE:
            self.client.tell(*self.asked, reply=self.subject)
            message = self.client.next(self.sid)
        return message

    def some(self, count: int) -> list[Message]:
        return [self.next() for _ in range(count)]

    def body(self) -> bytes:
        return self.next().body

    def quiet(self, why: str) -> None:
        """Nothing comes."""
        found = self.client.arrived(self.sid, QUIET_S)
        assert not found, f"{why}: {[said(each) for each in found]} came"

    def end(self, after: int | None = None) -> None:
        self.client.wire.send(b"UNSUB %b%b\r\n" % (self.sid, b" %d" % after if after else b""))


class Client:
    """A connection with an inbox, whose messages are kept apart by subscription."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._serial = 1
        self._came: list[tuple[bytes, Message]] = []
        wire.send(f"SUB {self._inbox}.* 1\r\n".encode())
        wire.sync()

    def subscribe(self, subject: str, queue: str = "") -> Subscription:
        """As the server knows when this is over."""
        self._serial += 1
        sid = str(self._serial).encode()
        self.wire.send(f"SUB {subject} {queue} ".encode() + sid + b"\r\n")
        self.flush()
        return Subscription(self, sid, subject)

    def inbox(self) -> Subscription:
        return self.subscribe(f"{self._inbox}-{self._serial}")

    def tell(
        self, subject: str, body: bytes = b"", headers: Headers | None = None, reply: str = ""
    ) -> None:
        words = f"{subject} {reply}".encode()
        if headers is None:
            self.wire.send(b"PUB %b %d\r\n%b\r\n" % (words, len(body), body))
            return
        block = header_block(headers)
        sizes = (words, len(block), len(block) + len(body))
        self.wire.send(b"HPUB %b %d %d\r\n" % sizes + block + body + b"\r\n")

    def request(self, subject: str, body: bytes = b"", headers: Headers | None = None) -> Message:
        """The first answer."""
        self._serial += 1
        reply = f"{self._inbox}.{self._serial}"
        self.tell(subject, body, headers, reply)
        return self._find(lambda sid, each: sid == INBOX_SID and each.subject == reply)

    def next(self, sid: bytes) -> Message:
        return self._find(lambda own, _: own == sid)

    def arrived(self, sid: bytes, within_s: float) -> list[Message]:
        """What comes for it meanwhile; it is not taken."""
        self.wire.wait(within_s)
        while b"MSG " in self.wire.said:
            self._came.append(self.wire.delivery())
        return [each for own, each in self._came if own == sid]

    def flush(self) -> None:
        """All that was sent before is done; messages that came meanwhile are kept."""
        before = self.wire.sync()
        self.wire.said = before + self.wire.said

    def _find(self, wanted: Callable[[bytes, Message], bool]) -> Message:
        for at, (sid, message) in enumerate(self._came):
            if wanted(sid, message):
                del self._came[at]
                return message
        while True:
            sid, message = self.wire.delivery()
            if wanted(sid, message):
                return message
            self._came.append((sid, message))


class Visit:
    """One check at one server."""

    def __init__(self, server: NatsServer, row: str) -> None:
        self.server = server
        self.heard: list[str] = []
        self._row = row
        self._wires: list[Wire] = []
        self._streams: list[str] = []
        self._client: Client | None = None

    # Connections.

    def wire(self, node: int = 0) -> Wire:
        """That has said nothing yet."""
        address = self.server.addresses[node % len(self.server.addresses)]
        self._wires.append(Wire(address, wait_s=WAIT_S))
        return self._wires[-1]

    def connected(self, node: int = 0, **options: Any) -> Wire:
        return self.wire(node).connect(**{**self.server.login, **options})

    def client(self, node: int = 0, **options: Any) -> Client:
        return Client(self.connected(node, **options))

    @property
    def main(self) -> Client:
        """The one that asks, unless another one is named."""
        if self._client is None:
            self._client = self.client()
        return self._client

    # Things with fresh names.

    def name(self, what: str = "x") -> str:
        """A token."""
        return f"{self._row}-{what}-{uuid.uuid4().hex[:10]}"

    def stream(self, **config: Any) -> str:
        """A new stream in files; its subjects are its name and all below, unless told otherwise."""
        name = self.name("stream")
        asked = {"name": name, "subjects": [name, f"{name}.>"], **config}
        self.created(asked)
        return name

    def created(self, config: Json) -> Json:
        """A stream as the server shows it, which it must take."""
        found = self.ask(f"STREAM.CREATE.{config['name']}", config)
        assert "error" not in found, f"the stream is refused: {found['error']}"
        self._streams.append(config["name"])
        return found

    def consumer(self, stream: str, name: str | None = None, **config: Any) -> str:
        """A new consumer with explicit acknowledgements unless told otherwise; its name."""
        found = self.put_consumer(stream, name or self.name("consumer"), **config)
        assert "error" not in found, f"the consumer is refused: {found['error']}"
        return found["name"]

    def put_consumer(self, stream: str, name: str, action: str = "", **config: Any) -> Json:
        """Durable, with explicit acknowledgements, unless told otherwise; what is answered."""
        given = {"durable_name": name, "name": name, "ack_policy": "explicit", **config}
        given = {field: value for field, value in given.items() if value is not None}
        body = {"stream_name": stream, "config": given, "action": action}
        return self.ask(f"CONSUMER.CREATE.{stream}.{name}", body)

    # Asking.

    def request(self, subject: str, body: bytes = b"", headers: Headers | None = None) -> Message:
        """The answer. Nodes of nats-server hear of what is new one after the other, and say for a
        moment that nobody is there.
        """
        end_s = time.monotonic() + KNOWN_S_MAX
        while True:
            answer = self.main.request(subject, body, headers)
            known = answer.status != NOBODY or self.server.is_quorate
            if known or time.monotonic() > end_s:
                return answer
            time.sleep(POLL_S)

    def ask(self, verb: str, body: Any = None) -> Json:
        """Of JetStream's API."""
        answer = self.request(f"$JS.API.{verb}", as_bytes(body))
        assert answer.body, f"{verb} is answered {said(answer)}"
        return answer.json

    def got(self, verb: str, body: Any = None) -> Json:
        """Which must be no error."""
        found = self.ask(verb, body)
        assert "error" not in found, f"{verb}: {found['error']}"
        return found

    def refused(self, verb: str, body: Any, number: int, code: int | None = None) -> Json:
        """With this number."""
        return self.is_error(self.ask(verb, body), number, code, verb)

    def is_error(self, found: Json, number: int, code: int | None = None, of: str = "it") -> Json:
        error = found.get("error")
        assert error, f"{of} is not refused; expected {number}"
        self.heard.append(f"{error.get('err_code')} {error.get('description')}")
        assert error.get("err_code") == number, f"{of}: {error} instead of {number}"
        assert code in (None, error["code"]), f"{of}: {error} instead of code {code}"
        return error

    def each_is_refused(
        self, verb: Callable[[Json], str], cases: Mapping[str, tuple[Json, int]]
    ) -> None:
        """Cases: what is wrong -> a body, and the number of its error."""
        wrong: list[str] = []
        for what, (body, number) in cases.items():
            try:
                self.refused(verb(body), body, number)
            except AssertionError as error:
                wrong.append(f"{what}: {str(error).splitlines()[0]}")
        assert not wrong, "; ".join(wrong)

    def info(self, stream: str, **asked: Any) -> Json:
        return self.got(f"STREAM.INFO.{stream}", asked)

    def state(self, stream: str) -> Json:
        return self.info(stream)["state"]

    def about(self, stream: str, consumer: str) -> Json:
        return self.got(f"CONSUMER.INFO.{stream}.{consumer}")

    # Messages.

    def publish(
        self, subject: str, body: bytes = b"", headers: Headers | None = None, **named: object
    ) -> Json:
        """The answer, whatever it is. `named`: headers, with an underscore for each hyphen."""
        given = {**(headers or {}), **{name.replace("_", "-"): named[name] for name in named}}
        answer = self.request(subject, body, given or None)
        assert answer.body, f"a publish to {subject} is answered {said(answer)}"
        return answer.json

    def fill(self, subject: str, *contents: str) -> list[int]:
        """Publish these; their sequences."""
        found = [self.publish(subject, each.encode()) for each in contents]
        assert not any("error" in each for each in found), found
        return [each["seq"] for each in found]

    def pull(self, stream: str, consumer: str, body: Any = None, **asked: Any) -> Subscription:
        """A request for messages; what it brings comes by the subscription."""
        inbox = self.main.inbox()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        what = as_bytes(asked if body is None else body)
        self.main.tell(subject, what, reply=inbox.subject)
        return inbox._replace(asked=(subject, what))

    def fetch(self, stream: str, consumer: str, count: int, **asked: Any) -> list[Message]:
        """So many messages, which must come."""
        given = {"batch": count, "expires": round(WAIT_S) * S, **asked}
        found = self.pull(stream, consumer, **given).some(count)
        assert not any(each.status for each in found), [said(each) for each in found]
        return found

    def nothing(self, stream: str, consumer: str, why: str) -> None:
        """There is nothing to be got now."""
        found = self.pull(stream, consumer, batch=1, no_wait=True).next()
        assert found.status == 404, f"{why}: {said(found)}"

    def say(self, message: Message, word: bytes = b"+ACK") -> None:
        """Acknowledge it, or what else, and wait until that is safe."""
        assert message.reply, "it cannot be acknowledged"
        self.main.request(message.reply, word)

    def until(self, check: Callable[[], Any], what: Callable[[], str] | str) -> None:
        """Until it holds."""
        end_s = time.monotonic() + WAIT_S
        while not check():
            assert time.monotonic() < end_s, what if isinstance(what, str) else what()
            time.sleep(POLL_S)

    # Leaving.

    def leave(self) -> None:
        """Delete all that was made, and close."""
        with suppress(AssertionError, OSError):
            if self._streams:
                last = self.client()
                for name in self._streams:
                    last.request(f"$JS.API.STREAM.DELETE.{name}")
        for wire in self._wires:
            wire.close()


def as_bytes(body: Any) -> bytes:
    if body is None:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def header_block(headers: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def headers_of(message: Message) -> dict[str, str]:
    """The first of each name."""
    found: dict[str, str] = {}
    for line in message.header.decode().split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, value.strip())
    return found


def status(message: Message) -> str:
    """Its code and text."""
    return message.header.split(b"\r\n")[0].decode().removeprefix("NATS/1.0").strip()


def said(message: Message) -> str:
    """For people: what it is."""
    return status(message) or f"{message.subject} {message.body[:80]!r}"


def bodies(messages: Sequence[Message]) -> list[str]:
    return [each.body.decode() for each in messages]


@dataclass(frozen=True)
class Delivered:
    """What the reply of a delivery tells."""

    stream: str
    consumer: str
    count: int
    sequence: int
    own: int  # sequence, of the consumer
    stored_ns: int
    pending: int


def delivered(message: Message) -> Delivered:
    tokens = message.reply.split(".")
    assert tokens[:2] == ["$JS", "ACK"], f"{said(message)}: its reply is {message.reply!r}"
    assert len(tokens) in (9, 12), f"its reply is {message.reply!r}"
    stream, consumer = tokens[2:4] if len(tokens) == 9 else tokens[4:6]
    rest = tokens[-5:] if len(tokens) == 9 else tokens[-6:-1]
    count, sequence, own, stored_ns, pending = map(int, rest)
    return Delivered(stream, consumer, count, sequence, own, stored_ns, pending)
