"""Progress of long calls. By default, it is shown in notebooks only."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.util
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from qdqbert.common.errors import UserInputError

if TYPE_CHECKING:
    from rich.console import Console

# Logs show how long a stage took from this number of seconds on.
_LONG = 1.0
# Seconds after which logs, and lines of JSON, show how much of a stage is done, again and again.
_INTERVAL = 30.0
_EVENT_INTERVAL = 1.0


class Advance(Protocol):
    """Receives the progress of a step."""

    def __call__(self, *, rows: int, tokens: int, position: int, written: int = 0) -> None:
        """Show a step.

        Args:
            rows: Number of texts that were processed since the last call.
            tokens: Number of their tokens.
            position: How much of the whole input is processed.
            written: Bytes of answers that were written since the last call.
        """


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

    def throughput(self, title: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """Show how many texts and tokens per second are processed while the block runs.

        Args:
            title: What is done.
            total: Size of the whole input, in any unit; `None` if it is not known.

        Returns:
            A context manager that yields a function to call after each step.
        """


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


@dataclasses.dataclass
class Rate:
    """How much of a stage was done, and how fast.

    Attributes:
        clock: Returns the time in seconds.
        total: Size of the whole input; `None` if it is not known.
        rows: Number of texts so far.
        tokens: Number of their tokens.
        written: Bytes of answers.
        position: How much of the whole input is processed.
    """

    clock: Callable[[], float]
    total: int | None
    rows: int = 0
    tokens: int = 0
    written: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        self._start = self.clock()
        # The time and the position of the first step: a run that goes on starts within the input.
        self._first: tuple[float, int] | None = None

    def add(self, *, rows: int, tokens: int, position: int, written: int = 0) -> None:
        """Add a step; see `Advance`."""
        self.rows += rows
        self.tokens += tokens
        self.written += written
        self.position = position
        if position:
            self._first = self._first or (self.clock(), position)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._start

    def per_second(self, count: int) -> float:
        """Return a number in each second so far."""
        return count / max(self.seconds, 1e-9)

    @property
    def remaining(self) -> float | None:
        """Seconds that are left at this speed; `None` if that is not known."""
        if self.total is None or self._first is None:
            return None
        start, before = self._first
        if self.position <= before:
            return 0.0 if self.position >= self.total else None
        each = (self.clock() - start) / (self.position - before)
        return max(0, self.total - self.position) * each

    def described(self) -> str:
        """Return the speed in words."""
        from rich.filesize import decimal

        speeds = ((self.rows, "texts"), (self.tokens, "tokens"))
        found = ((self.per_second(count), noun) for count, noun in speeds)
        words = [f"{each:,.{0 if each >= 10 else 1}f} {noun}/s" for each, noun in found]
        if self.written:
            words.append(f"{decimal(self.written)} written")
        return ", ".join(words)


class Events:
    """Writes lines of JSON on stderr: when a stage starts and ends, and each second in between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the clock, which returns the time in seconds."""
        self._clock = clock

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        """Write the events of a stage; see `Progress`."""
        done = 0

        def numbers() -> dict[str, Any]:
            return {"done": done, "total": total}

        with self._events(title, numbers) as show:

            def advance() -> None:
                nonlocal done
                done += 1
                show()

            yield advance

    @contextlib.contextmanager
    def throughput(self, title: str, total: int | None = None) -> Iterator[Advance]:
        """Write the events of a stage with its speed; see `Progress`."""
        rate = Rate(self._clock, total)

        def numbers() -> dict[str, Any]:
            left = rate.remaining
            return {
                "rows": rate.rows,
                "tokens": rate.tokens,
                "bytes": rate.written,
                "rows_per_second": round(rate.per_second(rate.rows), 1),
                "tokens_per_second": round(rate.per_second(rate.tokens), 1),
                "share": round(rate.position / total, 4) if total else None,
                "remaining_seconds": None if left is None else round(left, 1),
            }

        with self._events(title, numbers) as show:
            yield _noting(rate, show)

    @contextlib.contextmanager
    def _events(
        self, title: str, numbers: Callable[[], dict[str, Any]]
    ) -> Iterator[Callable[[], None]]:
        """Write the start and the end of a stage, and yield a function that may write a step."""
        start = shown = self._clock()

        def write(event: str) -> None:
            seconds = round(self._clock() - start, 3)
            line = {"event": event, "stage": title, "seconds": seconds, **numbers()}
            # One call, so that lines of other threads cannot come between.
            sys.stderr.write(f"{json.dumps(line, ensure_ascii=False)}\n")
            sys.stderr.flush()

        def show() -> None:
            nonlocal shown
            if (now := self._clock()) - shown >= _EVENT_INTERVAL:
                shown = now
                write("progress")

        write("start")
        yield show
        write("end")


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
            with self._lines(title) as show:
                steps = itertools.count(1)

                def step() -> None:
                    done = next(steps)
                    show(lambda: f"{100 * done // total} %" if total else "")

                yield step
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
        rate = Rate(self._clock, total)

        def described() -> str:
            left = rate.remaining
            return ", ".join(
                [
                    *([f"{100 * rate.position // total} %"] if total else []),
                    rate.described(),
                    *([f"{_duration(left)} left"] if left is not None else []),
                ]
            )

        if not _shows_bars(console):
            with self._lines(title) as show:
                yield _noting(rate, lambda: show(described))
            return
        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[speed]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=console) as bars:
            task = bars.add_task(title, total=total, speed="")
            yield _noting(
                rate, lambda: bars.update(task, completed=rate.position, speed=rate.described())
            )

    @contextlib.contextmanager
    def _lines(self, title: str) -> Iterator[Callable[[Callable[[], str]], None]]:
        """Print a line when a stage starts, and one when it ends if it took long.

        These are two lines because many logs show a line only once it is complete, and because
        messages in between would end up on the line of the stage.

        Returns:
            A context manager that yields a function to call after each step, with one that returns
            how much is done. It prints that every 30 seconds.
        """
        sys.stderr.write(f"{title} ...\n")
        start = shown = self._clock()

        def show(described: Callable[[], str]) -> None:
            nonlocal shown
            if (now := self._clock()) - shown >= _INTERVAL and (words := described()):
                shown = now
                sys.stderr.write(f"{title} ... {words}\n")

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


def _ignore(*, rows: int, tokens: int, position: int, written: int = 0) -> None:
    del rows, tokens, position, written


def _noting(rate: Rate, show: Callable[[], None]) -> Advance:
    """Return a function that adds a step to a rate, and shows it."""

    def advance(*, rows: int, tokens: int, position: int, written: int = 0) -> None:
        rate.add(rows=rows, tokens=tokens, position=position, written=written)
        show()

    return advance


def progress_of(shown: Progress | Literal["json"] | bool | None) -> Progress:
    """Return the progress that an argument of a public function asks for.

    Args:
        shown: Whether to show bars, or "json" for lines of JSON; `None` for bars in notebooks only.

    Raises:
        UserInputError: It is something else.
    """
    if shown is None:
        shown = _is_notebook()
    if isinstance(shown, bool):
        return Bars() if shown else Silent()
    if shown == "json":
        return Events()
    if not hasattr(shown, "stage"):
        raise UserInputError(
            "`progress` must be True, False, 'json' or a `qdqbert.Progress`, got "
            f"{shown!r:.100} ({type(shown).__name__}).",
            argument="progress",
        )
    return shown


def _is_notebook() -> bool:
    """Return whether a kernel of a notebook runs this process. Only it has loaded ipykernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return "ipykernel" in sys.modules and "IPKernelApp" in getattr(shell, "config", {})
