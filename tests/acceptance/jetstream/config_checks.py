"""N2, configurations: what a stream or consumer cannot be, and how that is said."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from tests.acceptance.jetstream.visit import MS, Json, S, Visit


def refuse_streams(js: Visit, cases: dict[str, tuple[int, Json]]) -> None:
    """What is wrong -> the number of the error, and what is said."""
    bodies: dict[str, tuple[Json, int]] = {}
    for what, (number, config) in cases.items():
        name = js.name()
        bodies[what] = {"name": name, "subjects": [name], **config}, number
    js.each_is_refused(lambda body: f"STREAM.CREATE.{body['name']}", bodies)


def refuse_consumers(js: Visit, stream: str, cases: dict[str, tuple[int, Json]]) -> None:
    bodies: dict[str, tuple[Json, int]] = {}
    for what, (number, config) in cases.items():
        given = {"durable_name": "no", "ack_policy": "explicit", **config}
        bodies[what] = {"stream_name": stream, "config": given}, number
    js.each_is_refused(lambda _: f"CONSUMER.DURABLE.CREATE.{stream}.no", bodies)


def n2_stream_names_that_cannot_be(js: Visit) -> None:
    """No wildcards or path separators, no more than 255 bytes."""
    for name, number in (("a*", 10052), ("a>", 10052), ("a" * 256, 10052)):
        js.refused(f"STREAM.CREATE.{name}", {"name": name, "subjects": [js.name()]}, number)
    for name in ("a/b", "a\\b"):
        js.refused(f"STREAM.CREATE.{name}", {"name": name, "subjects": [js.name()]}, 10128)


def n2_stream_choices(js: Visit) -> None:
    """A word that is none of those that there are: 10025."""
    refuse_streams(
        js,
        {
            "retention": (10025, {"retention": "some"}),
            "discard": (10025, {"discard": "some"}),
            "storage": (10025, {"storage": "tape"}),
            "compression": (10025, {"compression": "zip"}),
        },
    )


def n2_stream_subjects_that_cannot_be(js: Visit) -> None:
    """Malformed, overlapping, of the server's own."""
    name = js.name()
    refuse_streams(
        js,
        {
            "empty token": (10052, {"subjects": ["a..b"]}),
            "space": (10052, {"subjects": ["a b"]}),
            "overlapping": (10052, {"subjects": [f"{name}.a", f"{name}.*"]}),
            "twice": (10052, {"subjects": [name, name]}),
            "of the API": (10052, {"subjects": ["$JS.API.>"]}),
            "of the system": (10052, {"subjects": ["$SYS.>"]}),
            "all, in 3 replicas": (10052, {"subjects": [">"], "no_ack": True, "num_replicas": 3}),
        },
    )


def n2_stream_numbers(js: Visit) -> None:
    """Replicas, texts and metadata that are too many or too long."""
    refuse_streams(
        js,
        {
            "6 replicas": (10052, {"num_replicas": 6}),
            "negative replicas": (10133, {"num_replicas": -1}),
            "negative first sequence": (10025, {"first_seq": -1}),
            "long description": (10052, {"description": "d" * 4097}),
            "much metadata": (10052, {"metadata": {"k": "v" * 131_072}}),
        },
    )


def n2_stream_spans(js: Visit) -> None:
    """At least 100 ms, and the window no longer than the age."""
    refuse_streams(
        js,
        {
            "negative age": (10052, {"max_age": -1}),
            "short age": (10052, {"max_age": 99 * MS}),
            "negative window": (10052, {"duplicate_window": -1}),
            "short window": (10052, {"duplicate_window": 99 * MS}),
            "window over age": (10052, {"max_age": S, "duplicate_window": 2 * S}),
            "short marker": (10052, {"subject_delete_marker_ttl": 999 * MS}),
            "negative marker": (10052, {"subject_delete_marker_ttl": -S}),
        },
    )
    name = js.name()
    found = js.created({"name": name, "subjects": [name], "max_age": S})
    assert found["config"]["duplicate_window"] == S


