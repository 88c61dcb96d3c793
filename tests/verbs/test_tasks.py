"""Every task from a float checkpoint to a measured INT8 folder, against plain transformers."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from torch.nn import functional

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.data.rows.data import Columns
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.tasks.registry import TASKS
from qdqbert.tasks.task import Tokenization
from task_files import DOC_STRIDE, HEADS, TAGS, sentence, settings_of

OPTIONS = TaskSettings(doc_stride=DOC_STRIDE)
# Words that SQuAD's metrics ignore.
ARTICLES = ("a", "an", "the")
Expect = Callable[[Any, Any, Path], dict[str, float]]


def examples_of(task: str, path: Path) -> tuple[Any, ...]:
    return TASKS[task].read(str(path), columns=Columns(), max_examples=None).examples


def choice_accuracy(model: Any, tokenizer: Any, path: Path) -> dict[str, float]:
    right = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        texts = [row["context"]] * len(row["endings"]), row["endings"]
        inputs = tokenizer(*texts, padding=True, return_tensors="pt")
        logits = model(**{name: x[None] for name, x in inputs.items()}).logits
        right.append(int(logits.argmax()) == row["label"])
    return {"accuracy": 100 * float(np.mean(right))}


def next_accuracy(model: Any, tokenizer: Any, path: Path) -> dict[str, float]:
    right = []
    for line in path.read_text().splitlines()[1:]:
        first, second, label = line.split("\t")
        logits = model(**tokenizer(first, second, return_tensors="pt")).logits
        right.append(int(logits.argmax()) == int(label))
    return {"accuracy": 100 * float(np.mean(right))}


def causal_perplexity(model: Any, tokenizer: Any, path: Path) -> dict[str, float]:
    losses: list[float] = []
    right: list[bool] = []
    for text in path.read_text().splitlines():
        inputs = tokenizer(text, return_tensors="pt")
        logits, ids = model(**inputs).logits[0, :-1].double(), inputs["input_ids"][0, 1:]
        losses += functional.cross_entropy(logits, ids, reduction="none").tolist()
        right += (logits.argmax(1) == ids).tolist()
    return {"perplexity": float(np.exp(np.mean(losses))), "accuracy": 100 * float(np.mean(right))}


def masked_perplexity(model: Any, tokenizer: Any, path: Path) -> dict[str, float]:
    task = TASKS["fill-mask"]
    names = ("input_ids", "attention_mask", "token_type_ids")
    features = task.encode(
        examples_of("fill-mask", path),
        Tokenization(
            tokenizer=Tokenizer.from_folder(Path(tokenizer.name_or_path), max_length=64),
            input_names=names,
            max_length=64,
            settings=OPTIONS,
        ),
    )
    losses: list[float] = []
    right: list[bool] = []
    for row, label in zip(features.encoded.inputs, task.labels(features, {}), strict=True):
        inputs = {name: torch.from_numpy(row[name])[None].long() for name in names}
        logits, ids = model(**inputs).logits[0].double(), torch.from_numpy(label["labels"])
        masked = ids != -100
        losses += functional.cross_entropy(logits, ids, reduction="none")[masked].tolist()
        right += (logits.argmax(1) == ids)[masked].tolist()
    return {"perplexity": float(np.exp(np.mean(losses))), "accuracy": 100 * float(np.mean(right))}


def answer_scores(model: Any, tokenizer: Any, path: Path) -> dict[str, float]:
    exact, f1 = [], []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        inputs = tokenizer(row["question"], row["context"], return_tensors="pt")
        outputs = model(**inputs)
        offsets = tokenizer(row["question"], row["context"], return_offsets_mapping=True)
        kinds = offsets.sequence_ids(0)
        places = [place for place, kind in enumerate(kinds) if kind == 1]
        first, last = max(
            itertools.combinations_with_replacement(places, 2),
            key=lambda span: float(
                outputs.start_logits[0, span[0]] + outputs.end_logits[0, span[1]]
            ),
        )
        spans = offsets["offset_mapping"]
        texts = row["context"][spans[first][0] : spans[last][1]], row["answers"]["text"][0]
        found, wanted = ([word for word in text.split() if word not in ARTICLES] for text in texts)
        common = sum((collections.Counter(found) & collections.Counter(wanted)).values())
        exact.append(found == wanted)
        f1.append(2 * common / (len(found) + len(wanted)) if common else 0)
    return {"f1": 100 * float(np.mean(f1)), "exact_match": 100 * float(np.mean(exact))}


def tag_accuracy(model: Any, tokenizer: Any, path: Path) -> dict[str, float]:
    right = []
    for block in path.read_text().split("\n\n"):
        words, tags = zip(*(line.split() for line in block.splitlines()), strict=True)
        inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
        tokens = inputs.word_ids(0)
        answers = model(**inputs).logits[0].argmax(dim=1)
        for index, tag in enumerate(tags):
            right.append(int(answers[tokens.index(index)]) == TAGS.index(tag))
    return {"accuracy": 100 * float(np.mean(right))}


SLOW = {"fill-mask", "multiple-choice", "next-sentence-prediction"}

# What plain transformers computes for each task.
EXPECTED: dict[str, Expect] = {
    "fill-mask": masked_perplexity,
    "multiple-choice": choice_accuracy,
    "next-sentence-prediction": next_accuracy,
    "question-answering": answer_scores,
    "token-classification": tag_accuracy,
    "text-generation": causal_perplexity,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """Checkpoint, INT8 folder and data of one task."""

    checkpoint: Path
    directory: Path
    report: Any
    calibration: Path
    dev: Path


@pytest.fixture(scope="module")
def make(save_tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    @functools.cache
    def quantize(task: str) -> Made:
        head, folder = HEADS[task], tmp_path_factory.mktemp(task)
        rng = random.Random(0)
        paths = folder / f"train-{head.file}", folder / f"dev-{head.file}"
        for path, count in zip(paths, (40, 24), strict=True):
            path.write_text(head.write(rng, count))
        auto_class = getattr(transformers, head.auto_class)
        checkpoint = save_tiny(
            folder / "float", "bert", auto_class, num_hidden_layers=1, **head.changes
        )
        report = qdqbert.quantize(
            checkpoint,
            folder / "int8",
            calibration_data=paths[0],
            targets=("onnxruntime",),
            benchmark=False,
            calibration=qdqbert.Calibration(samples=16),
            task_options=qdqbert.TaskOptions(**settings_of(task)),
        )
        return Made(
            checkpoint=checkpoint,
            directory=folder / "int8",
            report=report,
            calibration=paths[0],
            dev=paths[1],
        )

    return quantize


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXPECTED]
)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.usual("question-answering", "text-*")
def test_float_metrics_agree_with_plain_transformers(make, task: str) -> None:
    made = make(task)
    model = getattr(transformers, HEADS[task].auto_class).from_pretrained(made.checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(made.checkpoint)
    with torch.inference_mode():
        expected = EXPECTED[task](model, tokenizer, made.dev)
    report = qdqbert.evaluate(
        made.checkpoint,
        made.dev,
        batch_size=5,
        task_options=qdqbert.TaskOptions(**settings_of(task)),
    )
    assert (report.task, report.engine, report.examples) == (task, "pytorch", 24)
    found = {each.name: each.value for each in report.metrics if each.name in expected}
    # Padding changes the order of float32 sums, and log-probabilities are kept in float32.
    assert found == pytest.approx(expected, rel=1e-4)


def test_int8_folder_is_near_its_checkpoint(make, task: str) -> None:
    made = make(task)
    report = qdqbert.evaluate(made.directory, made.dev, reference=made.checkpoint)
    # 8 bits give 25 to 40 dB on these; a wrong scale, mask or output falls below 15.
    assert report.fidelity.sqnr_db > 20
    assert report.fidelity.flips_percent < 25
    assert report.engine == "onnxruntime"


def test_folder_agrees_with_the_fake_quantized_model_layer_by_layer(make, task: str) -> None:
    made = make(task)
    (target,) = made.report.targets
    assert made.report.task == task
    assert target.lowering.is_exact
    # On the rest of the calibration file.
    assert target.fidelity.sqnr_db > 20
    assert target.fidelity.texts == 24


def test_the_code_of_the_model_card_runs(make, task: str, monkeypatch, capsys) -> None:
    made = make(task)
    card = (made.directory / "README.md").read_text()
    found = re.findall(r"```\n.*?\n\n(import .*?)\n\n.*?```", card, flags=re.DOTALL)
    if task == "text-generation":
        # `load` does not run it.
        assert not found
        return
    (code,) = found
    monkeypatch.chdir(made.directory.parent)
    exec(code, {})
    assert capsys.readouterr().out.strip()
    assert "pip install 'qdqbert[serve]'\n" in card


# What counts is `Example.content`, which these two tasks make of several columns.
@pytest.mark.parametrize("task", ["multiple-choice", "question-answering"])
def test_examples_that_were_calibrated_on_are_refused(make, task: str) -> None:
    made = make(task)
    with pytest.raises(UserInputError, match="16 of 40 examples"):
        qdqbert.evaluate(made.directory, made.calibration)
    report = qdqbert.evaluate(made.directory, made.calibration, allow_leakage=True)
    assert report.leaked_examples == 16


def test_any_number_of_choices_runs(make, write_file) -> None:
    made = make("multiple-choice")
    rng = random.Random(1)
    rows = [
        {"context": sentence(rng), "endings": [sentence(rng) for _ in range(4)], "label": 0}
        for _ in range(16)
    ]
    data = write_file("four.jsonl", "\n".join(map(json.dumps, rows)))
    report = qdqbert.evaluate(made.directory, data, reference=made.checkpoint)
    assert report.fidelity.sqnr_db > 20


def test_fill_mask_stores_output_weights_in_the_codes_of_the_embeddings(make) -> None:
    graph = onnx.load(make("fill-mask").directory / "model.onnx").graph
    tables = {each.name: each.data_type for each in graph.initializer if each.dims == [1024, 32]}
    # The codes, and 8 more bits of each weight for the output.
    assert list(tables.values()) == [onnx.TensorProto.INT8] * 2
