"""Latency of models, measured in turns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import qdqbert
from qdqbert.common.errors import CheckpointError, MissingExtraError, UserInputError
from qdqbert.evidence.latency import Timing, time_candidates
from qdqbert.verbs.benchmark import run as benchmark_run

# As short as a measurement can be.
QUICK = {"rounds": 1, "seconds": 0.01}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def for_openvino(quantized, tmp_path) -> Path:
    """A folder whose only graph was made for OpenVINO."""
    folder = shutil.copytree(quantized("classifier").directory, tmp_path / "for-openvino")
    record = json.loads((folder / "quantization.json").read_text())
    entry = {**record["targets"]["portable"], "engines": ["openvino"]}
    record["targets"] = {"openvino": entry}
    (folder / "quantization.json").write_text(json.dumps(record))
    return Path(folder)


@pytest.fixture
def without_timing(monkeypatch) -> None:
    """Return one millisecond for each candidate, a quarter of it on the native engine.

    It is half of it on OpenVINO.
    """

    def time_candidates(candidates: Any, shapes: Any, **options: Any) -> list[Timing]:
        del options
        return [
            Timing(
                name=each.name,
                engine=each.engine,
                precision="float32",
                batch=batch,
                sequence=sequence,
                median_ms=1.0,
                rounds_ms=({"native": 0.25, "openvino": 0.5}.get(each.engine, 1.0),),
            )
            for batch, sequence in shapes
            for each in candidates
        ]

    monkeypatch.setattr(benchmark_run, "time_candidates", time_candidates)


def test_each_model_and_shape_is_timed_once(checkpoints, quantized) -> None:
    made = quantized("classifier")
    models = [made.checkpoint, made.directory, made.directory / "model.onnx"]
    report = qdqbert.benchmark(
        models, engines=["onnxruntime"], batches=(1, 2), sequences=(4,), threads=1, **QUICK
    )
    assert [(each.batch, each.sequence, each.name) for each in report.timings] == [
        (batch, 4, str(name)) for batch in (1, 2) for name in models
    ]
    assert report.threads == 1
    assert len(report.speedups) == 6
    # Models are compared with the first one at the same shape.
    assert (report.speedups[0], report.speedups[3]) == (1, 1)
    for index, timing in enumerate(report.timings):
        first = report.timings[index - index % 3]
        assert report.speedups[index] == first.rounds_ms[0] / timing.rounds_ms[0]


@pytest.mark.usefixtures("without_timing")
def test_a_folder_is_timed_on_all_engines_that_run_it(quantized) -> None:
    pytest.importorskip("openvino")
    report = qdqbert.benchmark([quantized("sentence").directory], sequences=(4,), batches=(1,))
    assert [timing.engine for timing in report.timings] == ["onnxruntime", "openvino", "native"]
    assert report.speedups == (1, 2, 4)


@pytest.mark.usefixtures("without_timing")
@pytest.mark.parametrize("copies", [1, 2])
def test_a_checkpoint_alone_is_compared_with_its_first_engine(
    checkpoints, copies, tmp_path
) -> None:
    pytest.importorskip("openvino")
    models = [checkpoints("classifier"), tmp_path / "link"][:copies]
    (tmp_path / "link").symlink_to(models[0])
    report = qdqbert.benchmark(models, sequences=(4,), batches=(1,))
    assert [each.engine for each in report.timings] == [
        "onnxruntime",
        "openvino",
        "native",
    ] * copies
    # Of several models, each engine is compared with itself.
    assert report.speedups == ((1, 2, 4) if copies == 1 else (1, 1, 4, 1, 1, 4))


@pytest.mark.usefixtures("without_timing")
@pytest.mark.parametrize(("name", "lengths"), [("sentence", [32]), ("classifier", [32])])
@pytest.mark.usual("classifier-*")
def test_only_usual_lengths_that_the_model_takes_are_timed(quantized, name, lengths) -> None:
    # Their limits are 32 and 64 tokens; 128 is a usual length, too.
    report = qdqbert.benchmark([quantized(name).directory], engines=["onnxruntime"], batches=(1,))
    assert [timing.sequence for timing in report.timings] == lengths


@pytest.mark.usefixtures("without_timing")
def test_only_engines_that_run_all_models_are_timed_by_default(checkpoints, for_openvino) -> None:
    pytest.importorskip("openvino")
    models = [checkpoints("classifier"), for_openvino]
    report = qdqbert.benchmark(models, sequences=(4,), batches=(1,))
    assert [(each.name, each.engine) for each in report.timings] == [
        (str(model), "openvino") for model in models
    ]


@pytest.mark.usefixtures("without_timing")
@pytest.mark.parametrize("engines", [(), ("native",)], ids=["default", "native"])
@pytest.mark.usual("default")
def test_float_on_onnxruntime_is_what_the_native_engine_is_compared_with(
    quantized, checkpoints, tmp_path, engines
) -> None:
    folder = shutil.copytree(quantized("sentence").directory, tmp_path / "int8")
    record = json.loads((folder / "quantization.json").read_text())
    record["targets"] = {"native": record["targets"]["native"]}
    (folder / "quantization.json").write_text(json.dumps(record))
    models = [checkpoints("sentence"), folder]
    report = qdqbert.benchmark(models, sequences=(4,), batches=(1,), engines=engines)
    assert [(each.name, each.engine) for each in report.timings] == [
        (str(models[0]), "onnxruntime"),
        (f"{models[0]} in INT8", "native"),
        (str(models[1]), "native"),
    ]
    assert report.speedups == (1, 4, 4)
    # The folder does not run on it.
    report = qdqbert.benchmark(models[::-1], sequences=(4,), batches=(1,), engines=("native",))
    assert [each.engine for each in report.timings] == ["native", "onnxruntime", "native"]
    assert report.speedups == (1, 0.25, 1)


def test_a_checkpoint_is_timed_in_int8_as_load_runs_it(checkpoints, monkeypatch) -> None:
    given = []

    def timed(candidates: Any, *args: Any, **options: Any) -> list[Timing]:
        given.extend(candidates)
        return time_candidates(candidates, *args, **options)

    monkeypatch.setattr(benchmark_run, "time_candidates", timed)
    folder = checkpoints("sentence")
    report = qdqbert.benchmark([folder], engines=["native"], batches=(1,), sequences=(4,), **QUICK)
    assert [(each.name, each.engine) for each in report.timings] == [
        (str(folder), "onnxruntime"),
        (f"{folder} in INT8", "native"),
    ]
    assert report.speedups[1] == report.timings[0].median_ms / report.timings[1].median_ms
    with qdqbert.load(folder, check=False) as model:
        assert given[1].model.parent == model.directory
    assert report.notices == ()


@pytest.mark.usefixtures("without_timing")
@pytest.mark.usefixtures("without_timing")
def test_without_onnxruntime_a_checkpoint_is_compared_with_float_on_the_native_engine(
    checkpoints, monkeypatch
) -> None:
    monkeypatch.setattr("qdqbert.common.extras.is_installed", lambda name: name == "llvmlite")
    folder = str(checkpoints("classifier"))
    report = qdqbert.benchmark([folder], batches=(1,), sequences=(4,))
    names = [(each.name, each.engine) for each in report.timings]
    assert names == [(folder, "native"), (f"{folder} in INT8", "native")]
    with pytest.raises(MissingExtraError, match=r"qdqbert\[onnxruntime\]"):
        qdqbert.benchmark([folder], provider="cpu")


@pytest.mark.slow
def test_a_checkpoint_that_load_refuses_is_timed_in_float(checkpoint_copy) -> None:
    folder = checkpoint_copy("sentence")
    qdqbert.QDQBertModel.from_pretrained(folder).save_pretrained(folder)
    report = qdqbert.benchmark([folder], sequences=(4,), batches=(1,))
    assert {each.name for each in report.timings} == {str(folder)}
    (notice,) = report.notices
    assert notice.startswith(f"{folder} was not timed in INT8 on the native engine. ")
    with pytest.raises(CheckpointError, match="no calibrated range"):
        qdqbert.benchmark([folder], sequences=(4,), engines=["native"])


@pytest.mark.usefixtures("without_timing")
def test_models_without_a_shared_engine_are_refused(checkpoints, for_openvino, monkeypatch) -> None:
    monkeypatch.setattr(benchmark_run, "is_installed", lambda engine: engine == "onnxruntime")
    models = [checkpoints("classifier"), for_openvino]
    with pytest.raises(UserInputError, match=r"No installed engine runs all of .*for-openvino"):
        qdqbert.benchmark(models, sequences=(4,))


def test_an_engine_that_a_folder_has_no_graph_for_is_refused(for_openvino) -> None:
    with pytest.raises(UserInputError, match="contains no graph for engine 'onnxruntime'"):
        qdqbert.benchmark([for_openvino], engines=["onnxruntime"], sequences=(4,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": (0,)}, "`batches` must be at least 1, got 0"),
        ({"sequences": (4, 0)}, "`sequences` must be at least 1, got 0"),
        ({"rounds": 0}, "`rounds` must be at least 1, got 0"),
        ({"threads": -1}, "`threads` must be at least 1, got -1"),
        ({"seconds": 0}, "`seconds` must be above 0, got 0"),
        ({"engines": ["tpu"]}, "`engines='tpu'` is unknown"),
        ({"sequences": ()}, "`sequences` must not be empty"),
        ({"sequences": (65,)}, "`sequences` contains 65, which exceeds the limit of .*64 tokens"),
        ({"models": []}, "`models` is missing. Name at least one."),
        ({"models": ["missing.onnx"]}, "'missing.onnx' does not exist"),
        ({"models": ["missing.ONNX"]}, "'missing.ONNX' does not exist"),
        ({"provider": "cpu", "engines": ["openvino"]}, "`provider='cpu'` belongs to ONNX Runtime"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_timed_is_refused(quantized, options, message) -> None:
    given = {"models": [quantized("classifier").directory], **options}
    with pytest.raises(UserInputError, match=message) as caught:
        qdqbert.benchmark(**given)
    assert caught.value.argument in options


def test_a_checkpoint_is_not_timed_beyond_its_positions(checkpoints) -> None:
    with pytest.raises(UserInputError, match=r"`sequences` contains 65, .* 64 tokens"):
        qdqbert.benchmark([checkpoints("bert")], sequences=(65,))


@pytest.mark.usefixtures("without_timing")
def test_a_checkpoint_without_a_graph_is_timed_on_the_native_engine(checkpoint_copy) -> None:
    folder = checkpoint_copy("sentence")
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "include_prompt": False}))
    options: dict[str, Any] = {"sequences": (4,), "batches": (1,)}
    for engines in ([], ["native"]):
        report = qdqbert.benchmark([folder], engines=engines, **options)
        assert [(each.name, each.engine) for each in report.timings] == [
            (str(folder), "native"),
            (f"{folder} in INT8", "native"),
        ]
        assert "timed in float on the native engine. Only the" in report.notices[0]
    with pytest.raises(CheckpointError, match="`include_prompt: false`"):
        qdqbert.benchmark([folder], engines=["onnxruntime"], **options)
