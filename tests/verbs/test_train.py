"""Training of every head, in float and with quantizers; what stops it, and how it goes on."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional

import qdqbert
from qdqbert.calibration.ranges_file import read_ranges
from qdqbert.checkpoint.sentence import read_sentence_head
from qdqbert.errors import (
    CheckpointError,
    MissingExtraError,
    TrainingError,
    UserInputError,
)
from qdqbert.insert.sited import sited_model
from qdqbert.models.loading import load_model
from qdqbert.models.state import fix_ranges_
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, fingerprint
from qdqbert.tasks.task import Metric, TaskOptions
from qdqbert.training.checkpoints import last_checkpoint
from qdqbert.training.curves import plot_curves
from qdqbert.training.distillation import Distillation
from qdqbert.training.trainer import TaskTrainer
from qdqbert.verbs import evaluate as evaluate_module
from qdqbert.verbs import train as train_module
from qdqbert.verbs.train import set_dropout_

WORDS = ("the", "cat", "dog", "on", "a", "river", "in", "rain", "home", "night", "music", "was")
SENTIMENT = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
TAGS = ("O", "B-PER", "I-PER")
OPTIONS = TaskOptions(doc_stride=16)  # the usual 128 are more than these models take
QUICK = {"batch_size": 4, "learning_rate": 1e-3, "epochs": 1.0, "calibration_samples": 8}


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))


def plain(rng: random.Random, count: int) -> str:
    return "\n".join(sentence(rng) for _ in range(count))


def labelled(rng: random.Random, count: int) -> str:
    rows = [f"{sentence(rng)}\t{('bad', 'good')[index % 2]}" for index in range(count)]
    return "\n".join(["text\tlabel", *rows])


def pairs(rng: random.Random, count: int) -> str:
    rows = [f"{sentence(rng)}\t{sentence(rng)}\t{index % 2}" for index in range(count)]
    return "\n".join(["sentence1\tsentence2\tlabel", *rows])


def choices(rng: random.Random, count: int) -> str:
    rows = [
        {"context": sentence(rng), "endings": [sentence(rng) for _ in range(3)], "label": index % 3}
        for index in range(count)
    ]
    return "\n".join(map(json.dumps, rows))


def questions(rng: random.Random, count: int) -> str:
    rows = []
    for index in range(count):
        words = sentence(rng).split()
        first = rng.randrange(len(words))
        answer, start = " ".join(words[first : first + 2]), len(" ".join([*words[:first], ""]))
        row = {"id": str(index), "question": sentence(rng), "context": " ".join(words)}
        rows.append({**row, "answers": {"text": [answer], "answer_start": [start]}})
    return "\n".join(map(json.dumps, rows))


def tagged(rng: random.Random, count: int) -> str:
    sentences = [sentence(rng).split() for _ in range(count)]
    return "\n\n".join("\n".join(f"{word} {rng.choice(TAGS)}" for word in s) for s in sentences)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """What saves a head's checkpoint, and its data."""

    auto_class: str
    file: str
    write: Callable[[random.Random, int], str]
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


