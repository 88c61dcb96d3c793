"""Fields of requests that several protocols have, under their names.

A field that would change the answer is served, or refused with status 422, and so are fields that
contradict each other. Other fields of a protocol, such as `user`, are ignored, and so are fields
that no protocol has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from qdqbert.encoders.checkpoint.model_settings import Kind
from qdqbert.serving.limits import BadRequestError
from qdqbert.tasks.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS

# Kinds of texts, and their names in the services of Cohere, Voyage, NVIDIA and Jina.
_KINDS: Mapping[Kind, tuple[str, ...]] = {
    "query": ("search_query", *QUERY_PROMPTS),
    "document": ("search_document", *DOCUMENT_PROMPTS),
}


Renamed = Mapping[str, str | Mapping[Any, Mapping[str, Any]]]
Refused = Mapping[str, tuple[Any, ...]]
Texts = Annotated[list[str], Field(min_length=1)]

# Fields of vLLM about chats, images and models of fixed length.
VLLM_REFUSED: Refused = {
    **dict.fromkeys(("mm_processor_kwargs", "media_io_kwargs", "chat_template_kwargs"), ({},)),
    **dict.fromkeys(("chat_template", "instruction"), ()),
    "padding": ("do_not_pad",),
}


class Body(BaseModel):
    """A body of a request, or a part of one. `null` stands for a field that is left out.

    Attributes:
        renamed: Other names of fields, by these names. Each is the field, where `parameters.NAME`
            is one of `parameters`, or the fields that each value stands for.
        refused: Fields that are not served, with the values that change nothing.
    """

    renamed: ClassVar[Renamed] = {}
    refused: ClassVar[Refused] = {}

    @classmethod
    def unknown(cls, names: Iterable[str]) -> set[str]:
        """Return the names that are no fields."""
        return set(names) - cls.model_fields.keys() - cls.renamed.keys() - cls.refused.keys()

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """Give fields their names, and refuse those that are not served."""
        if not isinstance(values, dict) or (
            values.keys() <= cls.model_fields.keys()
            and values.keys().isdisjoint(cls.renamed)
            and None not in values.values()
        ):
            return values
        found: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for given, value in values.items():
            for name, each in cls._meant(given, value).items():
                # NaN, which Python's JSON has, differs from itself.
                if name in found and found[name] != each:
                    raise _contradiction(given, sources[name])
                found.setdefault(name, each)
                sources.setdefault(name, given)
        for name in [name for name in found if "." in name and name in cls.renamed.values()]:
            outer, _, inner = name.partition(".")
            value, held = found.pop(name), found.get(outer, {})
            # Others are refused as they are.
            if isinstance(held, dict):
                if held.get(inner) not in (None, value):
                    raise _contradiction(sources[name], name)
                found[outer] = {**held, inner: value}
        return found

    @classmethod
    def _meant(cls, name: str, value: Any) -> Mapping[str, Any]:
        """Return the fields that a field of a request stands for."""
        if value is None:
            return {}
        if name in cls.refused and _without_nulls(value) not in cls.refused[name]:
            raise PydanticCustomError(
                "refused",
                "`{name}`={value} would change the answer, and is not served; leave it out",
                {"name": name, "value": repr(value)[:80]},
            )
        new = cls.renamed.get(name, name)
        if isinstance(new, str):
            return {new: value}
        for each, fields in new.items():
            if each == value:
                return fields
        if name in cls.model_fields:
            return {name: value}
        raise PydanticCustomError(
            "choice",
            "`{name}`: expected one of {choices}",
            {"name": name, "choices": ", ".join(map(json.dumps, new))},
        )


class NamesModel(Body):
    """The field that names a model."""

    model: str | None = Field(
        None, description="Name of the model. Any name will do if the server has a single model."
    )


def in_parameters(kind: type[Body]) -> Renamed:
    """Return the fields of `parameters`, for bodies that read them beside it, too."""
    names = (*kind.model_fields, *kind.renamed, *kind.refused)
    return {name: f"parameters.{name}" for name in names if name != "parameters"}


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if each is not None}


def _contradiction(*names: str) -> PydanticCustomError:
    return PydanticCustomError(
        "contradiction",
        "{names} contradict each other; leave one of them out",
        {"names": " and ".join(f"`{each}`" for each in names)},
    )


class Truncation(Body):
    """Fields about inputs that are too long."""

    renamed: ClassVar[Renamed] = {
        "truncation": "truncate",
        "truncation_side": "truncation_direction",
        "truncation_direction": {
            each: {"truncation_direction": each.lower()} for each in ("Left", "Right")
        },
    }

    truncate: bool | None = Field(
        None, description="Cut inputs that are too long, as by default. `false` refuses them."
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = Field(
        None, description="The end of inputs that is cut off. By default, the tokenizer decides."
    )

    @property
    def cutting(self) -> dict[str, Any]:
        """How inputs that are too long are treated; see `Served.run`."""
        return {"truncate": self.truncate, "side": self.truncation_direction}


def check_tokens(model: Any, **limits: int | None) -> None:
    """Refuse limits in tokens that would cut inputs shorter than the model does.

    `limits` are by the names of their fields; `None` and -1 are the model's own.
    """
    for name, limit in limits.items():
        if limit not in (None, -1) and limit < model.max_length:
            raise BadRequestError(
                f"`{name}`={limit} is not served: inputs are cut at the model's own "
                f"{model.max_length} tokens. Leave it out."
            )


def kind_options(
    model: Any, *, prompt_name: str | None, input_type: str | None, task: str | None
) -> dict[str, Any]:
    """Return the arguments of a job that puts the prompt of a kind of texts before them.

    A kind has the prompt of its name. Others for queries or documents, such as "search_document",
    have that of `encode_query` or `encode_document`, which is none if the model has no prompt of
    the name "query" or "document". Kinds mean nothing to a model without prompts.

    Args:
        model: An embedder.
        prompt_name: Name of a prompt.
        input_type: Kind of texts as Cohere, Voyage and NVIDIA name it: "search_query".
        task: The same as Jina names it, "retrieval.query"; or an adapter of the model.

    Raises:
        BadRequestError: The model has no such prompt, or two fields name different ones.
    """
    if model.adapters:
        return {"task": task or _adapter(model, input_type), "prompt_name": prompt_name}
    found = [{"prompt_name": prompt_name}] if prompt_name is not None else []
    for name, value in (("input_type", input_type), ("task", task)):
        if value is not None:
            found.append(_prompt(model.prompts, name, value))
    if any(each != found[0] for each in found):
        raise BadRequestError(
            "`prompt_name`, `input_type` and `task` choose different prompts. Send one of them."
        )
    return found[0] if found else {}


def _prompt(prompts: Mapping[str, str], field: str, kind: str) -> dict[str, Any]:
    for name in (kind, kind.rpartition(".")[2]):
        if name in prompts:
            return {"prompt_name": name}
        for own, names in _KINDS.items():
            if name in names:
                return {"prompt_name": own} if own in prompts else {"prompt": ""}
    if not prompts:
        return {}
    raise BadRequestError(
        f"`{field}`={kind!r:.80}: the model has no such prompt. It has: {', '.join(prompts)}."
    )


def _adapter(model: Any, kind: str | None) -> str | None:
    """Return the adapter of queries or documents: "retrieval.query" of jina-embeddings-v3."""
    if kind is None:
        return None
    for names in _KINDS.values():
        if kind in names:
            own = (each for each in model.adapters if each.rpartition(".")[2] in names)
            return next(own, f"retrieval.{names[-1]}")
    return kind
