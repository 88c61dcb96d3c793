"""Read tokenizer.json, which comes from outside, with the library `tokenizers`, and write limits.

The library trusts some values. It allocates memory for each id up to the largest one, and others
make it panic: its error is then no `Exception`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, normalizers

from qdqbert.common.errors import CheckpointError, one_line
from qdqbert.common.file_names import TOKENIZER, TOKENIZER_CONFIG
from qdqbert.common.files import write_json
from qdqbert.common.json_files import Fields, damaged, parse_object, read_json, read_text, shown

ROLES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Names of the settings that name special tokens, in the order in which transformers adds them."""

Side = Literal["left", "right"]

# Classes of transformers' tokenizers that make BERT's normalizer of their settings, without the
# endings of their names; and these settings, with their defaults and the normalizer's names.
_BERTS = (
    *("Bert", "ConvBert", "DPRContextEncoder", "DPRQuestionEncoder", "DPRReader", "DistilBert"),
    *("Electra", "Funnel", "LayoutLM", "LayoutLMv2", "Lxmert", "MPNet", "MobileBert"),
    *("RetriBert", "SqueezeBert"),
)
_OF_BASE = (
    "Load the tokenizer of the model that it was fine-tuned from, and save it into the folder: "
    "`AutoTokenizer.from_pretrained(base_model).save_pretrained(folder)`."
)
_NORMALIZER_SETTINGS = (
    ("do_lower_case", True, "lowercase"),
    ("tokenize_chinese_chars", True, "handle_chinese_chars"),
    ("strip_accents", None, "strip_accents"),
)

# Files that transformers makes a tokenizer of.
_VOCABULARIES = (("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",))
# Every tokenizer has tokens of some of its letters, whatever its language is.
_LETTERS = "The quick brown fox jumps over the lazy dog. ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789"
# Tables of embeddings are padded, to a multiple of 128 rows at most.
_MANY_ROWS = 1000

# The library counts from 0 to the largest id when it copies a tokenizer.
_MOST_IDS = 2**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """The content of a tokenizer.json.

    Attributes:
        tokenizer: The tokenizer, which neither cuts nor pads.
        largest_id: The largest id that it gives; -1 without tokens.
        truncation_side: The end of texts that the file says to cut, if it says so.
        max_length: The number of tokens that the file says to cut texts to, if it says so.
    """

    tokenizer: tokenizers.Tokenizer
    largest_id: int
    truncation_side: Side | None = None
    max_length: int | None = None


def read_tokenizer(path: Path) -> TokenizerFile:
    """Read a tokenizer.json.

    Raises:
        CheckpointError: The file is missing, or is not a tokenizer that the library can run.
    """
    text = read_text(path)
    # The library takes the last one of equal names, as Python does.
    content = parse_object(text, path, unique=False)
    _check_merges(content.get("model"), path)
    largest = _largest_id(content, path)
    with raising(path):
        tokenizer = tokenizers.Tokenizer.from_str(text)
        cut = tokenizer.truncation or {}
        tokenizer.no_padding()
        tokenizer.no_truncation()
        # A post-processor can name tokens and texts that there are not.
        tokenizer.encode("")
        tokenizer.encode("", "")
    return TokenizerFile(
        tokenizer=tokenizer,
        largest_id=largest,
        truncation_side=cut.get("direction"),
        max_length=cut.get("max_length"),
    )


def with_named_tokens(
    file: TokenizerFile, settings: Mapping[str, Any], path: Path
) -> TokenizerFile:
    """Return a tokenizer that also has the tokens that its settings name, as in transformers.

    `settings` is the content of tokenizer_config.json.
    """
    add_tokens_(file.tokenizer, _named_tokens(settings, path))
    largest = max(file.tokenizer.get_added_tokens_decoder(), default=-1)
    return dataclasses.replace(file, largest_id=max(largest, file.largest_id))


def without_tokens(tokenizer: tokenizers.Tokenizer, rows: int) -> tokenizers.Tokenizer:
    """Return a tokenizer without the added tokens that have no row in a table of embeddings."""
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [each for each in content["added_tokens"] if each["id"] < rows]
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def check_rows(largest: int, token: str | None, rows: int, name: str) -> None:
    """Refuse a tokenizer with ids that have no embedding. Unused embeddings are allowed.

    `rows` is the number of embeddings, and `name` the folder or hub id, for messages.
    """
    if largest >= rows:
        raise CheckpointError(
            f"The tokenizer of checkpoint {name!r} has ids up to {largest} ({token!r}), but the "
            f"model has only {rows} embeddings, for ids up to {rows - 1}. Use the tokenizer that "
            "the model was trained with."
        )


