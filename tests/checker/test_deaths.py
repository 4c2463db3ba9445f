from __future__ import annotations

from typing import Any

from chaos.checker.deaths import deaths
from tests.checker.histories import Told


def _verdict(died_in: str | None, reason: str | None, discarded: str) -> Any:
    told = Told()
    settled = {"queue": "q", "consumer": 1, "token": 1, "messages": [discarded]}
    told.invoke("c", "discard", settled)
    value = {"queue": "dead", "messages": ["p:1"], "reason": reason, "died_in": died_in}
    told.saw("d", "deliver", value)
    return deaths("q", "dead", {"rejected", "delivery_limit"})(told.ops)


def test_what_was_discarded_is_rejected() -> None:
    verdict = _verdict("q", "rejected", "p:1")

    assert verdict.valid is True
    assert verdict.counts["rejected"] == 1


def test_what_nobody_discarded_is_not_rejected() -> None:
    assert _verdict("q", "rejected", "p:2").counts["untrue"] == 1


def test_a_death_has_a_place_and_a_reason_that_can_be() -> None:
    assert _verdict("q", "expired", "p:1").counts["wrong"] == 1
    assert _verdict("other", "rejected", "p:1").counts["wrong"] == 1
    assert _verdict(None, None, "p:1").valid is False
