"""What a user may do in a virtual host: three regexes on names, and two on the keys of topics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, Protocol

import structlog

from node.errors import AccessRefused

log = structlog.get_logger(__name__)

Operation = Literal["configure", "write", "read"]
TopicOperation = Literal["write", "read"]

#: A user with this tag may publish in any user's name.
IMPERSONATOR = "impersonator"
#: How permissions call the exchange that has no name.
DEFAULT_EXCHANGE = "amq.default"
#: What most users may do; need not be searched for.
EVERYTHING = ".*"
#: Answers that one `Access` remembers of each kind.
REMEMBERED_MAX = 1_000
PATTERNS_MAX = 4_096


class AdminTables(Protocol):
    """What is read of the catalog: an entry of an administrative table, replaced when it changes,
    never changed.
    """

    def entry(self, table: str, key: tuple[str, ...]) -> Mapping[str, Any] | None: ...
    def entries(self, table: str) -> Mapping[tuple[str, ...], Mapping[str, Any]]: ...


class HasCatalog(Protocol):
    """A node: its copy of the catalog is there once it has started."""

    @property
    def catalog_machine(self) -> AdminTables: ...


class Access:
    """One user in one virtual host. Follows the catalog: what is taken away is refused at once."""

    def __init__(self, node: HasCatalog, user: str, vhost: str) -> None:
        self.user = user
        self.vhost = vhost
        self._node = node
        self._entry: Mapping[str, Any] | None = None
        self._answers: dict[Operation, Answers] = {}
        self._topics: dict[str, _Topics] = {}

    def may(self, operation: Operation, name: str) -> bool:
        """On a queue or an exchange of this name."""
        return self.answers(operation)[name]

    @property
    def entry(self) -> Mapping[str, Any] | None:
        """What the catalog says now: another object whenever it was changed."""
        return self._node.catalog_machine.entry("permissions", (self.user, self.vhost))

    def answers(self, operation: Operation) -> Answers:
        """By name, as of now: for one turn of the event loop."""
        entry = self.entry
        if entry is not self._entry:
            self._entry = entry
            self._answers.clear()
        answers = self._answers.get(operation)
        if answers is None:
            pattern = None if entry is None else entry[operation]
            answers = self._answers[operation] = Answers(pattern)
        return answers

    def may_topic(self, operation: TopicOperation, exchange: str, key: str) -> bool:
        """Besides `may`, for a topic exchange: with this routing key. Without an entry: yes."""
        exchange = exchange or DEFAULT_EXCHANGE
        entry = self._node.catalog_machine.entry(
            "topic_permissions", (self.user, self.vhost, exchange)
        )
        if entry is None:
            return True
        topics = self._topics.get(exchange)
        if topics is None or topics.entry is not entry:
            topics = _Topics(entry, self.user, self.vhost)
            _remember(self._topics, exchange, topics)
        return topics.may(operation, key)

    @property
    def impersonates(self) -> bool:
        entry = self._node.catalog_machine.entry("users", (self.user,))
        return entry is not None and IMPERSONATOR in entry["tags"]

    # --- the same, with RabbitMQ's words for a refusal --------------------------------------------

    def check(self, operation: Operation, kind: Literal["queue", "exchange"], name: str) -> None:
        """Raises AccessRefused."""
        if not self.may(operation, name):
            what = name or DEFAULT_EXCHANGE
            raise AccessRefused(
                f"access to {kind} '{what}' in vhost '{self.vhost}' refused for user '{self.user}'"
            )

    def check_dead_letters(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """What a new queue does not keep goes on in its owner's name. Raises AccessRefused."""
        exchange = arguments.get("x-dead-letter-exchange")
        if isinstance(exchange, str):
            self.check("read", "queue", queue)
            self.check("write", "exchange", exchange)

    def check_alternate(self, exchange: str, arguments: Mapping[str, Any]) -> None:
        """As `check_dead_letters`, for what a new exchange has no queue for."""
        alternate = arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            self.check("read", "exchange", exchange)
            self.check("write", "exchange", alternate)

    def check_topic(self, operation: TopicOperation, exchange: str, key: str) -> None:
        """Raises AccessRefused."""
        if not self.may_topic(operation, exchange, key):
            raise AccessRefused(
                f"access to topic '{key}' in exchange '{exchange or DEFAULT_EXCHANGE}' in vhost"
                f" '{self.vhost}' refused for user '{self.user}'"
            )


class Answers(dict[str | bytes, bool]):
    """Whether names match a pattern: found out when it is first asked. NATS's names are bytes."""

    def __init__(self, pattern: str | None) -> None:
        """None: nothing matches."""
        super().__init__()
        self._pattern = pattern

    @property
    def everything(self) -> bool:
        """It is true of every name."""
        return self._pattern == EVERYTHING

    def __missing__(self, name: str | bytes) -> bool:
        if self.everything:
            answer = True
        elif self._pattern is None:
            answer = False
        else:
            text = name if isinstance(name, str) else name.decode(errors="replace")
            answer = _matches(self._pattern, text or DEFAULT_EXCHANGE)
        _remember(self, name, answer)
        return answer


class _Topics:
    """The permissions on one topic exchange, as of one entry."""

    def __init__(self, entry: Mapping[str, Any], user: str, vhost: str) -> None:
        self.entry = entry
        self._patterns = {
            # A name is a name, whatever characters it has: not a part of the regex.
            operation: pattern.replace("{username}", re.escape(user)).replace(
                "{vhost}", re.escape(vhost)
            )
            for operation, pattern in entry.items()
        }
        self._answers: dict[tuple[TopicOperation, str], bool] = {}

    def may(self, operation: TopicOperation, key: str) -> bool:
        answer = self._answers.get((operation, key))
        if answer is None:
            answer = _matches(self._patterns[operation], key)
            _remember(self._answers, (operation, key), answer)
        return answer


def _remember(answers: dict[Any, Any], key: Any, value: Any) -> None:
    if len(answers) >= REMEMBERED_MAX:
        answers.clear()
    answers[key] = value


def _matches(pattern: str, name: str) -> bool:
    """Anywhere in the name, as in RabbitMQ; an empty pattern matches no name."""
    compiled = _compiled(pattern)
    return compiled is not None and compiled.search(name) is not None


@lru_cache(PATTERNS_MAX)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern or r"\A\Z")
    except re.error as error:
        log.warning("permission_unreadable", pattern=pattern[:100], reason=str(error))
        return None
