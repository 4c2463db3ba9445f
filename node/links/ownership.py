"""Which node runs a link: who leads the group that the link is anchored to.

A group has one leader, which loses it when the node dies, is drained or cut off; so a link is taken
over without anybody having to decide it. Two nodes may run it for the moment in which two believe
to lead: a link has to bear that, as it has to bear a crash between any two steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from cluster.machine.catalog import CatalogMachine
from cluster.types import CATALOG_GROUP, GroupId
from node.links.link import LinkKey


def anchor_of(
    catalog: CatalogMachine, key: LinkKey, queues: Iterable[tuple[str, str]] = ()
) -> GroupId:
    """The group of the first of these queues (vhost and name) that is here; else one of the default
    groups, by the name of the link. Pure.
    """
    for vhost, name in queues:
        info = catalog.queue(vhost, name)
        if info is not None:
            return info.group
    groups = sorted(group.id for group in catalog.groups() if group.default)
    if not groups:
        return CATALOG_GROUP
    digest = blake2b("\0".join(key).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return groups[int.from_bytes(digest, "big") % len(groups)]
