"""Describe a checkpoint of a local folder or the hub, without its weights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from qdqbert.common.choices import POOLING_MODES, PoolingMode
from qdqbert.common.errors import CheckpointError, UserInputError, showing
from qdqbert.common.file_names import CONFIG, TOKENIZER
from qdqbert.data.tokenizing.pair_template import PairTemplate
from qdqbert.data.tokenizing.tokenizer_files import check_end, no_tokenizer
from qdqbert.encoders.adapters import check_adapter
from qdqbert.encoders.checkpoint.base_model import completed_folder, encoder_reader
from qdqbert.encoders.checkpoint.calls import call, files_of, finder_of
from qdqbert.encoders.checkpoint.configuration import register_config
from qdqbert.encoders.checkpoint.cross_encoder import (
    CrossEncoderFiles,
    ScoreHead,
    generator_head,
    task_of_files,
    used_files,
)
from qdqbert.encoders.checkpoint.folder import check_name, read_known_config, refuse_old_pickles
from qdqbert.encoders.checkpoint.gliclass import LabelHead, label_head
from qdqbert.encoders.checkpoint.hub import download_weights
from qdqbert.encoders.checkpoint.layout import (
    pair_template_of,
    prompt_notices,
    refuse_skipped_prompts,
)
from qdqbert.encoders.checkpoint.multi_vector import MultiVectorHead
from qdqbert.encoders.checkpoint.own_layers import GLICLASS, OwnLayers, SpanHead
from qdqbert.encoders.checkpoint.sentence import MODEL2VEC, SentenceHead
from qdqbert.encoders.checkpoint.text_heads import TextHead, own_head, read_layout
from qdqbert.encoders.checkpoint.tokenizer import LoadedTokenizer, load_tokenizer
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import quantized_family
from qdqbert.encoders.family import Family
from qdqbert.encoders.model import Head, Step
from qdqbert.encoders.relative_limit import reading
from qdqbert.encoders.task_kinds import (
    ENCODER,
    TASK_KINDS,
    TASK_NAMES,
    TaskName,
    architectures_of,
    check_classes,
    head_of,
    tasks_of,
    unknown_task,
)

# Tasks whose heads are all called `classifier`.
_CLASSIFIERS = {name for name, kind in TASK_KINDS.items() if kind.has_classes or kind.has_choices}
# The library `tokenizers` takes no larger limit.
_LONGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """What is known of a model next to its weights or its graph.

    Attributes:
        model_type: transformers' name of its family; `None` if it is not known.
        config: Its config of transformers, or as much of one as a graph shows.
        head: The modules of sentence-transformers after the model, if they are known.
        cross_encoder: Files of a cross-encoder of sentence-transformers; `None` for other models.
        pair_template: The text around the two texts of a pair; `None` if they are read as they are.
        max_length: Longest input in tokens.
        input_names: Its inputs, out of `input_ids`, `attention_mask`, `token_type_ids`.
    """

    model_type: str | None
    config: Any
    tokenizer: Any
    head: TextHead | None = None
    cross_encoder: CrossEncoderFiles | None
    pair_template: PairTemplate | None = None
    max_length: int
    input_names: tuple[str, ...]
    notices: tuple[str, ...]

    def described(self) -> dict[str, Any]:
        """Return these attributes, for another class that has them."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(Described)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description(Described):
    """A checkpoint without its weights: config, tokenizer and settings.

    Attributes:
        name: Folder or hub id, as the user gave it.
        subfolder: Folder of the encoder in it; empty for its root.
        adapter: Adapter that is merged into the weights; `None` for none.
    """

    name: str
    subfolder: str
    task: TaskName
    family: Family
    adapter: str | None

    @property
    def head_steps(self) -> tuple[Step, ...]:
        """Steps of the `head` besides pooling; none without a head."""
        return () if self.head is None else self.head.steps(finder_of(self.name))

    @property
    def token_heads(self) -> tuple[Head, ...]:
        """Heads of the `head` on the states of tokens; none without a head."""
        return () if self.head is None else self.head.token_heads(finder_of(self.name))

    def weights_folder(self) -> Path:
        """Return the folder of the encoder's weights. Those on the hub are downloaded."""
        folder = Path(self.name)
        if not folder.is_dir():
            folder = download_weights(self.name, [self.subfolder])
            refuse_old_pickles(folder / self.subfolder, self.name)
        return folder / self.subfolder

    @contextlib.contextmanager
    def reading_weights(self) -> Iterator[Path]:
        """Yield `weights_folder`. Errors of the block name it as the user does."""
        folder = self.weights_folder()
        with showing(str(Path(self.name, self.subfolder)), folder):
            yield folder

    @property
    def model_task(self) -> TaskName:
        """The task of transformers' model: the encoder alone if modules make the scores."""
        return ENCODER if isinstance(self.head, ScoreHead) else self.task

    @property
    def graph_task(self) -> TaskName:
        """The task of the graph: the encoder alone if layers outside of it score labels."""
        is_outside = isinstance(self.head, OwnLayers) and TASK_KINDS[self.task].names_labels
        return ENCODER if is_outside else self.task

    @property
    def unattended_id(self) -> int | None:
        """Id of the token that expands queries; see `EncoderModel.expansion_id`."""
        if not isinstance(self.head, MultiVectorHead):
            return None
        return self.head.rules.unattended_id(
            self.tokenizer.special_tokens_map.get, self.tokenizer.backend_tokenizer.token_to_id
        )


