"""Whether a client may come in: its password, its vhost, and how many are there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog

from cluster.machine import replies as codes
from node.auth import Auth, User
from node.errors import AccessRefused, Refused
from node.permissions import Access
from node.protocols.amqp.errors import (
    NOT_ALLOWED,
    RESOURCE_ERROR,
    ConnectionError_,
)
from node.protocols.amqp.handshake import Credentials

log = structlog.get_logger(__name__)

_OPEN = (10, 40)


class Inhabitant(Protocol):
    """A connection that is open, as limits count it."""

    @property
    def user_name(self) -> str: ...
    @property
    def vhost(self) -> str: ...
    @property
    def channel_count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of one node. Limits count the connections of this node."""

    auth: Auth
    inhabitants: Callable[[], Iterable[Inhabitant]]

    async def login(self, credentials: Credentials, *, host: str) -> User | None:
        """None: refused. Raises ConnectionError_ when it cannot be said now."""
        mechanism, name, password = credentials
        if password is None:
            user = self.auth.user(name)
            if user is None:
                log.warning("login_refused", user=name[:100], mechanism=mechanism, address=host)
            return user
        try:
            return await self.auth.login(name, password, loopback=is_loopback(host), address=host)
        except AccessRefused as refused:
            log.warning("login_refused", user=name[:100], mechanism=mechanism, reason=str(refused))
            return None
        except Refused as refused:
            raise ConnectionError_(RESOURCE_ERROR, refused.reason) from refused

    async def enter(self, user: User, vhost: str) -> Access:
        """Raises ConnectionError_."""
        try:
            access = await self.auth.admit(user, vhost)
        except Refused as refused:
            known = refused.code == codes.NO_VHOST or isinstance(refused, AccessRefused)
            code = NOT_ALLOWED if known else RESOURCE_ERROR
            raise ConnectionError_(code, refused.reason, *_OPEN) from refused
        limits = self.auth.limits(user.name, vhost)
        most = limits.vhost_connections_max
        if most is not None and self._count(vhost=vhost) >= most:
            raise ConnectionError_(
                NOT_ALLOWED,
                f"access to vhost '{vhost}' refused for user '{user.name}': "
                f"connection limit ({most}) is reached",
                *_OPEN,
            )
        most = limits.user_connections_max
        if most is not None and self._count(user=user.name) >= most:
            raise ConnectionError_(
                NOT_ALLOWED,
                f"connection refused for user '{user.name}': "
                f"user connection limit ({most}) is reached",
                *_OPEN,
            )
        return access

    def check_channels(self, user: str, vhost: str) -> None:
        """One more channel of the user. Raises ConnectionError_."""
        most = self.auth.limits(user, vhost).user_channels_max
        if most is None:
            return
        count = sum(each.channel_count for each in self.inhabitants() if each.user_name == user)
        if count >= most:
            raise ConnectionError_(
                NOT_ALLOWED,
                f"number of channels opened for user '{user}' has reached the maximum allowed "
                f"user limit of ({most})",
                20,
                10,
            )

    def _count(self, *, vhost: str | None = None, user: str | None = None) -> int:
        return sum(
            1
            for each in self.inhabitants()
            if vhost in {None, each.vhost} and user in {None, each.user_name}
        )


def is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in {"::1", "::ffff:127.0.0.1"}
