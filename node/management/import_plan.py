"""What an import of definitions would do: decided object by object on a copy of the catalog, before
anything is changed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from cluster.machine.arguments import (
    QUEUE_TYPE,
    STREAM,
    ArgumentError,
    misplaced,
    misplacement,
    parse_arguments,
)
from cluster.machine.catalog import CatalogMachine, did_something
from cluster.machine.catalog_commands import CatalogStep
from cluster.machine.catalog_queues import queue_text
from cluster.machine.commands import Bind, DeclareExchange, DeclareQueue
from cluster.machine.replies import (
    NO_EXCHANGE,
    NO_QUEUE,
    UNKNOWN_EXCHANGE_TYPE,
    Refused,
    Reply,
)
from cluster.types import NodeId
from node.access.passwords import Hashing
from node.errors import BrokerError
from node.management.bindings import bind_step
from node.management.errors import ApiError, bad_request
from node.management.exchanges import exchange_step
from node.management.limits import limits_step
from node.management.parameters import parameter_step
from node.management.policies import policy_step
from node.management.queues import queue_step
from node.management.unsupported import Unsupported
from node.management.users import permission_step, topic_permission_step, user_steps
from node.management.values import Body
from node.management.vhosts import vhost_step

#: In the order in which they need each other.
IN_CLUSTER = ("vhosts", "users", "permissions", "topic_permissions", "global_parameters")
IN_VHOST = ("parameters", "policies", "queues", "exchanges", "bindings")

OPERATOR_POLICY = "operator_policy"
VHOST_LIMITS = "vhost-limits"
#: Where an object has the settings that it may have to do without.
_SETTINGS = {
    "policies": "definition",
    "parameters": "value",
    "queues": "arguments",
    "vhosts": "",
}

Json = dict[str, Any]
#: refused: it is wrong. unsupported: it is right, and asks for what is not there; left_out: the
#: same, and the rest is imported. without_effect: it is imported, and so much of it says nothing.
Result = Literal["refused", "unsupported", "left_out", "without_effect"]
_IMPORTED: Final = ("left_out", "without_effect")


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of an object that is not imported as it stands."""

    section: str
    name: str
    vhost: str | None
    outcome: Result
    reason: str

    def shown(self) -> Json:
        return {
            "section": self.section,
            "name": self.name,
            "vhost": self.vhost,
            "outcome": self.outcome,
            "reason": self.reason,
        }


