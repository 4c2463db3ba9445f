"""The one way in for messages, whichever listener they come to: what is refused, where a message
goes, and what becomes of it there.

A listener reads its protocol's bytes, and reports refusals in its protocol's terms. AMQP and the
management API bring a message with AMQP's properties to an exchange: `interpret`, `route`,
`own`. The native protocol brings a batch to a queue: `batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

from cluster.cluster_node import ClusterNode
from cluster.groups.proposals import WHOLE_BODY_BYTES_MAX
from cluster.machine import replies as codes
from cluster.machine.admission import CARRIER_PREFIX, ONCE_PREFIX, is_carrier
from cluster.machine.arguments import SHARD_OF, SPAN_MS_MAX
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.checks import is_text
from cluster.machine.commands import (
    ATTR_DEDUP_ID,
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
    BodyPart,
    Enqueue,
)
from cluster.machine.marks import DEDUP_ID_CHARS_MAX
from cluster.types import QueueId
from node.access.permissions import Access
from node.broker.alarms import Lack
from node.broker.stream_attrs import stream_attrs
from node.dispatch.in_flight import MESSAGE_OVERHEAD_BYTES, HttpPublishRoom
from node.errors import Refused
from node.messages import attributes, tables
from node.messages import properties as props
from node.messages.group_keys import with_group_keys
from node.messages.message import headers_of, routing_key_of
from node.messages.plain_values import wrong_beside_bodies
from node.routing import Route, Router
from node.routing.shards import split_of, whole_of
from node.settings.sections import LimitSettings

#: What a queue is told of a message beside its body: `ATTR_PRIORITY` and others.
Attrs = dict[int, Any]
#: As `Enqueue.large`.
Large = Mapping[int, tuple[str, Sequence[tuple[int, int, int]]]]

NAME_BYTES_MAX = 255
#: Of a large body that a client publishes in parts.
PART_BYTES_MAX = 1024 * 1024
PRIORITY_MAX = 255
#: Copies of a message go where these headers say; BCC is not shown to consumers.
CARBON_COPIES = ("CC", "BCC")
#: A reply_to that stands for the consumer of direct replies on the publisher's channel.
REPLY_TO = "amq.rabbitmq.reply-to"
INTERNAL_EXCHANGE = "internal_exchange"
#: What is asked of a queue that is split has to be asked of its shards; a shard is none any more.
SPLIT_QUEUE = "split_queue"
JOINED = "joined"
#: Headers that concern the broker, as their names stand in a table.
_NAMES = tuple(
    bytes([len(name)]) + name.encode()
    for name in (*CARBON_COPIES, attributes.DELAY, attributes.DELIVERY_TIME, attributes.ONCE_ID)
)


class Part(NamedTuple):
    """What one queue gets of a batch."""

    info: QueueInfo
    command: Enqueue
    size_bytes: int
    places: Sequence[int]  # in the batch, of its messages


class Ingress:
    """One per node."""

    def __init__(
        self, cluster: ClusterNode, limits: LimitSettings, *, cut_off: Callable[[], bool]
    ) -> None:
        """`cut_off`: whether this node's copy of the catalog may lack what was answered."""
        #: What a node of the cluster is low on: settles still work, so that consumers make room.
        self.lack = Lack()
        #: Why publishes to these virtual hosts are refused: see `node/broker/vhost_quotas.py`.
        self.full_vhosts: Mapping[str, str] = {}
        #: For what is published by HTTP, here or to the management API.
        self.room = HttpPublishRoom(limits.in_flight_bytes_max)
        self._cluster = cluster
        self._limits = limits
        self.cut_off = cut_off

    @cached_property
    def router(self) -> Router:
        """There is a catalog to route by once the cluster has started."""
        return Router(self._cluster.catalog_machine)

    # --- room -------------------------------------------------------------------------------------

    def check_size(self, size_bytes: int, *, in_parts: bool) -> None:
        largest = self._limits.message_bytes_max
        if size_bytes > largest:
            raise Refused(
                "message_too_large",
                f"a message may have {largest} bytes, not {size_bytes}: publish less, or raise"
                " limits.message_bytes_max on all nodes",
            )
        if size_bytes > WHOLE_BODY_BYTES_MAX and not in_parts:
            raise Refused(
                "message_too_large",
                f"in one piece a message may have {WHOLE_BODY_BYTES_MAX} bytes, not {size_bytes}:"
                " publish it in parts, by WebSocket or AMQP",
            )

    def check_alarms(self) -> None:
        """For listeners that have no way to make a publisher wait."""
        if self.lack.disk:
            raise Refused("disk_full", "the disk of a node is nearly full: consume, or add space")
        if self.lack.memory:
            raise Refused(
                "memory_full",
                "a node is low on memory: consume, or raise limits.memory_high_watermark",
            )

    def check_vhost(self, vhost: str) -> None:
        full = self.full_vhosts.get(vhost)
        if full is not None:
            raise Refused("vhost_full", full)

    # --- to an exchange, with AMQP's properties ---------------------------------------------------

    def headers_ask(self, properties: Sequence[bytes]) -> bool:
        """False: nothing in the headers of any of these concerns the broker. A look at all of them
        at once, which may mistake something else for such a header.
        """
        joined = b"".join(properties)
        return any(name in joined for name in _NAMES) or tables.may_be_wrong(properties, joined)

    def interpret(
        self, access: Access, properties: bytes, reply_name: str | None = None
    ) -> tuple[Attrs | None, bytes]:
        """What the message asks of its queues; and its properties, as consumers are to see them.

        `reply_name`: what takes direct replies to its publisher. Blind copies are named in them
        until the message is routed: see `shown`.
        """
        looked = props.parse(properties)
        if looked.wrong_headers is not None:
            raise _bad(f"invalid headers of a message: {looked.wrong_headers}")
        if looked.user_id is not None:
            check_user(access, looked.user_id)
        if looked.reply_to == REPLY_TO:
            if reply_name is None:
                raise _bad("fast reply consumer does not exist")
            properties = props.replace(properties, reply_to=reply_name)
        attrs = _attrs_of(looked.expiration, looked.priority)
        if attributes.ONCE_ID in looked.headers:
            try:
                once = ONCE_PREFIX + attributes.once_id(looked.headers)
            except ValueError as error:
                raise _bad(str(error)) from error
            attrs = (attrs or {}) | {ATTR_DEDUP_ID: once}
            properties = props.with_headers(properties, {}, drop=(attributes.ONCE_ID,))
        if not attributes.may_be_delayed(properties):
            return attrs, properties
        try:
            due_ms = attributes.due_ms(looked.headers, self._cluster.now_ms())
            if due_ms is None:
                return attrs, properties
            properties = props.with_headers(properties, attributes.negated(looked.headers))
        except ValueError as error:
            raise _bad(f"invalid delay: {error}") from error
        return (attrs or {}) | {ATTR_DELIVER_AT_MS: due_ms}, properties

    async def interpret_in_time(
        self, access: Access, properties: bytes
    ) -> tuple[Attrs | None, bytes]:
        """As `interpret`, when it is not in doubt from what time a delay counts."""
        if self.time_in_doubt(properties):
            await self.know_time()
        return self.interpret(access, properties)

    def time_in_doubt(self, properties: bytes) -> bool:
        """The message may be delayed, and by a clock that may jump: `know_time` before."""
        if not attributes.may_be_delayed(properties):
            return False
        self._cluster.now_ms()
        return self._cluster.time.in_doubt

    async def know_time(self) -> None:
        """Returns when it is not in doubt what time it is."""
        await self._cluster.time.settled()

    def route(
        self,
        access: Access,
        exchange: str,
        key: str,
        properties: bytes,
        attrs: Attrs | None = None,
    ) -> Route | None:
        """None: there is no such exchange, as far as this node knows. `attrs`: of the message, as
        `interpret` says.
        """
        vhost = access.vhost

        def headers() -> Any:
            return tables.plain(props.parse(properties).headers)

        def property_of(name: str) -> object:
            return getattr(props.parse(properties), name, None)

        copies: Sequence[str] = ()
        if b"CC" in properties:
            copies = _carbon_copies(headers())
        route = self.router.route(
            vhost, exchange, key, headers, property_of, copies, otherwise=_once_of(attrs)
        )
        if route is None:
            return None
        if route.exchange.internal:
            raise Refused(
                INTERNAL_EXCHANGE,
                f"cannot publish to internal exchange '{exchange}' in vhost '{vhost}'",
            )
        if route.by_topic:
            for each in (key, *copies):
                access.check_topic("write", exchange, each)
        return route

    @property
    def catalog(self) -> CatalogMachine:
        """This node's copy."""
        return self._cluster.catalog_machine

    def version(self, access: Access) -> tuple[object, ...]:
        """Another one whenever exchanges, bindings, queues or policies changed, or what the user
        may do with those of one name.
        """
        return self._cluster.catalog_machine.routing_version(access.vhost), access.entry

    def in_doubt(self, exchange: str, route: Route | None, *, careful: bool = True) -> bool:
        """True: bring this node's copy of the catalog up to date first. Without that, neither a
        missing exchange nor (when `careful`: it must be confirmed) a missing or incomplete list of
        queues may be believed.
        """
        if route is None:
            return True
        if not careful:
            return False
        return not route.queues or (exchange != "" and self.cut_off())

    def keeps_duplicates_out(self, info: QueueInfo) -> bool:
        config = self._cluster.catalog_machine.config_of(info.queue)
        return config is not None and config.dedup_window_ms is not None

    def attrs_for_queue(
        self, info: QueueInfo, attrs: Attrs | None, properties: bytes
    ) -> Attrs | None:
        """What this queue is told of the message: `attrs`, and its de-duplication id if the queue
        keeps duplicates out.
        """
        if not self.keeps_duplicates_out(info):
            return attrs
        looked = props.parse(properties)
        try:
            dedup_id = attributes.dedup_id(info.arguments, looked.message_id, looked.headers)
        except ValueError as error:
            raise _bad(f"queue '{info.name}' keeps duplicates out: {error}") from error
        return attrs if dedup_id is None else (attrs or {}) | {ATTR_DEDUP_ID: dedup_id}

    # --- to a queue, as the native protocol has it ------------------------------------------------

    def shards(self, info: QueueInfo, meta: Any, attrs: Any, count: int) -> list[QueueInfo] | None:
        """Of a queue that is split those to which these messages go, one for each, as if they came
        by the default exchange; None: it is not split.
        """
        if not self.router.is_split(info):
            return None
        both = zip(_each(meta, count), _each(attrs, count), strict=True)
        return [self._shard(info, *each) for each in both]

    def _shard(self, info: QueueInfo, meta: Any, attrs: Any) -> QueueInfo:
        """What comes again with the same de-duplication id goes to the same one."""
        if type(meta) is not dict:  # from a client it is that, or nothing that counts here
            meta = None
        key, otherwise = routing_key_of(meta), _once_of(attrs)
        return self.router.shard(info, key, lambda: headers_of(meta), otherwise)

    def spread(
        self,
        access: Access | None,
        info: QueueInfo,
        publisher: str | None,
        seqno: int,
        bodies: Sequence[bytes],
        meta: Any,
        attrs: Any,
        large: Large | None = None,
    ) -> list[Part]:
        """As `batch`: one command, or for a queue that is split one for each shard that gets any.

        Refused of a named publisher, who numbers messages of one queue: `detail` names the shard of
        each message, for it to publish to.
        """
        shards = self.shards(info, meta, attrs, len(bodies))
        if shards is None or (not bodies and publisher is None):
            given = publisher, seqno, bodies, meta, attrs, large
            command, size_bytes = self.batch(access, info, *given)
            return [Part(info, command, size_bytes, range(len(bodies)))]
        if publisher is not None or large is not None:
            raise Refused(
                SPLIT_QUEUE,
                f"queue {info.name} is split, and a publisher's numbers, and parts of large bodies,"
                " are of one queue: publish to its shards under their names; `detail` has the one"
                " of each message",
                [shard.name for shard in shards],
            )
        self.batch(access, info, None, 0, bodies, meta, attrs)  # whether all of it is right
        places: dict[QueueId, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(shard.queue, []).append(place)
        parts: list[Part] = []
        for shard in {each.queue: each for each in shards}.values():
            own = places[shard.queue]
            batch = self.batch(
                access,
                shard,
                None,
                0,
                [bodies[place] for place in own],
                _of_places(meta, own),
                _of_places(attrs, own),
            )
            parts.append(Part(shard, *batch, own))
        return parts

    def batch(
        self,
        access: Access | None,
        info: QueueInfo,
        publisher: str | None,
        seqno: int,
        bodies: Sequence[bytes],
        meta: Any,
        attrs: Any,
        large: Large | None = None,
    ) -> tuple[Enqueue, int]:
        """The command for a batch, and what it weighs. Without `access` all is allowed."""
        self._check_joining(info)
        sizes = [len(body) for body in bodies]
        self.check_size(max(sizes, default=0), in_parts=False)
        for place, (_, parts) in large.items() if large is not None else ():
            if 0 <= place < len(sizes):
                self.check_size(sizes[place] + sum(size for *_, size in parts), in_parts=True)
        self.check_alarms()
        self.check_vhost(info.vhost)
        if not bodies and (publisher is None or seqno):
            raise _bad(
                "a publish has one or more bodies; without one, a publisher's name and number 0 it"
                " asks for that publisher's next number"
            )
        if publisher is None:
            seqno = 0
        else:
            check_name(publisher, "publisher")
            if is_carrier(publisher):
                raise _carrier_name()
            if seqno < 1 and bodies:
                raise _bad("a named publisher numbers its messages from 1")
        if meta is not None:
            _check_meta(meta, len(bodies), access)
        if attrs is not None:
            check_attrs(attrs, len(bodies), self._cluster.now_ms())
        if info.stream is not None and bodies:
            attrs = stream_attrs(info, bodies, meta, attrs)
        attrs = with_group_keys(info.arguments, meta, attrs, len(bodies))
        command = Enqueue(info.queue, publisher, seqno, bodies, meta, attrs, large)
        return command, sum(sizes) + MESSAGE_OVERHEAD_BYTES * (len(bodies) + 1)

    def part(self, info: QueueInfo, upload: str, number: int, data: bytes) -> BodyPart:
        """A part of a large body."""
        self._check_joining(info)
        if self.router.is_split(info):
            raise Refused(
                SPLIT_QUEUE,
                f"queue {info.name} is split, and parts of large bodies are of one queue: a publish"
                " that is refused names the shard to which the body goes",
            )
        if upload.startswith(CARRIER_PREFIX):
            raise _carrier_name()
        if len(data) > PART_BYTES_MAX:
            raise Refused(
                "message_too_large", f"a part may have {PART_BYTES_MAX} bytes, not {len(data)}"
            )
        self.check_alarms()
        self.check_vhost(info.vhost)
        return BodyPart(info.queue, upload, number, data)

    def _check_joining(self, info: QueueInfo) -> None:
        """A shard that is to go runs empty; it would not, if publishers went on with it."""
        if SHARD_OF not in info.arguments:
            return
        whole = whole_of(self.catalog, info)
        split = None if whole is None else split_of(self.catalog, whole)
        if whole is not None and split is not None and split.joining:
            raise Refused(
                JOINED, f"{info.name} is a shard of {whole.name}, which is joined: publish to that"
            )


# --- rules ----------------------------------------------------------------------------------------


def _each(said: Any, count: int) -> Sequence[Any]:
    """What is said of each of so many messages. A list of another length is refused later."""
    if type(said) is not list:
        return [said] * count
    values = cast("list[Any]", said)
    return values if len(values) == count else [None] * count


def _once_of(attrs: Any) -> str | None:
    """What comes again under the same id goes to the same shard of a queue that is split, where it
    is known.
    """
    once = cast("Attrs", attrs).get(ATTR_DEDUP_ID) if type(attrs) is dict else None
    return once if type(once) is str else None


def _of_places(each: Any, places: Sequence[int]) -> Any:
    """`each`: one for all messages, or a list with one for each."""
    if type(each) is not list:
        return each
    values = cast("list[Any]", each)
    return [values[place] for place in places]


def check_name(name: str, kind: str) -> None:
    """1 to 255 bytes of UTF-8 without control characters."""
    if not 1 <= len(name.encode(errors="replace")) <= NAME_BYTES_MAX or not name.isprintable():
        raise _bad(f"a {kind} is 1 to {NAME_BYTES_MAX} bytes of printable text, not {name[:40]!r}")


def check_user(access: Access, user_id: Any) -> None:
    """Consumers may rely on it."""
    if user_id != access.user and not access.impersonates:
        raise _bad(
            f"user_id property set to '{user_id}' but authenticated user was '{access.user}'"
        )


def check_reply(attrs: Attrs | None) -> None:
    """What goes to a requester that waits for an answer goes at once, and through no queue."""
    if attrs is not None and ATTR_DELIVER_AT_MS in attrs:
        raise _bad("a direct reply cannot be delayed")


def shown(properties: bytes) -> bytes:
    """The properties as consumers see them: blind copies are taken out once it is routed."""
    if b"BCC" in properties:
        return props.with_headers(properties, {}, drop=("BCC",))
    return properties


@lru_cache(1024)
def _attrs_of(expiration: str | None, priority: int | None) -> Attrs | None:
    attrs: dict[int, int] = {}
    if expiration is not None:
        if not (expiration.isascii() and expiration.isdecimal()) or int(expiration) > SPAN_MS_MAX:
            raise _bad(
                f"invalid expiration '{expiration}': must be a whole number of ms, as text, up to"
                f" {SPAN_MS_MAX}"
            )
        attrs[ATTR_TTL_MS] = int(expiration)
    if priority:
        attrs[ATTR_PRIORITY] = priority
    return attrs or None


def _carbon_copies(headers: Any) -> list[str]:
    keys: list[str] = []
    for name in CARBON_COPIES:
        value = headers.get(name)
        if value is None:
            continue
        if type(value) is not list or not all(
            type(each) is str for each in cast("list[Any]", value)
        ):
            raise _bad(f"header {name} must be an array of strings")
        keys.extend(cast("list[str]", value))
    return keys


def _check_meta(meta: Any, count: int, access: Access | None) -> None:
    """Whatever the client likes, but bytes: those are what AMQP says (node.message)."""
    wrong = wrong_beside_bodies(meta)
    if wrong is not None:
        raise _bad(f"headers and properties of a message: {wrong}")
    one_each = type(meta) is list
    metas = cast("list[Any]", meta) if one_each else [meta]
    if one_each and len(metas) != count:
        raise _bad("a list of meta has one for each body")
    for each in metas:
        if type(each) is dict:
            said = cast("dict[Any, Any]", each)
            if said.get("reply_to") == REPLY_TO:
                raise _bad("fast reply consumer does not exist")
            user_id = said.get("user_id")
            if user_id is not None and access is not None:
                check_user(access, user_id)
        elif type(each) is bytes:
            raise _bad("meta is a map, or anything but bytes")


def check_attrs(attrs: Any, count: int, now_ms: int) -> None:
    """One map for all messages, or a list with one (or None) a message."""
    if type(attrs) is list:
        each = cast("list[Any]", attrs)
        if len(each) != count:
            raise _bad("a list of attrs has one for each body")
    else:
        each = [attrs]
    for one in each:
        if one is None:
            continue
        if type(one) is not dict:
            raise _bad("attrs are a map, or a list of maps")
        for key, value in cast("dict[Any, Any]", one).items():
            _check_attr(key, value, now_ms)


def _check_attr(key: Any, value: Any, now_ms: int) -> None:
    if type(key) is int and key == ATTR_DEDUP_ID:
        fits = type(value) is str and 1 <= len(value) <= DEDUP_ID_CHARS_MAX
        if not fits or not is_text(value, 4 * DEDUP_ID_CHARS_MAX):
            raise _bad(f"attr {key} is text of 1 to {DEDUP_ID_CHARS_MAX} characters")
        return
    if type(key) is int and key == ATTR_PRIORITY:
        high = PRIORITY_MAX
    elif type(key) is int and key == ATTR_TTL_MS:
        high = SPAN_MS_MAX
    elif type(key) is int and key == ATTR_DELIVER_AT_MS:
        high = now_ms + SPAN_MS_MAX
    else:
        raise _bad(
            "attrs are 1 priority, 2 TTL in ms, 3 deliver not before, 4 de-duplication id,"
            f" not {str(key)[:20]!r}"
        )
    if type(value) is not int or not 0 <= value <= high:
        raise _bad(f"attr {key} is a number from 0 to {high}")


def _carrier_name() -> Refused:
    return _bad(f"names that begin with {CARRIER_PREFIX} are the nodes' own: choose another")


def _bad(reason: str) -> Refused:
    return Refused(codes.BAD_ARGUMENT, reason)
