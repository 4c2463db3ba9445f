"""What becomes of a call whose connection ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import aiormq
import pytest

from chaos.load.amqp_link import answer_of
from chaos.load.driver import Answer


@pytest.mark.parametrize("error", [Exception(), aiormq.AMQPError(), ConnectionResetError()])
async def test_a_call_whose_connection_ends_has_no_answer(error: Exception):
    ended: list[bool] = []
    link = SimpleNamespace(node="n1", abort=lambda: ended.append(True))

    async def call() -> Answer:
        raise error

    answer = await answer_of(cast(Any, link), call())

    assert (answer.type, answer.node, ended) == ("unknown", "n1", [True])


async def test_a_bug_is_told():
    async def call() -> Answer:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await answer_of(cast(Any, SimpleNamespace(node="n1")), call())
