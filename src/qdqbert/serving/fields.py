"""Fields of requests that several protocols have, under their names.

A field that would change the answer is served, or refused with status 422. Other fields of a
protocol, such as `user`, are ignored, and so are fields that no protocol has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator
from pydantic_core import PydanticCustomError

from qdqbert.serving.limits import BadRequestError
from qdqbert.tasks.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS

# Kinds of texts in the services of Cohere, Voyage, NVIDIA and Jina, and the prompts of each.
_KINDS = (
    ("query", "search_query", *QUERY_PROMPTS),
    ("document", "search_document", "passage", *DOCUMENT_PROMPTS),
)


class Body(BaseModel):
    """A body of a request.

    Attributes:
        renamed: Other names of fields, by these names.
        refused: Fields that are not served, with the values that change nothing.
    """

    renamed: ClassVar[Mapping[str, str]] = {}
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """Give fields their names, and refuse those that are not served."""
        if not isinstance(values, dict) or values.keys() <= cls.model_fields.keys():
            return values
        for name, value in values.items():
            if value is not None and value not in cls.refused.get(name, (value,)):
                raise PydanticCustomError(
                    "refused",
                    "`{name}`={value} would change the answer, and is not served; leave it out",
                    {"name": name, "value": repr(value)[:80]},
                )
        found = {name: value for name, value in values.items() if name not in cls.renamed}
        for name, value in values.items():
            new = cls.renamed.get(name)
            if new is None or value is None:
                continue
            if found.get(new) not in (None, value):
                raise PydanticCustomError(
                    "twice",
                    "`{name}` and `{new}` are names of one field, and have different values",
                    {"name": name, "new": new},
                )
            found[new] = value
        return found


def check_tokens(model: Any, **limits: int | None) -> None:
    """Refuse limits in tokens that would cut inputs shorter than the model does.

    Args:
        model: The model.
        limits: The limits by the names of their fields; `None` and -1 for the model's own.

    Raises:
        BadRequestError: One is lower.
    """
    for name, limit in limits.items():
        if limit not in (None, -1) and limit < model.max_length:
            raise BadRequestError(
                422,
                f"`{name}`={limit} is not served: inputs are cut at the model's own "
                f"{model.max_length} tokens. Leave it out.",
                "Validation",
            )


def kind_options(
    model: Any, *, prompt_name: str | None, input_type: str | None, task: str | None
) -> dict[str, Any]:
    """Return the arguments of a job that puts the prompt of a kind of texts before them.

    A kind has the prompt of its name, or one with the same meaning. Queries or documents of a model
    that has no prompt for them get none, as in `encode_query` of sentence-transformers. Kinds mean
    nothing to a model without prompts.

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
            422,
            "`prompt_name`, `input_type` and `task` choose different prompts. Send one of them.",
            "Validation",
        )
    return found[0] if found else {}


def _prompt(prompts: Mapping[str, str], field: str, kind: str) -> dict[str, Any]:
    for name in (kind, kind.rpartition(".")[2]):
        if name in prompts:
            return {"prompt_name": name}
        for names in _KINDS:
            if name in names:
                own = next((each for each in names if each in prompts), None)
                return {"prompt": ""} if own is None else {"prompt_name": own}
    if not prompts:
        return {}
    raise BadRequestError(
        422,
        f"`{field}`={kind!r:.80}: the model has no such prompt. It has: {', '.join(prompts)}.",
        "Validation",
    )


def _adapter(model: Any, kind: str | None) -> str | None:
    """Return the adapter of queries or documents: "retrieval.query" of jina-embeddings-v3."""
    if kind is None:
        return None
    for names in _KINDS:
        if kind in names:
            own = (each for each in model.adapters if each.rpartition(".")[2] in names)
            return next(own, f"retrieval.{names[-1]}")
    return kind
