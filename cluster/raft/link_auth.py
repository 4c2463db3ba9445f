"""Who is at the other end of a link: the handshake of two nodes, without any I/O.

    dialer                         acceptor
    HELLO(versions, cluster, node, incarnation, nonce)  ->
                               <-  HELLO(...)
    PROOF(HMAC of all of it)   ->
                               <-  PROOF(HMAC of all of it)

Both prove that they hold the cluster secret, over both nonces, ids and incarnations, the cluster,
the version and the direction, so a proof is of no use in another conversation, nor sent back to its
author. Without a secret the proofs are empty and TLS certificates must tell who is who.

Each end offers the range of link versions that it speaks, and the newest common one holds, so two
releases of which one knows a version more always have one. The first release knows no ranges: it
insists on version 1, in a hello of its own form. It is answered in that form; and a dialer that was
refused by it calls again in that form (`plain`), as long as version 1 is in its own range.

While a secret is replaced, node by node, some hold the new one and the `previous` one, others only
that. An acceptor takes a proof by either, and answers by the one that was used; a dialer whose
proof was refused calls again with the other one.

The secret says who may take part; it hides nothing. After the handshake frames travel in the clear,
and who can change packets on the way can change them: where the network is not trusted, use TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, cast

from cluster.codec.cbor import pack
from cluster.types import NodeId

PROTOCOL = "quorate-link"
#: The oldest and the newest version of the link that this release speaks.
LINK_VERSIONS = (1, 3)
#: Forms of a hello: what the first release says, and the one that offers a range. There is no need
#: for a third: fields behind those that are known are passed over.
PLAIN = 1
OFFERS = 2
NONCE_BYTES = 32

# Kinds of control frames: `[kind, field, ...]`. A frame that starts with a list holds messages.
HELLO = 1
PROOF = 2
PING = 3
PONG = 4
GOODBYE = 5
REFUSAL = 6


class LinkRefused(Exception):
    """This connection is not one of ours. `code` is for counting, `reason` for people."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """What one end says of itself."""

    node: NodeId
    cluster: str
    incarnation: int
    links: tuple[int, int] = LINK_VERSIONS
    versions: str = ""  # what else it can run: see cluster.machine.versions


class _State(Enum):
    AWAIT_HELLO = auto()
    AWAIT_PROOF = auto()
    DONE = auto()


class LinkHandshake:
    """One end of the conversation: frames in, frames out, LinkRefused when it must end."""

    def __init__(
        self,
        me: LinkIdentity,
        *,
        secret: bytes | None,
        dialing: NodeId | None,
        admit: Callable[[LinkIdentity], None],
        nonce: bytes | None = None,
        plain: bool = False,
        previous: bytes | None = None,
    ) -> None:
        """`previous`: a secret by which the other end may call, too."""
        self._me = me
        self._secret = secret
        self._previous = previous
        self._dialing = dialing  # the peer that we called; None: it called us
        self._admit = admit  # raises LinkRefused for a node that may not be at this end
        self._form = PLAIN if plain else OFFERS  # the caller's, which is answered in kind
        self.version = 1  # of the link, once the other end has said what it speaks
        self._nonce = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
        self._their_nonce = b""
        self._state = _State.AWAIT_HELLO
        self.peer: LinkIdentity | None = None

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    def start(self) -> list[list[Any]]:
        """What to send at once: the one who calls speaks first."""
        return [] if self._dialing is None else [self._hello()]

    def receive(self, frame: Any) -> list[list[Any]]:
        """What to send now. When `done` is true afterwards, `peer` is proven."""
        match self._state, frame:
            case _State.AWAIT_HELLO, [1, str(protocol), int(version), *fields]:
                if protocol != PROTOCOL:
                    raise LinkRefused("not_a_link", "it does not speak the link protocol")
                if self._dialing is None and version in (PLAIN, OFFERS):
                    self._form = version
                if version != self._form:
                    raise self._no_common_version((version, version))
                return self._receive_hello(fields)
            case _State.AWAIT_PROOF, [2, bytes(proof)]:
                return self._receive_proof(proof)
            case _, [6, str(code), str(reason)]:
                raise LinkRefused(f"peer_says_{code[:40]}", f"it refused this node: {reason[:200]}")
            case _:
                raise LinkRefused("not_a_link", "it does not speak the link protocol")

    def _hello(self) -> list[Any]:
        me = self._me
        offer = [] if self._form == PLAIN else [list(me.links), me.versions]
        who = [me.cluster, me.node, me.incarnation, self._nonce]
        return [HELLO, PROTOCOL, self._form, *offer, *who]

    def _no_common_version(self, theirs: tuple[int, int]) -> LinkRefused:
        return LinkRefused(
            "protocol_version",
            f"it speaks {_range(theirs)} of the link protocol, this node {_range(self._me.links)}:"
            " two releases that are further apart than one step need the one between them, or a"
            " full stop",
        )

    def _receive_hello(self, fields: Iterable[Any]) -> list[list[Any]]:
        links, versions = (1, 1), ""
        match self._form, list(fields):
            case 1, [str(cluster), str(node), int(incarnation), bytes(nonce)]:
                pass
            case (
                2,
                [
                    [int(first), int(last)],
                    str(versions),
                    str(cluster),
                    str(node),
                    int(incarnation),
                    bytes(nonce),
                    *_,
                ],
            ):
                links = (first, last)
            case _:
                raise LinkRefused("not_a_link", "its hello is malformed")
        if len(nonce) != NONCE_BYTES:
            raise LinkRefused("not_a_link", "its hello is malformed")
        self.version = min(links[1], self._me.links[1])
        if self.version < max(links[0], self._me.links[0]):
            raise self._no_common_version(links)
        peer = LinkIdentity(NodeId(node), cluster, incarnation, links, versions)
        if peer.cluster != self._me.cluster:
            raise LinkRefused(
                "other_cluster",
                f"it belongs to cluster {peer.cluster[:80]!r}, this node to {self._me.cluster!r}",
            )
        if peer.node == self._me.node:
            raise LinkRefused("own_node_id", f"it calls itself {peer.node!r} as this node does")
        if self._dialing is not None and peer.node != self._dialing:
            raise LinkRefused(
                "other_node", f"node {self._dialing!r} was called, {peer.node[:80]!r} answered"
            )
        self._admit(peer)
        self.peer = peer
        self._their_nonce = nonce
        self._state = _State.AWAIT_PROOF
        return [self._hello()] if self._dialing is None else [self._own_proof()]

    def _receive_proof(self, proof: bytes) -> list[list[Any]]:
        if not self._is_right(proof):
            raise LinkRefused(
                "wrong_secret", "it does not hold this node's cluster secret: compare the settings"
            )
        self._state = _State.DONE
        return [self._own_proof()] if self._dialing is None else []

    def _is_right(self, proof: bytes) -> bool:
        if hmac.compare_digest(proof, self._proof(of_dialer=self._dialing is None)):
            return True
        if self._previous is None or self._secret is None:
            return False
        self._secret, self._previous = self._previous, None
        return hmac.compare_digest(proof, self._proof(of_dialer=self._dialing is None))

    def _transcript(self, who: LinkIdentity, nonce: bytes) -> list[Any]:
        """What must be proven of one end: a proof is void when any of it was changed on the way."""
        offer = [] if self._form == PLAIN else [list(who.links), who.versions]
        return [who.node, who.incarnation, nonce, *offer]

    def _own_proof(self) -> list[Any]:
        return [PROOF, self._proof(of_dialer=self._dialing is not None)]

    def _proof(self, *, of_dialer: bool) -> bytes:
        if self._secret is None:
            return b""
        assert self.peer is not None
        mine = self._transcript(self._me, self._nonce)
        theirs = self._transcript(self.peer, self._their_nonce)
        dialer, acceptor = (mine, theirs) if self._dialing is not None else (theirs, mine)
        author = "dialer" if of_dialer else "acceptor"
        transcript = [PROTOCOL, self._form, self._me.cluster, author, dialer, acceptor]
        return hmac.digest(self._secret, pack(transcript), hashlib.sha256)


def _range(versions: tuple[int, int]) -> str:
    first, last = versions
    return f"version {first}" if first == last else f"versions {first} to {last}"


def names_match(certificate: Any, wanted: Iterable[str]) -> bool:
    """Whether a verified peer certificate (as `getpeercert` gives it) is for one of these names."""
    given: set[str] = set()
    if isinstance(certificate, dict):
        pairs = cast("dict[str, Any]", certificate).get("subjectAltName", ())
        given = {str(name).lower() for kind, name in pairs if kind in ("DNS", "IP Address")}
    for name in wanted:
        name = name.lower()
        _, _, parent = name.partition(".")
        if name in given or (parent and f"*.{parent}" in given):
            return True
    return False
