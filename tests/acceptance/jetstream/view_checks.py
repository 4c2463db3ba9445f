"""D01-D07, D11-D13, D19-D20, D29-D30: consumers as views of a stream: where they start, what they
see, what may be changed.
"""

from __future__ import annotations

import time

from tests.acceptance.jetstream.visit import MS, QUIET_S, Json, S, Visit, bodies, delivered
from tests.acceptance.rows.suite import needs

SOON_MS = 150


def d01_independent_views(js: Visit) -> None:
    """Each consumer has its own place in the stream, and its own acknowledgements."""
    stream = js.stream()
    js.fill(stream, "a", "b", "c")
    first, second = js.consumer(stream), js.consumer(stream)
    for message in js.fetch(stream, first, 3):
        js.say(message)
    assert bodies(js.fetch(stream, second, 2)) == ["a", "b"]
    about = js.about(stream, first)
    assert (about["ack_floor"]["stream_seq"], about["num_ack_pending"]) == (3, 0)
    assert about["num_pending"] == 0
    about = js.about(stream, second)
    assert (about["ack_floor"]["stream_seq"], about["num_ack_pending"]) == (0, 2)
    assert about["num_pending"] == 1


def d01_unacked_comes_again(js: Visit) -> None:
    """What is not acknowledged in time is delivered again; what is, is not."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream, ack_wait=SOON_MS * MS)
    kept, acked = js.fetch(stream, consumer, 2)
    js.say(acked)
    again = js.fetch(stream, consumer, 1)
    assert bodies(again) == ["a"]
    assert delivered(kept).count == 1
    assert delivered(again[0]).count >= 2
    js.say(again[0])
    js.nothing(stream, consumer, "all is acknowledged")


def d01_info_of_a_consumer(js: Visit) -> None:
    """Its name, its configuration, and how far it is."""
    stream = js.stream()
    js.fill(stream, *"abcd")
    consumer = js.consumer(stream, description="hi")
    first, _ = js.fetch(stream, consumer, 2)
    js.say(first)
    about = js.about(stream, consumer)
    assert about["type"] == "io.nats.jetstream.api.v1.consumer_info_response"
    assert (about["stream_name"], about["name"]) == (stream, consumer)
    assert about["config"]["description"] == "hi"
    assert (about["delivered"]["consumer_seq"], about["delivered"]["stream_seq"]) == (2, 2)
    assert (about["ack_floor"]["consumer_seq"], about["ack_floor"]["stream_seq"]) == (1, 1)
    assert (about["num_ack_pending"], about["num_pending"]) == (1, 2)
    assert (about["num_redelivered"], about["num_waiting"]) == (0, 0)
    assert about["created"].endswith("Z")
    assert about["ts"].endswith("Z")
    assert about["cluster"]["leader"]


def d01_what_a_delivery_tells(js: Visit) -> None:
    """Its reply has stream, consumer, count, both sequences, time, and how many are pending."""
    stream = js.stream()
    js.fill(f"{stream}.a", "1")
    before_ns = time.time_ns()
    js.fill(f"{stream}.b", "2", "3")
    consumer = js.consumer(stream, filter_subject=f"{stream}.b")
    first, second = js.fetch(stream, consumer, 2)
    about = delivered(first)
    assert first.subject == f"{stream}.b"
    assert (about.stream, about.consumer, about.count) == (stream, consumer, 1)
    assert (about.sequence, about.own, about.pending) == (2, 1, 1)
    assert abs(about.stored_ns - before_ns) < 30 * S
    assert (delivered(second).sequence, delivered(second).own) == (3, 2)
    assert delivered(second).pending == 0


def d02_advisory_of_max_deliveries(js: Visit) -> None:
    """A message that was delivered as often as it may be is told of in an advisory."""
    stream = js.stream()
    consumer = js.consumer(stream, ack_wait=SOON_MS * MS, max_deliver=2)
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"
    told = js.main.subscribe(subject)
    js.fill(stream, "a")
    js.fetch(stream, consumer, 1)
    js.fetch(stream, consumer, 1)
    js.pull(stream, consumer, batch=1, expires=30 * S)
    about = told.next().json
    assert about["type"] == "io.nats.jetstream.advisory.v1.max_deliver"
    assert (about["stream"], about["consumer"]) == (stream, consumer)
    assert (about["stream_seq"], about["deliveries"]) == (1, 2)
    assert about["id"]
    assert about["timestamp"].endswith("Z")


def d03_pull_gives_what_is_asked_for(js: Visit) -> None:
    """A request gets its batch and no more; several clients share what there is."""
    stream = js.stream()
    js.fill(stream, *"abcde")
    consumer = js.consumer(stream)
    assert bodies(js.fetch(stream, consumer, 2)) == ["a", "b"]
    other = js.client()
    inbox = other.inbox()
    asked = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    other.tell(asked, b"3", reply=inbox.subject)
    assert bodies(inbox.some(3)) == ["c", "d", "e"]


def d03_push_goes_to_a_subject(js: Visit) -> None:
    """With a deliver subject messages are sent there, by themselves; a pull request is refused."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    target = js.main.inbox()
    consumer = js.consumer(stream, deliver_subject=target.subject)
    assert bodies(target.some(2)) == ["a", "b"]
    assert js.about(stream, consumer)["push_bound"] is True
    js.fill(stream, "c")
    assert target.body() == b"c"
    found = js.pull(stream, consumer, batch=1, no_wait=True).next()
    assert found.status == 409
    assert b"Consumer is push based" in found.header