def check_tokens(tokenizer: tokenizers.Tokenizer, rows: int, name: str) -> str | None:
    """Refuse a tokenizer without words, as transformers makes it if the vocabulary is missing.

    `rows` is the number of embeddings, and `name` the folder or hub id, for messages.

    Returns:
        What to say of a tokenizer that lacks many tokens of the model; `None` for others.
    """
    count = tokenizer.get_vocab_size()
    lacking = f"has {count} tokens, and the model has {rows} embeddings"
    with raising(Path(name, TOKENIZER)):
        ids = {*tokenizer.encode(_LETTERS, add_special_tokens=False).ids}
    # An unknown word and a space have tokens of their own.
    if len(ids) <= 2 and 2 * count < rows:
        raise CheckpointError(
            f"The tokenizer of {name!r} {lacking}: it knows no words, because it was made without "
            f"a vocabulary. {_OF_BASE}"
        )
    if rows - count >= _MANY_ROWS and count < 0.9 * rows:
        return f"{lacking}. If its vocabulary was cut off, answers are wrong. {_OF_BASE}"
    return None


def check_end(tokenizer: tokenizers.Tokenizer, padding_id: object, name: str) -> None:
    """Refuse a tokenizer that ends texts with the padding token, for heads that skip it.

    `padding_id` is that of config.json, and `name` the folder or hub id, for messages.
    """
    with raising(Path(name, TOKENIZER)):
        last = tokenizer.encode(_LETTERS).ids[-1:]
    if last == [padding_id]:
        raise CheckpointError(
            f"The tokenizer of {name!r} ends texts with its padding token, "
            f"{tokenizer.id_to_token(last[0])!r}: classifiers of this type read the last token "
            "that is not the padding token, which is not supported. Train the model with another "
            "padding token, and save its `pad_token_id`."
        )


def no_tokenizer(folder: Path, name: str) -> CheckpointError:
    """Return the error about a checkpoint without tokenizer.json.

    Args:
        folder: The folder in which it is missing.
        name: Folder or hub id of the checkpoint. Vocabularies are not downloaded from the hub.
    """
    can_make = not Path(name).is_dir() or any(
        all(any(folder.glob(each)) for each in files) for files in _VOCABULARIES
    )
    advice = (
        "Write it with transformers: "
        "`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`."
    )
    none = f"{TOKENIZER} or a vocabulary"
    return CheckpointError(
        f"{str(folder)!r} has no {TOKENIZER if can_make else none}. "
        f"{advice if can_make else _OF_BASE}"
    )


def add_tokens_(tokenizer: tokenizers.Tokenizer, tokens: Iterable[AddedToken]) -> None:
    """Add tokens that a tokenizer does not have yet. Words of its vocabulary keep their ids."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token in tokens:
        if token.content not in known:
            add = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
            add([token])
            known.add(token.content)


def _named_tokens(settings: Mapping[str, Any], path: Path) -> list[AddedToken]:
    """Return the tokens that settings name, in the order in which transformers adds them."""
    fields = Fields(settings, lambda reason: damaged(path, reason))
    stored = (
        fields.child("added_tokens_decoder").values if fields.has("added_tokens_decoder") else {}
    )
    by_id = sorted(stored, key=lambda index: int(index) if index.isdecimal() else -1)
    found = [_added_token(stored[index], path, special=False) for index in by_id]
    named = [each for role in ROLES if (each := settings.get(role)) is not None]
    return [
        *found,
        *(_added_token(each, path, special=True) for each in (*named, *_extra(settings))),
    ]


def _added_token(value: Any, path: Path, *, special: bool) -> AddedToken:
    options = value if isinstance(value, dict) else {"content": value}
    content = options.get("content")
    if not isinstance(content, str) or not content:
        raise damaged(path, f"{shown(value)} is no token")
    special = special or options.get("special") is True
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    given = {name: options[name] for name in flags if isinstance(options.get(name), bool)}
    return AddedToken(content, special=special, **given)


def merged_settings(
    own: Mapping[str, Any], special: Mapping[str, Any], added: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a tokenizer, as transformers merges them from its files.

    They are the contents of tokenizer_config.json, special_tokens_map.json and added_tokens.json.
    Older versions wrote the last two.
    """
    if "added_tokens_decoder" in own:
        return dict(own)
    merged = {**own, **special}
    named = [token_text(merged.get(role)) for role in ROLES]
    if added:
        tokens = {
            str(index): {"content": token, "special": token in (*named, *_extra(merged))}
            for token, index in added.items()
        }
        merged["added_tokens_decoder"] = tokens
    return merged


