"""Texts that tokenizers treat differently."""

from __future__ import annotations

from collections.abc import Mapping

HARD: Mapping[str, str] = {
    "a sentence": "A plain sentence.",
    "an empty text": "",
    "spaces": "  two  spaces and\ttabs and\nlines \r\n",
    "only a space": " ",
    "accents": "naïve café Ünïcödé ÅÄÖ ñ ç Ž ễ",
    "combining accents": "e\u0301 n\u0303 x\u0300\u0301\u0302",
    "letters with special lower case": "ß ẞ İ ı ΑΣ ΌΣΟΣ Straße",
    "Chinese and Japanese": "中文测试 日本語テスト カタカナ ガギグ",
    "Korean": "한국어 문장",
    "emoji": "😀🎉 👩‍👩‍👧 emoji ❤️",
    "control characters": "control\x01\x02\x07\x1b\x7f\x85 end",
    "invisible characters": "zero\u200bwidth\u200d\ufeff bom \u00adsoft \u200e",
    "the replacement character": "\ufffd replaced",
    "other spaces": "\u2028line\u2029para\u00a0nbsp\u3000wide\u2009thin",
    "right-to-left and Indic": "عربى עברית ไทย हिन्दी",
    "wide and ligature letters": "Ｗｉｄｅ ﬁ ① ² ½",
    "letters beyond 16 bits": "𝔘𝔫𝔦 𐍈 𠀀",
    "punctuation": "don't $1,234.56! -- (a/b) #tag @me http://x.y/z?q=1 “so” — …",
    "a very long text": "a word of rain " * 400,
    "a word of 150 letters": "a" * 150,
    "a very long word": "a" * 300,
}
"""Texts that tokenizers treat differently, by their peculiarity.

None has a NUL character, at which C strings end.
"""

SPECIAL_TOKENS = "the [MASK] [SEP] <mask> </s> <s> end"
"""A text in which special tokens are spelled out."""
