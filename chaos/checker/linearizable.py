"""The length of a queue, seen as a counter that everybody agrees about: linearizability of small
histories.

Publishing adds one for each message, settling takes one off, a length reads. Every message counts
for itself: a batch need not be one step. What was confirmed happened between its invocation and its
outcome; what has no outcome happened at any time after its invocation, or never.

The search is Wing and Gong's, linearizing as late as it can (Lowe): at each outcome, every possible
state is led to all those in which that op has happened. States are remembered, so that none is
looked at twice; when they are too many the answer is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chaos.checker.deliveries import MessageKey, published_keys, settled_keys
from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op

#: States that the search of one queue may look at.
STATES_MAX = 1_000_000


class State(NamedTuple):
    """One way in which all may have happened so far."""

    length: int
    adds: int  # of messages that may have been added: how many were
    takes: int
    done: frozenset[tuple[int, int]]  # ops that have not ended, and for how many messages
    read: frozenset[int]  # lengths that have their value, and have not ended


@dataclass(frozen=True, slots=True)
class _Step:
    """An op on the counter."""

    index: int
    change: int  # +1, -1; 0: a length
    must: int  # messages for which it happens before it ends
    may: int = 0  # and for which it happens some day, or never
    length: int = 0


Events = list[tuple[str, _Step]]  # "begin" or "end"


class _TooMany(Exception):
    """More states than the search may look at."""


def linearizable_lengths(states_max: int = STATES_MAX) -> Checker:
    """A checker of queues that are empty when the history begins."""

    def check(ops: Sequence[Op]) -> Verdict:
        wrong: list[str] = []
        undecided: list[str] = []
        looked = reads = 0
        for queue, events in _by_queue(ops).items():
            search = _Search(states_max)
            reads += sum(1 for kind, step in events if kind == "end" and step.change == 0)
            try:
                failed = search.run(events)
            except _TooMany:
                undecided.append(f"{queue}: more than {states_max} states")
            else:
                if failed is not None:
                    wrong.append(f"{queue}: {failed}")
            looked += search.looked
        return judge(
            "linearizable-lengths",
            {"no order explains it": wrong},
            undecided={"too many states": undecided},
            reported={"lengths": reads, "states": looked},
        )

    return check


def _by_queue(ops: Sequence[Op]) -> dict[str, Events]:
    ends = {op.invoke: op for op in ops if op.invoke is not None}
    askers = Counter(key for op in ops if op.type == "invoke" for key in settled_keys(op))
    events: dict[str, Events] = {}
    ending: dict[int, Events] = {}
    for op in ops:
        if op.type == "invoke":
            end = ends.get(op.index)
            steps = list(_steps(op, end, askers))
            for queue, step in steps:
                events.setdefault(queue, []).append(("begin", step))
            if end is not None:
                ending[end.index] = steps
        for queue, step in ending.pop(op.index, ()):
            events[queue].append(("end", step))
    return {queue: each for queue, each in events.items() if any(s.change == 0 for _, s in each)}


def _steps(op: Op, end: Op | None, askers: Counter[MessageKey]) -> Iterator[tuple[str, _Step]]:
    if end is not None and end.type == "refused":
        return
    known = end is not None and end.type == "ok"
    if op.f == "length":
        if known and end is not None:
            yield op.value["queue"], _Step(op.index, 0, 1, 0, end.value["length"])
        return
    put = published_keys(end if known and end is not None else op)
    for queue, count in Counter(queue for queue, _ in put).items():
        yield queue, _Step(op.index, 1, count, 0) if known else _Step(op.index, 1, 0, count)
    yield from _takes(op, end if known else None, askers)


def _takes(op: Op, ok: Op | None, askers: Counter[MessageKey]) -> Iterator[tuple[str, _Step]]:
    """One that is asked for twice happens once, and one in a transaction may be skipped."""
    keys = settled_keys(op)
    for queue, count in Counter(queue for queue, _ in keys).items():
        sure = 0
        if ok is not None and op.f != "transaction":
            found = ok.value.get("count", count)
            alone = sum(1 for key in keys if askers[key] == 1)
            sure = max(0, found - (count - alone))
            count = found
        yield queue, _Step(op.index, -1, sure, count - sure)


class _Search:
    """Of one queue."""

    def __init__(self, states_max: int) -> None:
        self.looked = 0
        self._max = states_max
        self._open: dict[int, _Step] = {}
        self._adds = self._takes = 0  # messages that may be added or taken by now

    def run(self, events: Events) -> str | None:
        """What cannot be explained; None: all can."""
        states = {State(0, 0, 0, frozenset(), frozenset())}
        for kind, step in events:
            if kind == "begin":
                self._begin(step)
            elif step.must:
                before = states
                states = self._end(states, step)
                if not states:
                    could = sorted({state.length for state in before})[:10]
                    return f"op {step.index} read {step.length}; before, it was one of {could}"
        return None

    def _begin(self, step: _Step) -> None:
        if step.must:
            self._open[step.index] = step
        if step.change > 0:
            self._adds += step.may
        else:
            self._takes += step.may

    def _end(self, states: set[State], ended: _Step) -> set[State]:
        """All states in which it has happened."""
        if any(step.change == 0 for step in self._open.values()):
            found = self._reach(states, ended)
        else:  # nobody looks: no matter what else happened before it
            found = {self._forced(state, ended) for state in states}
            self._count(len(found))
        del self._open[ended.index]
        return found

    def _count(self, states: int) -> None:
        self.looked += states
        if self.looked > self._max:
            raise _TooMany

    def _reach(self, states: set[State], ended: _Step) -> set[State]:
        """What can happen before it, in any order; what need not waits for its own end."""
        stack = [self._looked_at(state) for state in states]
        known = set(stack)
        found: set[State] = set()
        while stack:
            self._count(1)
            state = stack.pop()
            if ended.index in state.read or (ended.index, ended.must) in state.done:
                found.add(_without(state, ended))
                continue
            for following in self._next(state):
                if following not in known:
                    known.add(following)
                    stack.append(following)
        return found

    def _next(self, state: State) -> Iterator[State]:
        done = dict(state.done)
        for step in self._open.values():
            count = done.get(step.index, 0)
            if step.change and count < step.must:
                ops = (state.done - {(step.index, count)}) | {(step.index, count + 1)}
                yield self._looked_at(state._replace(length=state.length + step.change, done=ops))
        if state.adds < self._adds:
            yield self._looked_at(state._replace(length=state.length + 1, adds=state.adds + 1))
        if state.takes < self._takes:
            yield self._looked_at(state._replace(length=state.length - 1, takes=state.takes + 1))

    def _looked_at(self, state: State) -> State:
        """Reading changes nothing, so whoever can read what it will answer does."""
        now = {
            step.index
            for step in self._open.values()
            if step.change == 0 and step.length == state.length
        }
        return state if now <= state.read else state._replace(read=state.read | now)

    def _forced(self, state: State, ended: _Step) -> State:
        count = dict(state.done).get(ended.index, 0)
        length = state.length + ended.change * (ended.must - count)
        return _without(state._replace(length=length), ended)


def _without(state: State, ended: _Step) -> State:
    done = frozenset(each for each in state.done if each[0] != ended.index)
    return state._replace(done=done, read=state.read - {ended.index})
