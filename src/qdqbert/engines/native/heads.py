"""Heads: LayerNorm and pooling of the last hidden states, and layers on each row.

All layers are in float32. `words` finds in int8 which words of a vocabulary it need not score.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.engines.native.features import scores_words
from qdqbert.engines.native.memory import address, padded, zeros
from qdqbert.engines.native.program import Program
from qdqbert.engines.native.texts import Rows
from qdqbert.engines.native.words import Threads, Words

# Rows that take steps together before they are pooled. The scores of a vocabulary for all tokens
# would take gigabytes.
_BLOCK = 64


class Heads:
    """The heads of a model. The result of a row does not depend on the other rows.

    Attributes:
        output_names: Names of the outputs, in order.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._heads = program.settings["heads_of_model"]
        self.output_names: tuple[str, ...] = tuple(
            each["name"] for head in self._heads for each in head["outputs"]
        )
        self._weighs_places = any("weightedmean" in head["poolings"] for head in self._heads)
        self._records: dict[str, NDArray[np.int64]] = {}
        self._final_norm: NDArray[np.int64] | None = None
        if program.settings["final_norm"] is not None:
            self._final_norm = program.norm("final_norm", program.settings["final_norm"])
        self._words: dict[int, Words] = {}
        for index, head in enumerate(self._heads):
            for number, step in enumerate(head["steps"]):
                name = f"heads.{index}.{number}"
                if (
                    program.features.scores_words
                    and scores_words(head)
                    and number == head["token_steps"] - 1
                ):
                    self._words[index] = Words(program, name, step)
                elif step["kind"] == "linear":
                    self._records[name] = program.float_linear(name, step)
                elif step["kind"] == "norm":
                    self._records[name] = program.norm(name, step)

    def tokens_read(
        self, wanted: Collection[str], starts: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Return the index of the only token of each text that outputs depend on, if there is one.

        `wanted` are names of outputs, and `starts` the index of the first token of each text, and
        of the end.
        """
        if self._poolings(wanted) <= {("first",)}:
            return starts[:-1]
        return starts[1:] - 1 if self.read_last_only(wanted) else None

    def read_last_only(self, wanted: Collection[str]) -> bool:
        """Return whether some outputs depend on the states of last tokens only."""
        return self._poolings(wanted) == {("last",)}

    def _poolings(self, wanted: Collection[str]) -> set[tuple[str, ...]]:
        """Return the poolings of the heads with these outputs."""
        return {
            tuple(head["poolings"])
            for head in self._heads
            if any(each["name"] in wanted for each in head["outputs"])
        }

    def run(
        self,
        states: Rows,
        starts: NDArray[np.int64],
        wanted: Collection[str],
        threads: Threads,
        *,
        tokens_read: NDArray[np.int64] | None,
        pooled: NDArray[np.bool_] | None = None,
    ) -> dict[str, tuple[bool, Rows]]:
        """Return outputs, and whether each has a row for each token or for each text.

        Args:
            states: Hidden states with padding, `(tokens, hidden)`.
            starts: Index of the first token of each text, and of the end.
            wanted: Names of the outputs.
            threads: The threads that score words.
            tokens_read: `tokens_read` of these outputs.
            pooled: Which tokens poolings read, `(tokens,)`; `None` for all.

        Raises:
            UserInputError: A text has no token that poolings read.
        """
        found: dict[str, tuple[bool, Rows]] = {}
        if tokens_read is not None:
            # Steps before pooling depend on the token's own row only.
            states, starts = np.ascontiguousarray(states[tokens_read]), np.arange(len(starts))
        if self._final_norm is not None:
            self._program.normalize_(self._final_norm, states := states.copy())
        # Rows that poolings read, where those of each text start, and their places in it.
        places = _places(starts) if self._weighs_places else None
        every = (states, starts, places)
        some = every if pooled is None else _some_rows(states, starts, places, pooled)
        for index, head in enumerate(self._heads):
            outputs = [each for each in head["outputs"] if each["name"] in wanted]
            if not outputs:
                continue
            steps = [(f"heads.{index}.{n}", step) for n, step in enumerate(head["steps"])]
            count, width = head["token_steps"], self._program.settings["hidden"]
            poolings = head["poolings"]
            states, starts, places = every if poolings == ["none"] else some
            if index in self._words:
                before = functools.partial(self._take_steps, steps[: count - 1])
                rows = self._words[index].largest(before, states, starts, threads)
                width = steps[count - 1][1]["width"]
                # No score is negative, so that the next step, ReLU, changes none.
                count += 1
            elif count and poolings in (["max"], ["sum"]):
                rows, width = self._pool_blocks(steps[:count], states, starts, width, *poolings)
            else:
                rows, width = self._run_steps(steps[:count], states, width)
                rows, width = self._joined(rows, starts, places, width, poolings)
            rows, width = self._run_steps(steps[count:], rows, width, owned=rows is not states)
            for output in outputs:
                column = output["column"]
                values = rows[:, :width] if column is None else rows[:, column]
                found[output["name"]] = (poolings == ["none"], values)
        return found

    def _run_steps(
        self,
        steps: Sequence[tuple[str, dict[str, Any]]],
        rows: Rows,
        width: int,
        *,
        owned: bool = False,
    ) -> tuple[Rows, int]:
        """Return rows after some steps, which may overwrite owned ones, and their width."""
        if steps and not owned and steps[0][1]["kind"] != "linear":
            rows = rows.copy()
        for name, step in steps:
            rows, width = self._step(name, step, rows, width)
        return rows, width

    def _take_steps(self, steps: Sequence[tuple[str, dict[str, Any]]], states: Rows) -> Rows:
        return self._run_steps(steps, states, self._program.settings["hidden"])[0]

    def _step(self, name: str, step: dict[str, Any], rows: Rows, width: int) -> tuple[Rows, int]:
        """Return the rows after a step, with padding, and their number of channels.

        All but linear layers may overwrite the rows.
        """
        if step["kind"] == "linear":
            out = self._program.multiplied(self._records[name], rows, step["columns"])
            return out, step["width"]
        if step["kind"] == "norm":
            self._program.normalize_(self._records[name], rows)
            return rows, width
        if step["name"] == "normalize":
            length = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float32))
            return rows / np.maximum(length, np.float32(1e-12))[:, None], width
        if step["name"] == "log1p":
            # Most weights of a vocabulary are 0. In float64, as that of float32 depends on the CPU.
            flat, places = rows.reshape(-1), np.flatnonzero(rows != 0)
            flat[places] = np.log1p(flat[places], dtype=np.float64)
            return rows, width
        self._program.activate_(step["name"], rows, width)
        return rows, width

    def _pool_blocks(
        self,
        steps: Sequence[tuple[str, dict[str, Any]]],
        states: Rows,
        starts: NDArray[np.int64],
        width: int,
        pooling: str,
    ) -> tuple[Rows, int]:
        """Return the maximum or the sum of the results of steps, over the rows of each text.

        A block of rows takes the steps at a time.
        """
        pooled, wide = np.empty((0, 0), np.float32), width
        for first in range(0, len(states), _BLOCK):
            rows, wide = self._run_steps(steps, states[first : first + _BLOCK], width)
            if not first:
                start = -np.inf if pooling == "max" else 0.0
                pooled = np.full((len(starts) - 1, rows.shape[1]), start, np.float32)
            bounds = np.clip(starts - first, 0, len(rows))
            for text in np.flatnonzero(np.diff(bounds)):
                part, total = rows[bounds[text] : bounds[text + 1]], pooled[text]
                if pooling == "max":
                    np.maximum(total, part.max(axis=0), out=total)
                    continue
                # In order, so that a sum does not depend on where a block begins.
                for row in part:
                    total += row
        return pooled, wide

    def _joined(
        self,
        states: Rows,
        starts: NDArray[np.int64],
        places: NDArray[np.int64] | None,
        width: int,
        poolings: Sequence[str],
    ) -> tuple[Rows, int]:
        """Return a row for each text, with the results of the poolings, or all rows."""
        found = [self._pooled(states, starts, places, each) for each in poolings]
        if len(found) == 1:
            return found[0], width
        total = width * len(found)
        rows = zeros((len(starts) - 1, padded(total)), np.float32)
        np.concatenate([each[:, :width] for each in found], axis=1, out=rows[:, :total])
        return rows, total

    def _pooled(
        self,
        states: Rows,
        starts: NDArray[np.int64],
        places: NDArray[np.int64] | None,
        pooling: str,
    ) -> Rows:
        """Return a row for each text, or all rows."""
        if pooling == "none":
            return states
        if pooling == "first":
            return np.ascontiguousarray(states[starts[:-1]])
        if pooling == "last":
            return np.ascontiguousarray(states[starts[1:] - 1])
        if pooling == "sum":
            return self._pool_blocks((), states, starts, 0, pooling)[0]
        if pooling == "weightedmean":
            # The mean of rows times their places in the text, which a prompt shifts.
            assert places is not None
            lengths = np.diff(starts)
            shares = lengths / np.add.reduceat(places, starts[:-1])
            weights = (places * shares.repeat(lengths)).astype(np.float32)
            states, pooling = states * weights[:, None], "mean"
        found = zeros((len(starts) - 1, states.shape[1]), np.float32)
        self._program.functions[f"pool_{pooling}"](
            address(states), states.strides[0], address(starts), len(found), address(found)
        )
        return found


def _some_rows(
    states: Rows,
    starts: NDArray[np.int64],
    places: NDArray[np.int64] | None,
    pooled: NDArray[np.bool_],
) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the rows of some tokens, where those of each text start, and their places in it."""
    counts = np.append(0, np.cumsum(pooled))[starts]
    if (empty := np.flatnonzero(np.diff(counts) == 0)).size:
        raise UserInputError(
            f"Text {int(empty[0])} of the batch has only tokens of its prompt, which are not "
            "pooled. Pass a shorter prompt, or a longer text."
        )
    left = None if places is None else places[pooled]
    return np.ascontiguousarray(states[: len(pooled)][pooled]), counts, left


def _places(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each row in its text, from 1 on."""
    return np.arange(1, starts[-1] + 1) - starts[:-1].repeat(np.diff(starts))
