import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import preparation
from input_pipeline.sources.base import BadRecordError
from input_pipeline.token_table import META, FeatureSpec, TokenTable
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.slow_preparation import (
    CHUNK,
    EXAMPLES,
    FEATURE_SPEC,
    SlowTokenizer,
    prepare,
)

ROOT = Path(__file__).resolve().parents[2]


def contents(cache_dir):
    """Every file under the cache, by path, as a digest."""
    files = [path for path in Path(cache_dir).rglob("*") if path.is_file()]
    return {
        str(path.relative_to(cache_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def the_table(cache_dir):
    (directory,) = Path(cache_dir).iterdir()
    return directory


def begun(cache_dir, seconds):
    command = [sys.executable, "-m", "tests.input_pipeline.slow_preparation"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([*command, str(cache_dir), str(seconds)], cwd=ROOT, **pipes)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What an undisturbed preparation leaves behind."""
    cache_dir = tmp_path_factory.mktemp("undisturbed")
    prepare(cache_dir, SlowTokenizer())
    return contents(cache_dir)


def test_the_table_holds_every_example(tmp_path):
    tokenizer = ByteTokenizer()
    table = prepare(tmp_path, tokenizer)
    assert len(table) == len(EXAMPLES)
    for index, example in enumerate(EXAMPLES):
        entry = table.entry(index)
        ids = [*tokenizer.encode(example["text"]), tokenizer.eos_id]
        assert (entry["text"].tolist(), entry["origin"]) == (ids, index)
    # On disk it is the same as in memory.
    features = FeatureSpec(("text",), closed=True)
    in_memory = preparation.tokenized(EXAMPLES, range(len(EXAMPLES)), tokenizer, features)
    for name, values in in_memory.arrays.items():
        np.testing.assert_array_equal(table.arrays[name], values)


def test_nothing_is_tokenized_twice(tmp_path):
    first, second = SlowTokenizer(), SlowTokenizer()
    prepare(tmp_path, first)
    assert first.texts == [example["text"] for example in EXAMPLES]
    prepare(tmp_path, second)
    assert second.texts == []


def test_the_cache_key_depends_on_everything_that_decides_ids():
    class Other(ByteTokenizer):
        sentinel_count = 99

    def key(source="source", split="train", tokenizer=None, features=FEATURE_SPEC):
        return preparation.PreparationJob(
            source, split, [], tokenizer or ByteTokenizer(), features
        ).key

    others = [
        key(source="other"),
        key(split="test"),
        key(tokenizer=Other()),
        key(features=FeatureSpec(("text",), ("label",))),
    ]
    assert len({key(), *others}) == 5
    assert key() == key()


def test_an_interrupted_preparation_resumes(tmp_path, expected):
    tokenizer = SlowTokenizer()
    tokenizer.fails_after = 7 * CHUNK
    with pytest.raises(RuntimeError, match="interrupted"):
        prepare(tmp_path, tokenizer)
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"], "no half table"
    tokenizer.fails_after, tokenizer.texts = None, []
    prepare(tmp_path, tokenizer)
    assert len(tokenizer.texts) == len(EXAMPLES) - 7 * CHUNK
    assert contents(tmp_path) == expected


def test_a_killed_preparation_resumes(tmp_path, expected):
    process = begun(tmp_path, seconds=0.2)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*.partial/*.npz"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    finished = len(list(tmp_path.glob("*.partial/*.npz")))
    assert 3 <= finished < len(EXAMPLES) // CHUNK
    tokenizer = SlowTokenizer()
    prepare(tmp_path, tokenizer)
    assert len(tokenizer.texts) == len(EXAMPLES) - finished * CHUNK
    assert contents(tmp_path) == expected


def test_two_processes_may_prepare_the_same_table(tmp_path, expected):
    processes = [begun(tmp_path, seconds) for seconds in (0.02, 0.03)]
    for process in processes:
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        assert out.split()[0] == str(len(EXAMPLES))
    assert contents(tmp_path) == expected


def test_a_process_that_comes_last_takes_what_the_other_has_made(tmp_path, expected):
    """The other process removes its chunks meanwhile."""

    class Overtaken(SlowTokenizer):
        def encode_batch(self, texts):
            if len(self.texts) == 4 * CHUNK:
                prepare(tmp_path, SlowTokenizer())
            return super().encode_batch(texts)

    tokenizer = Overtaken()
    assert len(prepare(tmp_path, tokenizer)) == len(EXAMPLES)
    assert len(tokenizer.texts) < len(EXAMPLES)
    assert contents(tmp_path) == expected


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-8])


def overwrite(path):
    path.write_bytes(b"\0" * 7)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut_short, overwrite, flip_a_bit, Path.unlink])
@pytest.mark.parametrize("name", ["ids.text", "ends.text", "number.origin", META])
def test_a_damaged_table_is_made_again(name, damage, tmp_path, expected, caplog):
    prepare(tmp_path, SlowTokenizer())
    damage(the_table(tmp_path) / name)
    with caplog.at_level("WARNING"):
        prepare(tmp_path, SlowTokenizer())
    assert "prepared data is damaged and will be made again" in caplog.text
    assert contents(tmp_path) == expected


@pytest.mark.parametrize("damage", [cut_short, overwrite, lambda path: path.write_bytes(b"")])
def test_a_damaged_chunk_is_made_again(damage, tmp_path, expected):
    tokenizer = SlowTokenizer()
    tokenizer.fails_after = 7 * CHUNK
    with pytest.raises(RuntimeError, match="interrupted"):
        prepare(tmp_path, tokenizer)
    damage(sorted(tmp_path.glob("*.partial/*.npz"))[2])
    tokenizer.fails_after, tokenizer.texts = None, []
    prepare(tmp_path, tokenizer)
    assert len(tokenizer.texts) == len(EXAMPLES) - 6 * CHUNK
    assert contents(tmp_path) == expected


def test_leftovers_of_dead_processes_are_removed(tmp_path, expected):
    prepare(tmp_path, SlowTokenizer())
    key = the_table(tmp_path).name
    shutil.rmtree(the_table(tmp_path))
    for left in (f"{key}.partial/abc.writing", f"{key}.making-123/ids.text"):
        (tmp_path / left).parent.mkdir()
        (tmp_path / left).write_bytes(b"half")
    prepare(tmp_path, SlowTokenizer())
    assert contents(tmp_path) == expected


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"data\.cache_dir=.* cannot be written \(Not a dir"):
        prepare(tmp_path / "file", SlowTokenizer())


class SomeBad:
    """The examples, of which these cannot be read."""

    def __init__(self, *bad):
        self._bad = bad

    def __len__(self):
        return len(EXAMPLES)

    def __getitem__(self, index):
        if index in self._bad:
            raise BadRecordError(f"a.txt:{index + 1}: bad")
        return EXAMPLES[index]


def refusal(cache_dir, examples, allowed):
    with pytest.raises(ConfigError) as refused:
        prepare(cache_dir, SlowTokenizer(), examples, max_bad_records=allowed)
    return str(refused.value)


def test_a_bad_record_is_refused_with_its_place(tmp_path):
    expected = "a.txt:18: bad; mend it, or raise data.max_bad_records (now 0) to skip such records"
    assert refusal(tmp_path, SomeBad(17, 40), 0) == expected
    assert refusal(tmp_path, SomeBad(17, 40), 0) == expected
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]


def test_more_bad_records_than_allowed_are_refused_with_their_number(tmp_path):
    expected = "a.txt:41: bad, bad record 3 after a.txt:18: bad; mend it, or raise data.max_bad_rec"
    assert refusal(tmp_path, SomeBad(17, 18, 40, 41, 42), 2).startswith(expected)


def test_as_many_bad_records_as_allowed_are_skipped_and_logged(tmp_path, caplog):
    for _ in ("made", "from the cache"):
        caplog.clear()
        with caplog.at_level("WARNING"):
            table = prepare(tmp_path, SlowTokenizer(), SomeBad(17, 40), max_bad_records=2)
        assert [r.message for r in caplog.records] == [f"skipped: a.txt:{n}: bad" for n in (18, 41)]
        assert table.numbers("origin").tolist() == [n for n in range(100) if n not in (17, 40)]
    # A run that allows fewer is refused, with the same message as without a prepared table.
    warm = refusal(tmp_path, SomeBad(17, 40), 1)
    assert warm == refusal(tmp_path / "another", SomeBad(17, 40), 1)
    assert refusal(tmp_path, SomeBad(17, 40), 0).startswith("a.txt:18: bad; mend it")


def test_a_table_of_bad_records_only_is_empty(tmp_path):
    table = prepare(tmp_path, SlowTokenizer(), SomeBad(*range(100)), max_bad_records=100)
    assert isinstance(table, TokenTable) and len(table) == 0 and len(table.bad) == 100
    assert len(table.stream("text")) == 0
