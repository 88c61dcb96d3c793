from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from qdqbert.compat import calibrators, helper, install, quant_modules, tensor_quant, uninstall
from qdqbert.compat import nn as ours
from qdqbert.compat.nn import functional, mixins
from qdqbert.quantization.numerics.affine import reduce_amax

NAME = "pytorch_quantization"
DIMS = ("1d", "2d", "3d")
SWAPPED = [f"{kind}{dims}" for kind in ("Conv", "ConvTranspose", "AvgPool") for dims in DIMS]
ALIASED = [
    *SWAPPED,
    *(f"{kind}{dims}" for kind in ("MaxPool", "AdaptiveAvgPool") for dims in DIMS),
    "Linear",
    "LSTM",
    "LSTMCell",
]
PATHS = [
    "",
    "version",
    "tensor_quant",
    "quant_modules",
    "calib",
    "calib.calibrator",
    "calib.max",
    "calib.histogram",
    "nn",
    "nn.functional",
    "nn.modules",
    "nn.modules._utils",
    "nn.modules.tensor_quantizer",
    "nn.modules.quant_linear",
    "nn.modules.quant_conv",
    "nn.modules.quant_pooling",
    "nn.modules.quant_instancenorm",
    "nn.modules.quant_rnn",
    "nn.modules.clip",
    "optim",
    "optim.helper",
    "utils",
    "utils.reduce_amax",
]


def is_theirs(name: str) -> bool:
    return name.split(".")[0] == NAME


@pytest.fixture(autouse=True)
def modules(toolkit_defaults: None) -> Iterator[None]:
    """Starts without the toolkit, and puts back what was there."""
    before = {name: module for name, module in sys.modules.items() if is_theirs(name)}
    for name in before:
        del sys.modules[name]
    yield
    for name in [name for name in sys.modules if is_theirs(name)]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def installed() -> None:
    assert install()


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the toolkit's name on the path."""
    package = tmp_path / NAME
    (package / "nn").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = 'real'\n")
    (package / "nn" / "__init__.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    return package


def load(path: str) -> types.ModuleType:
    return importlib.import_module(f"{NAME}.{path}" if path else NAME)


# Names


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path or "root")
def test_each_module_can_be_imported(path) -> None:
    module = load(path)
    assert isinstance(module, types.ModuleType)
    assert module.__name__ == f"{NAME}.{path}".rstrip(".")
    assert module.__spec__.name == module.__name__


@pytest.mark.usefixtures("installed")
def test_modules_can_be_reached_as_attributes() -> None:
    root = load("")
    for path in PATHS:
        if path in ("", "utils.reduce_amax"):
            continue
        module = root
        for part in path.split("."):
            module = getattr(module, part)
        assert module is load(path)


@pytest.mark.usefixtures("installed")
def test_reduce_amax_is_the_function_before_the_module() -> None:
    assert load("utils").reduce_amax is reduce_amax
    assert load("utils.reduce_amax").reduce_amax is reduce_amax


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ALIASED)
def test_a_module_has_its_own_and_torchs_name(name) -> None:
    quant_nn = load("nn")
    assert getattr(quant_nn, name) is getattr(quant_nn, f"Quant{name}")
    assert getattr(quant_nn, name) is getattr(ours, f"Quant{name}")


@pytest.mark.usefixtures("installed")
def test_names_are_of_the_same_objects_everywhere() -> None:
    quant_nn = load("nn")
    assert quant_nn.TensorQuantizer is ours.TensorQuantizer
    assert quant_nn.Clip is ours.Clip is load("nn.modules.clip").Clip
    for dims in DIMS:
        name = f"QuantInstanceNorm{dims}"
        assert getattr(quant_nn, name) is getattr(load("nn.modules.quant_instancenorm"), name)
        assert not hasattr(quant_nn, f"InstanceNorm{dims}")
        convs, pools = load("nn.modules.quant_conv"), load("nn.modules.quant_pooling")
        assert getattr(convs, f"Conv{dims}") is getattr(convs, f"QuantConv{dims}")
        assert getattr(convs, f"QuantConv{dims}") is getattr(quant_nn, f"QuantConv{dims}")
        assert getattr(pools, f"QuantMaxPool{dims}") is getattr(quant_nn, f"MaxPool{dims}")
    quantizer = load("nn.modules.tensor_quantizer")
    assert quantizer.TensorQuantizer is ours.TensorQuantizer
    assert quantizer.QuantDescriptor is tensor_quant.QuantDescriptor
    utils = load("nn.modules._utils")
    assert utils.QuantMixin is mixins.QuantMixin
    assert utils.QuantInputMixin is mixins.QuantInputMixin
    assert utils.pop_quant_desc_in_kwargs is mixins.pop_quant_desc_in_kwargs
    assert load("nn.modules.quant_conv")._utils is utils
    assert load("nn.modules.quant_linear").Linear is ours.QuantLinear
    assert load("nn.modules.quant_rnn").LSTM is ours.QuantLSTM
    assert load("nn.functional").clip is functional.clip


