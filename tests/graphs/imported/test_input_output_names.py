from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.graphs.encoder.probe import INPUTS
from qdqbert.graphs.imported.input_output_names import name_inputs, name_outputs

IDS = np.array([[1, 2, 3], [4, 5, 6]])
MASK = np.array([[1, 1, 1], [1, 0, 0]])


def model_of(
    names: tuple[str, ...] = INPUTS, *, kind: str = "int64", shape: str = "batch, seq"
) -> ir.Model:
    """Adds its inputs up."""
    inputs = ", ".join(f"{kind}[{shape}] {name}" for name in names)
    total = f"s = Sum ({', '.join(f'f{index}' for index in range(len(names)))})"
    casts = " ".join(f"f{index} = Cast <to = 1> ({name})" for index, name in enumerate(names))
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (float[batch, seq] y) '
        f"{{ {casts} {total} y = Neg (s) }}"
    )


OF_TOKENS = "batch, seq, classes"


def heads_of(*names: str, shape: str = "batch, classes") -> ir.Model:
    places = [f"o_{index}" for index in range(len(names))]
    outputs = ", ".join(f"float[{shape}] {place}" for place in places)
    body = " ".join(f"{place} = Abs (x{index})" for index, place in enumerate(places))
    inner = " ".join(f"x{index} = Neg (x)" for index in range(len(names)))
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[{shape}] x) => ({outputs}) '
        f"{{ {inner} {body} }}"
    )
    for value, name in zip(model.graph.outputs, names, strict=True):
        # The text form has no names such as `logits:0`.
        value.name = name
    return model


def names_of(values) -> list[str]:
    return [value.name for value in values]


@pytest.mark.parametrize("names", [INPUTS, INPUTS[:2], INPUTS[::-1]])
def test_transformers_names_are_kept_and_returned_in_its_order(names) -> None:
    model = model_of(names)
    assert name_inputs(model, {}) == INPUTS[: len(names)]
    assert names_of(model.graph.inputs) == list(names)


@pytest.mark.parametrize(
    "names",
    [
        ("ids", "mask", "type_ids"),
        ("tokens", "input_mask", "segment_ids"),
        ("input.1", "attention_mask", "token_type_ids"),
        ("input", "mask", "segment_ids"),
    ],
)
def test_other_common_names_are_recognized(names) -> None:
    model = ir.Model(
        ir.Graph(
            inputs=[
                ir.val(name, dtype=ir.DataType.INT64, shape=ir.Shape(["batch", "seq"]))
                for name in names
            ],
            outputs=[],
            nodes=[],
            opset_imports={"": 21},
        ),
        ir_version=10,
    )
    assert name_inputs(model, {}) == INPUTS
    assert names_of(model.graph.inputs) == list(INPUTS)


def test_inputs_can_be_named(run_plainly) -> None:
    model = model_of(("a", "b"))
    names = name_inputs(model, {"input_ids": "b", "attention_mask": "a"})
    assert names == INPUTS[:2]
    result = run_plainly(model, {"input_ids": IDS, "attention_mask": MASK})["y"]
    np.testing.assert_array_equal(result, -(IDS + MASK).astype(np.float32))


