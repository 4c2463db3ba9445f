"""Which clients there are, and what each is asked to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.acceptance.clients import toolchains
from tests.acceptance.clients.toolchains import Program, python

#: What every client does, as far as it can, in this order.
COMMON = (
    "confirms",
    "acks",
    "channel-error",
    "topic",
    "rpc",
    "exclusive",
    "mandatory",
    "get",
    "headers",
    "cancel",
    "tx",
    "large",
    "heartbeat",
    "requeue",
    "dead-letter",
    "failover",
)
#: What an application of Celery sees.
CELERY = (
    "confirms",
    "acks",
    "channel-error",
    "results",
    "chord",
    "control",
    "revoke",
    "countdown",
    "acks-late",
    "shutdown",
    "failover",
)
#: Of those that are told when a connection is closed.
NODE = (*COMMON, "close")
#: The same again while the node that leads the stream is killed.
KILL = "+kill"
#: Of those that read streams.
READERS = (*COMMON, "streams", "streams" + KILL)
_STREAMS = ("publish", "pull", "push", "ordered", "kv", "objects", "services")
_KILLS = tuple(step + KILL for step in _STREAMS)
#: What every client of NATS does.
NATS = ("connect", *_STREAMS, *_KILLS)
#: What the `nats` command does.
NATSCLI = ("nats-streams", "nats-stores", "nats-backups", "nats-bench", "nats-servers")
#: Of those that come by WebSocket too: before the kills, since it names two nodes that must be up,
#: and a program goes on with its next step while a node that was killed is started again.
BY_WEBSOCKET = ("connect", *_STREAMS, "websocket", *_KILLS)
STEPS = tuple(dict.fromkeys((*COMMON[:-1], *CELERY, *NODE, *READERS, *BY_WEBSOCKET, *NATSCLI)))


def kills(step: str) -> bool:
    return step == "failover" or step.endswith(KILL)


@dataclass(frozen=True)
class Client:
    """One client library or tool."""

    name: str
    prepare: Callable[[], Awaitable[Program]]
    steps: tuple[str, ...] = COMMON
    #: It needs more than Python.
    toolchain: bool = False


CLIENTS = (
    Client("pika", python("pika_program"), READERS),
    Client("aio-pika", python("aio_pika_program")),
    Client("aiormq", python("aiormq_program")),
    Client("aioamqp", python("aioamqp_program", "aioamqp")),
    Client("amqpstorm", python("amqpstorm_program")),
    Client("py-amqp", python("py_amqp_program")),
    Client("kombu", python("kombu_program")),
    Client("celery", python("celery_program"), CELERY),
    Client("c-tools", toolchains.c_tools, toolchain=True),
    Client("amqplib", toolchains.node("node"), NODE, toolchain=True),
    Client("cloudamqp", toolchains.node("cloudamqp"), NODE, toolchain=True),
    Client("bunny", toolchains.ruby, toolchain=True),
    Client("php-amqplib", toolchains.php, toolchain=True),
    Client(
        "go", toolchains.go("go", "go/protocol.go", "go/amqp.go", "go/failover.go"), toolchain=True
    ),
    Client(
        "java",
        toolchains.java("java", "java/Amqp.java", "java/Failover.java", "java/Streams.java"),
        READERS,
        toolchain=True,
    ),
)

NATS_CLIENTS = (
    Client("nats-py", python("nats_py_program", "nats"), BY_WEBSOCKET),
    Client("nats.js", toolchains.node("nats/node"), BY_WEBSOCKET, toolchain=True),
    Client("nats.go", toolchains.go("nats/go", "go/protocol.go"), NATS, toolchain=True),
    Client("jnats", toolchains.java("nats/java"), NATS, toolchain=True),
    Client("natscli", toolchains.natscli, NATSCLI, toolchain=True),
    Client("async-nats", toolchains.rust("nats/rust"), NATS, toolchain=True),
)


def named(names: str | None, clients: tuple[Client, ...]) -> list[Client]:
    """Those of a list such as "pika,go", or all. Raises ValueError."""
    if names is None:
        return list(clients)
    known = {client.name: client for client in clients}
    if unknown := [name for name in names.split(",") if name not in known]:
        raise ValueError(f"no client {unknown[0]}: there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]
