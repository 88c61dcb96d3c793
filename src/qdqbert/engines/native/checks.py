"""Check that a packed model has the settings and the arrays that kernels rely on.

Kernels get addresses and sizes only, so a file whose arrays are smaller than its settings say would
make them read other memory. Everything is compared here before a kernel gets an address.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, get_args

import numpy as np

from qdqbert.common.errors import CheckpointError
from qdqbert.common.json_files import LARGEST_FLOAT, Fields
from qdqbert.encoders.model import Pooling
from qdqbert.engines.native.features import SPREAD, Features
from qdqbert.engines.native.functions import ACTIVATIONS
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.memory import LINE, padded
from qdqbert.engines.native.schema import LINEARS, NORMS, ROUNDINGS, sizes
from qdqbert.engines.native.storage import Packed

# Sums of this number of products of 8-bit codes fit in 32 bits.
_LARGEST = 65_536
# Arrays of scales, and of their inverses. Only padding has zeros.
_SCALES = ("word_scale", ".factor", ".multiplier", ".step", ".value_bounds")
_MOST_EXPERTS = 1024
# A convolution is over a few tokens.
_MOST_TOKENS = 63
# A head may have one output for each word of a vocabulary.
_MOST_WORDS = 2**31 - 1
# Messages of protocol buffers are smaller.
_MOST_BYTES = 2**31 - 1
_INPUTS = ("input_ids", "attention_mask")

# A length of `None` is any number from 1.
Shape = tuple[int | None, ...]
Expected = tuple[str, type[np.generic], Shape]


class _Words(NamedTuple):
    """The table of words: its shape, zeros if it is none, and whether it has codes."""

    rows: int
    width: int
    are_int8: bool


def check_packed(packed: Packed) -> Features:
    """Compare each setting with its limits, and each array with the settings.

    Returns:
        The features of the model.

    Raises:
        CheckpointError: A setting is missing or has a wrong value, or an array is missing, unknown,
            or has another dtype or shape.
    """
    settings = Fields(packed.settings, _wrong)
    expected = {each[0]: each[1:] for each in _model(settings, packed)}
    if unknown := sorted(packed.arrays.keys() ^ expected.keys()):
        state = "is missing" if unknown[0] in expected else "is unknown"
        raise _wrong(f"array {unknown[0]!r} {state}")
    for name, (dtype, shape) in expected.items():
        array = packed.arrays[name]
        lengths = zip(array.shape, shape, strict=False)
        fits = array.ndim == len(shape) and all(
            length >= 1 if wanted is None else length == wanted for length, wanted in lengths
        )
        if array.dtype != dtype or not fits:
            raise _wrong(
                f"array {name!r} is {array.dtype} {array.shape}, and the settings need "
                f"{np.dtype(dtype)} ({', '.join('any' if n is None else str(n) for n in shape)})"
            )
        if dtype is np.float32:
            lowest = 0.0 if name.endswith(_SCALES) else -LARGEST_FLOAT
            # Both are NaN if a value is.
            if not (array.min() >= lowest and array.max() <= LARGEST_FLOAT):
                raise _wrong(
                    f"array {name!r} has a value that is not from {lowest} to {LARGEST_FLOAT}"
                )
    return Features.read(settings)


def _wrong(reason: str) -> CheckpointError:
    return CheckpointError(f"The packed model is damaged: {reason}. Quantize the model again.")


def _model(settings: Fields, packed: Packed) -> Iterator[Expected]:
    """Check the settings of a model, and yield the arrays that it needs."""
    heads, size = settings.integer("heads"), settings.integer("head_size", multiple=PANEL)
    if padded(heads * size) > _LARGEST:
        raise _wrong(f"{heads} heads of {size} channels are too many")
    limit = settings.integer("limit")
    settings.number("score_scale")
    for name, channels in SPREAD.items():
        if settings.get(name) is not None:
            _matrix(settings.child(name), settings.integer(channels))
            if not settings.truth("dynamic"):
                raise _wrong(f"setting {name!r} does not fit dynamic=False")
    if settings.truth("floats") and settings.truth("dynamic"):
        raise _wrong("setting 'floats' does not fit dynamic=True")
    if settings.truth("norms_each_head") and not settings.truth("normalizes_heads"):
        raise _wrong("setting 'norms_each_head' does not fit normalizes_heads=False")
    for name in ("causal", "bounds_values", "fits_16_bits", "has_choices"):
        settings.truth(name)
    if settings.truth("bounds_values") and (
        settings.truth("floats") or not settings.truth("causal")
    ):
        raise _wrong("setting 'bounds_values' fits causal models in int8 only")
    names = settings.names("input_names")
    if missing := [each for each in _INPUTS if each not in names]:
        raise _wrong(f"the inputs {names} have no {missing[0]!r}")
    has_padding = settings.get("padding_id") is not None
    if has_padding:
        settings.integer("padding_id", 0, 2**31 - 1)
    for name in ("dropped_id", "expansion_id", "filled_id"):
        if settings.get(name) is not None:
            settings.integer(name, 0, 2**31 - 1)
    words = _words(settings, packed)
    yield from _embeddings(settings, limit + has_padding, words)
    yield from _convolution(settings, words)
    yield from _optional_norm(settings, "final_norm", "final_norm", settings.integer("hidden"))
    layers = settings.children("layers")
    if not layers:
        raise _wrong("it has no layers")
    # Positions of tokens start at 1 if padding tokens have position 0. Rotations start at 0, and
    # each belongs to a layer.
    rotations = settings.integer("rotations", 0, 0 if has_padding else len(layers))
    for index in range(rotations):
        settings.integer("head_size", multiple=2 * PANEL)
        yield f"rotations.{index}", np.float32, (limit, 2, size // 2)
    tables = yield from _relative(settings, packed, limit)
    for index, layer in enumerate(layers):
        name = f"layers.{index}"
        yield from _layer(settings, layer, name)
        if settings.truth("bounds_values"):
            yield f"{name}.value_bounds", np.float32, (padded(heads * size),)
        for part, rows in tables.items():
            yield f"{name}.{part}", np.float32, (heads, rows // PANEL, size, PANEL)
        # Either all layers are rotated or none.
        if rotations or layer.get("rotation") is not None:
            layer.integer("rotation", 0, rotations - 1)
        if (bias := f"{name}.position_bias") in packed.arrays:
            # Kernels read whole vectors of keys.
            yield bias, np.float32, (padded(heads * (2 * limit - 1) + PANEL, PANEL),)
    yield from _heads(settings, words)
    yield from _tail(settings)


def _words(settings: Fields, packed: Packed) -> _Words:
    shape = packed.arrays["words"].shape if "words" in packed.arrays else ()
    rows, width = shape if len(shape) == 2 else (0, 0)
    return _Words(rows, width, settings.child("embeddings").truth("int8"))


def _embeddings(settings: Fields, positions: int, words: _Words) -> Iterator[Expected]:
    embeddings = settings.child("embeddings")
    own = embeddings.integer("width")
    width = padded(own)
    if embeddings.get("projection") is None:
        embeddings.equal("width", settings.integer("hidden"))
    else:
        projection = embeddings.child("projection")
        projection.equal("width", settings.integer("hidden"))
        yield from _float_linear(projection, "projection", own, words)
    yield "words", np.int8 if words.are_int8 else np.float32, (None, width)
    if words.are_int8:
        yield "word_scale", np.float32, (width,)
    yield "positions", np.float32, (positions if embeddings.truth("has_positions") else 1, width)
    yield "token_types", np.float32, (None if embeddings.truth("has_types") else 1, width)
    yield from _optional_norm(embeddings, "norm", "embedding_norm", own)


def _convolution(settings: Fields, words: _Words) -> Iterator[Expected]:
    """Check the convolution after the first layer, if there is one."""
    if settings.get("convolution") is None:
        return
    found, hidden = settings.child("convolution"), settings.integer("hidden")
    tokens = found.integer("tokens", high=_MOST_TOKENS)
    if tokens % 2 == 0:
        raise found.refuse("tokens", tokens, "an odd number")
    found.choice("activation", tuple(ACTIVATIONS))
    linear = found.child("linear")
    linear.equal("width", hidden)
    yield from _float_linear(linear, "convolution", tokens * padded(hidden), words)
    yield from _norm(found.child("norm"), "convolution_norm", hidden)


def _relative(
    settings: Fields, packed: Packed, limit: int
) -> Generator[Expected, None, dict[str, int]]:
    """Check tables of relative positions, and return their numbers of rows by name.

    The numbers of rows are addresses for kernels.
    """
    if settings.get("relative") is None:
        return {}
    relative = settings.child("relative")
    count = relative.integer("rows")
    parts = [part for part in ("keys", "queries") if relative.truth(part)]
    if not parts:
        raise _wrong("setting 'relative' has neither keys nor queries")
    name, places = "relative_rows", 2 * limit - 1
    yield name, np.int32, (padded(places, PANEL),)
    rows = packed.arrays.get(name, np.zeros(1, np.int32)).ravel()[:places]
    if rows.size and (rows.min() < 0 or rows.max() >= count or (rows[1:] < rows[:-1]).any()):
        raise _wrong(f"array {name!r} is not in order from 0 to {count - 1}")
    return {f"relative_{part}": padded(count, PANEL) for part in parts}


def _layer(settings: Fields, layer: Fields, name: str) -> Iterator[Expected]:
    """Check a layer, apart from its tables of positions."""
    layer.truth("shares_codes")
    if layer.get("window") is not None:
        layer.integer("window", 0)
    counts = sizes(
        hidden=settings.integer("hidden"),
        inner=settings.integer("inner"),
        heads=settings.integer("heads"),
        head_size=settings.integer("head_size"),
        norms_each_head=settings.truth("norms_each_head"),
        gated=settings.truth("gated"),
        experts=(yield from _experts(settings, layer, name)),
    )
    if settings.truth("adds_twice") and settings.truth("norms_first"):
        raise _wrong("setting 'adds_twice' does not fit norms_first=True")
    for part, linear in LINEARS.items():
        depth, columns = counts[linear.depth], counts[linear.columns]
        yield from _linear(settings, layer.child(part), f"{name}.{part}", depth, columns)
    for part, norm in NORMS.items():
        is_needed = all(settings.truth(each) == value for each, value in norm.needs.items())
        is_free = is_needed and norm.is_optional
        if not is_free and (layer.get(part) is not None) != is_needed:
            needs = ", ".join(f"{each}={settings.truth(each)}" for each in norm.needs)
            raise _wrong(f"setting '{name}.{part}' does not fit {needs}")
        yield from _optional_norm(layer, part, f"{name}.{part}", counts[norm.width])
    for part, rounding in ROUNDINGS.items():
        yield from _rounding(layer, part, f"{name}.{part}", counts[rounding.channels])


def _experts(settings: Fields, layer: Fields, name: str) -> Generator[Expected, None, int | None]:
    """Check what chooses experts, and return their number; `None` without any."""
    if layer.get("experts") is None:
        return None
    if any(settings.truth(each) for each in ("gated", "norms_first", "norms_parts")):
        raise _wrong(f"setting '{name}.experts' does not fit gates, or norms of parts")
    if not (settings.truth("dynamic") or settings.truth("floats")) or any(
        layer.get(part) is not None for part, each in ROUNDINGS.items() if each.is_of_add
    ):
        raise _wrong(f"setting '{name}.experts' does not fit stored ranges")
    experts, hidden = layer.child("experts"), settings.integer("hidden")
    router = experts.child("router")
    count = router.integer("width", high=_MOST_EXPERTS)
    experts.integer("chosen", 1, count)
    if router.truth("tied"):
        raise _wrong(f"setting '{name}.experts.router' is tied")
    yield from _float_linear(router, f"{name}.router", hidden, _Words(0, 0, False))
    yield f"{name}.experts_bias", np.float32, (padded(hidden),)
    return count


def _linear(
    model: Fields, settings: Fields, name: str, depth: int, columns: int
) -> Iterator[Expected]:
    settings.equal("depth", depth)
    settings.equal("columns", columns)
    if model.truth("floats"):
        yield f"{name}.weights", np.float32, (columns // PANEL, depth, PANEL)
        yield f"{name}.bias", np.float32, (columns,)
        return
    settings.integer("zero_point", 0, 255)
    yield f"{name}.weights", np.int8, (columns // PANEL, depth // 4, PANEL, 4)
    yield f"{name}.start", np.int32, (columns,)
    yield f"{name}.factor", np.float32, (columns,)
    yield f"{name}.bias", np.float32, (columns,)
    yield f"{name}.multiplier", np.float32, (depth,)


def _matrix(settings: Fields, channels: int) -> None:
    """Check a matrix whose members are whole vectors of kernels, and blocks are parts of one."""
    members, block = settings.integer("members", 1, 8), settings.integer("block", 1, PANEL)
    multiple = members * (PANEL if members > 1 else block)
    if members & (members - 1) or block & (block - 1) or channels % multiple:
        raise _wrong(f"{channels} channels have no groups of {members} times {block}")


def _rounding(settings: Fields, part: str, name: str, channels: int) -> Iterator[Expected]:
    if settings.get(part) is None:
        return
    rounding = settings.child(part)
    low = rounding.integer("low", -255, 255)
    high = rounding.integer("high", low, 255)
    rounding.integer("zero_point", low, high)
    yield f"{name}.multiplier", np.float32, (channels,)
    yield f"{name}.step", np.float32, (channels,)


def _float_linear(settings: Fields, name: str, width: int, words: _Words) -> Iterator[Expected]:
    """Check a linear layer in float of some channels, which may have the weights of the table."""
    depth, columns = padded(width), padded(settings.integer("width", high=_MOST_WORDS), PANEL)
    settings.equal("depth", depth)
    settings.equal("columns", columns)
    if settings.truth("tied"):
        settings.equal("width", words.rows)
        settings.equal("depth", words.width)
        if words.are_int8:
            yield "word_rest", np.int8, (words.rows, words.width)
    else:
        yield f"{name}.weights", np.float32, (columns // PANEL, depth, PANEL)
    yield f"{name}.bias", np.float32, (columns,)


def _norm(settings: Fields, name: str, width: int) -> Iterator[Expected]:
    settings.equal("width", width)
    settings.number("epsilon", 0)
    settings.truth("subtracts_mean")
    for part in ("weight", "bias"):
        yield f"{name}.{part}", np.float32, (padded(width),)


def _optional_norm(settings: Fields, part: str, name: str, width: int) -> Iterator[Expected]:
    if settings.get(part) is not None:
        yield from _norm(settings.child(part), name, width)


def _tail(settings: Fields) -> Iterator[Expected]:
    """Check the tail, if there is one."""
    if settings.get("tail") is not None:
        tail = settings.child("tail")
        tail.names("inputs")
        tail.names("outputs")
        yield "tail", np.int8, (padded(tail.integer("bytes", high=_MOST_BYTES), LINE),)


def _poolings(head: Fields) -> list[Any]:
    """Check the poolings of a head, and return them."""
    found, known = head.list_of("poolings"), get_args(Pooling)
    if not 0 < len(found) <= len(known) or any(each not in known for each in found):
        raise head.refuse("poolings", found, f"some of {', '.join(known)}")
    if len(found) > 1 and "none" in found:
        raise head.refuse("poolings", found, "'none' alone, or others")
    return found


def _heads(settings: Fields, words: _Words) -> Iterator[Expected]:
    """Check the heads: the channels of each step have to fit the step before it."""
    names: list[Any] = []
    for index, head in enumerate(settings.children("heads_of_model")):
        width = settings.integer("hidden")
        poolings = _poolings(head)
        steps = head.children("steps")
        token_steps = head.integer("token_steps", 0, len(steps))
        for number, step in enumerate(steps):
            width *= len(poolings) if number == token_steps else 1
            name = f"heads.{index}.{number}"
            kind = step.choice("kind", ("linear", "norm", "function"))
            if kind == "function":
                step.choice("name", (*ACTIVATIONS, "log1p", "normalize"))
            elif kind == "norm":
                yield from _norm(step, name, width)
            else:
                yield from _float_linear(step, name, width, words)
                width = step.integer("width", high=_MOST_WORDS)
        width *= len(poolings) if token_steps == len(steps) else 1
        for output in head.children("outputs"):
            names.append(output.get("name"))
            if output.get("column") is not None:
                output.integer("column", 0, width - 1)
    if not all(isinstance(each, str) for each in names) or len(set(names)) < max(1, len(names)):
        raise _wrong(f"the outputs {names} are not different names")