def d04_what_ordered_consumers_rest_on(js: Visit) -> None:
    """Ephemeral, without acks, one after the other, made again behind the last that was seen."""
    stream = js.stream()
    js.fill(stream, *"abcde")
    target = js.main.inbox()
    config: Json = {
        "durable_name": None,
        "ack_policy": "none",
        "max_deliver": 1,
        "flow_control": True,
        "idle_heartbeat": 5 * S,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 300 * S,
        "deliver_subject": target.subject,
    }
    first = js.consumer(stream, **config)
    found = target.some(5)
    assert [delivered(each).own for each in found] == [1, 2, 3, 4, 5]
    js.got(f"CONSUMER.DELETE.{stream}.{first}")
    target = js.main.inbox()
    config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": 4}
    js.consumer(stream, **config | {"deliver_subject": target.subject})
    found = target.some(2)
    assert [(delivered(each).own, delivered(each).sequence) for each in found] == [(1, 4), (2, 5)]


def d05_an_ephemeral_goes_when_nobody_uses_it(js: Visit) -> None:
    """After its inactive threshold it is gone; a durable without one stays."""
    stream = js.stream()
    durable = js.consumer(stream)
    brief = js.consumer(stream, durable_name=None, inactive_threshold=SOON_MS * MS)
    assert "durable_name" not in js.about(stream, durable)["config"] or durable
    js.until(
        lambda: js.ask(f"CONSUMER.INFO.{stream}.{brief}").get("error"),
        "the ephemeral is still there",
    )
    js.refused(f"CONSUMER.INFO.{stream}.{brief}", None, 10014, 404)
    assert js.about(stream, durable)["name"] == durable


def d05_default_threshold_of_ephemerals(js: Visit) -> None:
    """Five seconds, unless it is said."""
    stream = js.stream()
    found = js.got(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": {}})
    assert found["config"]["inactive_threshold"] == 5 * S
    assert found["name"]
    assert "durable_name" not in found["config"]


def d05_durables_inherit_replicas(js: Visit) -> None:
    """Without a number of its own a durable has as many replicas as its stream."""
    stream = js.stream()
    consumer = js.consumer(stream)
    assert js.about(stream, consumer)["config"]["num_replicas"] == 0


def d06_names_that_cannot_be(js: Visit) -> None:
    """No wildcards or path separators in the name of a durable; nor dots or spaces."""
    stream = js.stream()

    def body(name: str) -> Json:
        return {"stream_name": stream, "config": {"durable_name": name, "ack_policy": "explicit"}}

    for name, number in (("a*", 10052), ("a>", 10052), ("a/b", 10127), ("a\\b", 10127)):
        js.refused(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body(name), number)
    # In the subject of the request such a name would not be one token.
    js.refused(f"CONSUMER.DURABLE.CREATE.{stream}.a", body("a.b"), 10017, 400)
    js.refused(f"CONSUMER.CREATE.{stream}", body("a b"), 10020, 400)


def d06_a_long_name(js: Visit) -> None:
    """255 bytes may be."""
    stream = js.stream()
    assert js.consumer(stream, "n" * 255) == "n" * 255
    name = "n" * 256
    config = {"durable_name": name, "name": name, "ack_policy": "explicit"}
    js.refused(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}, 10102)


