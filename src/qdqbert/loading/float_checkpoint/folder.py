"""Write the folder that runs a float checkpoint."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqbert.common.choices import EngineName, Precision
from qdqbert.common.errors import CalibrationError, CheckpointError, GraphError
from qdqbert.common.extras import require
from qdqbert.common.file_names import CONFIG, TOKENIZER, TOKENIZER_CONFIG
from qdqbert.common.files import write_json
from qdqbert.common.input_names import POOLED
from qdqbert.common.machine import usable_cores
from qdqbert.data.tokenizing.pair_template import FILE as PAIR_TEMPLATE
from qdqbert.data.tokenizing.tokenizer_files import (
    TokenizerFile,
    check_end,
    check_rows,
    check_tokens,
    contradictions,
    no_tokenizer,
    read_tokenizer,
    token_text,
    with_named_tokens,
)
from qdqbert.encoders.checkpoint.gliner import LABELS_FOLDER
from qdqbert.encoders.checkpoint.multi_vector import MultiVectorHead
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.encoders.checkpoint.sentence_files import file_finder
from qdqbert.encoders.families import family_of
from qdqbert.encoders.model import EncoderModel, Pooling
from qdqbert.encoders.of_checkpoint import read_encoder, with_expansion
from qdqbert.encoders.quantize import round_encoder
from qdqbert.encoders.stored import read_stored
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.encoders.weights import Weights
from qdqbert.engines.native.packed import write_model
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import Target
from qdqbert.loading.float_checkpoint.source import (
    NO_LIMIT,
    FloatCheckpoint,
    limits_pairs,
    longest_input,
)
from qdqbert.runtime.artifact import QUANTIZATION, QUANTIZATION_FORMAT
from qdqbert.tasks.own_layers import task_of_head
from qdqbert.tasks.registry import TASKS

# Classes of transformers' tokenizers that make token types. Others make none, although
# tokenizer.json may have some.
WITH_TYPES = (
    "Bert",
    "ConvBert",
    "DPRContextEncoder",
    "DPRQuestionEncoder",
    "Deberta",
    "DebertaV2",
    "Electra",
    "LayoutLM",
    "Lxmert",
    "MobileBert",
    "SqueezeBert",
)
# Types of models whose tokenizer is one of these, if their files name none.
_TYPED_MODELS = (
    "bert",
    "deberta",
    "deberta-v2",
    "dpr",
    "electra",
    "ernie",
    "megatron-bert",
    "nomic_bert",
    "qdqbert",
)
# Tokens that classes of tokenizers have without saying so, by their roles.
_USUAL_TOKENS = {
    "cls_token": ("[CLS]", "<s>"),
    "mask_token": ("[MASK]", "<mask>"),
    "pad_token": ("[PAD]", "<pad>"),
    "sep_token": ("[SEP]", "</s>"),
    "unk_token": ("[UNK]", "<unk>"),
}


def read_model(checkpoint: FloatCheckpoint, weights: Weights) -> EncoderModel:
    """Read the model of a checkpoint.

    Raises:
        CheckpointError: A part is missing, or of a kind that is not supported.
        UserInputError: The family has no head for the checkpoint's task.
    """
    if not (checkpoint.tokenizer_folder / TOKENIZER).is_file():
        raise no_tokenizer(checkpoint.encoder_folder, str(Path(checkpoint.config.path).parent))
    head, find = checkpoint.head, file_finder(checkpoint.folder)
    is_embedding = TASK_KINDS[checkpoint.task].vectors == "sentence"
    usual: tuple[Pooling, ...] = ("mean",) if is_embedding else ()
    notices: list[str] = []
    model = read_encoder(
        weights,
        checkpoint.config,
        checkpoint.task,
        poolings=usual if head is None else head.row_poolings,
        steps=() if head is None else head.steps(find),
        token_heads=() if head is None else head.token_heads(find),
        reads_token_types=_reads_token_types(checkpoint),
        notices=notices,
    )
    if isinstance(head, SentenceHead) and head.skips_prompt:
        model = dataclasses.replace(model, input_names=(*model.input_names, POOLED))
    if notices and checkpoint.is_guess:
        raise CheckpointError(
            f"{checkpoint.config.path} names no `architectures`, and its task cannot be guessed. "
            f"{notices[0]} Pass `task`: {checkpoint.task!r} leaves them out."
        )
    return model


def write_folder(
    checkpoint: FloatCheckpoint,
    folder: Path,
    *,
    key: str,
    precision: Precision,
    engine: EngineName,
) -> None:
    """Write a folder that runs a checkpoint, in the form of the folders of `quantize`.

    Args:
        checkpoint: The checkpoint.
        folder: An empty folder.
        key: Identifies the checkpoint: it depends on the weights.
        precision: Whether linear layers are int8, or all is float.
        engine: Engine that runs it: "native", or for float "onnxruntime".

    Raises:
        CheckpointError: A file is missing or damaged, or of a kind that is not supported; or the
            native engine cannot run the quantizers of the checkpoint.
        UserInputError: The family has no head for the checkpoint's task.
        GraphError: The native engine does not compute a part of the model.
    """
    weights = checkpoint.read_weights()
    model = read_model(checkpoint, weights)
    # Here errors name the files of the checkpoint, and nothing was computed yet.
    task_of_head(TASKS[checkpoint.task], checkpoint.head, file_finder(checkpoint.folder))
    named = Path(checkpoint.config.path).parent
    tokenizer = with_named_tokens(
        read_tokenizer(checkpoint.tokenizer_folder / TOKENIZER),
        checkpoint.tokenizer_config,
        named / TOKENIZER_CONFIG,
    )
    rows = len(model.embeddings.words.rows)
    backend, largest = tokenizer.tokenizer, tokenizer.largest_id
    check_rows(largest, backend.id_to_token(max(largest, 0)), rows, str(named))
    lacking = check_tokens(backend, rows, str(named))
    if checkpoint.head is None and family_of(checkpoint.config).is_of_last_token(checkpoint.task):
        check_end(backend, checkpoint.config.values.get("pad_token_id"), str(named))
    contradicted = contradictions(
        checkpoint.tokenizer_config, backend, checkpoint.config.values.get("model_type")
    )
    if checkpoint.layout is not None:
        checkpoint.layout.prepare_tokenizer_(backend)
    backend.save(str(folder / TOKENIZER))
    if (template := checkpoint.read_pair_template()) is not None:
        write_json(folder / PAIR_TEMPLATE, template.content())
    length = _max_length(checkpoint, model, tokenizer)
    tokenizer_settings = _tokenizer_settings(checkpoint, tokenizer, length)
    model = _expanding(checkpoint, model, tokenizer_settings, backend)
    target = _target_of(checkpoint, precision)
    file = folder / _file_of(engine)
    if engine != "native":
        _write_graph(model, file)
    elif precision == "float":
        write_model(model, file, precision="float")
    else:
        _write_rounded(checkpoint, weights, model, file)
    write_json(folder / CONFIG, dict(checkpoint.config.values))
    write_json(folder / TOKENIZER_CONFIG, tokenizer_settings)
    for path, text in checkpoint.layout.files.items() if checkpoint.layout else ():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    if checkpoint.head is not None:
        checkpoint.head.write_settings(folder, file_finder(checkpoint.folder))
    description = _description(checkpoint, model, length, target, engine, key)
    description |= {"contradictions": contradicted, "lacking_tokens": lacking}
    write_json(folder / QUANTIZATION, description)
    if checkpoint.labels is not None:
        (folder / LABELS_FOLDER).mkdir()
        inner = folder / LABELS_FOLDER
        write_folder(checkpoint.labels, inner, key=key, precision=precision, engine=engine)


def _expanding(
    checkpoint: FloatCheckpoint, model: EncoderModel, settings: Mapping[str, Any], backend: Any
) -> EncoderModel:
    """Return a model that knows the token that expands queries or fills texts, if it has one."""
    if model.filled_id is not None:
        # The tokenizer's is the one of training, whatever the config says.
        padding = backend.token_to_id(token_text(settings.get("pad_token")) or "")
        return model if padding is None else dataclasses.replace(model, filled_id=padding)
    if not isinstance(checkpoint.head, MultiVectorHead):
        return model
    unattended = checkpoint.head.rules.unattended_id(
        lambda role: token_text(settings.get(role)), backend.token_to_id
    )
    return with_expansion(model, checkpoint.config, unattended)


def _target_of(checkpoint: FloatCheckpoint, precision: Precision) -> Target:
    if precision == "float":
        return TARGETS["float"]
    return TARGETS["native" if "quantizers" in checkpoint.config else "native-dynamic"]


def _file_of(engine: EngineName) -> str:
    return TARGETS["native" if engine == "native" else "float"].file


def _write_rounded(
    checkpoint: FloatCheckpoint, weights: Weights, model: EncoderModel, path: Path
) -> None:
    """Write a model in INT8, with the ranges that the checkpoint stores, if it stores some."""
    rounded = functools.partial(
        round_encoder, model, limits_pairs=limits_pairs(), threads=usable_cores()
    )
    config = checkpoint.config
    if "quantizers" not in config:
        write_model(rounded(), path)
        return
    try:
        stored = read_stored(weights, config, model, family_of(config).prefix)
        write_model(rounded(*stored), path)
    except (CalibrationError, GraphError) as error:
        raise CheckpointError(
            f"{str(checkpoint.folder)!r} cannot be run with the quantizers that it stores. {error} "
            "Quantize the checkpoint with another `recipe`, or for other `targets`."
        ) from error


def _write_graph(model: EncoderModel, path: Path) -> None:
    # What no graph computes, in words.
    lacking = {
        "its pooling leaves out the tokens of a prompt (`include_prompt: false`)": (
            POOLED in model.input_names
        ),
        "each token takes some of its experts": any(layer.experts for layer in model.layers),
    }
    if found := [words for words, has in lacking.items() if has]:
        raise CheckpointError(f"Only the engine 'native' runs this model: {' and '.join(found)}.")
    require("The float graph of a checkpoint", "onnxruntime")
    # It loads onnx, which the native engine does not need.
    from qdqbert.graphs.writer import write_graph

    write_graph(model, path)


def _reads_token_types(checkpoint: FloatCheckpoint) -> bool:
    """Return whether transformers' tokenizer of a checkpoint makes token types."""
    settings, values = checkpoint.tokenizer_config, checkpoint.config.values
    names = settings.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    kind = settings.get("tokenizer_class") or values.get("tokenizer_class")
    if not isinstance(kind, str):
        return values.get("model_type") in _TYPED_MODELS
    return kind.removesuffix("Fast").removesuffix("Tokenizer") in WITH_TYPES


