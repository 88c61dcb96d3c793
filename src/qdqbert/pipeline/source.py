"""Read the model of a call: a checkpoint of transformers, or an existing ONNX model.

The two differ in how they are read as an `EncoderModel`, and in what runs the float model.
Everything else is the same for both.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.reference.sited_encoder import SitedEncoder
from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.choices import PoolingMode
from qdqbert.common.errors import UserInputError, naming
from qdqbert.common.file_names import CONFIG
from qdqbert.common.options.onnx import Onnx, is_onnx_file
from qdqbert.common.progress import Progress
from qdqbert.encoders.adapters import merged
from qdqbert.encoders.checkpoint.calls import finder_of
from qdqbert.encoders.checkpoint.description import Described, Description, describe_checkpoint
from qdqbert.encoders.checkpoint.gliner import GlinerHead
from qdqbert.encoders.checkpoint.load import Checkpoint, load_described
from qdqbert.encoders.checkpoint.tokenizer import check_vocabulary
from qdqbert.encoders.checkpoint.tokenizer_and_config import choose_task, load_tokenizer_and_config
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import quantized_family
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.of_checkpoint import read_encoder, with_expansion
from qdqbert.encoders.sites import sites_of
from qdqbert.encoders.task_kinds import TaskName
from qdqbert.encoders.weights import Weights
from qdqbert.engines.runner import Runner
from qdqbert.graphs.imported.graph_runner import GraphRunner
from qdqbert.graphs.imported.imported_model import import_onnx
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.loading.load import label_vectors, labels_folder
from qdqbert.pipeline.calls import BatchCall
from qdqbert.pipeline.predictions import TorchRunner
from qdqbert.pipeline.sited import SitedSource
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.quantization.spec import Site, SiteGroup, TensorSpec
from qdqbert.runtime.artifact import read_training
from qdqbert.tasks.own_layers import task_of_head
from qdqbert.tasks.registry import task_for
from qdqbert.tasks.task import Task
from qdqbert.training.insert.outputs import check_outputs

# Groups of sites that graphs have.
_GROUPS_OF_GRAPHS: frozenset[SiteGroup] = frozenset({"layer", "table"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPath:
    """Where a model is, and how it is to be read.

    Attributes:
        path: Folder, hub id or .onnx file.
        shown: Its name in reports.
        task: Name of its task; inferred if `None`.
        pooling: How an embedder makes one vector of a text's tokens; as stored if `None`.
        adapter: Adapter that is merged into the weights of a checkpoint; `None` for none.
        onnx: Names and the tokenizer of an .onnx file.
    """

    path: str
    shown: str
    task: TaskName | None = None
    pooling: PoolingMode | None = None
    adapter: str | None = None
    onnx: Onnx = Onnx()

    @classmethod
    def of_call(cls, call: BatchCall, path: str | os.PathLike[str], shown: str) -> ModelPath:
        """Return where the model of a call is; `shown` is its name in reports."""
        return cls(
            path=os.fspath(path),
            shown=shown,
            task=call.task,
            pooling=call.task_options.pooling,
            adapter=call.task_options.adapter,
            onnx=call.onnx,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredQuantizers:
    """Quantizers that a checkpoint was saved with.

    Attributes:
        specs: How each site is quantized, by name; `None` for a site in float.
        calibration: Ranges from calibration or training.
        recipe: Name of the recipe that placed the quantizers, if one did.
        options: Changes to it.
    """

    specs: Mapping[str, TensorSpec | None]
    calibration: CalibrationResult
    recipe: str | None
    options: QuantizerOptions = dataclasses.field(default_factory=QuantizerOptions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(Described):
    """A float model to be quantized.

    Attributes:
        graph: The .onnx file on ONNX Runtime; `None` for a checkpoint.
        stored: Quantizers of its own, if it has some.
        training: How `train` trained it; empty if it did not.
        labels: Folder that runs its encoder of labels in INT8, if it has one.
    """

    model: ModelPath
    task: Task
    encoder: EncoderModel
    graph: GraphRunner | None = None
    output_names: tuple[str, ...]
    stored: StoredQuantizers | None = None
    training: Mapping[str, Any]
    labels: Path | None = None

    @property
    def name(self) -> str:
        """Its folder, hub id or file."""
        return self.model.path

    def runner(self) -> Runner:
        """Return the float model, ready to run."""
        return self.graph or TorchRunner(SitedEncoder(self.encoder, ()), self.input_names)

    def sites(self, groups: Collection[SiteGroup]) -> tuple[Site, ...]:
        """Return the places that can be quantized, of some groups."""
        unsupported = sorted(set(groups) - _GROUPS_OF_GRAPHS)
        if self.graph is not None and unsupported:
            raise UserInputError(
                "The recipe requires a checkpoint: it quantizes sites of the group "
                f"{unsupported[0]!r}, which are not found in existing ONNX models. Pass another "
                "`recipe`, or other `targets`.",
                argument="recipe",
            )
        if "output" in groups:
            check_outputs(quantized_family(str(self.model_type)))
        return sites_of(self.encoder, self._with_stored(groups))

    def with_sites(self, groups: Collection[SiteGroup]) -> SitedSource:
        """Return the model with the sites of some groups, after the float model ran."""
        if self.graph is not None:
            # It would hold the weights a second time.
            self.graph.release()
        groups = self._with_stored(groups)
        return SitedSource(self.encoder, groups, output_names=self.output_names)

    def _with_stored(self, groups: Collection[SiteGroup]) -> Collection[SiteGroup]:
        """Return groups of sites, and the sites of the checkpoint's own quantizers."""
        if self.stored is None:
            return groups
        every = sites_of(self.encoder, ("layer", "table", "output"))
        return {*groups, *(site.group for site in every if site.name in self.stored.specs)}


