"""Data and compiled programs in a bucket, over both protocols."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from experiment.schema import ConfigError
from input_pipeline import object_copy
from input_pipeline.sources import registry
from input_pipeline.token_cache import cache_directory
from storage.object_store import remote_path
from tests.tiny import data_config
from training.compilation import keep_programs

LINES = {
    f"{split}.tsv": "".join(f"yes\t{split} {n}\n" for n in range(20)) for split in ("train", "test")
}


def with_local_path(data):
    return object_copy.with_local_path(data, cache_directory(data))


@pytest.fixture(params=["gcs", "s3"])
def place(request):
    """A directory with two files, in a store of each kind."""
    url = f"{request.getfixturevalue(request.param)}/data"
    for name, text in LINES.items():
        (remote_path(url) / name).write_text(text)
    return url


def test_a_copy_has_the_same_rows(place, tmp_path):
    here = tmp_path / "data"
    here.mkdir()
    for name, text in LINES.items():
        (here / name).write_text(text)
    options = dict(
        source="labelled_text_files", eval_split="test", cache_dir=str(tmp_path / "cache")
    )
    (there,), (local,) = (
        registry.components(with_local_path(data_config(path=path, **options)))
        for path in (place, str(here))
    )
    assert there.splits.digest == local.splits.digest
    assert list(there.splits.train) == list(local.splits.train)


def test_copies_are_made_once_and_follow_the_objects(place, tmp_path):
    data = data_config(path=place, cache_dir=str(tmp_path))
    first = with_local_path(data).path
    assert with_local_path(data).path == first
    (remote_path(place) / "train.tsv").write_text("other\tyes\n")
    second = with_local_path(data).path
    assert second != first
    contents = [Path(path, "train.tsv").read_text() for path in (first, second)]
    assert contents == [LINES["train.tsv"], "other\tyes\n"]


def test_files_globs_and_what_is_missing(place, tmp_path):
    def local(path):
        return with_local_path(data_config(path=path, cache_dir=str(tmp_path))).path

    assert Path(local(f"{place}/test.tsv")).read_text() == LINES["test.tsv"]
    assert local(f"{place}/t*.tsv").endswith("/t*.tsv")
    for missing in (f"{place}/none", f"{place}/none/*.txt"):
        with pytest.raises(ConfigError, match=r"data.path=.*/none.* matches no object"):
            local(missing)


def test_compiled_programs_in_a_bucket(place):
    url, options = f"{place}-programs", {"enable_compilation_cache": True}
    options |= {"persistent_cache_min_compile_time_secs": 0.0, "compilation_cache_dir": None}
    before = {name: getattr(jax.config, f"jax_{name}") for name in options}
    try:
        for name, value in options.items():
            jax.config.update(f"jax_{name}", value)
        keep_programs(url)
        assert jax.config.jax_compilation_cache_dir == url
        jax.jit(lambda x: jnp.sin(x) * len(place))(jnp.ones(3)).block_until_ready()
        names = [path.name for path in remote_path(url).iterdir()]
        assert any(name.startswith("jit") and "cache" in name for name in names), names
        missing = f"{place.partition('://')[0]}://no-such-bucket/programs"
        with pytest.raises(ConfigError, match=rf"compilation_cache={missing} cannot be created"):
            keep_programs(missing)
    finally:
        for name, value in before.items():
            jax.config.update(f"jax_{name}", value)
        compilation_cache.reset_cache()
