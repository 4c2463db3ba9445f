"""Core NATS at one node, byte by byte."""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.protocols.nats import connection as module
from node.protocols.nats import replying
from tests.node.management.api import api_of
from tests.node.nats.conftest import Connect
from tests.node.nats.wire import GUEST, OPTIONS, Wire
from tests.node.nodes import Running, in_a_thread
from tests.node.security.processes import Secret, trusting
from tests.testkit.waiting import wait_until

HEADER = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"


def address(running: Running) -> str:
    assert running.node.nats is not None
    assert running.node.nats.address is not None
    return running.node.nats.address


def nkey_of(key: Ed25519PrivateKey) -> str:
    data = bytes([20 << 3]) + key.public_key().public_bytes_raw()
    return base64.b32encode(data + binascii.crc_hqx(data, 0).to_bytes(2, "little")).decode()


def ask(running: Running, method: str, path: str, body: Any = None) -> None:
    """The management API."""
    reply = running.do(api_of(running.node).ask(method, path, body))
    assert reply.status < 300, reply


class TestSubjects:
    def test_a_message_goes_to_all_who_want_its_subject_and_to_nobody_else(self, connect: Connect):
        client = connect()

        client.send(b"SUB a.b 1\r\nSUB a.* 2\r\nSUB a.> 3\r\nSUB a.c 4\r\nSUB > 5\r\n")
        client.send(b"PUB a.b 2\r\nhi\r\nPUB a.b.c r.1 0\r\n\r\n")

        said = client.sync()
        of_first = {b"MSG a.b %d 2\r\nhi\r\n" % sid for sid in (1, 2, 3, 5)}
        of_second = {b"MSG a.b.c %d r.1 0\r\n\r\n" % sid for sid in (3, 5)}
        assert all(each in said for each in of_first | of_second)
        assert len(said) == sum(map(len, of_first | of_second))

    def test_each_vhost_has_subjects_of_its_own(self, running: Running, connect: Connect):
        ask(running, "PUT", "vhosts/orders", {})
        ask(
            running,
            "PUT",
            "permissions/orders/guest",
            {"configure": ".*", "write": ".*", "read": ".*"},
        )
        there, here = connect(user="orders/guest"), connect()
        for client in (there, here):
            client.send(b"SUB a 1\r\n")
            client.sync()

        there.send(b"PUB a 5\r\nthere\r\n")
        here.send(b"PUB a 4\r\nhere\r\n")

        assert there.sync() == b"MSG a 1 5\r\nthere\r\n"
        assert here.sync() == b"MSG a 1 4\r\nhere\r\n"

    def test_the_second_subscription_of_a_name_is_ignored(self, connect: Connect):
        client = connect()

        client.send(b"SUB a 1\r\nSUB b 1\r\nPUB a 0\r\n\r\nPUB b 0\r\n\r\n")

        assert client.sync() == b"MSG a 1 0\r\n\r\n"

    def test_a_burst_of_messages_comes_in_order(self, connect: Connect):
        client, other = connect(), connect()
        other.send(b"SUB burst 1\r\n")
        other.sync()

        client.send(b"".join(b"PUB burst 4\r\n%04d\r\n" % number for number in range(5_000)))
        client.sync()

        assert [int(other.message()[3]) for _ in range(5_000)] == list(range(5_000))

    def test_one_who_wants_no_echo_gets_none_of_its_own(self, connect: Connect):
        client, other = connect(echo=False), connect()
        client.send(b"SUB a 1\r\nSUB a q 2\r\n")
        client.sync()
        other.send(b"SUB a q 3\r\n")
        other.sync()

        client.send(b"PUB a 1\r\nx\r\n" * 20)

        assert client.sync() == b""
        assert other.sync() == b"MSG a 3 1\r\nx\r\n" * 20


