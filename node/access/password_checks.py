"""Passwords are checked beside the event loop, and those that were right are remembered: a thousand
clients that come back at once cost one hash, not a thousand.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from node.access.fair_semaphore import FairSemaphore
from node.access.passwords import SCRYPT, SCRYPT_DIGEST_BYTES, SCRYPT_SALT_BYTES, verify

#: Each takes 16 MiB and a core for some 50 ms; hashlib lets the event loop go on meanwhile.
CHECKS_AT_ONCE = 2
CHECKS_WAITING_MAX = 1_024
#: Of these from one address, so that a flood from there leaves others their turn.
CHECKS_WAITING_PER_ADDRESS_MAX = 64
REMEMBERED_MAX = 10_000

#: What a password is compared with when there is no such user, so that it takes as long.
_NOBODY = base64.b64encode(bytes(SCRYPT_SALT_BYTES + SCRYPT_DIGEST_BYTES)).decode()


class PasswordChecks:
    """One per node. `kept` and `algorithm` are those of the catalog, both empty for nobody."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="password")
        self._semaphore = FairSemaphore(
            CHECKS_AT_ONCE,
            waiting_max=CHECKS_WAITING_MAX,
            waiting_per_address_max=CHECKS_WAITING_PER_ADDRESS_MAX,
        )
        self._checking: dict[bytes, asyncio.Task[bool]] = {}
        # Passwords that were right, as hashes that are worth nothing outside this process.
        self._key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def remembers(self, name: str, password: str, kept: str, algorithm: str) -> bool:
        """It was right, and nothing has changed since."""
        return self._token(name, password, kept, algorithm) in self._remembered

    async def right(
        self, name: str, password: str, kept: str, algorithm: str, address: str = ""
    ) -> bool:
        """By memory, or in a thread; who asks the same at the same time shares the answer. Raises
        Refused: too many wait for theirs.
        """
        token = self._token(name, password, kept, algorithm)
        if token in self._remembered:
            self._remembered.move_to_end(token)
            return True
        task = self._checking.get(token)
        if task is None:
            work = self._check(token, password, kept, algorithm, address)
            task = asyncio.create_task(work, name="check_password")
            self._checking[token] = task
            task.add_done_callback(lambda done: self._checked(token, done))
        return await asyncio.shield(task)

    def _checked(self, token: bytes, task: asyncio.Task[bool]) -> None:
        self._checking.pop(token, None)
        if not task.cancelled():
            task.exception()  # whoever still waits raises it

    async def _check(
        self, token: bytes, password: str, kept: str, algorithm: str, address: str
    ) -> bool:
        loop = asyncio.get_running_loop()
        async with self._semaphore.acquire(address):
            right = await loop.run_in_executor(self._executor, _verify, password, kept, algorithm)
        if right:
            self._remembered[token] = None
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        return right

    def _token(self, *parts: str) -> bytes:
        """With the hash that is kept among the parts: a new password, and the old one is void."""
        token = hashlib.blake2b(key=self._key, digest_size=32)
        for part in parts:
            data = part.encode(errors="surrogatepass")
            token.update(len(data).to_bytes(8, "big") + data)
        return token.digest()


def _verify(password: str, kept: str, algorithm: str) -> bool:
    """In a thread. What is wrong takes as long for every user, and for nobody."""
    right = bool(kept) and verify(password, kept, algorithm)
    if not right and (not kept or algorithm != SCRYPT):
        verify(password, _NOBODY, SCRYPT)
    return right
