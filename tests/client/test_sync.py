"""The client without an event loop of the caller's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import quorate
from tests.client.fake_node import FakeCluster
from tests.testkit.threads import in_a_thread


@pytest.fixture
def urls() -> Iterator[list[str]]:
    """A fake cluster on a loop of its own, as a real one would be elsewhere."""
    with in_a_thread(FakeCluster()) as (cluster, _):
        yield cluster.urls


def test_publish_and_consume_without_a_loop(urls: list[str]):
    with quorate.connect_sync(urls) as client:
        client.declare("orders")
        assert client.publish("orders", b"0").position == 1
        assert client.publish_many("orders", [b"1", b"2"]).count == 2
        bodies: list[bytes] = []
        for delivery in client.consume("orders"):
            bodies.append(delivery.body)
            delivery.settle(wait=True)
            if len(bodies) == 3:
                break

        assert bodies == [b"0", b"1", b"2"]
        assert client.info("orders")["ready"] == 0


def test_errors_are_those_of_the_client(urls: list[str]):
    with quorate.connect_sync(urls) as client, pytest.raises(quorate.Refused, match="no_queue"):
        client.publish("nowhere", b"1")
