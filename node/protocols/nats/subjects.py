"""Core NATS on one node: what is published reaches who wants it, here and at other nodes.

At most once: nothing is stored, nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from random import Random
from typing import Final

from cluster.cluster_node import ClusterNode
from cluster.types import NodeId
from node.peer_rpc import PeerRpc
from node.protocols.nats.interest import Interest, Match, QueueGroup, Remote, Subscription, Taker
from node.protocols.nats.reader import CRLF, Burst, Publish, pieces, plain_messages
from node.protocols.nats.routes import Routed, Routes, Want

_NOBODY: Final = Match()


class Subjects:
    """One per node: the subjects of all virtual hosts."""

    def __init__(self, cluster: ClusterNode, peer_rpc: PeerRpc) -> None:
        self.routes = Routes(cluster, peer_rpc, self)
        #: Somebody is behind: who published last shall go slower.
        self.backlogged = False
        self.on_peers_changed = lambda: None
        #: Somebody wants these subjects from now on, or no longer: (vhost, subject).
        self.on_interest: Callable[[str, bytes], None] = lambda vhost, subject: None
        self._interests: dict[str, Interest] = {}
        self._random = Random()

    # --- interest ---------------------------------------------------------------------------------

    def subscribe(self, vhost: str, subscription: Subscription) -> None:
        self._add(vhost, subscription.subject, subscription)
        self.routes.want((vhost, subscription.subject, subscription.queue))

    def unsubscribe(self, vhost: str, subscription: Subscription) -> None:
        self._remove(vhost, subscription.subject, subscription)
        self.routes.unwant((vhost, subscription.subject, subscription.queue))

    def wanted(self, node: NodeId, want: Want) -> None:
        vhost, subject, queue = want
        self._add(vhost, subject, Remote(node, queue))

    def unwanted(self, node: NodeId, want: Want) -> None:
        vhost, subject, queue = want
        self._remove(vhost, subject, Remote(node, queue))

    def peers_changed(self) -> None:
        self.on_peers_changed()

    def _add(self, vhost: str, subject: bytes, item: Subscription | Remote) -> None:
        interest = self._interests.get(vhost)
        if interest is None:
            interest = self._interests[vhost] = Interest()
        interest.add(subject, item)
        self.on_interest(vhost, subject)

    def _remove(self, vhost: str, subject: bytes, item: Subscription | Remote) -> None:
        interest = self._interests[vhost]
        interest.remove(subject, item)
        if interest.empty:
            del self._interests[vhost]
        self.on_interest(vhost, subject)

    def match(self, vhost: str, subject: bytes) -> Match:
        interest = self._interests.get(vhost)
        return _NOBODY if interest is None else interest.match(subject)

    # --- messages ---------------------------------------------------------------------------------

    def publish(self, vhost: str, message: Publish, by: Taker | None) -> bool:
        """False: nobody takes it, as far as can be told."""
        interest = self._interests.get(vhost)
        if interest is None:
            return False
        match = interest.match(message.subject)
        taken = bool(match.plain) and _to_all(match.plain, message, by)
        if not match.groups:
            for node in match.nodes:
                self._send(node, vhost, message, plain=True)
                taken = True
            return taken
        messages = [message]
        if len(message.payloads) > 1 and any(
            len(group.nodes) > 1 and not group.members for group in match.groups.values()
        ):  # one by one, since each may go to another node
            messages = [message._replace(payloads=[payload]) for payload in message.payloads]
        for each in messages:
            taken |= self._to_groups(vhost, each, match, by)
        return taken

    def _to_groups(self, vhost: str, message: Publish, match: Match, by: Taker | None) -> bool:
        """And to the nodes, once to each."""
        routes: dict[NodeId, list[bytes]] = {node: [] for node in match.nodes}
        taken = bool(routes)
        for group in match.groups.values():
            rest = self._to_members(group, message, by)
            taken |= len(rest) < len(message.payloads)
            if not rest or not group.nodes:
                continue
            taken = True
            node = self._random.choice(group.nodes)
            if len(rest) == len(message.payloads):
                routes.setdefault(node, []).append(group.queue)
            else:  # the members here have had their last
                self._send(node, vhost, message._replace(payloads=rest), queues=[group.queue])
        for node, queues in routes.items():
            self._send(node, vhost, message, queues=queues, plain=node in match.nodes)
        return taken

    def _to_members(self, group: QueueGroup, message: Publish, by: Taker | None) -> list[bytes]:
        """Each payload to one of them, in turn. What none of them takes."""
        members, rest = group.members, message.payloads
        if members and len(rest) > 1:  # all have their share of a burst
            shares = [(member, rest[at :: len(members)]) for at, member in enumerate(members)]
            rest = [
                payload
                for member, share in shares
                for payload in (member.taker.deliver(member, message, share, by) if share else ())
            ]
        first = self._random.randrange(len(members)) if members else 0
        for member in members[first:] + members[:first]:
            if not rest:
                break
            rest = member.taker.deliver(member, message, rest, by)
        return rest

    def _send(
        self,
        node: NodeId,
        vhost: str,
        message: Publish,
        *,
        queues: Sequence[bytes] = (),
        plain: bool = False,
        to: bytes = b"",
    ) -> None:
        subject, reply, header_bytes, size, payloads = message
        data = b"".join(payloads)
        routed = Routed(vhost, subject, reply, header_bytes, size, plain, list(queues), data, to)
        self.backlogged |= self.routes.send(node, routed)

    def arrived(self, message: Routed) -> None:
        """From another node, for clients of this one."""
        if message.to:
            self._arrived_to(message)
            return
        vhost, subject, reply, header_bytes, size, plain, queues, data, _ = message
        match = self.match(vhost, subject)
        payloads = pieces(data, size + len(CRLF))
        published = Publish(subject, reply, header_bytes, size, payloads)
        if plain:
            _to_all(match.plain, published, None)
        for queue in queues:
            group = match.groups.get(queue)
            if group is not None:
                self._to_members(group, published, None)

    # --- from this node itself --------------------------------------------------------------------

    def wanted_now(self, vhost: str, subject: bytes, queue: bytes = b"") -> bool:
        """Does anybody want it; with `queue`, in this queue group? Not for what is asked often."""
        interest = self._interests.get(vhost)
        if interest is None:
            return False
        match = interest.look(subject)
        if queue:
            return queue in match.groups
        return bool(match.plain or match.nodes or match.groups)

    def subscribed_now(self, vhost: str, subject: bytes) -> bool:
        """Is there a subscription here to just this subject, without wildcards?"""
        interest = self._interests.get(vhost)
        return interest is not None and any(
            each.subject == subject for each in interest.look(subject).plain
        )

    def begins(self, vhost: str, token: bytes) -> bool:
        """May anybody want what begins with this token?"""
        interest = self._interests.get(vhost)
        return interest is not None and interest.begins(token)

    def send_each(self, vhost: str, messages: Sequence[Publish]) -> None:
        """Each to who wants its subject, and with one payload. Most are answers to one client, in
        whose inboxes only the last token differs.
        """
        interest = self._interests.get(vhost)
        if interest is None:
            return
        for start, group in groupby(messages, lambda each: each.subject.rpartition(b".")[0]):
            some = list(group)
            match = interest.look_alike(start) if len(some) > 1 else None
            if match is None or match.groups or match.nodes:
                for each in some:
                    self.send(vhost, each.subject, (each,))
                continue
            for subscription in match.plain:
                subscription.taker.deliver_to(subscription, None, some)

    def send_alike(
        self, vhost: str, start: bytes, subjects: Sequence[bytes], bodies: Sequence[bytes]
    ) -> None:
        """As `send_each`: all subjects are `start`, a dot, and one more token."""
        interest = self._interests.get(vhost)
        if interest is None:
            return
        match = interest.look_alike(start)
        if match is None or match.groups or match.nodes:
            self.send_each(vhost, plain_messages(subjects, bodies))
            return
        for subscription in match.plain:
            subscription.taker.deliver_alike(subscription, subjects, bodies)

    def send(self, vhost: str, to: bytes, messages: Sequence[Publish]) -> bool:
        """To all who want the subject `to`; they see those of the messages, which have one payload
        each. False: nobody takes them, as far as can be told. See `backlogged`.
        """
        interest = self._interests.get(vhost)
        if interest is None:
            return False
        match = interest.look(to)
        taken = False
        for subscription in match.plain:
            taken |= subscription.taker.deliver_to(subscription, to, messages) > 0
        if match.nodes:
            taken = True
            for node in match.nodes:
                for message in messages:
                    self._send(node, vhost, message, plain=True, to=to)
        for group in match.groups.values():
            for message in messages:
                taken |= self._send_to_group(vhost, to, message, group)
        return taken

    def send_burst(self, vhost: str, to: bytes, burst: Burst) -> None:
        """As `send`."""
        interest = self._interests.get(vhost)
        if interest is None:
            return
        match = interest.look(to)
        if match.nodes or match.groups:
            self.send(vhost, to, burst.each())
            return
        for subscription in match.plain:
            subscription.taker.deliver_burst(subscription, to, burst)

    def _send_to_group(self, vhost: str, to: bytes, message: Publish, group: QueueGroup) -> bool:
        if self._send_to_members(to, message, group):
            return True
        if group.nodes:
            node = self._random.choice(group.nodes)
            self._send(node, vhost, message, queues=[group.queue], to=to)
            return True
        return False

    def _send_to_members(self, to: bytes, message: Publish, group: QueueGroup) -> bool:
        members = group.members
        first = self._random.randrange(len(members)) if members else 0
        return any(
            member.taker.deliver_to(member, to, [message])
            for member in members[first:] + members[:first]
        )

    def _arrived_to(self, message: Routed) -> None:
        interest = self._interests.get(message.vhost)
        if interest is None:
            return
        match = interest.look(message.to)
        published = Publish(*message[1:5], [message.payloads])
        if message.plain:
            for subscription in match.plain:
                subscription.taker.deliver_to(subscription, message.to, [published])
        for queue in message.queues:
            group = match.groups.get(queue)
            if group is not None:
                self._send_to_members(message.to, published, group)

    def answer(self, vhost: str, message: Publish, taker: Taker) -> None:
        """To the subscriptions of one client, from this node itself."""
        for subscription in self.match(vhost, message.subject).plain:
            if subscription.taker is taker:
                taker.deliver(subscription, message, message.payloads, None)


def _to_all(plain: list[Subscription], message: Publish, by: Taker | None) -> bool:
    """False: none of them takes any of it."""
    payloads = message.payloads
    taken = False
    for subscription in plain:
        rest = subscription.taker.deliver(subscription, message, payloads, by)
        taken |= len(rest) < len(payloads)
    return taken
