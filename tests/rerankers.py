"""Tiny rerankers that are language models, saved by sentence-transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Transformer

from decoder_models import save_decoder
from qdqbert.engines.native.runner import NativeRunner

FLAT = """\
{%- set instruct = messages | selectattr("role", "eq", "system") | map(attribute="content") \
| first | default("Given a query, find passages that answer it", true) -%}
<|im_end|>system
Judge whether the Document meets the Query. Answer "yes" or "no".<|im_end|>
<Instruct>: {{ instruct }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") \
| first }}<|im_end|>
{% if add_generation_prompt %}assistant
{% endif %}
<think>

</think>

"""
"""The template of Qwen3-Reranker, as sentence-transformers' documentation writes it."""

STRUCTURED = """\
{%- for message in messages -%}
{{ "<|im_end|>" if not loop.first else "" }}{{ message.role }}: {{ message.content[0].text | trim }}
{%- endfor -%}{{ eos_token }}Answer:"""
"""A template of messages with typed contents, which removes blanks."""

PAIRS = [
    ("What sat?", "The cat sat on the mat."),
    ("What sat?", 'A train to the city, and <b>"it\'s"</b> 100 % {{ x }}'),
    ("  blanks ", " around\n the texts \n"),
    ("", "no query"),
    ("no document", ""),
    ("日本語 🙂", "A train <|im_end|> " * 80),
    ("A long query " * 5, "and a document that is as long. " * 60),
]


def save_reranker(
    folder: Path,
    model_type: str = "qwen3",
    *,
    template: str | dict[str, str] | None = FLAT,
    options: dict[str, Any] | None = None,
    true_token: str | int = "y",
    false_token: str | int | None = "n",
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
    activation: Any = None,
    max_length: int | None = 330,
    **changes: Any,
) -> CrossEncoder:
    """Write a folder as sentence-transformers does, and return the model that wrote it."""
    plain = folder.parent / f"{folder.name}-plain"
    plain.mkdir()
    save_decoder(
        plain,
        model_type,
        auto=transformers.AutoModelForCausalLM,
        ends=False,
        **{"max_position_embeddings": 600, **changes},
    )
    processing = {"chat_template": options} if options else None
    transformer = Transformer(
        str(plain),
        transformer_task="text-generation",
        processor_kwargs={"chat_template": template} if template else {},
        processing_kwargs=processing,
        max_seq_length=max_length,
    )
    ids = [
        transformer.tokenizer.convert_tokens_to_ids(each) if isinstance(each, str) else each
        for each in (true_token, false_token)
    ]
    made = CrossEncoder(
        modules=[transformer, LogitScore(*ids)],
        device="cpu",
        prompts=prompts,
        default_prompt_name=default_prompt,
        activation_fn=activation,
    )
    made.save_pretrained(str(folder))
    return CrossEncoder(str(folder), device="cpu")


@contextlib.contextmanager
def recorded_prefixes() -> Iterator[list[int]]:
    """Yield a list that gets the length of each prefix that is computed."""
    found: list[int] = []
    read = NativeRunner.read_prefix

    def recorded(self: NativeRunner, ids: Any) -> Any:
        found.append(len(ids))
        return read(self, ids)

    with mock.patch.object(NativeRunner, "read_prefix", recorded):
        yield found
