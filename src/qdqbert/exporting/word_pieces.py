"""WordPiece in an ONNX graph: the tokenizer of BERT.

The operator `BertTokenizer` of onnxruntime-extensions cuts words into pieces. It knows neither
Unicode's decomposition of letters nor the lower case of all alphabets, so that regular expressions
normalize texts before. They are made from what the tokenizer's own normalizer does to each
character. Those for one alphabet run only if a text has its letters: English texts pass none.

A character that is in no piece makes its word unknown, before and after it is normalized. Such
characters are left as they are, which saves most of the expressions.
"""

from __future__ import annotations

import dataclasses
import json
import string
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir
import tokenizers

from qdqbert.errors import UserInputError
from qdqbert.exporting.nodes import EXTENSIONS, AddTokenizer, Nodes

# Code points whose letters are normalized together: Latin, then Greek and Cyrillic. All others are
# a third group.
_ALPHABETS = (
    (range(0x80, 0x250), range(0x1E00, 0x1F00), range(0x2000, 0x2070)),
    (range(0x370, 0x530), range(0x1F00, 0x2000)),
)
_HANGUL = range(0xAC00, 0xD7A4)
_LEADS, _VOWELS, _TAILS = 19, 21, 28
# A character that stands for a word which is not in the vocabulary.
_ABSENT = "\ue000"
# White space and punctuation of ASCII, in brackets of a regular expression.
_BETWEEN_WORDS = r"\s!-/:-@\[-`{-~"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Characters:
    """What a tokenizer does to characters.

    Attributes:
        known: The characters of all pieces, and those that the operator turns into them.
        changes: Characters that become another text, by that text.
        isolated: Characters that are words of their own: Chinese ones and punctuation.
        longest: Number of characters of the longest word that is cut into pieces. The operator has
            another limit.
    """

    known: frozenset[str]
    changes: Mapping[str, Sequence[int]]
    isolated: Sequence[int]
    longest: int


def word_pieces(tokenizer: tokenizers.Tokenizer) -> AddTokenizer:
    """Return what adds WordPiece with BERT's normalizer to a graph.

    Args:
        tokenizer: The tokenizer.

    Raises:
        UserInputError: The tokenizer has steps that the graph does not know.
    """
    content = json.loads(tokenizer.to_str())
    model, normalizer = content["model"], content["normalizer"]
    kinds = (normalizer or {}).get("type"), (content["pre_tokenizer"] or {}).get("type")
    if kinds != ("BertNormalizer", "BertPreTokenizer"):
        raise UserInputError(
            f"`to='onnx-text'`: there is no graph for a WordPiece tokenizer with {kinds[0]} and "
            f'{kinds[1]}. "triton" takes every tokenizer.',
            argument="to",
        )
    vocabulary = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    added = {each["content"] for each in content["added_tokens"]}
    known = {character for token in vocabulary if token not in added for character in token}
    if normalizer["lowercase"]:
        known |= set(string.ascii_uppercase)
    characters = _characters(tokenizer, frozenset(known), model["max_input_chars_per_word"])
    attributes = {
        "vocab_file": "\n".join(vocabulary),
        "do_lower_case": int(normalizer["lowercase"]),
        "do_basic_tokenize": 1,
        "tokenize_chinese_chars": 0,
        "strip_accents": 0,
        "suffix_indicator": model["continuing_subword_prefix"],
        **_special_tokens(vocabulary, model["unk_token"]),
    }

    def add(nodes: Nodes, text: ir.Value) -> ir.Value:
        normal = _words(nodes, text, characters)
        ids = nodes.add_all("BertTokenizer", normal, count=3, domain=EXTENSIONS, **attributes)[0]
        # Without the special tokens that the operator adds.
        return nodes.slice(ids, nodes.integers(1), nodes.integers(-1))

    return add


def _words(nodes: Nodes, text: ir.Value, characters: _Characters) -> ir.Value:
    """Add the nodes that normalize a text, and replace words that cannot be in the vocabulary."""
    known = characters.known
    # Without the two kinds of white space that are control characters.
    plain = [ord(each) for each in string.printable[:-2] if not each.isalnum() or each in known]
    normal = nodes.where(
        nodes.matches(text, f"[{_ranges(plain)}]*"),
        lambda inner: text,
        lambda inner: _normalized(inner, text, characters),
    )
    too_long = rf"[^{_BETWEEN_WORDS}]{{{characters.longest + 1},}}"
    # Such an expression takes longer to compile than to match, and most texts have no such word.
    return nodes.where(
        nodes.matches(normal, rf"(?s).*{too_long}.*"),
        lambda inner: inner.replace(normal, too_long, _ABSENT),
        lambda inner: normal,
    )


def _special_tokens(vocabulary: Sequence[str], unknown: str) -> dict[str, str]:
    """Return the attributes of special tokens, which the operator looks up in the vocabulary."""
    # Only the unknown token is in the result. The others have to exist.
    names = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    usual = {name: f"[{name.partition('_')[0].upper()}]" for name in names}
    known = set(vocabulary)
    return {
        name: token if name != "unk_token" and token in known else unknown
        for name, token in usual.items()
    }


