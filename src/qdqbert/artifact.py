"""The folder that quantization leaves: a graph a target, and all that is needed to use it.

DIR/model.onnx                  the graph; with several targets DIR/<target>/model.onnx
DIR/config.json, tokenizer...   as transformers writes them
DIR/ranges.safetensors          what calibration chose
DIR/quantization.json           how the graph was made: recipe, sites, ranges, data, versions
DIR/report.json                 what was measured
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from qdqbert.choices import EngineName
from qdqbert.errors import CheckpointError, OutputExistsError, UserInputError
from qdqbert.targets import TARGETS
from qdqbert.tasks.task import TaskOptions

MODEL = "model.onnx"
RANGES = "ranges.safetensors"
QUANTIZATION = "quantization.json"
REPORT = "report.json"
TRAINING = "training.json"

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artifact:
    """A quantized model on disk.

    Attributes:
        directory: Where it is.
        quantization: The content of `quantization.json`.
    """

    directory: Path
    quantization: Mapping[str, Any]

    @property
    def task(self) -> str:
        """Transformers' name of what it is for."""
        return str(self.quantization["checkpoint"]["task"])

    @property
    def max_length(self) -> int:
        """Longest input in tokens."""
        return int(self.quantization["max_length"])

    @property
    def task_options(self) -> TaskOptions:
        """Settings of its task."""
        return TaskOptions(**self.quantization.get("task_options", {}))

    @property
    def calibration_fingerprints(self) -> frozenset[str]:
        """`tasks.data.fingerprint` of each example that ranges were taken from."""
        return frozenset(self.quantization["calibration"].get("fingerprints", ()))

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs of the graph, each `(batch, sequence)`, int64."""
        return tuple(self.quantization["inputs"])

    def target_for(self, engine: EngineName, target: str | None = None) -> str:
        """The target made for an engine, or else one whose graph it can run.

        Args:
            engine: What is to run it.
            target: Which target's; chosen if `None`.

        Raises:
            UserInputError: No graph here runs on it, or not that target's.
        """
        targets: dict[str, Any] = self.quantization["targets"]
        if target is not None:
            if target not in targets:
                raise UserInputError(
                    f"`--target {target}`: {str(self.directory)!r} holds no such graph, only "
                    f"those of {', '.join(targets)}."
                )
            if engine not in TARGETS[target].engines:
                raise UserInputError(
                    f"`--target {target}` does not run on engine `{engine}`, only on: "
                    f"{', '.join(TARGETS[target].engines) or 'none here'}."
                )
            return target
        usable = [name for name in targets if engine in TARGETS[name].engines]
        if not usable:
            raise UserInputError(
                f"{str(self.directory)!r} holds no graph for engine `{engine}`, only for target "
                f"{', '.join(targets)}. Quantize with `--target {engine}` or `--target portable`."
            )
        return min(usable, key=lambda name: (TARGETS[name].is_proxy, len(TARGETS[name].engines)))

    def model_for(self, engine: EngineName, target: str | None = None) -> Path:
        """The graph of `target_for`."""
        chosen = self.target_for(engine, target)
        return self.directory / str(self.quantization["targets"][chosen]["model"])

    @property
    def engines(self) -> tuple[EngineName, ...]:
        """Engines that a graph here runs on.

        Raises:
            UserInputError: There are none.
        """
        targets = self.quantization["targets"]
        found = {engine for name in targets for engine in TARGETS[name].engines}
        if not found:
            raise UserInputError(
                f"{str(self.directory)!r} holds only a graph for target {', '.join(targets)}, "
                "which no engine here runs. Quantize with `--target portable` beside it."
            )
        return tuple(sorted(found))

    def load_tokenizer(self) -> Any:
        """The tokenizer, by transformers."""
        return AutoTokenizer.from_pretrained(self.directory, trust_remote_code=False)

    def load_config(self) -> Any:
        """The config, by transformers; a plain one of a graph that came without."""
        if self.quantization["checkpoint"]["model_type"] is None:
            return PretrainedConfig.from_pretrained(self.directory)
        return AutoConfig.from_pretrained(self.directory, trust_remote_code=False)


def is_artifact(path: Path) -> bool:
    """Whether a folder was written by quantization."""
    return (path / QUANTIZATION).is_file()


def read_training(path: Path) -> Mapping[str, Any]:
    """How a folder was trained, if `qdqbert train` wrote it; else nothing.

    Raises:
        CheckpointError: The file that says so cannot be read.
    """
    if not (path / TRAINING).is_file():
        return {}
    try:
        content: Mapping[str, Any] = json.loads((path / TRAINING).read_text(encoding="utf-8"))
        return {name: content[name] for name in ("max_length", "task_options", "calibration")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{str(path / TRAINING)!r} cannot be read ({error}).") from error


def open_artifact(directory: Path) -> Artifact:
    """Reads an artifact.

    Raises:
        CheckpointError: The folder is none, or part of it is missing.
    """
    try:
        quantization = json.loads((directory / QUANTIZATION).read_text(encoding="utf-8"))
        models = [directory / entry["model"] for entry in quantization["targets"].values()]
    except (FileNotFoundError, NotADirectoryError) as error:
        if directory.is_dir():
            said = f"it holds no {QUANTIZATION}"
        else:
            said = "it is a file" if directory.exists() else "there is no such folder"
        raise CheckpointError(
            f"{str(directory)!r} is no quantized model: {said}. Pass a folder that `qdqbert "
            "quantize` wrote."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{str(directory)!r} is no quantized model: {QUANTIZATION} cannot be read ({error})."
        ) from error
    missing = [str(path) for path in models if not path.is_file()]
    if missing:
        raise CheckpointError(f"{str(directory)!r} is incomplete: {missing[0]} is missing.")
    return Artifact(directory=directory, quantization=quantization)


def check_output(directory: Path, *, overwrite: bool) -> None:
    """Refuses an output folder that must not be replaced.

    Raises:
        OutputExistsError: It is there, and `overwrite` is off or it is none of ours.
    """
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not overwrite:
        raise OutputExistsError(
            f"Output {str(directory)!r} exists. Pass `--overwrite` to replace it, or another "
            "`--output`."
        )
    if not (is_artifact(directory) or (directory / TRAINING).is_file()):
        raise OutputExistsError(
            f"Output {str(directory)!r} exists and is no quantized or trained model of ours (it "
            f"has no {QUANTIZATION} or {TRAINING}), so `--overwrite` will not delete it. Pass "
            "another `--output`."
        )


@contextlib.contextmanager
def writing(directory: Path, *, overwrite: bool) -> Iterator[Path]:
    """Gives a folder to fill that becomes `directory` if the block ends well, and goes if not.

    Raises:
        OutputExistsError: See `check_output`.
    """
    directory = directory.absolute()
    check_output(directory, overwrite=overwrite)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise UserInputError(
            f"Output {str(directory)!r} cannot be written: {error.strerror}."
        ) from error
    try:
        partial.chmod(0o755)
        yield partial
        check_output(directory, overwrite=overwrite)
        _swap(partial, directory)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_ROOM:
            raise
        reason = str(error) if isinstance(error, SafetensorError) else error.strerror
        raise UserInputError(
            f"Output {str(directory)!r} cannot be written: {reason}. Nothing was changed; make "
            "room, or pass another `--output`."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _swap(new: Path, directory: Path) -> None:
    """Puts `new` where `directory` is; the old one goes only once the new one stands."""
    if not directory.exists():
        new.rename(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
    directory.rename(old / "replaced")
    try:
        new.rename(directory)
    except OSError:
        (old / "replaced").rename(directory)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON for people and machines, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def size_bytes(model: Path) -> int:
    """Size of a graph with the weights that stand beside it."""
    beside = model.with_name(f"{model.name}.data")
    return model.stat().st_size + (beside.stat().st_size if beside.exists() else 0)
