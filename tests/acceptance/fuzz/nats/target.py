"""NATS and JetStream, as they are fuzzed."""

# pyright: basic
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import aiohttp
import nats

from quorate.local import LocalCluster, LocalNode
from tests.acceptance.fuzz.attack import Answers
from tests.acceptance.fuzz.inputs import Input
from tests.acceptance.fuzz.nats import wire
from tests.acceptance.fuzz.nats.found import FOUND
from tests.acceptance.fuzz.nats.kinds import KINDS
from tests.acceptance.fuzz.nats.steady import SteadyNats

STREAM_MESSAGES_MAX = 500
STREAM_BYTES_MAX = 4_000_000

_PAYLOAD = re.compile(rb"H?MSG (\S+) .*?(\d+)\r\n")
_QUOTED = re.compile(r'"[^"]*"|\'')
_LISTS = ("connections", "queues", "consumers", "definitions", "streams")
_WATCHED = ("varz", "connz?subs=detail&auth=1", "subsz?subs=1", "jsz?consumers=1&config=1")


class NatsAnswers(Answers):
    """Operations. Messages to the inbox are replies, and so is PONG."""

    def __init__(self) -> None:
        super().__init__()
        self._kept = b""
        self._errors = 0

    def feed(self, data: bytes) -> None:
        data = self._kept + data
        at = 0
        while (stop := data.find(b"\r\n", at) + 2) > 1:
            line = data[at:stop]
            if found := _PAYLOAD.fullmatch(line):
                stop += int(found[2]) + 2
                if stop > len(data):
                    break
                self.replies += found[1].startswith(wire.INBOX)
            self._line(line)
            at = stop
        self._kept = data[at:]

    def _line(self, line: bytes) -> None:
        word = line.split(b" ", 1)[0].strip().decode(errors="replace")
        self.replies += word == "PONG"
        if word == "-ERR":
            self._errors += 1
            word = _QUOTED.sub("", line[5:].strip().decode(errors="replace"))
        self.codes[word] += 1

    def finish(self, given: Input) -> None:
        if given.polite and not self._errors:
            self.owed.append("its connection was closed without a word")


class NatsTarget:
    kinds = KINDS
    found = FOUND
    goodbye = wire.GOODBYE
    answers = NatsAnswers

    def port(self, node: LocalNode) -> int:
        return node.nats

    def steady(self, nodes: list[LocalNode]) -> SteadyNats:
        return SteadyNats(nodes)

    async def prepare(self, cluster: LocalCluster) -> None:
        """The streams that inputs name, of bounded length, and a user who may do little."""
        url = f"{cluster.nodes[0].url}/api"
        who = {"Authorization": aiohttp.encode_basic_auth("guest", "guest")}
        mine = r"^(mine\.|_INBOX\.)"
        async with aiohttp.ClientSession(headers=who, raise_for_status=True) as http:
            user = {"password": wire.LIMITED, "tags": ""}
            await http.put(f"{url}/users/{wire.LIMITED}", json=user)
            allowed = {"configure": "^$", "write": mine, "read": mine}
            await http.put(f"{url}/permissions/%2F/{wire.LIMITED}", json=allowed)
        client = await nats.connect(f"nats://guest:guest@127.0.0.1:{cluster.nodes[0].nats}")
        js = client.jetstream(timeout=60)
        for name in wire.STREAMS:
            await js.add_stream(
                name=name,
                subjects=[f"fuzz.{name}.>"],
                num_replicas=3,
                max_msgs=STREAM_MESSAGES_MAX,
                max_bytes=STREAM_BYTES_MAX,
                allow_rollup_hdrs=True,
                allow_direct=True,
                allow_msg_ttl=True,
            )
            await js.pull_subscribe(f"fuzz.{name}.>", durable=wire.CONSUMER, stream=name)
        await client.close()

    def questions(self, nodes: Sequence[LocalNode]) -> list[tuple[str, str, Any]]:
        lists = [("GET", f"{nodes[0].url}/api/{each}", None) for each in _LISTS]
        return lists + [
            ("GET", f"http://127.0.0.1:{node.nats_monitor}/{each}", None)
            for node in nodes
            for each in _WATCHED
        ]
