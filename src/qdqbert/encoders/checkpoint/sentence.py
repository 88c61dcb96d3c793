"""The head of embedders of sentence-transformers: how token states become one vector."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
from tokenizers.processors import TemplateProcessing

from qdqbert.common.choices import PoolingMode
from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG, SETTINGS
from qdqbert.encoders.checkpoint.layout import (
    POOLING_CONFIG,
    POOLING_FLAGS,
    POOLING_FOLDER,
    PooledHead,
    begins_with_pooling,
    knows_modules,
    read_layout_fields,
    read_pooling,
    with_effect,
)
from qdqbert.encoders.checkpoint.sentence_files import FindFile, SentenceFiles, write_files
from qdqbert.encoders.checkpoint.sentence_modules import (
    MODULES_AFTER_POOLING,
    ModuleName,
    head_module,
    write_modules,
)
from qdqbert.encoders.checkpoint.token_heads import (
    TokenHeadFile,
    read_token_heads,
    token_head_files,
)
from qdqbert.encoders.families import FAMILIES
from qdqbert.encoders.family import family_name, is_jina_v5
from qdqbert.encoders.model import Head, Step
from qdqbert.encoders.task_kinds import ENCODER, TaskName

# The module of static embeddings, and the family of its table.
_STATIC = "StaticEmbedding"
MODEL2VEC = "model2vec"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceHead(PooledHead):
    """The modules of an embedder after the encoder.

    Attributes:
        normalize: Whether the vector is scaled to length 1 after the modules.
        token_head_files: Files of layers that make more of the token states.
        is_static: Whether the encoder is a table of tokens (StaticEmbedding), special ones left
            out.
    """

    task: ClassVar[TaskName] = ENCODER
    normalize: bool
    token_head_files: tuple[TokenHeadFile, ...] = ()
    is_static: bool = False

    def prepare_tokenizer_(self, backend: tokenizers.Tokenizer) -> None:
        """Change a tokenizer to what the settings say."""
        super().prepare_tokenizer_(backend)
        if self.is_static:
            backend.no_padding()
            # One that adds nothing: without any, the fast method to tokenize is not used.
            backend.post_processor = TemplateProcessing(single="$A", pair="$A $B:1")

    @property
    def weight_files(self) -> tuple[str, ...]:
        """Paths in the checkpoint of files with weights of the head, besides those in folders."""
        return self.token_head_files

    def token_heads(self, find: FindFile) -> tuple[Head, ...]:
        """Return heads on the states of tokens, in float, besides the embedding."""
        return read_token_heads(self.token_head_files, find)

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the modules after the pooling as steps of a head, in float."""
        return (*super().steps(find), *self.last_steps)

    @property
    def last_steps(self) -> tuple[Step, ...]:
        """Steps after the modules: all of `steps` if there are no modules."""
        return ("normalize",) if self.normalize else ()

    def write(self, folder: Path, *, hidden: int, find: FindFile) -> None:
        """Make a folder with an encoder or its graph readable by sentence-transformers.

        Writes modules.json, the pooling and the settings. The checkpoint's own settings are copied:
        prompts, the similarity function, the longest input and so on. sentence-transformers' ONNX
        backend reads `last_hidden_state` of a graph and applies these modules to it.
        """
        modules = [("Transformer", ""), ("Pooling", POOLING_FOLDER)]
        modules += write_modules(self.modules, folder, find)
        if self.normalize:
            modules.append(("Normalize", f"{len(modules)}_Normalize"))
        pooling = {flag: mode in self.poolings for flag, mode in POOLING_FLAGS.items()}
        defaults = {
            POOLING_CONFIG: {"word_embedding_dimension": hidden, **pooling},
            SETTINGS: {"max_seq_length": self.max_length, "do_lower_case": self.lower_case},
        }
        texts = {path: json.dumps(content, indent=2) + "\n" for path, content in defaults.items()}
        write_files(folder, modules, {**texts, **self.files})

    def with_pooling(self, pooling: PoolingMode) -> SentenceHead:
        """Return the same head with another pooling."""
        files = {path: text for path, text in self.files.items() if path != POOLING_CONFIG}
        return dataclasses.replace(self, poolings=(pooling,), files=files)


def read_sentence_head(files: SentenceFiles) -> SentenceHead | None:
    """Return the head of a sentence-transformers folder; `None` for any other folder.

    Raises:
        CheckpointError: It has a module or a pooling that cannot be put into a graph, such as one
            that leaves out prompts.
    """
    kinds = files.kinds
    if is_jina_v5(files.fields(CONFIG).values) and kinds in ([], ["Transformer"]):
        # Its own code does the rest.
        fields = read_layout_fields(files, "", "states")
        return SentenceHead(poolings=("lasttoken",), normalize=True, **fields)
    token_heads = token_head_files(files.find)
    if files.modules is None and token_heads:
        # FlagEmbedding saves these alone, and computes its usual embedding.
        fields = read_layout_fields(files, "", "states")
        return SentenceHead(
            poolings=("cls",), normalize=True, token_head_files=token_heads, **fields
        )
    is_static = kinds[:1] == [_STATIC]
    if files.modules is None and files.fields(CONFIG).values.get("model_type") == MODEL2VEC:
        # model2vec did not always write modules.json.
        fields = read_layout_fields(files, "", "states")
        config = files.fields(CONFIG)
        normalize = bool(config.optional(config.truth, "normalize"))
        return SentenceHead(poolings=("mean",), normalize=normalize, is_static=True, **fields)
    if files.modules is None or files.is_cross_encoder:
        return None
    if is_static and knows_modules(kinds[1:]):
        (_, path), *others = files.modules
        fields = {**read_layout_fields(files, path, "states"), "poolings": ("mean",)}
        return _with_modules({**fields, "is_static": True}, with_effect(others), files)
    if _embeds_itself(files):
        (_, path), *others = files.modules
        fields = {**read_layout_fields(files, path, "features"), "poolings": ()}
        return _with_modules(fields, with_effect(others), files)
    if not begins_with_pooling(kinds):
        raise CheckpointError(
            f"modules.json lists {', '.join(kinds) or 'none'}; only Transformer, Pooling and then "
            f"{', '.join(MODULES_AFTER_POOLING)} are supported. The encoder alone computes other "
            "embeddings. To quantize it for another use, remove modules.json from a copy of the "
            "folder."
        )
    fields, rest = read_pooling(files)
    return _with_modules(fields, rest, files)


def _with_modules(
    fields: Mapping[str, Any], rest: Sequence[tuple[ModuleName, str]], files: SentenceFiles
) -> SentenceHead:
    """Return a head with modules after the vector, of which the last may be Normalize."""
    normalize = bool(rest) and rest[-1][0] == "Normalize"
    return SentenceHead(
        normalize=normalize,
        token_head_files=token_head_files(files.find),
        modules=tuple(
            head_module(kind, path, files.fields(path, CONFIG))
            for kind, path in (rest[:-1] if normalize else rest)
        ),
        **fields,
    )


def _embeds_itself(files: SentenceFiles) -> bool:
    """Return whether the encoder makes the vector of a text, as CLIP's do, and no pooling does."""
    first, *rest = files.modules or [("", "")]
    if first[0] not in ("CLIPModel", "Transformer") or not knows_modules(name for name, _ in rest):
        return False
    family = FAMILIES.get(str(family_name(files.fields(first[1], CONFIG).values)))
    # Of a larger model.
    return family is not None and bool(family.others)
