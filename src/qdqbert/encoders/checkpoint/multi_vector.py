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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import tokenizers

from qdqbert.common.errors import CheckpointError
from qdqbert.common.files import write_json
from qdqbert.common.json_files import Fields, damaged, parse_object, read_json
from qdqbert.data.tokenizing.tokenizer_files import TOKENIZER_CONFIG
from qdqbert.encoders.checkpoint.sentence import (
    MODEL_SETTINGS,
    MODULES,
    SETTINGS,
    Kind,
    Layout,
    ReadFile,
    join,
    read_layout_fields,
    read_modules,
)
from qdqbert.encoders.checkpoint.sentence_modules import (
    TOKENS,
    FindFile,
    HeadModule,
    ModuleName,
    head_module,
    steps_of,
)
from qdqbert.encoders.model import Pooling, Step
from qdqbert.encoders.task_kinds import TaskName

Strategy = Literal["fixed", "min"]

_MODEL_TYPES = ("MultiVectorEncoder", "ColBERT")
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
_CONFIG = "config.json"
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

        Args:
            special: See `expansion_token`.
            id_of: Returns the id of a token; `None` if there is none.

        Returns:
            `None` if there is no such token.

        Raises:
            CheckpointError: The vocabulary has no such token.
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
class MultiVectorHead(Layout):
    """The modules of a multi-vector encoder after the encoder.

    Attributes:
        modules: Modules that change the vector of each token, in order.
        rules: Which tokens count.
        marks: Starts of prompts that are one token if the vocabulary has it.
    """

    task: ClassVar[TaskName] = "multi-vector-embedding"
    row_poolings: ClassVar[tuple[Pooling, ...]] = ("none",)
    modules: tuple[HeadModule, ...]
    rules: TokenRules
    marks: tuple[str, ...] = ()

    @property
    def weight_folders(self) -> tuple[str, ...]:
        """Paths in the checkpoint of the folders of the modules, some of which have no weights."""
        return tuple(each.path for each in self.modules)

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the modules as steps of a head, in float.

        Raises:
            CheckpointError: See `sentence_modules.steps_of`.
        """
        return steps_of(self.modules, find)

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

    def write(self, folder: Path, *, hidden: int, find: FindFile) -> None:
        """Write the settings to a folder with graphs.

        There is no modules.json: sentence-transformers does not run these graphs.
        """
        del hidden
        for path, text in self.files.items():
            (folder / path).write_text(text, encoding="utf-8")
        self.write_settings(folder, find)

    def write_settings(self, folder: Path, find: FindFile) -> None:
        """Write which tokens count to a folder; see `read_token_rules`."""
        del find
        write_json(folder / _RULES, dataclasses.asdict(self.rules))


def read_token_rules(folder: Path) -> TokenRules:
    """Return the rules that `MultiVectorHead.write_settings` wrote.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    path = folder / _RULES
    fields = Fields(read_json(path), lambda reason: damaged(path, reason))
    expansion = None
    if fields.has("expansion"):
        own = fields.child("expansion")
        expansion = Expansion(
            length=own.integer("length", 1, _LARGEST),
            strategy=own.choice("strategy", get_args(Strategy)),  # type: ignore[arg-type]
            attends=own.truth("attends"),
            token=own.text("token") if own.has("token") else None,
            is_scored=own.truth("is_scored"),
        )
    return TokenRules(
        **{name: _optional(fields, name) for name in _LENGTHS},
        expansion=expansion,
        skipped_words=tuple(fields.names("skipped_words")),
        skipped_in=tuple(fields.names("skipped_in")),
        kept_ids=_ids(fields, "kept_ids"),
    )


def is_multi_vector(read: ReadFile) -> bool:
    """Return whether sentence-transformers or PyLate saved a checkpoint as a multi-vector encoder.

    Raises:
        CheckpointError: modules.json is damaged.
    """
    settings = parse_object(read(MODEL_SETTINGS) or "{}", MODEL_SETTINGS)
    kinds = [kind for kind, _ in read_modules(read) or []]
    return settings.get("model_type") in _MODEL_TYPES or _MASK in kinds or _is_stanford(read)


