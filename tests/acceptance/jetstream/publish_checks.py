"""N2, publishing into streams: acknowledgements, headers, limits, retention."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from tests.acceptance.jetstream.visit import MS, QUIET_S, S, Visit, bodies, headers_of

SOON_MS = 150


def n2_publish_ack(js: Visit) -> None:
    """Stream and sequence, as JSON; sequences are dense."""
    stream = js.stream()
    assert js.publish(stream, b"a") == {"stream": stream, "seq": 1}
    assert js.publish(f"{stream}.x", b"") == {"stream": stream, "seq": 2}


def n2_publish_without_a_reply(js: Visit) -> None:
    """It is stored, and nobody is told."""
    stream = js.stream()
    js.publish(stream)
    js.main.tell(stream, b"b")
    js.main.flush()
    js.until(lambda: js.state(stream)["messages"] == 2, "it is not stored")


def n2_publish_reaches_core_subscribers(js: Visit) -> None:
    """What a stream stores is delivered as any other message, too."""
    stream = js.stream()
    target = js.main.subscribe(f"{stream}.>")
    js.publish(f"{stream}.a", b"x")
    message = target.next()
    assert (message.subject, message.body) == (f"{stream}.a", b"x")


def n2_publish_with_headers(js: Visit) -> None:
    """They are stored and delivered as they are."""
    stream = js.stream()
    js.publish(stream, b"x", {"Colour": "blue", "X-y": "a: b"})
    message = js.fetch(stream, js.consumer(stream), 1)[0]
    assert headers_of(message) == {"Colour": "blue", "X-y": "a: b"}
    assert message.body == b"x"


def n2_publish_no_ack_stream(js: Visit) -> None:
    """A stream with no_ack stores, and answers nothing."""
    stream = js.stream(no_ack=True)
    inbox = js.main.inbox()

    def stored() -> bool:
        js.main.tell(stream, b"x", reply=inbox.subject)
        return js.state(stream)["messages"] > 0

    js.until(stored, "it is not stored")
    assert not [each for each in js.main.arrived(inbox.sid, QUIET_S) if each.body]


def n2_msg_id(js: Visit) -> None:
    """The same id within the window is stored once, and answered with the first sequence."""
    stream = js.stream()
    assert js.publish(stream, b"a", Nats_Msg_Id="one") == {"stream": stream, "seq": 1}
    again = js.publish(f"{stream}.other", b"b", Nats_Msg_Id="one")
    assert again == {"stream": stream, "seq": 1, "duplicate": True}
    assert js.publish(stream, b"c", Nats_Msg_Id="two")["seq"] == 2
    assert js.state(stream)["messages"] == 2


def n2_msg_id_after_the_window(js: Visit) -> None:
    """Then it may come again."""
    stream = js.stream(duplicate_window=SOON_MS * MS)
    js.publish(stream, b"a", Nats_Msg_Id="one")
    js.until(
        lambda: "duplicate" not in js.publish(stream, b"b", Nats_Msg_Id="one"),
        "it is a duplicate for ever",
    )
    assert js.state(stream)["messages"] == 2


def n2_expected_stream(js: Visit) -> None:
    """Another one is refused."""
    stream = js.stream()
    assert js.publish(stream, Nats_Expected_Stream=stream)["seq"] == 1
    found = js.publish(stream, Nats_Expected_Stream="other")
    js.is_error(found, 10060, 400)
    assert (found["stream"], found["seq"]) == (stream, 0)


def n2_expected_last_sequence(js: Visit) -> None:
    """The last sequence of the stream must be that one."""
    stream = js.stream()
    assert js.publish(stream, Nats_Expected_Last_Sequence=0)["seq"] == 1
    assert js.publish(stream, Nats_Expected_Last_Sequence=1)["seq"] == 2
    error = js.is_error(js.publish(stream, Nats_Expected_Last_Sequence=1), 10071, 400)
    assert error["description"] == "wrong last sequence: 2"


def n2_expected_last_subject_sequence(js: Visit) -> None:
    """The last sequence of the subject, or of another one; 0: it has none."""
    stream = js.stream()
    js.fill(f"{stream}.a", "1")
    js.fill(f"{stream}.b", "2")
    put = f"{stream}.a"
    assert js.publish(put, Nats_Expected_Last_Subject_Sequence=1)["seq"] == 3
    error = js.is_error(js.publish(put, Nats_Expected_Last_Subject_Sequence=1), 10071, 400)
    assert error["description"] == "wrong last sequence: 3"
    js.is_error(js.publish(put, Nats_Expected_Last_Subject_Sequence=0), 10071)
    assert js.publish(f"{stream}.c", Nats_Expected_Last_Subject_Sequence=0)["seq"] == 4
    other = {"Nats-Expected-Last-Subject-Sequence-Subject": f"{stream}.b"}
    found = js.publish(put, headers=other, Nats_Expected_Last_Subject_Sequence=2)
    assert found["seq"] == 5
    found = js.publish(put, headers=other, Nats_Expected_Last_Subject_Sequence=1)
    error = js.is_error(found, 10071)
    assert error["description"] == "wrong last sequence: 2"


def n2_expected_last_sequence_of_several_subjects(js: Visit) -> None:
    """The subject that is looked at may have wildcards."""
    stream = js.stream()
    js.fill(f"{stream}.x.a", "1")
    js.fill(f"{stream}.x.b", "2")
    js.fill(f"{stream}.y", "3")
    every = {"Nats-Expected-Last-Subject-Sequence-Subject": f"{stream}.x.*"}
    put = f"{stream}.x.a"
    js.is_error(js.publish(put, headers=every, Nats_Expected_Last_Subject_Sequence=1), 10071)
    assert js.publish(put, headers=every, Nats_Expected_Last_Subject_Sequence=2)["seq"] == 4


def n2_expected_last_msg_id(js: Visit) -> None:
    """The id of the last message must be that one."""
    stream = js.stream()
    js.publish(stream, Nats_Msg_Id="one")
    js.is_error(js.publish(stream, Nats_Expected_Last_Msg_Id="two"), 10070, 400)
    assert js.publish(stream, Nats_Expected_Last_Msg_Id="one")["seq"] == 2


def n2_expected_races(js: Visit) -> None:
    """Of many who expect the same sequence one succeeds."""
    stream = js.stream()
    clients = [js.client(number) for number in range(6)]
    headers = {"Nats-Expected-Last-Subject-Sequence": 0}
    subject = f"{stream}.key"
    js.publish(f"{stream}.known")
    for client in clients:
        js.until(
            lambda client=client: client.request(f"{stream}.known").status == 0, "nobody stores it"
        )
    with ThreadPoolExecutor(len(clients)) as pool:
        answers = [pool.submit(each.request, subject, b"x", headers) for each in clients]
        found = [each.result().json for each in answers]
    assert sum("error" not in each for each in found) == 1
    assert {each["error"]["err_code"] for each in found if "error" in each} == {10071}
    assert js.info(stream, subjects_filter=subject)["state"]["subjects"] == {subject: 1}


def n2_rollup(js: Visit) -> None:
    """It takes the place of all before it: of its subject, or of the stream."""
    stream = js.stream(allow_rollup_hdrs=True)
    js.fill(f"{stream}.a", "1", "2")
    js.fill(f"{stream}.b", "3")
    assert js.publish(f"{stream}.a", b"4", Nats_Rollup="sub")["seq"] == 4
    found = js.info(stream, subjects_filter=">")["state"]["subjects"]
    assert found == {f"{stream}.a": 1, f"{stream}.b": 1}
    assert js.publish(f"{stream}.b", b"5", Nats_Rollup="all")["seq"] == 5
    state = js.state(stream)
    assert (state["messages"], state["first_seq"]) == (1, 5)


def n2_rollup_refused(js: Visit) -> None:
    """Where it is not allowed, and when it says what it cannot mean."""
    js.is_error(js.publish(js.stream(), Nats_Rollup="sub"), 10111)
    js.is_error(js.publish(js.stream(allow_rollup_hdrs=True), Nats_Rollup="some"), 10111)


def n2_message_ttl(js: Visit) -> None:
    """A message goes by itself; others stay."""
    stream = js.stream(allow_msg_ttl=True)
    js.publish(f"{stream}.a", b"1", Nats_TTL="1s")
    js.publish(f"{stream}.b", b"2", Nats_TTL="never")
    js.publish(f"{stream}.c", b"3", Nats_TTL="3600")
    js.publish(f"{stream}.d", b"4", Nats_TTL="1h30m")
    assert js.state(stream)["messages"] == 4
    js.until(lambda: js.state(stream)["messages"] == 3, "it did not go")
    assert js.state(stream)["first_seq"] == 2


def n2_message_ttl_refused(js: Visit) -> None:
    """Less than a second, nonsense, and where it is not allowed."""
    stream = js.stream(allow_msg_ttl=True)
    for ttl in ("500ms", "-1", "-5s", "soon"):
        js.is_error(js.publish(stream, Nats_TTL=ttl), 10165, 400, ttl)
    js.is_error(js.publish(js.stream(), Nats_TTL="5s"), 10166, 400)


def n2_message_ttl_leaves_markers(js: Visit) -> None:
    """Where it is asked for, what went by its age is told of in the stream."""
    stream = js.stream(allow_msg_ttl=True, subject_delete_marker_ttl=10 * S)
    js.publish(f"{stream}.a", b"1", Nats_TTL="1s")
    js.until(lambda: js.state(stream)["last_seq"] == 2, "there is no marker")
    (marker,) = js.fetch(stream, js.consumer(stream, deliver_policy="last"), 1)
    assert marker.subject == f"{stream}.a"
    assert headers_of(marker)["Nats-Marker-Reason"] == "MaxAge"
    assert headers_of(marker)["Nats-TTL"] == "10s"


def n2_batch(js: Visit) -> None:
    """All messages of a batch or none; one answer when it is complete."""
    stream = js.stream(allow_atomic=True)
    first = {"Nats-Batch-Id": "b1", "Nats-Batch-Sequence": 1}
    answer = js.request(f"{stream}.a", b"1", first)
    assert answer.body == b""
    answer = js.request(f"{stream}.b", b"2", first | {"Nats-Batch-Sequence": 2})
    assert js.state(stream)["messages"] == 0
    last = first | {"Nats-Batch-Sequence": 3, "Nats-Batch-Commit": 1}
    found = js.request(f"{stream}.c", b"3", last).json
    assert found == {"stream": stream, "seq": 3, "batch": "b1", "count": 3}
    assert js.state(stream)["messages"] == 3


def n2_batch_left_alone(js: Visit) -> None:
    """Until it is complete nothing of it is stored; another one goes its own way."""
    stream = js.stream(allow_atomic=True)
    js.request(stream, b"1", {"Nats-Batch-Id": "open", "Nats-Batch-Sequence": 1})
    one = {"Nats-Batch-Id": "whole", "Nats-Batch-Sequence": 1, "Nats-Batch-Commit": 1}
    assert js.publish(stream, b"2", one)["seq"] == 1
    assert js.state(stream)["messages"] == 1


def n2_batch_with_a_condition(js: Visit) -> None:
    """One message that cannot be stored, and none is."""
    stream = js.stream(allow_atomic=True)
    js.fill(f"{stream}.a", "0")
    first = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": 1}
    js.request(f"{stream}.b", b"1", first)
    wrong = {"Nats-Batch-Sequence": 2, "Nats-Expected-Last-Subject-Sequence": 7}
    found = js.publish(f"{stream}.a", b"2", {**first, **wrong, "Nats-Batch-Commit": 1})
    js.is_error(found, 10071)
    assert js.state(stream)["messages"] == 1


def n2_batch_refused(js: Visit) -> None:
    """Without leave, without a sequence, with a gap, with an id that is too long."""
    js.is_error(
        js.publish(js.stream(), headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": 1}), 10174
    )
    stream = js.stream(allow_atomic=True)
    js.is_error(js.publish(stream, headers={"Nats-Batch-Id": "b"}), 10175)
    js.is_error(
        js.publish(stream, headers={"Nats-Batch-Id": "b" * 65, "Nats-Batch-Sequence": 1}), 10179
    )
    gap = {"Nats-Batch-Id": "c", "Nats-Batch-Sequence": 2, "Nats-Batch-Commit": 1}
    js.is_error(js.publish(stream, headers=gap), 10176)
    assert js.state(stream)["messages"] == 0


def n2_counter(js: Visit) -> None:
    """Each message adds to what its subject counts; the answer carries the sum."""
    stream = js.stream(allow_msg_counter=True)
    subject = f"{stream}.n"
    assert js.publish(subject, headers={"Nats-Incr": "+2"})["val"] == "2"
    assert js.publish(subject, headers={"Nats-Incr": "-5"})["val"] == "-3"
    (last,) = js.fetch(stream, js.consumer(stream, deliver_policy="last"), 1)
    assert last.json == {"val": "-3"}
    big = "9" * 60
    assert js.publish(subject, headers={"Nats-Incr": big})["val"] == str(int(big) - 3)
    assert js.publish(f"{stream}.m", headers={"Nats-Incr": "0"})["val"] == "0"


def n2_counter_of_a_batch(js: Visit) -> None:
    """Increments of an atomic batch add up."""
    stream = js.stream(allow_msg_counter=True, allow_atomic=True)
    js.publish(stream, headers={"Nats-Incr": "1"})
    for number, incr in ((1, "2"), (2, "3")):
        about = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(number), "Nats-Incr": incr}
        if number == 1:
            js.main.request(stream, b"", about)
        else:
            found = js.publish(stream, headers=about | {"Nats-Batch-Commit": "1"})
            assert (found["seq"], found["count"]) == (3, 2)
    assert js.publish(stream, headers={"Nats-Incr": "4"})["val"] == "10"


def n2_counter_errors(js: Visit) -> None:
    """What is no increment, or asks for what a counter cannot do."""
    stream = js.stream(allow_msg_counter=True, allow_rollup_hdrs=True)
    js.is_error(js.publish(stream), 10169, 400)
    js.is_error(js.publish(stream, headers={"A": "b"}), 10169, 400)
    js.is_error(js.publish(stream, b"x", Nats_Incr="1"), 10170, 400)
    for text in ("x", "1.5", "1e3", "--1", "0x1", "1 2"):
        js.is_error(js.publish(stream, Nats_Incr=text), 10171, 400)
    for asked in (
        {"Nats-Rollup": "sub"},
        {"Nats-Expected-Last-Sequence": "0"},
        {"Nats-Expected-Last-Subject-Sequence": "0"},
        {"Nats-Expected-Stream": stream},
    ):
        js.is_error(js.publish(stream, headers={"Nats-Incr": "1", **asked}), 10171, 400)
    plain = js.stream()
    js.is_error(js.publish(plain, Nats_Incr="1"), 10168, 400)
    assert js.state(stream)["messages"] == 0


def n2_counter_twice(js: Visit) -> None:
    """An increment with an id counts once."""
    stream = js.stream(allow_msg_counter=True)
    js.publish(stream, Nats_Incr="1", Nats_Msg_Id="one")
    again = js.publish(stream, Nats_Incr="1", Nats_Msg_Id="one")
    assert (again["seq"], again["duplicate"]) == (1, True)
    assert js.publish(stream, Nats_Incr="1")["val"] == "2"


def n2_schedule(js: Visit) -> None:
    """A message that is published later, to another subject."""
    stream = js.stream(allow_msg_schedules=True, allow_rollup_hdrs=True)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    headers = {"Nats-Schedule": f"@at {when}", "Nats-Schedule-Target": f"{stream}.out"}
    js.publish(f"{stream}.plan", b"x", headers)
    js.until(
        lambda: f"{stream}.out" in js.info(stream, subjects_filter=">")["state"]["subjects"],
        "it is not published",
    )
    js.until(lambda: js.state(stream)["messages"] == 1, "the plan stays")
    (message,) = js.fetch(stream, js.consumer(stream), 1)
    assert message.body == b"x"
    about = headers_of(message)
    assert about == {"Nats-Scheduler": f"{stream}.plan", "Nats-Schedule-Next": "purge"}


def n2_schedule_again_and_again(js: Visit) -> None:
    """A message at an interval, with the body of another subject's last, until the plan ends."""
    stream = js.stream(allow_msg_schedules=True, allow_msg_ttl=True)
    js.publish(f"{stream}.now", b"17", {"A": "b"})
    plan = f"{stream}.plan"
    headers = {
        "Nats-Schedule": "@every 1s",
        "Nats-Schedule-Target": f"{stream}.out",
        "Nats-Schedule-Source": f"{stream}.now",
        "Nats-Schedule-TTL": "1h",
        "X": "y",
    }
    js.publish(plan, b"x", {**headers, "Nats-Schedule": "@every 1h"})
    js.publish(plan, b"x", headers)
    assert js.info(stream, subjects_filter=plan)["state"]["subjects"] == {plan: 1}
    consumer = js.consumer(stream, filter_subject=f"{stream}.out")
    first, second = js.fetch(stream, consumer, 2)
    assert (first.body, second.body) == (b"17", b"17")
    about = headers_of(first)
    assert about.pop("Nats-Schedule-Next") < headers_of(second)["Nats-Schedule-Next"]
    assert about == {"A": "b", "Nats-Scheduler": plan, "Nats-TTL": "1h"}
    ends = {"Nats-Scheduler": plan, "Nats-Schedule-Next": "purge"}
    assert "error" not in js.publish(f"{stream}.end", headers=ends)
    assert not js.info(stream, subjects_filter=plan)["state"].get("subjects")


