"""Upstreams: what their parameters say, and which of them a policy names. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from cluster.machine.arguments import SPAN_MS_MAX
from cluster.machine.checks import shown
from cluster.machine.policies import FEDERATION, FEDERATION_PATTERN, compiled
from node.access.patterns import check_pattern
from node.errors import Refused
from node.links.definition import ACK_MODES, PREFETCH_MAX, RECONNECT_S, Fields, wrong
from node.links.moving import AckMode

UPSTREAM, UPSTREAM_SET = "federation-upstream", "federation-upstream-set"
#: The set that every upstream of a virtual host is in.
ALL = "all"
PREFETCH = 1_000
HOPS_MAX = 1_000
#: Of one set.
UPSTREAMS_MAX = 1_000
QUEUE_TYPES = ("classic", "quorum")

Parameters = Mapping[tuple[str, ...], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Upstream:
    """RabbitMQ's parameters. `exchange`, `queue`: None: of the same name as the downstream's."""

    name: str
    uris: tuple[str, ...]
    prefetch: int = PREFETCH
    reconnect_delay_s: float = RECONNECT_S
    ack_mode: AckMode = "on-confirm"
    trusts_user_id: bool = False
    exchange: str | None = None
    queue: str | None = None
    hops_max: int = 1
    expires_ms: int | None = None
    message_ttl_ms: int | None = None
    consumer_tag: str = ""
    bind_nowait: bool = False
    queue_type: Literal["classic", "quorum"] | None = None
    one_channel: bool = False
    keeps_resources: bool = False

    @property
    def under_way_max(self) -> int:
        """Messages that have come and are not settled."""
        return self.prefetch or PREFETCH_MAX


def parse_upstream(name: str, value: Any) -> Upstream:
    """Raises Refused, which names the field."""
    fields = Fields(UPSTREAM, value)
    if "ha-policy" in fields:
        raise wrong("ha-policy", "left out: no queue is mirrored by a policy")
    kind = fields.choice("queue-type", QUEUE_TYPES, "") if "queue-type" in fields else None
    upstream = Upstream(
        name,
        fields.uris("uri"),
        prefetch=fields.integer("prefetch-count", 0, PREFETCH_MAX, PREFETCH),
        reconnect_delay_s=fields.seconds("reconnect-delay", RECONNECT_S),
        ack_mode=cast("AckMode", fields.choice("ack-mode", ACK_MODES, ACK_MODES[0])),
        trusts_user_id=fields.boolean("trust-user-id", False),
        exchange=fields.text("exchange", "") or None,
        queue=fields.text("queue", "") or None,
        hops_max=fields.integer("max-hops", 1, HOPS_MAX, 1),
        expires_ms=fields.integer("expires", 1, SPAN_MS_MAX) if "expires" in fields else None,
        message_ttl_ms=fields.milliseconds("message-ttl"),
        consumer_tag=fields.text("consumer-tag", f"federation-link-{name}"[:255]),
        bind_nowait=fields.boolean("bind-nowait", False),
        queue_type=cast("Any", kind),
        one_channel=fields.choice("channel-use-mode", ("multiple", "single"), "multiple")
        == "single",
        keeps_resources=fields.choice("resource-cleanup-mode", ("default", "never"), "default")
        == "never",
    )
    fields.end()
    return upstream


def check_set(name: str, value: Any) -> None:
    """Raises Refused. An upstream that is not there is left out until it is."""
    if name == ALL:
        raise wrong("the name of a set", f"another than '{ALL}', which every upstream is in")
    if not isinstance(value, (list, tuple)) or len(cast("list[Any]", value)) > UPSTREAMS_MAX:
        raise wrong(f"the value of a {UPSTREAM_SET}", f"a list of at most {UPSTREAMS_MAX} objects")
    for entry in cast("list[Any]", value):
        if not isinstance(entry, Mapping):
            raise wrong(f"each of a {UPSTREAM_SET}", "an object")
        given = dict(cast("Mapping[str, Any]", entry))
        upstream = given.pop("upstream", None)
        if not isinstance(upstream, str) or not upstream:
            raise wrong("upstream", f"the name of an upstream, not {shown(upstream)}")
        parse_upstream(upstream, {"uri": "amqp://", **given})


def check_policy(definition: Mapping[str, Any], *, operator: bool) -> None:
    """Raises Refused. Of what federates, a policy says one, and one of operators none."""
    said = [name for name in FEDERATION if name in definition]
    if operator and said:
        raise wrong(" and ".join(said), "in a policy that is not one of operators")
    if len(said) > 1:
        raise wrong(" and ".join(said), "one of them: a policy has one way to name upstreams")
    for name in said:
        value = definition[name]
        if not isinstance(value, str) or not value:
            raise wrong(name, f"text, not {shown(value)}")
        if name == FEDERATION_PATTERN:
            if compiled(value) is None:
                raise wrong(name, "a regular expression, and this one cannot be compiled")
            check_pattern(value)


def upstreams_of(
    parameters: Parameters, vhost: str, definition: Mapping[str, Any]
) -> list[Upstream]:
    """Those that the policy names, as far as they are there and readable."""
    return [
        upstream
        for name, value in _named(parameters, vhost, definition)
        if (upstream := _readable(name, value)) is not None
    ]


def _readable(name: str, value: Any) -> Upstream | None:
    """None: a later release, or one that did not check, has kept it."""
    try:
        return parse_upstream(name, value)
    except Refused:
        return None


def _named(
    parameters: Parameters, vhost: str, definition: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    known = {
        name: entry["value"]
        for (component, owner, name), entry in sorted(parameters.items())
        if (component, owner) == (UPSTREAM, vhost)
    }
    one, of_set, pattern = (definition.get(name) for name in FEDERATION)
    if one is not None:
        if one in known:
            yield one, known[one]
    elif of_set == ALL:
        yield from known.items()
    elif of_set is not None:
        entry = parameters.get((UPSTREAM_SET, vhost, of_set))
        for each in entry["value"] if entry is not None else ():
            own = {field: value for field, value in each.items() if field != "upstream"}
            if each["upstream"] in known:
                yield each["upstream"], {**known[each["upstream"]], **own}
    elif pattern is not None and (matches := compiled(pattern)) is not None:
        yield from ((name, value) for name, value in known.items() if matches.search(name))
