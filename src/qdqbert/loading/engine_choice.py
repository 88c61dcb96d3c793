"""Choose the engine that runs a folder's graph, and say why."""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert.common.choices import EngineName
from qdqbert.common.errors import MissingExtraError
from qdqbert.common.json_files import Fields, damaged, read_json
from qdqbert.common.machine import cpu_features
from qdqbert.engines.native.instruction_sets import choose_set
from qdqbert.engines.native.instruction_sets.portable import PORTABLE
from qdqbert.engines.registry import check_engine, install_command, is_installed
from qdqbert.runtime.artifact import REPORT, Artifact
from qdqbert.runtime.options import EngineOptions

_LOGGER = logging.getLogger("qdqbert")

# CPU features with which OpenVINO's INT8 is faster than ONNX Runtime's; docs/benchmarks.md.
_FAST_IN_OPENVINO = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
# CPU features that the native engine has fast kernels for.
_FAST_IN_NATIVE = frozenset({"avx2", "asimddp"})


def choose_engine(
    artifact: Artifact, options: EngineOptions, target: str | None = None
) -> tuple[EngineName, str]:
    """Return the engine that runs a folder, and the reason in words; none for its only engine.

    The engine is the given one; otherwise, of those that run the graph of `target`, the one that
    was chosen when the folder was made, if this CPU has the same features; otherwise the fastest
    one of the folder's report, if it was made on a CPU with the same features; otherwise the usual
    one for this CPU.

    Raises:
        UserInputError: The engine is unknown, no engine runs a graph of the folder, or this CPU
            does not have the kernel.
        MissingExtraError: The engine, or every engine that runs a graph of the folder, is not
            installed.
    """
    engine, provider, kernel = options.engine, options.provider, options.kernel
    if engine is not None:
        check_engine(engine, provider=provider, kernel=kernel)
        return engine, "it was asked for"
    if kernel is not None:
        check_engine("native", provider=provider, kernel=kernel)
        return "native", f"it has the kernel {kernel!r}"
    if provider is not None:
        check_engine("onnxruntime", provider=provider)
        return "onnxruntime", f"it has the provider {provider!r}"
    engines = artifact.engines_of(target)
    usable = [each for each in engines if is_installed(each)]
    if not usable:
        check_engine(engines[0])
        raise MissingExtraError(f"Engine {engines[0]!r} is not installed.")
    chosen, reason = _best(artifact, usable)
    if len(engines) == 1 < len(artifact.engines):
        reason = "no other engine runs this target"
    best, its_reason = _best(artifact, engines)
    if best not in usable:
        _LOGGER.warning(
            "%r runs on %s, and should run on %s, which is not installed: %s%s. Install it with: "
            "%s",
            str(artifact.directory),
            chosen,
            best,
            its_reason,
            _times_as_fast(artifact, best, chosen),
            install_command(best),
        )
    return chosen, reason


def _best(artifact: Artifact, engines: Sequence[EngineName]) -> tuple[EngineName, str]:
    """Return the best of some engines, installed or not, and the reason in words."""
    if len(engines) == 1:
        is_choice = len(artifact.engines) > 1
        return engines[0], "no other engine of this folder is installed" if is_choice else ""
    features = list(cpu_features())
    chosen = artifact.choice
    if chosen.get("cpu_features") == features and chosen.get("engine") in engines:
        return chosen["engine"], "it was the fastest when the model was quantized for this CPU"
    report = _read_report(artifact)
    means = _mean_latencies(report, engines)
    # A single engine is no comparison.
    if len(means) > 1 and report.get("cpu_features") == features:
        fastest = min(means, key=means.__getitem__)
        return fastest, f"{REPORT} has the lowest latency for it, on a CPU with the same features"
    if "native" in engines and _FAST_IN_NATIVE & set(features):
        return "native", "it is usually the fastest"
    if "openvino" in engines and _FAST_IN_OPENVINO & set(features):
        return "openvino", "it is usually the fastest on CPUs with VNNI or AMX"
    return "onnxruntime" if "onnxruntime" in engines else engines[0], "it is the usual one"


def _times_as_fast(artifact: Artifact, best: EngineName, chosen: EngineName) -> str:
    """Return the speedup of the best engine by the folder's report, in parentheses."""
    means = _mean_latencies(_read_report(artifact), [best, chosen])
    if len(means) < 2 or means[best] >= means[chosen]:
        return ""
    return f" ({means[chosen] / means[best]:.1f} x as fast)"


def warn_of_slow_kernel(artifact: Artifact) -> None:
    """Warn if the native engine has no fast kernel for this CPU."""
    if choose_set(None) == PORTABLE:
        _LOGGER.warning(
            "%r runs on the native engine's kernel 'portable', which can be 20 times slower than "
            "ONNX Runtime: there is no fast kernel for the features that were found on this CPU. "
            "Pass another `engine`, or quantize the model for another target.",
            str(artifact.directory),
        )


def _read_report(artifact: Artifact) -> Mapping[str, Any]:
    path = artifact.directory / REPORT
    if not path.is_file():
        return {}
    content = read_json(path)
    fields = Fields(content, lambda reason: damaged(path, reason))
    for target in fields.children("targets") if fields.has("targets") else ():
        target.text("engine")
        for latency in target.children("latency") if target.has("latency") else ():
            latency.number("int8_ms", sys.float_info.min)
    return content


def _mean_latencies(
    report: Mapping[str, Any], engines: Sequence[EngineName]
) -> dict[EngineName, float]:
    """Return the geometric mean of each engine's latencies over all measured shapes."""
    means: dict[EngineName, float] = {}
    for entry in report.get("targets") or ():
        times = [each["int8_ms"] for each in entry.get("latency") or ()]
        if entry["engine"] in engines and times:
            mean = statistics.geometric_mean(times)
            means[entry["engine"]] = min(mean, means.get(entry["engine"], mean))
    return means
