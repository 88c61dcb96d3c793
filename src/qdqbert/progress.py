"""Progress of long calls. Nothing is shown by default."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Receives the stages of a call."""

    def stage(
        self, title: str, total: int | None = None
    ) -> AbstractContextManager[Callable[[], None]]:
        """Show a stage while the block runs.

        Args:
            title: What is done.
            total: Number of steps; `None` if they are not counted.

        Returns:
            A context manager that yields a function to call after each step.
        """
        ...


class Silent:
    """Shows nothing; see `Progress`."""

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """Do nothing."""
        del title, total
        yield lambda: None


class Bars:
    """Shows a bar for each stage on stderr, or a line where stderr is not a terminal."""

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """Show a stage; see `Progress`."""
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
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=console) as bars:
            # A bar without a total moves without saying how much is left.
            task = bars.add_task(title, total=total)
            yield lambda: bars.advance(task)
            bars.update(task, total=total or 1, completed=total or 1)


def progress_of(shown: Progress | bool) -> Progress:
    """Return the progress that an argument of a public function asks for."""
    if isinstance(shown, bool):
        return Bars() if shown else Silent()
    return shown
