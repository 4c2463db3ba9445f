"""Streams as RabbitMQ's clients declare them, and as exports of definitions have them."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine.arguments import QUEUE_TYPE, STREAM, STREAM_CONFIG
from cluster.machine.catalog import CatalogMachine
from node.errors import Refused
from node.protocols.amqp.stream_arguments import as_exported, with_config
from node.protocols.nats.jetstream.stream_config import CREATED, restored, stream_config

WHOLE = {**stream_config({"name": "s", "subjects": ["a.*"], "max_age": 10**12}), CREATED: 5}


def declared(**settings: Any) -> dict[str, Any]:
    return with_config("/", "a queue", {QUEUE_TYPE: STREAM, **settings})


@pytest.mark.parametrize(("age", "years"), [("292Y", 292), ("293Y", 292), ("10000Y", 292)])
def test_an_age_is_as_long_as_anybody_can_say(age: str, years: int) -> None:
    found = declared(**{"x-max-age": age})[STREAM_CONFIG]["max_age"]
    assert (found // 10**9 // (365 * 86_400), found < 2**63) == (years, True)


@pytest.mark.parametrize("config", [WHOLE, declared(**{"x-max-age": "7D"})[STREAM_CONFIG]])
def test_an_export_is_what_was_there(config: dict[str, Any]) -> None:
    arguments = {QUEUE_TYPE: STREAM, "x-mine": 1, STREAM_CONFIG: config}
    assert as_exported(CatalogMachine(), "/", config["name"], arguments) == arguments


@pytest.mark.parametrize(
    "config",
    [
        None,
        [],
        WHOLE | {"subjects": ["a..b"]},
        WHOLE | {"subjects": ["a.>.b"]},
        WHOLE | {"subjects": [1]},
        WHOLE | {"max_msgs": "many"},
        WHOLE | {"subject_transform": {"src": "a.*", "dest": "b.$2"}},
        WHOLE | {"placement": {"tags": 1}},
        WHOLE | {CREATED: "yesterday"},
        restored(WHOLE, "1"),
    ],
)
def test_an_export_that_cannot_be_is_refused(config: Any) -> None:
    """What no door had checked would be looked at wherever all streams are."""
    with pytest.raises(Refused, match=r"invalid arg 'x-stream' for queue 's' in vhost '/'"):
        as_exported(CatalogMachine(), "/", "s", {QUEUE_TYPE: STREAM, STREAM_CONFIG: config})