def open_source(
    model: ModelPath,
    scratch: Path,
    progress: Progress,
    check: Callable[[str], None] = lambda task: None,
) -> Source:
    """Read a checkpoint or an .onnx file.

    `check` is called with the name of the task, before the weights of a checkpoint are read.
    """
    if is_onnx_file(model.path):
        with progress.stage("Reading the graph"), naming("model"):
            source = _read_onnx(model, scratch)
        check(source.task.name)
        return source
    with progress.stage("Loading the checkpoint"), naming("model"):
        found = describe_checkpoint(
            model.path, task=model.task, pooling=model.pooling, adapter=model.adapter
        )
        check(found.task)
        stores_quantizers = getattr(found.config, "quantizers", None) is not None
        return (_read_stored if stores_quantizers else _read_float)(model, found)


def _read_onnx(model: ModelPath, scratch: Path) -> Source:
    path, tokenizer = Path(model.path), model.onnx.tokenizer_path
    task = choose_task(path, task=model.task, tokenizer=tokenizer)
    imported = import_onnx(
        path,
        task=task,
        input_names=model.onnx.input_names or {},
        output_names=model.onnx.output_names or {},
        scratch=scratch,
    )
    facts = imported.runner.facts()
    found = load_tokenizer_and_config(path, task=task, tokenizer=tokenizer, graph=facts)
    encoder = imported.read(longest=found.max_length)
    source = Source(
        **found.described(),
        model=model,
        task=task_for(task, found.config),
        encoder=encoder,
        graph=imported.runner,
        output_names=imported.output_names,
        training={},
    )
    length, notices = min(found.max_length, encoder.limit), (*imported.notices, *found.notices)
    return dataclasses.replace(source, max_length=length, notices=notices)


def _read_float(model: ModelPath, found: Description) -> Source:
    """Read the weights of a checkpoint without quantizers."""
    notices: list[str] = []
    head = found.head
    config = Config(values=found.config.to_dict(), path=f"{found.name}/{CONFIG}")
    with found.reading_weights() as folder:
        stored = Weights(folder)
        encoder = read_encoder(
            merged(head.of_encoder(stored) if head else stored, config, found.adapter, notices),
            config,
            found.graph_task,
            poolings=() if head is None else head.row_poolings,
            steps=found.head_steps,
            token_heads=found.token_heads,
            notices=notices,
        )
    encoder = with_expansion(encoder, config, found.unattended_id)
    notices += check_vocabulary(found.name, found.tokenizer, len(encoder.embeddings.words.rows))
    return _of_checkpoint(
        model, found, dataclasses.replace(encoder, input_names=found.input_names), notices=notices
    )


def _read_stored(model: ModelPath, found: Description) -> Source:
    """Read the weights and the quantizers of a checkpoint, by the classes that trained them."""
    # These load transformers' models.
    from qdqbert.encoders.checkpoint.configuration import quantizer_options_of, recipe_of
    from qdqbert.training.models.quantized import class_for
    from qdqbert.training.models.state import stored_calibration, stored_specs

    checkpoint: Checkpoint = load_described(found, class_for=class_for)
    sited = sited_model(checkpoint.model)
    stored = StoredQuantizers(
        specs=stored_specs(sited),
        calibration=stored_calibration(sited),
        recipe=recipe_of(checkpoint.config),
        options=quantizer_options_of(checkpoint.config) or QuantizerOptions(),
    )
    return _of_checkpoint(
        model, checkpoint, encoder_of(checkpoint), stored=stored if sited.quantizers else None
    )


def _of_checkpoint(
    model: ModelPath,
    found: Description,
    encoder: EncoderModel,
    *,
    stored: StoredQuantizers | None = None,
    notices: Sequence[str] = (),
) -> Source:
    has_labels = isinstance(found.head, GlinerHead) and found.head.has_labels_encoder
    labels = labels_folder(found.name) if has_labels else None
    source = Source(
        **found.described(),
        model=model,
        task=task_of_head(
            task_for(found.task, found.config),
            found.head,
            finder_of(found.name),
            label_vectors(labels),
        ),
        labels=labels,
        encoder=encoder,
        output_names=tuple(output.name for head in encoder.heads for output in head.outputs),
        stored=stored,
        training=read_training(Path(found.name)),
    )
    length = min(found.max_length, encoder.limit)
    return dataclasses.replace(source, max_length=length, notices=(*found.notices, *notices))
