"""Use a quantized folder as a model of sentence-transformers.

    from qdqbert.integrations.sentence_transformers import load

    model = load("./my-embedder-int8")      # a SentenceTransformer, or a CrossEncoder
    model.encode(["A sentence."])

Everything that takes a `SentenceTransformer` or a `CrossEncoder` runs on the engine of the folder
this way, with all options of `encode`, `predict` and `rank`. sentence-transformers imports torch.
Without it, use `qdqbert.load`, which also schedules many texts better: sentence-transformers passes
on one batch at a time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from qdqbert.common.errors import UserInputError
from qdqbert.common.extras import require
from qdqbert.encoders.checkpoint.model_settings import ModelSettings
from qdqbert.loading import load as inference
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.reranking import Reranker

require("A model for sentence-transformers", "sentence-transformers")

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules.input_module import InputModule

from qdqbert.encoders.checkpoint.tokenizer import load_tokenizer

_ACTIVATIONS: Mapping[str, torch.nn.Module] = {
    "sigmoid": torch.nn.Sigmoid(),
    "softmax": torch.nn.Softmax(dim=-1),
    "none": torch.nn.Identity(),
}


class _EngineModule(InputModule):
    """The only module of a model: it passes texts on to the engine of a folder.

    It can be sent to another process, which loads the model again.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.engine_model = model

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model, which is loaded again."""
        return type(self), (self.engine_model,)

    @property
    def max_seq_length(self) -> int:
        """Longest input in tokens. Longer ones are cut. It can be lowered."""
        return int(self.engine_model.max_length)

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.engine_model.max_seq_length = value

    @property
    def tokenizer(self) -> Any:
        """A tokenizer of transformers that gives the same ids. It changes no embedding."""
        self._tokenizer.model_max_length = self.max_seq_length
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        raise UserInputError(
            f"`tokenizer` cannot be set to a {type(value).__name__}: the engine reads the "
            "tokenizer.json of the model. Change the checkpoint, and load or quantize it again.",
            argument="tokenizer",
        )

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(str(self.engine_model.directory)).tokenizer

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the inputs and the prompt unchanged. The engine's tokenizer reads them."""
        del kwargs
        return {"items": list(inputs), "prompt": prompt or ""}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refuse, as the folder is the saved model.

        Raises:
            UserInputError: Always.
        """
        del args, kwargs
        raise UserInputError(
            f"A quantized model cannot be saved to {output_path!r} by sentence-transformers. Copy "
            f"its folder, {self.engine_model.name!r}."
        )


class QuantizedEncoder(_EngineModule):
    """Computes embeddings of texts."""

    # Arguments of `encode` that sentence-transformers passes on to `forward`.
    forward_kwargs = frozenset({"outputs"})  # type: ignore[assignment]  # it is only read

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of an embedding."""
        return len(self.engine_model.encode("", prompt=""))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add the embeddings, float32 `(texts, dimensions)`.

        If all `outputs` are asked for, there are also the token ids of the texts, and the states
        of tokens, float32 `(texts, tokens, hidden)`.
        """
        model, texts, prompt = self.engine_model, features["items"], features["prompt"]
        vectors = torch.from_numpy(model.encode(texts, prompt=prompt))
        if not kwargs.get("outputs"):
            return {**features, "sentence_embedding": vectors}
        states = model.encode(texts, prompt=prompt, output_value="token_embeddings")
        ids = model.tokenize([prompt + each for each in texts])
        return {
            **{name: torch.from_numpy(each) for name, each in ids.items()},
            "token_embeddings": torch.nn.utils.rnn.pad_sequence(
                list(map(torch.from_numpy, states)), batch_first=True
            ),
            "sentence_embedding": vectors,
        }


class _SentenceTransformer(SentenceTransformer):
    """An embedder that computes the states of tokens only if they are asked for."""

    @functools.wraps(SentenceTransformer.encode)
    def encode(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Compute embeddings, or other outputs by `output_value`."""
        encode, module = functools.partial(SentenceTransformer.encode, self), cast(Any, self[0])
        given = inspect.signature(encode).bind_partial(*args, **kwargs).arguments
        if given.get("output_value", "sentence_embedding") == "sentence_embedding":
            return encode(*args, **kwargs)
        known = "sentence_embedding", "token_embeddings", *module.engine_model.tokenize([]), None
        if given["output_value"] not in known:
            raise UserInputError(
                f"`output_value={given['output_value']!r:.100}` is unknown. Known: "
                f"{', '.join(map(str, known))}.",
                argument="output_value",
            )
        return encode(*args, **kwargs, outputs=True)


