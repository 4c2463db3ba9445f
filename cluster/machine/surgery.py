"""Single messages that wait: taken out of their queue, or ready at another time."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.machine.commands import Ranges, Retime, Withdraw
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import WITHDRAWN
from cluster.machine.disposal import Disposal
from cluster.machine.identity import QueueIdentity
from cluster.machine.marks import NO_MARK, TIME_MS_MAX
from cluster.machine.messages import Messages
from cluster.machine.replies import BAD_ARGUMENT, UNKNOWN_DELIVERY, Ok, Refused, Reply

#: Messages that one command may name.
NAMED_MAX = 65_536


@dataclass(eq=False, slots=True)
class Surgery:
    """Keeps nothing."""

    identity: QueueIdentity
    messages: Messages
    disposal: Disposal

    def objection(self, ranges: Ranges) -> Refused | None:
        """Why these cannot all be withdrawn."""
        wrong = wrong_ranges(ranges)
        if wrong is not None:
            return wrong
        missing = self.messages.missing(ranges)
        if missing is None:
            return None
        return Refused(
            UNKNOWN_DELIVERY,
            f"message {missing} does not wait in queue {self.identity.name}: it was never there,"
            " is gone, or a consumer has it",
            missing,
        )

    def withdraw(self, context: ApplyContext, command: Withdraw) -> Reply:
        refusal = self.objection(command.ranges)
        if refusal is not None:
            return refusal
        messages, recorder = self.messages, self.identity.recorder
        taken = messages.take_waiting(command.ranges)
        count = sum(last - first + 1 for first, last in taken)
        self.disposal.count(context, WITHDRAWN, count, goes=False)
        with messages.leaving_together():
            for first, last in taken:
                if recorder is not None:
                    recorder.withdrawn(self.identity, first, last)
                messages.release(first, last)
        return Ok(count)

    def retime(self, context: ApplyContext, command: Retime) -> Reply:
        """A message that nobody was given yet lives as long as if it had been published with this
        delay.
        """
        wrong = wrong_ranges(command.ranges)
        if wrong is not None:
            return wrong
        if not 0 <= command.ready_at_ms <= TIME_MS_MAX:
            return Refused(BAD_ARGUMENT, "ready_at_ms is a time in ms since the epoch")
        messages = self.messages
        ready_at_ms = max(context.now_ms, command.ready_at_ms)
        taken = messages.take_waiting(command.ranges)
        for first, last in taken:
            for start, end, old in messages.marks.segments(first, last):
                mark = old or NO_MARK
                if not mark.acquired:
                    expires_at_ms = None if mark.ttl_ms is None else ready_at_ms + mark.ttl_ms
                    mark = mark._replace(born_ms=ready_at_ms, expires_at_ms=expires_at_ms)
                    messages.marks.assign(start, end, mark)
                elif mark.wish_ms is not None:
                    messages.marks.assign(start, end, mark._replace(wish_ms=None))
                messages.waiting_bytes += messages.store.bytes_of(start, end)
                messages.delay(start, end, ready_at_ms)
        return Ok(sum(last - first + 1 for first, last in taken))


def wrong_ranges(ranges: Ranges) -> Refused | None:
    """Why these name no messages."""
    before = count = 0
    for first, last in ranges:
        if not before < first <= last:
            return Refused(
                BAD_ARGUMENT, "ranges are [first, last], from 1 on, ascending, and do not overlap"
            )
        before = last
        count += last - first + 1
    if not 1 <= count <= NAMED_MAX:
        return Refused(BAD_ARGUMENT, f"from 1 to {NAMED_MAX} messages are named at once")
    return None
