"""The sections of the settings, and the kinds of values in them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from cluster.agreed_time import CLOCK_CONFIRM_MS, CLOCK_OFFSET_MS_MAX
from cluster.machine.arguments import SPAN_MS_MAX
from cluster.machine.commands import CONSUMER_TIMEOUT_MS
from cluster.seams import GONE_AFTER_S, LINK_TIMEOUT_MS
from node.access.passwords import Hashing

KIB = 1024
MIB = 1024 * KIB

NODE_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def read_address(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be host:port")
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be host:port, with a port from 0 to 65535")
    return value


def read_listen(value: Any) -> str | None:
    """Where to listen, or nowhere."""
    return None if value in {None, "off"} else read_address(value)


def read_node(value: Any) -> str:
    if not isinstance(value, str) or not NODE_ID_PATTERN.fullmatch(value):
        raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-'")
    return value


def read_peers(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list):
        pairs: dict[str, str] = {}
        for part in cast("list[Any]", value):
            node, found, address = str(part).partition("=")
            if not found:
                raise ValueError(f"{part!r} is not node=host:port")
            pairs[node] = address
        value = pairs
    if not isinstance(value, dict):
        raise ValueError("must be node=host:port, ...")
    items = cast("dict[str, Any]", value).items()
    return {read_node(node): read_address(address) for node, address in items}


def read_names(value: Any) -> Any:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def read_watermark(value: Any) -> float:
    """Up to 1 a share, above it bytes."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        try:
            number = float(_BYTES.validate_python(value))
        except ValidationError:
            number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError("must be a share, such as 0.6, or bytes, such as 4GiB")
    return number


_BYTES = TypeAdapter(ByteSize)
Address = Annotated[str, BeforeValidator(read_address)]
Listen = Annotated[str | None, BeforeValidator(read_listen)]
Names = Annotated[list[str], BeforeValidator(read_names)]
Watermark = Annotated[float, BeforeValidator(read_watermark)]
Node = Annotated[str, BeforeValidator(read_node)]
Peers = Annotated[dict[str, str], BeforeValidator(read_peers)]

#: What may stand there, in words, by who reads it.
WORDS: dict[Any, str] = {
    read_address: "host:port",
    read_listen: "host:port, or off",
    read_node: "letters, digits, '.', '_', '-'",
    read_peers: "node=host:port, ...",
    read_names: "name, ...",
    read_watermark: "a share up to 1, or bytes, such as 4GiB",
}


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class RaftSettings(Section):
    """Elections and heartbeats."""

    election_ms_min: int = Field(
        default=1000,
        ge=50,
        description="Shortest silence of a leader after which an election starts.",
    )
    election_ms_max: int = Field(
        default=2000,
        ge=100,
        description="Longest such silence; each wait is drawn between the two.",
    )
    heartbeat_ms: int = Field(
        default=200, ge=10, description="How often an idle leader says that it is there."
    )
    clock_offset_ms_max: int = Field(
        default=CLOCK_OFFSET_MS_MAX,
        ge=100,
        description="A wall clock further than this from the time on which a majority of the nodes "
        "agrees is not used for log time.",
    )
    clock_confirm_ms: int = Field(
        default=CLOCK_CONFIRM_MS,
        ge=0,
        description="When the clocks of a majority jump further than that together, nothing is "
        "written until they have said the same for so long.",
    )
    link_timeout_ms: int = Field(
        default=LINK_TIMEOUT_MS,
        ge=200,
        description="A node that was not heard for this long is down: its consumers are suspected,"
        " and keep what they hold for a minute.",
    )
    gone_after_ms: int = Field(
        default=round(GONE_AFTER_S * 1000),
        ge=1000,
        description="A node whose machine refuses every connection for this long is gone: its"
        " sessions end, their messages are delivered again, its transient queues are dropped.",
    )


