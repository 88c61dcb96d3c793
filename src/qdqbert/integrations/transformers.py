"""Use a quantized folder in a pipeline of transformers.

    from qdqbert.integrations.transformers import pipeline

    classify = pipeline("./my-classifier-int8", engine="native")
    classify("A fine film.")

It needs torch and transformers. Without them, and for question answering, which transformers 5 has
no pipeline for, use `qdqbert.load`, whose models give the same answers and sort many texts by
length.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.common.choices import EngineName, KernelName
from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.loading.load import load
from qdqbert.runtime.artifact import open_artifact
from qdqbert.runtime.model import Model

if not all(map(importlib.util.find_spec, ("torch", "transformers"))):
    raise MissingExtraError(
        "torch and transformers are not installed. Install them with: "
        "pip install 'qdqbert[quantize]'"
    )

import torch
import transformers
from torch import Tensor
from transformers.utils import ModelOutput

from qdqbert.encoders.checkpoint.tokenizer import load_tokenizer

_PIPELINES = {
    "text-classification": ("text-classification", "zero-shot-classification"),
    "reranking": ("text-classification",),
    "token-classification": ("token-classification",),
    "fill-mask": ("fill-mask",),
    "feature-extraction": ("feature-extraction",),
}
"""Pipelines that can run a task of this package, the usual one first."""


def pipeline(
    path: str | Path,
    task: str | None = None,
    *,
    engine: EngineName | None = None,
    kernel: KernelName | None = None,
    threads: int | None = None,
    **options: Any,
) -> transformers.Pipeline:
    """Return a pipeline of transformers that runs on an engine of `load`.

    Texts that are longer than the model's `max_length` are cut.

    Args:
        path: Folder that `quantize` wrote, or a float checkpoint, for classification of texts or
            tokens, for reranking, for fill-mask or for embeddings; or its name on the hub. Pairs of
            texts are passed as dictionaries with `text` and `text_pair`.
        task: Name of the pipeline. The model's task by default; a classifier of text pairs can also
            be used for "zero-shot-classification".
        engine: Library that runs the graph. By default the fastest one that is installed.
        kernel: Instruction set of the native engine. By default the fastest one.
        threads: Number of threads. By default one for each core.
        options: Options of `transformers.pipeline`, such as `top_k` and `batch_size`.

    Raises:
        UserInputError: transformers has no such pipeline for the model's task.
        CheckpointError: See `qdqbert.load`.

    Example:
        >>> tag = pipeline("./my-tagger-int8", aggregation_strategy="simple")
        >>> tag("Ada lives in London.")
    """
    model = load(path, engine=engine, kernel=kernel, threads=threads)
    fitting = _PIPELINES.get(model.task, ())
    if not fitting:
        model.close()
        raise UserInputError(
            f"`path={str(path)!r}`: transformers has no pipeline for the task {model.task!r}. "
            "Use `qdqbert.load`.",
            argument="path",
        )
    if task is not None and task not in fitting:
        model.close()
        raise UserInputError(
            f"`task={task!r}`: {model.name!r} is a model for {model.task!r}. Pipelines that run "
            f"it: {', '.join(fitting)}.",
            argument="task",
        )
    tokenizer = load_tokenizer(str(model.directory)).tokenizer
    tokenizer.model_max_length = model.max_length
    name = task or fitting[0]
    settings: dict[str, Any] = {}
    if name in ("text-classification", "feature-extraction"):
        # The other pipelines truncate by themselves.
        settings = {"truncation": True}
        if name == "text-classification":
            settings["pipeline_class"] = _TextClassification
    elif name == "fill-mask":
        settings = {"tokenizer_kwargs": {"truncation": True}}
    # `transformers.pipeline` is overloaded for each task.
    make: Any = transformers.pipeline
    made: transformers.Pipeline = make(
        name,
        model=_model_of(model),
        tokenizer=tokenizer,
        device="cpu",
        **{**settings, **options},
    )
    return made


class _TextClassification(transformers.TextClassificationPipeline):  # type: ignore[misc]
    """A pipeline that sorts classes by their logits: scores of large logits are equal."""

    def postprocess(
        self,
        model_outputs: Any,
        function_to_apply: Any = None,
        top_k: int | None = 1,
        _legacy: bool = True,
    ) -> Any:
        """Return the best class, or the `top_k` best classes."""
        scores = super().postprocess(model_outputs, function_to_apply, top_k=None, _legacy=True)
        if _legacy and top_k != 1:
            return scores
        order = model_outputs["logits"][0].argsort(descending=True, stable=True)
        best = [scores[index] for index in order.tolist()]
        return best[0] if _legacy else best[:top_k]


class _EngineModel(transformers.PreTrainedModel):  # type: ignore[misc]
    """A model of transformers whose forward pass runs on an engine."""

    def __init__(self, config: Any, model: Model) -> None:
        super().__init__(config)
        self.engine_model = model

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model of the engine, which is loaded again."""
        return _model_of, (self.engine_model,)

    @property
    def device(self) -> torch.device:
        """Where inputs and outputs are."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Type of the outputs."""
        return torch.float32

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> ModelOutput:
        """Return the outputs of the graph by name, float32."""
        del kwargs
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        given = {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": segments}
        found = self.engine_model.forward({name: each.numpy() for name, each in given.items()})
        return ModelOutput({name: torch.from_numpy(np.array(x)) for name, x in found.items()})


def _model_of(model: Model) -> _EngineModel:
    config = open_artifact(model.directory).load_config()
    # Pipelines compare the name of the class with those that they know.
    names = config.architectures or [_EngineModel.__name__]
    kind = type(names[0], (_EngineModel,), {})
    made: _EngineModel = kind(config, model)
    made.eval()
    return made
