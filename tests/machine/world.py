"""A machine with a log and a clock around it, in the words of the scripts.

Every command is also applied to a copy that is restored from the snapshot before each command: it
must answer alike and end alike.
"""

# pyright: basic, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.codec.entries import enqueues_in
from cluster.machine import QueueMachine
from cluster.machine.commands import (
    ATTR_DEATHS,
    ATTR_DEDUP_ID,
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
    Barrier,
    Cancel,
    CloseSession,
    CreateQueue,
    DeadLettersMoved,
    DeleteQueue,
    DetachSession,
    Discard,
    Enqueue,
    Extend,
    Get,
    Handed,
    HandedTo,
    NodeDown,
    NodeUp,
    OpenSession,
    Pause,
    Purge,
    PutOffDeadLetters,
    QueueConfig,
    Retime,
    Return,
    SendDeadLetters,
    SetCredit,
    Settle,
    Subscribe,
    Tick,
    Transaction,
    TransactionDone,
    TransactionPart,
    UpdateQueue,
    UpgradeMachine,
    Withdraw,
)
from cluster.machine.effects import (
    ActiveChanged,
    Applied,
    ConsumerEnded,
    DeadLettersReady,
    Deliver,
    DeliveryLimitReached,
    Effect,
    QueueExpired,
    SessionEnded,
    TransactionsDue,
)
from cluster.machine.replies import Chunk, Committed, Enqueued, Got, Ok, Refused, Subscribed
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, SessionId, Stamp
from tests.datadriven import words

START_MS = 1_000_000


