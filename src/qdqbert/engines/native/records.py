"""Records that Python fills and kernels read: C structs of 8-byte fields."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.ir import F32, I64, PTR, Type, Value
from qdqbert.engines.native.schema import NORMS


class Record:
    """Names and types of the fields of a record: pointers, i64 and float."""

    def __init__(self, **fields: Type) -> None:
        """Declare the fields, in order."""
        assert set(fields.values()) <= {PTR, I64, F32}
        self.fields = fields
        self.size = 8 * len(fields)

    def index(self, name: str) -> int:
        """Return the number of a field."""
        return list(self.fields).index(name)

    def offset(self, name: str) -> int:
        """Return the offset of a field, in bytes."""
        return 8 * self.index(name)

    def read(self, record: Value, name: str) -> Value:
        """Write the load of a field in a kernel."""
        return record.function.load(self.fields[name], record + self.offset(name), aligned=True)

    def each(self, record: Value, *names: str) -> list[Value]:
        """Write the loads of some fields."""
        return [self.read(record, name) for name in names]

    def write(self, record: Value, name: str, value: Value) -> None:
        """Write the store of a field in a kernel."""
        record.function.store(value, record + self.offset(name), aligned=True)

    def make(self, **values: int | float | NDArray[np.generic] | None) -> NDArray[np.int64]:
        """Return a record. Fields without a value, or with `None`, are 0.

        Arrays become the addresses of their data; the caller keeps them.
        """
        assert values.keys() <= self.fields.keys(), values.keys() - self.fields.keys()
        slots = (_slot(type, values.get(name)) for name, type in self.fields.items())
        return np.fromiter(slots, np.int64, len(self.fields))


def _slot(type: Type, value: int | float | NDArray[np.generic] | None) -> int:
    if isinstance(value, np.ndarray):
        assert type == PTR
        assert value.flags.c_contiguous
        return int(value.ctypes.data)
    if value is None:
        return 0
    if type == F32:
        return int(np.float32(value).view(np.uint32))
    return int(value)


LINEAR = Record(
    weights=PTR,  # packed panels of 16 columns
    panel=I64,  # bytes from one panel to the next
    panels=I64,
    steps=I64,  # depth / 4; the depth in float
    # int32 per column: what sums start from, see `kernels.dot`: -zero_point * sum of the weights;
    # zero point 128 if dynamic. Estimates of scores have a margin there. In float it is the bias,
    # float32, and the other two are null.
    first_sums=PTR,
    factor=PTR,  # float32 per column: scale of the weights, times the codes' scale if it is static
    bias=PTR,  # float32 per column
)
"""A linear layer of a layer, whose weights are int8 or float32."""

CODES = Record(
    multiplier=PTR,  # float32 per channel
    shift=F32,  # ROUNDING + zero point, if it is static
    step=I64,  # bytes between members of a group whose channels are spread
)
"""How float32 becomes codes."""

ROW_SCALE = 4
"""Bytes of the dynamic scale of a row of codes, float32."""

ROUND_TRIP = Record(
    multiplier=PTR,  # float32 per channel
    step=PTR,  # float32 per channel
    shift=F32,  # ROUNDING + zero point
    low=F32,  # ROUNDING + lowest code
    high=F32,  # ROUNDING + highest code
    is_kept=I64,  # 1 to leave values as they are
)
"""Fake quantization of values that stay in float32."""

NORM = Record(
    weight=PTR,
    bias=PTR,
    epsilon=F32,
    width=I64,  # channels without padding
    subtracts_mean=F32,  # 1 for LayerNorm, 0 for RMSNorm
)
"""A LayerNorm or RMSNorm."""

LAYER = Record(
    projections=PTR,  # LINEAR records of query, key and value
    projection_codes=PTR,  # CODES records of their inputs
    shares_codes=I64,  # 1 if the three inputs have the same codes
    context_codes=PTR,  # CODES
    output=PTR,  # LINEAR
    up_codes=PTR,  # CODES
    up=PTR,  # LINEAR
    down_codes=PTR,  # CODES
    down=PTR,  # LINEAR
    **dict.fromkeys(NORMS, PTR),  # NORM records of the schema; null for those that are not there
    index=I64,  # number of the layer in the model
    value_bounds=PTR,  # float32 (width,): the largest values; null if scales are those of a text
    position_bias=PTR,  # float32 (heads, 2 * limit - 1), times log2(e); null if there is none
    window=I64,  # tokens on each side that a token attends to; `limit` for all
    relative_keys=PTR,  # float32, panels of a table for each head; null if there is none
    relative_queries=PTR,  # the same for the table that keys are multiplied by
    rotation=PTR,  # float32 (limit, 2, head_size / 2): cosines and sines; null if there is none
    roundings=PTR,  # addresses of ROUND_TRIP records of query, key and value; null for none
    probability_rounding=PTR,  # ROUND_TRIP of one channel, if the model has roundings
    # Two ROUND_TRIP records, of the part's output and of the states, for each residual add; null if
    # neither is rounded.
    attention_add=PTR,
    add=PTR,
    experts=I64,  # their number; 0 if all tokens take the same feed-forward part
    chosen=I64,  # experts of a token
    router=PTR,  # FLOAT_LINEAR from hidden states to a score of each expert
    experts_bias=PTR,  # float32 (hidden,)
)
"""An encoder layer."""

MODEL = Record(
    layers=PTR,  # LAYER records
    layer_count=I64,
    hidden=I64,  # channels of a hidden state with padding
    heads=I64,
    head_size=I64,  # with padding
    width=I64,  # heads * head_size with padding
    group=I64,  # heads that are computed together
    block=I64,  # rows that are computed together at most
    float_rows=I64,  # rows of the feed-forward part that are in float32 at most
    inner=I64,  # channels of the feed-forward part with padding
    expert_columns=I64,  # scores of experts of a token, with padding
    score_scale=F32,  # factor of scores, times log2(e)
    limit=I64,  # longest text in tokens
    causal=I64,  # 1 if a token attends only to itself and those before it
    relative_rows=PTR,  # int32 (2 * limit - 1,): row of a table for key - query, in order
    relative_panels=I64,  # panels of a table for each head
    embedding_width=I64,  # channels of the embedding tables with padding
    words=PTR,  # int8 or float32 (vocabulary, embedding_width)
    word_scale=PTR,  # float32 per channel; null if words are float32
    positions=PTR,  # float32 (positions, embedding_width)
    token_types=PTR,  # float32 (types, embedding_width)
    embedding_norm=PTR,  # NORM; null if the sum is not normalized
    projection=PTR,  # FLOAT_LINEAR from embedding_width to hidden; null if they are equal
    embeds=I64,  # 1 to compute the embeddings, 0 if `x` has the states that the first layer reads
)
"""A model."""

JOB = Record(
    ids=PTR,  # int32 per token
    positions=PTR,  # int32 per token
    token_types=PTR,  # int32 per token
    word_factors=PTR,  # float32 per token, if rows of words have such factors
    starts=PTR,  # i64 per text and the end: index of its first token
    attended=PTR,  # i64 per text: how many tokens at its start are attended to
    texts=I64,  # number of texts
    # Tokens before each text whose keys and values are known, and these: float32 (layers, 2, heads,
    # prefix, head_size).
    prefix=I64,
    prefix_states=PTR,
    saved_states=PTR,  # null, or where keys and values of the only text go, in the same order
    x=PTR,  # float32 (tokens, hidden)
    # u8 (copies, code_rows, hidden) with a line between rows: what the next layer projects; three
    # copies if query, key and value read different codes. In float, all codes are float32.
    codes=PTR,
    row_scales=PTR,  # float32 (copies, code_rows) of these codes: see `ROW_SCALE`
    code_rows=I64,
    queries=PTR,  # float32 (tokens, width)
    keys=PTR,  # float32 (tokens, width)
    values=PTR,  # float32 (tokens, width)
    context=PTR,  # u8 (tokens, width); float32 in float, and if scales are dynamic
    sums=PTR,  # float32 (2, tokens, hidden), for threads that share rows
    # For threads that share rows: u8 (tokens, inner) with a line between rows; float32 (tokens,
    # inner) if scales are dynamic, and (tokens, 2 * inner) with a gate.
    inner=PTR,
    # i64 count of threads that have arrived, i64 number of the round, i64 sleeps of waiting threads
    barrier=PTR,
    threads=I64,  # how many threads wait for each other; 1 if each has its own texts
    by_columns=I64,  # 1 if threads share few rows: each computes some heads and columns of them
    # i64 per text: index of the only token whose last states are read; null if all are
    tokens_read=PTR,
    # Of experts: float32 (tokens, expert_columns), the weights of each token, and i64 (tokens,),
    # the rows of the tokens of one.
    expert_weights=PTR,
    expert_rows=PTR,
    sleep=PTR,  # function of an i32: microseconds to sleep
)
"""Texts that are run together. Buffers have 32 rows more than tokens."""

THREAD = Record(
    first_row=I64,
    last_row=I64,
    first_item=I64,  # an item is a text and a head: text * heads + head
    last_item=I64,
    first_head=I64,  # heads of a thread that shares rows
    last_head=I64,
    parts=PTR,  # i64 (part_count + 1,): first text of each part of a thread's texts, and the end
    part_count=I64,
    first_hidden=I64,  # panels of hidden states, if threads share rows
    own_hidden=I64,
    first_inner=I64,  # panels of the feed-forward part, if threads share rows
    own_inner=I64,
    embedded=PTR,  # float32 (block, embedding_width)
    codes=PTR,  # u8 (block + 32, hidden), a line between rows
    kept=PTR,  # float32 (block, hidden), if states are added twice
    # float32 (block, hidden): the output of a part, if it is normalized or weighed by itself
    local=PTR,
    inner=PTR,  # u8 (block + 32, inner or width), a line between rows
    row_scales=PTR,  # float32 (block + 32,): see `ROW_SCALE`
    spread=PTR,  # float32 (4, hidden or inner), if channels are spread
    normed=PTR,  # float32 (4, hidden), if layers normalize first
    # float32 (`float_rows`, inner) if scales are dynamic; (`float_rows`, 2 * inner) with a gate
    inner_float=PTR,
    # Codes of the tokens of an expert, as `codes`, and their scales.
    expert_codes=PTR,
    expert_scales=PTR,
    queries=PTR,  # float32 (queries, head_size), or as codes
    keys=PTR,  # float32, panels of keys: limit * head_size
    values=PTR,  # float32, panels of values: limit * head_size
    scores=PTR,  # float32 (queries, limit): scores of some queries, then weights
    query_positions=PTR,  # float32 (queries, relative_panels * 16), if there is such a table
    key_positions=PTR,  # float32 (limit, relative_panels * 16), if there is such a table
    inverse=PTR,  # float32 (queries,): 1 / sum of the weights
    sums=PTR,  # float32 (queries, head_size): weighted sums of values
    passes=I64,  # forward passes that this thread has completed
)
"""The work of one thread, and its buffers.