def read_multi_vector_head(read: ReadFile) -> MultiVectorHead:
    """Return the head of a multi-vector encoder.

    Raises:
        CheckpointError: It has a module or a setting that is not supported.
    """
    if _is_stanford(read) and read(MODULES) is None:
        return _read_stanford(read)
    modules = read_modules(read) or []
    kinds = [kind for kind, _ in modules]
    if kinds[:1] != ["Transformer"] or not {*kinds[1:]} <= {*_ON_TOKENS, _MASK}:
        raise CheckpointError(
            f"The multi-vector encoder has the modules {', '.join(kinds) or 'none'}; only "
            f"Transformer, and then {', '.join(_ON_TOKENS)} and {_MASK} are supported. Pool the "
            "vectors of tokens after they are computed, and remove such a module from a copy of "
            "the folder."
        )
    (_, encoder_path), *rest = modules
    saved = parse_object(read(MODEL_SETTINGS) or "{}", MODEL_SETTINGS)
    is_pylate = saved.get("model_type") == "ColBERT"
    found = [
        _module(kind, path, read(join(path, "config.json")))  # type: ignore[arg-type]
        for kind, path in rest
        if kind != _MASK
    ]
    masks = [path for kind, path in rest if kind == _MASK]
    if len(masks) > 1:
        raise CheckpointError(f"modules.json lists {_MASK} {len(masks)} times, and it must be one.")
    if is_pylate:
        found.append(HeadModule(name="Normalize", path="", config={}))
    layout = read_layout_fields(read, encoder_path, "states")
    mask = _mask_settings(read, masks[0]) if masks else _pylate_mask(saved) if is_pylate else {}
    return MultiVectorHead(
        modules=tuple(found),
        rules=TokenRules(
            text_length=_text_length(read, encoder_path, layout["max_length"]),
            **_lengths(read, encoder_path, saved, bool(mask)),
            **mask,
        ),
        marks=tuple(
            text for each in ("query_prefix", "document_prefix") if (text := saved.get(each))
        ),
        **layout,
    )


def _is_stanford(read: ReadFile) -> bool:
    """Return whether a checkpoint is one of Stanford's ColBERT."""
    named = parse_object(read(_CONFIG) or "{}", _CONFIG).get("architectures")
    return isinstance(named, list) and _STANFORD in named


