"""The user's images in classes, either in folders:

    <split>/<class>/*.png, *.jpg or *.jpeg
    <class>/*.png, ...    without splits: data.eval_share of the images of each class is held out

or in MNIST's files (idx.py). All images of a run have the same square size and the same channels:
one if all images are grey, else three.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from absl import logging
from PIL import Image

from experiment.schema import ConfigError, did_you_mean
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import (
    Example,
    MissingSplitError,
    Source,
    Splits,
    content_digest,
    hash_fraction,
)
from input_pipeline.sources.files import idx
from input_pipeline.sources.files.checking import check, check_record, mapped_in_threads
from input_pipeline.sources.image_decoding import (
    ImageHeader,
    ImageSpec,
    infer_image_spec,
    read,
    read_header,
)

ENDINGS = (".png", ".jpg", ".jpeg")
LAYOUT = (
    "image_files reads <split>/<class>/*.png or .jpg, or <class>/*.png without splits, of which "
    "data.eval_share is held out"
)

CONTENT_BYTES = hashlib.sha256().digest_size  # the end of each digest that _scan returns

LabelledFile = tuple[Path, int]


class ImageFiles(Sequence):
    """Image files with labels, decoded on access."""

    def __init__(self, files: Sequence[LabelledFile], spec: ImageSpec):
        self._files, self._spec = files, spec

    def __len__(self):
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        path, label = self._files[index]
        return {"image": read(path, self._spec), "label": label}


def load(data: DataConfig) -> Splits:
    """The images at data.path; raises ConfigError if they cannot be used."""
    if not data.path:
        raise ConfigError(
            "data.path is empty, but data.source='image_files' reads a directory; "
            "name it with --config.data.path=DIR"
        )
    directory = Path(data.path).expanduser()
    if not directory.is_dir():
        raise ConfigError(f"data.path={data.path} is not a directory")
    return idx.load(directory, data) if idx.is_idx(directory) else _load_folders(directory, data)


SOURCE = Source("image_files", load, "images", "path")


def _load_folders(directory: Path, data: DataConfig) -> Splits:
    classes = _classes_without_splits(directory, data)
    if classes:
        files = _files(directory, classes)
        _refuse_empty(directory, classes, files)
        digests, headers = _scanned(directory, files)
        train_files, eval_files = _split_by_hash(files, digests, data)
        cut, description = [f"hashed below {data.eval_share}"], {"held_out_share": data.eval_share}
    else:
        classes, train_files, eval_files = _named_splits(directory, data)
        files = train_files + eval_files
        digests, headers = _scanned(directory, files)
        cut, description = [], {}
    mode = _common_mode([path for path, _ in files], headers)
    spec = infer_image_spec((path for path, _ in train_files), data, mode)
    digest = content_digest([*spec.digest_parts, data.train_split, data.eval_split, *cut, *digests])

    def checked(split: str, files: Sequence[LabelledFile]) -> Sequence[Example]:
        record = check_record(data, digest, split)
        return check(ImageFiles(files, spec), data.max_bad_records, record)

    return Splits(
        kind="images",
        train=checked(data.train_split, train_files),
        evals={data.eval_split: checked(data.eval_split, eval_files)},
        labels=tuple(classes),
        description={"pillow": Image.__version__, **description},
        digest=digest,
    )


def _named_splits(
    directory: Path, data: DataConfig
) -> tuple[list[str], list[LabelledFile], list[LabelledFile]]:
    """The classes of the training split, the training files and the evaluation files."""
    train_folder = _split_folder(directory, "train_split", data.train_split)
    eval_folder = _split_folder(directory, "eval_split", data.eval_split)
    classes = _folders(train_folder)
    if not classes:
        raise ConfigError(
            f"{train_folder} has no folders; it should have one for each class: {LAYOUT}"
        )
    unknown = [name for name in _folders(eval_folder) if name not in classes]
    if unknown:
        raise ConfigError(
            f"{eval_folder / unknown[0]} is a class that {train_folder} does not have."
            f"{did_you_mean(unknown[0], classes)}"
        )
    train = _files(train_folder, classes)
    _refuse_empty(train_folder, classes, train)
    return classes, train, _files(eval_folder, classes)


def _classes_without_splits(directory: Path, data: DataConfig) -> list[str]:
    """All folders, as classes, if one of them holds images and none is named after a split."""
    folders = _folders(directory)
    has_splits = {data.train_split, data.eval_split} & set(folders)
    return [] if has_splits or not _files(directory, folders) else folders


def _refuse_empty(folder: Path, classes: Sequence[str], files: Sequence[LabelledFile]) -> None:
    empty = set(range(len(classes))) - {label for _, label in files}
    if empty:
        raise ConfigError(
            f"{folder / classes[min(empty)]} has no file that ends in {', '.join(ENDINGS)}"
        )


def _split_by_hash(
    files: Sequence[LabelledFile], digests: Sequence[bytes], data: DataConfig
) -> tuple[list[LabelledFile], list[LabelledFile]]:
    """(training, evaluation) files, chosen by a hash of the content.

    Equal images are in the same split, and adding images does not move others. If the hash chose
    all images of a class for evaluation, they stay in training.
    """
    chosen = [hash_fraction(each[-CONTENT_BYTES:]) < data.eval_share for each in digests]
    left = Counter(label for (_, label), out in zip(files, chosen, strict=True) if not out)
    is_eval = [out and left[label] > 0 for (_, label), out in zip(files, chosen, strict=True)]
    if not any(is_eval):
        raise ConfigError(
            f"data.eval_share={data.eval_share:g} holds out 0 of the {len(files)} images of "
            f"{data.path}; raise it, or make a folder for each split: <split>/<class>/*.png"
        )
    parts = {True: [], False: []}
    for file, out in zip(files, is_eval, strict=True):
        parts[out].append(file)
    return parts[False], parts[True]


def _split_folder(directory: Path, key: str, name: str) -> Path:
    if not name or not (directory / name).is_dir():
        known = _folders(directory)
        raise MissingSplitError(
            f"data.{key}={name!r} is not a folder in {directory}."
            f"{did_you_mean(name, known)} There are: {_listed(known)}. {LAYOUT}",
            name,
            known,
        )
    return directory / name


def _folders(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir() if p.is_dir() and p.name[0] != ".")


def _files(split: Path, classes: Sequence[str]) -> list[LabelledFile]:
    return [
        (path, label)
        for label, name in enumerate(classes)
        if (split / name).is_dir()
        for path in sorted((split / name).iterdir())
        if path.suffix.lower() in ENDINGS and path.name[0] != "."
    ]


def _common_mode(paths: Sequence[Path], headers: Sequence[ImageHeader | None]) -> str | None:
    """Pillow's mode for all images: grey only if no image has colour; None if none is readable.

    Warns if grey images are read as colour, and if transparency is dropped.
    """
    known = [(path, header) for path, header in zip(paths, headers, strict=True) if header]
    grey = [path for path, header in known if header.is_grey]
    transparent = [path for path, header in known if header.is_transparent]
    if 0 < len(grey) < len(known):
        logging.warning(
            "%d of %d images are grey (such as %s) and are read as colour",
            *(len(grey), len(known), grey[0]),
        )
    if transparent:
        logging.warning(
            "%d of %d images have transparency (such as %s), which is dropped: pixels keep the "
            "colour stored under it; flatten them onto a background first if the shape is in the "
            "transparency",
            *(len(transparent), len(known), transparent[0]),
        )
    if not known:
        return None
    return "L" if len(grey) == len(known) else "RGB"


def _scanned(
    directory: Path, files: Sequence[LabelledFile]
) -> tuple[list[bytes], list[ImageHeader | None]]:
    """The digest and the header of each file."""
    paths = [path for path, _ in files]
    found = mapped_in_threads(partial(_scan, directory), paths, "hashing")
    return [digest for digest, _ in found], [header for _, header in found]


def _scan(directory: Path, path: Path) -> tuple[bytes, ImageHeader | None]:
    """The relative path of a file, followed by the digest of its content; and its header."""
    try:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
            file.seek(0)
            header = read_header(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return path.relative_to(directory).as_posix().encode() + content, header


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") or "none"
