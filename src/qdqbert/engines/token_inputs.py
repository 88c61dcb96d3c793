"""Token ids as engines without padding take them: checked, and without the padding of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError

_NEEDED = ("input_ids", "attention_mask")
_AXES = ("batch", "seq")

Integers = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenInputs:
    """The inputs of a batch.

    Attributes:
        arrays: The inputs by name, `(texts, seq)`.
        kept: `(texts, seq)`, 0 where a token has no states, which is padding.
        shape: Shape of the inputs as they were given.
    """

    arrays: Mapping[str, Integers]
    kept: Integers
    shape: tuple[int, ...]


def read_inputs(inputs: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> TokenInputs:
    """Return the inputs of a batch by the settings of a packed model.

    Tokens that expand queries have states, even with mask 0, where no token attends to them.

    Raises:
        UserInputError: An input is missing or has a wrong dtype or shape.
    """
    arrays = _checked(inputs, settings["input_names"], has_choices=settings["has_choices"])
    shape = arrays["input_ids"].shape
    flat = {
        name: np.ascontiguousarray(each, np.int64).reshape(-1, shape[-1])
        for name, each in arrays.items()
    }
    if settings["filled_id"] is not None:
        flat = _filled(flat, settings["filled_id"], settings["limit"])
    kept, expansion = flat["attention_mask"], settings["expansion_id"]
    if expansion is not None:
        kept = ((kept != 0) | (flat["input_ids"] == expansion)).astype(np.int64)
    return TokenInputs(arrays=flat, kept=kept, shape=shape)


def _filled(arrays: Mapping[str, Integers], token: int, limit: int) -> dict[str, Integers]:
    """Return texts `(texts, limit)` in which a token is where the mask is 0, and is attended to."""
    ids, mask = arrays["input_ids"], arrays["attention_mask"]
    check_lengths((mask != 0).sum(axis=1), limit)
    room = max(limit - ids.shape[1], 0)
    found = np.pad(np.where(mask != 0, ids, token), [(0, 0), (0, room)], constant_values=token)
    found = np.ascontiguousarray(found[:, :limit])
    return {"input_ids": found, "attention_mask": np.ones_like(found)}


def _checked(
    inputs: Mapping[str, NDArray[Any]], names: Sequence[str], *, has_choices: bool
) -> dict[str, NDArray[Any]]:
    """Return inputs as arrays of integers of the same shape."""
    if missing := [each for each in _NEEDED if each not in inputs]:
        raise UserInputError(f"The input `{missing[0]}` is missing.", argument=missing[0])
    arrays = {name: np.asarray(inputs[name]) for name in names if name in inputs}
    shape = arrays["input_ids"].shape
    axes = ("batch", "choices", "seq") if has_choices else _AXES
    for name, each in arrays.items():
        if each.dtype.kind not in "iub":
            raise UserInputError(f"`{name}` is {each.dtype} and has to be int64.", argument=name)
        if each.ndim != len(axes) or each.shape != shape:
            raise UserInputError(
                f"`{name}` has the shape {each.shape}; all inputs need the same shape "
                f"({', '.join(axes)}).",
                argument=name,
            )
    if not arrays["input_ids"].size:
        raise UserInputError(
            f"`input_ids` has the shape {shape}, so there are no tokens.", argument="input_ids"
        )
    return arrays


def check_lengths(lengths: Integers, limit: int) -> None:
    """Refuse texts without tokens, and texts of more tokens than the model takes.

    Raises:
        UserInputError: There is such a text.
    """
    # Lists are faster than arrays for the texts of a batch.
    found = lengths.tolist()
    if 0 in found:
        raise UserInputError(
            f"Text {int(np.argmin(lengths))} of the batch has no tokens.", argument="attention_mask"
        )
    if (most := max(found)) > limit:
        raise UserInputError(
            f"Text {int(np.argmax(lengths))} of the batch has {most} tokens; the model takes up to "
            f"{limit}. Set `max_length={limit}`.",
            argument="input_ids",
        )


def attended_tokens(inputs: TokenInputs, lengths: Integers) -> Integers:
    """Return how many tokens at the start of each text are attended to, `(texts,)`.

    `lengths` are the numbers of tokens of the texts.

    Raises:
        UserInputError: Tokens that expand a text are not at its end.
    """
    if inputs.kept is inputs.arrays["attention_mask"]:
        return lengths
    is_attended = inputs.arrays["attention_mask"] != 0
    attended: Integers = is_attended.sum(axis=1)
    # Kernels read keys from the start.
    before = np.cumsum(inputs.kept != 0, axis=1)[is_attended]
    if (before > np.repeat(attended, attended)).any() or not attended.all():
        raise UserInputError(
            "Tokens that expand a text have to follow all of its other tokens.",
            argument="attention_mask",
        )
    return attended


def word_factors(ids: NDArray[Any], starts: Integers, dropped_id: int) -> NDArray[np.float32]:
    """Return factors of the rows of words, `(tokens,)`; see `encoders.model.Embeddings`."""
    lengths = np.diff(starts)
    others = np.add.reduceat(ids[: starts[-1]] != dropped_id, starts[:-1], dtype=np.int64)
    # A text of dropped tokens alone has no words.
    return np.repeat(lengths / np.maximum(others, 1), lengths).astype(np.float32)
