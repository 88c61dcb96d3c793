"""Progress of long calls. By default, it is shown in notebooks only."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from qdqbert.common.errors import UserInputError

if TYPE_CHECKING:
    from rich.console import Console

# Logs show how long a stage took from this number of seconds on.
_LONG = 1.0
# Seconds after which logs show how much of a stage is done, again and again.
_INTERVAL = 30.0


class Advance(Protocol):
    """Receives the progress of a step."""

    def __call__(self, *, rows: int, tokens: int, position: int) -> None:
        """Show a step.

        Args:
            rows: Number of texts that were processed since the last call.
            tokens: Number of their tokens.
            position: How much of the whole input is processed.
        """
        ...


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

    def throughput(self, title: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """Show how many texts and tokens per second are processed while the block runs.

        Args:
            title: What is done.
            total: Size of the whole input, in any unit; `None` if it is not known.

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

    @contextlib.contextmanager
    def throughput(self, title: str, total: int | None = None) -> Iterator[Advance]:
        """Do nothing."""
        del title, total
        yield _ignore


class Bars:
    """Shows a bar for each stage on stderr, or lines where stderr is not a terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the clock, which returns the time in seconds."""
        self._clock = clock

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """Show a stage; see `Progress`."""
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if not _shows_bars(console):
            with self._lines(title, total) as show:
                steps = itertools.count(1)
                yield lambda: show(next(steps))
            return
        columns = (
            progress.TextColumn("{task.description:32}", markup=False),
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

    @contextlib.contextmanager
    def throughput(self, title: str, total: int | None = None) -> Iterator[Advance]:
        """Show texts and tokens per second; see `Progress`."""
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if not _shows_bars(console):
            with self._lines(title, total) as show:
                yield lambda *, rows, tokens, position: show(position)
            return
        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[speed]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        done_rows = done_tokens = 0
        with progress.Progress(*columns, console=console) as bars:
            task = bars.add_task(title, total=total, speed="")

            def advance(*, rows: int, tokens: int, position: int) -> None:
                nonlocal done_rows, done_tokens
                done_rows += rows
                done_tokens += tokens
                seconds = bars.tasks[task].elapsed or 1e-9
                speed = f"{done_rows / seconds:,.0f} texts/s, {done_tokens / seconds:,.0f} tokens/s"
                bars.update(task, completed=position, speed=speed)

            yield advance

    @contextlib.contextmanager
    def _lines(self, title: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Print a line when a stage starts, and one when it ends if it took long.

        These are two lines because many logs show a line only once it is complete, and because
        messages in between would end up on the line of the stage.

        Args:
            title: What is done.
            total: Size of the stage; `None` if it is not known.

        Returns:
            A context manager that yields a function to call with how much is done. It prints the
            percentage every 30 seconds.
        """
        sys.stderr.write(f"{title} ...\n")
        start = shown = self._clock()

        def show(done: int) -> None:
            nonlocal shown
            if total and (now := self._clock()) - shown >= _INTERVAL:
                shown = now
                sys.stderr.write(f"{title} ... {100 * done // total} %\n")

        yield show
        seconds = self._clock() - start
        if seconds >= _LONG:
            sys.stderr.write(f"{title} ... done in {_duration(seconds)}\n")


def _shows_bars(console: Console) -> bool:
    """Return whether bars can be shown: on a terminal, or in a notebook that has widgets."""
    has_widgets = importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal or (console.is_jupyter and has_widgets)


def _duration(seconds: float) -> str:
    """Return "35.2 s", or "0:12:05" from a minute on."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def _ignore(*, rows: int, tokens: int, position: int) -> None:
    del rows, tokens, position


def progress_of(shown: Progress | bool | None) -> Progress:
    """Return the progress that an argument of a public function asks for.

    Args:
        shown: Whether to show bars; `None` for bars in notebooks only.

    Raises:
        UserInputError: It is something else.
    """
    if shown is None:
        shown = _is_notebook()
    if isinstance(shown, bool):
        return Bars() if shown else Silent()
    if not hasattr(shown, "stage"):
        raise UserInputError(
            "`progress` must be True, False or a `qdqbert.Progress`, got "
            f"{shown!r:.100} ({type(shown).__name__}).",
            argument="progress",
        )
    return shown


def _is_notebook() -> bool:
    """Return whether a kernel of a notebook runs this process. Only it has loaded ipykernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return "ipykernel" in sys.modules and "IPKernelApp" in getattr(shell, "config", {})
