"""Message groups: of one key one message is in flight, in order, and keys take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.machine.commands import (
    ATTR_DELIVER_AT_MS,
    ATTR_GROUP_KEY,
    ATTR_TTL_MS,
    Cancel,
    CloseSession,
    CreateQueue,
    Discard,
    Enqueue,
    Get,
    OpenSession,
    Purge,
    QueueConfig,
    Retime,
    Return,
    Settle,
    Subscribe,
    Tick,
    UpgradeMachine,
    Withdraw,
)
from cluster.machine.effects import Deliver
from cluster.machine.keyed import KeyedReady
from cluster.machine.replies import Chunk, Enqueued, Got, Refused, Subscribed
from cluster.types import ConsumerKey, NodeId, QueueId, SessionId
from tests.machine.world import START_MS, World

Q, DEAD = QueueId(1), QueueId(2)
Key = str | None


class Grouped:
    """A queue with keys; bodies say `key:number`, or `:number`. `World` applies every command to a
    copy from a snapshot, too, and looks at invariants.
    """

    def __init__(self, **settings: object) -> None:
        self.world = World()
        self.world.apply(UpgradeMachine(5))
        config = QueueConfig(group_key="k", **settings)  # type: ignore[arg-type]
        self.world.apply(CreateQueue(Q, "/", "q", config))
        self.columns = True  # whether the next batch says its keys as a list
        self.numbers: dict[Key, int] = {}
        self.held: dict[int, list[tuple[int, Key, str]]] = {}
        self.keys: dict[str, ConsumerKey] = {}

    def publish(self, *keys: Key, **attrs: int) -> None:
        bodies: list[bytes] = []
        said: list[dict[int, object] | None] = []
        for key in keys:
            self.numbers[key] = number = self.numbers.get(key, 0) + 1
            bodies.append(f"{key or ''}:{number}".encode())
            each: dict[int, object] = {} if key is None else {ATTR_GROUP_KEY: key}
            if "delay" in attrs:
                each[ATTR_DELIVER_AT_MS] = START_MS + self.world.now_ms + attrs["delay"]
            if "ttl" in attrs:
                each[ATTR_TTL_MS] = attrs["ttl"]
            said.append(each or None)
        column = {ATTR_GROUP_KEY: list(keys)} if self.columns and not attrs else said
        assert isinstance(self.do(Enqueue(Q, None, 0, bodies, None, column)), Enqueued)
        self.columns = not self.columns

    def consume(self, name: str, credit: int = 1, *, auto: bool = False) -> list[str]:
        session = SessionId(name)
        self.world.apply(OpenSession(session, NodeId("n"), 1))
        before = self.handed()
        reply = self.do(Subscribe(Q, session, "t", credit, auto_settle=auto))
        assert isinstance(reply, Subscribed)
        self.keys[name] = reply.consumer
        return [body for body in self.handed() if body not in before]

    def do(self, command: object) -> object:
        applied = self.world.apply(command)
        for effect in applied.effects:
            if isinstance(effect, Deliver) and effect.queue == Q:
                self.take(effect.consumer, effect.chunks)
        return applied.reply

    def take(self, consumer: int, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            for nth in range(chunk.bodies.count):
                body = self.world.body(chunk, nth)
                entry = chunk.first + nth, body.split(":")[0] or None, body
                self.held.setdefault(consumer, []).append(entry)

    def handed(self) -> list[str]:
        return [body for each in self.held.values() for _, _, body in each]

    def of(self, name: str) -> list[str]:
        return [body for _, _, body in self.held.get(self.keys[name], ())]

    def end(self, command: type, name: str, body: str, **how: object) -> None:
        """Settle, return or discard one."""
        key = self.keys[name]
        found = next(each for each in self.held[key] if each[2] == body)
        self.held[key].remove(found)
        self.do(command(Q, key, [(found[0], found[0])], **how))

    def at(self, ms: int) -> None:
        self.world.now_ms = ms
        self.do(Tick())


def test_of_a_key_one_message_is_in_flight_and_any_consumer_takes_the_next_key():
    queue = Grouped()
    queue.publish("a", "a", "b", "a")

    assert queue.consume("ann", credit=2) == ["a:1", "b:1"]
    assert queue.consume("bob", credit=10) == []
    queue.publish("c")
    assert queue.of("bob") == ["c:1"], "the other one has no room"
    queue.end(Settle, "ann", "a:1")
    assert [*queue.of("ann"), *queue.of("bob")].count("a:2") == 1
    assert "a:3" not in queue.handed()


def test_what_is_fetched_by_its_place_overtakes_no_other_of_its_key():
    queue = Grouped()
    queue.publish("a", "a", None, "b")
    queue.consume("ann", credit=1)
    queue.end(Return, "ann", "a:1", delay_ms=60_000)
    queue.world.apply(OpenSession(SessionId("bob"), NodeId("n"), 1))

    # a:1 was put aside and holds its key; a:2 waits for it, b:1 for its turn.
    reply = queue.do(Get(Q, SessionId("bob"), 4, positions=[(1, 4)]))
    assert isinstance(reply, Got)
    got = [
        queue.world.body(chunk, nth) for chunk in reply.chunks for nth in range(chunk.bodies.count)
    ]
    assert got[0] == "a:1"
    assert not {"a:2", "b:1"} & set(got)
    assert "a:2" not in queue.handed()
    queue.do(Settle(Q, reply.consumer, [(1, 1)]))
    while "a:2" not in queue.handed():
        queue.end(Settle, "ann", queue.of("ann")[-1])


def test_a_hot_key_takes_its_turn_like_others():
    queue = Grouped()
    queue.publish(*["hot"] * 50, "b", "c")
    queue.consume("ann")

    served: list[str] = []
    while queue.of("ann"):
        served += queue.of("ann")
        queue.end(Settle, "ann", served[-1])
    assert served[:6] == ["hot:1", "b:1", "c:1", "hot:2", "hot:3", "hot:4"]
    assert served[3:] == [f"hot:{number}" for number in range(2, 51)]


def test_messages_without_a_key_are_free_and_take_every_other_turn():
    queue = Grouped()
    queue.publish(None, None, None, "a", "b", "a")

    assert queue.consume("ann", credit=4) == ["a:1", ":1", "b:1", ":2"]
    queue.end(Return, "ann", ":1")
    assert queue.of("ann")[-1] == ":1", "where it was: before the third"


@pytest.mark.parametrize("failed", [True, False])
def test_what_is_returned_comes_before_its_followers(failed: bool):
    queue = Grouped(delayed_retry_type="all", delayed_retry_min_ms=50)
    queue.publish("a", "a", "b")
    queue.consume("ann")

    queue.end(Return, "ann", "a:1", failed=failed, delay_ms=0)
    assert queue.of("ann") == ["b:1"], "and other keys before it"
    queue.end(Return, "ann", "b:1", failed=failed, delay_ms=30)
    queue.end(Return, "ann", "a:1", failed=failed, delay_ms=60)
    assert queue.of("ann") == [], "the second of a would overtake the first, which waits"
    queue.at(60)
    assert queue.of("ann") == ["b:1"]
    queue.end(Settle, "ann", "b:1")
    assert queue.of("ann") == ["a:1"]


def test_what_a_consumer_that_ended_held_comes_first():
    queue = Grouped(delivery_limit=5)
    queue.publish("a", "b", "a", "b")
    queue.consume("ann", credit=5)
    queue.consume("bob", credit=5)

    del queue.held[queue.keys["ann"]]
    queue.do(CloseSession(SessionId("ann")))
    assert queue.of("bob") == ["a:1", "b:1"]


def test_settled_without_acks_all_go_in_order():
    queue = Grouped()
    queue.publish("a", "a", "b", "a")

    assert queue.consume("ann", credit=0, auto=True) == ["a:1", "b:1", "a:2", "a:3"]


def test_get_takes_what_is_free():
    queue = Grouped()
    queue.publish("a", "a", "b")
    queue.world.apply(OpenSession(SessionId("ann"), NodeId("n"), 1))

    first = queue.do(Get(Q, SessionId("ann"), 10))
    assert isinstance(first, Got)
    assert [queue.world.body(each, 0) for each in first.chunks] == ["a:1", "b:1"]
    second = queue.do(Get(Q, SessionId("ann"), 10))
    assert isinstance(second, Got)
    assert not second.chunks
    queue.do(Settle(Q, first.consumer, [(1, 1)]))
    third = queue.do(Get(Q, SessionId("ann"), 10))
    assert isinstance(third, Got)
    assert queue.world.body(third.chunks[0], 0) == "a:2"


def test_dead_letters_keep_their_keys_and_their_order():
    queue = Grouped(dead_letter_queue=DEAD, dead_letter_exchange="", delivery_limit=0)
    config = QueueConfig(group_key="k")
    queue.world.apply(CreateQueue(DEAD, "/", "dead", config))
    queue.publish("a", "b", "a")
    queue.consume("ann", credit=1)
    queue.end(Discard, "ann", "a:1")
    queue.end(Return, "ann", "b:1", failed=True)
    queue.end(Discard, "ann", "a:2")

    queue.world.apply(OpenSession(SessionId("dora"), NodeId("n"), 1))
    got = queue.world.apply(Get(DEAD, SessionId("dora"), 10)).reply
    assert isinstance(got, Got)
    assert [queue.world.body(each, 0) for each in got.chunks] == ["a:1", "b:1"]


def test_a_target_that_asks_for_another_key_gets_its_dead_letters_from_a_node_that_reads_headers():
    queue = Grouped(dead_letter_queue=DEAD, dead_letter_exchange="", delivery_limit=0)
    queue.world.apply(CreateQueue(DEAD, "/", "dead", QueueConfig(group_key="other")))
    queue.publish("a")
    queue.consume("ann")
    queue.end(Discard, "ann", "a:1")

    assert len(queue.world.machine.dead_letters(Q)) == 1


def test_ttl_limits_and_purge_go_by_age_whatever_is_held():
    queue = Grouped(message_ttl_ms=100, max_length=3)
    queue.publish("a", "a", "b", "a", "b")
    view = queue.world.machine.queue(Q)
    assert view is not None
    assert view.ready_count == 3
    assert queue.consume("ann", credit=1) == ["a:3"]
    queue.publish("b", "b")
    queue.at(101)
    view = queue.world.machine.queue(Q)
    assert view is not None
    assert (view.ready_count, view.unsettled_count) == (0, 1)
    queue.publish("b", "c")
    assert queue.do(Purge(Q)) is not None
    queue.end(Settle, "ann", "a:3")
    assert queue.handed() == []


def test_the_keys_that_messages_wait_for_are_named():
    queue = Grouped()
    queue.publish("a", "b", "a", "a", "c")
    queue.consume("ann", credit=2)
    assert queue.of("ann") == ["a:1", "b:1"]

    found = queue.world.machine.held_keys(Q, 5)
    assert [(each.name, each.waiting, consumer) for each, consumer in found] == [
        ("a", 2, queue.keys["ann"])
    ]
    queue.end(Return, "ann", "a:1", delay_ms=90)
    found = queue.world.machine.held_keys(Q, 5)
    assert [(each.name, consumer) for each, consumer in found] == [("a", None)]


def test_nothing_is_kept_of_keys_without_messages():
    queue = Grouped()
    empty = len(queue.world.machine.snapshot())
    for number in range(300):
        queue.publish(f"key-{number}")
    queue.consume("ann", credit=0, auto=True)
    queue.do(Cancel(Q, queue.keys["ann"]))
    assert len(queue.world.machine.snapshot()) <= empty + 60


def test_a_key_is_text():
    queue = Grouped()
    reply = queue.do(Enqueue(Q, None, 0, [b"x"], None, {ATTR_GROUP_KEY: 7}))
    assert isinstance(reply, Refused)
    assert "key" in reply.reason


def test_looking_at_some_costs_what_they_do_however_many_are_ready():
    looked_at = 0

    class Counted(set[int]):
        def __contains__(self, position: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return super().__contains__(position)

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("all that are ready are looked at")

    ready = KeyedReady()
    ready.enter(1, ["a", "b"] * 5_000)
    for position in range(2_000, 2_100):
        ready.cut(position, position)
    ready._ready = Counted(ready._ready)

    assert ready.from_position(1, 3) == [1, 2, 3]
    assert ready.from_position(1_999, 2) == [1_999, 2_100]
    assert ready.from_position(10_000, 5) == [10_000]
    assert ready.from_position(10_001, 5) == []
    assert looked_at < 200


def test_what_is_ready_is_found_wherever_it_is():
    ready = KeyedReady()
    ready.enter(1, ["a", None] * 500)
    left = [1, 2, 400, 401, 999]
    for position in set(range(1, 1_001)) - set(left):
        ready.cut(position, position)
    for start in range(1_002):
        for count in range(7):
            behind = [at for at in left if at >= start]
            assert ready.from_position(start, count) == behind[:count]


@pytest.mark.parametrize("keys", ["xyx", [7, "y", "x"]])
def test_before_there_were_keys_nobody_looked_at_them(keys: Sequence[object]):
    """So a log of that version leaves what it left in the release that wrote it."""
    states: list[bytes] = []
    for attrs in ([{ATTR_GROUP_KEY: key} for key in keys], [{}, {}, {}]):
        world = World()
        world.apply(UpgradeMachine(4))
        world.apply(CreateQueue(Q, "/", "q", QueueConfig()))
        bodies = [b"a", b"b", b"c"]
        assert isinstance(world.apply(Enqueue(Q, None, 0, bodies, None, attrs)).reply, Enqueued)
        states.append(world.machine.digest())
    assert states[0] == states[1]


def test_before_there_were_keys_nobody_looked_at_a_list_of_them():
    states: list[bytes] = []
    for attrs in ({ATTR_GROUP_KEY: ["x", 7]}, {}):
        world = World()
        world.apply(UpgradeMachine(4))
        world.apply(CreateQueue(Q, "/", "q", QueueConfig()))
        reply = world.apply(Enqueue(Q, None, 0, [b"a"], None, attrs)).reply
        assert isinstance(reply, Enqueued)
        states.append(world.machine.digest())
    assert states[0] == states[1]


@pytest.mark.parametrize("settings", [{}, {"max_length": 3, "overflow": "reject-publish"}])
def test_a_list_of_keys_says_what_attributes_of_each_do(settings: dict[str, object]):
    """Also where each message is looked at, since the queue may be full."""
    states: list[bytes] = []
    keys = ["a", None, "a", "b", None]
    for attrs in (
        {ATTR_GROUP_KEY: keys},
        [None if key is None else {ATTR_GROUP_KEY: key} for key in keys],
    ):
        queue = Grouped(**settings)
        queue.world.apply(Enqueue(Q, "p", 1, [b"0"], None, {ATTR_GROUP_KEY: "a"}))
        reply = queue.do(Enqueue(Q, "p", 1, [b"0", *[b"x"] * 4], None, attrs))  # the first again
        assert isinstance(reply, Enqueued)
        assert reply.duplicates == 1
        assert reply.stored == (2 if settings else 4)
        states.append(queue.world.machine.digest())
    assert states[0] == states[1]


@pytest.mark.parametrize(
    "keys", [["a"], ["a", "b", "c"], ["a", ""], ["a", 7], ["a", "x" * 256], ("a", "b"), []]
)
@pytest.mark.parametrize("settings", [{}, {"max_length": 3, "overflow": "reject-publish"}])
def test_what_is_no_list_of_keys_is_refused(keys: Sequence[object], settings: dict[str, object]):
    queue = Grouped(**settings)
    attrs = {ATTR_GROUP_KEY: keys}
    assert isinstance(queue.do(Enqueue(Q, None, 0, [b"x", b"y"], None, attrs)), Refused)
    more = {ATTR_GROUP_KEY: ["a", "b"], ATTR_TTL_MS: 1}
    assert isinstance(queue.do(Enqueue(Q, None, 0, [b"x", b"y"], None, more)), Refused)


@pytest.mark.parametrize("attrs", [["a"], [[1]], ["abcdefghi"], [["a"] * 9], "a"])
def test_what_are_no_attributes_is_refused(attrs: object):
    queue = Grouped()
    assert isinstance(queue.do(Enqueue(Q, None, 0, [b"x"], None, attrs)), Refused)


def test_no_priorities():
    queue = Grouped()
    reply = queue.do(CreateQueue(DEAD, "/", "p", QueueConfig(group_key="k", max_priority=3)))
    assert isinstance(reply, Refused)


KEYS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=12)


class GroupModel(RuleBasedStateMachine):
    """Whatever happens: one in flight a key, no message before an older one of its key, and what
    could go goes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queue = Grouped(
            delayed_retry_type="failed",
            delayed_retry_min_ms=10,
            delayed_retry_max_ms=10,
            delivery_limit=2,
            dead_letter_queue=DEAD,
            dead_letter_exchange="",
        )
        self.queue.world.apply(CreateQueue(DEAD, "/", "dead", QueueConfig(group_key="k")))
        self.gone: dict[Key, int] = {}  # the last one of each key that is done with
        self.moved = False  # an operator said that some shall come later

    @rule(keys=KEYS)
    def publish(self, keys: list[Key]) -> None:
        self.queue.publish(*keys)

    @rule(keys=KEYS, delay=st.integers(1, 20))
    def publish_later(self, keys: list[Key], delay: int) -> None:
        self.moved = True  # those behind may overtake these
        self.queue.publish(*keys, delay=delay)

    @rule(keys=KEYS, ttl=st.integers(0, 20))
    def publish_short_lived(self, keys: list[Key], ttl: int) -> None:
        self.queue.publish(*keys, ttl=ttl)

    @rule(name=st.sampled_from(["ann", "bob"]), credit=st.integers(0, 3))
    def subscribe(self, name: str, credit: int) -> None:
        self.queue.consume(name, credit)

    @precondition(lambda self: self.queue.handed())
    @rule(
        data=st.data(),
        how=st.sampled_from(["settle", "return", "fail", "later", "discard"]),
    )
    def finish(self, data: st.DataObject, how: str) -> None:
        names = [name for name in self.queue.keys if self.queue.of(name)]
        if not names:
            return
        name = data.draw(st.sampled_from(names))
        body = data.draw(st.sampled_from(self.queue.of(name)))
        match how:
            case "settle":
                self.queue.end(Settle, name, body)
            case "discard":
                self.queue.end(Discard, name, body)
            case "later":
                self.queue.end(Return, name, body, delay_ms=15)
            case _:
                self.queue.end(Return, name, body, failed=how == "fail")

    @precondition(lambda self: self.queue.keys)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.queue.keys)))
        self.queue.held.pop(self.queue.keys.pop(name), None)
        self.queue.do(CloseSession(SessionId(name)))

    @rule(ms=st.integers(0, 30))
    def time(self, ms: int) -> None:
        self.queue.at(self.queue.world.now_ms + ms)

    @rule()
    def purge(self) -> None:
        self.queue.do(Purge(Q))

    @rule(data=st.data(), later=st.booleans())
    def surgery(self, data: st.DataObject, later: bool) -> None:
        rows = self.queue.world.machine.browse(Q, 1, 100, "ready")
        if not rows:
            return
        at = data.draw(st.sampled_from([row.position for row in rows]))
        if later:
            self.moved = True
            due_ms = START_MS + self.queue.world.now_ms + 5
            self.queue.do(Retime(Q, [(at, at)], due_ms))
        else:
            self.queue.do(Withdraw(Q, [(at, at)]))

    @invariant()
    def one_in_flight(self) -> None:
        keys = [key for each in self.queue.held.values() for _, key, _ in each if key is not None]
        assert len(keys) == len(set(keys)), "two of a key are in flight"

    @invariant()
    def in_order(self) -> None:
        """What is ready of a key is behind what is in flight of it."""
        if self.moved:
            return
        held = {
            key: at for each in self.queue.held.values() for at, key, _ in each if key is not None
        }
        for row in self.queue.world.machine.browse(Q, 1, 10_000, "ready"):
            key = self.queue.world.body(row.chunk, 0).split(":")[0]
            if key in held:
                assert held[key] < row.position, "a message was overtaken"

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """With room somewhere, every key that has ready messages is in flight or waits."""
        machine = self.queue.world.machine
        view = machine.queue(Q)
        assert view is not None
        if any(each.room and each.status == "up" for each in view.consumers):
            held = {each.name for each, _ in machine.held_keys(Q, 100)}
            for row in machine.browse(Q, 1, 10_000, "ready"):
                assert self.queue.world.body(row.chunk, 0).split(":")[0] in held


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_turns_that_are_passed_over_are_thrown_out():
    """Of keys whose only ready message leaves, again and again, while others wait."""
    ready = KeyedReady()
    ready.enter(1, ["first"])
    for position in range(2, 1_000):
        ready.enter(position, [f"key-{position % 7}"])
        ready.cut(position, position)
        ready.forget(position, position)
        ready.invariants()
    assert len(ready._ring) < 200
    assert len(ready._by_name) == 1
    ready.enter(1_000, ["key-0", "last"])
    assert [ready.serve(1) for _ in range(ready.free)] == [(1, 1), (1_000, 1_000), (1_001, 1_001)]


def test_a_key_that_was_passed_over_goes_behind_those_that_waited():
    ready = KeyedReady()
    ready.enter(1, ["a", "b", "a"])
    ready.cut(1, 1)
    ready.cut(3, 3)
    ready.add(3, 3)
    ready.enter(4, ["c"])
    ready.invariants()
    assert [ready.serve(1) for _ in range(ready.free)] == [(2, 2), (3, 3), (4, 4)]