HEADS = {
    "feature-extraction": Head(auto_class="AutoModel", file="pairs.tsv", write=pairs),
    "text-classification": Head(
        auto_class="AutoModelForSequenceClassification",
        file="texts.tsv",
        write=labelled,
        changes=SENTIMENT,
    ),
    "token-classification": Head(
        auto_class="AutoModelForTokenClassification",
        file="tags.conll",
        write=tagged,
        changes={"id2label": dict(enumerate(TAGS))},
    ),
    "question-answering": Head(
        auto_class="AutoModelForQuestionAnswering", file="squad.jsonl", write=questions
    ),
    "fill-mask": Head(auto_class="AutoModelForMaskedLM", file="texts.txt", write=plain),
    "multiple-choice": Head(
        auto_class="AutoModelForMultipleChoice", file="swag.jsonl", write=choices
    ),
    "next-sentence-prediction": Head(
        auto_class="AutoModelForNextSentencePrediction", file="pairs.tsv", write=pairs
    ),
    "text-generation": Head(
        auto_class="AutoModelForCausalLM",
        file="texts.txt",
        write=plain,
        changes={"is_decoder": True},
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
    """A float checkpoint and its data."""

    checkpoint: Path
    train: Path
    dev: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A folder that training wrote, its report, and what the model in memory said of the data."""

    files: Files
    folder: Path
    report: Any
    rows: Sequence[Any]

    @functools.cached_property
    def record(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "training.json").read_text())
        return content


@pytest.fixture(scope="module")
def files_of(save_tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Files]:
    """A checkpoint of one layer and data, by task; not to be changed."""

    @functools.cache
    def make(task: str) -> Files:
        head, folder, rng = HEADS[task], tmp_path_factory.mktemp(task), random.Random(0)
        paths = folder / f"train-{head.file}", folder / f"dev-{head.file}"
        for path, count in zip(paths, (16, 8), strict=True):
            path.write_text(head.write(rng, count))
        auto_class = getattr(transformers, head.auto_class)
        checkpoint = save_tiny(
            folder / "float", "bert", auto_class, num_hidden_layers=1, **head.changes
        )
        return Files(checkpoint=checkpoint, train=paths[0], dev=paths[1])

    return make


@pytest.fixture(scope="module")
def trained(files_of, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Trained]:
    """Eight steps over all of the data at once, so that each must lessen the loss."""

    @functools.cache
    def make(task: str, qat: bool) -> Trained:
        files, folder = files_of(task), tmp_path_factory.mktemp("trained") / task
        said: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train_module, "predict", recording(train_module.predict, said))
            report = qdqbert.train(
                files.checkpoint,
                folder,
                train_data=files.train,
                eval_data=files.dev,
                task=task,
                qat=qat,
                epochs=8,
                batch_size=16,
                learning_rate=3e-3,
                lr_scheduler="constant",
                warmup=0,
                dropout="off",
                eval_steps=4,
                calibration_samples=8,
                task_options=OPTIONS,
            )
        return Trained(files=files, folder=folder, report=report, rows=said[-1])

    return make


def recording(predict: Callable[..., Any], said: list[Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        said.append(predict(*args, **kwargs))
        return said[-1]

    return run


@pytest.fixture(scope="module", autouse=True)
def run_quickly() -> Iterator[None]:
    """One thread, as models this small only wait for more; and no pictures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "plot_curves", lambda history, path: None)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(params=list(HEADS))
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["float", "qat"])
def qat(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def classifier(files_of) -> Files:
    files: Files = files_of("text-classification")
    return files


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return tensors


def assert_same_weights(first: Path, second: Path) -> None:
    ours, theirs = weights_of(first), weights_of(second)
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert different == []


def left_behind(out: Path) -> list[str]:
    """What a run left beside its data: outputs, checkpoints and half-written folders."""
    return sorted(path.name for path in out.parent.iterdir() if "out" in path.name)


# Every head


def test_each_head_learns_its_data(trained, task: str, qat: bool) -> None:
    made = trained(task, qat)
    losses = [entry["loss"] for entry in made.record["history"] if "loss" in entry]
    assert (made.report.steps, len(losses)) == (8, 8)
    # Seven updates of 3e-3 on 16 examples; QAT's rounding may cost a part of it.
    assert losses[-1] < 0.97 * losses[0]


def test_the_folder_says_what_the_model_in_memory_said(
    trained, task: str, qat: bool, monkeypatch
) -> None:
    made = trained(task, qat)
    said: list[Any] = []
    monkeypatch.setattr(evaluate_module, "predict", recording(evaluate_module.predict, said))
    # Twice the batch of training, as in training: padding changes the last bits of sums.
    report = qdqbert.evaluate(made.folder, made.files.dev, batch_size=32)
    for ours, theirs in zip(said[-1], made.rows, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert report.metrics == made.report.after
    assert report.task == made.report.task == task


def test_quantizers_are_there_in_qat_only_and_come_back_with_their_ranges(
    trained, task: str, qat: bool
) -> None:
    made = trained(task, qat)
    quantizers = sited_model(load_model(str(made.folder)).model).quantizers
    # 20 a layer; a head of language models, a pooler or a classifier has none.
    assert len(quantizers) == made.report.quantizers == (20 if qat else 0)
    assert all(
        each.amax is not None and bool((each.amax > 0).all()) for each in quantizers.values()
    )
    assert all(each.is_enabled and not each.is_learned for each in quantizers.values())


def test_a_run_leaves_a_record_and_no_checkpoints(trained) -> None:
    made = trained("text-classification", True)
    names = {path.name for path in made.folder.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "training.json"}
    assert not Path(f"{made.folder}-checkpoints").exists()
    history = made.record["history"]
    evaluated = {entry["step"]: entry["eval_accuracy"] for entry in history if "eval_f1" in entry}
    assert list(evaluated) == [4, 8]
    assert evaluated[8] == made.report.after[0].value
    assert made.record["report"]["before"][0]["name"] == "accuracy"
    assert made.record["command"].startswith(f"qdqbert train {made.files.checkpoint} --output ")


def test_a_run_leaves_a_picture_where_matplotlib_is_installed(
    classifier, out, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(train_module, "plot_curves", plot_curves)
    run = functools.partial(qdqbert.train, classifier.checkpoint, train_data=classifier.train)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        run(tmp_path / "plain", **QUICK)
    assert not (tmp_path / "plain" / "curves.svg").exists()
    pytest.importorskip("matplotlib")
    run(out, **QUICK)
    root = ElementTree.parse(out / "curves.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_quantize_keeps_the_ranges_that_were_trained_with(trained, out) -> None:
    made = trained("text-classification", True)
    report = qdqbert.quantize(
        made.folder, out, calibration_data=made.files.train, calibration_samples=8, benchmark=False
    )
    assert any("own quantizers" in notice for notice in report.notices)
    model = load_model(str(made.folder)).model
    trained_with = {
        name: float(quantizer.amax)
        for name, quantizer in sited_model(model).quantizers.items()
        if quantizer.amax.dim() == 0
    }
    kept = {
        name: chosen.amax for name, chosen in read_ranges(out / "ranges.safetensors").ranges.items()
    }
    assert kept.keys() == trained_with.keys()
    assert kept == trained_with


@pytest.mark.parametrize("ranges", ["fixed", "learned", "moving"])
def test_ranges_stay_where_calibration_put_them_unless_asked_otherwise(
    classifier, out, ranges: str
) -> None:
    qdqbert.train(
        classifier.checkpoint,
        out,
        train_data=classifier.train,
        qat=True,
        ranges=ranges,
        keep_checkpoints=True,
        **QUICK,
    )
    early, late = (
        sited_model(load_model(str(folder)).model).quantizers
        for folder in (Path(f"{out}-checkpoints") / "checkpoint-3", out)
    )
    changed = {name for name in late if not torch.equal(early[name].amax, late[name].amax)}
    inputs = {name for name in late if "_input_quantizer" in name}
    if ranges == "learned":  # an end that nothing reaches has no gradient
        assert changed
        assert changed <= inputs
    else:
        assert changed == (set(late) if ranges == "moving" else set())


# New heads


def test_a_new_head_takes_its_classes_from_the_data(files_of, classifier, out) -> None:
    base = files_of("feature-extraction").checkpoint
    report = qdqbert.train(
        base, out, train_data=classifier.train, task="text-classification", qat=True, **QUICK
    )
    model = load_model(str(out), task="text-classification").model
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert (report.task, report.quantizers) == ("text-classification", 20)
    assert qdqbert.evaluate(out, classifier.dev).examples == 8


def test_a_new_head_without_classes_is_made_too(files_of, out) -> None:
    files = files_of("question-answering")
    base = files_of("feature-extraction").checkpoint
    options = {**QUICK, "task": "question-answering", "task_options": OPTIONS}
    report = qdqbert.train(base, out, train_data=files.train, eval_data=files.dev, **options)
    assert [each.name for each in report.after] == ["f1", "exact_match"]
    assert qdqbert.evaluate(out, files.dev).task == "question-answering"


def test_a_new_head_that_follows_a_teacher_has_its_classes_in_its_order(
    files_of, classifier, save_tiny, write_file, tmp_path, out
) -> None:
    names = {"id2label": {0: "good", 1: "bad"}, "label2id": {"good": 0, "bad": 1}}
    auto_class = transformers.AutoModelForSequenceClassification
    teacher = save_tiny(tmp_path / "teacher", "bert", auto_class, num_hidden_layers=1, **names)
    qdqbert.train(
        files_of("feature-extraction").checkpoint,
        out,
        train_data=write_file("texts.txt", plain(random.Random(1), 8)),
        task="text-classification",
        distill_from=teacher,
        **QUICK,
    )
    assert load_model(str(out)).model.config.id2label == names["id2label"]


def test_a_folder_of_sentence_transformers_stays_one(
    checkpoints, files_of, out, monkeypatch
) -> None:
    files, said = files_of("feature-extraction"), []
    for module in (train_module, evaluate_module):
        monkeypatch.setattr(module, "predict", recording(module.predict, said))
    options = {**QUICK, "task": "feature-extraction", "train_data": files.train}
    report = qdqbert.train(checkpoints("sentence"), out, eval_data=files.dev, qat=True, **options)
    again = qdqbert.evaluate(out, files.dev, batch_size=8)
    np.testing.assert_array_equal(np.stack(said[-1]), np.stack(said[-2]))
    assert again.metrics == report.after
    # Normalised by the head, to float32's precision.
    np.testing.assert_allclose(np.linalg.norm(np.stack(said[-1]), axis=1), 1, rtol=1e-5)

    def read(folder: Path) -> Any:
        return read_sentence_head(
            lambda name: (folder / name).read_text() if (folder / name).is_file() else None
        )

    assert read(out) == read(checkpoints("sentence")) is not None


# Distillation


def logits_of(folder: Path, texts: Sequence[str]) -> torch.Tensor:
    checkpoint = load_model(str(folder))
    fix_ranges_(sited_model(checkpoint.model))  # as the end of training does
    inputs = checkpoint.tokenizer(list(texts), padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits: torch.Tensor = checkpoint.model(**inputs).logits
    return logits


def test_a_student_comes_near_its_teacher_without_labels(
    classifier, save_tiny, write_file, tmp_path, out
) -> None:
    student = save_tiny(
        tmp_path / "student",
        "bert",
        transformers.AutoModelForSequenceClassification,
        num_hidden_layers=1,
        classifier_dropout=0.5,
        hidden_size=16,
        **SENTIMENT,
    )
    texts = plain(random.Random(3), 24)
    qdqbert.train(
        student,
        out,
        train_data=write_file("texts.txt", texts),
        distill_from=classifier.checkpoint,
        dropout="off",
        **{**QUICK, "epochs": 6, "learning_rate": 5e-3},
    )
    teacher = functional.log_softmax(logits_of(classifier.checkpoint, texts.split("\n")), dim=1)
    before, after = (
        float(
            functional.kl_div(
                functional.log_softmax(logits_of(folder, texts.split("\n")), dim=1),
                teacher,
                log_target=True,
                reduction="batchmean",
            )
        )
        for folder in (student, out)
    )
    assert after < before / 2  # 36 steps with a large rate; a tenth is usual


def test_an_embedder_follows_its_teacher_on_plain_texts(files_of, write_file, out) -> None:
    base = files_of("feature-extraction").checkpoint
    report = qdqbert.train(
        base,
        out,
        train_data=write_file("texts.txt", plain(random.Random(3), 12)),
        task="feature-extraction",
        distill_from=base,
        distillation=Distillation(hidden_weight=0.5),
        qat=True,
        **QUICK,
    )
    assert (report.steps, report.quantizers) == (3, 20)


def test_a_teacher_with_quantizers_is_refused(trained, classifier, out) -> None:
    teacher = trained("text-classification", True).folder
    with pytest.raises(UserInputError, match=r"has quantizers; expected a float checkpoint"):
        qdqbert.train(classifier.checkpoint, out, train_data=classifier.train, distill_from=teacher)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        (
            "bert",
            {"num_labels": 3},
            r"classes of .* are \['LABEL_0', .* those of the student \['bad', 'good'",
        ),
        ("roberta", SENTIMENT, r"The vocabulary of .* differs from the student's"),
    ],
    ids=["classes", "vocabulary"],
)
def test_a_teacher_of_something_else_is_refused(
    classifier, save_tiny, tmp_path, out, model_type, changes, message
) -> None:
    auto_class = transformers.AutoModelForSequenceClassification
    teacher = save_tiny(tmp_path / "teacher", model_type, auto_class, **changes)
    with pytest.raises(UserInputError, match=message):
        qdqbert.train(classifier.checkpoint, out, train_data=classifier.train, distill_from=teacher)
    assert left_behind(out) == []


def test_embeddings_of_another_width_are_refused(files_of, save_tiny, tmp_path, out) -> None:
    files = files_of("feature-extraction")
    wide = save_tiny(tmp_path / "wide", "bert", hidden_size=48)
    with pytest.raises(UserInputError, match="have size 48, the student's 32"):
        qdqbert.train(
            files.checkpoint,
            out,
            train_data=files.train,
            task="feature-extraction",
            distill_from=wide,
        )


def test_states_of_another_width_are_refused_and_nothing_is_left(
    classifier, save_tiny, tmp_path, out
) -> None:
    auto_class = transformers.AutoModelForSequenceClassification
    wide = save_tiny(tmp_path / "wide", "bert", auto_class, hidden_size=48, **SENTIMENT)
    with pytest.raises(
        UserInputError,
        match="`distill_hidden` needs a teacher with the student's 1 layers of hidden size 32",
    ):
        qdqbert.train(
            classifier.checkpoint,
            out,
            train_data=classifier.train,
            distill_from=wide,
            distillation=Distillation(hidden_weight=1.0),
            **QUICK,
        )
    assert left_behind(out) == []


# Runs that stop


class StopError(Exception):
    """Ends a run from within."""


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], None]) -> None:
    """Does something before the given batch, counted from 1, is trained on."""
    whole, seen = TaskTrainer.training_step, iter(range(1, 10**6))

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(seen) == number:
            do()
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(TaskTrainer, "training_step", training_step)


