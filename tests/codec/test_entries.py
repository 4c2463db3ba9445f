"""Commands survive the trip to bytes and back, yesterday's too; garbage is told apart."""

# pyright: basic, reportArgumentType=false

from __future__ import annotations

import contextlib
import dataclasses
import typing
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.codec.entries import (
    Entry,
    Layout,
    Unknown,
    body_offsets,
    decode_command,
    decode_entry,
    decode_reply,
    encode_command,
    encode_entry,
    encode_reply,
    messages_of,
    number_at,
    only_tag,
    start_of_enqueue,
    tag_of,
    version_needed,
)
from cluster.codec.errors import CodecError
from cluster.machine import commands as c
from cluster.machine import replies as r
from cluster.machine.catalog_commands import CatalogStep
from cluster.types import BodyRef, LargeBody

GOLDEN = Path(__file__).parent / "golden"

# What version 1 looks like: one of every command. Never change one of these, only add.
SAMPLES_V1: dict[str, Any] = {
    "create_queue": c.CreateQueue(1, "/", "orders", c.QueueConfig(max_priority=5, expires_ms=9)),
    "update_queue": c.UpdateQueue(1, c.QueueConfig(overflow="reject-publish", max_length=10)),
    "delete_queue": c.DeleteQueue(1, True, False),
    "open_session": c.OpenSession("s1", "n1", 3, 30_000),
    "detach_session": c.DetachSession("s1", "n1", 3),
    "close_session": c.CloseSession("s1"),
    "node_down": c.NodeDown("n1", 3, True),
    "node_up": c.NodeUp("n1", 4),
    "enqueue": c.Enqueue(1, "p", 7, [b"a", b"bc"], {"type": "x"}, [None, {1: 3}]),
    "subscribe": c.Subscribe(1, "s1", "tag", 10, 2, False, True, 60_000),
    "cancel": c.Cancel(1, 65_536),
    "cancel_and_give_back": c.Cancel(1, 65_536, True),
    "set_credit": c.SetCredit(1, 65_536, 5),
    "settle": c.Settle(1, 65_536, ((1, 4), (7, 7))),
    "settle_up_to_token": c.Settle(1, 65_536, ((1, 4), (7, 7)), 9),
    "return": c.Return(1, 65_536, ((1, 1),), True, 500),
    "return_up_to_token": c.Return(1, 65_536, ((1, 1),), True, None, 9),
    "discard": c.Discard(1, 65_536, ((2, 3),)),
    "discard_up_to_token": c.Discard(1, 65_536, ((2, 3),), 9),
    "extend": c.Extend(1, 65_536, ((2, 3),), 1_000),
    "get": c.Get(1, "s1", 8, True),
    "purge": c.Purge(1),
    "pause": c.Pause(1, True),
    "dead_letters_moved": c.DeadLettersMoved(1, 12),
    "transaction": c.Transaction(
        "n1",
        3,
        9,
        8,
        [c.Enqueue(1, None, 0, [b"a"], "m", {2: 5}), c.Settle(1, 65_536, ((1, 4),))],
        [(2, [c.Enqueue(4, None, 0, [b"b", b"c"]), c.Discard(4, 65_537, ((2, 2),))])],
    ),
    "transaction_part": c.TransactionPart(
        1, 7, 6, [c.Return(4, 65_537, ((2, 3),), True, 50), c.Enqueue(4, None, 0, [b"b"])]
    ),
    "transaction_done": c.TransactionDone(7, [2, 3]),
    "tick": c.Tick(),
    "barrier": c.Barrier(),
    "upgrade_machine": c.UpgradeMachine(2),
    "register_node": c.RegisterNode("n1", 3, {"peer": "a:1", "http": "a:2"}),
    "create_group": c.CreateGroup("default-1", ["n1", "n2", "n3"], True),
    "declare_queue": c.DeclareQueue("/", "orders", {"x-max-priority": 5}, None, ["n1"]),
    "remove_queue": c.RemoveQueue("/", "orders"),
    "create_auto_delete_queue": c.CreateQueue(1, "/", "q", c.QueueConfig(auto_delete=True)),
    "update_auto_delete_queue": c.UpdateQueue(1, c.QueueConfig(auto_delete=True)),
    "declare_transient_queue": c.DeclareQueue(
        "/", "amq.gen-1", {}, None, None, False, True, True, "n1", 3, "n1/7"
    ),
    "forget_node": c.ForgetNode("n1", 3),
    "forget_volatile": c.ForgetVolatile(2),
    "declare_exchange": c.DeclareExchange(
        "/", "logs", "topic", True, False, False, {"alternate-exchange": "lost"}
    ),
    "delete_exchange": c.DeleteExchange("/", "logs", True),
    "bind": c.Bind("/", "logs", "queue", "orders", "a.#", {"x-match": "any", "n": 5}),
    "unbind": c.Unbind("/", "logs", "exchange", "audit", "a.*", {}),
    "put_entry": c.PutEntry("permissions", ["guest", "/"], {"configure": "^$", "write": ".*"}),
    "drop_entry": c.DropEntry("policies", ["/", "short"]),
    "add_node": c.AddNode("n4", {"peer": "h4:1"}),
    "remove_node": c.RemoveNode("n1", "n4"),
    "node_gone": c.NodeGone("n1"),
    "move_group": c.MoveGroup(3, ["n2", "n4"]),
    "group_held": c.GroupHeld(3, 77, ["n2", "n4"]),
    "remove_this_queue": c.RemoveQueue("/", "orders", 7),
}
#: What machine version 2 brought, as it is written.
SAMPLES_V2: dict[str, Any] = {
    "detach_session_handed": c.DetachSession(
        "s1", "n1", 3, (c.HandedTo(1, 65_536, 8, ((1, 4, 9), (7, 7, 9))),)
    ),
    "close_session_handed": c.CloseSession("s1", (c.HandedTo(1, 65_536, 8, ()),)),
    "return_unsent": c.Return(1, 65_536, ((1, 1),), token=9, unsent=True),
    "handed": c.Handed(1, 65_536, ((1, 4, 9), (7, 7, 10))),
}
SAMPLES_V3: dict[str, Any] = {
    "reserve": c.Reserve("n1", 3, 17, ((1, 2, 2_048), (5, 1, 0))),
    "change_catalog": c.ChangeCatalog(
        [
            c.PutEntry("vhosts", ["v"], {"description": "d"}),
            c.DeclareQueue("v", "q", {"x-max-length": 3}),
            c.DeclareExchange("v", "e", "fanout"),
            c.Bind("v", "e", "queue", "q", ""),
        ]
    ),
    "body_part": c.BodyPart(1, "n1:7", 2, b"abc"),
    "enqueue_large": c.Enqueue(
        1, "p", 7, [b"a", b"he"], None, None, {1: ("n1:7", ((9, 0, 4), (12, 3, 2)))}
    ),
}
SAMPLES_V4: dict[str, Any] = {
    "create_stream": c.CreateQueue(
        1, "/", "q", c.QueueConfig(type="stream", stream={"subjects": ["a.>"], "max_msgs": 7})
    ),
    "enqueue_subject": c.Enqueue(1, "p", 7, [b"a"], b"NATS/1.0", {6: b"a.b", 7: {1: "id"}}),
    "purge_stream": c.Purge(1, b"a.*", 9),
    "purge_stream_keep": c.Purge(1, keep=2),
    "delete_message": c.DeleteMessage(1, 7),
    "put_consumer": c.PutConsumer(1, {"name": "c", "ack_policy": "explicit"}, "create"),
    "drop_consumer": c.DropConsumer(1, "c", 65_536),
    "fetch": c.Fetch(1, "c", ((7, 100, 0), (8, 1, 4_096))),
    "acknowledge": c.Acknowledge(1, "c", ((1, 4), (6, 6)), ((7, 1_000), (8, -1)), (9,), (10,)),
    "change_queue": c.ChangeQueue("/", "q", {"x-queue-type": "stream", "x-stream": {}}),
}
SAMPLES_V5: dict[str, Any] = {
    "enqueue_atomic": c.Enqueue(
        1, "p", 7, [b"a", b"b"], b"NATS/1.0", {6: b"a.b", 7: {1: "id"}}, atomic=True
    ),
    "create_stream_transform": c.CreateQueue(
        1,
        "/",
        "q",
        c.QueueConfig(type="stream", stream={"subject_transform": {"src": "a.*", "dest": "b.$1"}}),
    ),
    "enqueue_of_origin": c.Enqueue(
        1,
        None,
        0,
        [b"a", b"b"],
        None,
        {6: b"a.b"},
        origin=c.Origin("O > >", 7, 4, 9, ((5, 6),), (3, 4)),
    ),
    "enqueue_of_origin_put_back": c.Enqueue(
        1, None, 0, [b"a"], origin=c.Origin("O > >", 7, 4, 9, ((5, 5),), (), 70)
    ),
    "change_this_queue": c.ChangeQueue("/", "q", {"x-queue-type": "stream", "x-stream": {}}, 7),
    "remove_queue_unchanged": c.RemoveQueue("/", "q", 7, {"x-queue-type": "stream"}),
    "create_stream_mirror": c.CreateQueue(
        1, "/", "q", c.QueueConfig(type="stream", stream={"mirror": {"name": "O"}})
    ),
    "create_stream_schedules": c.CreateQueue(
        1, "/", "q", c.QueueConfig(type="stream", stream={"allow_msg_schedules": True})
    ),
    "put_consumer_anew": c.PutConsumer(1, {"name": "c"}, "update", 7),
    "put_consumer_only": c.PutConsumer(1, {"name": "c", "pause_until": None}, "update", 0, True),
    "acknowledge_unsent": c.Acknowledge(1, "c", (), unsent=((3, 5, 4, 1),)),
    "acknowledge_reasons": c.Acknowledge(1, "c", (), (), (), (10,), ((10, "why"),)),
    "create_stream_counter": c.CreateQueue(
        1, "/", "q", c.QueueConfig(type="stream", stream={"allow_msg_counter": True})
    ),
    "put_consumer_of_group": c.PutConsumer(
        1, {"name": "c", "priority_policy": "overflow", "priority_groups": ["g"]}
    ),
    "create_queue_slo": c.CreateQueue(1, "/", "q", c.QueueConfig(slo_oldest_age_ms=60_000)),
    "declare_queue_slo": c.DeclareQueue("/", "q", {"x-slo-oldest-age": 60_000}),
    "enqueue_of_keys": c.Enqueue(1, "p", 7, [b"a", b"b", b"c"], b"m", {8: ["x", None, "y"]}),
    "create_queue_group_key": c.CreateQueue(1, "/", "q", c.QueueConfig(group_key="order")),
    "declare_queue_group_key": c.DeclareQueue("/", "q", {"x-group-key": "order"}),
    "policy_slo": c.PutEntry(
        "policies", ["/", "p"], {"pattern": ".*", "definition": {"slo-oldest-age": 60_000}}
    ),
    "withdraw": c.Withdraw(1, ((1, 4), (7, 7))),
    "retime": c.Retime(1, ((2, 3),), 1_700_000_000_000),
    "restore_consumer": c.RestoreConsumer(
        1, "c", 9, (7, 8, 99), (4, 4, 98), ((5, 6, 0, 3),), ((2, 2),), ((7, 7),)
    ),
    "restore_ids": c.RestoreIds(1, (("id", 7, 99),), "id"),
    "get_named": c.Get(1, "s1", 3, False, ((1, 2), (7, 7))),
    "group_held_recovered": c.GroupHeld(3, 50, ["n3"], 1, ["n1", "n2"]),
    "transaction_move": c.Transaction(
        "n1", 3, 9, 8, [c.Withdraw(1, ((1, 1),))], [(2, [c.Enqueue(4, None, 0, [b"b"])])]
    ),
    "resolve_transaction": c.ResolveTransaction("n1", 3, 17, 4),
}
#: What a machine of an older version passes over, so that it may be told to one.
PASSED_OVER = {
    "create_queue_as_of": c.CreateQueue(1, "/", "q", c.QueueConfig(max_length=2), (7, 99)),
    "create_new_queue": c.CreateQueue(1, "/", "q", c.QueueConfig(), (7, 99), new=True),
    "update_queue_as_of": c.UpdateQueue(1, c.QueueConfig(max_length=2), (7, 99)),
    "delete_queue_fence": c.DeleteQueue(1, True, fence=True),
    "reserve_batches": c.Reserve(
        "n1", 3, 17, ((1, 2, 2_048),), ((1, [2_000, 48], {c.ATTR_SUBJECT: b"a"}),)
    ),
    "reserve_source": c.Reserve("n1", 3, 17, ((1, 2, 2_048),), source=4),
    "delete_queue_as_of": c.DeleteQueue(1, as_of=(7, 99)),
    "declare_lost_queue": c.DeclareQueue("/", "q", {}, "default-1", queue=7),
}
SAMPLES_V5["put_off_dead_letters"] = c.PutOffDeadLetters(1, ((1, 2), (5, 1 << 40)))
SAMPLES_V5["put_off_dead_letters_safe_in"] = c.PutOffDeadLetters(
    1, ((1, 2), (5, 9)), ((1, 1, (4, 7)), (5, 6, (4,)))
)
SAMPLES_V5["send_dead_letters"] = c.SendDeadLetters(1, ((1, 4), (7, 7)))
SAMPLES_V5 |= PASSED_OVER
SAMPLES = SAMPLES_V1 | SAMPLES_V2 | SAMPLES_V3 | SAMPLES_V4 | SAMPLES_V5
#: These have had fields added at the end since: their old bytes are read, others are written.
GROWN = {
    "create_queue",
    "update_queue",
    "declare_queue",
    "remove_queue",
    "cancel",
    "settle",
    "return",
    "discard",
    "transaction",
    "transaction_part",
}