def describe_checkpoint(
    name: str,
    *,
    task: str | None = None,
    pooling: str | None = None,
    adapter: str | None = None,
    new_head: Sequence[str] | None = None,
) -> Description:
    """Load the tokenizer and the settings of a checkpoint.

    Args:
        name: A local folder or a hub id.
        task: A task name of transformers. If `None`, it is inferred: from the files of
            sentence-transformers, or else from the config's `architectures`.
        pooling: How an embedder's token states become one vector; `None` for the checkpoint's own
            pooling.
        adapter: Adapter that is merged into the weights, by its name.
        new_head: Classes of a head that is created for training if the checkpoint has none; empty
            for heads without classes. `None` refuses the head of another task.

    Raises:
        CheckpointError: The checkpoint does not exist, has no weights or no tokenizer, or its
            family is unknown.
        UserInputError: The task is unknown or not supported, or `pooling` cannot be used.
    """
    check_name(name)
    stored, config, contradiction = _read_configs(name, task)
    check_adapter(Config(values=config.to_dict()), adapter, name)
    subfolder = stored.subfolder if stored else ""
    family = quantized_family(config.model_type)
    chosen = _choose_task(task, config, stored)
    if isinstance(stored, LabelHead) and chosen != stored.task:
        raise UserInputError(
            f"`task={task!r}`: {name!r} is a checkpoint of gliclass, for `{stored.task}`. Leave it "
            "out.",
            argument="task",
        )
    head, head_notices = _choose_head(name, stored, chosen, pooling)
    cross_encoder, pair_notices = used_files(stored, Config(values=config.to_dict()), chosen)
    _check_config(config, chosen, family)
    if new_head is None:
        _check_other_heads(name, config, head_of(chosen))
    elif new_head and head_of(chosen) not in tasks_of(config):
        set_classes_(config, dict(enumerate(new_head)))
    check_classes(chosen, config.id2label, where=str(Path(name) / subfolder / CONFIG))
    class_notices = (contradiction,) if contradiction and TASK_KINDS[chosen].has_classes else ()
    layout = head or cross_encoder
    completed = completed_folder(layout, finder_of(name), name, subfolder)
    tokenizer, token_notices = _load_tokenizer(
        name if completed is None else str(completed),
        subfolder if completed is None else "",
        prepare_=layout.prepare_tokenizer_ if layout else lambda backend: None,
    )
    if head is None and tokenizer.is_fast and family.is_of_last_token(chosen):
        check_end(tokenizer.backend_tokenizer, config.pad_token_id, name)
    length = tokenizer.model_max_length
    if not isinstance(length, int | float) or length <= 0:
        # As `load` does with what is no limit.
        length = tokenizer.model_max_length = VERY_LARGE_INTEGER
    limit = stored.longest_input(length) if stored else length
    if not isinstance(stored, SpanHead):
        read_as_long_(config, limit)
    limits = (family.longest_input(config), limit)
    return Description(
        name=name,
        subfolder=subfolder,
        task=chosen,
        family=family,
        model_type=family.model_type,
        config=config,
        tokenizer=tokenizer,
        head=head,
        max_length=int(min(_LONGEST, *filter(None, limits))),
        input_names=_input_names(tokenizer, config),
        cross_encoder=cross_encoder,
        pair_template=pair_template_of(layout, files_of(name), name),
        notices=(*head_notices, *pair_notices, *token_notices, *class_notices),
        adapter=adapter,
    )


