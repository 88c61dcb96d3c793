"""Check the files of a checkpoint before transformers reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG, MODULES
from qdqbert.common.files import refuse_pointer
from qdqbert.common.json_files import parse_object
from qdqbert.encoders.checkpoint.gliclass import encoder_values, is_gliclass
from qdqbert.encoders.checkpoint.sentence_files import ReadFile, SentenceFiles, join
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import FAMILIES, quantized_family
from qdqbert.encoders.family import family_name, is_flash
from qdqbert.encoders.peft import ADAPTER_CONFIG
from qdqbert.encoders.task_kinds import TASK_KINDS, architectures_of, task_of_architecture
from qdqbert.encoders.tensor_files import SAFETENSORS, TORCH, WEIGHTS, has_weights_below
from qdqbert.encoders.torch_file import OLD_PICKLE

_MERGE = (
    "Load it with PEFT, merge it into its model with `merge_and_unload()`, save that with "
    "`save_pretrained(new_folder)`, and pass the new folder, with the tokenizer in it."
)


def check_name(name: str) -> None:
    """Refuse a name that is no model, a file, and a folder without weights that are read."""
    folder = Path(name)
    if not folder.exists():
        # It loads the hub's library, which local folders do not need.
        from qdqbert.encoders.checkpoint.hub import check_hub_model

        check_hub_model(name)
        return
    if not folder.is_dir():
        raise is_a_file(folder)
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    if ADAPTER_CONFIG in files and CONFIG not in files:
        raise only_an_adapter(name)
    if has_weights_below(folder):
        refuse_old_pickles(folder, name)
        return
    raise without_weights(folder)


def is_a_file(path: Path) -> CheckpointError:
    """Return the error about a file that is passed instead of its folder."""
    is_checkpoint = (path.parent / CONFIG).is_file() or (path.parent / MODULES).is_file()
    advice = f"Pass its folder, {str(path.parent)!r}." if is_checkpoint else "Pass a folder."
    return CheckpointError(
        f"{str(path)!r} is a file; expected a checkpoint folder or a hub id. {advice}"
    )


def without_weights(folder: Path) -> CheckpointError:
    """Return the error for a folder without weights that are read."""
    graphs = sorted(path for path in folder.rglob("*.onnx") if path.is_file())
    if graphs:
        return CheckpointError(
            f"Checkpoint {str(folder)!r} has no weights but an ONNX model. To use it, pass the "
            f"path of the file: {str(graphs[0])!r}."
        )
    return CheckpointError(
        f"Checkpoint {str(folder)!r} has no weights; expected config.json and {SAFETENSORS}."
    )


def refuse_old_pickles(folder: Path, name: str) -> None:
    """Refuse a folder whose only weights are pickles as torch wrote them before version 1.6."""
    if any(folder.rglob("*.safetensors")):
        return
    for path in sorted(each for each in folder.rglob(WEIGHTS[TORCH]) if each.is_file()):
        refuse_pointer(path)
        with path.open("rb") as file:
            is_old = file.read(len(OLD_PICKLE)) == OLD_PICKLE
        if is_old:
            raise CheckpointError(
                f"Checkpoint {name!r} has only pickled weights ({path.name}) as torch wrote them "
                "before version 1.6, which can run code when they are read, so they are refused. "
                f"Convert them once where you trust them: {_conversion(folder)}."
            )


def read_known_config(name: str, read: ReadFile, subfolder: str) -> Config:
    """Return the content of config.json, as transformers knows it.

    Models that only Jina's code knows under their names are XLM-R, or Jina Embeddings v3.

    Raises:
        CheckpointError: There is no config, its family is not known, or the model is custom code
            or has an adapter.
    """
    text = read(join(subfolder, CONFIG))
    has_adapter = any(read(join(each, ADAPTER_CONFIG)) is not None for each in {"", subfolder})
    if text is None:
        if has_adapter:
            raise only_an_adapter(name)
        raise CheckpointError(
            f"Checkpoint {name!r} has no {join(subfolder, CONFIG)}. Expected a folder with "
            "config.json, weights and a tokenizer, as `save_pretrained` writes it."
        )
    path = Path(name) / subfolder / CONFIG
    stored = parse_object(text, path)
    if is_gliclass(stored):
        stored = encoder_values(stored)
    kind = family_name(stored)
    fields = {**stored, "model_type": kind}
    if not isinstance(fields.get("model_type"), str):
        raise CheckpointError(
            f"The config.json of checkpoint {name!r} names no `model_type`, so its family is not "
            "known. Expected one that transformers wrote."
        )
    quantized_family(fields["model_type"], fields)
    _check_code(name, fields)
    if has_adapter:
        raise CheckpointError(
            f"Checkpoint {name!r} has an adapter next to the model, {ADAPTER_CONFIG}, which would "
            f"be left out. {_MERGE} If the weights contain it already, remove {ADAPTER_CONFIG} "
            "from a copy."
        )
    renamed = FAMILIES[kind].of_own_code(stored)
    if is_flash(stored):
        # transformers' model is another class, with other names of tensors.
        fields.pop("auto_map", None)
    return Config(values={**renamed, **fields}, path=str(path))


def _check_code(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse a model whose class is code of the checkpoint."""
    custom = FAMILIES[fields["model_type"]].other_code(fields)
    if custom is not None:
        raise CheckpointError(
            f"The model of checkpoint {name!r} is code of its own: `auto_map` in config.json names "
            f"{custom}. Code of checkpoints is never run, and transformers' model of type "
            f"`{fields['model_type']}` may compute something else. If both compute the same, "
            "remove `auto_map` from config.json in a copy."
        )


def only_an_adapter(name: str) -> CheckpointError:
    """Return the error for a folder of PEFT without the model that it belongs to."""
    return CheckpointError(
        f"{name!r} is an adapter ({ADAPTER_CONFIG} without config.json), not a whole model. "
        f"{_MERGE}"
    )


def _conversion(folder: Path) -> str:
    """Return Python code that converts a folder to safetensors, for an error message."""
    files = SentenceFiles.of_folder(folder)
    if files.read(MODULES) is not None:
        kind = "CrossEncoder" if files.is_cross_encoder else "SentenceTransformer"
        return f"`{kind}(folder).save_pretrained(new_folder)` of sentence-transformers"
    try:
        architectures = architectures_of(files.fields(CONFIG).values.get("architectures"))
    except CheckpointError:
        architectures = []
    named = architectures[0] if architectures else "Model"
    task = task_of_architecture(named)
    auto = TASK_KINDS[task].auto_class if task else "AutoModel"
    auto = "AutoModelForPreTraining" if named.endswith("ForPreTraining") else auto
    return (
        f"`{auto}.from_pretrained(folder).save_pretrained(new_folder)` writes model.safetensors, "
        "and `AutoTokenizer.from_pretrained(folder).save_pretrained(new_folder)` its tokenizer"
    )
