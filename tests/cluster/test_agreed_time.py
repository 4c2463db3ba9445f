"""A node believes its clock as far as a majority agrees and monotonic time explains."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cluster.agreed_time import (
    CLOCK_CONFIRM_MS,
    CLOCK_OFFSET_MS_MAX,
    AgreedTime,
    LogTime,
    majority_time,
)
from cluster.types import NodeId
from tests.testkit.clocks import FakeClock

DAY_MS = 86_400_000
BOUND_MS = CLOCK_OFFSET_MS_MAX
CONFIRM_MS = CLOCK_CONFIRM_MS


class Node:
    """Its clock, and what its peers' clocks show against the true time."""

    def __init__(self, *peers_ms: int) -> None:
        self.clock = FakeClock()
        self.true_ms = self.clock.wall
        self.peers_ms = list(peers_ms)
        names = [NodeId(f"n{number}") for number, _ in enumerate(peers_ms, 2)]
        self.time = AgreedTime(NodeId("n1"), self.clock, lambda: names)
        self.names = names

    def take_acks(self) -> None:
        for name, offset_ms in zip(self.names, self.peers_ms, strict=False):
            asked_ns = self.clock.ns
            self.time.heard(name, asked_ns, (self.true_ms + offset_ms) * 1_000_000)

    def jump(self, ms: int) -> None:
        self.clock.skew_ms += ms

    def goes_on(self, ms: int) -> None:
        """In steps of a second, after each of which the clocks are compared."""
        while ms > 0:
            step = min(1_000, ms)
            self.clock.pass_ms(step)
            self.true_ms += step
            ms -= step
            self.take_acks()

    @property
    def off_ms(self) -> int:
        """What would be stamped, against the true time."""
        return self.time.at(self.clock.ns) - self.true_ms


def test_the_time_of_a_majority_is_the_lower_median() -> None:
    assert majority_time([5], 0, 1) == 5
    assert majority_time([5], 0, 2) is None
    assert majority_time([7, 5], 2, 2) == 5
    assert majority_time([7, 5], 1, 2) is None
    assert majority_time([0, 3, 900], 3, 3) == 3
    assert majority_time([0, 400, 900], 3, 3) is None
    assert majority_time([0, 1, 900, 901], 3, 4) is None
    assert majority_time([900, 1, 0, 2], 3, 4) == 1
    assert majority_time([900, 900, 0], 3, 5) is None
    assert majority_time([900, 2, 0, 1], 3, 5) == 1


def test_a_clock_that_jumps_ahead_is_not_stamped_with() -> None:
    node = Node(0, 0)
    node.take_acks()
    node.jump(8 * DAY_MS)
    assert node.off_ms == 0
    assert node.time.out_of_bounds
    assert not node.time.in_doubt
    assert "8.0 days ahead" in str(node.time.advice)
    node.goes_on(100_000)
    assert node.off_ms == 0, "however long it stays"
    node.jump(-8 * DAY_MS)
    node.goes_on(1_000)
    assert node.off_ms == 0
    assert not node.time.out_of_bounds
    assert node.time.jumps == 1


def test_neither_is_one_that_falls_behind() -> None:
    node = Node(0, 0)
    node.take_acks()
    node.jump(-8 * DAY_MS)
    assert node.off_ms == 0
    assert "behind" in str(node.time.advice)


def test_a_peer_with_a_wrong_clock_moves_nothing() -> None:
    for peers in ((8 * DAY_MS, 0), (8 * DAY_MS,), (-8 * DAY_MS,)):
        node = Node(*(0 for _ in peers))
        node.take_acks()
        node.peers_ms = list(peers)
        node.goes_on(60_000)
        assert node.off_ms == 0
        assert not node.time.in_doubt
        assert not node.time.trusts(node.names[0])


def test_of_two_that_differ_the_monotonic_clock_goes_on() -> None:
    node = Node(0)
    node.take_acks()
    node.jump(8 * DAY_MS)
    node.goes_on(600_000)
    assert node.off_ms == 0
    assert not node.time.in_doubt


def test_clocks_that_jump_together_are_believed_once_they_stay() -> None:
    """A cluster that was suspended, or whose clocks were all set right."""
    node = Node(0, 0)
    node.take_acks()
    node.jump(8 * DAY_MS)
    node.peers_ms = [8 * DAY_MS] * 2
    node.goes_on(1_000)
    assert node.time.in_doubt
    assert node.off_ms == 0
    node.goes_on(CONFIRM_MS)
    assert not node.time.in_doubt
    assert node.off_ms == 8 * DAY_MS


def test_clocks_that_jump_together_and_come_back_change_nothing() -> None:
    node = Node(0, 0)
    node.take_acks()
    for _ in range(5):
        node.jump(8 * DAY_MS)
        node.peers_ms = [8 * DAY_MS] * 2
        node.goes_on(CONFIRM_MS - 1_000)
        assert node.off_ms == 0
        node.jump(-8 * DAY_MS)
        node.peers_ms = [0, 0]
        node.goes_on(1_000)
        assert node.off_ms == 0
        assert not node.time.in_doubt


