"""Where a model comes from: a checkpoint of transformers, or an existing ONNX model.

The two differ in how sites are found, how values are observed and what runs the float model.
Everything else in `quantize` is the same for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import onnx_ir as ir
from torch import Tensor

from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.passes import Run
from qdqbert.checkpoint.cross_encoder import CrossEncoderFiles
from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoding import Batch
from qdqbert.engines.runner import Runner
from qdqbert.evidence.lowering import Reference
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.spec import Site, SiteGroup, TensorSpec
from qdqbert.targets.target import Plan

Advance = Callable[[], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredQuantizers:
    """Quantizers that a checkpoint was saved with.

    Attributes:
        specs: How each site is quantized, by name; `None` for a site in float.
        calibration: Ranges from calibration or training.
        recipe: Name of the recipe that placed the quantizers, if one did.
    """

    specs: Mapping[str, TensorSpec | None]
    calibration: Calibration
    recipe: str | None


class ModelSource(Protocol):
    """A float model to be quantized.

    Attributes:
        name: Name that the user gave.
        task: Name of its task.
        model_type: transformers' name of its family; `None` if it is not known.
        config: Its config, or what is known of it.
        generation_config: transformers' settings of text generation, if there are some.
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
    generation_config: Any
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
        """Return the model with the sites of some groups.

        The float runner must not be used afterwards: a checkpoint is changed in place.
        """
        ...


class SitedSource(Protocol):
    """A float model with named sites.

    Attributes:
        sites: Places that can be quantized, in order.
    """

    sites: tuple[Site, ...]

    def observed_run(
        self, names: Collection[str], batches: Sequence[Batch], advance: Advance
    ) -> Run:
        """Return what runs the model over all batches and shows its activations.

        Args:
            names: Sites that are observed.
            batches: The inputs.
            advance: Called after each batch.
        """
        ...

    def graph(self) -> ir.Model:
        """Return the float graph with a node at every site."""
        ...

    def encoder(self) -> EncoderModel | None:
        """Return the model as data, in float; `None` if only its graph is known."""
        ...

    def check_saturation(self, check: SaturationCheck, batches: Sequence[Batch]) -> None:
        """Show the inputs of the linear layers to a check, scaled for smoothing."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weight `(out, in)` of each linear layer, by the site of its input."""
        ...

    def quantized_runner(
        self, plan: Plan, calibration: Calibration
    ) -> AbstractContextManager[Runner]:
        """Return a context manager that yields what computes the outputs under a plan.

        Used to compare plans. It is near to what the graph of a target computes, not equal.
        """
        ...

    def references(
        self, plan: Plan, calibration: Calibration, batches: Sequence[Batch]
    ) -> list[Reference]:
        """Return what the model computes under a plan, in exact arithmetic."""
        ...
