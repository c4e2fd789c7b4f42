"""data.cache_dir and TFDS_DATA_DIR in a bucket, over both protocols."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import bucket_cache, pipeline, preparation, token_cache
from input_pipeline.sources import registry
from input_pipeline.token_cache import TokenCache
from storage.object_store import filesystem, remote_path, remove_below, upload_directory
from tests import corpora
from tests.cloud.conftest import objects
from tests.tiny import data_config, masking


@pytest.fixture(params=["gcs", "s3"])
def place(request):
    """A directory of its own for each test, in a store of each kind."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"{request.getfixturevalue(request.param)}/{name}"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(preparation, "CHUNK", 7)
    monkeypatch.setattr(bucket_cache, "PART_BYTES", 1000)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Begins the work of another machine, with an empty disk."""

    def begin(name):
        monkeypatch.setattr(token_cache, "DEFAULT_DIRECTORY", str(tmp_path / name))
        return tmp_path / name

    begin("first")
    return begin


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    keys = dict(tokenizer="bpe", tokenizer_size=400, packing=True, batch_size=4)
    return data_config(**corpora.text_files(tmp_path_factory.mktemp("corpus")), **keys)


def prepared(data, options=None) -> dict[str, bytes]:
    """Prepares data; returns the content of the tables and tokenizers on this machine."""
    cache = TokenCache(data) if options is None else options(data)
    loaded = pipeline.load(data, objective="causal_lm", masking=masking(), seed=0, cache=cache)
    assert all(np.isfinite(each).all() for each in loaded.train_batch(0).values())
    return corpora.contents(cache.directory)


@pytest.fixture(scope="module")
def expected(texts, tmp_path_factory):
    """What a cache on a disk holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "CHUNK", 7)
        directory = str(tmp_path_factory.mktemp("cache"))
        return prepared(dataclasses.replace(texts, cache_dir=directory))


def test_a_cache_is_made_once_and_read_by_other_machines(
    place, texts, expected, machine, monkeypatch
):
    data = dataclasses.replace(texts, cache_dir=f"{place}/cache")
    assert prepared(data) == expected
    there = objects(data.cache_dir)
    published = [name for name in there if "/" not in name]
    assert sorted(name.removesuffix(".json") for name in published) == sorted(
        {name.split("/")[0] for name in expected}
    )
    assert not [name for name in there if ".partial/" in name]

    def never(*arguments, **more):
        raise AssertionError("made again")

    monkeypatch.setattr(preparation, "tokenized", never)
    monkeypatch.setattr(token_cache, "train_tokenizer", never)
    machine("second")
    assert prepared(data) == expected
    assert objects(data.cache_dir) == there


