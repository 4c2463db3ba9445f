"""Runs do not log: connections break all the time, and what came of it is in histories."""

from __future__ import annotations

import logging

import structlog


def quiet() -> None:
    logging.disable(logging.CRITICAL)
    structlog.configure(processors=[_drop])


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent
