"""Write a quantized folder in the format of another runtime or server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.progress import Progress
from qdqbert.verbs.call import public
from qdqbert.verbs.export.options import ExportOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.export import ExportReport


@public(ExportOptions)
def export(options: ExportOptions, progress: Progress) -> ExportReport:
    """Write a quantized folder in the format of another runtime or server, with its tokenizer.

    Embedders, rerankers, and classifiers of texts or pairs of texts can be exported. Before
    the folder is written, the exported model runs on texts of many scripts. It must
    give the same tokens as the library `tokenizers`, and the same results as `load`.

    Returns:
        The files with their sizes, how close the results are, and how to run the exported model.

    Raises:
        CheckpointError: `quantize` did not write the folder.
        OutputExistsError: The output folder exists, and `overwrite` is off.
        UserInputError: The format has no place for the model, its tokenizer or one of its settings,
            or the exported model gives other results.
        MissingExtraError: A package of the extra `export`, or ONNX Runtime, is not installed.

    Example:
        >>> report = qdqbert.export("./my-embedder-int8", to="openvino")
        >>> print(report.usage)
    """
    from qdqbert.verbs.export.run import run

    return run(options, progress)
