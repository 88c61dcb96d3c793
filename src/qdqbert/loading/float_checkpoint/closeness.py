"""How close INT8 is to float, as the cache keeps it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

from qdqbert.common.errors import CheckpointError
from qdqbert.common.files import write_json
from qdqbert.common.json_files import read_json
from qdqbert.data.rows.lines import counted
from qdqbert.evidence.closeness import FAR_DB, in_words

_FILE = "closeness.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Closeness:
    """How close INT8 is to float on built-in texts.

    Attributes:
        texts: Number of texts.
        sqnr_db: Signal-to-quantization-noise ratio of the output, dB.
        worst_cosine: Lowest cosine of an embedding to the float model's; `None` for other outputs.
        entities: Number of entities that one of both models finds; `None` for other tasks.
        changed_entities: Number of those that the other one does not find.
        largest_difference: Largest difference of the probability of an entity, of all spans.
    """

    texts: int
    sqnr_db: float
    worst_cosine: float | None = None
    entities: int | None = None
    changed_entities: int = 0
    largest_difference: float = 0.0

    def __str__(self) -> str:
        """Return it in words."""
        more = "" if self.worst_cosine is None else f", worst cosine {self.worst_cosine:.4f}"
        if self.entities is not None:
            more = (
                f", {self.changed_entities} of {counted(self.entities, 'entity')} changed, "
                f"probabilities differ by {self.largest_difference:.3f} at most"
            )
        level = "equal" if self.sqnr_db == math.inf else f"SQNR {self.sqnr_db:.1f} dB"
        word = in_words(
            self.sqnr_db,
            worst_cosine=1.0 if self.worst_cosine is None else self.worst_cosine,
            changed_share=self.changed_entities / self.entities if self.entities else 0.0,
            largest_difference=self.largest_difference,
        )
        return f"{word} ({level} on {self.texts} built-in texts{more})"

    @property
    def facts(self) -> dict[str, Any]:
        """What is shown with a model: which answers change, for tasks whose answers are found."""
        if self.entities is None:
            return {}
        return {
            "changed_entities": f"{self.changed_entities} of {self.entities}",
            "largest_difference": round(self.largest_difference, 4),
        }

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
