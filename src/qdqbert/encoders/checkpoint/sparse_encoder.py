"""The layout of sparse encoders of sentence-transformers, which weigh the words of a vocabulary.

Most have the modules Transformer and SpladePooling. Before version 5.4 the first one was
MLMTransformer. A Router with SparseStaticEmbedding for queries needs no model for them: each of
their tokens has a stored weight.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG, TOKENIZER
from qdqbert.common.files import write_json
from qdqbert.common.json_files import Fields, damaged
from qdqbert.encoders.checkpoint.layout import Layout, prompt_notices, read_layout_fields
from qdqbert.encoders.checkpoint.sentence_files import FindFile, SentenceFiles, check_path, join
from qdqbert.encoders.checkpoint.sentence_modules import weights_of
from qdqbert.encoders.model import Floats, Pooling, Step
from qdqbert.encoders.task_kinds import TaskName
from qdqbert.encoders.tensor_files import SAFETENSORS

Strategy = Literal["max", "sum"]
Function = Literal["relu", "log1p_relu"]

_STEPS: dict[Function, tuple[Step, ...]] = {
    "relu": ("relu", "log1p"),
    "log1p_relu": ("relu", "log1p", "log1p"),
}
_ENCODERS = ("Transformer", "MLMTransformer")
_POOLING = "SpladePooling"
_ROUTER = "router_config.json"
_QUERIES, _DOCUMENTS = "query", "document"
_QUERY_MODULE = "SparseStaticEmbedding"

_QUERY_WEIGHTS = "query_weights.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryWeights:
    """The weights of tokens in queries, which no model runs on.

    Attributes:
        weights: Weight of each token id, `(vocabulary,)`.
        is_default: Whether texts count as queries if a call does not say what they are.
    """

    weights: Floats
    is_default: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpladeHead(Layout):
    """How a sparse encoder makes one vector of the scores of a masked language model.

    Attributes:
        strategy: How the weights of a word for all tokens become one. [PAD] is ignored.
        function: Function from scores to weights, apart from a last `log1p`.
        query_path: Folder of the weights of tokens in queries; `None` if the model runs on them.
        routes_to_queries: Whether texts count as queries by default.
    """

    task: ClassVar[TaskName] = "sparse-embedding"
    strategy: Strategy = "max"
    function: Function = "relu"
    query_path: str | None = None
    routes_to_queries: bool = False

    @property
    def row_poolings(self) -> tuple[Pooling, ...]:
        """The strategy as `encoders.model.Head` names it."""
        return (self.strategy,)

    @property
    def weight_folders(self) -> tuple[str, ...]:
        """Paths in the checkpoint of the folders of weights outside the model."""
        return () if self.query_path is None else (self.query_path,)

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the steps that make weights of scores."""
        del find
        return _STEPS[self.function]

    def write_settings(self, folder: Path, find: FindFile) -> None:
        """Write the weights of queries, if there are some; see `read_query_weights`."""
        if self.query_path is None:
            return
        found = weights_of(self.query_path, find)
        if found is None:
            raise CheckpointError(
                f"The module {self.query_path!r} of {_ROUTER} has no {SAFETENSORS}, with the "
                "weights of tokens in queries. Save the model with sentence-transformers again."
            )
        weights = found.read("weight")
        if weights.ndim != 1 or not np.isfinite(weights).all():
            raise CheckpointError(
                f"`weight` of {self.query_path} must be one finite number for each token; its "
                f"shape is {weights.shape}."
            )
        # As text, float32 has fewer digits, and is read as the same value.
        values = [float(str(each)) for each in weights]
        write_json(
            folder / _QUERY_WEIGHTS, {"is_default": self.routes_to_queries, "weights": values}
        )


def read_query_weights(folder: Path, *, vocabulary: int) -> QueryWeights | None:
    """Return the weights of queries that `SpladeHead.write` wrote; `None` without them.

    `vocabulary` is the number of words that documents have weights of.
    """
    path = folder / _QUERY_WEIGHTS
    if not path.is_file():
        return None
    fields = Fields.of_file(path)
    weights = np.array(fields.numbers("weights"), np.float32)
    if len(weights) > vocabulary:
        raise damaged(path, f"it has weights of {len(weights)} tokens, expected {vocabulary}")
    # The table of words of a model may have more rows than its tokenizer has tokens.
    padded = np.pad(weights, (0, vocabulary - len(weights)))
    return QueryWeights(weights=padded, is_default=fields.truth("is_default"))


