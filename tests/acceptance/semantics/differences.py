"""Where Quorate differs from RabbitMQ on purpose, and the rows that no client can see."""

from __future__ import annotations

#: Row -> why. A check of these rows may fail at another broker; at Quorate it may not.
DESIGN_DIFFERENCES: dict[str, str] = {
    "A18": "timeouts run by timers and may be short; RabbitMQ looks once a minute, and its "
    "3.10 knows only the timeout of the node",
    "A20": "the policy key consumer-timeout; RabbitMQ has it since 3.12",
    "A21": "the argument x-consumer-timeout; RabbitMQ has it since 3.12",
    "A22": "a timeout is noticed when it is over, not once a minute; short values are supported",
    "A24": "exclusive consumers are enforced on every queue; RabbitMQ does not on quorum queues",
    "A27": "a higher priority takes over when all in flight is acked; RabbitMQ has it since 3.12",
    "A28": "one rule for all queues, that of quorum queues; RabbitMQ's classic ones ignore "
    "priorities here",
    "A29": "exclusive with a single active consumer is an error on every queue; RabbitMQ lets "
    "it pass on quorum queues",
    "B08": "a requeued message goes back to its original position; RabbitMQ's quorum queues put "
    "it last, or with a delivery limit first, in the order of the returns",
    "B16": "global prefetch works on every queue; RabbitMQ refuses it on quorum queues with 540",
    "B34": "a queue is on disk when it is declared; RabbitMQ 3.10 forgets a quorum queue, and "
    "all in it, when it is killed within half a second after that",
    "C22": "x-last-death-* tells the latest death; RabbitMQ has it since 3.13",
    "C23": "delays by x-delay, x-opt-delivery-time and x-delayed-message exchanges; RabbitMQ needs "
    "a plugin for the last",
    "C24": "x-max-priority works on replicated queues; RabbitMQ 3.10 refuses it there",
    "C28": "a refused transaction does nothing at all, and limits are exact; RabbitMQ keeps what "
    "the other queues took, and its quorum queues may pass their limits",
    "C34": "x-dedup-window keeps duplicates out; RabbitMQ has no such thing",
}

#: Row -> (what it says, why there is no check).
NOT_VISIBLE: dict[str, tuple[str, str]] = {
    "B13": (
        "Consumers must be idempotent; the broker never promises a single delivery.",
        "a duty of consumers",
    ),
    "B17": (
        "A prefetch of 100 to 300 is best for throughput, 1 is the most careful.",
        "advice; `make bench` measures",
    ),
    "B18": (
        "Consumers that never ack must not fill the memory of the node.",
        "memory of the node; unacked bodies stay in the log, `make bench` measures a backlog",
    ),
    "B33": (
        "Confirms usually come in the order of publishing, which is not guaranteed.",
        "it promises nothing that could be broken; B27 takes them in any order",
    ),
    "B35": ("Transactions are many times slower than confirms.", "a measurement"),
}