def d07_one_filter(js: Visit) -> None:
    """Only what matches is delivered and counted, wildcards included; it may be changed."""
    stream = js.stream()
    for number, subject in enumerate(("a.1.x", "b.1.x", "a.2.x", "a.1.y", "a.2.x.z")):
        js.fill(f"{stream}.{subject}", str(number))
    consumer = js.consumer(stream, filter_subject=f"{stream}.a.*.x")
    assert js.about(stream, consumer)["num_pending"] == 2
    assert bodies(js.fetch(stream, consumer, 2)) == ["0", "2"]
    js.nothing(stream, consumer, "no other subject matches")
    found = js.put_consumer(stream, consumer, filter_subject=f"{stream}.a.>")
    assert found["config"]["filter_subject"] == f"{stream}.a.>"
    assert bodies(js.fetch(stream, consumer, 2)) == ["3", "4"]


def d07_several_filters(js: Visit) -> None:
    """What matches any of them, in the order of the stream."""
    stream = js.stream()
    for number, subject in enumerate("abcab"):
        js.fill(f"{stream}.{subject}", str(number))
    filters = [f"{stream}.a", f"{stream}.b"]
    config = {"durable_name": "two", "ack_policy": "explicit", "filter_subjects": filters}
    body = {"stream_name": stream, "config": config}
    found = js.got(f"CONSUMER.DURABLE.CREATE.{stream}.two", body)
    assert found["num_pending"] == 4
    assert bodies(js.fetch(stream, "two", 4)) == ["0", "1", "3", "4"]
    js.nothing(stream, "two", "c matches neither")


def d07_filters_that_cannot_be(js: Visit) -> None:
    """One or several, not both; none of them empty, none that overlap."""
    stream = js.stream()

    def case(number: int, **config: object) -> tuple[Json, int]:
        given = {"durable_name": "no", "ack_policy": "explicit", **config}
        return {"stream_name": stream, "config": given}, number

    js.each_is_refused(
        lambda _: f"CONSUMER.DURABLE.CREATE.{stream}.no",
        {
            "both": case(10136, filter_subject=f"{stream}.a", filter_subjects=[f"{stream}.b"]),
            "overlapping": case(10138, filter_subjects=[f"{stream}.>", f"{stream}.b"]),
            "equal": case(10138, filter_subjects=[f"{stream}.b", f"{stream}.b"]),
            "empty": case(10139, filter_subjects=[f"{stream}.a", ""]),
        },
    )


def d07_a_filter_outside_of_the_stream(js: Visit) -> None:
    """It is taken, and brings nothing."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream, filter_subject=js.name("elsewhere"))
    assert js.about(stream, consumer)["num_pending"] == 0
    js.nothing(stream, consumer, "nothing matches")


def d11_all_is_the_default(js: Visit) -> None:
    """Without a deliver policy a consumer begins with the first message."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream)
    assert js.about(stream, consumer)["config"]["deliver_policy"] == "all"
    assert bodies(js.fetch(stream, consumer, 2)) == ["a", "b"]


def d11_last(js: Visit) -> None:
    """It begins with the last message that matches the filter."""
    stream = js.stream()
    js.fill(f"{stream}.a", "1", "2")
    js.fill(f"{stream}.b", "3")
    any_ = js.consumer(stream, deliver_policy="last")
    filtered = js.consumer(stream, deliver_policy="last", filter_subject=f"{stream}.a")
    js.fill(f"{stream}.a", "4")
    assert bodies(js.fetch(stream, any_, 2)) == ["3", "4"]
    assert bodies(js.fetch(stream, filtered, 2)) == ["2", "4"]


