"""Pull requests that wait: who gets what, and how a wait ends."""

from __future__ import annotations

import pytest

from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.pulls import Ask, Pulls, ask_of

NS = 1_000_000_000


def said(pulls: Pulls) -> list[tuple[bytes, bytes]]:
    return [(inbox, header.removesuffix(b"\r\n\r\n")) for inbox, header in pulls.take_sayings()]


def ended(text: bytes, messages: int, size: int = 0) -> bytes:
    left = b"Nats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d" % (messages, size)
    return b"NATS/1.0 %b\r\n%b" % (text, left)


def test_what_a_request_may_say():
    assert ask_of(b"") == ask_of(b"1") == ask_of(b"{}") == ask_of(b"x") == Ask(1)
    assert ask_of(b" 25 ") == Ask(25)
    asked = b'{"batch":5,"max_bytes":9,"expires":4,"no_wait":true,"idle_heartbeat":2,"id":"x"}'
    assert ask_of(asked) == Ask(5, 9, 4, no_wait=True, heartbeat_ns=2)


@pytest.mark.parametrize("body", [b"{", b'{"batch":"1"}', b'{"expires":3,"idle_heartbeat":2}'])
def test_what_cannot_be_read_is_refused(body: bytes):
    with pytest.raises(ApiError):
        ask_of(body)


def test_the_oldest_request_comes_first_and_is_over_when_it_has_all():
    pulls = Pulls()
    for inbox in (b"a", b"b"):
        assert pulls.add(inbox, Ask(2), {}, 0.0, empty=False)
    assert pulls.requests() == [(1, 2, 0), (2, 2, 0)]

    pulls.got(1, 2, 10, 0.0)
    pulls.got(2, 1, 10, 0.0)

    assert pulls.requests() == [(2, 1, 0)]
    assert said(pulls) == []


def test_one_that_does_not_wait_is_told_that_there_is_nothing():
    pulls = Pulls()

    assert not pulls.add(b"a", Ask(5, no_wait=True), {}, 0.0, empty=True)

    assert said(pulls) == [(b"a", b"NATS/1.0 404 No Messages")]


def test_one_that_does_not_wait_is_over_when_the_consumer_has_no_more():
    pulls = Pulls()
    pulls.add(b"a", Ask(5, no_wait=True), {}, 0.0, empty=False)
    pulls.add(b"b", Ask(5, no_wait=True, expires_ns=NS), {}, 0.0, empty=True)
    pulls.got(1, 3, 10, 0.0)

    pulls.nothing_left(0.0)

    assert said(pulls) == [(b"a", b"NATS/1.0 404 No Messages")]
    assert pulls.requests() == [(2, 5, 0)]  # that one may still get something in its time


def test_one_that_waited_long_enough_is_told_what_is_missing():
    pulls = Pulls()
    pulls.add(b"a", Ask(5, bytes_max=100, expires_ns=2 * NS), {}, 1.0, empty=True)
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
    pulls.add(b"a", Ask(5, expires_ns=10 * NS, heartbeat_ns=NS), {}, 0.0, empty=True)

    pulls.look(1.0)
    assert said(pulls) == [(b"a", b"NATS/1.0 100 Idle Heartbeat")]
    pulls.got(1, 1, 1, 1.5)
    pulls.look(2.0)
    assert said(pulls) == []
    pulls.look(2.5)
    assert said(pulls) == [(b"a", b"NATS/1.0 100 Idle Heartbeat")]


def test_of_bytes_there_is_a_limit_too():
    pulls = Pulls()
    for inbox in (b"a", b"b", b"c"):
        pulls.add(inbox, Ask(5, bytes_max=100), {}, 0.0, empty=False)

    pulls.got(1, 1, 120, 0.0)
    pulls.got(2, 5, 50, 0.0)
    pulls.too_large(3, 0.0)

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

    assert not pulls.add(b"a", ask, config, 0.0, empty=False)

    assert said(pulls) == [(b"a", b"NATS/1.0 409 " + text)]


def test_only_so_many_wait_and_who_wants_heartbeats_learns_it_by_missing_them():
    pulls, config = Pulls(), {"max_waiting": 1}
    pulls.add(b"a", Ask(), config, 0.0, empty=True)

    assert not pulls.add(b"b", Ask(), config, 0.0, empty=True)
    assert not pulls.add(b"c", Ask(heartbeat_ns=NS), config, 0.0, empty=True)

    assert said(pulls) == [(b"b", b"NATS/1.0 409 Exceeded MaxWaiting")]


def test_all_who_wait_are_told_when_the_consumer_goes():
    pulls = Pulls()
    pulls.add(b"a", Ask(5), {}, 0.0, empty=True)
    pulls.add(b"b", Ask(5), {}, 0.0, empty=True)
    pulls.drop([b"b"], 0.0)

    pulls.end_all(409, "Leadership Change", 0.0)

    assert said(pulls) == [(b"a", b"NATS/1.0 409 Leadership Change")]