class TestUnsubscribe:
    def test_nothing_comes_after_it(self, connect: Connect):
        client = connect()

        client.send(b"SUB a 1\r\nUNSUB 1\r\nUNSUB 1\r\nUNSUB 9\r\nPUB a 0\r\n\r\n")

        assert client.sync() == b""

    def test_a_maximum_counts_from_the_first_delivery(self, connect: Connect):
        client = connect()

        client.send(b"SUB a 1\r\nPUB a 0\r\n\r\nUNSUB 1 3\r\n" + b"PUB a 0\r\n\r\n" * 9)
        assert client.sync() == b"MSG a 1 0\r\n\r\n" * 3
        client.send(b"SUB a 1\r\nPUB a 0\r\n\r\nPUB a 0\r\n\r\nUNSUB 1 2\r\nPUB a 0\r\n\r\n")
        assert client.sync() == b"MSG a 1 0\r\n\r\n" * 2


class TestQueueGroups:
    def test_one_member_gets_each_message(self, connect: Connect):
        members = [connect() for _ in range(3)]
        for member in members:
            member.send(b"SUB jobs.* workers 1\r\n")
            member.sync()
        publisher = connect()

        publisher.send(b"".join(b"PUB jobs.x 3\r\n%03d\r\n" % n for n in range(300)))
        publisher.send(b"".join(b"PUB jobs.%d 3\r\n%03d\r\n" % (n, n) for n in range(300, 600)))
        publisher.sync()

        said = [member.sync() for member in members]
        counts = [each.count(b"MSG jobs.") for each in said]
        assert sum(counts) == 600
        assert min(counts) >= 100  # of the burst each has had its third
        found = sorted(int(line) for each in said for line in each.split(b"\r\n") if line.isdigit())
        assert found == list(range(600))

    def test_what_a_member_takes_no_more_goes_to_the_others(self, connect: Connect):
        client = connect()

        client.send(b"SUB a q 1\r\nSUB a q 2\r\nUNSUB 1 2\r\n" + b"PUB a 0\r\n\r\n" * 10)

        said = client.sync()
        assert (said.count(b"MSG a 1 "), said.count(b"MSG a 2 ")) == (2, 8)


class TestRequests:
    def test_an_answer_comes_to_the_reply_subject(self, connect: Connect):
        client, service = connect(), connect()
        service.send(b"SUB svc 1\r\n")
        service.sync()
        client.send(b"SUB _INBOX.a.* 7\r\nPUB svc _INBOX.a.1 2\r\nhi\r\n")

        assert service.message() == (b"svc", b"1", b"_INBOX.a.1", b"hi")
        service.send(b"PUB _INBOX.a.1 3\r\nyes\r\n")

        assert client.message() == (b"_INBOX.a.1", b"7", b"", b"yes")

    def test_nobody_there_is_said_at_once(self, connect: Connect):
        client = connect()
        header = b"NATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n"

        client.send(b"SUB _INBOX.* 7\r\nPUB nobody _INBOX.1 2\r\nhi\r\n")

        assert client.sync() == b"HMSG _INBOX.1 7 38 38\r\n%b\r\n" % header

    def test_who_did_not_ask_for_that_is_told_nothing(self, connect: Connect):
        client = connect(no_responders=False)

        client.send(b"SUB _INBOX.* 7\r\nPUB nobody _INBOX.1 2\r\nhi\r\n")

        assert client.sync() == b""


def test_a_connection_has_a_bounded_number_of_subscriptions(running: Running, connect: Connect):
    server = running.node.nats
    assert server is not None
    client = connect()
    with mock.patch.object(server, "subscriptions_max", 2):
        client.send(b"SUB a 1\r\nSUB a 2\r\nSUB a 3\r\nUNSUB 1\r\nSUB b 4\r\nPUB a 0\r\n\r\n")

        said = client.sync()

    assert said == b"-ERR 'maximum subscriptions exceeded'\r\nMSG a 2 0\r\n\r\n"


