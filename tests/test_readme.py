"""What the README shows works as it stands: its Python, its command lines, the options it names."""

from __future__ import annotations

import functools
import importlib.util
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import typer
from typer.testing import CliRunner

import qdqbert
import qdqbert.compat
from qdqbert.cli import app

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    shlex.split(line.replace("\\\n", " "))[1:]
    for line in re.findall(r"^    (qdqbert (?:.*\\\n)*.*)$", README, re.MULTILINE)
]
WORDS = ("good", "great", "last", "little", "river", "night", "music", "was", "the", "house")
# Added to the README's command lines, so that each takes a moment.
CHEAP = {
    "quantize": ("--no-benchmark", "--calibration-samples", "24"),
    "train": ("--calibration-samples", "24"),
    "benchmark": ("--rounds", "1", "--engine", "onnxruntime"),
    "evaluate": (),
}
FOREIGN = {"--nproc-per-node", "--test"}  # of torchrun, and of a script in benchmarks/


@pytest.fixture
def folder(save_tiny, tmp_path, monkeypatch) -> Path:
    """Where a reader stands: a classifier and its data, under the README's names."""
    labels = ("dull", "fine")
    save_tiny(
        tmp_path / "my-classifier",
        "bert",
        transformers.AutoModelForSequenceClassification,
        max_position_embeddings=128,  # as long as the README's benchmark asks for
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    rng = random.Random(0)
    for name, count in (("train.csv", 400), ("dev.csv", 40)):
        rows = [f"{' '.join(rng.choices(WORDS, k=12))},{rng.choice(labels)}" for _ in range(count)]
        (tmp_path / name).write_text("\n".join(["text,label", *rows]))
    export(tmp_path / "my-classifier", tmp_path / "my-classifier.onnx")
    monkeypatch.chdir(tmp_path)
    return Path(tmp_path)


def export(checkpoint: Path, path: Path) -> None:
    """A graph as any exporter may leave it."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint)
    model.config.return_dict = False
    ids = torch.full((2, 8), 5)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        model.eval(),
        (ids, torch.ones_like(ids), torch.zeros_like(ids)),
        path,
        input_names=names,
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
        opset_version=17,
        dynamo=False,
    )


def test_python_of_the_readme_runs_from_top_to_bottom(folder, monkeypatch) -> None:
    untimed = functools.partial(qdqbert.quantize, benchmark=False)
    monkeypatch.setattr(qdqbert, "quantize", untimed)
    assert len(BLOCKS) == README.count("```python") > 0
    spaces: list[dict[str, Any]] = []
    try:
        for number, block in enumerate(BLOCKS, start=1):
            space: dict[str, Any] = {"__name__": f"block_{number}"}
            exec(compile(block, f"README.md, block {number}", "exec"), space)
            spaces.append(space)
    finally:
        qdqbert.compat.uninstall()
    made = {path.name for path in folder.iterdir() if path.is_dir()}
    assert made == {
        *("my-classifier", "my-classifier-int8", "my-prepared"),
        *("my-qdqbert", "my-qdqbert-int8"),
    }
    (logits,) = (space["logits"] for space in spaces if "logits" in space)
    assert logits.shape == (2, 2)
    (classify,) = (space["classify"] for space in spaces if "classify" in space)
    assert classify("A fine film.")[0]["label"] in ("dull", "fine")
    (quant_nn,) = (space["quant_nn"] for space in spaces if "quant_nn" in space)
    assert quant_nn.TensorQuantizer is qdqbert.TensorQuantizer


def test_command_lines_of_the_readme_run_from_top_to_bottom(folder) -> None:
    pytest.importorskip("accelerate", reason="training needs accelerate")
    assert {command[0] for command in COMMANDS} == set(CHEAP)
    for command in COMMANDS:
        if "--engine" in command:
            engine = command[command.index("--engine") + 1]
            if importlib.util.find_spec(engine) is None:
                continue
        result = CliRunner().invoke(app, [*command, *CHEAP[command[0]]])
        assert result.exit_code == 0, f"qdqbert {shlex.join(command)}\n{result.output}"
    made = {path.name for path in folder.iterdir() if path.is_dir()}
    assert made == {
        *("my-classifier", "my-classifier-int8", "my-graph-int8"),
        *("my-qat", "my-qat-int8"),
    }


def test_every_option_that_the_readme_names_is_one_of_a_verb() -> None:
    verbs: Any = typer.main.get_command(app)
    known = {
        option
        for verb in verbs.commands.values()
        for parameter in verb.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README)) - {"--help"} - FOREIGN
    assert len(named) > 20  # the expression finds them
    assert named <= known
