"""OpenVINO's own format, with a tokenizer, for OpenVINO GenAI and OpenVINO Model Server.

DIR/openvino_model.xml, .bin        the graph
DIR/openvino_tokenizer.xml, .bin    a model that turns strings into the inputs of the graph
DIR/config.json                     OpenVINO GenAI reads the type of the model from it
DIR/graph.pbtxt                     how OpenVINO Model Server runs an embedder

Sources: openvinotoolkit/openvino.genai `src/cpp/src/rag`, openvinotoolkit/model_server
`src/graph_export`, openvinotoolkit/openvino_tokenizers `hf_parser.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.tokenizer_files import set_limits
from qdqbert.engines.telemetry import openvino_telemetry_disabled
from qdqbert.integrations.exporting.checks import Item
from qdqbert.integrations.exporting.source import LAST_HIDDEN_STATE, Source
from qdqbert.integrations.exporting.source import pooling_of as pipeline_pooling
from qdqbert.integrations.exporting.tokenizer_file import equivalent_tokenizer

with openvino_telemetry_disabled():
    import openvino
    import openvino_tokenizers

MODEL = "openvino_model.xml"
TOKENIZER = "openvino_tokenizer.xml"

_SERVER_GRAPH = """\
input_stream: "REQUEST_PAYLOAD:input"
output_stream: "RESPONSE_PAYLOAD:output"
node {{
  name: {name}
  calculator: "EmbeddingsCalculatorOV"
  input_side_packet: "EMBEDDINGS_NODE_RESOURCES:embeddings_servable"
  input_stream: "REQUEST_PAYLOAD:input"
  output_stream: "RESPONSE_PAYLOAD:output"
  node_options: {{
    [type.googleapis.com / mediapipe.EmbeddingsCalculatorOVOptions]: {{
      models_path: "./",
      normalize_embeddings: {normalize},
      pooling: {pooling},
      target_device: "CPU"
    }}
  }}
}}
"""


def write_model(source: Source, folder: Path) -> None:
    """Write the graph with the outputs to export. Weights keep their types."""
    model = openvino.Core().read_model(source.graph)
    wanted = []
    for name in source.outputs:
        output = next(each for each in model.outputs if name in each.names)
        # A tensor has several names where a Cast was removed. Pipelines ask for this one.
        output.tensor.set_names({name})
        wanted.append(openvino.opset13.result(output.node.input_value(0)))
    for value in model.inputs:
        names = value.names & set(source.artifact.input_names)
        value.tensor.set_names(names)
    kept = openvino.Model(wanted, model.get_parameters(), source.name)
    for name, result in zip(source.outputs, kept.outputs, strict=True):
        result.tensor.set_names({name})
    openvino.save_model(kept, folder / MODEL, compress_to_fp16=False)


def write_tokenizer(source: Source, folder: Path) -> None:
    """Write the tokenizer as a model that cuts texts to the folder's length.

    Raises:
        UserInputError: OpenVINO Tokenizers cannot convert it.
    """
    import transformers

    original = source.tokenizer()
    names = ("pad", "unk", "cls", "sep", "bos", "eos", "mask")
    special = {f"{name}_token": original.special_token(f"{name}_token") for name in names}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=equivalent_tokenizer(original.backend),
        model_input_names=list(source.artifact.input_names),
        model_max_length=source.artifact.max_length,
        truncation_side=original.truncation_side,
        padding_side="right",
        **{name: token for name, token in special.items() if token is not None},
    )
    try:
        converted = openvino_tokenizers.convert_tokenizer(
            tokenizer, max_length=source.artifact.max_length, truncation=True
        )
        if source.takes_pairs and not source.is_reranker:
            # `TextRerankPipeline` adds the second input itself.
            openvino_tokenizers.tokenizer_transformations.add_second_input(converted)
            for name, value in zip(("text", "text_pair"), converted.inputs, strict=False):
                value.tensor.set_names({name})
    except Exception as error:  # the library raises classes of several packages
        raise UserInputError(
            f"OpenVINO Tokenizers cannot convert the tokenizer of {source.name!r}: {error}",
            argument="to",
        ) from error
    openvino.save_model(converted, folder / TOKENIZER)


def write_settings(source: Source, folder: Path) -> None:
    """Write config.json, the tokenizer's own files, and a server's settings for pooling."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        path = source.artifact.directory / name
        if path.is_file():
            shutil.copyfile(path, folder / name)
    set_limits(folder, source.artifact.max_length)
    if source.outputs == (LAST_HIDDEN_STATE,):
        settings = pooling_of(source)
        text = _SERVER_GRAPH.format(
            name=json.dumps(source.name),
            normalize=str(settings["normalize"]).lower(),
            pooling=settings["pooling_type"],
        )
        (folder / "graph.pbtxt").write_text(text, encoding="utf-8")


