"""What administrators say: checked in full, kept as it is, and gone with what it was about."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest

from cluster.machine import catalog_admin
from cluster.machine import commands as c
from cluster.machine.effects import QueueRemoved
from cluster.machine.replies import BAD_ARGUMENT, LIMIT_REACHED, NO_USER, NO_VHOST, PROTECTED_VHOST
from cluster.types import GroupId, QueueId
from tests.machine.catalog_world import Book

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
TOPIC = {"write": ".*", "read": "^a"}
POLICY = {"pattern": "^q", "definition": {"max-length": 5}}

#: One of each table, and how it is kept.
GOOD: list[tuple[str, list[str], dict[str, Any], dict[str, Any]]] = [
    ("vhosts", ["v"], {}, {"description": "", "tags": [], "default_queue_type": None}),
    (
        "vhosts",
        ["v"],
        {"description": "ours", "tags": ["a"], "default_queue_type": "quorum"},
        {"description": "ours", "tags": ["a"], "default_queue_type": "quorum"},
    ),
    ("users", ["u"], {}, {"password_hash": "", "hashing_algorithm": "scrypt", "tags": []}),
    (
        "users",
        ["u"],
        {"hashing_algorithm": "rabbit_password_hashing_sha512", "password_hash": "aGFzaA=="},
        {
            "hashing_algorithm": "rabbit_password_hashing_sha512",
            "password_hash": "aGFzaA==",
            "tags": [],
        },
    ),
    ("permissions", ["guest", "/"], ALL, ALL),
    ("topic_permissions", ["guest", "/", ""], TOPIC, TOPIC),
    ("policies", ["/", "p"], POLICY, {**POLICY, "apply_to": "all", "priority": 0}),
    (
        "operator_policies",
        ["/", "p"],
        {**POLICY, "apply_to": "queues", "priority": -7},
        {**POLICY, "apply_to": "queues", "priority": -7},
    ),
    ("vhost_limits", ["/"], {"max-queues": 5}, {"max-queues": 5}),
    ("user_limits", ["guest"], {"max-channels": -1}, {"max-channels": -1}),
    ("parameters", ["shovel", "/", "s"], {"value": {"a": [1]}}, {"value": {"a": [1]}}),
    ("parameters", ["", "", "cluster_name"], {"value": "ours"}, {"value": "ours"}),
]


def test_a_new_cluster_has_a_vhost_and_a_user_with_a_known_password():
    machine = Book().machine

    assert list(machine.entries("vhosts")) == [("/",)]
    assert machine.entry("permissions", ("guest", "/")) == ALL
    guest = machine.entry("users", ("guest",))
    assert guest is not None
    assert guest["tags"] == ["administrator"]
    assert guest["hashing_algorithm"] == "scrypt"
    stored = base64.b64decode(guest["password_hash"])
    found = hashlib.scrypt(b"guest", salt=stored[:16], n=2**14, r=8, p=1, dklen=32)
    assert found == stored[16:]


@pytest.mark.parametrize(("table", "key", "value", "kept"), GOOD)
def test_an_entry_is_kept_with_all_its_fields_until_it_is_dropped(
    table: str, key: list[str], value: dict[str, Any], kept: dict[str, Any]
):
    book = Book()
    new = int(tuple(key) not in book.machine.entries(table))

    book.does(c.PutEntry(table, key, value), new)
    book.does(c.PutEntry(table, key, value), 0)
    for machine in (book.machine, book.reopened()):
        assert machine.entry(table, tuple(key)) == kept
        assert machine.entries(table)[tuple(key)] == kept
    book.does(c.DropEntry(table, key))
    book.does(c.DropEntry(table, key), 0)

    assert book.machine.entry(table, tuple(key)) is None


@pytest.mark.parametrize(
    ("table", "key", "value", "words"),
    [
        ("towns", ["x"], {}, "no table 'towns'; there are vhosts, users, permissions"),
        ("vhosts", [], {}, "a key of vhosts is vhost"),
        ("vhosts", ["a", "b"], {}, "a key of vhosts is vhost"),
        ("vhosts", [""], {}, "the vhost must be non-empty text of at most 255 bytes"),
        ("vhosts", [5], {}, "the vhost must be non-empty text"),
        ("vhosts", [["a"]], {}, "the vhost must be non-empty text"),
        ("vhosts", ["v"], {"color": 1}, "vhosts hold description, tags, default_queue_type; not"),
        ("vhosts", ["v"], {5: 1}, "not 5"),
        ("vhosts", ["v"], {"description": 1}, "description must be text of at most 4096 bytes"),
        ("vhosts", ["v"], {"tags": "a"}, "tags must be a list of at most 64 texts"),
        ("vhosts", ["v"], {"tags": [5]}, "tags must be a list of at most 64 texts"),
        ("vhosts", ["v"], {"default_queue_type": "stream"}, "must be one of quorum, classic"),
        ("users", ["u"], {"hashing_algorithm": "md5"}, "hashing_algorithm must be one of scrypt"),
        ("users", ["u"], {"password_hash": None}, "password_hash must be text"),
        ("permissions", ["guest", "/"], {"write": "", "read": ""}, "configure must be a regular"),
        ("permissions", ["guest", "/"], {**ALL, "read": "("}, "read must be a regular expression"),
        ("permissions", ["guest", "/"], {**ALL, "read": "x" * 2049}, "at most 2048 bytes"),
        ("permissions", ["guest", "/"], {**ALL, "read": "a{99999999999}"}, "cannot be compiled"),
        ("topic_permissions", ["guest", "", "e"], TOPIC, "the vhost must be non-empty"),
        ("policies", ["/", "p"], {"pattern": "a"}, "definition must be a map of settings"),
        ("policies", ["/", "p"], {**POLICY, "definition": {}}, "the definition is empty"),
        ("policies", ["/", "p"], {**POLICY, "definition": {5: 1}}, "5 is not a policy setting"),
        ("policies", ["/", "p"], {**POLICY, "apply_to": "topics"}, "apply_to must be one of all"),
        ("policies", ["/", "p"], {**POLICY, "priority": True}, "priority must be an integer"),
        ("operator_policies", ["/", "p"], {**POLICY, "apply_to": "exchanges"}, "must be one of"),
        ("vhost_limits", ["/"], {"max-queues": -2}, "max-queues must be an integer of at least"),
        ("vhost_limits", ["/"], {"max-channels": 1}, "vhost_limits hold max-connections, max-qu"),
        ("parameters", ["c", "/", "n"], {"value": object()}, "value must be numbers, text"),
        ("parameters", ["c", "/", ""], {"value": 1}, "the name must be non-empty text"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_and_says_what_may_be(
    table: str, key: list[Any], value: dict[Any, Any], words: str
):
    assert words in Book().refuses(c.PutEntry(table, key, value), BAD_ARGUMENT)


@pytest.mark.parametrize(("table", "key"), [("towns", ["x"]), ("vhosts", []), ("users", [""])])
def test_dropping_what_cannot_be_is_refused(table: str, key: list[str]):
    Book().refuses(c.DropEntry(table, key), BAD_ARGUMENT)


@pytest.mark.parametrize(
    ("table", "key", "value", "code"),
    [
        ("permissions", ["guest", "no"], ALL, NO_VHOST),
        ("permissions", ["no", "/"], ALL, NO_USER),
        ("topic_permissions", ["no", "/", "e"], TOPIC, NO_USER),
        ("policies", ["no", "p"], POLICY, NO_VHOST),
        ("operator_policies", ["no", "p"], POLICY, NO_VHOST),
        ("vhost_limits", ["no"], {}, NO_VHOST),
        ("user_limits", ["no"], {}, NO_USER),
        ("parameters", ["shovel", "no", "s"], {"value": 1}, NO_VHOST),
    ],
)
def test_an_entry_about_nobody_is_refused(
    table: str, key: list[str], value: dict[str, Any], code: str
):
    Book().refuses(c.PutEntry(table, key, value), code)


def test_a_vhost_takes_all_that_is_in_it_along():
    book = Book()
    book.does(c.PutEntry("vhosts", ["v"], {}))
    for table, key, value in [
        ("permissions", ["guest", "v"], ALL),
        ("topic_permissions", ["guest", "v", "amq.topic"], TOPIC),
        ("policies", ["v", "p"], POLICY),
        ("operator_policies", ["v", "p"], POLICY),
        ("vhost_limits", ["v"], {"max-queues": 5}),
        ("parameters", ["shovel", "v", "s"], {"value": 1}),
    ]:
        book.does(c.PutEntry(table, key, value))
    book.queue("kept")
    book.bind("amq.topic", "kept")
    book.queue("q", vhost="v")
    book.queue("r", vhost="v")
    book.does(c.DeclareExchange("v", "e", "fanout", auto_delete=True))
    book.does(c.Bind("v", "e", "queue", "q", ""))
    book.does(c.Bind("v", "amq.topic", "exchange", "e", ""))
    book.does(c.DeclareExchange("v", "bound", "fanout"))
    book.does(c.DeclareExchange("v", "before", "fanout", auto_delete=True))
    book.does(c.Bind("v", "before", "exchange", "bound", ""))  # goes with it

    applied = book.does(c.DropEntry("vhosts", ["v"]))

    assert applied.effects == [
        QueueRemoved(QueueId(2), GroupId(1)),
        QueueRemoved(QueueId(3), GroupId(1)),
    ]
    machine = book.machine
    assert machine.overview() == {**machine.overview(), "entries": 3, "exchanges": 7}
    assert [b.destination for b in machine.bindings()] == ["kept"]
    assert machine.queues() == machine.queues("/")
    book.does(c.PutEntry("vhosts", ["v"], {}))
    assert machine.queues("v") == []
    assert len(machine.exchanges("v")) == 7


def test_a_vhost_put_again_keeps_what_is_in_it():
    book = Book()
    book.exchange("e")

    book.does(c.PutEntry("vhosts", ["/"], {"description": "ours"}), 0)

    assert book.names() == ["e"]


def test_a_user_takes_its_permissions_and_limits_along():
    book = Book()
    book.does(c.PutEntry("users", ["u"], {}))
    book.does(c.PutEntry("permissions", ["u", "/"], ALL))
    book.does(c.PutEntry("topic_permissions", ["u", "/", "e"], TOPIC))
    book.does(c.PutEntry("user_limits", ["u"], {"max-connections": 1}))

    book.does(c.DropEntry("users", ["u"]))

    assert list(book.machine.entries("permissions")) == [("guest", "/")]
    assert book.machine.entries("topic_permissions") == {}
    assert book.machine.entries("user_limits") == {}


def test_the_number_of_entries_is_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalog_admin, "ENTRIES_MAX", 3)
    book = Book()

    book.refuses(c.PutEntry("users", ["u"], {}), LIMIT_REACHED)
    book.does(c.PutEntry("users", ["guest"], {}), 0)


def test_a_protected_vhost_is_dropped_when_it_is_no_longer():
    book = Book()
    protected = c.PutEntry("vhosts", ["v"], {"protected_from_deletion": True})
    reason = book.refuses(protected, BAD_ARGUMENT)
    assert "protected_from_deletion" in reason  # which version 2 does not know
    book.does(c.UpgradeMachine(3), 0)
    book.does(protected)
    book.refuses(c.DropEntry("vhosts", ["v"]), PROTECTED_VHOST)
    book.refuses(c.PutEntry("vhosts", ["v"], {"protected_from_deletion": 1}), BAD_ARGUMENT)
    book.does(c.PutEntry("vhosts", ["v"], {}), 0)
    book.does(c.DropEntry("vhosts", ["v"]))


def test_a_policy_says_how_old_messages_may_become_from_version_5_on():
    book = Book()
    value = {"pattern": ".*", "definition": {"slo-oldest-age": 60_000}}
    put = c.PutEntry("policies", ["/", "p"], value)
    assert "slo-oldest-age" in book.refuses(put, BAD_ARGUMENT)
    book.does(c.UpgradeMachine(5), 0)
    book.does(put)


def test_a_parameter_says_who_put_it_from_version_5_on():
    book = Book()
    put = c.PutEntry("parameters", ["shovel", "/", "s"], {"value": 1, "user": "guest"})
    assert "user" in book.refuses(put, BAD_ARGUMENT)
    book.does(c.UpgradeMachine(5), 0)
    book.does(put)

    assert book.machine.entry("parameters", ("shovel", "/", "s")) == put.value
    assert "user" in book.refuses(replace(put, value={"value": 1, "user": ""}), BAD_ARGUMENT)