def test_headers_go_only_to_those_who_understand_them(connect: Connect):
    client, plain = connect(), connect(headers=False, no_responders=False)
    for each in (client, plain):
        each.send(b"SUB a 1\r\n")
        each.sync()

    client.send(b"HPUB a r.1 %d %d\r\n%bhi\r\n" % (len(HEADER), len(HEADER) + 2, HEADER))

    size = len(HEADER)
    assert client.sync() == b"HMSG a 1 r.1 %d %d\r\n%bhi\r\n" % (size, size + 2, HEADER)
    assert plain.sync() == b"MSG a 1 r.1 2\r\nhi\r\n"


def test_a_verbose_client_is_told_of_each_operation(connect: Connect):
    client = connect(verbose=True)

    client.send(b"SUB a 1\r\nPUB b 0\r\n\r\nPUB b 0\r\n\r\nUNSUB 1\r\nSUB a..b 2\r\n")

    assert client.sync() == b"+OK\r\n" * 4 + b"-ERR 'Invalid Subject'\r\n"


class TestRefusals:
    @pytest.mark.parametrize(
        ("sent", "said"),
        [
            (b"SUB a..b 1\r\n", b"-ERR 'Invalid Subject'\r\n"),
            (b"SUB a.>.b 1\r\n", b"-ERR 'Invalid Subject'\r\n"),
            (b"PUB a.* 0\r\n\r\n", b"-ERR 'Invalid Publish Subject'\r\n"),
            (b"PUB a. 0\r\n\r\n", b"-ERR 'Invalid Publish Subject'\r\n"),
        ],
    )
    def test_of_one_operation_the_connection_survives(
        self, connect: Connect, sent: bytes, said: bytes
    ):
        client = connect(pedantic=True)

        client.send(sent)

        assert client.sync() == said

    def test_only_a_pedantic_client_may_not_publish_to_what_looks_like_a_wildcard(
        self, connect: Connect
    ):
        client = connect()

        client.send(b"SUB a.* 1\r\nSUB a.b 2\r\nPUB a.* 0\r\n\r\nPUB a. 0\r\n\r\n")

        assert client.sync() == b"MSG a.* 1 0\r\n\r\n"

    @pytest.mark.parametrize(
        ("sent", "text"),
        [
            (b"FOO\r\n", b"Unknown Protocol Operation"),
            (b"PUB a x\r\n", b"Parser Error"),
            (b"SUB " + b"a" * 5_000, b"maximum control line exceeded"),
            # The rest is still being sent: it must not cost the client what it is told.
            (b"PUB a 2000000\r\n" + b"x" * 2_000_000, b"Maximum Payload Violation"),
        ],
    )
    def test_what_breaks_the_protocol_ends_the_connection(
        self, connect: Connect, sent: bytes, text: bytes
    ):
        client = connect()

        client.send(b"SUB a 1\r\nPUB a 0\r\n\r\n" + sent)

        assert client.until_closed() == b"MSG a 1 0\r\n\r\n-ERR '%b'\r\n" % text

    def test_headers_of_a_client_without(self, connect: Connect):
        client = connect(headers=False, no_responders=False)

        client.send(b"HPUB a %d %d\r\n%b\r\n" % (len(HEADER), len(HEADER), HEADER))

        assert client.until_closed() == b"-ERR 'message headers not supported'\r\n"


