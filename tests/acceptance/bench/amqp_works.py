"""Clients that speak AMQP: one in C of our own, and pika."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.acceptance.bench.nodes import NodesError

HERE = Path(__file__).parent
CACHE = Path(__file__).parents[3] / "build"
PREFETCH = 300


@dataclass(frozen=True)
class AmqpPublish:
    """Keeps `window` messages unconfirmed on each connection, or `rate` messages a second."""

    ports: list[int]  # in turn, when a connection is lost
    queue: str
    count: int  # 0: until standard input is closed
    size: int = 100
    window: int = 1000
    rate: float = 0
    connections: int = 1
    times: bool = False  # report when each message was confirmed
    exchange: str = ""
    keys: int = 1  # more: the queue's name followed by 0, 1 ... in turn
    varied: bool = False  # properties as applications set them, 50 to 150 bytes
    groups: int = 0  # more: values in turn of a header `order`

    def command(self) -> list[str]:
        ports = ",".join(map(str, self.ports))
        numbers = (self.count, self.size, self.window, self.rate, self.connections, +self.times)
        what = (self.exchange, str(self.keys), str(+self.varied), str(self.groups))
        return [c_client(), "publish", ports, self.queue, *map(str, numbers), *what]


@dataclass(frozen=True)
class AmqpConsume:
    """Acks every `ack_every`th message, and with it those before; 0: the node takes each for acked
    when it is sent.
    """

    ports: list[int]
    queue: str
    count: int  # 0: until standard input is closed
    prefetch: int = PREFETCH
    ack_every: int = 1
    idle_s: float = 30.0  # gives up after this long without a message
    numbers: bool = False  # report the number that each body starts with
    queues: int = 1  # more: empty ones, named with 0, 1 ..., each consumed by every connection
    connections: int = 1

    def command(self) -> list[str]:
        ports = ",".join(map(str, self.ports))
        numbers = (self.count, self.prefetch, self.ack_every, self.idle_s, +self.numbers)
        many = (self.queues, self.connections)
        return [c_client(), "consume", ports, self.queue, *map(str, (*numbers, *many))]


@dataclass(frozen=True)
class AmqpDeclare:
    """Quorum queues named with 0, 1 ... on one channel, and deleted again."""

    ports: list[int]
    queue: str
    count: int
    window: int = 100  # methods ahead of their answers
    exchange: str = ""  # bound to it by their names
    delete: bool = False

    def command(self) -> list[str]:
        ports, numbers = ",".join(map(str, self.ports)), [str(self.count), str(self.window)]
        verb, rest = ("delete", []) if self.delete else ("declare", [self.exchange])
        return [c_client(), verb, ports, self.queue, *numbers, *rest]


@dataclass(frozen=True)
class PikaPublish:
    port: int
    queue: str
    count: int
    size: int = 100
    window: int = 1000
    message_ids: bool = False  # a different one for each message
    verb: str = "publish"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.acceptance.bench.amqp_pika", json.dumps(asdict(self))]


@dataclass(frozen=True)
class PikaConsume:
    port: int
    queue: str
    count: int
    prefetch: int = PREFETCH
    ack_every: int = 1
    verb: str = "consume"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.acceptance.bench.amqp_pika", json.dumps(asdict(self))]


def c_client(source: str = "amqp_load.c") -> str:
    """The program, compiled if its source is new. Raises NodesError."""
    return _compiled(HERE / source)


@cache
def _compiled(source: Path) -> str:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    program = CACHE / f"{source.stem}-{digest}"
    if program.exists():
        return str(program)
    compiler = shutil.which("cc")
    if compiler is None:
        raise NodesError("a C compiler is missing. On Debian: apt-get install gcc libc6-dev")
    CACHE.mkdir(exist_ok=True)
    fresh = program.with_suffix(".new")
    done = subprocess.run(
        [compiler, "-O2", "-o", str(fresh), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NodesError(f"{source.name} does not compile: {done.stderr.strip()}")
    fresh.replace(program)
    return str(program)
