"""`apply` answers whatever the command says: a log entry cannot be un-happened."""

# pyright: basic, reportArgumentType=false

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.codec.entries import Unknown
from cluster.machine import QueueMachine, UnsupportedSnapshot
from cluster.machine import commands as c
from cluster.machine.replies import UNKNOWN_COMMAND, Refused
from cluster.types import Stamp
from tests.machine.histories import History

HUGE = 1 << 80
#: Names in the settings of streams and of their consumers.
JETSTREAM = [
    *("subjects", "retention", "max_msgs", "max_bytes", "max_age", "max_msgs_per_subject"),
    *("max_msg_size", "max_consumers", "discard", "discard_new_per_subject", "duplicate_window"),
    *("first_seq", "sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs", "allow_msg_ttl"),
    *("subject_delete_marker_ttl", "name", "durable_name", "deliver_policy", "opt_start_seq"),
    *("opt_start_ms", "ack_policy", "ack_wait", "max_deliver", "backoff", "filter_subject"),
    *("filter_subjects", "max_ack_pending", "pause_until_ms", "deliver_subject"),
]
integers = st.sampled_from([-HUGE, -1, 0, 1, 2, 5, 99, 1 << 31, 1 << 63, HUGE])
texts = st.sampled_from(["", "a", "ann", "n1", "~t", "x" * 2_000])
ranges = st.lists(st.tuples(integers, integers), max_size=3)
deliveries = st.lists(st.tuples(integers, integers, integers), max_size=3)
handed = st.builds(c.HandedTo, integers, integers, integers, deliveries)
deaths = st.sampled_from(
    [[], [{}], "no", [{"queue": "q", "reason": "r", "count": 1, "to": 3}], [1], {"queue": 1}]
)
subjects = st.sampled_from([b"", b"a", b"a.b", b"b.*", b">", b"\xff", b"a..", b"x" * 300])
asked = st.dictionaries(
    st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, "x"]),
    st.one_of(integers, texts, subjects, st.sampled_from(["sub", "all", "q", "s"])),
)
odd = st.one_of(integers, texts, st.none(), st.booleans(), st.just({}), st.lists(integers))
values = st.sampled_from(["interest", "workqueue", "new", "none", "all", "last_per_subject", "c"])
lists = st.lists(texts | st.sampled_from(["a.*", "b", ">"]))
config_map = st.dictionaries(st.sampled_from(JETSTREAM), odd | values | lists)
attrs_map = st.dictionaries(
    st.sampled_from([1, 2, 3, 4, 5, 6, 7, "x"]),
    st.one_of(integers, texts, deaths, st.none(), subjects, asked),
)
FIELDS: dict[str, Any] = {
    "int": integers,
    "bytes | None": st.none() | subjects,
    "dict[str, Any]": config_map,
    "Literal['', 'create', 'update']": st.sampled_from(["", "create", "update", "x"]),
    "Sequence[tuple[int, int, int]]": deliveries,
    "Sequence[tuple[int, int]]": ranges,
    "AsOf": st.tuples(integers, integers),
    "tuple[int, int, int]": st.tuples(integers, integers, integers),
    "Sequence[tuple[int, int, int, int]]": st.lists(
        st.tuples(integers, integers, integers, integers), max_size=2
    ),
    "Sequence[tuple[str, int, int]]": st.lists(st.tuples(texts, integers, integers), max_size=2),
    "Sequence[int]": st.lists(integers, max_size=3),
    "ConsumerKey | None": st.none() | integers,
    "int | None": st.none() | integers,
    "str": texts,
    "str | None": st.none() | texts,
    "bool": st.booleans(),
    "QueueId": st.integers(0, 8),
    "ConsumerKey": integers,
    "SessionId": texts,
    "NodeId": texts,
    "Ranges": ranges,
    "SafeIn": st.lists(
        st.tuples(integers, integers, st.lists(st.integers(0, 8), max_size=3)), max_size=2
    ),
    "Deliveries": deliveries,
    "Wants": deliveries,
    "Batches": st.lists(
        st.tuples(st.integers(0, 8), st.lists(integers, max_size=3), st.none() | attrs_map),
        max_size=2,
    ),
    "Sequence[HandedTo] | None": st.none() | st.lists(handed, max_size=2),
    "GroupId": integers,
    "bytes": st.binary(max_size=20),
    "Sequence[GroupId]": st.lists(integers, max_size=3),
    "Sequence[bytes]": st.lists(st.sampled_from([b"", b"body", b"x" * 500]), max_size=4),
    "QueueConfig": st.builds(
        c.QueueConfig,
        type=st.sampled_from(["queue", "stream", "other"]),
        stream=st.none() | integers | config_map,
        max_priority=st.integers(0, 255),
        max_length=st.none() | st.integers(0, 9),
        message_ttl_ms=st.none() | st.integers(0, 9),
    ),
    "Any": st.none() | texts | integers | attrs_map | st.lists(st.none() | attrs_map, max_size=4),
}
KINDS = [
    kind
    for kind in vars(c).values()
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind is not c.QueueConfig
]
CATALOG = (
    c.RegisterNode,
    c.AddNode,
    c.RemoveNode,
    c.NodeGone,
    c.MoveGroup,
    c.GroupHeld,
    c.CreateGroup,
    c.DeclareQueue,
    c.ChangeQueue,
    c.RemoveQueue,
    c.ForgetNode,
    c.ForgetVolatile,
    c.DeclareExchange,
    c.DeleteExchange,
    c.Bind,
    c.Unbind,
    c.PutEntry,
    c.DropEntry,
    c.ChangeCatalog,
)


