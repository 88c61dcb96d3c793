"""transformers' Trainer with a teacher, the metrics of a task, and a check for finite losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn

from qdqbert.calibration.quantizers.clip import Clip
from qdqbert.common.errors import TrainingError
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.tasks.task import Metric
from qdqbert.training.trainer.checkpoints import last_checkpoint
from qdqbert.training.trainer.dataset import BucketSampler, TrainingDataset
from qdqbert.training.trainer.distillation import Distillation
from qdqbert.training.trainer.losses import (
    Objective,
    embed,
    embedding_distance,
    in_batch_loss,
    logits_distance,
    relevance_loss,
    similarity_loss,
    states_distance,
)
from qdqbert.training.trainer.teacher import Teacher

SCORES = "scores"
"""The label of an example that is a score, which models of transformers do not read."""


class TaskTrainer(transformers.Trainer):  # type: ignore[misc]
    """Trains a model for any task, with or without a teacher."""

    def __init__(
        self,
        *args: Any,
        outputs: tuple[str, ...],
        head: SentenceHead | None,
        is_embedder: bool,
        objective: Objective,
        teacher: Teacher | None,
        score: Callable[[], list[Metric]] | None,
        start: Metric | None,
        on_batch: Callable[[], None],
        **kwargs: Any,
    ) -> None:
        """Create a Trainer.

        `objective` is what the model learns besides the distance to its teacher, `score` returns
        the metrics of the current model, and `start` is the one that a better model has to exceed,
        if the best one is kept. `on_batch` is called after each batch. The rest is for
        transformers.
        """
        self.sampler: BucketSampler | None = None
        self._outputs, self._head, self._is_embedder = outputs, head, is_embedder
        self._objective = objective
        self._teacher, self._score, self._on_batch = teacher, score, on_batch
        self._start = start
        super().__init__(*args, **kwargs)
        self.add_callback(_Begin(self))
        # Gradient accumulation has to average over batches, because these losses are means.
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the task's loss, the distance to the teacher, or their weighted sum, `()`."""
        del num_items_in_batch
        inputs = dict(inputs)
        scores = inputs.pop(SCORES, None)
        settings = self._teacher.settings if self._teacher else Distillation(alpha=0.0)
        hidden = settings.hidden > 0
        outputs = model(**inputs, output_hidden_states=hidden)
        loss: Tensor | float = 0.0
        if settings.alpha < 1:
            loss = (1 - settings.alpha) * self._own_loss(outputs, inputs, scores)
        if self._teacher is not None:
            theirs = self._teacher.outputs(inputs, hidden=hidden)
            loss = loss + settings.alpha * self._distance(outputs, theirs, inputs)
            if hidden:
                loss = loss + settings.hidden * states_distance(outputs, theirs, inputs)
        return (loss, outputs) if return_outputs else loss

    def _own_loss(
        self, outputs: Any, inputs: Mapping[str, Tensor], scores: Tensor | None
    ) -> Tensor:
        if self._objective == "labels":
            loss: Tensor = outputs["loss"]
            return loss
        if self._objective == "in-batch":
            data = self.train_dataset
            assert isinstance(data, TrainingDataset)
            return in_batch_loss(embed(outputs, inputs, self._head), data.texts)
        assert scores is not None, "checked when the data were read"
        if self._objective == "relevance":
            return relevance_loss(outputs["logits"], scores)
        return similarity_loss(embed(outputs, inputs, self._head), scores)

    def _distance(self, outputs: Any, theirs: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        assert self._teacher is not None
        if self._is_embedder:
            vectors = (embed(each, inputs, self._head) for each in (outputs, theirs))
            return embedding_distance(*vectors)
        temperature = self._teacher.settings.temperature
        problem = getattr(self._teacher.model.config, "problem_type", None)
        return logits_distance(
            outputs, theirs, inputs, self._outputs, temperature=temperature, problem=problem
        )

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Train on a batch and return the loss; see transformers.

        Raises:
            TrainingError: The loss is NaN or infinite.
        """
        loss: Tensor = super().training_step(*args, **kwargs)
        if not bool(torch.isfinite(loss)):
            self._fail(f"The loss is {float(loss)} at step {self.state.global_step + 1}")
        self._on_batch()
        return loss

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the parameters with weight decay; see transformers.

        Learned ranges are left out: decay towards zero would clip all values.
        """
        ranges = {
            f"{path}.{name}"
            for path, module in model.named_modules()
            if isinstance(module, Clip)
            for name, _ in module.named_parameters()
        }
        return [name for name in super().get_decay_parameter_names(model) if name not in ranges]

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Return the metrics of the task over all evaluation data."""
        del args, kwargs
        if self._score is None:
            return {}
        training = self.model.training
        self.model.eval()
        metrics = {f"{metric_key_prefix}_{each.name}": each.value for each in self._score()}
        self.model.train(training)
        self.log(dict(metrics))
        self.control: Any = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _get_train_sampler(self, train_dataset: Any = None) -> BucketSampler:
        data = train_dataset or self.train_dataset
        assert isinstance(data, TrainingDataset)
        self.sampler = BucketSampler(data.lengths, self.args.train_batch_size, seed=self.args.seed)
        return self.sampler

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        broken = [n for n, p in self.model.state_dict().items() if not bool(p.isfinite().all())]
        if broken:
            step = self.state.global_step
            self._fail(f"The weight `{broken[0]}` is NaN or infinite at step {step}")
        self._write(super()._save_checkpoint, *args, **kwargs)

    def save_start(self) -> None:
        """Save the model before training as the best one so far, if the best one is kept."""
        if self._start is None or self.state.best_metric is not None:
            return
        folder = str(Path(self.args.output_dir) / "checkpoint-0")
        self._write(self.save_model, folder)
        self.state.best_metric, self.state.best_global_step = self._start.value, 0
        self.state.best_model_checkpoint = folder

    def _write(self, write: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            write(*args, **kwargs)
        except (OSError, SafetensorError, RuntimeError) as error:
            # torch.save raises a `RuntimeError` if the disk is full.
            if isinstance(error, RuntimeError) and not _is_write_error(error):
                raise
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            self._fail(f"A checkpoint cannot be written ({reason})", error)

    def _fail(self, what: str, cause: Exception | None = None) -> None:
        last = last_checkpoint(Path(self.args.output_dir))
        kept = (
            "There is no checkpoint yet."
            if last is None
            else f"The last good checkpoint is {str(last)!r}."
        )
        # Resuming with the same settings would fail at the same step.
        hint = "Start again with a lower `learning_rate`, or other data."
        if cause is not None:
            hint = "Free disk space" + (
                "." if last is None else ", then pass `resume=True` to continue from it."
            )
        raise TrainingError(f"{what}. {kept} {hint}") from cause


class _Begin(transformers.TrainerCallback):  # type: ignore[misc]
    """Saves the model at the begin of a run, and sets the epoch of the sampler.

    transformers and accelerate do so too, but not through all of their wrappers of samplers: not
    if several processes resume in the middle of an epoch.
    """

    def __init__(self, trainer: TaskTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        self._trainer.save_start()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control, kwargs
        if self._trainer.sampler is not None:
            self._trainer.sampler.set_epoch(int(state.epoch or 0))


def _is_write_error(error: RuntimeError) -> bool:
    words = str(error).lower()
    return any(word in words for word in ("write", "space", "iostream", "inline_container"))
