"""What an entry may hold at worst: any CBOR at all in the place of any field.

The codec lets through what has the types of a command; whatever that is, the machine refuses it and
is as before, or does it and is sound.
"""

from __future__ import annotations

import functools
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.codec.entries import decode_entry
from cluster.machine import QueueMachine
from cluster.machine.commands import Barrier, CreateQueue, Enqueue, QueueConfig, UpdateQueue
from cluster.machine.replies import Refused
from cluster.types import QueueId, Stamp
from tests.machine.histories import History

TAGS = range(1, 24)

odd_integers = st.sampled_from(
    [-(1 << 70), -1, 0, 1, 2, 3, 256, 65_537, 1 << 32, 1 << 53, 1 << 63, 1 << 64, 1 << 90]
)
scalars = (
    st.none()
    | st.booleans()
    | odd_integers
    | st.integers(0, 40)
    | st.floats()
    | st.sampled_from(["", "q", "ann", "bob", "n1", "dlx:1", "~t", "drop-head", "x" * 600])
    | st.binary(max_size=4)
    | st.sampled_from([cbor2.undefined, cbor2.CBORSimpleValue(99), cbor2.CBORTag(4711, "x")])
)
keys = st.integers(0, 9) | st.sampled_from([True, 1.0, "queue", "reason", "count", "to", "x", b"1"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)

config_fields: dict[str, Any] = {
    "message_ttl_ms": odd_integers,
    "max_length": odd_integers,
    "max_length_bytes": odd_integers,
    "max_priority": odd_integers,
    "delivery_limit": odd_integers,
    "expires_ms": odd_integers,
    "delayed_retry_min_ms": odd_integers,
    "overflow": st.sampled_from(["drop-head", "reject-publish", "explode"]),
    "delayed_retry_type": st.sampled_from(["all", "returned", "", "x"]),
    "type": st.sampled_from(["queue", "stream", ""]),
    "dead_letter_queue": odd_integers,
    "dead_letter_exchange": st.none() | st.just(""),
    "single_active_consumer": st.booleans() | st.none(),
}
configs = st.fixed_dictionaries({}, optional=config_fields)
records = st.fixed_dictionaries(
    {"queue": scalars, "reason": scalars, "count": scalars}, optional={"to": values, "time": values}
)
attrs = st.dictionaries(st.integers(0, 6), scalars | st.lists(records, max_size=3), max_size=4)
ranges = st.lists(st.tuples(odd_integers, odd_integers), max_size=3)
likely = (
    st.integers(0, 9)
    | st.sampled_from(["ann", "bob", "n1", "x", "pub"])
    | st.booleans()
    | st.none()
    | st.lists(st.binary(max_size=3), min_size=1, max_size=4)
    | ranges
    | configs
    | attrs
    | st.lists(attrs | st.none(), min_size=1, max_size=4)
)
commands = st.tuples(st.sampled_from(TAGS), st.lists(likely | values, max_size=8)).map(
    lambda command: [command[0], *command[1]]
)
# Nearly right, so that more than the codec is asked.
enqueues = st.builds(
    lambda *fields: [9, *fields],
    st.integers(1, 7),
    st.none() | st.sampled_from(["pub", "dlx:2", ""]),
    odd_integers | st.just(1),
    st.lists(st.binary(max_size=3) | scalars, max_size=4) | st.lists(st.binary(), max_size=4),
    values,
    attrs | st.lists(attrs | st.none(), max_size=4) | values,
)
finishes = st.builds(
    lambda tag, queue, consumer, what, *rest: [tag, queue, consumer, what, *rest],
    st.sampled_from([13, 14, 15, 16]),
    st.integers(1, 7),
    odd_integers,
    ranges | values,
    st.booleans() | st.none() | odd_integers,
    odd_integers | st.none(),
)
creates = st.builds(
    lambda queue, config: [1, queue, "/", "q", config], st.integers(1, 12), configs
) | st.builds(lambda queue, config: [2, queue, config], st.integers(1, 12), configs)
subscribes = st.builds(
    lambda *fields: [10, *fields],
    st.integers(1, 7),
    st.sampled_from(["ann", "bob", "cid", ""]),
    st.sampled_from(["x", ""]),
    odd_integers,
    odd_integers,
    st.booleans(),
    st.booleans(),
    st.none() | odd_integers,
)


@functools.cache
def a_state(seed: int) -> tuple[bytes, int, int]:
    history = History(seed)
    for _ in history.steps(80):
        pass
    return history.machine.snapshot(), history.index, history.machine.now_ms


@given(
    st.integers(0, 5),
    st.lists(commands | enqueues | finishes | creates | subscribes, min_size=1, max_size=8),
)
def test_any_cbor_in_the_place_of_any_field_is_refused_without_a_trace_or_done(
    seed: int, script: list[list[Any]]
):
    data, index, now_ms = a_state(seed)
    machine = QueueMachine()
    machine.restore(data)
    for fields in script:
        entry = decode_entry(cbor2.dumps([1, now_ms, [fields]]))
        index += 2
        machine.apply(Stamp(index - 1, 1, now_ms), Barrier())
        before = machine.snapshot()

        applied = machine.apply(Stamp(index, 1, now_ms), entry.commands[0])

        machine.invariants()
        after = machine.snapshot()
        if isinstance(applied.reply, Refused):
            assert after == before, f"refused, yet something changed: {applied.reply}"
        copy = QueueMachine()
        copy.restore(after)
        assert copy.snapshot() == after
        assert copy.on_leader() == machine.on_leader()
        machine.next_due_ms()
        machine.overview()


@pytest.mark.parametrize(
    "config",
    [
        QueueConfig(max_priority=-1),
        QueueConfig(max_priority=256),
        QueueConfig(max_length=-1),
        QueueConfig(max_length_bytes=-1),
        QueueConfig(message_ttl_ms=-1),
        QueueConfig(expires_ms=0),
        QueueConfig(delivery_limit=-1),
        QueueConfig(consumer_timeout_ms=1 << 60),
        QueueConfig(delayed_retry_max_ms=-5),
        QueueConfig(overflow="explode"),  # pyright: ignore[reportArgumentType]
        QueueConfig(delayed_retry_type="often"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_that_cannot_be_make_no_queue_and_change_none(config: QueueConfig):
    machine = QueueMachine()
    machine.apply(Stamp(2, 1, 0), CreateQueue(QueueId(1), "/", "q", QueueConfig()))
    before = machine.snapshot()

    made = machine.apply(Stamp(3, 1, 0), CreateQueue(QueueId(2), "/", "r", config))
    changed = machine.apply(Stamp(4, 1, 0), UpdateQueue(QueueId(1), config))

    assert isinstance(made.reply, Refused)
    assert isinstance(changed.reply, Refused)
    assert machine.snapshot() == before


@pytest.mark.parametrize("body", [None, 7, "text", [b"x"], {}, 1.5])
def test_a_body_is_bytes_and_nothing_else(body: Any):
    machine = QueueMachine()
    machine.apply(Stamp(2, 1, 0), CreateQueue(QueueId(1), "/", "q", QueueConfig()))

    applied = machine.apply(Stamp(3, 1, 0), Enqueue(QueueId(1), None, 0, [b"x", body]))

    assert isinstance(applied.reply, Refused)
    assert machine.overview()["ready"] == 0