def n2_schedule_errors(js: Visit) -> None:
    """What is no schedule, or names what cannot be."""
    stream = js.stream(allow_msg_schedules=True)
    plan, out = f"{stream}.plan", f"{stream}.out"

    def wrong(number: int, text: str = "@every 1h", target: str = out, **more: str) -> None:
        headers = {"Nats-Schedule": text, "Nats-Schedule-Target": target}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        js.is_error(js.publish(plan, headers=headers), number, 400)

    for text in ("@at noon", "@every 1ms", "@every x", "1 2 3", "61 * * * * *", "* * * * 13 *"):
        wrong(10189, text)
    wrong(10189, Nats_Schedule_Time_Zone="Europe/Berlin")
    wrong(10223, "0 0 0 * * *", Nats_Schedule_Time_Zone="Nowhere")
    wrong(10190, target="")
    wrong(10190, target="elsewhere")
    wrong(10190, target=plan)
    wrong(10190, target=f"{stream}.*")
    wrong(10203, Nats_Schedule_Source=out)
    wrong(10203, Nats_Schedule_Source="elsewhere")
    wrong(10191, Nats_Schedule_TTL="x")
    wrong(10166, Nats_Schedule_TTL="1s")
    wrong(10192, Nats_Rollup="all")
    wrong(10192, Nats_Schedule_Rollup="all")
    js.is_error(js.publish(out, headers={"Nats-Scheduler": plan}), 10212, 400)
    js.is_error(js.publish(out, headers={"Nats-Schedule-Next": "purge"}), 10212, 400)
    js.fill(plan, "x")
    ends = {"Nats-Scheduler": plan, "Nats-Schedule-Next": "purge"}
    js.is_error(js.publish(out, headers=ends), 10212, 400)
    headers = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": "x"}
    plain = js.stream()
    js.is_error(js.publish(plain, headers=headers), 10188, 400)
    js.is_error(js.publish(plain, headers=ends), 10188, 400)
    js.is_error(js.publish(plain, headers={"Nats-Scheduler": plan}), 10212, 400)
    assert js.publish(plain, headers={"Nats-Schedule-Target": out})["seq"] == 1, "it asks nothing"


