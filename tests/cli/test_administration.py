"""Users, virtual hosts, policies, routing and clients by command, against a real node."""

# pyright: basic
from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

import quorate
from quorate.cli import run
from quorate.cli.tables import folded_columns, printable
from quorate.management import PAGE_SIZE
from tests.cli.at_node import Output, one_node, only_at, rows_of
from tests.node.nodes import Nodes, free_ports


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    [port] = free_ports(1)
    with one_node(tmp_path_factory.mktemp("node"), amqp=f"127.0.0.1:{port}") as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def here(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    only_at(nodes, monkeypatch)


@pytest.fixture
def amqp(nodes: Nodes) -> Iterator[pika.BlockingConnection]:
    host, _, port = str(nodes.one.settings.amqp).rpartition(":")
    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
        yield connection


def connections(capsys: Output, *, native: bool) -> list[dict[str, Any]]:
    """That of another test's client may not have ended yet."""
    rows = rows_of(capsys, "connection", "list")
    return [row for row in rows if (row["protocol"] == "Quorate") is native]


def password_is(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text + "\n"))


def add_user(monkeypatch: pytest.MonkeyPatch, name: str, *tags: str) -> None:
    password_is(monkeypatch, "secret")
    assert run(["user", "add", name, *tags]) == 0


def as_user(monkeypatch: pytest.MonkeyPatch, name: str, password: str = "secret") -> list[str]:
    monkeypatch.setenv("QUORATE_PASSWORD", password)
    return ["--user", name]


# --- users and permissions ------------------------------------------------------------------------


