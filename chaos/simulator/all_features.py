"""All features by name, as `Plan.features` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from chaos.simulator.clients import Scene
from chaos.simulator.driven import Driven
from chaos.simulator.features import (
    Dedup,
    DropHead,
    Exchanges,
    Feature,
    Groups,
    Imports,
    Large,
    Policies,
    Priority,
    PurgeQueue,
    QueueExpiry,
    Refusing,
    RejectPublish,
    Room,
)
from chaos.simulator.plan import DRIVEN, STREAMS

KINDS: Mapping[str, Callable[[Scene], Feature]] = {
    "queue_expiry": QueueExpiry,
    "priority": Priority,
    "drop_head": DropHead,
    "reject_publish": RejectPublish,
    "dedup": Dedup,
    "purge": PurgeQueue,
    "exchanges": Exchanges,
    "large": Large,
    "policies": Policies,
    "imports": Imports,
    "room": Room,
    "groups": Groups,
    "refusing": Refusing,
    **{name: partial(Driven, workload=name) for name in (*DRIVEN, STREAMS)},
}


def features(scene: Scene) -> list[Feature]:
    return [KINDS[name](scene) for name in scene.cluster.plan.features]
