"""The files that sentence-transformers saves next to an encoder, each parsed once."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qdqbert.common.file_names import MODEL_SETTINGS, MODULES
from qdqbert.common.json_files import Fields, damaged, parse_json, read_text

FindFile = Callable[[str], Path | None]
"""Returns a file of the checkpoint by its path in it, `None` if it does not exist."""

ReadFile = Callable[[str], str | None]
"""Returns the text of a file of the checkpoint by its path in it, `None` if it does not exist."""

# Package of the module classes in modules.json, which all versions of sentence-transformers read.
_PACKAGE = "sentence_transformers.models"


@dataclasses.dataclass(frozen=True)
class SentenceFiles:
    """The files of a checkpoint, some of which sentence-transformers may have written.

    Attributes:
        read: Reads a file with text.
        find: Finds a file with weights.
    """

    read: ReadFile
    find: FindFile = lambda _: None

    @classmethod
    def of_folder(cls, folder: Path) -> SentenceFiles:
        """Return the files of a folder."""
        return cls.found_by(file_finder(folder))

    @classmethod
    def found_by(cls, find: FindFile) -> SentenceFiles:
        """Return the files that a finder finds."""
        return cls(text_reader(find), find)

    def fields(self, *path: str) -> Fields:
        """Return the content of a file in JSON, by a folder and a name in it; empty without it."""
        place = join(*path)
        return Fields.of_text(self.read(place) or "{}", place)

    @functools.cached_property
    def settings(self) -> Fields:
        """Content of config_sentence_transformers.json; empty without the file."""
        return self.fields(MODEL_SETTINGS)

    @functools.cached_property
    def modules(self) -> list[tuple[str, str]] | None:
        """Names of the classes in modules.json with their paths; `None` without the file."""
        text = self.read(MODULES)
        if text is None:
            return None
        content = {"modules": parse_json(text, MODULES)}
        found = []
        for each in Fields(content, lambda reason: damaged(MODULES, reason)).children("modules"):
            path = each.text("path")
            check_path(path, MODULES)
            found.append((each.text("type").rpartition(".")[2], path))
        return found

    @property
    def kinds(self) -> list[str]:
        """Names of the classes in modules.json; none without the file."""
        return [kind for kind, _ in self.modules or ()]

    @property
    def model_type(self) -> object:
        """Name of the class that saved the model; `None` if no file has it."""
        return self.settings.values.get("model_type")

    @property
    def is_cross_encoder(self) -> bool:
        """Whether it was saved as a cross-encoder."""
        return self.model_type == "CrossEncoder"


def text_reader(find: FindFile) -> ReadFile:
    """Return a reader of the text files that a finder finds."""

    def read(path: str) -> str | None:
        found = find(path)
        return None if found is None else read_text(found)

    return read


def file_finder(folder: Path) -> FindFile:
    """Return a finder of the files of a folder."""
    return lambda path: folder / path if (folder / path).is_file() else None


def join(*path: str) -> str:
    """Return the path of a file, by its name and the folders that it is in, of which "" is none."""
    return "/".join(filter(None, path))


def check_path(path: str, place: str) -> None:
    """Refuse the path of a module that leads out of the folder."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise damaged(place, f"the path {path!r} leads out of the folder")


def write_files(folder: Path, modules: Sequence[tuple[str, str]], texts: Mapping[str, str]) -> None:
    """Write modules.json, the folders of the modules, and other files.

    `modules` are the names of their classes with their paths, and `texts` the contents of the other
    files by their paths.
    """
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_PACKAGE}.{kind}"}
        for index, (kind, path) in enumerate(modules)
    ]
    for _, path in modules:
        (folder / path).mkdir(exist_ok=True)
    for name, text in {**texts, MODULES: json.dumps(listed, indent=2) + "\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