def test_a_user_is_made_changed_and_deleted(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    add_user(monkeypatch, "ann", "monitoring")
    assert run([*as_user(monkeypatch, "ann"), "connection", "list"]) == 0

    password_is(monkeypatch, "other")
    assert run(["user", "password", "ann"]) == 0
    assert run([*as_user(monkeypatch, "ann"), "connection", "list"]) == 1
    assert "login_refused" in capsys.readouterr().err
    nkey = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"
    assert run(["user", "nkeys", "ann", nkey]) == 0
    assert run(["user", "tags", "ann", "management", "policymaker"]) == 0
    assert run([*as_user(monkeypatch, "ann", "other"), "connection", "list"]) == 0

    ann = next(row for row in rows_of(capsys, "user", "list") if row["name"] == "ann")
    assert ann == {
        "name": "ann",
        "tags": ["management", "policymaker"],
        "password": True,
        "limits": {},
        "nkeys": [nkey],
    }
    assert run(["user", "nkeys", "ann", "UA"]) == 1
    assert "no public nkey" in capsys.readouterr().err
    assert run(["user", "delete", "ann", "--yes"]) == 0
    assert "ann" not in {row["name"] for row in rows_of(capsys, "user", "list")}


def test_a_password_comes_from_a_file_or_the_terminal_and_never_from_nowhere(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "password").write_text("from a file\n")
    file = str(tmp_path / "password")
    assert run(["user", "add", "ben", "management", "--new-password-file", file]) == 0
    assert run([*as_user(monkeypatch, "ben", "from a file"), "channel", "list"]) == 0

    typed = iter(["typed", "typed", "one", "another"])
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert run(["user", "password", "ben"]) == 0
    assert run([*as_user(monkeypatch, "ben", "typed"), "channel", "list"]) == 0
    assert run(["user", "password", "ben"]) == 2
    assert "two different passwords" in capsys.readouterr().err

    password_is(monkeypatch, "")
    assert run(["user", "password", "ben"]) == 2
    assert "--new-password-file" in capsys.readouterr().err


def test_a_user_that_exists_is_not_replaced(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    add_user(monkeypatch, "eve")

    assert run(["user", "add", "eve", "administrator"]) == 1

    assert "`quorate user password eve`" in capsys.readouterr().err


def test_permissions_hold_what_was_named_and_nothing_else(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
):
    add_user(monkeypatch, "cat")
    assert run(["permission", "set", "cat", "--read", "^orders$"]) == 0
    assert run(["permission", "set", "cat", "--exchange", "amq.topic", "--write", r"^eu\."]) == 0

    assert rows_of(capsys, "permission", "list", "cat") == [
        {"user": "cat", "vhost": "/", "configure": "^$", "write": "^$", "read": "^orders$"},
        {"user": "cat", "vhost": "/", "exchange": "amq.topic", "write": r"^eu\.", "read": "^$"},
    ]
    assert run(["permission", "clear", "cat", "--exchange", "amq.topic"]) == 0
    assert run(["permission", "clear", "cat"]) == 0
    assert run(["permission", "list", "cat"]) == 0
    assert "there are no permissions" in capsys.readouterr().err


# --- virtual hosts and policies -------------------------------------------------------------------


def test_a_vhost_has_limits_and_goes_with_all_that_is_in_it(capsys: Output):
    assert run(["vhost", "add", "shop", "--description", "Orders", "--tag", "eu"]) == 0
    assert run(["vhost", "add", "shop"]) == 0
    assert "exists already" in capsys.readouterr().err
    assert run(["vhost", "limits", "shop", "max-queues=1", "max-connections=5"]) == 0
    assert run(["vhost", "limits", "shop", "max-connections=-1"]) == 0
    assert run(["queue", "declare", "first", "--vhost", "shop"]) == 0
    assert run(["queue", "declare", "second", "--vhost", "shop"]) == 1

    shop = next(row for row in rows_of(capsys, "vhost", "list") if row["name"] == "shop")
    assert (shop["description"], shop["tags"], shop["limits"]) == (
        "Orders",
        ["eu"],
        {"max-queues": 1},
    )
    assert run(["vhost", "delete", "shop"]) == 2
    assert "1 queue and 0 messages would be lost\n  next: repeat it with --yes" in (
        capsys.readouterr().err
    )
    assert run(["vhost", "protect", "shop"]) == 0
    for asked in ([], ["--yes"]):
        assert run(["vhost", "delete", "shop", *asked]) == 1
        said = capsys.readouterr().err
        assert "protected from deletion" in said
        assert "--undo" in said
    assert run(["vhost", "protect", "shop", "--undo"]) == 0
    assert run(["vhost", "delete", "shop", "--yes"]) == 0
    assert "shop" not in {row["vhost"] for row in rows_of(capsys, "queue", "list")}


def test_policies_are_pairs_or_json_and_operators_have_their_own(capsys: Output):
    short = ["policy", "set", "short", r"^tmp\."]
    assert run([*short, "max-length=10", "overflow=reject-publish", "--apply-to", "queues"]) == 0
    assert run([*short, '{"message-ttl": 60000}', "--priority", "7"]) == 0
    assert "replaced" in capsys.readouterr().err
    assert run(["policy", "set", "cap", ".*", "max-length=100", "--operator"]) == 0

    assert rows_of(capsys, "policy", "list") == [
        {
            "vhost": "/",
            "name": "short",
            "pattern": r"^tmp\.",
            "apply-to": "all",
            "definition": {"message-ttl": 60000},
            "priority": 7,
        }
    ]
    assert [row["name"] for row in rows_of(capsys, "policy", "list", "--operator")] == ["cap"]
    assert run(["policy", "list", "--vhost", "/"]) == 0
    assert "message-ttl=60000" in capsys.readouterr().out
    assert run(["policy", "delete", "short"]) == 0
    assert run(["policy", "delete", "cap", "--operator"]) == 0
    assert rows_of(capsys, "policy", "list") == []


def test_shovels_are_made_shown_restarted_and_deleted(capsys: Output):
    assert run(["queue", "declare", "from"]) == 0
    add = ["shovel", "add", "mover", "src-uri=amqp://", "src-queue=from", "dest-uri=amqp://"]
    assert run(add) == 0
    assert run([*add, "dest-queue=to", "src-prefetch-count=7"]) == 0
    assert "replaced" in capsys.readouterr().err
    assert run([*add, "colour=red"]) == 1
    assert "has no field 'colour'" in capsys.readouterr().err
    while rows_of(capsys, "shovel", "list")[0]["state"] != "running":
        pass
    (row,) = rows_of(capsys, "shovel", "show", "mover")
    assert (row["src_queue"], row["dest_queue"], row["node"]) == ("from", "to", "n1")
    assert run(["shovel", "list"]) == 0
    assert "amqp:// from" in capsys.readouterr().out
    assert run(["shovel", "restart", "mover"]) == 0
    assert run(["shovel", "delete", "mover"]) == 0
    assert run(["shovel", "delete", "mover"]) == 1
    assert "quorate shovel list" in capsys.readouterr().err


# --- routing --------------------------------------------------------------------------------------


def test_what_is_published_goes_where_bindings_say(capsys: Output, tmp_path: Path):
    assert run(["queue", "declare", "invoices"]) == 0
    assert run(["exchange", "declare", "events", "--type", "topic"]) == 0
    assert run(["exchange", "declare", "all", "x-note=1", "--type", "fanout", "--transient"]) == 0
    assert run(["binding", "add", "events", "invoices", "--key", "eu.#"]) == 0
    assert run(["binding", "add", "all", "events", "--to-exchange", "--key", "eu"]) == 0
    (tmp_path / "body").write_bytes(b"\xff\x00")

    publish = ["exchange", "publish"]
    assert run([*publish, "events", "one", "--key", "eu.de", "--header", "n=1"]) == 0
    assert run([*publish, "all", "--file", str(tmp_path / "body"), "--key", "eu.de"]) == 0
    assert run([*publish, "", "three", "--key", "invoices", "--property", "priority=3"]) == 0
    assert run([*publish, "events", "lost", "--key", "us"]) == 1
    assert "`quorate binding list --exchange events`" in capsys.readouterr().err

    peeked = rows_of(capsys, "queue", "peek", "invoices")
    assert [row["body"] for row in peeked] == ["one", "�\0", "three"]
    rows = rows_of(capsys, "binding", "list")
    assert [(row["source"], row["destination"]) for row in rows] == [
        ("all", "events"),
        ("events", "invoices"),
    ]
    assert len(rows_of(capsys, "binding", "list", "--queue", "invoices")) == 1
    assert run(["binding", "delete", "events", "invoices", "--key", "eu.#"]) == 0
    assert rows_of(capsys, "binding", "list", "--exchange", "events") == []
    assert run(["exchange", "delete", "all", "--if-unused"]) == 1
    assert "in use" in capsys.readouterr().err
    assert run(["exchange", "delete", "all"]) == 0
    assert run(["exchange", "list", "--vhost", "/"]) == 0
    out = capsys.readouterr().out
    assert "events" in out
    assert "(default)" in out


def test_bindings_that_differ_in_arguments_only_are_told_apart(capsys: Output):
    assert run(["queue", "declare", "matched"]) == 0
    bind = ["amq.headers", "matched"]
    assert run(["binding", "add", *bind, "x-match=all", "kind=a"]) == 0
    assert run(["binding", "add", *bind, "x-match=all", "kind=b"]) == 0

    assert run(["binding", "delete", *bind, "x-match=all", "kind=a"]) == 0

    left = rows_of(capsys, "binding", "list", "--queue", "matched")
    assert [row["arguments"] for row in left] == [{"x-match": "all", "kind": "b"}]
    assert run(["binding", "delete", *bind]) == 1


# --- clients --------------------------------------------------------------------------------------


def test_a_native_client_is_listed_too(capsys: Output, nodes: Nodes):
    with quorate.connect_sync(nodes.url("n1").removeprefix("http://")) as client:
        client.declare("native-listed")
        [connection] = connections(capsys, native=True)
        assert run(["connection", "list"]) == 0

    assert connection["name"].partition(" -> ")[0] in capsys.readouterr().out


def test_clients_are_listed_and_a_connection_is_closed(
    capsys: Output, amqp: pika.BlockingConnection
):
    channel = amqp.channel()
    channel.confirm_delivery()
    channel.queue_declare("sac", durable=True, arguments={"x-single-active-consumer": True})
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("sac", lambda *_: None, consumer_tag="first")
    channel.basic_consume("sac", lambda *_: None, consumer_tag="second", auto_ack=True)

    [connection] = connections(capsys, native=False)
    [found] = rows_of(capsys, "channel", "list", "--vhost", "/")
    assert (found["consumer_count"], found["confirm"]) == (2, True)
    peer = connection["name"].partition(" -> ")[0]
    for what in ("connection", "channel", "consumer"):
        assert run([what, "list"]) == 0
        assert peer in capsys.readouterr().out
    assert run(["consumer", "list", "--vhost", "/"]) == 0
    first, second = (line for line in capsys.readouterr().out.splitlines() if "sac" in line)
    assert [word.strip() for word in first.split("│")[3:8]] == [
        "first",
        f"{peer} (1)",
        "yes",
        "manual",
        "7",
    ]
    assert "no, waiting" in second
    assert "automatic" in second

    assert run(["connection", "close", peer]) == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="management"):
        channel.start_consuming()
    assert run(["connection", "close", peer]) == 1
    assert "`quorate connection list`" in capsys.readouterr().err


def test_a_list_of_queues_tells_which_kind_each_is(capsys: Output, amqp: pika.BlockingConnection):
    channel = amqp.channel()
    channel.queue_declare("kept", durable=True)
    channel.queue_declare("passing", durable=False)
    channel.queue_declare("pidbox", auto_delete=True)
    channel.queue_declare("replies", exclusive=True)
    channel.basic_publish("", "passing", b"x")
    channel.queue_declare("passing", passive=True)  # it was published by now

    kinds = {row["name"]: row.get("kind") for row in rows_of(capsys, "queue", "list")}

    assert [kinds[name] for name in ("kept", "passing", "pidbox", "replies")] == [
        "replicated",
        "transient",
        "auto-delete",
        "exclusive",
    ]
    assert run(["queue", "list"]) == 0
    assert "auto-delete" in capsys.readouterr().out
    assert run(["queue", "show", "passing"]) == 0
    assert run(["queue", "delete", "passing", "--yes"]) == 0


# --- definitions ----------------------------------------------------------------------------------


def test_definitions_go_out_and_come_back(capsys: Output, tmp_path: Path):
    file = tmp_path / "definitions.json"
    assert run(["vhost", "add", "moved"]) == 0
    assert run(["queue", "declare", "carried", "--vhost", "moved"]) == 0
    assert run(["definitions", "export", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert run(["vhost", "delete", "moved", "--yes"]) == 0

    assert run(["definitions", "import", str(file)]) == 0
    assert "vhosts " in capsys.readouterr().err
    names = [(row["vhost"], row["name"]) for row in rows_of(capsys, "queue", "list")]
    assert ("moved", "carried") in names

    assert run(["definitions", "export", "--vhost", "moved"]) == 0
    one = tmp_path / "one.json"
    one.write_text(capsys.readouterr().out)
    assert run(["vhost", "add", "copy"]) == 0
    assert run(["definitions", "import", str(one), "--vhost", "copy"]) == 0
    names = [(row["vhost"], row["name"]) for row in rows_of(capsys, "queue", "list")]
    assert ("copy", "carried") in names
    assert [name for vhost, name in names if vhost == "copy"] == ["carried"]


def test_many_definitions_go_in_and_long_lists_come_in_pages(capsys: Output, tmp_path: Path):
    count = PAGE_SIZE + 10
    bindings = [
        {
            "vhost": "/",
            "source": "amq.direct",
            "destination": "bound",
            "destination_type": "queue",
            "routing_key": str(number),
            "arguments": {},
        }
        for number in range(count)
    ]
    queues = [{"vhost": "/", "name": "bound", "durable": True, "arguments": {}}]
    file = tmp_path / "many.json"
    file.write_text(json.dumps({"bindings": bindings, "queues": queues}))

    assert run(["definitions", "import", str(file)]) == 0

    assert len(rows_of(capsys, "binding", "list", "--exchange", "amq.direct")) == count


def test_an_import_that_is_refused_names_what_is_wrong_and_does_nothing(
    capsys: Output, tmp_path: Path
):
    good = {"vhost": "/", "name": "good", "pattern": "x", "definition": {"max-length": 1}}
    file = tmp_path / "policies.json"
    bad = {**good, "name": "bad", "pattern": "("}
    file.write_text(json.dumps({"vhosts": [{"name": "/"}], "policies": [good, bad]}))

    assert run(["definitions", "import", str(file)]) == 1

    words = capsys.readouterr().err
    assert "nothing was imported" in words
    assert "policies 'bad' in vhost '/': " in words
    assert "good" not in words
    assert "good" not in [row["name"] for row in rows_of(capsys, "policy", "list")]


def test_what_is_not_supported_is_left_out_when_that_is_said(capsys: Output, tmp_path: Path):
    exchange = {"vhost": "/", "name": "late", "durable": True, "type": "x-nobody-knows"}
    aged = {"vhost": "/", "name": "aged", "durable": True, "arguments": {"x-max-age": "7D"}}
    file = tmp_path / "exchanges.json"
    exchanges = [exchange, {**exchange, "name": "kept", "type": "topic"}]
    file.write_text(json.dumps({"exchanges": exchanges, "queues": [aged]}))

    assert run(["definitions", "import", str(file)]) == 1
    assert "--skip-unsupported" in capsys.readouterr().err
    assert run(["definitions", "import", str(file), "--skip-unsupported"]) == 0

    words = capsys.readouterr().err
    assert "left out exchanges 'late' in vhost '/': " in words
    assert "without effect in queues 'aged' in vhost '/': invalid arg 'x-max-age'" in words
    names = [row["name"] for row in rows_of(capsys, "exchange", "list")]
    assert "kept" in names
    assert "late" not in names


def test_an_export_for_rabbitmq_names_who_has_no_password_in_it(capsys: Output, tmp_path: Path):
    file = tmp_path / "rabbit.json"
    assert run(["definitions", "export", str(file), "--rabbitmq-hashes"]) == 0
    assert "user 'guest' has no password in it" in capsys.readouterr().err
    users = json.loads(file.read_text())["users"]
    assert {user["hashing_algorithm"] for user in users} == {"rabbit_password_hashing_sha256"}


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}", '{"queues": [1]}'])
def test_what_is_no_definitions_is_corrupt_input(capsys: Output, tmp_path: Path, text: str):
    (tmp_path / "file").write_text(text)

    assert run(["definitions", "import", str(tmp_path / "file")]) == 3


# --- who we are, and where -----------------------------------------------------------------------


def test_where_and_who_may_stand_before_a_command_and_after_it(
    nodes: Nodes, capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """What stands after it counts, then what stands before it, then the environment."""
    add_user(monkeypatch, "kim", "administrator")
    file = tmp_path / "password"
    file.write_text("secret\n")
    kim = ["--user", "kim", "--password-file", str(file)]
    here = ["--url", nodes.url("n1")]
    monkeypatch.setenv("QUORATE_URL", "127.0.0.1:1")

    for command in (
        [*here, *kim, "user", "list"],
        ["user", "list", *here, *kim],
        [*kim, "user", "list", *here],
        ["--url", "127.0.0.1:2", "--user", "nobody", "user", "list", *here, *kim],
    ):
        assert run(command) == 0, command
    monkeypatch.setenv("QUORATE_URL", nodes.url("n1"))
    monkeypatch.setenv("QUORATE_USER", "kim")
    assert run(["user", "list", "--password-file", str(file)]) == 0
    assert run(["user", "list", "--user", "nobody"]) == 1
    assert run(["user", "delete", "kim", "--yes", *here, "--password-file", str(file)]) == 0


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("user delete nobody", 1, "quorate user list"),
        ("user delete guest", 2, "repeat it with --yes"),
        ("queue declare amq.mine", 1, "reserved prefix"),
        ("user password nobody --new-password-file /nowhere", 1, "no user 'nobody'"),
        ("user tags nobody", 1, "no user 'nobody'"),
        ("user add somebody --new-password-file /nowhere", 2, "/nowhere"),
        ("permission list nobody", 1, "no user 'nobody'"),
        ("permission set nobody", 1, "no user 'nobody'"),
        ("permission set guest --vhost nowhere", 1, "no virtual host 'nowhere'"),
        ("permission set guest --vhost / --configure (", 1, "regular expression"),
        ("permission set guest --exchange e --configure x", 2, "--write and --read only"),
        ("permission clear guest --exchange e", 1, "quorate permission list"),
        ("vhost delete nowhere", 1, "quorate vhost list"),
        ("vhost limits nowhere", 1, "no virtual host 'nowhere'"),
        ("vhost limits nowhere max-queues=-1", 1, "no virtual host 'nowhere'"),
        (
            "vhost limits / max-stars=1",
            2,
            "max-bytes, max-connections, max-queue-bytes, max-queues",
        ),
        ("policy list --vhost nowhere", 1, "no virtual host 'nowhere'"),
        ("policy set bad ( max-length=1", 1, "regular expression"),
        ("policy set bad x max-lenght=1", 1, "'max-lenght' is not a policy setting"),
        ("policy set bad x max-length=-1", 1, "max-length"),
        ("policy set bad x {", 2, "no JSON"),
        ("policy set bad x max-length", 2, "KEY=VALUE"),
        ("policy set bad x max-length=1 --apply-to topics", 2, "--apply-to"),
        ("policy set bad x bogus", 2, "such as max-length=1000"),
        ("policy delete nope --operator", 1, "quorate policy list --operator"),
        ("shovel add s bogus", 2, "such as src-queue=orders"),
        ("vhost limits / bogus", 2, "such as max-queues=100"),
        ("stream add s bogus", 2, "such as max_age=24h"),
        ("stream add s max_agee=3", 1, "'max_agee'; there are allow_atomic, allow_batched"),
        ("cursor add s c bogus", 2, "such as ack_wait=1m"),
        ("exchange declare e topic", 2, "that is an option: --type topic"),
        ("exchange declare e bogus", 2, "--type TYPE, one of direct, fanout, topic, headers, x-"),
        ("exchange declare amq.topic --type fanout", 1, "quorate exchange list"),
        ("exchange publish amq.topic x --property a", 2, "such as content_type=text/plain"),
        ("exchange publish amq.topic x --header a", 2, "such as x-match=any"),
        ("binding add amq.topic q bogus", 2, "such as x-match=any"),
        ("publish q x --vhost nowhere", 1, "quorate vhost list"),
        ("publish q x --batch 0", 2, "greater than or equal to 1"),
        ("consume q --vhost nowhere", 1, "quorate vhost list"),
        ("consume q --idle -1", 2, "--idle"),
        ("queue list --vhost nowhere", 1, "quorate vhost list"),
        ("queue relieve q q --once", 2, "name another queue"),
        ("queue relieve q r --uri there --once", 2, "'there' is no amqp:// or amqps://"),
        ("queue move q r --where size=3", 2, "key, exchange, reason, state, priority, older-than"),
        ("group move bogus n1", 1, "quorate group list"),
        ("group move default-1 n9", 1, "quorate node list"),
        ("group rebuild default-1 n9", 1, "no copy of group default-1; these hold one: "),
        ("backup verify", 2, "quorate backup verify DIR"),
        ("exchange declare amq.mine", 1, "reserved prefix"),
        ("exchange declare amq.topic --type direct", 1, "inequivalent arg 'type'"),
        ("exchange declare e --type random", 2, "--type"),
        ("exchange delete nope", 1, "no exchange 'nope'"),
        ("exchange publish nope x", 1, "no exchange 'nope'"),
        ("exchange publish amq.topic", 2, "--file"),
        ("exchange publish amq.rabbitmq.trace x", 1, "internal"),
        ("exchange list --vhost nowhere", 1, "no virtual host 'nowhere'"),
        ("binding add amq.topic nope", 1, "no 'amq.topic' or no 'nope'"),
        ("binding delete amq.topic nope", 1, "quorate binding list"),
        ("connection close nope", 1, "quorate connection list"),
        ("channel list --vhost nowhere", 1, "no virtual host 'nowhere'"),
        ("definitions export --vhost nowhere", 1, "no virtual host 'nowhere'"),
        ("definitions import /nowhere", 2, "/nowhere"),
        ("user list --url 127.0.0.1:1", 4, "127.0.0.1:1"),
        ("--user a:b user list", 2, "colon"),
    ],
)
def test_a_refusal_is_a_line_with_the_next_step(
    capsys: Output, command: str, status: int, words: str
):
    assert run(command.split()) == status

    said = capsys.readouterr()
    assert words in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["stream", "add", "s", "max_msgs=many"], "max_msgs is no number"),
        (["policy", "set", "p", "x", "max-length=x"], "invalid value 'x' for 'max-length'"),
        (["policy", "set", "p", "x", "ha-mode=all"], "ha-mode: queues are not mirrored"),
        (["definitions", "import", "/nowhere"], "/nowhere cannot be read: No such file"),
        (["definitions", "export", "/nowhere/x"], "/nowhere/x cannot be written: No such file"),
        (["user", "add", ""], "a name is empty"),
        (["vhost", "delete", "", "--yes"], "a name is empty"),
    ],
)
def test_a_refusal_says_only_what_is_wrong(capsys: Output, command: list[str], words: str):
    assert run(command) in (1, 2)

    (said,) = [line for line in capsys.readouterr().err.splitlines() if "next: " not in line]
    beginning, found, _ = said.partition(words)
    assert (beginning.count(":"), bool(found)) == (2 if "refused" in said else 1, True)