def n2_schedule_forms(js: Visit) -> None:
    """By the clock and the calendar, in six fields, or by a word."""
    stream = js.stream(allow_msg_schedules=True)
    for text in (
        "@hourly",
        "@yearly",
        "0 30 9 * * mon-fri",
        "*/5 * * * jan,jul ?",
        "0 0/15 0 1 * *",
    ):
        headers = {"Nats-Schedule": text, "Nats-Schedule-Target": f"{stream}.out"}
        zone = {"Nats-Schedule-Time-Zone": "America/New_York"}
        assert "error" not in js.publish(f"{stream}.plan", headers=headers | zone), text
    assert js.state(stream)["messages"] == 1
    js.publish(f"{stream}.soon", headers=headers | {"Nats-Schedule": "* * * * * *"})
    consumer = js.consumer(stream, filter_subject=f"{stream}.out")
    assert len(js.fetch(stream, consumer, 2)) == 2


def n2_schedule_configurations(js: Visit) -> None:
    """What does not go with schedules, and what they need."""
    name = js.name()
    body = {"name": name, "subjects": [name, f"{name}.>"], "allow_msg_schedules": True}
    for more in ({"discard": "new"}, {"allow_msg_counter": True}):
        js.refused(f"STREAM.CREATE.{name}", body | more, 10052, 500)
    assert js.created(body)["config"]["allow_rollup_hdrs"] is True
    js.refused(f"STREAM.UPDATE.{name}", body | {"allow_msg_schedules": False}, 10052, 500)


