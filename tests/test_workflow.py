"""Train tiny models on generated data and compare their scores before and after quantization."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers

import flat
import qdqbert
from task_files import settings_of

FIRST_NAMES = ("cat", "dog", "bread", "tree", "paper")
PLACES = ("river", "school", "room", "city", "house")
SECOND_NAMES = ("year", "night", "book", "part", "head")
PRAISE = ("good", "great", "best", "well", "right", "work", "life", "home", "music", "song")
BLAME = ("last", "under", "down", "little", "against", "without", "old", "left", "never", "rain")
CUES = {"PER": ("by", "with"), "LOC": ("in", "at"), "O": ("was", "not")}
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
ASKED = {"who": FIRST_NAMES, "where": PLACES, "when": SECOND_NAMES, "how": PRAISE, "why": BLAME}
FILLERS = (
    *("the", "a", "of", "and", "to", "is", "he", "for", "it", "as", "his", "on", "be", "this"),
    *("had", "but", "from", "have", "they", "which", "one", "you", "were", "her", "she", "there"),
    *("would", "their", "we", "him", "been", "has", "will", "more", "if", "so", "said", "what"),
)
DEV_EXAMPLES = 400
EXAMPLES = Path(__file__).parent.parent / "examples"


def reviews(rng: random.Random, count: int) -> str:
    """Return texts that are `pos` if they contain more words of praise than of blame."""
    rows = ["text\tlabel"]
    for _ in range(count):
        praise, blame = rng.sample(range(6), 2)
        words = [
            *rng.choices(PRAISE, k=praise),
            *rng.choices(BLAME, k=blame),
            *rng.choices(FILLERS, k=rng.randint(3, 8)),
        ]
        rng.shuffle(words)
        rows.append(f"{' '.join(words)}\t{'pos' if praise > blame else 'neg'}")
    return "\n".join(rows)


def tagged(rng: random.Random, count: int) -> str:
    """Return sentences with names that are entities only after a cue: `by cat year`, `in city`.

    A name has one or two words.
    """
    sentences = []
    for _ in range(count):
        rows = []
        for _ in range(rng.randint(2, 4)):
            kind = rng.choice(tuple(CUES))
            first = {"PER": FIRST_NAMES, "LOC": PLACES, "O": FIRST_NAMES + PLACES}[kind]
            name = [rng.choice(first), *rng.choices(SECOND_NAMES, k=rng.randint(0, 1))]
            tags = ["O" if kind == "O" else f"{place}-{kind}" for place in "BI"]
            outside = [*rng.choices(FILLERS, k=rng.randint(1, 3)), rng.choice(CUES[kind])]
            rows += [f"{word} O" for word in outside]
            rows += [f"{word} {tag}" for word, tag in zip(name, tags, strict=False)]
        sentences.append("\n".join(rows))
    return "\n\n".join(sentences)


def questions(rng: random.Random, count: int) -> str:
    """Return questions in SQuAD's format. The word that asks determines the kind of the answer.

    An answer has one or two words.
    """
    paragraphs = []
    for index in range(count):
        kinds = rng.sample(tuple(ASKED), 3)
        asked, words, answer = rng.choice(kinds), [], {}
        for kind in kinds:
            words += rng.choices(FILLERS, k=rng.randint(1, 4))
            found = rng.choices(ASKED[kind], k=rng.randint(1, 2))
            if kind == asked:
                answer = {"text": " ".join(found), "answer_start": len(" ".join([*words, ""]))}
            words += found
        words += rng.choices(FILLERS, k=rng.randint(0, 3))
        question = {"id": str(index), "question": f"{asked} was it ?", "answers": [answer]}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    return json.dumps({"version": "1.1", "data": [{"title": "made", "paragraphs": paragraphs}]})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A task that a tiny model learns from scratch: its head, data and schedule.

    Attributes:
        least: The trained float model scores above this. An untrained one scores below 60.
    """

    auto_class: str
    file: str
    write: Callable[[random.Random, int], str]
    examples: int
    epochs: float
    learning_rate: float
    layers: int
    least: float
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


