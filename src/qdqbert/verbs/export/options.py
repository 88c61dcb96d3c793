"""Options of `export`."""

from __future__ import annotations

from qdqbert.common.choices import ExportedOutputs, ExportFormat, TargetName
from qdqbert.common.objects import InputOption, OptionalPath
from qdqbert.common.options.declared import option
from qdqbert.common.storage import Place, place_of
from qdqbert.pipeline.calls import Call


class ExportOptions(Call):
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote, or its URL.
        to: Format to write: "openvino" for OpenVINO GenAI and OpenVINO Model Server,
            "transformers-js" for browsers and Node, "triton" for a model repository of Triton.
        output: Folder or URL to write. By default the model's folder, with the format added to its
            name.
        target: Graph to export, if the folder has several. By default the one that was made for the
            runtime.
        returns: Outputs of an embedder. By default the ones that the runtime needs: embeddings for
            Triton, and states of tokens for the others, whose pipelines pool them.
        name: Name of the model in a server. The name of the model's folder by default.
        pairs: Take pairs of texts. Needed only for a model of pairs that was not quantized on pairs
            of your own.
        overwrite: Replace an existing output folder, if this package wrote it.
    """

    model: InputOption = option(kw_only=False)
    to: ExportFormat = option()
    output: OptionalPath = option(default=None, short="o", writes="replaced")
    target: TargetName | None = None
    returns: ExportedOutputs | None = None
    name: str | None = None
    pairs: bool = False
    overwrite: bool = False

    @property
    def folder(self) -> Place:
        """The folder to write."""
        model = place_of(str(self.model))
        return place_of(self.output) if self.output else model.with_name(f"{model.name}-{self.to}")
