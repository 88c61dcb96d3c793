"""Use a quantized folder in a pipeline of transformers.

    from qdqbert.integrations.transformers import pipeline

    classify = pipeline("./my-classifier-int8", engine="native")
    classify("A fine film.")

It needs torch and transformers. Without them, and for question answering, which transformers 5 has
no pipeline for, use `qdqbert.load`, whose models give the same answers and sort many texts by
length.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.common.errors import UserInputError, naming
from qdqbert.common.extras import require
from qdqbert.common.keywords import unknown
from qdqbert.common.objects import ModelLike
from qdqbert.encoders.task_kinds import ENCODER, TaskName
from qdqbert.loading.load import load
from qdqbert.runtime.artifact import open_artifact
from qdqbert.runtime.model import Model
from qdqbert.tasks.gliclass import JointClassifier

require("A pipeline of transformers", "quantize", "torch", "transformers")

import torch
import transformers
from torch import Tensor
from transformers.utils import ModelOutput

from qdqbert.encoders.checkpoint.tokenizer import check_vocabulary, load_tokenizer


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


# The class of each pipeline, and options that its `_sanitize_parameters` does not name.
_KINDS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "text-classification": (
        _TextClassification,
        ("add_special_tokens", "max_length", "padding", "stride", "truncation"),
    ),
    "zero-shot-classification": (
        transformers.ZeroShotClassificationPipeline,
        ("candidate_labels", "hypothesis_template", "multi_label"),
    ),
    "token-classification": (transformers.TokenClassificationPipeline, ()),
    "fill-mask": (transformers.FillMaskPipeline, ()),
    "feature-extraction": (transformers.FeatureExtractionPipeline, ()),
}
# Pipelines of tasks that have others than the one of their name, the usual one first.
_PIPELINES = {
    "text-classification": ("text-classification", "zero-shot-classification"),
    "reranking": ("text-classification",),
}
# Options of all pipelines.
_EVERY = ("batch_size", "binary_output", "num_workers", "pipeline_class")
_FLOAT32 = ("auto", "float32", "torch.float32")
_OTHER_TYPE = "Outputs are float32. Pass `precision='float'` for a model in float."
# Options of transformers that the engine decides: values that change nothing, all if `None`; and
# what to do instead of others. No code of a checkpoint is run.
_FIXED: Mapping[str, tuple[tuple[str, ...] | None, str]] = {
    "config": ((), "The folder has it. Leave it out."),
    "device_map": (("auto", "cpu", "{'': 'cpu'}"), "Pass `device='cuda'` for a GPU."),
    "dtype": (_FLOAT32, _OTHER_TYPE),
    "framework": (("pt",), "Leave it out."),
    "model_kwargs": (("{}",), "Pass options of `load` as arguments."),
    "return_all_scores": ((), "Pass `top_k=None` for all scores."),
    "revision": (("main",), "Download it with `huggingface_hub.snapshot_download`."),
    "token": ((), "Set the environment variable HF_TOKEN."),
    "torch_dtype": (_FLOAT32, _OTHER_TYPE),
    "trust_remote_code": (None, ""),
    "use_fast": (("True",), "The tokenizer is always a fast one."),
}
_ALIASES: Mapping[str, str] = transformers.pipelines.TASK_ALIASES
_LOAD = tuple(name for name in inspect.signature(load).parameters if name not in ("path", "task"))


def pipeline(
    path: ModelLike | None = None,
    task: str | None = None,
    *,
    model: ModelLike | None = None,
    tokenizer: Any = None,
    device: Any = None,
    **options: Any,
) -> transformers.Pipeline:
    """Return a pipeline of transformers that runs on an engine of `load`.

    Texts that are longer than the model's `max_length` are cut.

    Args:
        path: Folder that `quantize` wrote, or a float checkpoint, for classification of texts or
            tokens, for reranking, for fill-mask or for embeddings; or its name on the hub. Pairs of
            texts are passed as dictionaries with `text` and `text_pair`. With `model`, it is the
            task, as in transformers.
        task: Name of the pipeline, or transformers' other name of it, as "ner". The model's task by
            default; a classifier of text pairs can also be used for "zero-shot-classification", and
            the encoder of a float checkpoint for "feature-extraction".
        model: Another name of `path`.
        tokenizer: Another tokenizer: of transformers, or the folder of one. The model's by default.
        device: As in `load`; -1 is the CPU.
        options: Options of `load`, such as `engine` and `precision`, and of the pipeline in
            transformers, such as `top_k` and `batch_size`.

    Raises:
        UserInputError: transformers has no such pipeline for the model's task, or an option cannot
            be obeyed.
        CheckpointError: See `qdqbert.load`.
        TypeError: There is no such option.

    Example:
        >>> tag = pipeline("./my-tagger-int8", aggregation_strategy="simple")
        >>> tag("Ada lives in London.")
    """
    if model is not None:
        path, task = model, task or (None if path is None else str(path))
    if path is None:
        raise UserInputError("`path` is missing. Pass the folder of a model.", argument="path")
    task = _ALIASES.get(task or "", task)
    given = {"device": device, **options}
    kept = {name: value for name, value in given.items() if not _changes_nothing(name, value)}
    engine_options = {name: kept.pop(name) for name in _LOAD if name in kept}
    # Any other name is a check of the model's own task, below.
    encoder: TaskName | None = ENCODER if task == ENCODER else None
    opened: Model = load(path, task=encoder, **engine_options)
    try:
        return _make(opened, task, tokenizer, kept)
    except BaseException:
        opened.close()
        raise


def _changes_nothing(name: str, value: Any) -> bool:
    """Return whether an option of transformers asks for what is done anyway.

    Raises:
        UserInputError: It asks for something else, and cannot be obeyed.
    """
    if name not in _FIXED:
        return False
    values, advice = _FIXED[name]
    if values is None or value is None or str(value) in values:
        return True
    raise UserInputError(
        f"`{name}={value!r:.100}` cannot be obeyed: the pipeline runs on an engine. {advice}",
        argument=name,
    )


def _make(
    model: Model, task: str | None, given: Any, options: Mapping[str, Any]
) -> transformers.Pipeline:
    fitting = _PIPELINES.get(model.task, (model.task,))
    if fitting[0] not in _KINDS or isinstance(model, JointClassifier):
        raise UserInputError(
            f"`path={model.name!r}`: transformers has no pipeline for the task {model.task!r}. "
            "Use `qdqbert.load`.",
            argument="path",
        )
    if task is not None and task not in fitting:
        raise UserInputError(
            f"`task={task!r}`: {model.name!r} is a model for {model.task!r}. Pipelines that run "
            f"it: {', '.join(fitting)}.",
            argument="task",
        )
    name = task or fitting[0]
    kind, more = _KINDS[name]
    parameters = inspect.signature(kind._sanitize_parameters).parameters.values()
    own = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD][1:]
    known = {*own, *more, *_EVERY, *_FIXED, *_LOAD, "task", "model", "tokenizer"}
    for each in options:
        if each not in known:
            raise unknown(each, "pipeline", sorted(known))
    wrapped = _model_of(model)
    tokenizer = load_tokenizer(str(model.directory)).tokenizer
    if given is not None:
        tokenizer = _given_tokenizer(given, wrapped.config.vocab_size)
    tokenizer.model_max_length = model.max_length
    settings: dict[str, Any] = {}
    if name in ("text-classification", "feature-extraction"):
        # The other pipelines truncate by themselves.
        settings = {"truncation": True}
    elif name == "fill-mask":
        settings = {"tokenizer_kwargs": {"truncation": True}}
    # `transformers.pipeline` is overloaded for each task.
    make: Any = transformers.pipeline
    made: transformers.Pipeline = make(
        name,
        model=wrapped,
        tokenizer=tokenizer,
        device="cpu",
        **{"pipeline_class": kind, **settings, **options},
    )
    return made


def _given_tokenizer(given: Any, rows: int) -> Any:
    """Return the tokenizer that the user passed, after a check that the model has its ids."""
    try:
        is_name = isinstance(given, str | Path)
        tokenizer = load_tokenizer(str(given)).tokenizer if is_name else copy.copy(given)
        with naming("tokenizer"):
            check_vocabulary(str(tokenizer.name_or_path), tokenizer, rows)
    except (OSError, AttributeError) as error:
        raise UserInputError(
            f"`tokenizer={given!r:.100}` is neither a tokenizer of transformers nor a folder with "
            "one. Leave it out for the model's own.",
            argument="tokenizer",
        ) from error
    return tokenizer


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
