"""C01-C05, C13: what the kinds of exchanges do with a message."""

from __future__ import annotations

import pika.exceptions
import pytest

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.visit import Visit


def c01_fanout(broker: Visit) -> None:
    """A fanout exchange gives every bound queue a copy, whatever the keys are."""
    exchange, queues = broker.exchange("fanout"), [broker.queue() for _ in range(3)]
    for queue, key in zip(queues[:2], ("", "some.key"), strict=True):
        broker.bind(queue, exchange, key)
    broker.publish(exchange, "another.key", "a")
    assert [broker.drain(queue) for queue in queues] == [["a"], ["a"], []]


def c02_direct(broker: Visit) -> None:
    """A direct exchange goes by equality of the keys; several bindings make one copy."""
    exchange, first, second = broker.exchange("direct"), broker.queue(), broker.queue()
    for queue, key in ((first, "k"), (first, "l"), (second, "k"), (second, "*")):
        broker.bind(queue, exchange, key)
    for key in ("k", "l", "K", "k.l", ""):
        broker.publish(exchange, key, f"by {key}")
    assert broker.drain(first) == ["by k", "by l"]
    assert broker.drain(second) == ["by k"]
    broker.publish("", first, "by name")
    assert broker.drain(first) == ["by name"], "the default exchange goes by the queue's name"


def c03_topic(broker: Visit) -> None:
    """A topic exchange matches words: `*` is one word, `#` is none or more."""
    exchange = broker.exchange("topic")
    keys = ["", "a", "a.b", "a.b.c", "b.a", "x.a.y", "a..b"]
    expected = {
        "#": keys,
        "*": ["", "a"],
        "a": ["a"],
        "a.*": ["a.b"],
        "a.#": ["a", "a.b", "a.b.c", "a..b"],
        "*.b": ["a.b"],
        "#.b": ["a.b", "a..b"],
        "a.*.b": ["a..b"],
        "*.*.*": ["a.b.c", "x.a.y", "a..b"],
        "#.a.#": ["a", "a.b", "a.b.c", "b.a", "x.a.y", "a..b"],
        "a.#.c": ["a.b.c"],
        "#.#": keys,
        "*.#": keys,
    }
    queues = {pattern: broker.transient() for pattern in expected}
    for pattern, queue in queues.items():
        broker.bind(queue, exchange, pattern)
    for key in keys:
        broker.publish(exchange, key, key)
    for pattern, queue in queues.items():
        got = broker.drain(queue)
        # Whether an empty key is one empty word or none differs between brokers' manuals.
        wanted = [key for key in expected[pattern] if key]
        assert [key for key in got if key] == wanted, f"{pattern} matched {got}"
    once = broker.transient()
    for pattern in ("x.#", "#.y", "*.*"):
        broker.bind(once, exchange, pattern)
    broker.publish(exchange, "x.y", "one copy")
    assert broker.drain(once) == ["one copy"]


def c04_headers(broker: Visit) -> None:
    """A headers exchange matches all pairs of the binding, or any with x-match any."""
    exchange = broker.exchange("headers")
    bindings = {
        "default": {"a": "1", "b": 2},
        "all": {"x-match": "all", "a": "1", "b": 2},
        "any": {"x-match": "any", "a": "1", "b": 2},
        "all-with-x": {"x-match": "all-with-x", "x-a": "1"},
        "any-with-x": {"x-match": "any-with-x", "x-a": "1", "b": 2},
        "present": {"a": None},
    }
    queues = {name: broker.transient() for name in bindings}
    for name, arguments in bindings.items():
        broker.bind(queues[name], exchange, "ignored", **arguments)
    for body, headers in {
        "both": {"a": "1", "b": 2, "c": 3},
        "one": {"a": "1"},
        "wrong": {"a": "2", "b": 3},
        "x": {"x-a": "1"},
        "none": {},
    }.items():
        broker.publish(exchange, "", body, headers=headers)
    got = {name: broker.drain(queue) for name, queue in queues.items()}
    assert got == {
        "default": ["both"],
        "all": ["both"],
        "any": ["both", "one"],
        "all-with-x": ["x"],
        "any-with-x": ["both", "x"],
        "present": ["both", "one", "wrong"],
    }


def c05_bindings(broker: Visit) -> None:
    """Queues and exchanges are bound to exchanges, each once, until unbound or deleted."""
    first, second = broker.exchange("direct"), broker.exchange("fanout")
    queue = broker.queue()
    channel = broker.channel()
    channel.exchange_bind(second, first, "key")
    for _ in range(2):
        channel.queue_bind(queue, second, "")
    broker.publish(first, "key", "a")
    assert broker.drain(queue) == ["a"], "by way of two exchanges, once"
    channel.exchange_unbind(second, first, "key")
    broker.publish(first, "key", "b")
    channel.queue_unbind(queue, second, "")
    broker.publish(second, "", "c")
    assert broker.ready(queue) == 0
    channel.exchange_bind(first, second, "key")
    channel.exchange_bind(second, first, "key")
    channel.queue_bind(queue, first, "key")
    broker.publish(first, "key", "d")
    assert broker.drain(queue) == ["d"], "a cycle of exchanges gives one copy"


def c13_alternate_exchange(broker: Visit) -> None:
    """What is unroutable goes on, same key, to the alternate exchange, and is not returned."""
    alternate = broker.exchange("topic")
    main = broker.exchange("direct", {"alternate-exchange": alternate})
    routed, rest = broker.queue(), broker.queue()
    broker.bind(routed, main, "key")
    broker.bind(rest, alternate, "other.*")
    channel = broker.channel()
    channel.confirm_delivery()
    for key in ("key", "other.key"):
        channel.basic_publish(main, key, key.encode(), mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(main, "nowhere", b"returned", mandatory=True)
    [other] = broker.drained(rest)
    assert (other.body, other.key, other.exchange) == ("other.key", "other.key", main)
    assert broker.drain(routed) == ["key"]


@needs("management")
def c13_alternate_exchange_by_policy(broker: Visit) -> None:
    """A policy may name the alternate exchange; the argument of the exchange wins over it."""
    by_policy, by_argument = broker.exchange("fanout"), broker.exchange("fanout")
    plain = broker.exchange("direct")
    argued = broker.exchange("direct", {"alternate-exchange": by_argument})
    queues = [broker.queue(), broker.queue()]
    broker.bind(queues[0], by_policy)
    broker.bind(queues[1], by_argument)
    status = broker.policy(
        f"^({plain}|{argued})$", {"alternate-exchange": by_policy}, apply_to="exchanges"
    )
    assert status < 300, f"the policy is refused with {status}"
    broker.publish(argued, "key", "by argument")
    assert broker.drain(queues[1]) == ["by argument"]

    def arrived() -> bool:
        broker.publish(plain, "key", "by policy")
        return broker.ready(queues[0]) > 0

    broker.until(arrived, "the policy has no effect")
    assert set(broker.drain(queues[0])) == {"by policy"}
