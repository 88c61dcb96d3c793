from __future__ import annotations

import onnx_ir as ir
import pytest

from qdqbert.common.errors import QdqBertError
from qdqbert.evidence.latency import Candidate, Timing, speedup, time_candidates
from qdqbert.evidence.worker import answers
from qdqbert.graphs.check import save_graph

# Fails for a token at or above 20, and for a mask that is not all ones.
PICKY = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask) =>
    (float[batch, sequence, 1] y)
<float[20, 1] words = {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 0.0, 1.0, 2.0, 3.0, 4.0,
 5.0, 6.0, 7.0, 8.0, 9.0}, float[1, 1] masks = {1.0}, int64 one = {1}>
{
    word = Gather (words, input_ids)
    index = Sub (attention_mask, one)
    mask = Gather (masks, index)
    y = Mul (word, mask)
}
"""

# Fails for a token at or above 2. That is not seen before it runs.
UNKNOWN = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask) =>
    (float[batch, sequence, 2] y)
<float[2, 2] table = {0.0, 1.0, 2.0, 3.0}>
{
    index = Mul (input_ids, attention_mask)
    y = Gather (table, index)
}
"""


@pytest.fixture
def candidate(tmp_path) -> Candidate:
    save_graph(ir.from_onnx_text(PICKY), tmp_path / "model.onnx")
    return Candidate(name="picky", engine="onnxruntime", model=tmp_path / "model.onnx")


def timing(rounds_ms: tuple[float, ...]) -> Timing:
    return Timing(
        name="",
        engine="",
        batch=1,
        sequence=1,
        median_ms=0,
        rounds_ms=rounds_ms,
        precision="float32",
    )


def test_a_speedup_is_the_median_of_the_ratios_of_rounds() -> None:
    # Ratios 2, 4 and 3; the ratio of the medians would be 30 / 10.
    assert speedup(timing((20, 40, 60)), timing((10, 10, 20))) == 3
    # Ratios 2, 2 and 1 / 10: a round on a busy machine does not count.
    assert speedup(timing((20, 200, 10)), timing((10, 100, 100))) == 2
    assert speedup(timing((5,)), timing((5,))) == 1


def test_a_worker_answers_the_load_and_then_each_request(candidate) -> None:
    load = {"engine": "onnxruntime", "model": str(candidate.model), "threads": 1}
    requests = [
        {**load, "choices": None, "provider": None, "device": None},
        {"batch": 2, "sequence": 3, "seconds": 0.0},
        {"batch": 1, "sequence": 1, "seconds": 0.0},
    ]
    loaded, *timed = answers(iter(requests))
    assert loaded == {"precision": "float32"}
    # A slice makes at least three inferences, however short it is.
    assert [len(answer["times_ms"]) for answer in timed] == [3, 3]
    assert all(time > 0 for answer in timed for time in answer["times_ms"])


def test_every_candidate_is_timed_at_every_shape(candidate) -> None:
    other = Candidate(name="other", engine=candidate.engine, model=candidate.model)
    steps: list[None] = []
    timings = time_candidates(
        [candidate, other],
        [(1, 4), (3, 2)],
        threads=1,
        rounds=2,
        seconds=0.01,
        advance=lambda: steps.append(None),
    )
    assert [(each.name, each.batch, each.sequence) for each in timings] == [
        ("picky", 1, 4),
        ("other", 1, 4),
        ("picky", 3, 2),
        ("other", 3, 2),
    ]
    assert len(steps) == 8
    for each in timings:
        assert len(each.rounds_ms) == 2
        assert min(each.rounds_ms) <= each.median_ms <= max(each.rounds_ms)
        assert (each.engine, each.precision) == ("onnxruntime", "float32")


def test_a_graph_that_cannot_be_loaded_is_named(tmp_path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no graph")
    broken = Candidate(name="broken", engine="onnxruntime", model=path)
    with pytest.raises(QdqBertError, match=r"Timing `.*broken\.onnx` on onnxruntime failed: .+"):
        time_candidates([broken], [(1, 1)], rounds=1, seconds=0.01)


def test_a_graph_that_cannot_be_run_is_named(tmp_path) -> None:
    save_graph(ir.from_onnx_text(UNKNOWN), tmp_path / "model.onnx")
    greedy = Candidate(name="greedy", engine="onnxruntime", model=tmp_path / "model.onnx")
    with pytest.raises(QdqBertError, match=r"Timing `.*model\.onnx` on onnxruntime failed: .+"):
        time_candidates([greedy], [(4, 16)], rounds=1, seconds=0.01)
