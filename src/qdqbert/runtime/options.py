"""Options of functions that run a model on rows: columns, engine and answers."""

from __future__ import annotations

import dataclasses
from typing import Any

from qdqbert.common.choices import (
    AggregationStrategy,
    EngineName,
    KernelName,
    OnError,
    OutputDtype,
    ProviderName,
    TargetName,
    VectorKind,
)
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import Column, DeviceName, OptionalJson, PathOption, Several
from qdqbert.common.options.declared import Options, option
from qdqbert.engines.cuda.device import check_device


class TextColumnOptions(Options):
    """Columns of the data.

    Attributes:
        text_column: Column of the text or question: a name, or a number that counts from 0. Guessed
            from the names of the columns by default.
        text_pair_column: Column of the second text of a pair, or of the context of a question.
    """

    text_column: Column = option(default=None)
    text_pair_column: Column = option(default=None)


class AnswerOptions(Options):
    """Answers.

    Attributes:
        normalize: Scale embeddings to length 1.
        truncate_dim: Number of leading dimensions of embeddings to keep, for models trained for
            it. The folder's setting by default.
        prompt: Text that is put before each text to embed.
        prompt_name: Name of the prompt of the folder that is put before each text to embed. By
            default the folder's default prompt, if it has one. Multi-vector embedders take texts as
            documents, and with "query" as queries.
        chunk_overlap: If given, texts to embed that are longer than the model's limit are embedded
            in chunks that share this number of tokens, and the embeddings of the chunks are
            averaged. By default such texts are cut.
        output_dtype: Kind of the values of embeddings. "int8" and "uint8" have a byte for each
            dimension, by the range that `quantize` stored in the folder, "binary" and "ubinary" a
            bit for each, eight to a byte.
        vectors: What is made of each text, if the embedder is BGE-M3: "dense", the embedding;
            "sparse", weights of words; "colbert", vectors of tokens. Several are made in one pass.
            By default the embedding.
        top_k: Number of answers to write for each row, best first: classes, spans, or tokens for a
            mask. By default 1, or 5 for tokens. For sparse embeddings, the number of the largest
            weights to keep; all by default.
        threshold: Write all classes whose score is above it, instead of the best ones. 0.5 is usual
            for models with any number of classes for each text. For models that find entities of
            the labels of a call, the entities above it; 0.5 by default.
        aggregation_strategy: How tokens are joined to entities; "simple" by default. See
            `TokenClassifier`.
        labels: Labels to choose among, or kinds of entities, for models that take them in the call.
            In Python also a list of texts, which can have commas.
        multi_label: Score each label alone, so that any number of them can fit a text, or the same
            words of it. By default labels exclude each other, but not kinds of entities in models
            of gliner2.
        flat_ner: Whether no word is in two entities, for models that find entities of the labels of
            a call. Otherwise one may be inside of another.
        hypothesis_template: Sentence about a label, whose place is `{}`, which a text entails if
            the label fits it. By default the folder's, or "This example is {}."
        entailment_label: Name of the class of entailment, for models that do not name it so.
        task_name: What `labels` are about, as "mood", for models of gliner2: one of them is chosen
            for each text. Without it, they are kinds of entities.
        structures: Fields of structures by name, for models of gliner2, which fill them: a
            dictionary, or its JSON, as `{"order": ["item", "size::[small|large]"]}`. Each structure
            is a column.
    """

    normalize: bool = False
    truncate_dim: int | None = option(default=None, at_least=1)
    prompt: str | None = None
    prompt_name: str | None = None
    chunk_overlap: int | None = option(default=None, at_least=0)
    output_dtype: OutputDtype = "float32"
    vectors: Several[VectorKind] = option(default=(), flag="vector")
    top_k: int | None = option(default=None, at_least=1)
    threshold: float | None = option(default=None, at_least=0, below=1)
    aggregation_strategy: AggregationStrategy | None = None
    labels: Several[str] = option(default=(), commas=True)
    multi_label: bool | None = None
    flat_ner: bool = True
    hypothesis_template: str | None = None
    entailment_label: str | None = None
    task_name: str | None = None
    structures: OptionalJson = option(default=None, json=True)


class EngineChoice(Options):
    """Engine.

    Attributes:
        engine: Library that runs the graph. By default the fastest one that is installed, by the
            folder's own measurements if they were made on a CPU like this one.
        kernel: Instruction set of the native engine, which this CPU must have. By default the
            fastest one.
        device: Where the native engine runs: "cpu", the default; "cuda" or "cuda:1", an NVIDIA GPU
            of compute capability 8.0 or more, with the extra "cuda"; or "auto", the first such GPU
            if its kernels compute the model and its memory has room for it, else the CPU. In
            Python also a GPU's number, or a `torch.device`.
    """

    engine: EngineName | None = None
    kernel: KernelName | None = None
    device: DeviceName = option(default=None)

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.device is None:
            return
        check_device(self.device)
        others = {each: getattr(self, each, None) for each in ("engine", "provider", "kernel")}
        if others["engine"] == "native":
            others["engine"] = None
        name = next((each for each, value in others.items() if value is not None), None)
        if self.device != "cpu" and name is not None:
            raise UserInputError(
                f"`device={self.device!r}` is of the native engine's kernels for GPUs, and "
                f"`{name}={others[name]!r}` is not. Pass one of them.",
                argument="device",
            )


class EngineOptions(EngineChoice):
    """Engine.

    Attributes:
        provider: Execution provider of ONNX Runtime; "cpu" by default.
        threads: Number of threads in all. By default one for each core that the process may use.
        target: Graph to run, if the folder has several. By default the one that was made for the
            engine.
        batch_invariant: Run each input alone and without padding, so that its result does not
            depend on other inputs. It is slower, most for short inputs. Results of the native
            engine never do.
    """

    provider: ProviderName | None = None
    threads: int | None = option(default=None, at_least=1)
    target: TargetName | None = None
    batch_invariant: bool = False

    def of_engine(self) -> dict[str, Any]:
        """Return the options of this class, without those of subclasses, for `load`."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(EngineOptions)}


class RowOptions(TextColumnOptions, AnswerOptions, EngineOptions):
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote, or a float checkpoint; or its URL, or its name on the
            hub.
        on_error: What to do with a row that cannot be used: stop, or skip it, so that its answers
            are missing.
    """

    model: PathOption = option(kw_only=False)
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.prompt is not None and self.prompt_name is not None:
            raise UserInputError(
                f"`prompt={self.prompt!r}` and `prompt_name={self.prompt_name!r}` both choose the "
                "prompt. Pass one of them.",
                argument="prompt",
            )
        if self.threshold is not None and self.top_k is not None:
            raise UserInputError(
                f"`threshold={self.threshold}` writes all classes above it, and "
                f"`top_k={self.top_k}` a fixed number of them. Pass one of them.",
                argument="threshold",
            )