def read_config(name: str) -> Any:
    """Return the config of a checkpoint."""
    check_name(name)
    return _read_configs(name)[1]


def infer_task(name: str) -> TaskName | None:
    """Return the task of a checkpoint; `None` for a plain encoder."""
    check_name(name)
    stored, config, _ = _read_configs(name)
    task = _inferred_task(config, stored)
    has_head = task is None or TASK_KINDS[task].has_head
    return task if has_head or isinstance(stored, TextHead) else None


def set_classes_(config: Any, names: Mapping[int, str]) -> None:
    """Set the names of the classes by number in a config of transformers."""
    config.id2label = dict(names)
    config.label2id = {name: number for number, name in names.items()}


def read_as_long_(config: Any, length: int | None) -> None:
    """Let a config of transformers read texts of a length; see `relative_limit.reading`."""
    values = config.to_dict()
    for name, value in reading(values, length).items():
        if values.get(name) != value:
            setattr(config, name, value)


def check_positions(config: Any) -> None:
    """Raise `CheckpointError` for positions that transformers 5 does not compute."""
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise CheckpointError(
            f"`position_embedding_type={kind!r}` is not computed by transformers 5; only "
            "'absolute' is supported."
        )


def _choose_task(
    task: str | None, config: Any, stored: TextHead | CrossEncoderFiles | None
) -> TaskName:
    if task is not None:
        named = known_task(task)
        if isinstance(stored, SpanHead) and named not in stored.tasks:
            raise UserInputError(
                f"`task={task!r}`: the layers of the checkpoint, which {stored.package} saved, are "
                f"for {' and '.join(map(repr, stored.tasks))}. Leave `task` out.",
                argument="task",
            )
        return named
    inferred = _inferred_task(config, stored)
    if inferred is None:
        raise unknown_task(config.architectures[0])
    return inferred


def known_task(task: str) -> TaskName:
    """Return a task that the user named."""
    for name in TASK_NAMES:
        if name == task:
            return name
    raise UserInputError(
        f"`task={task!r}` is unknown. Known tasks: {', '.join(TASK_NAMES)}.", argument="task"
    )


def _inferred_task(config: Any, stored: TextHead | CrossEncoderFiles | None) -> TaskName | None:
    return task_of_files(
        architectures_of(getattr(config, "architectures", None)) or ["Model"],
        Config(values=config.to_dict()),
        stored,
    )


def _choose_head(
    name: str, layout: object, task: TaskName, pooling: str | None
) -> tuple[TextHead | None, tuple[str, ...]]:
    """Return the head after the model, if it has one, and notices about it."""
    refuse_skipped_prompts(layout)
    stored = layout if isinstance(layout, SentenceHead) else None
    if TASK_KINDS[task].vectors != "sentence":
        if pooling is not None:
            raise UserInputError(
                f"`pooling={pooling!r}` is for task `feature-extraction`, got task `{task}`. Leave "
                "it out.",
                argument="pooling",
            )
        return own_head(layout, name, task)
    if pooling is None and stored is None:
        return None, (
            f"{name!r} has no modules.json, so its pooling is not known: the mean of the token "
            f"states is used. If it was trained with another one, pass `pooling`: "
            f"{', '.join(POOLING_MODES)}. BGE models, for example, use cls.",
        )
    notices = [] if stored is None else prompt_notices(stored)
    if pooling is None:
        return stored, tuple(notices)
    mode = _pooling_mode(pooling)
    if stored is None:
        return SentenceHead(poolings=(mode,), normalize=False, max_length=None), ()
    if stored.poolings == (mode,):
        return stored, tuple(notices)
    given = ", ".join(stored.poolings)
    notices.append(f"modules.json specifies pooling {given}; {mode} is used, as requested.")
    return stored.with_pooling(mode), tuple(notices)


