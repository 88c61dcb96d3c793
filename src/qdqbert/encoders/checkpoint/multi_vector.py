"""The layout of multi-vector encoders of sentence-transformers, which have a vector for each token.

They are late interaction models, as ColBERT is (Khattab and Zaharia 2020, arXiv:2004.12832). Their
modules are Transformer, then Dense and Normalize on each token, and MultiVectorMask, which says
which tokens count. PyLate 3 and earlier keep what the mask says in
config_sentence_transformers.json. Stanford's ColBERT has no such files: its linear layer is next to
the encoder, and artifact.metadata has the rest.
"""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import tokenizers

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG, MODEL_SETTINGS, SETTINGS, TOKENIZER_CONFIG
from qdqbert.common.files import write_json
from qdqbert.common.json_files import Fields, damaged
from qdqbert.encoders.checkpoint.layout import Layout, Modular, read_layout_fields
from qdqbert.encoders.checkpoint.model_settings import Kind
from qdqbert.encoders.checkpoint.sentence_files import FindFile, SentenceFiles
from qdqbert.encoders.checkpoint.sentence_modules import TOKENS, HeadModule, ModuleName, head_module
from qdqbert.encoders.model import Pooling
from qdqbert.encoders.task_kinds import TaskName

Strategy = Literal["fixed", "min"]

_MASK = "MultiVectorMask"
_ON_TOKENS: tuple[ModuleName, ...] = ("Dense", "Normalize")
_LARGEST = 2**31 - 1
# PyLate's settings of a model in which it saves none.
_USUAL_LENGTH = 32
_OF_PYLATE = (
    *("query_length", "document_length", "query_expansion", "do_query_expansion"),
    *("attend_to_expansion_tokens", "attend_to_mask_tokens", "skiplist_words"),
    *("query_prefix", "document_prefix"),
)

# Stanford's file of settings, and the class that its config.json names.
_METADATA = "artifact.metadata"
_STANFORD = "HF_ColBERT"
_USUAL_WIDTH = 128

