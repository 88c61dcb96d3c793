"""Every command in a process of its own, on a folder that the QDQBERT classes saved."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import qdqbert
from conftest import ID2LABEL, TEXTS
from python_process import run_python
from qdqbert.encoders.checkpoint.tokenizer import load_tokenizer

TEST = "--calibration-data texts.txt --no-benchmark --target native --output out"
COMMANDS = {
    "quantize": f"quantize my-qdqbert {TEST}",
    "analyze": "analyze my-qdqbert --calibration-data texts.txt",
    "evaluate": "evaluate my-qdqbert --data labeled.csv --reference my-float",
    "run": "run my-qdqbert --input texts.txt --output out.jsonl",
    "train": "train my-qdqbert --output out --train-data labeled.csv --qat --epochs 0.1",
    "benchmark": "benchmark my-qdqbert --rounds 1 --seconds 0.01",
}


@pytest.fixture(scope="module")
def user_files(checkpoints, tmp_path_factory) -> Path:
    root = Path(tmp_path_factory.mktemp("user"))
    shutil.copytree(checkpoints("classifier"), root / "my-float")
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(root / "my-float")
    tokenizer = load_tokenizer(str(root / "my-float")).tokenizer
    qdqbert.calibrate(model, [tokenizer(list(TEXTS[:8]), padding=True, return_tensors="pt")])
    model.save_pretrained(root / "my-qdqbert")
    tokenizer.save_pretrained(root / "my-qdqbert")
    (root / "texts.txt").write_text("\n".join(TEXTS))
    rng = random.Random(0)
    rows = [f"{text},{rng.choice(list(ID2LABEL.values()))}" for text in TEXTS]
    (root / "labeled.csv").write_text("\n".join(["text,label", *rows]))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reads_a_folder_of_the_qdqbert_classes(user_files, tmp_path, command) -> None:
    folder = shutil.copytree(user_files, tmp_path / "user")
    run_python("-m", "qdqbert", *COMMANDS[command].split(), cwd=folder)
