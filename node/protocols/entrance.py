"""The way in for clients of all protocols: how many may come from where, TLS, and no dawdling."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

import structlog

log = structlog.get_logger(__name__)

#: Lines a second about connections that were turned away: a flood must not fill the disk.
LINES_A_SECOND_MAX: Final = 10


class Entrance:
    """One a node, for all its listeners."""

    def __init__(self, *, per_address_max: int, handshake_s_max: float) -> None:
        self.handshake_s_max = handshake_s_max
        self._per_address_max = per_address_max
        self._counts: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._second = 0.0
        self._lines = 0

    # --- by address -------------------------------------------------------------------------------

    def enter(self, address: str) -> bool:
        """False: too many are here from there."""
        count = self._counts.get(address, 0)
        if count >= self._per_address_max:
            self.turned_away(address, f"{count} connections are open from there")
            return False
        self._counts[address] = count + 1
        return True

    def leave(self, address: str) -> None:
        """Of each that has entered, once."""
        count = self._counts[address] - 1
        if count:
            self._counts[address] = count
        else:
            del self._counts[address]

    def turned_away(self, address: str, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._second >= 1.0:
            self._second, self._lines = now_s, 0
        self._lines += 1
        if self._lines <= LINES_A_SECOND_MAX:
            log.warning("connection_turned_away", address=address, reason=reason)

    # --- TLS --------------------------------------------------------------------------------------

    def secured(
        self, context: Callable[[], ssl.SSLContext], make: Callable[[], asyncio.Protocol]
    ) -> Callable[[], asyncio.Protocol]:
        """A factory for a plain listener: TLS by the context of the moment, then what `make`
        makes.
        """
        return lambda: _Securing(self, context, make)

    def start(self, securing: _Securing) -> None:
        task = asyncio.create_task(securing.shake(), name="tls_handshake")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Securing(asyncio.Protocol):
    """A socket during its TLS handshake."""

    def __init__(
        self,
        entrance: Entrance,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        self._entrance = entrance
        self._context = context
        self._make = make
        self._plain: asyncio.Transport
        self._entered: str | None = None
        self._lost = False
        #: What came with the end of the handshake, before the protocol is there.
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        address = address_of(transport)
        if not self._entrance.enter(address):
            self._plain.abort()
            return
        self._entered = address
        self._plain.pause_reading()  # or the TLS hello would reach us as data
        self._entrance.start(self)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._leave()

    def _leave(self) -> None:
        if self._entered is not None:
            self._entrance.leave(self._entered)
            self._entered = None

    async def shake(self) -> None:
        address = self._entered or ""
        try:
            async with asyncio.timeout(self._entrance.handshake_s_max):
                transport = await asyncio.get_running_loop().start_tls(
                    self._plain, self, self._context(), server_side=True
                )
        except OSError as error:  # ssl's errors and TimeoutError are such
            slow = isinstance(error, TimeoutError)
            self._entrance.turned_away(address, "slow TLS handshake" if slow else f"TLS: {error}")
            self._plain.abort()
            self._leave()
            return
        except BaseException:
            self._plain.abort()
            self._leave()
            raise
        self._leave()
        if transport is None or self._lost:
            self._plain.abort()
            return
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._early:
            protocol.data_received(data)


def address_of(transport: asyncio.BaseTransport) -> str:
    """Of the peer; empty when it has gone already."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""