FIELDS["dict[str, Any] | None"] = st.none() | config_map
FIELDS["QueueId | None"] = st.none() | FIELDS["QueueId"]
FIELDS["Sequence[int]"] = st.lists(integers, max_size=3)
FIELDS["Sequence[tuple[int, str]]"] = st.lists(st.tuples(integers, texts), max_size=2)
FIELDS["Origin | None"] = st.none() | st.deferred(lambda: built(c.Origin))
FIELDS["Sequence[Step]"] = st.lists(st.deferred(lambda: steps), max_size=4)
FIELDS["Sequence[GroupSteps]"] = st.lists(st.tuples(integers, FIELDS["Sequence[Step]"]), max_size=2)


def built(kind: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{f.name: FIELDS[str(f.type)] for f in dataclasses.fields(kind)})


steps = st.one_of(*(built(kind) for kind in (c.Enqueue, c.Settle, c.Return, c.Discard, c.Withdraw)))
commands = st.one_of(*(built(kind) for kind in KINDS if kind not in CATALOG))


@given(st.integers(0, 20), st.lists(st.tuples(commands, integers), max_size=12))
def test_no_command_whatever_its_numbers_makes_it_raise(seed: int, script: list[tuple[Any, int]]):
    history = History(seed)
    for _ in history.steps(60):
        pass
    machine = history.machine
    apply_all(machine, history.index, script)


STREAMS = (c.Enqueue, c.Purge, c.DeleteMessage, c.PutConsumer, c.DropConsumer, c.Fetch)
stream_commands = st.one_of(
    *(built(kind) for kind in (*STREAMS, c.Acknowledge, c.UpdateQueue, c.Settle, c.Subscribe)),
    *(built(kind) for kind in (c.RestoreConsumer, c.RestoreIds)),
)


@given(st.lists(st.tuples(stream_commands, integers), max_size=20), config_map)
def test_no_command_to_a_stream_makes_it_raise(script: list[tuple[Any, int]], config: Any):
    machine = QueueMachine(4)
    for queue in range(9):
        created = c.CreateQueue(queue, "/", "q", c.QueueConfig(type="stream", stream=config))
        machine.apply(Stamp(2 + queue, 1, 0), created)
        machine.apply(Stamp(20 + queue, 1, 0), c.PutConsumer(queue, {**config, "name": "a"}))
    apply_all(machine, 40, script)


def apply_all(machine: QueueMachine, index: int, script: list[tuple[Any, int]]) -> None:
    for number, (command, now_ms) in enumerate(script):
        stamp = Stamp(index + number + 1, 1, now_ms)
        machine.apply(stamp, command)
        machine.invariants()
    copy = QueueMachine()
    copy.restore(machine.snapshot())
    assert copy.digest() == machine.digest()


@pytest.mark.parametrize(
    "command",
    [
        Unknown(200, ["later"]),
        c.RemoveQueue("/", "q"),
        c.CreateGroup("g", ["n1"]),
        c.DeclareQueue("/", "q", {}),
        None,
        17,
        "text",
        [9, 1, 2],
    ],
)
def test_a_command_it_does_not_know_is_refused_and_changes_nothing(command: Any):
    machine = QueueMachine()
    before = machine.digest()

    applied = machine.apply(Stamp(5, 1, 0), command)

    assert isinstance(applied.reply, Refused)
    assert applied.reply.code == UNKNOWN_COMMAND
    assert machine.digest() == before


def test_the_clock_of_the_log_never_goes_back():
    machine = QueueMachine()
    machine.apply(Stamp(2, 1, 5_000), c.Tick())
    machine.apply(Stamp(3, 2, 4_000), c.Tick())

    assert machine.now_ms == 5_000


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x83\x01\x02\x03"[:2], b"\x81\x18\x63", b"\xff"])
def test_a_snapshot_it_cannot_read_is_an_error_that_says_so(data: bytes):
    with pytest.raises(UnsupportedSnapshot):
        QueueMachine().restore(data)


def test_a_machine_that_knows_no_later_version_does_not_become_one():
    machine = QueueMachine()

    assert isinstance(machine.apply(Stamp(2, 1, 0), c.UpgradeMachine(99)).reply, Refused)
    assert machine.version == 1
