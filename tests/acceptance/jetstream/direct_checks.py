"""N2, direct get: messages without JSON, by status headers."""

from __future__ import annotations

import time

from tests.acceptance.jetstream.visit import (
    QUIET_S,
    Subscription,
    Visit,
    as_bytes,
    headers_of,
    status,
)
from tests.node.nats.wire import Message


def get(js: Visit, stream: str, subject: str = "", **asked: object) -> Message:
    """The answer, whatever it is."""
    words = f"$JS.API.DIRECT.GET.{stream}{subject and '.'}{subject}"
    return js.request(words, as_bytes(asked) if asked else b"")


def get_many(js: Visit, stream: str, **asked: object) -> list[Message]:
    """All that comes, with the status at the end."""
    get(js, stream, seq=1)  # by now its node is known
    inbox: Subscription = js.main.inbox()
    js.main.tell(f"$JS.API.DIRECT.GET.{stream}", as_bytes(asked), reply=inbox.subject)
    found = [inbox.next()]
    while not found[-1].status:
        found.append(inbox.next())
    return found


def sequences(messages: list[Message]) -> list[int]:
    return [int(headers_of(each)["Nats-Sequence"]) for each in messages if not each.status]


def filled(js: Visit) -> str:
    """a1 b2 a3 c4 b5."""
    stream = js.stream(allow_direct=True)
    for number, subject in enumerate("abacb", 1):
        js.fill(f"{stream}.{subject}", str(number))
    return stream


def n2_direct_get(js: Visit) -> None:
    """The message with its own headers, and where it is in more of them."""
    stream = js.stream(allow_direct=True)
    js.publish(f"{stream}.a", b"1", Colour="blue")
    found = get(js, stream, seq=1)
    assert found.body == b"1"
    about = headers_of(found)
    assert about["Colour"] == "blue"
    assert about["Nats-Stream"] == stream
    assert about["Nats-Subject"] == f"{stream}.a"
    assert about["Nats-Sequence"] == "1"
    assert about["Nats-Time-Stamp"].endswith("Z")


def n2_direct_get_without_headers(js: Visit) -> None:
    """`no_hdr`: neither its own nor where it is, but for the last of each subject."""
    stream = filled(js)
    js.publish(f"{stream}.a", b"6", Colour="blue")
    for found in (
        get(js, stream, seq=6, no_hdr=True),
        get(js, stream, f"{stream}.a", no_hdr=True),
        get(js, stream, next_by_subj=f"{stream}.*", seq=6, no_hdr=True),
    ):
        assert (found.header, found.body) == (b"", b"6")
    found = get_many(js, stream, batch=2, seq=5, no_hdr=True)
    assert [(each.header, each.body) for each in found[:-1]] == [(b"", b"5"), (b"", b"6")]
    assert status(found[-1]) == "204 EOB"
    found = get_many(js, stream, multi_last=[f"{stream}.*"], no_hdr=True)
    assert sequences(found) == [4, 5, 6]
    assert status(get(js, stream, seq=6, no_hdr="yes")) == "408 Malformed Request"


def n2_direct_get_of_a_subject(js: Visit) -> None:
    """The last of a subject, or the next; also by the subject of the request."""
    stream = filled(js)
    assert get(js, stream, last_by_subj=f"{stream}.b").body == b"5"
    assert get(js, stream, f"{stream}.a").body == b"3"
    assert get(js, stream, next_by_subj=f"{stream}.a").body == b"1"
    assert get(js, stream, next_by_subj=f"{stream}.a", seq=2).body == b"3"
    assert get(js, stream, seq=4).body == b"4"


def n2_direct_get_nothing(js: Visit) -> None:
    """404; without a question 408."""
    stream = filled(js)
    assert status(get(js, stream, seq=9)) == "404 Message Not Found"
    assert status(get(js, stream, f"{stream}.x")) == "404 Message Not Found"
    assert status(get(js, stream)) == "408 Empty Request"
    for body in (b"{", b"[]", b'{"seq":-1}', b'{"start_time":"noon"}'):
        found = js.request(f"$JS.API.DIRECT.GET.{stream}", body)
        assert status(found) == "408 Malformed Request", body
    for asked in ({"seq": 1}, {"batch": 2}, {"next_by_subj": f"{stream}.b"}, {"multi_last": ["a"]}):
        assert status(get(js, stream, last_by_subj=f"{stream}.a", **asked)) == "408 Bad Request"


