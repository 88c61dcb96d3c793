"""Write a folder in another format, check it, and put it into its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdqbert.common.files import digest_of, json_values, write_json
from qdqbert.common.progress import Progress
from qdqbert.evidence.reporting.export import ExportReport
from qdqbert.integrations.exporting.format import Format
from qdqbert.integrations.exporting.formats import format_named
from qdqbert.integrations.exporting.source import Source, open_source
from qdqbert.pipeline.versions import version_of, versions
from qdqbert.runtime.artifact import EXPORT, check_output, writing
from qdqbert.verbs.export.options import ExportOptions

EXPORT_FORMAT = "qdqbert-export/1"

# Packages that convert or run an exported model, and no others.
_LIBRARIES = ("openvino_genai", "openvino_tokenizers", "tokenizers")


def run(options: ExportOptions, progress: Progress) -> ExportReport:
    """Export a folder."""
    written = format_named(options.to)
    source = open_source(
        Path(options.model),
        written.engine,
        target=options.target,
        returns=options.returns,
        default=written.default_outputs,
        name=options.name,
        pairs=options.pairs,
        tasks=written.tasks,
    )
    written.refuse(source)
    check_output(options.folder, overwrite=options.overwrite)
    with writing(options.folder, overwrite=options.overwrite) as folder:
        with progress.stage("Writing the model and its tokenizer"):
            written.write(source, folder)
        with progress.stage("Comparing tokens and results"):
            agreement = written.check(source, folder)
        report = _report(options, written, source, folder, agreement)
        write_json(folder / EXPORT, json_values(_manifest(report, source)))
    return report


def _report(
    options: ExportOptions, written: Format, source: Source, folder: Path, agreement: Any
) -> ExportReport:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    return ExportReport(
        model=str(options.model),
        to=options.to,
        target=source.target,
        task=source.artifact.task,
        name=source.name,
        inputs=source.text_names,
        outputs=source.outputs,
        max_length=source.artifact.max_length,
        agreement=tuple(agreement),
        files=files,
        size_bytes=sum(files.values()),
        usage=written.usage(source, options.folder),
        notices=(*source.input_notices, *written.notices(source)),
        directory=str(options.folder),
    )


def _manifest(report: ExportReport, source: Source) -> dict[str, Any]:
    """Return the content of export.json: the report without paths, and where the graph is from."""
    content = dataclasses.asdict(report)
    left_out = ("model", "directory", "usage", "files", "size_bytes")
    return {
        "format": EXPORT_FORMAT,
        **{name: value for name, value in content.items() if name not in left_out},
        "graph_sha256": digest_of(source.graph),
        "versions": {**versions(), **dict(_library_versions())},
    }


def _library_versions() -> Iterator[tuple[str, str]]:
    for name in _LIBRARIES:
        version = version_of(name)
        if version is not None:
            yield name.replace("_", "-"), version
