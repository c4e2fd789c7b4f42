import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import packing, token_cache
from input_pipeline.sources.base import BadRecordError, Splits
from input_pipeline.token_cache import TokenCache
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.corpora import load, write_corpus
from tests.tiny import data_config

TEXTS = [f"{n} {'once upon a time ' * 5}" for n in range(50)]


def splits(texts=TEXTS, digest="one"):
    examples = [{"text": text} for text in texts]
    return Splits("documents", examples, {"held_out": examples}, (), {}, digest)


def a_cache(directory, tokenizer="bpe", size=400):
    data = data_config(cache_dir=str(directory), tokenizer=tokenizer, tokenizer_size=size)
    return TokenCache(data)


@pytest.fixture
def trained(monkeypatch):
    """How many texts each tokenizer was trained on."""
    calls, train = [], token_cache.train_tokenizer

    def counted(kind, texts, size, **options):
        texts = list(texts)
        calls.append(len(texts))
        return train(kind, texts, size, **options)

    monkeypatch.setattr(token_cache, "train_tokenizer", counted)
    return calls


def test_a_tokenizer_is_trained_once(tmp_path, trained):
    first = a_cache(tmp_path).tokenizer([splits()])
    again = a_cache(tmp_path).tokenizer([splits()])
    assert trained == [50]
    assert first.digest == again.digest
    a_cache(tmp_path, size=401).tokenizer([splits()])
    a_cache(tmp_path, "wordpiece").tokenizer([splits()])
    a_cache(tmp_path).tokenizer([splits(TEXTS[:40], "two")])
    a_cache(tmp_path).tokenizer([splits(), splits(TEXTS[:40], "two")])
    assert trained == [50, 50, 50, 40, 90]
    assert isinstance(a_cache(tmp_path, "byte").tokenizer([splits()]), ByteTokenizer)


def test_a_tokenizer_learns_from_a_part_of_much_text(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(token_cache, "TRAINING_CHARACTERS", 10 * len(TEXTS[0]))
    a_cache(tmp_path).tokenizer([splits()])
    assert 10 <= trained[0] <= 11


def test_tokenizer_training_skips_bad_records(tmp_path, trained):
    class SomeBad(list):
        def __getitem__(self, index):
            if index == 3:
                raise BadRecordError("bad")
            return super().__getitem__(index)

    examples = SomeBad({"text": text} for text in TEXTS)
    a_cache(tmp_path).tokenizer([Splits("documents", examples, {}, (), {}, "bad")])
    assert trained == [49]


def test_a_tokenizer_that_is_neither_known_nor_a_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.tokenizer='bep' is no file .* mean 'bpe'\?"):
        a_cache(tmp_path, "bep").tokenizer([splits()])


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"data\.cache_dir=.* cannot be written \(Not a dir"):
        a_cache(tmp_path / "file").tokenizer([splits()])


def test_prepared_text_is_reused_until_something_changes(tmp_path):
    corpus = write_corpus(tmp_path)

    def new_tables(kind="pairs", **keys):
        before = set(corpus.glob("cache/*/table.json"))
        load(corpus, kind, **keys)
        return len(set(corpus.glob("cache/*/table.json")) - before)

    assert new_tables() == 2  # to train on, and held out
    assert new_tables(seed=5, batch_size=4, length=20, over_long="drop") == 0
    assert new_tables("prefixes") == 0  # another objective on the same fields
    assert new_tables(tokenizer="bpe", tokenizer_size=500) == 2
    assert new_tables("documents") == 2
    assert new_tables("masked") == 0
    assert new_tables(source_language="de", target_language="en") == 2
    path = corpus / "pairs/train.en"
    text = path.read_text()
    path.write_text(text.replace("<7>", "<8>"))
    assert new_tables() == 2
    path.write_text(text)
    assert new_tables() == 0


def test_a_plan_is_made_once_and_again_if_it_is_damaged(tmp_path, monkeypatch):
    calls, make = [], packing.plan

    def counted(sizes, capacities):
        calls.append(len(sizes))
        return make(sizes, capacities)

    monkeypatch.setattr(packing, "plan", counted)
    sizes = np.random.default_rng(0).integers(1, 30, (500, 1))

    def same(plan):
        expected = make(sizes, [64])
        return all(np.array_equal(*pair) for pair in zip(plan, expected, strict=True))

    assert same(a_cache(tmp_path).plan(sizes, [64]))
    assert same(a_cache(tmp_path).plan(sizes, [64]))
    assert calls == [500]
    (directory,) = tmp_path.iterdir()
    file = directory / "plan.npz"
    file.write_bytes(file.read_bytes()[:-50])
    assert same(a_cache(tmp_path).plan(sizes, [64]))
    assert same(a_cache(tmp_path).plan(sizes, [64]))
    assert calls == [500, 500]
    a_cache(tmp_path).plan(sizes, [65])
    a_cache(tmp_path).plan(sizes[1:], [64])
    assert calls == [500, 500, 500, 499]
