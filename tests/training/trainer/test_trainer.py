from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors import SafetensorError
from torch.nn import functional

from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import TrainingError
from qdqbert.tasks.task import Metric
from qdqbert.training.models.calibrate import calibrate
from qdqbert.training.models.prepare import prepare
from qdqbert.training.models.quantized import load_model
from qdqbert.training.models.state import learn_ranges_
from qdqbert.training.trainer.dataset import BucketSampler, TrainingDataset
from qdqbert.training.trainer.distillation import Distillation
from qdqbert.training.trainer.losses import embedding_distance, logits_distance, states_distance
from qdqbert.training.trainer.teacher import Teacher
from qdqbert.training.trainer.trainer import SCORES, TaskTrainer

LENGTHS = torch.tensor([6, 4])
INPUTS = {
    "input_ids": torch.arange(12).reshape(2, 6) + 7,
    "attention_mask": (torch.arange(6) < LENGTHS[:, None]).long(),
}
LABELS = torch.tensor([2, 0])


@pytest.fixture(scope="module")
def classifier(make_model) -> Callable[[int], Any]:
    """Classifiers without dropout, whose weights differ with the seed."""

    def make(seed: int) -> Any:
        model = make_model(
            "bert", transformers.AutoModelForSequenceClassification, num_hidden_layers=1
        )
        model.config.problem_type = "single_label_classification"
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return model

    return make


@pytest.fixture
def trainer_of(tmp_path: Path) -> Callable[..., TaskTrainer]:
    def make(model: Any, **changes: Any) -> TaskTrainer:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "checkpoints"),
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_nan_inf_filter=False,
            max_steps=2,
            per_device_train_batch_size=2,
        )
        usual: dict[str, Any] = {
            "outputs": ("logits",),
            "head": None,
            "is_embedder": False,
            "objective": "labels",
            "teacher": None,
            "score": None,
            "start": None,
            "on_batch": lambda: None,
        }
        return TaskTrainer(model=model, args=arguments, **{**usual, **changes})

    return make


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("hidden", [0.0, 0.5], ids=["logits", "hidden-states-too"])
def test_alpha_mixes_the_loss_of_the_task_and_the_distance(
    classifier, trainer_of, alpha: float, hidden: float
) -> None:
    student, teacher = classifier(0), classifier(1)
    settings = Distillation(temperature=3.0, alpha=alpha, hidden=hidden)
    trainer = trainer_of(student, teacher=Teacher(classifier(1), settings))
    inputs = {**INPUTS, "labels": LABELS % 2}
    found = trainer.compute_loss(student.eval(), inputs)
    with torch.no_grad():
        ours, theirs = (model(**INPUTS, output_hidden_states=True) for model in (student, teacher))
        own = functional.cross_entropy(ours.logits, LABELS % 2)
        far = logits_distance(ours, theirs, INPUTS, ("logits",), temperature=3.0)
        states = states_distance(ours, theirs, INPUTS)
    expected = (1 - alpha) * own + alpha * far + hidden * states
    torch.testing.assert_close(found.detach(), expected)


def test_a_loss_that_is_all_the_teachers_needs_no_labels(classifier, trainer_of) -> None:
    teacher = Teacher(classifier(1), Distillation(alpha=1.0))
    student = classifier(0)
    loss = trainer_of(student, teacher=teacher).compute_loss(student, dict(INPUTS))
    loss.backward()
    assert student.classifier.weight.grad.abs().sum() > 0
    assert all(each.grad is None for each in teacher.model.parameters())
    assert not teacher.model.training


def test_an_embedder_learns_scores_of_pairs_or_the_direction_of_its_teacher(
    make_model, trainer_of
) -> None:
    student, other = (make_model("bert", num_hidden_layers=1) for _ in range(2))
    with torch.no_grad():
        other.encoder.layer[0].output.dense.weight *= 3
    mask = INPUTS["attention_mask"][..., None]

    def vectors(model: Any) -> torch.Tensor:
        states = model(**INPUTS).last_hidden_state
        return (states * mask).sum(1) / mask.sum(1)

    own = trainer_of(student, is_embedder=True, objective="similarity")
    found = own.compute_loss(student, {**INPUTS, "scores": torch.tensor([0.25])})
    first, second = vectors(student)
    expected = (functional.cosine_similarity(first, second, dim=0) - 0.25) ** 2
    torch.testing.assert_close(found, expected)

    led = trainer_of(student, is_embedder=True, teacher=Teacher(other, Distillation()))
    found = led.compute_loss(student, dict(INPUTS))
    torch.testing.assert_close(found, embedding_distance(vectors(student), vectors(other)))


@pytest.mark.parametrize("texts", [2, 3, 5], ids=["pairs", "triplets", "three-negatives"])
def test_pairs_without_scores_give_the_loss_of_sentence_transformers(
    checkpoints, trainer_of, texts
) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    folder = str(checkpoints("sentence"))
    words = ["the", "cat", "sat", "on", "a", "book", "in", "rain", "and", "home", "night"]
    rng = np.random.default_rng(texts)
    columns = [[" ".join(rng.choice(words, size)) for size in (3, 7, 4, 5)] for _ in range(texts)]
    theirs = SentenceTransformer(folder, device="cpu").eval()
    expected = MultipleNegativesRankingLoss(theirs)(
        [theirs.preprocess(each) for each in columns], None
    )
    expected.backward()
    loaded = load_model(folder)
    data = TrainingDataset.__new__(TrainingDataset)
    data.texts = texts
    trainer = trainer_of(
        loaded.model, is_embedder=True, objective="in-batch", head=loaded.head, train_dataset=data
    )
    everything = [text for each in columns for text in each]
    inputs = loaded.tokenizer(everything, padding=True, return_tensors="pt")
    found = trainer.compute_loss(loaded.model.eval(), dict(inputs))
    found.backward()
    # float32 sums of other paddings.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    ours, other = (
        dict(model.named_parameters())["encoder.layer.0.output.dense.weight"].grad
        for model in (loaded.model, theirs[0].auto_model)
    )
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-6)