class LogSettings(Section):
    """The write-ahead log on disk."""

    segment_bytes: ByteSize = Field(
        default=ByteSize(64 * MIB),
        ge=1 * MIB,
        description="Size at which a new segment file is begun; at most a 16th of the volume.",
    )
    retain_bytes: ByteSize = Field(
        default=ByteSize(0),
        ge=0,
        description="Keep this much of segments that nothing needs any more.",
    )
    retain_hours: float = Field(
        default=0, ge=0, description="Keep segments that nothing needs any more for this long."
    )
    archive_dir: str | None = Field(
        default=None, description="Folder into which each segment is copied when it is complete."
    )
    hot_bytes: ByteSize = Field(
        default=ByteSize(32 * MIB),
        ge=1 * MIB,
        description="Newest entries held in memory, all groups.",
    )
    min_free_bytes: ByteSize | None = Field(
        default=None,
        ge=0,
        description="With less disk free than this, publishes are refused; unless it is set, "
        "256 MiB, or a fifth of a volume where that is less. 0: never, and a full disk ends the "
        "node.",
    )


class LimitSettings(Section):
    """Bounds on what one client may ask of a node."""

    message_bytes_max: ByteSize = Field(
        default=ByteSize(16 * MIB),
        ge=1,
        le=512 * MIB,
        description="Largest body of a message; over 16 MiB it must go through the log in parts.",
    )
    frame_bytes_max: ByteSize = Field(
        default=ByteSize(17 * MIB),
        ge=64 * KIB,
        le=64 * MIB,
        description="Largest frame from a client.",
    )
    in_flight_bytes_max: ByteSize = Field(
        default=ByteSize(32 * MIB),
        ge=64 * KIB,
        description="Published and not yet confirmed, per connection; over it the node stops "
        "reading from the connection, below half of it reads on. What is published by HTTP, here "
        "or to the management API, counts together, and waits.",
    )
    confirm_hold_ms_max: int = Field(
        default=50,
        ge=0,
        le=10_000,
        description="Longest time for which a confirm waits for quick consumers that are behind, "
        "so that publishers do not outrun them. 0: it never does.",
    )
    deliver_buffer_bytes_max: ByteSize = Field(
        default=ByteSize(4 * MIB),
        ge=64 * KIB,
        description="Delivered and not yet taken by the network, per connection; over it "
        "deliveries wait in the log.",
    )
    connections_max: int = Field(
        default=10_000, ge=1, description="Client connections of this node."
    )
    connections_per_address_max: int = Field(
        default=5_000,
        ge=1,
        description="Client connections of this node from one address, those in their TLS "
        "handshake included.",
    )
    handshake_ms_max: int = Field(
        default=10_000,
        ge=100,
        description="Longest time for a TLS handshake, and for the head of an HTTP request.",
    )
    request_ms_max: int = Field(
        default=60_000, ge=100, description="Longest time for the body of an HTTP request."
    )
    idle_ms_max: int = Field(
        default=75_000,
        ge=1_000,
        description="Longest time that an HTTP connection may wait for its next request.",
    )
    consumers_max: int = Field(default=10_000, ge=1, description="Consumers of one connection.")
    credit_default: int = Field(
        default=256,
        ge=1,
        le=65_535,
        description="Unsettled deliveries of a consumer that did not say how many it wants.",
    )
    get_count_max: int = Field(
        default=10_000, ge=1, description="Messages that one get may ask for."
    )
    resume_ms_max: int = Field(
        default=3_600_000,
        ge=0,
        description="Longest time that a lost session may wait for its client.",
    )
    history_ms_max: int = Field(
        default=30_000,
        ge=100,
        description="Longest time that the history of a message may take to be told.",
    )
    history_memory_bytes_max: ByteSize = Field(
        default=ByteSize(512 * MIB),
        ge=64 * MIB,
        description="Memory of the process that tells it, one at a time.",
    )
    memory_high_watermark: Watermark = Field(
        default=0.6,
        description="With more memory in use than this, the node has publishers wait, on all "
        "nodes: a share of the memory of its machine or control group, or bytes.",
    )

    def memory_bytes_max(self, available_bytes: int) -> int:
        """The watermark in bytes."""
        share = self.memory_high_watermark <= 1
        return int(self.memory_high_watermark * (available_bytes if share else 1))


