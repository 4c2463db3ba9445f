"""Random operations, a crash anywhere, recovery: the log is always one that it was, not older than
its last sync.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.log import Log, cleaner, rewriting
from cluster.log.reader import CORRUPT, read
from tests.log.memory_disk import PowerLost
from tests.log.support import FOLDER, World, command, contents


@dataclass(frozen=True)
class Naive:
    """One group as anyone would write it."""

    term: int = 0
    voted_for: str | None = None
    base: tuple[int, int] = (1, 0)
    entries: tuple[tuple[int, int, bytes], ...] = ()
    live: tuple[tuple[int, bytes], ...] = ()
    snapshot: bytes | None = None

    @property
    def last(self) -> int:
        return self.entries[-1][0] if self.entries else self.base[0]

    @property
    def last_term(self) -> int:
        return self.entries[-1][1] if self.entries else self.base[1]

    @property
    def bodies(self) -> dict[int, bytes]:
        return dict(self.live) | {index: body for index, _, body in self.entries}


Groups = dict[int, Naive]


def observed(log: Log) -> Groups:
    groups = Groups()
    for group in log.groups():
        journal = log.journal(group)
        snapshot = journal.load_snapshot()
        bodies = contents(journal)
        groups[group] = Naive(
            journal.current_term,
            journal.voted_for,
            (journal.base_index, journal.base_term),
            tuple((i, t, c) for c, i, t in journal.entries(journal.base_index + 1)),
            tuple((i, c) for i, c in sorted(bodies.items()) if i <= journal.base_index),
            snapshot.data if snapshot else None,
        )
        assert journal.last_index == journal.base_index + len(groups[group].entries)
        assert journal.base_index <= journal.commit_index <= journal.last_index
        assert {i: b for i, b in bodies.items() if i > journal.base_index} == {
            i: b for i, _, b in groups[group].entries
        }
    return groups


@dataclass
class Run:
    """The log and its twin, the states the twin has been in, and from which on the log must
    remember.
    """

    world: World
    log: Log
    random: Random
    groups: Groups = field(default_factory=Groups)
    history: list[Groups] = field(default_factory=lambda: [Groups()])
    promised: int = 0
    serial: int = 0
    committed: dict[int, dict[int, tuple[int, bytes]]] = field(default_factory=dict)

    def commit(self, group: int, index: int) -> dict[int, tuple[int, bytes]]:
        """What Raft promises: an entry once committed is the same on every node, for ever."""
        naive, truth = self.naive(group), self.committed.setdefault(group, {})
        own = {i: (t, body) for i, t, body in naive.entries}
        for i in range(naive.base[0] + 1, index + 1):
            term = max(naive.term, naive.last_term)
            truth.setdefault(i, own.get(i) or (term, b"elsewhere %d " % i * 4))
        return truth

    def becomes(self, group: int, naive: Naive | None) -> None:
        self.groups = dict(self.groups)
        if naive is None:
            self.groups.pop(group, None)
        else:
            self.groups[group] = naive
        self.history.append(self.groups)

    async def step(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        await getattr(self, name)(*arguments)

    def naive(self, group: int) -> Naive:
        if group not in self.groups:
            self.becomes(group, Naive())
            self.log.journal(group)
        return self.groups[group]

    async def add(self, group: int, count: int, size: int) -> None:
        for _ in range(count):
            naive = self.naive(group)
            term = max(naive.term, naive.last_term)
            self.serial += 1
            body = command(self.serial, term, size)
            index = naive.last + 1
            term, body = self.committed.get(group, {}).get(index, (term, body))
            self.becomes(group, replace(naive, entries=(*naive.entries, (index, term, body))))
            self.log.journal(group).add(body, index, term)

    async def vote(self, group: int, voted_for: str | None) -> None:
        naive = self.naive(group)
        term = max(naive.term, naive.last_term) + 1
        self.becomes(group, replace(naive, term=term, voted_for=voted_for))
        self.log.journal(group).set_term(term, voted_for)

    async def truncate(self, group: int, count: int) -> None:
        naive = self.naive(group)
        safe = sum(i in self.committed.get(group, {}) for i, _, _ in naive.entries)
        kept = naive.entries[: max(safe, len(naive.entries) - count)]
        self.becomes(group, replace(naive, entries=kept))
        journal = self.log.journal(group)
        journal.truncate_from(self.groups[group].last + 1)

    async def save(self) -> None:
        state = len(self.history) - 1
        self.log.write()
        await self.log.sync()
        self.promised = state
        for group, naive in self.groups.items():
            assert self.log.journal(group).synced_index == naive.last

    async def write(self) -> None:
        self.log.write()

    async def snapshot(self, group: int, share: float) -> None:
        naive = self.naive(group)
        if not naive.entries:
            return
        at = naive.entries[int(share * (len(naive.entries) - 1))]
        self.commit(group, at[0])
        below = {i: b for i, b in naive.bodies.items() if i <= at[0]}
        live = sorted(i for i in below if self.random.random() < 0.5)
        data = b"state %d" % self.serial
        state = len(self.history) - 1
        after = replace(
            naive,
            base=at[:2],
            entries=tuple(e for e in naive.entries if e[0] > at[0]),
            live=tuple((i, below[i]) for i in live),
            snapshot=data,
        )
        self.becomes(group, after)
        await self.log.journal(group).save_snapshot(at[0], at[1], data, [(i, i) for i in live])
        self.promised = state + 1

    async def install(self, group: int, ahead: int, finish: bool) -> None:
        naive = self.naive(group)
        index = naive.base[0] + ahead
        truth = self.commit(group, index)
        term = truth[index][0]
        bodies = {i: body for i, (_, body) in truth.items() if i > naive.base[0]} | dict(naive.live)
        live = {
            i: bodies[i] for i in range(2, index + 1) if i in bodies and self.random.random() < 0.5
        }
        journal = self.log.journal(group)
        data = b"installed %d" % self.serial
        journal.begin_install(index, term, b"h" * 16, data, [(i, i) for i in live])
        for i in sorted(live, key=lambda _: self.random.random()):
            journal.add_live(i, term, live[i])
        if not finish:
            if self.random.random() < 0.5:
                journal.abort_install()
            else:
                journal.begin_install(index, term, b"h" * 16, data, [])
                journal.abort_install()
            return
        state = len(self.history) - 1
        self.becomes(
            group,
            replace(naive, base=(index, term), entries=(), live=tuple(live.items()), snapshot=data),
        )
        await journal.finish_install()
        self.promised = state + 1

    async def remove(self, group: int) -> None:
        self.committed.pop(group, None)
        self.becomes(group, None)
        self.log.remove_group(group)

    async def maintain(self) -> None:
        await self.log.maintain()

    async def note(self, group: int) -> None:
        self.log.note(34, group, 0, 0, b"note")

    async def restart(self) -> None:
        await self.log.close()
        self.log = await self.world.open()
        assert observed(self.log) == self.groups

    async def crash(self, seed: int) -> None:
        self.world.crash(Random(seed) if seed else None)
        damage = [r for r in read(FOLDER, disk=self.world.disk) if r.kind == CORRUPT]
        assert damage == [], str(damage)
        self.log = await self.world.open()
        found = observed(self.log)
        assert found in self.history[self.promised :], f"{found}\n{self.history[self.promised :]}"
        self.groups, self.history, self.promised = found, [found], 0

    async def doom(self, steps: int) -> None:
        self.world.disk.steps_left = steps


group = st.integers(0, 2)
operations = st.one_of(
    st.tuples(st.just("add"), group, st.integers(1, 12), st.sampled_from([20, 100, 700])),
    st.tuples(st.just("add"), group, st.integers(1, 12), st.sampled_from([20, 100, 700])),
    st.tuples(st.just("vote"), group, st.sampled_from([None, "n1", "n2"])),
    st.tuples(st.just("truncate"), group, st.integers(1, 10)),
    st.tuples(st.just("save")),
    st.tuples(st.just("save")),
    st.tuples(st.just("write")),
    st.tuples(st.just("snapshot"), group, st.floats(0, 1)),
    st.tuples(st.just("snapshot"), group, st.floats(0, 1)),
    st.tuples(st.just("install"), group, st.integers(1, 15), st.booleans()),
    st.tuples(st.just("remove"), group),
    st.tuples(st.just("maintain")),
    st.tuples(st.just("maintain")),
    st.tuples(st.just("note"), group),
    st.tuples(st.just("restart")),
    st.tuples(st.just("crash"), st.integers(0, 1 << 30)),
    st.tuples(st.just("doom"), st.integers(0, 30)),
)


async def drive(script: list[tuple[Any, ...]], seed: int, **options: Any) -> None:
    world = World(**options)
    run = Run(world, await world.open(), Random(seed))
    for number, operation in enumerate(script):
        try:
            await run.step(operation)
        except PowerLost:
            while True:
                try:
                    await run.crash(seed + number)
                    break
                except PowerLost:
                    raise AssertionError("recovery starts on a fresh disk") from None
        if run.world.disk.steps_left is None:
            assert observed(run.log) == run.groups
    run.world.disk.steps_left = None
    try:
        await run.crash(seed)
    except PowerLost:
        await run.crash(seed)


@given(script=st.lists(operations, max_size=60), seed=st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_after_any_crash_the_log_is_a_state_it_was_in_since_its_last_sync(
    script: list[tuple[Any, ...]], seed: int
) -> None:
    asyncio.run(drive(script, seed, segment_bytes=3000, hot_bytes=2000))


@given(script=st.lists(operations, max_size=60), seed=st.integers(0, 1 << 30))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_it_is_so_with_retention_and_an_archive_too(
    script: list[tuple[Any, ...]], seed: int
) -> None:
    options: dict[str, Any] = {"retain_bytes": 6000, "archive_dir": "/archive"}
    asyncio.run(drive(script, seed, segment_bytes=3000, hot_bytes=0, **options))


@given(
    script=st.lists(
        st.one_of(operations, st.tuples(st.just("maintain"))), min_size=20, max_size=100
    ),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_it_is_so_while_segments_are_rewritten_piece_by_piece(
    script: list[tuple[Any, ...]], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaner, "REWRITE_BYTES_MAX", 300)
        patch.setattr(cleaner, "SPARSE_SEGMENTS_MAX", 0)
        patch.setattr(rewriting, "PIECE_BYTES", 200)
        asyncio.run(drive(script, seed, segment_bytes=1500, hot_bytes=0))
