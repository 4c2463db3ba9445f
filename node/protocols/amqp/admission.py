"""Whether a client may come in: its password, its vhost, and how many are there already."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.machine import replies as codes
from node.access.auth import Auth, User
from node.access.permissions import Access
from node.clients.clients import TOO_MANY, Clients
from node.errors import AccessRefused, Refused
from node.messages.amqp_errors import (
    NOT_ALLOWED,
    RESOURCE_ERROR,
    ConnectionError_,
)
from node.protocols.amqp.handshake import Credentials

_OPEN = (10, 40)
_OPEN_CHANNEL = (20, 10)


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules, in AMQP's words."""

    auth: Auth
    clients: Clients

    async def login(self, credentials: Credentials, *, host: str) -> User | None:
        """None: refused. Raises ConnectionError_ when it cannot be said now."""
        _, name, password = credentials
        loopback = is_loopback(host)
        try:
            if password is None:
                return await self.auth.certified(name, loopback=loopback, address=host)
            return await self.auth.login(
                name, password, loopback=loopback, address=host, protocol="amqp"
            )
        except AccessRefused:
            return None
        except Refused as refused:
            raise ConnectionError_(RESOURCE_ERROR, refused.reason) from refused

    async def enter(self, user: User, vhost: str) -> Access:
        """Raises ConnectionError_."""
        try:
            return await self.clients.admit(user, vhost)
        except Refused as refused:
            known = refused.code in {codes.NO_VHOST, TOO_MANY} or isinstance(refused, AccessRefused)
            code = NOT_ALLOWED if known else RESOURCE_ERROR
            raise ConnectionError_(code, refused.reason, *_OPEN) from refused

    async def check_channels(self, user: str, vhost: str) -> None:
        """Raises ConnectionError_."""
        try:
            await self.clients.check_channels(user, vhost)
        except Refused as refused:
            raise ConnectionError_(NOT_ALLOWED, refused.reason, *_OPEN_CHANNEL) from refused


def is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in {"::1", "::ffff:127.0.0.1"}
