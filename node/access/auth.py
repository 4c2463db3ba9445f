"""Who may come in: users and their passwords, as the catalog has them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import structlog

from cluster.machine import replies as codes
from cluster.machine.catalog_entries import NKEYS
from node.access.browser_sessions import BrowserSessions
from node.access.login_delay import LoginDelay
from node.access.password_checks import PasswordChecks
from node.access.permissions import Access, HasCatalog
from node.errors import AccessRefused, Refused

log = structlog.get_logger(__name__)

GUEST = "guest"
#: By which clients come.
Protocol = Literal["amqp", "http", "native", "nats"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
ACCESSES_MAX = 10_000
CATCH_UP_S_MAX = 1.0
#: Who tried to log in and from where, as far as that is remembered.
SOURCES_MAX = 1_000
NAME_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class User:
    """Who has logged in. `tags` are for the management interface."""

    name: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserLimits:
    """None: no limit."""

    vhost_connections_max: int | None
    user_connections_max: int | None
    user_channels_max: int | None


class LoginAttempts:
    """Right and wrong ones since the process began, or somebody had them forgotten."""

    def __init__(self) -> None:
        self.by_protocol: dict[Protocol, list[int]] = {}
        #: By protocol, address and name: those seen last.
        self.by_source: OrderedDict[tuple[Protocol, str, str], list[int]] = OrderedDict()
        self.forget()

    def forget(self) -> None:
        self.by_protocol = {protocol: [0, 0] for protocol in PROTOCOLS}
        self.by_source.clear()

    def count(self, name: str, address: str, protocol: Protocol, *, right: bool) -> None:
        self.by_protocol[protocol][right] += 1
        key = (protocol, address, name[:NAME_SHOWN_MAX])
        counts = self.by_source.setdefault(key, [0, 0])
        counts[right] += 1
        self.by_source.move_to_end(key)
        if len(self.by_source) > SOURCES_MAX:
            self.by_source.popitem(last=False)


async def _up_to_date() -> bool:
    return True


class Auth:
    """One per node. Reads this node's copy of the catalog, so it answers without a leader."""

    def __init__(
        self,
        node: HasCatalog,
        *,
        loopback_users: Sequence[str] = (GUEST,),
        passwordless_guest: bool = False,
        hosts: Collection[str] = (),
        catch_up: Callable[[], Awaitable[bool]] = _up_to_date,
        guest_goes: bool = False,
    ) -> None:
        """`guest_goes`: who is guest cannot be said before this node has caught up. `hosts`: names
        of this node that a request from its own machine may be addressed to.
        """
        self.passwordless_guest = passwordless_guest
        self.hosts = frozenset(hosts)
        self._node = node
        self._loopback_users = frozenset(loopback_users)
        self._catch_up = catch_up
        self._caught_up = False
        self._guest_goes = guest_goes
        self._catching_up: asyncio.Task[None] | None = None
        self._checks = PasswordChecks()
        self._delay = LoginDelay()
        self._browsers = BrowserSessions()
        #: Logins that failed, by protocol: for metrics.
        self.logins_failed: dict[str, int] = dict.fromkeys(PROTOCOLS, 0)
        self.attempts = LoginAttempts()
        self._accesses: dict[tuple[str, str], Access] = {}

    def close(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._checks.close()

    # --- users ------------------------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        """Without a password: who proved its name in another way."""
        entry = self._node.catalog_machine.entry("users", (name,))
        return None if entry is None else User(name, tuple(entry["tags"]))

    async def login(
        self,
        name: str,
        password: str,
        *,
        loopback: bool,
        address: str = "",
        protocol: Protocol = "http",
    ) -> User:
        """Raises AccessRefused, or Refused when it cannot be said now. `address`: where from, so
        that who guesses from there has to wait.
        """
        await self._let_in(name, loopback=loopback, address=address, protocol=protocol)
        if await self._is_right(name, password, address):
            user = self.user(name)
            if user is not None:  # else it was dropped meanwhile
                self.attempts.count(name, address, protocol, right=True)
                return user
        self._failed(name, address, protocol)
        raise self._refusal(AccessRefused(f"user '{name}' - invalid credentials"))

    async def certified(
        self, name: str, *, loopback: bool, address: str, protocol: Protocol = "amqp"
    ) -> User:
        """Who proved its name by a certificate. Raises as `login` does."""
        await self._let_in(name, loopback=loopback, address=address, protocol=protocol)
        user = self.user(name)
        if user is None:
            self._failed(name, address, protocol)
            raise self._refusal(AccessRefused(f"user '{name}' - is not known"))
        self.attempts.count(name, address, protocol, right=True)
        return user

    async def owner(self, nkey: str, *, loopback: bool, address: str, protocol: Protocol) -> User:
        """Who proved to have this key. Raises as `login` does."""
        await self._ready()
        users = self._node.catalog_machine.entries("users")
        for (name,), entry in users.items():
            if nkey in entry.get(NKEYS, ()):
                return await self.certified(
                    name, loopback=loopback, address=address, protocol=protocol
                )
        self._failed(nkey, address, protocol)
        raise self._refusal(AccessRefused(f"nkey '{nkey}' is nobody's"))

    async def _let_in(self, name: str, *, loopback: bool, address: str, protocol: Protocol) -> None:
        if name in self._loopback_users and not loopback:
            self._failed(name, address, protocol, "not loopback")
            raise AccessRefused(f"user '{name}' can only connect via localhost")
        await self._ready()
        if self._guest_goes and name == GUEST and not self._caught_up:
            raise self._refusal(AccessRefused(f"user '{name}' - invalid credentials"))

    def _failed(
        self, name: str, address: str, protocol: Protocol, reason: str = "credentials"
    ) -> None:
        self.logins_failed[protocol] += 1
        self.attempts.count(name, address, protocol, right=False)
        log.warning(
            "login_refused", user=name[:100], address=address, protocol=protocol, reason=reason
        )

    # --- browsers ---------------------------------------------------------------------------------

    def browser_login(self, user: User) -> str:
        """A token for who has just logged in."""
        return self._browsers.open(user.name, self._kept(user.name))

    def browser_user(self, token: str, *, loopback: bool) -> User | None:
        """None: nobody, or not any more: the user is gone, or has another password."""
        session = self._browsers.find(token)
        if session is None or (session.user in self._loopback_users and not loopback):
            return None
        if session.proof != self._kept(session.user):
            self._browsers.close(token)
            return None
        return self.user(session.user)

    def browser_logout(self, token: str) -> None:
        self._browsers.close(token)

    # --- passwords --------------------------------------------------------------------------------

    async def guest(self) -> User | None:
        """Who comes from this machine without saying who it is: the user guest, while anybody
        knows its password.
        """
        await self._ready()
        if self._guest_goes and not self._caught_up:
            return None
        entry = self._node.catalog_machine.entry("users", (GUEST,))
        known = entry is not None and bool(entry["password_hash"])
        return self.user(GUEST) if known and await self._verified(GUEST, GUEST) else None

    async def _is_right(self, name: str, password: str, address: str) -> bool:
        if not self._checks.remembers(name, password, *self._kept(name)):
            # Clients that are known do not wait for guesses made at their own address.
            await self._delay.wait(name, address)
        right = await self._verified(name, password, address)
        if right:
            self._delay.right(name, address)
        else:
            self._delay.wrong(name, address)
        return right

    async def _verified(self, name: str, password: str, address: str = "") -> bool:
        return await self._checks.right(name, password, *self._kept(name), address)

    def _kept(self, name: str) -> tuple[str, str]:
        entry = self._node.catalog_machine.entry("users", (name,))
        return ("", "") if entry is None else (entry["password_hash"], entry["hashing_algorithm"])

    # --- access -----------------------------------------------------------------------------------

    def access(self, user: User, vhost: str) -> Access:
        """Raises Refused: there is no such vhost, or this user has no permissions in it."""
        if self._node.catalog_machine.entry("vhosts", (vhost,)) is None:
            raise Refused(codes.NO_VHOST, f"vhost '{vhost}' not found")
        if not self.may_enter(user, vhost):
            raise AccessRefused(f"access to vhost '{vhost}' refused for user '{user.name}'")
        key = (user.name, vhost)
        access = self._accesses.get(key)
        if access is None:
            if len(self._accesses) >= ACCESSES_MAX:
                self._accesses.clear()
            access = self._accesses[key] = Access(self._node, *key)
        return access

    def may_enter(self, user: User, vhost: str) -> bool:
        return self._node.catalog_machine.entry("permissions", (user.name, vhost)) is not None

    def farewell(self, user: str, vhost: str) -> str | None:
        """Why a connection of this user in this vhost must end; None: it need not."""
        catalog = self._node.catalog_machine
        if catalog.entry("vhosts", (vhost,)) is None:
            return f"vhost '{vhost}' is deleted"
        if catalog.entry("users", (user,)) is None:
            return f"user '{user}' is deleted"
        if catalog.entry("permissions", (user, vhost)) is None:
            return f"access to vhost '{vhost}' refused for user '{user}'"
        return None

    async def admit(self, user: User, vhost: str) -> Access:
        """`access`, once this node knows what was decided while it was away."""
        await self._ready()
        try:
            return self.access(user, vhost)
        except Refused as error:
            raise self._refusal(error) from None

    def limits(self, user: str, vhost: str) -> UserLimits:
        of_vhost = self._node.catalog_machine.entry("vhost_limits", (vhost,)) or {}
        of_user = self._node.catalog_machine.entry("user_limits", (user,)) or {}
        return UserLimits(
            _limit(of_vhost.get("max-connections")),
            _limit(of_user.get("max-connections")),
            _limit(of_user.get("max-channels")),
        )

    # --- after a start ----------------------------------------------------------------------------

    async def _ready(self) -> None:
        """This node's copy of the catalog is from before its start until somebody has told it the
        rest. When nobody does in time it goes by what it has, and refuses nobody for good.
        """
        if self._caught_up:
            return
        if self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up_once(), name="catch_up_users")
        await asyncio.wait({self._catching_up}, timeout=CATCH_UP_S_MAX)

    async def _catch_up_once(self) -> None:
        try:
            self._caught_up = await self._catch_up()
        finally:
            self._catching_up = None

    def _refusal(self, error: Refused) -> Refused:
        if self._caught_up:
            return error
        return Refused("no_leader", "this node does not know yet who its users are: try again")


def _limit(value: int | None) -> int | None:
    """-1, or any number below 0, is none."""
    return None if value is None or value < 0 else value
