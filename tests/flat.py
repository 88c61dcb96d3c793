"""Public functions that take options by name, without groups, as the command line does."""

from __future__ import annotations

from typing import Any

import qdqbert
from qdqbert.common.options.declared import in_groups
from qdqbert.verbs.analyze.options import AnalyzeOptions
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.train.options import TrainOptions


def quantize(*arguments: Any, **options: Any) -> qdqbert.QuantizeReport:
    return qdqbert.quantize(*arguments, **in_groups(QuantizeOptions, options))


def analyze(*arguments: Any, **options: Any) -> qdqbert.AnalyzeReport:
    return qdqbert.analyze(*arguments, **in_groups(AnalyzeOptions, options))


def evaluate(*arguments: Any, **options: Any) -> qdqbert.EvaluateReport:
    return qdqbert.evaluate(*arguments, **in_groups(EvaluateOptions, options))


def train(*arguments: Any, **options: Any) -> qdqbert.TrainReport:
    return qdqbert.train(*arguments, **in_groups(TrainOptions, options))


def make(options: type, **values: Any) -> Any:
    """Return the options of a function."""
    return options(**in_groups(options, values))