REPLIES: list[r.Reply] = [
    r.Ok(3),
    r.Refused(r.OUT_OF_SEQUENCE, "expected 7", 7),
    r.Enqueued(4, 2, 1, ((0, 0),)),
    r.PartKept(9, 1),
    r.Subscribed(65_536, True),
    r.Got(65_536, [r.Chunk(1, BodyRef(9, 0, 2), 5, 0, 1, [{"reason": "expired"}])], 4),
    r.Declared(3, 2, True),
    r.Committed(7, 6),
    r.Enqueued(4, 1, 1, ((2, 2),), {1: [0, 3], 2: [10071, 5]}),
    r.Fetched(65_536, [(7, [r.StreamChunk(4, BodyRef(9, 0, 2), 1, 1, 3, 5_000)], "")]),
]


def test_there_is_a_sample_of_every_command() -> None:
    assert {type(sample) for sample in SAMPLES.values()} == set(typing.get_args(c.Command))
    assert {type(reply) for reply in REPLIES} == set(typing.get_args(r.Reply))


@pytest.mark.parametrize("name", SAMPLES_V1)
def test_entries_of_version_1_decode_as_ever(name: str) -> None:
    data = (GOLDEN / "v1" / f"{name}.cbor").read_bytes()
    assert decode_entry(data) == Entry(1, 1_700_000_000_123, [SAMPLES_V1[name]])