def d11_last_per_subject(js: Visit) -> None:
    """First the last message of each subject that matches, then what comes."""
    stream = js.stream()
    for number, subject in enumerate(("a", "b", "a", "c", "b")):
        js.fill(f"{stream}.{subject}", str(number))
    consumer = js.consumer(stream, deliver_policy="last_per_subject", filter_subject=f"{stream}.*")
    assert js.about(stream, consumer)["num_pending"] == 3
    assert bodies(js.fetch(stream, consumer, 3)) == ["2", "3", "4"]
    js.fill(f"{stream}.a", "5", "6")
    assert bodies(js.fetch(stream, consumer, 2)) == ["5", "6"]


def d11_new(js: Visit) -> None:
    """Only what is stored after the consumer was made."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream, deliver_policy="new")
    js.nothing(stream, consumer, "nothing is new")
    js.fill(stream, "b")
    assert bodies(js.fetch(stream, consumer, 1)) == ["b"]


def d11_by_start_sequence(js: Visit) -> None:
    """From that sequence on, or the next that is there."""
    stream = js.stream()
    js.fill(stream, *"abcd")
    js.got(f"STREAM.MSG.DELETE.{stream}", {"seq": 2})
    consumer = js.consumer(stream, deliver_policy="by_start_sequence", opt_start_seq=2)
    assert bodies(js.fetch(stream, consumer, 2)) == ["c", "d"]


def d11_by_a_start_sequence_that_is_yet_to_come(js: Visit) -> None:
    """What comes before it is not for the consumer."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream, deliver_policy="by_start_sequence", opt_start_seq=4)
    assert js.about(stream, consumer)["delivered"]["stream_seq"] == 3
    js.fill(stream, *"bc")
    js.nothing(stream, consumer, "it begins with the fourth message")
    assert js.about(stream, consumer)["num_pending"] == 0
    js.fill(stream, *"de")
    assert js.about(stream, consumer)["num_pending"] == 2
    assert bodies(js.fetch(stream, consumer, 2)) == ["d", "e"]


def d11_by_start_time(js: Visit) -> None:
    """From the first message that is no older than that."""
    stream = js.stream()
    js.fill(stream, "a")
    time.sleep(QUIET_S)
    js.fill(stream, "b")
    stored = js.got(f"STREAM.MSG.GET.{stream}", {"seq": 2})["message"]["time"]
    consumer = js.consumer(stream, deliver_policy="by_start_time", opt_start_time=stored)
    assert bodies(js.fetch(stream, consumer, 1)) == ["b"]


def d11_start_options_belong_to_their_policy(js: Visit) -> None:
    """A start without its policy, or a policy without its start, is refused."""
    stream = js.stream()
    when = "2024-01-01T00:00:00Z"

    def case(number: int, **config: object) -> tuple[Json, int]:
        given = {"durable_name": "no", "ack_policy": "explicit", **config}
        return {"stream_name": stream, "config": given}, number

    js.each_is_refused(
        lambda _: f"CONSUMER.DURABLE.CREATE.{stream}.no",
        {
            "all with a sequence": case(10094, deliver_policy="all", opt_start_seq=1),
            "all with a time": case(10094, deliver_policy="all", opt_start_time=when),
            "last with a sequence": case(10094, deliver_policy="last", opt_start_seq=1),
            "new with a time": case(10094, deliver_policy="new", opt_start_time=when),
            "sequence without one": case(10094, deliver_policy="by_start_sequence"),
            "sequence with a time": case(
                10094, deliver_policy="by_start_sequence", opt_start_seq=1, opt_start_time=when
            ),
            "time without one": case(10094, deliver_policy="by_start_time"),
            "time with a sequence": case(
                10094, deliver_policy="by_start_time", opt_start_time=when, opt_start_seq=1
            ),
            "last per subject with a sequence": case(
                10094, deliver_policy="last_per_subject", filter_subject=">", opt_start_seq=1
            ),
        },
    )


def d11_the_policy_stays(js: Visit) -> None:
    """Where a consumer began cannot be changed."""
    stream = js.stream()
    consumer = js.consumer(stream)
    js.is_error(js.put_consumer(stream, consumer, deliver_policy="new"), 10012)
    js.is_error(
        js.put_consumer(stream, consumer, deliver_policy="by_start_sequence", opt_start_seq=2),
        10012,
    )


