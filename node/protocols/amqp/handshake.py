"""From the protocol header to an open virtual host: what is said in which order, without sockets.

A wrong step raises a ConnectionError_, whose close may be sent to the client. What takes time, the
check of a password or of the access to a vhost, is asked of the caller, who then goes on with
`accepted` or `opened`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib import metadata
from platform import python_version
from typing import Any, Final, NamedTuple, cast

from pamqp import base, commands

from node.messages.amqp_errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    NOT_ALLOWED,
    SYNTAX_ERROR,
    ConnectionError_,
)
from node.messages.tables import decode_entries
from node.protocols.amqp.methods import made, method_ids
from node.version import RABBITMQ, RABBITMQ_VERSION

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
#: What may begin a connection, and the version that Start then names. The headers of 0-9 and 0-8
#: (the latter in both of its spellings) are taken as 0-9-1, as RabbitMQ takes them.
VERSIONS: Final = {
    PROTOCOL_HEADER: (0, 9),
    b"AMQP\x01\x01\x00\x09": (0, 9),
    b"AMQP\x01\x01\x08\x00": (8, 0),
    b"AMQP\x01\x01\x09\x01": (8, 0),
}
#: The largest frame before both have agreed, and the smallest that may be agreed upon.
FRAME_BYTES_MIN: Final = 4096
LOCALE: Final = "en_US"
PLAIN, AMQPLAIN, EXTERNAL = "PLAIN", "AMQPLAIN", "EXTERNAL"

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


@lru_cache(1)
def server_properties(cluster: str) -> Mapping[str, Any]:
    """Who answers, for clients.

    Clients choose by `product` and `version` which meaning of basic.qos (kombu, so Celery too) and
    which features (NServiceBus) they may count on. The two say whose behaviour this is; all the
    others say who is speaking.
    """
    version = metadata.version("quorate")
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": cluster,
        "copyright": "The Quorate authors",
        "information": f"This is Quorate {version}. It behaves as RabbitMQ 3.13 does.",
        "platform": f"Quorate {version}, Python {python_version()}",
        "product": RABBITMQ,
        "version": RABBITMQ_VERSION,
    }


@dataclass(frozen=True, slots=True)
class Terms:
    """What both keep to."""

    channel_max: int
    frame_bytes_max: int
    heartbeat_s: int  # 0: none


class Credentials(NamedTuple):
    """Who wants to come in. `password` None: the certificate has proved it."""

    mechanism: str
    user: str
    password: str | None


class OpenVhost(NamedTuple):
    """The last question."""

    vhost: str


class HandshakeState(Enum):
    """What is waited for."""

    HEADER = "starting"
    START_OK = "securing"
    SECURE_OK = "secure_ok"
    LOGIN = "logging_in"  # by the caller
    TUNE_OK = "tuning"
    OPEN = "opening"
    ACCESS = "opening_vhost"  # by the caller
    DONE = "running"


class AmqpHandshake:
    """One connection's."""

    def __init__(
        self, offer: Terms, properties: Mapping[str, Any], certificate_user: str | None = None
    ) -> None:
        self.state = HandshakeState.HEADER
        self.terms = offer
        self.client_properties: Mapping[str, Any] = {}
        self.mechanism = ""
        self._properties = properties
        self._certificate_user = certificate_user

    @property
    def client_capabilities(self) -> Mapping[str, Any]:
        found = self.client_properties.get("capabilities")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def begin(self, header: bytes) -> base.Frame | None:
        """None: another protocol, or another version of it. Answer with `PROTOCOL_HEADER`."""
        assert self.state is HandshakeState.HEADER
        version = VERSIONS.get(header)
        if version is None:
            return None
        self.state = HandshakeState.START_OK
        external = [] if self._certificate_user is None else [EXTERNAL]
        return made(
            commands.Connection.Start,
            version_major=version[0],
            version_minor=version[1],
            server_properties=self._properties,
            mechanisms=" ".join([PLAIN, AMQPLAIN, *external]),
            locales=LOCALE,
        )

    def receive(self, method: base.Frame) -> base.Frame | Credentials | OpenVhost | None:
        """What to send, or to find out."""
        match self.state, method:
            case HandshakeState.START_OK, commands.Connection.StartOk():
                self.client_properties = cast("Mapping[str, Any]", method.client_properties)
                self.mechanism = method.mechanism
                return self._credentials(method.response)
            case HandshakeState.SECURE_OK, commands.Connection.SecureOk():
                return self._credentials(method.response or "\0")
            case HandshakeState.TUNE_OK, commands.Connection.TuneOk():
                self.terms = self._agreed(method)
                self.state = HandshakeState.OPEN
                return None
            case HandshakeState.OPEN, commands.Connection.Open():
                self.state = HandshakeState.ACCESS
                return OpenVhost(method.virtual_host)
            case _:
                raise ConnectionError_(
                    CHANNEL_ERROR,
                    f"unexpected method in connection state {self.state.value}",
                    *method_ids(method),
                )

    def accepted(self) -> base.Frame:
        """The user may come in."""
        assert self.state is HandshakeState.LOGIN
        self.state = HandshakeState.TUNE_OK
        return made(
            commands.Connection.Tune,
            channel_max=self.terms.channel_max,
            frame_max=self.terms.frame_bytes_max,
            heartbeat=self.terms.heartbeat_s,
        )

    def refused(self) -> ConnectionError_ | None:
        """What the client is told; None: it would not understand, so the socket is closed."""
        if not self.client_capabilities.get("authentication_failure_close"):
            return None
        return ConnectionError_(
            ACCESS_REFUSED,
            f"Login was refused using authentication mechanism {self.mechanism}. "
            "For details see the broker logfile.",
        )

    def opened(self) -> base.Frame:
        """The vhost is open."""
        assert self.state is HandshakeState.ACCESS
        self.state = HandshakeState.DONE
        return made(commands.Connection.OpenOk)

    def _credentials(self, response: str | bytes) -> base.Frame | Credentials:
        raw = response.encode() if isinstance(response, str) else response
        match self.mechanism:
            case "PLAIN" | "AMQPLAIN" if not raw and self.state is HandshakeState.START_OK:
                # SASL lets a client wait to be asked.
                self.state = HandshakeState.SECURE_OK
                return made(commands.Connection.Secure, challenge="")
            case "PLAIN":
                user, password = _plain(raw)
            case "AMQPLAIN":
                user, password = _amqplain(raw)
            case "EXTERNAL" if self._certificate_user is not None:
                user, password = self._certificate_user, None
            case _:
                raise ConnectionError_(
                    COMMAND_INVALID,
                    f"unknown authentication mechanism '{self.mechanism}'",
                    *method_ids(commands.Connection.StartOk()),
                )
        self.state = HandshakeState.LOGIN
        return Credentials(self.mechanism, user, password)

    def _agreed(self, answer: commands.Connection.TuneOk) -> Terms:
        offer = self.terms
        return Terms(
            _negotiated("channel_max", answer.channel_max, 1, offer.channel_max),
            _negotiated("frame_max", answer.frame_max, FRAME_BYTES_MIN, offer.frame_bytes_max),
            answer.heartbeat,
        )


