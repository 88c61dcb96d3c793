"""Rewrite a tokenizer, so that libraries which know fewer forms of tokenizers can convert it."""

from __future__ import annotations

import json
from typing import Any

import tokenizers


def equivalent_tokenizer(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer that gives the same ids, and whose steps OpenVINO Tokenizers computes.

    * `BertNormalizer` removes the character U+FFFD. OpenVINO Tokenizers leaves it in the text, so
      that a step before removes it.
    * `WhitespaceSplit` before `Metaspace` makes one space of every run of white space. OpenVINO
      Tokenizers does not drop empty words between them, so that steps of the normalizer replace
      and strip white space.
    * `ByteLevel` with `add_prefix_space` puts a space before a text that does not start with one.
      OpenVINO Tokenizers leaves it out before other white space, too, so that steps of the
      normalizer do it.
    """
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    steps = _steps(content["normalizer"], "normalizers")
    if any(step["type"] == "BertNormalizer" and step["clean_text"] for step in steps):
        steps.insert(0, {"type": "Replace", "pattern": {"String": "\ufffd"}, "content": ""})
    before = _steps(content["pre_tokenizer"], "pretokenizers")
    if [step["type"] for step in before] == ["WhitespaceSplit", "Metaspace"]:
        steps += [
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Strip", "strip_left": True, "strip_right": True},
        ]
        content["pre_tokenizer"] = before[1]
    if [step["type"] for step in before] == ["ByteLevel"] and before[0]["add_prefix_space"]:
        steps += [
            {"type": "Prepend", "prepend": " "},
            {"type": "Replace", "pattern": {"Regex": "^  "}, "content": " "},
        ]
        content["pre_tokenizer"] = {**before[0], "add_prefix_space": False}
    content["normalizer"] = {"type": "Sequence", "normalizers": steps} if steps else None
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer, which can be a sequence of steps."""
    if part is None:
        return []
    return list(part[name]) if part["type"] == "Sequence" else [part]
