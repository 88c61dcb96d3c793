"""An encoder as data: embeddings, linear layers, LayerNorms, attention and heads.

`families/` reads it from a checkpoint, and `graphs.encoder` from an .onnx file. Graphs are written
from it, and the native engine packs and runs it. Weights have the layout of PyTorch, `(out, in)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qdqbert.quantization.hadamard import Hadamard

Floats = NDArray[np.float32]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"]
Pooling = Literal[
    "none", "first", "last", "mean", "max", "mean_sqrt_len_tokens", "sum", "weightedmean"
]


class Later:
    """An array of floats that is made each time it is read, so that models need little memory.

    `np.asarray(later, np.float32)` reads all of it, and `later[rows]` some rows.

    Attributes:
        shape: Its shape.
    """

    def __init__(self, shape: tuple[int, ...], read: Callable[[Any], Floats]) -> None:
        """Make an array whose rows `read` returns, by an index as numpy's."""
        self.shape = shape
        self._read = read

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Floats:
        """Return some rows."""
        return self._read(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all rows; for numpy."""
        return np.array(self._read(...), dtype, copy=copy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codes:
    """Quantization of a linear layer's input to unsigned 8-bit codes.

    The code of channel `j` is `clip(rint(x[j] * multiplier[j]) + zero_point, 0, 255)`, and stands
    for `(code - zero_point) * scale`. With `pre_quant_scale` p, the multiplier is `p / scale` and
    the weight has been divided by p.

    Attributes:
        scale: Scale of the codes. 1 if it is dynamic.
        zero_point: Zero point, 0 to 255.
        multiplier: `(in,)` or `()`, float32. p, or 1, if the scale is dynamic.
        dynamic: Whether each row gets its own scale while the model runs. Codes are symmetric then,
            with the zero point 128.
        hadamard: Matrix that `x * multiplier` is multiplied by before it becomes codes. Only if
            scales are dynamic.
    """

    scale: float
    zero_point: int
    multiplier: Floats
    dynamic: bool = False
    hadamard: Hadamard | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """Fake quantization of a tensor that stays in float: `dequantize(quantize(x))`.

    Codes are `clip(rint(x / scale) + zero_point, low, high)`. With `pre_quant_scale` p, `x` is
    multiplied by it before it is quantized, and divided by it afterwards.

    Attributes:
        scale: Scale, positive.
        low: Smallest code.
        high: Largest code.
        pre_quant_scale: `(hidden,)`; `None` for 1. Only inputs of residual adds have one.
    """

    scale: float
    zero_point: int
    low: int
    high: int
    pre_quant_scale: Floats | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """`x @ weight.T + bias`, in int8 if `codes` is given.

    Attributes:
        weight: `(out, in)`. int8 codes if the layer is quantized, float32 otherwise.
        weight_scale: `(out,)`, scale of each output channel; `None` in float.
        bias: `(out,)`; zeros if the layer has none.
        codes: How the input is quantized; `None` in float.
        module: Path of its module in a model of transformers, which its sites are named after;
            empty if it is not known.
        first: Index of its first output in the module, if several layers are one module. A module
            whose layers alternate counts as one with all outputs of a layer next to each other.
    """

    weight: NDArray[np.int8] | Floats | Later
    weight_scale: Floats | None = None
    bias: Floats
    codes: Codes | None = None
    module: str = ""
    first: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norm:
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), over the last axis.

    Attributes:
        weight: `(hidden,)`.
        bias: `(hidden,)`; zeros if it has none.
        epsilon: Added to the variance.
        subtracts_mean: Whether it is a LayerNorm. RMSNorm takes the mean for 0.
    """

    weight: Floats
    bias: Floats
    epsilon: float
    subtracts_mean: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary position embeddings (Su et al. 2021, arXiv:2104.09864).

    The first half `a` and the second half `b` of the channels of a head become
    `a * cos - b * sin` and `b * cos + a * sin`, with the row of the token's position.

    Attributes:
        cos, sin: `(limit, head size / 2)`.
    """

    cos: Floats
    sin: Floats


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativePositions:
    """Disentangled attention (He et al. 2021, arXiv:2006.03654): scores of content and position.

    With row `r = rows[j - i + limit - 1]`, the score of query `i` and key `j` of a head is
    `(query[i] @ key[j] + query[i] @ keys[r] + key[j] @ queries[r]) * scale`.

    Attributes:
        keys: `(heads, rows, head size)`; `None` if queries are not multiplied by positions.
        queries: `(heads, rows, head size)`; `None` if keys are not multiplied by positions.
        rows: `(2 * limit - 1,)`, the row of each distance. Rows never decrease or never increase.
    """

    keys: Floats | None
    queries: Floats | None
    rows: NDArray[np.int32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """Self-attention without its residual add.

    `softmax(query @ key.T * scale + position_bias) @ value`, then `output`.

    Attributes:
        query, key, value, output: The linear layers.
        heads: Number of heads.
        scale: Factor of the scores, `1 / sqrt(head size)` in BERT.
        causal: Whether a token attends only to itself and those before it.
        window: A token attends only to tokens up to this far away on each side; `None` for all.
        rotary: Rotation of queries and keys; `None` if the family has none.
        relative: Tables of relative positions; `None` if the family has none.
        query_codes, key_codes, probability_codes, value_codes: Fake quantization of the inputs of
            the two matmuls, where the recipe has it.
        position_bias: `(heads, 2 * limit - 1)`, added to the score of query `i` and key `j` at
            `[:, j - i + limit - 1]`; `None` if the family has none.
        query_norm, key_norm: RMSNorm of the outputs of `query` and `key`, over the channels of all
            heads together, before they are rotated; `None` if the family has none. A LayerNorm is
            an RMSNorm of a layer whose outputs have the mean 0 (`encoders.layers.centered`).
        norms_each_head: Whether these norms are over the channels of each head instead, with one
            weight for all heads, `(head size,)`.
        scales_keys: Whether keys are multiplied by `scale` where they are quantized. Otherwise the
            scores are.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int
    scale: float
    causal: bool = False
    window: int | None = None
    rotary: Rotary | None = None
    relative: RelativePositions | None = None
    query_codes: RoundTrip | None = None
    key_codes: RoundTrip | None = None
    probability_codes: RoundTrip | None = None
    value_codes: RoundTrip | None = None
    position_bias: Floats | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    norms_each_head: bool = False
    scales_keys: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Residual:
    """`norm(local + states)`, with fake quantization of both where the recipe has it.

    Attributes:
        local_norm: Norm of the part's output before it is added (Gemma 3); `None` without.
        norm: LayerNorm of the sum; `None` in layers that normalize first.
        local_codes, residual_codes: Fake quantization of what is added, and of the states.
        again: LayerNorm after the states are added a second time,
            `again(norm(local + states) + states)`; `None` if they are added once.
    """

    local_norm: Norm | None = None
    norm: Norm | None = None
    local_codes: RoundTrip | None = None
    residual_codes: RoundTrip | None = None
    again: Norm | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """Feed-forward parts of a layer, of which each token takes a few.

    Their outputs are multiplied by `softmax(x @ router.T)` and added. These weights are not divided
    by the sum of those that are chosen. Source: Shazeer et al. 2017, arXiv:1701.06538.

    Attributes:
        router: `(experts, hidden)`, in float.
        chosen: Number of experts of a token, those with the largest weights.
        bias: `(hidden,)`, added to the sum.
    """

    router: Floats
    chosen: int
    bias: Floats


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """An encoder layer: attention and a feed-forward part, each with a residual add.

    BERT normalizes after each add. Layers that normalize first have `attention_norm` and `up_norm`
    instead, which the residual does not pass.

    Attributes:
        attention_norm: LayerNorm of the attention's input; `None` if it reads the states.
        attention_residual: The residual add after it.
        up_norm: LayerNorm of the feed-forward part's input; `None` if it reads the states.
        up: First linear layer of the feed-forward part.
        gate: A linear layer with the input of `up`, by whose output the activation is multiplied;
            `None` if there is none.
        down: Last linear layer.
        residual: The residual add after it.
        experts: Chooses experts for each token; `None` if all take the same part. `up` and `down`
            have the rows of all experts then, one expert after another.
    """

    attention: Attention
    attention_residual: Residual
    up: Linear
    activation: Activation
    down: Linear
    residual: Residual
    gate: Linear | None = None
    attention_norm: Norm | None = None
    up_norm: Norm | None = None
    experts: Experts | None = None

    @property
    def parts(self) -> int:
        """Number of feed-forward parts, which `up` and `down` have one after another."""
        return 1 if self.experts is None else len(self.experts.router)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of the embeddings over the tokens of a text, added to states.

    `norm(states + activation(linear(near)))`, where `near` has the embeddings of an odd number of
    tokens one after another, with the own one in the middle, and zeros outside of the text.

    Attributes:
        linear: `(hidden, tokens * hidden)`, in float.
        norm: LayerNorm of the sum.
    """

    linear: Linear
    activation: Activation
    norm: Norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """An embedding table.

    Attributes:
        rows: `(rows, width)`, int8 codes or float32.
        scale: `(width,)`, scale of each channel, or `(rows, 1)`, of each row, in models without
            layers; `None` in float.
        module: Path of its module in a model of transformers, which its site is named after; empty
            if it is not known.
    """

    rows: NDArray[np.int8] | Floats | Later
    scale: Floats | None = None
    module: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embeddings:
    """The sum of the embedding tables, normalized in most families.

    Attributes:
        words: Table of the vocabulary.
        positions: Table of positions; `None` if the family has none. The first token of a text has
            row `first_position`; with `padding_id` the row after it, and padding tokens have it.
        token_types: Table of token types; `None` if the family has none.
        norm: LayerNorm of the sum; `None` if the layers read the sum itself.
        projection: Linear layer after the LayerNorm, if the embeddings are narrower than the
            hidden states (ELECTRA).
        padding_id: Id of the padding token, if positions are counted over other tokens only
            (RoBERTa); `None` if every token counts.
        dropped_id: Id of a token that counts as dropped (ESM): rows of words are multiplied by the
            number of tokens of the text, divided by the number of other tokens. `None` without one.
        first_position: Number of rows of `positions` that no token uses before others.
        factor: Factor of the rows of words (Gemma).
    """

    words: Table
    positions: Table | None = None
    token_types: Table | None = None
    norm: Norm | None = None
    projection: Linear | None = None
    padding_id: int | None = None
    dropped_id: int | None = None
    first_position: int = 0
    factor: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadOutput:
    """An output of the model, taken from the result of a head.

    Attributes:
        column: Take this column and drop the last axis; `None` takes all columns.
    """

    name: str
    column: int | None = None


Step = Linear | Norm | Activation | Literal["log1p", "normalize"]
"""A step of a head.

`"log1p"` is the logarithm of 1 + x. `"normalize"` divides each row by its Euclidean length, at
least 1e-12.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """A head on the last hidden states: pooling, and steps on each row.

    Attributes:
        poolings: Which rows the steps read: every token's if there is only "none", or one per
            text. The vectors of several poolings are joined, in this order.
        steps: Its operations, in order.
        outputs: Outputs of the model with this result.
        token_steps: How many of the steps each token takes before pooling.
    """

    poolings: tuple[Pooling, ...]
    steps: tuple[Step, ...]
    outputs: tuple[HeadOutput, ...]
    token_steps: int = 0

    @property
    def is_of_tokens(self) -> bool:
        """Whether each token has a row."""
        return self.poolings == ("none",)


TAIL_STATES = "encoder_states"
"""Name of the last hidden states among the inputs of a tail."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tail:
    """Unknown operations behind the last hidden states of an .onnx file.

    Attributes:
        graph: An ONNX graph, as the bytes of a `ModelProto`, of standard operators in float.
        inputs: Names of its inputs: of inputs of the model, outputs of its heads, or `TAIL_STATES`.
        outputs: Names of its outputs, which are outputs of the model.
    """

    graph: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderModel:
    """A whole model.

    Attributes:
        embeddings: Token ids to hidden states.
        final_norm: LayerNorm after the last layer; `None` if layers end with one.
        heads: Heads on the last hidden states.
        limit: Longest text in tokens.
        input_names: Names of the inputs, in the order of the graph.
        has_choices: Whether inputs are `(batch, choices, seq)`, and outputs `(batch, choices)`.
        convolution: Convolution whose output is added to the states after the first layer, if any.
        tail: Operations for further outputs; `None` if the heads compute all.
        expansion_id: Id of the token that expands queries, if its states are needed where the mask
            is 0: it attends to the tokens of the query, and no token attends to it.
        filled_id: Id of the token that each text is filled with up to `limit`, and that tokens
            attend to; `None` if texts have any length.
    """

    embeddings: Embeddings
    layers: Sequence[Layer]
    heads: tuple[Head, ...]
    limit: int
    input_names: tuple[str, ...]
    final_norm: Norm | None = None
    has_choices: bool = False
    convolution: Convolution | None = None
    tail: Tail | None = None
    expansion_id: int | None = None
    filled_id: int | None = None
