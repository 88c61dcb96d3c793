"""The core quantizer. What it shares with the toolkit's is tested in `tests/compat/nn` too."""

from __future__ import annotations

import io
import warnings

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.common.errors import CheckpointError, UncalibratedError
from qdqbert.quantization.numerics.affine import affine_parameters, dequantize, quantize
from qdqbert.quantization.spec import Range, Site, TensorSpec

SYMMETRIC = TensorSpec()
AFFINE = TensorSpec(signed=False, symmetric=False)
WEIGHT = TensorSpec(narrow=True, axis=0)
X = torch.linspace(-2, 3, 24).view(4, 6)


def calibrated(spec: TensorSpec = SYMMETRIC, **settings) -> Quantizer:
    made = Quantizer(spec, **settings)
    made.set_range(Range(amax=2.0, low=-1.0, high=2.0))
    return made


def test_without_a_spec_a_tensor_passes_unchanged() -> None:
    made = Quantizer()
    assert made.spec is None
    assert not made.is_enabled
    assert made(X) is X


def test_symmetric_codes_are_those_on_paper() -> None:
    made = Quantizer(TensorSpec(bits=3))
    made.amax = 3.0
    values = torch.tensor([-9.0, -3.4, -0.5, 0.4, 0.6, 1.5, 2.5, 3.0, 9.0])
    assert made(values).tolist() == [-4, -3, 0, 0, 1, 2, 2, 3, 3]


def test_affine_codes_are_those_of_numerics() -> None:
    made = calibrated(AFFINE)
    parameters = affine_parameters(torch.tensor(-1.0), torch.tensor(2.0), AFFINE)
    expected = dequantize(quantize(X, parameters, AFFINE), parameters, AFFINE)
    assert torch.equal(made(X), expected)


def test_a_symmetric_quantizer_without_a_range_uses_that_of_each_row() -> None:
    made = Quantizer(WEIGHT)
    for row in range(4):
        alone = Quantizer(TensorSpec(narrow=True))
        alone.amax = X[row].abs().max()
        torch.testing.assert_close(made(X)[row], alone(X[row]))


def test_an_affine_quantizer_without_a_range_refuses_and_names_its_site() -> None:
    made = Quantizer(AFFINE, site=Site(name="a._input_quantizer", kind="activation"))
    with pytest.raises(UncalibratedError, match=r"Calibrate first\. Quantizer: `a\._input_quanti"):
        made(X)


@pytest.mark.parametrize(
    ("spec", "keeps"),
    [(TensorSpec(bits=4), True), (AFFINE, False), (TensorSpec(axis=1), False), (None, True)],
    ids=["bits", "affine", "axis", "float"],
)
def test_a_range_is_kept_where_it_still_fits(spec, keeps) -> None:
    made = calibrated()
    made.configure(spec)
    assert made.spec == spec
    assert (made.amax is not None) == keeps


def test_a_disabled_quantizer_knows_which_spec_its_range_is_for() -> None:
    made = calibrated()
    made.disable()
    made.configure(WEIGHT)
    assert made.amax is None


@pytest.mark.parametrize("spec", [TensorSpec(), AFFINE], ids=["symmetric", "affine"])
def test_a_learned_range_starts_at_the_calibrated_one_and_stays_where_it_ends(spec) -> None:
    made, fixed = calibrated(spec), calibrated(spec)
    made.learn_range()
    assert made.is_learned
    assert torch.equal(made(X), fixed(X))
    assert made.clip is not None
    start = float(made.clip.ends[0].detach())
    made(X).sum().backward()
    # Each value beyond an end passes its gradient to that end. Symmetric ends move together.
    low, high = (made.clip.ends[0].grad.item(), made.clip.ends[1].grad.item())
    below, above = int((start >= X).sum()), int((X >= 2).sum())
    assert (low, high) == (
        (below, above) if spec == AFFINE else ((below - above) / 2, (above - below) / 2)
    )
    with torch.no_grad():
        made.clip.ends[1].fill_(2.5)
    trained = made(X)
    made.fix_range()
    assert not made.is_learned
    assert float(made.amax if made.is_symmetric else made.range[1]) == 2.5
    assert torch.equal(made(X), trained)


