"""Upload a quantized folder to the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.progress import Progress
from qdqbert.verbs.call import public
from qdqbert.verbs.push.options import PushOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.push import PushReport


@public(PushOptions)
def push(options: PushOptions, progress: Progress) -> PushReport:
    """Upload a quantized folder to the Hugging Face hub, from which `load` downloads it again.

    Makes the repository if it does not exist, and uploads all files of the folder in one commit.
    Files that the repository has and the folder does not have stay there.

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
    from qdqbert.verbs.push.run import run

    return run(options, progress)
