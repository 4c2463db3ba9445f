"""Pull requests that wait: who gets what, and how a wait ends."""

from __future__ import annotations

from typing import Any

import pytest

from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.priorities import Pinned, Supply, Wish
from node.protocols.nats.jetstream.pulls import Ask, Pulls, ask_of, beat

NS = 1_000_000_000
SOME = Supply(100, 0)


def said(pulls: Pulls) -> list[tuple[bytes, bytes]]:
    return [(inbox, header.removesuffix(b"\r\n\r\n")) for inbox, header in pulls.take_sayings()]


def turns(pulls: Pulls, supply: Supply = SOME, now_s: float = 0.0, **config: Any) -> Any:
    return pulls.take_turns(config, supply, now_s, 7)


def ended(text: bytes, messages: int, size: int = 0) -> bytes:
    left = b"Nats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d" % (messages, size)
    return b"NATS/1.0 %b\r\n%b" % (text, left)


def test_what_a_request_may_say():
    assert ask_of(b"") == ask_of(b"1") == ask_of(b"x") == Ask(1)
    assert ask_of(b" 25 ") == Ask(25)
    asked = b'{"batch":5,"max_bytes":9,"expires":4,"no_wait":true,"idle_heartbeat":2,"id":"x"}'
    assert ask_of(asked) == Ask(5, 9, 4, True, 2, Wish(id="x"))


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"batch":"1"}', b'{"expires":3,"idle_heartbeat":2}', b'{"idle_heartbeat":2}'],
)
def test_what_cannot_be_read_is_refused(body: bytes):
    with pytest.raises(ApiError):
        ask_of(body)


def test_the_oldest_request_comes_first_and_is_over_when_it_has_all():
    pulls = Pulls()
    for inbox in (b"a", b"b"):
        assert pulls.add(inbox, Ask(2), {}, 0.0)
    assert turns(pulls) == [(1, 2, 0), (2, 2, 0)]

    pulls.got(1, 2, 10, 0.0)
    pulls.got(2, 1, 10, 0.0)

    assert turns(pulls) == [(2, 1, 0)]
    assert said(pulls) == []


def test_requests_share_what_there_is_and_take_turns():
    """Workers of one consumer: no one has all while others have nothing to do."""
    pulls = Pulls()
    for inbox in (b"a", b"b", b"c"):
        pulls.add(inbox, Ask(500), {}, 0.0)
    assert turns(pulls, Supply(100, 0, 4)) == [(1, 2, 0), (2, 2, 0), (3, 2, 0)]

    pulls.got(1, 2, 10, 0.0)
    assert turns(pulls, Supply(100, 0, 1)) == [(2, 1, 0), (3, 1, 0), (1, 1, 0)]


def test_one_that_does_not_wait_is_told_that_there_is_nothing():
    pulls = Pulls()
    pulls.add(b"a", Ask(5, no_wait=True), {}, 0.0)
    pulls.add(b"b", Ask(5, no_wait=True, expires_ns=NS), {}, 0.0)

    pulls.judge(0, {})

    assert said(pulls) == [(b"a", b"NATS/1.0 404 No Messages")]
    assert turns(pulls) == [(2, 5, 0)]


def test_one_that_does_not_wait_is_told_that_all_there_is_is_wanted_by_others():
    pulls = Pulls()
    pulls.add(b"a", Ask(5), {}, 0.0)
    for inbox, ask in ((b"b", Ask(1, no_wait=True)), (b"c", Ask(1, 0, NS, no_wait=True))):
        pulls.add(inbox, ask, {}, 0.0)
    pulls.add(b"d", Ask(5), {}, 0.0)  # it came later
    pulls.got(1, 2, 10, 0.0)

    pulls.judge(2, {})
    assert said(pulls) == [(each, b"NATS/1.0 408 Requests Pending") for each in (b"b", b"c")]

    for inbox in (b"e", b"f"):
        pulls.add(inbox, Ask(1, no_wait=True), {}, 0.0)
    pulls.add(b"g", Ask(1, 0, NS, no_wait=True, in_turn=True), {}, 0.0)
    pulls.judge(8, {})
    assert said(pulls) == [(b"f", b"NATS/1.0 408 Requests Pending")]


def test_one_that_does_not_wait_is_judged_once():
    pulls = Pulls()
    pulls.add(b"a", Ask(5, no_wait=True), {}, 0.0)

    pulls.judge(3, {})
    pulls.judge(0, {})

    assert said(pulls) == []


