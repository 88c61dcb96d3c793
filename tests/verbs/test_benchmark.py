from __future__ import annotations

import json
import shutil

import pytest

import qdqbert
from qdqbert.errors import UserInputError


def test_each_model_engine_and_shape_is_timed_once(checkpoints, quantized) -> None:
    made = quantized("classifier")
    report = qdqbert.benchmark(
        [made.checkpoint, made.directory, made.directory / "model.onnx"],
        engines=["onnxruntime"],
        batches=(1, 2),
        sequences=(4,),
        threads=1,
        rounds=1,
        seconds=0.01,
    )
    names = [str(made.checkpoint), str(made.directory), str(made.directory / "model.onnx")]
    assert [(each.batch, each.sequence, each.name) for each in report.timings] == [
        (batch, 4, name) for batch in (1, 2) for name in names
    ]
    assert report.threads == 1
    assert len(report.speedups) == 6
    # The first model is what the others are compared with, at each shape.
    assert (report.speedups[0], report.speedups[3]) == (1, 1)
    for index, timing in enumerate(report.timings):
        first = report.timings[index - index % 3]
        assert report.speedups[index] == first.rounds_ms[0] / timing.rounds_ms[0]


def test_a_folder_is_timed_on_all_engines_that_fit(quantized) -> None:
    pytest.importorskip("openvino")
    report = qdqbert.benchmark(
        [quantized("sentence").directory], batches=(1,), sequences=(4,), rounds=1, seconds=0.01
    )
    assert [timing.engine for timing in report.timings] == ["onnxruntime", "openvino"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": (0,)}, "at least 1"),
        ({"sequences": (4, 0)}, "at least 1"),
        ({"rounds": 0}, "at least 1"),
        ({"threads": -1}, "at least 1"),
        ({"seconds": 0}, "at least 1"),
        ({"engines": ["tpu"]}, "Engine 'tpu' is unknown"),
        ({"sequences": (65,)}, "`--sequence 65` is more than the 64 tokens"),
    ],
    ids=["batch", "sequence", "rounds", "threads", "seconds", "engine", "too-long"],
)
def test_what_cannot_be_timed_is_refused(quantized, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        qdqbert.benchmark([quantized("classifier").directory], **options)


def test_no_model_is_refused() -> None:
    with pytest.raises(UserInputError, match="at least one model"):
        qdqbert.benchmark([])


def test_a_checkpoint_is_not_timed_beyond_its_positions(checkpoints) -> None:
    with pytest.raises(UserInputError, match="`--sequence 65` is more than the 64 tokens"):
        qdqbert.benchmark([checkpoints("bert")], sequences=(65,))


def test_a_graph_for_another_engine_is_refused(quantized, tmp_path) -> None:
    folder = shutil.copytree(quantized("classifier").directory, tmp_path / "copy")
    record = json.loads((folder / "quantization.json").read_text())
    record["targets"] = {"openvino": record["targets"]["portable"]}
    (folder / "quantization.json").write_text(json.dumps(record))
    with pytest.raises(UserInputError, match="holds no graph for engine `onnxruntime`"):
        qdqbert.benchmark([folder], engines=["onnxruntime"], sequences=(4,))