class AuthSettings(Section):
    """Users are in the catalog of the cluster; these are rules of one node."""

    loopback_users: Names = Field(
        default=["guest"],
        description="Users who may connect only from the machine of the node.",
    )
    passwordless_guest: bool = Field(
        default=False,
        description="HTTP requests from the machine of the node, addressed to loopback or an "
        "advertised address, and NATS clients on it, need no password and are guest's. Never where "
        "a proxy is in front.",
    )
    password_hashing: Hashing = Field(
        default="scrypt",
        description="How passwords that are set through this node are kept. `rabbitmq_sha256`: as "
        "RabbitMQ keeps and imports them; a hash that is stolen is far cheaper to guess.",
    )


class AmqpSettings(Section):
    """What is agreed upon with each client of AMQP 0-9-1 when it connects."""

    heartbeat_s: int = Field(
        default=60,
        ge=0,
        le=65_535,
        description="Silence after which client and node ask whether the other is there; 0: never. "
        "The client may choose another.",
    )
    channel_max: int = Field(
        default=2047, ge=1, le=65_535, description="Channels of one connection."
    )
    frame_bytes_max: ByteSize = Field(
        default=ByteSize(128 * KIB),
        ge=4 * KIB,
        le=16 * MIB,
        description="Largest frame; larger bodies come in several.",
    )
    handshake_ms_max: int = Field(
        default=10_000, ge=100, description="Longest time from connecting to an open vhost."
    )
    consumer_timeout_ms: int = Field(
        default=CONSUMER_TIMEOUT_MS,
        ge=0,
        le=SPAN_MS_MAX,
        description="Longest time that a delivery may stay unacked before its channel is closed, "
        "unless its queue or a policy says so; 0: no limit.",
    )
    consumers_per_channel_max: int | None = Field(
        default=None, ge=1, description="Consumers of one channel."
    )


class HealthSettings(Section):
    """What probes under `/health` go by."""

    stall_ms_max: int = Field(
        default=20_000,
        ge=100,
        description="Longest time that the event loop may stand still; after a longer one "
        "`/health/live` fails until it has turned for as long again.",
    )
    catch_up_ms_max: int = Field(
        default=30_000,
        ge=0,
        description="A started node is not ready until its copies have caught up, or nothing has "
        "moved for so long.",
    )


class DrainSettings(Section):
    """Before a stop: leaderships and clients go elsewhere."""

    grace_ms: int = Field(
        default=120_000,
        ge=0,
        description="Time from being asked to stop to being killed, as whoever stops the process "
        "has it; `quorate node drain --pre-stop` takes at most half of it.",
    )
    skip_file: str | None = Field(
        default=None,
        description="While this file is not empty `quorate node drain --pre-stop` does nothing, as "
        "when a whole cluster is deleted.",
    )


class TlsSettings(Section):
    """TLS 1.2 or later: `peer_*` between nodes (all three or none; TLS 1.3), `client_*` for clients
    of `amqps` and `https`. Files that change are read again within seconds, or at SIGHUP.
    """

    peer_cert: str | None = Field(default=None, description="This node's certificate (PEM file).")
    peer_key: str | None = Field(
        default=None, description="The certificate's private key (PEM file)."
    )
    peer_ca: str | None = Field(
        default=None, description="The authority that signs all nodes (PEM file)."
    )
    client_cert: str | None = Field(
        default=None, description="Certificate that clients see (PEM file)."
    )
    client_key: str | None = Field(
        default=None, description="That certificate's private key (PEM file)."
    )
    client_ca: str | None = Field(
        default=None,
        description="The authority that signs clients (PEM file): see `tls.amqps_verify`.",
    )
    amqps_verify: Literal["required", "optional"] = Field(
        default="required",
        description="With `tls.client_ca`: clients of `amqps` need a certificate; or, `optional`, "
        "one that is shown must be good, and who shows none logs in with a password.",
    )
    https_verify: bool = Field(
        default=False,
        description="Clients of `https` need a certificate of `tls.client_ca` too: health checks "
        "and scrapes as well.",
    )
