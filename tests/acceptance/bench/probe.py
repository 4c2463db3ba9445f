"""How long the event loop of a node stands still, as a client sees it: methods of AMQP that are
answered at once, a few milliseconds apart, in a process of its own; writes lines as
`tests.acceptance.bench.worker`.

Of an answer that took long, what was spent waiting for a core, by the node's loop or by this
process, is no work of the loop: /proc knows how much that was.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pamqp import base, commands, frame
from pamqp.header import ProtocolHeader

from tests.acceptance.bench.worker import Progress, say
from tests.acceptance.bench.workers import Outcome

PERIOD_S = 0.005
ANSWER_S_MAX = 60.0
READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Probe:
    """`latencies_ms` of its outcome are of the answers; `extra["own_ms"]` is the same less what
    went for a core.
    """

    port: int
    pid: int
    count: int = 0  # it ends when standard input is closed

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.acceptance.bench.probe", json.dumps(asdict(self))]


class Channel:
    """One, on a connection of its own; blocks."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = b""
        self._socket.sendall(ProtocolHeader(0, 9, 1).marshal())
        self._until("Connection.Start")
        self._say(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
        self._until("Connection.Tune")
        self._say(0, commands.Connection.TuneOk(1, 131_072, 0))
        self._say(0, commands.Connection.Open())
        self._until("Connection.OpenOk")
        self._say(1, commands.Channel.Open())
        self._until("Channel.OpenOk")

    def ask(self) -> None:
        """What no other node and no disk is asked for."""
        self._say(1, commands.Basic.Qos(0, 1, False))
        self._until("Basic.QosOk")

    def _say(self, number: int, method: base.Frame) -> None:
        self._socket.sendall(frame.marshal(method, number))

    def _until(self, name: str) -> None:
        while True:
            size, _, method = frame.unmarshal(self._got) if len(self._got) >= 8 else (0, 0, None)
            self._got = self._got[size:]
            if method is None:
                data = self._socket.recv(READ_BYTES)
                if not data:
                    raise ConnectionError("the node has closed the connection")
                self._got += data
            elif method.name == name:
                return
            elif method.name in {"Connection.Close", "Channel.Close"}:
                raise ConnectionError(f"closed by the node: {method}")


def waited_ms(pid: int | str) -> float:
    """For a core, by the first thread of the process, since its start."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e6


def probe(work: Probe) -> Outcome:
    channel, progress = Channel(work.port), Progress()
    answers_ms: list[float] = []
    own_ms: list[float] = []
    say({"done": 0})
    start_s = time.monotonic()
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        before = waited_ms(work.pid), waited_ms("self")
        asked_s = time.monotonic()
        channel.ask()
        took_ms = (time.monotonic() - asked_s) * 1000
        theirs, ours = waited_ms(work.pid) - before[0], waited_ms("self") - before[1]
        answers_ms.append(took_ms)
        # Not the sum: both may have waited at once.
        own_ms.append(max(0.0, took_ms - max(theirs, ours)))
        progress.add(1)
    return Outcome(len(answers_ms), start_s, time.monotonic(), answers_ms, {"own_ms": own_ms})


if __name__ == "__main__":
    say(asdict(probe(Probe(**json.loads(sys.argv[1])))))