def stop() -> None:
    raise StopError


def stop_at(number: int, run: Callable[[], Any]) -> None:
    """Runs until before the given batch."""
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, number, stop)
        with pytest.raises(StopError):
            run()


# 16 examples: 4 steps an epoch, 8 in all. Saved after 3 and 6, which is in the second epoch.
RESUMED: dict[str, dict[str, Any]] = {
    "float": {},
    "qat-learned-accumulated": {
        "qat": True,
        "ranges": "learned",
        "batch_size": 2,
        "gradient_accumulation": 2,
    },
    "qat-moving": {"qat": True, "ranges": "moving"},
}


@pytest.mark.parametrize("changes", RESUMED.values(), ids=RESUMED)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(classifier, tmp_path, out, changes) -> None:
    options = {**QUICK, "epochs": 2, "eval_steps": 3, **changes}
    run = functools.partial(
        qdqbert.train,
        classifier.checkpoint,
        train_data=classifier.train,
        eval_data=classifier.dev,
        **options,
    )
    whole = run(tmp_path / "whole")
    stop_at(8 * options.get("gradient_accumulation", 1), lambda: run(out))
    assert left_behind(out) == ["out-checkpoints"]
    # What a run leaves that is killed while it saves.
    (tmp_path / "out-checkpoints" / "checkpoint-7").mkdir()
    report = run(out, resume=True)
    assert (report.resumed_at, report.steps, whole.resumed_at) == (6, 8, None)
    assert_same_weights(out, tmp_path / "whole")
    assert (report.before, report.after) == (whole.before, whole.after)
    losses = [
        [entry.get("loss") for entry in json.loads((each / "training.json").read_text())["history"]]
        for each in (out, tmp_path / "whole")
    ]
    # The last entry is of the time that it took.
    assert losses[0][:-1] == losses[1][:-1]
    assert left_behind(out) == ["out"]


