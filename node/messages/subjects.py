"""Subjects: tokens between dots; `*` stands for one, `>`, at the end, for one or more. Pure."""

from __future__ import annotations

from typing import Final

ANY: Final = b"*"
REST: Final = b">"


def is_subject(subject: bytes) -> bool:
    """One may subscribe to it."""
    tokens = subject.split(b".")
    return b"" not in tokens and REST not in tokens[:-1]


def is_literal(subject: bytes) -> bool:
    """It has no wildcards, so it stands for one subject only."""
    tokens = subject.split(b".")
    return b"" not in tokens and ANY not in tokens and REST not in tokens
