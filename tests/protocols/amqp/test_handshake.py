from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from node.messages import amqp_errors as errors
from node.messages.amqp_errors import AmqpError
from node.messages.tables import encode_entries
from node.protocols.amqp.handshake import (
    PROTOCOL_HEADER,
    AmqpHandshake,
    Credentials,
    HandshakeState,
    OpenVhost,
    Terms,
    server_properties,
)
from node.protocols.amqp.methods import made

OFFER = Terms(channel_max=2047, frame_bytes_max=131_072, heartbeat_s=60)
COULD_CLOSE = {"capabilities": {"authentication_failure_close": True}}


def begun(certificate_user: str | None = None) -> AmqpHandshake:
    subject = AmqpHandshake(OFFER, server_properties("quorate"), certificate_user)
    subject.begin(PROTOCOL_HEADER)
    return subject


def start_ok(mechanism: str = "PLAIN", response: Any = "\0ann\0secret", **properties: Any) -> Any:
    return made(
        commands.Connection.StartOk,
        client_properties=properties,
        mechanism=mechanism,
        response=response,
        locale="en_US",
    )


def tune_ok(channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 60) -> Any:
    return made(
        commands.Connection.TuneOk,
        channel_max=channel_max,
        frame_max=frame_max,
        heartbeat=heartbeat,
    )


def tuning(**properties: Any) -> AmqpHandshake:
    subject = begun()
    subject.receive(start_ok(**properties))
    subject.accepted()
    return subject


def code_of(subject: AmqpHandshake, method: base.Frame) -> int:
    with pytest.raises(AmqpError) as caught:
        subject.receive(method)
    return caught.value.code


class TestStart:
    @pytest.mark.parametrize(
        "header", [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"GET / HT"]
    )
    def test_another_protocol_is_not_begun(self, header: bytes):
        assert AmqpHandshake(OFFER, {}).begin(header) is None

    @pytest.mark.parametrize(
        ("header", "version"),
        [
            (b"AMQP\x01\x01\x00\x09", (0, 9)),
            (b"AMQP\x01\x01\x08\x00", (8, 0)),
            (b"AMQP\x01\x01\x09\x01", (8, 0)),
        ],
    )
    def test_headers_of_0_8_and_0_9_are_taken_as_0_9_1(
        self, header: bytes, version: tuple[int, int]
    ):
        start = AmqpHandshake(OFFER, {}).begin(header)

        assert isinstance(start, commands.Connection.Start)
        assert (start.version_major, start.version_minor) == version

    def test_the_client_is_told_what_it_may_count_on(self):
        start = AmqpHandshake(OFFER, server_properties("green")).begin(PROTOCOL_HEADER)

        assert isinstance(start, commands.Connection.Start)
        properties = start.server_properties
        assert properties["cluster_name"] == "green"
        assert "Quorate" in str(properties["information"])
        assert properties["capabilities"] == {
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "consumer_priorities": True,
            "authentication_failure_close": True,
            "per_consumer_qos": True,
            "direct_reply_to": True,
        }
        assert start.mechanisms == "PLAIN AMQPLAIN"

    def test_kombu_takes_the_meaning_of_qos_from_product_and_version(self):
        """Celery then asks for a prefetch of the whole channel, and can change it later."""
        from kombu.transport.pyamqp import Transport

        class Connected:
            server_properties = server_properties("quorate")

        assert cast(Any, Transport).qos_semantics_matches_spec(None, Connected()) is False

    def test_external_is_offered_to_who_has_shown_a_certificate(self):
        start = AmqpHandshake(OFFER, {}, "ann").begin(PROTOCOL_HEADER)

        assert isinstance(start, commands.Connection.Start)
        assert start.mechanisms == "PLAIN AMQPLAIN EXTERNAL"


