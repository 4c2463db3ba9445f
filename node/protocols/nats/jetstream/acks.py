"""Acknowledgements: what their subjects and bodies say, and what is proposed of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from cluster.machine.commands import Acknowledge
from cluster.machine.runs import ranges_of
from cluster.types import QueueId
from node.protocols.nats.jetstream.times import NS_PER_MS, ns_of_span

#: Tokens of the subject, and of its longer form at least.
TOKENS: Final = 9
TOKENS_LONG: Final = 11
#: Of a -NAK without one: as the consumer's settings say.
NO_DELAY: Final = -1
REASON_BYTES_MAX: Final = 1_024
#: Shorter runs are kept one by one, since every run is looked at for each word but an ack.
RUN_MIN: Final = 64


class Acked(NamedTuple):
    """Which delivery is meant."""

    stream: str
    consumer: str
    delivery_count: int
    sequence: int


def reply_subject(stream: str, consumer: str) -> bytes:
    """How those of its deliveries begin: count, sequences, ns and pending follow."""
    return b"$JS.ACK.%b.%b." % (stream.encode(), consumer.encode())


def acked_by(subject: bytes) -> Acked | None:
    """None: no subject that anybody was given."""
    tokens = subject.split(b".")
    if len(tokens) >= TOKENS_LONG:
        tokens = tokens[4:]  # a domain and an account go before
    elif len(tokens) == TOKENS:
        tokens = tokens[2:]
    else:
        return None
    stream, consumer, count, sequence, own = tokens[:5]
    if not (count.isdigit() and sequence.isdigit() and own.isdigit()) or len(sequence) > 19:
        return None
    try:
        names = stream.decode(), consumer.decode()
    except UnicodeDecodeError:
        return None
    return Acked(*names, int(count), int(sequence))


@dataclass(slots=True)
class Said:
    """Of one consumer's deliveries, since it was last proposed. The last word on each counts, but
    each -NAK is told.
    """

    done: dict[int, None] = field(default_factory=dict[int, None])
    runs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # done, too
    again: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # in how many ms
    working: dict[int, None] = field(default_factory=dict[int, None])
    never: dict[int, str] = field(default_factory=dict[int, str])  # and why

    def add(self, sequence: int, word: bytes, rest: bytes) -> bool:
        """False: it says nothing that is known."""
        if word in (b"", b"+ACK", b"+NXT"):
            self.done[sequence] = None
            return True
        if sequence in self.never or self._is_done(sequence):
            return True
        if word == b"-NAK":
            self.again.append((sequence, _delay_ms(rest)))
            self.working.pop(sequence, None)
        elif word == b"+WPI":
            self.working[sequence] = None
        elif word == b"+TERM":
            self.never[sequence] = rest[:REASON_BYTES_MAX].decode(errors="replace")
        else:
            return False
        return True

    def add_done(self, sequences: Sequence[int]) -> None:
        """Of plain acknowledgements; see `reader.Acks`."""
        if isinstance(sequences, range) and len(sequences) >= RUN_MIN:
            self.runs.append((sequences[0], sequences[-1]))
        else:
            self.done.update(dict.fromkeys(sequences))

    def _is_done(self, sequence: int) -> bool:
        return sequence in self.done or any(first <= sequence <= last for first, last in self.runs)

    def command(self, queue: QueueId, consumer: str, *, reasons: bool) -> Acknowledge:
        """`reasons`: the group knows them."""
        is_done = self._is_done
        never = {each: why for each, why in self.never.items() if not is_done(each)}
        return Acknowledge(
            queue,
            consumer,
            [*self.runs, *ranges_of(sorted(self.done))],
            [each for each in self.again if each[0] not in never and not is_done(each[0])],
            [each for each in self.working if each not in never and not is_done(each)],
            list(never),
            [(each, why) for each, why in never.items() if why] if reasons else (),
        )


def word_of(body: bytes) -> tuple[bytes, bytes]:
    """What is said, and what is behind it."""
    word, _, rest = body.partition(b" ")
    if not rest and body[:5] == b"-NAK{":  # nats.go's, without a space, is one too
        return body[:4], body[4:]
    return word.strip(), rest.strip()


def _delay_ms(rest: bytes) -> int:
    """In JSON, or as a span."""
    if rest[:1] != b"{":
        found: Any = ns_of_span(rest.decode(errors="replace"))
    else:
        try:
            found = cast("dict[str, Any]", json.loads(rest)).get("delay")
        except (ValueError, RecursionError):
            return NO_DELAY
    if type(found) is not int or found <= 0:
        return NO_DELAY
    return max(1, found // NS_PER_MS)