def n2_direct_get_not_allowed(js: Visit) -> None:
    """Where a stream does not allow it nobody answers."""
    stream = js.stream()
    js.fill(stream, "a")
    answer = js.main.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":1}')
    assert answer.status == 503


def n2_direct_get_last_of_each(js: Visit) -> None:
    """The last message of every subject that matches, in the order of the stream."""
    stream = filled(js)
    found = get_many(js, stream, multi_last=[f"{stream}.*"])
    assert sequences(found) == [3, 4, 5]
    assert status(found[-1]) == "204 EOB"
    about = headers_of(found[-1])
    assert (about["Nats-Num-Pending"], about["Nats-Last-Sequence"]) == ("0", "5")
    assert about["Nats-UpTo-Sequence"] == "5"
    assert [headers_of(each)["Nats-Num-Pending"] for each in found[:-1]] == ["2", "1", "0"]
    found = get_many(js, stream, multi_last=[f"{stream}.a", f"{stream}.c"])
    assert sequences(found) == [3, 4]
    found = get_many(js, stream, multi_last=[f"{stream}.*"], up_to_seq=3)
    assert sequences(found) == [2, 3]
    found = get_many(js, stream, multi_last=[f"{stream}.*"], batch=2)
    assert sequences(found) == [3, 4]
    assert headers_of(found[-1])["Nats-Num-Pending"] == "1"
    found = get_many(js, stream, multi_last=[f"{stream}.x"])
    assert status(found[-1]) == "404 No Results"


def n2_direct_get_up_to_a_time(js: Visit) -> None:
    """As it was then."""
    stream = filled(js)
    time.sleep(QUIET_S)
    js.fill(f"{stream}.a", "6")
    when = js.got(f"STREAM.MSG.GET.{stream}", {"seq": 6})["message"]["time"]
    assert sequences(get_many(js, stream, multi_last=[f"{stream}.*"], up_to_time=when)) == [3, 4, 5]


def n2_direct_get_batch(js: Visit) -> None:
    """Several that follow each other; what is left is told."""
    stream = filled(js)
    found = get_many(js, stream, batch=2, seq=2)
    assert sequences(found) == [2, 3]
    assert [headers_of(each)["Nats-Num-Pending"] for each in found[:-1]] == ["3", "2"]
    assert [headers_of(each)["Nats-Last-Sequence"] for each in found[:-1]] == ["0", "2"]
    assert status(found[-1]) == "204 EOB"
    about = headers_of(found[-1])
    assert (about["Nats-Num-Pending"], about["Nats-Last-Sequence"]) == ("2", "3")
    found = get_many(js, stream, batch=10, next_by_subj=f"{stream}.b")
    assert sequences(found) == [2, 5]
    found = get_many(js, stream, batch=10, next_by_subj=f"{stream}.x")
    assert status(found[-1]) == "404 Message Not Found"


def n2_direct_get_too_many(js: Visit) -> None:
    """Over 1024 subjects are too many for one answer."""
    stream = js.stream(allow_direct=True)
    js.publish(f"{stream}.0")
    inbox = js.main.inbox()
    for number in range(1025):
        js.main.tell(f"{stream}.{number}", reply=inbox.subject)
    inbox.some(1025)
    found = get_many(js, stream, multi_last=[f"{stream}.*"])
    assert status(found[-1]) == "413 Too Many Results"


def n2_direct_get_at_any_node(js: Visit) -> None:
    """Whichever node the client is at."""
    stream = filled(js)
    for node in range(3):
        client = js.client(node)
        subject = f"$JS.API.DIRECT.GET.{stream}.{stream}.c"
        js.until(lambda s=subject, c=client: c.request(s).status == 0, "nobody answers")
        assert client.request(subject).body == b"4"