Buffers of attention hold as many queries as `Products.rows_together` says; limit and head_size
are padded to a multiple of 32.
"""

FLOAT_LINEAR = Record(
    weights=PTR,  # float32, panels of 16 columns
    panel=I64,  # bytes from one panel to the next
    panels=I64,
    depth=I64,
    bias=PTR,  # float32 per column
)
"""A linear layer in float32."""

WORDS = Record(
    linear=PTR,  # `LINEAR`
    first=I64,  # first panel of a thread
    end=I64,
    together=I64,  # panels whose weights stay in cache for all texts
    # The weights as they are stored: float32 (columns, depth); s8, if they are the table of words.
    table=PTR,
    rest=PTR,  # s8 (columns, depth): 8 bits more of each code of the table
    scale=PTR,  # float32 per channel: scale of these codes; null if weights are in float
    depth=I64,
    row=PTR,  # float32 (depth,): a buffer for the weights of a word
    states=PTR,  # float32 (tokens, depth)
    codes=PTR,  # u8 (tokens + 32, depth), a line between rows
    code_stride=I64,
    row_scales=PTR,  # float32 (tokens + 32,): see `ROW_SCALE`
    starts=PTR,  # i64 (texts + 1,): index of the first token of each text, and the end
    texts=I64,
    out=PTR,  # float32 (texts, columns): the largest score of each word, which starts at 0
    out_stride=I64,
)
"""The job of `score_words`. It needs no model."""

MAILBOX = Record(
    posted=I64,  # number of jobs that were posted
    done=I64,  # number of jobs that were done
    is_asleep=I64,  # 1 if the worker needs its semaphore to go on
    was_asleep=I64,  # `is_asleep` before the last post
    patience=I64,  # rounds of waiting before the worker sleeps
    model=PTR,
    job=PTR,  # null ends the worker
    thread=PTR,
    function=I64,  # index in `FUNCTIONS` of the function to run
    sleep=PTR,  # function of an i32: microseconds to sleep
)
"""Work for a thread."""

FUNCTIONS = ("forward", "score_words")
"""Functions that threads run together, each of a model, a job and a thread."""

RECORDS = "model*, layer*, job*, thread*"
"""The first arguments of the functions of a layer."""
