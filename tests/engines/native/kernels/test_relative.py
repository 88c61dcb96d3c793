"""Products of queries and keys with tables of relative positions, against numpy in float64."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import few
from native_references import relative_scores
from qdqbert.engines.native.records import MODEL, THREAD

LIMIT = 40
COLUMNS = 48


@few
@given(
    length=st.integers(1, LIMIT),
    start=st.integers(0, LIMIT - 1),
    first_query=st.integers(0, LIMIT - 1),
    rows=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
def test_scores_get_the_products_of_their_distance(
    modern_kernels, length, start, first_query, rows, seed
) -> None:
    rng = np.random.default_rng(seed)
    start, first_query = min(start, length - 1), min(first_query, length - 1)
    rows = min(rows, length - first_query)
    count = 20
    by_distance = np.sort(rng.integers(0, count, 2 * LIMIT - 1)).astype(np.int32)
    query, key = rng.standard_normal((2, length, 16)).astype(np.float32)
    keys, queries = rng.standard_normal((2, count, 16)).astype(np.float32)
    panel = int(by_distance[LIMIT - length]) // 16
    # Products with the rows from the first panel that the text needs.
    of_queries, of_keys = (
        np.pad(x @ table[16 * panel :].T, ((0, 0), (0, 16 * (2 - panel) - count + 16 * panel)))
        for x, table in ((query[first_query : first_query + rows], keys), (key, queries))
    )
    of_queries, of_keys = (np.ascontiguousarray(x, np.float32) for x in (of_queries, of_keys))
    scores = rng.standard_normal((rows, COLUMNS)).astype(np.float32)
    expected = scores.astype(np.float64)
    added = relative_scores(query, key, keys, queries, by_distance)
    expected[:, : length - start] += added[first_query : first_query + rows, start:]
    model = MODEL.make(limit=LIMIT, relative_rows=by_distance)
    thread = THREAD.make(
        scores=scores,
        query_positions=of_queries,
        key_positions=of_keys,
    )
    place = (first_query, rows, scores.strides[0], start, length)
    modern_kernels("add_positions", model, thread, *place, panel, of_keys.strides[0])
    np.testing.assert_allclose(scores, expected, atol=1e-4)
