"""Deliveries of one consumer, at the node that leads its stream: `Fetch`, read, send, and again.

What a consumer gets is decided by the machine. A feed knows who waits, asks for all of them at
once, and only when there is something to get. One `Fetch` is under way at a time, so deliveries
leave in their order.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, Protocol

import structlog

from cluster.codec.entries import UNSENT_SINCE
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import Outcome, decided
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Acknowledge, Barrier, Command, DropConsumer, Fetch
from cluster.machine.replies import Fetched, StreamChunk
from cluster.machine.stream.consumers import TOO_LARGE, StreamConsumer
from cluster.machine.stream.stream import Stream
from node.protocols.nats.jetstream.acks import reply_subject
from node.protocols.nats.jetstream.bursts import bursts_of
from node.protocols.nats.jetstream.headers import status
from node.protocols.nats.jetstream.post import Inbox, Post
from node.protocols.nats.jetstream.priorities import Pinned, Supply, policy_of
from node.protocols.nats.jetstream.pulls import Ask, Pulls, Say, beat
from node.protocols.nats.jetstream.reading import (
    Bodies,
    has_large,
    header_of,
    load,
    read,
    stream_of,
)
from node.protocols.nats.jetstream.times import NS_PER_S
from node.protocols.nats.reader import Burst
from node.tasks import Tasks

log = structlog.get_logger(__name__)

#: Of one `Fetch`.
MESSAGES_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 1 << 20
#: Somebody takes slowly what is sent: then it goes on after so long.
SLOWER_S: Final = 0.01
#: Numbers in the reply subject of a delivery, roughly: who limits bytes counts them.
REPLY_BYTES: Final = 38
#: A consumer with a rate is sent what it may have in so long, or one message that is larger.
RATE_SLICE_S: Final = 0.05
#: So much too early a timer may come at most: those of uvloop are rounded to milliseconds.
TIMER_EARLY_S: Final = 0.001
#: After a proposal that failed.
AGAIN_S: Final = 0.05
#: What nothing was handed out behind is marked as sent after so long.
MARK_SENT_S: Final = 1.0
#: After a read that failed.
READ_AGAIN_S: Final = 0.5
#: With flow control: so much may be sent that was not heard of.
FLOW_BYTES_MAX: Final = 4 << 20
#: Is there enough by now for those who want only what is too much for others?
OVERFLOW_LOOK_S: Final = 0.1
#: Who does nothing is looked at no less often.
INACTIVE_LOOK_S: Final = 60.0

#: The number of the request of a push consumer.
_PUSH: Final = 0


#: What was sent to nobody; see `Acknowledge`.
_Unsent = tuple[int, int, int, int]
_Loaded = tuple[int, StreamChunk, Bodies | None]


class Home(Protocol):
    """What feeds need of the node: see `node.protocols.nats.jetstream.leading`."""

    post: Post
    tasks: Tasks

    def now_ms(self) -> int: ...
    def tell_pinned(self, info: QueueInfo, consumer: str, pinned: Pinned) -> None: ...


class Fetching:
    """A request of who does not speak NATS: what it gets, once it has some or is over."""

    __slots__ = ("chunks", "done")

    def __init__(self) -> None:
        #: The names of their subjects, too; None: deleted since.
        self.chunks: list[tuple[StreamChunk, Bodies, Sequence[bytes | None]]] = []
        #: Why it ended, as a status; empty: it got all that it wanted.
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def end(self, header: bytes) -> None:
        if not self.done.done():
            self.done.set_result(header)


class Feed:
    """Of one consumer, as long as this node leads its stream."""

    def __init__(
        self,
        home: Home,
        group: GroupLike,
        info: QueueInfo,
        consumer: StreamConsumer,
        *,
        in_doubt: bool,
    ) -> None:
        """`in_doubt`: it may be handed what one before it of this name has asked for."""
        self.info = info
        self.name = consumer.settings.name
        self.key = consumer.key
        self.pulls = Pulls()
        self.over = False
        self._home = home
        self._group = group
        self._loop = asyncio.get_running_loop()
        self.consumer = consumer
        self._reply = reply_subject(info.name, self.name)
        #: Of what AMQP's clients publish: a delivery must have one.
        self._no_subject = b"_".join(info.name.encode().split()) or b"_"
        self.turn = asyncio.Lock()  # of those who take a consumer over
        self._fetchings: dict[bytes, Fetching] = {}  # by what stands for an inbox
        self._asking = False
        self._recovered = False  # what was handed out before, and perhaps not sent, comes again
        self._in_doubt = in_doubt  # this one may have been handed what it was not told of
        self._marking: asyncio.TimerHandle | None = None
        self._alone = False  # the next message comes alone, whatever its size
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._used_s = self._loop.time()  # when somebody last wanted something of it
        # Of a push consumer.
        self._turn_s = 0.0  # with a rate: when it may be sent more
        self._beat_s = self._used_s
        self._sent = 0, 0  # its number and the sequence of the last one, before what is under way
        self._unheard_bytes = 0
        self._flow: bytes | None = None  # the subject by which it says how far it is
        self._flow_bytes = 0  # that were sent when it was asked

    # --- who wants --------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        return self.consumer.config

    @property
    def stream(self) -> Stream | None:
        """None: it is gone."""
        return stream_of(self._group, self.info.queue)

    @property
    def deliver(self) -> Inbox | None:
        """Of a push consumer."""
        subject = self.config.get("deliver_subject")
        return Inbox(self.info.vhost, subject.encode()) if subject else None

    @property
    def bound(self) -> bool:
        """Somebody takes what is pushed."""
        deliver = self.deliver
        group = self.config.get("deliver_group") or ""
        return deliver is not None and self._home.post.wanted(deliver, group.encode())

    def pull(self, inbox: bytes, ask: Ask) -> None:
        if self.deliver is not None:
            self._say([Say(inbox, status(409, "Consumer is push based"))])
            return
        now_s = self._used_s = self._loop.time()
        if self.pulls.add(inbox, ask, self.config, now_s):
            self._judge()
            self.wake()
            self._set_timer()
        self._say(self.pulls.take_sayings())

    def _judge(self) -> None:
        """As soon as it is known what there is, and who has yet to get some."""
        if self._recovered and not self._asking and self.pulls.has_unjudged:
            self._drop_gone()
            known = self.consumer
            self.pulls.judge(known.pending + len(known.again), self.config)
            self._say(self.pulls.take_sayings())

    @property
    def waiting(self) -> int:
        """Requests of those who are still there."""
        self._drop_gone()
        return len(self.pulls)

    def _drop_gone(self) -> None:
        gone = {each for each in self.pulls.inboxes() if not self._is_wanted(each)}
        if gone:
            self.pulls.drop(gone)

    def fetch(self, ask: Ask) -> Fetching:
        """As `pull`; what it gets goes to no inbox, and is what is there first."""
        fetching = Fetching()
        inbox = b" %d" % id(fetching)  # no subject has a space
        self._fetchings[inbox] = fetching
        fetching.done.add_done_callback(lambda _: self._fetch_over(inbox))
        self.pull(inbox, ask)
        return fetching

    @property
    def busy(self) -> bool:
        """The machine was asked, and what it said is not sent yet."""
        return self._asking

    def end_fetches(self, header: bytes) -> None:
        for fetching in self._fetchings.values():
            fetching.end(header)

    def _fetch_over(self, inbox: bytes) -> None:
        del self._fetchings[inbox]
        self.pulls.drop((inbox,))

    def heard(self, subject: bytes) -> None:
        """What a client answered to a request for flow control."""
        if subject == self._flow:
            self._flow = None
            self._unheard_bytes = max(0, self._unheard_bytes - self._flow_bytes)
            self.wake()

    def wake(self) -> None:
        """There may be something to do: it is done in the next turn."""
        if not self._soon and not self._asking and not self.over:
            self._soon = True
            self._loop.call_soon(self._look)

    def changed(self, consumer: StreamConsumer) -> None:
        """The consumer, or its configuration, is another one now."""
        self.consumer = consumer
        if policy_of(self.config) != "pinned_client":
            self.pulls.pin = None
        self._set_timer()
        self.wake()

    def end(self, text: str) -> None:
        """Those who wait are told why."""
        if not self.over:
            self.over = True
            for timer in (self._timer, self._marking):
                if timer is not None:
                    timer.cancel()
            self.pulls.end_all(409, text)
            self._say(self.pulls.take_sayings())

    # --- asking the machine -----------------------------------------------------------------------

    def _look(self) -> None:
        self._soon = False
        if self.over:
            return
        self._judge()
        if self._asking or self._loop.time() < self._turn_s:
            return
        if not self._recovered:
            self._recover()
            return
        if not self.consumer.may_fetch:
            self._nothing_left()
            return
        requests = self._requests()
        if requests:
            self._begin()
            overhead = len(self._reply) + REPLY_BYTES if self.pulls.limited else 0
            command = Fetch(self.info.queue, self.name, requests, overhead)
            self._propose(command, self._fetched)

    def _begin(self) -> None:
        """The machine is asked."""
        self._asking = True
        self._sent = self.consumer.delivered, self.consumer.delivered_stream

    def _requests(self) -> list[tuple[int, int, int]]:
        if self.deliver is not None:
            held = self._flow is not None and self._unheard_bytes >= FLOW_BYTES_MAX
            if held or not self.bound:
                return []
            if self._alone or self._replays:
                return [(_PUSH, 1, 0)]
            rate = self.config.get("rate_limit_bps")
            slice_ = max(1, int(rate / 8 * RATE_SLICE_S)) if rate else BYTES_AT_ONCE
            return [(_PUSH, MESSAGES_AT_ONCE, min(slice_, BYTES_AT_ONCE))]
        self._drop_gone()
        found: list[tuple[int, int, int]] = []
        turns = self._turns()
        if self._alone or self._replays:
            return [(number, 1, size) for number, _, size in turns[:1]]
        room = MESSAGES_AT_ONCE
        for number, count, bytes_max in turns:
            count = min(count, room)
            found.append((number, count, min(bytes_max or BYTES_AT_ONCE, BYTES_AT_ONCE)))
            room -= count
            if not room:
                break
        return found

    @property
    def _replays(self) -> bool:
        """With the spans between messages with which they were stored."""
        return self.config.get("replay_policy") == "original"

    def _span_s(self, loaded: Sequence[_Loaded]) -> float:
        """Between what was delivered for the first time and what comes next."""
        stream = self.stream
        if stream is None or not loaded or loaded[-1][1].delivery_count > 1:
            return 0.0
        following = self.consumer.next_new(stream.retained)
        if not following:
            return 0.0
        return max(0, stream.retained.time_of(following) - loaded[-1][1].stored_ms) / 1000

    def _is_wanted(self, inbox: bytes) -> bool:
        if inbox[:1] == b" ":
            fetching = self._fetchings.get(inbox)
            return fetching is not None and not fetching.done.done()
        return self._home.post.wanted(Inbox(self.info.vhost, inbox))

    def _turns(self) -> list[tuple[int, int, int]]:
        known = self.consumer
        unsent = known.unsent_count
        ready = min(len(known.again) + min(known.pending, known.room), MESSAGES_AT_ONCE)
        supply = Supply(known.pending + unsent, known.held.count - unsent, ready)
        now_s, now_ms = self._loop.time(), self._home.now_ms()
        turns = self.pulls.take_turns(self.config, supply, now_s, now_ms)
        if policy_of(self.config) != "none":
            self._say(self.pulls.take_sayings())
            self._tell_pinned()
        return turns

    def _tell_pinned(self) -> None:
        for each in self.pulls.take_pinned():
            self._home.tell_pinned(self.info, self.name, each)
        self._set_timer()

    def unpin(self, group: str) -> None:
        self.pulls.unpin(group, "admin")
        self._tell_pinned()
        self.wake()

    def _propose(self, command: Command, done: Any) -> None:
        self._group.propose(command, done)

    def _fetched(self, outcome: Outcome) -> None:
        if self.over:
            self._asking = False
            return
        reply = outcome.reply
        if type(reply) is not Fetched:
            self._asking = False
            if outcome.reply is None:  # no leader, or no room
                self._in_doubt |= outcome.kind == "unknown"
                self._recovered &= not self._in_doubt
                self._loop.call_later(AGAIN_S, self.wake)
            return
        missing = False
        loaded: list[_Loaded] = []
        for number, chunks, _ in reply.batches:
            for chunk in chunks:
                bodies = read(self._group, chunk.bodies)
                missing |= bodies is None or has_large(bodies)
                loaded.append((number, chunk, bodies))
        # A message that is larger than what is asked for at once has to come alone.
        self._alone = not loaded
        too_large = [number for number, _, note in reply.batches if note == TOO_LARGE]
        if missing:
            self._home.tasks.start(self._load(loaded, too_large), name="stream_read")
        else:
            self._deliver(loaded, too_large)

    async def _load(self, loaded: Sequence[_Loaded], too_large: Sequence[int]) -> None:
        """Until it can be: it is handed out, and nothing else is before it was sent."""
        told = False
        while not self.over:
            try:
                found = [
                    (number, chunk, await load(self._group, chunk.bodies))
                    for number, chunk, _ in loaded
                ]
            except Exception as error:  # of a disk, or a bug: who waits would hang for ever
                if not told:
                    about = {"stream": self.info.name, "consumer": self.name}
                    log.error("stream_read_failed", **about, exc_info=error)
                told = True
                await asyncio.sleep(READ_AGAIN_S)
            else:
                if not self.over:
                    self._deliver(found, too_large)
                return

    def _too_large(self, number: int) -> None:
        """For what was asked; or only for what is asked at once."""
        each = self.pulls.find(number)
        if each is not None and each.limited and (self._alone or each.bytes_left <= BYTES_AT_ONCE):
            self.pulls.too_large(number)

    # --- delivering -------------------------------------------------------------------------------

    def _deliver(self, loaded: Sequence[_Loaded], too_large: Sequence[int]) -> None:
        slower = False
        by_request: dict[int, list[Burst]] = {}
        more = self._pin_header()
        now_s = self._used_s = self._loop.time()
        wanted: dict[int, bool] = {}
        unsent: list[_Unsent] = []
        for number, chunk, bodies in self._hand_over(loaded):
            if number not in wanted:
                wanted[number] = self._is_served(number)
            if wanted[number] and not unsent:
                by_request.setdefault(number, []).extend(self._bursts(chunk, bodies or (), more))
            else:  # what is behind waits for it: messages come in their order
                last = chunk.first + chunk.bodies.count - 1
                unsent.append((chunk.first, last, chunk.consumer_first, chunk.delivery_count))
        overhead = len(self._reply) + REPLY_BYTES
        for number, bursts in by_request.items():
            count = sum(len(each.payloads) for each in bursts)
            size = sum(
                (each.size + len(each.subject) + overhead) * len(each.payloads) for each in bursts
            )
            if number == _PUSH and (deliver := self.deliver) is not None:
                slower |= self._home.post.deliver(deliver, bursts)
                self._pushed(deliver, size, now_s)
                continue
            each = self.pulls.find(number)
            if each is not None:
                inbox = Inbox(self.info.vhost, each.inbox)
                slower |= self._home.post.deliver(inbox, bursts)
                self.pulls.got(number, count, size, now_s)
        for number in too_large:
            self._too_large(number)
        self._say_sent(loaded, unsent)
        self._asking = bool(unsent)  # they are the next ones
        self._say(self.pulls.take_sayings())
        rate = self.config.get("rate_limit_bps") or 0
        if slower:
            self._loop.call_later(SLOWER_S, self.wake)
        elif rate and loaded:
            size = sum(
                each.size * len(each.payloads) for bursts in by_request.values() for each in bursts
            )
            self._wait_until(now_s + size * 8 / rate)
        elif self._replays and (span_s := self._span_s(loaded)):
            self._wait_until(now_s + span_s)
        elif not (unsent or self.consumer.may_fetch):
            self._nothing_left()
        else:
            self.wake()
        self._set_timer()
        if self._marking is None and self.consumer.perhaps_unsent:
            self._mark_later()

    def _mark_later(self) -> None:
        self._marking = self._loop.call_later(MARK_SENT_S, self._mark)

    def _mark(self) -> None:
        """What was handed out last is sent: the next leader need not send it again. Who goes on
        fetching says so by that.
        """
        self._marking = None
        if self._asking:
            self._mark_later()
        elif self.consumer.perhaps_unsent:
            self._begin()
            self._propose(Fetch(self.info.queue, self.name, ()), self._marked)

    def _marked(self, outcome: Outcome) -> None:
        self._asking = False
        if outcome.reply is None and not self.over:
            self._mark_later()
        self.wake()

    def _is_served(self, number: int) -> bool:
        """Is anybody there still for what was handed out for this request?"""
        if number == _PUSH:
            return self.bound
        each = self.pulls.find(number)
        return each is not None and self._is_wanted(each.inbox)

    def _say_sent(self, loaded: Sequence[_Loaded], unsent: Sequence[_Unsent]) -> None:
        """What is held although clients do not acknowledge is done with: see `Fetch.apply`. Should
        this node fail before that, the next leader sends it once more. What nobody took is taken
        back before anything else is handed out: an acknowledgement of all up to a later message
        would mean it, and without acknowledgements it would be gone.
        """
        sent: list[tuple[int, int]] = []
        held = self.consumer.held
        if held and self.consumer.settings.ack_policy == "none":
            not_sent = {first for first, _, _, _ in unsent}
            for _, chunk, bodies in loaded:
                if bodies is not None and chunk.first not in not_sent:
                    last = chunk.first + len(bodies) - 1
                    sent += [(start, end) for start, end, _ in held.pieces(chunk.first, last)]
        if unsent and self._group.machine.version < UNSENT_SINCE:
            again = [(at, 0) for first, last, _, _ in unsent for at in range(first, last + 1)]
            self._acknowledge(Acknowledge(self.info.queue, self.name, sent, again))
        elif sent or unsent:
            self._acknowledge(Acknowledge(self.info.queue, self.name, sent, unsent=unsent))

    def _acknowledge(self, command: Acknowledge) -> None:
        if self.over:
            self._asking = False
        else:
            self._propose(command, partial(self._acknowledged, command))

    def _acknowledged(self, command: Acknowledge, outcome: Outcome) -> None:
        """Until it is known: else what was sent would come twice, and stay in the stream."""
        if not decided(outcome):
            self._loop.call_later(AGAIN_S, self._acknowledge, command)
        elif command.unsent or command.again:
            self._asking = False
            self.wake()

    def _recover(self) -> None:
        """Nobody knows which of what is held the last leader sent, or whether this one was handed
        what it was not told of. Where it is only held until it is sent, or an acknowledgement of a
        later message would mean it, it comes again first. So does what was handed out last, if
        that would never come otherwise. Other messages do in their time.
        """
        stream, policy = self.stream, self.consumer.settings.ack_policy
        limits = stream is None or stream.settings.retention == "limits"
        self._begin()
        if self._in_doubt or policy == "all" or (policy == "none" and not limits):
            self._propose(Barrier(), self._all_applied)
        else:
            self._send_again([])

    def _all_applied(self, outcome: Outcome) -> None:
        """So is what was handed out before."""
        if outcome.kind != "ok":
            self._asking = False
            self._loop.call_later(AGAIN_S, self.wake)
            return
        settings = self.consumer.settings
        policy, most = settings.ack_policy, settings.deliveries_max
        held = [each for each in self.consumer.held if each[2].due_ms]
        if policy == "none" and self._group.machine.version >= UNSENT_SINCE:
            # Under their numbers: so an ordered consumer misses none, and knows which it has.
            rows = [(at, last, at + each.ahead, each.deliveries) for at, last, each in held]
            self._send_again([], rows)
            return
        again = [
            (sequence, 0)
            for first, last, each in (held if policy != "explicit" else ())
            # Those for which it was the last time would never come again: they may have been sent.
            if policy == "none" or most is None or each.deliveries < most
            for sequence in range(first, last + 1)
        ]
        self._send_again(again)

    def _send_again(self, again: Sequence[tuple[int, int]], unsent: Sequence[_Unsent] = ()) -> None:
        self._recovered, self._in_doubt = True, False
        unsent = sorted([*self.consumer.perhaps_unsent, *unsent], key=itemgetter(2))
        if again or unsent:
            self._acknowledge(Acknowledge(self.info.queue, self.name, [], again, unsent=unsent))
        else:
            self._asking = False
            self.wake()

    def _wait_until(self, turn_s: float) -> None:
        self._turn_s = turn_s
        self._loop.call_at(turn_s + TIMER_EARLY_S, self.wake)

    def _hand_over(self, loaded: Sequence[_Loaded]) -> list[_Loaded]:
        """Those of `fetch` get theirs, and are done. What is left."""
        if not self._fetchings:
            return list(loaded)
        rest: list[_Loaded] = []
        served: list[Fetching] = []
        for number, chunk, bodies in loaded:
            waiting = self.pulls.find(number)
            fetching = None if waiting is None else self._fetchings.get(waiting.inbox)
            if waiting is None or fetching is None or fetching.done.done():
                rest.append((number, chunk, bodies))
            else:
                # Now, since what nobody acknowledges may be gone from the stream soon.
                found = bodies or ()
                fetching.chunks.append((chunk, found, self._subjects_of(chunk, found)))
                served.append(fetching)
        for fetching in served:
            fetching.end(b"")
        return rest

    def _subjects_of(self, chunk: StreamChunk, bodies: Bodies) -> Sequence[bytes | None]:
        stream = self.stream
        if stream is None or not bodies:
            return ()
        retained = stream.retained
        ids, name_of = retained.ids_of(chunk.first, len(bodies)), retained.subjects.name_of
        return [name_of(each) if each else None for each in ids]

    def _pin_header(self) -> Sequence[tuple[str, object]]:
        """What each message says besides its own headers."""
        pin = self.pulls.pin
        return () if pin is None else [("Nats-Pin-Id", pin.id)]

    def _bursts(
        self, chunk: StreamChunk, bodies: Bodies, more: Sequence[tuple[str, object]]
    ) -> list[Burst]:
        stream = self.stream
        if stream is None or not bodies:
            return []
        retained = stream.retained
        return bursts_of(
            chunk,
            bodies,
            retained.ids_of(chunk.first, len(bodies)),
            lambda subject_id: retained.subjects.name_of(subject_id) or self._no_subject,
            self._reply,
            lambda meta: header_of(meta, self.info),
            headers_only=bool(self.config.get("headers_only")),
            more=more,
        )

    def _nothing_left(self) -> None:
        if self.pulls:
            self._judge()
            self.pulls.nothing_left()
            self._say(self.pulls.take_sayings())

    def _say(self, sayings: Sequence[Say]) -> None:
        for inbox, header in sayings:
            fetching = self._fetchings.get(inbox)
            if fetching is not None:
                fetching.end(header)
                continue
            self._home.post.send(Inbox(self.info.vhost, inbox), b"", header)

    # --- push -------------------------------------------------------------------------------------

    def _pushed(self, deliver: Inbox, size: int, now_s: float) -> None:
        self._beat_s = now_s
        if not self.config.get("flow_control"):
            return
        self._unheard_bytes += size
        if self._flow is None and self._unheard_bytes > FLOW_BYTES_MAX // 2:
            self._ask_flow(deliver)

    def _ask_flow(self, deliver: Inbox) -> None:
        """Who answers has got all that was sent before."""
        self._flow_bytes = self._unheard_bytes
        names = f"{self.info.name}.{self.name}.{secrets.token_hex(4)}"
        self._flow = b"$JS.FC.%b" % names.encode()
        self._home.post.send(deliver, b"", status(100, "FlowControl Request"), self._flow)

    def _beat(self) -> bytes:
        """What is handed out and yet to be sent would be taken for lost."""
        known, sent = self.consumer, self._sent
        last, sequence = sent if self._asking else (known.delivered, known.delivered_stream)
        stalled = [] if self._flow is None else [("Nats-Consumer-Stalled", self._flow.decode())]
        return beat(last, sequence, stalled)

    # --- time -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._set_timer()
        self.wake()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._due_s()
        if due_s is not None and not self.over:
            self._timer = self._loop.call_at(due_s, self._time)

    def _due_s(self) -> float | None:
        now_s = self._loop.time()
        dues: list[float] = []
        pulls_due = self.pulls.due_s(now_s)
        if pulls_due is not None:
            dues.append(pulls_due)
        if self._overflows:
            dues.append(now_s + OVERFLOW_LOOK_S)
        heartbeat = self.config.get("idle_heartbeat")
        if heartbeat and self.deliver is not None:
            dues.append(max(now_s, self._beat_s + heartbeat / NS_PER_S))
        inactive_s = self._inactive_s
        if inactive_s:
            dues.append(max(now_s + 0.01, min(self._used_s + inactive_s, now_s + INACTIVE_LOOK_S)))
        return min(dues) if dues else None

    @property
    def _overflows(self) -> bool:
        """There is something, and perhaps one day enough for those who wait."""
        policy = policy_of(self.config)
        return policy == "overflow" and len(self.pulls) > 0 and self.consumer.may_fetch

    @property
    def _inactive_s(self) -> float:
        """After so long without use it is dropped; 0: never."""
        return (self.config.get("inactive_threshold") or 0) / NS_PER_S

    def _time(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        if len(self.pulls):
            self._drop_gone()
            if len(self.pulls):  # also of one that is over now
                self._used_s = now_s
        self.pulls.look(now_s, self._beat())
        if self.pulls.pinned or self._overflows:
            self._tell_pinned()
            self.wake()
        deliver, heartbeat = self.deliver, self.config.get("idle_heartbeat")
        if deliver is not None:
            if self.bound:
                self._used_s = now_s
                if heartbeat and self._beat_s + heartbeat / NS_PER_S <= now_s:
                    self._beat_s = now_s
                    self._home.post.send(deliver, b"", self._beat())
            else:
                self._beat_s = now_s
                self._flow, self._unheard_bytes = None, 0
        self._say(self.pulls.take_sayings())
        if self._is_unused(now_s):
            self._drop()
        else:
            self._set_timer()

    def _is_unused(self, now_s: float) -> bool:
        inactive_s = self._inactive_s
        if not inactive_s or self._used_s + inactive_s > now_s:
            return False
        known = self.consumer.info()  # acknowledgements do not come by here
        due_ms = max((held.due_ms for _, _, held in self.consumer.held), default=0)
        last_ms = max(known.last_ack_ms, known.last_delivered_ms, due_ms)  # clients may be at work
        unused_s = (self._home.now_ms() - last_ms) / 1000
        if last_ms and unused_s < inactive_s:
            self._used_s = now_s - max(0.0, unused_s)
            return False
        return True

    def _drop(self) -> None:
        log.info("consumer_unused", stream=self.info.name, consumer=self.name)
        self._used_s = self._loop.time()  # should it fail, it is tried again after as long
        self._propose(DropConsumer(self.info.queue, self.name, self.key), self._dropped)

    def _dropped(self, outcome: Outcome) -> None:
        if outcome.reply is None and not self.over:
            self._set_timer()
