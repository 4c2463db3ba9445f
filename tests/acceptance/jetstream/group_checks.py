"""N2, priority groups: which of those who wait is served first."""

from __future__ import annotations

from tests.acceptance.jetstream.visit import S, Visit, bodies, headers_of, status

TYPE = "io.nats.jetstream.api.v1."
LONG = 30 * S


def n2_groups_overflow(js: Visit) -> None:
    """A request may wait until enough is pending."""
    stream = js.stream()
    consumer = js.consumer(stream, priority_policy="overflow", priority_groups=["a"])
    later = js.pull(stream, consumer, batch=1, expires=LONG, group="a", min_pending=3)
    js.fill(stream, "a", "b")
    later.quiet("two are pending")
    js.fill(stream, "c")
    assert later.body() == b"a"


def n2_groups_overflow_by_acks(js: Visit) -> None:
    """Or until enough is unacknowledged."""
    stream = js.stream()
    js.fill(stream, *"abcd")
    consumer = js.consumer(stream, priority_policy="overflow", priority_groups=["a"])
    later = js.pull(stream, consumer, batch=1, expires=LONG, group="a", min_ack_pending=2)
    later.quiet("nothing is unacknowledged")
    assert bodies(js.fetch(stream, consumer, 2, group="a")) == ["a", "b"]
    assert later.body() == b"c"


def n2_groups_prioritized(js: Visit) -> None:
    """Who waits with a lower number is served first."""
    stream = js.stream()
    consumer = js.consumer(stream, priority_policy="prioritized", priority_groups=["a"])
    second = js.pull(stream, consumer, batch=2, expires=LONG, group="a", priority=2)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    first = js.pull(stream, consumer, batch=1, expires=LONG, group="a", priority=1)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 2, "two do not wait")
    js.fill(stream, "a", "b")
    assert first.body() == b"a"
    assert second.body() == b"b"


def n2_groups_pinned(js: Visit) -> None:
    """One client gets everything until it is unpinned; it says who it is by an id."""
    stream = js.stream()
    consumer = js.consumer(stream, priority_policy="pinned_client", priority_groups=["a"])
    told = js.main.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.*.{stream}.{consumer}")
    first = js.pull(stream, consumer, batch=1, expires=LONG, group="a")
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    other = js.pull(stream, consumer, batch=5, expires=LONG, group="a")
    js.fill(stream, "1", "2", "3")
    message = first.next()
    assert message.body == b"1"
    pin = headers_of(message)["Nats-Pin-Id"]
    other.quiet("somebody else is pinned")
    assert told.next().subject.split(".")[4] == "PINNED"
    found = js.fetch(stream, consumer, 1, group="a", id=pin)
    assert bodies(found) == ["2"]
    (group,) = js.about(stream, consumer)["priority_groups"]
    assert (group["group"], group["pinned_client_id"]) == ("a", pin)
    answer = js.got(f"CONSUMER.UNPIN.{stream}.{consumer}", {"group": "a"})
    assert answer["type"] == f"{TYPE}consumer_unpin_response"
    assert other.body() == b"3"
    wrong = js.pull(stream, consumer, batch=1, expires=LONG, group="a", id=pin).next()
    js.heard.append(status(wrong))
    assert wrong.status == 423


def n2_groups_must_be_named(js: Visit) -> None:
    """A request without the group of its consumer, or with one of nobody's: 400."""
    stream = js.stream()
    consumer = js.consumer(stream, priority_policy="overflow", priority_groups=["a"])
    for group in ({}, {"group": "b"}):
        found = js.pull(stream, consumer, {"batch": 1, "expires": LONG, **group}).next()
        js.heard.append(status(found))
        assert found.status == 400
    js.refused(f"CONSUMER.UNPIN.{stream}.{consumer}", {"group": "b"}, 10160)
    js.refused(f"CONSUMER.UNPIN.{stream}.{consumer}", {}, 10025)
