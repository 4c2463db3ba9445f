"""RPC between the brokers of two nodes: notices, and requests with a response.

A component registers a handler for a kind; others notify or request it on one node, or on all that
are up. Messages on the link: `[-2, "tell", kind, [field, ...]]` (a notice),
`[-2, "ask", number, kind, [...]]` (a request), `[-2, "told", number, done, value]` (its response).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from cluster.cluster_node import BROKER_LEVEL, ClusterNode
from cluster.codec.errors import CodecError
from cluster.groups.outcome import ELSEWHERE
from cluster.peers.peer_rpc import LinkLost, NotSent, Requests, TooMany
from cluster.types import NodeId
from node.errors import BrokerError, Elsewhere, OutcomeUnknown, Refused
from node.tasks import Tasks

log = structlog.get_logger(__name__)

#: A node that is up and does not answer within this is stuck; the request's outcome is unknown.
ANSWER_S_MAX = 5.0
#: Unanswered requests to one node.
OPEN_MAX = 10_000

#: Gets the asking node and the fields; answers what CBOR can hold, at once or as a coroutine.
Handler = Callable[[NodeId, list[Any]], Any]


class PeerRpc:
    """One per node."""

    def __init__(self, cluster: ClusterNode, tasks: Tasks) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._handlers: dict[str, Handler] = {}
        self._requests: Requests[Any] = Requests(
            cluster.send, cluster.links.incarnation, open_max=OPEN_MAX
        )
        cluster.on_node_message.append(self._receive)
        cluster.on_link_lost.append(self._requests.link_lost)

    def on(self, kind: str, handler: Handler) -> None:
        """Register the handler of notices and requests of this kind."""
        assert kind not in self._handlers
        self._handlers[kind] = handler

    def others(self) -> list[NodeId]:
        """The nodes that are up, without this one."""
        states = self._cluster.peers.states
        return sorted(n for n, state in states.items() if state.up and n != self._cluster.node)

    def notify(self, node: NodeId, kind: str, *fields: Any) -> bool:
        """False: it surely does not arrive. To this node itself it is delivered at once."""
        if node == self._cluster.node:
            self._take(node, kind, list(fields))
            return True
        return self._cluster.send(node, [BROKER_LEVEL, "tell", kind, list(fields)])

    def notify_others(self, kind: str, *fields: Any) -> None:
        for node in self.others():
            self.notify(node, kind, *fields)

    async def request(
        self, node: NodeId, kind: str, *fields: Any, wait_s: float = ANSWER_S_MAX
    ) -> Any:
        """What the handler there answers. BrokerError: refused there, cannot be reached, lost."""
        if node == self._cluster.node:
            return await self._answer(node, kind, list(fields))

        def frame(number: int) -> list[Any]:
            return [BROKER_LEVEL, "ask", number, kind, list(fields)]

        if not self._cluster.peers.is_up(node):
            raise Elsewhere(None)
        try:
            return await self._requests.ask(node, frame, within_s=wait_s)
        except CodecError as error:
            raise Refused("bad_argument", str(error)) from None
        except TooMany:
            reason = "too many questions to other nodes are open: try again"
            raise Refused("overloaded", reason) from None
        except NotSent:
            raise Elsewhere(None) from None
        except LinkLost:
            raise OutcomeUnknown(f"the link to node {node} broke") from None
        except TimeoutError:
            raise OutcomeUnknown(f"node {node} did not answer") from None

    async def request_all(self, kind: str, *fields: Any) -> dict[NodeId, Any]:
        """The answers of all nodes that are up, this one included; who fails is left out."""
        return await self._request_each([self._cluster.node, *self.others()], kind, fields)

    async def request_others(self, kind: str, *fields: Any) -> dict[NodeId, Any]:
        """As `request_all`, without this node."""
        return await self._request_each(self.others(), kind, fields)

    async def _request_each(
        self, nodes: Sequence[NodeId], kind: str, fields: Sequence[Any]
    ) -> dict[NodeId, Any]:
        requests = [self.request(node, kind, *fields) for node in nodes]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        found: dict[NodeId, Any] = {}
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, BrokerError):
                log.info("question_unanswered", node=node, kind=kind, reason=answer.reason)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[node] = answer
        return found

    # --- the other end ----------------------------------------------------------------------------

    def _receive(self, peer: NodeId, message: list[Any]) -> None:
        match message[1:]:
            case ["tell", str(kind), fields]:
                self._take(peer, kind, fields)
            case ["ask", int(number), str(kind), fields]:
                self._tasks.start(self._respond(peer, number, kind, fields), name="answer")
            case ["told", int(number), bool(done), value]:
                self._requests.answered(peer, number, value if done else _error_of(*value))
            case _:
                pass  # the relay's

    def _take(self, peer: NodeId, kind: str, fields: list[Any]) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            log.warning("node_message_unknown", peer=peer, kind=kind[:40])
            return
        try:
            found = handler(peer, fields)
        except BrokerError as error:  # which nobody waits for; the link goes on
            log.info("news_refused", peer=peer, kind=kind, reason=error.reason)
            return
        if inspect.iscoroutine(found):
            self._tasks.start(found, name=f"news of {kind}")

    async def _answer(self, peer: NodeId, kind: str, fields: list[Any]) -> Any:
        handler = self._handlers.get(kind)
        if handler is None:
            raise Refused("unknown_question", f"this node knows no {kind[:40]!r}")
        answer = handler(peer, fields)
        return await answer if inspect.isawaitable(answer) else answer

    async def _respond(self, peer: NodeId, number: int, kind: str, fields: list[Any]) -> None:
        link = self._cluster.peers.states.get(peer)
        response: list[Any]
        try:
            response = [True, await self._answer(peer, kind, fields)]
        except BrokerError as error:
            leader = getattr(error, "leader", None)
            response = [False, [error.code, error.reason, error.detail, leader]]
        except Exception as error:  # a bug: whoever asked need not wait
            log.error("question_failed", peer=peer, kind=kind, exc_info=error)
            response = _no_answer(f"node {self._cluster.node} failed ({type(error).__name__})")
        if self._cluster.peers.states.get(peer) is link:  # or who asked has given it up
            head = [BROKER_LEVEL, "told", number]
            reason = f"the answer of node {self._cluster.node} found no room on the link"
            dropped = [*head, *_no_answer(reason)]
            try:
                self._cluster.answer(peer, [*head, *response], dropped=dropped)
            except CodecError as error:
                log.error("answer_not_written", peer=peer, kind=kind, exc_info=error)
                reason = f"node {self._cluster.node} failed: its answer cannot be written"
                self._cluster.answer(peer, [*head, *_no_answer(reason)], dropped=dropped)


def _no_answer(reason: str) -> list[Any]:
    """What happened, nobody knows."""
    return [False, ["unknown", reason, None, None]]


def _error_of(code: str, reason: str, detail: Any, leader: NodeId | None) -> BrokerError:
    """As it was raised there."""
    if code in ELSEWHERE:
        return Elsewhere(leader)
    if code == "unknown":
        return OutcomeUnknown(reason)
    return Refused(code, reason, detail)
