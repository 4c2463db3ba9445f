"""Which subjects a stream holds messages of, and under which sequences.

A subject that has messages has a small number, its id, which it loses with its last message. Per
subject there is a packed column of sequences, ascending. Those of messages that are gone leave it
at either end, and from between when there are more of them than of the living.

A filter is a set of patterns that consumers share; it knows at any time which ids it means.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from cluster.machine.store import pack, unpack

Patterns = tuple[bytes, ...]
#: Dead sequences of a subject that are not worth to be looked for.
DEAD_MIN = 16


@lru_cache(maxsize=4096)
def matcher(patterns: Patterns) -> Callable[[bytes], Any]:
    """Answers something true for the subjects that one of the patterns means."""
    return re.compile(b"|".join(map(_expression, patterns)), re.DOTALL).fullmatch


def _expression(pattern: bytes) -> bytes:
    tokens: list[bytes] = []
    for token in pattern.split(b"."):
        if token == b">":
            tokens.append(b".+")
            break
        tokens.append(b"[^.]+" if token == b"*" else re.escape(token))
    return rb"\.".join(tokens)


def is_literal(pattern: bytes) -> bool:
    """Does it mean no other subject than itself?"""
    return b"*" not in pattern and b">" not in pattern


class Filter:
    """Subjects that some consumers want; no patterns: all."""

    __slots__ = ("ids", "matches", "patterns", "users")

    def __init__(self, patterns: Patterns) -> None:
        self.patterns = patterns
        self.matches = matcher(patterns) if patterns else bool_of_any
        self.ids: set[int] = set()  # of the subjects there are
        self.users = 0

    def means(self, subject_id: int) -> bool:
        return not self.patterns or subject_id in self.ids


def bool_of_any(_subject: bytes) -> bool:
    return True


class Subjects:
    """Of one stream. `is_live`: is there a message under this sequence?"""

    __slots__ = ("_columns", "_free", "_heads", "_ids", "_is_live", "_names", "counts", "filters")

    def __init__(self, is_live: Callable[[int], bool]) -> None:
        self._is_live = is_live
        self._ids: dict[bytes, int] = {}
        # By id; 0 is nobody's.
        self._names: list[bytes | None] = [None]
        self._columns: list[array[int] | None] = [None]
        self._heads = array("I", [0])  # place of the first living one; the last one lives, too
        self.counts = array("q", [0])  # living messages
        self._free = array("I")  # ids that were somebody's; the last one is used first
        self.filters: dict[Patterns, Filter] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """(subject, id), in no order that means anything."""
        return iter(self._ids.items())

    def id_of(self, subject: bytes) -> int:
        """0: it has no messages."""
        return self._ids.get(subject, 0)

    def name_of(self, subject_id: int) -> bytes:
        return self._names[subject_id] or b""

    # --- changing ---------------------------------------------------------------------------------

    def id_for(self, subject: bytes) -> int:
        """For a message that is about to be stored."""
        found = self._ids.get(subject)
        if found is not None:
            return found
        if self._free:
            found = self._free.pop()
            self._names[found] = subject
            self._columns[found] = array("q")
        else:
            found = len(self._names)
            self._names.append(subject)
            self._columns.append(array("q"))
            self._heads.append(0)
            self.counts.append(0)
        self._ids[subject] = found
        for each in self.filters.values():
            if each.patterns and each.matches(subject):
                each.ids.add(found)
        return found

    def append(self, subject_id: int, first: int, last: int) -> None:
        """The next messages of this subject."""
        column = self._columns[subject_id]
        assert column is not None
        if first == last:
            column.append(first)
        else:
            column.extend(range(first, last + 1))
        self.counts[subject_id] += last - first + 1

    def append_each(self, ids: Sequence[int], first: int) -> None:
        """Messages of these subjects, one each, from the sequence `first` on."""
        columns, counts = self._columns, self.counts
        for sequence, subject_id in enumerate(ids, first):
            columns[subject_id].append(sequence)  # type: ignore[union-attr]
            counts[subject_id] += 1

    def remove(self, subject_id: int, first: int, last: int) -> None:
        """These messages of the subject, whose sequences follow each other, live no longer. Perhaps
        others do not either, of which it is said next.
        """
        count = last - first + 1
        left = self.counts[subject_id] - count
        self.counts[subject_id] = left
        if not left:
            self._forget(subject_id)
            return
        column, head, is_live = self._columns[subject_id], self._heads[subject_id], self._is_live
        assert column is not None
        size = len(column)
        if head < size and column[head] == first:
            head += count
            while head < size and not is_live(column[head]):
                head += 1
            if head > DEAD_MIN and head * 2 > size:
                del column[:head]
                head = 0
            self._heads[subject_id] = head
        elif head < size and column[-1] == last:
            del column[-count:]
            while len(column) > head and not is_live(column[-1]):
                column.pop()
        elif size - head > 2 * left + DEAD_MIN:
            self._columns[subject_id] = array("q", [at for at in column[head:] if is_live(at)])
            self._heads[subject_id] = 0

    def _forget(self, subject_id: int) -> None:
        name = self._names[subject_id]
        assert name is not None
        del self._ids[name]
        self._names[subject_id] = self._columns[subject_id] = None
        self._heads[subject_id] = 0
        self._free.append(subject_id)
        for each in self.filters.values():
            each.ids.discard(subject_id)

    def clear(self) -> None:
        """No message lives any more."""
        filters = self.filters
        self.__init__(self._is_live)
        self.filters = filters
        for each in filters.values():
            each.ids.clear()

    # --- sequences of one subject -----------------------------------------------------------------

    def first_of(self, subject_id: int) -> int:
        """0: none."""
        column = self._columns[subject_id]
        return column[self._heads[subject_id]] if column else 0

    def last_of(self, subject_id: int) -> int:
        """0: none."""
        column = self._columns[subject_id]
        return column[-1] if column else 0

    def last_matching(self, pattern: bytes) -> int:
        """Of all subjects that the pattern means; 0: none."""
        if is_literal(pattern):
            return self.last_of(self.id_of(pattern))
        return max(map(self.last_of, self.matching((pattern,))), default=0)

    def next_of(self, subject_id: int, sequence: int) -> int:
        """The first one at `sequence` or behind it; 0: none."""
        column = self._columns[subject_id]
        if column is None:
            return 0
        is_live = self._is_live
        for place in range(bisect_left(column, sequence, self._heads[subject_id]), len(column)):
            if is_live(column[place]):
                return column[place]
        return 0

    def last_until(self, subject_id: int, sequence: int) -> int:
        """The last one at `sequence` or before it; 0: none."""
        column = self._columns[subject_id]
        if column is None:
            return 0
        is_live, head = self._is_live, self._heads[subject_id]
        for place in range(bisect_left(column, sequence + 1, head) - 1, head - 1, -1):
            if is_live(column[place]):
                return column[place]
        return 0

    def count_from(self, subject_id: int, sequence: int) -> int:
        """Living ones at `sequence` or behind it."""
        if self.first_of(subject_id) >= sequence:
            return self.counts[subject_id]
        return len(self.all_of(subject_id, sequence))

    def all_of(self, subject_id: int, sequence: int = 0) -> list[int]:
        """The living ones at `sequence` or behind it."""
        column = self._columns[subject_id]
        if column is None:
            return []
        start = bisect_left(column, sequence, self._heads[subject_id])
        return list(filter(self._is_live, column[start:]))

    # --- filters ----------------------------------------------------------------------------------

    def matching(self, patterns: Patterns) -> list[int]:
        """Ids of the subjects that the patterns mean, each once; no patterns: of all."""
        if not patterns:
            return list(self._ids.values())
        if all(map(is_literal, patterns)):
            return [self._ids[each] for each in dict.fromkeys(patterns) if each in self._ids]
        known = self.filters.get(patterns)
        if known is not None:
            return list(known.ids)
        matches = matcher(patterns)
        return [subject_id for subject, subject_id in self._ids.items() if matches(subject)]

    def use(self, patterns: Patterns) -> Filter:
        """The filter with these patterns, for one user more."""
        found = self.filters.get(patterns)
        if found is None:
            found = Filter(patterns)
            if patterns:
                found.ids = set(self.matching(patterns))
            self.filters[patterns] = found
        found.users += 1
        return found

    def release(self, used: Filter) -> None:
        used.users -= 1
        if not used.users:
            del self.filters[used.patterns]

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """Names by id; the sequences are known from the messages."""
        return [self._names[1:], pack(self._free)]

    def load(self, names: Sequence[Any], free: bytes) -> None:
        """Into one that was just made; then the messages follow, oldest first."""
        for name in names:
            self._names.append(name)
            self._columns.append(None if name is None else array("q"))
            self._heads.append(0)
            self.counts.append(0)
            if name is not None:
                self._ids[name] = len(self._names) - 1
        self._free = unpack("I", free)

    def invariants(self) -> None:
        for subject, subject_id in self._ids.items():
            assert self._names[subject_id] == subject, "a subject has another's id"
            count = len(self.all_of(subject_id))
            assert count == self.counts[subject_id] > 0, "messages of a subject miscounted"
            ends = self.first_of(subject_id), self.last_of(subject_id)
            assert all(map(self._is_live, ends)), "a column begins or ends with what is gone"
        assert len(self._ids) + len(self._free) + 1 == len(self._names), "an id is lost"
        for patterns, each in self.filters.items():
            assert each.users > 0, "nobody uses a filter"
            wanted = {i for name, i in self._ids.items() if patterns and each.matches(name)}
            assert each.ids == wanted, "a filter has other subjects than it means"
