"""Ranking documents by how well they answer a query. The model has one output, the score of a pair.

A row has a query, a document and its relevance. Rows of one query make a group: rows with equal
values in a column `query_id`, or with equal queries if there is no such column. If no query has
several documents, the rows are single labelled pairs. The model has the interface of
sentence-transformers' `CrossEncoder`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.common.objects import Rows
from qdqbert.data.rows.columns import Row, is_number
from qdqbert.data.rows.data import Columns, Dataset, Example, open_table, read_table
from qdqbert.data.rows.lines import counted
from qdqbert.encoders.checkpoint.cross_encoder import Activation
from qdqbert.runtime.rows import SCORE, RowFormat, always
from qdqbert.tasks.logits import apply, logit_predictions, score_answers, score_of_pairs
from qdqbert.tasks.ranked import check_ranking, ranked
from qdqbert.tasks.ranking_metrics import auc, average_precision, ndcg, rank, reciprocal_rank
from qdqbert.tasks.scores import extreme_numbers, score_of
from qdqbert.tasks.task import (
    Answer,
    Decisions,
    Features,
    Outcome,
    Score,
    Task,
    Tokenization,
    mean_score,
)
from qdqbert.tasks.text_classification import TextClassifier
from qdqbert.tasks.texts import checking, encode_texts, require_pairs

# Names of the column that groups rows.
_ID_COLUMNS = ("query_id", "query-id", "qid", "topic")
# Ranks that nDCG looks at.
_K = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankingExample(Example):
    """A query, a document and its relevance.

    Attributes:
        group: Key of the rows of one query: its id, or its text.
    """

    group: str


def read_rankings(data: str | Rows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read queries with documents and their relevance; see `read_dataset`."""
    table = open_table(data, columns)
    column = next((name for name in table.names if name.strip().lower() in _ID_COLUMNS), None)
    ids: dict[int, str] = {}
    if column is not None:
        table.rows = _recorded(table.rows, column, ids)
    dataset = read_table(table, columns, max_examples=max_examples)
    require_pairs(dataset, "reranking")
    examples = tuple(
        RankingExample(
            text=each.text,
            text_pair=each.text_pair,
            label=each.label,
            row=each.row,
            group=ids.get(each.row, each.text),
        )
        for each in dataset.examples
    )
    return dataclasses.replace(dataset, examples=examples)


def _recorded(rows: Iterator[Row], column: str, values: dict[int, str]) -> Iterator[Row]:
    """Yield rows, and record the value of a column by the number of the row."""
    for number, fields in rows:
        values[number] = str(fields.get(column))
        yield number, fields


def _encode(examples: Sequence[Any], how: Tokenization) -> Features:
    """Make one feature of each pair, and count the queries that cannot be scored."""
    features = encode_texts(examples, how)
    groups = _groups(examples)
    if len(groups) == len(examples) or not all(is_number(example.label) for example in examples):
        return features
    unscored = sum(all(score_of(examples[index]) <= 0 for index in each) for each in groups)
    verbs = ("has", "is") if unscored == 1 else ("have", "are")
    notice = (
        f"{unscored} of {counted(len(groups), 'query')} {verbs[0]} no relevant document and "
        f"{verbs[1]} not scored."
    )
    notices = (*features.notices, notice) if unscored else features.notices
    return dataclasses.replace(features, notices=notices)


def _groups(examples: Sequence[Any]) -> list[list[int]]:
    """Return the indices of the documents of each query."""
    groups: dict[Hashable, list[int]] = {}
    for index, example in enumerate(examples):
        # Plain texts, which models can be calibrated on, have no group.
        groups.setdefault(getattr(example, "group", index), []).append(index)
    return list(groups.values())


def _check_metrics(dataset: Dataset, _: Mapping[int, str]) -> None:
    are_relevant = {score_of(example) > 0 for example in dataset.examples}
    if len(are_relevant) == 1:
        kind = "relevant" if are_relevant == {True} else "not relevant"
        raise DataFileError(
            f"All documents of `{dataset.path}` are {kind}: expected relevant ones, with a number "
            "above 0, and others. Add rows, or name another column with `label_column`.",
            argument="label_column",
        )


def _scores(outcome: Outcome) -> list[Score]:
    """Return the means of MRR, nDCG and MAP over queries; the AUC of single pairs."""
    scores = np.concatenate(outcome.predictions)
    relevance = np.array([score_of(example) for example in outcome.examples])
    groups = _groups(outcome.examples)
    if len(groups) == len(scores):
        return [score_of_pairs("auc", scores, relevance > 0, _auc_percent, extreme_numbers)]
    answered = [index for index, each in enumerate(groups) if relevance[each].max() > 0]
    ranked = [rank(scores[groups[index]], relevance[groups[index]]) for index in answered]
    values = {
        "mrr": [reciprocal_rank(each) for each in ranked],
        f"ndcg@{_K}": [ndcg(each, k=_K) for each in ranked],
        "map": [average_precision(each) for each in ranked],
    }
    return [mean_score(name, each, answered) for name, each in values.items()]