class TestCredentials:
    @pytest.mark.parametrize(
        ("mechanism", "response"),
        [
            ("PLAIN", "\0ann\0secret"),
            ("PLAIN", b"other\0ann\0secret"),
            ("AMQPLAIN", encode_entries({"LOGIN": "ann", "PASSWORD": "secret"})),
        ],
    )
    def test_name_and_password_are_asked_of_the_caller(self, mechanism: str, response: Any):
        subject = begun()

        answer = subject.receive(start_ok(mechanism, response))

        assert answer == Credentials(mechanism, "ann", "secret")
        assert isinstance(subject.accepted(), commands.Connection.Tune)

    def test_a_client_may_wait_to_be_asked(self):
        subject = begun()

        challenge = subject.receive(start_ok(response=""))
        answer = subject.receive(made(commands.Connection.SecureOk, response="\0ann\0secret"))

        assert isinstance(challenge, commands.Connection.Secure)
        assert answer == Credentials("PLAIN", "ann", "secret")

    def test_a_client_is_asked_only_once(self):
        subject = begun()
        subject.receive(start_ok(response=""))

        empty = made(commands.Connection.SecureOk, response="")

        assert code_of(subject, empty) == errors.SYNTAX_ERROR

    def test_a_certificate_needs_no_password(self):
        answer = begun("ann").receive(start_ok("EXTERNAL", ""))

        assert answer == Credentials("EXTERNAL", "ann", None)

    @pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS", ""])
    def test_a_mechanism_that_was_not_offered_is_refused(self, mechanism: str):
        assert code_of(begun(), start_ok(mechanism)) == errors.COMMAND_INVALID

    @pytest.mark.parametrize(
        ("mechanism", "response"),
        [("PLAIN", "ann"), ("PLAIN", b"\0\xff\0a"), ("AMQPLAIN", b"\x05LOGIN"), ("AMQPLAIN", "x")],
    )
    def test_a_response_that_cannot_be_read_is_refused(self, mechanism: str, response: Any):
        assert code_of(begun(), start_ok(mechanism, response)) == errors.SYNTAX_ERROR

    def test_only_who_understands_is_told_that_the_login_failed(self):
        told, silent = begun(), begun()
        told.receive(start_ok(**cast(Any, COULD_CLOSE)))
        silent.receive(start_ok())

        error = told.refused()

        assert error is not None
        assert error.reply_text == (
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
            "For details see the broker logfile."
        )
        assert silent.refused() is None


class TestTune:
    @pytest.mark.parametrize(
        ("answer", "agreed"),
        [
            (tune_ok(), OFFER),
            (tune_ok(0, 0, 0), Terms(2047, 131_072, 0)),
            (tune_ok(1, 4096, 600), Terms(1, 4096, 600)),
        ],
    )
    def test_the_client_may_ask_for_less(self, answer: Any, agreed: Terms):
        subject = tuning()

        subject.receive(answer)

        assert subject.terms == agreed

    @pytest.mark.parametrize(
        ("answer", "text"),
        [
            (tune_ok(channel_max=2048), "channel_max = 2048 is higher than the maximum"),
            (tune_ok(frame_max=131_073), "frame_max = 131073 is higher than the maximum"),
            (tune_ok(frame_max=4095), "frame_max = 4095 is lower than the minimum"),
        ],
    )
    def test_more_than_was_offered_is_not_allowed(self, answer: Any, text: str):
        with pytest.raises(AmqpError, match=text) as caught:
            tuning().receive(answer)

        assert caught.value.code == errors.NOT_ALLOWED


class TestOpen:
    def test_the_vhost_is_asked_of_the_caller(self):
        subject = tuning()
        subject.receive(tune_ok())

        answer = subject.receive(made(commands.Connection.Open, virtual_host="/"))
        done = subject.opened()

        assert answer == OpenVhost("/")
        assert isinstance(done, commands.Connection.OpenOk)
        assert subject.state is HandshakeState.DONE


@given(
    st.lists(
        st.sampled_from(
            [
                start_ok(),
                start_ok(response=""),
                start_ok("NONE"),
                made(commands.Connection.SecureOk, response="\0a\0b"),
                tune_ok(),
                tune_ok(frame_max=5),
                made(commands.Connection.Open, virtual_host="/"),
                made(commands.Channel.Open),
                made(commands.Connection.Blocked),
            ]
        ),
        max_size=8,
    )
)
def test_methods_in_any_order_are_a_step_or_refused(methods: list[base.Frame]):
    subject = begun()
    for method in methods:
        try:
            subject.receive(method)
        except AmqpError:
            return
        if subject.state is HandshakeState.LOGIN:
            subject.accepted()
        elif subject.state is HandshakeState.ACCESS:
            subject.opened()
