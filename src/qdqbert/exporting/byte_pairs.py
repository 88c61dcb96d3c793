"""Byte-level BPE and Unigram in an ONNX graph: the tokenizers of RoBERTa and of XLM-RoBERTa."""

from __future__ import annotations

import json
from typing import Any

import onnx_ir as ir
import tokenizers

from qdqbert.exporting.nodes import EXTENSIONS, AddTokenizer, Nodes

# White space as Rust's `char::is_whitespace` has it, for RE2.
_SPACES = r"[\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]+"


def byte_pairs(tokenizer: tokenizers.Tokenizer) -> AddTokenizer:
    """Return what adds byte-level BPE with RoBERTa's special tokens to a graph.

    Args:
        tokenizer: The tokenizer.
    """
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    has_prefix = bool((content["pre_tokenizer"] or {}).get("add_prefix_space"))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]

    def add(nodes: Nodes, text: ir.Value) -> ir.Value:
        if has_prefix:
            text = nodes.replace(text, "^([^ ])", r" \1")
        ids = nodes.add_all(
            "RobertaTokenizer",
            text,
            count=2,
            domain=EXTENSIONS,
            vocab=json.dumps(model["vocab"], separators=(",", ":")),
            merges="\n".join(merges),
            padding_length=-1,
        )[0]
        flat = nodes.add("Reshape", ids, nodes.integers(-1))
        # Without the special tokens that the operator adds.
        return nodes.slice(flat, nodes.integers(1), nodes.integers(-1))

    return add


def unigrams(tokenizer: tokenizers.Tokenizer) -> AddTokenizer:
    """Return what adds a Unigram model to a graph.

    Args:
        tokenizer: The tokenizer.
    """
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    # The operator knows no cutting and no padding.
    content |= {"truncation": None, "padding": None}
    before = content["pre_tokenizer"] or {}
    steps = before["pretokenizers"] if before.get("type") == "Sequence" else [before]
    has_words = any(step.get("type") == "WhitespaceSplit" for step in steps)

    def add(nodes: Nodes, text: ir.Value) -> ir.Value:
        if has_words:
            text = nodes.replace(nodes.replace(text, _SPACES, " "), "^ | $", "")
        ids = nodes.add(
            "HfJsonTokenizer",
            text,
            domain=EXTENSIONS,
            tokenizer_config=json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}),
            tokenizer_vocab=json.dumps(content, ensure_ascii=False),
        )
        return nodes.add("Reshape", ids, nodes.integers(-1))

    return add
