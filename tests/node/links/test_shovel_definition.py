"""What a shovel's parameter may say: each wrong field is named."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.types import GroupId
from node.errors import Refused
from node.links.amqp import translated
from node.links.definition import is_local, without_password
from node.links.link import LinkKey
from node.links.ownership import anchor_of
from node.links.shovel import AmqpDestination, AmqpSource, parse
from tests.machine.catalog_world import Book

GOOD: dict[str, Any] = {
    "src-uri": "amqp://",
    "src-queue": "a",
    "dest-uri": "amqp://",
    "dest-queue": "b",
}
NATS: dict[str, Any] = {
    "src-protocol": "nats",
    "src-uri": "nats://there",
    "src-stream": "s",
    "src-consumer": "c",
    "dest-uri": "amqp://",
}


def test_a_shovel_has_rabbitmqs_defaults():
    shovel = parse("s", GOOD)

    assert isinstance(shovel.source, AmqpSource)
    assert isinstance(shovel.destination, AmqpDestination)
    assert (shovel.source.queue, shovel.destination.queue) == ("a", "b")
    assert (shovel.ack_mode, shovel.prefetch, shovel.delete_after) == ("on-confirm", 1000, "never")


def test_all_fields_of_rabbitmqs_are_read():
    given = {
        "src-protocol": "amqp091",
        "src-uri": ["amqp://one", "amqps://two:5671/v"],
        "src-exchange": "x",
        "src-exchange-key": "k",
        "src-queue-args": {"x-queue-type": "quorum"},
        "src-consumer-args": {"x-priority": 5},
        "src-prefetch-count": 10,
        "src-delete-after": 7,
        "src-predeclared": False,
        "dest-protocol": "amqp091",
        "dest-uri": "amqp://",
        "dest-exchange": "y",
        "dest-exchange-key": "",
        "dest-queue-args": {},
        "dest-publish-properties": {"delivery_mode": 2, "headers": {"a": 1}, "message_type": "t"},
        "dest-add-forward-headers": True,
        "dest-add-timestamp-header": True,
        "dest-predeclared": True,
        "ack-mode": "on-publish",
        "reconnect-delay": 0.5,
    }
    shovel = parse("s", given)

    assert shovel.source.uris == ("amqp://one", "amqps://two:5671/v")
    assert isinstance(shovel.destination, AmqpDestination)
    assert shovel.destination.exchange_key == ""
    assert shovel.destination.properties["type"] == "t"
    assert (shovel.delete_after, shovel.reconnect_delay_s) == (7, 0.5)
    assert shovel.forward_headers
    assert shovel.timestamp_header
    older = {"add-forward-headers": True, "prefetch-count": 3, "delete-after": "queue-length"}
    assert parse("s", GOOD | older).prefetch == 3


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"src-uri": None}, '"src-uri" not found'),
    ({"src-uri": 5}, "src-uri must be a URI with amqp:// or amqps://"),
    ({"src-uri": []}, "src-uri must be a URI, or a list"),
    ({"src-uri": "http://a"}, "src-uri must be"),
    ({"src-uri": "amqp://a:b"}, "src-uri must be"),
    ({"dest-uri": ["amqp://", "x"]}, "dest-uri must be"),
    ({"src-queue": None}, "'src-exchange' or 'src-queue'"),
    ({"src-exchange": "x"}, "Cannot specify src-queue and src-exchange"),
    ({"dest-exchange": "x"}, "Cannot specify dest-queue and dest-exchange"),
    ({"src-queue": 5}, "src-queue must be text"),
    ({"dest-queue": "x" * 256}, "dest-queue must be text"),
    ({"src-queue-args": 5}, "src-queue-args must be an object"),
    ({"src-consumer-args": [1]}, "src-consumer-args must be an object"),
    ({"src-prefetch-count": 0}, "src-prefetch-count must be"),
    ({"src-prefetch-count": 1, "prefetch-count": 1}, "Cannot specify src-prefetch-count and"),
    ({"src-delete-after": "soon"}, "src-delete-after must be never, queue-length or a number"),
    ({"src-delete-after": 1, "ack-mode": "no-ack"}, "src-delete-after must be never"),
    ({"ack-mode": "maybe"}, "ack-mode must be one of on-confirm, on-publish, no-ack"),
    ({"ack-mode": ["no-ack"]}, "ack-mode must be one of"),
    ({"reconnect-delay": -1}, "reconnect-delay must be"),
    ({"reconnect-delay": "5"}, "reconnect-delay must be"),
    ({"dest-publish-properties": {"colour": "red"}}, "dest-publish-properties must be a map"),
    ({"dest-publish-properties": {"priority": 256}}, "priority in dest-publish-properties"),
    ({"dest-publish-properties": {"app_id": 1}}, "app_id in dest-publish-properties"),
    ({"dest-add-forward-headers": "yes"}, "dest-add-forward-headers must be true or false"),
    ({"dest-add-timestamp-header": 1}, "dest-add-timestamp-header must be true or false"),
    ({"src-protocol": "amqp10"}, "src-protocol amqp10 is not supported"),
    ({"dest-protocol": "mqtt"}, "dest-protocol must be one of amqp091, nats"),
    ({"dest-protocol": "nats"}, "dest-uri must be a URI with nats:// or tls://"),
    ({"src-colour": "red"}, "a shovel has no field 'src-colour'"),
    (NATS | {"src-queue": None, "dest-queue": None, "src-stream": None}, '"src-stream" not found'),
]


@pytest.mark.parametrize(("change", "reason"), WRONG)
def test_a_wrong_field_is_named(change: dict[str, Any], reason: str):
    given = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(Refused) as refused:
        parse("s", given)
    assert reason in refused.value.reason


def test_a_shovel_that_is_no_object_is_refused():
    with pytest.raises(Refused, match="must be an object"):
        parse("s", [GOOD])


def test_passwords_are_not_shown():
    assert without_password("amqp://u:p@h:1/v?heartbeat=5") == "amqp://u@h:1/v"
    assert without_password("amqp://") == "amqp://"
    assert "p" not in without_password("u:p@h")
    with pytest.raises(Refused) as refused:
        parse("s", GOOD | {"src-uri": "http://u:secret@h"})
    assert "secret" not in refused.value.reason


def test_a_uri_without_a_host_is_this_cluster():
    assert is_local("amqp://")
    assert is_local("amqp:///v")
    assert not is_local("amqp://h/v")
    assert not is_local("nats://")


def test_what_rabbitmqs_uris_ask_for_is_understood():
    there = "amqps://h/v?cacertfile=/ca&verify=verify_none&heartbeat=3&channel_max=9"
    assert translated(there) == "amqps://h/v?cafile=%2Fca&heartbeat=3&no_verify_ssl=1"


def test_a_link_is_anchored_to_its_queue_or_else_spread_over_the_default_groups():
    book = Book(default_groups=3)
    machine = book.machine
    book.queue("a")
    info = machine.queue("/", "a")
    assert info is not None
    groups = {group.id for group in machine.groups() if group.default}
    keys = [LinkKey("shovel", "/", f"s{number}") for number in range(50)]

    assert anchor_of(machine, keys[0], [("/", "none"), ("/", "a")]) == info.group
    spread = {anchor_of(machine, key, [("/", "none")]) for key in keys}
    assert spread == groups
    assert anchor_of(Book(default_groups=0).machine, keys[0]) == GroupId(0)
