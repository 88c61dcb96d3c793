"""The command line: words of a user -> one call each -> a table or JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console

from qdqbert.errors import GraphError, QdqBertError, UserInputError
from qdqbert.progress import Bars

if TYPE_CHECKING:
    from qdqbert.tasks.data import Columns
    from qdqbert.tasks.task import TaskOptions

_Report = TypeVar("_Report")

app = typer.Typer(
    help="Make BERT-family checkpoints INT8, prove that they are still right, and run them fast.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Calibrator(enum.StrEnum):
    """How ranges are chosen."""

    MAX = "max"
    PERCENTILE = "percentile"
    MSE = "mse"
    ENTROPY = "entropy"


class Ranges(enum.StrEnum):
    """What training does with calibrated ranges."""

    FIXED = "fixed"
    LEARNED = "learned"
    MOVING = "moving"


class Dropout(enum.StrEnum):
    """What training does with dropout."""

    KEEP = "keep"
    OFF = "off"


class Isa(enum.StrEnum):
    """What `--isa` takes."""

    ANY = "any"
    VNNI = "vnni"


class Embeddings(enum.StrEnum):
    """How embedding tables are stored."""

    INT8 = "int8"
    FLOAT = "float"


Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else.")]
Task = Annotated[
    str | None,
    typer.Option(help="transformers' task name; inferred from the checkpoint if not given."),
]
BatchSize = Annotated[int, typer.Option(help="Texts at once.")]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of the text: a name, or a number from 0.")
]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second text of a pair.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the label or score.")]
DocStride = Annotated[
    int | None,
    typer.Option(help="Tokens that windows of one context share; question answering [128]."),
]
NBest = Annotated[
    int | None, typer.Option(help="Starts and ends that are paired; question answering [20].")
]
MaxAnswerLength = Annotated[
    int | None, typer.Option(help="Longest answer in tokens; question answering [30].")
]
NullThreshold = Annotated[
    float | None,
    typer.Option(help='How far "no answer" must lead; unanswerable questions [0].'),
]
MlmProbability = Annotated[
    float | None, typer.Option(help="Share of tokens that are masked; fill-mask [0.15].")
]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Longest input in tokens; the task's or the checkpoint's if not given."),
]
QuantDisableKeyword = Annotated[
    list[str] | None,
    typer.Option(help="Leave what a regular expression finds in float; repeatable."),
]
QuantDisable = Annotated[
    bool,
    typer.Option("--quant-disable", help="Leave all in float but for --quant-enable-layer-module."),
]
DisableLayerModule = Annotated[
    str | None, typer.Option(help="The same in every layer: the pattern follows `layer.N.`.")
]
EnableLayerModule = Annotated[
    str | None, typer.Option(help="Quantize what the pattern finds in every layer after all.")
]
Wprec = Annotated[int, typer.Option(help="Bits of weights, 2 to 8.")]
Aprec = Annotated[int, typer.Option(help="Bits of activations, 2 to 8.")]
PerTensor = Annotated[bool, typer.Option("--quant-per-tensor", help="One scale a weight.")]
FuseQkv = Annotated[bool, typer.Option("--fuse-qkv", help="One range for query, key and value.")]
ClipGelu = Annotated[float | None, typer.Option(help="Highest value of GELU's outputs.")]
CalibratorOption = Annotated[Calibrator, typer.Option(help="How ranges are chosen.")]
QuantizeCalibrator = Annotated[
    Calibrator | None, typer.Option(help="How ranges are chosen [percentile].")
]
Percentile = Annotated[
    float | None, typer.Option(help="Share to cover, with --calibrator percentile [99.999].")
]
Provider = Annotated[
    str | None, typer.Option(help="Of ONNX Runtime: cpu, cuda, tensorrt or openvino [cpu].")
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="Of an .onnx file: folder or hub id of its tokenizer and config [its folder]."
    ),
]
InputNames = Annotated[
    list[str] | None,
    typer.Option(
        help="Of an .onnx file: input_ids=NAME and so on, for inputs of other names; repeat it."
    ),
]
_DATA = (
    ".csv, .tsv, .jsonl or a folder of classes; SQuAD's .json for questions; CoNLL columns for "
    "tags; or hub:NAME@SPLIT."
)


@app.command(
    epilog="Example: qdqbert quantize ./my-classifier -o ./my-classifier-int8 "
    "--calibration-data train.csv --target onnxruntime --target openvino"
)
def quantize(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A checkpoint: a local folder or a hub id; or an .onnx file. Without it the "
            "packaged all-MiniLM-L6-v2 is quantized for ONNX Runtime and OpenVINO."
        ),
    ] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder to write.")] = None,
    task: Task = None,
    tokenizer: Tokenizer = None,
    input_names: InputNames = None,
    calibration_data: Annotated[
        str | None,
        typer.Option(
            help="Examples to take ranges from, as of `train`; also .txt (a text a line). Built-in "
            "English sentences if not given."
        ),
    ] = None,
    ranges: Annotated[
        str | None,
        typer.Option(
            help="A folder of an earlier `quantize` of the same checkpoint: its ranges are used "
            "again, for other targets or settings."
        ),
    ] = None,
    text_column: TextColumn = None,
    text_pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    calibration_samples: Annotated[
        int, typer.Option(help="How many of them to use, drawn by the seed.")
    ] = 300,
    max_length: MaxLength = None,
    doc_stride: DocStride = None,
    n_best_size: NBest = None,
    max_answer_length: MaxAnswerLength = None,
    null_score_diff_threshold: NullThreshold = None,
    mlm_probability: MlmProbability = None,
    batch_size: BatchSize = 8,
    calibrator: QuantizeCalibrator = None,
    percentile: Percentile = None,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate", help="Take new ranges, though the checkpoint's quantizers have some."
        ),
    ] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Where to quantize: ffn, linear, linear+matmul, full (qdqbert), "
            "full-smoothed or qordered; else as the checkpoint's own quantizers, or the target's."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="portable, onnxruntime, onnxruntime-dynamic, openvino, tensorrt or qordered (ONNX "
            "Runtime on CUDA); repeat it for several from one calibration [portable]."
        ),
    ] = None,
    isa: Annotated[
        Isa,
        typer.Option(
            help="vnni: weights with all of 8 bits, for CPUs that have it; any: safe on others too."
        ),
    ] = Isa.ANY,
    dedicated_qdq_pairs: Annotated[
        bool,
        typer.Option(
            "--dedicated-qdq-pairs",
            help="Give each reader of an activation a Q/DQ pair of its own.",
        ),
    ] = False,
    embeddings: Annotated[
        Embeddings, typer.Option(help="How embedding tables are stored.")
    ] = Embeddings.INT8,
    wprec: Wprec = 8,
    aprec: Aprec = 8,
    quant_per_tensor: PerTensor = False,
    quant_disable: QuantDisable = False,
    quant_disable_keyword: QuantDisableKeyword = None,
    quant_disable_layer_module: DisableLayerModule = None,
    quant_enable_layer_module: EnableLayerModule = None,
    fuse_qkv: FuseQkv = False,
    clip_gelu: ClipGelu = None,
    recalibrate_weights: Annotated[
        bool,
        typer.Option(
            "--recalibrate-weights",
            help="Take weights' ranges from the weights, though the checkpoint has some.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Draws the calibration texts.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an output folder of an earlier run.")
    ] = False,
    benchmark: Annotated[bool, typer.Option(help="Time INT8 against float.")] = True,
    as_json: Json = False,
) -> None:
    """Quantize a checkpoint to INT8 and prove the result."""
    import qdqbert

    columns = _columns(text_column, text_pair_column, label_column)
    report = _call(
        as_json,
        lambda: qdqbert.quantize(
            model,
            output,
            task=task,
            tokenizer=tokenizer,
            input_names=_pairs("--input-names", input_names),
            calibration_data=calibration_data,
            columns=columns,
            ranges=ranges,
            calibration_samples=calibration_samples,
            max_length=max_length,
            task_options=_task_options(
                doc_stride=doc_stride,
                n_best_size=n_best_size,
                max_answer_length=max_answer_length,
                null_score_diff_threshold=null_score_diff_threshold,
                mlm_probability=mlm_probability,
            ),
            batch_size=batch_size,
            recalibrate=recalibrate,
            calibrator=None if calibrator is None else calibrator.value,
            percentile=percentile,
            recipe=recipe,
            quantizer_options=qdqbert.QuantizerOptions(
                wprec=wprec,
                aprec=aprec,
                quant_per_tensor=quant_per_tensor,
                quant_disable=quant_disable,
                quant_disable_keyword=tuple(quant_disable_keyword or ()),
                quant_disable_layer_module=quant_disable_layer_module,
                quant_enable_layer_module=quant_enable_layer_module,
                fuse_qkv=fuse_qkv,
                clip_gelu=clip_gelu,
                recalibrate_weights=recalibrate_weights,
            ),
            targets=tuple(target or ()),
            isa=isa.value,
            dedicated_qdq_pairs=dedicated_qdq_pairs,
            embeddings=embeddings.value,
            seed=seed,
            overwrite=overwrite,
            benchmark=benchmark,
            progress=Bars(),
        ),
    )
    _show(report, as_json, "quantize_table")


@app.command(
    epilog="Example: qdqbert train ./my-classifier --train-data train.csv --eval-data dev.csv "
    "-o ./my-qat --qat --distill-from ./my-classifier"
)
def train(
    model: Annotated[
        str, typer.Argument(help="A checkpoint: a local folder or a hub id; its head may be new.")
    ],
    train_data: Annotated[str, typer.Option(help=f"Labelled examples: {_DATA}")],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder to write.")],
    eval_data: Annotated[
        str | None, typer.Option(help="Other examples, to evaluate before, while and after.")
    ] = None,
    task: Task = None,
    qat: Annotated[
        bool, typer.Option("--qat", help="Put calibrated quantizers in, and train with them.")
    ] = False,
    recipe: Annotated[
        str,
        typer.Option(
            help="Where to quantize: full (qdqbert), full-smoothed, linear, "
            "linear+matmul, ffn or qordered."
        ),
    ] = "qdqbert",
    ranges: Annotated[
        Ranges, typer.Option(help="Keep calibrated ranges, learn those of activations, or move.")
    ] = Ranges.FIXED,
    calibration_samples: Annotated[
        int, typer.Option(help="Training examples to take ranges from.")
    ] = 300,
    calibrator: CalibratorOption = Calibrator.MSE,
    percentile: Percentile = None,
    distill_from: Annotated[
        str | None,
        typer.Option(help="A float checkpoint to follow; for QAT often MODEL itself."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Softens both models' logits.")] = 2.0,
    distill_alpha: Annotated[
        float, typer.Option(help="Share of the teacher in the loss; 1 needs no labels.")
    ] = 1.0,
    distill_hidden: Annotated[
        float, typer.Option(help="Weight of the distance of all layers' states.")
    ] = 0.0,
    epochs: Annotated[float | None, typer.Option(help="[3; with --qat 0.3]")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="[3e-5]")] = None,
    lr_scheduler: Annotated[
        str | None, typer.Option(help="transformers' name of it [linear; with --qat cosine].")
    ] = None,
    warmup: Annotated[float, typer.Option(help="Share of the steps.")] = 0.1,
    weight_decay: Annotated[float, typer.Option(help="AdamW's.")] = 0.0,
    batch_size: Annotated[int, typer.Option(help="Rows at once, of each process.")] = 16,
    gradient_accumulation: Annotated[int, typer.Option(help="Batches of one step.")] = 1,
    dropout: Annotated[
        Dropout, typer.Option(help="Keep the checkpoint's dropout, or switch it off.")
    ] = Dropout.KEEP,
    eval_steps: Annotated[
        int | None,
        typer.Option(help="Evaluate and save after so many steps [4 times in all]."),
    ] = None,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Write the best model on --eval-data, not the last.")
    ] = False,
    text_column: TextColumn = None,
    text_pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    max_length: MaxLength = None,
    max_train_examples: Annotated[int | None, typer.Option(help="Read no more of them.")] = None,
    max_eval_examples: Annotated[int | None, typer.Option(help="Read no more of them.")] = None,
    doc_stride: DocStride = None,
    n_best_size: NBest = None,
    max_answer_length: MaxAnswerLength = None,
    null_score_diff_threshold: NullThreshold = None,
    mlm_probability: MlmProbability = None,
    wprec: Wprec = 8,
    aprec: Aprec = 8,
    quant_per_tensor: PerTensor = False,
    quant_disable: QuantDisable = False,
    quant_disable_keyword: QuantDisableKeyword = None,
    quant_disable_layer_module: DisableLayerModule = None,
    quant_enable_layer_module: EnableLayerModule = None,
    fuse_qkv: FuseQkv = False,
    clip_gelu: ClipGelu = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log for TensorBoard, beside the checkpoints.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Draws order, dropout, heads and masks.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint of a stopped run.")
    ] = False,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Leave OUTPUT-checkpoints after the run.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an output folder of an earlier run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a checkpoint, in float or with quantizers (QAT), and follow a teacher."""
    import qdqbert

    columns = _columns(text_column, text_pair_column, label_column)

    def run() -> Any:
        from qdqbert.recipes import training_quantizer_options

        quantizer_options = training_quantizer_options(
            calibrator=calibrator.value,
            percentile=percentile,
            wprec=wprec,
            aprec=aprec,
            quant_per_tensor=quant_per_tensor,
            quant_disable=quant_disable,
            quant_disable_keyword=tuple(quant_disable_keyword or ()),
            quant_disable_layer_module=quant_disable_layer_module,
            quant_enable_layer_module=quant_enable_layer_module,
            fuse_qkv=fuse_qkv,
            clip_gelu=clip_gelu,
        )
        return qdqbert.train(
            model,
            output,
            train_data=train_data,
            eval_data=eval_data,
            task=task,
            columns=columns,
            task_options=_task_options(
                doc_stride=doc_stride,
                n_best_size=n_best_size,
                max_answer_length=max_answer_length,
                null_score_diff_threshold=null_score_diff_threshold,
                mlm_probability=mlm_probability,
                seed=seed,
            ),
            max_length=max_length,
            max_train_examples=max_train_examples,
            max_eval_examples=max_eval_examples,
            qat=qat,
            recipe=recipe,
            quantizer_options=quantizer_options,
            ranges=ranges.value,
            calibration_samples=calibration_samples,
            distill_from=distill_from,
            distillation=qdqbert.Distillation(
                temperature=temperature, alpha=distill_alpha, hidden_weight=distill_hidden
            ),
            epochs=epochs,
            learning_rate=learning_rate,
            lr_scheduler=lr_scheduler,
            warmup=warmup,
            weight_decay=weight_decay,
            batch_size=batch_size,
            gradient_accumulation=gradient_accumulation,
            dropout=dropout.value,
            eval_steps=eval_steps,
            keep_best=keep_best,
            tensorboard=tensorboard,
            seed=seed,
            resume=resume,
            keep_checkpoints=keep_checkpoints,
            overwrite=overwrite,
            progress=Bars(),
        )

    report = _call(as_json, run, f"checkpoints are in {output}-checkpoints: see --resume.")
    if int(os.environ.get("RANK", "0")) == 0:
        _show(report, as_json, "train_table")


@app.command(
    epilog="Example: qdqbert evaluate ./my-classifier-int8 --data dev.tsv --engine openvino "
    "--reference ./my-classifier"
)
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="A quantized folder, a float checkpoint, or an .onnx file, float or quantized."
        ),
    ],
    data: Annotated[str, typer.Option(help=f"Labelled examples: {_DATA}")],
    task: Task = None,
    engine: Annotated[
        str | None,
        typer.Option(help="onnxruntime or openvino, for quantized folders and .onnx files."),
    ] = None,
    provider: Provider = None,
    target: Annotated[
        str | None, typer.Option(help="Which graph, of a folder with several for one engine.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="A float checkpoint, or .onnx file, to compare with, text by text."),
    ] = None,
    tokenizer: Tokenizer = None,
    input_names: InputNames = None,
    text_column: TextColumn = None,
    text_pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    max_examples: Annotated[int | None, typer.Option(help="Read no more rows.")] = None,
    max_length: MaxLength = None,
    doc_stride: DocStride = None,
    n_best_size: NBest = None,
    max_answer_length: MaxAnswerLength = None,
    null_score_diff_threshold: NullThreshold = None,
    mlm_probability: MlmProbability = None,
    allow_leakage: Annotated[
        bool,
        typer.Option(
            "--allow-leakage", help="Score examples that ranges were taken from; the report says."
        ),
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="Folder for the task's own files, such as predictions.json."
        ),
    ] = None,
    batch_size: BatchSize = 8,
    as_json: Json = False,
) -> None:
    """Score a model on labelled data, and its nearness to a reference."""
    import qdqbert

    columns = _columns(text_column, text_pair_column, label_column)
    given = {
        "doc_stride": doc_stride,
        "n_best_size": n_best_size,
        "max_answer_length": max_answer_length,
        "null_score_diff_threshold": null_score_diff_threshold,
        "mlm_probability": mlm_probability,
    }
    report = _call(
        as_json,
        lambda: qdqbert.evaluate(
            model,
            data,
            task=task,
            provider=provider,
            target=target,
            engine=engine,  # type: ignore[arg-type]  # checked by the call
            reference=reference,
            tokenizer=tokenizer,
            input_names=_pairs("--input-names", input_names),
            columns=columns,
            max_examples=max_examples,
            max_length=max_length,
            options={name: value for name, value in given.items() if value is not None},
            allow_leakage=allow_leakage,
            output=output,
            batch_size=batch_size,
            progress=Bars(),
        ),
    )
    _show(report, as_json, "evaluate_table")