def n2_max_msg_size(js: Visit) -> None:
    """A larger message is refused; headers count."""
    stream = js.stream(max_msg_size=100)
    assert js.publish(stream, b"x" * 100)["seq"] == 1
    js.is_error(js.publish(stream, b"x" * 101), 10054, 400)
    js.is_error(js.publish(stream, b"x" * 90, Colour="blue"), 10054, 400)


def n2_max_msgs(js: Visit) -> None:
    """The oldest goes."""
    stream = js.stream(max_msgs=2)
    assert js.fill(stream, "a", "b", "c") == [1, 2, 3]
    state = js.state(stream)
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (2, 2, 3)


def n2_max_bytes(js: Visit) -> None:
    """The oldest goes until the rest fits."""
    stream = js.stream(max_bytes=1000)
    js.fill(stream, *("x" * 200 for _ in range(10)))
    state = js.state(stream)
    assert state["bytes"] <= 1000
    assert 1 <= state["messages"] <= 4


def n2_max_age(js: Visit) -> None:
    """What is older goes."""
    stream = js.stream(max_age=SOON_MS * 2 * MS)
    js.fill(stream, "a")
    js.until(lambda: js.state(stream)["messages"] == 0, "it did not go")
    state = js.state(stream)
    assert (state["first_seq"], state["last_seq"]) == (2, 1)


