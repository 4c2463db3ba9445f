"""D22-D24 and the statuses of N2: requests for messages."""

from __future__ import annotations

import time

from tests.acceptance.jetstream.visit import (
    LEADERSHIP_CHANGE,
    MS,
    Json,
    S,
    Visit,
    bodies,
    headers_of,
    said,
    status,
)
from tests.acceptance.rows.suite import needs

SOON_MS = 150


def d22_headers_only(js: Visit) -> None:
    """No bodies; their size is in a header beside those of the message."""
    stream = js.stream()
    js.publish(stream, b"hello", Colour="blue")
    js.publish(stream, b"")
    consumer = js.consumer(stream, headers_only=True)
    first, second = js.fetch(stream, consumer, 2)
    assert (first.body, second.body) == (b"", b"")
    assert headers_of(first) == {"Colour": "blue", "Nats-Msg-Size": "5"}
    assert headers_of(second) == {"Nats-Msg-Size": "0"}


def d23_default(js: Visit) -> None:
    """512 waiting requests."""
    stream = js.stream()
    assert js.about(stream, js.consumer(stream))["config"]["max_waiting"] == 512


def d23_too_many_wait(js: Visit) -> None:
    """One more is answered 409, and those that wait go on."""
    stream = js.stream()
    consumer = js.consumer(stream, max_waiting=2)
    first = js.pull(stream, consumer, batch=1, expires=30 * S)
    second = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 2, "two do not wait")
    third = js.pull(stream, consumer, batch=1, expires=30 * S)
    assert status(third.next()) == "409 Exceeded MaxWaiting"
    js.fill(stream, "a", "b")
    assert sorted([first.body(), second.body()]) == [b"a", b"b"]


def d24_caps(js: Visit) -> None:
    """A request over a cap of the consumer is answered 409; the caps may be changed."""
    stream = js.stream()
    js.fill(stream, "a")
    caps: Json = {"max_batch": 2, "max_expires": S, "max_bytes": 1000}
    consumer = js.consumer(stream, **caps)
    config = js.about(stream, consumer)["config"]
    assert config | caps == config
    for asked, answer in (
        ({"batch": 3, "expires": S}, "409 Exceeded MaxRequestBatch of 2"),
        ({"batch": 1, "expires": 2 * S}, "409 Exceeded MaxRequestExpires of 1s"),
        (
            {"batch": 1, "expires": S, "max_bytes": 1001},
            "409 Exceeded MaxRequestMaxBytes of 1000",
        ),
    ):
        assert status(js.pull(stream, consumer, asked).next()) == answer
    caps["max_batch"] = 3
    js.put_consumer(stream, consumer, **caps)
    assert js.pull(stream, consumer, {"batch": 3, "expires": S}).body() == b"a"


def d24_batch_or_bytes(js: Visit) -> None:
    """Whichever is reached first ends the request."""
    stream = js.stream()
    js.fill(stream, *("x" * 100 for _ in range(10)))
    consumer = js.consumer(stream)
    by_batch = js.pull(stream, consumer, batch=2, max_bytes=100_000, expires=30 * S)
    assert not any(each.status for each in by_batch.some(2))
    by_bytes = js.pull(stream, consumer, batch=100, max_bytes=700, expires=30 * S)
    found = [by_bytes.next()]
    while not found[-1].status:
        found.append(by_bytes.next())
    assert 1 <= len(found) - 1 <= 4, "so many messages"
    assert found[-1].status == 409
    js.heard.append(status(found[-1]))
    assert headers_of(found[-1])["Nats-Pending-Messages"] == str(100 - len(found) + 1)


def n2_pull_by_a_number_or_nothing(js: Visit) -> None:
    """A request without a body asks for one message, a number for so many."""
    stream = js.stream()
    js.fill(stream, *"abcd")
    consumer = js.consumer(stream)
    assert js.pull(stream, consumer, b"").body() == b"a"
    assert bodies(js.pull(stream, consumer, b"2").some(2)) == ["b", "c"]
    assert js.pull(stream, consumer, b"{}").body() == b"d"


def n2_pull_no_wait(js: Visit) -> None:
    """What there is at once, else 404."""
    stream = js.stream()
    consumer = js.consumer(stream)
    assert status(js.pull(stream, consumer, batch=5, no_wait=True).next()) == "404 No Messages"
    js.fill(stream, "a", "b")
    inbox = js.pull(stream, consumer, batch=5, no_wait=True)
    assert bodies(inbox.some(2)) == ["a", "b"]
    end = inbox.next()
    js.heard.append(status(end))
    assert end.status in (404, 408)


