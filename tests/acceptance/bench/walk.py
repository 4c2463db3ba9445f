"""How far a message walks: the Python calls of one publish, one delivery and one settle.

One idle node, one AMQP client. A call is counted when its function is in `cluster`, `node` or
`quorate`; what the standard library and other packages do is not, nor what threads do. Each step is
taken several times once everything is warm, and the shortest counts: the node's timers, which fire
the more often meanwhile the slower the disk is, lengthen the others.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import structlog
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue
from pamqp.frame import marshal, unmarshal
from pamqp.header import ContentHeader, ProtocolHeader
from rich import box
from rich.console import Console
from rich.table import Table

from tests.node.nodes import Nodes

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = tuple(str(ROOT / name) + "/" for name in ("cluster", "node", "quorate"))
#: What a change may make longer, and by how much: tests/architecture/test_walk.py.
KEPT = ROOT / "tests/architecture/walk.json"

WARM_UP = 30
REPETITIONS = 25
#: Between two measurements: what one of them started has ended before the next one begins.
PAUSE_S = 0.02
WAIT_S = 60.0
FRAME_HEADER_BYTES = 7
WIDTH = 100  # of the table when it goes to a file


@dataclass(frozen=True, order=True)
class Walk:
    calls: int
    functions: int
    files: int
    changes: int  # a call in another file than the call before it


class Profile:
    """Counts what this thread calls, from `start` until `stop`."""

    def __init__(self) -> None:
        self.called: list[CodeType] = []
        self.depths: list[int] = []  # of each call: how many of ours are around it
        self._depth = 0

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return
        if event == "call":
            self.called.append(frame.f_code)
            self.depths.append(self._depth)
            self._depth += 1
        elif event == "return":  # or suspended
            self._depth -= 1

    def start(self) -> None:
        self.called, self.depths, self._depth = [], [], 0
        sys.setprofile(self._event)

    def stop(self) -> None:
        sys.setprofile(None)

    @property
    def walk(self) -> Walk:
        files = [code.co_filename for code in self.called]
        changes = sum(one != other for one, other in itertools.pairwise(files))
        return Walk(len(self.called), len(set(self.called)), len(set(files)), changes)


class Client(asyncio.Protocol):
    """Speaks AMQP by hand, in the node's loop: it sees at once what the node has sent."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._data = b""
        self._waited: tuple[set[type], Callable[[], None], asyncio.Future[None]] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= FRAME_HEADER_BYTES:
            size = FRAME_HEADER_BYTES + int.from_bytes(self._data[3:7]) + 1
            if len(self._data) < size:
                return
            frame = unmarshal(self._data[:size])[2]
            self._data = self._data[size:]
            if self._waited is not None:
                kinds, then, found = self._waited
                kinds.discard(type(frame))
                if not kinds:
                    then()
                    self._waited = None
                    found.set_result(None)

    def send(self, *frames: Any, channel: int = 1) -> None:
        self._transport.write(b"".join(marshal(frame, channel) for frame in frames))

    async def ask(
        self,
        *frames: Any,
        until: set[type],
        channel: int = 1,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """`then` is called as soon as a frame of each kind has come."""
        found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waited = set(until), then, found
        self.send(*frames, channel=channel)
        async with asyncio.timeout(WAIT_S):
            await found

    async def open(self) -> None:
        self._transport.write(ProtocolHeader().marshal())
        start_ok = Connection.StartOk({}, "PLAIN", "\0guest\0guest")
        await self.ask(start_ok, until={Connection.Tune}, channel=0)
        self.send(Connection.TuneOk(2047, 131_072, 0), channel=0)
        await self.ask(Connection.Open("/"), until={Connection.OpenOk}, channel=0)
        await self.ask(Channel.Open(), until={Channel.OpenOk})
        await self.ask(Confirm.Select(), until={Confirm.SelectOk})

    async def close(self) -> None:
        bye = Connection.Close(200, "", 0, 0)
        await self.ask(bye, until={Connection.CloseOk}, channel=0)
        self._transport.close()


def _publish(queue: str) -> tuple[Any, ...]:
    body = b"a message"
    return (
        Basic.Publish(0, "", queue),
        ContentHeader(0, len(body), Basic.Properties(delivery_mode=2)),
        ContentBody(body),
    )


#: How deep each call is, and what is called.
Calls = list[tuple[int, CodeType]]


async def measure(folder: Path) -> tuple[dict[str, Walk], dict[str, Calls]]:
    """The shortest walks by name, and the calls of each in order."""
    profile = Profile()
    found: dict[str, Walk] = {}
    called: dict[str, Calls] = {}

    def note(name: str) -> None:
        walk = profile.walk
        if name not in found or walk < found[name]:
            found[name] = walk
            called[name] = list(zip(profile.depths, profile.called, strict=True))

    async with Nodes(folder) as nodes:
        host, _, port = nodes.one.amqp.address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, host, int(port))
        await client.open()
        for queue in ("alone", "served"):
            declare = Queue.Declare(0, queue, durable=True)
            await client.ask(declare, until={Queue.DeclareOk})
        await client.ask(Basic.Consume(0, "served"), until={Basic.ConsumeOk})
        counts = nodes.one.traffic.dispatcher.counts
        for repetition in range(1, WARM_UP + REPETITIONS + 1):
            await asyncio.sleep(PAUSE_S)
            profile.start()
            await client.ask(*_publish("alone"), until={Basic.Ack}, then=profile.stop)
            if repetition > WARM_UP:
                note("publish")

            await asyncio.sleep(PAUSE_S)
            profile.start()
            both = {Basic.Ack, Basic.Deliver}
            await client.ask(*_publish("served"), until=both, then=profile.stop)
            if repetition > WARM_UP:
                note("delivery")

            await asyncio.sleep(PAUSE_S)
            profile.start()
            client.send(Basic.Ack(repetition))
            async with asyncio.timeout(WAIT_S):
                while counts.settled < repetition:
                    await asyncio.sleep(0)
            profile.stop()
            if repetition > WARM_UP:
                note("settle")
        await client.close()
    return found, called


