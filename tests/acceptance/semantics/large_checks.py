"""B26, B30: bodies over 16 MiB, where the broker's limit is raised."""

from __future__ import annotations

from contextlib import suppress

from pika.exceptions import ChannelClosedByBroker

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.visit import Visit, same

MIB = 1 << 20


@needs("settings")
def b30_a_large_body_comes_whole(broker: Visit) -> None:
    """Bodies of 20 and 128 MiB are confirmed, delivered and got as they were published."""
    queue = broker.queue()
    with broker.settings(f"limits.message_bytes_max = {128 * MIB}\n"):
        for size in (20 * MIB, 128 * MIB):
            body = bytes(range(251)) * (size // 251 + 1)
            body = body[:size]
            publisher = broker.channel()
            publisher.confirm_delivery()
            publisher.basic_publish("", queue, body)
            channel = broker.channel()
            for method, _, found in channel.consume(queue, inactivity_timeout=60):
                assert method is not None, "nothing was delivered"
                assert found == body
                channel.basic_nack(method.delivery_tag)
                break
            channel.cancel()
            broker.until_ready(queue, 1)
            method, _, found = channel.basic_get(queue, auto_ack=True)
            assert found == body
        assert broker.ready(queue) == 0


@needs("settings")
def b26_a_body_over_the_limit(broker: Visit) -> None:
    """One byte more than the limit closes the channel with 406, which names both sizes."""
    queue = broker.queue()
    with broker.settings(f"limits.message_bytes_max = {20 * MIB}\n"):
        channel = broker.channel()
        with suppress(ChannelClosedByBroker):  # it may come while the body is still on its way
            channel.basic_publish("", queue, bytes(20 * MIB + 1))
        same(
            *broker.reason(channel),
            406,
            "PRECONDITION_FAILED",
            f"message size {20 * MIB + 1} is larger than configured max size {20 * MIB}",
        )
