"""Names that options choose from. Imports nothing, so that reading options stays fast.

Names that the code lists also have a tuple, in the order in which they are printed. The tables that
these names refer to are elsewhere (`TARGETS`, `RECIPES`, `TASKS`, ...); a test compares them.
"""

from __future__ import annotations

from typing import Literal, get_args

TargetName = Literal[
    "portable",
    "onnxruntime",
    "onnxruntime-dynamic",
    "openvino",
    "native",
    "native-dynamic",
    "tensorrt",
    "qordered",
    "float",
]
# Values of `quantize(target=...)`: "auto" is the fastest target on this machine.
TargetChoice = Literal[TargetName, "auto"]

RecipeName = Literal[
    "ffn",
    "linear",
    "linear+qk",
    "linear+matmul",
    "full",
    "full-smoothed",
    "qordered",
]
RECIPE_NAMES: tuple[RecipeName, ...] = get_args(RecipeName)

EngineName = Literal["onnxruntime", "openvino", "native"]
ENGINE_NAMES: tuple[EngineName, ...] = get_args(EngineName)

# Instruction sets that kernels of the native engine are generated for.
KernelName = Literal[
    "amx", "avx512-vnni", "avx-vnni", "avx2", "neon-i8mm", "neon-dotprod", "portable"
]

ProviderName = Literal["cpu", "cuda", "tensorrt", "tensorrt-rtx", "openvino"]
PROVIDER_NAMES: tuple[ProviderName, ...] = get_args(ProviderName)

CalibratorName = Literal["max", "percentile", "mse", "entropy"]
CALIBRATOR_NAMES: tuple[CalibratorName, ...] = get_args(CalibratorName)

Embeddings = Literal["int8", "float"]
# Precision in which `load` runs a float checkpoint.
Precision = Literal["int8", "float", "float16"]
Granularity = Literal["layer", "linear", "site"]

PoolingMode = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)

WeightsFor = Literal["any", "vnni"]
VerificationData = Literal["built-in", "held-out", "none"]
QatRanges = Literal["fixed", "learned", "moving"]
Dropout = Literal["keep", "off"]
SchedulerName = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
]

# Unicode's scripts of the vocabularies of multilingual encoders, in lower case.
ScriptName = Literal[
    "arabic",
    "armenian",
    "bengali",
    "cyrillic",
    "devanagari",
    "ethiopic",
    "georgian",
    "greek",
    "gujarati",
    "gurmukhi",
    "han",
    "hangul",
    "hebrew",
    "hiragana",
    "kannada",
    "katakana",
    "khmer",
    "lao",
    "latin",
    "malayalam",
    "mongolian",
    "myanmar",
    "oriya",
    "sinhala",
    "tamil",
    "telugu",
    "thaana",
    "thai",
    "tibetan",
]

InputFormat = Literal["txt", "csv", "tsv", "jsonl", "parquet"]
INPUT_FORMATS: tuple[InputFormat, ...] = get_args(InputFormat)

OutputFormat = Literal["jsonl", "csv", "tsv", "parquet", "npy"]
OnError = Literal["stop", "skip"]
AggregationStrategy = Literal["none", "simple", "first", "average", "max"]

# Kinds of values that embeddings are returned as. Bits are packed into bytes.
OutputDtype = Literal["float32", "int8", "uint8", "binary", "ubinary"]
OUTPUT_DTYPES: tuple[OutputDtype, ...] = get_args(OutputDtype)

# What an embedder can make of a text, as FlagEmbedding names it.
VectorKind = Literal["dense", "sparse", "colbert"]
VECTOR_KINDS: tuple[VectorKind, ...] = get_args(VectorKind)

ExportFormat = Literal["openvino", "transformers-js", "triton"]
ExportedOutputs = Literal["last_hidden_state", "sentence_embedding", "both"]
