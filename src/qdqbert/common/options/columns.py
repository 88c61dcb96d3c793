"""Which columns of a file of data are read."""

from __future__ import annotations

from collections.abc import Iterable

from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import Column
from qdqbert.common.options.declared import Options, option


class Columns(Options):
    """Columns of the data.

    A column is given by its name or, if no column has that name, by its number from 0. In a result
    of reading, `None` means that there is none.

    Attributes:
        text: Column of the text: a name, or a number that counts from 0. Guessed from the names of
            the columns by default.
        text_pair: Column of the second text of a pair.
        label: Column of the label or score.
    """

    text: Column = option(default=None, flat="text_column")
    text_pair: Column = option(default=None, flat="text_pair_column")
    label: Column = option(default=None, flat="label_column")

    @property
    def requested(self) -> dict[str, str]:
        """The columns that are not `None`, by their names in messages."""
        return {f"{role}_column": name for role, name in self.given().items()}


def check_columns(columns: Columns, data: Iterable[object], names: str) -> None:
    """Refuse names of columns in a call without data.

    Args:
        columns: Options of the call.
        data: Its data, each `None` if it was not given.
        names: Names of the parameters of data, for the message.

    Raises:
        UserInputError: There are names and no data.
    """
    for name, value in columns.requested.items():
        if all(each is None for each in data):
            raise UserInputError(
                f"`{name}={value}` names a column, and the call has no data. Pass {names}.",
                argument=name,
            )
