"""Why messages of a queue do not move, in plain words.

`diagnose` is a pure function of what is known of a queue (`Situation`): each trouble is named once,
and what merely follows from another trouble is not named at all.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: A consumer that was ended because it did not settle in time is the reason for so long afterwards.
TIMED_OUT_MS_MAX = 10 * 60_000
#: Messages in the hands of consumers for less are being worked at.
HELD_MS_MAX = 60_000
#: A message that came back to its queue so often as a dead letter goes round and round.
LOOPS_MIN = 5
CONSUMERS_SHOWN = 3
#: Troubles that a queue and all its shards have together.
SHARED = frozenset(("alarm", "vhost_full"))


class Finding(NamedTuple):
    code: str  # a word for programs
    sentence: str
    next: str  # what to do


@dataclass(frozen=True, slots=True)
class ConsumerState:
    who: str  # its tag, and the connection that it is on
    status: str  # as in ConsumerView
    node: str | None  # that it is attached to
    credit: int  # 0: no limit of its own
    held: int
    room: int  # how many messages it may be given now
    since_ms: int | None  # it has held its oldest message since then
    until_ms: int | None  # suspected: what it holds is kept for it until then


@dataclass(frozen=True, slots=True)
class KeyState:
    """A key of a queue with message groups that messages wait for."""

    key: str
    waiting: int
    who: str | None  # as in ConsumerState; None: its message waits for its retry


@dataclass(frozen=True, slots=True)
class QueueState:
    """What the queue's leader knows."""

    now_ms: int
    ready: int = 0
    unsettled: int = 0
    delayed: int = 0
    outbox: int = 0  # dead letters on their way to other groups
    paused: bool = False
    single_active: bool = False
    published: int = 0  # since the leader's copy began
    due_ms: int | None = None  # the first delayed message is ready then
    held_up_since_ms: int | None = None  # messages wait although somebody is subscribed
    timed_out_ms: int | None = None  # when a consumer was last ended for not settling in time
    expired: int = 0  # dropped in the last seconds because their time to live was over
    overflowed: int = 0  # dropped in the last seconds to make room for newer ones
    loops: int = 0  # the most often that one of the first messages has died in this queue
    refuses: str | None = None  # the limit that is reached, when publishes are refused for it
    consumers: Sequence[ConsumerState] = ()
    keys: Sequence[KeyState] = ()  # those that most messages wait for, if no message is free


@dataclass(frozen=True, slots=True)
class DeadLetterTarget:
    exchange: str
    exists: bool = True
    queues: Sequence[str] = ()  # that it leads to, as far as that depends on no message
    full: Sequence[str] = ()  # of these, those that refuse what comes
    bound: bool = True  # something is bound to it
    keeps: bool = False  # what no queue takes waits for one


@dataclass(frozen=True, slots=True)
class Situation:
    name: str
    leader: str | None
    vhost: str = "/"
    members: Sequence[str] = ()
    down: Sequence[str] = ()  # members whose node is down
    queue: QueueState | None = None  # None: nobody who knows could be asked
    bindings: int = 0  # besides that of the default exchange
    shards: int = 0  # among which it is split
    whole: str | None = None  # the queue of which it is a shard, by whose name it is used
    alarms: Sequence[str] = ()  # which nodes are low on what
    vhost_full: str | None = None
    dead_letters: DeadLetterTarget | None = field(default=None)


def argument(vhost: str, queue: str) -> str:
    """A queue, as commands take it in a shell."""
    where = "" if vhost == "/" else f" --vhost {shlex.quote(vhost)}"
    return f"{shlex.quote(queue)}{where}"


def diagnose(situation: Situation) -> list[Finding]:
    """The troubles of this queue; none: nothing keeps its messages from moving."""
    queue = situation.queue
    if situation.leader is None or queue is None:
        return [_no_leader(situation)]
    named = argument(situation.vhost, situation.name)
    return [
        *_deliveries(named, argument(situation.vhost, situation.whole or situation.name), queue),
        *_publishes(situation, named, queue),
        *_dead_letters(situation, queue),
    ]


