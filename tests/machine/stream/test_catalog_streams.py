"""Streams in the catalog: declared, changed, found by subject, and never two for one subject."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine import commands as c
from cluster.machine.replies import BAD_ARGUMENT, INEQUIVALENT, NO_QUEUE, Declared, Refused
from cluster.machine.stream.errors import SUBJECTS_OVERLAP
from cluster.types import QueueId
from tests.machine.catalog_world import Book


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