_RULES = "multi_vector.json"
_LENGTHS = ("text_length", "query_length", "document_length")
# transformers' value of `model_max_length` for no limit is far above.
_NO_LIMIT = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expansion:
    """Tokens that are put after queries.

    Attributes:
        length: Number of tokens that a query is filled up to.
        strategy: Whether longer queries are cut to this length ("fixed") or not ("min").
        attends: Whether tokens attend to these tokens, too.
        token: The token; `None` for the tokenizer's [MASK], or its end of text if it has none.
        is_scored: Whether these tokens have vectors.
    """

    length: int
    strategy: Strategy
    attends: bool
    token: str | None
    is_scored: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRules:
    """Which tokens of a text the model reads, and which of them have vectors.

    Attributes:
        text_length: Longest text in tokens; `None` for the model's limit.
        query_length: Longest query, if queries have a length of their own.
        document_length: Longest document, if documents have a length of their own.
        expansion: Tokens that are put after queries; `None` for none.
        skipped_words: Tokens without vectors.
        skipped_in: Kinds of texts that these words are skipped in.
        kept_ids: Ids of the only tokens that have vectors, except in queries; `None` for all.
    """

    text_length: int | None = None
    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skipped_words: tuple[str, ...] = ()
    skipped_in: tuple[str, ...] = ("document",)
    kept_ids: tuple[int, ...] | None = None

    def longest(self, kind: Kind | None) -> int | None:
        """Return the longest text of a kind in tokens, before it is expanded; `None` for any.

        `kind` is `None` if a call does not say what the text is.
        """
        lengths = {"query": self.query_length, "document": self.document_length, None: None}
        own = lengths[kind]
        if kind == "query" and self.expansion is not None:
            is_fixed = self.expansion.strategy == "fixed"
            own = self.expansion.length if is_fixed else own and max(own, self.expansion.length)
        return own or self.text_length

    def expansion_token(self, special: Callable[[str], str | None]) -> str | None:
        """Return the token that expands queries; `None` for none.

        `special` returns a special token of the tokenizer by its role, such as `mask_token`.

        Raises:
            CheckpointError: The tokenizer has none that is usual for it.
        """
        if self.expansion is None:
            return None
        found = self.expansion.token or special("mask_token") or special("eos_token")
        if found is None:
            raise CheckpointError(
                f"`query_expansion` in {SETTINGS} names no token, and the tokenizer has neither "
                "[MASK] nor an end of text. Name one as `token` in a copy of the folder."
            )
        return found

    def unattended_id(
        self, special: Callable[[str], str | None], id_of: Callable[[str], int | None]
    ) -> int | None:
        """Return the id of the token that expands queries and that no token attends to.

        For `special` see `expansion_token`. `id_of` returns the id of a token; `None` if there is
        none.

        Returns:
            `None` if there is no such token.
        """
        token = self.expansion_token(special)
        if self.expansion is None or self.expansion.attends or token is None:
            return None
        found = id_of(token)
        if found is None:
            raise CheckpointError(
                f"`query_expansion` in {SETTINGS} has the token {token!r}, which is not in the "
                "vocabulary of the tokenizer."
            )
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiVectorHead(Modular, Layout):
    """The modules of a multi-vector encoder after the encoder.

    Attributes:
        modules: Modules that change the vector of each token, in order.
        marks: Starts of prompts that are one token if the vocabulary has it.
    """

    task: ClassVar[TaskName] = "multi-vector-embedding"
    row_poolings: ClassVar[tuple[Pooling, ...]] = ("none",)
    modules: tuple[HeadModule, ...]
    rules: TokenRules
    marks: tuple[str, ...] = ()

    def longest_input(self, given: int | None) -> int | None:
        """Return the longest input in tokens; `None` for any.

        Lengths of queries and documents may be above the tokenizer's limit.
        """
        del given
        found = [self.rules.longest(kind) for kind in (None, *get_args(Kind))]
        lengths = [each for each in found if each is not None]
        return max(lengths) if len(lengths) == len(found) else None

    def prepare_tokenizer_(self, backend: tokenizers.Tokenizer) -> None:
        """Change a tokenizer to what the settings say, as sentence-transformers does."""
        super().prepare_tokenizer_(backend)
        for mark in self.marks:
            names = (mark, *mark.split(None, 1)[:1])
            known = next((each for each in names if backend.token_to_id(each) is not None), None)
            if known and backend.encode(known, add_special_tokens=False).tokens != [known]:
                added = tokenizers.AddedToken(known, normalized=False, special=True)
                backend.add_special_tokens([added])

    def write_settings(self, folder: Path, find: FindFile) -> None:
        """Write which tokens count to a folder; see `read_token_rules`."""
        del find
        write_json(folder / _RULES, dataclasses.asdict(self.rules))


def read_token_rules(folder: Path) -> TokenRules:
    """Return the rules that `MultiVectorHead.write_settings` wrote."""
    fields = Fields.of_file(folder / _RULES)
    expansion = None
    if fields.has("expansion"):
        own = fields.child("expansion")
        expansion = _expansion(own, own.truth("attends"), own.truth("is_scored"))
    return TokenRules(
        **{name: fields.optional(fields.integer, name, 1, _LARGEST) for name in _LENGTHS},
        expansion=expansion,
        skipped_words=tuple(fields.names("skipped_words")),
        skipped_in=tuple(fields.names("skipped_in")),
        kept_ids=_ids(fields, "kept_ids"),
    )


def is_multi_vector(files: SentenceFiles) -> bool:
    """Return whether sentence-transformers or PyLate saved it as a multi-vector encoder."""
    is_own = files.model_type == "MultiVectorEncoder" or _MASK in files.kinds
    return is_own or _is_pylate(files) or _is_stanford(files)


