"""The newest commands of all groups in memory: what followers and consumers ask for most."""

from __future__ import annotations

from collections import deque
from typing import Final

#: What a command in memory costs besides its bytes.
_COMMAND_OVERHEAD: Final = 150


class HotTail:
    """The newest commands of all groups, kept in memory up to a number of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._queue = deque[tuple[dict[int, bytes], int, bytes]]()

    def keep(self, commands: dict[int, bytes], index: int, command: bytes) -> None:
        commands[index] = command
        self._queue.append((commands, index, command))
        self.bytes += len(command) + _COMMAND_OVERHEAD
        while self.bytes > self.bytes_max and len(self._queue) > 1:
            commands, index, command = self._queue.popleft()
            if commands.get(index) is command:
                del commands[index]
            self.bytes -= len(command) + _COMMAND_OVERHEAD