def n2_stream_combinations(js: Visit) -> None:
    """What contradicts itself."""
    refuse_streams(
        js,
        {
            "rollup, no purge": (10052, {"deny_purge": True, "allow_rollup_hdrs": True}),
            "per subject, old": (10052, {"discard_new_per_subject": True}),
            "per subject, no limit": (10052, {"discard": "new", "discard_new_per_subject": True}),
            "sealed from the start": (10052, {"sealed": True}),
        },
    )


def n2_stream_limits_below_one(js: Visit) -> None:
    """0 and less mean: none, and are shown as -1."""
    name = js.name()
    limits = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
    config = js.created({"name": name, "subjects": [name], **dict.fromkeys(limits, -7)})["config"]
    assert [config[each] for each in limits] == [-1] * 5


def n2_stream_marker_allows_what_it_needs(js: Visit) -> None:
    """Markers need TTLs, rollups and purges: those are allowed with them."""
    name = js.name()
    asked = {"name": name, "subjects": [name], "subject_delete_marker_ttl": S, "deny_purge": True}
    config = js.created(asked)["config"]
    assert config["allow_msg_ttl"] is True
    assert config["allow_rollup_hdrs"] is True
    assert config["deny_purge"] is False


def n2_stream_metadata(js: Visit) -> None:
    """What was given is shown; what the server adds begins with `_nats.`."""
    name = js.name()
    found = js.created({"name": name, "subjects": [name], "metadata": {"team": "a"}})
    metadata = dict(found["config"]["metadata"])
    assert metadata.pop("team") == "a"
    assert all(key.startswith("_nats.") for key in metadata)


def n2_stream_consumer_limits(js: Visit) -> None:
    """Consumers of a stream may have no more, and get them by default."""
    stream = js.stream(consumer_limits={"max_ack_pending": 50, "inactive_threshold": 60 * S})
    config = js.about(stream, js.consumer(stream))["config"]
    assert (config["max_ack_pending"], config["inactive_threshold"]) == (50, 60 * S)
    refuse_consumers(
        js,
        stream,
        {
            "pending": (10121, {"max_ack_pending": 51}),
            "inactive": (10153, {"inactive_threshold": 61 * S}),
        },
    )


