"""Look at this machine and this installation, without importing torch."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping

from qdqbert.common import cache
from qdqbert.common.extras import EXTRAS, is_installed
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.engines.cuda.device import OTHER_BUILD, torch_is_for
from qdqbert.engines.providers import PROVIDERS
from qdqbert.engines.registry import ENGINES, install_command
from qdqbert.engines.registry import is_installed as is_engine_installed
from qdqbert.evidence.reporting.doctor import Cache, DoctorReport, Part
from qdqbert.pipeline.versions import version_of

# Meanings of the features of `common.machine.cpu_features`.
_MEANINGS: Mapping[str, str] = {
    "avx2": "256-bit vectors",
    "avx512f": "512-bit vectors",
    "avx_vnni": "INT8 dot products of 256 bits",
    "avx512_vnni": "INT8 dot products of 512 bits",
    "amx_int8": "matrix tiles for INT8",
    "amx_bf16": "matrix tiles for bfloat16, in which OpenVINO computes floats",
    "avx512_bf16": "bfloat16 dot products, in which OpenVINO computes floats",
    "asimddp": "INT8 dot products (ARM)",
    "i8mm": "INT8 matrix products (ARM)",
    "bf16": "bfloat16 (ARM)",
}
# The first one whose features this CPU has, at least one of them.
_VERDICTS: tuple[tuple[Collection[str], str], ...] = (
    (
        ("amx_int8",),
        "INT8 is much faster than float32 on this CPU: it has matrix tiles for INT8 (AMX).",
    ),
    (
        ("avx512_vnni", "avx_vnni"),
        "INT8 is much faster than float32 on this CPU: it has INT8 dot products (VNNI).",
    ),
    (
        ("i8mm", "asimddp"),
        "INT8 is faster than float32 on this CPU: it has INT8 dot products.",
    ),
    (
        ("avx2",),
        "INT8 gains least on this CPU: it has AVX2, but no INT8 dot products. Use ONNX Runtime or "
        "the native engine, since OpenVINO's INT8 can be slower than its float32.",
    ),
)
_UNKNOWN = "This CPU has no feature that is known to make INT8 fast. Measure it with `benchmark`."


def run() -> DoctorReport:
    """Return the description."""
    features = cpu_features()
    gpus = find_gpus()
    engines = tuple(map(_engine, ENGINES))
    return DoctorReport(
        verdict=verdict_on(features),
        cpu=cpu_name(),
        cpu_features={name: _MEANINGS[name] for name in features},
        cores=usable_cores(),
        gpus=gpus,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        engines=engines,
        extras=tuple(_extra(name) for name in EXTRAS if name not in ENGINES),
        cache=describe_cache(),
        notices=tuple(_notices(engines, gpus)),
    )


def describe_cache() -> Cache:
    """Return the number and size of the packed models and downloads."""
    folder, limit = str(cache.models_folder()), cache.LIMIT_BYTES
    try:
        names = [each.name for each in cache.kept_models()]
    except OSError as error:
        problem = error.strerror or str(error)
        return Cache(
            folder=folder, models=None, size_bytes=None, limit_bytes=limit, problem=problem
        )
    downloads = sum(each.startswith(cache.DOWNLOAD) for each in names)
    return Cache(
        folder=folder,
        models=len(names) - downloads,
        downloads=downloads,
        size_bytes=cache.size_bytes(),
        limit_bytes=limit,
    )


def verdict_on(features: Collection[str]) -> str:
    """Return a sentence on INT8 with the features of a CPU."""
    matching = (text for names, text in _VERDICTS if set(names) & set(features))
    return next(matching, _UNKNOWN)


def find_gpus(
    run_command: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
) -> tuple[str, ...]:
    """Return the names of the NVIDIA GPUs, as the driver lists them; none without a driver.

    `run_command` runs a command, for tests.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        done = run_command([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    # Each line is `GPU 0: NAME (UUID: ...)`.
    names = (line.partition(": ")[2].partition(" (UUID")[0] for line in done.stdout.splitlines())
    return tuple(names) if done.returncode == 0 else ()


def _engine(name: str) -> Part:
    purpose = ENGINES[name].purpose
    if not is_engine_installed(name):
        install = install_command(name)
        return Part(name=name, purpose=purpose, version=None, details=(), install=install)
    details: tuple[str, ...] = ()
    if name == "onnxruntime":
        import onnxruntime

        known = {theirs: ours for ours, theirs in PROVIDERS.items()}
        found = [known.get(each) for each in onnxruntime.get_available_providers()]
        details = tuple(f"provider {each}" for each in found if each is not None)
    if name == "native":
        from qdqbert.engines.native.instruction_sets import choose_set

        details = (f"kernel {choose_set(None).name}",)
    version = version_of(ENGINES[name].package)
    return Part(name=name, purpose=purpose, version=version, details=details, install=None)


def _extra(name: str) -> Part:
    extra = EXTRAS[name]
    is_there = all(map(is_installed, extra.modules))
    return Part(
        name=name,
        purpose=extra.purpose,
        version=version_of(extra.modules[0]) if is_there else None,
        details=(f"torch for {torch_is_for()}",) if is_there and name == "cuda" else (),
        install=None if is_there else f"pip install 'qdqbert[{name}]'",
    )


def _notices(engines: Collection[Part], gpus: Collection[str]) -> list[str]:
    providers = {detail for part in engines for detail in part.details}
    notices = []
    if "kernel portable" in providers:
        notices.append(
            "The native engine has no fast kernel for this CPU, and can be 20 times slower than "
            "ONNX Runtime. Use another engine."
        )
    use = "This machine has a GPU, on which `run` and `serve` run models by `device='cuda'`. "
    if gpus and not all(map(is_installed, EXTRAS["cuda"].modules)):
        notices.append(f"{use}Install what it takes with: pip install 'qdqbert[cuda]'")
    elif gpus and (kind := torch_is_for()) != "CUDA":
        notices.append(f"{use}The installed torch is built for {kind}. {OTHER_BUILD}.")
    if gpus and "provider cuda" not in providers:
        notices.append(
            "This machine has a GPU, but the installed onnxruntime cannot use it. To run graphs "
            "for `tensorrt` or `qordered` on it, uninstall onnxruntime and install onnxruntime-gpu."
        )
    return notices
