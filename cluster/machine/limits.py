"""How much may wait in a queue: what is refused for lack of room, and what makes room for new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.machine.checkout import Checkout
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import MAXLEN
from cluster.machine.disposal import Disposal
from cluster.machine.identity import QueueIdentity
from cluster.machine.messages import Messages
from cluster.machine.replies import QUEUE_FULL, Refused

SIZES_AT_ONCE = 1_024


def full(name: str, count: int) -> Refused:
    return Refused(QUEUE_FULL, f"queue {name} has no room for {count} messages")


@dataclass(eq=False, slots=True)
class QueueLimits:
    """Owns the room that transactions of other groups have reserved."""

    identity: QueueIdentity
    messages: Messages
    disposal: Disposal
    checkout: Checkout
    reserved_count: int = 0
    reserved_bytes: int = 0
    drops_head: bool = False
    never_refuses: bool = True

    def __post_init__(self) -> None:
        self.configure()

    def configure(self) -> None:
        """The configuration is another."""
        config = self.identity.config
        limited = config.max_length is not None or config.max_length_bytes is not None
        self.drops_head = limited and config.overflow == "drop-head"
        self.never_refuses = not limited or self.drops_head

    def takes_all(self, count: int, sizes: Sequence[int]) -> bool:
        """Is there surely room for so many more, with nothing to refuse?"""
        if self.never_refuses:
            return True
        count += self.messages.waiting_count + self.reserved_count
        size = sum(sizes) + self.messages.waiting_bytes + self.reserved_bytes
        config = self.identity.config
        if config.max_length is not None and count > config.max_length:
            return False
        return config.max_length_bytes is None or size <= config.max_length_bytes

    def reserve(self, count: int, size: int) -> None:
        """Room for so many messages, of so many bytes in all; of less than none: give it back."""
        self.reserved_count += count
        self.reserved_bytes += size

    def room(self, *, unlimited: bool = False) -> QueueRoom:
        if self.never_refuses or unlimited:
            return QueueRoom(None, None, 0)
        config, messages = self.identity.config, self.messages
        count = size = None
        if config.max_length is not None:
            taken = messages.waiting_count + self.reserved_count
            count = max(0, config.max_length - taken)
        if config.max_length_bytes is not None:
            taken = messages.waiting_bytes + self.reserved_bytes
            size = max(0, config.max_length_bytes - taken)
        return QueueRoom(count, size, self.checkout.passing())

    def drop_head(self, context: ApplyContext) -> None:
        """Overflow `drop-head`: messages that would be delivered next make room for new ones."""
        config, messages = self.identity.config, self.messages
        count_max, bytes_max = config.max_length, config.max_length_bytes
        with messages.leaving_together():
            while True:
                over = 0 if count_max is None else messages.waiting_count - count_max
                if over > 0:
                    first, last = messages.take_head(over)
                elif bytes_max is not None and messages.waiting_bytes > bytes_max:
                    over = messages.waiting_bytes - bytes_max
                    first, last = messages.take_head_bytes(over, SIZES_AT_ONCE)
                else:
                    break
                self.disposal.dead_letter(context, first, last, MAXLEN)

    def invariants(self) -> None:
        config, messages = self.identity.config, self.messages
        if config.overflow == "drop-head":
            count_max, bytes_max = config.max_length, config.max_length_bytes
            assert count_max is None or messages.waiting_count <= count_max, "too many"
            assert bytes_max is None or messages.waiting_bytes <= bytes_max, "too many bytes"


class QueueRoom:
    """What is left for the messages of one batch. What consumers take at once needs no room."""

    def __init__(self, count: int | None, size: int | None, passing: int) -> None:
        self._count = count
        self._bytes = size
        self._passing = passing
        self.unlimited = count is None and size is None

    def take(self, size: int, *, delayed: bool) -> bool:
        if self.unlimited:
            return True
        if self._passing > 0 and not delayed:
            self._passing -= 1
            return True
        if self._count == 0 or (self._bytes is not None and size > self._bytes):
            return False
        if self._count is not None:
            self._count -= 1
        if self._bytes is not None:
            self._bytes -= size
        return True
