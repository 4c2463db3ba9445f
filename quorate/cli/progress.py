"""A bar with a rate on standard error; nothing where it could not be redrawn."""

from __future__ import annotations

from typing import Self

from quorate.cli.output import plain_terminal, stderr


class Bar:
    """`total` None: the end is not known."""

    def __init__(self, what: str, total: int | None, *, shown: bool = True) -> None:
        self._progress = None
        if not shown or plain_terminal():
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=stderr(),
            transient=True,
        )
        self._task = self._progress.add_task(what, total=total, rate="")

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def add(self, count: int) -> None:
        if self._progress is not None:
            speed = self._progress.tasks[0].speed
            self._progress.update(
                self._task, advance=count, rate=f"{speed:,.0f}/s" if speed else ""
            )
