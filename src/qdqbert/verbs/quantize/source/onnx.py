"""Existing ONNX models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.encoders.sites import sites_of
from qdqbert.engines.runner import Runner
from qdqbert.errors import UserInputError
from qdqbert.graph.imported.imported_model import import_onnx
from qdqbert.graph.imported.tokenizer_and_config import choose_task, load_tokenizer_and_config
from qdqbert.spec import Site, SiteGroup
from qdqbert.verbs.quantize.source import StoredQuantizers
from qdqbert.verbs.quantize.source.sited import SitedSource

# Groups of sites that graphs have.
_GROUPS: frozenset[SiteGroup] = frozenset({"layer", "table"})


class OnnxSource:
    """An .onnx file; see `ModelSource`."""

    head: SentenceHead | None = None
    stored: StoredQuantizers | None = None

    def __init__(
        self,
        path: Path,
        *,
        task: str | None,
        tokenizer: str | None,
        input_names: Mapping[str, str],
        output_names: Mapping[str, str],
        scratch: Path,
    ) -> None:
        """Read a model.

        Args:
            path: The .onnx file.
            task: Name of its task. Inferred from the config next to the tokenizer if `None`.
            tokenizer: Folder or hub id of its tokenizer and config; the file's folder if `None`.
            input_names: Names of its inputs by transformers' names, where they differ.
            output_names: Names of its outputs by transformers' names, where they differ.
            scratch: Folder for temporary graphs.

        Raises:
            UserInputError: The file cannot be read, its architecture is not supported, or the
                tokenizer is missing.
        """
        self.name = str(path)
        chosen = choose_task(path, task=task, tokenizer=tokenizer)
        self.task: str = chosen
        imported = import_onnx(
            path,
            task=chosen,
            input_names=input_names,
            output_names=output_names,
            scratch=scratch,
        )
        self._float = imported.runner
        found = load_tokenizer_and_config(
            path, task=chosen, tokenizer=tokenizer, runner=self._float
        )
        read = imported.read(longest=found.max_length)
        self._encoder = read.encoder
        self.input_names, self.output_names = imported.input_names, imported.output_names
        self.notices: tuple[str, ...] = (
            *read.notices,
            *imported.notices,
            *found.notices,
        )
        self.model_type, self.config = found.model_type, found.config
        self.cross_encoder = found.cross_encoder
        self.tokenizer = found.tokenizer
        self.max_length = min(found.max_length, self._encoder.limit)

    def runner(self) -> Runner:
        """Return the float model on ONNX Runtime."""
        return self._float

    def sites(self, groups: Collection[SiteGroup]) -> tuple[Site, ...]:
        """Return the sites of some groups.

        Raises:
            UserInputError: A group consists of sites that are known in checkpoints only.
        """
        unsupported = sorted(set(groups) - _GROUPS)
        if unsupported:
            raise UserInputError(
                "The recipe requires a checkpoint: it quantizes sites of the group "
                f"{unsupported[0]!r}, which are not found in existing ONNX models. Pass another "
                "`recipe`, or other `targets`.",
                argument="recipe",
            )
        return sites_of(self._encoder, groups)

    def with_sites(self, groups: Collection[SiteGroup]) -> SitedSource:
        """Return the model with the sites of some groups."""
        self.sites(groups)
        # It would hold the weights a second time.
        self._float.release()
        return SitedSource(self._encoder, groups, output_names=self.output_names)
