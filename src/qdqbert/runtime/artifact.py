"""The folder that `quantize` writes: one graph for each target, with tokenizer and settings.

DIR/model.onnx                  the graph; with several targets DIR/<target>/model.onnx
DIR/native/model.safetensors    packed weights of the target `native`
DIR/config.json, tokenizer...   as transformers writes them
DIR/ranges.safetensors          ranges of the calibration
DIR/quantization.json           how the graphs were made: recipe, sites, ranges, data, versions
DIR/training.json               fingerprints of the data, if `train` trained the model
DIR/report.json                 sizes, speed, accuracy and checks
DIR/report.html                 the same, for people
DIR/verification.npz            inputs and results of the float model, for `verify`
DIR/SHA256SUMS                  checksums of all files but the model card
DIR/README.md                   the model card

Reading a folder imports neither torch nor transformers nor onnx.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import glob
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from qdqbert.common.choices import ENGINE_NAMES, EngineName
from qdqbert.common.downloads import upload_folder
from qdqbert.common.errors import CheckpointError, OutputExistsError, UserInputError
from qdqbert.common.file_names import CONFIG, MODULES
from qdqbert.common.files import (
    check_input_place,
    check_output_place,
    followed,
    name_of,
    temporary_places,
)
from qdqbert.common.json_files import Fields, damaged, read_json, shown
from qdqbert.common.storage import Place, RemotePath
from qdqbert.encoders.config import Config
from qdqbert.engines.registry import ENGINES
from qdqbert.runtime.artifact_settings import Quantization, read_quantization, read_task_options

MODEL = "model.onnx"
RANGES = "ranges.safetensors"
QUANTIZATION = "quantization.json"
REPORT = "report.json"
REPORT_PAGE = "report.html"
VERIFICATION = "verification.npz"
TRAINING = "training.json"
EXPORT = "export.json"

QUANTIZATION_FORMAT = "qdqbert-quantization/2"
TRAINING_FORMAT = "qdqbert-training/2"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artifact(Quantization):
    """A quantized model on disk."""

    directory: Path

    @property
    def trained_fingerprints(self) -> frozenset[str]:
        """Fingerprints of the examples that `train` trained the model on, if it did."""
        return rows_of(read_training(self.directory), "training")

    @property
    def engines(self) -> tuple[EngineName, ...]:
        """Engines that run one of the graphs, in the order of `ENGINE_NAMES`."""
        found = {engine for entry in self.targets.values() for engine in entry["engines"]}
        if not found:
            raise UserInputError(
                f"{str(self.directory)!r} contains only a graph for target "
                f"{', '.join(self.targets)}, which no engine of this package runs. Add "
                "'portable' to `targets` when you quantize."
            )
        return tuple(engine for engine in ENGINE_NAMES if engine in found)

    def engines_of(self, target: str | None) -> tuple[EngineName, ...]:
        """Return the engines that run the graph of a target, if it has any, or those of all."""
        found = self.targets.get(target or "", {}).get("engines")
        return tuple(each for each in self.engines if each in found) if found else self.engines

    def target_for(self, engine: EngineName, target: str | None = None) -> str:
        """Return the target that an engine runs: the one made for it, or another that it can run.

        `target` is its name, if the caller chose one.

        Raises:
            UserInputError: The engine runs no graph of the folder, or not the target's.
        """
        if target is not None:
            self._check_target(engine, target)
            return target
        usable = [name for name, entry in self.targets.items() if engine in entry["engines"]]
        if not usable:
            raise UserInputError(
                f"{str(self.directory)!r} contains no graph for engine {engine!r}, only for target "
                f"{', '.join(self.targets)}. Add {_targets_of(engine)} to `targets` when you "
                "quantize.",
                argument="engine",
            )
        return min(
            usable,
            key=lambda name: (
                self.targets[name]["is_proxy"],
                # The float model comes after those that are quantized.
                not self.targets[name]["sites"],
                len(self.targets[name]["engines"]),
            ),
        )

    def model_for(self, engine: EngineName, target: str | None = None) -> Path:
        """Return the file of the graph that `target_for` chooses."""
        return self.directory / str(self.targets[self.target_for(engine, target)]["model"])

    def read_config(self) -> Mapping[str, Any]:
        """Return the content of config.json; see `Config.with_classes`.

        Raises:
            CheckpointError: It is missing, or a setting that decides about results has a wrong
                value.
            UserInputError: A reranker has several classes.
        """
        path = self.directory / CONFIG
        config = Config(values=read_json(path), path=str(path))
        config = config.with_classes(self.task, outputs=self.classes)
        fields = Fields(config.values, lambda reason: damaged(path, reason))
        if fields.has("sentence_transformers"):
            fields.child("sentence_transformers")
        return config.values

    def load_config(self) -> Any:
        """Return the config of transformers; a plain one for models that it does not know."""
        from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

        from qdqbert.encoders.checkpoint.configuration import register_config

        # Folders of earlier versions have the config of a QDQBERT model.
        register_config()
        names = self.read_config()["id2label"]
        is_known = self.model_type in CONFIG_MAPPING
        kind = AutoConfig if is_known else PretrainedConfig
        return kind.from_pretrained(self.directory, id2label=names)

    def _check_target(self, engine: EngineName, target: str) -> None:
        if target not in self.targets:
            raise UserInputError(
                f"`target={target!r}`: {str(self.directory)!r} contains graphs for "
                f"{', '.join(self.targets)} only.",
                argument="target",
            )
        engines = self.targets[target]["engines"]
        if engine not in engines:
            where = f"does not run on engine {engine!r}, only on: {', '.join(engines)}"
            if not engines:
                where = "runs on no engine of this package"
            raise UserInputError(f"`target={target!r}` {where}.", argument="target")


def _targets_of(engine: EngineName) -> str:
    """Return the targets that an engine runs, and that are named after it or for any engine."""
    return f"{engine!r} or 'portable'" if ENGINES[engine].runs_onnx else repr(engine)


def is_artifact(path: Path) -> bool:
    """Return whether `quantize` wrote a folder."""
    return (path / QUANTIZATION).is_file()


def read_training(path: Path) -> Mapping[str, Any]:
    """Return how `train` trained a checkpoint; an empty mapping if it did not.

    Raises:
        CheckpointError: `training.json` cannot be read.
    """
    if not (path / TRAINING).is_file():
        return {}
    fields = Fields.of_file(path / TRAINING)
    _check_format(fields, path / TRAINING, TRAINING_FORMAT)
    fields.integer("max_length")
    read_task_options(fields)
    for part in ("calibration", "training"):
        if fields.has(part) and fields.child(part).has("fingerprints"):
            fields.child(part).names("fingerprints")
    return {
        name: fields.values[name]
        for name in ("max_length", "task_options", "calibration", "training")
        if name in fields.values
    }


def rows_of(
    training: Mapping[str, Any], part: Literal["calibration", "training"]
) -> frozenset[str]:
    """Return the fingerprints of the examples that `train` calibrated or trained a model on.

    `training` is what `read_training` returns.
    """
    return frozenset(training.get(part, {}).get("fingerprints", ()))


def quantize_command(model: str, **options: float) -> str:
    """Return the command line that quantizes a float model.

    `model` is a folder, an .onnx file, or a name on the hub. `options` are further options of
    `quantize`.
    """
    output = f"./{name_of(model).removesuffix('.onnx')}-int8"
    words = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
    return " ".join(["qdqbert quantize", shlex.quote(model), "-o", shlex.quote(output), *words])


def open_artifact(directory: Path, *, requires_graphs: bool = True) -> Artifact:
    """Read a folder that `quantize` wrote.

    With `requires_graphs`, the graphs of all targets have to be there.

    Raises:
        CheckpointError: `quantize` did not write it, another version did, or a part is missing.
    """
    check_input_place(directory)
    path = directory / QUANTIZATION
    if not path.is_file():
        if directory.is_dir():
            reason = f"it has no {QUANTIZATION}"
        else:
            reason = "it is a file" if directory.exists() else "the folder does not exist"
        is_float = (directory / CONFIG).is_file() or directory.suffix == ".onnx"
        refused = f"{str(directory)!r} is not a quantized model: {reason}."
        if directory.is_dir() and is_float:
            try:
                _check_checkpoint(directory)
            except CheckpointError as error:
                raise CheckpointError(f"{refused} {error}") from error
        advice = f", or quantize it first: {quantize_command(str(directory))}" if is_float else "."
        raise CheckpointError(f"{refused} Pass a folder that `quantize` wrote{advice}")
    fields = Fields.of_file(path)
    _check_format(fields, path, QUANTIZATION_FORMAT)
    found = Artifact(directory=directory, **read_quantization(fields))
    models = [directory / entry["model"] for entry in found.targets.values()]
    missing = [str(path) for path in models if not path.is_file()]
    if missing and requires_graphs:
        raise CheckpointError(f"{str(directory)!r} is incomplete: {missing[0]} is missing.")
    return found


def _check_checkpoint(folder: Path) -> None:
    """Refuse a checkpoint that `quantize` does not take."""
    from qdqbert.encoders.checkpoint.base_model import encoder_reader
    from qdqbert.encoders.checkpoint.folder import check_name, read_known_config
    from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles
    from qdqbert.encoders.checkpoint.text_heads import read_span_head

    check_name(str(folder))
    files, name = SentenceFiles.of_folder(folder), str(folder)
    read_known_config(name, encoder_reader(files, read_span_head(files.read), name), "")


def _check_format(fields: Fields, path: Path, expected: str) -> None:
    """Refuse a file that another version wrote, in another format than the expected one."""
    found = fields.values.get("format")
    if found != expected:
        raise CheckpointError(
            f"{str(path)!r} cannot be read: its format is {shown(found)}, expected {expected!r}. "
            "Another version of qdqbert may have written it. Write it again with this one."
        )


def check_output(directory: Place, *, overwrite: bool) -> None:
    """Refuse an output folder that must not be replaced.

    Raises:
        OutputExistsError: It exists, and `overwrite` is off or this package did not write it.
        UserInputError: Nothing can be written there.
    """
    if isinstance(directory, Path):
        check_output_place(directory)
    try:
        if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
            return
        is_own = any((directory / name).is_file() for name in (QUANTIZATION, TRAINING, EXPORT))
    except OSError as error:
        raise _not_written(directory, error.strerror or str(error)) from error
    if not overwrite:
        raise OutputExistsError(
            f"`output={str(directory)!r}` already exists. Pass `overwrite=True` to replace it, or "
            "another `output`.",
            argument="output",
        )
    if not is_own:
        raise OutputExistsError(
            f"`output={str(directory)!r}` already exists and is not a model that this package "
            f"wrote: it has no {QUANTIZATION}, {TRAINING} or {EXPORT}. It is not deleted, even "
            "with `overwrite=True`. Pass another `output`.",
            argument="output",
        )


@contextlib.contextmanager
def writing(directory: Place, *, overwrite: bool) -> Iterator[Path]:
    """Yield a folder to fill. It becomes `directory` if the block succeeds, and is removed if not.

    For object storage, the folder is a temporary one, which is uploaded. It is kept if that fails.

    Raises:
        OutputExistsError: See `check_output`.
        UserInputError: The disk is full, or the folder cannot be written.
    """
    check_output(directory, overwrite=overwrite)
    try:
        if isinstance(directory, Path):
            directory = followed(directory.absolute())
            directory.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(directory)
            partial = _make_partial(directory)
        else:
            partial = Path(tempfile.mkdtemp(prefix="qdqbert-"))
    except OSError as error:
        raise _not_written(directory, error.strerror or str(error)) from error
    try:
        partial.chmod(0o755)
        yield partial
        check_output(directory, overwrite=overwrite)
        if isinstance(directory, Path):
            _swap(partial, directory)
        else:
            _upload(partial, directory)
    except _write_errors() as error:
        if isinstance(error, OSError) and error.errno not in _NO_SPACE:
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _no_space(error, directory, reason or "no space left") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _not_written(directory: Place, reason: str) -> UserInputError:
    return UserInputError(
        f"`output={str(directory)!r}` cannot be written: {reason}.", argument="output"
    )


def _upload(folder: Path, place: RemotePath) -> None:
    """Put a folder in the place of another one in object storage, or keep it here."""
    try:
        upload_folder(folder, place, last=(CONFIG, MODULES, TRAINING, EXPORT, QUANTIZATION))
    except OSError as error:
        kept = tempfile.mkdtemp(prefix="qdqbert-kept-")
        folder.rename(Path(kept) / place.name)
        raise UserInputError(
            f"`output={place.url!r}` cannot be written: {error.strerror or error}. The result is "
            f"kept in {str(Path(kept) / place.name)!r}: upload it from there.",
            argument="output",
        ) from error


def _write_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a full disk: OSError, and safetensors' own if it was imported."""
    module = sys.modules.get("safetensors")
    return (OSError,) if module is None else (OSError, module.SafetensorError)


