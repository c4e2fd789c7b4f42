"""Data sets of TensorFlow Datasets that are prepared as array_record files.

Reading them needs no TensorFlow. Preparing them from Python needs none either, unless the builder
unpacks archives or imports TensorFlow (the command `tfds` always imports it). Preparing may
download much, so a data set that is not prepared is refused, with the command that prepares it.
TFDS_DATA_DIR is the directory of all data sets. data.name may also be the directory of one prepared
version, which has dataset_info.json. Without TensorFlow, array_record files are read from disks
only: a version in a bucket is copied first.
"""

import contextlib
import importlib
import json
import os
import shlex
from pathlib import Path
from typing import NoReturn

from experiment.schema import OBJECT_STORAGE, ConfigError, did_you_mean, refuse_remote
from input_pipeline.config import DataConfig
from input_pipeline.object_copy import local_copy
from input_pipeline.sources import record_fields
from input_pipeline.sources.base import Source, Splits, refusal_of_split
from input_pipeline.token_cache import cache_directory
from storage.object_store import is_remote, remote_path, sizes_below

PREPARE = "download_and_prepare()"
INFO = "dataset_info.json"
DOCS = "see docs/data.md"
# TFDS finds older builders by importing all modules in turn, and stops at the first one that lacks
# an optional package. These are the modules that matter here; they are imported one by one.
OLDER_BUILDERS = (
    "image_classification",
    "question_answering",
    "summarization",
    "text",
    "translate",
)
MOST_LISTED = 10  # configurations in a message; some data sets have hundreds


def load(data: DataConfig) -> Splits:
    """The data set data.name; raises ConfigError if it is not prepared or cannot be used."""
    builder = _open(data)
    info = builder.info
    has_images = data.kind == "images" and "image" in info.features
    decoders = _undecoded(info.features)

    def select(key: str, split: str) -> record_fields.StoredSplit:
        try:
            rows = builder.as_data_source(split, decoders=decoders)
        except ValueError as error:
            reason = str(error).splitlines()[-1]
            raise refusal_of_split(
                f"{key}={split!r} of {info.full_name}: {reason} It has: {', '.join(info.splits)}",
                split,
                info.splits,
            ) from None
        files = info.splits[split].file_instructions
        pieces = [(os.path.basename(f.filename), f.skip, f.skip + f.take) for f in files]
        return record_fields.StoredSplit(rows, pieces)

    # A published version identifies its content; sizes tell the user's own data sets apart.
    sizes = [f"{name} {s.num_bytes} {s.shard_lengths}" for name, s in sorted(info.splits.items())]
    return record_fields.splits(
        data,
        select("data.train_split", data.train_split),
        select("data.eval_split", data.eval_split),
        features=info.features,
        identity=[info.full_name, *sizes],
        description={"tfds": info.full_name},
        image_mode=("L" if info.features["image"].shape[-1] == 1 else "RGB")
        if has_images
        else None,
    )


SOURCE = Source("tfds", load, place="name")


def _undecoded(feature):
    """The `decoders` argument that makes TFDS return images as the bytes of their files.

    TFDS would decode all images, in any format, with one of two libraries, which differ.
    image_decoding.py decodes safe formats only.
    """
    import tensorflow_datasets as tfds

    class Skip(tfds.decode.SkipDecoding):  # TFDS's class lacks sequences of images
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
    """The builder of the prepared files, which any version of TFDS may have written."""
    from tensorflow_datasets.core import file_adapters, read_only_builder, registered

    data_dir = _data_dir()
    refuse_remote("TFDS_DATA_DIR", data_dir, OBJECT_STORAGE)
    place = data.name
    if is_remote(data.name):
        place = local_copy("data.name", data.name, cache_directory(data))
        if not os.path.isfile(os.path.join(place, INFO)):
            raise ConfigError(
                f"data.name={data.name} is no data set: it has no {INFO}; give the directory of "
                "one version, such as gs://BUCKET/mnist/3.0.1"
            )
    elif is_remote(data_dir) and not os.path.isdir(data.name):
        place = _copied_version(data, data_dir)
    if os.path.isfile(os.path.join(place, INFO)):
        builder = read_only_builder.builder_from_directory(place)
        if data.version not in ("", str(builder.version)):
            raise ConfigError(
                f"data.version={data.version!r}, but {data.name} holds {builder.version}; "
                "leave it empty"
            )
    else:
        builder = _from_data_dir(data, read_only_builder, registered)
    formats = builder.info.available_file_formats()
    if not formats & file_adapters.FileFormat.with_random_access():
        found = ", ".join(sorted(format.value for format in formats))
        directory = shlex.quote(str(builder.data_dir))
        raise ConfigError(
            f"{builder.data_dir} holds {found} files, which cannot be read in any order; prepare "
            "the data set again in another directory with file_format='array_record', which takes "
            f"no TensorFlow ({DOCS}), or convert these files where TensorFlow is installed: "
            f"tfds convert_format --out_file_format=array_record --dataset_version_dir={directory}"
        )
    return builder