def d12_description_and_metadata(js: Visit) -> None:
    """Kept, shown, and changed at will."""
    stream = js.stream()
    consumer = js.consumer(stream, description="one", metadata={"team": "a"})
    config = js.about(stream, consumer)["config"]
    assert config["description"] == "one"
    assert config["metadata"]["team"] == "a"
    found = js.put_consumer(stream, consumer, description="two", metadata={"team": "b"})
    assert found["config"]["description"] == "two"
    assert found["config"]["metadata"]["team"] == "b"


def d12_their_lengths(js: Visit) -> None:
    """4 KiB of description, 128 KiB of metadata."""
    stream = js.stream()
    js.is_error(js.put_consumer(stream, "no", description="d" * 4097), 10107, 400)
    js.is_error(js.put_consumer(stream, "no", metadata={"k": "v" * 131_072}), 10135, 400)
    js.consumer(stream, description="d" * 4096)


def d13_a_durable_may_be_inactive_too_long(js: Visit) -> None:
    """With a threshold a durable goes as well; the threshold may be changed."""
    stream = js.stream()
    consumer = js.consumer(stream, inactive_threshold=3600 * S)
    found = js.put_consumer(stream, consumer, inactive_threshold=SOON_MS * MS)
    assert found["config"]["inactive_threshold"] == SOON_MS * MS
    js.until(lambda: js.ask(f"CONSUMER.INFO.{stream}.{consumer}").get("error"), "it is still there")


def d13_who_waits_uses_it(js: Visit) -> None:
    """While a request waits, a consumer is not inactive."""
    stream = js.stream()
    consumer = js.consumer(stream, durable_name=None, inactive_threshold=SOON_MS * MS)
    inbox = js.pull(stream, consumer, batch=1, expires=30 * S)
    js.main.arrived(inbox.sid, 3 * SOON_MS / 1000)
    js.fill(stream, "a")
    assert inbox.body() == b"a"


@needs("cluster")
def d19_replicas(js: Visit) -> None:
    """As many as asked for, no more than the stream has; it may be changed."""
    stream = js.stream(num_replicas=3)
    consumer = js.consumer(stream, num_replicas=1)
    assert js.about(stream, consumer)["config"]["num_replicas"] == 1
    found = js.put_consumer(stream, consumer, num_replicas=3)
    assert found["config"]["num_replicas"] == 3
    alone = js.stream()
    js.is_error(js.put_consumer(alone, "no", num_replicas=3), 10126, 400)
    js.is_error(js.put_consumer(alone, "no", num_replicas=-1), 10133, 400)


@needs("cluster")
def d19_of_an_interest_stream(js: Visit) -> None:
    """There a consumer has as many as its stream."""
    stream = js.stream(num_replicas=3, retention="interest")
    js.is_error(js.put_consumer(stream, "no", num_replicas=1), 10134, 400)
    js.consumer(stream, num_replicas=3)


def d20_state_in_memory(js: Visit) -> None:
    """It may be asked for on a stream in files, and is shown."""
    stream = js.stream()
    consumer = js.consumer(stream, mem_storage=True)
    assert js.about(stream, consumer)["config"]["mem_storage"] is True
    assert not js.about(stream, js.consumer(stream))["config"].get("mem_storage")


@needs("users")
def d29_a_filter_in_the_subject(js: Visit) -> None:
    """The subject of the request names the filter, so that a permission may name it too."""
    stream = js.stream()
    config = {"name": "one", "filter_subject": f"{stream}.a", "ack_policy": "explicit"}
    body = {"stream_name": stream, "config": config}
    found = js.got(f"CONSUMER.CREATE.{stream}.one.{stream}.a", body)
    assert found["config"]["filter_subject"] == f"{stream}.a"
    js.refused(
        f"CONSUMER.CREATE.{stream}.two.{stream}.b",
        body | {"config": config | {"name": "two"}},
        10131,
    )
    several = config | {"filter_subject": "", "filter_subjects": [f"{stream}.a", f"{stream}.b"]}
    js.refused(f"CONSUMER.CREATE.{stream}.one.{stream}.a", body | {"config": several}, 10137)


