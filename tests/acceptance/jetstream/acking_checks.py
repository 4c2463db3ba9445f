"""D08-D10, D14-D18, D21: what acknowledgements say, and what becomes of a message without one."""

from __future__ import annotations

import json
import time
from itertools import pairwise

from tests.acceptance.jetstream.visit import (
    MS,
    S,
    Visit,
    bodies,
    delivered,
)

SOON_MS = 150
LATE_MS = 400


def d08_explicit(js: Visit) -> None:
    """Each message by itself, in any order."""
    stream = js.stream()
    js.fill(stream, "a", "b", "c")
    consumer = js.consumer(stream)
    first, second, third = js.fetch(stream, consumer, 3)
    js.say(third)
    js.say(first)
    about = js.about(stream, consumer)
    assert about["ack_floor"]["stream_seq"] == 1
    assert about["num_ack_pending"] == 1
    js.say(second)
    about = js.about(stream, consumer)
    assert (about["ack_floor"]["stream_seq"], about["ack_floor"]["consumer_seq"]) == (3, 3)
    assert about["num_ack_pending"] == 0


def d08_none(js: Visit) -> None:
    """What is sent is acknowledged."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream, ack_policy="none")
    leader = js.about(stream, consumer).get("cluster", {}).get("leader")
    js.fetch(stream, consumer, 2)
    about = js.about(stream, consumer)
    assert (about["ack_floor"]["stream_seq"], about["num_ack_pending"]) == (2, 0)
    try:
        js.nothing(stream, consumer, "nothing comes again")
    except AssertionError:
        # What the last leader may not have sent comes again: the row is visited once more.
        now = js.about(stream, consumer).get("cluster", {}).get("leader")
        assert now == leader, f"Leadership Change: {leader} to {now}"
        raise


def d08_all(js: Visit) -> None:
    """An acknowledgement counts for all before it, also for those of other subscribers."""
    stream = js.stream()
    js.fill(stream, *"abcde")
    consumer = js.consumer(stream, ack_policy="all")
    js.fetch(stream, consumer, 2)
    *_, fourth = js.fetch(stream, consumer, 2)
    js.say(fourth)
    about = js.about(stream, consumer)
    assert (about["ack_floor"]["stream_seq"], about["num_ack_pending"]) == (4, 0)
    assert about["num_pending"] == 1


def d08_none_is_the_default(js: Visit) -> None:
    """A configuration that says nothing means none."""
    stream = js.stream()
    found = js.got(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": {}})
    assert found["config"]["ack_policy"] == "none"


def d09_default(js: Visit) -> None:
    """30 seconds."""
    stream = js.stream()
    assert js.about(stream, js.consumer(stream))["config"]["ack_wait"] == 30 * S


def d09_each_message_has_its_time(js: Visit) -> None:
    """It runs from the delivery of each message, not from the last word of the client."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream, ack_wait=LATE_MS * MS)
    begin = time.monotonic()
    js.fetch(stream, consumer, 1)
    (second,) = js.fetch(stream, consumer, 1)
    js.say(second)
    (again,) = js.fetch(stream, consumer, 1)
    assert again.body == b"a"
    assert delivered(again).count == 2
    assert time.monotonic() - begin >= LATE_MS / 1000 * 0.9


def d09_in_progress(js: Visit) -> None:
    """+WPI begins the time anew."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream, ack_wait=1200 * MS)
    (message,) = js.fetch(stream, consumer, 1)
    again = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.main.arrived(again.sid, 0.6)
    js.say(message, b"+WPI")
    last = time.monotonic()
    assert delivered(again.next()).count == 2
    assert time.monotonic() - last >= 1.0


def d10_a_late_ack_counts(js: Visit) -> None:
    """After its time, and after it was delivered to somebody else."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream, ack_wait=SOON_MS * MS)
    (first,) = js.fetch(stream, consumer, 1)
    (again,) = js.fetch(stream, consumer, 1)
    assert delivered(again).count == 2
    js.say(first)
    js.until(
        lambda: js.about(stream, consumer)["num_ack_pending"] == 0, "the late ack did not count"
    )
    assert js.about(stream, consumer)["ack_floor"]["stream_seq"] == 1
    js.nothing(stream, consumer, "it is acknowledged")


