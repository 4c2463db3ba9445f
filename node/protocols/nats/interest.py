"""Who wants which subjects of one virtual host: a trie by tokens. Pure.

A subject is tokens between dots. In what one subscribes to, `*` stands for one token, and `>`, at
the end, for one or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from cluster.types import NodeId
from node.messages.subjects import ANY, REST, is_literal
from node.protocols.nats.reader import Burst, Publish

#: Subjects whose matches are remembered.
REMEMBERED_MAX: Final = 4_096

T = TypeVar("T")


class _Level(Generic[T]):
    """What is known at one token of a path."""

    __slots__ = ("any", "children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[bytes, _Level[T]] = {}
        self.any: _Level[T] | None = None
        self.here: dict[T, None] = {}  # whose subjects end here
        self.rest: dict[T, None] = {}  # or with `>` as the next token

    def child(self, token: bytes) -> _Level[T] | None:
        return self.any if token == ANY else self.children.get(token)

    @property
    def empty(self) -> bool:
        return not (self.children or self.any or self.here or self.rest)


class Trie(Generic[T]):
    """Items by what they want; each at most once at a subject."""

    def __init__(self) -> None:
        self._root = _Level[T]()

    @property
    def empty(self) -> bool:
        return self._root.empty

    def add(self, subject: bytes, item: T) -> None:
        tokens = subject.split(b".")
        rest = tokens[-1] == REST
        level = self._root
        for token in tokens[:-1] if rest else tokens:
            below = level.child(token)
            if below is None:
                below = _Level[T]()
                if token == ANY:
                    level.any = below
                else:
                    level.children[token] = below
            level = below
        (level.rest if rest else level.here)[item] = None

    def remove(self, subject: bytes, item: T) -> None:
        """Nothing, when it is not there."""
        tokens = subject.split(b".")
        rest = tokens[-1] == REST
        if rest:
            tokens.pop()
        path = [self._root]
        for token in tokens:
            below = path[-1].child(token)
            if below is None:
                return
            path.append(below)
        (path[-1].rest if rest else path[-1].here).pop(item, None)
        while tokens and path[-1].empty:
            path.pop()
            token = tokens.pop()
            if token == ANY:
                path[-1].any = None
            else:
                del path[-1].children[token]

    def begins(self, token: bytes) -> bool:
        """May anything be wanted that begins with this token?"""
        root = self._root
        return bool(token in root.children or root.any or root.rest)

    def find_alike(self, start: bytes) -> list[T] | None:
        """Those that want any subject with one token more than this; None: it depends on which."""
        tokens = start.split(b".")
        found: list[T] = []
        levels = [self._root]
        for token in tokens:
            below: list[_Level[T]] = []
            for level in levels:
                found += level.rest
                below += filter(None, (level.children.get(token), level.any))
            levels = below
        for level in levels:
            if level.children:
                return None
            found += level.rest
            if level.any is not None:
                found += level.any.here
        return found

    def find(self, subject: bytes) -> list[T]:
        """Those that want a message of this subject."""
        tokens = subject.split(b".")
        found: list[T] = []
        if b"" in tokens:
            return found
        levels = [self._root]
        for token in tokens:
            below: list[_Level[T]] = []
            for level in levels:
                if level.rest:
                    found += level.rest
                child = level.children.get(token)
                if child is not None:
                    below.append(child)
                if level.any is not None:
                    below.append(level.any)
            if not below:
                return found
            levels = below
        for level in levels:
            found += level.here
        return found


class Taker(Protocol):
    """A client that has subscribed."""

    def deliver(
        self, subscription: Subscription, message: Publish, payloads: list[bytes], by: Taker | None
    ) -> list[bytes]:
        """The rest of these payloads of the message, that it does not take. `by`: who published."""
        ...

    def deliver_to(
        self, subscription: Subscription, to: bytes | None, messages: Sequence[Publish]
    ) -> int:
        """Messages that were sent to that subject, each under its own; None: to its own. How many
        it takes.
        """
        ...

    def deliver_burst(self, subscription: Subscription, to: bytes, burst: Burst) -> None:
        """The same of these messages."""
        ...

    def deliver_alike(
        self, subscription: Subscription, subjects: Sequence[bytes], bodies: Sequence[bytes]
    ) -> None:
        """Messages without headers, each under its own subject."""
        ...


@dataclass(slots=True, eq=False)
class Subscription:
    taker: Taker
    sid: bytes
    subject: bytes
    queue: bytes  # empty: none
    most: int = 0  # deliveries, then it ends; 0: no limit
    delivered: int = 0


class Remote(NamedTuple):
    """Somebody at that node."""

    node: NodeId
    queue: bytes


@dataclass(slots=True)
class QueueGroup:
    """A queue group: one of these takes a message."""

    queue: bytes
    members: list[Subscription] = field(default_factory=list[Subscription])
    nodes: list[NodeId] = field(default_factory=list[NodeId])  # where there are others


@dataclass(slots=True)
class Match:
    """Who wants a subject."""

    plain: list[Subscription] = field(default_factory=list[Subscription])
    nodes: list[NodeId] = field(default_factory=list[NodeId])  # that want it for such
    groups: dict[bytes, QueueGroup] = field(default_factory=dict[bytes, QueueGroup])


class Interest:
    """Of one virtual host, here and at the other nodes."""

    def __init__(self) -> None:
        self._trie = Trie[Subscription | Remote]()
        self._matches: dict[bytes, Match] = {}
        self._alike: dict[tuple[Subscription | Remote, ...], Match] = {}  # by what was found

    @property
    def empty(self) -> bool:
        return self._trie.empty

    def add(self, subject: bytes, item: Subscription | Remote) -> None:
        self._trie.add(subject, item)
        self._forget(subject)

    def remove(self, subject: bytes, item: Subscription | Remote) -> None:
        self._trie.remove(subject, item)
        self._forget(subject)

    def _forget(self, subject: bytes) -> None:
        self._alike.clear()
        if is_literal(subject):
            self._matches.pop(subject, None)
        else:
            self._matches.clear()

    def begins(self, token: bytes) -> bool:
        """May anything be wanted that begins with this token?"""
        return self._trie.begins(token)

    def look_alike(self, start: bytes) -> Match | None:
        """Of all subjects that have one token more than this; None: it depends on which."""
        found = self._trie.find_alike(start)
        return None if found is None else _match(found)

    def look(self, subject: bytes) -> Match:
        """As `match`, for a subject that nobody will use again."""
        return self._matches.get(subject) or _match(self._trie.find(subject))

    def match(self, subject: bytes) -> Match:
        """It is remembered: not to be changed."""
        match = self._matches.get(subject)
        if match is None:
            if len(self._matches) >= REMEMBERED_MAX:
                self._matches.clear()
                self._alike.clear()
            found = tuple(self._trie.find(subject))
            match = self._alike.get(found)
            if match is None:
                match = self._alike[found] = _match(found)
            self._matches[subject] = match
        return match


def _match(found: Iterable[Subscription | Remote]) -> Match:
    match = Match()
    nodes: dict[NodeId, None] = {}
    for item in found:
        group = None
        if item.queue:
            group = match.groups.get(item.queue)
            if group is None:
                group = match.groups[item.queue] = QueueGroup(item.queue)
        if isinstance(item, Subscription):
            (match.plain if group is None else group.members).append(item)
        elif group is None:
            nodes[item.node] = None
        elif item.node not in group.nodes:
            group.nodes.append(item.node)
    match.nodes = list(nodes)
    return match