def kept() -> dict[str, Walk]:
    """The numbers that the repository keeps."""
    return {name: Walk(**walk) for name, walk in json.loads(KEPT.read_text()).items()}


def keep(walks: Mapping[str, Walk]) -> None:
    KEPT.write_text(
        json.dumps({name: asdict(walk) for name, walk in walks.items()}, indent=2) + "\n"
    )


WHAT = {
    "publish": "a publish, to its confirm",
    "delivery": "the same, to its delivery",
    "settle": "an ack, until it is settled",
}


def _show(console: Console, walks: Mapping[str, Walk], before: Mapping[str, Walk]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("one node, idle", no_wrap=True)
    for heading in ("calls", "functions", "files", "changes of file"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, walk in walks.items():
        old = asdict(before[name]) if name in before else {}
        cells = [
            f"{value}" + (f" [dim](kept: {old[key]})[/]" if old.get(key, value) != value else "")
            for key, value in asdict(walk).items()
        ]
        table.add_row(WHAT[name], *cells)
    console.print(table)


def _show_calls(name: str, called: Calls) -> None:
    print(f"\n{WHAT[name]}, call by call:")
    for depth, code in called:
        place = f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno}"
        print(f"{'  ' * depth + code.co_qualname:69} {place}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.bench.walk", description=__doc__
    )
    parser.add_argument("--calls", choices=WHAT, help="show the calls of this one, in order")
    parser.add_argument("--keep", action="store_true", help=f"write {KEPT.relative_to(ROOT)}")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    with tempfile.TemporaryDirectory() as folder:
        walks, called = asyncio.run(measure(Path(folder)))
    _show(console, walks, kept() if KEPT.exists() else {})
    if args.calls:
        _show_calls(args.calls, called[args.calls])
    if args.keep:
        keep(walks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
