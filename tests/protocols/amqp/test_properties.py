from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from node.messages import properties, tables
from node.messages.amqp_errors import SYNTAX_ERROR, AmqpError

ALL: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": {"x": 1, "größe": "ä"},
    "delivery_mode": 2,
    "priority": 5,
    "correlation_id": "c",
    "reply_to": "amq.rabbitmq.reply-to",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "t",
    "user_id": "ann",
    "app_id": "app",
    "cluster_id": "",
}
_NAMES = st.sets(st.sampled_from(sorted(ALL)))


class TestProperties:
    def test_they_are_as_another_codec_writes_them(self):
        values: dict[str, Any] = {
            **ALL,
            "timestamp": datetime.fromtimestamp(ALL["timestamp"], tz=UTC),
        }
        values["message_type"] = values.pop("type")
        del values["cluster_id"]

        assert properties.parse(commands.Basic.Properties(**values).marshal()).as_map() == {
            name: value for name, value in ALL.items() if name != "cluster_id"
        }

    @given(_NAMES)
    def test_what_is_built_is_found_again(self, names: set[str]):
        values = {name: ALL[name] for name in names}
        raw = properties.build(values)

        properties.check(raw)

        assert properties.parse(raw).as_map() == values

    @pytest.mark.parametrize("name", ["priority", "expiration", "user_id", "reply_to", "headers"])
    def test_some_concern_the_broker(self, name: str):
        assert properties.asks(properties.build({name: ALL[name]}))

    def test_most_do_not(self):
        others = {
            name: value
            for name, value in ALL.items()
            if name not in {"priority", "expiration", "user_id", "reply_to", "headers"}
        }

        assert not properties.asks(properties.build(others))

    @given(_NAMES)
    def test_one_is_replaced_and_the_others_stay(self, names: set[str]):
        values = {name: ALL[name] for name in names}
        changed = properties.replace(properties.build(values), reply_to="other", expiration=None)

        values.pop("expiration", None)
        assert properties.parse(changed).as_map() == {**values, "reply_to": "other"}

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"\x80",
            b"\x80\x00",
            b"\x80\x00\x05abc",
            b"\x00\x00a",
            b"\x00\x01",
            b"\x00\x02",
            b"\x10\x00",
            b"\x00\x40\x00",
            b"\x20\x00\x00",
            b"\x20\x00\x00\x00\x00\x01",
            b"\x80\x00\x01\xff",
        ],
    )
    def test_what_does_not_end_where_it_should_is_refused(self, raw: bytes):
        with pytest.raises(AmqpError) as caught:
            properties.check(raw)

        assert caught.value.code == SYNTAX_ERROR

    @pytest.mark.parametrize("name", ["message_id", "user_id"])
    def test_long_and_foreign_texts_are_no_error(self, name: str):
        properties.check(properties.build({name: "ä" * 127, "timestamp": 2**64 - 1}))

    @given(st.binary(max_size=60))
    def test_check_and_parse_agree(self, raw: bytes):
        def fails(what: Any) -> bool:
            try:
                what(raw)
            except AmqpError:
                return True
            return False

        assert fails(properties.check) == fails(properties.parse)

    @pytest.mark.parametrize(
        "values", [{"priority": 256}, {"type": "x" * 256}, {"headers": {"a": 2**63}}, {"size": 1}]
    )
    def test_what_cannot_be_sent_is_not_built(self, values: dict[str, Any]):
        with pytest.raises(ValueError, match=r".+"):
            properties.build(values)