@pytest.mark.parametrize("name", sorted(SAMPLES_V1.keys() - GROWN))
def test_entries_of_version_1_are_still_written_the_same(name: str) -> None:
    data = (GOLDEN / "v1" / f"{name}.cbor").read_bytes()
    assert encode_entry(1_700_000_000_123, [SAMPLES_V1[name]], version=1) == data


@pytest.mark.parametrize("name", SAMPLES_V2)
def test_entries_of_version_2_are_read_and_written_as_ever(name: str) -> None:
    data = (GOLDEN / "v2" / f"{name}.cbor").read_bytes()
    assert decode_entry(data) == Entry(1, 1_700_000_000_123, [SAMPLES_V2[name]])
    assert encode_entry(1_700_000_000_123, [SAMPLES_V2[name]]) == data


@pytest.mark.parametrize("name", SAMPLES_V3)
def test_entries_of_version_3_are_read_and_written_as_ever(name: str) -> None:
    data = (GOLDEN / "v3" / f"{name}.cbor").read_bytes()
    assert decode_entry(data) == Entry(1, 1_700_000_000_123, [SAMPLES_V3[name]])
    assert encode_entry(1_700_000_000_123, [SAMPLES_V3[name]]) == data
    assert version_needed(SAMPLES_V3[name]) == 3


