"""Errors about files of a model of the hub name the model, and not the hub's cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from safetensors.numpy import load, save

from hub_server import Repository, running_hub
from python_process import run_python

Arrays = dict[str, np.ndarray]
WEIGHTS = "model.safetensors"


def with_arrays(change: Callable[[Arrays], object]) -> Callable[[bytes], Mapping[str, bytes]]:
    def damage(content: bytes) -> Mapping[str, bytes]:
        arrays = load(content)
        change(arrays)
        return {WEIGHTS: save(arrays)}

    return damage


def table_of(arrays: Arrays) -> str:
    return next(name for name in arrays if name.endswith("word_embeddings.weight"))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
KINDS: Mapping[str, Callable[[bytes], Mapping[str, bytes]]] = {
    "truncated": lambda content: {WEIGHTS: content[:-100]},
    "empty": lambda content: {WEIGHTS: b""},
    "pointer": lambda content: {WEIGHTS: POINTER},
    "no-header": lambda content: {WEIGHTS: b"\xff" * 64},
    "missing-tensor": with_arrays(lambda arrays: arrays.pop(table_of(arrays))),
    "wrong-shape": with_arrays(
        lambda arrays: arrays.update({table_of(arrays): np.zeros((3, 5), np.float32)})
    ),
    "missing-shard": lambda content: {
        f"{WEIGHTS}.index.json": json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode()
    },
    "damaged-index": lambda content: {f"{WEIGHTS}.index.json": b"{"},
    "damaged-tokenizer": lambda content: {"tokenizer.json": b"{"},
    "torch-file": lambda content: {"pytorch_model.bin": b"PK\x03\x04damaged"},
}
CALLS = """
import sys, json, qdqbert
for name in sys.argv[2:]:
    for call in (qdqbert.load, qdqbert.quantize):
        try:
            call(name, **({"output": sys.argv[1]} if call is qdqbert.quantize else {}))
        except qdqbert.QdqBertError as error:
            print(json.dumps([name, call.__name__, str(error)]))
        else:
            print(json.dumps([name, call.__name__, "no error"]))
"""


@pytest.mark.slow
def test_errors_name_the_model_of_the_hub_and_its_file(checkpoints, quantized, tmp_path) -> None:
    folder = checkpoints("classifier")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    content = files.pop(WEIGHTS)
    made = quantized("classifier").directory
    of_quantize = {
        path.relative_to(made).as_posix(): path.read_bytes()
        for path in made.rglob("*")
        if path.is_file()
    }
    damaged = [name for name in of_quantize if name.endswith((".onnx", "tokenizer.json"))]
    with running_hub() as hub:
        for name in damaged:
            stored = {**of_quantize, name: of_quantize[name][:-100]}
            hub.repositories[f"someone/quantized-{name.replace('/', '-')}"] = Repository(
                private=False, files=stored
            )
        for kind, damage in KINDS.items():
            stored = {**files, **damage(content)}
            hub.repositories[f"someone/{kind}"] = Repository(private=False, files=stored)
        words = ["-c", CALLS, tmp_path / "int8", *hub.repositories]
        printed = run_python(*words, env=hub.environment(tmp_path / "home"))
    answers = [json.loads(line) for line in printed.splitlines()]
    assert len(answers) == 2 * (len(KINDS) + len(damaged)) >= 2 * len(KINDS) + 4
    for name, verb, message in answers:
        assert name in message, (verb, message)
        assert str(tmp_path) not in message, (verb, message)
        assert "snapshots" not in message, (verb, message)