class TestHeaders:
    def test_some_are_added_or_dropped_and_the_others_stay_as_they_came(self):
        entries = b"\x01as\x00\x05\x01bt\x01\x01cS\x00\x00\x00\x01x"  # a short, a bit, a text
        raw = b"\x20\x00" + len(entries).to_bytes(4) + entries

        changed = properties.with_headers(raw, {"c": "y", "count": 3}, drop=["b"])

        assert b"\x01as\x00\x05" in changed
        assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x03" in changed
        assert properties.parse(changed).headers == {"a": 5, "c": "y", "count": 3}

    def test_a_message_without_headers_gets_a_table(self):
        raw = properties.build({"content_type": "a", "priority": 1})

        changed = properties.with_headers(raw, {"x-delivery-count": 1})

        assert properties.parse(changed).as_map() == {
            "content_type": "a",
            "priority": 1,
            "headers": {"x-delivery-count": 1},
        }

    def test_a_table_that_cannot_be_read_is_refused_when_it_is_asked_for(self):
        raw = b"\x20\x00\x00\x00\x00\x03\x01a?"
        properties.check(raw)

        for ask in (
            lambda: properties.parse(raw).headers,
            lambda: properties.with_headers(raw, {}),
        ):
            with pytest.raises(AmqpError):
                ask()


def _decimal(number: int, places: int) -> Decimal:
    return Decimal(number).scaleb(-places)


_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=20),
        st.binary(max_size=20),
        st.integers(0, 4 * 10**9).map(lambda s: datetime.fromtimestamp(s, tz=UTC)),
        st.builds(
            _decimal,
            st.integers(-(2**31), 2**31 - 1),
            st.integers(0, 9),
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=20,
)
_TABLES = st.dictionaries(st.text(max_size=9), _VALUES, max_size=6)


class TestTables:
    @given(_TABLES)
    def test_what_is_written_is_read(self, table: dict[str, Any]):
        raw = tables.encode_table(table)

        assert tables.decode_table(raw, 0, len(raw)) == (table, len(raw))

    @given(_TABLES)
    def test_entries_can_be_taken_apart_and_joined(self, table: dict[str, Any]):
        raw = tables.encode_table(table)

        entries = tables.raw_entries(raw, 4, len(raw))

        assert [name for name, _ in entries] == list(table)
        assert tables.join_entries(entry for _, entry in entries) == raw

    @given(st.binary(max_size=100))
    def test_any_bytes_are_a_table_or_a_value_error(self, raw: bytes):
        for read in (tables.decode_table, tables.decode_entries, tables.raw_entries):
            with contextlib.suppress(ValueError):
                read(raw, 0, len(raw))

    def test_nesting_has_an_end(self):
        raw = b""
        for _ in range(100):
            raw = b"A" + len(raw).to_bytes(4) + raw

        with pytest.raises(ValueError, match="nested"):
            tables.decode_entries(b"\x01a" + raw, 0, len(raw) + 2)

    def test_every_type_of_the_wire_is_known(self):
        raw = b"".join(
            [
                b"\x01bb\xff",
                b"\x01BB\xff",
                b"\x01ss\xff\xfe",
                b"\x01uu\xff\xfe",
                b"\x01II\xff\xff\xff\xff",
                b"\x01ii\xff\xff\xff\xff",
                b"\x01ff\x3f\x80\x00\x00",
                b"\x01DD\x02\x00\x00\x00\x7b",
                b"\x01TT" + (2**63).to_bytes(8),
                b"\x01SS\x00\x00\x00\x01\xff",
            ]
        )

        assert tables.decode_entries(raw, 0, len(raw)) == {
            "b": -1,
            "B": 255,
            "s": -2,
            "u": 65534,
            "I": -1,
            "i": 2**32 - 1,
            "f": 1.0,
            "D": Decimal("1.23"),
            "T": 2**63,
            "S": b"\xff",
        }

    @pytest.mark.parametrize("value", [object(), 2**63, Decimal("1e40"), Decimal("NaN")])
    def test_a_value_without_a_type_is_refused(self, value: Any):
        with pytest.raises(ValueError, match=r".+"):
            tables.encode_table({"a": value})


@pytest.mark.parametrize(("depth", "is_wrong"), [(63, False), (64, True), (65, True)])
def test_a_table_may_be_nested_as_deeply_as_it_can_be_read(depth: int, is_wrong: bool):
    value = b"S\0\0\0\1x"
    for _ in range(depth):
        value = b"A" + len(value).to_bytes(4) + value

    assert (tables.wrong_entries(b"\1a" + value) is not None) == is_wrong
