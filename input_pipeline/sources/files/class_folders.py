"""Files in a folder for each class, such as images or sounds:

<split>/<class>/*.png
<class>/*.png, ...    without splits: data.eval_share of the files of each class is held out
"""

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from absl import logging

from experiment.schema import ConfigError, did_you_mean, is_utf8
from experiment.untrusted_files import require_regular
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import SHARE_BY_HASH, MissingSplitError, hash_fraction
from input_pipeline.sources.files.checking import mapped_in_threads
from input_pipeline.sources.files.reading import is_hidden

OF_THE_DESKTOP = ("Thumbs.db", "desktop.ini")  # files that Windows leaves in folders

CONTENT_BYTES = hashlib.sha256().digest_size  # the end of each digest

LabelledFile = tuple[Path, int]


@dataclasses.dataclass(frozen=True)
class LabelledFiles:
    """The files of both splits, with the index of their class."""

    classes: tuple[str, ...]
    train: Sequence[LabelledFile]
    eval: Sequence[LabelledFile]
    headers: Sequence[tuple[Path, Any]]  # of all files, with what `read_header` returned
    digests: tuple[str | bytes, ...]  # of the splits, paths and contents
    description: Mapping[str, Any]  # facts for the run directory


@dataclasses.dataclass(frozen=True)
class ClassFolders:
    """How one source names the files in its folders of classes."""

    source: str
    noun: str  # for messages: images
    endings: tuple[str, ...]
    read_header: Callable[[BinaryIO], Any]  # called with each file

    @property
    def layout(self) -> str:
        """What the folders should look like, for messages."""
        first, *others = (f"*{ending}" for ending in self.endings if ending != ".jpeg")
        listed = " or ".join([first, *(other[1:] for other in others)])
        return (
            f"{self.source} reads <split>/<class>/{listed}, or <class>/{first} without splits, of "
            "which data.eval_share is held out"
        )

    def directory(self, data: DataConfig) -> Path:
        """The directory data.path; raises ConfigError if there is none."""
        if not data.path:
            raise ConfigError(
                f"data.path is empty, but data.source={self.source!r} reads a directory; "
                "name it with --config.data.path=DIR"
            )
        directory = Path(data.path).expanduser()
        if not directory.is_dir():
            raise ConfigError(f"data.path={data.path} is not a directory")
        return directory

    def open(self, directory: Path, data: DataConfig) -> LabelledFiles:
        """Finds the files of both splits; raises ConfigError if they cannot be used."""
        classes = self._classes_without_splits(directory, data)
        if classes:
            files = self._files(directory, classes)
            self._refuse_empty(directory, classes, files)
            digests, headers = self._scanned(directory, files)
            train, eval_files = self._split_by_hash(files, digests, data)
            cut, description = [f"hashed below {data.eval_share}"], {SHARE_BY_HASH: data.eval_share}
        else:
            classes, train, eval_files = self._named_splits(directory, data)
            files = train + eval_files
            digests, headers = self._scanned(directory, files)
            cut, description = [], {}
        if wrong := [name for name in classes if not is_utf8(name)]:
            raise ConfigError(
                f"{directory}: the folder {wrong[0]!r} is no text in UTF-8, so it cannot be the "
                "name of a class; rename it"
            )
        parts = (data.train_split, data.eval_split, *cut, *digests)
        found = list(zip((path for path, _ in files), headers, strict=True))
        return LabelledFiles(tuple(classes), train, eval_files, found, parts, description)

    def _named_splits(
        self, directory: Path, data: DataConfig
    ) -> tuple[list[str], list[LabelledFile], list[LabelledFile]]:
        """The classes of the training split, the training files and the evaluation files."""
        train_folder = self._split_folder(directory, "train_split", data.train_split)
        eval_folder = self._split_folder(directory, "eval_split", data.eval_split)
        classes = _folders(train_folder)
        if not classes:
            raise ConfigError(
                f"{train_folder} has no folders; it should have one for each class: {self.layout}"
            )
        unknown = [name for name in _folders(eval_folder) if name not in classes]
        if unknown:
            raise ConfigError(
                f"{eval_folder / unknown[0]} is a class that {train_folder} does not have."
                f"{did_you_mean(unknown[0], classes)}"
            )
        train = self._files(train_folder, classes)
        self._refuse_empty(train_folder, classes, train)
        return classes, train, self._files(eval_folder, classes)

    def _split_folder(self, directory: Path, key: str, name: str) -> Path:
        if not name or not (directory / name).is_dir():
            known = _folders(directory)
            raise MissingSplitError(
                f"data.{key}={name!r} is not a folder in {directory}."
                f"{did_you_mean(name, known)} There are: {_listed(known)}. {self.layout}",
                name,
                known,
            )
        return directory / name

    def _classes_without_splits(self, directory: Path, data: DataConfig) -> list[str]:
        """All folders, as classes, if one of them holds files and none is named after a split."""
        folders = _folders(directory)
        has_splits = {data.train_split, data.eval_split} & set(folders)
        return [] if has_splits or not self._files(directory, folders) else folders

    def _refuse_empty(
        self, folder: Path, classes: Sequence[str], files: Sequence[LabelledFile]
    ) -> None:
        empty = set(range(len(classes))) - {label for _, label in files}
        if empty:
            raise ConfigError(
                f"{folder / classes[min(empty)]} has no file that ends in {', '.join(self.endings)}"
            )

    def _split_by_hash(
        self, files: Sequence[LabelledFile], digests: Sequence[bytes], data: DataConfig
    ) -> tuple[list[LabelledFile], list[LabelledFile]]:
        """(training, evaluation) files, chosen by a hash of the content.

        Equal files are in the same split, and adding files does not move others. If the hash chose
        all files of a class for evaluation, they stay in training.
        """
        chosen = [hash_fraction(each[-CONTENT_BYTES:]) < data.eval_share for each in digests]
        left = Counter(label for (_, label), out in zip(files, chosen, strict=True) if not out)
        is_eval = [out and left[label] > 0 for (_, label), out in zip(files, chosen, strict=True)]
        if not any(is_eval):
            raise ConfigError(
                f"data.eval_share={data.eval_share:g} holds out 0 of the {len(files)} {self.noun} "
                f"of {data.path}; raise it, or make a folder for each split: "
                f"<split>/<class>/*{self.endings[0]}"
            )
        parts = {True: [], False: []}
        for file, out in zip(files, is_eval, strict=True):
            parts[out].append(file)
        return parts[False], parts[True]

    def _files(self, split: Path, classes: Sequence[str]) -> list[LabelledFile]:
        """The files of a split with their labels; warns about others in the classes' folders."""
        files, others = [], []
        for label, name in enumerate(classes):
            for path in sorted((split / name).rglob("*")) if (split / name).is_dir() else ():
                within = path.relative_to(split / name)
                if is_hidden(within) or path.is_dir():
                    continue
                if len(within.parts) == 1 and path.suffix.lower() in self.endings:
                    files.append((path, label))
                elif path.name not in OF_THE_DESKTOP:
                    others.append(path)
        if others:
            logging.warning(
                "%d files in the folders of classes are not read, such as %s: %s end in %s and are "
                "directly in the folder of their class",
                len(others), others[0], self.noun, ", ".join(self.endings),
            )  # fmt: skip
        return files

    def _scanned(
        self, directory: Path, files: Sequence[LabelledFile]
    ) -> tuple[list[bytes], list[Any]]:
        """The digest and the header of each file."""
        paths = [path for path, _ in files]
        found = mapped_in_threads(partial(self._scan, directory), paths, "hashing")
        return [digest for digest, _ in found], [header for _, header in found]

    def _scan(self, directory: Path, path: Path) -> tuple[bytes, Any]:
        """The relative path of a file, followed by the digest of its content; and its header."""
        try:
            with require_regular(path).open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
                file.seek(0)
                header = self.read_header(file)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        return os.fsencode(path.relative_to(directory).as_posix()) + content, header


def _folders(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir() if p.is_dir() and p.name[0] != ".")


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") or "none"
