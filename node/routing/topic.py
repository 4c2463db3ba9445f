"""Topic patterns as a trie: `*` is one word, `#` zero or more; all that match a key in one walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Place(Generic[T]):
    """What is reached by the words so far."""

    __slots__ = ("many", "next", "values")

    def __init__(self, *, many: bool = False) -> None:
        self.many = many  # reached by `#`: further words lead here again
        self.next: dict[str, _Place[T]] = {}
        self.values: list[T] = []


class TopicTrie(Generic[T]):
    """Values by pattern."""

    def __init__(self) -> None:
        self._root: _Place[T] = _Place()

    def add(self, pattern: str, value: T) -> None:
        place = self._root
        for word in words_of(pattern):
            known = place.next.get(word)
            if known is None:
                known = place.next[word] = _Place(many=word == "#")
            place = known
        place.values.append(value)

    def matching(self, key: str) -> Iterator[T]:
        """Values whose pattern matches, those of one pattern together; each place once, so that a
        pattern of many `#` costs no more than its words.
        """
        places = _with_empty([self._root])
        for word in words_of(key):
            after: dict[_Place[T], None] = {}
            for place in places:
                if place.many:
                    after[place] = None
                for step in (word, "*"):
                    reached = place.next.get(step)
                    if reached is not None:
                        after[reached] = None
            places = _with_empty(after)
        for place in places:
            yield from place.values


def words_of(key: str) -> list[str]:
    """The empty key has no word; "a." has two."""
    return key.split(".") if key else []


def _with_empty(places: list[_Place[T]] | dict[_Place[T], None]) -> dict[_Place[T], None]:
    """These, and what `#` reaches from them with no word at all."""
    found = dict.fromkeys(places)
    for place in places:
        many = place.next.get("#")
        while many is not None:
            found[many] = None
            many = many.next.get("#")
    return found
