"""Check that a quantized folder is intact and computes on this machine what it should."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.progress import Progress
from qdqbert.verbs.call import public
from qdqbert.verbs.verify.options import VerifyOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.verify import VerifyReport


@public(VerifyOptions)
def verify(options: VerifyOptions, progress: Progress) -> VerifyReport:
    """Check that a quantized folder is intact, and as close to float on this machine as before.

    Compares its files with their checksums, and runs each graph on each installed engine on the
    stored rows. Neither torch nor transformers is needed.

    Returns:
        The files, the versions of packages then and now, and the fidelity of each graph then and
        now. `meets_limits` tells whether nothing is wrong. A folder without checksums cannot be
        verified. What else could not be checked is in `notices`.

    Raises:
        CheckpointError: `quantize` did not write the folder.

    Example:
        >>> qdqbert.verify("./my-classifier-int8").meets_limits
        True
    """
    from qdqbert.verbs.verify.run import run

    return run(options, progress)
