"""Options of `push`."""

from __future__ import annotations

from qdqbert.common.objects import InputOption
from qdqbert.common.options.declared import option
from qdqbert.pipeline.calls import Call


class PushOptions(Call):
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote, or its URL.
        repo: OWNER/NAME of the model on the hub.
        private: Make a new repository that only you and your organization can read. An existing one
            that everyone can read is refused.
        publish_texts: Upload to a public repository even if the report shows texts of your data:
            examples whose prediction changed.
        dry_run: List the files and their sizes, and upload nothing.
    """

    model: InputOption = option(kw_only=False)
    repo: str = option(kw_only=False)
    private: bool = True
    publish_texts: bool = False
    dry_run: bool = False
