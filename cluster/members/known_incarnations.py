"""Which start of each node is known here."""

from __future__ import annotations

from typing import cast

from cluster.groups.group import Group
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import RegisterNode
from cluster.types import NodeId


class KnownIncarnations:
    """By all that the log of this copy of the catalog holds.

    A node whose folder was wiped suspends its votes when it hears that others know of a later
    start than it does. Whoever asks for votes goes by its log, also by what it has not applied yet
    or what it does not know to be committed; so that is what it must tell. Entries that are
    truncated later do no harm: a start is on the node's own disk before it is proposed.
    """

    def __init__(self) -> None:
        self._log = (0, 0, 0)  # what was read of it: behind which entry, up to which one
        self._unapplied: dict[NodeId, int] = {}

    def of(self, node: NodeId, catalog: Group) -> int:
        info = cast(CatalogMachine, catalog.machine).node(node)
        end = catalog.last_index, catalog.member.last_term
        if self._log[0] > catalog.applied_index or self._log[1:] != end:
            self._log = (catalog.applied_index, *end)
            self._unapplied.clear()
            for each in catalog.unapplied():
                if isinstance(each, RegisterNode):
                    known = self._unapplied.get(each.node, 0)
                    self._unapplied[each.node] = max(known, each.incarnation)
        return max(0 if info is None else info.incarnation, self._unapplied.get(node, 0))