def _extra(settings: Mapping[str, Any]) -> list[Any]:
    """Return the special tokens that have no role of BERT's."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    # Tokens of other roles have names of their own.
    others = [name for name in settings if name.endswith("_token") and name not in ROLES]
    named = [settings[name] for name in others if isinstance(settings[name], str | dict)]
    return named + (list(extra.values()) if isinstance(extra, dict) else _list(extra))


def contradictions(
    settings: Mapping[str, Any], tokenizer: tokenizers.Tokenizer, model_type: object
) -> list[str]:
    """Return the settings that transformers follows where tokenizer.json says something else.

    Classes of BERT's kind make the normalizer, and the tokens around a text, of their settings.
    Llama's has no normalizer, and that of Llama 2 reads blanks at the start of a text otherwise.

    Args:
        settings: The content of tokenizer_config.json.
        tokenizer: The content of tokenizer.json.
        model_type: The field of config.json. Other models with Llama's class get the file as it is.
    """
    kind = settings.get("tokenizer_class")
    own = kind.removesuffix("Fast").removesuffix("Tokenizer") if isinstance(kind, str) else ""
    step = tokenizer.normalizer
    state = {} if step is None else json.loads(step.__getstate__())
    steps = state.get("normalizers", [state])
    prepends = any(each.get("type") == "Prepend" for each in steps)
    if prepends and own == "Llama" and model_type == "llama":
        return [f"tokenizer_class={kind!r}"]
    if own not in _BERTS:
        return []
    found = []
    if state.get("type") == "BertNormalizer":
        for name, default, field in _NORMALIZER_SETTINGS:
            if settings.get(name, default) != state.get(field):
                found.append(f"{name}={settings.get(name, default)!r}")
    ends = tokenizer.encode("").tokens
    if len(ends) == 2:
        for role, token in zip(("cls_token", "sep_token"), ends, strict=True):
            named = token_text(settings.get(role))
            if named not in (None, token):
                found.append(f"{role}={named!r}")
    return found


def set_limits(folder: Path, max_length: int) -> None:
    """Write the longest input of a model next to its tokenizer, which itself neither cuts nor pads.

    transformers, transformers.js and fastembed read `model_max_length`, and fastembed `max_length`,
    too. A limit that transformers left in tokenizer.json is removed: other programs would apply it.
    The side that it cuts is written as a setting of its own.
    """
    path, side = folder / TOKENIZER, {}
    if path.is_file():
        content = read_json(path)
        if cut := content.get("truncation"):
            side = {"truncation_side": cut["direction"].lower()}
        if cut or content.get("padding"):
            write_json(path, {**content, "truncation": None, "padding": None})
    path = folder / TOKENIZER_CONFIG
    if path.is_file():
        content = read_json(path)
        names = {"model_max_length", *({"max_length"} & content.keys())}
        write_json(path, {**side, **content, **dict.fromkeys(sorted(names), max_length)})


def token_text(value: Any) -> str | None:
    """Return the text of a special token in tokenizer_config.json; `None` if there is none."""
    # Older files store the token with its options.
    text = value.get("content") if isinstance(value, dict) else value
    return None if text is None else str(text)


def put_lower_case_first_(tokenizer: tokenizers.Tokenizer) -> None:
    """Change a tokenizer as `do_lower_case` of sentence-transformers does: to lower case first."""
    own = tokenizer.normalizer
    steps = [normalizers.Lowercase(), *([own] if own else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)


@contextlib.contextmanager
def raising(path: Path) -> Iterator[None]:
    """Turn errors of the library into a `CheckpointError`."""
    try:
        yield
    except BaseException as error:
        # The library raises `Exception` itself. The class of a panic cannot be imported.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"The tokenizer {str(path)!r} cannot be used: {one_line(error)}."
        ) from error


def _check_merges(model: Any, path: Path) -> None:
    """Refuse a prefix that the library cuts from tokens which do not have it."""
    if not isinstance(model, dict) or not model.get("continuing_subword_prefix"):
        return
    prefix = model["continuing_subword_prefix"]
    for merge in _list(model.get("merges")):
        pair = merge.split(" ") if isinstance(merge, str) else _list(merge)
        second = pair[-1] if pair else None
        if not (isinstance(second, str) and second.startswith(str(prefix))):
            raise damaged(
                path, f"merge {shown(merge)} has no continuing_subword_prefix {shown(prefix)}"
            )


def _largest_id(content: dict[str, Any], path: Path) -> int:
    largest = -1
    for token, value in _ids(content):
        # The library refuses other values than integers.
        if type(value) is int:
            if not 0 <= value < _MOST_IDS:
                raise damaged(path, f"token {shown(token)} has the id {value}")
            largest = max(largest, value)
    return largest


def _ids(content: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield tokens and their ids."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict) and vocabulary:
        # The smallest and the largest one say enough of many.
        ids = [each for each in vocabulary.items() if type(each[1]) is int]
        yield from (pick(ids, key=operator.itemgetter(1)) for pick in (min, max) if ids)
    elif isinstance(vocabulary, list) and vocabulary:
        # Unigram has a list, with the score of each token.
        yield vocabulary[-1], len(vocabulary) - 1
    for token in _list(content.get("added_tokens")):
        if isinstance(token, dict):
            yield token.get("content"), token.get("id")
    yield from _ids_of_processor(content.get("post_processor"))


def _ids_of_processor(processor: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(processor, dict):
        return
    for name in ("sep", "cls"):
        match processor.get(name):
            case [token, value]:
                yield token, value
    special = processor.get("special_tokens")
    for token in special.values() if isinstance(special, dict) else ():
        for value in _list(token.get("ids") if isinstance(token, dict) else None):
            yield token.get("id"), value
    for each in _list(processor.get("processors")):
        yield from _ids_of_processor(each)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