def test_one_that_does_not_wait_takes_a_place_only_if_there_is_something():
    pulls, config = Pulls(), {"max_waiting": 1}
    pulls.add(b"a", Ask(1), config, 0.0)

    for inbox, messages in ((b"b", 0), (b"c", 3)):
        pulls.add(inbox, Ask(1, no_wait=True), config, 0.0)
        pulls.judge(messages, config)

    assert said(pulls) == [
        (b"b", b"NATS/1.0 404 No Messages"),
        (b"c", b"NATS/1.0 409 Exceeded MaxWaiting"),
    ]


def test_one_that_does_not_wait_is_over_when_the_consumer_has_no_more():
    pulls = Pulls()
    pulls.add(b"a", Ask(5, no_wait=True), {}, 0.0)
    pulls.add(b"b", Ask(5, no_wait=True, expires_ns=NS), {}, 0.0)
    pulls.got(1, 3, 10, 0.0)

    pulls.nothing_left()

    assert said(pulls) == [(b"a", b"NATS/1.0 404 No Messages")]
    assert turns(pulls) == [(2, 5, 0)]  # that one may still get something in its time


def test_one_that_waited_long_enough_is_told_what_is_missing():
    pulls = Pulls()
    pulls.add(b"a", Ask(5, bytes_max=100, expires_ns=2 * NS), {}, 1.0)
    pulls.got(1, 2, 30, 1.5)
    assert pulls.due_s(1.5) == 3.0

    pulls.look(2.9)
    assert said(pulls) == []
    pulls.look(3.0)

    assert said(pulls) == [(b"a", ended(b"408 Request Timeout", 3, 70))]
    assert len(pulls) == 0
    assert pulls.due_s(3.0) is None