@pytest.mark.parametrize("name", SAMPLES_V4)
def test_entries_of_version_4_are_read_and_written_as_ever(name: str) -> None:
    data = (GOLDEN / "v4" / f"{name}.cbor").read_bytes()
    assert decode_entry(data) == Entry(1, 1_700_000_000_123, [SAMPLES_V4[name]])
    assert encode_entry(1_700_000_000_123, [SAMPLES_V4[name]]) == data
    assert version_needed(SAMPLES_V4[name]) == (1 if name == "enqueue_subject" else 4)


@pytest.mark.parametrize("name", SAMPLES_V5)
def test_entries_of_version_5_are_read_and_written_as_ever(name: str) -> None:
    data = (GOLDEN / "v5" / f"{name}.cbor").read_bytes()
    assert decode_entry(data) == Entry(1, 1_700_000_000_123, [SAMPLES_V5[name]])
    assert encode_entry(1_700_000_000_123, [SAMPLES_V5[name]]) == data
    older = 3 if name.startswith("reserve_") else 1
    assert version_needed(SAMPLES_V5[name]) == (older if name in PASSED_OVER else 5)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_single_command_round_trips(name: str) -> None:
    assert decode_command(encode_command(SAMPLES[name])) == SAMPLES[name]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_round_trips(reply: r.Reply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


def test_a_missing_trailing_field_takes_its_default() -> None:
    assert decode_command(cbor2.dumps([10, 1, "s", "t"])) == c.Subscribe(1, "s", "t")
    assert decode_command(cbor2.dumps([1, 1, "/", "q", {}])) == c.CreateQueue(
        1, "/", "q", c.QueueConfig()
    )


def test_a_surplus_trailing_field_or_setting_is_ignored() -> None:
    assert decode_command(cbor2.dumps([19, 1, True, "later", 2])) == c.Pause(1, True)
    assert decode_command(cbor2.dumps([2, 1, {"later": 2}])) == c.UpdateQueue(1, c.QueueConfig())


def test_a_command_of_a_later_version_is_unknown_and_keeps_its_fields() -> None:
    entry = decode_entry(cbor2.dumps([1, 5, [[999, "x", 2], [21]]]))
    assert entry.commands == [Unknown(999, ["x", 2]), c.Tick()]
    assert decode_entry(encode_entry(5, entry.commands)) == entry


@pytest.mark.parametrize(
    "fields",
    [
        [18],
        [18, "one"],
        [18, True],
        [13, 1, 2, [[1, 2, 3]]],
        [13, 1, 2, [["a", 2]]],
        [13, 1, 2, 7],
        [1, 1, "/", "q", 5],
        [1, 1, "/", "q", {"max_length": "ten"}],
        [9, 1, None, 0, 5],
        [9, 1, None, 0, [], None, None, 5],
        [9, 1, None, 0, [b"a"], None, None, {0: ["u", [[1, 2]]]}],
        [9, 1, None, 0, [b"a"], None, None, {0: [7, [[1, 2, 3]]]}],
        [9, 1, None, 0, [b"a"], None, None, {"0": ["u", [[1, 2, 3]]]}],
        [9, 1, None, 0, [b"a"], None, None, {0: 7}],
        [25, 1, "u", 0, "text"],
        [33, 1, 2, 3, [[18, 1]]],
        [33, 1, 2, 3, [[9, 1]]],
        [33, 1, 2, 3, [7]],
        [81, [[21]]],
        [81, [[74, "vhosts"]]],
        [81, 7],
        [5, "s1", "n1", 1, [[1, 2, 3]]],
        [5, "s1", "n1", 1, [[1, "two", 3, []]]],
        [6, "s1", [[1, 2, 3, [[1, 2]]]]],
        [24, 1, 2, [[1, 2, "three"]]],
        [32, "n1", 1, 2, 2, [], [[2]]],
        [32, "n1", 1, 2, 2, [], [["two", []]]],
        [32, "n1", 1, 2, 2, [], [[2, [[21]]]]],
    ],
)
def test_a_command_whose_fields_do_not_fit_is_unknown(fields: list[Any]) -> None:
    entry = decode_entry(cbor2.dumps([1, 5, [fields]]))
    assert entry.commands == [Unknown(fields[0], fields[1:])]


@pytest.mark.parametrize(
    "value",
    [None, 5, [], [1, 2], ["1", 2, []], [0, 2, []], [1, 2, {}], [1, 2, [5]], [1, 2, [[]]]],
)
def test_what_is_no_entry_is_a_codec_error(value: Any) -> None:
    with pytest.raises(CodecError):
        decode_entry(cbor2.dumps(value))


def test_a_value_that_contains_itself_is_a_codec_error() -> None:
    with pytest.raises(CodecError):
        decode_entry(bytes.fromhex("d81c8301 00 81d81d00".replace(" ", "")))


@given(st.binary(max_size=64))
def test_garbage_gives_an_entry_or_a_codec_error_and_nothing_else(data: bytes) -> None:
    for decode in (decode_entry, decode_command, decode_reply):
        with contextlib.suppress(CodecError):
            decode(data)


@given(st.data())
def test_a_damaged_entry_gives_an_entry_or_a_codec_error(data: st.DataObject) -> None:
    raw = bytearray(encode_entry(1_700_000_000_123, list(SAMPLES.values())))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        decode_entry(bytes(raw))


def test_what_cbor_cannot_hold_is_a_codec_error() -> None:
    with pytest.raises(CodecError):
        encode_command(c.Enqueue(1, None, 0, [b""], meta=object()))


numbers = st.integers(0, 2**40)
opaque = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
ranges = st.lists(st.tuples(numbers, numbers), max_size=4).map(tuple)
deliveries = st.lists(st.tuples(numbers, numbers, numbers), max_size=3).map(tuple)


def fields_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{f.name: one_of(kind, f.name) for f in dataclasses.fields(kind)})