def n2_pull_no_wait_that_may_expire(js: Visit) -> None:
    """With both it waits if there is nothing at all; it ends when what there was is given."""
    stream = js.stream()
    consumer = js.consumer(stream)
    inbox = js.pull(stream, consumer, batch=5, no_wait=True, expires=30 * S)
    js.until(
        lambda: js.about(stream, consumer)["num_waiting"] == 1,
        lambda: f"it does not wait: {said(inbox.client.next(inbox.sid))}",
    )
    js.fill(stream, "a")
    assert inbox.body() == b"a"


def n2_pull_no_wait_behind_others(js: Visit) -> None:
    """If those who wait want more than there is: 408, also for one that may expire."""
    stream = js.stream()
    consumer = js.consumer(stream, max_ack_pending=2)
    first = js.pull(stream, consumer, batch=5, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    assert status(js.pull(stream, consumer, batch=1, no_wait=True).next()) == "404 No Messages"
    js.fill(stream, *"abcd")
    assert bodies(first.some(2)) == ["a", "b"]  # it waits for three more, of which two are there
    for more in ({}, {"expires": 30 * S}):
        found = js.pull(stream, consumer, batch=1, no_wait=True, **more).next()
        assert status(found) == "408 Requests Pending"


def n2_pull_no_wait_takes_no_place(js: Visit) -> None:
    """That there is nothing is said before that too many wait."""
    stream = js.stream()
    consumer = js.consumer(stream, max_waiting=1)
    js.pull(stream, consumer, batch=5, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    assert status(js.pull(stream, consumer, batch=1, no_wait=True).next()) == "404 No Messages"
    found = js.pull(stream, consumer, batch=1, no_wait=True, expires=30 * S).next()
    assert status(found) == "409 Exceeded MaxWaiting"


def n2_pull_no_wait_when_no_more_may_be_held(js: Visit) -> None:
    """Messages that may not be handed out before others are acknowledged are as good as none."""
    stream = js.stream()
    js.fill(stream, *"abc")
    consumer = js.consumer(stream, max_ack_pending=2)
    held = js.fetch(stream, consumer, 2)
    inbox = js.pull(stream, consumer, batch=1, no_wait=True)
    js.about(stream, consumer)
    for each in held:
        js.say(each)
    assert status(inbox.next()) == "404 No Messages"


def n2_pull_expires(js: Visit) -> None:
    """408, with how much was left of what was asked for."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream)
    begin = time.monotonic()
    inbox = js.pull(stream, consumer, batch=5, expires=SOON_MS * MS, max_bytes=10_000)
    assert inbox.body() == b"a"
    end = inbox.next()
    assert time.monotonic() - begin >= 0.8 * SOON_MS / 1000
    assert status(end) == "408 Request Timeout"
    assert headers_of(end)["Nats-Pending-Messages"] == "4"
    assert 9_000 < int(headers_of(end)["Nats-Pending-Bytes"]) < 10_000


def n2_pull_heartbeats(js: Visit) -> None:
    """100 while it waits, with the numbers of what was delivered last."""
    stream = js.stream()
    js.fill(stream, "x", "y")
    consumer = js.consumer(stream, deliver_policy="last")
    js.fetch(stream, consumer, 1)
    inbox = js.pull(
        stream, consumer, batch=1, expires=6 * SOON_MS * MS, idle_heartbeat=2 * SOON_MS * MS
    )
    beat = inbox.next()
    assert status(beat) == "100 Idle Heartbeat"
    assert beat.reply == ""
    assert headers_of(beat) == {"Nats-Last-Consumer": "1", "Nats-Last-Stream": "2"}
    js.fill(stream, "a")
    while (found := inbox.next()).status == 100:
        pass
    assert found.body == b"a"


def n2_pull_heartbeat_too_long(js: Visit) -> None:
    """More than half of what the request has: 400. So it is without an end."""
    stream = js.stream()
    consumer = js.consumer(stream)
    for more in ({"expires": S}, {}):
        found = js.pull(stream, consumer, batch=1, idle_heartbeat=S, **more).next()
        js.heard.append(status(found))
        assert found.status == 400


def n2_pull_that_cannot_be_read(js: Visit) -> None:
    """400."""
    stream = js.stream()
    consumer = js.consumer(stream)
    found = js.pull(stream, consumer, b'{"batch": "many"}').next()
    js.heard.append(status(found))
    assert found.status == 400
    found = js.pull(stream, consumer, b'{"batch": ').next()
    js.heard.append(status(found))
    assert found.status == 400


def n2_pull_message_over_max_bytes(js: Visit) -> None:
    """409, when not even the next message fits."""
    stream = js.stream()
    js.fill(stream, "x" * 1000)
    consumer = js.consumer(stream)
    found = js.pull(stream, consumer, batch=10, max_bytes=500, expires=30 * S).next()
    assert status(found) == "409 Message Size Exceeds MaxBytes"
    assert headers_of(found)["Nats-Pending-Messages"] == "10"
    assert headers_of(found)["Nats-Pending-Bytes"] == "500"


def n2_pull_consumer_deleted(js: Visit) -> None:
    """Those who wait are told."""
    stream = js.stream()
    consumer = js.consumer(stream)
    inbox = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    js.got(f"CONSUMER.DELETE.{stream}.{consumer}")
    assert status(inbox.next()) == "409 Consumer Deleted"


def n2_pull_stream_deleted(js: Visit) -> None:
    """With its stream a consumer is deleted, too."""
    stream = js.stream()
    consumer = js.consumer(stream)
    inbox = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    js.got(f"STREAM.DELETE.{stream}")
    found = inbox.next()
    js.heard.append(status(found))
    assert found.status == 409


@needs("cluster")
def n2_pull_leadership_change(js: Visit) -> None:
    """Those who wait are told that there will be another leader; the consumer goes on."""
    stream = js.stream(num_replicas=3)
    consumer = js.consumer(stream)
    inbox = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    js.got(f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}")
    assert status(inbox._replace(asked=None).next()) == LEADERSHIP_CHANGE
    js.fill(stream, "a")
    js.until(lambda: "error" not in js.ask(f"CONSUMER.INFO.{stream}.{consumer}"), "nobody leads it")
    found = js.pull(stream, consumer, batch=1, expires=30 * S).next()
    if found.status == 503 and not js.server.is_quorate:
        found = js.pull(stream, consumer, batch=1, expires=30 * S).next()
    assert found.body == b"a"


def n2_pull_of_nobody(js: Visit) -> None:
    """Without such a consumer or stream: 503."""
    stream = js.stream()
    assert js.pull(stream, "nobody", batch=1).next().status == 503
    assert js.pull(js.name("nowhere"), "nobody", batch=1).next().status == 503


def n2_pull_in_turn(js: Visit) -> None:
    """Requests get messages in the order in which they came."""
    stream = js.stream()
    consumer = js.consumer(stream)
    first = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    second = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 2, "two do not wait")
    js.fill(stream, "a", "b")
    assert (first.body(), second.body()) == (b"a", b"b")


def n2_pull_who_is_gone_gets_nothing(js: Visit) -> None:
    """A request whose inbox nobody listens to any more is passed over."""
    stream = js.stream()
    consumer = js.consumer(stream)
    gone = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.until(lambda: js.about(stream, consumer)["num_waiting"] == 1, "it does not wait")
    gone.end()
    js.main.flush()
    js.until(lambda: not js.about(stream, consumer)["num_waiting"], "it still waits")
    js.fill(stream, "a")
    (message,) = js.fetch(stream, consumer, 1)
    assert message.body == b"a"


def n2_pull_paused(js: Visit) -> None:
    """A paused consumer delivers nothing until it is resumed; its info says so."""
    stream = js.stream()
    consumer = js.consumer(stream)
    told = js.main.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.{stream}.{consumer}")
    found = js.got(f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": "2200-01-01T00:00:00Z"})
    assert found["type"] == "io.nats.jetstream.api.v1.consumer_pause_response"
    assert found["paused"] is True
    assert found["pause_until"] == "2200-01-01T00:00:00Z"
    assert found["pause_remaining"] > 0
    advisory = told.next().json
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.consumer_pause"
    assert (advisory["stream"], advisory["consumer"]) == (stream, consumer)
    assert advisory["paused"] is True
    assert js.about(stream, consumer)["paused"] is True
    js.fill(stream, "a")
    inbox = js.pull(stream, consumer, batch=1, expires=30 * S)
    inbox.quiet("it is paused")
    inbox.end()
    found = js.got(f"CONSUMER.PAUSE.{stream}.{consumer}", {})
    assert found["paused"] is False
    assert bodies(js.fetch(stream, consumer, 1)) == ["a"]
    assert not js.about(stream, consumer).get("paused")