def test_a_moving_range_follows_training_batches_only() -> None:
    made = calibrated()
    made.moving = 0.5
    made.eval()(X)
    assert float(made.amax) == 2
    made.train()(X)
    assert float(made.amax) == 2.5


def test_an_input_of_a_residual_add_is_divided_by_its_scale_again() -> None:
    scale = torch.tensor([0.5, 1, 2, 4, 8, 16])
    for name, restores in (("a.add_local_input_quantizer", True), ("a._input_quantizer", False)):
        made = calibrated(site=Site(name=name, kind="activation"))
        made.pre_quant_scale = scale
        expected = calibrated()(X * scale)
        assert torch.equal(made(X), expected / scale if restores else expected)


def test_half_precision_keeps_float32_ranges_and_scales() -> None:
    made = calibrated(WEIGHT)
    made.amax = 0.1
    made.pre_quant_scale = 0.1
    half = made.half()
    assert half.amax.dtype == half.pre_quant_scale.dtype == torch.float32
    assert half.pre_quant_scale == torch.tensor(0.1)
    assert half(X.half()).dtype == torch.float16


@pytest.mark.parametrize("spec", [TensorSpec(), AFFINE], ids=["symmetric", "affine"])
def test_half_precision_keeps_learned_ends_in_float32(spec) -> None:
    made = calibrated(spec)
    made.learn_range()
    made.clip.ends[1].data.fill_(70000.0)
    made(X).sum().backward()
    before, ends = made(X), list(made.clip.ends)
    half = nn.Sequential(made).half()[0]
    # An optimizer holds them.
    assert list(map(id, half.clip.ends)) == list(map(id, ends))
    assert {x.dtype for end in ends for x in (end, end.grad)} == {torch.float32}
    assert torch.equal(half(X.half()), before.half())


@pytest.mark.parametrize(
    "spec", [None, TensorSpec(bits=5), AFFINE, WEIGHT, TensorSpec(signed=False)], ids=str
)
def test_a_state_comes_back(spec) -> None:
    made = calibrated(spec or SYMMETRIC)
    made.configure(spec)
    made.moving = 0.25
    again = Quantizer()
    again.restore(made.state())
    assert (again.spec, again.moving) == (made.spec, 0.25)
    fresh = Quantizer()
    fresh.load_state_dict(made.state_dict())
    assert fresh.spec == spec
    assert torch.equal(fresh.eval()(X), made.eval()(X))


@pytest.mark.parametrize(
    "change", [{"num_bits": (4, 3)}, {"scale_amax": 2.0}, {"axis": (0, 1)}], ids=str
)
def test_a_toolkit_quantizer_without_an_equivalent_is_refused(change) -> None:
    with pytest.raises(CheckpointError, match=f"`{next(iter(change))}`, which only QDQBERT"):
        Quantizer().restore({**Quantizer(TensorSpec()).state(), **change})


def test_repr_shows_spec_and_range() -> None:
    made = calibrated(WEIGHT)
    assert repr(made) == "Quantizer(int8 narrow symmetric per-channel axis 0, 2.0000)"
    assert repr(Quantizer()) == "Quantizer(float)"
    assert "uncalibrated" in repr(Quantizer(AFFINE))


def exported(made: Quantizer) -> onnx.ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(made.eval(), (X,), file, dynamo=False)
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize("spec", [SYMMETRIC, TensorSpec(bits=4)], ids=["8-bit", "4-bit"])
def test_an_export_writes_a_pair_that_computes_the_same(spec) -> None:
    made = calibrated(spec)
    graph = exported(made)
    kinds = [node.op_type for node in graph.graph.node]
    assert kinds[-2:] == ["QuantizeLinear", "DequantizeLinear"]
    assert kinds.count("QuantizeLinear") == 1
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (values,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    torch.testing.assert_close(torch.from_numpy(values), made(X))


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (Quantizer(SYMMETRIC), UncalibratedError, "has not been calibrated"),
        (calibrated(AFFINE), NotImplementedError, "cannot export affine quantizers"),
    ],
    ids=["uncalibrated", "affine"],
)
def test_what_cannot_be_exported_is_refused(made, error, message) -> None:
    with pytest.raises(error, match=message):
        exported(made)