def d10_an_ack_twice(js: Visit) -> None:
    """The second is answered, too, and changes nothing."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream)
    first, _ = js.fetch(stream, consumer, 2)
    js.say(first)
    js.say(first)
    assert js.about(stream, consumer)["num_ack_pending"] == 1


def d14_default(js: Visit) -> None:
    """1000; without limit by -1."""
    stream = js.stream()
    assert js.about(stream, js.consumer(stream))["config"]["max_ack_pending"] == 1000
    consumer = js.consumer(stream, max_ack_pending=-1)
    assert js.about(stream, consumer)["config"]["max_ack_pending"] == -1


def d14_over_all_subscriptions(js: Visit) -> None:
    """At the limit nothing is delivered to anybody; each acknowledgement lets one through."""
    stream = js.stream()
    js.fill(stream, *"abcde")
    consumer = js.consumer(stream, max_ack_pending=3)
    held = js.fetch(stream, consumer, 2)
    other = js.client()
    inbox = other.inbox()
    asked = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    other.tell(asked, json.dumps({"batch": 5, "expires": 30 * S}).encode(), reply=inbox.subject)
    assert inbox.body() == b"c"
    inbox.quiet("three are out")
    assert js.about(stream, consumer)["num_ack_pending"] == 3
    js.say(held[0])
    assert inbox.body() == b"d"
    inbox.quiet("three are out again")
    found = js.put_consumer(stream, consumer, max_ack_pending=4)
    assert found["config"]["max_ack_pending"] == 4
    assert inbox.body() == b"e"


def d14_of_a_push_consumer(js: Visit) -> None:
    """There it is the only flow control."""
    stream = js.stream()
    js.fill(stream, "a", "b", "c")
    target = js.main.inbox()
    js.consumer(stream, deliver_subject=target.subject, max_ack_pending=2)
    first, _ = target.some(2)
    target.quiet("two are out")
    js.say(first)
    assert target.body() == b"c"


def d15_attempts(js: Visit) -> None:
    """Naks and timeouts count; after the last one the message stays in the stream."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream, ack_wait=SOON_MS * MS, max_deliver=3)
    first, other = js.fetch(stream, consumer, 2)
    js.say(other)
    js.say(first, b"-NAK")
    (again,) = js.fetch(stream, consumer, 1)
    assert delivered(again).count == 2
    (last,) = js.fetch(stream, consumer, 1)
    assert delivered(last).count == 3
    inbox = js.pull(stream, consumer, batch=1, expires=2 * SOON_MS * MS)
    assert inbox.next().status == 408
    assert js.state(stream)["messages"] == 2
    found = js.got(f"STREAM.MSG.GET.{stream}", {"seq": 1})
    assert found["message"]["data"] == "YQ=="


def d15_default(js: Visit) -> None:
    """-1: as often as needed."""
    stream = js.stream()
    assert js.about(stream, js.consumer(stream))["config"]["max_deliver"] == -1
    consumer = js.consumer(stream, max_deliver=0)
    assert js.about(stream, consumer)["config"]["max_deliver"] == -1


def d15_in_a_work_queue(js: Visit) -> None:
    """There, too, a message that was delivered too often stays."""
    stream = js.stream(retention="workqueue")
    js.fill(stream, "a")
    consumer = js.consumer(stream, ack_wait=SOON_MS * MS, max_deliver=1)
    js.fetch(stream, consumer, 1)
    inbox = js.pull(stream, consumer, batch=1, expires=2 * SOON_MS * MS)
    assert inbox.next().status == 408
    assert js.state(stream)["messages"] == 1
    about = js.about(stream, consumer)
    assert (about["num_ack_pending"], about["num_redelivered"]) == (0, 0)


def d16_delays_by_attempt(js: Visit) -> None:
    """The list says how long each attempt has; its first value is shown as ack_wait."""
    stream = js.stream()
    js.fill(stream, "a")
    backoff = [SOON_MS * MS, LATE_MS * MS]
    consumer = js.consumer(stream, ack_wait=30 * S, backoff=backoff, max_deliver=4)
    config = js.about(stream, consumer)["config"]
    assert config["backoff"] == backoff
    assert config["ack_wait"] == backoff[0]
    times = [time.monotonic()]
    for count in (1, 2, 3, 4):
        (message,) = js.fetch(stream, consumer, 1)
        assert delivered(message).count == count
        times.append(time.monotonic())
    spans_ms = [round(1000 * (b - a)) for a, b in pairwise(times[1:])]
    js.heard.append(f"after {spans_ms} ms")
    assert spans_ms[0] >= 0.8 * SOON_MS
    assert min(spans_ms[1:]) >= 0.8 * LATE_MS, "the last value repeats"


