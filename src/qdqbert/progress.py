"""Tells a person how far a long call is. The library is silent unless it is given a `Progress`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Something that shows stages of work."""

    def stage(
        self, title: str, total: int | None = None
    ) -> AbstractContextManager[Callable[[], None]]:
        """Shows a stage while the block runs; call what it gives after each of `total` steps."""
        ...


class Silent:
    """Shows nothing."""

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """See `Progress`."""
        del title, total
        yield lambda: None


class Bars:
    """A bar a stage on stderr, with elapsed time; plain lines where stderr is no terminal."""

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """See `Progress`."""
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_terminal:
            console.print(f"{title} ...")
            yield lambda: None
            return
        columns = (
            progress.TextColumn("{task.description:32}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        with progress.Progress(*columns, console=console) as bars:
            task = bars.add_task(title, total=total or 1)
            yield lambda: bars.advance(task)
            bars.update(task, completed=total or 1)
