"""Who is there in a new cluster instead of guest: a user of the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from cluster.cluster_node import ClusterNode
from cluster.machine.catalog_admin import FIRST_HASH, FIRST_USER, FIRST_VHOST
from cluster.machine.commands import Command, DropEntry, PutEntry
from node.access.passwords import Hashing, hash_password, verify
from node.errors import BrokerError, reply_of

log = structlog.get_logger(__name__)

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
TAGS = ["administrator"]
AGAIN_S = 0.2


class FirstUser:
    """Made while guest is as it was at first, and nobody else is there: later, users are as
    administrators have left them. Nodes with the same settings may do it at the same time.
    """

    def __init__(
        self,
        cluster: ClusterNode,
        catch_up: Callable[[], Awaitable[bool]],
        given: tuple[str, str] | None,
        hashing: Hashing = "scrypt",
        *,
        previous: str | None = None,
    ) -> None:
        """`previous`: the password that the given one replaces, while it is changed."""
        self._cluster = cluster
        self._catch_up = catch_up
        self._given = given
        self._hashing: Hashing = hashing
        self._previous = previous
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Until it is done: nobody has to come for it."""
        while self._given is not None and not await self.catch_up():  # noqa: ASYNC110 -- no event
            await asyncio.sleep(AGAIN_S)

    async def catch_up(self) -> bool:
        """This node knows its users, that one among them. False: not yet."""
        async with self._lock:
            if not await self._catch_up():
                return False
            if self._given is None:
                return True
            try:
                await self._make(*self._given)
                await self._renew(*self._given)
            except BrokerError as error:
                log.warning("default_user_not_made", reason=error.reason)
                return False
            self._given = None
            return True

    async def _make(self, name: str, password: str) -> None:
        catalog = self._cluster.catalog_machine
        guest = catalog.entry("users", (FIRST_USER,))
        others = {key[0] for key in catalog.entries("users")} - {FIRST_USER, name}
        if guest is None or guest["password_hash"] != FIRST_HASH or others:
            return
        if name == FIRST_USER or catalog.entry("users", (name,)) is None:
            await self._put(name, password, {"tags": TAGS})
        await self._change(PutEntry("permissions", (name, FIRST_VHOST), EVERYTHING))
        if name != FIRST_USER:
            await self._change(DropEntry("users", (FIRST_USER,)))
        log.info("default_user_made", user=name)

    async def _renew(self, name: str, password: str) -> None:
        """Whoever changed it otherwise meanwhile, keeps it."""
        user = self._cluster.catalog_machine.entry("users", (name,))
        if self._previous is None or user is None:
            return
        kept, algorithm = user["password_hash"], user["hashing_algorithm"]
        if await asyncio.to_thread(verify, self._previous, kept, algorithm):
            await self._put(name, password, user)
            log.info("default_password_renewed", user=name)

    async def _put(self, name: str, password: str, user: Mapping[str, Any]) -> None:
        kept, algorithm = await asyncio.to_thread(hash_password, password, hashing=self._hashing)
        hashed = {"password_hash": kept, "hashing_algorithm": algorithm}
        await self._change(PutEntry("users", (name,), {**user, **hashed}))

    async def _change(self, command: Command) -> None:
        reply_of(await self._cluster.change(command))