def test_relevance_gives_the_default_loss_of_cross_encoders(checkpoints, trainer_of) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    folder = str(checkpoints("reranker"))
    pairs = [["the cat", "a cat sat on a book"], ["rain", "night"], ["home", "a home in the rain"]]
    scores = torch.tensor([1.0, 0.0, 0.25])
    theirs = CrossEncoder(folder, device="cpu").eval()
    expected = BinaryCrossEntropyLoss(theirs)(list(zip(*pairs, strict=True)), scores)
    loaded = load_model(folder)
    inputs = dict(loaded.tokenizer(*zip(*pairs, strict=True), padding=True, return_tensors="pt"))
    trainer = trainer_of(loaded.model, objective="relevance")
    found = trainer.compute_loss(loaded.model.eval(), {**inputs, SCORES: scores})
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_evaluation_gives_the_metrics_of_the_task_and_leaves_the_mode(
    classifier, trainer_of
) -> None:
    model = classifier(0).train()
    modes: list[bool] = []

    def score() -> list[Metric]:
        modes.append(model.training)
        return [Metric(name="accuracy", value=50.0, examples=2)]

    trainer = trainer_of(model, score=score)
    assert trainer.evaluate() == {"eval_accuracy": 50.0}
    assert (modes, model.training) == ([False], True)
    assert trainer.state.log_history[-1]["eval_accuracy"] == 50.0
    assert trainer_of(model).evaluate() == {}


def test_the_sampler_has_the_seed_and_the_epoch_of_the_run(classifier, trainer_of) -> None:
    data = TrainingDataset.__new__(TrainingDataset)
    data._items = [[{"input_ids": np.zeros(n)}] for n in (3, 5, 4, 9, 1, 2, 8)]
    data._labels = [{}] * 7
    trainer = trainer_of(classifier(0), train_dataset=data)
    trainer.args.seed = 4
    sampler = trainer._get_train_sampler()
    assert list(sampler) == list(BucketSampler(data.lengths, 2, seed=4))
    trainer.state.epoch = 2.6
    trainer.control = trainer.callback_handler.on_epoch_begin(
        trainer.args, trainer.state, trainer.control
    )
    third = BucketSampler(data.lengths, 2, seed=4)
    third.set_epoch(2)
    assert list(sampler) == list(third)


def test_weight_decay_leaves_learned_ranges_alone(make_model, trainer_of) -> None:
    model = make_model("bert", num_hidden_layers=1)
    prepare(model)
    calibrate(model, [INPUTS])
    trainer = trainer_of(model)
    floats = set(trainer.get_decay_parameter_names(model))
    learn_ranges_(sited_model(model), "learned")
    assert set(trainer.get_decay_parameter_names(model)) == floats
    trainer.args.weight_decay = 0.5
    optimizer = trainer.create_optimizer()
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    ends = {name for name in before if name not in floats and ".clip." in name}
    # Two for each of 14 activations.
    assert len(ends) == 28
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name not in floats), name


def test_a_weight_that_is_not_finite_is_never_saved(classifier, trainer_of) -> None:
    model = classifier(0)
    trainer = trainer_of(model)
    with torch.no_grad():
        model.classifier.bias[1] = float("inf")
    with pytest.raises(
        TrainingError, match=r"weight `classifier.bias` is NaN or infinite at step 0"
    ):
        trainer._save_checkpoint(model, None)
    assert not Path(trainer.args.output_dir, "checkpoint-0").exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
        RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed"),
    ],
    ids=["os", "safetensors", "torch-position", "torch-write"],
)
def test_every_error_of_a_full_disk_names_the_checkpoint_before(
    classifier, trainer_of, monkeypatch, error
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    trainer = trainer_of(classifier(0))
    before = Path(trainer.args.output_dir, "checkpoint-1")
    before.mkdir(parents=True)
    (before / "trainer_state.json").write_text("{}")
    monkeypatch.setattr(transformers.Trainer, "_save_checkpoint", fail)
    with pytest.raises(TrainingError) as caught:
        trainer._save_checkpoint(trainer.model, None)
    message = str(caught.value)
    assert message.startswith("A checkpoint cannot be written (")
    assert message.endswith(
        f"checkpoint is {str(before)!r}. Free disk space, then pass `resume=True` to continue "
        "from it."
    )
    assert caught.value.__cause__ is error


def test_other_errors_of_torch_are_not_reported_as_a_full_disk(
    classifier, trainer_of, monkeypatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(transformers.Trainer, "_save_checkpoint", fail)
    trainer = trainer_of(classifier(0))
    with pytest.raises(RuntimeError, match="mat1"):
        trainer._save_checkpoint(trainer.model, None)