def one_of(kind: type[Any], name: str) -> st.SearchStrategy[Any]:
    hint = typing.get_type_hints(kind)[name]
    if name in ("ranges", "positions"):
        return ranges
    if name == "safe_in":
        queues = st.lists(numbers, max_size=3).map(tuple)
        return st.lists(st.tuples(numbers, numbers, queues), max_size=4).map(tuple)
    if name in ("deliveries", "wants"):
        return deliveries
    if name == "handed":
        rows = st.builds(c.HandedTo, numbers, numbers, numbers, deliveries)
        return st.none() | st.lists(rows, max_size=2).map(tuple)
    if name == "bodies":
        return st.lists(st.binary(max_size=20), max_size=5)
    if name == "steps" and kind is c.ChangeCatalog:
        return st.lists(st.one_of([fields_of(step) for step in typing.get_args(CatalogStep)]))
    if name == "steps":
        return st.lists(st.one_of([fields_of(step) for step in typing.get_args(c.Step)]))
    if name == "others":
        return st.lists(st.tuples(numbers, one_of(c.TransactionPart, "steps")), max_size=2)
    if name == "groups":
        return st.lists(numbers, max_size=3)
    if name == "config" and kind is c.PutConsumer:
        return st.dictionaries(st.text(max_size=4), opaque, max_size=3)
    if name == "config":
        return fields_of(c.QueueConfig)
    if name in ("done", "again"):
        return ranges
    if name in ("delivered", "floor"):
        return st.tuples(numbers, numbers, numbers)
    if name == "held":
        return st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=2).map(tuple)
    if name in ("picked", "exhausted"):
        return ranges
    if name == "ids":
        return st.lists(st.tuples(st.text(max_size=4), numbers, numbers), max_size=2).map(tuple)
    if name == "reasons":
        return st.lists(st.tuples(numbers, st.text(max_size=4)), max_size=2).map(tuple)
    if name == "requests":
        return deliveries
    if name == "batches":
        return st.lists(st.tuples(numbers, st.lists(numbers), opaque), max_size=2).map(tuple)
    if name == "unsent" and kind is c.Acknowledge:
        return st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=2).map(tuple)
    if name in ("working", "never"):
        return st.lists(numbers, max_size=3).map(tuple)
    if name == "stream":
        return opaque
    if kind is c.DropConsumer and name == "key":
        return st.none() | numbers
    if name in ("members", "key") and hint is not str:
        return st.lists(st.text(max_size=4), max_size=3)
    if name == "value":
        return st.dictionaries(st.text(max_size=4), opaque, max_size=3)
    if name in ("meta", "attrs"):
        return opaque
    if name == "large":
        rows = st.tuples(st.text(max_size=4), deliveries)
        return st.none() | st.dictionaries(numbers, rows, max_size=2)
    if name == "origin":
        times_ms = st.lists(numbers, max_size=3).map(tuple)
        return st.none() | st.builds(
            c.Origin, st.text(max_size=4), numbers, numbers, numbers, ranges, times_ms, numbers
        )
    if name in ("arguments", "addresses"):
        return st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
    return st.from_type(hint)