def test_a_given_name_takes_precedence_over_a_known_one() -> None:
    model = model_of(("input_ids", "attention_mask"))
    given = {"input_ids": "attention_mask", "attention_mask": "input_ids"}
    assert name_inputs(model, given) == INPUTS[:2]
    assert names_of(model.graph.inputs) == ["attention_mask", "input_ids"]


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (("a", "b"), {}, r"graph's inputs a, b cannot be inferred.*for a, b"),
        ((*INPUTS, "more"), {}, "reads more in addition to input_ids"),
        (
            INPUTS,
            {"input_ids": "nowhere"},
            "maps 'input_ids' to 'nowhere', which is not .*token_type",
        ),
        (INPUTS, {"ids": "input_ids"}, "`input_names` maps 'ids', which is not .*: input_ids"),
        (("input_ids",), {}, "no input for the attention mask"),
        (("attention_mask",), {}, "cannot be inferred"),
        (
            INPUTS[:2],
            dict.fromkeys(INPUTS[:2], "attention_mask"),
            "several names to one of the graph's inputs",
        ),
    ],
    ids=["unknown", "one-more", "no-such-input", "no-such-role", "no-mask", "no-ids", "twice"],
)
def test_inputs_without_a_known_meaning_are_refused(names, given, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        name_inputs(model_of(names), given)
    assert "\n" not in str(caught.value)


def test_int32_inputs_take_int64_afterwards(run_plainly) -> None:
    model = model_of(INPUTS[:2], kind="int32")
    name_inputs(model, {})
    assert {value.dtype for value in model.graph.inputs} == {ir.DataType.INT64}
    result = run_plainly(model, {"input_ids": IDS, "attention_mask": MASK})["y"]
    np.testing.assert_array_equal(result, -(IDS + MASK).astype(np.float32))


def test_inputs_of_another_rank_are_refused() -> None:
    with pytest.raises(UserInputError, match=r"has shape .* expected \(batch, sequence\)"):
        name_inputs(model_of(INPUTS[:2], shape="batch"), {})


@pytest.mark.parametrize("kind", ["float", "bool"])
def test_inputs_that_are_not_integers_are_refused(kind) -> None:
    with pytest.raises(UserInputError, match="expected int64 or int32"):
        name_inputs(model_of(INPUTS[:2], kind=kind), {})


def test_an_inner_value_with_an_inputs_new_name_is_renamed(run_plainly) -> None:
    model = model_of(("ids", "mask"))
    next(iter(model.graph)).outputs[0].name = "input_ids"
    name_inputs(model, {})
    result = run_plainly(model, {"input_ids": IDS, "attention_mask": MASK})["y"]
    np.testing.assert_array_equal(result, -(IDS + MASK).astype(np.float32))


def test_an_output_gets_the_name_that_the_task_reads(run_plainly) -> None:
    model = heads_of("o0")
    assert name_outputs(model, "text-classification") == ("logits",)
    x = np.array([[1, -2]], np.float32)
    np.testing.assert_array_equal(run_plainly(model, {"x": x})["logits"], np.abs(x))


def test_outputs_that_the_task_does_not_read_are_kept_behind_those_that_it_reads() -> None:
    model = heads_of("hidden", "logits", "attentions", shape=OF_TOKENS)
    assert name_outputs(model, "token-classification") == ("logits",)
    assert names_of(model.graph.outputs) == ["logits", "hidden", "attentions"]


def test_outputs_that_the_task_does_not_read_can_be_dropped() -> None:
    model = heads_of("hidden", "logits", shape=OF_TOKENS)
    name_outputs(model, "token-classification", keep_extra=False)
    assert names_of(model.graph.outputs) == ["logits"]


def test_the_first_output_is_taken_where_none_has_the_name() -> None:
    model = heads_of("o0", "o1", shape=OF_TOKENS)
    first = model.graph.outputs[0]
    name_outputs(model, "feature-extraction")
    assert names_of(model.graph.outputs) == ["last_hidden_state", "o1"]
    assert model.graph.outputs[0] is first


@pytest.mark.parametrize(
    ("names", "given", "order"),
    [
        (("end_logits", "start_logits"), {}, (1, 0)),
        (("end_logits:0", "start_logits:0"), {}, (1, 0)),
        (("output_end_logits", "output_start_logits"), {}, (1, 0)),
        (("endScores", "startScores"), {}, (1, 0)),
        (("END", "START"), {}, (1, 0)),
        (("Start", "End"), {}, (0, 1)),
        (("more", "end", "o2", "start"), {}, (3, 1)),
        (("o0", "start_logits"), {}, (1, 0)),
        (("a", "b"), {"start_logits": "b"}, (1, 0)),
        (("a", "end_logits", "b"), {"start_logits": "end_logits", "end_logits": "b"}, (1, 2)),
    ],
)
def test_question_answering_reads_two_outputs_in_order(names, given, order) -> None:
    model = heads_of(*names)
    outputs = list(model.graph.outputs)
    found = name_outputs(model, "question-answering", given, keep_extra=False)
    assert found == ("start_logits", "end_logits")
    assert list(model.graph.outputs) == [outputs[index] for index in order]
    assert names_of(model.graph.outputs) == ["start_logits", "end_logits"]


def columns_of(body: str, names: tuple[str, ...] = ("o0", "o1")) -> ir.Model:
    """Makes the outputs of columns 0 and 1 of the logits `x`."""
    outputs = ", ".join(f"float[batch, seq] {name}" for name in names)
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[batch, seq, 2] x) => ({outputs}) '
        "<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {-1}, "
        f"int64 first = {{0}}, int64 second = {{1}}> {{ {body} }}"
    )


COLUMNS = {
    "split": "a, b = Split <axis = -1, num_outputs = 2> (x) {0} = Squeeze (a, last) "
    "{1} = Squeeze (b, last)",
    # As TensorFlow unstacks them.
    "unstacked": "t = Transpose <perm = [2, 0, 1]> (x) "
    "a, b = Split <axis = 0, num_outputs = 2> (t) c = Identity (a) "
    "{0} = Squeeze (c, zero) {1} = Squeeze (b, zero)",
    "gathered": "{1} = Gather <axis = 2> (x, second) {0} = Gather <axis = 2> (x, first)",
    "sliced": "a = Slice (x, zero, one, last) b = Slice (x, one, two, last) "
    "{0} = Squeeze (a, last) {1} = Squeeze (b, last)",
    "constants-in-nodes": "i = Constant <value_int = 0> () j = Constant <value_int = 1> () "
    "{0} = Gather <axis = 2> (x, i) {1} = Gather <axis = 2> (x, j)",
}


