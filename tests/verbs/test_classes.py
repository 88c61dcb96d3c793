"""Names and number of classes of a checkpoint: each verb takes transformers', or refuses first."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import flat
import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.common.progress import progress_of
from qdqbert.serving.models import open_models
from qdqbert.serving.options import ServerOptions
from task_files import HEADS

ABSENT: Any = object()
LABELS: dict[str, Any] = {
    "absent": ABSENT,
    "null": None,
    "empty": {},
    "wrong type": ["a", "b"],
    "one": {"0": "a"},
    "two": {"0": "a", "1": "b"},
    "three": {"0": "a", "1": "b", "2": "c"},
    "gap": {"0": "a", "2": "b"},
    "from one": {"1": "a", "2": "b"},
    "doubled": {"0": "a", "1": "a"},
    "numbers": {"0": 7, "1": 8},
}
COUNTS = (ABSENT, None, 1, 2, 3)
IDS = [[5, 9, 12, 7, 20]]
TEXTS = ["the cat sat on the book", "a dog in the rain"]
# transformers' error for heads of another size, and what wrong fields run into.
THEIR_ERRORS = (AssertionError, AttributeError, KeyError, RuntimeError, TypeError, ValueError)
KINDS = {
    "text-classification": ("text-classification", {}),
    "multi-label": ("text-classification", {"problem_type": "multi_label_classification"}),
    "token-classification": ("token-classification", {}),
    "question-answering": ("question-answering", {}),
}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(save_tiny, tmp_path_factory) -> Callable[..., Path]:
    """Checkpoints by kind and rows of the head. Tests change their config.json only."""
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def make(kind: str, rows: int) -> Path:
        task, changes = KINDS[kind]
        auto_class = getattr(transformers, HEADS[task].auto_class)
        sizes = {"num_hidden_layers": 1, "num_labels": rows, **changes}
        return Path(save_tiny(root / f"{kind}-{rows}", "bert", auto_class, **sizes))

    return make


def set_classes(folder: Path, names: Any, count: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    for name in ("id2label", "label2id", "num_labels"):
        values.pop(name, None)
    given = {"id2label": names, "num_labels": count}
    path.write_text(json.dumps(values | {k: v for k, v in given.items() if v is not ABSENT}))


def their_answers(task: str, folder: Path) -> list[Any] | None:
    """Return the answers of transformers' pipeline with all classes; `None` if it has none."""
    try:
        if task == "question-answering":
            model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)
            ids = torch.tensor(IDS)
            found = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))
            return [found.start_logits.detach().numpy(), found.end_logits.detach().numpy()]
        run = transformers.pipeline(task, model=str(folder), device="cpu")
        if task == "text-classification":
            found = [run(text, top_k=None) for text in TEXTS]
            return [{str(each["label"]): each["score"] for each in answer} for answer in found]
        # It names the classes that win: all have to have a name.
        assert {*range(run.model.num_labels)} == set(run.model.config.id2label)
        found = run(TEXTS, ignore_labels=[])
        return [[(each["word"], str(each["entity"])) for each in answer] for answer in found]
    except THEIR_ERRORS:
        return None


def our_answers(task: str, folder: Path) -> list[Any]:
    with qdqbert.load(folder, precision="float") as model:
        if task == "question-answering":
            ids = np.array(IDS)
            types, mask = np.zeros_like(ids), np.ones_like(ids)
            found = model.forward(
                {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
            )
            return [found["start_logits"], found["end_logits"]]
        if task == "text-classification":
            found = [model(text, top_k=None) for text in TEXTS]
            return [{each["label"]: each["score"] for each in answer} for answer in found]
        found = model(TEXTS, ignore_labels=[])
        return [[(each["word"], each["entity"]) for each in answer] for answer in found]


# transformers makes a head without rows, and warns.
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (kind, rows)
        for kind in KINDS
        for rows in (1, 2, 3)
        if kind != "question-answering" or rows == 2
    ],
)
def test_answers_are_those_of_transformers_or_the_config_is_refused(models, kind, rows) -> None:
    task, folder = KINDS[kind][0], models(kind, rows)
    accepted = 0
    for label, names in LABELS.items():
        for count in COUNTS:
            set_classes(folder, names, count)
            expected = their_answers(task, folder)
            if expected is None:
                with pytest.raises(UserInputError, match=r"id2label|num_labels") as caught:
                    our_answers(task, folder)
                assert str(folder / "config.json") in str(caught.value), (label, count)
                continue
            accepted += 1
            found = our_answers(task, folder)
            if task == "token-classification":
                assert found == expected, (label, count)
            else:
                assert found == [pytest.approx(each, abs=1e-5) for each in expected], (label, count)
    assert accepted >= 2


def quantize(folder: Path, data: Path, out: Path) -> None:
    flat.quantize(
        str(folder),
        out,
        calibration_data=str(data),
        targets=("native",),
        benchmark=False,
    )


def serve(folder: Path, data: Path, out: Path) -> None:
    del data, out
    with open_models(ServerOptions(models=[str(folder)]), progress_of(False)):
        pass


def run(folder: Path, data: Path, out: Path) -> None:
    texts = data.with_name("texts.txt")
    texts.write_text("\n".join(TEXTS))
    qdqbert.run(str(folder), str(texts), output=out)


VERBS: dict[str, Callable[[Path, Path, Path], Any]] = {
    "load": lambda folder, data, out: qdqbert.load(folder),
    "run": run,
    "serve": serve,
    "quantize": quantize,
    "evaluate": lambda folder, data, out: flat.evaluate(str(folder), str(data)),
    "evaluate in INT8": lambda folder, data, out: flat.evaluate(
        str(folder), str(data), engine="native"
    ),
    "analyze": lambda folder, data, out: flat.analyze(str(folder), data=str(data)),
    "train": lambda folder, data, out: flat.train(str(folder), out, train_data=str(data)),
    "benchmark": lambda folder, data, out: qdqbert.benchmark(
        [str(folder)], sequences=(4,), batches=(1,), rounds=1, seconds=0.01
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["text-classification", "token-classification"])
@pytest.mark.parametrize(
    ("label", "count"),
    [("gap", ABSENT), ("from one", 2), ("one", ABSENT), ("two", 3), ("three", 3)],
)
def test_each_verb_refuses_classes_of_another_head(
    models, tmp_path, kind, label, count, verb
) -> None:
    folder, head = models(kind, 2), HEADS[KINDS[kind][0]]
    data = tmp_path / head.file
    data.write_text(head.write(random.Random(0), 8))
    set_classes(folder, LABELS[label], count)
    with pytest.raises(UserInputError) as caught:
        VERBS[verb](folder, data, tmp_path / "out.jsonl")
    assert "Weight `classifier" in str(caught.value) or "config.json" in str(caught.value)
    assert "qdqbert/models" not in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()
