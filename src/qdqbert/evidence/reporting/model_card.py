"""The model card of a quantized model: metadata for the hub, and what was measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.evidence.reporting.document import Section, counted
from qdqbert.evidence.reporting.graphs import graph_name
from qdqbert.evidence.reporting.quantize import QuantizeReport

_MOST_LABELS = 20
# Fields of a source's card that also hold for the quantized model.
_INHERITED = ("language", "license", "license_name", "license_link")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a quantized model comes from.

    Attributes:
        hub_id: Name of the float model on the hub; `None` if it was read from a file or folder.
        card: Metadata of its model card.
        model_type: transformers' name of its family; `None` if it is not known.
        is_sentence_transformer: Whether sentence-transformers reads its folder.
        eval_data: Data that the metrics are computed on, if there are some.
        labels: Names of its classes.
        is_regression: Whether the outputs of a classifier are numbers.
        takes_pairs: Whether a classifier reads pairs of texts.
        mask_token: The token that masked language models fill.
    """

    hub_id: str | None
    card: Mapping[str, Any]
    model_type: str | None
    is_sentence_transformer: bool
    eval_data: str | None
    labels: tuple[str, ...] = ()
    is_regression: bool = False
    takes_pairs: bool = False
    mask_token: str | None = None


def model_card(report: QuantizeReport, origin: Origin) -> str:
    """Return the model card of a folder that `quantize` wrote.

    It names no folder of this machine.
    """
    assert report.directory is not None
    name, source = Path(report.directory).name, markdown_code(Path(report.checkpoint).name)
    if origin.hub_id is not None:
        source = f"[{origin.hub_id}](https://huggingface.co/{origin.hub_id})"
    document = dataclasses.replace(report, directory=name).document()
    facts = f": {', '.join(document.facts)}" if document.facts else ""
    verdict = f"**{document.verdict}**{facts}."
    place = f", on {markdown_code(report.cpu)} with {report.cores} cores" if report.cpu else ""
    parts = [
        f"---\n{_metadata(report, origin, name).to_yaml()}\n---",
        f"# {markdown_code(name)}",
        f"{source} in {report.codes},\nquantized and measured by qdqbert. {verdict}",
        f"Ranges were taken from {counted(report.calibration_texts, 'text')}. {report.codes} is "
        f"compared with float on {counted(report.heldout_texts, 'text')} that were not used to "
        f"calibrate{place}.",
        *(_section(each) for each in document.sections if not (each.is_detail or each.is_folded)),
    ]
    if report.warnings:
        parts += ["## Warnings", "\n".join(f"- {each}" for each in report.warnings)]
    parts.append(
        "`report.html` has plots and everything else that was measured, and `quantization.json` "
        "how the model was made."
    )
    labels = _labels(report.task, origin)
    return "\n\n".join([*parts, *([f"Labels: {labels}."] if labels else [])]) + "\n"


def _section(section: Section) -> str:
    parts = [f"## {section.title}", section.text]
    if section.table is not None:
        names = [markdown_code(each) if each else "" for each, _ in section.table.formats]
        rows = [names, ["---"] * len(names)]
        for first, *cells in section.table.cells:
            rows.append([first.text, *(markdown_code(each.text) for each in cells)])
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    if section.code:
        parts.append(f"```\n{section.code}\n```")
    return "\n\n".join(filter(None, parts))


def markdown_code(text: str) -> str:
    """Return a name as code in Markdown, in which nothing of it has a meaning."""
    plain = " ".join(text.replace("`", "'").replace("|", "/").split())
    return f"`{plain}`" if plain else ""


def example_call(task: str, origin: Origin) -> str | None:
    """Return an example of a call of the model; `None` if `load` does not run it."""
    if task == "text-classification" and len(origin.labels) == 1 and not origin.is_regression:
        return TASK_KINDS["reranking"].call
    if task == "text-classification" and origin.takes_pairs:
        return 'model({"text": "A man is eating.", "text_pair": "Someone eats."})'
    kind = TASK_KINDS[task]
    if kind.predicts_words and not kind.is_causal:
        text = f"The capital of France is {origin.mask_token}."
        return f"model({text!a})"
    return kind.call


def _labels(task: str, origin: Origin) -> str:
    if not TASK_KINDS[task].has_classes or len(origin.labels) < 2:
        return ""
    shown = ", ".join(markdown_code(each) for each in origin.labels[:_MOST_LABELS])
    return f"{shown}, …" if len(origin.labels) > _MOST_LABELS else shown


def _metadata(report: QuantizeReport, origin: Origin, name: str) -> ModelCardData:
    results = _results(report, origin)
    inherited: dict[str, Any] = {key: origin.card[key] for key in _INHERITED if key in origin.card}
    relation: dict[str, Any] = {} if origin.hub_id is None else {"base_model_relation": "quantized"}
    return ModelCardData(
        base_model=origin.hub_id or origin.card.get("base_model"),
        library_name="qdqbert",
        pipeline_tag=TASK_KINDS[report.task].hub_tag or report.task,
        tags=_tags(report, origin),
        # The hub's library reads a card's metrics only together with the name.
        model_name=name if results else None,
        eval_results=results or None,
        ignore_metadata_errors=True,
        **inherited,
        **relation,
    )


def _tags(report: QuantizeReport, origin: Origin) -> list[str]:
    tags = ["qdqbert", "int8", "quantized"]
    if any(each.model.endswith(".onnx") for each in report.targets):
        tags.append("onnx")
    if origin.model_type is not None:
        tags.append(origin.model_type)
    if origin.is_sentence_transformer:
        tags.append("sentence-transformers")
    return tags


def _results(report: QuantizeReport, origin: Origin) -> list[EvalResult]:
    """Return the metrics of each graph, as the hub's `model-index` has them."""
    if origin.eval_data is None:
        return []
    is_hub = origin.eval_data.startswith("hub:")
    data, _, split = origin.eval_data.removeprefix("hub:").partition("@" if is_hub else "\0")
    dataset = data if is_hub else Path(data).stem
    return [
        EvalResult(
            task_type=TASK_KINDS[report.task].hub_tag or report.task,
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split=split or None,
            metric_type=metric.name,
            metric_name=f"{metric.name} ({graph_name(each)})",
            metric_value=round(metric.value, 4),
        )
        for each in report.targets
        for metric in each.metrics
        if math.isfinite(metric.value)
    ]