def test_a_group_of_commands_shows_its_help(capsys: Output):
    assert run(["queue", "delayed"]) == 2
    said = capsys.readouterr()
    assert "retime" in said.out + said.err
    assert "quorate:" not in said.err


def test_queues_of_one_virtual_host_are_listed(capsys: Output):
    assert run(["vhost", "add", "apart"]) == 0
    assert run(["queue", "declare", "here", "--vhost", "apart"]) == 0
    for vhost, found in (("apart", ["here"]), ("/", [])):
        rows = rows_of(capsys, "queue", "list", "--vhost", vhost)
        assert [row["name"] for row in rows if row["name"] == "here"] == found
    assert run(["vhost", "delete", "apart", "--yes"]) == 0


def test_tags_that_mean_nothing_are_named(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    add_user(monkeypatch, "tess", "management")
    capsys.readouterr()
    assert run(["user", "tags", "tess", "management", "admin"]) == 0
    words = capsys.readouterr().err
    assert "admin: no tag that says anything here; those are administrator, monitoring" in words
    assert "management:" not in words


def test_who_may_not_is_told_who_may(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    add_user(monkeypatch, "dan", "management")
    dan = as_user(monkeypatch, "dan")

    for command in ("user list", "policy set p x max-length=1", "vhost add other"):
        assert run([*dan, *command.split()]) == 1
        words = capsys.readouterr().err
        assert "not_authorised" in words
        assert "--user" in words
    assert run([*dan, "doctor"]) == 0
    words = capsys.readouterr().out
    assert "nodes, groups and links need the tag monitoring" in words
    assert "0 nodes" not in words
    assert run([*as_user(monkeypatch, "dan", "wrong"), "exchange", "list"]) == 1
    assert "login_refused" in capsys.readouterr().err


# --- how it looks ---------------------------------------------------------------------------------


def test_a_name_is_whole_while_other_columns_can_be_folded():
    assert folded_columns([40, 5, 60], 100) == {2}
    assert folded_columns([40, 40, 60], 80) == {1, 2}
    assert folded_columns([50, 40, 60], 80) == {0, 1, 2}
    assert folded_columns([60, 12, 12, 12], 70) == {0}
    assert folded_columns([14] * 8, 60) == set(range(8))


def test_tables_fit_a_terminal_of_a_hundred_columns(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["exchange", "declare", "long-" * 30, f"alternate-exchange={'other-' * 30}"]) == 0

    assert run(["exchange", "list"]) == 0

    # The node logs into the same stream.
    table = [line for line in capsys.readouterr().out.splitlines() if line[:1] in "┏┃┡│└├┌╇"]
    assert len(table) > 8
    assert max(map(len, table)) <= 100


def test_a_name_does_not_move_the_cursor(capsys: Output):
    assert printable("a\x1b[2Jb\u202e") == r"a\x1b[2Jb\u202e"
    assert run(["vhost", "add", "odd", "--description", "\x1b[31m [bold]red"]) == 0

    assert run(["vhost", "list"]) == 0

    assert r"\x1b[31m [bold]red" in capsys.readouterr().out