def _max_length(checkpoint: FloatCheckpoint, model: EncoderModel, file: TokenizerFile) -> int:
    if not model.layers:
        # sentence-transformers cuts texts for a table as the file says, and no others.
        return min(model.limit, file.max_length or NO_LIMIT)
    length = longest_input(checkpoint.layout, checkpoint.tokenizer_config)
    return min(model.limit, length or NO_LIMIT)


def _tokenizer_settings(
    checkpoint: FloatCheckpoint, file: TokenizerFile, length: int
) -> dict[str, Any]:
    known = file.tokenizer.token_to_id
    usual = {
        role: next((each for each in tokens if known(each) is not None), None)
        for role, tokens in _USUAL_TOKENS.items()
    }
    found = {role: token for role, token in usual.items() if token is not None}
    own = checkpoint.tokenizer_config
    side = own.get("truncation_side") or file.truncation_side
    sides = {} if side is None else {"truncation_side": side}
    return {**found, **own, **sides, "model_max_length": length}


def _description(
    checkpoint: FloatCheckpoint,
    model: EncoderModel,
    length: int,
    target: Target,
    engine: EngineName,
    key: str,
) -> dict[str, Any]:
    """Return the content of quantization.json."""
    recipe = "stored" if target.name == "native" else target.recipe
    return {
        "format": QUANTIZATION_FORMAT,
        "checkpoint": {
            "key": key,
            "task": checkpoint.task,
            "model_type": family_of(checkpoint.config).model_type,
            "sentence_head": checkpoint.head and dataclasses.asdict(checkpoint.head),
        },
        # Those that `load` can merge instead.
        "adapters": list(checkpoint.other_adapters()),
        "max_length": length,
        "inputs": list(model.input_names),
        "outputs": [output.name for head in model.heads for output in head.outputs],
        "task_options": {},
        "calibration": {},
        "targets": {
            target.name: {
                "model": _file_of(engine),
                "engines": [engine],
                "is_proxy": False,
                "recipe": {"name": recipe, "rules": [], "smoothing": None},
                "sites": {},
            }
        },
    }
