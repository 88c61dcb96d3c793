"""Options of `analyze`."""

from __future__ import annotations

import dataclasses
from typing import Any

from qdqbert.common.choices import Granularity, TargetName
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import ModelOption, OptionalData, OptionalPath
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.options.declared import option
from qdqbert.common.options.quantizers import Quantizers
from qdqbert.pipeline.calls import CalibratingCall
from qdqbert.verbs.quantize.options import QuantizeOptions


class AnalyzeOptions(CalibratingCall):
    """Common options.

    Attributes:
        model: Checkpoint: a local folder, a URL or a hub id; or an .onnx file; in Python also a
            model in memory, as in `quantize`.
        data: Labeled examples to measure on, in the form of `calibration_data`. By default examples
            that were not used to calibrate.
        granularity: The unit that is quantized: an encoder layer, the input and the weight of a
            linear layer, or a single site.
        target: Runtime whose quantizers are analyzed.
        max_examples: Number of examples to measure on at most. The model runs on them
            about twice for each unit.
        plot: File for a plot, .svg, .png or .pdf. Needs matplotlib (extra `train`).
    """

    model: ModelOption = option(kw_only=False)
    data: OptionalData = option(default=None)
    granularity: Granularity = "linear"
    target: TargetName = "portable"
    max_examples: int = option(default=200, at_least=1)
    plot: OptionalPath = option(default=None, writes="replaced")
    calibration: Calibration = option(default=Calibration(), without=("ranges_from", "ray"))
    quantizers: Quantizers = option(default=Quantizers(), without=("dedicated_qdq_pairs",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target == "float":
            raise UserInputError(
                "`target='float'` has no quantizers to analyze. Pass another target, or leave it "
                "out.",
                argument="target",
            )
        self.to_quantize()

    def to_quantize(self) -> QuantizeOptions:
        """Return the options of a call of `quantize` that quantizes in the same way."""
        theirs = {each.name for each in dataclasses.fields(QuantizeOptions)}
        names = {each.name for each in dataclasses.fields(self)} & theirs
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        shared |= {"targets": (self.target,), "eval_data": self.data, "output": "unused"}
        return QuantizeOptions(**shared)
