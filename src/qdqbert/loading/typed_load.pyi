"""Types of `qdqbert.load` for type checkers: the class that it returns for each task.

Written by tests/load_stub.py. It has one signature for each task, as type checkers read no tables.
"""

from typing import Any, Literal, TypedDict, Unpack, overload

from qdqbert.common.choices import EngineName, KernelName, Precision, ProviderName, TargetName
from qdqbert.common.objects import ModelLike
from qdqbert.encoders.task_kinds import TaskName
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.entity_extraction import EntityExtractor
from qdqbert.tasks.fill_mask import MaskFiller
from qdqbert.tasks.multi_vector_embedding import MultiVectorEmbedder
from qdqbert.tasks.multiple_choice import ChoiceSelector
from qdqbert.tasks.next_sentence_prediction import NextSentencePredictor
from qdqbert.tasks.question_answerer import QuestionAnswerer
from qdqbert.tasks.reranking import Reranker
from qdqbert.tasks.sparse_embedding import SparseEmbedder
from qdqbert.tasks.text_classification import TextClassifier
from qdqbert.tasks.token_classification import TokenClassifier
from qdqbert.tasks.zero_shot_classification import ZeroShotClassifier

class LoadOptions(TypedDict, total=False):
    """Options of `load`."""

    precision: Precision
    adapter: str | None
    check: bool
    provider: ProviderName | None
    threads: int | None
    target: TargetName | None
    batch_invariant: bool
    engine: EngineName | None
    kernel: KernelName | None
    device: str | int | None

@overload
def load(
    path: ModelLike, *, task: Literal["entity-extraction"], **options: Unpack[LoadOptions]
) -> EntityExtractor: ...
@overload
def load(
    path: ModelLike, *, task: Literal["feature-extraction"], **options: Unpack[LoadOptions]
) -> Embedder: ...
@overload
def load(
    path: ModelLike, *, task: Literal["fill-mask"], **options: Unpack[LoadOptions]
) -> MaskFiller: ...
@overload
def load(
    path: ModelLike, *, task: Literal["multi-vector-embedding"], **options: Unpack[LoadOptions]
) -> MultiVectorEmbedder: ...
@overload
def load(
    path: ModelLike, *, task: Literal["multiple-choice"], **options: Unpack[LoadOptions]
) -> ChoiceSelector: ...
@overload
def load(
    path: ModelLike, *, task: Literal["next-sentence-prediction"], **options: Unpack[LoadOptions]
) -> NextSentencePredictor: ...
@overload
def load(
    path: ModelLike, *, task: Literal["question-answering"], **options: Unpack[LoadOptions]
) -> QuestionAnswerer: ...
@overload
def load(
    path: ModelLike, *, task: Literal["reranking"], **options: Unpack[LoadOptions]
) -> Reranker: ...
@overload
def load(
    path: ModelLike, *, task: Literal["sparse-embedding"], **options: Unpack[LoadOptions]
) -> SparseEmbedder: ...
@overload
def load(
    path: ModelLike, *, task: Literal["text-classification"], **options: Unpack[LoadOptions]
) -> TextClassifier: ...
@overload
def load(
    path: ModelLike, *, task: Literal["token-classification"], **options: Unpack[LoadOptions]
) -> TokenClassifier: ...
@overload
def load(
    path: ModelLike, *, task: Literal["zero-shot-classification"], **options: Unpack[LoadOptions]
) -> ZeroShotClassifier: ...
@overload
def load(
    path: ModelLike,
    *,
    task: TaskName | None = None,
    precision: Precision = "int8",
    adapter: str | None = None,
    check: bool = True,
    provider: ProviderName | None = None,
    threads: int | None = None,
    target: TargetName | None = None,
    batch_invariant: bool = False,
    engine: EngineName | None = None,
    kernel: KernelName | None = None,
    device: str | int | None = None,
) -> Any:
    """Load a model, ready to run on texts in INT8.

    It is a folder that `quantize` wrote, or a float checkpoint. The weights of a checkpoint are
    rounded when it is first loaded, in seconds and without data, and kept in the cache of this
    package for the native engine. A checkpoint that stores quantizers has their ranges.

    The graph is loaded when it is first needed; with a `provider` other than the CPU at once. Texts
    are tokenized without transformers, and run without torch. A message of level INFO in the log
    "qdqbert" says which engine runs it, and why.

    Args:
        path: The folder, or its URL in object storage; or the name of a model of the hub,
            OWNER/NAME or NAME, of which only the needed files are downloaded, to the hub's cache.
            Or a float model in memory: `(model, tokenizer)` of transformers, a pipeline, a
            `SentenceTransformer` or a `CrossEncoder`.
        task: The task that the model must have, as a check. Type checkers know the class of the
            returned object by it. With "sparse-embedding", a masked language model is run as
            SPLADE, with "feature-extraction" the encoder of a float checkpoint is an embedder, and
            with "zero-shot-classification" a classifier of entailment chooses among labels of a
            call.
        precision: How a float checkpoint runs: in "int8", or in "float", to compare with, which the
            engine "onnxruntime" runs, too. "float" is the same as the target "float". On a GPU,
            "float16" instead of "float".
        adapter: Adapter of a float checkpoint that is merged into its weights, by its name. Without
            it, an embedder that has adapters for several tasks, as jina-embeddings-v3, takes the
            name in each call: `encode(texts, task="retrieval.query")`.
        check: Whether a float checkpoint is compared with INT8 on 16 built-in texts. A message of
            level INFO says how close they are, or of level WARNING if INT8 is not usable.
        provider: Execution provider of ONNX Runtime; "cpu" by default.
        threads: Number of threads in all. By default one for each core that the process may use.
        target: Graph to run, if the folder has several. By default the one that was made for the
            engine.
        batch_invariant: Run each input alone and without padding, so that its result does not
            depend on other inputs. It is slower, most for short inputs. Results of the native
            engine never do.
        engine: Library that runs the graph. By default the fastest one that is installed, by the
            folder's own measurements if they were made on a CPU like this one.
        kernel: Instruction set of the native engine, which this CPU must have. By default the
            fastest one.
        device: Where the native engine runs: "cpu", the default; "cuda" or "cuda:1", an NVIDIA GPU
            of compute capability 8.0 or more, with the extra "cuda"; or "auto", the first such GPU
            if its kernels compute the model and its memory has room for it, else the CPU. In Python
            also a GPU's number, or a `torch.device`.

    Returns:
        An object for the task of the folder: `Embedder` with `encode`, `TextClassifier`,
        `Reranker` with `predict` and `rank`, and so on.

    Raises:
        CheckpointError: There is no such folder, and no such model on the hub or no connection; the
            folder is neither, is incomplete, is of a family that is not supported, or stores
            quantizers that the native engine does not have; or the graph or the tokenizer differs
            from its checksum in SHA256SUMS.
        UserInputError: An argument has a wrong value, the folder has no graph for the engine or no
            such adapter, or the model has another task or generates text.
        MissingExtraError: The engine or the provider is not installed.

    Example:
        >>> model = qdqbert.load("./my-classifier")
        >>> model(["great food", "the room was cold"])
        [{'label': 'positive', 'score': 0.998}, {'label': 'negative', 'score': 0.981}]
    """
