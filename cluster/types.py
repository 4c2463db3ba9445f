"""Words that every layer shares: ids, the stamp of an entry, and where a body lies in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NewType, Protocol, TypeVar, cast, dataclass_transform

T = TypeVar("T")

NodeId = NewType("NodeId", str)
GroupId = NewType("GroupId", int)
QueueId = NewType("QueueId", int)
SessionId = NewType("SessionId", str)
ConsumerKey = NewType("ConsumerKey", int)
#: Term and index of an entry of the catalog: what is said holds as of that entry. Later entries
#: compare higher, also when the log goes on from an earlier moment: it does so in a later term.
AsOf = tuple[int, int]
#: Of what does not say it.
AS_OF_NOTHING: Final[AsOf] = (0, 0)

CATALOG_GROUP = GroupId(0)
#: The group of a node's transient queues is this plus the node's number; groups below replicate.
TRANSIENT_GROUPS = 1 << 20

#: Commands of one entry are numbered below this, so (index, ordinal) fits one integer.
ORDINAL_BITS = 16
COMMANDS_PER_ENTRY_MAX = 1 << ORDINAL_BITS
#: Of each number of a message's id.
NUMBER_DIGITS_MAX = 18

#: Each recovery without a majority, and each restore, goes on in terms of an era of its own, which
#: those who were given up never come to: more than there are elections between two of them.
TERMS_OF_AN_ERA = 1 << 20


def era_of(term: int) -> int:
    return term // TERMS_OF_AN_ERA


def first_term_of(era: int) -> int:
    return era * TERMS_OF_AN_ERA


def numbers_skipped(term: int) -> int:
    """How many positions are given to no message where an era begins, in this term: more than are
    lost with a majority. Two restores of one backup begin in different terms.
    """
    return term << 16


@dataclass_transform(frozen_default=True)
def value(kind: type[T]) -> type[T]:
    """A frozen dataclass with slots, for what is made with every command. That nobody changes it is
    checked by the type checker alone: at run time a guard makes each field three times as slow.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)


class _Maker(Protocol):
    def __call__(self, kind: type[T], fields: tuple[Any, ...], /) -> T: ...


#: `made(Hold, (1, 2))` is `Hold(1, 2)` at half the price, for what is made with every command.
#: Nobody checks that the fields are all there.
made: Final = cast("_Maker", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]


@value
class Stamp:
    """What an entry tells the machine about the world, which has no clock and no dice of its own.

    Every replica sees the same stamp for the same command.
    """

    index: int  # log index of the entry, from 1
    term: int  # term in which the entry was proposed
    #: Log time of the leader that proposed, ms since the epoch. It may step back at a change of
    #: leader, so a machine keeps the highest.
    now_ms: int
    ordinal: int = 0  # number of this command within its entry, from 0
    body_offset: int = 0  # number of this command's first body within its entry, from 0

    @property
    def key(self) -> int:
        """An identity no other command has: registrations are named by it."""
        return (self.index << ORDINAL_BITS) | self.ordinal


class BodyRef(NamedTuple):
    """`count` consecutive bodies of one entry: the only way state speaks of message bodies."""

    # The names shadow methods of tuple that nobody calls on it.
    index: int  # log index of the entry  # pyright: ignore[reportIncompatibleMethodOverride]
    offset: int  # ordinal of the first one among the entry's bodies, from 0
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]


@value
class LargeBody:
    """A body too large for one entry: `head` is how it begins, the rest lies in the log in parts,
    (entry, offset among its bodies, size) each, of the same group as the message.
    """

    head: bytes
    parts: tuple[tuple[int, int, int], ...]

    def __len__(self) -> int:
        return len(self.head) + sum([size for _, _, size in self.parts])


#: Of a message, as it is read from the log.
Body = bytes | LargeBody


class MessageId(NamedTuple):
    """Which message, of all that a cluster ever had: where its body was written. A dead letter has
    that of the message that died, as long as it stays in the group.
    """

    group: GroupId
    entry: int
    offset: int

    def __str__(self) -> str:
        return f"{self.group}-{self.entry}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> MessageId | None:
        """None: it is none."""
        numbers = text.split("-")
        if len(numbers) != 3 or not all(_is_number(each) for each in numbers):
            return None
        group, entry, offset = map(int, numbers)
        return cls(GroupId(group), entry, offset)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX
