"""Rename the inputs and outputs of an existing ONNX model to transformers' names and types."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from qdqbert.common.errors import UserInputError
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.graphs.encoder.probe import INPUTS

_ALIASES = {
    "input_ids": ("input_ids", "ids", "tokens", "input.1", "input"),
    "attention_mask": ("attention_mask", "input_mask", "mask"),
    "token_type_ids": ("token_type_ids", "segment_ids", "type_ids"),
}
# Operators between a column of logits and the output that it is.
_KEEPS_VALUES = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
# Inputs that no tokenizer produces, by transformers' names.
_NOT_FROM_TOKENIZER = re.compile(r"position|head_mask|embeds|past|cache")


def task_outputs(task: str) -> tuple[str, ...]:
    """Return transformers' names of all outputs that a task can read."""
    kind = TASK_KINDS[task]
    return (*kind.outputs, EMBEDDING) if kind.vectors == "sentence" else kind.outputs


def name_inputs(model: ir.Model, given: Mapping[str, str]) -> tuple[str, ...]:
    """Rename the inputs to transformers' names, make each int64, and return the names in order.

    `given` maps transformers' names to those of the graph, where these are unusual.

    Raises:
        UserInputError: An input is unknown, or is not an integer tensor of two or three
            dimensions.
    """
    inputs = {value.name or "": value for value in model.graph.inputs}
    chosen = _choose_inputs(list(inputs), given)
    _rename_others((value for node in model.graph for value in node.outputs), dict.fromkeys(INPUTS))
    for name, role in chosen.items():
        _convert_to_int64(model.graph, inputs[name], name)
        inputs[name].name = role
    return tuple(role for role in INPUTS if role in chosen.values())


def _choose_inputs(inputs: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return transformers' name of each input of the graph, by the graph's name."""
    _check_given("input_names", given, roles=INPUTS, names=inputs, kind="inputs")
    chosen = {name: role for role, name in given.items()}
    for role, aliases in _ALIASES.items():
        known = [name for name in aliases if name in inputs and name not in chosen]
        if role not in chosen.values() and known:
            chosen[known[0]] = role
    unknown = sorted(set(inputs) - set(chosen))
    unsupported = [name for name in unknown if _NOT_FROM_TOKENIZER.search(name)]
    if unsupported or len(unknown) > len(INPUTS) - len(chosen):
        raise UserInputError(
            f"The graph reads {', '.join(unsupported or unknown)} in addition to "
            f"{', '.join(chosen)}; expected no more than {', '.join(INPUTS)}. Export it without."
        )
    if unknown or "input_ids" not in chosen.values():
        raise UserInputError(
            f"The meaning of the graph's inputs {', '.join(inputs)} cannot be inferred. Pass "
            "`input_names` with the names of input_ids, attention_mask and so on, for "
            f"{', '.join(unknown)}.",
            argument="input_names",
        )
    if "attention_mask" not in chosen.values():
        raise UserInputError(
            "The graph has no input for the attention mask, so [PAD] would be read as text. "
            "Export it with an attention mask."
        )
    return chosen


def _check_given(
    argument: str, given: Mapping[str, str], *, roles: tuple[str, ...], names: list[str], kind: str
) -> None:
    """Refuse a mapping of names that does not fit the graph."""
    for role, name in given.items():
        if role not in roles and name in roles and role in names:
            raise UserInputError(
                f"`{argument}` has {role!r} and {name!r} in the wrong order. transformers' name "
                f"comes first, then the graph's: {name}={role}.",
                argument=argument,
            )
        if role not in roles:
            raise UserInputError(
                f"`{argument}` maps {role!r}, which is not one of transformers' names for the "
                f"{kind} of this task: {', '.join(roles)}.",
                argument=argument,
            )
        if name not in names:
            raise UserInputError(
                f"`{argument}` maps {role!r} to {name!r}, which is not one of the graph's {kind}: "
                f"{', '.join(names)}.",
                argument=argument,
            )
    if len(set(given.values())) < len(given):
        pairs = ", ".join(f"{role}={name}" for role, name in given.items())
        raise UserInputError(
            f"`{argument}` maps several names to one of the graph's {kind}: {pairs}.",
            argument=argument,
        )


def _rename_others(values: Iterable[ir.Value], taken: Mapping[str, ir.Value | None]) -> None:
    """Rename values whose names inputs or outputs will get."""
    for value in values:
        name = value.name or ""
        if name in taken and taken[name] is not value:
            value.name = f"{name}.{'extra' if value.is_graph_output() else 'inner'}"


def _convert_to_int64(graph: ir.Graph, value: ir.Value, name: str) -> None:
    """Make an input int64, which the graph reads as int32 if it did before."""
    if value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        raise UserInputError(f"Input {name!r} is {value.dtype}; expected int64 or int32.")
    if value.shape is None or len(value.shape) not in (2, 3):
        raise UserInputError(
            f"Input {name!r} has shape {value.shape}; expected (batch, sequence). Export the graph "
            "with dynamic axes."
        )
    if value.dtype == ir.DataType.INT64:
        return
    cast = ir.node("Cast", [value], {"to": ir.DataType.INT32}, name=f"{name}.as_int32")
    for use in list(value.uses()):
        if use.node is not cast:
            use.node.replace_input_with(use.idx, cast.outputs[0])
    cast.outputs[0].name = f"{name}.int32"
    cast.outputs[0].shape, cast.outputs[0].dtype = value.shape, ir.DataType.INT32
    value.dtype = ir.DataType.INT64
    graph.insert_before(next(iter(graph)), cast)


def name_outputs(
    model: ir.Model, task: str, given: Mapping[str, str] | None = None, *, keep_extra: bool = True
) -> tuple[str, ...]:
    """Rename the outputs that a task reads to transformers' names, put them first, and return them.

    Outputs are recognized by transformers' names and by their words, such as those in
    `end_logits:0`. Otherwise the first one of the right rank is taken. Where a task reads two,
    their columns in the graph decide, as in all models of transformers. `given` maps transformers'
    names to those of the graph, where these are unusual. With `keep_extra`, outputs that the task
    does not read stay in the graph, under their own names.

    Raises:
        UserInputError: There are too few outputs, nothing says which of them are meant, `given`
            does not fit the graph, or the shape of an output does not fit the task.
    """
    chosen = _choose_outputs(model, task, given or {})
    main = chosen.get(task_outputs(task)[0])
    if main is not None and main.shape is not None:
        check_rank(f"Output {main.name!r}", len(main.shape), task)
    graph = model.graph
    kept = [*chosen.values()]
    if keep_extra:
        kept += [value for value in graph.outputs if value not in kept]
    inner = (value for node in graph for value in node.outputs)
    _rename_others([*inner, *graph.outputs], chosen)
    for name, value in chosen.items():
        value.name = name
    graph.outputs.clear()
    graph.outputs.extend(kept)
    return tuple(chosen)


def _choose_outputs(model: ir.Model, task: str, given: Mapping[str, str]) -> dict[str, ir.Value]:
    """Return the graph's output for each of transformers' names, in transformers' order."""
    outputs = {value.name or "": value for value in model.graph.outputs}
    roles, wanted = task_outputs(task), TASK_KINDS[task].outputs
    _check_given("output_names", given, roles=roles, names=list(outputs), kind="outputs")
    chosen = {role: outputs[name] for role, name in given.items()}
    for matches in (operator.eq, functools.partial(_says, roles=roles)):
        for role in roles:
            rest = {name: each for name, each in outputs.items() if each not in chosen.values()}
            found = [value for name, value in rest.items() if matches(name, role)]
            if role not in chosen and len(found) == 1:
                chosen[role] = found[0]
    missing = [name for name in wanted if name not in chosen]
    if missing and not (EMBEDDING in chosen and len(outputs) == 1):
        rest_of_them = [value for value in outputs.values() if value not in chosen.values()]
        fitting = [value for value in rest_of_them if _fits(value, task)] or rest_of_them
        if len(fitting) < len(missing):
            raise UserInputError(
                f"The graph has outputs {', '.join(outputs)}, and task `{task}` reads "
                f"{', '.join(wanted)}. Pass another `task`, or `output_names`.",
                argument="task",
            )
        if len(missing) > 1:
            fitting = _by_column(fitting, missing)
        chosen |= dict(zip(missing, fitting, strict=False))
    return {name: chosen[name] for name in roles if name in chosen}


def _says(name: str, role: str, roles: Collection[str]) -> bool:
    """Return whether an output's name has the words of one of transformers' names only.

    Words that all names of a task have, such as the `logits` of start and end, may be missing.
    """
    words, own = set(_words(name)), set(_words(role))
    others = [set(_words(each)) for each in roles if each != role]
    return own.difference(*others) <= words and not any((each - own) & words for each in others)


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]