@given(
    st.lists(
        st.one_of([fields_of(kind) for kind in typing.get_args(c.Command)]),
        max_size=6,
    ),
    numbers,
)
def test_every_entry_round_trips(commands: list[c.Command], now_ms: int) -> None:
    assert decode_entry(encode_entry(now_ms, commands)) == Entry(1, now_ms, commands)


def test_bodies_are_numbered_over_all_enqueues_of_an_entry() -> None:
    commands = [
        c.Enqueue(1, None, 0, [b"a", b"b"], "shared"),
        c.Tick(),
        c.Enqueue(2, None, 0, [b"c"], ["own"]),
        c.Purge(1),
    ]
    entry = decode_entry(encode_entry(5, commands))
    assert [body for body, _ in messages_of(entry)] == [b"a", b"b", b"c"]
    assert [meta for _, meta in messages_of(entry)] == ["shared", "shared", "own"]
    assert body_offsets(entry.commands) == [0, 2, 2, 3]


def test_parts_count_as_bodies_and_a_large_body_knows_its_size() -> None:
    commands = [
        c.BodyPart(1, "u", 0, b"part"),
        c.Enqueue(1, None, 0, [b"a", b"he"], "m", None, {1: ("u", ((5, 0, 4), (6, 0, 10)))}),
        c.Enqueue(2, None, 0, [b"c"]),
    ]
    entry = decode_entry(encode_entry(5, commands, version=3))
    large = LargeBody(b"he", ((5, 0, 4), (6, 0, 10)))
    assert [body for body, _ in messages_of(entry)] == [b"part", b"a", large, b"c"]
    assert len(large) == 16
    assert [meta for _, meta in messages_of(entry)] == [None, "m", "m", None]
    assert body_offsets(entry.commands) == [0, 1, 3]
    assert [version_needed(each) for each in commands] == [3, 3, 1]