class TestLogin:
    @pytest.mark.parametrize(
        ("sent", "text"),
        [
            ({"user": "guest", "pass": "wrong"}, b"Authorization Violation"),
            ({"user": "nobody", "pass": "guest"}, b"Authorization Violation"),
            ({"user": "nowhere/guest", "pass": "guest"}, b"Authorization Violation"),
            ({"user": "guest"}, b"Authorization Violation"),
            ({"auth_token": "guest"}, b"Authorization Violation"),
            ({"auth_token": "guest:wrong"}, b"Authorization Violation"),
            ({"nkey": "UA"}, b"Authorization Violation"),
            ({**GUEST, "protocol": 2}, b"invalid client protocol"),
            ({**GUEST, "headers": False}, b"no responders requires headers support"),
        ],
    )
    def test_who_may_not_come_in_is_told_why(
        self, running: Running, wires: Callable[[str], Wire], sent: dict[str, str], text: bytes
    ):
        client = wires(address(running))

        client.send(b"CONNECT %b\r\nPING\r\n" % json.dumps({**OPTIONS, **sent}).encode())

        assert client.until_closed() == b"-ERR '%b'\r\n" % text

    def test_without_credentials_it_is_guest_where_that_is_allowed(
        self, running: Running, wires: Callable[[str], Wire]
    ):
        auth = running.node.parts.auth
        client = wires(address(running))
        client.send(b'CONNECT {"verbose":false,"user":""}\r\nSUB a 1\r\nPUB a 0\r\n\r\n')
        assert client.sync() == b"MSG a 1 0\r\n\r\n"
        with mock.patch.object(auth, "passwordless_guest", False):
            client = wires(address(running))
            client.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
            assert client.until_closed() == b"-ERR 'Authorization Violation'\r\n"

    def test_a_token_is_a_name_and_a_password(self, running: Running, wires: Callable[[str], Wire]):
        ask(running, "PUT", "users/token", {"password": "a:b", "tags": ""})
        ask(running, "PUT", "permissions/%2F/token", {"configure": "", "write": "", "read": ".*"})
        client = wires(address(running))

        client.send(b'CONNECT {"verbose":false,"auth_token":"//token:a:b"}\r\n')
        client.send(b"SUB a 1\r\nPUB a 0\r\n\r\n")

        assert client.sync() == b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"

    @pytest.mark.parametrize("sent", [b"PING\r\n", b"PUB a 0\r\n\r\n", b"FOO\r\n"])
    def test_nothing_may_come_before_it(
        self, running: Running, wires: Callable[[str], Wire], sent: bytes
    ):
        client = wires(address(running))

        client.send(sent)

        assert client.until_closed() == b"-ERR 'Authorization Violation'\r\n"

    def test_it_must_come_soon(self, running: Running, wires: Callable[[str], Wire]):
        with mock.patch.object(module, "LOGIN_S_MAX", 0.05):
            client = wires(address(running))

            assert client.until_closed() == b"-ERR 'Authentication Timeout'\r\n"

    def test_info_says_what_the_node_is_and_comes_again_after_the_first_pong(
        self, running: Running, wires: Callable[[str], Wire]
    ):
        client = wires(address(running))
        options = json.dumps({**OPTIONS, **GUEST, "protocol": 1}).encode()

        client.send(b"CONNECT %b\r\nPING\r\n" % options)

        assert client.line() == b"PONG"
        again = json.loads(client.line().removeprefix(b"INFO "))
        assert again == {**client.info, "connect_info": True}
        assert client.info["connect_urls"] == [address(running)]
        assert client.info["max_payload"] == 1 << 20
        assert client.info["headers"] is True
        assert client.info["auth_required"] is True
        assert "tls_required" not in client.info

    def test_a_signature_of_the_nonce_is_a_login(self, running: Running):
        key = Ed25519PrivateKey.generate()
        nkey = nkey_of(key)
        ask(running, "PUT", "users/keyed", {"tags": "", "nkeys": [nkey]})
        anything = {"configure": ".*", "write": ".*", "read": ".*"}
        ask(running, "PUT", "permissions/%2F/keyed", anything)
        ask(running, "PUT", "users/keyed", {"tags": "monitoring"})  # keeps its keys
        taken = running.do(
            api_of(running.node).ask("PUT", "users/x", {"tags": "", "nkeys": [nkey]})
        )
        assert taken.status == 400

        def said(*, nonce: str | None = None, **more: str) -> bytes:
            client = Wire(address(running))
            data = (nonce or client.info["nonce"]).encode()
            signature = base64.urlsafe_b64encode(key.sign(data)).decode()
            options = {**OPTIONS, "nkey": nkey, "sig": signature, **more}
            client.send(b"CONNECT %b\r\nFOO\r\n" % json.dumps(options).encode())
            return client.until_closed()

        refused = b"-ERR 'Authorization Violation'\r\n"
        assert said() == b"-ERR 'Unknown Protocol Operation'\r\n"
        assert said(nonce="another") == refused
        assert said(sig="") == refused
        assert said(nkey=nkey_of(Ed25519PrivateKey.generate())) == refused
        assert said(jwt="eyJ0") == refused
        ask(running, "PUT", "users/keyed", {"tags": "", "nkeys": []})
        assert said() == refused

    def test_there_may_be_too_many(self, running: Running, connect: Connect):
        ask(running, "PUT", "vhosts/small", {})
        ask(
            running,
            "PUT",
            "permissions/small/guest",
            {"configure": ".*", "write": ".*", "read": ".*"},
        )
        ask(running, "PUT", "vhost-limits/small/max-connections", {"value": 1})
        connect(user="small/guest")

        second = Wire(address(running))
        second.send(b"CONNECT %b\r\n" % json.dumps({**GUEST, "user": "small/guest"}).encode())

        assert second.until_closed() == b"-ERR 'maximum connections exceeded'\r\n"


