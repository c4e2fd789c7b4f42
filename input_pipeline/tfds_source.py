"""Data sets of TensorFlow Datasets that have been prepared as array_record files.

Reading them takes no TensorFlow; preparing them does, once, and may download a great deal, so a
data set that is not there is refused with the command that makes it. `TFDS_DATA_DIR` says where
they are, as in TFDS itself.
"""

import contextlib
import importlib
import os
import shlex
from typing import NoReturn

from input_pipeline import fields
from input_pipeline.config import DataConfig
from input_pipeline.source import Splits
from schema import ConfigError, did_you_mean, refuse_remote

WITH_TENSORFLOW = "once, where TensorFlow is installed (pip install tensorflow)"
# TFDS finds older builders by importing all of these in turn, and gives up at the first one that
# misses an optional package; one by one, those that matter here can be imported.
OLDER_BUILDERS = (
    "image_classification",
    "question_answering",
    "summarization",
    "text",
    "translate",
)
MOST_LISTED = 10  # of the hundreds of configurations that some data sets have


def load(data: DataConfig) -> Splits:

    builder = _open(data)
    info = builder.info
    has_images = data.kind == "images" and "image" in info.features
    decoders = _undecoded(info.features)

    def cut(key: str, split: str) -> fields.Cut:
        try:
            records = builder.as_data_source(split, decoders=decoders)
        except ValueError as error:
            reason = str(error).splitlines()[-1]
            raise ConfigError(
                f"{key}={split!r} of {info.full_name}: {reason} It has: {', '.join(info.splits)}"
            ) from None
        files = info.splits[split].file_instructions
        pieces = [(os.path.basename(f.filename), f.skip, f.skip + f.take) for f in files]
        return fields.Cut(records, pieces)

    # A version stands for its content; the sizes tell data sets of one's own apart, too.
    sizes = [f"{name} {s.num_bytes} {s.shard_lengths}" for name, s in sorted(info.splits.items())]
    return fields.splits(
        data,
        cut("data.train_split", data.train_split),
        cut("data.eval_split", data.eval_split),
        features=info.features,
        identity=[info.full_name, *sizes],
        description={"tfds": info.full_name},
        image_mode=("L" if info.features["image"].shape[-1] == 1 else "RGB")
        if has_images
        else None,
    )


def _undecoded(feature):
    """TFDS's `decoders`, by which all images of a record stay as they are in their files.

    TFDS would decode even those that nobody asked for, with whichever of two libraries is
    installed. They differ, and take any format; see pixels.py for those that are safe.
    """
    import tensorflow_datasets as tfds

    class Skip(tfds.decode.SkipDecoding):  # TFDS's own knows no sequences of images
        def decode_batch_example_np(self, example):
            return example

        decode_ragged_example_np = decode_batch_example_np

    if isinstance(feature, tfds.features.FeaturesDict):
        found = {name: _undecoded(each) for name, each in feature.items()}
        return {name: each for name, each in found.items() if each is not None} or None
    if isinstance(feature, tfds.features.Sequence):
        return _undecoded(feature.feature)
    return Skip() if isinstance(feature, tfds.features.Image) else None


def known_builders() -> list[str]:
    """The names of the data sets that TFDS has code for."""
    import tensorflow_datasets as tfds

    for group in OLDER_BUILDERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tensorflow_datasets.{group}")
    return tfds.list_builders(with_community_datasets=False)


def _open(data: DataConfig):
    """The builder of the prepared files, whichever version of TFDS has made them."""
    from tensorflow_datasets.core import file_adapters, read_only_builder, registered

    # TFDS reads the variable once, when imported; reading it here honours later changes.
    data_dir = os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    refuse_remote("TFDS_DATA_DIR", data_dir)
    version = {"version": data.version} if data.version else {}
    try:
        builder = read_only_builder.builder_from_files(data.name, data_dir=data_dir, **version)
    except registered.DatasetNotFoundError:
        _refuse_unprepared(data, data_dir)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"data.name={data.name!r}, data.version={data.version!r}: {reason}"
        ) from None
    formats = builder.info.available_file_formats()
    if not formats & file_adapters.FileFormat.with_random_access():
        found = ", ".join(sorted(format.value for format in formats))
        raise ConfigError(
            f"{builder.data_dir} holds {found} files, which cannot be read in any order; convert "
            f"them {WITH_TENSORFLOW}: tfds convert_format --out_file_format=array_record "
            f"--dataset_version_dir={shlex.quote(str(builder.data_dir))}"
        )
    return builder


def _refuse_unprepared(data: DataConfig, data_dir: str) -> NoReturn:
    import tensorflow_datasets as tfds

    name, _, config = data.name.partition("/")
    known = known_builders()
    if name not in known:
        raise ConfigError(
            f"data.name={data.name!r} is neither in {data_dir} nor a data set that TFDS knows."
            f"{did_you_mean(name, known)}"
        )
    configs = tfds.builder_cls(name).builder_configs
    if config and config not in configs:
        listed = ", ".join(list(configs)[:MOST_LISTED])
        end = "..." if len(configs) > MOST_LISTED else "."
        raise ConfigError(
            f"data.name={data.name!r}: {name} has no {config!r} but {listed}{end}"
            f"{did_you_mean(config, configs)}"
        )
    target = f"{data.name}:{data.version}" if data.version else data.name
    raise ConfigError(
        f"{target} is not prepared in {data_dir}; do so {WITH_TENSORFLOW}: "
        f"tfds build {target} --file_format=array_record --data_dir={shlex.quote(data_dir)}"
    )