def n2_max_msgs_per_subject(js: Visit) -> None:
    """Of each subject the last so many are kept."""
    stream = js.stream(max_msgs_per_subject=2)
    js.fill(f"{stream}.a", "1", "2", "3")
    js.fill(f"{stream}.b", "4")
    found = js.info(stream, subjects_filter=">")["state"]
    assert found["subjects"] == {f"{stream}.a": 2, f"{stream}.b": 1}
    assert found["first_seq"] == 2


def n2_discard_new(js: Visit) -> None:
    """A full stream refuses instead: 503."""
    stream = js.stream(max_msgs=2, discard="new")
    js.fill(stream, "a", "b")
    error = js.is_error(js.publish(stream, b"c"), 10077, 503)
    assert error["description"] == "maximum messages exceeded"
    js.got(f"STREAM.MSG.DELETE.{stream}", {"seq": 1})
    assert js.publish(stream, b"c")["seq"] == 3
    by_bytes = js.stream(max_bytes=500, discard="new")
    js.publish(by_bytes, b"x" * 300)
    error = js.is_error(js.publish(by_bytes, b"x" * 300), 10077, 503)
    assert error["description"] == "maximum bytes exceeded"


def n2_discard_new_per_subject(js: Visit) -> None:
    """Full is each subject by itself."""
    stream = js.stream(max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
    js.fill(f"{stream}.a", "1")
    error = js.is_error(js.publish(f"{stream}.a", b"2"), 10077, 503)
    assert error["description"] == "maximum messages per subject exceeded"
    assert js.publish(f"{stream}.b", b"2")["seq"] == 2


def n2_sealed(js: Visit) -> None:
    """Nothing is stored any more, and nothing goes, for age neither."""
    stream = js.stream(max_age=3600 * S, allow_rollup_hdrs=True)
    js.fill(stream, "a")
    config = js.info(stream)["config"] | {"sealed": True}
    sealed = js.got(f"STREAM.UPDATE.{stream}", config)["config"]
    fields = ("max_age", "discard", "deny_delete", "deny_purge", "allow_rollup_hdrs")
    assert [sealed[each] for each in fields] == [0, "new", True, True, False]
    js.is_error(js.publish(stream, b"b"), 10109, 400)
    assert js.state(stream)["messages"] == 1


def n2_first_seq(js: Visit) -> None:
    """A stream may begin at another sequence."""
    stream = js.stream(first_seq=1000)
    assert js.fill(stream, "a", "b") == [1000, 1001]
    assert js.state(stream)["first_seq"] == 1000


def n2_interest(js: Visit) -> None:
    """A message goes when all consumers that want it have acknowledged it, or none wants it."""
    stream = js.stream(retention="interest")
    first = js.consumer(stream, filter_subject=f"{stream}.a")
    second = js.consumer(stream, filter_subject=f"{stream}.>")
    js.fill(f"{stream}.a", "1")
    js.fill(stream, "nobody")
    js.until(lambda: js.state(stream)["messages"] == 1, "what nobody wants is kept")
    for message in js.fetch(stream, first, 1):
        js.say(message)
    assert js.state(stream)["messages"] == 1
    for message in js.fetch(stream, second, 1):
        js.say(message)
    js.until(lambda: js.state(stream)["messages"] == 0, "it is still there")


def n2_workqueue(js: Visit) -> None:
    """A message goes when it is acknowledged once."""
    stream = js.stream(retention="workqueue")
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream)
    first, _ = js.fetch(stream, consumer, 2)
    js.say(first)
    js.until(lambda: js.state(stream)["messages"] == 1, "it is still there")
    assert js.state(stream)["first_seq"] == 2


