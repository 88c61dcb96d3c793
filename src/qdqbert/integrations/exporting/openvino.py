"""The format "openvino": written by `openvino_files`, and run by OpenVINO GenAI's pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.common.storage import Place
from qdqbert.engines.telemetry import openvino_telemetry_disabled
from qdqbert.evidence.agreement import Agreement
from qdqbert.integrations.exporting.checks import (
    Item,
    Result,
    check_results,
    check_tokens,
    expected_results,
)
from qdqbert.integrations.exporting.format import Format
from qdqbert.integrations.exporting.openvino_files import (
    CompiledTokenizer,
    instructions_of,
    pooling_of,
    run_model,
    write_model,
    write_settings,
    write_tokenizer,
)
from qdqbert.integrations.exporting.samples import check_pairs, check_texts
from qdqbert.integrations.exporting.source import (
    LAST_HIDDEN_STATE,
    SENTENCE_EMBEDDING,
    WHOLE_TEXTS,
    Source,
    refuse_truncate_dim,
)
from qdqbert.tasks.logits import apply

with openvino_telemetry_disabled():
    import openvino_genai


def _refuse(source: Source) -> None:
    if _is_pooled_by_pipeline(source):
        pooling_of(source)
    refuse_truncate_dim(source, "and OpenVINO's pipelines return all")


def _write(source: Source, folder: Path) -> None:
    write_model(source, folder)
    write_tokenizer(source, folder)
    write_settings(source, folder)


def _check(source: Source, folder: Path) -> Sequence[Agreement]:
    check_tokens(source, CompiledTokenizer(folder).ids, converter="OpenVINO Tokenizers")
    if source.is_reranker:
        return _check_reranker(source, folder)
    if _is_pooled_by_pipeline(source):
        return [_check_embedder(source, folder)]
    items: Sequence[Item] = check_pairs() if source.takes_pairs else check_texts()
    expected, results = expected_results(source, items), run_model(folder, items)
    return [check_results(name, expected[name], results[name]) for name in source.outputs]


def _check_embedder(source: Source, folder: Path) -> Agreement:
    settings = pooling_of(source)
    pooling = openvino_genai.TextEmbeddingPipeline.PoolingType
    pipeline = openvino_genai.TextEmbeddingPipeline(
        str(folder),
        "CPU",
        pooling_type=getattr(pooling, settings["pooling_type"]),
        normalize=settings["normalize"],
        **instructions_of(source),
    )
    texts = check_texts()
    found = [_vector(pipeline.embed_documents([text])[0]) for text in texts]
    prompt = instructions_of(source).get("embed_instruction", "")
    expected = expected_results(source, texts, outputs=(SENTENCE_EMBEDDING,), prompt=prompt)
    return check_results(SENTENCE_EMBEDDING, expected[SENTENCE_EMBEDDING], found)


def _check_reranker(source: Source, folder: Path) -> Sequence[Agreement]:
    pipeline = openvino_genai.TextRerankPipeline(str(folder), "CPU", top_n=1)
    pairs = check_pairs()
    found = [_vector([pipeline.rerank(query, [text])[0][1]]) for query, text in pairs]
    ((name, expected),) = expected_results(source, pairs).items()
    logits = run_model(folder, pairs)[name]
    # Scores are close to 0 and 1, where other logits would give nearly the same ones.
    return [
        check_results(name, expected, logits),
        check_results("score", [_score(each) for each in logits], found),
    ]


def _score(logits: Result) -> Result:
    """Return `TextRerankPipeline`'s score for logits `(classes,)`."""
    if len(logits) == 1:
        return apply("sigmoid", logits)
    return apply("softmax", logits)[1:2]


def _vector(values: Any) -> Result:
    return np.array(values, dtype=np.float32)


def _is_pooled_by_pipeline(source: Source) -> bool:
    return source.outputs == (LAST_HIDDEN_STATE,)


def _usage(source: Source, folder: Place) -> str:
    if source.is_reranker:
        return (
            "import openvino_genai\n\n"
            f'pipeline = openvino_genai.TextRerankPipeline({str(folder)!r}, "CPU", top_n=3)\n'
            "pipeline.rerank(query, documents)"
        )
    if not _is_pooled_by_pipeline(source):
        texts = "openvino.Tensor(texts)"
        if source.takes_pairs:
            texts = f'{{"text": {texts}, "text_pair": openvino.Tensor(text_pairs)}}'
        return (
            "import openvino\nimport openvino_tokenizers\n\n"
            "core = openvino.Core()\n"
            f'tokenizer = core.compile_model({str(folder / "openvino_tokenizer.xml")!r}, "CPU")\n'
            f'model = core.compile_model({str(folder / "openvino_model.xml")!r}, "CPU")\n'
            f"encoded = tokenizer({texts})\n"
            "model({each.any_name: encoded[each.any_name] for each in model.inputs})"
        )
    settings = pooling_of(source)
    pooling = f"openvino_genai.TextEmbeddingPipeline.PoolingType.{settings['pooling_type']}"
    arguments = [
        repr(str(folder)),
        '"CPU"',
        f"pooling_type={pooling}",
        f"normalize={settings['normalize']}",
        *(f"{name}={text!r}" for name, text in instructions_of(source).items()),
    ]
    lines = "".join(f"    {each},\n" for each in arguments)
    return (
        "import openvino_genai\n\n"
        f"pipeline = openvino_genai.TextEmbeddingPipeline(\n{lines})\n"
        "pipeline.embed_documents(texts)"
    )


def _notices(source: Source) -> Sequence[str]:
    notices = []
    if source.is_reranker:
        notices.append(
            "TextRerankPipeline applies a sigmoid to a single output, and a softmax to several. "
            "The order of documents is the same as from `rank`, but scores can differ."
        )
    if _is_pooled_by_pipeline(source):
        notices.append(
            "OpenVINO GenAI does not read the pooling from the folder, and uses CLS by default. "
            "Pass `pooling_type` and `normalize` as shown."
        )
    if _is_pooled_by_pipeline(source) and instructions_of(source):
        notices.append(
            "OpenVINO Model Server has no prompts. Put them before the texts of a request."
        )
    return notices


OPENVINO = Format(
    engine="openvino",
    tasks=WHOLE_TEXTS,
    default_outputs=LAST_HIDDEN_STATE,
    refuse=_refuse,
    write=_write,
    check=_check,
    usage=_usage,
    notices=_notices,
)
