"""D25-D28 and what N2 says of push: deliver subjects, groups, heartbeats, flow control, rates."""

from __future__ import annotations

import time

from tests.acceptance.jetstream.visit import MS, S, Visit, bodies, delivered, headers_of, status

HEARTBEAT_MS = 150


def d25_only_while_somebody_listens(js: Visit) -> None:
    """Nothing is sent before there is interest in the deliver subject, and again once there is."""
    stream = js.stream()
    js.fill(stream, "a")
    subject = js.name("target")
    consumer = js.consumer(stream, deliver_subject=subject)
    about = js.about(stream, consumer)
    assert about["delivered"]["consumer_seq"] == 0
    assert not about.get("push_bound")
    target = js.main.subscribe(subject)
    assert target.body() == b"a"
    target.end()
    js.main.flush()
    js.until(lambda: not js.about(stream, consumer).get("push_bound"), "it is still bound")
    js.fill(stream, "b")
    assert js.about(stream, consumer)["delivered"]["stream_seq"] == 1
    assert js.main.subscribe(subject).body() == b"b"


def d25_a_group_shares(js: Visit) -> None:
    """With a deliver group each message goes to one of its members."""
    stream = js.stream()
    subject = js.name("target")
    js.consumer(stream, deliver_subject=subject, deliver_group="workers")
    others = [js.client(), js.client()]
    members = [each.subscribe(subject, "workers") for each in others]
    js.fill(stream, *(str(number) for number in range(40)))
    js.until(
        lambda: sum(len(each.client.arrived(each.sid, 0.01)) for each in members) == 40,
        "not all came",
    )
    counts = [len(each.client.arrived(each.sid, 0)) for each in members]
    assert all(counts), f"one got nothing: {counts}"
    assert sum(counts) == 40


def d25_subjects_that_cannot_be(js: Visit) -> None:
    """No wildcards, none of the stream's own subjects."""
    stream = js.stream()
    js.is_error(js.put_consumer(stream, "no", deliver_subject="a.*"), 10079, 400)
    js.is_error(js.put_consumer(stream, "no", deliver_subject="a.>"), 10079, 400)
    js.is_error(js.put_consumer(stream, "no", deliver_subject=f"{stream}.x"), 10081, 400)
    js.is_error(js.put_consumer(stream, "no", deliver_subject="a..b"), 10112, 400)


def d25_one_client_at_a_time(js: Visit) -> None:
    """While somebody listens, the consumer cannot be made to deliver elsewhere."""
    stream = js.stream()
    target = js.main.inbox()
    consumer = js.consumer(stream, deliver_subject=target.subject)
    js.until(lambda: js.about(stream, consumer).get("push_bound"), "it is not bound")
    found = js.put_consumer(stream, consumer, deliver_subject=js.name("other"))
    js.heard.append(str(found.get("error")))
    assert found["error"]["err_code"] in (10013, 10105)


def d26_flow_control(js: Visit) -> None:
    """Much at once: the client is asked to answer, and more comes when it has."""
    stream = js.stream()
    js.fill(stream, *("x" * 60_000 for _ in range(100)))
    target = js.main.inbox()
    js.consumer(
        stream,
        deliver_subject=target.subject,
        flow_control=True,
        idle_heartbeat=5 * S,
        ack_policy="none",
    )
    came, asked = 0, 0
    while came < 100:
        message = target.next()
        if not message.status:
            came += 1
        elif message.reply:
            assert status(message) == "100 FlowControl Request"
            asked += 1
            js.main.tell(message.reply)
    assert asked, "nobody was asked"


def d26_stalled(js: Visit) -> None:
    """Who does not answer gets no more than the window; heartbeats name what was missed."""
    stream = js.stream()
    js.fill(stream, *("x" * 100_000 for _ in range(120)))
    target = js.main.inbox()
    js.consumer(
        stream,
        deliver_subject=target.subject,
        flow_control=True,
        idle_heartbeat=2 * HEARTBEAT_MS * MS,
        ack_policy="none",
    )
    came, asked = 0, ""
    while True:
        message = target.next()
        if not message.status:
            came += 1
        elif message.reply:
            asked = message.reply
        elif "Nats-Consumer-Stalled" in headers_of(message):
            assert headers_of(message)["Nats-Consumer-Stalled"] == asked
            break
        assert came < 120, "all came without an answer"
    js.main.tell(asked)
    while (message := target.next()).status:
        pass
    assert message.body


def d26_needs_heartbeats(js: Visit) -> None:
    """Flow control without them is refused."""
    stream = js.stream()
    js.is_error(
        js.put_consumer(stream, "no", deliver_subject=js.name("x"), flow_control=True), 10108
    )
    js.is_error(js.put_consumer(stream, "no", flow_control=True), 10089)


def d27_heartbeats(js: Visit) -> None:
    """100 without a reply, and how far the consumer is."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    js.got(f"STREAM.MSG.DELETE.{stream}", {"seq": 1})
    target = js.main.inbox()
    js.consumer(stream, deliver_subject=target.subject, idle_heartbeat=HEARTBEAT_MS * MS)
    assert target.body() == b"b"
    begin = time.monotonic()
    beat = target.next()
    assert time.monotonic() - begin >= 0.5 * HEARTBEAT_MS / 1000
    assert status(beat) == "100 Idle Heartbeat"
    assert beat.reply == ""
    found = headers_of(beat)
    assert (found["Nats-Last-Consumer"], found["Nats-Last-Stream"]) == ("1", "2")


def d27_at_least_100_ms(js: Visit) -> None:
    """Faster ones are refused; a pull consumer has none."""
    stream = js.stream()
    target = js.name("x")
    js.is_error(js.put_consumer(stream, "no", deliver_subject=target, idle_heartbeat=MS), 10083)
    js.is_error(js.put_consumer(stream, "no", idle_heartbeat=S), 10088)


def d28_bits_per_second(js: Visit) -> None:
    """Deliveries are spread over time; what is published meanwhile waits for its turn."""
    stream = js.stream(max_msg_size=2000)
    js.fill(stream, *("x" * 1000 for _ in range(5)))
    target = js.main.inbox()
    begin = time.monotonic()
    js.consumer(stream, deliver_subject=target.subject, rate_limit_bps=100_000)
    js.fill(stream, *("x" * 1000 for _ in range(5)))
    found = target.some(10)
    spent = time.monotonic() - begin
    js.heard.append(f"{spent:.2f} s")
    # 80,000 bits, of which 16,000 may come at once.
    assert spent >= 0.5, f"10 KB came within {spent:.2f} s at 12.5 KB/s"
    assert [delivered(each).sequence for each in found] == list(range(1, 11))


def d28_of_pull_consumers(js: Visit) -> None:
    """They ask for as much as they want: a rate is refused."""
    stream = js.stream()
    js.is_error(js.put_consumer(stream, "no", rate_limit_bps=1000), 10086, 400)


def n2_push_redelivers(js: Visit) -> None:
    """What is not acknowledged in time is pushed again."""
    stream = js.stream()
    js.fill(stream, "a")
    target = js.main.inbox()
    js.consumer(stream, deliver_subject=target.subject, ack_wait=HEARTBEAT_MS * MS)
    first, second = target.some(2)
    assert bodies([first, second]) == ["a", "a"]
    assert (delivered(first).count, delivered(second).count) == (1, 2)
    js.say(second)
