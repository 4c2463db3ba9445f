"""Subjects, headers, acknowledgements and points in time, as NATS writes them."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine.stream.settings import (
    ASKED_ID,
    ASKED_LAST,
    ASKED_LAST_SUBJECT,
    ASKED_MARKER,
    ASKED_ROLLUP,
    ASKED_SUBJECT,
    ASKED_TTL_MS,
)
from cluster.types import QueueId
from node.protocols.nats.jetstream.acks import RUN_MIN, Acked, Said, acked_by, word_of
from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.headers import (
    asked,
    asked_by_client,
    copied,
    status,
    with_fields,
)
from node.protocols.nats.jetstream.requests import Call, call_of, type_of
from node.protocols.nats.jetstream.times import (
    NEVER,
    ms_of_text,
    ns_of_span,
    span_of_ns,
    text_of_ms,
)


class TestRequests:
    @pytest.mark.parametrize(
        ("subject", "call"),
        [
            ("INFO", Call("INFO")),
            ("STREAM.INFO.S", Call("STREAM.INFO", "S")),
            ("STREAM.MSG.GET.S", Call("STREAM.MSG.GET", "S")),
            ("STREAM.LEADER.STEPDOWN.S", Call("STREAM.LEADER.STEPDOWN", "S")),
            ("META.LEADER.STEPDOWN", Call("META.LEADER.STEPDOWN")),
            ("ACCOUNT.PURGE./", Call("ACCOUNT.PURGE", "/")),
            ("CONSUMER.CREATE.S", Call("CONSUMER.CREATE", "S")),
            ("CONSUMER.CREATE.S.c", Call("CONSUMER.CREATE", "S", "c")),
            ("CONSUMER.CREATE.S.c.a.>", Call("CONSUMER.CREATE", "S", "c", "a.>")),
            ("CONSUMER.DURABLE.CREATE.S.c", Call("CONSUMER.DURABLE.CREATE", "S", "c")),
            ("CONSUMER.MSG.NEXT.S.c", Call("CONSUMER.MSG.NEXT", "S", "c")),
            ("DIRECT.GET.S", Call("DIRECT.GET", "S")),
            ("DIRECT.GET.S.$KV.b.k", Call("DIRECT.GET", "S", rest="$KV.b.k")),
            ("STREAM.INFO", None),
            ("STREAM.INFO.S.T", None),
            ("STREAM.DANCE.S", None),
            ("CONSUMER.MSG.NEXT.S", None),
        ],
    )
    def test_a_subject_says_what_is_asked(self, subject: str, call: Call | None):
        assert call_of(b"$JS.API." + subject.encode()) == call

    def test_the_answer_names_its_type(self):
        names = [type_of(verb) for verb in ("INFO", "STREAM.MSG.GET", "CONSUMER.DURABLE.CREATE")]

        head = "io.nats.jetstream.api.v1."
        assert names == [
            f"{head}account_info_response",
            f"{head}stream_msg_get_response",
            f"{head}consumer_create_response",
        ]


def header(*lines: str) -> bytes:
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


class TestHeaders:
    @pytest.mark.parametrize(
        ("lines", "found"),
        [
            (["A: b"], None),
            (["Nats-Something: b"], None),
            (["Nats-Msg-Id: 7"], {ASKED_ID: "7"}),
            (["Nats-Expected-Last-Sequence: 0"], {ASKED_LAST: 0}),
            (
                [
                    "Nats-Expected-Last-Subject-Sequence:3",
                    "Nats-Expected-Last-Subject-Sequence-Subject: a.*",
                ],
                {ASKED_LAST_SUBJECT: 3, ASKED_SUBJECT: b"a.*"},
            ),
            (["Nats-Rollup: sub"], {ASKED_ROLLUP: "sub"}),
            (["Nats-TTL: 5"], {ASKED_TTL_MS: 5_000}),
            (["Nats-TTL: 1m30s"], {ASKED_TTL_MS: 90_000}),
            (["Nats-TTL: never"], {ASKED_TTL_MS: 0}),
            (["Nats-TTL: 5", "KV-Operation: PURGE"], {ASKED_TTL_MS: 5_000, ASKED_MARKER: True}),
            (["Nats-TTL: 5", "KV-Operation: DEL"], {ASKED_TTL_MS: 5_000}),
            (["Nats-Marker-Reason: MaxAge"], {ASKED_MARKER: True}),
        ],
    )
    def test_headers_ask_something_of_a_stream(
        self, lines: list[str], found: dict[int, Any] | None
    ):
        assert asked(header(*lines)).attrs == found

    @pytest.mark.parametrize(
        ("line", "number"),
        [
            ("Nats-TTL: 1ms", 10165),
            ("Nats-TTL: soon", 10165),
            ("Nats-TTL: ²", 10165),  # a digit to Python, and no number
            ("Nats-TTL: ٣", 10165),
            ("Nats-Expected-Last-Sequence: x", 10003),
            ("Nats-Expected-Last-Subject-Sequence-Subject: a", 10193),
            ("Nats-Rollup: some", 10111),
        ],
    )
    def test_what_cannot_be_asked_is_refused(self, line: str, number: int):
        with pytest.raises(ApiError) as refused:
            asked(header(line))
        assert refused.value.number == number

    def test_only_streams_say_where_a_message_is_from(self):
        block = header("Nats-Msg-Id: 7", "Nats-Stream-Source: S 1 > > s")
        with pytest.raises(ApiError) as refused:
            asked_by_client(block)
        assert refused.value.number == 10227
        assert copied(block) == {ASKED_ID: "7"}

    def test_blocks_are_built(self):
        assert status(404, "No Messages") == b"NATS/1.0 404 No Messages\r\n\r\n"
        assert with_fields(header("A: b"), [("C", 1)]) == header("A: b", "C: 1")
        assert with_fields(None, [("C", 1)]) == header("C: 1")


class TestAcks:
    def test_both_forms_of_the_subject_name_the_delivery(self):
        meant = Acked("S", "c", 2, 17)
        assert acked_by(b"$JS.ACK.S.c.2.17.9.1700000000.4") == meant
        assert acked_by(b"$JS.ACK.hub.szMpdrwD.S.c.2.17.9.1700000000.4") == meant
        assert acked_by(b"$JS.ACK._.szMpdrwD.S.c.2.17.9.1700000000.4.token") == meant

    @pytest.mark.parametrize("rest", [b"", b"S.c.x.1.1.1.1", b"S.c.1.1.1.1", b"S.c.1.1.1.1.1.1"])
    def test_another_subject_names_none(self, rest: bytes):
        assert acked_by(b"$JS.ACK." + rest) is None

    def test_what_is_said_in_one_turn_is_one_command(self):
        said = Said()
        words = [b"+ACK", b"", b"-NAK", b'-NAK {"delay": 5000000}', b"+WPI", b"+TERM no", b"+ACK"]
        for sequence, body in enumerate(words, 1):
            assert said.add(sequence, *word_of(body))
        assert not said.add(9, *word_of(b"hello"))

        command = said.command(QueueId(3), "c", reasons=True)

        assert command.done == [(1, 2), (7, 7)]
        assert command.reasons == [(6, "no")]
        assert command.again == [(3, -1), (4, 5)]
        assert (command.working, command.never) == ([5], [6])

    @pytest.mark.parametrize(
        ("body", "delay_ms"),
        [
            (b"1m1.5s", 61_500),
            (b"5", -1),
            (b'{"delay":"5s"}', -1),
            (b"-1s", -1),
            (b"9" * 400 + b"s", -1),
        ],
    )
    def test_a_delay_may_be_a_span(self, body: bytes, delay_ms: int):
        said = Said()
        said.add(1, *word_of(b"-NAK " + body))
        assert said.command(QueueId(3), "c", reasons=True).again == [(1, delay_ms)]

    def test_each_nak_is_one_until_a_word_that_ends_it(self):
        said = Said()
        for body in (b"-NAK", b"-NAK 5s", b"+WPI", b"-NAK"):
            said.add(1, *word_of(body))
        said.add(2, *word_of(b"-NAK"))
        said.add(2, *word_of(b"+TERM"))

        command = said.command(QueueId(3), "c", reasons=True)

        assert (command.again, command.working) == ([(1, -1), (1, 5_000), (1, -1)], [])
        assert command.never == [2]

    def test_done_is_done(self):
        said = Said()
        for body in (b"-NAK", b"+WPI", b"+ACK", b"-NAK", b"+TERM"):
            said.add(1, *word_of(body))

        command = said.command(QueueId(3), "c", reasons=False)

        assert (command.done, command.again, command.working, command.never) == (
            [(1, 1)],
            [],
            [],
            [],
        )

    def test_done_in_turn_is_done(self):
        said = Said()
        said.add(2, *word_of(b"-NAK"))
        said.add(3, *word_of(b"+WPI"))
        said.add(4, *word_of(b"+TERM no"))
        said.add_done(range(1, RUN_MIN + 1))
        said.add_done([98, 97])
        for sequence in (5, 98, 99):
            said.add(sequence, *word_of(b"-NAK"))

        command = said.command(QueueId(3), "c", reasons=True)

        assert command.done == [(1, RUN_MIN), (97, 98)]
        assert command.again == [(99, -1)]
        assert (command.working, command.never, command.reasons) == ([], [], [])

    def test_short_runs_are_not_looked_through_one_after_the_other(self):
        said = Said()
        for first in range(1, 1_000, 3):
            said.add_done(range(first, first + 2))
            said.add(first + 2, *word_of(b"-NAK"))

        command = said.command(QueueId(3), "c", reasons=True)

        assert said.runs == []
        assert command.done == [(first, first + 1) for first in range(1, 1_000, 3)]
        assert [each for each, _ in command.again] == [*range(3, 1_001, 3)]


class TestTimes:
    def test_points_are_written_and_read(self):
        text = "2026-11-24T04:10:44.632Z"
        ms = ms_of_text(text)
        assert ms is not None
        assert text_of_ms(ms) == text
        assert ms_of_text("2026-11-24T05:10:44.632999999+01:00") == ms
        assert text_of_ms(0) == NEVER
        assert text_of_ms(1_000) == "1970-01-01T00:00:01Z"
        assert ms_of_text(NEVER) == 0

    @pytest.mark.parametrize("text", ["", "noon", "2026-11-24", "2026-13-24T04:10:44Z", None, 5])
    def test_what_is_no_point_is_none(self, text: object):
        assert ms_of_text(text) is None

    def test_spans_are_go_s(self):
        assert ns_of_span("1h2m3.5s") == 3_723_500_000_000
        assert ns_of_span("100ms") == 100_000_000
        assert ns_of_span("-1s") == -1_000_000_000
        assert ns_of_span("2562047h47m16.8s") == 9_223_372_036_800_000_000
        wrong = ("", "5", "1 s", "s", "2562048h", "9" * 400 + "h")
        assert [ns_of_span(text) for text in wrong] == [None] * 6
        spans = (500_000_000, 1_500_000_000, 90_000_000_000, 3_600_000_000_000, 0)
        assert [span_of_ns(ns) for ns in spans] == ["500ms", "1.5s", "1m30s", "1h0m0s", "0s"]