class World:
    """Scripts name queues, sessions and consumers; times are ms since the start."""

    def __init__(self, *, copies: bool = True) -> None:
        self.machine = QueueMachine()
        self.copies = copies
        self.now_ms = 0
        self.index = 1
        self.bodies: dict[int, list[bytes]] = {}
        self.queues: dict[str, QueueId] = {}
        self.consumers: dict[str, ConsumerKey] = {}  # "session/tag"
        self.names: dict[int, str] = {}
        self.gets = 0  # a get is named by its number: alice/get1

    # --- applying ---------------------------------------------------------------------------------

    def apply(self, command: Any) -> Applied:
        self.index += 1
        bodies = [body for each in enqueues_in(command) for body in each.bodies]
        if bodies:
            self.bodies[self.index] = bodies
        stamp = Stamp(self.index, 1, START_MS + self.now_ms)
        copy = QueueMachine()
        if self.copies:
            copy.restore(self.machine.snapshot())
        applied = self.machine.apply(stamp, command)
        self.machine.invariants()
        if self.copies:
            again = copy.apply(stamp, command)
            assert again == applied, "a restored machine answers otherwise"
            assert copy.snapshot() == self.machine.snapshot(), "a restored machine ends otherwise"
            due, due_copy = self.machine.next_due_ms(), copy.next_due_ms()
            assert (due is None or due_copy is None) or due <= due_copy or due_copy > self.now_ms
        return applied

    def body(self, chunk: Chunk, nth: int) -> str:
        return self.bodies[chunk.bodies.index][chunk.bodies.offset + nth].decode()

    # --- scripts ----------------------------------------------------------------------------------

    def run(self, line: str) -> str:
        line, *steps = line.split(" / ")
        verb, args, options = words(line)
        if verb == "at":
            self.now_ms = int(args[0])
            return self.shown(self.apply(Tick()))
        if verb == "clock":
            self.now_ms = int(args[0])
            return ""
        if verb == "leader":
            return "\n".join(self.effect(effect) for effect in self.machine.on_leader()) or "-"
        if verb == "show":
            return self.show(args[0])
        if verb == "removed":
            return (
                "\n".join(
                    f"  {reason}: {each.dropped} dropped, {each.dead_lettered} dead-lettered"
                    for reason, each in sorted(self.machine.removed().items())
                )
                or "nothing"
            )
        if verb == "peek":
            return self.peek(args[0], options)
        if verb == "outbox":
            return self.outbox(args[0])
        if verb == "due":
            due_ms = self.machine.next_due_ms()
            return "never" if due_ms is None else str(due_ms - START_MS)
        if verb == "live":
            return " ".join(f"{first}-{last}" for first, last in self.machine.live_indexes()) or "-"
        if verb == "open":
            shown = [f"{each.number}: {[*each.groups]}" for each in self.machine.transactions()]
            return " ".join(shown) or "-"
        if verb in {"tx", "part"}:
            return self.shown(self.apply(self.transaction(verb, args, options, steps)))
        command = self.command(verb, args, options)
        applied = self.apply(command)
        if isinstance(applied.reply, (Subscribed, Got)):
            self.gets += isinstance(command, Get)
            tag = command.tag if isinstance(command, Subscribe) else f"get{self.gets}"
            name = f"{command.session}/{tag}"
            self.consumers[name] = applied.reply.consumer
            self.names[applied.reply.consumer] = name
        return self.shown(applied)

    def command(self, verb: str, args: list[str], options: dict[str, str]) -> Any:
        match verb:
            case "queue" | "policy":
                queue = self.queues.setdefault(args[0], QueueId(len(self.queues) + 1))
                config = self.config(options)
                if verb == "policy":
                    return UpdateQueue(queue, config)
                return CreateQueue(queue, "/", args[0], config)
            case "delete":
                return DeleteQueue(self.queue(args[0]), "if-unused" in args, "if-empty" in args)
            case "session":
                return OpenSession(
                    SessionId(args[0]),
                    NodeId(options.get("node", "n1")),
                    int(options.get("incarnation", "1")),
                    int(options.get("resume", "0")),
                )
            case "detach":
                return DetachSession(
                    SessionId(args[0]),
                    NodeId(options.get("node", "n1")),
                    int(options.get("incarnation", "1")),
                    self.handed(args[1:]),
                )
            case "close":
                return CloseSession(SessionId(args[0]), self.handed(args[1:]))
            case "dispatched":
                key = self.consumer(args[1])
                held = self.machine.consumer_holds(self.queue(args[0]), key) or ()
                return Handed(self.queue(args[0]), key, deliveries(held, ranges(args[2:])))
            case "node-down":
                incarnation = int(options.get("incarnation", "1"))
                return NodeDown(NodeId(args[0]), incarnation, "gone" in args)
            case "node-up":
                return NodeUp(NodeId(args[0]), int(options.get("incarnation", "1")))
            case "publish":
                return self.publish(args[0], args[1:], options)
            case "subscribe":
                return Subscribe(
                    self.queue(args[0]),
                    *self.session_tag(args[1]),
                    credit=int(options.get("credit", "0")),
                    priority=int(options.get("priority", "0")),
                    exclusive="exclusive" in args,
                    auto_settle="auto" in args,
                    timeout_ms=int(options["timeout"]) if "timeout" in options else None,
                )
            case "cancel":
                return Cancel(self.queue(args[0]), self.consumer(args[1]))
            case "credit":
                return SetCredit(self.queue(args[0]), self.consumer(args[1]), int(args[2]))
            case "settle":
                return Settle(self.queue(args[0]), self.consumer(args[1]), ranges(args[2:]))
            case "discard":
                return Discard(self.queue(args[0]), self.consumer(args[1]), ranges(args[2:]))
            case "return":
                return Return(
                    self.queue(args[0]),
                    self.consumer(args[1]),
                    ranges([arg for arg in args[2:] if arg not in {"failed", "unsent"}]),
                    "failed" in args,
                    int(options["delay"]) if "delay" in options else None,
                    unsent="unsent" in args,
                )
            case "extend":
                timeout_ms = int(options["timeout"]) if "timeout" in options else None
                return Extend(
                    self.queue(args[0]), self.consumer(args[1]), ranges(args[2:]), timeout_ms
                )
            case "get":
                count = next((int(arg) for arg in args[2:] if arg.isdigit()), 1)
                named = ranges(options["at"].split(",")) if "at" in options else ()
                return Get(self.queue(args[0]), SessionId(args[1]), count, "auto" in args, named)
            case "purge":
                return Purge(self.queue(args[0]))
            case "withdraw":
                return Withdraw(self.queue(args[0]), ranges(args[1:]))
            case "retime":
                at_ms = START_MS + int(options["at"])
                return Retime(self.queue(args[0]), ranges(args[1:]), at_ms)
            case "pause" | "resume":
                return Pause(self.queue(args[0]), verb == "pause")
            case "moved":
                return DeadLettersMoved(self.queue(args[0]), int(args[1]))
            case "putoff":
                safe_in = [
                    (first, last, [QueueId(int(each)) for each in queues.split("+")])
                    for row in options.get("safe", "").split(",")
                    if row
                    for named, queues in [row.split("@")]
                    for first, last in ranges([named])
                ]
                return PutOffDeadLetters(self.queue(args[0]), ranges(args[1:]), safe_in)
            case "send":
                return SendDeadLetters(self.queue(args[0]), ranges(args[1:]))
            case "done":
                return TransactionDone(int(args[0]), [GroupId(int(arg)) for arg in args[1:]])
            case "tick":
                return Tick()
            case "barrier":
                return Barrier()
            case "upgrade":
                return UpgradeMachine(int(args[0]))
            case _:
                return object()

    def transaction(
        self, verb: str, args: list[str], options: dict[str, str], steps: list[str]
    ) -> Transaction | TransactionPart:
        """`tx 1 / publish q a / @2 settle far 5 1-3`; `part 2 1 / publish q a`: of group 2."""
        own: list[Any] = []
        others: dict[int, list[Any]] = {}
        for step in steps:
            where, _, rest = step.partition(" ") if step.startswith("@") else ("", "", step)
            target = others.setdefault(int(where[1:]), []) if where else own
            target.append(self.command(*words(rest)))
        number = int(args[-1])
        below = int(options.get("below", number))
        if verb == "part":
            return TransactionPart(GroupId(int(args[0])), number, below, own)
        incarnation = int(options.get("incarnation", "1"))
        groups = [(GroupId(group), each) for group, each in others.items()]
        return Transaction(
            NodeId(options.get("node", "n1")), incarnation, number, below, own, groups
        )

    def publish(self, queue: str, bodies: list[str], options: dict[str, str]) -> Enqueue:
        """A body may carry its own attributes: priority 3 and a TTL of 10 are `b:p3:t10`."""
        shared = attrs_of(
            [
                f"{letter}{options[key]}"
                for key, letter in (
                    ("priority", "p"),
                    ("ttl", "t"),
                    ("at", "a"),
                    ("dedup", "d"),
                    ("deaths", "x"),
                )
                if key in options
            ]
        )
        plain = [body.split(":")[0] for body in bodies]
        each = [attrs_of(body.split(":")[1:]) for body in bodies]
        size = int(options.get("size", "0"))
        return Enqueue(
            self.queue(queue),
            options.get("publisher"),
            int(options.get("seqno", "0")),
            [body.encode().ljust(size) for body in plain],
            attrs=each if any(each) else shared or None,
        )

    def config(self, options: dict[str, str]) -> QueueConfig:
        fields: dict[str, Any] = {}
        for key, value in options.items():
            if key == "dead_letter_queue":
                fields[key] = self.queue(value)
            elif value in {"true", "false"}:
                fields[key] = value == "true"
            elif value == "none":
                fields[key] = None
            else:
                fields[key] = int(value) if value.isdigit() else value
        return QueueConfig(**fields)

    def handed(self, args: list[str]) -> list[HandedTo] | None:
        """`handed q a/t 1-3`: these of what the consumer holds, and so on; without: not known."""
        if not args:
            return None
        found: list[HandedTo] = []
        for words_of in " ".join(args[1:]).split(","):
            if not words_of.strip():
                continue
            queue, name, *positions = words_of.split()
            key = self.consumer(name)
            held = self.machine.consumer_holds(self.queue(queue), key) or ()
            beyond = deliveries(held, ranges(positions))
            found.append(HandedTo(self.queue(queue), key, 0, beyond))
        return found

    def queue(self, name: str) -> QueueId:
        return self.queues.get(name, QueueId(99))

    def consumer(self, name: str) -> ConsumerKey:
        return self.consumers.get(name, ConsumerKey(99))

    def session_tag(self, name: str) -> tuple[SessionId, str]:
        session, _, tag = name.partition("/")
        return SessionId(session), tag

    # --- what came out ----------------------------------------------------------------------------

    def shown(self, applied: Applied) -> str:
        reply = self.reply(applied.reply)
        return "\n".join([reply, *(self.effect(effect) for effect in applied.effects)])

    def reply(self, reply: Any) -> str:
        match reply:
            case Ok(count):
                return f"ok {count}" if count else "ok"
            case Refused(code, _, detail):
                return f"refused {code}" if detail is None else f"refused {code} {detail}"
            case Enqueued(first, stored, duplicates, refused):
                what = f"enqueued {first}-{first + stored - 1}" if stored else "enqueued nothing"
                what += f", {duplicates} duplicate" if duplicates else ""
                gaps = " ".join(f"{a}-{b}" for a, b in refused)
                return what + (f", refused {gaps}" if gaps else "")
            case Committed(number, _):
                return f"committed {number}" if number else "committed"
            case Subscribed(_, active):
                return "subscribed" if active else "subscribed, waiting"
            case Got(_, chunks, ready):
                return f"got {self.chunks(chunks) or 'nothing'} ({ready} ready)"
            case _:
                return repr(reply)

    def effect(self, effect: Effect) -> str:
        match effect:
            case Deliver(queue, consumer, session, chunks):
                name = self.names.get(consumer, session)
                return f"  {self.name(queue)} -> {name}: {self.chunks(chunks)}"
            case ConsumerEnded(queue, consumer, _, reason):
                return f"  {self.name(queue)}: {self.names.get(consumer)} ended: {reason}"
            case ActiveChanged(queue, consumer, session, _):
                name = self.names.get(consumer or 0, session)
                return f"  {self.name(queue)}: active is {name}"
            case TransactionsDue():
                return "  transactions due"
            case DeadLettersReady(queue):
                return f"  {self.name(queue)}: dead letters"
            case DeliveryLimitReached(queue, count):
                return f"  {self.name(queue)}: {count} over the delivery limit"
            case QueueExpired(queue):
                return f"  {self.name(queue)}: expired"
            case SessionEnded(session, reason):
                return f"  {session} ended: {reason}"
            case _:
                return repr(effect)

    def name(self, queue: QueueId) -> str:
        return next((name for name, known in self.queues.items() if known == queue), "?")

    def chunks(self, chunks: Any) -> str:
        """`1:a 2:b`; `!` marks a redelivery; `#n` counts failures; `+` has died before."""
        shown: list[str] = []
        for chunk in chunks:
            for nth in range(chunk.bodies.count):
                text = f"{chunk.first + nth}:{self.body(chunk, nth).strip()}"
                text += "!" if chunk.acquired_count else ""
                text += f"#{chunk.delivery_count}" if chunk.delivery_count else ""
                for death in chunk.deaths or ():
                    text += f"+{death['queue']}/{death['reason']}/{death['count']}"
                shown.append(text)
        return " ".join(shown)

    def show(self, queue: str) -> str:
        view = self.machine.queue(self.queue(queue))
        if view is None:
            return "no queue"
        lines = [
            f"ready {view.ready_count} unsettled {view.unsettled_count}"
            f" delayed {view.delayed_count} bytes {view.bytes}"
            + (f" outbox {view.dead_letter_count}" if view.dead_letter_count else "")
            + (" paused" if view.paused else "")
        ]
        lines += [
            f"  {reason}: {each.dropped} dropped, {each.dead_lettered} dead-lettered"
            for reason, each in sorted(view.removed.items())
        ]
        lines += [
            f"  {self.names.get(c.key)}: {c.status}{', active' if c.active else ''},"
            f" holds {c.unsettled} of {c.credit or 'any'}"
            for c in view.consumers
        ]
        return "\n".join(lines)

    def peek(self, queue: str, options: dict[str, str]) -> str:
        found = self.machine.browse(
            self.queue(queue),
            int(options.get("start", "1")),
            int(options.get("count", "100")),
            options.get("state"),
        )
        lines = []
        for row in found:
            text = f"  {self.chunks([row.chunk])} {row.state}"
            text += f" by {self.names.get(row.consumer)}" if row.consumer else ""
            text += f", due {row.due_ms - START_MS}" if row.due_ms else ""
            text += f", expires {row.expires_at_ms - START_MS}" if row.expires_at_ms else ""
            text += f", priority {row.priority}" if row.priority else ""
            lines.append(text)
        return "\n".join(lines) or "nothing"

    def outbox(self, queue: str) -> str:
        lines = []
        for letter in self.machine.dead_letters(self.queue(queue)):
            body = self.bodies[letter.index][letter.offset].decode()
            deaths = " ".join(f"{d['queue']}/{d['reason']}/{d['count']}" for d in letter.deaths)
            waits = "w" if letter.put_off else " "
            to = f"{letter.exchange!r} {letter.routing_key}"
            lines.append(f"{waits} {letter.number}: {body} to {to}: {deaths}")
        return "\n".join(lines) or "nothing"


def ranges(args: list[str]) -> list[tuple[int, int]]:
    pairs = [arg.split("-") for arg in args]
    return [(int(pair[0]), int(pair[-1])) for pair in pairs]


def deliveries(held: Sequence[Chunk], told: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """These positions under the tokens that the consumer has for them."""
    return [
        (max(first, chunk.first), min(last, chunk.first + chunk.bodies.count - 1), chunk.token)
        for first, last in told
        for chunk in held
        if first < chunk.first + chunk.bodies.count and chunk.first <= last
    ]


def attrs_of(marks: list[str]) -> dict[int, Any]:
    attrs: dict[int, Any] = {}
    for mark in marks:
        value = mark[1:]
        match mark[0]:
            case "p":
                attrs[ATTR_PRIORITY] = int(value)
            case "t":
                attrs[ATTR_TTL_MS] = int(value)
            case "a":
                attrs[ATTR_DELIVER_AT_MS] = START_MS + int(value)
            case "d":
                attrs[ATTR_DEDUP_ID] = value
            case _:
                attrs[ATTR_DEATHS] = [
                    {"queue": queue, "reason": reason, "count": 1}
                    for queue, reason in (one.split("/") for one in value.split(","))
                ]
    return attrs