def _fits(value: ir.Value, task: str) -> bool:
    """Return whether an output has the type and the number of dimensions that a task reads."""
    is_float = value.dtype is None or value.dtype.is_floating_point()
    return is_float and (value.shape is None or len(value.shape) == TASK_KINDS[task].rank)


def _by_column(values: Sequence[ir.Value], roles: Sequence[str]) -> list[ir.Value]:
    """Return outputs in the order of the columns that they are of one array.

    Raises:
        UserInputError: They are something else, or there are more of them than of transformers'
            names.
    """
    places = {value: _column_of(value) for value in values}
    sources = {None if place is None else place[0] for place in places.values()}
    columns = {None if place is None else place[1] for place in places.values()}
    if len(sources) == 1 and columns == set(range(len(roles))) and len(values) == len(roles):
        return sorted(values, key=lambda value: (places[value] or (None, 0))[1])
    names = [str(value.name) for value in values]
    example = ", ".join(f"{role}={name}" for role, name in zip(roles, names, strict=False))
    raise UserInputError(
        f"The names of the graph's outputs {', '.join(names)} do not say which of them are "
        f"{', '.join(roles)}. Pass `output_names` with the name of each, such as {example}.",
        argument="output_names",
    )


def _column_of(value: ir.Value) -> tuple[ir.Value, int] | None:
    """Return the array that a value is a column of, and the column; `None` if it is none."""
    node = value.producer()
    while node is not None and node.op_type in _KEEPS_VALUES and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Split":
        return node.inputs[0], node.outputs.index(value)
    if node.op_type not in ("Gather", "Slice") or (start := node.inputs[1]) is None:
        return None
    column = ir.convenience.get_const_tensor(start)
    if column is None or column.size != 1:
        return None
    return node.inputs[0], int(column.numpy().item())


def check_rank(subject: str, rank: int, task: str, *, is_pooled: bool = False) -> None:
    """Refuse an output with another number of dimensions than a task reads.

    `subject` is the output as messages name it. One that `is_pooled` has one vector per text,
    whatever the task.

    Raises:
        UserInputError: The number is another one.
    """
    expected = 2 if is_pooled else TASK_KINDS[task].rank
    if rank != expected:
        raise UserInputError(
            f"{subject} has {rank} dimensions, and task `{task}` reads {expected}: one vector per "
            f"{'token' if expected == 3 else 'text'}. Pass another `task`, or `output_names` if "
            "another output is meant.",
            argument="task",
        )