def _normalized(nodes: Nodes, text: ir.Value, characters: _Characters) -> ir.Value:
    """Add the nodes that normalize a text with control characters or characters beyond ASCII."""
    known, changes = characters.known, characters.changes
    needed = {
        target: [code for code in codes if code not in _HANGUL]
        for target, codes in changes.items()
        if set(target) <= known | {" "} or any(chr(code) in known for code in codes)
    }
    for target in ("", " "):
        if codes := needed.pop(target, []):
            text = nodes.replace(text, f"[{_ranges(codes)}]", target)
    left = {code: target for target, codes in needed.items() for code in codes}
    for alphabet in _ALPHABETS:
        here = [code for code in left if any(code in part for part in alphabet)]
        text = _replaced_letters(nodes, text, {code: left.pop(code) for code in here})
    text = _replaced_letters(nodes, text, left)
    syllables = changes.get(_decomposed(_HANGUL[0]), [])
    if _HANGUL[0] in syllables and any(chr(code) in known for code in range(0x1100, 0x1200)):
        text = _decomposed_syllables(nodes, text)
    text = nodes.replace(text, f"([{_ranges(characters.isolated)}])", r" \1 ")
    # Of a word with an unknown character, the operator would return the pieces before it.
    letters = _ranges({ord(letter) for letter in known})
    word = f"[^{_BETWEEN_WORDS}]*"
    return nodes.replace(text, f"{word}[^{_BETWEEN_WORDS}{letters}]{word}", _ABSENT)


def _characters(
    tokenizer: tokenizers.Tokenizer, known: frozenset[str], longest: int
) -> _Characters:
    """Return what a tokenizer does to each character."""
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    changes: dict[str, list[int]] = {}
    isolated = []
    for code in _assigned():
        character = chr(code)
        normal = normalizer.normalize_str(character)
        is_changed = normal.strip() != character
        # The operator itself makes letters of ASCII small, and isolates its punctuation.
        if is_changed and (code > 0x7F or normal in ("", " ")):
            changes.setdefault(normal, []).append(code)
        # Chinese characters get spaces, and punctuation becomes a word of its own.
        can_split = normal[:1] == " " or any(
            unicodedata.category(each)[0] in "PS" for each in normal
        )
        if code > 0x7F and can_split and len(splitter.pre_tokenize_str(f"a{normal}a")) == 3:
            isolated.append(code)
    return _Characters(known=known, changes=changes, isolated=isolated, longest=longest)


def _assigned() -> Iterator[int]:
    """Yield the code points that a text can have, without planes that hold no characters."""
    for first, end in ((1, 0xD800), (0xE000, 0x40000), (0xE0000, 0xE1000), (0xF0000, 0x110000)):
        yield from range(first, end)


def _replaced_letters(nodes: Nodes, text: ir.Value, letters: Mapping[int, str]) -> ir.Value:
    """Replace letters, if a text has any of them."""
    if not letters:
        return text

    def replaced(inner: Nodes) -> ir.Value:
        result = text
        for target in dict.fromkeys(letters.values()):
            codes = [code for code, each in letters.items() if each == target]
            result = inner.replace(result, f"[{_ranges(codes)}]", target.replace("\\", r"\\"))
        return result

    pattern = f"(?s).*[{_ranges(letters)}].*"
    return nodes.where(nodes.matches(text, pattern), replaced, lambda inner: text)


def _decomposed_syllables(nodes: Nodes, text: ir.Value) -> ir.Value:
    """Replace Korean syllables with their letters, if a text has any.

    The first letter, then the second one, is put before the syllable, which then becomes the last
    one or nothing.
    """
    first, last, block = _HANGUL[0], _HANGUL[-1], _VOWELS * _TAILS

    def replaced(inner: Nodes) -> ir.Value:
        result = text
        for lead in range(_LEADS):
            codes = [code for code in _HANGUL if (code - first) // block == lead]
            result = inner.replace(result, f"[{_ranges(codes)}]", rf"{chr(0x1100 + lead)}\0")
        for vowel in range(_VOWELS):
            codes = [code for code in _HANGUL if (code - first) // _TAILS % _VOWELS == vowel]
            result = inner.replace(result, f"[{_ranges(codes)}]", rf"{chr(0x1161 + vowel)}\0")
        for tail in range(_TAILS):
            codes = list(_HANGUL[tail::_TAILS])
            target = chr(0x11A7 + tail) if tail else ""
            result = inner.replace(result, f"[{_ranges(codes)}]", target)
        return result

    pattern = rf"(?s).*[\x{{{first:X}}}-\x{{{last:X}}}].*"
    return nodes.where(nodes.matches(text, pattern), replaced, lambda inner: text)


def _decomposed(code: int) -> str:
    return unicodedata.normalize("NFD", chr(code))


def _ranges(codes: Collection[int]) -> str:
    """Return code points as they stand in the brackets of a regular expression of RE2."""
    return "".join(
        rf"\x{{{first:X}}}" + (rf"-\x{{{last:X}}}" if last > first else "")
        for first, last in _runs(sorted(codes))
    )


def _runs(codes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive numbers."""
    start = 0
    for index in range(1, len(codes) + 1):
        if index == len(codes) or codes[index] != codes[index - 1] + 1:
            yield codes[start], codes[index - 1]
            start = index