def test_a_node_alone_believes_its_clock_once_it_stays() -> None:
    node = Node()
    assert node.off_ms == 0
    node.jump(8 * DAY_MS)
    assert node.off_ms == 0
    assert node.time.in_doubt
    node.jump(-8 * DAY_MS)
    assert node.off_ms == 0
    assert not node.time.in_doubt
    node.jump(8 * DAY_MS)
    for _ in range(CONFIRM_MS // 10):
        assert node.off_ms == 0
        node.goes_on(10)
    assert node.off_ms == 8 * DAY_MS
    assert not node.time.in_doubt


def test_a_machine_that_was_suspended_hears_from_its_peers_what_time_it_is() -> None:
    node = Node(0, 0)
    node.take_acks()
    node.true_ms += DAY_MS  # the monotonic clock stood still
    node.jump(DAY_MS)
    assert node.off_ms == -DAY_MS
    node.goes_on(CONFIRM_MS + 1_000)
    assert node.off_ms == 0
    assert not node.time.out_of_bounds


def test_after_a_start_a_clock_against_the_majority_stamps_nothing_until_that_stays() -> None:
    node = Node(0, 0)
    node.jump(8 * DAY_MS)
    node.time.at(node.clock.ns)
    assert node.time.in_doubt
    node.goes_on(CONFIRM_MS + 1_000)
    assert node.off_ms == 0
    assert not node.time.in_doubt


async def test_who_counts_from_now_waits_until_it_is_known_what_time_it_is() -> None:
    node = Node(0, 0)
    node.jump(8 * DAY_MS)
    settled = asyncio.ensure_future(node.time.settled())
    await asyncio.sleep(0)
    assert not settled.done()
    node.goes_on(CONFIRM_MS + 1_000)
    assert await settled == node.true_ms


def test_after_a_start_a_majority_with_the_own_clock_in_it_is_believed_at_once() -> None:
    node = Node(8 * DAY_MS, 0)
    node.take_acks()
    assert node.off_ms == 0
    assert not node.time.in_doubt


def test_after_a_start_what_a_peer_said_before_its_clock_was_set_right_is_not_believed() -> None:
    """One clock was days ahead, is right again, and then that of another is."""
    node = Node(8 * DAY_MS)
    node.take_acks()
    node.names.append(NodeId("n3"))
    node.peers_ms = [0, 8 * DAY_MS]
    node.time.heard(node.names[1], node.clock.ns, (node.true_ms + 8 * DAY_MS) * 1_000_000)
    assert node.off_ms == 0 or node.time.in_doubt
    for _ in range(10):
        node.goes_on(1_000)
        assert node.off_ms == 0
        assert not node.time.in_doubt


def test_nobody_waits_for_ever_for_peers_that_do_not_come() -> None:
    node = Node(0, 0)
    node.peers_ms = []
    node.goes_on(CONFIRM_MS)
    assert node.off_ms == 0
    assert not node.time.in_doubt


def test_an_answer_that_took_long_says_nothing() -> None:
    node = Node(0, 0)
    asked_ns = node.clock.ns
    node.goes_on(1_000)
    node.time.forget(node.names[0])
    node.clock.pass_ms(3_000)
    node.time.heard(node.names[0], asked_ns, 8 * DAY_MS * 1_000_000)
    assert NodeId("n2") not in node.time.status()["peers_offset_ms"]


JUMPS = st.one_of(
    st.integers(-BOUND_MS, BOUND_MS), st.integers(-20 * DAY_MS, 20 * DAY_MS), st.just(0)
)


@given(
    st.lists(st.tuples(JUMPS, st.integers(0, 20_000)), max_size=30),
    st.sampled_from([(0, 0), (0, 0, 0), (0, 0, 0, 0)]),
)
def test_whatever_one_clock_does_the_majority_bounds_its_stamps(
    jumps: Sequence[tuple[int, int]], peers: tuple[int, ...]
) -> None:
    node = Node(*peers)
    log = LogTime(node.clock, node.time)
    node.take_acks()
    before = 0
    for offset_ms, lasts_ms in jumps:
        node.jump(node.true_ms + offset_ms - node.clock.wall)
        for _ in range(2):
            now_ms = log.now_ms()
            assert before <= now_ms
            assert abs(now_ms - node.true_ms) <= BOUND_MS + 1
            log.saw(now_ms)
            before = now_ms
            node.goes_on(lasts_ms)


@given(st.lists(st.tuples(JUMPS, st.integers(0, CONFIRM_MS - 1_001)), max_size=30))
def test_jumps_of_a_clock_alone_that_do_not_last_change_nothing(
    jumps: Sequence[tuple[int, int]],
) -> None:
    node = Node()
    assert node.off_ms == 0
    for offset_ms, lasts_ms in jumps:
        node.jump(offset_ms)
        assert abs(node.off_ms) <= BOUND_MS
        node.goes_on(lasts_ms)
        assert abs(node.off_ms) <= BOUND_MS
        node.jump(-offset_ms)
        assert node.off_ms == 0