def read_multi_vector_head(files: SentenceFiles) -> MultiVectorHead:
    """Return the head of a multi-vector encoder."""
    if _is_stanford(files) and files.modules is None:
        return _read_stanford(files)
    kinds = files.kinds
    if kinds[:1] != ["Transformer"] or not {*kinds[1:]} <= {*_ON_TOKENS, _MASK}:
        raise CheckpointError(
            f"The multi-vector encoder has the modules {', '.join(kinds) or 'none'}; only "
            f"Transformer, and then {', '.join(_ON_TOKENS)} and {_MASK} are supported. Pool the "
            "vectors of tokens after they are computed, and remove such a module from a copy of "
            "the folder."
        )
    (_, encoder_path), *rest = files.modules or []
    saved = files.settings
    is_pylate = _is_pylate(files)
    found = [
        _module(kind, path, files.fields(path, CONFIG))  # type: ignore[arg-type]
        for kind, path in rest
        if kind != _MASK
    ]
    masks = [path for kind, path in rest if kind == _MASK]
    if len(masks) > 1:
        raise CheckpointError(f"modules.json lists {_MASK} {len(masks)} times, and it must be one.")
    if is_pylate:
        found.append(HeadModule(name="Normalize"))
    layout = read_layout_fields(files, encoder_path, "states")
    mask: dict[str, Any] = {}
    if masks:
        mask = _mask_settings(files.fields(masks[0], CONFIG))
    elif is_pylate:
        mask = {"skipped_words": _words(saved, string.punctuation)}
    return MultiVectorHead(
        modules=tuple(found),
        rules=TokenRules(
            text_length=_text_length(files, encoder_path, layout["max_length"]),
            **_lengths(files, encoder_path, bool(mask)),
            **mask,
        ),
        marks=tuple(
            text for each in ("query_prefix", "document_prefix") if (text := saved.values.get(each))
        ),
        **layout,
    )


def _is_pylate(files: SentenceFiles) -> bool:
    """Return whether PyLate 3 or earlier saved a checkpoint."""
    if files.model_type is None:
        # With sentence-transformers 4 and earlier, as of GTE-ModernColBERT.
        return "attend_to_expansion_tokens" in files.settings.values
    return files.model_type == "ColBERT"


def _is_stanford(files: SentenceFiles) -> bool:
    """Return whether a checkpoint is one of Stanford's ColBERT."""
    named = files.fields(CONFIG).values.get("architectures")
    return isinstance(named, list) and _STANFORD in named


def _read_stanford(files: SentenceFiles) -> MultiVectorHead:
    """Return the head of a checkpoint of Stanford's ColBERT."""
    fields, config = files.fields(_METADATA), files.fields(CONFIG)
    attends, skips = (
        fields.truth(name) if fields.has(name) else usual
        for name, usual in (("attend_to_mask_tokens", False), ("mask_punctuation", True))
    )
    marks = tuple(
        f"{fields.text(name) if fields.has(name) else usual} "
        for name, usual in (("query_token_id", "[unused0]"), ("doc_token_id", "[unused1]"))
    )
    prompts = dict(zip(get_args(Kind), marks, strict=True))
    layout = read_layout_fields(files, "", "states")
    layout["files"] |= {MODEL_SETTINGS: json.dumps({"prompts": prompts}, indent=2) + "\n"}
    sizes = {
        "in_features": config.integer("hidden_size"),
        "out_features": fields.optional(fields.integer, "dim") or _USUAL_WIDTH,
    }
    identity = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    dense = HeadModule(name="Dense", config={**sizes, **identity})
    return MultiVectorHead(
        modules=(dense, HeadModule(name="Normalize")),
        rules=TokenRules(
            text_length=_text_length(files, "", layout["max_length"]),
            document_length=fields.optional(fields.integer, "doc_maxlen", 1, _LARGEST),
            expansion=Expansion(
                length=fields.optional(fields.integer, "query_maxlen", 1, _LARGEST)
                or _USUAL_LENGTH,
                strategy="fixed",
                attends=attends,
                token=None,
                is_scored=True,
            ),
            skipped_words=tuple(string.punctuation) if skips else (),
        ),
        marks=marks,
        **layout,
    )


