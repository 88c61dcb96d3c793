"""Compare an exported model with the folder that it comes from: tokens, then results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

import qdqbert.loading.load
from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.sample_texts import HARD
from qdqbert.evidence.agreement import Agreement
from qdqbert.evidence.fidelity import to_decibels
from qdqbert.integrations.exporting.samples import check_pairs, check_texts
from qdqbert.integrations.exporting.source import LAST_HIDDEN_STATE, SENTENCE_EMBEDDING, Source

LEAST_SQNR_DB = 15.0
"""Lowest `Agreement.worst_sqnr_db` of an exported model.

Both run the same INT8 graph, so that they differ in the order of float sums only, and in the codes
of activations that are close to a rounding boundary. For all-MiniLM-L6-v2 on OpenVINO, the worst
text has 129 dB. It has 21 dB if one of them computes floats in bfloat16, and the other one does
not. With its long text cut at half of the length it has 13 dB, without the special tokens in the
mean 2 dB, and with another pooling -2 dB.
"""

Item = str | tuple[str, str]
Result = NDArray[np.float32]
Tokenize = Callable[[Sequence[Item]], Iterable[Iterable[int]]]


def differing_texts(
    tokenizer: Tokenizer, tokenize: Tokenize, texts: Mapping[str, Item], *, prompt: str = ""
) -> list[str]:
    """Return the names of the texts that a tokenizer gives other ids for."""
    found = zip(texts.items(), tokenize(list(texts.values())), strict=True)
    return [
        name
        for (name, text), ids in found
        if list(ids) != tokenizer.encode(prompt + text if isinstance(text, str) else text).ids
    ]


def check_tokens(source: Source, tokenize: Tokenize, *, converter: str, prompt: str = "") -> None:
    """Refuse a tokenizer that gives other ids for some text, with a `UserInputError`."""
    texts: Mapping[str, Item] = HARD
    if source.takes_pairs:
        # The library that runs OpenVINO's tokenizers fails for two empty texts.
        texts = {name: (HARD["a sentence"], text) for name, text in HARD.items()}
    found = differing_texts(source.tokenizer(), tokenize, texts, prompt=prompt)
    if found:
        raise UserInputError(
            f"{converter} gives other tokens than the library `tokenizers` for {', '.join(found)}. "
            "The model would compute other results for such texts, so nothing was written. "
            'Choose another format in `to`; "triton" takes every tokenizer.',
            argument="to",
        )


def expected_results(
    source: Source,
    items: Sequence[Any],
    *,
    outputs: Sequence[str] | None = None,
    prompt: str | None = None,
) -> dict[str, list[Result]]:
    """Run the folder itself, each text alone.

    `outputs` are names of the outputs of an embedder, if not those to export, and `prompt` is put
    before each text to embed, the folder's default prompt by default.

    Returns:
        For each output, a result for each item: `(tokens, hidden)` for states,
        `(dimensions,)` for embeddings, and `(classes,)`, `(tokens, classes)` or `(tokens,)` for
        logits.
    """
    loaded = qdqbert.loading.load.load(
        source.artifact.directory,
        engine=source.engine,
        target=source.target,  # type: ignore[arg-type]
        batch_invariant=True,
    )
    with loaded as model:
        if not source.is_embedder:
            rows = [model.forward(model.tokenize([item])) for item in items]
            return {name: [row[name][0] for row in rows] for name in source.outputs}
        values = {LAST_HIDDEN_STATE: "token_embeddings", SENTENCE_EMBEDDING: SENTENCE_EMBEDDING}
        # A call would log that texts were cut.
        jobs = {
            name: model.job(output_value=values[name], prompt=prompt)
            for name in outputs or source.outputs
        }
        return {name: list(model.stream(job, items)) for name, job in jobs.items()}


def open_session(graph: Path) -> Any:
    """Return a graph on ONNX Runtime's CPU provider, as other programs open it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def check_graph(
    source: Source, graph: Path, inputs_of: Callable[[Item], Mapping[str, NDArray[np.int64]]]
) -> list[Agreement]:
    """Run an exported graph on ONNX Runtime, each text alone, and compare it with the folder.

    `inputs_of` returns its inputs for a text or pair, each `(1, tokens)`.
    """
    items: Sequence[Item] = check_pairs() if source.takes_pairs else check_texts()
    expected = expected_results(source, items)
    session = open_session(graph)
    rows = [session.run(list(source.outputs), inputs_of(item)) for item in items]
    agreement = []
    for index, name in enumerate(source.outputs):
        # Padded tokens have outputs, too.
        is_padded = not source.is_of_whole_texts or name == LAST_HIDDEN_STATE
        found = [
            row[index][0][: len(mine)] if is_padded else row[index][0]
            for row, mine in zip(rows, expected[name], strict=True)
        ]
        agreement.append(check_results(name, expected[name], found))
    return agreement


def check_results(name: str, expected: Sequence[Result], found: Sequence[Result]) -> Agreement:
    """Compare an output of an exported model with the folder's.

    Returns:
        How close they are.
    """
    shapes = [(mine.shape, its.shape) for mine, its in zip(expected, found, strict=True)]
    odd = next((pair for pair in shapes if pair[0] != pair[1]), None)
    if odd is not None:
        raise _disagreement(name, f"has shape {odd[1]} instead of {odd[0]}")
    signal = float(np.mean([np.mean(np.square(value, dtype=np.float64)) for value in expected]))
    noises = [
        float(np.mean(np.square(its.astype(np.float64) - mine)))
        for mine, its in zip(expected, found, strict=True)
    ]
    worst = to_decibels(signal, max(noises))
    if not worst >= LEAST_SQNR_DB:
        raise _disagreement(
            name, f"has an SQNR of {worst:.1f} dB for one text, below {LEAST_SQNR_DB:g} dB"
        )
    return Agreement(
        output=name,
        texts=len(noises),
        sqnr_db=to_decibels(signal, float(np.mean(noises))),
        worst_sqnr_db=worst,
    )


def _disagreement(name: str, how: str) -> UserInputError:
    return UserInputError(
        f"The exported model does not compute what the folder computes: {name} {how}. Nothing was "
        "written. Please report this.",
        argument="to",
    )