@pytest.mark.usefixtures("installed")
def test_functions_and_calibrators_are_ours() -> None:
    quant = load("tensor_quant")
    for name in (
        "QuantDescriptor",
        "ScaledQuantDescriptor",
        "QUANT_DESC_8BIT_PER_TENSOR",
        "QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW",
        "tensor_quant",
        "fake_tensor_quant",
        "fake_affine_tensor_quant",
        "scaled_e4m3",
    ):
        assert getattr(quant, name) is getattr(tensor_quant, name)
    calib = load("calib")
    assert calib.MaxCalibrator is calibrators.MaxCalibrator is load("calib.max").MaxCalibrator
    assert calib.HistogramCalibrator is calibrators.HistogramCalibrator
    assert calib.calibrate_weights is calibrators.calibrate_weights
    assert load("calib.histogram").HistogramCalibrator is calibrators.HistogramCalibrator
    assert load("calib.calibrator")._Calibrator is calibrators.Calibrator
    for name in ("initialize", "deactivate", "enable_onnx_export"):
        assert getattr(load("quant_modules"), name) is getattr(quant_modules, name)
        assert getattr(load(""), name) is getattr(quant_modules, name)
    for name in (
        "match_parameters",
        "group_parameters",
        "freeze_parameters",
        "quant_weight_inplace",
    ):
        assert getattr(load("optim.helper"), name) is getattr(helper, name)


@pytest.mark.usefixtures("installed")
def test_version_is_a_text() -> None:
    assert load("").__version__ == load("version").__version__
    assert load("").__version__.startswith("2.")


@pytest.mark.usefixtures("installed")
def test_star_imports_have_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from pytorch_quantization.nn import *", names)
    assert names["QuantLinear"] is ours.QuantLinear
    assert names["Linear"] is ours.QuantLinear
    names = {}
    exec("from pytorch_quantization.tensor_quant import *", names)
    assert names["QuantDescriptor"] is tensor_quant.QuantDescriptor


@pytest.mark.usefixtures("installed")
def test_unknown_module_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pytorch_quantization\.nope"):
        load("nope")


# Installing


def test_the_toolkit_exists_only_after_installing() -> None:
    with pytest.raises(ModuleNotFoundError):
        load("")
    assert install() is True
    assert load("nn").QuantLinear is ours.QuantLinear
    uninstall()
    with pytest.raises(ModuleNotFoundError):
        load("")
    assert not [name for name in sys.modules if is_theirs(name)]


def test_installing_again_changes_nothing() -> None:
    assert install()
    first = {name: module for name, module in sys.modules.items() if is_theirs(name)}
    assert install()
    assert install(force=True)
    assert {name: module for name, module in sys.modules.items() if is_theirs(name)} == first


def test_torch_is_left_alone() -> None:
    before = {name: getattr(nn, name) for name in dir(nn)}
    install()
    load("quant_modules")
    assert {name: getattr(nn, name) for name in dir(nn)} == before


def test_imported_toolkit_is_left_alone() -> None:
    present = types.ModuleType(NAME)
    sys.modules[NAME] = present
    assert install() is False
    assert sys.modules[NAME] is present
    assert [name for name in sys.modules if is_theirs(name)] == [NAME]


@pytest.mark.usefixtures("real")
def test_installed_toolkit_is_left_alone() -> None:
    assert install() is False
    assert not [name for name in sys.modules if is_theirs(name)]
    assert load("").__version__ == "real"
    assert load("nn").REAL


@pytest.mark.usefixtures("real")
def test_force_takes_the_place_of_an_installed_toolkit() -> None:
    assert load("nn").REAL
    assert install(force=True) is True
    assert load("nn").QuantLinear is ours.QuantLinear
    assert install() is True
    uninstall()
    assert load("").__version__ == "real"
    assert load("nn").REAL


@pytest.mark.usefixtures("real")
def test_uninstalling_leaves_the_real_toolkit_alone() -> None:
    theirs = load(""), load("nn")
    assert install() is False
    uninstall()
    assert (sys.modules.get(NAME), sys.modules.get(f"{NAME}.nn")) == theirs