def _no_leader(situation: Situation) -> Finding:
    members, down = situation.members, situation.down
    if situation.leader is not None:
        return Finding(
            "no_answer",
            f"node {situation.leader}, which leads the queue, did not answer.",
            "see `quorate status`, and ask again",
        )
    if members and 2 * len(down) >= len(members):
        return Finding(
            "no_majority",
            f"{len(down)} of its {len(members)} copies are down ({', '.join(down)}): without a"
            " majority nothing is stored or delivered.",
            f"start {' or '.join(down)}; if they are gone for good: `quorate node recover --help`",
        )
    return Finding(
        "no_leader",
        f"no leader is known; its copies are on {', '.join(members) or 'no node'}.",
        "an election takes seconds: ask again, then see `quorate status`",
    )


# --- deliveries -----------------------------------------------------------------------------------


def _deliveries(named: str, consumed: str, queue: QueueState) -> Iterator[Finding]:
    """`consumed`: by which name."""
    if queue.paused:
        waiting = queue.ready + queue.delayed
        yield Finding(
            "paused",
            f"the queue is paused; {waiting:,} messages wait.",
            f"quorate queue pause {named} --resume",
        )
    elif queue.ready:
        yield from _waiting(named, consumed, queue)
    elif queue.delayed:
        yield Finding(
            "delayed",
            f"no message is ready: {queue.delayed:,} are delayed, the next until"
            f" {_when(queue.due_ms, queue.now_ms)}.",
            f"quorate queue delayed list {named}; `quorate queue delayed retime` delivers earlier",
        )
    else:
        slow = [each for each in queue.consumers if _held_ms(each, queue.now_ms) >= HELD_MS_MAX]
        if slow:
            yield Finding(
                "not_settled",
                f"all messages are with consumers that have not settled them: {_who(slow, queue)}.",
                "look at these consumers: they hang, or forget to acknowledge",
            )


def _waiting(named: str, consumed: str, queue: QueueState) -> Iterator[Finding]:
    one = queue.ready == 1
    waits = "1 message is ready" if one else f"{queue.ready:,} messages are ready"
    registered = [each for each in queue.consumers if each.status not in ("cancelled", "get")]
    connected = [each for each in registered if each.status != "suspected"]
    timed_out_ms = queue.timed_out_ms
    if not registered:
        if timed_out_ms is not None and queue.now_ms - timed_out_ms <= TIMED_OUT_MS_MAX:
            yield Finding(
                "consumer_timed_out",
                f"{waits}, and nobody is subscribed: the last consumer was ended"
                f" {_ago(timed_out_ms, queue.now_ms)} because it did not settle in time.",
                "make it settle sooner, extend its deliveries, or raise x-consumer-timeout;"
                " then start it again",
            )
            return
        yield Finding(
            "no_consumer",
            f"{waits}, and nobody is subscribed.",
            f"start a consumer (`quorate consume {consumed}` is one), or `quorate queue move"
            f" {named} TARGET`",
        )
        return
    if not connected:
        until = min((each.until_ms for each in registered if each.until_ms), default=None)
        yield Finding(
            "consumer_lost",
            f"{waits}, and the connection of every consumer is lost: {_who(registered, queue)}."
            f" They may come back until {_when(until, queue.now_ms)}.",
            "start the consumers again, or look whether their node is cut off: `quorate status`",
        )
        return
    if queue.single_active:
        yield from _single_active(waits, registered, queue)
        return
    if not any(each.room for each in connected):
        since = queue.held_up_since_ms
        yield Finding(
            "prefetch_full",
            f"{waits}, and every consumer has all that its prefetch allows"
            f"{'' if since is None else f', for {span(queue.now_ms - since)}'}:"
            f" {_who(connected, queue)}.",
            "look whether they settle; otherwise more consumers, or a higher prefetch",
        )
    elif queue.keys:
        held = [
            f"key {each.key} ({each.waiting:,} wait) "
            + ("waits for its retry" if each.who is None else f"is held by {each.who}")
            for each in queue.keys
        ]
        yield Finding(
            "key_held",
            f"{waits}, each behind another of its key that is not settled: {'; '.join(held)}.",
            "look whether these consumers settle; of one key one message is in flight at a time",
        )


def _single_active(
    waits: str, consumers: Sequence[ConsumerState], queue: QueueState
) -> Iterator[Finding]:
    others = sum(each.status == "waiting" for each in consumers)
    idle = f"{others} others wait their turn"
    for each in consumers:
        if each.status == "quiescing" or (each.status == "suspected" and each.held):
            yield Finding(
                "single_active_handing_over",
                f"{waits}; the single active consumer ({_who([each], queue)}) is to be replaced,"
                f" and has not settled what it holds; {idle}.",
                "it settles, or its connection is closed: `quorate connection close`",
            )
            return
        if each.status == "up":
            if not each.room:
                yield Finding(
                    "single_active_full",
                    f"{waits}; the single active consumer has all that its prefetch allows:"
                    f" {_who([each], queue)}; {idle}.",
                    "look whether it settles; closing its connection makes the next one active",
                )
            return