@app.command(
    epilog="Example: qdqbert benchmark ./my-classifier ./my-classifier-int8 --batch 1,8 "
    "--sequence 32,128 --threads 2"
)
def benchmark(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Quantized folders, float checkpoints, .onnx or OpenVINO .xml files. The first "
            "is what the others are compared with."
        ),
    ],
    engine: Annotated[
        str | None, typer.Option(help="Engines, with commas between; all installed if not given.")
    ] = None,
    provider: Provider = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas between.")] = "1,8",
    sequence: Annotated[str, typer.Option(help="Tokens a text, with commas between.")] = "32,128",
    threads: Annotated[
        int | None, typer.Option(help="Threads of one inference; the engine's choice if not given.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Slices of time for each, in turns.")] = 5,
    as_json: Json = False,
) -> None:
    """Time models against each other, each in a process of its own, in turns."""
    import qdqbert

    report = _call(
        as_json,
        lambda: qdqbert.benchmark(
            models,
            provider=provider,
            engines=engine.split(",") if engine else None,  # type: ignore[arg-type]
            batches=_numbers("--batch", batch),
            sequences=_numbers("--sequence", sequence),
            threads=threads,
            rounds=rounds,
            progress=Bars(),
        ),
    )
    _show(report, as_json, "benchmark_table")


