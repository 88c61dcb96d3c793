"""The largest score of each word of a vocabulary over the tokens of each text.

A sparse embedder scores about 30,000 words for each token, keeps the largest score of each word in
a text, and drops those below 0, which are nearly all. All words are scored in int8, and the maximum
is taken while the sums of a tile are in cache, so that no score of a token is stored:

    largest = max over tokens of (codes @ weights + start + margin) * scale
    score = largest * factor + bias

Factors are positive, so that the largest value has the largest score. Then the few words with a
positive score are scored again in float32, so that their weights have no error of 8-bit codes.
The margin raises the scores by more than most of these errors, so that few words are missed.
"""

from __future__ import annotations

from qdqbert.encoders.shared_table import STEPS
from qdqbert.engines.native.functions import LANES
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I8, I16, I32, I64, PTR, Function, Module, Value, vector
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.linear import finish_function, kernel_function, row_scale
from qdqbert.engines.native.kernels.weights import weights_of
from qdqbert.engines.native.records import LINEAR, ROW_SCALE, THREAD, WORDS

# Panels and rows whose sums are converted together, and rows that are multiplied together.
_FINISHED_PANELS, _ROWS = (2, 1), (4, 2, 1)


def emit_words(module: Module, isa: InstructionSet) -> None:
    """Write `score_words`, which threads run together: each scores some words for all texts.

    Its arguments are a model, which it does not read, a `WORDS` record and a `THREAD` record. The
    weights of some panels stay in the second-level cache for all texts.
    """
    _emit_finish(module, adds_start=isa.tiles.start_at_zero)
    with kernel_function(module, "linear_largest") as f:
        isa.tiles.loop(f, isa, "linear_largest_finish", 4, reads_out=False)
    _emit_exact(module)
    with module.function("score_words", "model*, job*, thread*") as f:
        isa.tiles.begin(f)
        job = {name: WORDS.read(f.job, name) for name in WORDS.fields}
        linear, stride = job["linear"], job["code_stride"]
        with f.loop(job["first"], job["end"], job["together"]) as panel:
            panels = (job["end"] - panel).minimum(job["together"])
            own, others = (weights_of(linear, each) for each in (panel, panel + panels))
            with f.loop(0, job["texts"]) as text:
                first, end = (f.load(I64, job["starts"] + text * 8 + each) for each in (0, 8))
                out = job["out"] + (text * job["out_stride"] + panel * (4 * PANEL))
                f.call(
                    "linear_largest",
                    linear=linear,
                    first=panel,
                    panels=panels,
                    codes=job["codes"] + first * stride,
                    code_stride=stride,
                    rows=end - first,
                    out=out,
                    # All rows of a text have one result.
                    out_stride=0,
                    row_scales=job["row_scales"] + first * ROW_SCALE,
                    extra=f.constant(PTR, 0),
                    following=(text + 1 < job["texts"]).select(own, others),
                )
                words = {"word": panel * PANEL, "words": panels * PANEL}
                f.call("score_again", job=f.job, row=first, rows=end - first, out=out, **words)
        isa.tiles.end(f)
        THREAD.write(f.thread, "passes", THREAD.read(f.thread, "passes") + 1)


def _emit_finish(module: Module, *, adds_start: bool) -> None:
    """Write `linear_largest_finish`, which keeps the largest scores."""
    with finish_function(module, "linear_largest_finish") as f:
        factors, biases, sums = (
            LINEAR.read(f.linear, name) + f.column * 4 for name in ("factor", "bias", "first_sums")
        )

        def block(panel: Value, width: int) -> None:
            floats, integers = (vector(each, PANEL * width) for each in (F32, I32))
            column = panel * (4 * PANEL)
            first = f.load(integers, sums + column)
            largest = f.variable(f.constant(floats, float("-inf")))

            def rows(row: Value, height: int) -> None:
                for each in range(height):
                    total = f.load(integers, f.sums + ((row + each) * f.sum_stride + column))
                    if adds_start:
                        total = total + first
                    value = total.cast("sitofp", floats) * row_scale(f, row + each, floats)
                    largest.set(value.maximum(largest.get()))

            in_blocks(f, f.rows, _ROWS, rows)
            factor, bias = (f.load(floats, each + column) for each in (factors, biases))
            place = f.out + column
            score = f.fma(largest.get(), factor, bias)
            f.store(score.maximum(f.load(floats, place)), place)

        in_blocks(f, f.columns // PANEL, _FINISHED_PANELS, block)


def _emit_exact(module: Module) -> None:
    """Write `score_again`, which computes the positive scores of a text in float32.

    Its arguments are a `WORDS` record, the first row of the text and the number of rows, the first
    word and the number of words, a multiple of 16, and their scores.
    """
    some = vector(F32, PANEL)
    with (
        module.function("score_again", "job*, row, rows, word, words, out*") as f,
        f.loop(0, f.words, PANEL) as first,
    ):
        is_positive = f.load(some, f.out + first * 4) > f.constant(some, 0.0)
        with (
            f.when(is_positive.bits(I16).differs(0)),
            f.loop(first, first + PANEL) as word,
            f.when(f.load(F32, f.out + word * 4) > 0.0),
        ):
            _score_again(f, f.word + word, f.out + word * 4)


def _score_again(f: Function, word: Value, place: Value) -> None:
    """Write the largest score of a word, or 0, to a place."""
    lanes, floats = LANES, vector(F32, LANES)
    depth, linear, scale = WORDS.each(f.job, "depth", "linear", "scale")
    table, rest = WORDS.each(f.job, "table", "rest")
    row = WORDS.read(f.job, "row")
    is_float = scale.equals(0)
    with f.when(is_float ^ 1), f.loop(0, depth, lanes) as channel:
        # As `shared_table.joined` does.
        codes, more = (
            f.load(vector(I8, lanes), each + channel).cast("sext", vector(I32, lanes))
            for each in (table + word * depth, rest + word * depth)
        )
        steps = (codes * STEPS + more).cast("sitofp", floats)
        f.store(steps * (1 / STEPS) * f.load(floats, scale + channel * 4), row + channel * 4)
    row = is_float.select(table + word * depth * 4, row)
    states = WORDS.read(f.job, "states") + f.row * depth * 4
    bias = f.load(F32, LINEAR.read(linear, "bias") + word * 4)
    largest = f.variable(f.constant(F32, 0.0))

    def rows(first: Value, height: int) -> None:
        places = [states + (first + each) * depth * 4 for each in range(height)]
        totals = [f.variable(f.constant(floats, 0.0)) for _ in places]
        with f.loop(0, depth, lanes) as channel:
            weight = f.load(floats, row + channel * 4)
            for state, total in zip(places, totals, strict=True):
                total.set(f.fma(f.load(floats, state + channel * 4), weight, total.get()))
        for total in totals:
            largest.set((f.sum_of(total.get()) + bias).maximum(largest.get()))

    in_blocks(f, f.rows, _ROWS, rows)
    f.store(largest.get(), place)