def n2_workqueue_terminated(js: Visit) -> None:
    """So it does when it is terminated."""
    stream = js.stream(retention="workqueue")
    js.fill(stream, "a")
    (message,) = js.fetch(stream, js.consumer(stream), 1)
    js.say(message, b"+TERM")
    js.until(lambda: js.state(stream)["messages"] == 0, "it is still there")


def n2_workqueue_one_taker(js: Visit) -> None:
    """Consumers of a work queue share no message."""
    stream = js.stream(retention="workqueue")
    js.consumer(stream, filter_subject=f"{stream}.a")
    js.is_error(js.put_consumer(stream, "no", filter_subject=f"{stream}.a"), 10100, 400)
    js.is_error(js.put_consumer(stream, "no", filter_subject=f"{stream}.*"), 10100, 400)
    js.is_error(js.put_consumer(stream, "no"), 10099, 400)
    js.consumer(stream, filter_subject=f"{stream}.b")
    js.is_error(
        js.put_consumer(stream, "no", ack_policy="none", filter_subject=f"{stream}.c"), 10084, 400
    )
    js.is_error(
        js.put_consumer(stream, "no", ack_policy="all", filter_subject=f"{stream}.c"), 10098, 400
    )
    js.is_error(
        js.put_consumer(stream, "no", deliver_policy="new", filter_subject=f"{stream}.c"),
        10101,
        400,
    )


