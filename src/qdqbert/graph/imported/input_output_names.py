"""Gives a ready graph the inputs and outputs that transformers' models have, by name and type."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

from qdqbert.errors import UserInputError
from qdqbert.graph.export import OF_TOKENS, OUTPUTS, SENTENCE_EMBEDDING

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_ALIASES = {
    "input_ids": ("input_ids", "ids", "tokens", "input.1", "input"),
    "attention_mask": ("attention_mask", "input_mask", "mask"),
    "token_type_ids": ("token_type_ids", "segment_ids", "type_ids"),
}
_UNMADE = re.compile(r"position|head_mask|embeds|past|cache")
# What no tokenizer makes, by transformers' names.


def name_inputs(model: ir.Model, given: Mapping[str, str]) -> tuple[str, ...]:
    """Renames inputs to transformers' names and makes each int64; returns the names, in its order.

    Args:
        model: Changed in place.
        given: Names of the graph's inputs by transformers' name, for those that cannot be guessed.

    Raises:
        UserInputError: An input is not known, is no integer, or has a fixed shape.
    """
    inputs = {value.name or "": value for value in model.graph.inputs}
    for role, name in given.items():
        if role not in INPUTS or name not in inputs:
            raise UserInputError(
                f"`--input-names {role}={name}`: expected one of {', '.join(INPUTS)}, then one of "
                f"the graph's inputs: {', '.join(inputs)}."
            )
    if len(set(given.values())) < len(given):
        raise UserInputError(
            f"`--input-names` gives one input of the graph two meanings: "
            f"{', '.join(f'{role}={name}' for role, name in given.items())}."
        )
    chosen = {name: role for role, name in given.items()}
    for role, aliases in _ALIASES.items():
        known = [name for name in aliases if name in inputs and name not in chosen]
        if role not in chosen.values() and known:
            chosen[known[0]] = role
    unknown = sorted(set(inputs) - set(chosen))
    unmade = [name for name in unknown if _UNMADE.search(name)]
    if unmade or len(unknown) > len(INPUTS) - len(chosen):
        raise UserInputError(
            f"The graph reads {', '.join(unmade or unknown)} beside {', '.join(chosen)}; expected "
            f"no more than {', '.join(INPUTS)}. Export it without."
        )
    if unknown or "input_ids" not in chosen.values():
        raise UserInputError(
            f"Inputs {', '.join(inputs)} of the graph cannot all be told; pass "
            f"`--input-names input_ids=NAME --input-names attention_mask=NAME ...` for "
            f"{', '.join(unknown)}."
        )
    if "attention_mask" not in chosen.values():
        raise UserInputError(
            "The graph has no input for the attention mask, without which [PAD] is read as text. "
            "Export it with one."
        )
    for value in (value for node in model.graph for value in node.outputs):
        if value.name in INPUTS:
            value.name = f"{value.name}.inner"
    for name, role in chosen.items():
        _check_shape(inputs[name], name)
        _as_int64(model.graph, inputs[name], name)
        inputs[name].name = role
    return tuple(role for role in INPUTS if role in chosen.values())


def _check_shape(value: ir.Value, name: str) -> None:
    if value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        raise UserInputError(f"Input {name!r} is {value.dtype}; expected int64 or int32.")
    dims = [] if value.shape is None else list(value.shape)
    if len(dims) not in (2, 3) or any(isinstance(dim, int) for dim in dims):
        raise UserInputError(
            f"Input {name!r} has shape {value.shape}; expected (batch, sequence), both dynamic. "
            "Export the graph with dynamic axes."
        )


def _as_int64(graph: ir.Graph, value: ir.Value, name: str) -> None:
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


def name_outputs(model: ir.Model, task: str) -> tuple[str, ...]:
    """Renames outputs to what the task reads, drops others; returns the names, in order.

    Raises:
        UserInputError: There are too few, or their shape is another task's.
    """
    graph = model.graph
    wanted = OUTPUTS.get(task, ("logits",))
    there = {value.name: value for value in graph.outputs}
    pooled = there.get(SENTENCE_EMBEDDING) if task == "feature-extraction" else None
    rest = [value for value in graph.outputs if value is not pooled]
    chosen = [there[name] for name in wanted if name in there]
    if len(chosen) < len(wanted):
        chosen = rest[: len(wanted)]
    if pooled is not None and not chosen:  # it is all that is needed
        return (SENTENCE_EMBEDDING,)
    if len(chosen) < len(wanted):
        raise UserInputError(
            f"the graph has outputs {', '.join(map(str, there))}; task `{task}` reads "
            f"{', '.join(wanted)}. Pass another `--task`."
        )
    final = [*zip(chosen, wanted, strict=True)]
    if pooled is not None:
        final.append((pooled, SENTENCE_EMBEDDING))
    shape, rank = chosen[0].shape, 3 if task in OF_TOKENS else 2
    if shape is not None and len(shape) != rank:
        raise UserInputError(
            f"the output {chosen[0].name} has {len(shape)} dimensions, and task `{task}` reads "
            f"{rank}: a number for each {'token' if rank == 3 else 'text'}. Pass another `--task`."
        )
    kept = {id(value) for value, _ in final}
    for value in list(graph.outputs):
        if id(value) not in kept:
            graph.outputs.remove(value)
    taken = {value.name: value for node in graph for value in node.outputs}
    for value, name in final:
        other = taken.get(name)
        if other is not None and other is not value:
            other.name = f"{name}.inner"
        value.name = name
    order = {id(value): index for index, (value, _) in enumerate(final)}
    outputs = sorted(graph.outputs, key=lambda value: order[id(value)])
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    return tuple(name for _, name in final)
