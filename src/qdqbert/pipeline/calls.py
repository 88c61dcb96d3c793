"""Options that several commands have."""

from __future__ import annotations

from typing import Literal

from qdqbert.common.choices import RecipeName
from qdqbert.common.objects import OptionalData
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.options.columns import Columns
from qdqbert.common.options.declared import Options, option
from qdqbert.common.options.onnx import Onnx
from qdqbert.common.options.quantizers import Quantizers
from qdqbert.common.options.tasks import TaskOptions
from qdqbert.common.progress import Progress
from qdqbert.encoders.task_kinds import TaskName


class Call(Options):
    """Common options.

    Attributes:
        progress: Show progress bars on stderr; in notebooks by default. "json" writes lines of JSON
            there, and a `Progress` object receives the stages instead.
    """

    progress: Progress | Literal["json"] | bool | None = option(default=None, python_only=True)


class TaskCall(Call):
    """Common options.

    Attributes:
        task: Name of the task in transformers. Inferred from the model by default.
        max_length: Longest input in tokens. By default the limit that the model was trained or
            quantized with, or the limit of the task or the checkpoint.
        columns: Columns of the data, where their names do not tell.
        task_options: Settings of the task.
    """

    task: TaskName | None = None
    max_length: int | None = option(default=None, at_least=3)
    columns: Columns = Columns()
    task_options: TaskOptions = TaskOptions()


class BatchCall(TaskCall):
    """Common options.

    Attributes:
        batch_size: Number of examples in a batch. `evaluate` ignores it for folders of `quantize`,
            which run in the batches of `load`.
        onnx: Names and the tokenizer of an .onnx file.
    """

    batch_size: int = option(default=8, at_least=1)
    onnx: Onnx = Onnx()


class CalibratingCall(BatchCall):
    """Common options.

    Attributes:
        recipe: Which tensors to quantize. By default the checkpoint's own quantizers decide,
            or else the target's default recipe.
        calibration_data: Examples to calibrate on: a .csv, .jsonl, .parquet or .txt file, a folder
            of classes, CoNLL columns, the URL of one, `hub:NAME@SPLIT`; in Python also a list,
            DataFrame or `datasets.Dataset`. Built-in English sentences by default.
        calibration: How ranges are found.
        quantizers: Changes to the quantizers of the recipe.
    """

    recipe: RecipeName | None = None
    calibration_data: OptionalData = option(default=None)
    calibration: Calibration = Calibration()
    quantizers: Quantizers = Quantizers()
