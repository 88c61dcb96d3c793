"""The format "transformers-js": a model of transformers.js, for browsers and Node.

DIR/onnx/model_quantized.onnx               the graph, which `dtype: "q8"` names
DIR/config.json                             with `transformers.js_config`
DIR/tokenizer.json, tokenizer_config.json   with the folder's limit
DIR/README.md                               the calls that run it

Source: huggingface/transformers.js, `src/utils/dtypes.js` and `src/tokenization_utils.js`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import ModelCardData
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.common.file_names import CARD, CONFIG, TOKENIZER, TOKENIZER_CONFIG
from qdqbert.common.files import write_json
from qdqbert.common.json_files import read_json
from qdqbert.common.storage import Place
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.data.tokenizing.tokenizer_files import set_limits
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.evidence.agreement import Agreement
from qdqbert.integrations.exporting.checks import Item, check_graph
from qdqbert.integrations.exporting.format import Format
from qdqbert.integrations.exporting.source import (
    LAST_HIDDEN_STATE,
    SENTENCE_EMBEDDING,
    TASKS,
    Source,
    pooling_of,
)
from qdqbert.runtime.artifact import weights_of

GRAPH = Path("onnx/model_quantized.onnx")

# How transformers.js names the ways to pool.
_POOLINGS = {"mean": "mean", "cls": "cls"}
# Its tokenizer classes give no token types, except this one and the classes of a few families.
_CLASS_WITH_TYPES = "BertTokenizer"
_FILES = (CONFIG, TOKENIZER, TOKENIZER_CONFIG)
# Browsers load ONNX Runtime's files from a CDN otherwise.
_RUNTIME = 'env.backends.onnx.wasm.wasmPaths = "/onnxruntime-web/";\n'


def _refuse(source: Source) -> None:
    if weights_of(source.graph).exists():
        raise UserInputError(
            f"The graph of {source.name!r} has more than 1.5 GB, and browsers load less.",
            argument="to",
        )
    if source.outputs == (LAST_HIDDEN_STATE,):
        _pooling_of(source)


def _pooling_of(source: Source) -> Mapping[str, Any]:
    """Return the options of a call of transformers.js that makes embeddings."""
    pooling, normalize = pooling_of(source, _POOLINGS, "transformers.js has")
    return {"pooling": pooling, "normalize": normalize}


def _write(source: Source, folder: Path) -> None:
    (folder / GRAPH).parent.mkdir()
    shutil.copyfile(source.graph, folder / GRAPH)
    for name in _FILES:
        shutil.copyfile(source.artifact.directory / name, folder / name)
    set_limits(folder, source.artifact.max_length)
    config = {**source.config, "transformers.js_config": {"dtype": "q8"}}
    write_json(folder / CONFIG, config)
    settings = read_json(folder / TOKENIZER_CONFIG)
    if "token_type_ids" in source.artifact.input_names:
        settings["tokenizer_class"] = _CLASS_WITH_TYPES
    write_json(folder / TOKENIZER_CONFIG, settings)
    (folder / CARD).write_text(_card(source), encoding="utf-8")


def _card(source: Source) -> str:
    task = source.artifact.task
    data = ModelCardData(
        library_name="transformers.js", pipeline_tag=TASK_KINDS[task].hub_tag or task
    )
    notices = "".join(f"- {each}\n" for each in (*source.input_notices, *_notices(source)))
    return (
        f"---\n{data.to_yaml()}\n---\n\n# {source.name}\n\n"
        f"A model in INT8 for transformers.js. Texts are cut at {source.artifact.max_length} "
        f"tokens.\n\n```js\n{_code(source, source.name)}\n```\n\n{notices}\n"
        "## Without the hub\n\n"
        "In a browser, with this folder at `/models/` of your web server, and the folder `dist` of "
        "the npm package `onnxruntime-web` at `/onnxruntime-web/`:\n\n"
        f"```js\n{_code(source, source.name, local=_local('/models/') + _RUNTIME)}\n```\n\n"
        "With Node, `env.localModelPath` is the folder that this folder is in, and `wasmPaths` is "
        "not needed.\n"
    )


def _local(folder: str) -> str:
    """Return lines that load models from a folder, or a path of a web server, only."""
    return (
        f"env.localModelPath = {json.dumps(folder)};\n"
        # Browsers would not.
        "env.allowLocalModels = true;\n"
        "env.allowRemoteModels = false;\n"
    )


def _check(source: Source, folder: Path) -> Sequence[Agreement]:
    """Run the files on ONNX Runtime, as transformers.js does, but for its tokenizer."""
    tokenizer = Tokenizer.from_folder(folder, max_length=source.artifact.max_length)

    def inputs_of(item: Item) -> Mapping[str, NDArray[np.int64]]:
        text = f"{source.prompt}{item}" if isinstance(item, str) else item
        feature = feature_of(tokenizer.encode(text), source.artifact.input_names)
        return {name: each[None].astype(np.int64) for name, each in feature.items()}

    return check_graph(source, folder / GRAPH, inputs_of)


def _usage(source: Source, folder: Place) -> str:
    return _code(source, folder.name, local=_local(str(folder.absolute().parent)))


def _code(source: Source, name: str, *, local: str = "") -> str:
    """Return JavaScript that runs the model.

    `local` are lines that say where folders are.
    """
    task, model = source.artifact.task, json.dumps(name)
    env = "env, " if local else ""
    package = 'from "@huggingface/transformers";\n' + local
    if source.is_embedder and source.outputs == (LAST_HIDDEN_STATE,):
        options = ", ".join(f"{k}: {json.dumps(v)}" for k, v in _pooling_of(source).items())
        texts = json.dumps([source.prompt + text for text in ("A fine film.", "A dull one.")])
        return (
            f"import {{ {env}pipeline }} {package}"
            f'const extract = await pipeline("feature-extraction", {model}, {{ dtype: "q8" }});\n'
            f"const vectors = await extract({texts}, {{ {options} }});"
        )
    # The pipeline applies a softmax to all but multi-label models: 1 for a single output.
    is_number = not source.is_embedder and (source.labels == 1 or source.is_regression)
    if source.is_of_whole_texts and (source.takes_pairs or source.is_embedder or is_number):
        kind = "AutoModel" if source.is_embedder else "AutoModelForSequenceClassification"
        first, second = json.dumps(["A fine film."]), json.dumps(["The film is good."])
        pair = f", text_pair: {second}" if source.takes_pairs else ""
        output = SENTENCE_EMBEDDING if source.is_embedder else "logits"
        is_sigmoid = not source.is_embedder and source.function == "sigmoid"
        scores = "\nconst scores = logits.sigmoid();" if is_sigmoid else ""
        return (
            f"import {{ {env}AutoTokenizer, {kind} }} {package}"
            f"const tokenizer = await AutoTokenizer.from_pretrained({model});\n"
            f'const model = await {kind}.from_pretrained({model}, {{ dtype: "q8" }});\n'
            f"const inputs = tokenizer({first}, {{ padding: true, truncation: true{pair} }});\n"
            f"const {{ {output} }} = await model(inputs);{scores}"
        )
    texts = '["A fine film.", "A dull one."]'
    if not source.is_of_whole_texts:
        question = '"Who sat?", "A cat sat on the mat."'
        texts = question if source.takes_pairs else '["Ada Lovelace lived in London."]'
    return (
        f"import {{ {env}pipeline }} {package}"
        f'const run = await pipeline({json.dumps(task)}, {model}, {{ dtype: "q8" }});\n'
        f"const answers = await run({texts});"
    )


def _notices(source: Source) -> Sequence[str]:
    notices = [
        "transformers.js has a tokenizer of its own, which was not run. It cuts long texts without "
        "the token that ends a text."
    ]
    if not source.is_of_whole_texts:
        notices.append(
            "It reads no windows: what is beyond the first "
            f"{source.artifact.max_length} tokens has no answer."
        )
    if source.prompt:
        notices.append(f"Put the prompt {source.prompt!r} before each text.")
    if source.is_embedder and source.settings.truncate_dim is not None:
        count = source.settings.truncate_dim
        notices.append(f"The folder keeps {count} dimensions. Take the first {count}.")
    return notices


TRANSFORMERS_JS = Format(
    engine="onnxruntime",
    tasks=TASKS,
    default_outputs=LAST_HIDDEN_STATE,
    refuse=_refuse,
    write=_write,
    check=_check,
    usage=_usage,
    notices=_notices,
)
