"""convert.py, tokenizers, mixtures and generate.py with paths in a bucket."""

import json
from pathlib import Path

import numpy as np
import pytest

import convert
import generate
from checkpointing import loaded_run
from experiment.schema import ConfigError
from input_pipeline import object_copy, pipeline
from input_pipeline.objectives.objective import Masking
from storage.object_store import remote_path, upload_directory
from tests import scripts
from tests.cloud.conftest import objects
from tests.experiment.test_bad_input import assert_short_and_clear
from tests.hub.conftest import make_model
from tests.hub.server import read
from tests.tiny import data_config


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A published model, with a pooling config in a directory as sentence-transformers have it."""
    directory = make_model(tmp_path_factory.mktemp("model") / "theirs")
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text("{}")
    return directory


@pytest.fixture(scope="module")
def local_run(theirs, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "bert"
    convert.convert(str(theirs), str(workdir))
    return workdir


@pytest.fixture(params=["gcs", "s3"])
def place(request):
    """A directory of its own for each test, in a store of each kind."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"{request.getfixturevalue(request.param)}/{name}"


def test_an_import_from_a_bucket(place, theirs, local_run, tmp_path):
    """It copies what is read, and gives the run of a local directory."""
    upload_directory(theirs, place)
    target = tmp_path / "run"
    convert.convert(place, str(target), tokenizer=f"{place}/tokenizer.json")
    assert json.loads((target / "imported_from.json").read_text()) == {"source": place}
    for name in ("tokenizer.json", "model.json"):
        assert (target / name).read_bytes() == (local_run / name).read_bytes()
    ours, same = (loaded_run.load(each).params for each in (target, local_run))
    assert all(map(np.array_equal, _leaves(ours), _leaves(same)))
    copy = Path(object_copy.local_copy("x", place, tmp_path, lambda name: "Pooling" in name))
    assert set(read(copy)) == {"1_Pooling/config.json"}


def _leaves(tree):
    for value in tree.values():
        yield from _leaves(value) if isinstance(value, dict) else (np.asarray(value),)


def test_an_export_to_a_bucket(place, local_run, tmp_path):
    convert.convert(str(local_run), str(tmp_path / "out"))
    convert.convert(str(local_run), f"{place}/out")
    assert objects(f"{place}/out") == read(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--to=.*/out already has objects"):
        convert.convert(str(local_run), f"{place}/out")


def test_an_import_to_a_bucket_is_a_run_there(place, theirs, local_run, tmp_path):
    """It is used, and exported again, in the bucket."""
    url = f"{place}/run"
    convert.convert(str(theirs), url)
    assert (remote_path(url) / "checkpoints" / "0" / "commit_success.txt").exists()
    texts = ["a [MASK] b"]
    assert generate.generate(url, texts) == generate.generate(local_run, texts)
    convert.convert(url, f"{url}-out")
    convert.convert(str(local_run), str(tmp_path / "out"))
    assert objects(f"{url}-out") == read(tmp_path / "out")


def test_places_that_cannot_be_used(url, theirs, tmp_path):
    bad = {
        ("gs://no-such-bucket/model", str(tmp_path / "a")): "--from=gs://no-such-bucket/model ",
        (f"{url}/none", str(tmp_path / "a")): f"--from={url}/none matches no object",
    }
    for arguments, said in bad.items():
        with pytest.raises(ConfigError) as refused:
            convert.convert(*arguments)
        assert_short_and_clear(str(refused.value), said)
    assert not (tmp_path / "a").exists()


def test_data_with_a_tokenizer_and_a_mixture_in_a_bucket(place, local_run, tmp_path):
    here = tmp_path / "data"
    here.mkdir()
    for split in ("train", "validation"):
        (here / f"{split}.txt").write_text("a b c\nd e f\n" * 20)
    upload_directory(here, f"{place}/data")
    # A run's directory has checkpoints as well, which are not copied.
    for name in ("tokenizer.json", "tokenizer_roles.json"):
        (remote_path(f"{place}/run") / name).write_bytes((local_run / name).read_bytes())
    (remote_path(f"{place}/run") / "checkpoints" / "large").write_bytes(b"x" * 1000)

    def load(data, tokenizer, cache):
        config = data_config(
            source="text_files", mixture=((f"text_files:{data}/*.txt", 1.0),), tokenizer=tokenizer,
            length=8, batch_size=2, cache_dir=str(tmp_path / cache), eval_split="validation",
        )  # fmt: skip
        masking = Masking(rate=0.15, mean_span=3.0, whole_words=False, next_sentence=False)
        return pipeline.load(config, objective="causal_lm", masking=masking, seed=0)

    local = load(here, str(local_run / "tokenizer.json"), "a")
    for tokenizer in (f"{place}/run", f"{place}/run/tokenizer.json"):
        remote = load(f"{place}/data", tokenizer, "b")
        assert remote.tokenizer_digest == local.tokenizer_digest
        ours, theirs = remote.train_batch(0), local.train_batch(0)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert not list((tmp_path / "b").rglob("large"))
    with pytest.raises(ConfigError, match=r"^data\.tokenizer=.*/none\.json matches no object"):
        load(here, f"{place}/run/none.json", "b")
    with pytest.raises(ConfigError, match=r"^data\.mixture: .*/none/\*\.txt matches no object"):
        load(f"{place}/none", "byte", "b")


def test_lines_and_answers_in_a_bucket(place, local_run, tmp_path):
    lines = "a [MASK]\n[MASK] b\n"
    (tmp_path / "in.txt").write_text(lines)
    (remote_path(place) / "in.txt").write_text(lines)
    command = ["generate.py", f"--workdir={local_run}", "--json"]
    local = scripts.run(*command, f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out.txt")
    assert local.code == 0, local.err
    ended = scripts.run(*command, f"--input={place}/in.txt", f"--output={place}/out.txt")
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert (remote_path(place) / "out.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()

    same = scripts.run(*command, f"--input={place}/in.txt", f"--output={place}/in.txt")
    assert_short_and_clear(same.err, f"--output={place}/in.txt is also --input")
    none = scripts.run(*command, f"--input={place}/none.txt")
    assert_short_and_clear(none.err, f"--input={place}/none.txt matches no object")
    scheme = place.partition("://")[0]
    nowhere = f"{scheme}://no-such-bucket/out.txt"
    ended = scripts.run(*command, f"--input={place}/in.txt", f"--output={nowhere}")
    assert_short_and_clear(ended.err, f"--output={nowhere} cannot be written")
    assert ended.code == 2
