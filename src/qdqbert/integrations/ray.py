"""Run a quantized model on batches of rows in Ray Data, Spark and pandas."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.options.functions import taking
from qdqbert.data.rows.columns import quoted
from qdqbert.data.tables.rows import Column
from qdqbert.integrations.batches import BatchKind, kind_of, rounded_columns
from qdqbert.loading.answers import answer_columns, entry_of, load_model, read_item, text_columns
from qdqbert.runtime.options import RowOptions
from qdqbert.runtime.rows import RowFormat

_LOGGER = logging.getLogger("qdqbert")


class PredictorOptions(RowOptions):
    """Common options.

    Attributes:
        on_error: What to do with a row that cannot be used: stop, or skip it. Its answers are then
            missing: null, or NaN in columns of floats of numpy and pandas.
        error_column: With `on_error="skip"`, name of a column of texts that says why a row has no
            answers, and is null in others.
    """

    error_column: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.error_column is not None and self.on_error == "stop":
            raise UserInputError(
                f"`error_column={self.error_column!r}` is for rows that are skipped. Pass "
                "`on_error='skip'`, too, or leave it out.",
                argument="error_column",
            )


class Predictor:
    """Adds the answers of a quantized model to batches of rows.

    Batches are dictionaries of numpy arrays, DataFrames of pandas or polars, or pyarrow Tables, and
    a result is of the same kind. The rows, their order and their columns stay. The same columns as
    in `qdqbert.run` are added. Inside a batch, texts are sorted by length and grouped by tokens,
    so that batches of 1,000 rows and more run fastest.

    Pass `batch_format="pyarrow"` to Ray Data: other columns are then not copied. In its other
    formats, a column of integers with a missing value becomes one of floats, which rounds
    identifiers from 2**53 on. A warning is logged once if a batch may have such a column.

    With `on_error="skip"`, rows that cannot be used stay, without answers. The first batch that has
    some logs a warning, and `skipped_rows` is their number so far.

    It needs neither Ray nor Spark. It can be pickled, and loads the model when it is first called.

    Example:
        >>> dataset = ray.data.read_parquet("reviews/")
        >>> dataset = dataset.map_batches(
        ...     Predictor,
        ...     fn_constructor_args=["./my-classifier-int8"],
        ...     fn_constructor_kwargs={"threads": 4},
        ...     num_cpus=4,
        ...     compute=ray.data.ActorPoolStrategy(size=8),
        ...     batch_size=2048,
        ...     batch_format="pyarrow",
        ... )
        >>> predict = Predictor("./my-classifier-int8", threads=1)
        >>> frame.mapInPandas(predict.map_in_pandas, "text string, label string, score double")
    """

    @taking(PredictorOptions)
    def __init__(self, options: PredictorOptions) -> None:
        """Check the options.

        Each machine that runs it needs the folder. Pass the number of CPUs that an actor or task
        has as `threads`.

        Raises:
            UserInputError: A value is not allowed.
        """
        self._options = options
        self.skipped_rows = 0
        self._warned_of: set[str] = set()

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
            DataFileError: A column is missing; or a row cannot be used and `on_error` is "stop".
                The number of the row is in the message.
            UserInputError: The batch is of another kind, or an option does not apply to the model.
        """
        kind = kind_of(batch)
        batch = kind.opened(batch)
        self._warn_of_rounded(batch)
        options, model = self._options, self._model
        entry = entry_of(model, options)
        names = kind.names(batch)
        texts = text_columns(entry, options, path="batch", names=names)
        columns = answer_columns(model, options, path="The batch", names=names)
        if options.error_column in (*names, *(each.name for each in columns)):
            raise UserInputError(
                f"`error_column={options.error_column!r}`: the batch or the answers have a column "
                "of this name. Pass another one.",
                argument="error_column",
            )
        items = self._items(entry, kind, batch, texts)
        answered = model.stream(entry.job(model, options), items, return_errors=True)
        found = []
        reasons: list[str | None] = []
        for number, answer in enumerate(answered, start=1):
            if not isinstance(answer, UserInputError):
                found.append(entry.values(answer, options))
                reasons.append(None)
                continue
            reasons.append(str(answer).rstrip("."))
            found.append((None,) * len(columns))
            if options.on_error == "stop":
                raise DataFileError(
                    f"Row {number} of the batch: {reasons[-1]}. Correct the row, or pass "
                    "`on_error='skip'` to leave its answers out."
                ) from answer
        values = zip(*found, strict=True) if found else ([] for _ in columns)
        answers = [(column, list(each)) for column, each in zip(columns, values, strict=True)]
        self._count_skipped(reasons)
        if options.error_column is not None:
            answers.append((Column(name=options.error_column, kind="text"), reasons))
        return kind.closed(kind.extended(batch, answers))

    def _warn_of_rounded(self, batch: Any) -> None:
        names = [name for name in rounded_columns(batch) if name not in self._warned_of]
        if names:
            self._warned_of.update(names)
            _LOGGER.warning(
                "The columns %s of the batch have missing values, and whole numbers from 2**53 on. "
                "If they were integers, they have been rounded before `Predictor` got them. Pass "
                "batches of pyarrow or polars, with Ray Data by `batch_format='pyarrow'`.",
                quoted(names),
            )

    def _count_skipped(self, reasons: Sequence[str | None]) -> None:
        """Count the rows of a batch that have a reason, and log a warning about the first ones."""
        skipped = [(number, each) for number, each in enumerate(reasons, start=1) if each]
        if skipped and not self.skipped_rows:
            _LOGGER.warning(
                "%d of %d rows of a batch have no answers. The first one is row %d: %s. This is "
                "logged once; `skipped_rows` has the number so far.",
                *(len(skipped), len(reasons), *skipped[0]),
            )
        self.skipped_rows += len(skipped)

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
