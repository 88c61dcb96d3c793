"""Run a quantized model on batches of rows in Ray Data, Spark and pandas."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.options.functions import taking
from qdqbert.integrations.batches import BatchKind, kind_of
from qdqbert.loading.answers import answer_columns, entry_of, load_model, read_item, text_columns
from qdqbert.runtime.options import RowOptions
from qdqbert.runtime.rows import RowFormat


class Predictor:
    """Adds the answers of a quantized model to batches of rows.

    Batches are dictionaries of numpy arrays, DataFrames of pandas or polars, or pyarrow Tables, and
    a result is of the same kind. The rows, their order and their columns stay. The same columns as
    in `qdqbert.run` are added. Inside a batch, texts are sorted by length and grouped by tokens,
    so that batches of 1,000 rows and more run fastest.

    It needs neither Ray nor Spark. It can be pickled, and loads the model when it is first called.

    Example:
        >>> dataset = ray.data.read_parquet("reviews/")
        >>> dataset = dataset.map_batches(
        ...     Predictor,
        ...     fn_constructor_args=["./my-classifier-int8"],
        ...     fn_constructor_kwargs={"threads": 4},
        ...     num_cpus=4,
        ...     concurrency=8,
        ...     batch_size=2048,
        ... )
        >>> predict = Predictor("./my-classifier-int8", threads=1)
        >>> frame.mapInPandas(predict.map_in_pandas, "text string, label string, score double")
    """

    @taking(RowOptions)
    def __init__(self, options: RowOptions) -> None:
        """Check the options.

        Each machine that runs it needs the folder. Pass the number of CPUs that an actor or task
        has as `threads`.

        Raises:
            UserInputError: A value is not allowed.
        """
        self._options = options

    def __reduce__(self) -> Any:
        """Pickle the options without the loaded model."""
        return functools.partial(Predictor, **dataclasses.asdict(self._options)), ()

    @functools.cached_property
    def _model(self) -> Any:
        return load_model(self._options)

    def __call__(self, batch: Any) -> Any:
        """Return a batch with the columns of the answers.

        Args:
            batch: A dictionary of numpy arrays of the same length, a pandas DataFrame, a pyarrow
                Table, or a polars DataFrame or LazyFrame. A Series of polars is a column; its
                result has a struct for each row.

        Returns:
            A batch of the same kind. Embeddings are float32, or of
            `output_dtype`: in a dictionary one array
            `(rows, dimensions)`, in a DataFrame an array for each row, in a Table a list for each
            row, as in polars.

        Raises:
            DataFileError: A column is missing, or a row has no text. The number of the row is in
                the message.
            UserInputError: The batch is of another kind, or an option does not apply to the model.
        """
        kind = kind_of(batch)
        batch = kind.opened(batch)
        options, model = self._options, self._model
        entry = entry_of(model, options)
        names = kind.names(batch)
        texts = text_columns(entry, options, path="batch", names=names)
        columns = answer_columns(model, options, path="The batch", names=names)
        items = self._items(entry, kind, batch, texts)
        found = []
        answered = model.stream(entry.job(model, options), items, return_errors=True)
        for number, answer in enumerate(answered, start=1):
            if isinstance(answer, UserInputError):
                raise DataFileError(
                    f"Row {number} of the batch: {str(answer).rstrip('.')}. Correct the row, or "
                    "leave it out."
                ) from answer
            found.append(entry.values(answer, options))
        values = zip(*found, strict=True) if found else ([] for _ in columns)
        answers = [(column, list(each)) for column, each in zip(columns, values, strict=True)]
        return kind.closed(kind.extended(batch, answers))

    def map_in_pandas(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield each DataFrame with the columns of the answers, for Spark's `mapInPandas`."""
        return map(self, batches)

    @staticmethod
    def _items(entry: RowFormat, kind: BatchKind, batch: Any, texts: Sequence[str]) -> list[Any]:
        """Return the input of the job for each row, or the reason why there is none."""
        # Tasks whose columns have fixed names read all columns.
        read = texts or kind.names(batch)
        items: list[Any] = []
        for values in zip(*(kind.values(batch, name) for name in read), strict=True):
            try:
                fields = dict(zip(read, values, strict=True))
                items.append(read_item(entry, fields, tuple(texts)))
            except DataFileError as error:
                items.append(error)
        return items
