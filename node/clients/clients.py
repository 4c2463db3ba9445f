"""Connections of clients, on all listeners of this node: how many there may be, and which must go.

Limits of users and virtual hosts hold for the cluster: the other nodes are asked, though only where
there is a limit. Two nodes that let somebody in at the same moment may go over it by one.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import structlog

from cluster.types import NodeId
from node.access.auth import Auth, User
from node.access.permissions import Access
from node.errors import Refused
from node.metrics.client_counters import ClientCounters
from node.peer_rpc import PeerRpc

log = structlog.get_logger(__name__)

KIND = "clients"
TOO_MANY = "too_many_connections"


class Client(Protocol):
    """A connection in a virtual host."""

    @property
    def user_name(self) -> str: ...
    @property
    def vhost(self) -> str: ...
    @property
    def channel_count(self) -> int: ...
    def force_close(self, text: str) -> None: ...


class Clients:
    """One per node."""

    def __init__(
        self, auth: Auth, peer_rpc: PeerRpc, counters: ClientCounters | None = None
    ) -> None:
        self._auth = auth
        self._peer_rpc = peer_rpc
        self._counters = counters or ClientCounters()
        # By user and vhost: thousands of connections are mostly of a few.
        self._alike: dict[tuple[str, str], dict[Client, None]] = {}
        peer_rpc.on(KIND, self._answer)

    def __len__(self) -> int:
        return sum(map(len, self._alike.values()))

    def add(self, client: Client) -> None:
        self._alike.setdefault((client.user_name, client.vhost), {})[client] = None
        self._counters.connections_opened += 1

    def remove(self, client: Client) -> None:
        """Idempotent."""
        key = (client.user_name, client.vhost)
        alike = self._alike.get(key, {})
        if client in alike:
            del alike[client]
            self._counters.connections_closed += 1
        if not alike:
            self._alike.pop(key, None)

    # --- coming in --------------------------------------------------------------------------------

    async def admit(self, user: User, vhost: str) -> Access:
        """Raises Refused. The caller adds its client before anything else may happen."""
        await self._auth.admit(user, vhost)
        limits = self._auth.limits(user.name, vhost)
        of_vhost, of_user = limits.vhost_connections_max, limits.user_connections_max
        if of_vhost is not None or of_user is not None:
            elsewhere = await self._elsewhere(user.name, vhost)
            here = self._count(user.name, vhost)
            in_vhost, of_this, _ = map(sum, zip(elsewhere, here, strict=True))
            if of_vhost is not None and in_vhost >= of_vhost:
                raise Refused(
                    TOO_MANY,
                    f"access to vhost '{vhost}' refused for user '{user.name}': "
                    f"connection limit ({of_vhost}) is reached",
                )
            if of_user is not None and of_this >= of_user:
                raise Refused(
                    TOO_MANY,
                    f"connection refused for user '{user.name}': "
                    f"user connection limit ({of_user}) is reached",
                )
        return self._auth.access(user, vhost)  # what was taken away meanwhile is gone

    def limits_channels(self, user: str, vhost: str) -> bool:
        return self._auth.limits(user, vhost).user_channels_max is not None

    async def check_channels(self, user: str, vhost: str) -> None:
        """Raises Refused. The caller counts the channel before anything else may happen."""
        most = self._auth.limits(user, vhost).user_channels_max
        if most is None:
            return
        _, _, elsewhere = await self._elsewhere(user, vhost)
        _, _, here = self._count(user, vhost)
        if elsewhere + here >= most:
            raise Refused(
                TOO_MANY,
                f"number of channels opened for user '{user}' has reached the maximum allowed "
                f"user limit of ({most})",
            )

    def _count(self, user: str, vhost: str) -> tuple[int, int, int]:
        """Connections in the vhost, and of the user; channels of the user."""
        in_vhost = of_user = channels = 0
        for (name, where), alike in self._alike.items():
            if where == vhost:
                in_vhost += len(alike)
            if name == user:
                of_user += len(alike)
                channels += sum(client.channel_count for client in alike)
        return in_vhost, of_user, channels

    async def _elsewhere(self, user: str, vhost: str) -> tuple[int, int, int]:
        """A node that does not answer has, as far as anybody can tell, no clients."""
        answers = await self._peer_rpc.request_others(KIND, user, vhost)
        in_vhost, of_user, channels = map(sum, zip((0, 0, 0), *answers.values(), strict=True))
        return in_vhost, of_user, channels

    def _answer(self, _: NodeId, fields: list[Any]) -> list[int]:
        user, vhost = cast("list[str]", fields)
        return list(self._count(user, vhost))

    # --- having to go -----------------------------------------------------------------------------

    def look(self) -> None:
        """Ends those whose user or vhost is gone, or who lost all permissions in it. Called once a
        second: it goes by how things are, so nothing is missed.
        """
        for (user, vhost), alike in list(self._alike.items()):
            reason = self._auth.farewell(user, vhost)
            if reason is None:
                continue
            log.info("connections_ended", user=user, vhost=vhost, count=len(alike), reason=reason)
            for client in list(alike):
                client.force_close(reason)