class ImportPlan:
    """`catalog` is a copy, on which all that is planned is done. `prepare` completes what declares
    a queue; `user` imports; `vhost`: into this one, whatever the objects say; `skip`: what is not
    supported is left out instead of refused.
    """

    def __init__(
        self,
        catalog: CatalogMachine,
        *,
        node: NodeId,
        user: str,
        hashing: Hashing,
        prepare: Callable[[DeclareQueue, CatalogMachine], DeclareQueue],
        vhost: str | None = None,
        skip: bool = False,
    ) -> None:
        self.steps: list[CatalogStep] = []  # those that change something
        self.imported = 0  # objects of which something changes
        self.findings: list[Finding] = []
        self._catalog = catalog
        self._node = node
        self._user = user
        self._hashing: Hashing = hashing
        self._prepare = prepare
        self._vhost = vhost
        self._skip = skip
        #: What will not be there, as an end of bindings: kind, vhost, name.
        self._missing: set[tuple[str, str, str]] = set()

    @property
    def refused(self) -> list[Finding]:
        return [each for each in self.findings if each.outcome not in _IMPORTED]

    def take(self, section: str, item: Body) -> None:
        """One object; those that it needs were taken before."""
        try:
            self._take(section, item)
        except Unsupported as absent:
            self._find(section, item, "left_out" if self._skip else "unsupported", absent.reason)
            rest = _without(section, item, absent.settings)  # what needs it is not to be blamed too
            if rest is None:
                self._misses(section, item)
            else:
                self.take(section, rest)
        except (ApiError, BrokerError) as error:
            self._find(section, item, "refused", error.reason)

    def _take(self, section: str, item: Body) -> None:
        changes = 0
        for step in self._steps(section, item):
            if isinstance(step, DeclareQueue) and not isinstance(
                parse_arguments(step.arguments), ArgumentError
            ):
                step = self._prepare(step, self._catalog)
            reply = self._catalog.apply_step(step)
            if isinstance(reply.reply, Refused):
                raise self._refusal(step, reply.reply)
            if _changes(step, reply.reply):
                self.steps.append(step)
                changes += did_something(reply.reply)
        self.imported += changes > 0

    def _refusal(self, step: CatalogStep, refused: Refused) -> ApiError:
        if refused.code == UNKNOWN_EXCHANGE_TYPE:
            return Unsupported(refused.reason)
        if isinstance(step, Bind) and refused.code in (NO_QUEUE, NO_EXCHANGE):
            ends = (("exchange", step.source), (step.kind, step.destination))
            for kind, name in ends:
                if (kind, step.vhost, name) in self._missing:
                    return Unsupported(f"{kind} '{name}' in vhost '{step.vhost}' is not imported")
        return bad_request(refused.reason)

    def _find(self, section: str, item: Body, outcome: Result, reason: str) -> None:
        values = item.values
        name, vhost = values.get("name") or values.get("user"), values.get("vhost", self._vhost)
        if section == "bindings":
            name = f"{values.get('source')} -> {values.get('destination')}"
        text = "" if name is None else str(name)
        found = Finding(section, text[:255], vhost, outcome, reason.replace("\n\n", ": "))
        self.findings.append(found)

    def _misses(self, section: str, item: Body) -> None:
        kind = {"queues": "queue", "exchanges": "exchange"}.get(section)
        if kind is not None:
            self._missing.add((kind, self._in(item), item.text("name")))

    def _in(self, item: Body) -> str:
        return self._vhost or item.text("vhost")

    # --- what an object asks for ------------------------------------------------------------------

    def _steps(self, section: str, item: Body) -> Sequence[CatalogStep]:
        match section:
            case "vhosts":
                return [vhost_step(self._catalog, item.text("name"), item)]
            case "users":
                name = item.text("name")
                known = self._catalog.entry("users", (name,))
                return user_steps(name, item, self._hashing, known)
            case "permissions":
                return [permission_step(item.text("user"), item.text("vhost"), item)]
            case "topic_permissions":
                return [topic_permission_step(item.text("user"), item.text("vhost"), item)]
            case "global_parameters":
                key = ("", "", item.text("name"))
                return [parameter_step(self._catalog, key, item, self._user)]
            case "parameters":
                return [self._parameter(item)]
            case "policies":
                return [policy_step("policies", self._in(item), item.text("name"), item)]
            case "queues":
                return self._queue(item)
            case "exchanges":
                return self._exchange(item)
            case _:
                return self._binding(item)

    def _parameter(self, item: Body) -> CatalogStep:
        component, vhost, name = item.text("component"), self._in(item), item.text("name")
        if component == OPERATOR_POLICY:
            return policy_step("operator_policies", vhost, name, Body(item.mapping("value")))
        if component == VHOST_LIMITS:
            value = Body(item.mapping("value"))
            given = {limit: value.integer(limit) for limit in value.values}
            return limits_step(self._catalog, "vhost", vhost, given)
        return parameter_step(self._catalog, (component, vhost, name), item, self._user)

    def _queue(self, item: Body) -> Sequence[CatalogStep]:
        """One that is there stays as it is; so does an exchange."""
        vhost, name = self._in(item), item.text("name")
        if self._catalog.queue(vhost, name) is not None:
            return []
        step = queue_step(self._catalog, self._node, vhost, name, item)
        self._check_placed(item, step)
        return [step]

    def _check_placed(self, item: Body, step: DeclareQueue) -> None:
        """RabbitMQ's releases differ in what they keep: clients go on to declare what an old one
        took for a queue.
        """
        names = misplaced(step.arguments)
        if not names:
            return
        thing = queue_text(step.vhost, step.name)
        reason = "; ".join(misplacement(name, thing, step.arguments) for name in names)
        if step.arguments[QUEUE_TYPE] == STREAM:
            raise Unsupported(reason, *names)
        self._find("queues", item, "without_effect", reason)

    def _exchange(self, item: Body) -> Sequence[CatalogStep]:
        vhost, name = self._in(item), item.text("name")
        if self._catalog.exchange(vhost, name) is not None:
            return []
        return [exchange_step(vhost, name, item)]

    def _binding(self, item: Body) -> Sequence[CatalogStep]:
        kind = item.text("destination_type", "queue")
        if kind not in ("queue", "exchange"):
            raise bad_request("destination_type is queue or exchange")
        source, destination = item.text("source"), item.text("destination")
        if not source:  # every queue is bound to the default exchange anyway
            return []
        return [bind_step(self._in(item), source, cast("Any", kind), destination, item)]


def _changes(step: CatalogStep, reply: Reply) -> bool:
    """An entry may say something else although it was there."""
    return did_something(reply) or not isinstance(step, DeclareQueue | DeclareExchange | Bind)


def _without(section: str, item: Body, settings: Sequence[str]) -> Body | None:
    """The object without these settings; None: nothing would be left."""
    place = _SETTINGS.get(section)
    if place is None or not settings:
        return None
    inner = item.mapping(place) if place else dict(item.values)
    if section == "parameters":  # an operator policy
        definition = _left(Body(inner).mapping("definition"), settings)
        rest: Mapping[str, Any] = {**inner, "definition": definition} if definition else {}
    else:
        rest = _left(inner, settings)
    if not rest and section != "queues":
        return None
    return Body({**item.values, place: rest} if place else rest)


def _left(values: Mapping[str, Any], settings: Sequence[str]) -> Json:
    return {name: value for name, value in values.items() if name not in settings}
