"""Subjects become others by a pattern."""

from __future__ import annotations

import pytest

from cluster.machine.effects import StreamStored
from cluster.machine.stream import errors
from cluster.machine.stream.settings import ASKED_LAST_SUBJECT
from cluster.machine.stream.transforms import BadTransform, transform_of
from cluster.types import BodyRef
from tests.machine.stream.streams import START_MS, STREAM, Streams


@pytest.mark.parametrize(
    ("source", "dest", "subject", "made"),
    [
        ("", "x.>", "a.b", "x.a.b"),
        (">", ">", "a.b", "a.b"),
        ("a.*.*", "b.$2.$1", "a.1.2", "b.2.1"),
        ("a.*.>", "b.>.", "a.1.2", None),
        ("a.*.>", "b.{{wildcard(1)}}.>", "a.1.2.3", "b.1.2.3"),
        ("a.*", "b.$1", "c.1", ""),
        ("*", "{{left(1,2)}}", "abcde", "ab"),
        ("*", "{{ Right( 1, 2 ) }}", "abcde", "de"),
        ("*", "{{left(1,9)}}", "abcde", "abcde"),
        ("*", "{{splitfromleft(1,2)}}", "abcde", "ab.cde"),
        ("*", "{{SplitFromRight(1,2)}}", "abcde", "abc.de"),
        ("*", "{{slicefromleft(1,2)}}", "abcde", "ab.cd.e"),
        ("*", "{{slicefromleft(1,2)}}", "abcd", "ab.cd"),
        ("*", "{{slicefromright(1,2)}}", "abcde", "a.bc.de"),
        ("*", "{{slicefromright(1,2)}}", "abcd", "ab.cd"),
        ("*", "{{split(1,-)}}", "-ab--c-", "ab.c"),
        ("*.*", "$1.{{partition(5,1,2)}}", "foo.bar", "foo.0"),
        ("a", "b", "a", "b"),
        ("a", "$JS.b", "a", "$JS.b"),
    ],
)
def test_a_subject_is_made_of_what_the_wildcards_mean(
    source: str, dest: str, subject: str, made: str | None
):
    if made is None:
        with pytest.raises(BadTransform):
            transform_of(source, dest)
    else:
        assert transform_of(source, dest)(subject.encode()) == (made.encode() or None)


@pytest.mark.parametrize(
    ("source", "dest"),
    [
        ("a.*", "b.$2"),
        ("a.*", "b.*"),
        ("a.>", "b"),
        ("a", "b.>"),
        ("a..b", "c"),
        ("*", "{{upper(1)}}"),
        ("*", "{{left(1)}}"),
        ("*", "{{left(1,x)}}"),
        ("*", "{{random(3)}}"),
        ("*", "x{{left(1,2)}}"),
    ],
)
def test_what_cannot_be_is_refused(source: str, dest: str):
    with pytest.raises(BadTransform):
        transform_of(source, dest)


@pytest.mark.parametrize("dest", ["b.${}1", "{{{{left(1, {}1)}}}}"])
def test_a_number_may_have_more_digits_than_python_reads(dest: str):
    assert transform_of("a.*", dest.format("0" * 5_000))(b"a.x")
    with pytest.raises(BadTransform):
        transform_of("a.*", dest.format("1" * 5_000))


def test_a_stream_stores_under_the_subject_that_was_made():
    s = Streams(subjects=["a.*", "b"], subject_transform={"src": "a.*", "dest": "to.$1"})

    assert s.stored("a.1", "b", "a.2", "a.1") == 1
    assert s.stored("a.1", asked={ASKED_LAST_SUBJECT: 4}) == 5
    assert s.held() == {1: "to.1", 2: "b", 3: "to.2", 4: "to.1", 5: "to.1"}
    assert s.publish("to.1").answers == {0: [errors.WRONG_SUBJECT, 5]}


def test_what_is_published_again_is_an_effect():
    s = Streams(republish={"src": "a.*", "dest": "copy.$1"})

    s.stored("a.1", "b", "a.1")

    again = [each for each in s.effects if isinstance(each, StreamStored)]
    assert again == [
        StreamStored(STREAM, 1, b"a.1", b"copy.1", BodyRef(s.index, 0, 1), START_MS, 0),
        StreamStored(STREAM, 3, b"a.1", b"copy.1", BodyRef(s.index, 2, 1), START_MS, 1),
    ]


def test_what_the_log_has_and_cannot_be_is_as_nothing():
    s = Streams(subject_transform={"src": "a.*", "dest": "b.$7"})

    assert s.stored("a.1") == 1
    assert s.held() == {1: "a.1"}
