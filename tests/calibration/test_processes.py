"""Calibration by two processes, each of which sees half of the data."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, distributed

import qdqbert
from qdqbert import QuantizerOptions
from qdqbert.calibration.processes import is_shared, max_over_processes_, shared_statistics
from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import CalibrationError
from qdqbert.quantization.numerics import histogram
from qdqbert.training.models.prepare import prepare_with_options
from qdqbert.training.models.state import stored_calibration

# Two processes start, and import torch.
pytestmark = pytest.mark.slow
WORLD = 2
# Recipe and switches of each calibration, by its name.
CASES: dict[str, tuple[str, QuantizerOptions]] = {
    "max": ("full", QuantizerOptions()),
    "percentile": ("full", QuantizerOptions(calibrator="percentile", percentile=99.0)),
    "mse": ("full", QuantizerOptions(calibrator="mse")),
    "entropy": ("full", QuantizerOptions(calibrator="entropy")),
    "smoothed": ("linear", QuantizerOptions()),
    "smoothed, percentile": ("linear", QuantizerOptions(calibrator="percentile", percentile=99.0)),
    "shared": ("linear", QuantizerOptions(fuse_qkv=True, clip_gelu=0.3)),
}


# The recipes, whose passes differ in what processes send.
ALONE = ("max", "smoothed")


def failing() -> Iterator[dict[str, Tensor]]:
    yield make_batches()[0]
    raise OSError("the disk is full")


# The batches of each process in calibrations that fail.
BROKEN: dict[str, Callable[[int], Iterable[dict[str, Tensor]]]] = {
    "no batch at all": lambda rank: [],
    "the second process fails": lambda rank: failing() if rank else make_batches(),
    "the second process fails, the first has no batch": lambda rank: failing() if rank else [],
}


def make_model() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=32,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    return transformers.BertModel(config).eval()


def make_batches() -> list[dict[str, Tensor]]:
    """Batches of other sizes, with [PAD]; the first process gets one more than the second."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for rows, tokens in ((3, 6), (2, 9), (4, 3), (1, 12), (2, 5)):
        ids = torch.randint(1, 64, (rows, tokens), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, -2:] = 0
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


def calibrated(case: str, batches: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """All that a calibration chose, as tensors by name."""
    recipe, quantizer_options = CASES[case]
    model = qdqbert.calibrate(
        prepare_with_options(make_model(), recipe, quantizer_options), batches
    )
    chosen = stored_calibration(sited_model(model))
    ranges = {
        f"range {name}": torch.tensor([each.amax, each.low, each.high], dtype=torch.float64)
        for name, each in chosen.ranges.items()
    }
    scales = {f"scale {name}": scale for name, scale in chosen.scales.items()}
    weights = {f"weight {name}": amax for name, amax in chosen.weight_amax.items()}
    return {**ranges, **scales, **weights}


def error_of(batches: Iterable[dict[str, Tensor]]) -> str:
    with pytest.raises((CalibrationError, OSError)) as failure:
        calibrated("max", batches)
    return f"{type(failure.value).__name__}: {failure.value}"


def work(rank: int, folder: str) -> None:
    """What each of the processes does."""
    torch.set_num_threads(1)
    root = Path(folder)
    distributed.init_process_group(
        "gloo", init_method=(root / "store").as_uri(), rank=rank, world_size=WORLD
    )
    try:
        assert is_shared()
        mine = make_batches()[rank::WORLD]
        found: dict[str, Any] = {case: calibrated(case, mine) for case in CASES}
        # All of the data is in the first process.
        some = make_batches()[: WORLD * (1 - rank)]
        found |= {f"{case}, no batch": calibrated(case, some) for case in ALONE}
        found["errors"] = {name: error_of(broken(rank)) for name, broken in BROKEN.items()}
        # Positive values, and of another exponent, in the second process alone.
        values = torch.tensor([1.0, 2.0]) * (-1000) ** rank
        statistics = {"b": histogram.summarize(values), "a": histogram.empty()}
        shared = shared_statistics(statistics, torch.device("cpu"))
        found["statistics"] = {
            name: dataclasses.asdict(seen) for name, seen in sorted(shared.items())
        }
        amax = {"b": torch.tensor([1.0, 5.0 - rank]), "a": torch.tensor(float(rank))}
        max_over_processes_(amax)
        found["amax"] = amax
        torch.save(found, root / f"{rank}.pt")
    finally:
        distributed.destroy_process_group()


@pytest.fixture(scope="module")
def of_each(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process found; they are started once."""
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("torch is built without distributed")
    root = tmp_path_factory.mktemp("processes")
    # A server that has imported what takes seconds starts all processes.
    multiprocessing.set_forkserver_preload([prepare_with_options.__module__, __name__])
    torch.multiprocessing.start_processes(
        work, args=(str(root),), nprocs=WORLD, start_method="forkserver"
    )
    return [torch.load(root / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("case", list(CASES))
def test_two_processes_choose_what_one_chooses_that_sees_all(of_each, case) -> None:
    whole = calibrated(case, make_batches())
    kinds = {name.partition(" ")[0] for name in whole}
    assert kinds == {"range", "weight", "scale"}
    for found in of_each:
        assert found[case].keys() == whole.keys()
        for name, value in whole.items():
            assert torch.equal(found[case][name], value), name


@pytest.mark.parametrize("case", ALONE)
def test_a_process_without_batches_gets_the_ranges_of_the_others(of_each, case) -> None:
    whole = calibrated(case, make_batches()[:WORLD])
    for found in of_each:
        assert found[f"{case}, no batch"].keys() == whole.keys()
        for name, value in whole.items():
            assert torch.equal(found[f"{case}, no batch"][name], value), name


def test_a_calibration_that_fails_in_one_process_fails_in_all(of_each) -> None:
    other = "CalibrationError: Another process that calibrates with this one failed. "
    for rank, found in enumerate(of_each):
        errors = found["errors"]
        assert errors["no batch at all"].startswith("NoBatchesError: `batches` is empty")
        for name in list(BROKEN)[1:]:
            expected = "OSError: the disk is full" if rank else other
            assert errors[name].startswith(expected), name


def test_statistics_of_two_processes_are_those_of_all_values(of_each) -> None:
    expected = histogram.summarize(torch.tensor([1.0, 2.0, -1000.0, -2000.0]))
    for found in of_each:
        shared = found["statistics"]
        assert list(shared) == ["a", "b"]
        for name, seen in (("a", histogram.empty()), ("b", expected)):
            for field, value in dataclasses.asdict(seen).items():
                other = shared[name][field]
                same = value.equal(other) if isinstance(value, Tensor) else value == other
                assert same, (name, field)


def test_largest_magnitudes_are_those_of_both_processes(of_each) -> None:
    for found in of_each:
        assert found["amax"]["b"].tolist() == [1, 5]
        assert found["amax"]["a"].item() == 1
