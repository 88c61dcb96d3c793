"""What the texts of a call begin with, which some engines compute once.

A reranker that is a language model reads the same instruction and query before each document, and
an embedder the same prompt before each text.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.runner import Outputs, Runner, SharesPrefixes
from qdqbert.runtime.batches import Feature

_INPUTS = {"input_ids", "attention_mask"}
# A pass over fewer tokens takes as long, because the weights have to be read.
_FEW_TOKENS = 64
# Tokens that sharing saves at least.
_LEAST_SAVED = 64
# The part of what texts have in common that a known prefix must have, and prefixes that are kept.
_SHARE, _MOST = 0.8, 4


class SharedPrefix:
    """The tokens that some texts begin with. It is computed when it is first needed.

    Attributes:
        tokens: Number of the tokens.
    """

    def __init__(self, ids: NDArray[np.int32]) -> None:
        """Keep the token ids `(tokens,)`."""
        self._ids = ids
        self.tokens = len(ids)
        self._lock = threading.Lock()
        self._computed: dict[int, Any] = {}

    def begins(self, ids: NDArray[np.int32]) -> bool:
        """Return whether token ids begin with these tokens."""
        return np.array_equal(self._ids, ids[: self.tokens])

    def run(
        self,
        runner: SharesPrefixes,
        inputs: Mapping[str, NDArray[Any]],
        wanted: Collection[str] | None,
    ) -> Outputs:
        """Return the outputs of texts, of whose inputs the prefix is a part."""
        # Other batches wait, instead of computing it, too.
        with self._lock:
            if id(runner) not in self._computed:
                self._computed[id(runner)] = runner.read_prefix(self._ids)
            found = self._computed[id(runner)]
        rest = {name: each[:, self.tokens :] for name, each in inputs.items()}
        return runner.run_after(found, rest, wanted)


class Prefixes:
    """What the texts of one call begin with. Its parts may run in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: list[SharedPrefix] = []

    def of(
        self, runner: Runner, features: Sequence[Feature], wanted: Collection[str] | None
    ) -> SharedPrefix | None:
        """Return what some texts begin with; `None` if nothing is gained by computing it once.

        One that another part of the call has is taken if it is nearly as long.

        Args:
            runner: What runs the texts.
            features: Their inputs.
            wanted: Names of the outputs that are needed; `None` for all.
        """
        if not features or (len(features) < 2 and not self._known):
            return None
        if not isinstance(runner, SharesPrefixes) or not runner.shares_prefixes(wanted):
            return None
        # Other inputs say more of a token than that it is there.
        if not features[0].keys() <= _INPUTS:
            return None
        common = _common([np.asarray(each["input_ids"]) for each in features])
        with self._lock:
            for each in self._known:
                if each.begins(common) and each.tokens >= _SHARE * len(common):
                    return each
            gained = len(features) * len(common) - max(len(common), _FEW_TOKENS)
            if len(features) < 2 or gained < _LEAST_SAVED:
                return None
            made = SharedPrefix(common)
            self._known = [*self._known[1 - _MOST :], made]
            return made


def _common(ids: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Return the token ids that texts begin with, without the last one of any text."""
    # Its state is the text's own.
    tokens = min(len(each) for each in ids) - 1
    for each in ids[1:]:
        differs = np.flatnonzero(each[:tokens] != ids[0][:tokens])
        tokens = int(differs[0]) if differs.size else tokens
    return ids[0][:tokens].astype(np.int32)