def _data_dir() -> str:
    # TFDS reads the variable only once, when it is imported.
    return os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def _copied_version(data: DataConfig, data_dir: str) -> str:
    """The local copy of the version that data.name and data.version choose in a bucket."""
    from tensorflow_datasets.core import Version

    url = f"{data_dir.rstrip('/')}/{data.name}"
    try:
        below = sizes_below(remote_path(url))
    except FileNotFoundError:
        below = {}
    except OSError as error:
        raise ConfigError(
            f"TFDS_DATA_DIR={data_dir} cannot be read ({error.strerror}); check the bucket, your "
            "credentials and the network"
        ) from error
    versions = [name.split("/")[0] for name in below if name.endswith(f"/{INFO}")]
    versions = sorted((each for each in versions if Version.is_valid(each)), key=Version)
    chosen = [each for each in versions if not data.version or Version(each).match(data.version)]
    if not chosen:
        has = f"which has {', '.join(versions)} of it" if versions else "which has none of it"
        raise ConfigError(
            f"data.name={data.name!r}, data.version={data.version!r} is not in {data_dir} "
            f"(TFDS_DATA_DIR), {has}; prepare it on a disk, with file_format='array_record', and "
            "copy its directory there"
        )
    return local_copy("TFDS_DATA_DIR", f"{url}/{chosen[-1]}", cache_directory(data))


def _from_data_dir(data: DataConfig, read_only_builder, registered):
    data_dir = _data_dir()
    version = {"version": data.version} if data.version else {}
    try:
        return read_only_builder.builder_from_files(data.name, data_dir=data_dir, **version)
    except registered.DatasetNotFoundError:
        _refuse_unprepared(data, data_dir)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"data.name={data.name!r}, data.version={data.version!r}: {reason}"
        ) from None


def _refuse_unprepared(data: DataConfig, data_dir: str) -> NoReturn:
    import tensorflow_datasets as tfds

    name, _, config = data.name.partition("/")
    there = _prepared(data_dir, name)
    if any(each == data.name for each, _ in there):
        versions = [version for each, version in there if each == data.name]
        raise ConfigError(
            f"data.version={data.version!r} of {data.name} is not in {data_dir} (TFDS_DATA_DIR), "
            f"which has {', '.join(versions)}; choose one of these, or '' for the newest"
        )
    known = known_builders()
    if there and name not in known:
        raise ConfigError(
            f"data.name={data.name!r} is not in {data_dir} (TFDS_DATA_DIR), which has "
            f"{', '.join(sorted({each for each, _ in there}))}; choose one of these"
        )
    if name not in known:
        held = sorted(each.name for each in os.scandir(data_dir)) if os.path.isdir(data_dir) else []
        raise ConfigError(
            f"data.name={data.name!r} is neither in {data_dir} (TFDS_DATA_DIR), which has "
            f"{', '.join(held[:MOST_LISTED]) or 'nothing'}, nor a data set that TFDS knows."
            f"{did_you_mean(name, [*held, *known])} A builder of your own is prepared from Python, "
            f"without TensorFlow: YourBuilder(data_dir={data_dir!r}, file_format='array_record')"
            f".{PREPARE}; {DOCS}"
        )
    builder = tfds.builder_cls(name)
    configs = builder.builder_configs
    if config and config not in configs:
        listed = ", ".join(list(configs)[:MOST_LISTED])
        end = "..." if len(configs) > MOST_LISTED else "."
        raise ConfigError(
            f"data.name={data.name!r}: {name} has no {config!r} but {listed}{end}"
            f"{did_you_mean(config, configs)}"
        )
    target = f"{data.name}:{data.version}" if data.version else data.name
    # Without the import, TFDS finds older builders only if all optional packages are installed.
    code = (
        f"import tensorflow_datasets as tfds, {builder.__module__}; tfds.builder("
        f'{json.dumps(target)}, data_dir={json.dumps(data_dir)}, file_format="array_record")'
        f".{PREPARE}"
    )
    raise ConfigError(
        f"{target} is not prepared in {data_dir} (TFDS_DATA_DIR); prepare it once: "
        f"python -c {shlex.quote(code)} (if that asks for tensorflow, this builder unpacks its "
        "files with it: pip install tensorflow first; reading them needs none)"
    )


def _prepared(data_dir: str, name: str) -> list[tuple[str, str]]:
    """The prepared versions of a data set, as (name[/configuration], version)."""
    below = Path(data_dir) / name
    found = [*below.glob(f"*/{INFO}"), *below.glob(f"*/*/{INFO}")]
    places = sorted(each.parent.relative_to(data_dir) for each in found)
    return [(place.parent.as_posix(), place.name) for place in places]
