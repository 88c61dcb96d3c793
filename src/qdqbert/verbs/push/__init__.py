"""Upload a quantized folder to the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.push.options import PushOptions

if TYPE_CHECKING:
    from qdqbert.verbs.push.report import PushReport


def push(
    model: str | Path,
    repo: str,
    *,
    private: bool = True,
    publish_texts: bool = False,
    dry_run: bool = False,
    progress: Progress | bool = False,
) -> PushReport:
    """Upload a quantized folder to the Hugging Face hub, from which `load` downloads it again.

    Makes the repository if it does not exist, and uploads all files of the folder in one commit.
    Files that the repository has and the folder does not have stay there.

    Args:
        model: Folder that `quantize` wrote.
        repo: OWNER/NAME of the model on the hub.
        private: Make a new repository that only you and your organization can read. An existing one
            that everyone can read is refused.
        publish_texts: Upload to a public repository even if the report shows texts of your data:
            examples whose prediction changed.
        dry_run: List the files and their sizes, and upload nothing.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        The files with their sizes, and the address of the commit.

    Raises:
        CheckpointError: `quantize` did not write the folder.
        UserInputError: A file of the folder was changed, the name is not allowed, texts of your
            data would be published, you may not write to the repository, or the hub cannot be
            reached.

    Example:
        >>> qdqbert.push("./my-classifier-int8", "me/my-classifier-int8", dry_run=True).size_bytes
        23471204
    """
    # The parameters are the fields of the options, which a test checks.
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    from qdqbert.verbs.push.run import run

    return run(PushOptions(**arguments), shown)