class TestPermissions:
    def test_they_are_those_on_names_of_exchanges_and_queues(
        self, running: Running, connect: Connect
    ):
        ask(running, "PUT", "users/shop", {"password": "shop", "tags": ""})
        patterns = {"configure": "", "write": "^orders[.]", "read": "^(news[.]|_INBOX[.])"}
        ask(running, "PUT", "permissions/%2F/shop", patterns)
        shop, guest = connect(**{"user": "shop", "pass": "shop"}), connect()

        shop.send(b"SUB secret 1\r\nSUB secret q 2\r\nPUB news.1 0\r\n\r\nSUB news.> 3\r\n")
        assert shop.sync() == (
            b"-ERR 'Permissions Violation for Subscription to \"secret\"'\r\n"
            b'-ERR \'Permissions Violation for Subscription to "secret" using queue "q"\'\r\n'
            b"-ERR 'Permissions Violation for Publish to \"news.1\"'\r\n"
        )
        guest.send(b"SUB orders.* 1\r\n")
        guest.sync()
        shop.send(b"PUB orders.7 0\r\n\r\n")
        shop.sync()
        assert guest.sync() == b"MSG orders.7 1 0\r\n\r\n"

        ask(running, "PUT", "permissions/%2F/shop", {**patterns, "read": "^_INBOX[.]"})
        guest.send(b"PUB news.1 0\r\n\r\n")
        guest.sync()
        assert shop.sync() == b""
        ask(running, "PUT", "permissions/%2F/shop", {**patterns, "write": "^bills[.]"})
        guest.send(b"PUB news.1 0\r\n\r\n")
        guest.sync()
        shop.send(b"PUB bills.7 0\r\n\r\nPUB orders.7 0\r\n\r\n")
        assert shop.sync() == (
            b"MSG news.1 3 0\r\n\r\n-ERR 'Permissions Violation for Publish to \"orders.7\"'\r\n"
        )

    def test_a_wildcard_brings_only_what_may_be_read(self, running: Running, connect: Connect):
        ask(running, "PUT", "users/most", {"password": "most", "tags": ""})
        patterns = {"configure": "", "write": "", "read": "^(?!secret)"}
        ask(running, "PUT", "permissions/%2F/most", patterns)
        most, guest = connect(**{"user": "most", "pass": "most"}), connect()
        most.send(b"SUB > 1\r\n")
        most.sync()

        guest.send(b"PUB secret.x 0\r\n\r\nPUB public.x 0\r\n\r\n")
        guest.sync()

        assert most.sync() == b"MSG public.x 1 0\r\n\r\n"

    def test_who_is_deleted_has_to_go(self, running: Running, connect: Connect):
        ask(running, "PUT", "users/gone", {"password": "gone", "tags": ""})
        ask(
            running, "PUT", "permissions/%2F/gone", {"configure": ".*", "write": ".*", "read": ".*"}
        )
        gone = connect(**{"user": "gone", "pass": "gone"})

        ask(running, "DELETE", "users/gone")

        assert gone.until_closed() == b"-ERR 'User Authentication Revoked'\r\n"

    def test_who_was_asked_may_answer(self, running: Running, connect: Connect):
        ask(running, "PUT", "users/service", {"password": "service", "tags": ""})
        patterns = {"configure": "", "write": "^nothing$", "read": "^svc[.]"}
        ask(running, "PUT", "permissions/%2F/service", patterns)
        service, guest = connect(**{"user": "service", "pass": "service"}), connect()
        service.send(b"SUB svc.> 1\r\n")
        service.sync()
        guest.send(b"SUB _INBOX.> 1\r\nSUB orders.> 2\r\n")
        guest.sync()
        refused = b"-ERR 'Permissions Violation for Publish to \"%b\"'\r\n"

        guest.send(b"PUB svc.a _INBOX.a 0\r\n\r\nPUB svc.a orders.1 0\r\n\r\n")
        guest.send(b"PUB svc.a $JS.ACK.S.c.1.1.1.1.0 0\r\n\r\n")
        guest.sync()
        service.sync()
        service.send(b"PUB _INBOX.a 1\r\nx\r\nPUB _INBOX.a 1\r\ny\r\nPUB _INBOX.b 1\r\nz\r\n")
        service.send(b"PUB orders.1 0\r\n\r\nPUB $JS.ACK.S.c.1.1.1.1.0 0\r\n\r\n")
        others = (b"_INBOX.b", b"orders.1", b"$JS.ACK.S.c.1.1.1.1.0")
        assert service.sync() == b"".join(refused % subject for subject in others)
        assert guest.sync() == b"MSG _INBOX.a 1 1\r\nx\r\nMSG _INBOX.a 1 1\r\ny\r\n"

        service.send(b"PUB _INBOX.a 0\r\n\r\n" * replying.ANSWERS_MAX)
        assert service.sync() == refused % b"_INBOX.a"
        with mock.patch.object(replying, "ANSWER_S_MAX", -1.0):
            guest.send(b"PUB svc.a _INBOX.c 0\r\n\r\n")
            guest.sync()
            service.sync()
        service.send(b"PUB _INBOX.c 0\r\n\r\n")
        assert service.sync() == refused % b"_INBOX.c"


