"""Tiny processes on the hosts of a network, that tell what they hear from each other.

As a program (`network_hosts.py NAME HOST PORT`): one of them, that takes commands from its standard
input and tells events on its standard output, as JSON lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

#: Longest time until something happens that must, and time given to what must not happen.
WAIT_S_MAX = 60.0
SILENCE_S = 0.5

Event = dict[str, Any]
Pair = tuple[str, str]


class Hosts:
    """One process for each node of a network, and what they told."""

    def __init__(self, network: Any, names: list[str]) -> None:
        self.network = network
        self.names: list[str] = []
        self.places: dict[str, Any] = {}
        self.told: list[Event] = []
        self._events = queue.Queue[Event]()
        self._words = 0
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """One more, connected with all others."""
        place = self.places[name] = self.network.add(name)
        program = [sys.executable, __file__, name, place.host, str(place.ports.peer)]
        process = self._processes[name] = subprocess.Popen(
            [*place.launch, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, args=(name, process.stdout), daemon=True).start()
        self.until(lambda event: event["who"] == name and event["event"] == "ready")
        self.names.append(name)
        for pair in self.pairs:
            if name in pair:
                self.dial(*pair)
                self.until(happened("accepted", *pair))

    @property
    def pairs(self) -> list[Pair]:
        return [(node, peer) for node in self.names for peer in self.names if node != peer]

    def dial(self, node: str, peer: str) -> None:
        self.tell(node, do="dial", peer=peer, address=self.network.peer_address(node, peer))

    def tell(self, node: str, **command: Any) -> None:
        stdin = self._processes[node].stdin
        assert stdin is not None
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()

    def say(self, pairs: Collection[Pair], *, size_bytes: int = 0) -> str:
        self._words += 1
        word = f"word-{self._words}"
        for node, peer in pairs:
            self.tell(node, do="say", peer=peer, word=word, bytes=size_bytes, at=time.monotonic())
        return word

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """The first event, already told or to come, that is wanted."""
        for event in self.told:
            if wanted(event):
                return event
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            left = deadline - time.monotonic()
            try:
                event = self._events.get(timeout=max(0.01, left))
            except queue.Empty:
                raise AssertionError(f"did not happen; what did: {self.told[-20:]}") from None
            self.told.append(event)
            if wanted(event):
                return event

    def until_heard(self, word: str, pairs: Collection[Pair]) -> list[float]:
        """How long it took, each."""
        events = [self.until(happened("heard", node, peer, word)) for node, peer in pairs]
        return [event["took_s"] for event in events]

    def flood(self, node: str, peer: str, count: int, *, at_least: int) -> int:
        """How many datagrams arrive of so many."""
        place = self.places[peer]
        self.tell(node, do="flood", host=place.host, port=place.ports.peer, count=count)
        self.until(lambda event: event["event"] == "flooded")
        deadline = time.monotonic() + WAIT_S_MAX
        arrived = 0
        while arrived < at_least and time.monotonic() < deadline:
            time.sleep(SILENCE_S)
            self.told.clear()
            self.tell(peer, do="count")
            arrived = self.until(lambda event: event["event"] == "counted")["count"]
        return arrived

    def who_hears(self, word: str) -> set[Pair]:
        """From, to: of all who have heard it by now."""
        while not self._events.empty():
            self.told.append(self._events.get())
        return {
            (event["peer"], event["who"])
            for event in self.told
            if event["event"] == "heard" and event["word"] == word
        }

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _read(self, name: str, lines: Any) -> None:
        for line in lines:
            self._events.put({"who": name, **json.loads(line)})


def happened(kind: str, node: str, peer: str, word: str | None = None) -> Callable[[Event], bool]:
    """To a connection that the node dialed. What is accepted, and heard, the peer tells."""
    tells = peer if kind in ("accepted", "heard", "lost accepted") else node
    return lambda event: (
        event["event"] == kind
        and event["who"] == tells
        and event["peer"] == (node if tells == peer else peer)
        and word in (None, event.get("word"))
    )


# --- the program ----------------------------------------------------------------------------------


def _report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.count = 0

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.count += 1


class _Program:
    def __init__(self, name: str) -> None:
        self._name = name
        self._dialed: dict[str, asyncio.StreamWriter] = {}
        self._kept: set[asyncio.Task[None]] = set()
        self._datagrams = _Datagrams()

    async def run(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.start_server(self._accepted, host, port, limit=1 << 24)
        await loop.create_datagram_endpoint(lambda: self._datagrams, local_addr=(host, port))
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        _report(event="ready")
        while line := await commands.readline():
            command = json.loads(line)
            task = loop.create_task(getattr(self, f"_{command.pop('do')}")(**command))
            self._kept.add(task)
            task.add_done_callback(self._kept.discard)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # it may be a client that says nothing
            peer = (await reader.readline()).decode().strip()
            if peer:
                _report(event="accepted", peer=peer)
                await self._listen(peer, reader, "accepted")
        writer.close()

    async def _listen(self, peer: str, reader: asyncio.StreamReader, how: str) -> None:
        error = "end"
        try:
            while line := await reader.readline():
                said = json.loads(line)
                took_s = time.monotonic() - said["at"]
                _report(event="heard", peer=peer, word=said["word"], took_s=took_s)
        except OSError as broken:
            error = type(broken).__name__
        _report(event=f"lost {how}", peer=peer, error=error)

    async def _dial(self, peer: str, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError as error:
            _report(event="refused", peer=peer, error=type(error).__name__)
            return
        self._dialed[peer] = writer
        writer.write(f"{self._name}\n".encode())
        _report(event="connected", peer=peer)
        await self._listen(peer, reader, "dialed")

    async def _say(self, peer: str, bytes: int, **said: Any) -> None:  # noqa: A002
        line = json.dumps({**said, "padding": "x" * bytes}) + "\n"
        self._dialed[peer].write(line.encode())

    async def _flood(self, host: str, port: int, count: int) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(host, port)
        )
        for number in range(count):
            transport.sendto(b"x" * 100)
            if number % 10 == 0:
                await asyncio.sleep(0.002)
        transport.close()
        _report(event="flooded", peer=host)

    async def _count(self) -> None:
        _report(event="counted", peer="", count=self._datagrams.count)


if __name__ == "__main__":
    asyncio.run(_Program(sys.argv[1]).run(sys.argv[2], int(sys.argv[3])))