def n2_stream_mirror(js: Visit) -> None:
    """A mirror has what another stream has, under the same sequences."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    name = js.name()
    js.created({"name": name, "mirror": {"name": stream}})
    js.until(lambda: js.state(name)["messages"] == 2, "it does not follow")
    assert js.got(f"STREAM.MSG.GET.{name}", {"seq": 2})["message"]["subject"] == stream
    body: Json = {"name": f"{name}x", "subjects": ["y"], "mirror": {"name": stream}}
    js.refused(f"STREAM.CREATE.{name}x", body, 10034)


def n2_stream_sources(js: Visit) -> None:
    """A stream takes in what others have."""
    first, second = js.stream(), js.stream()
    js.fill(first, "a")
    js.fill(second, "b")
    name = js.name()
    js.created({"name": name, "sources": [{"name": first}, {"name": second}]})
    js.until(lambda: js.state(name)["messages"] == 2, "it does not take them in")
    js.refused(f"STREAM.CREATE.{name}x", {"name": f"{name}x", "sources": [{"name": ""}]}, 10141)


def n2_stream_mirror_config(js: Visit) -> None:
    """What a mirror may not have, and what it may not become."""
    stream = js.stream()
    mirror: Json = {"name": stream}
    change = {"src": "a.*", "dest": "b.$2"}
    cases: list[tuple[int, Json]] = [
        (10142, {"mirror": {"name": "a.b"}}),
        (10142, {"mirror": {}}),
        (10031, {"mirror": mirror, "sources": [mirror]}),
        (10143, {"mirror": mirror, "first_seq": 5}),
        (10198, {"mirror": mirror, "allow_atomic": True}),
        (10209, {"mirror": mirror, "allow_batched": True}),
        (10052, {"mirror": mirror, "subject_delete_marker_ttl": S}),
        (10049, {"mirror": {**mirror, "filter_subject": "a..b"}}),
        (10154, {"mirror": {**mirror, "subject_transforms": [change]}}),
        (10025, {"mirror": {**mirror, "opt_start_time": "noon"}}),
        (10052, {"mirror_direct": True}),
    ]
    for number, given in cases:
        name = js.name()
        js.refused(f"STREAM.CREATE.{name}", {"name": name, **given}, number)
    name = js.name()
    js.refused(f"STREAM.CREATE.{name}", {"name": name, "mirror": {"name": name}}, 10052)
    js.created({"name": name, "mirror": mirror})
    js.refused(f"STREAM.UPDATE.{name}", {"name": name, "mirror": {"name": "other"}}, 10055)
    assert "mirror" not in js.got(f"STREAM.UPDATE.{name}", {"name": name})["config"]
    js.refused(f"STREAM.UPDATE.{name}", {"name": name, "mirror": mirror}, 10055)


def n2_stream_mirror_of_a_part(js: Visit) -> None:
    """It begins where it is told to, and has gaps where nothing is wanted."""
    stream = js.stream()
    for number in range(6):
        js.publish(f"{stream}.{number % 2}", b"x")
    start, part = js.name(), js.name()
    js.created({"name": start, "mirror": {"name": stream, "opt_start_seq": 3}})
    wanted = {"name": stream, "filter_subject": f"{stream}.1"}
    js.created({"name": part, "mirror": wanted})
    js.until(lambda: js.state(start)["messages"] == 4, "it does not follow")
    js.until(lambda: js.state(part)["messages"] == 3, "it does not follow")
    assert (js.state(start)["first_seq"], js.state(start)["last_seq"]) == (3, 6)
    assert (js.state(part)["first_seq"], js.state(part)["num_deleted"]) == (2, 2)
    about = js.info(part)["mirror"]
    assert (about["name"], about["filter_subject"]) == (stream, f"{stream}.1")


def n2_stream_sources_config(js: Visit) -> None:
    """What cannot be taken in."""
    stream, name = js.stream(), js.name()
    source: Json = {"name": stream}
    change = {"src": "a.*", "dest": "b.$1"}
    for number, sources in (
        (10141, [{"name": "a.b"}]),
        (10140, [source, source]),
        (10144, [{**source, "filter_subject": "a.b", "subject_transforms": [change]}]),
        (10147, [{**source, "subject_transforms": [change, {"src": "a.b", "dest": "c"}]}]),
        (10145, [{**source, "subject_transforms": [{"src": "a..", "dest": "c"}]}]),
        (10052, [{"name": name}]),
    ):
        js.refused(f"STREAM.CREATE.{name}", {"name": name, "sources": sources}, number)
    js.created({"name": name, "sources": [source]})
    body: Json = {"name": stream, "subjects": [stream], "sources": [{"name": name}]}
    js.refused(f"STREAM.UPDATE.{stream}", body, 10052)


def n2_stream_sources_say_where(js: Visit) -> None:
    """A header names the stream, the sequence and the subject there, and what was made of it."""
    stream, name = js.stream(), js.name()
    js.fill(stream, "a")
    change = {"src": stream, "dest": f"{stream}.new"}
    js.created({"name": name, "sources": [{"name": stream, "subject_transforms": [change]}]})
    js.until(lambda: js.state(name)["messages"] == 1, "it does not take it in")
    message = js.got(f"STREAM.MSG.GET.{name}", {"seq": 1})["message"]
    assert message["subject"] == f"{stream}.new"
    where = f"Nats-Stream-Source: {stream} 1 {stream} {stream}.new {stream}"
    assert where.encode() in b64decode(message["hdrs"])
    (about,) = js.info(name)["sources"]
    assert (about["name"], about["subject_transforms"]) == (stream, [change])


def n2_stream_republish(js: Visit) -> None:
    """What is stored is told again under another subject, with where it is."""
    stream = js.name()
    target = js.main.subscribe(f"told.{stream}.>")
    republish = {"src": f"{stream}.>", "dest": f"told.{stream}.>"}
    js.created({"name": stream, "subjects": [f"{stream}.>"], "republish": republish})
    js.publish(f"{stream}.a", b"x")
    message = target.next()
    assert (message.subject, message.body) == (f"told.{stream}.a", b"x")
    assert b"Nats-Sequence: 1" in message.header


def n2_stream_subject_transform(js: Visit) -> None:
    """What comes is stored under another subject."""
    stream = js.name()
    change = {"src": f"{stream}.*", "dest": f"{stream}.new.{{{{wildcard(1)}}}}"}
    js.created({"name": stream, "subjects": [f"{stream}.>"], "subject_transform": change})
    js.publish(f"{stream}.a", b"x")
    message = js.got(f"STREAM.MSG.GET.{stream}", {"seq": 1})["message"]
    assert message["subject"] == f"{stream}.new.a"


# Consumers.


def n2_consumer_choices(js: Visit) -> None:
    """A word that is none of those that there are: 10025."""
    refuse_consumers(
        js,
        js.stream(),
        {
            "ack policy": (10025, {"ack_policy": "some"}),
            "replay policy": (10025, {"replay_policy": "some"}),
            "deliver policy": (10025, {"deliver_policy": "some"}),
            "start time": (10025, {"deliver_policy": "by_start_time", "opt_start_time": "noon"}),
        },
    )


def n2_consumer_negative_waits(js: Visit) -> None:
    """No time runs backwards."""
    refuse_consumers(
        js,
        js.stream(),
        {
            "ack wait": (10183, {"ack_wait": -1}),
            "backoff": (10184, {"backoff": [-1]}),
            "max expires": (10115, {"max_expires": 1}),
        },
    )


def n2_consumer_of_push_and_pull(js: Visit) -> None:
    """What belongs to the other kind is refused."""
    push: dict[str, Any] = {"deliver_subject": js.name("target")}
    refuse_consumers(
        js,
        js.stream(),
        {
            "push, max waiting": (10080, push | {"max_waiting": 5}),
            "push, pending without acks": (
                10082,
                push | {"ack_policy": "none", "max_ack_pending": 5},
            ),
            "push, fast heartbeat": (10083, push | {"idle_heartbeat": 99 * MS}),
            "push, flow control": (10108, push | {"flow_control": True}),
            "pull, rate": (10086, {"rate_limit_bps": 1}),
            "pull, heartbeat": (10088, {"idle_heartbeat": S}),
            "pull, flow control": (10089, {"flow_control": True}),
        },
    )


def n2_consumer_filters(js: Visit) -> None:
    """A malformed filter: 10052."""
    stream = js.stream()
    refuse_consumers(
        js,
        stream,
        {
            "one": (10052, {"filter_subject": "a..b"}),
            "several": (10052, {"filter_subjects": ["a..b"]}),
            "overlapping": (10138, {"filter_subjects": [f"{stream}.*", f"{stream}.a"]}),
        },
    )


def n2_consumer_priority_groups(js: Visit) -> None:
    """Their checks."""
    stream = js.stream()
    refuse_consumers(
        js,
        stream,
        {
            "policy without group": (10159, {"priority_policy": "overflow"}),
            "push": (
                10178,
                {
                    "deliver_subject": js.name("x"),
                    "priority_policy": "overflow",
                    "priority_groups": ["a"],
                },
            ),
            "no name": (10161, {"priority_policy": "overflow", "priority_groups": [""]}),
            "long name": (10162, {"priority_policy": "overflow", "priority_groups": ["a" * 17]}),
        },
    )