def pooling_of(source: Source) -> dict[str, Any]:
    """Return the arguments of `TextEmbeddingPipeline` for the folder's pooling.

    Returns:
        `pooling_type`, "MEAN" or "CLS", and `normalize`.
    """
    known = {"mean": "MEAN", "cls": "CLS"}
    pooling, normalize = pipeline_pooling(source, known, "OpenVINO's pipelines have")
    return {"pooling_type": pooling, "normalize": normalize}


def instructions_of(source: Source) -> dict[str, str]:
    """Return the arguments of `TextEmbeddingPipeline` for the folder's prompts.

    Returns:
        `query_instruction` and `embed_instruction`, those that are needed: the prompts of
        `encode_query` and `encode_document`, else the default prompt.
    """
    prompts, default = source.settings.prompts, source.settings.default_prompt
    found = {
        "query_instruction": prompts.get("query", default),
        "embed_instruction": prompts.get("document", default),
    }
    return {name: text for name, text in found.items() if text}


class CompiledTokenizer:
    """The tokenizer in a folder, as OpenVINO runs it."""

    def __init__(self, folder: Path) -> None:
        core = openvino.Core()
        model = core.read_model(folder / TOKENIZER)
        self._by_texts = {len(model.inputs): core.compile_model(model, "CPU")}
        # The model is unchanged if it takes pairs, or if the tokenizer has no form for them.
        openvino_tokenizers.tokenizer_transformations.add_second_input(model)
        if len(model.inputs) not in self._by_texts:
            self._by_texts[len(model.inputs)] = core.compile_model(model, "CPU")

    def ids(self, items: Sequence[Item]) -> list[list[int]]:
        """Return the ids of each text or pair."""
        return [self.inputs(item)["input_ids"][0].tolist() for item in items]

    def inputs(self, item: Item) -> Mapping[str, Any]:
        """Return the model inputs of a text or pair, each `(1, tokens)`, int64."""
        texts = (item,) if isinstance(item, str) else item
        if len(texts) not in self._by_texts:
            raise UserInputError(
                "OpenVINO Tokenizers has no form of this tokenizer for pairs of texts.",
                argument="to",
            )
        results = self._by_texts[len(texts)]([openvino.Tensor([text]) for text in texts])
        return {output.any_name: value for output, value in results.items()}


def run_model(folder: Path, items: Sequence[Item]) -> dict[str, list[Any]]:
    """Run the graph of a folder on its own tokenizer, each text alone.

    Returns:
        For each output, a result for each item, without the batch dimension.
    """
    tokenize = CompiledTokenizer(folder)
    compiled = openvino.Core().compile_model(folder / MODEL, "CPU")
    names = [value.any_name for value in compiled.inputs]
    found: dict[str, list[Any]] = {output.any_name: [] for output in compiled.outputs}
    for item in items:
        encoded = tokenize.inputs(item)
        results = compiled({name: encoded[name] for name in names})
        for output, value in results.items():
            found[output.any_name].append(np.array(value[0]))
    return found