def n2_in_order(js: Visit) -> None:
    """What one client publishes without waiting is stored in that order."""
    stream = js.stream()
    inbox = js.main.inbox()
    js.publish(stream)
    for number in range(200):
        js.main.tell(stream, str(number).encode(), reply=inbox.subject)
    sequences = [each.json["seq"] for each in inbox.some(200)]
    assert sorted(sequences) == list(range(2, 202))
    consumer = js.consumer(stream, deliver_policy="by_start_sequence", opt_start_seq=2)
    assert bodies(js.fetch(stream, consumer, 200)) == [str(number) for number in range(200)]


def n2_a_stream_of_all_subjects(js: Visit) -> None:
    """Without acknowledgements it has all that is published, requests of the API too."""
    name, subject = js.name("all"), js.name("subject")
    js.refused(f"STREAM.CREATE.{name}", {"name": name, "subjects": [">"]}, 10052)
    js.created({"name": name, "subjects": [">"], "no_ack": True})
    inbox = js.main.inbox()
    js.main.tell(subject, b"1", reply=inbox.subject)
    inbox.quiet("it is not acknowledged")
    asked = f"$JS.API.STREAM.INFO.{js.name()}"
    js.ask(asked.removeprefix("$JS.API."))

    def kept() -> set[str]:
        return set(js.info(name, subjects_filter=">")["state"].get("subjects", {}))

    js.until(lambda: {subject, asked} <= kept(), lambda: f"it has {kept()}")
    consumer = js.consumer(name, filter_subject=subject)
    message = js.fetch(name, consumer, 1)[0]
    js.say(message)
    js.until(lambda: message.reply in kept(), "acknowledgements are published, too")