def _auc_percent(scores: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
    return 100 * auc(scores, labels, weights)


def _decisions(outcome: Outcome) -> Decisions | None:
    """Return the best document of each query that has several; `None` if none has."""
    scores, groups = np.concatenate(outcome.predictions), _groups(outcome.examples)
    if len(groups) == len(scores):
        return None
    # The best one of one document is no decision.
    return [(each[int(scores[each].argmax())],) if len(each) > 1 else () for each in groups]


def _answers(outcome: Outcome) -> list[Answer]:
    """Return the score of each document, and the best one of each query that has several."""
    scores = np.concatenate(outcome.predictions).astype(np.float64)
    groups = _groups(outcome.examples)
    if len(groups) == len(scores):
        return score_answers(outcome, scores, "score")
    answers = []
    for each in groups:
        examples = [outcome.examples[index] for index in each]
        found, best = scores[each], int(scores[each].argmax())
        answers.append(
            Answer(
                given={
                    "rows": [example.row for example in examples],
                    "query": examples[0].text,
                    "documents": [example.text_pair for example in examples],
                    "labels": [example.label for example in examples],
                },
                found={"prediction": examples[best].text_pair, "scores": found.tolist()},
                numbers=found,
            )
        )
    return answers


class Reranker(TextClassifier):
    """Scores how well documents answer a query, or otherwise compares two texts."""

    rows = RowFormat(
        name="a reranker",
        pair="required",
        options=("prompt", "prompt_name"),
        columns=always(SCORE),
        job=lambda model, options: model.scoring_job(
            prompt=options.prompt, prompt_name=options.prompt_name
        ),
        values=lambda answer, _: (float(answer[0]),),
    )

    @property
    def facts(self) -> dict[str, Any]:
        """How a pair becomes a score: `activation`, `prompt` and `template`; see `Model.facts`.

        `template` is whether pairs are put into a chat template.
        """
        has_template = self._loaded.tokenizer.template is not None
        prompt = self.default_prompt
        return {"activation": self.activation, "prompt": prompt, "template": has_template}

    @suggest_keywords
    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        activation: Activation | None = None,
        activation_fn: Any = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
    ) -> list[dict[str, Any]]:
        """Sort documents by how well they answer a query, as `CrossEncoder.rank` does.

        Args:
            query: The query.
            documents: The documents.
            top_k: Number of documents to return; `None` for all.
            return_documents: Whether the result contains the texts.
            prompt_name: Name of the prompt that is put before the query; see `predict`.
            prompt: Text that is put before the query, instead of a named prompt.
            batch_size: Has no effect; see `predict`.
            show_progress_bar: Whether to show a bar on stderr.
            activation: Function from logits to scores; see `predict`.
            activation_fn: The same; see `predict`.
            convert_to_numpy: Has no effect. Scores are numbers of Python, which JSON has.
            convert_to_tensor: Has no effect, either.
            device: Has no effect; see `predict`.

        Returns:
            For each document, best first, its index as `corpus_id`, its `score` and, if
            requested, its `text`. Documents whose scores round to the same number are in the
            order of their logits.

        Raises:
            UserInputError: The model has several outputs, `query` is not a text, or `documents`
                is not a list of texts.

        Example:
            >>> documents = ["The music was good.", "The river is near the house."]
            >>> [each["corpus_id"] for each in model.rank("where is the river", documents)]
            [1, 0]
        """
        if self.num_labels != 1:
            raise UserInputError(
                f"`rank` needs a model with one output, and {self.name!r} has "
                f"{self.num_labels}. Use `predict`."
            )
        texts = check_ranking(query, documents, top_k)
        pairs = [(query, each) for each in texts]
        logits = self.predict(
            pairs,
            prompt_name=prompt_name,
            prompt=prompt,
            activation="none",
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            device=device,
        )
        function = self._chosen(activation, activation_fn)
        scores = apply(function, logits[:, None])[:, 0]
        del convert_to_numpy, convert_to_tensor
        return ranked(texts, logits, scores, top_k=top_k, return_documents=return_documents)


RERANKING = Task(
    name="reranking",
    read=read_rankings,
    encode=_encode,
    check_labels=checking(lambda each, _: score_of(each)),
    check_metrics=_check_metrics,
    predictions=logit_predictions,
    scores=_scores,
    decided="query",
    decisions=_decisions,
    labels=lambda features, _: [{"labels": score_of(each)} for each in features.examples],
    answers=_answers,
    class_names=lambda dataset: ["score"],
    model=Reranker,
    queries=_groups,
)
