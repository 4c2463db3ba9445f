"""C19-C20, C22: which messages become dead letters, where they go, and what they tell."""

from __future__ import annotations

from typing import Any

from tests.acceptance.semantics.visit import Delivery, Visit, bodies


def c19_what_makes_a_dead_letter(broker: Visit) -> None:
    """Rejected without requeue, expired, over the maximal length, over the delivery limit."""
    dead = broker.queue()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}

    def reason() -> Any:
        broker.until_ready(dead, 1)
        [letter] = broker.drained(dead)
        return _deaths(letter)[0]["reason"]

    queue = broker.queue(letters)
    broker.fill(queue, "a")
    channel = broker.channel()
    channel.basic_reject(broker.get(channel, queue).tag, requeue=False)
    assert reason() == "rejected"

    queue = broker.queue({**letters, "x-message-ttl": 50})
    broker.fill(queue, "a")
    assert reason() == "expired"

    queue = broker.queue({**letters, "x-max-length": 1})
    broker.fill(queue, "a", "b")
    assert reason() == "maxlen"
    assert broker.drain(queue) == ["b"], "the oldest goes"

    queue = broker.queue({**letters, "x-delivery-limit": 1})
    broker.fill(queue, "a")
    consumer = broker.consume(channel, queue)
    for _ in range(2):
        channel.basic_reject(consumer.one().tag, requeue=True)
    assert reason() == "delivery_limit"


def c20_where_dead_letters_go(broker: Visit) -> None:
    """By the original key, or x-dead-letter-routing-key, through an ordinary exchange."""
    exchange = broker.exchange("direct")
    by_original, by_new = broker.queue(), broker.queue()
    source = broker.exchange("fanout")
    keeping = broker.queue({"x-dead-letter-exchange": exchange, "x-message-ttl": 50})
    renaming = broker.queue(
        {
            "x-dead-letter-exchange": exchange,
            "x-dead-letter-routing-key": "new",
            "x-message-ttl": 50,
        }
    )
    for queue in (keeping, renaming):
        broker.bind(queue, source)
    broker.bind(by_original, exchange, "original")
    broker.bind(by_new, exchange, "new")
    broker.publish(source, "original", "a", correlation_id="c", headers={"mine": 1})
    for queue, key in ((by_original, "original"), (by_new, "new")):
        broker.until_ready(queue, 1)
        [letter] = broker.drained(queue)
        assert (letter.body, letter.exchange, letter.key) == ("a", exchange, key)
        assert letter.properties.correlation_id == "c"
        assert letter.headers["mine"] == 1


def c22_what_dead_letters_tell(broker: Visit) -> None:
    """x-death counts by queue and reason, newest first; the first death and the last are told."""
    dead = broker.queue()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    expiring = broker.queue({**letters, "x-message-ttl": 60_000})
    broker.fill(expiring, "a", expiration="20")
    broker.until_ready(dead, 1)
    [letter] = broker.drained(dead)
    [death] = _deaths(letter)
    assert (death["queue"], death["reason"], death["count"]) == (expiring, "expired", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", [expiring])
    assert death["original-expiration"] == "20"
    assert death["time"] is not None
    assert letter.properties.expiration is None, "it would expire again"
    headers = letter.headers
    for which in ("first", "last"):
        told = [headers.get(f"x-{which}-death-{what}") for what in ("queue", "reason", "exchange")]
        assert told == [expiring, "expired", ""], f"x-{which}-death-* is {told}"


def c22_cycles_of_dead_letters(broker: Visit) -> None:
    """A cycle in which nothing was rejected drops the message; with a rejection it goes on."""
    # Expires in one queue, comes back by another: nobody ever rejected it.
    first, second = broker.name("first"), broker.name("second")
    _ring(broker, first, second)
    broker.fill(first, "dropped")
    broker.until(lambda: broker.ready(first) + broker.ready(second) == 0, "it goes round and round")

    # Rejected in one queue: it may come back as often as it likes, and is counted.
    work = broker.name("work")
    waiting = broker.queue(
        {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": work,
            "x-message-ttl": 10,
        }
    )
    broker.queue({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": waiting}, name=work)
    broker.fill(work, "b")
    channel = broker.channel()
    consumer = broker.consume(channel, work)
    for turn in range(3):
        delivery = consumer.one()
        counts = {each["queue"]: each["count"] for each in _deaths(delivery)}
        assert counts == ({work: turn, waiting: turn} if turn else {})
        channel.basic_reject(delivery.tag, requeue=False)
    assert bodies(consumer.next(1)) == ["b"]


def _ring(broker: Visit, *names: str) -> None:
    for name, target in zip(names, [*names[1:], names[0]], strict=True):
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
        broker.queue({**letters, "x-message-ttl": 20}, name=name)


def _deaths(delivery: Delivery) -> list[dict[str, Any]]:
    return delivery.headers.get("x-death", [])
