"""The user's images in classes, either in folders:

    <split>/<class>/*.png, *.jpg or *.jpeg
    <class>/*.png, ...    without splits: data.eval_share of the images of each class is held out

or in MNIST's files (idx.py). All images of a run have the same square size and the same channels:
one if all images are grey, else three.
"""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from input_pipeline.config import DataConfig
from input_pipeline.sources.base import Example, Source, Splits, content_digest
from input_pipeline.sources.files import idx
from input_pipeline.sources.files.checking import check, check_record
from input_pipeline.sources.files.class_folders import ClassFolders, LabelledFile
from input_pipeline.sources.image_decoding import (
    ImageSpec,
    count_colours,
    infer_image_spec,
    read,
    read_header,
)

FOLDERS = ClassFolders("image_files", "images", (".png", ".jpg", ".jpeg"), read_header)


class ImageFiles(Sequence):
    """Image files with labels, decoded on access."""

    def __init__(self, directory: Path, files: Sequence[LabelledFile], spec: ImageSpec):
        self._directory, self._files, self._spec = directory, files, spec

    def __len__(self):
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        path, label = self._files[index]
        name = path.relative_to(self._directory).as_posix()
        return {"image": read(path, self._spec), "label": label, "name": name}


def load(data: DataConfig) -> Splits:
    """The images at data.path; raises ConfigError if they cannot be used."""
    directory = FOLDERS.directory(data)
    return idx.load(directory, data) if idx.is_idx(directory) else _load_folders(directory, data)


SOURCE = Source("image_files", load, "images", "path", for_imports=True)


def _load_folders(directory: Path, data: DataConfig) -> Splits:
    found = FOLDERS.open(directory, data)
    colours = count_colours(found.headers)
    colours.warn()
    spec = infer_image_spec((path for path, _ in found.train), data, colours.mode)
    digest = content_digest([*spec.digest_parts, *found.digests])

    def checked(split: str, files: Sequence[LabelledFile]) -> Sequence[Example]:
        record = check_record(data, digest, split)
        return check(ImageFiles(directory, files, spec), data.max_bad_records, record)

    return Splits(
        kind="images",
        train=checked(data.train_split, found.train),
        evals={data.eval_split: checked(data.eval_split, found.eval)},
        labels=found.classes,
        description={"pillow": Image.__version__, **found.description},
        digest=digest,
    )
