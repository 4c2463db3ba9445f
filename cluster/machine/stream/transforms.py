"""Subjects that become others: by a pattern, and a destination in which what its wildcards mean
stands, or what a function makes of that.

`$1` or `{{wildcard(1)}}` is what the first `*` means. The other functions cut it (`left`, `right`,
`split`, `splitfromleft`, `splitfromright`, `slicefromleft`, `slicefromright`) or number it
(`partition`). What `>` means goes to the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cluster.machine.stream.subjects import matcher

_CALL: Final = re.compile(rb"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}")
_INT_MAX: Final = (1 << 31) - 1

#: Makes a token, or several with dots, of the tokens of a subject.
Maker = Callable[[Sequence[bytes]], bytes]


class BadTransform(ValueError):
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class Transform:
    source: bytes
    dest: bytes
    _matches: Callable[[bytes], object] = field(compare=False, repr=False)
    _makers: Sequence[Maker] = field(compare=False, repr=False)
    _rest: int | None = field(compare=False, repr=False)  # from this token on they stay

    def __call__(self, subject: bytes) -> bytes | None:
        """None: it does not mean this one."""
        if not self._matches(subject):
            return None
        tokens = subject.split(b".")
        made = [make(tokens) for make in self._makers]
        return b".".join(made if self._rest is None else made + tokens[self._rest :])


@lru_cache(maxsize=256)
def transform_of(source: str, dest: str) -> Transform:
    """No source: all subjects. BadTransform: it cannot be."""
    pattern, tokens = (source or ">").encode().split(b"."), dest.encode().split(b".")
    if b"" in pattern or b"" in tokens or b"*" in tokens:
        raise BadTransform("a subject has tokens, and a destination no wildcards but >")
    if (pattern[-1] == b">") != (tokens[-1] == b">") or b">" in pattern[:-1] + tokens[:-1]:
        raise BadTransform("> stands at the end of both, or of none")
    stars = [at for at, token in enumerate(pattern) if token == b"*"]
    whole = b".".join(pattern)
    return Transform(
        whole,
        b".".join(tokens),
        matcher((whole,)),
        [_maker(each, stars) for each in tokens if each != b">"],
        len(pattern) - 1 if pattern[-1] == b">" else None,
    )


def _maker(token: bytes, stars: Sequence[int]) -> Maker:
    found = _CALL.fullmatch(token)
    if found is None:
        if token[:1] == b"$" and token[1:].isdigit():
            return _picking(_star(token[1:], stars))
        if b"{{" in token or b"}}" in token:
            raise BadTransform(f"{token.decode()} is no function")
        return lambda _: token
    name, args = found[1].decode().lower(), [each.strip(b" ") for each in found[2].split(b",")]
    if name == "partition":
        return _partition(args, stars)
    if name == "wildcard" and len(args) == 1:
        return _picking(_star(args[0], stars))
    if name == "split" and len(args) == 2 and args[1]:
        at, mark = _star(args[0], stars), args[1]
        return lambda tokens: b".".join(filter(None, tokens[at].split(mark)))
    cut = _CUTS.get(name)
    if cut is None or len(args) != 2:
        raise BadTransform(f"{token.decode()}: there is no such function of so many arguments")
    at, size = _star(args[0], stars), _number(args[1])
    return lambda tokens: cut(tokens[at], size) if 0 < size < len(tokens[at]) else tokens[at]


def _picking(at: int) -> Maker:
    return lambda tokens: tokens[at]


def _star(text: bytes, stars: Sequence[int]) -> int:
    """The place of the token that this wildcard means."""
    number = _number(text)
    if not 1 <= number <= len(stars):
        raise BadTransform(f"there is no wildcard {number} in the source")
    return stars[number - 1]


def _number(text: bytes) -> int:
    digits = text.lstrip(b"0")[:11] or b"0"  # Python reads no more than some thousand
    if not text.isdigit() or int(digits) > _INT_MAX:
        raise BadTransform(f"{text[:20].decode(errors='replace')} is no number")
    return int(digits)


def _partition(args: Sequence[bytes], stars: Sequence[int]) -> Maker:
    count, places = _number(args[0]), [_star(each, stars) for each in args[1:]]

    def make(tokens: Sequence[bytes]) -> bytes:
        key = b"".join(tokens[at] for at in places) if places else b".".join(tokens)
        return b"%d" % (fnv_1a(key) % count if count else 0)

    return make


def fnv_1a(key: bytes) -> int:
    """With 32 bits."""
    found = 0x811C9DC5
    for byte in key:
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


def _slices(token: bytes, first: int, size: int) -> bytes:
    starts = [0, *range(first, len(token), size)] if first else range(0, len(token), size)
    ends = [*list(starts)[1:], len(token)]
    return b".".join(token[start:end] for start, end in zip(starts, ends, strict=True))


_CUTS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "left": lambda token, size: token[:size],
    "right": lambda token, size: token[-size:],
    "splitfromleft": lambda token, size: token[:size] + b"." + token[size:],
    "splitfromright": lambda token, size: token[:-size] + b"." + token[-size:],
    "slicefromleft": lambda token, size: _slices(token, 0, size),
    "slicefromright": lambda token, size: _slices(token, len(token) % size, size),
}
