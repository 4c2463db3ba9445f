"""Pull requests that wait at a consumer's leader: who gets what, and when a wait is over. Pure.

Time is the loop's, in seconds. Requests share what there is, and the one that got something last
comes last: workers of one consumer are busy alike. Nothing of this is replicated: after a change of
leader clients ask again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from node.protocols.nats.jetstream import fields, priorities
from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.headers import status
from node.protocols.nats.jetstream.priorities import NO_WISH, Pin, Pinned, Supply, Wish
from node.protocols.nats.jetstream.times import NS_PER_S, span_of_ns

WAITING_MAX: Final = 512
BATCH_MAX: Final = 1 << 20
#: One that never expires is looked at so often: does anybody still want it?
LOOK_S: Final = 30.0
#: What a longer request says is not remembered.
KNOWN_BYTES_MAX: Final = 512
#: Who wants heartbeats learns it by missing them: told at once it would ask again and again.
TOO_MANY: Final = "Exceeded MaxWaiting"


class Ask(NamedTuple):
    """What a request says."""

    batch: int = 1
    bytes_max: int = 0  # 0: no limit
    expires_ns: int = 0
    no_wait: bool = False
    heartbeat_ns: int = 0
    wish: Wish | None = None  # None: it says nothing but a number
    in_turn: bool = False  # it stands behind others even if these want all there is


def ask_of(body: bytes) -> Ask:
    """ApiError: nobody can read it; its text says why."""
    return _known(body) if len(body) <= KNOWN_BYTES_MAX else _read(body)


@lru_cache(1024)
def _known(body: bytes) -> Ask:
    """Clients ask the same again and again."""
    return _read(body)


def _read(body: bytes) -> Ask:
    body = body.strip()
    if not body:
        return Ask()
    if body.isdigit():
        return Ask(_batch(int(body[:19])))
    if body[:1] != b"{":
        return Ask()  # as nats-server takes it
    given = fields.load(body)
    ask = Ask(
        _batch(fields.number(given, "batch")),
        fields.number(given, "max_bytes"),
        fields.number(given, "expires"),
        fields.flag(given, "no_wait"),
        fields.number(given, "idle_heartbeat"),
        Wish(
            fields.text(given, "group"),
            fields.number(given, "min_pending"),
            fields.number(given, "min_ack_pending"),
            fields.text(given, "id"),
            fields.number(given, "priority"),
        ),
    )
    if ask.expires_ns < 0 or ask.heartbeat_ns < 0:
        raise ApiError(400, 10003, "a span is negative")
    if ask.heartbeat_ns and ask.heartbeat_ns * 2 > ask.expires_ns:  # or it never expires
        raise ApiError(400, 10003, "heartbeat value too large")
    return ask


def _batch(number: int) -> int:
    return min(max(number, 1), BATCH_MAX)


@dataclass(slots=True, eq=False)
class Waiting:
    number: int
    inbox: bytes
    left: int  # messages
    bytes_left: int  # 0 and `limited`: none
    limited: bool
    no_wait: bool
    expires_s: float | None
    heartbeat_s: float  # 0: none
    beat_s: float | None  # when the next is due
    wish: Wish = NO_WISH
    got: int = 0


class Say(NamedTuple):
    """A status for an inbox."""

    inbox: bytes
    header: bytes


class Pulls:
    """Of one consumer. What is to be said is collected in `sayings`, and what is to be told of
    pins in `pinned`.
    """

    def __init__(self) -> None:
        self.sayings: list[Say] = []
        self.pinned: list[Pinned] = []
        self.pin: Pin | None = None
        self._waiting: dict[int, Waiting] = {}
        self._unjudged: set[int] = set()  # of those: see `judge`
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, inbox: bytes, ask: Ask, config: Mapping[str, Any], now_s: float) -> bool:
        """False: it does not wait."""
        is_judged = ask.no_wait and not ask.in_turn
        unjudged = len(self._unjudged & self._waiting.keys())
        waiting = unjudged if is_judged else len(self._waiting) - unjudged
        refusal = _refusal(ask, config, waiting)
        if ask.wish is not None and not (refusal or "").startswith("Exceeded MaxRequest"):
            wrong = self._objection(ask.wish, config, now_s)
            if wrong is not None:
                self.sayings.append(Say(inbox, wrong))
                return False
        if refusal is not None:
            if not (refusal == TOO_MANY and ask.heartbeat_ns):
                self.sayings.append(Say(inbox, status(409, refusal)))
            return False
        heartbeat_s = ask.heartbeat_ns / NS_PER_S
        self._numbers += 1
        self._waiting[self._numbers] = Waiting(
            self._numbers,
            inbox,
            ask.batch,
            max(0, ask.bytes_max),
            ask.bytes_max > 0,
            ask.no_wait,
            now_s + ask.expires_ns / NS_PER_S if ask.expires_ns else None,
            heartbeat_s,
            now_s + heartbeat_s if heartbeat_s else None,
            ask.wish or NO_WISH,
        )
        if is_judged:
            self._unjudged.add(self._numbers)
        return True

    @property
    def has_unjudged(self) -> bool:
        return bool(self._unjudged)

    def judge(self, messages: int, config: Mapping[str, Any]) -> None:
        """Who came since and would not wait: `messages` are there, and those who came before want
        some of them. To be called before anybody gets any.
        """
        before = wanted = 0
        for number in sorted(self._waiting):
            each = self._waiting[number]
            if number in self._unjudged:
                verdict = None
                if not messages and each.expires_s is None:
                    verdict = status(404, "No Messages")
                elif 0 < messages < wanted:
                    verdict = status(408, "Requests Pending")
                elif before >= _waiting_max(config):
                    verdict = b"" if each.heartbeat_s else status(409, TOO_MANY)
                if verdict is not None:
                    del self._waiting[number]
                    if verdict:
                        self.sayings.append(Say(each.inbox, verdict))
                    continue
            before += 1
            wanted += each.left
        self._unjudged.clear()

    # --- priority groups --------------------------------------------------------------------------

    def _objection(self, wish: Wish, config: Mapping[str, Any], now_s: float) -> bytes | None:
        refusal = priorities.refusal(wish, config)
        if refusal is not None:
            return status(400, f"Bad Request - {refusal}")
        if self.pin is not None and wish.id:
            if wish.id != self.pin.id:
                return status(423, "Nats-Pin-Id mismatch")
            self.pin.until_s = now_s + priorities.timeout_s(config)
        return None

    def take_turns(
        self, config: Mapping[str, Any], supply: Supply, now_s: float, now_ms: int
    ) -> list[tuple[int, int, int]]:
        """For `Fetch`: whose turn it is, now that there is something."""
        policy, waiting = priorities.policy_of(config), list(self._waiting.values())
        if policy == "pinned_client":
            waiting = self._of_pinned(waiting, config, now_s, now_ms)
        elif policy == "prioritized":
            first = min((each.wish.priority for each in waiting), default=0)
            waiting = [each for each in waiting if each.wish.priority == first]
        found: list[tuple[int, int, int]] = []
        ahead = 0
        share = max(1, -(-supply.ready // len(waiting))) if len(waiting) > 1 else BATCH_MAX
        for each in waiting:
            most = priorities.room(each.wish, supply, ahead) if policy == "overflow" else None
            count = min(each.left, share) if most is None else min(each.left, share, most)
            if count:
                found.append((each.number, count, each.bytes_left))
                ahead += count
            elif each.no_wait and each.expires_s is None:
                del self._waiting[each.number]
                self.sayings.append(Say(each.inbox, status(404, "No Messages")))
        return found

    def _of_pinned(
        self, waiting: list[Waiting], config: Mapping[str, Any], now_s: float, now_ms: int
    ) -> list[Waiting]:
        """Those of the client that is pinned; if none is, the first one that is no former one."""
        for each in waiting:
            wish = each.wish
            if self.pin is None and not wish.id:
                self.pin = priorities.new_pin(wish.group, config, now_s, now_ms)
                self.pinned.append(Pinned(wish.group, self.pin.id))
                each.wish = wish._replace(id=self.pin.id)
            elif wish.id and (self.pin is None or wish.id != self.pin.id):
                self._end(each, 423, "Nats-Wrong-Pin-Id")
        return [
            each
            for each in self._waiting.values()
            if self.pin is not None and each.wish.id == self.pin.id
        ]

    def unpin(self, group: str, reason: Literal["timeout", "admin"]) -> None:
        if self.pin is not None and self.pin.group == group:
            self.pin = None
            self.pinned.append(Pinned(group, reason=reason))

    def take_pinned(self) -> Sequence[Pinned]:
        found, self.pinned = self.pinned, []
        return found

    # --- who waits --------------------------------------------------------------------------------

    @property
    def limited(self) -> bool:
        """Somebody counts bytes."""
        return any(each.limited for each in self._waiting.values())

    def inboxes(self) -> list[bytes]:
        return [each.inbox for each in self._waiting.values()]

    def find(self, number: int) -> Waiting | None:
        return self._waiting.get(number)

    def got(self, number: int, count: int, size_bytes: int, now_s: float) -> None:
        """So many messages left for it."""
        each = self._waiting.get(number)
        if each is None:
            return
        each.left -= count
        each.got += count
        if each.limited:
            each.bytes_left = max(0, each.bytes_left - size_bytes)
        if each.heartbeat_s:
            each.beat_s = now_s + each.heartbeat_s
        if each.left <= 0:
            del self._waiting[each.number]
            if each.limited and each.bytes_left:
                self._say(each, 409, "Batch Completed")
        elif each.limited and not each.bytes_left:
            self._end(each, 409, "Batch Completed")
        else:
            self._waiting[number] = self._waiting.pop(number)

    def too_large(self, number: int) -> None:
        """The next message does not fit."""
        each = self._waiting.get(number)
        if each is not None:
            self._end(each, 409, "Message Size Exceeds MaxBytes")

    def nothing_left(self) -> None:
        """The consumer has been asked for all of these, and has no more now."""
        for each in list(self._waiting.values()):
            if each.no_wait and (each.got or each.expires_s is None):
                del self._waiting[each.number]
                self.sayings.append(Say(each.inbox, status(404, "No Messages")))

    def look(self, now_s: float, heartbeat: bytes = b"") -> None:
        """What is due by now. `heartbeat`: see `beat`."""
        if self.pin is not None and self.pin.until_s <= now_s:
            self.unpin(self.pin.group, "timeout")
        for each in list(self._waiting.values()):
            if each.expires_s is not None and each.expires_s <= now_s:
                self._end(each, 408, "Request Timeout")
            elif each.beat_s is not None and each.beat_s <= now_s:
                each.beat_s = now_s + each.heartbeat_s
                self.sayings.append(Say(each.inbox, heartbeat))

    def due_s(self, now_s: float) -> float | None:
        """When to look again. None: nobody waits."""
        pin_s = None if self.pin is None else self.pin.until_s
        if not self._waiting:
            return pin_s
        due = now_s + LOOK_S if pin_s is None else min(now_s + LOOK_S, pin_s)
        for each in self._waiting.values():
            if each.expires_s is not None:
                due = min(due, each.expires_s)
            if each.beat_s is not None:
                due = min(due, each.beat_s)
        return due

    def drop(self, inboxes: Iterable[bytes]) -> None:
        """Nobody is there any more."""
        gone = set(inboxes)
        for each in list(self._waiting.values()):
            if each.inbox in gone:
                del self._waiting[each.number]

    def end_all(self, code: int, text: str) -> None:
        for each in list(self._waiting.values()):
            del self._waiting[each.number]
            self.sayings.append(Say(each.inbox, status(code, text)))

    def take_sayings(self) -> Sequence[Say]:
        found, self.sayings = self.sayings, []
        return found

    def _end(self, each: Waiting, code: int, text: str) -> None:
        del self._waiting[each.number]
        self._say(each, code, text)

    def _say(self, each: Waiting, code: int, text: str) -> None:
        left = (("Nats-Pending-Messages", each.left), ("Nats-Pending-Bytes", each.bytes_left))
        self.sayings.append(Say(each.inbox, status(code, text, left)))


def beat(consumer: int, sequence: int, more: Sequence[tuple[str, object]] = ()) -> bytes:
    """A heartbeat, with the numbers of what was sent last."""
    about = [("Nats-Last-Consumer", consumer), ("Nats-Last-Stream", sequence), *more]
    return status(100, "Idle Heartbeat", about)


def _refusal(ask: Ask, config: Mapping[str, Any], waiting: int) -> str | None:
    batch, expires = config.get("max_batch") or 0, config.get("max_expires") or 0
    size = config.get("max_bytes") or 0
    if batch and ask.batch > batch:
        return f"Exceeded MaxRequestBatch of {batch}"
    if expires and ask.expires_ns > expires:
        return f"Exceeded MaxRequestExpires of {span_of_ns(expires)}"
    if size and ask.bytes_max > size:
        return f"Exceeded MaxRequestMaxBytes of {size}"
    if waiting >= _waiting_max(config):
        return TOO_MANY
    return None


def _waiting_max(config: Mapping[str, Any]) -> int:
    return config.get("max_waiting") or WAITING_MAX