class TestSilenceAndSlowness:
    def test_a_silent_client_is_pinged_and_then_closed(self, connect: Connect):
        with mock.patch.object(module, "PING_S", 0.05):
            client = connect()

            assert client.until_closed() == b"PING\r\n" * 2 + b"-ERR 'Stale Connection'\r\n"

    def test_one_that_answers_stays(self, connect: Connect):
        with mock.patch.object(module, "PING_S", 0.05):
            client = connect()
            for _ in range(5):
                client.until(b"PING\r\n")
                client.send(b"PONG\r\n")

            assert client.sync().replace(b"PING\r\n", b"") == b""

    @pytest.mark.parametrize("limit", ["bytes", "time"])
    def test_a_client_that_does_not_read_is_cut_off_and_others_are_not(
        self, running: Running, connect: Connect, limit: str
    ):
        server = running.node.nats
        assert server is not None
        before = server.slow_count
        limits = (1 << 20, 60.0) if limit == "bytes" else (1 << 40, 0.1)
        with (
            mock.patch.object(module, "PENDING_BYTES_MAX", limits[0]),
            mock.patch.object(module, "WRITE_S_MAX", limits[1]),
        ):
            slow, fast, publisher = connect(), connect(), connect()
            for client in (slow, fast):
                client.send(b"SUB flood 1\r\n")
                client.sync()

            deadline = time.monotonic() + 30
            while server.slow_count == before and time.monotonic() < deadline:
                publisher.send(b"PUB flood 500000\r\n%b\r\n" % (b"x" * 500_000))
                fast.message()

        assert server.slow_count == before + 1
        publisher.send(b"PUB flood 2\r\nhi\r\n")
        assert fast.message()[3] == b"hi"


