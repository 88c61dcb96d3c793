"""The fields of the protocols that the server speaks, with values that are not their defaults.

Sources: OpenAI's, Cohere's, Jina's, Voyage's and NVIDIA's references, `openapi.json` of
text-embeddings-inference, `docs/api.md` of Ollama, infinity's `/docs`, and vLLM's
`entrypoints/pooling/base/protocol.py` and `scoring/protocol.py`.
"""

from __future__ import annotations

from typing import Any

LONG = "music " * 400 + "a dog"

OF_VLLM: dict[str, list[Any]] = {
    "truncate_prompt_tokens": [3],
    "padding": ["max_length"],
    "truncation_side": ["left"],
    "mm_processor_kwargs": [{"a": 1}],
    "media_io_kwargs": [{"a": 1}],
    "chat_template": ["a"],
    "chat_template_kwargs": [{"a": 1}],
}
OF_TEI: dict[str, list[Any]] = {
    "truncate": [False],
    "truncation_direction": ["Left", "left"],
}
PROMPTED = {**OF_TEI, "prompt_name": ["query"]}
OF_RERANK: dict[str, list[Any]] = {
    **OF_VLLM,
    "use_activation": [False],
    "activation": [False],
    "top_n": [1],
    "top_k": [1],
    "raw_scores": [True],
    "rank_fields": [["title"]],
    "return_embeddings": [True],
    "truncation": [False],
    "max_chunks_per_doc": [1],
    "max_tokens_per_doc": [3],
    "max_tokens_per_query": [3],
    "max_doc_length": [3],
    "max_query_length": [3],
    "instruction": ["find"],
}
OF_SCORE = {
    **OF_VLLM,
    "instruction": ["find"],
    "max_tokens_per_query": [3],
    "max_tokens_per_doc": [3],
}
RANKED: dict[str, Any] = {"query": "a dog", "documents": [LONG, "a cat"]}

FIELDS: list[tuple[str, dict[str, Any], dict[str, list[Any]]]] = [
    (
        "/v1/embeddings",
        {"input": [LONG, "a dog"], "model": "embedder"},
        {
            **OF_VLLM,
            "add_special_tokens": [False],
            "chat_template": ["a"],
            "dimensions": [6],
            "embed_dtype": ["float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"],
            "embedding_type": ["base64", "binary", "ubinary", "int8", "uint8", ["float"], "x"],
            "encoding_format": ["base64", "bytes", "bytes_only"],
            "endianness": ["big"],
            "images": [["x"]],
            "input_type": ["query"],
            "late_chunking": [True],
            "messages": [[{"role": "user", "content": "a"}]],
            "modality": ["image"],
            "normalize": [False],
            "normalized": [False],
            "output_dimension": [6],
            "output_dtype": ["int8", "uint8", "binary", "ubinary"],
            "prompt_name": ["query"],
            "return_multivector": [True],
            "task": ["retrieval.query"],
            "truncate": ["START", "NONE", False],
            "truncation": [False],
            "use_activation": [False],
        },
    ),
    (
        "/v2/embed",
        {"texts": [LONG], "model": "embedder"},
        {
            "embedding_types": [["int8"], ["float", "base64"]],
            "images": [["x"]],
            "input_type": ["search_query"],
            "inputs": [[{"content": []}]],
            "max_tokens": [3],
            "output_dimension": [6],
            "truncate": ["START", "NONE"],
        },
    ),
    (
        "/api/embed",
        {"input": [LONG], "model": "embedder"},
        {"dimensions": [6], "options": [{"num_ctx": 8}], "truncate": [False]},
    ),
    (
        "/api/embeddings",
        {"prompt": LONG, "model": "embedder"},
        {"options": [{"num_ctx": 8}]},
    ),
    (
        "/embed",
        {"inputs": [LONG]},
        {
            **PROMPTED,
            "dimensions": [6],
            "encoding_format": ["base64"],
            "output_dtype": ["int8"],
            "parameters": [{"dimensions": 6}],
        },
    ),
    ("/models/embedder/embed_all", {"inputs": LONG}, {**PROMPTED, "dimensions": [6]}),
    ("/embed_sparse", {"inputs": LONG}, {**OF_TEI, "normalize": [True]}),
    (
        "/similarity",
        {"inputs": {"source_sentence": "a cat", "sentences": [LONG]}},
        {
            **PROMPTED,
            "parameters": [{name: values[0]} for name, values in PROMPTED.items()],
        },
    ),
    ("/models/reranker/v1/rerank", RANKED, {**OF_RERANK, "return_documents": [False]}),
    ("/models/reranker/v2/rerank", RANKED, {**OF_RERANK, "return_documents": [True]}),
    ("/rerank", RANKED, {**OF_RERANK, **OF_TEI, "return_documents": [False]}),
    (
        "/rerank",
        {"query": "a dog", "texts": [LONG, "a cat"]},
        {**OF_RERANK, **OF_TEI, "return_text": [True]},
    ),
    (
        "/models/reranker/score",
        {"text_1": "a dog", "text_2": [LONG]},
        {**OF_SCORE, "activation": [False], "use_activation": [False]},
    ),
    ("/models/embedder/score", {"text_1": "a cat", "text_2": [LONG]}, OF_SCORE),
    (
        "/models/classifier/predict",
        {"inputs": LONG},
        {
            **OF_TEI,
            "candidate_labels": [["a"]],
            "function_to_apply": ["none"],
            "raw_scores": [True],
            "top_k": [1],
        },
    ),
    (
        "/models/classifier",
        {"inputs": LONG},
        {**OF_TEI, "function_to_apply": ["none"], "raw_scores": [True], "top_k": [1]},
    ),
    ("/models/tagger/tokenize", {"inputs": "a"}, {"add_special_tokens": [False]}),
    ("/models/tagger/decode", {"ids": [2, 3]}, {"skip_special_tokens": [False]}),
]
"""Paths, bodies, and the fields that can be added to them with other values."""

PARAMETERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("/models/classifier/text-classification", LONG, {"top_k": 1, "function_to_apply": "none"}),
    ("/models/classifier/predict", LONG, {"top_k": 1, "function_to_apply": "none"}),
    (
        "/token-classification",
        LONG,
        {"aggregation_strategy": "none", "ignore_labels": ["LABEL_0"], "stride": 40},
    ),
    ("/fill-mask", "a [MASK]", {"top_k": 1, "targets": ["dog"]}),
    (
        "/question-answering",
        {"question": "who is in the book", "context": LONG},
        {
            "align_to_words": True,
            "doc_stride": 4,
            "handle_impossible_answer": True,
            "max_answer_len": 1,
            "max_question_len": 1,
            "max_seq_len": 16,
            "top_k": 2,
        },
    ),
    ("/similarity", {"source_sentence": "a cat", "sentences": [LONG]}, {"prompt_name": "query"}),
]
"""Paths, inputs, and the parameters of Hugging Face's inference API."""

CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"output_dtype": "float", "embedding_type": "binary"}),
    ("/v1/embeddings", {"encoding_format": "float", "embedding_type": "base64"}),
    ("/v1/embeddings", {"output_dtype": "int8", "embedding_type": "base64"}),
    ("/v1/embeddings", {"output_dimension": 6, "dimensions": 7}),
    ("/v1/embeddings", {"normalized": True, "use_activation": False}),
    ("/v1/embeddings", {"truncate": "START", "truncation_side": "right"}),
    ("/v1/embeddings", {"truncate": "NONE", "truncation": True}),
    ("/embed", {"truncation_direction": "Left", "truncation_side": "right"}),
    ("/models/reranker/v1/rerank", {"top_n": 1, "top_k": 2}),
    ("/rerank", {"top_n": 1, "top_k": 2}),
    ("/rerank", {"return_text": True, "return_documents": False}),
    ("/rerank", {"raw_scores": True, "use_activation": True}),
    ("/models/reranker/v2/rerank", {"raw_scores": False, "use_activation": False}),
    ("/models/reranker/score", {"activation": True, "use_activation": False}),
    ("/models/classifier/predict", {"raw_scores": True, "function_to_apply": "softmax"}),
    ("/models/classifier/predict", {"raw_scores": False, "function_to_apply": "none"}),
    ("/token-classification", {"stride": 1, "parameters": {"stride": 2}}),
]
"""Paths, and fields that cannot both be meant. Bodies are those of `FIELDS` and `PARAMETERS`."""
