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
    try:
        devices = _devices(torch, name)
    # Another process can have the GPU alone, and a driver can be broken.
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
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
    try:
        from triton.runtime import driver

        # It compiles what it needs on this machine.
        driver.active.get_current_target()
    # Errors are of all kinds, those of processes of a compiler among them.
    except Exception as error:
        raise _refused(
            name,
            f"Triton does not start: {one_line(error)}. It needs a C compiler and the headers of "
            "Python, as those of the packages gcc and python3-dev, and a folder that can be "
            "written, as TRITON_CACHE_DIR",
        ) from error
    return new[0]


def _devices(torch: Any, name: str) -> list[Device]:
    """Return the GPUs that a name can mean."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        is_there = torch.cuda.is_available()
    if not is_there:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        reason = "" if hidden is None else f" with CUDA_VISIBLE_DEVICES={hidden!r}"
        # It warns if a driver is too old.
        reason = f": {one_line(said[-1].message)}" if said else reason
        raise _refused(name, f"torch {torch.__version__} sees no NVIDIA GPU{reason}")
    count, found = torch.cuda.device_count(), _NAME.fullmatch(name)
    indices: Sequence[int] = range(count)
    if found is not None:
        indices = (torch.cuda.current_device() if found[1] is None else int(found[1]),)
    if indices[-1] >= count:
        raise _refused(name, f"torch sees {count} GPU{'' if count == 1 else 's'}")
    devices = []
    for index in indices:
        major, minor = torch.cuda.get_device_capability(index)
        card = torch.cuda.get_device_name(index)
        devices.append(Device(name=f"cuda:{index}", card=card, capability=10 * major + minor))
    return devices


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


def _refused(name: str, reason: str) -> UserInputError:
    return UserInputError(
        f"`device={name!r}`: {reason}. Pass `device='cpu'`, or leave it out.", argument="device"
    )