def test_tls_begins_after_info(tmp_path: Path, wires: Callable[[str], Wire]):
    authority = trustme.CA()
    secret = Secret(tmp_path / "secret")
    secret.put(authority, "127.0.0.1", "localhost")
    settings = {
        key: str(value) for key, value in secret.settings("client", authority=False).items()
    }
    context = trusting(authority)
    with in_a_thread(tmp_path, nats="off", nats_tls="127.0.0.1:0", **settings) as running:
        nats = running.node.nats
        assert nats is not None
        assert nats.tls_address is not None
        client = wires(nats.tls_address)
        assert client.info["tls_required"] is True
        assert client.info["connect_urls"] == [nats.tls_address]

        client.secure(context).connect()
        client.send(b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
        assert client.sync() == b"MSG a 1 2\r\nhi\r\n"
        client.send(b"FOO\r\n")
        assert client.until_closed() == b"-ERR 'Unknown Protocol Operation'\r\n"

        plain = wires(nats.tls_address)
        plain.send(b"CONNECT {}\r\n")
        assert b"-ERR" not in plain.until_closed()
        wait_until(lambda: not nats.connected)


def test_tls_may_come_first_and_a_certificate_is_a_login(
    tmp_path: Path, wires: Callable[..., Wire]
):
    authority = trustme.CA()
    secret = Secret(tmp_path / "secret")
    secret.put(authority, "127.0.0.1", "localhost")
    settings = {key: str(value) for key, value in secret.settings("client").items()}

    def shown(name: str) -> ssl.SSLContext:
        context = trusting(authority)
        issued = authority.issue_cert(f"{name}@example.com", common_name=name)
        with issued.private_key_and_cert_chain_pem.tempfile() as path:
            context.load_cert_chain(path)
        return context

    with in_a_thread(
        tmp_path, nats="off", nats_tls="127.0.0.1:0", nats_tls_first="true", **settings
    ) as running:
        nats = running.node.nats
        assert nats is not None
        assert nats.tls_address is not None
        ask(running, "PUT", "users/ann", {"tags": ""})
        ask(running, "PUT", "permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": ".*"})

        def said(name: str, options: dict[str, Any]) -> bytes:
            assert nats.tls_address is not None
            client = wires(nats.tls_address, first=shown(name))
            assert client.info["tls_required"] is True
            client.send(b"CONNECT %b\r\nPING\r\nFOO\r\n" % json.dumps(options).encode())
            return client.until_closed()

        known = b"PONG\r\n-ERR 'Unknown Protocol Operation'\r\n"
        assert said("ann", OPTIONS) == known
        assert said("bob", OPTIONS) == b"-ERR 'Authorization Violation'\r\n"
        assert said("bob", {**OPTIONS, **GUEST}) == known
        assert said("ann", {**OPTIONS, **GUEST, "pass": "x"}).startswith(b"-ERR 'Authorization")
        with pytest.raises((OSError, AssertionError)):  # reset, or closed
            wires(nats.tls_address, first=trusting(authority)).until_closed()


def test_metrics_say_what_clients_did(running: Running, connect: Connect):
    client = connect()
    server = running.node.nats
    assert server is not None
    before = server.counted()

    client.send(b"SUB a 1\r\nSUB a 2\r\n" + b"PUB a 3\r\nabc\r\n" * 10)
    client.sync()

    after = server.counted()
    assert after.in_messages - before.in_messages == 10
    assert after.out_messages - before.out_messages == 20
