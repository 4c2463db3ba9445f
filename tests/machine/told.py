"""A world to which some lines of a script were told already, and what came of the last one."""

from __future__ import annotations

from tests.machine.world import World


class Told:
    """`told("queue q")("publish q a").last` reads like the scripts of testdata."""

    def __init__(self) -> None:
        self.world = World()
        self.last = ""

    def __call__(self, *lines: str) -> Told:
        for line in lines:
            self.last = self.world.run(line)
        return self

    def says(self, line: str) -> list[str]:
        """What comes of one more line, without the indent of effects."""
        return [said.strip() for said in self.world.run(line).splitlines()]


def told(*lines: str) -> Told:
    return Told()(*lines)
