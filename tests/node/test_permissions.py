"""What a user may do in a virtual host, and that it follows the catalog."""

from __future__ import annotations

import pytest

from node.access.permissions import REMEMBERED_MAX, Access, Operation
from node.errors import AccessRefused
from tests.node.catalogs import Tables


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def access(tables: Tables) -> Access:
    return Access(tables, "shop", "/")


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        (".*", "orders", True),
        ("", "orders", False),
        ("^$", "orders", False),
        ("ord", "orders", True),  # anywhere in the name
        ("^rd", "orders", False),
        ("^(orders|bills)$", "bills", True),
        ("^(orders|bills)$", "bills2", False),
        (r"^amq\.default$", "", True),  # the exchange without a name
        ("^$", "", False),
        ("(", "orders", False),  # no regex at all
    ],
)
@pytest.mark.parametrize("operation", ["configure", "write", "read"])
def test_a_pattern_is_searched_for_in_the_name(
    tables: Tables, access: Access, operation: Operation, pattern: str, name: str, allowed: bool
):
    nothing = {"configure": "", "write": "", "read": ""}
    tables.put("permissions", "shop", "/", **{**nothing, operation: pattern})

    assert access.may(operation, name) is allowed
    assert access.may(operation, name) is allowed  # as remembered
    others = {"configure", "write", "read"} - {operation}
    assert not any(access.may(other, name) for other in others)  # pyright: ignore[reportArgumentType]


def test_without_an_entry_nothing_is_allowed(access: Access):
    assert not access.may("read", "orders")


def test_a_change_of_the_catalog_counts_at_once(tables: Tables, access: Access):
    tables.put("permissions", "shop", "/", configure="", write="", read="^orders$")
    assert access.may("read", "orders")

    tables.put("permissions", "shop", "/", configure="", write="", read="^bills$")
    assert not access.may("read", "orders")
    assert access.may("read", "bills")

    tables.drop("permissions", "shop", "/")
    assert not access.may("read", "bills")


def test_more_names_than_are_remembered_are_answered_all_the_same(tables: Tables, access: Access):
    tables.put("permissions", "shop", "/", configure="", write="", read="7$")

    answers = [access.may("read", f"q{number}") for number in range(2_500)]

    assert answers == [number % 10 == 7 for number in range(2_500)]
    assert len(access.answers("read")) <= REMEMBERED_MAX


def test_a_topic_without_an_entry_is_allowed(access: Access):
    assert access.may_topic("write", "news", "a.b")


def test_a_topic_with_an_entry_is_what_its_pattern_says(tables: Tables, access: Access):
    key = ("topic_permissions", "shop", "/", "news")
    tables.put(*key, write=r"^{username}\.", read="^{vhost}a")

    assert access.may_topic("write", "news", "shop.orders")
    assert not access.may_topic("write", "news", "other.orders")
    assert access.may_topic("read", "news", "/a")
    assert not access.may_topic("read", "news", "a")
    assert access.may_topic("read", "other", "a")

    tables.put(*key, write="", read="")
    assert not access.may_topic("write", "news", "shop.orders")
    tables.drop(*key)
    assert access.may_topic("write", "news", "shop.orders")


def test_a_name_is_no_part_of_the_pattern_that_it_stands_in(tables: Tables):
    tables.put("topic_permissions", ".*", "/", "news", write="^{username}$", read="")
    access = Access(tables, ".*", "/")

    assert not access.may_topic("write", "news", "anything")
    assert access.may_topic("write", "news", ".*")


def test_refusals_have_the_words_of_rabbitmq(tables: Tables, access: Access):
    tables.put("topic_permissions", "shop", "/", "news", write="", read="")

    def refusal(check: object, *arguments: str) -> str:
        with pytest.raises(AccessRefused) as caught:
            check(*arguments)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
        assert caught.value.code == "access_refused"
        return caught.value.reason

    assert refusal(access.check, "read", "queue", "q") == (
        "access to queue 'q' in vhost '/' refused for user 'shop'"
    )
    assert refusal(access.check, "write", "exchange", "") == (
        "access to exchange 'amq.default' in vhost '/' refused for user 'shop'"
    )
    assert refusal(access.check_topic, "write", "news", "k") == (
        "access to topic 'k' in exchange 'news' in vhost '/' refused for user 'shop'"
    )
