"""Who has logged in with a browser: for a while, at this node, and until it logs out."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

#: Nothing asked for so long ends a session, and so does its age.
IDLE_S_MAX: Final = 3_600.0
AGE_S_MAX: Final = 12 * 3_600.0
#: Of one user; one more ends the one that was used longest ago.
SESSIONS_PER_USER_MAX: Final = 20


class Session(NamedTuple):
    user: str
    proof: Hashable  # what the user's password was checked against: a new password ends it
    began_s: float
    used_s: float


class BrowserSessions:
    """One per node. Of a token only its hash is kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_user: dict[str, OrderedDict[bytes, Session]] = {}
        self._users: dict[bytes, str] = {}

    def open(self, user: str, proof: Hashable) -> str:
        """The token by which a browser is known from now on."""
        token, now_s = secrets.token_urlsafe(32), self._clock()
        mine = self._by_user.setdefault(user, OrderedDict())
        for key in [key for key, session in mine.items() if self._is_over(session, now_s)]:
            self._end(key)
        while len(mine) >= SESSIONS_PER_USER_MAX:
            self._end(next(iter(mine)))
        key = _key(token)
        self._by_user.setdefault(user, mine)[key] = Session(user, proof, now_s, now_s)
        self._users[key] = user
        return token

    def find(self, token: str) -> Session | None:
        """None: it is over, or never was."""
        key, now_s = _key(token), self._clock()
        user = self._users.get(key)
        if user is None:
            return None
        mine = self._by_user[user]
        session = mine[key]
        if self._is_over(session, now_s):
            self._end(key)
            return None
        mine[key] = session._replace(used_s=now_s)
        mine.move_to_end(key)
        return session

    def close(self, token: str) -> None:
        self._end(_key(token))

    def __len__(self) -> int:
        return len(self._users)

    def _is_over(self, session: Session, now_s: float) -> bool:
        return now_s - session.used_s > IDLE_S_MAX or now_s - session.began_s > AGE_S_MAX

    def _end(self, key: bytes) -> None:
        user = self._users.pop(key, None)
        if user is not None:
            mine = self._by_user[user]
            del mine[key]
            if not mine:
                del self._by_user[user]


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
