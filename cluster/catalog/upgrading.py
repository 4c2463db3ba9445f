"""Up to which machine version a group may rise: what every node can run that has a copy of it."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.log.format import FORMAT_VERSION
from cluster.log.snapshots import SNAPSHOT_VERSION
from cluster.machine.catalog import CatalogMachine
from cluster.machine.versions import MACHINE_VERSION, declared, newest_machine
from cluster.raft.link_auth import LINK_VERSIONS
from cluster.types import CATALOG_GROUP, GroupId, NodeId

#: The global parameter by which an operator holds all machines at a version: nodes can go back to
#: the older release for as long as it stands. See `quorate upgrade`.
HOLD = ("", "", "machine-version-max")


def versions_of(newest: int = MACHINE_VERSION) -> str:
    """All that this release reads and writes, as it says it of itself."""
    return declared(
        {
            "machine": (1, newest),
            "entry": (1, newest),  # an entry says under which machine version it was written
            "link": LINK_VERSIONS,
            "log": (1, FORMAT_VERSION),
            "snapshot": (1, SNAPSHOT_VERSION),
        }
    )


def held_at(catalog: CatalogMachine) -> int | None:
    """The version that no machine shall pass, as an operator said."""
    entry = catalog.entry("parameters", HOLD)
    version = None if entry is None else entry.get("value")
    return version if type(version) is int else None


def runs(catalog: CatalogMachine, node: NodeId) -> int | None:
    """The newest machine version of the node's release; None: it has not come yet, and a link is
    refused to it when it cannot run what is there.
    """
    info = catalog.node(node)
    if info is None or not info.incarnation or info.state == "removed":
        return None
    return newest_machine(info.versions)


def version_for(
    catalog: CatalogMachine, group: GroupId, members: Iterable[NodeId], newest: int
) -> int:
    """The catalog goes first, since every node has it; no group passes it."""
    everybody = {*members}
    if group == CATALOG_GROUP:
        everybody.update(info.node for info in catalog.nodes())
    else:
        info = catalog.group(group)
        everybody |= set() if info is None else info.homes
        newest = min(newest, catalog.version)
    limit = held_at(catalog)
    known = [version for node in everybody if (version := runs(catalog, node)) is not None]
    return min([newest, *known, *([] if limit is None else [limit])])