def d16_longer_than_max_deliver(js: Visit) -> None:
    """No more values than attempts."""
    stream = js.stream()
    js.is_error(js.put_consumer(stream, "no", backoff=[S, 2 * S, 3 * S], max_deliver=2), 10116)
    js.is_error(js.put_consumer(stream, "no", backoff=[S, -S], max_deliver=5), 10184)
    js.consumer(stream, backoff=[S, 2 * S], max_deliver=2)


def d16_not_for_naks(js: Visit) -> None:
    """A nak brings the message at once."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream, backoff=[3600 * S], max_deliver=5)
    (message,) = js.fetch(stream, consumer, 1)
    js.say(message, b"-NAK")
    (again,) = js.fetch(stream, consumer, 1)
    assert delivered(again).count == 2


def d17_nak_before_what_is_new(js: Visit) -> None:
    """What is given back comes at once, before messages that were never delivered."""
    stream = js.stream()
    js.fill(stream, "a", "b", "c")
    consumer = js.consumer(stream)
    first, second = js.fetch(stream, consumer, 2)
    js.say(second, b"-NAK")
    js.say(first, b"-NAK")
    js.until(lambda: js.about(stream, consumer)["num_pending"] == 1, "pending is not 1")
    found = js.fetch(stream, consumer, 3)
    assert sorted(bodies(found[:2])) == ["a", "b"]
    assert found[2].body == b"c"
    assert js.about(stream, consumer)["num_redelivered"] == 2


def d17_nak_with_a_delay(js: Visit) -> None:
    """-NAK with a delay in ns: it comes after that, and no earlier."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream)
    (first,) = js.fetch(stream, consumer, 1)
    begin = time.monotonic()
    js.say(first, b'-NAK {"delay": %d}' % (LATE_MS * MS))
    (other,) = js.fetch(stream, consumer, 1)
    assert other.body == b"b"
    (again,) = js.fetch(stream, consumer, 1)
    assert (again.body, delivered(again).count) == (b"a", 2)
    assert time.monotonic() - begin >= LATE_MS / 1000 * 0.9


def d17_nak_with_a_delay_of_what_waits_already(js: Visit) -> None:
    """The last word holds: what would come at once comes after that."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream)
    first, second = js.fetch(stream, consumer, 2)
    begin = time.monotonic()
    for message in (first, second):
        js.say(message, b"-NAK")
    js.say(first, b'-NAK {"delay": %d}' % (LATE_MS * MS))
    assert bodies(js.fetch(stream, consumer, 2)) == ["b", "a"]
    assert time.monotonic() - begin >= LATE_MS / 1000 * 0.9


def d17_term(js: Visit) -> None:
    """+TERM: it comes no more, and an advisory tells of it."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream, ack_wait=SOON_MS * MS)
    told = js.main.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream}.{consumer}")
    (message,) = js.fetch(stream, consumer, 1)
    js.say(message, b"+TERM out of paper")
    about = told.next().json
    assert about["type"] == "io.nats.jetstream.advisory.v1.terminated"
    assert (about["stream_seq"], about["deliveries"]) == (1, 1)
    inbox = js.pull(stream, consumer, batch=1, expires=2 * SOON_MS * MS)
    assert inbox.next().status == 408
    assert js.about(stream, consumer)["num_ack_pending"] == 0


