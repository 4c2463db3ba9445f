"""Streams in the catalog: declared, changed, found by subject, and never two for one subject."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_streams import overlapping
from cluster.machine.replies import BAD_ARGUMENT, INEQUIVALENT, NO_QUEUE, Declared, Refused
from cluster.machine.stream.errors import SUBJECTS_OVERLAP
from cluster.machine.stream.settings import matches
from cluster.types import QueueId, Stamp
from tests.machine.catalog_world import Book
from tests.testkit.calls import calls_of


def arguments(*subjects: str, **settings: Any) -> dict[str, Any]:
    return {"x-queue-type": "stream", "x-stream": {"subjects": [*subjects], **settings}}


def declare(name: str, *subjects: str, vhost: str = "/", **settings: Any) -> c.DeclareQueue:
    return c.DeclareQueue(vhost, name, arguments(*subjects, **settings))


@pytest.fixture
def book() -> Book:
    book = Book()
    book.apply(c.UpgradeMachine(4))
    return book


def stored_by(book: Book, subject: str, vhost: str = "/") -> str | None:
    info = book.machine.stream_for(vhost, subject.encode())
    return None if info is None else info.name


def queue_of(book: Book, name: str, *subjects: str) -> QueueId:
    """That of a stream which is declared."""
    reply = book.apply(declare(name, *subjects)).reply
    assert isinstance(reply, Declared)
    return reply.queue


def test_the_stream_of_a_subject(book: Book):
    book.queue("orders", arguments("orders.>", "new.*.order"))
    book.queue("clicks", arguments("clicks"))
    book.queue("plain")

    found = {
        subject: stored_by(book, subject)
        for subject in (
            "orders", "orders.1", "orders.1.2", "new.x.order", "new.order", "new.x.y.order",
            "clicks", "clicks.1", "plain", "",
        )
    }  # fmt: skip
    assert {subject: name for subject, name in found.items() if name} == {
        "orders.1": "orders",
        "orders.1.2": "orders",
        "new.x.order": "orders",
        "clicks": "clicks",
    }
    assert stored_by(book, "clicks", "other") is None


def test_what_was_found_is_forgotten_when_streams_come_and_go(book: Book):
    assert stored_by(book, "a.b") is None
    book.queue("one", arguments("a.*"))
    assert stored_by(book, "a.b") == "one"
    book.does(c.ChangeQueue("/", "one", arguments("c.*")))
    assert stored_by(book, "a.b") is None
    assert stored_by(book, "c.b") == "one"
    book.does(c.RemoveQueue("/", "one"))
    assert stored_by(book, "c.b") is None


@pytest.mark.parametrize("other", ["a.b", "a.*", "*.b", "a.>", ">", "*.*"])
def test_no_subject_belongs_to_two_streams(book: Book, other: str):
    book.queue("one", arguments("a.b"))
    book.queue("two", arguments("c"))

    for command in (declare("three", other), c.ChangeQueue("/", "two", arguments(other))):
        reply = book.apply(command).reply
        assert isinstance(reply, Refused)
        assert (reply.code, reply.detail) == (BAD_ARGUMENT, SUBJECTS_OVERLAP)
    book.refuses(declare("three", "x.>", other, "x.y"), BAD_ARGUMENT)
    book.does(c.PutEntry("vhosts", ["v"], {}))
    assert isinstance(book.apply(declare("three", other, vhost="v")).reply, Declared)


def test_a_change_is_of_a_stream_and_keeps_it_one(book: Book):
    book.queue("plain")
    book.queue("one", arguments("a"))

    book.refuses(c.ChangeQueue("/", "missing", arguments("b")), NO_QUEUE)
    book.refuses(c.ChangeQueue("/", "plain", arguments("b")), NO_QUEUE)
    book.refuses(c.ChangeQueue("/", "one", {}), BAD_ARGUMENT)
    book.does(c.ChangeQueue("/", "one", arguments("a", "b", max_msgs=7)))
    info = book.machine.streams("/")[0]
    config = book.machine.config_of(info.queue)
    assert config is not None
    assert (config.type, config.stream) == ("stream", {"subjects": ["a", "b"], "max_msgs": 7})
    assert book.reopened().streams("/") == [info]


def test_a_change_may_say_which_stream_is_meant(book: Book):
    book.apply(c.UpgradeMachine(5))
    former = queue_of(book, "one", "a")
    book.does(c.RemoveQueue("/", "one"))
    queue = queue_of(book, "one", "b")
    assert queue != former

    reason = book.refuses(c.ChangeQueue("/", "one", arguments("c"), former), NO_QUEUE)
    assert "made again" in reason
    assert stored_by(book, "b") == "one"
    book.does(c.ChangeQueue("/", "one", arguments("c"), queue))
    assert stored_by(book, "c") == "one"


def test_a_removal_may_say_as_what_a_queue_goes(book: Book):
    """A change that came before it keeps the queue."""
    book.apply(c.UpgradeMachine(5))
    queue = queue_of(book, "one", "a")
    book.does(c.ChangeQueue("/", "one", arguments("b"), queue))

    book.does(c.RemoveQueue("/", "one", queue, arguments("a")), count=0)
    assert stored_by(book, "b") == "one"
    book.does(c.RemoveQueue("/", "one", QueueId(queue + 1), arguments("b")), count=0)
    assert stored_by(book, "b") == "one"
    book.does(c.RemoveQueue("/", "one", queue, arguments("b")))
    assert stored_by(book, "b") is None


def test_a_queue_and_a_stream_of_one_name_are_not_the_same(book: Book):
    book.queue("one", arguments("a"))
    book.queue("plain")

    reason = book.refuses(c.DeclareQueue("/", "one", {}), INEQUIVALENT)
    assert "x-queue-type" in reason
    book.refuses(declare("plain", "b"), INEQUIVALENT)
    assert isinstance(book.apply(declare("one", "a")).reply, Declared)


def test_before_version_4_there_are_no_streams():
    book = Book()
    book.apply(c.UpgradeMachine(3))

    book.refuses(declare("one", "a"), BAD_ARGUMENT)
    book.queue("plain", {"x-stream": "kept unseen, as any unknown name"})
    book.refuses(c.ChangeQueue("/", "plain", arguments("a")), NO_QUEUE)
    book.does(c.UpgradeMachine(4), count=0)
    assert book.machine.streams("/") == []
    assert book.reopened().streams("/") == []


@pytest.mark.parametrize(
    "given",
    [{"x-queue-type": "stream"}, {"x-stream": {}}, {"x-queue-type": "stream", "x-stream": 1}],
)
def test_type_and_settings_need_each_other(book: Book, given: dict[str, Any]):
    book.refuses(c.DeclareQueue("/", "one", given), BAD_ARGUMENT)


def test_a_stream_belongs_to_no_node_and_no_connection(book: Book):
    book.does(c.RegisterNode("n1", 3))
    book.refuses(
        c.DeclareQueue("/", "one", arguments("a"), durable=False, node="n1", incarnation=3),
        BAD_ARGUMENT,
    )
    book.refuses(c.DeclareQueue("/", "one", arguments("a"), auto_delete=True), BAD_ARGUMENT)


@pytest.mark.parametrize("subject", ["a..b", "a.>.b", ".", ""])
def test_a_subject_that_is_none_keeps_nobody_from_the_others(book: Book, subject: str):
    """As whoever declared the stream said it, and no door of JetStream has checked."""
    book.queue("other", arguments("a", "c.>"))
    book.queue("odd", arguments(subject))

    assert [stored_by(book, each) for each in ("a", "a.x", "c.x")] == ["other", None, "other"]


def any_subject(random: Random) -> str:
    """Sometimes one that means nothing."""
    tokens = random.choices(("a", "b", "*", ">", ""), (6, 6, 3, 2, 1), k=random.randint(1, 4))
    return ".".join(tokens)


def means_something(pattern: bytes) -> bool:
    tokens = pattern.split(b".")
    return b"" not in tokens and b">" not in tokens[:-1]


@pytest.mark.parametrize("seed", range(40))
def test_who_is_in_the_way_and_who_is_found_are_as_by_a_look_at_every_stream(seed: int):
    random, machine = Random(seed), Book().machine
    machine.apply(Stamp(2, 1, 0), c.UpgradeMachine(5))
    refusals = declares = 0
    for index in range(3, 120):
        name = random.choice("nopqrstu")
        wanted = arguments(*(any_subject(random) for _ in range(random.choice((1, 1, 2, 3)))))
        known = machine.queue("/", name)
        do = random.random()
        if do < 0.25:
            machine.apply(Stamp(index, 1, 0), c.RemoveQueue("/", name))
        elif known is None or do < 0.6:
            others = [each for each in machine.streams("/") if each is not known]
            kind = c.DeclareQueue if known is None else c.ChangeQueue
            reply = machine.apply(Stamp(index, 1, 0), kind("/", name, wanted)).reply
            refusal = overlapping(wanted["x-stream"], others)
            assert (reply if isinstance(reply, Refused) else None) == refusal
            refusals += refusal is not None
            declares += refusal is None
        elif do < 0.65:
            snapshot = machine.snapshot()
            machine = CatalogMachine()
            machine.restore(snapshot)
        elif do < 0.7:
            machine = machine.copy()
        subject = any_subject(random).replace("*", "a").replace(">", "b").encode()
        found = machine.stream_for("/", subject)
        patterns = {
            info.name: [each.encode() for each in (info.stream or {})["subjects"]]
            for info in machine.streams("/")
        }
        holders = {
            name
            for name, each in patterns.items()
            if any(matches(one, subject) for one in filter(means_something, each))
        }
        assert holders == (set() if found is None else {found.name})
    assert min(refusals, declares) > 5


def test_a_stream_is_declared_changed_and_found_without_a_look_at_every_other(book: Book):
    """Each start applies thousands of these again."""
    machine, at = book.machine, Stamp(5_000, 1, 0)
    for number in range(1_000):
        machine.apply(Stamp(number + 10, 1, 0), declare(f"s{number}", f"s.{number}"))
    assert len(machine.streams("/")) == 1_000
    assert stored_by(book, "s.7") == "s7"

    new, changed = declare("new", "s.new"), c.ChangeQueue("/", "s7", arguments("s.seven.*"))
    assert calls_of(lambda: machine.apply(at, new)) < 500
    assert calls_of(lambda: machine.apply(at, changed)) < 500
    assert calls_of(lambda: machine.stream_for("/", b"s.seven.x")) < 100
    assert stored_by(book, "s.seven.x") == "s7"
    assert stored_by(book, "s.7") is None