def splade_head(layout: object, name: str) -> tuple[SpladeHead, tuple[str, ...]]:
    """Return the head of a sparse encoder, and notices about it."""
    if isinstance(layout, SpladeHead):
        return layout, tuple(prompt_notices(layout))
    return SpladeHead(max_length=None), (
        f"{name!r} has no modules.json of a sparse encoder, so the maximum over the tokens of "
        "log(1 + relu(score)) is used, as in SPLADE.",
    )


def is_sparse_encoder(files: SentenceFiles) -> bool:
    """Return whether sentence-transformers saved a checkpoint as a sparse encoder."""
    return files.model_type == "SparseEncoder" or _POOLING in files.kinds


def read_splade_head(files: SentenceFiles) -> SpladeHead:
    """Return the head of a sparse encoder."""
    if files.modules is None:
        # sentence-transformers then takes the usual modules.
        return SpladeHead(**read_layout_fields(files, "", "words"))
    if files.kinds == ["Router"]:
        return _read_router(files, files.modules[0][1])
    return _read_documents(files, files.modules)


def _read_documents(
    files: SentenceFiles, modules: list[tuple[str, str]], **fields: Any
) -> SpladeHead:
    """Read the modules that run the model, by their kinds and paths."""
    kinds = [kind for kind, _ in modules]
    if len(kinds) != 2 or kinds[0] not in _ENCODERS or kinds[1] != _POOLING:
        raise CheckpointError(
            f"The sparse encoder has the modules {', '.join(kinds)}; only Transformer and "
            f"{_POOLING} are supported, or a Router with them for documents and {_QUERY_MODULE} "
            "for queries."
        )
    (_, encoder_path), (_, pooling_path) = modules
    settings = files.fields(pooling_path, CONFIG)
    found: Any = {
        field: settings.choice(name, get_args(kind)) if name in settings.values else usual
        for field, name, kind, usual in (
            ("strategy", "pooling_strategy", Strategy, "max"),
            ("function", "activation_function", Function, "relu"),
        )
    }
    return SpladeHead(**found, **read_layout_fields(files, encoder_path, "words"), **fields)


def _read_router(files: SentenceFiles, path: str) -> SpladeHead:
    """Read a Router with modules for queries and for documents."""
    place = join(path, _ROUTER)
    fields = files.fields(place)
    types = fields.child("types")
    structure = fields.child("structure")
    for each in types.values:
        check_path(each, place)
    routes = {
        name: [
            (types.text(each).rpartition(".")[2], join(path, each))
            for each in structure.names(name)
        ]
        for name in structure.values
    }
    queries = routes.get(_QUERIES, [])
    if {*routes} != {_QUERIES, _DOCUMENTS} or [kind for kind, _ in queries] != [_QUERY_MODULE]:
        shown = "; ".join(
            f"{name}: {', '.join(kind for kind, _ in each)}" for name, each in routes.items()
        )
        raise CheckpointError(
            f"The Router of the sparse encoder has the modules {shown}; only {_QUERY_MODULE} for "
            f"queries, and Transformer and {_POOLING} for documents are supported. Save the "
            "modules for documents as a model of their own, and quantize that."
        )
    ((_, query_path),) = queries
    if files.fields(query_path, CONFIG).has("path"):
        raise CheckpointError(
            f"{join(query_path, CONFIG)} reads the weights of tokens in queries from a file of "
            "JSON. Load the model with sentence-transformers, and save it again, which writes "
            f"{join(query_path, SAFETENSORS)}."
        )
    parameters = fields.optional(fields.child, "parameters")
    default = parameters.values.get("default_route") if parameters else None
    # sentence-transformers takes the first route if none is named.
    head = _read_documents(
        files,
        routes[_DOCUMENTS],
        query_path=query_path,
        routes_to_queries=(default or next(iter(routes))) == _QUERIES,
    )
    if files.read(join(query_path, TOKENIZER)) != files.read(join(head.subfolder, TOKENIZER)):
        raise CheckpointError(
            f"The tokenizers of {query_path!r} and {head.subfolder!r} differ, and queries and "
            "documents have to be cut into the same tokens. Save the modules for documents as a "
            "model of their own, and quantize that."
        )
    return head
