"""N2, advisories of streams and consumers; D02 and D17 have those of messages."""

from __future__ import annotations

from tests.acceptance.jetstream.visit import MS, Visit
from tests.acceptance.rows.suite import needs

ADVISORY = "$JS.EVENT.ADVISORY"
TYPE = "io.nats.jetstream.advisory.v1."


def n2_advisories_of_streams(js: Visit) -> None:
    """Made, changed, deleted."""
    name = js.name()
    told = js.main.subscribe(f"{ADVISORY}.STREAM.*.{name}")
    config = js.created({"name": name, "subjects": [name]})["config"]
    js.got(f"STREAM.UPDATE.{name}", config | {"max_msgs": 5})
    js.got(f"STREAM.DELETE.{name}")
    found = told.some(3)
    kinds = [each.subject.split(".")[4] for each in found]
    assert sorted(kinds) == ["CREATED", "DELETED", "UPDATED"]
    about = {kind: each.json for kind, each in zip(kinds, found, strict=True)}
    assert all(each["type"] == f"{TYPE}stream_action" for each in about.values())
    assert all(each["stream"] == name for each in about.values())
    assert about["CREATED"]["action"] == "create"
    assert about["UPDATED"]["action"] == "modify"
    assert about["DELETED"]["action"] == "delete"
    assert all(each["id"] and each["timestamp"].endswith("Z") for each in about.values())


def n2_advisories_of_consumers(js: Visit) -> None:
    """Made and deleted."""
    stream = js.stream()
    told = js.main.subscribe(f"{ADVISORY}.CONSUMER.*.{stream}.*")
    consumer = js.consumer(stream)
    js.got(f"CONSUMER.DELETE.{stream}.{consumer}")
    found = told.some(2)
    assert sorted(each.subject.split(".")[4] for each in found) == ["CREATED", "DELETED"]
    for each in found:
        assert each.json["type"] == f"{TYPE}consumer_action"
        assert (each.json["stream"], each.json["consumer"]) == (stream, consumer)


def n2_advisories_of_the_api(js: Visit) -> None:
    """Each request, with its answer."""
    told = js.main.subscribe(f"{ADVISORY}.API")
    stream = js.stream()
    while (about := told.next().json)["subject"] != f"$JS.API.STREAM.CREATE.{stream}":
        pass
    assert about["type"] == "io.nats.jetstream.advisory.v1.api_audit"
    assert stream in about["response"]


def n2_advisories_are_stored(js: Visit) -> None:
    """By a stream that has their subjects: so messages that died are found."""
    stream, kept = js.stream(), js.name("kept")
    subject = f"{ADVISORY}.CONSUMER.MAX_DELIVERIES.{stream}"
    js.created({"name": kept, "subjects": [f"{subject}.*"]})
    js.fill(stream, "a")
    consumer = js.consumer(stream, max_deliver=1, ack_wait=200 * MS)
    js.fetch(stream, consumer, 1)
    js.pull(stream, consumer, batch=1, expires=60_000 * MS)  # so its time is looked at
    found = js.fetch(kept, js.consumer(kept), 1)[0]
    assert found.subject == f"{subject}.{consumer}"
    assert found.json["type"] == f"{TYPE}max_deliver"
    assert (found.json["stream"], found.json["stream_seq"]) == (stream, 1)


@needs("cluster")
def n2_advisories_of_leaders(js: Visit) -> None:
    """Who leads a stream now."""
    stream = js.stream(num_replicas=3)
    told = js.main.subscribe(f"{ADVISORY}.STREAM.LEADER_ELECTED.{stream}")
    js.got(f"STREAM.LEADER.STEPDOWN.{stream}")
    about = told.next().json
    assert about["type"] == f"{TYPE}stream_leader_elected"
    assert about["stream"] == stream
    assert about["leader"]
    assert len(about["replicas"]) == 3
