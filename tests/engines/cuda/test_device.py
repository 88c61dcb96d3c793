"""Which GPUs are used, and what is said if there is none."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from triton.errors import TritonError
from triton.runtime import driver

from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.engines.cuda import device


@pytest.fixture
def cards(monkeypatch):
    """Return what pretends that torch sees GPUs of some compute capabilities."""
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=lambda: None))
    monkeypatch.setattr(device, "torch_is_for", lambda: "CUDA")

    def see(*capabilities: tuple[int, int]) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Card {index}")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: capabilities[i])

    return see


def test_a_gpu_is_found_by_its_name(cards) -> None:
    cards((8, 9), (9, 0))
    first, second = (device.find_device(name) for name in ("cuda", "cuda:1"))
    assert (first.name, first.capability) == ("cuda:0", 89)
    assert (second.name, second.capability) == ("cuda:1", 90)
    assert str(second) == "cuda:1 (Card 1)"


def test_a_gpu_that_is_too_old_is_refused_by_name(cards) -> None:
    cards((7, 5))
    with pytest.raises(
        UserInputError, match=r"\(Card 0\) has compute capability 7\.5, .* need 8\.0"
    ):
        device.find_device("cuda")


@pytest.mark.parametrize("capabilities", [[(8, 9), (9, 0)], [(7, 5), (8, 9)], [(7, 0), (12, 0)]])
def test_auto_is_the_first_gpu_that_is_not_too_old_and_says_what_it_passes_over(
    cards, caplog, capabilities
) -> None:
    cards(*capabilities)
    with caplog.at_level(logging.INFO, "qdqbert"):
        found = device.find_device("auto")
    first = 0 if capabilities[0] >= (8, 0) else 1
    assert found.name == f"cuda:{first}"
    said = ["`device='auto'` is cuda:1 (Card 1): cuda:0 (Card 0) has compute capability 7."] * first
    assert [each.getMessage()[: len(said[0])] for each in caplog.records] == said


def test_auto_names_all_gpus_if_they_are_too_old(cards) -> None:
    cards((7, 5), (6, 1))
    with pytest.raises(
        UserInputError, match=r"\(Card 0\) has .* 7\.5, .*\(Card 1\) has .* 6\.1, and"
    ):
        device.find_device("auto")


def test_a_gpu_that_is_not_there_is_refused(cards) -> None:
    cards((8, 0))
    with pytest.raises(UserInputError, match="`device='cuda:3'`: torch sees 1 GPU"):
        device.find_device("cuda:3")


def test_a_machine_without_a_gpu_is_told_why(cards, monkeypatch) -> None:
    cards()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(UserInputError, match="CUDA_VISIBLE_DEVICES='-1'"):
        device.find_device("cuda")


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "CPUs"),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "CUDA"),
        # It sees AMD's GPUs as CUDA's.
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.2.1'\n", "AMD's GPUs"),
        ("debug = False\ncuda = None\ngit_version = 'cuda'\n", "CPUs"),
        ("cuda = '12.8'\n", "CUDA"),
    ],
)
def test_another_build_of_torch_is_named(monkeypatch, tmp_path, version, kind) -> None:
    (tmp_path / "version.py").write_text(version)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(device, "is_installed", lambda _: True)
    assert device.torch_is_for() == kind
    if kind != "CUDA":
        message = rf"torch is built for {kind}\. Install its build for CUDA.*Pass `device='cpu'`"
        with pytest.raises(UserInputError, match=message):
            device.find_device("cuda")


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_a_torch_that_cannot_be_imported_is_refused(cards, monkeypatch, error) -> None:
    def fail(*_: object) -> None:
        raise error("libcudnn.so.9: cannot open shared object file")

    cards((8, 0))
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr("builtins.__import__", fail)
    with pytest.raises(UserInputError, match=r"torch cannot be imported: libcudnn\.so\.9"):
        device.find_device("auto")


def test_what_torch_warns_of_is_said(cards, monkeypatch) -> None:
    def is_available() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old.", stacklevel=2)
        return False

    cards()
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    with pytest.raises(UserInputError, match=r"GPU: The NVIDIA driver .* too old\. Pass"):
        device.find_device("cuda")


@pytest.mark.parametrize("name", ["cuda", "auto"])
@pytest.mark.parametrize(
    "error", [RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError], ids=repr
)
def test_a_gpu_that_another_process_has_alone_is_refused(cards, monkeypatch, error, name) -> None:
    def fail(*_: object) -> None:
        raise error("CUDA error: all CUDA-capable devices are busy or unavailable")

    cards((8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", fail)
    with pytest.raises(UserInputError, match=rf"`device='{name}'`: CUDA does not start: .*busy"):
        device.find_device(name)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler."),
        subprocess.CalledProcessError(1, ["gcc", "cuda_utils.c"]),
        PermissionError(13, "Permission denied", "/.triton/cache"),
    ],
    ids=["no compiler", "no headers", "no folder"],
)
def test_a_machine_without_a_compiler_is_told_what_to_install(cards, monkeypatch, error) -> None:
    def fail() -> None:
        raise error

    cards((8, 0))
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=fail))
    message = r"Triton does not start: .*gcc and python3-dev, .*TRITON_CACHE_DIR"
    with pytest.raises(UserInputError, match=message):
        device.find_device("cuda")


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_missing_package_is_named(monkeypatch, package) -> None:
    monkeypatch.setattr(device, "is_installed", lambda name: name != package)
    with pytest.raises(MissingExtraError, match=rf"needs {package}.*qdqbert\[cuda\]"):
        device.find_device("cuda")


@pytest.mark.parametrize(
    "name",
    [
        *("gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:01", "cuda:\u0663", "cuda:" + "9" * 5000),
        *("cuda:0,1", "cuda: 0", " cuda", "cuda:0\n", "CUDA", "cpu:0", "rocm", "0", "", "None"),
    ],
    ids=lambda name: repr(name)[:12],
)
def test_other_names_are_refused(name) -> None:
    with pytest.raises(UserInputError, match=r"`device=.*` is unknown"):
        device.check_device(name)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.cuda.OutOfMemoryError, "does not fit into the free memory of Card"),
        (MemoryError, "does not fit into the free memory of Card"),
        # All of the memory is taken, or all of the GPU.
        (torch.AcceleratorError, "the kernels do not run on Card: CUDA error: out of memory"),
        # A kernel takes more shared memory than there is, or a disk is full.
        (TritonError, "the kernels do not run on Card: CUDA error"),
        (OSError, "the kernels do not run on Card: CUDA error"),
    ],
)
def test_a_gpu_that_cannot_run_the_kernels_says_why(monkeypatch, error, message) -> None:
    from qdqbert.engines.cuda import runner

    def fail(*args: object, **kwargs: object) -> None:
        raise error("CUDA error: out of memory")

    monkeypatch.setattr(runner, "CudaRunner", fail)
    found = device.Device(name="cuda:0", card="Card", capability=80)
    with pytest.raises(UserInputError, match=message):
        device.open_on(found, SimpleNamespace())


def test_neither_torch_nor_triton_is_imported_for_the_cpu() -> None:
    code = (
        "import sys, qdqbert, qdqbert.loading.load; "
        "assert not {'torch', 'triton'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_forked_process_is_told_to_spawn(cards, monkeypatch) -> None:
    cards((8, 0))
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    found = device.Device(name="cuda:0", card="Card", capability=80)
    message = r"forked process.*get_context\('spawn'\)"
    with pytest.raises(UserInputError, match=message):
        device.open_on(found, SimpleNamespace())
    # torch starts CUDA to name a GPU.
    with pytest.raises(UserInputError, match=message):
        device.find_device("cuda")
