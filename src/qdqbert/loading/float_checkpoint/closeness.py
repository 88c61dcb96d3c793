"""How close INT8 is to float, as the cache keeps it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path

from qdqbert.common.errors import CheckpointError
from qdqbert.common.files import write_json
from qdqbert.common.json_files import read_json
from qdqbert.evidence.closeness import FAR_DB, in_words

_FILE = "closeness.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Closeness:
    """How close INT8 is to float on built-in texts.

    Attributes:
        texts: Number of texts.
        sqnr_db: Signal-to-quantization-noise ratio of the output, dB.
        worst_cosine: Lowest cosine of an embedding to the float model's; `None` for other outputs.
    """

    texts: int
    sqnr_db: float
    worst_cosine: float | None

    def __str__(self) -> str:
        """Return it in words."""
        cosine = "" if self.worst_cosine is None else f", worst cosine {self.worst_cosine:.4f}"
        level = "equal" if self.sqnr_db == math.inf else f"SQNR {self.sqnr_db:.1f} dB"
        return f"{in_words(self.sqnr_db)} ({level} on {self.texts} built-in texts{cosine})"

    @property
    def is_far(self) -> bool:
        """Whether the model is hardly usable, also if its outputs are not finite."""
        return not self.sqnr_db >= FAR_DB


def kept_closeness(folder: Path) -> Closeness | None:
    """Return how close the model of a folder is to float, if it was measured."""
    with contextlib.suppress(CheckpointError, TypeError):
        return Closeness(**read_json(folder / _FILE))
    return None


def keep_closeness(closeness: Closeness, folder: Path) -> None:
    """Write how close the model of a folder is to float. Without it, it is measured again."""
    with contextlib.suppress(OSError):
        write_json(folder / _FILE, dataclasses.asdict(closeness))