KILLED = """
import os, signal
from qdqbert.training.trainer import TaskTrainer
from qdqbert import cli

whole = TaskTrainer.training_step

def training_step(self, *args, **kwargs):
    if self.state.global_step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, *args, **kwargs)

TaskTrainer.training_step = training_step
cli.main()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is POSIX's")
def test_a_run_that_was_killed_goes_on(classifier, tmp_path, out) -> None:
    options: dict[str, Any] = {"epochs": 2.0, "eval_steps": 3, "batch_size": 4, "qat": True}
    words = ["--epochs", "2", "--eval-steps", "3", "--batch-size", "4", "--qat"]
    paths = [classifier.checkpoint, "--train-data", classifier.train, "--output", out]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "train", *map(str, paths), *words],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    run = functools.partial(
        qdqbert.train, classifier.checkpoint, train_data=classifier.train, **options
    )
    assert run(out, resume=True).resumed_at == 6
    run(tmp_path / "whole")
    assert_same_weights(out, tmp_path / "whole")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopped:
    """A run that was stopped after a checkpoint."""

    files: Files
    out: Path

    def run(self, **changes: Any) -> Any:
        options = {**QUICK, "eval_steps": 2, **changes}
        model, data = self.files.checkpoint, self.files.train
        return qdqbert.train(model, self.out, train_data=data, **options)


@pytest.fixture(scope="module")
def stopped(classifier, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    made = Stopped(files=classifier, out=tmp_path_factory.mktemp("stopped") / "out")
    stop_at(4, made.run)
    return made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "holds checkpoints of a run that was interrupted. Pass "),
        ({"resume": True, "seed": 1}, "`seed` was 0 when it began and is 1 now"),
        ({"resume": True, "qat": True}, "`qat` was False when it began and is True now"),
    ],
    ids=["unasked", "seed", "qat"],
)
def test_a_stopped_run_is_taken_up_when_asked_and_with_its_own_settings_only(
    stopped, changes, message
) -> None:
    with pytest.raises(UserInputError, match=message):
        stopped.run(**changes)
    assert last_checkpoint(Path(f"{stopped.out}-checkpoints")).name == "checkpoint-2"


def test_what_is_no_setting_may_change_in_a_run_that_goes_on(stopped, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    shutil.copytree(f"{stopped.out}-checkpoints", tmp_path / "out-checkpoints")
    # The output's name is a setting.
    settings = tmp_path / "out-checkpoints" / "settings.json"
    content = json.loads(settings.read_text()) | {"output": str(tmp_path / "out")}
    settings.write_text(json.dumps(content))
    again = Stopped(files=stopped.files, out=tmp_path / "out")
    report = again.run(resume=True, keep_checkpoints=True, tensorboard=True)
    assert (report.resumed_at, report.steps) == (2, 4)
    assert settings.is_file()


def test_overwrite_starts_a_stopped_run_anew(stopped, tmp_path) -> None:
    shutil.copytree(f"{stopped.out}-checkpoints", tmp_path / "out-checkpoints")
    report = Stopped(files=stopped.files, out=tmp_path / "out").run(overwrite=True)
    assert (report.resumed_at, report.steps) == (None, 4)
    assert not (tmp_path / "out-checkpoints").exists()


# Losses that are not finite, and disks that are full


def test_a_loss_of_nan_ends_the_run_and_names_the_step_and_the_last_good_checkpoint(
    stopped, tmp_path, monkeypatch
) -> None:
    whole = TaskTrainer.compute_loss

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = whole(self, *args, **kwargs)
        return loss * float("nan") if self.state.global_step == 3 else loss

    monkeypatch.setattr(TaskTrainer, "compute_loss", compute_loss)
    out = tmp_path / "out"
    with pytest.raises(TrainingError) as caught:
        Stopped(files=stopped.files, out=out).run(qat=True)
    kept = tmp_path / "out-checkpoints" / "checkpoint-2"
    assert str(caught.value) == (
        f"The loss is nan at step 4. The last good checkpoint is {str(kept)!r}. Start anew with a "
        "lower `--learning-rate`, or other data."
    )
    assert left_behind(out) == ["out-checkpoints"]
    assert len(sited_model(load_model(str(kept)).model).quantizers) == 20


def test_a_rate_that_is_too_high_ends_the_run_and_leaves_nothing(stopped, tmp_path) -> None:
    out = tmp_path / "out"
    with pytest.raises(TrainingError, match=r"(is|are) (nan|NaN).* There is no checkpoint yet\."):
        Stopped(files=stopped.files, out=out).run(learning_rate=1e30, warmup=0.0, eval_steps=4)
    assert left_behind(out) == []


@pytest.fixture
def set_file_limit() -> Iterator[Callable[[int | None], None]]:
    """Lets no file grow beyond so many bytes: writing then fails as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))

    yield set_limit
    set_limit(None)


