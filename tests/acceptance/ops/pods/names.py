"""A name server for pods and clients, as the cluster's: it answers from a table that changes while
it runs, and its answers are old after a few seconds.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from typing import cast

DOMAIN = "cluster.local"
TTL_S = 5
_A, _IN = 1, 1
_ANSWER, _AUTHORITATIVE, _NO_SUCH_NAME = 0x8000, 0x0400, 3
_HEADER = struct.Struct(">6H")


def resolver_settings(server: str, namespace: str) -> str:
    """resolv.conf, as a kubelet writes it."""
    search = f"{namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
    return f"nameserver {server}\nsearch {search}\noptions ndots:5\n"


def answer(query: bytes, records: Mapping[str, Sequence[str]]) -> bytes | None:
    """None: it is no question that can be answered."""
    try:
        number, flags, questions, *_ = _HEADER.unpack_from(query)
        name, end = _name_at(query, _HEADER.size)
        kind, kind_of_class = struct.unpack_from(">2H", query, end)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    if flags & _ANSWER or questions != 1:
        return None
    found = records.get(name.lower())
    addresses = found if found and kind == _A and kind_of_class == _IN else ()
    code = _NO_SUCH_NAME if found is None else 0
    head = _HEADER.pack(
        number, _ANSWER | _AUTHORITATIVE | (flags & 0x0100) | code, 1, len(addresses), 0, 0
    )
    body = b"".join(
        # The name is that of the question.
        struct.pack(">3HIH", 0xC000 | _HEADER.size, _A, _IN, TTL_S, 4) + IPv4Address(each).packed
        for each in addresses
    )
    return head + query[_HEADER.size : end + 4] + body


def _name_at(query: bytes, at: int) -> tuple[str, int]:
    labels: list[str] = []
    while length := query[at]:
        if length > 63:
            raise IndexError("a pointer in a question")
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1


class NameServer(asyncio.DatagramProtocol):
    """`records` may be replaced at any time."""

    def __init__(self) -> None:
        self.records: Mapping[str, Sequence[str]] = {}
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=(address, 53))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        said = answer(data, self.records)
        if said is not None and self._transport is not None:
            self._transport.sendto(said, addr)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
