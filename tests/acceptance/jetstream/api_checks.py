"""N2, the API: its verbs, what they answer, and their errors."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from tests.acceptance.jetstream.visit import Json, S, Visit, said
from tests.acceptance.rows.suite import needs

TYPE = "io.nats.jetstream.api.v1."


def text(data: str) -> str:
    return base64.b64decode(data).decode()


def n2_account_info(js: Visit) -> None:
    """What there is, and what limits there are."""
    js.stream()
    found = js.got("INFO")
    assert found["type"] == f"{TYPE}account_info_response"
    assert found["streams"] >= 1
    assert {"memory", "storage", "consumers", "limits", "api"} <= set(found)
    assert {"total", "errors", "level"} <= set(found["api"])
    limits = {"max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending"}
    assert limits <= set(found["limits"])


def n2_no_such_verb(js: Visit) -> None:
    """503: nobody answers."""
    stream = js.stream()
    for verb in ("STREAM.DANCE", f"STREAM.INFO.{stream}.more", "CONSUMER.INFO", "STREAM.CREATE"):
        answer = js.main.request(f"$JS.API.{verb}")
        assert answer.status == 503, f"{verb}: {said(answer)}"


def n2_an_empty_body_is_an_empty_object(js: Visit) -> None:
    """For requests that need no body both do."""
    stream = js.stream()
    for body in (b"", b"{}"):
        assert js.got("INFO", body)["type"]
        assert js.got("STREAM.NAMES", body)["streams"]
        assert js.got(f"STREAM.INFO.{stream}", body)["state"]["messages"] == 0
        assert js.got(f"CONSUMER.NAMES.{stream}", body)["consumers"] == []


def n2_a_consumer_request_names_its_stream(js: Visit) -> None:
    """In the subject and in the body."""
    stream = js.stream()
    for body in ({}, {"config": {}}, {"stream_name": "other", "config": {}}):
        js.refused(f"CONSUMER.CREATE.{stream}", body, 10056)
        js.refused(f"CONSUMER.CREATE.{stream}.c", body, 10056)


def n2_unknown_fields(js: Visit) -> None:
    """They are passed over."""
    name = js.name()
    js.created({"name": name, "subjects": [name], "colour": "blue", "nested": {"a": [1]}})
    assert "colour" not in js.info(name)["config"]
    consumer = js.consumer(name, colour="blue")
    assert js.about(name, consumer)["name"] == consumer


def n2_what_is_no_json(js: Visit) -> None:
    """10025, with what is wrong."""
    name = js.name()
    for body in ("{", "[]", "nonsense", '{"name": 3}', f'{{"name": "{name}", "max_msgs": "x"}}'):
        js.is_error(js.ask(f"STREAM.CREATE.{name}", body.encode()), 10025, 400, body)


def n2_consumer_reset(js: Visit) -> None:
    """It begins anew at a sequence, or behind what was acknowledged."""
    stream = js.stream()
    js.fill(stream, *"abcd")
    consumer = js.consumer(stream)
    first, _, _ = js.fetch(stream, consumer, 3)
    js.say(first)
    verb = f"CONSUMER.RESET.{stream}.{consumer}"
    found = js.got(verb)
    assert found["type"] == f"{TYPE}consumer_reset_response"
    assert (found["reset_seq"], found["name"]) == (2, consumer)
    assert [each.body for each in js.fetch(stream, consumer, 3)] == [b"b", b"c", b"d"]
    assert js.got(verb, {"seq": 1})["reset_seq"] == 1
    about = js.about(stream, consumer)
    assert (about["num_ack_pending"], about["num_pending"]) == (0, 4)
    assert about["delivered"]["consumer_seq"] == 0
    assert js.fetch(stream, consumer, 1)[0].body == b"a"
    assert js.got(verb, {"seq": 6})["reset_seq"] == 6
    js.fill(stream, "e")
    js.nothing(stream, consumer, "it begins with the sixth message")
    js.fill(stream, "f")
    assert js.fetch(stream, consumer, 1)[0].body == b"f"


def n2_consumer_reset_errors(js: Visit) -> None:
    """Not to before where it began, nor of one that began with the last or new messages."""
    stream = js.stream()
    js.fill(stream, *"abcd")
    consumer = js.consumer(stream, deliver_policy="by_start_sequence", opt_start_seq=3)
    js.refused(f"CONSUMER.RESET.{stream}.{consumer}", {"seq": 2}, 10204, 400)
    assert js.got(f"CONSUMER.RESET.{stream}.{consumer}", {"seq": 4})["reset_seq"] == 4
    consumer = js.consumer(stream, deliver_policy="new")
    js.refused(f"CONSUMER.RESET.{stream}.{consumer}", {"seq": 2}, 10204, 400)


def backed_up(js: Visit, stream: str) -> tuple[dict[str, Any], list[bytes]]:
    """What is said of the stream, and the chunks, each of which is answered."""
    inbox = js.main.inbox()
    about = js.got(f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox.subject})
    chunks: list[bytes] = []
    while (message := inbox.next()).body:
        chunks.append(message.body)
        if message.reply:
            js.main.tell(message.reply)
    assert message.status in (0, 204), said(message)
    return about, chunks


def restored(js: Visit, stream: str) -> Json:
    """The stream is backed up, deleted and restored; what is answered."""
    about, chunks = backed_up(js, stream)
    assert about["type"] == f"{TYPE}stream_snapshot_response"
    js.got(f"STREAM.DELETE.{stream}")
    kept = {part: about[part] for part in ("config", "state")}
    found = js.got(f"STREAM.RESTORE.{stream}", kept)
    assert found["type"] == f"{TYPE}stream_restore_response"
    for chunk in chunks:
        assert js.request(found["deliver_subject"], chunk).body == b""
    return js.request(found["deliver_subject"]).json


def n2_snapshot_and_restore(js: Visit) -> None:
    """A stream that was deleted comes back, with its sequences and consumers."""
    stream = js.stream(description="kept")
    js.fill(stream, *"abcde")
    js.got(f"STREAM.MSG.DELETE.{stream}", {"seq": 2})
    consumer = js.consumer(stream)
    found = restored(js, stream)
    assert found["type"] == f"{TYPE}stream_create_response"
    assert found["config"]["description"] == "kept"
    state = js.state(stream)
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (4, 1, 5)
    js.until(lambda: js.got(f"CONSUMER.NAMES.{stream}")["consumers"], "the consumer is away")
    assert [each.body for each in js.fetch(stream, consumer, 4)] == [b"a", b"c", b"d", b"e"]


def n2_restore_of_what_was_delivered(js: Visit) -> None:
    """It is still to be acknowledged, and others come first."""
    stream = js.stream()
    js.fill(stream, *"abc")
    consumer = js.consumer(stream)
    first, _ = js.fetch(stream, consumer, 2)
    js.say(first)
    restored(js, stream)
    js.until(lambda: js.got(f"CONSUMER.NAMES.{stream}")["consumers"], "the consumer is away")
    about = js.about(stream, consumer)
    assert (about["num_ack_pending"], about["num_pending"]) == (1, 1)
    assert js.fetch(stream, consumer, 1)[0].body == b"c"


def n2_snapshot_and_restore_errors(js: Visit) -> None:
    """To where nobody may have it; over one that there is; of what is no backup."""
    stream, missing = js.stream(), js.name()
    verb = f"STREAM.SNAPSHOT.{stream}"
    js.refused(verb, None, 10003, 400)
    js.refused(verb, {"deliver_subject": "$JS.API.INFO"}, 10015, 400)
    js.refused(f"STREAM.RESTORE.{stream}", {"config": {"name": stream}}, 10130, 400)
    js.refused(f"STREAM.RESTORE.{missing}", None, 10003, 400)
    js.refused(f"STREAM.RESTORE.{missing}", {"config": {"name": stream}}, 10056, 400)
    found = js.got(f"STREAM.RESTORE.{missing}", {"config": {"name": missing}})
    js.main.request(found["deliver_subject"], b"this is no backup of a stream")
    answer = js.main.request(found["deliver_subject"])
    if answer.status != 503:  # else the first answer was the error
        js.is_error(answer.json, 10062, 500)
    js.refused(f"STREAM.INFO.{missing}", None, 10059, 404)
    js.ask(f"STREAM.DELETE.{missing}")  # nats-server keeps its name


def n2_snapshot_of_no_stream(js: Visit) -> None:
    """404: there is none."""
    js.refused(f"STREAM.SNAPSHOT.{js.name()}", {"deliver_subject": "x"}, 10059, 404)


@needs("cluster")
def n2_peer_remove(js: Visit) -> None:
    """A node that has a copy must be named."""
    stream = js.stream(num_replicas=3)
    js.refused(f"STREAM.PEER.REMOVE.{stream}", {"peer": "nobody"}, 10040, 400)
    js.refused(f"STREAM.PEER.REMOVE.{stream}", None, 10003, 400)


def n2_persist_mode(js: Visit) -> None:
    """Who asks for less than safe gets it of a file with one copy, and for ever."""
    name = js.name()
    body = {"name": name, "subjects": [name], "persist_mode": "async"}
    for more in ({"storage": "memory"}, {"num_replicas": 3}, {"allow_atomic": True}):
        js.refused(f"STREAM.CREATE.{name}", body | more, 10052, 500)
    assert js.created(body)["config"]["persist_mode"] == "async"
    js.fill(name, "a")
    js.refused(f"STREAM.UPDATE.{name}", body | {"persist_mode": "default"}, 10052, 500)


def n2_counter_configurations(js: Visit) -> None:
    """What does not go with counters, and that a stream is one for ever."""
    name = js.name()
    body = {"name": name, "subjects": [name], "allow_msg_counter": True}
    for more in (
        {"discard": "new"},
        {"allow_msg_ttl": True},
        {"retention": "workqueue"},
        {"retention": "interest"},
    ):
        js.refused(f"STREAM.CREATE.{name}", body | more, 10052, 500)
    assert js.created(body)["config"]["allow_msg_counter"] is True
    js.refused(f"STREAM.UPDATE.{name}", body | {"allow_msg_counter": False}, 10052, 500)


def n2_pedantic(js: Visit) -> None:
    """A pedantic request is refused where another one is set right."""
    name = js.name()
    body = {"name": name, "subjects": [name], "max_msgs": -5}
    js.refused(f"STREAM.CREATE.{name}", body | {"pedantic": True}, 10157, 400)
    assert js.created(body)["config"]["max_msgs"] == -1


# Streams.


def n2_stream_create_shows_defaults(js: Visit) -> None:
    """Everything that was not said is shown as it is meant."""
    name = js.name()
    found = js.created({"name": name})
    assert found["type"] == f"{TYPE}stream_create_response"
    assert found["did_create"] is True
    assert found["created"].endswith("Z")
    assert found["ts"].endswith("Z")
    config = {key: value for key, value in found["config"].items() if key != "metadata"}
    # Of the newest options not all servers tell.
    for option in ("allow_msg_counter", "allow_msg_schedules", "allow_atomic", "allow_batched"):
        assert not config.pop(option, False)
    assert config == {
        "name": name,
        "subjects": [name],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "discard": "old",
        "storage": "file",
        "num_replicas": 1,
        "duplicate_window": 120 * S,
        "compression": "none",
        "allow_direct": False,
        "mirror_direct": False,
        "sealed": False,
        "deny_delete": False,
        "deny_purge": False,
        "allow_rollup_hdrs": False,
        "allow_msg_ttl": False,
        "consumer_limits": {},
    }
    state = found["state"]
    assert state == {
        "messages": 0,
        "bytes": 0,
        "first_seq": 0,
        "first_ts": "0001-01-01T00:00:00Z",
        "last_seq": 0,
        "last_ts": "0001-01-01T00:00:00Z",
        "consumer_count": 0,
    }
    assert found["cluster"]["leader"]


def n2_stream_create_again(js: Visit) -> None:
    """The same once more is answered as if it were new; another one of that name is refused."""
    name = js.name()
    config = {"name": name, "subjects": [name]}
    js.created(config)
    js.fill(name, "a")
    assert js.created(config)["state"]["messages"] == 1
    js.refused(f"STREAM.CREATE.{name}", config | {"max_msgs": 5}, 10058, 400)


def n2_stream_create_name_in_the_subject(js: Visit) -> None:
    """It must be that of the configuration."""
    name = js.name()
    js.refused(f"STREAM.CREATE.{name}", {"name": f"{name}2", "subjects": [name]}, 10056, 400)
    js.refused(f"STREAM.UPDATE.{name}", {"name": f"{name}2", "subjects": [name]}, 10056, 400)


def n2_stream_create_subjects_of_another(js: Visit) -> None:
    """No two streams take the same subject."""
    stream = js.stream()
    for subject in (stream, f"{stream}.a", f"{stream}.>", "*", ">"):
        name = js.name()
        body = {"name": name, "subjects": [subject]}
        error = js.ask(f"STREAM.CREATE.{name}", body).get("error", {})
        js.heard.append(f"{subject[:1]}: {error.get('err_code')} {error.get('description')}")
        assert error.get("err_code") in (10065, 10052), f"{subject}: {error}"


def n2_stream_update(js: Visit) -> None:
    """What may change does, and is shown."""
    name = js.stream(max_msgs=10)
    config = js.info(name)["config"]
    found = js.got(f"STREAM.UPDATE.{name}", config | {"max_msgs": 5, "description": "less"})
    assert found["type"] == f"{TYPE}stream_update_response"
    assert (found["config"]["max_msgs"], found["config"]["description"]) == (5, "less")
    found = js.got(f"STREAM.UPDATE.{name}", found["config"] | {"max_consumers": 3})
    assert found["config"]["max_consumers"] == 3
    config = found["config"] | {"subjects": [f"{name}.only"]}
    assert js.got(f"STREAM.UPDATE.{name}", config)["config"]["subjects"] == [f"{name}.only"]
    assert js.publish(f"{name}.only")["seq"] == 1


def n2_stream_update_cuts(js: Visit) -> None:
    """A smaller limit holds at once."""
    name = js.stream()
    js.fill(name, *"abcde")
    config = js.info(name)["config"]
    js.got(f"STREAM.UPDATE.{name}", config | {"max_msgs": 2})
    js.until(lambda: js.state(name)["messages"] == 2, "there are more than two")
    assert js.state(name)["first_seq"] == 4


def n2_stream_update_what_is_fixed(js: Visit) -> None:
    """Storage, retention to or from a work queue, denials, sealing."""
    name = js.stream(deny_delete=True, deny_purge=True)
    config = js.info(name)["config"]

    def case(number: int = 10052, **change: object) -> tuple[dict[str, object], int]:
        return config | change, number

    js.each_is_refused(
        lambda _: f"STREAM.UPDATE.{name}",
        {
            "storage": case(storage="memory"),
            "retention": case(retention="workqueue"),
            "deny_delete": case(deny_delete=False),
            "deny_purge": case(deny_purge=False),
        },
    )
    js.got(f"STREAM.UPDATE.{name}", config | {"sealed": True})
    js.refused(f"STREAM.UPDATE.{name}", config | {"sealed": False}, 10052)


def n2_stream_update_retention(js: Visit) -> None:
    """Between limits and interest it may change."""
    name = js.stream()
    config = js.info(name)["config"]
    found = js.got(f"STREAM.UPDATE.{name}", config | {"retention": "interest"})
    assert found["config"]["retention"] == "interest"


def n2_stream_that_is_not_there(js: Visit) -> None:
    """404 with 10059, whatever is asked of it."""
    name = js.name()
    for verb, body in (
        ("INFO", None),
        ("DELETE", None),
        ("PURGE", None),
        ("UPDATE", {"name": name, "subjects": [name]}),
        ("MSG.GET", {"seq": 1}),
        ("MSG.DELETE", {"seq": 1}),
    ):
        js.refused(f"STREAM.{verb}.{name}", body, 10059, 404)
    js.refused(f"CONSUMER.NAMES.{name}", None, 10059, 404)
    js.refused(f"CONSUMER.INFO.{name}.x", None, 10059, 404)
    js.refused(f"CONSUMER.DELETE.{name}.x", None, 10059, 404)
    body = {"stream_name": name, "config": {"durable_name": "x"}}
    js.refused(f"CONSUMER.DURABLE.CREATE.{name}.x", body, 10059, 404)


def n2_consumer_list_of_no_stream(js: Visit) -> None:
    """404 with 10059, too."""
    js.refused(f"CONSUMER.LIST.{js.name()}", None, 10059, 404)


def n2_stream_info_state(js: Visit) -> None:
    """Messages, bytes, sequences, times, subjects, what was deleted, consumers."""
    name = js.stream()
    js.fill(f"{name}.a", "1", "2")
    js.fill(f"{name}.b", "3", "4")
    js.got(f"STREAM.MSG.DELETE.{name}", {"seq": 2})
    js.consumer(name)
    state = js.state(name)
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (3, 1, 4)
    assert (state["num_subjects"], state["num_deleted"], state["consumer_count"]) == (2, 1, 1)
    assert state["bytes"] > 0
    assert "subjects" not in state
    assert "deleted" not in state
    # As points in time: a fraction is written without its last zeros. Ours are in milliseconds.
    assert datetime.fromisoformat(state["first_ts"]) <= datetime.fromisoformat(state["last_ts"])
    assert js.info(name, deleted_details=True)["state"]["deleted"] == [2]


def n2_stream_info_of_subjects(js: Visit) -> None:
    """With a filter it tells how many messages each subject has."""
    name = js.stream()
    js.fill(f"{name}.a.x", "1", "2")
    js.fill(f"{name}.b.x", "3")
    js.fill(f"{name}.b.y", "4")
    found = js.info(name, subjects_filter=f"{name}.*.x")
    assert found["state"]["subjects"] == {f"{name}.a.x": 2, f"{name}.b.x": 1}
    assert (found["total"], found["offset"], found["limit"]) == (2, 0, 100_000)
    assert len(js.info(name, subjects_filter=">")["state"]["subjects"]) == 3


def n2_stream_names(js: Visit) -> None:
    """All of them, or those that have a subject; in pages."""
    stream = js.stream()
    for verb in ("STREAM.NAMES", "STREAM.LIST"):
        found = js.got(verb)
        kind = "stream_names" if verb == "STREAM.NAMES" else "stream_list"
        assert found["type"] == f"{TYPE}{kind}_response"
        assert found["total"] >= 1
        assert found["offset"] == 0
        assert found["limit"] == (1024 if verb == "STREAM.NAMES" else 256)
    assert js.got("STREAM.NAMES", {"subject": f"{stream}.x"})["streams"] == [stream]
    assert js.got("STREAM.NAMES", {"subject": f"{stream}.*"})["streams"] == [stream]
    found = js.got("STREAM.NAMES", {"subject": js.name("nobody")})
    assert (found["total"], found["streams"] or []) == (0, [])
    found = js.got("STREAM.NAMES", {"subject": stream, "offset": 1})
    assert found["streams"] or [] == []
    (only,) = js.got("STREAM.LIST", {"subject": stream})["streams"]
    assert only["config"]["name"] == stream
    assert only["state"]["messages"] == 0


def n2_stream_delete(js: Visit) -> None:
    """With all that is in it; its subjects are free again."""
    name = js.stream()
    js.fill(name, "a")
    found = js.got(f"STREAM.DELETE.{name}")
    assert found["type"] == f"{TYPE}stream_delete_response"
    assert found["success"] is True
    js.refused(f"STREAM.INFO.{name}", None, 10059, 404)
    assert js.main.request(name, b"x").status == 503
    js.created({"name": name, "subjects": [name]})
    assert js.fill(name, "a") == [1]


def n2_stream_purge(js: Visit) -> None:
    """All; sequences go on where they were."""
    name = js.stream()
    js.fill(name, "a", "b")
    found = js.got(f"STREAM.PURGE.{name}")
    assert found["type"] == f"{TYPE}stream_purge_response"
    assert (found["success"], found["purged"]) == (True, 2)
    state = js.state(name)
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 3, 2)
    assert js.fill(name, "c") == [3]


def n2_stream_purge_some(js: Visit) -> None:
    """Of a subject, below a sequence, all but the last so many."""
    name = js.stream()
    for number, subject in enumerate("abababab"):
        js.fill(f"{name}.{subject}", str(number))
    assert js.got(f"STREAM.PURGE.{name}", {"seq": 3})["purged"] == 2
    assert js.got(f"STREAM.PURGE.{name}", {"filter": f"{name}.a", "keep": 2})["purged"] == 1
    assert js.got(f"STREAM.PURGE.{name}", {"filter": f"{name}.b", "seq": 6})["purged"] == 1
    found = js.info(name, subjects_filter=">", deleted_details=True)["state"]
    assert found["subjects"] == {f"{name}.a": 2, f"{name}.b": 2}
    assert js.got(f"STREAM.PURGE.{name}", {"keep": 1})["purged"] == 3
    assert js.state(name)["first_seq"] == 8
    js.refused(f"STREAM.PURGE.{name}", {"keep": 1, "seq": 2}, 10003, 400)


def n2_stream_purge_denied(js: Visit) -> None:
    """Where it is not allowed, or the stream is sealed."""
    name = js.stream(deny_purge=True)
    js.fill(name, "a")
    js.refused(f"STREAM.PURGE.{name}", None, 10110)
    other = js.stream()
    js.got(f"STREAM.UPDATE.{other}", js.info(other)["config"] | {"sealed": True})
    js.refused(f"STREAM.PURGE.{other}", None, 10109)


def n2_stream_msg_get(js: Visit) -> None:
    """By its sequence; as the last of a subject; as the next of a subject."""
    name = js.stream()
    js.publish(f"{name}.a", b"1", Colour="blue")
    js.fill(f"{name}.b", "2", "3")
    js.fill(f"{name}.a", "4")
    found = js.got(f"STREAM.MSG.GET.{name}", {"seq": 1})
    assert found["type"] == f"{TYPE}stream_msg_get_response"
    message = found["message"]
    assert (message["subject"], message["seq"], text(message["data"])) == (f"{name}.a", 1, "1")
    assert text(message["hdrs"]) == "NATS/1.0\r\nColour: blue\r\n\r\n"
    assert message["time"].endswith("Z")
    bare = js.got(f"STREAM.MSG.GET.{name}", {"seq": 1, "no_hdr": True})["message"]
    assert message == bare | {"hdrs": message["hdrs"]}
    assert "hdrs" not in bare

    def at(**asked: object) -> int:
        return js.got(f"STREAM.MSG.GET.{name}", asked)["message"]["seq"]

    assert at(last_by_subj=f"{name}.b") == 3
    assert at(last_by_subj=f"{name}.*") == 4
    assert at(next_by_subj=f"{name}.b") == 2
    assert at(next_by_subj=f"{name}.a", seq=2) == 4
    assert at(next_by_subj=">", seq=3) == 3


def n2_stream_msg_get_nothing(js: Visit) -> None:
    """404 with 10037; a request that says nothing, or too much: 10003."""
    name = js.stream()
    js.fill(name, "a")
    get = f"STREAM.MSG.GET.{name}"
    js.refused(get, {"seq": 2}, 10037, 404)
    js.refused(get, {"last_by_subj": f"{name}.x"}, 10037, 404)
    js.refused(get, {"next_by_subj": name, "seq": 2}, 10037, 404)
    js.refused(get, None, 10003, 400)
    js.refused(get, {}, 10003, 400)
    js.refused(get, {"seq": 1, "last_by_subj": name}, 10003, 400)
    js.refused(get, {"last_by_subj": name, "next_by_subj": name}, 10003, 400)
    js.refused(get, {"seq": 1, "no_hdr": "yes"}, 10025, 400)
    js.refused(get, {"start_time": "noon"}, 10025, 400)


def n2_stream_msg_delete(js: Visit) -> None:
    """One message; not twice, and not where it is denied."""
    name = js.stream()
    js.fill(name, "a", "b", "c")
    delete = f"STREAM.MSG.DELETE.{name}"
    found = js.got(delete, {"seq": 1, "no_erase": True})
    assert found["type"] == f"{TYPE}stream_msg_delete_response"
    assert found["success"] is True
    js.refused(f"STREAM.MSG.GET.{name}", {"seq": 1}, 10037)
    js.got(delete, {"seq": 3})
    js.refused(delete, {"seq": 3}, 10043, 400)
    for outside in (1, 7, None):
        js.refused(delete, {"seq": outside}, 10057, 500)
    js.refused(delete, None, 10003, 400)
    js.refused(delete, {"seq": -1}, 10025, 400)
    in_memory = js.stream(storage="memory")
    js.refused(f"STREAM.MSG.DELETE.{in_memory}", {"seq": 7}, 10043, 400)
    denied = js.stream(deny_delete=True)
    js.fill(denied, "a")
    js.refused(f"STREAM.MSG.DELETE.{denied}", {"seq": 1}, 10057)
    js.got(f"STREAM.UPDATE.{name}", js.info(name)["config"] | {"sealed": True})
    js.refused(delete, {"seq": 2}, 10109)


@needs("cluster")
def n2_stream_leader_stepdown(js: Visit) -> None:
    """Another node leads it afterwards, and all is there."""
    name = js.stream(num_replicas=3)
    js.fill(name, "a")
    before = js.info(name)["cluster"]["leader"]
    found = js.got(f"STREAM.LEADER.STEPDOWN.{name}")
    assert found["type"] == f"{TYPE}stream_leader_stepdown_response"
    assert found["success"] is True

    def leader() -> str:
        answer = js.ask(f"STREAM.INFO.{name}")
        return answer.get("cluster", {}).get("leader") or before

    js.until(lambda: leader() != before, "the same node leads it")
    assert js.state(name)["messages"] == 1
    assert js.fill(name, "b") == [2]


@needs("cluster")
def n2_stream_read_while_its_leader_changes(js: Visit) -> None:
    """Who asks waits a moment, and is answered."""
    name = js.stream(num_replicas=3)
    js.fill(name, "a")
    for _ in range(3):
        js.got(f"STREAM.LEADER.STEPDOWN.{name}")
        for _ in range(20):
            assert js.got(f"STREAM.MSG.GET.{name}", {"seq": 1})["message"]["seq"] == 1


@needs("cluster")
def n2_stream_replicas(js: Visit) -> None:
    """Its info names the leader, and the others with how far they are."""
    name = js.stream(num_replicas=3)
    js.fill(name, "a")

    def cluster() -> dict[str, list[dict[str, object]]]:
        return js.info(name)["cluster"]

    js.until(lambda: all(each["current"] for each in cluster()["replicas"]), "one is behind")
    found = cluster()
    assert found["leader"]
    assert len(found["replicas"]) == 2
    for each in found["replicas"]:
        assert each["name"] != found["leader"]
        assert "active" in each


@needs("cluster")
def n2_any_node_answers(js: Visit) -> None:
    """A request, a publish, a pull: at whichever node the client is."""
    name = js.stream()
    consumer = js.consumer(name)
    for node in range(3):
        client = js.client(node)
        js.until(
            lambda client=client: client.request(f"$JS.API.STREAM.INFO.{name}").status == 0,
            "nobody answers",
        )
        assert client.request(f"$JS.API.STREAM.INFO.{name}").json["config"]["name"] == name
        js.until(
            lambda client=client, node=node: (
                client.request(name, b"x", {"Nats-Msg-Id": node}).status == 0
            ),
            "it is not stored",
        )
        inbox = client.inbox()
        client.tell(f"$JS.API.CONSUMER.MSG.NEXT.{name}.{consumer}", b"1", reply=inbox.subject)
        assert inbox.body() == b"x"


# Consumers.


def n2_consumer_names(js: Visit) -> None:
    """All consumers of a stream, in pages, in their order."""
    stream = js.stream()
    names = sorted(js.consumer(stream, name) for name in ("b", "a", "c"))
    found = js.got(f"CONSUMER.NAMES.{stream}")
    assert found["type"] == f"{TYPE}consumer_names_response"
    assert sorted(found["consumers"]) == names
    assert (found["total"], found["offset"], found["limit"]) == (3, 0, 1024)
    assert len(js.got(f"CONSUMER.NAMES.{stream}", {"offset": 2})["consumers"]) == 1
    found = js.got(f"CONSUMER.LIST.{stream}")
    assert found["type"] == f"{TYPE}consumer_list_response"
    assert sorted(each["name"] for each in found["consumers"]) == names
    assert (found["total"], found["offset"], found["limit"]) == (3, 0, 256)


def n2_consumer_that_is_not_there(js: Visit) -> None:
    """404 with 10014."""
    stream = js.stream()
    js.refused(f"CONSUMER.INFO.{stream}.x", None, 10014, 404)
    js.refused(f"CONSUMER.DELETE.{stream}.x", None, 10014, 404)
    js.refused(f"CONSUMER.PAUSE.{stream}.x", {}, 10014, 404)


def n2_consumer_delete(js: Visit) -> None:
    """It is gone, with what it knew."""
    stream = js.stream()
    js.fill(stream, "a")
    consumer = js.consumer(stream)
    js.fetch(stream, consumer, 1)
    found = js.got(f"CONSUMER.DELETE.{stream}.{consumer}")
    assert found["type"] == f"{TYPE}consumer_delete_response"
    assert found["success"] is True
    assert js.state(stream)["consumer_count"] == 0
    js.consumer(stream, consumer)
    assert js.fetch(stream, consumer, 1)[0].body == b"a"


def n2_consumer_create_shows_defaults(js: Visit) -> None:
    """Everything that was not said is shown as it is meant."""
    stream = js.stream()
    found = js.put_consumer(stream, "one")
    assert found["type"] == f"{TYPE}consumer_create_response"
    config = {key: value for key, value in found["config"].items() if key != "metadata"}
    assert config == {
        "durable_name": "one",
        "name": "one",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 30 * S,
        "max_deliver": -1,
        "replay_policy": "instant",
        "max_waiting": 512,
        "max_ack_pending": 1000,
        "num_replicas": 0,
    }


def n2_consumer_create_again(js: Visit) -> None:
    """The same once more changes nothing."""
    stream = js.stream()
    js.fill(stream, "a", "b")
    consumer = js.consumer(stream)
    js.fetch(stream, consumer, 1)
    assert js.put_consumer(stream, consumer)["delivered"]["consumer_seq"] == 1
    assert js.fetch(stream, consumer, 1)[0].body == b"b"


def n2_consumer_create_names_in_the_subject(js: Visit) -> None:
    """What the subject of the request says must be what its body says."""
    stream = js.stream()

    def body(**config: object) -> dict[str, object]:
        return {"stream_name": stream, "config": {"ack_policy": "explicit", **config}}

    js.refused(f"CONSUMER.DURABLE.CREATE.{stream}.a", body(durable_name="b"), 10017, 400)
    js.refused(f"CONSUMER.DURABLE.CREATE.{stream}.a", body(), 10018, 400)
    js.refused(f"CONSUMER.CREATE.{stream}", body(durable_name="a"), 10020, 400)
    js.refused(f"CONSUMER.CREATE.{stream}.a", body(durable_name="b"), 10017, 400)
    elsewhere = body(durable_name="a") | {"stream_name": f"{stream}x"}
    js.refused(f"CONSUMER.DURABLE.CREATE.{stream}.a", elsewhere, 10056, 400)


def n2_consumer_create_two_names(js: Visit) -> None:
    """A durable name and another name: 10132."""
    stream = js.stream()
    config = {"durable_name": "a", "name": "b"}
    body = {"stream_name": stream, "config": config}
    js.refused(f"CONSUMER.CREATE.{stream}.a", body, 10132, 400)


def n2_consumer_create_without_a_configuration(js: Visit) -> None:
    """Everything is as by default."""
    stream = js.stream()
    found = js.got(f"CONSUMER.CREATE.{stream}.a", {"stream_name": stream})
    assert found["name"] == "a"
    assert found["config"]["ack_policy"] == "none"


def n2_consumer_max_of_a_stream(js: Visit) -> None:
    """One more than the stream may have is refused."""
    stream = js.stream(max_consumers=1)
    js.consumer(stream)
    js.is_error(js.put_consumer(stream, "second"), 10026, 400)