def _text_length(files: SentenceFiles, encoder_path: str, own: int | None) -> int | None:
    """Return the longest text in tokens by the tokenizer and the settings; `None` for any."""
    given = files.fields(encoder_path, TOKENIZER_CONFIG).values.get("model_max_length")
    limits = [each for each in (given, own) if isinstance(each, int) and 0 < each < _NO_LIMIT]
    return min(limits, default=None)


def _module(name: ModuleName, path: str, config: Fields) -> HeadModule:
    module = head_module(name, path, config, vector=TOKENS)
    if name == "Normalize" and module.config.get("module_input_name") is None:
        raise CheckpointError(
            f"{path}/config.json has no `module_input_name`, so no vectors of tokens are "
            f"normalized. Set it to {TOKENS!r} in a copy of the folder, or remove the module."
        )
    return module


def _mask_settings(fields: Fields) -> dict[str, Any]:
    """Return the fields of `TokenRules` that a mask has."""
    tasks = fields.values.get("skiplist_tasks")
    named = [tasks] if isinstance(tasks, str) else ["document"]
    if not isinstance(tasks, str | None):
        named = fields.names("skiplist_tasks")
    return {
        "skipped_words": _words(fields),
        "skipped_in": tuple(named),
        "kept_ids": _ids(fields, "keep_only_token_ids"),
    }


def _words(fields: Fields, usual: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the words without vectors. PyLate skips punctuation by default."""
    found = fields.optional(fields.names, "skiplist_words")
    return tuple(usual if found is None else found)


def _lengths(files: SentenceFiles, encoder_path: str, has_mask: bool) -> dict[str, Any]:
    """Return the fields of `TokenRules` about lengths.

    Without a mask, only tokens that are attended to count.
    """
    own = files.fields(encoder_path, SETTINGS).values
    content = {**_pylate_lengths(files.settings.values), **own}
    fields = Fields(content, lambda reason: damaged(SETTINGS, reason))
    found: dict[str, Any] = {}
    arguments = own.get("processing_kwargs") or {}
    # The tokenizer's own argument takes precedence in sentence-transformers.
    if (arguments.get("text") or {}).get("max_length") is None:
        names = ("query_length", "document_length")
        found = {name: fields.optional(fields.integer, name, 1, _LARGEST) for name in names}
    if fields.has("query_expansion"):
        each = fields.child("query_expansion")
        attends = bool(each.optional(each.truth, "attend"))
        found["expansion"] = _expansion(each, attends, has_mask or attends)
    return found


def _expansion(fields: Fields, attends: bool, is_scored: bool) -> Expansion:
    return Expansion(
        length=fields.integer("length", 1, _LARGEST),
        strategy=fields.choice("strategy", get_args(Strategy)),  # type: ignore[arg-type]
        attends=attends,
        token=fields.optional(fields.text, "token"),
        is_scored=is_scored,
    )


def _pylate_lengths(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Convert PyLate's settings to settings of sentence-transformers' Transformer."""
    found = {
        name: saved[name]
        for name in ("query_length", "document_length", "query_expansion")
        if saved.get(name) is not None
    }
    if "query_expansion" in saved or not any(name in saved for name in _OF_PYLATE):
        return found
    if saved.get("do_query_expansion") is False:
        return found
    attends = saved.get("attend_to_expansion_tokens", saved.get("attend_to_mask_tokens"))
    length = found.pop("query_length", None) or _USUAL_LENGTH
    found["query_expansion"] = {"strategy": "fixed", "attend": bool(attends), "length": length}
    return found


def _ids(fields: Fields, name: str) -> tuple[int, ...] | None:
    """Return a list of ids; `None` without it, and for an empty one, which has no effect."""
    if not fields.has(name):
        return None
    numbers = fields.numbers(name)
    if any(each != int(each) for each in numbers):
        raise fields.refuse(name, fields.get(name), "a list of token ids")
    return tuple(map(int, numbers)) or None