class QuantizedCrossEncoder(_EngineModule):
    """Computes scores of pairs of texts."""

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add the logits, float32 `(pairs, classes)`."""
        del kwargs
        found = self.engine_model.predict(
            features["items"], prompt=features["prompt"], activation="none"
        )
        scores = torch.from_numpy(found)
        return {**features, "scores": scores if scores.dim() > 1 else scores[:, None]}


class _CrossEncoder(CrossEncoder):
    """A cross-encoder that takes its number of classes from the folder."""

    @property
    def num_labels(self) -> int:
        """Number of scores of a pair."""
        module: Any = self[0]
        return int(module.engine_model.num_labels)

    def rank(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Sort documents, those whose scores round to the same number by their logits."""
        if "activation_fct" in kwargs:
            kwargs["activation_fn"] = kwargs.pop("activation_fct")
        signature = inspect.signature(CrossEncoder.rank)
        # Old arguments without effect, which sentence-transformers leaves out with a warning.
        old = {each: kwargs.pop(each) for each in kwargs.keys() - signature.parameters.keys()}
        given = signature.bind(self, *args, **kwargs)
        top_k = given.arguments.pop("top_k", None)
        function: Any = given.arguments.get("activation_fn") or self.activation_fn
        given.arguments["activation_fn"] = torch.nn.Identity()
        found: list[Any] = CrossEncoder.rank(*given.args, **given.kwargs, **old)
        logits = torch.tensor([[each["score"]] for each in found])
        for each, score in zip(found, function(logits).flatten().tolist(), strict=True):
            each["score"] = score
        # A stable sort keeps the order of the logits.
        return sorted(found, key=lambda each: -float(each["score"]))[:top_k]


def load(path: str | Path, **options: Any) -> SentenceTransformer | CrossEncoder:
    """Load a model of `qdqbert.load` as one of sentence-transformers.

    Args:
        path: Folder that `quantize` wrote, or a float checkpoint, of an embedder, a reranker or a
            classifier of pairs; or its name on the hub.
        options: Options of `qdqbert.load`, such as `engine` and `threads`.

    Returns:
        A `SentenceTransformer` for an embedder, with its prompts and its similarity function, and
        a `CrossEncoder` for others, with its activation function.

    Raises:
        CheckpointError: See `qdqbert.load`.
        UserInputError: The model is for another task, or an option has a wrong value.

    Example:
        >>> model = load("./my-embedder-int8", threads=4)
        >>> model.encode(["A sentence."], normalize_embeddings=True).shape
        (1, 384)
    """
    model: Any = inference.load(path, **options)
    settings = ModelSettings.of_folder(model.directory)
    if isinstance(model, Embedder):
        encoder: SentenceTransformer = _SentenceTransformer(
            modules=[QuantizedEncoder(model)],
            device="cpu",
            prompts=dict(settings.prompts),
            default_prompt_name=settings.default_prompt_name,
            similarity_fn_name=settings.similarity,  # type: ignore[arg-type]
            truncate_dim=settings.truncate_dim,
        )
        return encoder
    if isinstance(model, Reranker):
        scorer: CrossEncoder = _CrossEncoder(
            modules=[QuantizedCrossEncoder(model)],
            device="cpu",
            prompts=dict(settings.prompts),
            default_prompt_name=settings.default_prompt_name,
            activation_fn=_ACTIVATIONS[model.activation],
        )
        return scorer
    raise UserInputError(
        f"`path={str(path)!r}` is neither an embedder nor a reranker, but for the task "
        f"{model.task!r}. Only those become models of sentence-transformers. Use `qdqbert.load`.",
        argument="path",
    )