SMALL = 50_000  # bytes; the weights are 200 kB, all else is less


def test_a_full_disk_keeps_the_checkpoint_before(
    stopped, tmp_path, monkeypatch, set_file_limit
) -> None:
    at_step(monkeypatch, 3, lambda: set_file_limit(SMALL))
    out = tmp_path / "out"
    with pytest.raises(TrainingError, match=r"A checkpoint cannot be written \(.*") as caught:
        Stopped(files=stopped.files, out=out).run()
    kept = tmp_path / "out-checkpoints" / "checkpoint-2"
    assert f"last good checkpoint is {str(kept)!r}. Free disk space" in str(caught.value)
    assert last_checkpoint(kept.parent) == kept
    assert left_behind(out) == ["out-checkpoints"]


def test_a_full_disk_at_the_end_leaves_no_output_and_a_run_to_resume(
    stopped, tmp_path, monkeypatch, set_file_limit
) -> None:
    out = tmp_path / "out"
    run = Stopped(files=stopped.files, out=out).run
    with monkeypatch.context() as patch:
        # Called between the last checkpoint and the writing of the output.
        patch.setattr(train_module, "fix_ranges_", lambda sited: set_file_limit(SMALL))
        with pytest.raises(UserInputError, match=r"out' cannot be written: .* make room"):
            run()
    set_file_limit(None)
    assert left_behind(out) == ["out-checkpoints"]
    last = shutil.copytree(tmp_path / "out-checkpoints" / "checkpoint-4", tmp_path / "last")
    report = run(resume=True)
    assert (report.steps, report.resumed_at) == (4, 4)
    assert_same_weights(out, last)