@pytest.mark.parametrize("names", [("o0", "o1"), ("o1", "o0"), ("Identity", "Identity_1")])
@pytest.mark.parametrize("form", COLUMNS)
def test_columns_decide_where_names_do_not_say_which_logits_they_are(
    form, names, run_plainly
) -> None:
    model = columns_of(COLUMNS[form].format(*names), tuple(sorted(names)))
    name_outputs(model, "question-answering")
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    found = run_plainly(model, {"x": x})
    np.testing.assert_array_equal(found["start_logits"], x[..., 0])
    np.testing.assert_array_equal(found["end_logits"], x[..., 1])


@pytest.mark.parametrize(
    "model",
    [
        heads_of("o0", "o1"),
        # Two names with `start`.
        heads_of("start_index", "start_scores", "end_index", "end_scores"),
        columns_of("o0 = Gather <axis = 2> (x, second) o1 = Gather <axis = 2> (x, second)"),
        columns_of(
            "o0 = Gather <axis = 2> (x, first) y = Neg (x) o1 = Gather <axis = 2> (y, second)"
        ),
    ],
    ids=["no-columns", "twice", "same-column", "other-array"],
)
def test_outputs_that_nothing_tells_apart_are_asked_for(model) -> None:
    with pytest.raises(
        UserInputError, match="do not say which of them are start_logits, end_log"
    ) as caught:
        name_outputs(model, "question-answering")
    assert caught.value.argument == "output_names"


@pytest.mark.parametrize(
    ("task", "names", "taken"),
    [
        ("text-classification", ("pooled", "logits:0"), 1),
        ("text-classification", ("pooled", "output_logits"), 1),
        ("text-classification", ("o0", "o1"), 0),
        ("feature-extraction", ("pooler_output", "lastHiddenState"), 1),
    ],
)
def test_words_of_a_name_are_recognized(task, names, taken) -> None:
    model = heads_of(*names, shape=OF_TOKENS if task == "feature-extraction" else "batch, classes")
    expected = model.graph.outputs[taken]
    name_outputs(model, task)
    assert model.graph.outputs[0] is expected


def test_outputs_of_another_rank_or_type_are_not_taken_for_one_without_a_name() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[batch, classes] x) => '
        "(int64[batch, classes] o0, float[batch, 1, classes] o1, float[batch, classes] o2) "
        "<int64[1] one = {1}> { o0 = Cast <to = 7> (x) o1 = Unsqueeze (x, one) o2 = Neg (x) }"
    )
    expected = model.graph.outputs[2]
    name_outputs(model, "text-classification")
    assert model.graph.outputs[0] is expected


def test_a_given_output_takes_precedence_over_one_with_the_name() -> None:
    model = heads_of("logits", "scores")
    second = model.graph.outputs[1]
    name_outputs(model, "text-classification", {"logits": "scores"})
    assert names_of(model.graph.outputs) == ["logits", "logits.extra"]
    assert model.graph.outputs[0] is second


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logits": "nowhere"}, "maps 'logits' to 'nowhere', which is not .*outputs: a, b"),
        ({"scores": "a"}, "`output_names` maps 'scores', which is not .*: logits"),
        ({"a": "logits"}, "has 'a' and 'logits' in the wrong order.*: logits=a"),
    ],
    ids=["no-such-output", "not-of-the-task", "reversed"],
)
def test_names_of_outputs_that_do_not_fit_are_refused(given, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        name_outputs(heads_of("a", "b"), "text-classification", given)
    assert caught.value.argument == "output_names"


def test_one_output_cannot_be_given_twice() -> None:
    given = dict.fromkeys(("start_logits", "end_logits"), "a")
    with pytest.raises(UserInputError, match="several names to one of the graph's outputs"):
        name_outputs(heads_of("a", "b"), "question-answering", given)


def test_a_task_that_reads_more_outputs_than_there_are_is_refused() -> None:
    with pytest.raises(UserInputError, match=r"outputs o0, and task `question-answering` reads "):
        name_outputs(heads_of("o0"), "question-answering")


@pytest.mark.parametrize(
    ("task", "shape"),
    [("token-classification", "batch, classes"), ("text-classification", "batch, seq, classes")],
)
def test_an_output_with_the_rank_of_another_task_is_refused(task, shape) -> None:
    with pytest.raises(UserInputError, match=f"dimensions, and task `{task}` reads"):
        name_outputs(heads_of("logits", shape=shape), task)


@pytest.mark.parametrize("others", [(), ("token_embeddings",), ("token_embeddings", "more")])
def test_a_sentence_embedding_is_kept(others) -> None:
    model = heads_of("sentence_embedding", *others, shape=OF_TOKENS)
    found = name_outputs(model, "feature-extraction")
    states = ("last_hidden_state",) if others else ()
    assert found == (*states, "sentence_embedding")
    assert names_of(model.graph.outputs) == [*found, *others[1:]]


def test_an_inner_value_with_an_outputs_new_name_is_renamed(run_plainly) -> None:
    model = heads_of("o0")
    next(iter(model.graph)).outputs[0].name = "logits"
    name_outputs(model, "text-classification")
    x = np.array([[1, -2]], np.float32)
    np.testing.assert_array_equal(run_plainly(model, {"x": x})["logits"], np.abs(x))