def test_bodies_of_a_transaction_are_numbered_but_not_those_for_other_groups() -> None:
    part = c.TransactionPart(
        1, 1, 1, [c.Settle(1, 2, ((1, 1),)), c.Enqueue(2, None, 0, [b"c", b"d"], "shared")]
    )
    steps = [c.Enqueue(1, None, 0, [b"a"], "x"), c.Enqueue(3, None, 0, [b"b"])]
    others = [(2, [c.Enqueue(9, None, 0, [b"elsewhere"])])]
    commands = [c.Transaction("n1", 1, 1, 1, steps, others), part, c.Tick()]

    entry = decode_entry(encode_entry(5, commands))

    assert [body for body, _ in messages_of(entry)] == [b"a", b"b", b"c", b"d"]
    assert [meta for _, meta in messages_of(entry)] == ["x", None, "shared", "shared"]
    assert body_offsets(entry.commands) == [0, 2, 4]


def test_an_entry_decodes_from_a_view_without_a_copy_of_ours() -> None:
    data = encode_entry(5, [c.Tick()])
    assert decode_entry(memoryview(data)) == Entry(1, 5, [c.Tick()])


# --- what came with a later machine version


@dataclasses.dataclass(frozen=True, slots=True)
class Grown:
    """A command as two later machine versions left it."""

    queue: int
    reason: str = ""
    second: int = 0
    third: list[int] = dataclasses.field(default_factory=list[int])


