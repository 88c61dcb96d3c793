"""The format "triton": a model repository of NVIDIA Triton Inference Server.

DIR/NAME/config.pbtxt                       an ensemble: texts in, results out
DIR/NAME_tokenizer/1/model.py               Python backend: texts to ids, with `tokenizers`
DIR/NAME_tokenizer/1/tokenizer.json
DIR/NAME_model/1/model.onnx                 ONNX Runtime backend

The tokenizer is a Python model with the library `tokenizers`: it takes every tokenizer, its ids are
always equal to the library's, and the server needs no other operators.

Source: triton-inference-server/common `protobuf/model_config.proto`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from qdqbert.common.file_names import TOKENIZER
from qdqbert.common.storage import Place
from qdqbert.data.tokenizing.tokenizer_files import set_limits
from qdqbert.evidence.agreement import Agreement
from qdqbert.integrations.exporting import triton_tokenizer
from qdqbert.integrations.exporting.checks import Item, check_graph, check_tokens, open_session
from qdqbert.integrations.exporting.format import Format
from qdqbert.integrations.exporting.source import (
    SENTENCE_EMBEDDING,
    TASKS,
    Source,
    refuse_truncate_dim,
)
from qdqbert.integrations.exporting.triton_tokenizer import OFFSETS
from qdqbert.runtime.artifact import weights_of

MAX_BATCH = 64
"""Most texts of a batch."""

_MULTIPLE = 16
# How long a request waits for others, in microseconds. One batch takes longer than this.
_DELAY = 500
_VERSION = "1"
_OFFSETS_NOTICE = (
    "The output `offsets` has the first character of each token in `{}` and the one after its "
    "last; -1 for other tokens and for padding. Long texts are cut: no windows are read."
)


class Name(str):
    """A word of a text proto that stands without quotes: the name of an enumerator."""


def text_proto(fields: Mapping[str, Any], indent: str = "") -> str:
    """Return a message in protobuf's text format.

    Values are strings, numbers, `Name`, mappings for messages, and lists for repeated fields.
    """
    lines = []
    for name, value in fields.items():
        is_message_list = isinstance(value, list) and value and isinstance(value[0], Mapping)
        for each in value if is_message_list else [value]:
            if isinstance(each, Mapping):
                inner = text_proto(each, indent + "  ")
                lines.append(f"{indent}{name} {{\n{inner}{indent}}}\n")
            else:
                lines.append(f"{indent}{name}: {_scalar(each)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_scalar(each) for each in value)}]"
    if isinstance(value, Name) or not isinstance(value, str):
        return str(value)
    # Bytes as octal numbers, which text format reads in all versions.
    characters = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:03o}"
        for byte in value.encode()
    )
    return f'"{"".join(characters)}"'


def _tensor(name: str, kind: str, *dims: int) -> dict[str, Any]:
    return {"name": name, "data_type": Name(f"TYPE_{kind}"), "dims": list(dims)}


def _results(source: Source) -> list[dict[str, Any]]:
    """Return the outputs, with the sizes that the graph has."""
    session = open_session(source.graph)
    shapes = {value.name: value.shape[1:] for value in session.get_outputs()}
    return [
        _tensor(name, "FP32", *(size if isinstance(size, int) else -1 for size in shapes[name]))
        for name in source.outputs
    ]


def _configs(source: Source) -> dict[str, dict[str, Any]]:
    """Return the content of config.pbtxt of each model, by its name."""
    tokenizer, model = f"{source.name}_tokenizer", f"{source.name}_model"
    texts = [_tensor(name, "STRING", 1) for name in source.text_names]
    ids = [_tensor(name, "INT64", -1) for name in source.artifact.input_names]
    # Clients need to know where tokens stand.
    offsets = [] if source.is_of_whole_texts else [_tensor(OFFSETS, "INT64", -1, 2)]
    results = _results(source)
    batching = {"max_queue_delay_microseconds": _DELAY}
    steps = [(tokenizer, texts, [*ids, *offsets]), (model, ids, results)]
    return {
        source.name: {
            "name": source.name,
            "platform": "ensemble",
            "max_batch_size": MAX_BATCH,
            "input": texts,
            "output": [*results, *offsets],
            "ensemble_scheduling": {
                "step": [
                    {
                        "model_name": name,
                        "model_version": -1,
                        "input_map": [_pair(each["name"]) for each in taken],
                        "output_map": [_pair(each["name"]) for each in made],
                    }
                    for name, taken, made in steps
                ]
            },
        },
        tokenizer: {
            "name": tokenizer,
            "backend": "python",
            "max_batch_size": MAX_BATCH,
            "input": texts,
            "output": [*ids, *offsets],
            "dynamic_batching": {},
            "instance_group": [{"count": 1, "kind": Name("KIND_CPU")}],
            "parameters": [
                {"key": name, "value": {"string_value": value}}
                for name, value in _parameters(source).items()
            ],
        },
        model: {
            "name": model,
            "backend": "onnxruntime",
            "max_batch_size": MAX_BATCH,
            "input": ids,
            "output": results,
            "dynamic_batching": batching,
        },
    }


def _pair(name: str) -> dict[str, str]:
    return {"key": name, "value": name}


def _parameters(source: Source) -> dict[str, str]:
    """Return the parameters of the tokenizer; see `TextTokenizer`."""
    tokenizer = source.tokenizer()
    padding = {name: tokenizer.padding[name] for name in source.artifact.input_names}
    return {
        "max_length": str(source.artifact.max_length),
        "truncation_side": tokenizer.truncation_side,
        "pad_to_multiple_of": str(_MULTIPLE),
        **({"prompt": source.prompt} if source.prompt else {}),
        **({} if source.is_of_whole_texts else {"offsets_of": source.text_names[-1]}),
        **{f"pad_{name}": str(value) for name, value in padding.items()},
    }


def _refuse(source: Source) -> None:
    refuse_truncate_dim(source, "and the graph returns all")


def _write(source: Source, folder: Path) -> None:
    for name, config in _configs(source).items():
        (folder / name / _VERSION).mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text_proto(config), encoding="utf-8")
    # Programs that copy files only would lose an empty folder, which the ensemble needs.
    (folder / source.name / _VERSION / ".keep").touch()
    tokenizer = folder / f"{source.name}_tokenizer" / _VERSION
    shutil.copyfile(triton_tokenizer.__file__, tokenizer / "model.py")
    shutil.copyfile(source.artifact.directory / TOKENIZER, tokenizer / TOKENIZER)
    set_limits(tokenizer, source.artifact.max_length)
    model = folder / f"{source.name}_model" / _VERSION
    shutil.copyfile(source.graph, model / source.graph.name)
    if weights_of(source.graph).exists():
        shutil.copyfile(weights_of(source.graph), model / weights_of(source.graph).name)


def _check(source: Source, folder: Path) -> Sequence[Agreement]:
    """Run both steps as the server does, but for the server."""
    tokenize = triton_tokenizer.TextTokenizer(
        folder / f"{source.name}_tokenizer" / _VERSION, _parameters(source)
    )

    def inputs_of(item: Item) -> dict[str, Any]:
        return dict(tokenize(*([text] for text in ((item,) if isinstance(item, str) else item))))

    def ids(texts: Sequence[Item]) -> list[list[int]]:
        made = [inputs_of(item) for item in texts]
        return [each["input_ids"][0][each["attention_mask"][0] == 1].tolist() for each in made]

    check_tokens(source, ids, converter="The tokenizer for Triton", prompt=source.prompt)
    graph = folder / f"{source.name}_model" / _VERSION / source.graph.name
    names = source.artifact.input_names
    return check_graph(source, graph, lambda item: {k: inputs_of(item)[k] for k in names})


def _usage(source: Source, folder: Place) -> str:
    del source
    return f"tritonserver --model-repository {folder.absolute()}"


def _notices(source: Source) -> Sequence[str]:
    return [
        "The server's Python needs the packages tokenizers and numpy: "
        f"pip install tokenizers=={tokenizers.__version__} numpy",
        *source.states_notices,
        *([] if source.is_of_whole_texts else [_OFFSETS_NOTICE.format(source.text_names[-1])]),
    ]


TRITON = Format(
    engine="onnxruntime",
    tasks=TASKS,
    default_outputs=SENTENCE_EMBEDDING,
    refuse=_refuse,
    write=_write,
    check=_check,
    usage=_usage,
    notices=_notices,
)
