"""Ready messages of a queue with message groups: of one key, one is in flight at a time.

A key is free while a message of it is ready and none is in flight. Free keys stand in a ring: the
first gives its oldest message and is held until that is settled, dead-lettered or back; then it
goes to the end, if it has more. So a key with many messages takes its turn as one with few does.
Messages without a key are free, in the order of positions; while both wait, they and the keys
take turns. One that is returned and shall wait for its retry holds its key all the while, since
nothing may overtake it.

Whatever goes by position (limits, expiry, browsing) sees all ready messages, held keys or not.
What a message costs does not grow with the number of keys or messages, but for what a heap does.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, nlargest, nsmallest
from typing import Any, NamedTuple, cast

from cluster.machine.runs import RangeMap, ranges_of
from cluster.machine.store import CHAIN_FACTOR, CHAIN_MASK, pack, unpack

#: A heap may hold so many positions that are ready no longer before they are thrown out.
STALE_MIN = 64


class HeldKey(NamedTuple):
    """A key that others wait for."""

    name: str
    waiting: int  # ready messages of it
    position: int  # of the one they wait for


class _Key:
    """While any message of it is in the queue."""

    __slots__ = ("away", "holder", "name", "passed", "stale", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[int] = []  # a heap of those that are ready; empty if none is
        self.stale = 0  # of the heap: those that were cut since, and are passed over
        self.away = 0  # those that are in the queue and not ready
        self.holder = 0  # the position that is in flight, or waits for its retry; 0: none
        self.passed = 0  # turns in the ring that it had, and that are passed over

    @property
    def ready(self) -> int:
        return len(self.waiting) - self.stale


class KeyedReady:
    """In the place of `ReadyMessages`, and as that; there are no priorities."""

    __slots__ = (
        "_back",
        "_by_name",
        "_chain",
        "_end",
        "_keys",
        "_loose",
        "_loose_count",
        "_loose_next",
        "_order",
        "_passed",
        "_ready",
        "_ring",
    )

    def __init__(self) -> None:
        self._by_name: dict[str, _Key] = {}
        self._keys: dict[int, _Key] = {}  # of all messages that have one, in the order of positions
        self._ready: set[int] = set()
        self._ring: deque[_Key] = deque()  # the free ones, and turns that are passed over
        self._passed = 0  # of these
        # Ready positions, with some that are so no longer: ascending, a heap of those that came
        # back, a heap of those without a key.
        self._order: deque[int] = deque()
        self._back: list[int] = []
        self._loose: list[int] = []
        self._end = 0  # none that is ready is behind it
        self._loose_count = 0
        self._loose_next = False  # whose turn it is
        self._chain = 0  # of all that happened: equal histories have equal chains

    # --- keys -------------------------------------------------------------------------------------

    def enter(self, first: int, names: Sequence[str | None]) -> None:
        """As `name` and `add`: new messages with these keys are ready."""
        self._mix(first)
        positions = list(range(first, first + len(names)))
        found = list(map(self._by_name.get, cast("Sequence[str]", names)))
        if None in found:
            found = self._make(names, positions)
        else:
            self._keys.update(zip(positions, cast("list[_Key]", found), strict=True))
        ring = self._ring
        for position, key in zip(positions, found, strict=True):
            if key is not None:
                waiting = key.waiting
                if not waiting and not key.holder:
                    ring.append(key)
                waiting.append(position)  # no heap has a larger one
        self._end = positions[-1]
        self._ready.update(positions)
        self._order += positions
        self._clean()

    def _make(self, names: Sequence[str | None], positions: Sequence[int]) -> list[_Key | None]:
        """The keys of new messages, some of which are new, or that have none."""
        by_name, keys = self._by_name, self._keys
        found: list[_Key | None] = []
        for position, name in zip(positions, names, strict=True):
            key = None
            if name is None:
                self._loose.append(position)
                self._loose_count += 1
            else:
                key = by_name.get(name)
                if key is None:
                    key = by_name[name] = _Key(name)
                keys[position] = key
            found.append(key)
        return found

    def name(self, first: int, names: Sequence[str | None]) -> None:
        """The keys of new messages, which are behind all others."""
        by_name, keys = self._by_name, self._keys
        for position, name in enumerate(names, first):
            if name is None:
                continue
            key = by_name.get(name)
            if key is None:
                key = by_name[name] = _Key(name)
            key.away += 1
            keys[position] = key

    def names(self, first: int, last: int) -> list[str | None] | None:
        """The keys of these; None: they have none."""
        keys = self._keys
        found = [keys[at].name if at in keys else None for at in range(first, last + 1)]
        return found if any(each is not None for each in found) else None

    def forget(self, first: int, last: int) -> None:
        """These messages are gone: whatever waited for one of them is free."""
        keys, by_name = self._keys, self._by_name
        self._mix(~first)
        for position in range(first, last + 1):
            key = keys.pop(position, None)
            if key is None:
                continue
            key.away -= 1
            if not key.away and not key.waiting:
                del by_name[key.name]
            elif key.holder == position:
                key.holder = 0
                if key.waiting:
                    self._ring.append(key)

    def apart(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of these messages that may be taken whatever is before them: they have no key, or
        are what its others wait for.
        """
        keys = self._keys
        return ranges_of(
            at
            for first, last in ranges
            for at in range(first, last + 1)
            if at not in keys or keys[at].holder == at
        )

    def held(self, most: int) -> list[HeldKey]:
        """Of the keys that others wait for those with the most messages."""
        found = (
            HeldKey(key.name, key.ready, key.holder)
            for key in self._by_name.values()
            if key.holder and key.waiting
        )
        return nlargest(most, found, key=lambda each: (each.waiting, each.name))

    # --- serving ----------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many messages could be handed out at once."""
        return len(self._ring) - self._passed + self._loose_count

    def serve(self, limit: int) -> tuple[int, int]:
        """Remove the next message, and up to `limit` in all if those behind it are its neighbours;
        their keys are held. Only when one is free.
        """
        if self._loose_count:
            return self._serve_in_turn(limit)
        ring, hold = self._ring, self._hold
        first = self._next()
        position, end = first, first + limit
        while True:
            hold(ring.popleft(), position)
            position += 1
            if position == end or len(ring) == self._passed:
                break
            key = ring[0]
            if key.passed or key.stale:
                if self._next() != position:
                    break
            elif key.waiting[0] != position:
                break
        self._ready.difference_update(range(first, position))
        self._loose_next = True
        self._mix(first)
        self._mix(position)
        return first, position - 1

    def _serve_in_turn(self, limit: int) -> tuple[int, int]:
        """As `serve`, while some without a key wait."""
        keys, ready, ring = self._keys, self._ready, self._ring
        first = position = self._next()
        end = first + limit
        while True:
            key = keys.get(position)
            ready.remove(position)
            if key is None:
                self._loose_count -= 1
                heappop(self._loose)
            else:
                self._hold(ring.popleft(), position)
            self._loose_next = key is not None
            position += 1
            if position == end or not self.free or self._next() != position:
                break
        self._mix(first)
        self._mix(position)
        return first, position - 1

    def _next(self) -> int:
        """The lowest of its heap, at whose head it is then."""
        ring = self._ring
        if self._loose_count and (self._loose_next or len(ring) == self._passed):
            return self._lowest(self._loose)
        while ring[0].passed:
            ring.popleft().passed -= 1
            self._passed -= 1
        return self._head_of(ring[0])

    def _hold(self, key: _Key, position: int) -> None:
        """This one, the first that waits, is in flight."""
        heappop(key.waiting)
        if key.stale and len(key.waiting) == key.stale:
            key.waiting, key.stale = [], 0
        key.away += 1
        key.holder = position

    def _head_of(self, key: _Key) -> int:
        """The lowest that is ready."""
        waiting, ready = key.waiting, self._ready
        while waiting[0] not in ready:
            heappop(waiting)
            key.stale -= 1
        return waiting[0]

    def _lowest(self, heap: list[int]) -> int:
        """Of those that are ready still."""
        ready = self._ready
        while heap[0] not in ready:
            heappop(heap)
        return heap[0]

    def _remove(self, position: int, key: _Key | None) -> None:
        """It is ready no longer."""
        self._ready.remove(position)
        if key is None:
            self._loose_count -= 1
            if self._loose[0] == position:
                heappop(self._loose)
            return
        key.away += 1
        if key.waiting[0] == position:
            heappop(key.waiting)
        else:
            key.stale += 1
        if len(key.waiting) == key.stale:
            key.waiting, key.stale = [], 0
            if not key.holder:
                key.passed += 1
                self._passed += 1

    def _mix(self, number: int) -> None:
        self._chain = (self._chain * CHAIN_FACTOR + number) & CHAIN_MASK

    # --- as `ReadyMessages`, by position ----------------------------------------------------------

    @property
    def count(self) -> int:
        """Ready messages, those of held keys included."""
        return len(self._ready)

    def add(self, first: int, last: int, priority: int = 0) -> None:
        """They are ready, or ready again."""
        self._mix(first)
        keys, ready, ring = self._keys, self._ready, self._ring
        if last > self._end:
            self._end = last
        for position in range(first, last + 1):
            ready.add(position)
            if not self._order or position > self._order[-1]:
                self._order.append(position)
            else:
                heappush(self._back, position)
            key = keys.get(position)
            if key is None:
                self._loose_count += 1
                heappush(self._loose, position)
                continue
            key.away -= 1
            heappush(key.waiting, position)
            if key.stale > key.ready + STALE_MIN:
                key.waiting, key.stale = self._cleaned(key.waiting), 0
            if key.holder == position:
                key.holder = 0
                ring.append(key)
            elif len(key.waiting) == 1 and not key.holder:
                ring.append(key)
        self._clean()

    def _clean(self) -> None:
        """Throw out what is ready no longer, when that is the most of what is kept."""
        if len(self._order) + len(self._back) > 2 * len(self._ready) + STALE_MIN:
            self._order, self._back = deque(sorted(self._ready)), []
        if len(self._loose) > 2 * self._loose_count + STALE_MIN:
            self._loose = self._cleaned(self._loose)
        if self._passed > len(self._ring) // 2 + STALE_MIN:
            turns = self._turns()
            for key in self._ring:
                key.passed = 0
            self._ring, self._passed = turns, 0

    def _turns(self) -> deque[_Key]:
        """The free keys, in the order of their turns."""
        turns: deque[_Key] = deque()
        passed: dict[_Key, int] = {}
        for key in self._ring:
            before = passed.get(key, 0)
            if before < key.passed:
                passed[key] = before + 1
            else:
                turns.append(key)
        return turns

    def _cleaned(self, heap: list[int]) -> list[int]:
        return sorted(self._ready.intersection(heap))

    @property
    def front(self) -> tuple[int, int]:
        """A range at the head, not always to its end. Only when not empty."""
        position = self._lowest_of_all()
        return position, position

    def _lowest_of_all(self) -> int:
        order, back, ready = self._order, self._back, self._ready
        while order and order[0] not in ready:
            order.popleft()
        while back and back[0] not in ready:
            heappop(back)
        if not order or (back and back[0] < order[0]):
            return back[0]
        return order[0]

    def take(self, limit: int) -> tuple[int, int]:
        """Remove up to `limit` neighbours at the head. Only when not empty."""
        first = self._lowest_of_all()
        last = first - 1
        while last - first + 1 < limit and last + 1 in self._ready:
            last += 1
            self._remove(last, self._keys.get(last))
        self._mix(last)
        return first, last

    def priorities(self) -> list[int]:
        return [0] if self._ready else []

    def has(self, priority: int) -> bool:
        return bool(self._ready)

    def head(self, priority: int) -> tuple[int, int]:
        return self.front

    def take_at(self, priority: int, limit: int) -> tuple[int, int]:
        return self.take(limit)

    def cut(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove whatever is ready of the range, and answer it."""
        removed = self.pieces(first, last)
        for start, end in removed:
            for position in range(start, end + 1):
                self._remove(position, self._keys.get(position))
            self._mix(end)
        return removed

    def pieces(self, first: int, last: int) -> list[tuple[int, int]]:
        """What is ready of the range."""
        return ranges_of(at for at in range(first, last + 1) if at in self._ready)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(0, first, last), in the order of positions."""
        for first, last in ranges_of(sorted(self._ready)):
            yield 0, first, last

    def from_position(self, start: int, count: int) -> list[int]:
        """At most `count` positions, from `start` on. It costs what lies between them, and at most
        what all that are ready do.
        """
        ready, found = self._ready, list[int]()
        if not ready or count <= 0:
            return found
        start = max(start, self._lowest_of_all())
        stop = min(self._end + 1, start + len(ready))
        for position in range(start, stop):
            if position in ready:
                found.append(position)
                if len(found) == count:
                    return found
        if stop <= self._end:
            behind = (at for at in ready if at >= stop)
            found += nsmallest(count - len(found), behind)
        return found

    # --- snapshots --------------------------------------------------------------------------------

    def levels(self) -> list[tuple[int, RangeMap[None]]]:
        level: RangeMap[None] = RangeMap()
        for _, first, last in self:
            level.put(first, last, None)
        return [(0, level)] if level else []

    def restore_level(self, priority: int, level: RangeMap[None]) -> None:
        """`load` gives them their keys."""
        for first, last, _ in level:
            self.add(first, last)

    def fingerprint(self) -> list[Any]:
        """Tells two apart at no cost, given that they come of one log."""
        free = len(self._ring) - self._passed
        return [len(self._ready), len(self._keys), free, self._loose_next, self._chain]

    def dump(self) -> list[Any]:
        """Names in the order of their oldest messages; keys, holders and the ring by their place
        among these.
        """
        places: dict[_Key, int] = {}
        of = [places.setdefault(key, len(places)) for key in self._keys.values()]
        return [
            [key.name for key in places],
            pack(array("q", self._keys)),
            pack(array("q", of)),
            pack(array("q", [key.holder for key in places])),
            pack(array("q", [places[key] for key in self._turns()])),
            self._loose_next,
            self._chain,
        ]

    def load(self, data: Sequence[Any]) -> None:
        """After the messages that are ready."""
        ready = sorted(self._ready)
        self.__init__()
        names, positions, of, holders, ring, loose_next, chain = data
        keys = [_Key(name) for name in names]
        self._by_name = {key.name: key for key in keys}
        for position, place in zip(unpack("q", positions), unpack("q", of), strict=True):
            self._keys[position] = keys[place]
            keys[place].away += 1
        for key, holder in zip(keys, unpack("q", holders), strict=True):
            key.holder = holder
        for first, last in ranges_of(ready):
            self.add(first, last)
        self._ring = deque(keys[place] for place in unpack("q", ring))
        self._loose_next, self._chain = loose_next, chain

    def invariants(self) -> None:
        free = {key for key in self._by_name.values() if key.waiting and not key.holder}
        assert self._passed == sum(key.passed for key in set(self._ring)), "turns miscounted"
        turns = self._turns()
        assert free == set(turns), "the ring is not of the free keys"
        assert len(turns) == len(free), "a key has two turns"
        assert len(turns) == len(self._ring) - self._passed, "turns miscounted"
        live: dict[str, int] = {}
        ready: dict[str | None, set[int]] = {None: set()}
        for key in self._keys.values():
            assert self._by_name.get(key.name) is key, "a key is known twice, or not at all"
            live[key.name] = live.get(key.name, 0) + 1
        for position in self._ready:
            key = self._keys.get(position)
            ready.setdefault(key and key.name, set()).add(position)
        counted = {key.name: key.ready + key.away for key in self._by_name.values()}
        assert live == counted, "keys miscounted"
        assert len(ready[None]) == self._loose_count, "messages without a key miscounted"
        assert self._ready <= {*self._order, *self._back}, "a ready message is not in order"
        assert list(self._order) == sorted(set(self._order)), "they are not in order"
        assert all(at <= self._end for at in self._ready), "a ready message is behind the end"
        assert ready[None] <= set(self._loose), "a message without a key has no turn"
        for key in self._by_name.values():
            positions = ready.get(key.name, set())
            assert len(positions) == key.ready, "ready messages of a key miscounted"
            assert positions <= set(key.waiting), "a ready message of a key has no turn"
            assert bool(positions) == bool(key.waiting), "a key waits for nothing"
            if key.holder:
                assert self._keys.get(key.holder) is key, "what holds a key is gone"
                assert key.holder not in self._ready, "what holds a key is ready"