def _read_stanford(read: ReadFile) -> MultiVectorHead:
    """Return the head of a checkpoint of Stanford's ColBERT."""
    saved = parse_object(read(_METADATA) or "{}", _METADATA)
    fields = Fields(saved, lambda reason: damaged(_METADATA, reason))
    config = Fields(
        parse_object(read(_CONFIG) or "{}", _CONFIG), lambda reason: damaged(_CONFIG, reason)
    )
    attends, skips = (
        fields.truth(name) if fields.has(name) else usual
        for name, usual in (("attend_to_mask_tokens", False), ("mask_punctuation", True))
    )
    marks = tuple(
        f"{fields.text(name) if fields.has(name) else usual} "
        for name, usual in (("query_token_id", "[unused0]"), ("doc_token_id", "[unused1]"))
    )
    prompts = dict(zip(get_args(Kind), marks, strict=True))
    layout = read_layout_fields(read, "", "states")
    layout["files"] |= {MODEL_SETTINGS: json.dumps({"prompts": prompts}, indent=2) + "\n"}
    sizes = {
        "in_features": config.integer("hidden_size", 1, _LARGEST),
        "out_features": _optional(fields, "dim") or _USUAL_WIDTH,
    }
    identity = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    dense = head_module("Dense", "", json.dumps({**sizes, **identity}), vector=TOKENS)
    return MultiVectorHead(
        modules=(dense, HeadModule(name="Normalize", path="", config={})),
        rules=TokenRules(
            text_length=_text_length(read, "", layout["max_length"]),
            document_length=_optional(fields, "doc_maxlen"),
            expansion=Expansion(
                length=_optional(fields, "query_maxlen") or _USUAL_LENGTH,
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


def _text_length(read: ReadFile, encoder_path: str, own: int | None) -> int | None:
    """Return the longest text in tokens by the tokenizer and the settings; `None` for any."""
    place = join(encoder_path, TOKENIZER_CONFIG)
    given = parse_object(read(place) or "{}", place).get("model_max_length")
    limits = [each for each in (given, own) if isinstance(each, int) and 0 < each < _NO_LIMIT]
    return min(limits, default=None)


def _module(name: ModuleName, path: str, config: str | None) -> HeadModule:
    module = head_module(name, path, config, vector=TOKENS)
    if name == "Normalize" and module.config.get("module_input_name") is None:
        raise CheckpointError(
            f"{path}/config.json has no `module_input_name`, so no vectors of tokens are "
            f"normalized. Set it to {TOKENS!r} in a copy of the folder, or remove the module."
        )
    return module


def _mask_settings(read: ReadFile, path: str) -> dict[str, Any]:
    """Return the fields of `TokenRules` that a mask has."""
    place = join(path, "config.json")
    content = parse_object(read(place) or "{}", place)
    fields = Fields(content, lambda reason: damaged(place, reason))
    tasks = content.get("skiplist_tasks")
    named = [tasks] if isinstance(tasks, str) else ["document"]
    if not isinstance(tasks, str | None):
        named = fields.names("skiplist_tasks")
    words = fields.names("skiplist_words") if fields.has("skiplist_words") else ()
    return {
        "skipped_words": tuple(words),
        "skipped_in": tuple(named),
        "kept_ids": _ids(fields, "keep_only_token_ids"),
    }


def _pylate_mask(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for a model of PyLate, which skips punctuation by default."""
    fields = Fields(saved, lambda reason: damaged(MODEL_SETTINGS, reason))
    words = fields.names("skiplist_words") if fields.has("skiplist_words") else string.punctuation
    return {"skipped_words": tuple(words)}


def _lengths(
    read: ReadFile, encoder_path: str, saved: Mapping[str, Any], has_mask: bool
) -> dict[str, Any]:
    """Return the fields of `TokenRules` about lengths.

    Args:
        read: Reads files of the checkpoint.
        encoder_path: Folder of the encoder.
        saved: Content of config_sentence_transformers.json.
        has_mask: Whether there is a mask, without which only tokens that are attended to count.
    """
    own = parse_object(read(join(encoder_path, SETTINGS)) or "{}", SETTINGS)
    content = {**_pylate_lengths(saved), **own}
    fields = Fields(content, lambda reason: damaged(SETTINGS, reason))
    found: dict[str, Any] = {}
    arguments = own.get("processing_kwargs") or {}
    # The tokenizer's own argument takes precedence in sentence-transformers.
    if (arguments.get("text") or {}).get("max_length") is None:
        found = {name: _optional(fields, name) for name in ("query_length", "document_length")}
    if fields.has("query_expansion"):
        each = fields.child("query_expansion")
        attends = each.truth("attend") if each.has("attend") else False
        found["expansion"] = Expansion(
            length=each.integer("length", 1, _LARGEST),
            strategy=each.choice("strategy", get_args(Strategy)),  # type: ignore[arg-type]
            attends=attends,
            token=each.text("token") if each.has("token") else None,
            is_scored=has_mask or attends,
        )
    return found


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


def _optional(fields: Fields, name: str) -> int | None:
    return fields.integer(name, 1, _LARGEST) if fields.has(name) else None


def _ids(fields: Fields, name: str) -> tuple[int, ...] | None:
    """Return a list of ids; `None` without it, and for an empty one, which has no effect."""
    if not fields.has(name):
        return None
    numbers = fields.numbers(name)
    if any(each != int(each) for each in numbers):
        raise fields.refuse(name, fields.get(name), "a list of token ids")
    return tuple(map(int, numbers)) or None