GATED = Layout(Grown, fields_since={"second": 2, "third": 3})


@pytest.mark.parametrize(
    ("command", "fields", "needed"),
    [
        (Grown(1), [1, ""], 1),
        (Grown(1, "x"), [1, "x"], 1),
        (Grown(1, "x", 5), [1, "x", 5], 2),
        (Grown(1, "x", 0, [4]), [1, "x", 0, [4]], 3),
        (Grown(1, "x", 5, [4]), [1, "x", 5, [4]], 3),
    ],
)
def test_new_fields_are_written_only_when_they_say_something(
    command: Grown, fields: list[Any], needed: int
) -> None:
    assert GATED.dump(command) == fields
    assert GATED.load(fields) == command
    assert GATED.version_needed(command) == needed
    assert GATED.load_map(GATED.dump_map(command)) == command
    assert len(GATED.dump_map(command)) == len(fields) - (needed == 3 and not command.second)


def test_a_new_command_needs_the_version_that_brought_it() -> None:
    assert Layout(Grown, since=4, fields_since={"third": 5}).version_needed(Grown(1)) == 4


def test_a_new_field_has_a_default_and_stands_at_the_end() -> None:
    with pytest.raises(AssertionError, match="at the end"):
        Layout(Grown, fields_since={"second": 2})


@pytest.mark.parametrize("name", SAMPLES_V1)
def test_what_version_1_had_needs_no_later_one(name: str) -> None:
    assert version_needed(SAMPLES_V1[name]) == (2 if name == "upgrade_machine" else 1)


@pytest.mark.parametrize("queue", [0, 23, 24, 255, 256, 1 << 16, 1 << 32])
@pytest.mark.parametrize("seqno", [1, 23, 24, 255, 256, 65_535, 65_536, 1 << 32, (1 << 63) - 1])
@pytest.mark.parametrize("count", [0, 1, 23, 24, 300])
def test_an_enqueue_is_found_in_an_entry_without_decoding_it(
    queue: int, seqno: int, count: int
) -> None:
    """Also among other commands, and in a transaction."""
    for publisher in ("p", "shop-é", "x" * 23, "x" * 24, "x" * 300):
        enqueue = c.Enqueue(queue, publisher, seqno, [b"body"] * count, None, None)
        others = [c.Tick(), c.Settle(queue, 9, [(1, 9)])]
        transaction = c.Transaction("n1", 1, 1, 1, [others[1], enqueue], [(2, [enqueue])])
        for commands, times in (([*others, enqueue], 1), ([transaction], 2)):
            data, start = encode_entry(1_000, commands), start_of_enqueue(queue, publisher)
            assert data.count(start) == times
            found, at = number_at(data, data.index(start) + len(start))
            assert (found, number_at(data, at)[0]) == (seqno, count)


def test_the_tag_of_an_only_command_is_seen_at_a_glance() -> None:
    publish, now_ms = c.Enqueue(1, None, 0, (b"x",)), 1_767_607_200_000
    for kind, command in SAMPLES_V1.items():
        tag = tag_of(type(command))
        assert only_tag(b"\0" + encode_entry(now_ms, [command]), 1) == (
            tag if tag < 24 else None
        ), kind
        assert only_tag(encode_entry(now_ms, [command, publish])) is None
        assert only_tag(encode_entry(1_000, [command])) is None  # long ago
    assert only_tag(encode_entry(now_ms, [])) is None
    assert only_tag(b"") is None


@pytest.mark.parametrize("data", [b"", b"\x18", b"\x1b\0\0", b"\x20", b"\x9f", b"\x1c", b"\x61a"])
def test_what_is_no_number_is_not_taken_for_one(data: bytes) -> None:
    with pytest.raises(CodecError):
        number_at(data, 0)
