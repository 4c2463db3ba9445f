"""Who is let in, what that costs, and who has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from node.access import login_delay
from node.access import password_checks as module
from node.access.auth import Auth, User, UserLimits
from node.access.login_delay import Waits
from node.errors import AccessRefused, Refused
from tests.node.catalogs import Tables
from tests.node.test_passwords import DOCUMENTED, SHA256

Checks = list[str]


@pytest.fixture
def tables() -> Tables:
    tables = Tables()
    tables.user("guest", "guest", "administrator")
    tables.user("shop", "secret")
    tables.put("vhosts", "/")
    tables.put("permissions", "shop", "/", configure="", write="", read=".*")
    return tables


@pytest.fixture
async def auth(tables: Tables) -> AsyncIterator[Auth]:
    auth = Auth(tables)
    yield auth
    auth.close()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """The algorithm of every hash that is really computed."""
    seen: Checks = []
    real = module.verify

    def verify(password: str, kept: str, algorithm: str) -> bool:
        seen.append(algorithm)
        return real(password, kept, algorithm)

    monkeypatch.setattr(module, "verify", verify)
    return seen


async def refused(auth: Auth, name: str, password: str, *, loopback: bool = True) -> Refused:
    with pytest.raises(Refused) as caught:
        await auth.login(name, password, loopback=loopback)
    return caught.value


async def test_the_right_password_is_let_in_with_its_tags(auth: Auth):
    assert await auth.login("guest", "guest", loopback=True) == User("guest", ("administrator",))
    assert await auth.login("shop", "secret", loopback=False) == User("shop")
    assert auth.user("shop") == User("shop")
    assert auth.user("nobody") is None


@pytest.mark.parametrize("name", ["shop", "nobody"])
async def test_a_wrong_password_and_an_unknown_user_are_told_the_same(auth: Auth, name: str):
    error = await refused(auth, name, "hunter2")

    assert isinstance(error, AccessRefused)
    assert (error.code, error.reason) == (
        "access_refused",
        f"user '{name}' - invalid credentials",
    )


async def test_what_is_wrong_costs_one_scrypt_for_whomever(
    auth: Auth, tables: Tables, checks: Checks
):
    tables.all["users", ("old",)] = {
        "password_hash": DOCUMENTED,
        "hashing_algorithm": SHA256,
        "tags": [],
    }
    tables.all["users", ("certificate",)] = {
        "password_hash": "",
        "hashing_algorithm": "scrypt",
        "tags": [],
    }
    for name in ("shop", "nobody", "old", "certificate"):
        await refused(auth, name, "hunter2")
        assert checks.count("scrypt") == 1
        checks.clear()

    assert (await auth.login("old", "test12", loopback=True)).name == "old"


async def test_an_empty_hash_has_no_password_not_even_the_empty_one(auth: Auth, tables: Tables):
    tables.all["users", ("certificate",)] = {
        "password_hash": "",
        "hashing_algorithm": "scrypt",
        "tags": [],
    }

    await refused(auth, "certificate", "")
    assert auth.user("certificate") is not None


async def test_guest_comes_from_this_machine_only(auth: Auth, tables: Tables):
    error = await refused(auth, "guest", "guest", loopback=False)
    assert error.reason == "user 'guest' can only connect via localhost"

    anywhere = Auth(tables, loopback_users=())
    assert (await anywhere.login("guest", "guest", loopback=False)).name == "guest"
    anywhere.close()


async def test_a_certificate_brings_guest_in_from_this_machine_only(auth: Auth):
    assert await auth.certified("shop", loopback=False, address="192.0.2.1") == User("shop")
    assert (await auth.certified("guest", loopback=True, address="127.0.0.1")).name == "guest"
    for name in ("guest", "nobody"):
        with pytest.raises(AccessRefused):
            await auth.certified(name, loopback=False, address="192.0.2.1")


async def test_a_storm_of_one_client_costs_one_check(auth: Auth, checks: Checks):
    logins = [auth.login("shop", "secret", loopback=True) for _ in range(500)]

    assert set(await asyncio.gather(*logins)) == {User("shop")}
    await auth.login("shop", "secret", loopback=True)
    assert checks == ["scrypt"]


async def test_a_password_that_was_changed_is_forgotten(auth: Auth, tables: Tables):
    await auth.login("shop", "secret", loopback=True)

    tables.user("shop", "other")
    await refused(auth, "shop", "secret")
    await auth.login("shop", "other", loopback=True)
    tables.drop("users", "shop")
    await refused(auth, "shop", "other")


@pytest.mark.parametrize("limit", ["CHECKS_WAITING_MAX", "CHECKS_WAITING_PER_ADDRESS_MAX"])
async def test_too_many_at_once_are_told_to_come_again(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, limit: str
):
    monkeypatch.setattr(module, limit, 4)
    auth = Auth(tables)
    logins = [
        auth.login(f"user-{number}", "x", loopback=True, address="192.0.2.1") for number in range(8)
    ]

    errors = await asyncio.gather(*logins, return_exceptions=True)

    codes = [error.code for error in errors if isinstance(error, Refused)]
    assert sorted(codes) == ["access_refused"] * 6 + ["overloaded"] * 2  # two are checked at once
    auth.close()


async def test_a_flood_of_logins_from_one_address_leaves_others_their_turn(auth: Auth):
    flood = [
        asyncio.create_task(auth.login(f"user-{number}", "x", loopback=True, address="192.0.2.66"))
        for number in range(40)
    ]
    await asyncio.sleep(0)

    await auth.login("shop", "secret", loopback=True, address="192.0.2.1")

    assert sum(each.done() for each in flood) <= 5
    await asyncio.gather(*flood, return_exceptions=True)


async def test_who_guesses_delays_neither_other_addresses_nor_other_users(
    auth: Auth, monkeypatch: pytest.MonkeyPatch
):
    for _ in range(8):
        await refused_at(auth, "shop", "hunter2", "192.0.2.66")
    slept: list[float] = []

    async def sleep(span_s: float) -> None:
        slept.append(span_s)

    monkeypatch.setattr(login_delay, "sleep", sleep)
    await auth.login("shop", "secret", loopback=True, address="192.0.2.1")
    await auth.login("guest", "guest", loopback=True, address="192.0.2.66")
    assert slept == []

    await refused_at(auth, "shop", "hunter2", "192.0.2.66")
    assert slept[0] > 0
    assert auth.logins_failed == {"amqp": 9, "http": 0, "native": 0, "nats": 0}


async def test_one_password_tried_on_many_users_is_slowed_for_the_whole_address(
    auth: Auth, monkeypatch: pytest.MonkeyPatch
):
    slept: list[float] = []

    async def sleep(span_s: float) -> None:
        slept.append(span_s)

    monkeypatch.setattr(login_delay, "sleep", sleep)
    await auth.login("guest", "guest", loopback=True, address="2001:db8:0:66::1")
    for number in range(login_delay.USERS_FREE_MAX):
        await refused_at(auth, f"user-{number}", "Winter26", f"2001:db8:0:66::{number:x}")
    assert slept == []
    await refused_at(auth, "user-x", "Winter26", "2001:db8:0:66:1:2:3:4")
    await refused_at(auth, "user-y", "Winter26", "2001:db8:0:66::5")
    await auth.login("shop", "secret", loopback=True, address="2001:db8:0:66::1")
    assert len(slept) == 2
    # Nobody else waits, nor does who is known.
    await auth.login("shop", "secret", loopback=True, address="2001:db8:0:67::1")
    await auth.login("guest", "guest", loopback=True, address="2001:db8:0:66::1")
    assert len(slept) == 2


def test_one_client_with_an_old_password_slows_no_others_of_its_address():
    delay = login_delay.LoginDelay()
    for _ in range(500):
        delay.wrong("app", "192.0.2.1")
    waits = delay._sprays  # pyright: ignore[reportPrivateUsage]
    assert waits.reserve(login_delay.network_of("192.0.2.1"), 0.0) == 0.0


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:66::1", "20010db800000066/64"),
        ("2001:db8:0:66:ffff::1%eth0", "20010db800000066/64"),
        ("", ""),
        ("a socket", "a socket"),
    ],
)
def test_who_has_one_address_has_its_network(address: str, network: str):
    assert login_delay.network_of(address) == network


async def refused_at(auth: Auth, name: str, password: str, address: str) -> None:
    with pytest.raises(AccessRefused):
        await auth.login(name, password, loopback=False, address=address, protocol="amqp")


async def test_guest_without_a_password_only_while_everybody_knows_it(
    auth: Auth, tables: Tables, checks: Checks
):
    assert await auth.guest() == User("guest", ("administrator",))
    assert await auth.guest() is not None
    assert len(checks) == 1

    tables.user("guest", "changed")
    assert await auth.guest() is None
    tables.drop("users", "guest")
    assert await auth.guest() is None


# --- delays ---------------------------------------------------------------------------------------


async def test_who_guesses_has_to_wait_and_who_is_known_has_not(
    auth: Auth, monkeypatch: pytest.MonkeyPatch
):
    waited: list[str] = []

    async def wait(self: object, user: str, address: str) -> None:
        waited.append(user)

    monkeypatch.setattr(login_delay.LoginDelay, "wait", wait)
    await auth.login("shop", "secret", loopback=True)
    await refused(auth, "shop", "hunter2")
    await auth.login("shop", "secret", loopback=True)

    assert waited == ["shop", "shop"]  # the third was remembered


def test_waits_grow_with_each_wrong_password_and_end_with_a_right_one():
    waits = Waits(free=2)
    for _ in range(2):
        waits.wrong("shop", 0.0)
    assert waits.reserve("shop", 0.0) == 0.0

    spans: list[float | None] = []
    now_s = 0.0
    for _ in range(4):
        waits.wrong("shop", now_s)
        spans.append(waits.reserve("shop", now_s))
        now_s += 10.0
    assert spans == pytest.approx([0.1, 0.2, 0.4, 0.8])

    assert waits.reserve("till", now_s) == 0.0
    waits.right("shop")
    assert waits.reserve("shop", now_s) == 0.0


def test_attempts_at_the_same_time_take_turns_and_the_last_are_refused():
    waits = Waits(free=0)
    for _ in range(100):
        waits.wrong("shop", 0.0)

    assert [waits.reserve("shop", 0.0) for _ in range(4)] == [2.0, 4.0, None, None]


def test_wrong_passwords_are_forgotten_after_a_while_and_never_fill_memory(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(login_delay, "TRACKED_MAX", 10)
    waits = Waits(free=0)
    for number in range(100):
        waits.wrong(f"user-{number}", 0.0)

    assert waits.reserve("user-0", 0.0) == 0.0
    assert waits.reserve("user-99", 0.0) == pytest.approx(0.1)
    assert waits.reserve("user-99", 100.0) == 0.0


# --- access ---------------------------------------------------------------------------------------


async def test_access_needs_the_vhost_and_permissions_in_it(auth: Auth, tables: Tables):
    assert auth.access(User("shop"), "/").may("read", "orders")

    with pytest.raises(Refused) as caught:
        auth.access(User("shop"), "other")
    assert (caught.value.code, caught.value.reason) == ("no_vhost", "vhost 'other' not found")

    with pytest.raises(AccessRefused) as refusal:
        auth.access(User("guest"), "/")
    assert refusal.value.reason == "access to vhost '/' refused for user 'guest'"


def test_limits_below_zero_are_none(auth: Auth, tables: Tables):
    assert auth.limits("shop", "/") == UserLimits(None, None, None)

    tables.put("vhost_limits", "/", max_connections=0)
    tables.put("user_limits", "shop", max_connections=-1, max_channels=5)
    assert auth.limits("shop", "/") == UserLimits(0, None, 5)


# --- after a start --------------------------------------------------------------------------------


async def test_a_node_that_just_started_first_hears_what_was_decided_meanwhile(tables: Tables):
    async def catch_up() -> bool:
        tables.user("till", "secret")
        tables.put("permissions", "till", "/", configure="", write="", read="")
        tables.drop("users", "shop")
        return True

    auth = Auth(tables, catch_up=catch_up)

    till = await auth.login("till", "secret", loopback=True)
    assert (await auth.admit(till, "/")).user == "till"
    assert isinstance(await refused(auth, "shop", "secret"), AccessRefused)
    auth.close()


async def test_a_node_that_hears_nothing_goes_by_what_it_has_and_refuses_nobody_for_good(
    tables: Tables,
):
    async def never() -> bool:
        return False

    auth = Auth(tables, catch_up=never)

    assert await auth.login("shop", "secret", loopback=True) == User("shop")
    assert (await refused(auth, "till", "secret")).code == "no_leader"
    with pytest.raises(Refused) as caught:
        await auth.admit(User("shop"), "new")
    assert caught.value.code == "no_leader"
    auth.close()
