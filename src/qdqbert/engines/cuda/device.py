"""The GPUs of this machine. torch is imported when one is asked for."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.errors import MissingExtraError, QdqBertError, UserInputError, one_line
from qdqbert.common.extras import is_installed
from qdqbert.engines.native.storage import Packed
from qdqbert.engines.runner import Runner

LEAST_CAPABILITY = 80
"""Least compute capability, times 10: Triton has no int8 products below."""
OTHER_BUILD = "Install its build for CUDA, as https://pytorch.org/get-started/locally says"
"""What to do if torch is built for something else."""

_LOGGER = logging.getLogger("qdqbert")
_NAME = re.compile(r"cuda(?::(0|[1-9][0-9]{0,3}))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU.

    Attributes:
        name: Torch's name of it, as "cuda:0".
        card: The card's name.
        capability: Its compute capability, times 10.
    """

    name: str
    card: str
    capability: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.name} ({self.card})"


def check_device(name: str) -> None:
    """Refuse what is no name of a device.

    Raises:
        UserInputError: It is neither "cpu", "auto", "cuda" nor "cuda:N".
    """
    if name not in ("cpu", "auto") and not _NAME.fullmatch(name):
        raise UserInputError(
            f"`device={name!r:.100}` is unknown. Pass 'cpu', 'cuda', 'cuda:1', or 'auto' for a GPU "
            "if there is one.",
            argument="device",
        )


def is_gpu(name: str | None) -> bool:
    """Return whether the name of a device is that of a GPU."""
    return name is not None and name.startswith("cuda")


def torch_is_for() -> str:
    """Return what the installed torch is built for, in words, without importing it."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None, "callers look whether it is installed"
    assert spec.origin is not None, spec
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(cuda|hip)\b.*= (.*)$", text, re.MULTILINE))
    kinds = {"cuda": "CUDA", "hip": "AMD's GPUs"}
    return next((kinds[each] for each in kinds if found.get(each, "None") != "None"), "CPUs")


def find_device(name: str) -> Device:
    """Return a GPU by torch's name.

    "cuda" is the one that torch uses by default, and "auto" the first one that is not too old.

    Raises:
        MissingExtraError: torch or Triton is not installed.
        UserInputError: There is no such GPU, it is too old, or torch or Triton cannot use it here.
    """
    for package in ("torch", "triton"):
        if not is_installed(package):
            raise MissingExtraError(
                f"`device={name!r}` needs {package}, which is not installed. On Linux, install it "
                "with: pip install 'qdqbert[cuda]'",
                argument="device",
            )
    try:
        if (kind := torch_is_for()) != "CUDA":
            raise _refused(name, f"torch is built for {kind}. {OTHER_BUILD}")
        import torch
    except (ImportError, OSError) as error:
        raise _refused(name, f"torch cannot be imported: {one_line(error)}") from error

    _check_fork(torch, name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        is_there = torch.cuda.is_available()
    if not is_there:
        raise _refused(name, f"torch {torch.__version__} sees no NVIDIA GPU{_reason(said)}")
    try:
        devices = [_read(torch, each) for each in _indices(torch, name)]
    except RuntimeError as error:
        # Another process can have the GPU alone, and a driver can be broken.
        raise _refused(name, f"CUDA does not start: {one_line(error)}") from error
    new = [each for each in devices if each.capability >= LEAST_CAPABILITY]
    old = ", ".join(
        f"{each} has compute capability {each.capability / 10}"
        for each in devices
        if each not in new
    )
    if not new:
        raise _refused(
            name,
            f"{old}, and int8 products in Triton need 8.0 (A100, A10, L4, H100, RTX 30 and later)",
        )
    if old:
        _LOGGER.info("`device=%r` is %s: %s, and 8.0 is needed.", name, new[0], old)
    _start_triton(name)
    return new[0]


def _indices(torch: Any, name: str) -> Sequence[int]:
    """Return the numbers of the GPUs that a name can mean."""
    count = torch.cuda.device_count()
    if name == "auto":
        return range(count)
    found = _NAME.fullmatch(name)
    assert found is not None, name
    index = torch.cuda.current_device() if found[1] is None else int(found[1])
    if index >= count:
        raise _refused(name, f"torch sees {count} GPU{'' if count == 1 else 's'}")
    return (index,)


def _read(torch: Any, index: int) -> Device:
    major, minor = torch.cuda.get_device_capability(index)
    return Device(
        name=f"cuda:{index}",
        card=torch.cuda.get_device_name(index),
        capability=10 * major + minor,
    )


def open_on(device: Device, model: Path | Packed) -> Runner:
    """Copy a packed model to a GPU, and run a token, for which kernels are compiled.

    Raises:
        CheckpointError: The file is damaged.
        GraphError: The kernels do not compute a part of the model.
        UserInputError: The GPU has too little free memory, or cannot run the kernels.
    """
    import torch
    from triton.errors import TritonError

    from qdqbert.engines.cuda.runner import CudaRunner

    _check_fork(torch, device.name)
    try:
        runner = CudaRunner(model, torch.device(device.name), device.capability)
        runner.run_token()
    except QdqBertError:
        raise
    except (torch.cuda.OutOfMemoryError, MemoryError) as error:
        reason = f"the model does not fit into the free memory of {device.card}"
        raise _refused(device.name, reason) from error
    except (RuntimeError, OSError, TritonError) as error:
        # Another process can have the GPU alone, and a disk can have no room for compiled kernels.
        reason = f"the kernels do not run on {device.card}: {one_line(error)}"
        raise _refused(device.name, reason) from error
    return runner


def _check_fork(torch: Any, name: str) -> None:
    if torch.cuda._is_in_bad_fork():
        raise _refused(
            name,
            "a GPU cannot be used in a forked process of one that used it. Start processes with "
            "`multiprocessing.get_context('spawn')`, or load the model in the process that uses it",
        )


def _start_triton(name: str) -> None:
    """Load what Triton compiles for this machine when it first runs a kernel."""
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    # It is told by errors of all kinds, of processes of a compiler, too.
    except Exception as error:
        raise _refused(
            name,
            f"Triton does not start: {one_line(error)}. It needs a C compiler and the headers of "
            "Python, as those of the packages gcc and python3-dev, and a folder that can be "
            "written, as TRITON_CACHE_DIR",
        ) from error


def _reason(said: Sequence[warnings.WarningMessage]) -> str:
    """Return why torch sees no GPU, given its warnings, as that a driver is too old."""
    if said:
        return f": {one_line(said[-1].message)}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if hidden is None else f" with CUDA_VISIBLE_DEVICES={hidden!r}"


def _refused(name: str, reason: str) -> UserInputError:
    return UserInputError(
        f"`device={name!r}`: {reason}. Pass `device='cpu'`, or leave it out.", argument="device"
    )
