"""Remove tokens from a tokenizer, so that texts without them keep their tokens.

The ids that remain are numbered again in their order.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from qdqbert.common.errors import CheckpointError

# Prefixes of tokens that are not part of their text.
_PREFIXES = ("##", "\N{LOWER ONE EIGHTH BLOCK}", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}")


def used_ids(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> set[int]:
    """Return the ids of some texts, also in lower case, and those around each text and pair."""
    batch = [*texts, *(text.lower() for text in texts), "", ("", "")]
    return {token for each in tokenizer.encode_batch_fast(batch) for token in each.ids}


def ids_of_scripts(tokenizer: tokenizers.Tokenizer, scripts: Iterable[str]) -> set[int]:
    """Return the ids of the tokens that have characters of some scripts of Unicode only.

    Characters of all scripts, such as digits, punctuation and accents, and bytes that are a part of
    a character belong to each of them. So texts of these scripts have no other tokens.

    Names of scripts are in any case.

    Raises:
        CheckpointError: The tokenizer has an algorithm that is not known.
    """
    content = json.loads(tokenizer.to_str())
    suffix = content["model"].get("end_of_word_suffix") or ""
    is_of_bytes = '"type": "ByteLevel"' in json.dumps(
        (content["pre_tokenizer"], content["normalizer"])
    )
    bytes_of = tokenizers.decoders.ByteLevel()
    texts = {
        token: bytes_of.decode([word]) if is_of_bytes else _bare(word, suffix)
        for word, token in _vocabulary(content["model"]).items()
    }
    named = "".join(rf"\p{{{name}}}" for name in (*scripts, "Common", "Inherited"))
    foreign = tokenizers.normalizers.Replace(tokenizers.Regex(f"[^{named}]"), "")
    known = set(foreign.normalize_str("".join(sorted({*"".join(texts.values())}))))
    return {token for token, text in texts.items() if known.issuperset(text)}


def trimmed(
    tokenizer: tokenizers.Tokenizer, used: Collection[int]
) -> tuple[tokenizers.Tokenizer, list[int]]:
    """Return a tokenizer with fewer tokens, and their ids in the whole one, in order.

    Texts whose ids are all among `used` get the same tokens. What the algorithm needs for that is
    kept, too: merges on the way to a token, unknown and added tokens, and the single characters of
    the tokens, which new words fall apart to.
    """
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    kept = {*used, *(each["id"] for each in content["added_tokens"]), *_needed(model, used)}
    ids = sorted(kept)
    new = {old: index for index, old in enumerate(ids)}
    _renumber_(model, new)
    for each in content["added_tokens"]:
        each["id"] = new[each["id"]]
    content["post_processor"] = _renumbered(content["post_processor"], new)
    content["padding"] = content["truncation"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(content)), ids


def _needed(model: Mapping[str, Any], used: Collection[int]) -> set[int]:
    """Return the ids that a model needs besides the ids of texts."""
    kind, vocabulary = model["type"], _vocabulary(model)
    words = {token: word for word, token in vocabulary.items()}
    characters = set("".join(words.get(token, "") for token in used))
    found = {
        token
        for word, token in vocabulary.items()
        if (bare := _bare(word, model.get("end_of_word_suffix") or "")) in characters
        or (model.get("byte_fallback") and bare.startswith("<0x"))
    }
    if model.get("unk_token") in vocabulary:
        found.add(vocabulary[model["unk_token"]])
    if kind == "Unigram":
        scores = [score for _, score in model["vocab"]]
        # Unknown characters get the lowest score.
        found |= {scores.index(min(scores)), *({model["unk_id"]} - {None})}
    if kind == "BPE":
        # The 256 characters of bytes.
        found |= {token for word, token in vocabulary.items() if len(word) == 1}
        parts = _Parts(model)
        names = {part for token in used if token in words for part in parts.of(words[token])}
        found |= {vocabulary[name] for name in names if name in vocabulary}
    return found


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    match model["type"]:
        case "WordPiece" | "WordLevel" | "BPE":
            return dict(model["vocab"])
        case "Unigram":
            return {word: index for index, (word, _) in enumerate(model["vocab"])}
    raise CheckpointError(
        f"The tokenizer has a model of type {model['type']!r}, from which no token can be removed."
    )


def _bare(word: str, suffix: str) -> str:
    """Return a token without the mark that it begins or ends a word, or goes on with one."""
    for prefix in _PREFIXES:
        if word.startswith(prefix) and len(word) > len(prefix):
            return word.removeprefix(prefix)
    return word.removesuffix(suffix)


class _Parts:
    """Merges characters as byte-pair encoding does."""

    def __init__(self, model: Mapping[str, Any]) -> None:
        self._ranks = {pair: rank for rank, pair in enumerate(map(_pair, model["merges"]))}
        self._suffix = model.get("end_of_word_suffix") or ""

    def of(self, word: str) -> set[str]:
        """Return all tokens that lead to one."""
        bare = word.removesuffix(self._suffix) if self._suffix else word
        parts = list(bare)
        if len(bare) < len(word) and parts:
            parts[-1] += self._suffix
        found = {word, *parts}
        while known := [pair for pair in itertools.pairwise(parts) if pair in self._ranks]:
            first, second = min(known, key=self._ranks.__getitem__)
            place = list(itertools.pairwise(parts)).index((first, second))
            parts[place : place + 2] = [first + second]
            found.add(parts[place])
        return found


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _renumber_(model: dict[str, Any], new: Mapping[int, int]) -> None:
    """Keep only some tokens of a model."""
    if model["type"] == "Unigram":
        model["vocab"] = [piece for index, piece in enumerate(model["vocab"]) if index in new]
        if model["unk_id"] is not None:
            model["unk_id"] = new[model["unk_id"]]
        return
    vocabulary = {word: new[token] for word, token in model["vocab"].items() if token in new}
    model["vocab"] = vocabulary
    if model["type"] == "BPE":
        prefix = model.get("continuing_subword_prefix") or ""

        def is_kept(first: str, second: str) -> bool:
            words: Iterable[str] = (first, second, first + second.removeprefix(prefix))
            return all(word in vocabulary for word in words)

        model["merges"] = [each for each in model["merges"] if is_kept(*_pair(each))]


def _renumbered(processor: Any, new: Mapping[int, int]) -> Any:
    """Return a post-processor with other ids."""
    if processor is None:
        return None
    changed = dict(processor)
    if processor["type"] == "Sequence":
        changed["processors"] = [_renumbered(each, new) for each in processor["processors"]]
    for end in ("sep", "cls"):
        if end in processor:
            word, token = processor[end]
            changed[end] = [word, new[token]]
    if isinstance(processor.get("special_tokens"), dict):
        changed["special_tokens"] = {
            word: {**each, "ids": [new[token] for token in each["ids"]]}
            for word, each in processor["special_tokens"].items()
        }
    return changed