def test_an_interrupted_preparation_continues_on_another_machine(
    gcs, url, texts, expected, machine, monkeypatch
):
    """From the chunks in the bucket, where another machine may add to them at the same time."""
    data = dataclasses.replace(texts, cache_dir=url)
    tokenized, made = preparation.tokenized, []

    def dies(*arguments):
        made.append(arguments)
        if len(made) == 3:
            raise KeyboardInterrupt
        return tokenized(*arguments)

    monkeypatch.setattr(preparation, "tokenized", dies)
    monkeypatch.setattr(preparation, "THREADS", 1)
    with pytest.raises(KeyboardInterrupt):
        prepared(data)
    chunks = [name for name in objects(url) if ".partial/" in name]
    assert 1 <= len(chunks) <= 2
    machine("second")
    assert prepared(data) == expected
    all_chunks = -(-_examples(texts) // 7)
    assert len(made) == 1 + all_chunks, "finished chunks are not made again"
    assert not [name for name in objects(url) if ".partial/" in name]


def _examples(data) -> int:
    (component,) = registry.components(data)
    splits = component.splits
    sizes = [len(splits.train), *(len(each) for each in splits.evals.values())]
    assert len(sizes) == 2
    return sum(-(-size // 7) * 7 for size in sizes)


def test_nothing_half_written_is_read(gcs, url, texts, expected, machine, gcs_faults):
    """A machine dies before the one object that publishes a table; another finds none, not half."""
    data = dataclasses.replace(texts, cache_dir=url)
    with gcs_faults(403, "POST /upload", ".json"), pytest.raises(ConfigError) as refused:
        prepared(data)
    assert f"data.cache_dir={url} cannot be written" in str(refused.value)
    assert "\n" not in str(refused.value)
    machine("second")
    assert prepared(data) == expected


def test_the_first_of_two_machines_publishes(place, tmp_path, monkeypatch):
    """Neither sees the other before it has uploaded its files."""
    url, first = f"{place}/cache", tmp_path / "table"
    first.mkdir()
    (first / "ids").write_text("1 2 3")
    bucket_cache.BucketCache(url).publish(first)
    before = objects(url)
    with monkeypatch.context() as patch:
        patch.setattr(bucket_cache.BucketCache, "_record", lambda self, name: {})
        bucket_cache.BucketCache(url).publish(first)
    assert objects(url) == before and len(before) == 2
    assert bucket_cache.BucketCache(url).fetch(tmp_path / "copy" / "table")
    assert (tmp_path / "copy" / "table" / "ids").read_text() == "1 2 3"


def test_damage_is_noticed_and_made_good(gcs, url, texts, expected, machine, caplog):
    data = dataclasses.replace(texts, cache_dir=url)
    prepared(data)
    table = next(name for name in objects(url) if name.endswith("/ids.text"))
    path = remote_path(f"{url}/{table}")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    machine("second")
    assert prepared(data) == expected
    assert "is damaged and will be made again" in caplog.text
    machine("third")
    caplog.clear()
    assert prepared(data) == expected
    assert not caplog.text
    # The copy on the disk is damaged: the bucket has a good one.
    local = next(Path(token_cache.DEFAULT_DIRECTORY).glob("*/ids.text"))
    local.write_bytes(local.read_bytes()[:-1])
    assert prepared(data) == expected


def test_a_disk_without_room_and_places_that_cannot_be_used(
    gcs, url, texts, machine, monkeypatch, gcs_faults
):
    data = dataclasses.replace(texts, cache_dir=url)
    prepared(data)
    machine("second")
    full = shutil.disk_usage("/")._replace(free=1)
    with monkeypatch.context() as patch:
        patch.setattr(bucket_cache.shutil, "disk_usage", lambda path: full)
        with pytest.raises(ConfigError, match=rf"^data.cache_dir={url}: .* GB left; make room"):
            prepared(data)
    missing = dataclasses.replace(texts, cache_dir="gs://no-such-bucket/cache")
    with pytest.raises(ConfigError, match=r"^data.cache_dir=gs://no-such-bucket/cache") as refused:
        prepared(missing)
    assert "\n" not in str(refused.value)
    # A bucket that may only be read is enough where all is prepared.
    with gcs_faults(403, "POST /upload"):
        prepared(data)
        remove_below(url)
        machine("third")
        with pytest.raises(ConfigError, match=rf"^data.cache_dir={url}.* cannot be written"):
            prepared(data)


def test_beam_workers_share_chunks_in_a_bucket(gcs, url, texts, expected, machine, tmp_path):
    pytest.importorskip("apache_beam")
    from input_pipeline.beam_preparation import on_beam

    here = tmp_path / "data"
    shutil.copytree(texts.path, here) if Path(texts.path).is_dir() else None
    upload_directory(here, f"{url}/data")
    data = dataclasses.replace(texts, cache_dir=f"{url}/cache", path=f"{url}/data")
    options = ["--runner=DirectRunner"]
    found = prepared(data, lambda data: TokenCache(data, on_beam(data, options)))
    found = {name: each for name, each in found.items() if not name.startswith("objects/")}
    assert found == expected


def test_a_tfds_data_set_in_a_bucket(place, machine, tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    from input_pipeline.sources import tfds_source
    from tests.input_pipeline.tfds_builders import TinyPairs

    tfds.disable_progress_bar()
    here = tmp_path / "tfds"
    TinyPairs(data_dir=here, file_format="array_record").download_and_prepare()
    upload_directory(here, f"{place}/tfds")
    (version,) = (path.parent for path in here.glob("tiny_pairs/*/dataset_info.json"))

    def load(directory, **keys):
        monkeypatch.setenv("TFDS_DATA_DIR", str(directory))
        languages = dict(source_language="en", target_language="de")
        given = dict(name="tiny_pairs", kind="pairs") | keys
        return tfds_source.load(data_config(source="tfds", **languages, **given))

    local = load(here)
    by_name = f"{place}/tfds/tiny_pairs/{version.name}"
    for found in (load(f"{place}/tfds"), load(tmp_path / "none", name=by_name)):
        assert found.digest == local.digest
        assert list(found.train) == list(local.train)
    for keys, said in (
        (dict(version="9.9.9"), f"which has {version.name} of it"),
        (dict(name="others"), "which has none of it"),
    ):
        with pytest.raises(ConfigError) as refused:
            load(f"{place}/tfds", **keys)
        assert said in str(refused.value) and f"{place}/tfds (TFDS_DATA_DIR)" in str(refused.value)
    nowhere = f"{place.partition('://')[0]}://no-such-bucket/tfds"
    with pytest.raises(ConfigError, match=nowhere) as refused:
        load(nowhere)
    assert "\n" not in str(refused.value)
    files = filesystem(place)
    assert json.loads(files.cat_file(f"{by_name}/dataset_info.json"))["name"] == "tiny_pairs"