def _who(consumers: Sequence[ConsumerState], queue: QueueState) -> str:
    shown = [
        f"{each.who} holds {each.held:,}"
        + (f" of {each.credit:,}" if each.credit else "")
        + (f", the oldest for {span(held_ms)}" if (held_ms := _held_ms(each, queue.now_ms)) else "")
        for each in consumers[:CONSUMERS_SHOWN]
    ]
    more = len(consumers) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more else shown)


def _held_ms(consumer: ConsumerState, now_ms: int) -> int:
    return 0 if consumer.since_ms is None or not consumer.held else now_ms - consumer.since_ms


# --- publishes ------------------------------------------------------------------------------------


def _publishes(situation: Situation, named: str, queue: QueueState) -> Iterator[Finding]:
    if situation.alarms:
        yield Finding(
            "alarm",
            f"publishers wait everywhere: {'; '.join(situation.alarms)}.",
            "consume, or give the node more room: docs/operations.md, Low on memory or disk",
        )
    if situation.vhost_full is not None:
        yield Finding("vhost_full", f"{situation.vhost_full}.", "quorate vhost limits")
    if queue.refuses is not None:
        yield Finding(
            "queue_full",
            f"publishes are refused: {queue.refuses} is reached.",
            f"consume, raise the limit, or `quorate queue move {named} TARGET`",
        )
    if queue.overflowed:
        yield Finding(
            "dropping_oldest",
            f"the oldest messages are dropped to make room for new ones: {queue.overflowed:,}"
            " in the last seconds.",
            "raise x-max-length, or let it refuse: x-overflow=reject-publish",
        )
    if queue.expired:
        yield Finding(
            "expiring",
            f"messages expire before anybody gets them: {queue.expired:,} in the last seconds.",
            "raise the message TTL, or consume faster; `quorate recover-messages` finds them again",
        )
    held = queue.ready + queue.unsettled + queue.delayed
    reached = situation.bindings or situation.shards or situation.whole is not None
    if not held and not queue.published and not reached and not queue.expired:
        yield Finding(
            "no_binding",
            "nothing was published to it, and no exchange is bound to it: it only gets what the"
            " default exchange is given under its name.",
            f"quorate binding add EXCHANGE {named} --key KEY",
        )


# --- dead letters ---------------------------------------------------------------------------------


def _dead_letters(situation: Situation, queue: QueueState) -> Iterator[Finding]:
    if queue.loops >= LOOPS_MIN:
        yield Finding(
            "dead_letter_loop",
            f"messages go round in circles: one of the first has left this queue as a dead letter"
            f" {queue.loops:,} times and came back.",
            "set x-delivery-limit, or let a last queue of dead letters have no way back",
        )
    target = situation.dead_letters
    if target is None:
        return
    shown = target.exchange or "(default)"
    fate = "dead letters are dropped"
    if target.keeps:
        fate = "1 dead letter waits" if queue.outbox == 1 else f"{queue.outbox:,} dead letters wait"
    if not target.exists:
        what = f"its dead-letter exchange {shown} does not exist: {fate}."
    elif not target.bound:
        what = f"its dead-letter exchange {shown} leads to no queue: {fate}."
    else:
        if queue.outbox and target.full:
            yield Finding(
                "dead_letter_target_full",
                f"{queue.outbox:,} dead letters wait, since {', '.join(target.full)} is full and"
                " refuses them.",
                f"consume from {target.full[0]}, or raise its limit",
            )
        return
    yield Finding(
        "dead_letter_target_missing",
        what,
        "declare the exchange and bind a queue to it, or change the policy",
    )


# --- times ----------------------------------------------------------------------------------------


def _ago(then_ms: int, now_ms: int) -> str:
    return f"{span(max(0, now_ms - then_ms))} ago"


def _when(at_ms: int | None, now_ms: int) -> str:
    if at_ms is None:
        return "a time that is not known"
    at = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(sep=" ", timespec="seconds")
    return f"{at} (in {span(max(0, at_ms - now_ms))})"


def span(span_ms: int) -> str:
    """In words, cut to its largest unit."""
    seconds = span_ms // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
