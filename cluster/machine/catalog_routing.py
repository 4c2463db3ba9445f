"""Exchanges and bindings: the commands that make and drop them, and what goes when they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from cluster.machine.arguments import inequivalence, unlike
from cluster.machine.catalog_commands import DestinationKind
from cluster.machine.catalog_tables import BindingInfo, Bindings, ExchangeInfo, Exchanges, Queues
from cluster.machine.checks import is_plain, is_short_text, shown
from cluster.machine.commands import (
    Bind,
    DeclareExchange,
    DeleteExchange,
    ForgetVolatile,
    Unbind,
)
from cluster.machine.effects import Applied
from cluster.machine.replies import (
    BAD_ARGUMENT,
    IN_USE,
    INEQUIVALENT,
    LIMIT_REACHED,
    NO_EXCHANGE,
    NO_QUEUE,
    NO_VHOST,
    NOT_ALLOWED,
    UNKNOWN_EXCHANGE_TYPE,
    Ok,
    Refused,
)
from cluster.machine.versions import FEDERATION_SINCE

#: Each costs every node memory.
EXCHANGES_MAX = 50_000
BINDINGS_MAX = 500_000
#: Of a binding to a consistent hash exchange.
WEIGHT_MAX = 1_000_000

HASH = "x-consistent-hash"
DELAYED = "x-delayed-message"
RANDOM = "x-random"
MODULUS = "x-modulus-hash"
EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers", HASH)
#: Since machine version 3.
LATER_TYPES = (DELAYED, RANDOM, MODULUS)
#: What a federated exchange of another cluster reads from here. Since `FEDERATION_SINCE`.
FEDERATION_UPSTREAM = "x-federation-upstream"
#: Of RabbitMQ's plugins, with what to do instead.
ABSENT_TYPES = {
    "x-recent-history": "keep the messages in a queue of their own, with x-max-length",
    "x-jms-topic": "use a topic or headers exchange",
    "x-local-random": "use x-random",
    "x-event": "read the audit log and the metrics",
}
RESERVED_PREFIX = "amq."
#: RabbitMQ's firehose. Nothing is published to it here.
TRACE = "amq.rabbitmq.trace"
#: What every vhost has from the start, internal ones marked so.
PREDEFINED = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    (TRACE, "topic", True),
)

ALTERNATE = "alternate-exchange"
HASH_HEADER = "hash-header"
HASH_PROPERTY = "hash-property"
DELAYED_TYPE = "x-delayed-type"
HASH_PROPERTIES = ("correlation_id", "message_id", "timestamp")
MAX_HOPS = "x-max-hops"
DOWNSTREAM_NAME, DOWNSTREAM_VHOST = "x-downstream-name", "x-downstream-vhost"
_COMPARED = frozenset({ALTERNATE, HASH_HEADER, HASH_PROPERTY})
_COMPARED_OF = {
    DELAYED: frozenset({DELAYED_TYPE}),
    FEDERATION_UPSTREAM: frozenset({MAX_HOPS, DOWNSTREAM_NAME, DOWNSTREAM_VHOST}),
}
X_MATCHES = ("all", "any", "all-with-x", "any-with-x")

_DEFAULT_EXCHANGE = "operation not permitted on the default exchange"
_NO_TRACE = (
    f"'{TRACE}' (the firehose) is never published to here, so a binding to it would stay silent:"
    " bind to the exchanges themselves, or read what became of messages with `quorate message`"
)
_NOT_PLAIN = "arguments may hold numbers, text, bytes, lists and maps, 64 KiB in all"


class Routing:
    """The exchanges and the bindings of all vhosts."""

    def __init__(self, queues: Queues, version: Callable[[], int]) -> None:
        self.exchanges = Exchanges()
        self.bindings = Bindings()
        self.generation = 0  # how often all that does not survive a halt of the cluster went
        self._queues = queues
        self._machine_version = version
        self._versions: dict[str, int] = {}
        self.changes = 0
        self._base = 0

    # --- versions: what is worked out from the tables is good as long as these stay the same

    def version(self, vhost: str) -> int:
        return self._versions.get(vhost, self._base)

    def changed(self, vhost: str) -> None:
        self.changes += 1
        self._versions[vhost] = self.changes

    def all_changed(self) -> None:
        self.changes += 1
        self._base = self.changes
        self._versions.clear()

    # --- vhosts and queues ------------------------------------------------------------------------

    def open_vhost(self, vhost: str) -> None:
        for name, kind, internal in PREDEFINED:
            self.exchanges.put(
                ExchangeInfo(
                    vhost,
                    name,
                    kind,
                    durable=True,
                    auto_delete=False,
                    internal=internal,
                    arguments={},
                )
            )
        self.changed(vhost)

    def close_vhost(self, vhost: str) -> None:
        """Its queues are gone already."""
        for info in self.exchanges.of_vhost(vhost):
            self._drop(info)
        self.changed(vhost)

    def queue_removed(self, vhost: str, name: str) -> None:
        self._unbind_all(self.bindings.of_destination(vhost, "queue", name))
        self.changed(vhost)

    def known(self, vhost: str) -> bool:
        """Every vhost has exchanges, and nothing else has."""
        return vhost in self.exchanges.by_vhost

    # --- exchanges --------------------------------------------------------------------------------

    def declare_exchange(self, command: DeclareExchange) -> Applied:
        refusal = self._wrong_exchange(command)
        if refusal is not None:
            return Applied(refusal)
        vhost, name = command.vhost, command.name
        existing = self.exchanges.find(vhost, name)
        if existing is not None:
            reason = _difference(existing, command)
            return Applied(Ok(0) if reason is None else Refused(INEQUIVALENT, reason))
        if name.startswith(RESERVED_PREFIX):
            reason = f"exchange name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'"
            return Applied(Refused(NOT_ALLOWED, reason))
        if len(self.exchanges) >= EXCHANGES_MAX:
            reason = f"the cluster holds {EXCHANGES_MAX} exchanges, its limit"
            return Applied(Refused(LIMIT_REACHED, reason))
        self.exchanges.put(
            ExchangeInfo(
                vhost,
                name,
                command.type,
                command.durable,
                command.auto_delete,
                command.internal,
                dict(command.arguments),
            )
        )
        self.changed(vhost)
        return Applied(Ok(1))

    def _wrong_exchange(self, command: DeclareExchange) -> Refused | None:
        if not self.known(command.vhost):
            return no_vhost(command.vhost)
        if command.name == "":
            return Refused(NOT_ALLOWED, _DEFAULT_EXCHANGE)
        if not is_short_text(command.name):
            return Refused(BAD_ARGUMENT, "an exchange's name must be text of at most 255 bytes")
        known = EXCHANGE_TYPES
        if self._machine_version() >= 3:
            known += LATER_TYPES
        if self._machine_version() >= FEDERATION_SINCE:
            known += (FEDERATION_UPSTREAM,)
        if command.type not in known:
            return Refused(UNKNOWN_EXCHANGE_TYPE, _unknown_type(command.type))
        reason = _wrong_arguments(command.type, command.arguments)
        return None if reason is None else Refused(BAD_ARGUMENT, reason)

    def delete_exchange(self, command: DeleteExchange) -> Applied:
        vhost, name = command.vhost, command.name
        if name == "":
            return Applied(Refused(NOT_ALLOWED, _DEFAULT_EXCHANGE))
        if name.startswith(RESERVED_PREFIX):
            reason = f"deletion of system {exchange_text(vhost, name)} not allowed"
            return Applied(Refused(NOT_ALLOWED, reason))
        info = self.exchanges.find(vhost, name)
        if info is None:
            return Applied(Ok(0))
        if command.if_unused and self.bindings.has_source(vhost, name):
            return Applied(Refused(IN_USE, f"{exchange_text(vhost, name)} in use"))
        self._drop(info)
        self.changed(vhost)
        return Applied(Ok(1))

    def forget_volatile(self, command: ForgetVolatile) -> Applied:
        if command.generation != self.generation:
            return Applied(Ok(0))
        self.generation += 1
        gone = [info for info in self.exchanges.all() if not info.durable]
        for info in gone:
            self._drop(info)
            self.changed(info.vhost)
        return Applied(Ok(len(gone)))

    def _drop(self, info: ExchangeInfo) -> None:
        if self.exchanges.find(info.vhost, info.name) is None:
            return  # gone already, with one that was bound to it
        self.exchanges.remove(info)
        for binding in self.bindings.of_source(info.vhost, info.name):
            self.bindings.remove(binding)
        self._unbind_all(self.bindings.of_destination(info.vhost, "exchange", info.name))

    # --- bindings ---------------------------------------------------------------------------------

    def bind(self, command: Bind) -> Applied:
        refusal = self._wrong_ends(command) or self._no_ends(command)
        if refusal is not None:
            return Applied(refusal)
        source = self.exchanges.find(command.vhost, command.source)
        assert source is not None
        if source.name == TRACE and self._machine_version() >= 3:
            return Applied(Refused(BAD_ARGUMENT, _NO_TRACE))
        reason = _wrong_binding(source.routes_as, command.key, command.arguments)
        if reason is not None:
            return Applied(Refused(BAD_ARGUMENT, reason))
        info = _binding(command)
        if len(self.bindings) >= BINDINGS_MAX and info not in self.bindings:
            reason = f"the cluster holds {BINDINGS_MAX} bindings, its limit"
            return Applied(Refused(LIMIT_REACHED, reason))
        if not self.bindings.put(info):
            return Applied(Ok(0))
        self.changed(command.vhost)
        return Applied(Ok(1))

    def unbind(self, command: Unbind) -> Applied:
        refusal = self._wrong_ends(command)
        if refusal is not None:
            return Applied(refusal)
        info = _binding(command)
        if info not in self.bindings:
            return Applied(Ok(0))
        self._unbind_all([info])
        self.changed(command.vhost)
        return Applied(Ok(1))

    def _wrong_ends(self, command: Bind | Unbind) -> Refused | None:
        if not self.known(command.vhost):
            return no_vhost(command.vhost)
        kind = cast("str", command.kind)  # the log can hold any word
        if kind not in ("queue", "exchange"):
            return Refused(BAD_ARGUMENT, "what is bound is a queue or an exchange")
        if command.source == "" or (kind == "exchange" and command.destination == ""):
            return Refused(NOT_ALLOWED, _DEFAULT_EXCHANGE)
        if not is_short_text(command.key):
            return Refused(BAD_ARGUMENT, "a binding key must be text of at most 255 bytes")
        return None if is_plain(command.arguments) else Refused(BAD_ARGUMENT, _NOT_PLAIN)

    def _no_ends(self, command: Bind) -> Refused | None:
        vhost, destination = command.vhost, command.destination
        if self.exchanges.find(vhost, command.source) is None:
            return no_exchange(vhost, command.source)
        if command.kind == "exchange" and self.exchanges.find(vhost, destination) is None:
            return no_exchange(vhost, destination)
        if command.kind == "queue" and (vhost, destination) not in self._queues.by_name:
            return no_queue(vhost, destination)
        return None

    def _unbind_all(self, bindings: Iterable[BindingInfo]) -> None:
        """An auto-delete exchange goes with its last binding, and what is bound to it loses it."""
        left = list(bindings)
        while left:
            binding = left.pop()
            vhost = binding.vhost
            if not self.bindings.remove(binding) or self.bindings.has_source(vhost, binding.source):
                continue
            source = self.exchanges.find(vhost, binding.source)
            if source is not None and source.auto_delete:
                self.exchanges.remove(source)
                left += self.bindings.of_destination(vhost, "exchange", source.name)

    # --- a machine's own --------------------------------------------------------------------------

    def invariants(self) -> None:
        for vhost, named in self.exchanges.by_vhost.items():
            assert "" in named, f"vhost {vhost} has no default exchange"
        for binding in self.bindings.all():
            vhost, target = binding.vhost, binding.destination
            assert binding.source, "bindings of the default exchange are implied"
            assert self.exchanges.find(vhost, binding.source) is not None
            if binding.kind == "queue":
                assert (vhost, target) in self._queues.by_name
            else:
                assert self.exchanges.find(vhost, target) is not None


# --- sentences ------------------------------------------------------------------------------------


def exchange_text(vhost: str, name: str) -> str:
    return f"exchange '{name}' in vhost '{vhost}'"


def no_vhost(vhost: str) -> Refused:
    return Refused(
        NO_VHOST, f"vhost '{vhost}' not found" if is_short_text(vhost) else "no such vhost"
    )


def no_exchange(vhost: str, name: str) -> Refused:
    return Refused(NO_EXCHANGE, f"no {exchange_text(vhost, name)}")


def no_queue(vhost: str, name: str) -> Refused:
    return Refused(NO_QUEUE, f"no queue '{name}' in vhost '{vhost}'")


# --- rules ----------------------------------------------------------------------------------------


def _binding(command: Bind | Unbind) -> BindingInfo:
    kind: DestinationKind = command.kind
    arguments = dict(command.arguments)
    return BindingInfo(
        command.vhost, command.source, kind, command.destination, command.key, arguments
    )


def _unknown_type(kind: Any) -> str:
    unknown = f"unknown exchange type '{kind if is_short_text(kind) else shown(kind)}'"
    instead = ABSENT_TYPES.get(kind) if type(kind) is str else None
    return unknown if instead is None else f"{unknown}; {instead}"


def _difference(existing: ExchangeInfo, command: DeclareExchange) -> str | None:
    thing = exchange_text(existing.vhost, existing.name)
    names = _COMPARED | _COMPARED_OF.get(existing.type, frozenset())
    return (
        unlike("type", existing.type, command.type, thing)
        or unlike("durable", existing.durable, command.durable, thing)
        or unlike("auto_delete", existing.auto_delete, command.auto_delete, thing)
        or unlike("internal", existing.internal, command.internal, thing)
        or inequivalence(existing.arguments, command.arguments, thing, names)
    )


def _wrong_arguments(kind: str, arguments: Mapping[str, Any]) -> str | None:
    if not is_plain(arguments):
        return _NOT_PLAIN
    alternate = arguments.get(ALTERNATE)
    if alternate is not None and not (isinstance(alternate, str) and is_short_text(alternate)):
        return f"invalid value {shown(alternate)} for '{ALTERNATE}': must be text"
    if kind == DELAYED:
        delayed: Any = arguments.get(DELAYED_TYPE)
        if delayed not in EXCHANGE_TYPES and delayed not in (RANDOM, MODULUS):
            return f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
        kind = str(delayed)
    if kind == FEDERATION_UPSTREAM:
        return _wrong_upstream(arguments)
    if kind != HASH:
        return None
    header, of_message = arguments.get(HASH_HEADER), arguments.get(HASH_PROPERTY)
    if header is not None and not isinstance(header, str):
        return f"invalid value {shown(header)} for '{HASH_HEADER}': must be text"
    if header is not None and of_message is not None:
        return f"'{HASH_HEADER}' and '{HASH_PROPERTY}' cannot both be given"
    if of_message is not None and of_message not in HASH_PROPERTIES:
        allowed = ", ".join(HASH_PROPERTIES)
        return f"invalid value {shown(of_message)} for '{HASH_PROPERTY}': must be one of {allowed}"
    return None


def _wrong_upstream(arguments: Mapping[str, Any]) -> str | None:
    """RabbitMQ before 3.3 does not name the downstream."""
    hops = arguments.get(MAX_HOPS)
    if type(hops) is not int or hops < 1:
        return f"invalid value {shown(hops)} for '{MAX_HOPS}': must be a whole number from 1"
    for name in (DOWNSTREAM_NAME, DOWNSTREAM_VHOST):
        if not isinstance(arguments.get(name, ""), str):
            return f"invalid value {shown(arguments[name])} for '{name}': must be text"
    return None


def _wrong_binding(kind: str, key: str, arguments: Mapping[str, Any]) -> str | None:
    if kind == "headers":
        match = arguments.get("x-match", X_MATCHES[0])
        if match not in X_MATCHES:
            return f"invalid x-match field value {shown(match)}; expected {', '.join(X_MATCHES)}"
    elif kind == HASH and not (key.isascii() and key.isdigit() and 0 < int(key) <= WEIGHT_MAX):
        return f"the binding key must be an integer from 1 to {WEIGHT_MAX}, not {shown(key)}"
    return None
