"""When messages expire: by the queue's TTL or their own, at the heads of the ready ones."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import EXPIRED
from cluster.machine.disposal import Disposal
from cluster.machine.identity import QueueIdentity
from cluster.machine.marks import NO_MARK
from cluster.machine.messages import Messages


@dataclass(eq=False, slots=True)
class MessageExpiry:
    """Keeps nothing: times are in the store and the marks, the queue's TTL in its configuration."""

    identity: QueueIdentity
    messages: Messages
    disposal: Disposal

    def sweep(self, context: ApplyContext, *, inclusive: bool) -> None:
        """Remove what has expired at the head of each priority (C14, C15).

        A message whose time ends at this very instant may still be delivered: so a TTL of 0 means
        "now or never" (C17). After the deliveries it is swept too: `inclusive`.
        """
        messages, ready = self.messages, self.messages.ready
        now_ms = context.now_ms if inclusive else context.now_ms - 1
        with messages.leaving_together():
            for priority in ready.priorities():
                while ready.has(priority):
                    first, last = ready.head(priority)
                    ends_ms = self.expires_at_ms(first)
                    if ends_ms is None or ends_ms > now_ms:
                        break
                    _, end = self.judge(first, last, now_ms)
                    while first <= end:
                        first, stop = ready.take_at(priority, end - first + 1)
                        messages.waiting_bytes -= messages.store.bytes_of(first, stop)
                        self.disposal.dead_letter(context, first, stop, EXPIRED)
                        first = stop + 1

    def judge(self, first: int, last: int, now_ms: int) -> tuple[bool, int]:
        """Has the message at `first` expired, and up to which position is the answer the same?"""
        ttl_ms = self.identity.config.message_ttl_ms
        store = self.messages.store
        verdict: bool | None = None
        for start, end, mark in self.messages.marks.walk(first, last):
            own_ms = mark.expires_at_ms if mark else None
            born_ms = mark.born_ms if mark else None
            position = start
            while position <= end:
                if ttl_ms is None:
                    expired, stop = False, end
                elif born_ms is not None:
                    expired, stop = born_ms + ttl_ms <= now_ms, end
                else:
                    expired = store.time_of(position) + ttl_ms <= now_ms
                    stop = min(end, store.run_end(position)) if expired else end
                if own_ms is not None and own_ms <= now_ms:
                    expired = True
                if verdict is None:
                    verdict = expired
                elif verdict != expired:
                    return verdict, position - 1
                position = stop + 1
        return bool(verdict), last

    def head_ms(self) -> int | None:
        """When the first of the messages at the heads expires."""
        ready = self.messages.ready
        times = [self.expires_at_ms(ready.head(priority)[0]) for priority in ready.priorities()]
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def expires_at_ms(self, position: int) -> int | None:
        """The smaller one of both TTLs wins (C16)."""
        mark = self.messages.marks.get(position) or NO_MARK
        ttl_ms = self.identity.config.message_ttl_ms
        if ttl_ms is None:
            return mark.expires_at_ms
        born_ms = self.messages.store.time_of(position) if mark.born_ms is None else mark.born_ms
        if mark.expires_at_ms is None:
            return born_ms + ttl_ms
        return min(born_ms + ttl_ms, mark.expires_at_ms)