def _negotiated(name: str, value: int, least: int, most: int) -> int:
    """0: whatever the server offers."""
    if value == 0:
        return most
    if value < least:
        wrong, bound, allowed = "lower", "minimum", least
    elif value > most:
        wrong, bound, allowed = "higher", "maximum", most
    else:
        return value
    raise ConnectionError_(
        NOT_ALLOWED,
        f"negotiated {name} = {value} is {wrong} than the {bound} allowed value ({allowed})",
        *method_ids(commands.Connection.TuneOk()),
    )


def _plain(raw: bytes) -> tuple[str, str]:
    """RFC 4616: for whom (which nobody uses), who, and the password."""
    parts = raw.split(b"\0")
    if len(parts) != 3:
        raise _unreadable(PLAIN)
    try:
        return parts[1].decode(), parts[2].decode()
    except UnicodeDecodeError as error:
        raise _unreadable(PLAIN) from error


def _amqplain(raw: bytes) -> tuple[str, str]:
    """The entries of a table."""
    try:
        table = decode_entries(raw, 0, len(raw))
    except ValueError as error:
        raise _unreadable(AMQPLAIN) from error
    match table:
        case {"LOGIN": str(user), "PASSWORD": str(password)}:
            return user, password
        case _:
            raise _unreadable(AMQPLAIN)


def _unreadable(mechanism: str) -> ConnectionError_:
    return ConnectionError_(
        SYNTAX_ERROR,
        f"response of authentication mechanism {mechanism} cannot be read",
        *method_ids(commands.Connection.StartOk()),
    )
