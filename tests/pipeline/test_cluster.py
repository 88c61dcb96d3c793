"""Calibration on Ray gives the ranges of one process."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import pytest

import flat
from python_process import run_python
from qdqbert.common.errors import CalibrationError, UserInputError
from qdqbert.integrations import ray_cluster
from qdqbert.pipeline import cluster
from qdqbert.runtime.artifact import RANGES

SETTINGS: dict[str, Any] = {"calibration_samples": 24, "batch_size": 5, "benchmark": False}


class RayError(Exception):
    pass


class FakeRay:
    """Runs tasks in this process; what they get and return is pickled."""

    exceptions = types.SimpleNamespace(RayError=RayError)
    util = types.SimpleNamespace(
        client=types.SimpleNamespace(ray=types.SimpleNamespace(is_connected=lambda: False))
    )

    def __init__(self) -> None:
        self.tasks = 0

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[Any]:
        return [{"Alive": True, "Resources": {"CPU": 12.0}}]

    def remote(self, *, num_cpus: int) -> Any:
        assert num_cpus == 4

        def call(function: Any, *arguments: Any) -> bytes:
            self.tasks += 1
            return pickle.dumps(function(*pickle.loads(pickle.dumps(arguments))))

        return lambda function: types.SimpleNamespace(
            remote=lambda *arguments: call(function, *arguments)
        )

    def get(self, reference: bytes) -> Any:
        return pickle.loads(reference)


@pytest.fixture
def fake_ray(monkeypatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
    monkeypatch.setattr(
        ray_cluster, "_on_each", lambda ray, nodes, function: [function() for _ in nodes]
    )
    return ray


# `full` measures residual adds on a limited number of tokens.
@pytest.mark.parametrize("recipe", ["full", "full-smoothed"])
@pytest.mark.usual("full-smoothed")
def test_ranges_are_those_of_one_process(
    checkpoints, quantized, tmp_path, fake_ray, monkeypatch, recipe
) -> None:
    monkeypatch.setattr("qdqbert.calibration.residual_clipping._TOKENS_IN_ALL", 40)
    data = quantized("classifier").data
    for name, ray in (("one", None), ("many", "auto")):
        flat.quantize(
            checkpoints("classifier"),
            tmp_path / name,
            calibration_data=data,
            recipe=recipe,
            targets=["onnxruntime"],
            ray=ray,
            **SETTINGS,
        )
    # Three passes on three nodes.
    assert fake_ray.tasks == 9
    assert (tmp_path / "one" / RANGES).read_bytes() == (tmp_path / "many" / RANGES).read_bytes()


def test_errors_of_nodes_are_raised(fake_ray, monkeypatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise CalibrationError("Site `x` took a NaN")

    monkeypatch.setattr(cluster, "open_source", fail)
    model = cluster.ModelPath(path="m", shown="m")
    batches: list[Any] = [None] * 3
    with (
        pytest.raises(CalibrationError, match="Site `x` took a NaN"),
        cluster.cluster_run("auto", model, (), batches, lambda: None) as run,
    ):
        run(None, {})  # type: ignore[arg-type]


def test_errors_of_ray_are_messages(fake_ray) -> None:
    with (
        pytest.raises(UserInputError, match="`ray`: Ray stopped the run: out of memory"),
        ray_cluster.reporting(fake_ray),
    ):
        raise RayError("a node died:\nout of memory")


def test_batches_are_divided_in_order() -> None:
    batches: list[Any] = list(range(7))
    assert cluster.divided(batches, 3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert cluster.divided(batches[:2], 3) == [[0], [1]]


ON_RAY = """
import sys
import ray
import flat

checkpoint, data, output = sys.argv[1:]
ray.init(address="local", num_cpus=6, include_dashboard=False)
flat.quantize(
    checkpoint, output, calibration_data=data, recipe="full-smoothed", ray="auto",
    calibration_samples=24, batch_size=5, benchmark=False,
)
"""


@pytest.mark.slow
def test_ranges_of_a_real_cluster(checkpoints, quantized, tmp_path) -> None:
    pytest.importorskip("ray")
    model, data = checkpoints("classifier"), quantized("classifier").data
    tests = Path(flat.__file__).parent
    run_python("-c", ON_RAY, model, data, tmp_path / "many", timeout=300, cwd=tests)
    flat.quantize(
        model, tmp_path / "one", calibration_data=data, recipe="full-smoothed", **SETTINGS
    )
    found = [read(tmp_path / name) for name in ("one", "many")]
    assert found[0] == found[1]


def read(folder: Path) -> bytes:
    return (folder / RANGES).read_bytes()