def d17_term_with_a_reason(js: Visit) -> None:
    """The advisory tells why."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream)
    told = js.main.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream}.{consumer}")
    (message,) = js.fetch(stream, consumer, 1)
    js.say(message, b"+TERM out of paper")
    assert told.next().json["reason"] == "out of paper"


def d17_next(js: Visit) -> None:
    """+NXT acknowledges and asks for more: one, a number, or a request in JSON."""
    stream = js.stream()
    js.fill(stream, *"abcdefg")
    consumer = js.consumer(stream)
    (message,) = js.fetch(stream, consumer, 1)
    inbox = js.main.inbox()
    js.main.tell(message.reply, b"+NXT", reply=inbox.subject)
    message = inbox.next()
    assert message.body == b"b"
    js.main.tell(message.reply, b"+NXT 2", reply=inbox.subject)
    _, message = found = inbox.some(2)
    assert bodies(found) == ["c", "d"]
    js.main.tell(message.reply, b'+NXT {"batch": 3, "no_wait": true}', reply=inbox.subject)
    assert bodies(inbox.some(3)) == ["e", "f", "g"]
    js.until(lambda: js.about(stream, consumer)["num_ack_pending"] == 4, "not what is pending")


def d17_all_forms_of_ack(js: Visit) -> None:
    """Nothing at all and +ACK are the same."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream)
    first, second = js.fetch(stream, consumer, 2)
    js.say(first, b"")
    js.say(second, b"+ACK")
    assert js.about(stream, consumer)["ack_floor"]["stream_seq"] == 2


def d17_the_long_form_of_its_subject(js: Visit) -> None:
    """With a domain and an account in front it is understood as well."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream)
    (message,) = js.fetch(stream, consumer, 1)
    tokens = message.reply.split(".")
    if len(tokens) == 9:
        message = message._replace(reply=".".join([*tokens[:2], "_", "szMpdrwD", *tokens[2:], "x"]))
    js.main.tell(message.reply, b"+ACK")
    js.until(lambda: js.about(stream, consumer)["num_ack_pending"] == 0, "it did not count")


def d17_advisory_of_a_nak(js: Visit) -> None:
    """A nak is told of."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream)
    told = js.main.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.{stream}.{consumer}")
    (message,) = js.fetch(stream, consumer, 1)
    js.say(message, b"-NAK")
    about = told.next().json
    assert about["type"] == "io.nats.jetstream.advisory.v1.nak"
    assert (about["stream"], about["consumer"]) == (stream, consumer)
    assert (about["consumer_seq"], about["stream_seq"], about["deliveries"]) == (1, 1, 1)


def d17_advisory_of_each_nak(js: Visit) -> None:
    """Also of those that change nothing, as long as there is something to acknowledge."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream)
    told = js.main.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.{stream}.{consumer}")
    (message,) = js.fetch(stream, consumer, 1)
    for _ in range(3):
        js.main.tell(message.reply, b"-NAK")
    assert [each.json["stream_seq"] for each in told.some(3)] == [1, 1, 1]
    js.main.tell(message.reply, b"-NAK")
    assert told.next().json["deliveries"] == 1
    js.say(js.fetch(stream, consumer, 1)[0])
    js.main.tell(message.reply, b"-NAK")
    told.quiet("it is acknowledged")


def d18_instant(js: Visit) -> None:
    """The default: as fast as they are asked for."""
    stream = js.stream()
    assert js.about(stream, js.consumer(stream))["config"]["replay_policy"] == "instant"


def d18_original(js: Visit) -> None:
    """With the spans between messages with which they were stored."""
    stream = js.stream()
    js.fill(stream, "a")
    time.sleep(LATE_MS / 1000)
    js.fill(stream, "b")
    consumer = js.consumer(stream, replay_policy="original")
    inbox = js.pull(stream, consumer, batch=2, expires=30 * S)
    assert inbox.body() == b"a"
    begin = time.monotonic()
    assert inbox.body() == b"b"
    assert time.monotonic() - begin >= 0.7 * LATE_MS / 1000


def d21_samples_of_acks(js: Visit) -> None:
    """At 100 % each acknowledgement is told of, with how long it took."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream, sample_freq="100%")
    told = js.main.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream}.{consumer}")
    (message,) = js.fetch(stream, consumer, 1)
    js.say(message)
    about = told.next().json
    assert about["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
    assert (about["stream"], about["consumer"]) == (stream, consumer)
    assert (about["consumer_seq"], about["stream_seq"], about["deliveries"]) == (1, 1, 1)
    assert about["ack_time"] >= 0


def d21_its_forms(js: Visit) -> None:
    """A number, or a number and a percent sign; nothing else."""
    stream = js.stream()
    for text in ("30", "30%"):
        consumer = js.consumer(stream, sample_freq=text)
        assert js.about(stream, consumer)["config"]["sample_freq"] == text
    js.is_error(js.put_consumer(stream, "no", sample_freq="often"), 10095)
