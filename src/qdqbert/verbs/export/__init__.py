"""Write a quantized folder in the format of another runtime or server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import ExportedOutputs, ExportFormat, TargetName
from qdqbert.extras import require
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.export.options import ExportOptions

if TYPE_CHECKING:
    from qdqbert.verbs.export.report import ExportReport

PACKAGES: Mapping[ExportFormat, Sequence[str]] = {
    "openvino": ("openvino", "openvino_genai", "openvino_tokenizers", "transformers"),
    "triton": (),
}
"""Modules that each format needs, beyond those that running a folder needs."""


def export(
    model: str | Path,
    *,
    to: ExportFormat,
    output: str | Path | None = None,
    target: TargetName | None = None,
    returns: ExportedOutputs | None = None,
    name: str | None = None,
    pairs: bool = False,
    overwrite: bool = False,
    progress: Progress | bool = False,
) -> ExportReport:
    """Write a quantized folder in the format of another runtime or server, with its tokenizer.

    Embedders, rerankers, and classifiers of texts or pairs of texts can be exported. The exported
    model runs on texts of many scripts before the folder is written. Its tokens have to be those of
    the library `tokenizers`, and its results those of `load`.

    Args:
        model: Folder that `quantize` wrote.
        to: Format to write: "openvino" for OpenVINO GenAI and OpenVINO Model Server, "triton" for a
            model repository of Triton.
        output: Folder to write. By default that of the model, with the format added to its name.
        target: Graph to export, if the folder has several. By default the one that was made for the
            runtime.
        returns: What an embedder returns. By default what the runtime needs: states of tokens for
            OpenVINO, whose pipelines pool them, and embeddings for Triton.
        name: Name of the model in a server. The name of the model's folder by default.
        pairs: Take pairs of texts. Needed only for a model of pairs that was not quantized on pairs
            of your own.
        overwrite: Replace an existing output folder, if this package wrote it.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        The files with their sizes, how close the results are, and how to run the exported model.

    Raises:
        CheckpointError: `quantize` did not write the folder.
        OutputExistsError: The output folder exists, and `overwrite` is off.
        UserInputError: The format has no place for the model, its tokenizer or one of its settings,
            or the exported model gives other results.
        MissingExtraError: A package of the extra `export` is not installed.

    Example:
        >>> report = qdqbert.export("./my-embedder-int8", to="openvino")
        >>> print(report.usage)
    """
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    options = ExportOptions(**arguments)
    require(f"`export` to {to!r}", "export", PACKAGES[to])
    from qdqbert.verbs.export.run import run

    return run(options, shown)