WORKS = {
    "text-classification": Work(
        auto_class="AutoModelForSequenceClassification",
        file="reviews.tsv",
        write=reviews,
        examples=2000,
        epochs=4.0,
        learning_rate=1e-3,
        layers=1,
        least=95,
        changes={"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}},
    ),
    "token-classification": Work(
        auto_class="AutoModelForTokenClassification",
        file="names.conll",
        write=tagged,
        examples=2000,
        epochs=4.0,
        learning_rate=2e-3,
        layers=2,
        least=90,
        changes={"id2label": dict(enumerate(TAGS)), "label2id": {t: i for i, t in enumerate(TAGS)}},
    ),
    "question-answering": Work(
        auto_class="AutoModelForQuestionAnswering",
        file="squad.json",
        write=questions,
        examples=3000,
        epochs=3.0,
        learning_rate=2e-3,
        layers=2,
        least=90,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A float checkpoint that was trained on its task, its data, and its score on held-out data."""

    task: str
    folder: Path
    checkpoint: Path
    train: Path
    dev: Path
    score: float

    def evaluate(self, model: Path, **options: Any) -> float:
        """Return the first metric of the task on the held-out data."""
        report = flat.evaluate(model, self.dev, **settings_of(self.task), **options)
        return float(report.metrics[0].value)

    def quantize(self, model: Path, output: Path, *targets: str) -> Path:
        flat.quantize(
            model,
            output,
            calibration_data=self.train,
            eval_data=self.dev,
            calibration_samples=100,
            targets=targets,
            benchmark=False,
            **settings_of(self.task),
        )
        return output

    def train_quantized(self, output: Path, **options: Any) -> Any:
        """Run QAT with the float model as teacher."""
        return flat.train(
            self.checkpoint,
            output,
            train_data=self.train,
            eval_data=self.dev,
            qat=True,
            distill_from=self.checkpoint,
            max_train_examples=1000,
            calibration_samples=100,
            batch_size=32,
            dropout="off",
            # More than there are steps: evaluate once, at the end.
            eval_steps=1000,
            **settings_of(self.task),
            **options,
        )


def learn(task: str, work: Work, folder: Path, save_tiny: Callable[..., Path]) -> Trained:
    rng = random.Random(0)
    train, dev = folder / f"train-{work.file}", folder / f"dev-{work.file}"
    train.write_text(work.write(rng, work.examples))
    dev.write_text(work.write(rng, DEV_EXAMPLES))
    start = save_tiny(
        folder / "start",
        "bert",
        getattr(transformers, work.auto_class),
        num_hidden_layers=work.layers,
        hidden_size=64,
        intermediate_size=128,
        initializer_range=0.1,
        **work.changes,
    )
    checkpoint = folder / "float"
    flat.train(
        start,
        checkpoint,
        train_data=train,
        epochs=work.epochs,
        learning_rate=work.learning_rate,
        batch_size=32,
        dropout="off",
        **settings_of(task),
    )
    made = Trained(task=task, folder=folder, checkpoint=checkpoint, train=train, dev=dev, score=0.0)
    return dataclasses.replace(made, score=made.evaluate(checkpoint))


@pytest.fixture(scope="session")
def trained(save_tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Train a model on its task when it is first requested. Do not change its folder."""
    pytest.importorskip("accelerate", reason="training needs accelerate")

    @functools.cache
    def make(task: str) -> Trained:
        return learn(task, WORKS[task], tmp_path_factory.mktemp(f"learned-{task}"), save_tiny)

    return make


@pytest.fixture(scope="session")
def calibrated(trained) -> Callable[[str], Path]:
    """Quantize these models by PTQ, for both engines."""

    @functools.cache
    def make(task: str) -> Path:
        made = trained(task)
        output = made.folder / "ptq"
        return Path(made.quantize(made.checkpoint, output, "onnxruntime", "openvino"))

    return make


# The other tasks take as long as the first one, and differ from it in their data only.
@pytest.fixture(
    params=[
        "text-classification",
        pytest.param("question-answering", marks=pytest.mark.slow),
        pytest.param("token-classification", marks=pytest.mark.slow),
    ]
)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_model_learns_its_task_from_scratch(trained, task: str) -> None:
    made = trained(task)
    assert made.score > WORKS[task].least
    assert made.evaluate(made.folder / "start") < 60


@pytest.mark.slow
def test_calibration_alone_keeps_the_score_on_each_engine(
    trained, calibrated, task: str, engine: str
) -> None:
    score = trained(task).evaluate(calibrated(task), engine=engine)
    # One point is 4 of 400 texts. With suitable ranges, INT8 changes almost none of them.
    assert score == pytest.approx(trained(task).score, abs=1)


@pytest.mark.slow
def test_the_full_recipe_keeps_the_score_calibrated_trained_and_as_a_graph(
    trained, tmp_path
) -> None:
    # The examples below do the same for the other tasks.
    made = trained("token-classification")
    report = made.train_quantized(tmp_path / "qat", learning_rate=1e-4)
    ptq, qat = (metrics[0].value for metrics in (report.before, report.after))
    assert report.quantizers == 20 * WORKS[made.task].layers + 3
    assert ptq == pytest.approx(made.score, abs=1)
    assert qat == pytest.approx(made.score, abs=1)
    # At a score of almost 100, a step of training can cost two of 400 texts.
    assert qat >= ptq - 0.5
    # One text may be at a tie.
    assert made.evaluate(tmp_path / "qat") == pytest.approx(qat, abs=0.25)
    graph = made.quantize(tmp_path / "qat", tmp_path / "int8", "onnxruntime")
    assert made.evaluate(graph, engine="onnxruntime") == pytest.approx(made.score, abs=1)


@pytest.mark.slow
def test_ranges_that_clip_most_values_ruin_the_score(trained, task: str, tmp_path) -> None:
    made = trained(task)
    auto_class = getattr(transformers, WORKS[task].auto_class)
    model = auto_class.from_pretrained(made.checkpoint)
    tokenizer = transformers.AutoTokenizer.from_pretrained(made.checkpoint)
    batch = tokenizer([" ".join(FILLERS), " ".join(PRAISE + BLAME)], padding=True)
    batches = [{name: torch.tensor(rows) for name, rows in batch.items()}]
    qdqbert.prepare(model, recipe="full")
    for percentile, output in ((100.0, tmp_path / "whole"), (20.0, tmp_path / "fifth")):
        recipe = qdqbert.QuantizerOptions(calibrator="percentile", percentile=percentile)
        qdqbert.calibrate(model, batches, **recipe.to_dict())
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    # The two texts are unlike those of the task, so the ranges fit less well than usual.
    assert made.evaluate(tmp_path / "whole") > made.score - 5
    assert made.evaluate(tmp_path / "fifth") < made.score - 25


@pytest.mark.slow
def test_training_recovers_part_of_what_few_bits_lose(trained, tmp_path) -> None:
    made = trained("question-answering")
    report = made.train_quantized(
        tmp_path / "qat", wprec=2, aprec=4, epochs=1.0, learning_rate=1e-3
    )
    before, after = (metrics[0].value for metrics in (report.before, report.after))
    # 3 values for weights and 15 for activations lose 30 points; 32 steps recover most of them.
    assert before < made.score - 5
    assert after > before + 2


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_example(monkeypatch, capsys) -> Callable[..., str]:
    """Run an example with these arguments, without timing anything, and return its output."""

    def run(name: str, *arguments: object) -> str:
        # The default. An example can still pass `benchmark=True`.
        untimed = functools.partial(qdqbert.quantize, benchmark=False)
        monkeypatch.setattr(qdqbert, "quantize", untimed)
        monkeypatch.setattr("sys.argv", [f"{name}.py", *map(str, arguments)])
        example(name).main()
        return str(capsys.readouterr().out)

    return run


@pytest.mark.slow
def test_the_imdb_example_goes_from_reviews_to_a_graph(trained, run_example, tmp_path) -> None:
    made = trained("text-classification")
    for split, path in (("train", made.train), ("test", made.dev)):
        for index, line in enumerate(path.read_text().splitlines()[1:401]):
            text, label = line.split("\t")
            review = tmp_path / split / label / f"{index}.txt"
            review.parent.mkdir(parents=True, exist_ok=True)
            review.write_text(text)
    output = tmp_path / "imdb"
    folders = ["--train", tmp_path / "train", "--test", tmp_path / "test", "--output", output]
    examples = ["--examples", 320, "--test-examples", 200, "--max-length", 64]
    printed = run_example("imdb", "--model", made.checkpoint, *folders, *examples)
    scores = dict(re.findall(r"^(\w+ on \w+): accuracy ([\d.]+)$", printed, re.MULTILINE))
    with qdqbert.load(output / "int8") as model:
        assert list(scores) == ["fp32 on pytorch", "qat on pytorch", f"onnx on {model.engine}"]
    assert re.search(r"^fp32: accuracy [\d.]+$", printed, re.MULTILINE)
    assert re.search(r"^qat: accuracy [\d.]+ calibrated, [\d.]+ trained$", printed, re.MULTILINE)
    # 2 points are 4 of 200 reviews. The example trains with dropout, unlike the float model.
    assert all(float(score) >= made.score - 2 for score in scores.values())
    config = json.loads((output / "qat" / "config.json").read_text())
    assert config["recipe"] == "qordered"
    assert (output / "int8" / "model.onnx").is_file()


@pytest.mark.slow
def test_the_squad_example_goes_from_a_float_model_to_graphs_and_predictions(
    trained, run_example, tmp_path
) -> None:
    made = trained("question-answering")
    output = tmp_path / "squad"
    printed = run_example(
        "squad",
        *("--float-checkpoint", made.checkpoint, "--train", made.train, "--eval", made.dev),
        *("--output", output, "--stages", "fp32", "ptq", "qat", "onnx"),
        *("--max-length", 64, "--doc-stride", 16, "--qat-epochs", 0.5),
        *("--train-examples", 640, "--eval-examples", 200),
    )
    found = re.findall(r"^(.+) on (\w+): f1 ([\d.]+), exact_match ([\d.]+)$", printed, re.MULTILINE)
    with qdqbert.load(output / "int8") as model:
        engine = model.engine
    assert [(name, engine) for name, engine, _, _ in found] == [
        ("fp32", "pytorch"),
        ("ptq", engine),
        ("qat", "pytorch"),
        ("qat, INT8 graph", engine),
    ]
    answers = {
        each["qas"][0]["id"]: each["qas"][0]["answers"][0]["text"]
        for each in json.loads(made.dev.read_text())["data"][0]["paragraphs"][:200]
    }
    for name, _, f1, exact in found:
        # 1 point is 2 of 200 answers.
        assert float(f1) >= made.score - 1
        folder = output / "predictions" / name.replace(", ", "-").replace(" ", "-")
        predictions = json.loads((folder / "predictions.json").read_text())
        right = [predictions[each].split() == text.split() for each, text in answers.items()]
        # SQuAD ignores articles when it compares answers; these answers have none.
        assert 100 * sum(right) / len(right) == pytest.approx(float(exact), abs=0.01)
    for folder in ("ptq", "int8"):
        assert (output / folder / "onnxruntime" / "model.onnx").is_file()
        assert (output / folder / "openvino" / "model.onnx").is_file()
    assert (output / "qat" / "model.safetensors").is_file()