def test_heartbeats_come_while_nothing_else_does():
    pulls = Pulls()
    pulls.add(b"a", Ask(5, expires_ns=10 * NS, heartbeat_ns=NS), {}, 0.0)

    pulls.look(1.0, beat(3, 7))
    assert said(pulls) == [
        (b"a", b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\nNats-Last-Stream: 7")
    ]
    pulls.got(1, 1, 1, 1.5)
    pulls.look(2.0)
    assert said(pulls) == []
    pulls.look(2.5)
    assert len(said(pulls)) == 1


def test_of_bytes_there_is_a_limit_too():
    pulls = Pulls()
    for inbox in (b"a", b"b", b"c"):
        pulls.add(inbox, Ask(5, bytes_max=100), {}, 0.0)

    pulls.got(1, 1, 120, 0.0)
    pulls.got(2, 5, 50, 0.0)
    pulls.too_large(3)

    assert said(pulls) == [
        (b"a", ended(b"409 Batch Completed", 4, 0)),
        (b"b", ended(b"409 Batch Completed", 0, 50)),
        (b"c", ended(b"409 Message Size Exceeds MaxBytes", 5, 100)),
    ]


@pytest.mark.parametrize(
    ("ask", "config", "text"),
    [
        (Ask(3), {"max_batch": 2}, b"Exceeded MaxRequestBatch of 2"),
        (Ask(1, expires_ns=2 * NS), {"max_expires": NS}, b"Exceeded MaxRequestExpires of 1s"),
        (Ask(1, bytes_max=9), {"max_bytes": 8}, b"Exceeded MaxRequestMaxBytes of 8"),
    ],
)
def test_what_is_over_the_consumers_limits_does_not_wait(
    ask: Ask, config: dict[str, int], text: bytes
):
    pulls = Pulls()

    assert not pulls.add(b"a", ask, config, 0.0)

    assert said(pulls) == [(b"a", b"NATS/1.0 409 " + text)]


def test_only_so_many_wait_and_who_wants_heartbeats_learns_it_by_missing_them():
    pulls, config = Pulls(), {"max_waiting": 1}
    pulls.add(b"a", Ask(), config, 0.0)

    assert not pulls.add(b"b", Ask(), config, 0.0)
    assert not pulls.add(b"c", Ask(heartbeat_ns=NS), config, 0.0)

    assert said(pulls) == [(b"b", b"NATS/1.0 409 Exceeded MaxWaiting")]


def test_all_who_wait_are_told_when_the_consumer_goes():
    pulls = Pulls()
    pulls.add(b"a", Ask(5), {}, 0.0)
    pulls.add(b"b", Ask(5), {}, 0.0)
    pulls.drop([b"b"])

    pulls.end_all(409, "Leadership Change")

    assert said(pulls) == [(b"a", b"NATS/1.0 409 Leadership Change")]


# --- priority groups ------------------------------------------------------------------------------


def wish(pulls: Pulls, config: dict[str, Any], inbox: bytes, count: int = 5, **more: Any) -> bool:
    ask = Ask(count, wish=Wish("g", **more))
    return pulls.add(inbox, ask, {"priority_groups": ["g"], **config}, 0.0)


@pytest.mark.parametrize(
    ("policy", "asked", "text"),
    [
        ("pinned_client", Wish("g", min_pending=1), b"Not a Overflow Priority consumer"),
        ("overflow", Wish("g", id="x"), b"Not a Pinned Client Priority consumer"),
        ("prioritized", Wish("g", priority=10), b"Priority must be between 0 and 9"),
        ("overflow", Wish(), b"Priority Group missing"),
        ("overflow", Wish("h"), b"Invalid Priority Group"),
    ],
)
def test_a_wish_that_the_consumer_cannot_fulfil_is_refused(policy: str, asked: Wish, text: bytes):
    pulls = Pulls()
    config = {"priority_policy": policy, "priority_groups": ["g"]}

    assert not pulls.add(b"a", Ask(1, wish=asked), config, 0.0)

    assert said(pulls) == [(b"a", b"NATS/1.0 400 Bad Request - " + text)]


def test_lower_priorities_go_first():
    pulls, config = Pulls(), {"priority_policy": "prioritized"}
    for inbox, priority in ((b"a", 5), (b"b", 0), (b"c", 5)):
        wish(pulls, config, inbox, priority=priority)

    assert [number for number, *_ in turns(pulls, **config)] == [2]
    pulls.got(2, 5, 1, 0.0)
    assert [number for number, *_ in turns(pulls, **config)] == [1, 3]


def test_a_request_may_wait_until_enough_is_pending():
    pulls, config = Pulls(), {"priority_policy": "overflow"}
    wish(pulls, config, b"a", min_pending=10)
    wish(pulls, config, b"b", min_ack_pending=3)

    assert turns(pulls, Supply(9, 2), **config) == []
    assert turns(pulls, Supply(12, 0), **config) == [(1, 3, 0)]
    assert turns(pulls, Supply(9, 3), **config) == [(2, 5, 0)]


GROUPS = {"priority_groups": ["g"]}
PINNED: dict[str, Any] = {"priority_policy": "pinned_client", "priority_timeout": 10 * NS}


def test_one_client_is_pinned_and_gets_all():
    pulls = Pulls()
    for inbox in (b"a", b"b"):
        wish(pulls, PINNED, inbox)

    assert turns(pulls, **PINNED) == [(1, 5, 0)]
    assert pulls.pin is not None
    (pinned,) = pulls.take_pinned()
    assert pinned == Pinned("g", pulls.pin.id)
    wish(pulls, PINNED, b"c", id=pulls.pin.id)
    assert turns(pulls, **PINNED) == [(1, 5, 0), (3, 5, 0)]
    assert not wish(pulls, PINNED, b"d", id="other")
    assert said(pulls) == [(b"d", b"NATS/1.0 423 Nats-Pin-Id mismatch")]


def test_who_was_pinned_is_told_when_another_one_is():
    pulls = Pulls()
    wish(pulls, PINNED, b"a")
    turns(pulls, **PINNED)
    wish(pulls, PINNED, b"b")
    pulls.take_pinned()

    pulls.unpin("g", "admin")

    assert turns(pulls, **PINNED) == [(2, 5, 0)]
    assert said(pulls) == [(b"a", ended(b"423 Nats-Wrong-Pin-Id", 5))]
    over, pinned = pulls.take_pinned()
    assert (over, bool(pinned.id)) == (Pinned("g", reason="admin"), True)


def test_a_pin_lasts_while_its_client_asks():
    pulls = Pulls()
    wish(pulls, PINNED, b"a", 1)
    turns(pulls, **PINNED)
    assert pulls.pin is not None
    pulls.got(1, 1, 1, 0.0)
    pulls.add(b"b", Ask(1, wish=Wish("g", id=pulls.pin.id)), PINNED | GROUPS, 5.0)
    pulls.got(2, 1, 1, 5.0)
    pulls.take_pinned()
    assert pulls.due_s(5.0) == 15.0

    pulls.look(14.0)
    assert pulls.take_pinned() == []
    pulls.look(15.0)
    assert pulls.take_pinned() == [Pinned("g", reason="timeout")]
    assert pulls.pin is None
