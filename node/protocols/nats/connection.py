"""One NATS client: its socket, its login, what it publishes and what it is sent.

Writes are collected for one iteration of the loop. A client that does not take what it is sent is
cut off; publishers are slowed down before that.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, cast

import structlog

from cluster.machine.replies import NO_VHOST
from cluster.read_slices import FULL_READ_BYTES, ReadPauses, ReadSlices
from node.access.auth import Auth, User
from node.access.nkeys import is_signed
from node.access.permissions import Access, Answers
from node.clients.clients import TOO_MANY, Clients
from node.dispatch.in_flight import InFlight
from node.errors import AccessRefused, Refused
from node.messages.subjects import is_literal, is_subject
from node.protocols.basic_auth import is_loopback
from node.protocols.ends import Ends
from node.protocols.nats.interest import Subscription, Taker
from node.protocols.nats.jetstream.requests import without_domain
from node.protocols.nats.jetstream.service import JetStream
from node.protocols.nats.jetstream.times import text_of_ms
from node.protocols.nats.reader import (
    ACKED,
    CRLF,
    Acks,
    Burst,
    Connect,
    Event,
    NatsReader,
    Ping,
    Pong,
    Publish,
    Requests,
    Subscribe,
    UnknownOperation,
    Unsubscribe,
    plain_messages,
)
from node.protocols.nats.replying import OF_DELIVERIES, OF_REQUESTS, Replies
from node.protocols.nats.subjects import Subjects
from node.protocols.tls import certificate_user
from node.tasks import Tasks

#: Over this, what was written leaves at once.
FLUSH_BYTES: Final = 64 * 1024
#: With more to send than this a client is behind.
BEHIND_BYTES: Final = 1 << 20
#: With more it is cut off, and also when it has taken nothing for so long while it is behind.
PENDING_BYTES_MAX: Final = 64 << 20
WRITE_S_MAX: Final = 10.0
#: How long a publisher waits after a read of messages for somebody who is behind.
SLOWER_S: Final = 0.01
#: From connecting, or from the TLS handshake, to CONNECT.
LOGIN_S_MAX: Final = 2.0
#: From CONNECT on, for the password to be checked: who guesses has to wait.
ANSWER_S_MAX: Final = 10.0
#: After so long without a byte from it a client is pinged; so many may be unanswered.
PING_S: Final = 120.0
PINGS_MAX: Final = 2
#: How long a client may take to see why it is closed.
CLOSE_S_MAX: Final = 1.0

SLOWER: Final = "slower"
LOGIN: Final = "login"
UNDER_WAY: Final = "under way"
NEXT_TURN: Final = "next turn"

#: Besides those of the reader: what ends a connection.
UNAUTHORIZED: Final = "Authorization Violation"
TOO_LATE: Final = "Authentication Timeout"
REVOKED: Final = "User Authentication Revoked"
STALE: Final = "Stale Connection"
TOO_MANY_CONNECTIONS: Final = "maximum connections exceeded"
WRONG_PROTOCOL: Final = "invalid client protocol"
NO_HEADERS: Final = "message headers not supported"
NEEDS_HEADERS: Final = "no responders requires headers support"
#: And what does not.
TOO_MANY_SUBSCRIPTIONS: Final = "maximum subscriptions exceeded"

#: Options of CONNECT that say who somebody is.
CREDENTIALS: Final = ("user", "pass", "auth_token", "nkey", "sig", "jwt")
NONCE_BYTES: Final = 11

#: And what it is.
ABOUT: Final = ("name", "lang", "version")

#: With what requests about nodes and users begin.
SYSTEM: Final = b"$SYS.REQ."

OK: Final = b"+OK\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
#: In the headers of a message that asks where it goes: see `node.protocols.nats.tracing`.
TRACED: Final = b"\r\nNats-Trace-"
DEFAULT_VHOST: Final = "/"

log = structlog.get_logger(__name__)


class NatsPhase(Enum):
    STARTING = "starting"
    RUNNING = "running"
    CLOSED = "closed"  # nothing is read or sent any more


@dataclass(frozen=True, slots=True)
class Origin:
    """How a client comes."""

    tls: bool = False
    upgrades: bool = False  # to TLS, after INFO
    websocket: bool = False
    #: Whatever its address is, it need not be a program of this machine.
    proxied: bool = False
    #: A browser asks for a page, of any site: who it is must be said.
    page: bool = False


class NatsCounters:
    """What came and went: messages, not bursts of them."""

    __slots__ = ("in_bytes", "in_messages", "out_bytes", "out_messages")

    def __init__(self) -> None:
        self.in_messages = self.in_bytes = 0
        self.out_messages = self.out_bytes = 0

    def add(self, other: NatsCounters) -> None:
        self.in_messages += other.in_messages
        self.in_bytes += other.in_bytes
        self.out_messages += other.out_messages
        self.out_bytes += other.out_bytes


class NatsHome(Protocol):
    """Where connections are registered: see `node.protocols.nats.server`."""

    auth: Auth
    clients: Clients
    subjects: Subjects
    slow_counts: Counter[str]  # of clients that were cut off, by virtual host
    tasks: Tasks
    jetstream: JetStream

    #: Asked under `$SYS`. False: nobody would answer.
    on_system: Callable[[NatsConnection, Publish], bool]
    #: It asks where it goes; the last publishes it.
    on_traced: Callable[[NatsConnection, Publish, Callable[[Publish], None]], None]
    domain_prefix: bytes  # of requests that name JetStream's domain; empty: it has none
    payload_bytes_max: int
    subscriptions_max: int  # of a connection
    in_flight_bytes_max: int  # of a connection, into streams

    def add(self, connection: NatsConnection) -> bool:
        """False: there are too many."""
        ...

    def remove(self, connection: NatsConnection) -> None: ...
    def info(self, connection: NatsConnection, **more: Any) -> bytes:
        """The line for this client."""
        ...

    async def secure(self, connection: NatsConnection, transport: asyncio.Transport) -> None:
        """The TLS handshake; then `secured` is called."""
        ...


class NatsConnection(asyncio.Protocol):
    """Implements `Taker`, and `Client` of `node.clients.clients`."""

    channel_count = 0

    def __init__(self, home: NatsHome, number: int, origin: Origin) -> None:
        self.number = number
        self.origin = origin
        self.ends: Ends
        self.address = ""  # of the client
        self.nonce = secrets.token_urlsafe(NONCE_BYTES)  # for clients that have a key to sign it
        self.about: dict[str, str] = {}  # what the client says of itself
        self.counters = NatsCounters()
        self.user_name = ""
        self.vhost = DEFAULT_VHOST
        self.phase = NatsPhase.STARTING
        self.behind = False
        self.subscriptions: dict[bytes, Subscription] = {}
        self._pauses = ReadPauses()
        #: Of what it publishes into streams.
        self.in_flight = InFlight(
            home.in_flight_bytes_max,
            partial(self._pauses.pause, UNDER_WAY),
            partial(self._pauses.resume, UNDER_WAY),
        )
        self._home = home
        self._subjects = home.subjects
        self._access: Access
        self._writable: Answers  # in this turn
        self._readable: Answers | None = None  # in this turn, if it was asked
        self._replies = Replies()
        self._verbose = self._pedantic = self._echo = True
        self._headers = self._no_responders = self._takes_info = False
        self._pinged = False  # the client has: some cannot read INFO before the first PONG
        self._reader = NatsReader(payload_bytes_max=home.payload_bytes_max)
        self._held: list[Event] = []  # what came during the login
        self._login: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.opened_s = self.active_s = self._loop.time()
        self._transport: asyncio.Transport
        pauses = self._pauses
        self._slices = ReadSlices(
            partial(pauses.pause, NEXT_TURN), partial(pauses.resume, NEXT_TURN)
        )
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_soon = False
        self.sent_bytes = 0  # given to the transport
        self.received_bytes = 0
        self._seen_bytes = 0
        self._pings = 0
        self._timer: asyncio.TimerHandle | None = None  # of the phase
        self._write_timer: asyncio.TimerHandle | None = None

    # --- the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are none
        self._pauses.transport = transport
        transport.set_write_buffer_limits(high=BEHIND_BYTES)
        self.ends = Ends.of(transport, tls=self.origin.tls)
        self.address = self.ends.peer_host
        if not self._home.add(self):
            self._close(TOO_MANY_CONNECTIONS)
            return
        transport.write(self._home.info(self))
        if self.origin.upgrades:
            transport.pause_reading()  # what comes next is not for us
            self._home.tasks.start(self._home.secure(self, transport), name="nats_tls")
        else:
            self._wait(LOGIN_S_MAX, self._close, TOO_LATE)

    def secured(self, transport: asyncio.Transport) -> None:
        self._transport = self._pauses.transport = transport
        transport.set_write_buffer_limits(high=BEHIND_BYTES)
        self._wait(LOGIN_S_MAX, self._close, TOO_LATE)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self.active_s = self._loop.time()
        if len(data) >= FULL_READ_BYTES:
            self._slices.full_read(len(data))
        if self.phase is NatsPhase.CLOSED:
            return
        events = self._reader.feed(data)
        if self.phase is NatsPhase.RUNNING:
            self._receive(events)
        else:
            self._held += events
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._stop_waiting()
        self._home.remove(self)

    def pause_writing(self) -> None:
        self.behind = True
        self._watch_writing()

    def resume_writing(self) -> None:
        self.behind = False
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _watch_writing(self) -> None:
        taken = self.sent_bytes - self._transport.get_write_buffer_size()
        self._write_timer = self._loop.call_later(WRITE_S_MAX, self._look_at_writing, taken)

    def _look_at_writing(self, before: int) -> None:
        if self.sent_bytes - self._transport.get_write_buffer_size() == before:
            self._cut_off()
        else:
            self._watch_writing()

    def _wait(self, seconds: float, then: Callable[..., None], *args: Any) -> None:
        """For one thing at a time."""
        self._stop_waiting()
        self._timer = self._loop.call_later(seconds, then, *args)

    @property
    def administers(self) -> bool:
        """Its user may do what concerns all nodes."""
        user = self._home.auth.user(self.user_name)
        return user is not None and "administrator" in user.tags

    def who(self, now_ms: int) -> dict[str, Any]:
        """See `Caller` of JetStream's API."""
        given = {"name": "name", "lang": "lang", "version": "ver"}
        return {
            "start": text_of_ms(now_ms - round(self.up_s * 1000)),
            "host": self.ends.peer_host,
            "id": self.number,
            "acc": self.vhost,
            "user": self.user_name,
            **{name: self.about[own] for own, name in given.items() if own in self.about},
            "kind": "Client",
            "client_type": "websocket" if self.origin.websocket else "nats",
        }

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # --- out --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= FLUSH_BYTES:
            self._flush()
        elif not self._flush_soon:
            self._flush_later()

    def _flush_later(self) -> None:
        if not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_soon = False
        self._readable = None
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if not out or self._transport.is_closing():
            return
        self._transport.write(b"".join(out))
        self.sent_bytes += size
        self.active_s = self._loop.time()
        if self.behind and self._transport.get_write_buffer_size() > PENDING_BYTES_MAX:
            self._cut_off()

    def _cut_off(self) -> None:
        self._home.slow_counts[self.vhost] += 1
        log.warning(
            "nats_slow_consumer",
            address=self.address,
            user=self.user_name,
            pending_bytes=self.pending_bytes,
        )
        self._transport.abort()

    @property
    def up_s(self) -> float:
        return self._loop.time() - self.opened_s

    @property
    def idle_s(self) -> float:
        """Since something came or went."""
        return self._loop.time() - self.active_s

    @property
    def pending_bytes(self) -> int:
        """Not taken by the network yet."""
        return self._out_bytes + self._transport.get_write_buffer_size()

    def say_error(self, text: str) -> None:
        self.write(b"-ERR '%b'\r\n" % text.encode())

    def send_info(self, **more: Any) -> None:
        """Whenever something changes."""
        if self._takes_info and self._pinged:
            self.write(self._home.info(self, **more))

    # --- login ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """What came first must be CONNECT; the rest waits for what becomes of it."""
        if self._login is not None:
            return
        if self._held:
            first = self._held.pop(0)
            if isinstance(first, Connect):
                self._wait(ANSWER_S_MAX, self._close, TOO_LATE)
                self._pauses.pause(LOGIN)
                self._login = self._home.tasks.start(self._enter(first), name="nats_login")
            else:
                self._close(UNAUTHORIZED)
        elif isinstance(self._reader.error, UnknownOperation):
            self._close(UNAUTHORIZED)
        elif self._reader.error is not None:
            self._close(self._reader.error.text)

    async def _enter(self, connect: Connect) -> None:
        refusal = await self._admit(connect)
        if self.phase is NatsPhase.CLOSED:
            return
        if refusal is not None:
            self._close(refusal)
            return
        self.phase = NatsPhase.RUNNING
        self._home.clients.add(self)
        log.info("nats_connected", address=self.address, user=self.user_name, vhost=self.vhost)
        if self._verbose:
            self.write(OK)
        self._wait(PING_S, self._look_for_life)
        self._pauses.resume(LOGIN)
        held, self._held = self._held, []
        self._receive(held)

    async def _admit(self, connect: Connect) -> str | None:
        """Why not. Empty: it may be tried again, here or elsewhere."""
        refusal = self._take_options(connect)
        if refusal is not None:
            return refusal
        origin = self.origin
        with_tls = origin.tls and not origin.websocket
        certified = certificate_user(self._transport) if with_tls else None
        try:
            match connect.options:
                case {"user": str(name), "pass": str(password)}:
                    return await self._admit_named(name, password)
                case {"auth_token": str(token)}:
                    name, _, password = token.partition(":")
                    return await self._admit_named(name, password)
                case {"nkey": str(nkey), "sig": str(signature), **rest} if not rest.get("jwt"):
                    return await self._admit_key(nkey, signature)
                case options if any(options.get(each) for each in CREDENTIALS):
                    return UNAUTHORIZED
                case _ if certified is not None:
                    return await self._admit_named(certified)
                case _:
                    return await self._admit_guest()
        except Refused as refused:
            return UNAUTHORIZED if isinstance(refused, AccessRefused) else ""

    async def _admit_named(self, name: str, password: str | None = None) -> str | None:
        """None: a certificate has proved the name. Raises Refused."""
        auth = self._home.auth
        vhost, slash, user = name.rpartition("/")
        if not slash or auth.user(name) is not None:
            vhost, user = DEFAULT_VHOST, name
        local, address = self._is_local, self.address
        if password is None:
            found = await auth.certified(user, loopback=local, address=address, protocol="nats")
        else:
            found = await auth.login(
                user, password, loopback=local, address=address, protocol="nats"
            )
        return await self._admit_user(found, vhost)

    async def _admit_key(self, nkey: str, signature: str) -> str | None:
        """Raises Refused."""
        if not is_signed(nkey, self.nonce.encode(), signature):
            return UNAUTHORIZED
        found = await self._home.auth.owner(
            nkey, loopback=self._is_local, address=self.address, protocol="nats"
        )
        return await self._admit_user(found, DEFAULT_VHOST)

    async def _admit_guest(self) -> str | None:
        """Without credentials, where the node's settings let programs of its machine be guest."""
        auth = self._home.auth
        local = self._is_local and not self.origin.page
        guest = await auth.guest() if auth.passwordless_guest and local else None
        return UNAUTHORIZED if guest is None else await self._admit_user(guest, DEFAULT_VHOST)

    async def _admit_user(self, user: User, vhost: str) -> str | None:
        try:
            self._access = await self._home.clients.admit(user, vhost)
        except Refused as refused:
            if refused.code == TOO_MANY:
                return TOO_MANY_CONNECTIONS
            known = isinstance(refused, AccessRefused) or refused.code == NO_VHOST
            return UNAUTHORIZED if known else ""
        self.user_name, self.vhost = user.name, vhost
        return None

    @property
    def _is_local(self) -> bool:
        return not self.origin.proxied and is_loopback(self.address)

    def _take_options(self, connect: Connect) -> str | None:
        """Why they cannot be."""
        options = connect.options
        self._verbose = options.get("verbose") is not False
        self._pedantic = options.get("pedantic") is not False
        self._echo = options.get("echo") is not False
        self._headers = options.get("headers") is True
        self._no_responders = options.get("no_responders") is True
        self.about = {
            name: value for name in ABOUT if isinstance(value := options.get(name), str) and value
        }
        protocol = options.get("protocol", 0)
        self._takes_info = protocol == 1
        if protocol not in (0, 1):
            return WRONG_PROTOCOL
        if self._no_responders and not self._headers:
            return NEEDS_HEADERS
        return None

    # --- running ----------------------------------------------------------------------------------

    def _receive(self, events: list[Event]) -> None:
        self._subjects.backlogged = False
        self._writable = self._access.answers("write")
        for event in events:
            match event:
                case Publish():
                    self._publish(event)
                case Requests():
                    self._publish_each(event)
                case Acks():
                    self._acknowledge(event)
                case Subscribe():
                    self._subscribe(event)
                case Unsubscribe():
                    self._unsubscribe(event)
                case Ping():
                    self.write(PONG)
                    if not self._pinged:
                        self._pinged = True
                        self.send_info(connect_info=True)
                case Pong():
                    pass
                case Connect():
                    refusal = self._take_options(event)
                    if refusal is not None:
                        self._close(refusal)
                    else:
                        self._say_ok()
            if self.phase is not NatsPhase.RUNNING:
                return
        self._home.jetstream.end_of_read()
        if self._reader.error is not None:
            self._close(self._reader.error.text)
        elif self._subjects.backlogged:
            self._pauses.pause(SLOWER)
            self._loop.call_later(SLOWER_S, self._pauses.resume, SLOWER)

    def _say_ok(self, count: int = 1) -> None:
        if self._verbose:
            self.write(OK * count)

    def _publish(self, message: Publish) -> None:
        prefix = self._home.domain_prefix
        if prefix and message.subject.startswith(prefix):  # so permissions are those of all others
            message = message._replace(subject=without_domain(message.subject, prefix))
        subject, count = message.subject, len(message.payloads)
        counters = self.counters
        counters.in_messages += count
        counters.in_bytes += count * message.size
        if message.header_bytes and not self._headers:
            self._close(NO_HEADERS)
        elif self._pedantic and not is_literal(subject):
            self.say_error("Invalid Publish Subject")
        elif not self._writable[subject] and not self._replies.take(
            subject, count, self._loop.time()
        ):
            self.refuse_publish(subject)
        else:
            self._say_ok(count)
            header_bytes = message.header_bytes
            if header_bytes:
                for payload in message.payloads:
                    if payload.find(TRACED, 0, header_bytes) > 0:
                        self._home.on_traced(self, message, self._pass_on)
                        return
            self._pass_on(message)

    def _pass_on(self, message: Publish) -> None:
        taken = self._home.jetstream.publish(self, message)
        if message.subject.startswith(SYSTEM):
            taken |= self._home.on_system(self, message)
        if not taken and message.reply and self._no_responders:
            self._say_nobody(message)

    def may_publish(self, subject: bytes) -> bool:
        return self._writable[subject]

    def refuse_publish(self, subject: bytes) -> None:
        self.say_error(f'Permissions Violation for Publish to "{text_of(subject)}"')

    def _publish_each(self, messages: Requests) -> None:
        """At once, if nobody but a stream is to have them."""
        prefix = self._home.domain_prefix
        if prefix and messages.subject.startswith(prefix):
            messages = messages._replace(subject=without_domain(messages.subject, prefix))
        subject, count = messages.subject, len(messages.payloads)
        fine = self._writable[subject] and not self._pedantic
        if fine and self._home.jetstream.store(self, messages):
            counters = self.counters
            counters.in_messages += count
            counters.in_bytes += count * messages.size
            self._say_ok(count)
            return
        for message in messages.each():
            self._publish(message)
            if self.phase is not NatsPhase.RUNNING:
                return

    def _acknowledge(self, acks: Acks) -> None:
        """At once, if that is all there is to look at."""
        if self._writable.everything and self._home.jetstream.acknowledge(self, acks):
            counters, count = self.counters, len(acks.sequences)
            counters.in_messages += count
            counters.in_bytes += count * len(ACKED)
            self._say_ok(count)
            return
        for message in acks.each():
            self._publish(message)
            if self.phase is not NatsPhase.RUNNING:
                return

    def _say_nobody(self, message: Publish) -> None:
        header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % message.subject
        size = len(header)
        payloads = [header + CRLF] * len(message.payloads)
        answer = Publish(message.reply, b"", size, size, payloads)
        self._subjects.answer(self.vhost, answer, self)

    def _subscribe(self, event: Subscribe) -> None:
        subject, queue, sid = event
        if not is_subject(subject):
            self.say_error("Invalid Subject")
        elif not self._access.may("read", text_of(subject)):
            using = f' using queue "{text_of(queue)}"' if queue else ""
            self.say_error(f'Permissions Violation for Subscription to "{text_of(subject)}"{using}')
        elif len(self.subscriptions) >= self._home.subscriptions_max:
            self.say_error(TOO_MANY_SUBSCRIPTIONS)
        else:
            if sid not in self.subscriptions:
                found = self.subscriptions[sid] = Subscription(self, sid, subject, queue)
                self._subjects.subscribe(self.vhost, found)
            self._say_ok()

    def _unsubscribe(self, event: Unsubscribe) -> None:
        subscription = self.subscriptions.get(event.sid)
        if subscription is not None:
            subscription.most = event.most
            if subscription.delivered >= event.most:
                self._end_subscription(subscription)
        self._say_ok()

    def _end_subscription(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.sid]
        self._subjects.unsubscribe(self.vhost, subscription)

    def deliver(
        self, subscription: Subscription, message: Publish, payloads: list[bytes], by: Taker | None
    ) -> list[bytes]:
        """See `Taker`. A permission that was taken away holds for what comes from then on."""
        sid = subscription.sid
        subject, reply, header_bytes, size, _ = message
        readable = self._readable
        if readable is None:
            readable = self._look_up()
        if (
            self.subscriptions.get(sid) is not subscription  # it has ended
            or (by is self and not self._echo)
            or not readable[subject]
        ):
            return payloads
        count, rest = len(payloads), []
        if subscription.most:
            room = subscription.most - subscription.delivered
            payloads, rest = payloads[:room], payloads[room:]
            count = len(payloads)
        if header_bytes and not self._headers:
            payloads = [payload[header_bytes:] for payload in payloads]
            size -= header_bytes
            header_bytes = 0
        if reply:
            self._asked(reply, OF_REQUESTS)
            reply += b" "
        if header_bytes:
            line = b"HMSG %b %b %b%d %d\r\n" % (subject, sid, reply, header_bytes, size)
        else:
            line = b"MSG %b %b %b%d\r\n" % (subject, sid, reply, size)
        self.write(line + payloads[0] if count == 1 else line + line.join(payloads))
        counters = self.counters
        counters.out_messages += count
        counters.out_bytes += count * size
        if self.behind:
            self._subjects.backlogged = True
        subscription.delivered += count
        if subscription.delivered == subscription.most:
            self._end_subscription(subscription)
        return rest

    def _asked(self, reply: bytes, start: bytes | tuple[bytes, ...]) -> None:
        if not self._writable.everything and reply.startswith(start):
            self._replies.asked(reply, self._loop.time())

    def _look_up(self) -> Answers:
        """What may be received, in this turn."""
        self._readable = self._access.answers("read")
        self._flush_later()
        return self._readable

    def deliver_to(
        self, subscription: Subscription, to: bytes | None, messages: Sequence[Publish]
    ) -> int:
        """See `Taker`. Who may receive the subject that it chose may receive what is sent there."""
        sid, may = subscription.sid, self._access.may
        if self.subscriptions.get(sid) is not subscription:
            return 0
        if to is None:
            messages = [each for each in messages if may("read", text_of(each.subject))]
        elif not may("read", text_of(to)):
            return 0
        if subscription.most:
            messages = messages[: subscription.most - subscription.delivered]
        lines: list[bytes] = []
        sent = 0
        for subject, reply, header_bytes, size, (payload,) in messages:
            sent += size
            if reply:
                self._asked(reply, OF_DELIVERIES)
                reply += b" "
            if header_bytes and self._headers:
                line = b"HMSG %b %b %b%d %d\r\n" % (subject, sid, reply, header_bytes, size)
                lines += line, payload
            else:
                line = b"MSG %b %b %b%d\r\n" % (subject, sid, reply, size - header_bytes)
                lines += line, payload[header_bytes:]
        self.write(b"".join(lines))
        self._delivered(subscription, len(messages), sent)
        return len(messages)

    def deliver_burst(self, subscription: Subscription, to: bytes, burst: Burst) -> None:
        """See `Taker`."""
        if subscription.most or (burst.header_bytes and not self._headers):
            self.deliver_to(subscription, to, burst.each())
            return
        sid = subscription.sid
        if self.subscriptions.get(sid) is not subscription or not self._access.may(
            "read", text_of(to)
        ):
            return
        if not self._writable.everything:
            for reply in burst.replies():
                self._asked(reply, OF_DELIVERIES)
        self.write(burst.lines(sid))
        count = len(burst.payloads)
        self._delivered(subscription, count, burst.size * count)

    def deliver_alike(
        self, subscription: Subscription, subjects: Sequence[bytes], bodies: Sequence[bytes]
    ) -> None:
        """See `Taker`."""
        readable = self._access.answers("read")
        sizes = set(map(len, bodies))
        if len(sizes) > 1 or subscription.most or not readable.everything:
            self.deliver_to(subscription, None, plain_messages(subjects, bodies))
        elif self.subscriptions.get(subscription.sid) is subscription:
            (size,) = sizes
            sid = subscription.sid.replace(b"%", b"%%")
            form = b"MSG %%b %b %d\r\n%%b\r\n" % (sid, size)
            pairs = zip(subjects, bodies, strict=True)
            self.write(b"".join([form % pair for pair in pairs]))
            self._delivered(subscription, len(bodies), size * len(bodies))

    def _delivered(self, subscription: Subscription, count: int, size: int) -> None:
        counters = self.counters
        counters.out_bytes += size
        counters.out_messages += count
        if self.behind:
            self._subjects.backlogged = True
        subscription.delivered += count
        if subscription.delivered == subscription.most:
            self._end_subscription(subscription)

    def _look_for_life(self) -> None:
        if self.received_bytes != self._seen_bytes:
            self._seen_bytes = self.received_bytes
            self._pings = 0
        elif self._pings == PINGS_MAX:
            self._close(STALE)
            return
        else:
            self._pings += 1
            self.write(PING)
        self._wait(PING_S, self._look_for_life)

    # --- the end ----------------------------------------------------------------------------------

    def force_close(self, text: str) -> None:
        """The user or the virtual host is gone, or what it may do there."""
        self._close(REVOKED)

    def leave(self) -> None:
        """The node stops: what was written is still sent."""
        self._close("")

    def abort(self) -> None:
        self._transport.abort()

    def _close(self, text: str) -> None:
        """Tells why, if it is said. What still comes is read and dropped for a moment: else it
        would be answered by a reset, and the client might not see the reason.
        """
        if self.phase is NatsPhase.CLOSED:
            return
        log.info(
            "nats_closed", address=self.address, user=self.user_name, reason=text or "not said"
        )
        if text:
            self.say_error(text)
        self._flush()
        self._end()
        if self._transport.is_closing():
            return
        if text and self._transport.can_write_eof():
            self._transport.write_eof()
            self._pauses.resume_all()
            self._wait(CLOSE_S_MAX, self._transport.abort)
        else:
            self._wait(WRITE_S_MAX, self._transport.abort)
            self._transport.close()

    def _end(self) -> None:
        """Of all but the socket. Idempotent."""
        self.phase = NatsPhase.CLOSED
        self._held.clear()
        if self._login is not None and self._login is not asyncio.current_task():
            self._login.cancel()
        for subscription in list(self.subscriptions.values()):
            self._end_subscription(subscription)
        self._home.clients.remove(self)
        self.resume_writing()


def text_of(name: bytes) -> str:
    return name.decode(errors="replace")