def _pooling_mode(pooling: str) -> PoolingMode:
    for mode in POOLING_MODES:
        if mode == pooling:
            return mode
    raise UserInputError(
        f"`pooling={pooling!r}` is unknown. Known: {', '.join(POOLING_MODES)}.", argument="pooling"
    )


def _check_config(config: Any, task: TaskName, family: Family) -> None:
    if family.training is not None:
        check_positions(config)
    if TASK_KINDS[task].is_causal:
        # Without it BERT's causal head would see the tokens that it has to predict.
        config.is_decoder, config.use_cache = True, False
    elif getattr(config, "is_decoder", False):
        raise CheckpointError(
            "`is_decoder=True` in config.json is for task `text-generation` only; all other tasks "
            "read a text in both directions."
        )


def _check_other_heads(name: str, config: Any, task: str) -> None:
    """Refuse another task's head with equal names of weights, which would be loaded by mistake."""
    classifiers = [each for each in tasks_of(config) if each in _CLASSIFIERS]
    if task in _CLASSIFIERS and classifiers and task not in classifiers:
        raise UserInputError(
            f"`task={task!r}` was given, but checkpoint {name!r} has a head for "
            f"`{classifiers[0]}` ({config.architectures[0]}). Pass that task, or leave it out.",
            argument="task",
        )


def _load_tokenizer(
    name: str, subfolder: str, *, prepare_: Callable[[Any], None]
) -> LoadedTokenizer:
    loaded: LoadedTokenizer = call(name, load_tokenizer, name, subfolder=subfolder)
    tokenizer = loaded.tokenizer
    has_file = Path(name, subfolder, TOKENIZER).is_file()
    if len(tokenizer) <= len(tokenizer.all_special_tokens) and not has_file:
        raise no_tokenizer(Path(name, subfolder), name)
    # `runtime_tokenizer` refuses tokenizers in Python, by name.
    if tokenizer.is_fast:
        prepare_(tokenizer.backend_tokenizer)
    return loaded


def _input_names(tokenizer: Any, config: Any) -> tuple[str, ...]:
    """Return the inputs that the tokenizer makes and the model reads."""
    # Not all models have a table of segments.
    segments = ("token_type_ids",) if getattr(config, "type_vocab_size", 0) else ()
    known = ("input_ids", "attention_mask", *segments)
    return tuple(name for name in known if name in tokenizer.model_input_names)


def _read_configs(
    name: str, task: str | None = None
) -> tuple[TextHead | CrossEncoderFiles | None, Any, str | None]:
    """Return the layout in sentence-transformers' files, if any, and the encoder's config.

    The last value says if the config contradicts itself; see `Config.contradicted_class`.
    """
    files = files_of(name)
    stored: TextHead | CrossEncoderFiles | None = call(name, read_layout, files)
    if isinstance(stored, SentenceHead) and stored.is_static:
        # It refuses the family, of which config.json may be missing.
        quantized_family(MODEL2VEC)
    subfolder = stored.subfolder if stored else ""
    known = read_known_config(name, encoder_reader(files, stored, name), subfolder)
    names = known.class_names()
    if GLICLASS in known.values:
        stored = label_head(known.values[GLICLASS])
    stored = stored or generator_head(files, known.values.get("architectures"), task, name)
    register_config()
    make = transformers.CONFIG_MAPPING[known.values["model_type"]].from_dict
    config = call(name, make, dict(known.values))
    set_classes_(config, names)
    if isinstance(stored, ScoreHead):
        config.num_labels = stored.outputs
    return stored, config, known.contradicted_class()