def _no_space(error: Exception, directory: Place, reason: str) -> UserInputError:
    """Name the full disk: the output's, or the one of temporary files."""
    name = getattr(error, "filename", None)
    scratch = next(
        (
            each
            for each in temporary_places()
            if name is not None and Path(str(name)).is_relative_to(each)
        ),
        None,
    )
    is_scratch = isinstance(directory, Path) and scratch and directory.is_relative_to(scratch)
    if scratch is not None and not is_scratch:
        return UserInputError(
            f"The folder for temporary files, {str(scratch)!r}, cannot be written: {reason}. "
            "Nothing was changed. Free some space, or set TMPDIR to another folder."
        )
    return UserInputError(
        f"`output={str(directory)!r}` cannot be written: {reason}. Nothing was changed. Free some "
        "space, or pass another `output`.",
        argument="output",
    )


def _make_partial(directory: Path) -> Path:
    # The name contains the process id, so that a later call can find out whether it still runs.
    return Path(tempfile.mkdtemp(prefix=f".{directory.name}.{os.getpid()}.", dir=directory.parent))


def _remove_abandoned(directory: Path) -> None:
    """Remove partial folders of processes that were killed."""
    for path in directory.parent.glob(f".{glob.escape(directory.name)}.*.*"):
        process = path.name.removeprefix(f".{directory.name}.").partition(".")[0]
        if path.is_dir() and process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It belongs to another user.
        pass
    return True


def _swap(new: Path, directory: Path) -> None:
    """Put `new` in the place of `directory`. The old folder is removed last."""
    if not directory.exists():
        new.rename(directory)
        return
    old = _make_partial(directory)
    directory.rename(old / "replaced")
    try:
        new.rename(directory)
    except OSError:
        (old / "replaced").rename(directory)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def weights_of(model: Path) -> Path:
    """Return the weights file of a graph of more than 1.5 GB."""
    return model.with_name(f"{model.name}.data")


def size_bytes(model: Path) -> int:
    """Return the size of a graph, its weights file included."""
    weights = weights_of(model)
    return model.stat().st_size + (weights.stat().st_size if weights.exists() else 0)
