"""What became of answers whose consumer is another one after a break."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.groups.outcome import ELSEWHERE
from cluster.machine.replies import OVERLOADED
from quorate import wire
from quorate.answers import Answers
from quorate.errors import OutcomeUnknown, Refused


class Owner:
    queue = "orders"

    def answer_done(self, *_: Any) -> None: ...
    def answer_refused(self, refused: Refused) -> None: ...
    def resubscribe(self) -> None: ...


class Link:
    """A connection that answers nothing."""

    def next_request(self) -> int:
        return 1

    def ask(self, *_: Any) -> None: ...


def settle(answers: Answers, position: int) -> asyncio.Future[None]:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answers.add(wire.SETTLE, [(position, position)], 7, (), waiter)
    return waiter


async def test_a_settle_that_was_sent_before_the_session_ended_may_have_been_done():
    answers = Answers(Owner())
    answers.connected(Link(), 1)  # type: ignore[arg-type]
    sent = settle(answers, 1)
    await asyncio.sleep(0)
    answers.disconnected()
    kept = settle(answers, 2)  # never left
    answers.connected(Link(), 2)  # type: ignore[arg-type]

    with pytest.raises(OutcomeUnknown, match="the session had ended"):
        await sent
    with pytest.raises(Refused, match="the session had ended"):
        await kept


def test_the_client_repeats_what_passes_at_a_node_and_no_more():
    assert ELSEWHERE | {OVERLOADED} == wire.PASSING
