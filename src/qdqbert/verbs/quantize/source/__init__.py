"""Where a model comes from: a checkpoint of transformers, or an existing ONNX model.

The two differ in how they are read as an `EncoderModel`, and in what runs the float model.
Everything else in `quantize` is the same for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.checkpoint.cross_encoder import CrossEncoderFiles
from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.engines.runner import Runner
from qdqbert.spec import Site, SiteGroup, TensorSpec
from qdqbert.verbs.quantize.source.sited import SitedSource


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredQuantizers:
    """Quantizers that a checkpoint was saved with.

    Attributes:
        specs: How each site is quantized, by name; `None` for a site in float.
        calibration: Ranges from calibration or training.
        recipe: Name of the recipe that placed the quantizers, if one did.
    """

    specs: Mapping[str, TensorSpec | None]
    calibration: CalibrationResult
    recipe: str | None


class ModelSource(Protocol):
    """A float model to be quantized.

    Attributes:
        name: Name that the user gave.
        task: Name of its task.
        model_type: transformers' name of its family; `None` if it is not known.
        config: Its config, or what is known of it.
        tokenizer: Its tokenizer.
        head: Pooling and normalization of a sentence-transformers folder; `None` otherwise.
        cross_encoder: Files of a cross-encoder of sentence-transformers; `None` otherwise.
        max_length: Longest input in tokens.
        input_names: Names of the inputs.
        output_names: Names of the outputs.
        stored: Quantizers of its own, if it has some.
        notices: Messages for the user.
    """

    name: str
    task: str
    model_type: str | None
    config: Any
    tokenizer: Any
    head: SentenceHead | None
    cross_encoder: CrossEncoderFiles | None
    max_length: int
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    stored: StoredQuantizers | None
    notices: tuple[str, ...]

    def runner(self) -> Runner:
        """Return the float model, ready to run."""
        ...

    def sites(self, groups: Collection[SiteGroup]) -> tuple[Site, ...]:
        """Return the places that can be quantized, of some groups, without changing the model."""
        ...

    def with_sites(self, groups: Collection[SiteGroup]) -> SitedSource:
        """Return the model with the sites of some groups."""
        ...
