"""The one way to print for people: text is printed as it is, whatever characters it has."""

from __future__ import annotations

from typing import IO, Any

from rich.console import Console


class PlainConsole(Console):
    """A console that reads no markup in what it prints.

    Paths, labels and names of columns come from outside: `[bold]` and `:smile:` in them are no
    instructions.
    """

    def __init__(self, file: IO[str], *, width: int | None = None) -> None:
        """Print to a stream.

        Args:
            file: The stream.
            width: Width of tables; the terminal's by default.
        """
        super().__init__(file=file, width=width, markup=False, emoji=False, highlight=False)

    def print_line(self, text: str, style: str | None = None) -> None:
        """Print text that is not wrapped."""
        self.print(text, style=style, soft_wrap=True)

    def on_broken_pipe(self) -> Any:
        """Let `main` end the command as it does when any other output is not read."""
        raise BrokenPipeError