def d29_several_filters_in_the_other_form(js: Visit) -> None:
    """They go by the subject without a filter."""
    stream = js.stream()
    filters = [f"{stream}.a", f"{stream}.b"]
    config = {"durable_name": "two", "filter_subjects": filters, "ack_policy": "explicit"}
    body = {"stream_name": stream, "config": config}
    found = js.got(f"CONSUMER.DURABLE.CREATE.{stream}.two", body)
    assert found["config"]["filter_subjects"] == filters
    found = js.got(f"CONSUMER.CREATE.{stream}.two", body)
    assert found["config"]["filter_subjects"] == filters


def d30_what_may_be_changed(js: Visit) -> None:
    """The fields of the table that are editable, each by itself."""
    stream = js.stream()
    consumer = js.consumer(stream)
    for field, value in {
        "ack_wait": 7 * S,
        "max_deliver": 9,
        "backoff": [S, 2 * S],
        "max_ack_pending": 77,
        "max_batch": 5,
        "max_expires": 5 * S,
        "max_bytes": 5_000,
        "headers_only": True,
        "sample_freq": "30%",
        "metadata": {"k": "v"},
        "description": "changed",
        "inactive_threshold": 3600 * S,
        "filter_subject": f"{stream}.a",
    }.items():
        config = {"max_deliver": 5} if field == "backoff" else {}
        found = js.put_consumer(stream, consumer, "update", **{**config, field: value})
        assert "error" not in found, f"{field}: {found['error']}"

        # What the server adds for itself is no matter of ours.
        shown = found["config"][field]
        seen = {"k": shown.get("k")} if field == "metadata" else shown
        assert seen == value, f"{field} is {shown}"


def d30_what_may_be_changed_of_a_push_consumer(js: Visit) -> None:
    """Where it delivers to, while nobody listens there; its group and its rate."""
    stream = js.stream()
    consumer = js.consumer(stream, deliver_subject=js.name("one"))
    target = js.name("two")
    for config in (
        {"deliver_subject": target},
        {"deliver_subject": target, "deliver_group": "workers"},
        {"deliver_subject": target, "rate_limit_bps": 1_000_000},
    ):
        found = js.put_consumer(stream, consumer, "update", **config)
        assert "error" not in found, f"{config}: {found['error']}"
        assert config.items() <= found["config"].items()


def d30_what_may_not(js: Visit) -> None:
    """Changing any other field is an error."""
    stream = js.stream()
    pull, push = js.consumer(stream), js.consumer(stream, deliver_subject=js.name("subject"))
    target = js.about(stream, push)["config"]["deliver_subject"]
    cases = [
        (pull, {field: value})
        for field, value in {
            "ack_policy": "all",
            "deliver_policy": "new",
            "deliver_subject": js.name("subject"),
            "max_waiting": 99,
            "mem_storage": True,
        }.items()
    ]
    cases += [
        (push, {"deliver_subject": None}),
        (push, {"deliver_subject": target, "idle_heartbeat": S}),
        (push, {"deliver_subject": target, "idle_heartbeat": S, "flow_control": True}),
    ]
    wrong: list[str] = []
    for consumer, config in cases:
        error: Json = js.put_consumer(stream, consumer, "update", **config).get("error", {})
        js.heard.append(f"{error.get('err_code')} {error.get('description')}")
        if error.get("err_code") != 10012:
            wrong.append(f"{config}: {error or 'taken'}")
    assert not wrong, "; ".join(wrong)
    assert js.about(stream, pull)["config"]["ack_policy"] == "explicit"


def d30_actions(js: Visit) -> None:
    """`create` refuses what is there and differs, `update` what is not there."""
    stream = js.stream()
    js.is_error(js.put_consumer(stream, "one", "update"), 10149, 400)
    assert js.put_consumer(stream, "one", "create")["name"] == "one"
    assert js.put_consumer(stream, "one", "create")["name"] == "one"
    js.is_error(js.put_consumer(stream, "one", "create", ack_wait=9 * S), 10148, 400)
    assert js.put_consumer(stream, "one", "update", ack_wait=9 * S)["config"]["ack_wait"] == 9 * S
    assert js.put_consumer(stream, "one", ack_wait=8 * S)["config"]["ack_wait"] == 8 * S
