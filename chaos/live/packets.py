"""What bad weather does to packets: delay, jitter, loss and a slow line, decided in user space.

The kernel hands packets over by NFQUEUE and gets each back when it is due, or never. Run as a
process (`python -m chaos.live.packets`) this serves the network namespaces of one cluster: each
line on its standard input is a `Request`, answered by a line that is empty or says what cannot be
done; at the end of the input it lets everything go and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import importlib
import json
import os
import random
import select
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from chaos.faults import FAIR, Weather

QUEUE = 5
QUEUE_PACKETS_MAX = 65_536
#: As much of a packet as tells its length and where it comes from.
HEADER_BYTES = 64
#: A slow line holds up what it cannot send yet for so long; what comes then is lost.
BACKLOG_S_MAX = 1.0
_SOCKET_BYTES = 4 << 20
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Request:
    """Serve these namespaces (and those named before) with this weather."""

    namespaces: list[str]
    weather: Weather

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str) -> Request:
        row: dict[str, Any] = json.loads(line)
        return cls(row["namespaces"], Weather(**row["weather"]))


@dataclass(slots=True)
class Lane:
    """One direction of one link."""

    free_at: float = 0.0  # when all that a slow line has taken is on its way

    def leaves_at(
        self, weather: Weather, size_bytes: int, now: float, chance: random.Random
    ) -> float | None:
        """When a packet that comes now goes on; None: it is lost."""
        if chance.random() < weather.loss:
            return None
        sent = now
        if weather.bytes_per_s > 0:
            if self.free_at - now > BACKLOG_S_MAX:
                return None
            self.free_at = sent = max(self.free_at, now) + size_bytes / weather.bytes_per_s
        return sent + max(0.0, chance.gauss(weather.delay_ms, weather.jitter_ms)) / 1e3


class Packet(Protocol):
    """What we need of one of NetfilterQueue."""

    def get_payload(self) -> bytes: ...
    def retain(self) -> None: ...
    def accept(self) -> None: ...
    def drop(self) -> None: ...


class Queue(Protocol):
    def get_fd(self) -> int: ...
    def run(self, block: bool) -> None: ...


@dataclass(order=True, slots=True)
class _Held:
    due: float
    number: int  # the order of arrival decides between equals
    packet: Packet = field(compare=False)


class _Post:
    """All packets on their way, and when they go on."""

    def __init__(self) -> None:
        self.weather = FAIR
        self._chance = random.Random()
        self._lanes: dict[tuple[str, bytes], Lane] = {}
        self._held: list[_Held] = []
        self._number = 0

    def receiver(self, namespace: str) -> Callable[[Packet], None]:
        def receive(packet: Packet) -> None:
            header = packet.get_payload()
            size_bytes, source = int.from_bytes(header[2:4], "big"), header[12:16]
            lane = self._lanes.setdefault((namespace, source), Lane())
            now = time.monotonic()
            due = lane.leaves_at(self.weather, size_bytes, now, self._chance)
            if due is None:
                packet.drop()
            elif due <= now:
                packet.accept()
            else:
                packet.retain()
                self._number += 1
                heapq.heappush(self._held, _Held(due, self._number, packet))

        return receive

    def wait_s(self) -> float | None:
        return max(0.0, self._held[0].due - time.monotonic()) if self._held else None

    def release(self, *, until: float) -> None:
        while self._held and self._held[0].due <= until:
            heapq.heappop(self._held).packet.accept()


def _bound(namespace: str, receive: Callable[[Packet], None]) -> Queue:
    """A queue of that namespace. Its socket stays there wherever this process goes next."""
    # By name: it is a library of C that not every machine has, where this is read and checked.
    library = importlib.import_module("netfilterqueue")
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        # os.setns comes with Python 3.12.
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)
    queue = library.NetfilterQueue()
    queue.bind(QUEUE, receive, QUEUE_PACKETS_MAX, library.COPY_PACKET, HEADER_BYTES, _SOCKET_BYTES)
    return queue


def main() -> None:
    post = _Post()
    queues: dict[int, Queue] = {}
    served: set[str] = set()
    poll = select.poll()
    requests = sys.stdin.fileno()
    poll.register(requests, select.POLLIN)

    def obey(request: Request) -> str:
        try:
            for namespace in request.namespaces:
                if namespace not in served:
                    queue = _bound(namespace, post.receiver(namespace))
                    served.add(namespace)
                    queues[queue.get_fd()] = queue
                    poll.register(queue.get_fd(), select.POLLIN)
        except (ImportError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        post.weather = request.weather
        return ""

    while True:
        wait_s = post.wait_s()
        for ready, _ in poll.poll(None if wait_s is None else wait_s * 1e3):
            if ready != requests:
                # More came than the socket holds: those are lost, as on any busy line.
                with contextlib.suppress(OSError):
                    queues[ready].run(block=False)
            elif line := sys.stdin.readline():
                sys.stdout.write(obey(Request.parse(line)) + "\n")
                sys.stdout.flush()
            else:
                post.release(until=float("inf"))
                return
        post.release(until=time.monotonic())


if __name__ == "__main__":
    main()
