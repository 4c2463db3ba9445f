"""Components whose parameters mean something here: each is a function from a parameter's name and
value to what it says. Raises Refused, which names the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from node.broker.splitting import check_split
from node.links import shovel
from node.links.federation.upstreams import UPSTREAM, UPSTREAM_SET, check_set, parse_upstream
from node.routing.shards import COMPONENT

#: The machine version of the catalog from which on a parameter says who put it.
LINKS_SINCE: Final = 5

Component = Callable[[str, Any], object]

COMPONENTS: Final[Mapping[str, Component]] = {
    shovel.COMPONENT: shovel.parse,
    UPSTREAM: parse_upstream,
    UPSTREAM_SET: check_set,
    COMPONENT: check_split,
}
