"""Models and files for tests of `run`."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qdqbert
from qdqbert.loading import load
from qdqbert.runtime.model import Model
from qdqbert.runtime.options import RowOptions
from qdqbert.verbs.run import parts, pipeline

WINDOW = 4


@pytest.fixture
def small_windows(monkeypatch) -> None:
    """Make windows and files of 4 rows."""
    for engine, schedule in load._SCHEDULES.items():
        small = dataclasses.replace(schedule, window=WINDOW)
        monkeypatch.setitem(load._SCHEDULES, engine, small)
    monkeypatch.setattr(parts, "FOLDER_ROWS", WINDOW)


@pytest.fixture
def load_once(monkeypatch, small_windows) -> None:
    """Keep models of the test loaded."""

    @functools.cache
    def load(path: str, **options: Any) -> Any:
        return qdqbert.load(path, **options)

    def loaded(options: RowOptions) -> Any:
        return load(
            options.model,
            engine=options.engine or "onnxruntime",
            provider=options.provider,
            kernel=options.kernel,
            target=options.target,
            threads=options.threads or 2,
            batch_invariant=options.batch_invariant,
        )

    monkeypatch.setattr(pipeline, "load_model", loaded)
    monkeypatch.setattr(Model, "close", lambda model: None)


@pytest.fixture
def classifier(quantized, load_once) -> Path:
    return Path(quantized("classifier").directory)


@pytest.fixture
def embedder(quantized, load_once) -> Path:
    return Path(quantized("sentence").directory)


@pytest.fixture
def write_objects(tmp_path) -> Callable[..., Path]:
    """Write rows as lines of JSON."""

    def write(rows: list[Any], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return write


@pytest.fixture
def reviews(write_objects) -> Path:
    """Eleven rows: two whole windows, and three rows of a third."""
    texts = ["the cat", "a dog in the night", "books", "music and the river was good at night"]
    rows = [{"id": index, "text": f"{texts[index % 4]} {index}"} for index in range(11)]
    return Path(write_objects(rows))


@pytest.fixture
def read_objects() -> Callable[[Path], list[Any]]:
    """Read lines of JSON."""
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]