def test_an_output_that_exists_is_refused_before_anything_is_read(stopped, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    run = Stopped(files=stopped.files, out=tmp_path / "out").run
    with pytest.raises(UserInputError, match="exists"):
        run()
    with pytest.raises(UserInputError, match="no quantized or trained model of ours"):
        run(overwrite=True)


# What is kept, logged and switched off


@pytest.mark.parametrize(
    ("values", "is_error"),
    [((50, 60, 90, 70, 80), False), ((50, 40, 10, 30, 20), True)],
    ids=["accuracy", "perplexity"],
)
def test_keep_best_writes_the_model_that_was_best_on_the_evaluation_data(
    classifier, out, monkeypatch, values, is_error
) -> None:
    script = iter([*values, 0.0])
    monkeypatch.setattr(
        train_module._Scorer,
        "metrics",
        lambda self: [Metric(name="it", value=float(next(script)), examples=8, is_error=is_error)],
    )
    qdqbert.train(
        classifier.checkpoint,
        out,
        train_data=classifier.train,
        eval_data=classifier.dev,
        qat=True,
        ranges="learned",
        keep_best=True,
        keep_checkpoints=True,
        **QUICK,
    )
    # Values are of the start and of steps 1 to 4; the second step was best.
    folder = Path(f"{out}-checkpoints")
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    logits = logits_of(out, WORDS)
    assert torch.equal(logits, logits_of(folder / "checkpoint-2", WORDS))
    assert not torch.equal(logits, logits_of(folder / "checkpoint-4", WORDS))


def test_tensorboard_gets_its_events(classifier, out) -> None:
    pytest.importorskip("tensorboard")
    qdqbert.train(
        classifier.checkpoint, out, train_data=classifier.train, tensorboard=True, **QUICK
    )
    (events,) = out.glob("runs/*/events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()


def test_without_tensorboard_the_error_says_what_to_install(classifier, out, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[tensorboard\]'"):
        qdqbert.train(classifier.checkpoint, out, train_data=classifier.train, tensorboard=True)
    assert left_behind(out) == []


@pytest.mark.parametrize(
    "model_type",
    ["bert", "roberta", "distilbert", "electra", "mpnet", "modernbert", "deberta-v2"],
)
def test_dropout_can_be_switched_off_in_every_family(make_model, model_type: str) -> None:
    rates = {"attention_dropout": 0.3, "mlp_dropout": 0.3, "embedding_dropout": 0.3}
    model = make_model(model_type, **(rates if model_type == "modernbert" else {}))
    inputs = {
        "input_ids": torch.arange(12).reshape(2, 6) + 7,
        "attention_mask": torch.ones(2, 6, dtype=torch.int64),
    }
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        dropped = model.train()(**inputs).last_hidden_state
        set_dropout_(model, 0.0)
        found = model(**inputs).last_hidden_state
    assert not torch.allclose(dropped, expected, atol=1e-3)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dropout", ["off", "keep"])
def test_dropout_is_all_that_other_random_numbers_change(
    classifier, tmp_path, monkeypatch, dropout
) -> None:
    for seed in (1, 2):
        with monkeypatch.context() as patch:
            at_step(patch, 1, functools.partial(torch.manual_seed, seed))
            qdqbert.train(
                classifier.checkpoint,
                tmp_path / str(seed),
                train_data=classifier.train,
                dropout=dropout,
                **QUICK,
            )
    first, second = (weights_of(tmp_path / str(seed)) for seed in (1, 2))
    is_same = all(torch.equal(first[name], second[name]) for name in first)
    assert is_same == (dropout == "off")
    config = load_model(str(tmp_path / "1")).model.config
    assert config.hidden_dropout_prob == 0.1


# Data that overlap, and data that cannot be used


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_data": "train"}, r"All examples of `eval_data=.*` \(16\) are also in `train_"),
        ({"train_data": "odd"}, r"Label 'fine' is not one of the model's: 0 or 'bad'"),
        ({"eval_data": "odd"}, r"Label 'fine' is not one of the model's: 0 or 'bad'"),
        ({"columns": Columns(label="stars")}, "`label_column='stars'` must be a column"),
        ({"eval_data": "other"}, "label"),
        ({"task": "feature-extraction"}, "have one text per row; embeddings are scored on pairs"),
        ({"task": "sentiment"}, "`task='sentiment'` is unknown"),
        ({"resume": True}, r"There is no checkpoint in .*out-checkpoints' to resume"),
    ],
    ids=["train", "label", "eval-label", "column", "columns", "pairs", "task", "resume"],
)
def test_what_does_not_fit_is_refused_before_training_and_leaves_nothing(
    classifier, write_file, out, changes, message
) -> None:
    files = {
        "train": classifier.train,
        "odd": write_file("odd.tsv", labelled(random.Random(5), 12).replace("\tgood", "\tfine", 1)),
        "other": write_file("other.tsv", "sentence\tmood\nthe cat\tgood"),
    }
    given = {"train_data": classifier.train, **changes}
    for name in ("train_data", "eval_data"):
        if name in given:
            given[name] = files.get(given[name], given[name])
    with pytest.raises(UserInputError, match=message):
        qdqbert.train(classifier.checkpoint, out, **given, **QUICK)
    assert left_behind(out) == []


def test_shared_examples_are_told_and_never_calibrated_on(classifier, write_file, out) -> None:
    lines = classifier.train.read_text().split("\n")
    others = labelled(random.Random(9), 4).split("\n")[1:]
    # Spacing and case do not make another example.
    dev = write_file("dev.tsv", "\n".join([*(line.upper() for line in lines[:7]), *others]))
    report = qdqbert.train(
        classifier.checkpoint,
        out,
        train_data=classifier.train,
        eval_data=dev,
        qat=True,
        **{**QUICK, "calibration_samples": 100},
    )
    assert (
        "6 of 10 evaluation examples are also in the training data: the metrics are inflated."
        in report.notices
    )
    record = json.loads((out / "training.json").read_text())
    task = TASKS["text-classification"]
    examples = task.read(str(classifier.train), columns=Columns(), max_examples=None).examples
    allowed = sorted(fingerprint(example) for example in examples[6:])
    assert record["calibration"]["fingerprints"] == allowed


def test_the_data_that_ranges_come_from_are_refused_for_evaluation(trained) -> None:
    made = trained("text-classification", True)
    with pytest.raises(UserInputError, match=r"8 of 16 examples of .* were calibrated on"):
        qdqbert.evaluate(made.folder, made.files.train)
    report = qdqbert.evaluate(made.folder, made.files.train, allow_leakage=True)
    assert report.leaked_examples == 8


@pytest.mark.parametrize("task", [None, "text-classification"], ids=["asked-for", "given"])
def test_a_checkpoint_that_is_not_there_is_refused(classifier, out, task) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        qdqbert.train("./no-such-model", out, train_data=classifier.train, task=task)
    assert left_behind(out) == []


@pytest.mark.parametrize("ranges", ["fixed", "learned"])
def test_every_parameter_that_is_trained_has_a_gradient(
    files_of, task: str, ranges: str, out, monkeypatch
) -> None:
    # Processes that share the work wait for the gradients of all of them.
    whole, missing = TaskTrainer.training_step, []

    def training_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = whole(self, model, *args, **kwargs)
        parameters = model.named_parameters()
        missing.append([name for name, p in parameters if p.requires_grad and p.grad is None])
        return loss

    monkeypatch.setattr(TaskTrainer, "training_step", training_step)
    files = files_of(task)
    options = {**QUICK, "epochs": 0.1, "task": task, "task_options": OPTIONS}
    if ranges == "learned":
        options |= {"qat": True, "ranges": ranges}
    qdqbert.train(files.checkpoint, out, train_data=files.train, **options)
    assert missing == [[]]


# Several processes


def test_two_processes_share_the_work_and_take_the_ranges_of_one(classifier, tmp_path, out) -> None:
    words = ["--epochs", "2", "--batch-size", "4", "--seed", "3", "--calibration-samples", "12"]
    paths = [classifier.checkpoint, "--train-data", classifier.train, "--eval-data", classifier.dev]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            *(sys.executable, *launcher, "-m", "qdqbert", "train", "--qat", "--json"),
            *(*map(str, [*paths, "--output", out]), *words),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["steps"], report["quantizers"]) == (4, 20)  # 2 epochs of 16 by 2 x 4
    assert left_behind(out) == ["out"]
    alone = qdqbert.train(
        classifier.checkpoint,
        tmp_path / "alone",
        train_data=classifier.train,
        eval_data=classifier.dev,
        qat=True,
        epochs=2.0,
        batch_size=4,
        seed=3,
        calibration_samples=12,
    )
    assert alone.steps == 8
    ranges = [
        {
            name: each.amax
            for name, each in sited_model(load_model(str(folder)).model).quantizers.items()
            if "_input_quantizer" in name
        }
        for folder in (out, tmp_path / "alone")
    ]
    assert len(ranges[0]) == 14
    assert all(torch.equal(ranges[0][name], ranges[1][name]) for name in ranges[1])
