"""Compare a folder with its checksums, and measure its fidelity again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from qdqbert.common.choices import ENGINE_NAMES, EngineName
from qdqbert.common.json_files import Fields
from qdqbert.common.machine import cpu_features, cpu_name
from qdqbert.common.progress import Progress
from qdqbert.engines.registry import install_command, is_installed, open_runner
from qdqbert.evidence.checksums import CHECKSUMS, check_files
from qdqbert.evidence.reporting.verify import FidelityCheck, VerifyReport, VersionCheck
from qdqbert.evidence.verification import lowest_sqnr, measure_rows, read_rows
from qdqbert.pipeline.versions import versions
from qdqbert.runtime.artifact import QUANTIZATION, REPORT, VERIFICATION, Artifact, open_artifact
from qdqbert.verbs.verify.options import VerifyOptions


def run(options: VerifyOptions, progress: Progress) -> VerifyReport:
    """Verify a folder."""
    folder = Path(options.model)
    with progress.stage("Comparing checksums"):
        files = check_files(folder)
    notices: list[str] = []
    if files is None:
        notices.append(
            f"The folder has no {CHECKSUMS}: its files cannot be checked. Quantize the model again "
            "to get checksums."
        )
    damaged = frozenset(each.name for each in files or () if each.verdict != "intact")
    compared: Sequence[VersionCheck] = ()
    fidelity: list[FidelityCheck] = []
    if QUANTIZATION in damaged:
        notices.append(f"Fidelity was not measured, as {QUANTIZATION} is damaged.")
    else:
        artifact = open_artifact(folder, requires_graphs=files is None)
        compared = _versions(artifact)
        fidelity = _measure(artifact, damaged, notices, progress)
    return VerifyReport(
        model=str(options.model),
        files=files or (),
        has_checksums=files is not None,
        versions=compared,
        fidelity=fidelity,
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        notices=notices,
    )


def _versions(artifact: Artifact) -> list[VersionCheck]:
    installed = versions()
    return [
        VersionCheck(name=name, stored=str(stored), installed=installed.get(name))
        for name, stored in artifact.versions.items()
    ]


def _measure(
    artifact: Artifact, damaged: frozenset[str], notices: list[str], progress: Progress
) -> list[FidelityCheck]:
    """Measure the graphs whose files are intact, and add a notice on each that is not measured."""
    needed = sorted(damaged & {REPORT, VERIFICATION})
    if needed:
        notices.append(f"Fidelity was not measured, as {needed[0]} is damaged.")
        return []
    path = artifact.directory / VERIFICATION
    if not path.is_file():
        notices.append(
            f"Fidelity was not measured, as the folder has no rows with results in float "
            f"({VERIFICATION}). `quantize` stores them, unless `verification_data` is 'none'."
        )
        return []
    rows = read_rows(path)
    found = []
    for target, engine, stored_db in _stored_fidelity(artifact):
        model = artifact.model_for(engine, target)
        reason = _obstacle(model.relative_to(artifact.directory).as_posix(), engine, damaged)
        if reason is not None:
            notices.append(f"{target} on {engine} was not measured, as {reason}.")
            continue
        with progress.stage(f"Measuring {target} on {engine}"):
            names = (*artifact.input_names, *artifact.output_names)
            sqnr_db = measure_rows(open_runner(engine, model, names=names), rows)
        found.append(
            FidelityCheck(
                target=target,
                engine=engine,
                stored_db=stored_db,
                sqnr_db=sqnr_db,
                lowest_db=lowest_sqnr(stored_db),
            )
        )
    return found


def _obstacle(model: str, engine: EngineName, damaged: frozenset[str]) -> str | None:
    """Return why a graph cannot be measured; `None` if it can."""
    # Large graphs have their weights in a file of their own.
    broken = sorted(damaged & {model, f"{model}.data"})
    if broken:
        return f"{broken[0]} is damaged"
    if not is_installed(engine):
        return f"the engine is not installed: {install_command(engine)}"
    return None


def _stored_fidelity(artifact: Artifact) -> Iterator[tuple[str, EngineName, float]]:
    """Yield target, engine and SQNR of each graph that was measured on the stored rows."""
    for each in Fields.of_file(artifact.directory / REPORT).children("targets"):
        stored = each.get("verification_db")
        # JSON has no infinity, which is the SQNR of equal results.
        db = math.inf if stored is None else each.number("verification_db")
        yield each.text("target"), each.choice("engine", ENGINE_NAMES), db  # type: ignore[misc]