@app.command(
    epilog="Example: qdqbert engine ./my-classifier-int8 --batch 1,8 --sequence 32,128 "
    "--tensorrt-version 10.13"
)
def engine(
    model: Annotated[str, typer.Argument(help="A folder that was quantized for tensorrt.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write [model.engine beside the graph]."),
    ] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas between.")] = "1,8",
    sequence: Annotated[
        str | None, typer.Option(help="Tokens a text, with commas between [32,128].")
    ] = None,
    runs: Annotated[int, typer.Option(help="Timed runs of each shape.")] = 100,
    tensorrt_version: Annotated[
        str | None,
        typer.Option(help="Version that the trtexec line is for, where TensorRT is elsewhere."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build the TensorRT engine of a quantized folder, and time it; else say how."""
    from qdqbert.verbs.engine import engine as build

    report = _call(
        as_json,
        lambda: build(
            model,
            output,
            batches=_numbers("--batch", batch),
            sequences=_numbers("--sequence", sequence) if sequence else None,
            runs=runs,
            version=tensorrt_version,
            progress=Bars(),
        ),
    )
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), indent=2))
        return
    size = f"{report.size_bytes / 1e6:.1f} MB"
    typer.echo(f"{report.engine}: {size}, TensorRT {report.tensorrt}, {report.gpu}")
    for each in report.timings:
        typer.echo(f"{each.batch} x {each.sequence}: {each.median_ms:.3f} ms")
    typer.echo(f"The same: {report.trtexec}")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"qdqbert {version_of('qdqbert')}")
        raise typer.Exit


def main() -> None:
    """Entry point of the `qdqbert` command."""
    signal.signal(signal.SIGTERM, _stop)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    app()


def _stop(number: int, frame: object) -> NoReturn:
    # An exception, so that half-written folders are removed on the way out.
    del frame
    sys.exit(128 + number)


def _call(
    as_json: bool, verb: Callable[[], _Report], left: str = "nothing was written."
) -> _Report:
    """Runs a verb; a user's mistake becomes one line on stderr and exit status 2."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    for library in ("torch", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        return verb()
    except GraphError as error:  # our mistake, not the user's
        _fail(str(error), status=1, as_json=as_json)
    except QdqBertError as error:
        _fail(str(error), status=2, as_json=as_json)
    except KeyboardInterrupt:
        _fail(f"Interrupted; {left}", status=130, as_json=as_json)
    except SystemExit as stop:  # of `_stop`
        _fail(f"Stopped by a signal; {left}", status=int(stop.code or 0), as_json=as_json)


def _fail(message: str, *, status: int, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"error": message}))
    Console(stderr=True).print(
        f"Error: {message}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    raise typer.Exit(status)


def _show(report: Any, as_json: bool, table: str) -> None:
    from qdqbert.evidence import tables

    if as_json:
        from qdqbert.evidence.reports import json_ready

        typer.echo(json.dumps(json_ready(report), indent=2, ensure_ascii=False))
        return
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(getattr(tables, table)(report))


def _task_options(**given: Any) -> TaskOptions:
    """Settings of the task: those that were given, and defaults."""
    from qdqbert.tasks.task import TaskOptions

    return TaskOptions(**{name: value for name, value in given.items() if value is not None})


def _pairs(flag: str, words: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` words as a dictionary."""
    pairs = {}
    for word in [word for each in words or () for word in each.split(",")]:
        name, _, value = word.partition("=")
        if not name or not value:
            raise UserInputError(f"`{flag} {word}`: expected NAME=VALUE.")
        pairs[name] = value
    return pairs


def _columns(text: str | None, text_pair: str | None, label: str | None) -> Columns:
    from qdqbert.tasks.data import Columns

    return Columns(text=text, text_pair=text_pair, label=label)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserInputError(
            f"`{option} {text}` must be whole numbers with commas between."
        ) from error
