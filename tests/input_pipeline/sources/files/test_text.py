import gzip
import itertools
import pickle

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.preparation import tokenized
from input_pipeline.sources.base import BadRecordError, MissingSplitError
from input_pipeline.sources.files import text
from input_pipeline.token_table import FeatureSpec
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from input_pipeline.tokenizers.train_vocabulary import train_tokenizer
from tests.input_pipeline.sources.files.test_reading import written
from tests.tiny import data_config, masking
from train import data_lines

# What a cut must not disturb: runs of white space of all kinds, in front of lines and behind them.
PARTS = (
    "word", " word", "  two", "don't", " 12", "3", "!", " ...", "é", " 漢字", "🙂", "。", "«",
    "\n", "\n", "\n\n", "\r\n", " \n", "\n  ", "\t", "\n\t", " ", "\u3000", "\n\u3000", "\u00a0",
)  # fmt: skip


def random_text(seed, count=400, parts=PARTS):
    return "".join(np.random.default_rng(seed).choice(parts, count))


def load(path, **keys):
    return text.load(data_config(source="text_files", path=str(path), **keys))


def eval_set(splits):
    (found,) = splits.evals.values()
    return found


def joined(*splits):
    return "".join(piece["text"] for pieces in splits for piece in pieces)


@pytest.fixture(params=[1, 7, 50])
def small_pieces(request, monkeypatch):
    monkeypatch.setattr(text, "PIECE", request.param)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_join_to_the_document(seed, small_pieces, tmp_path):
    content = random_text(seed)
    splits = load(written(tmp_path / "a.txt", content))
    assert joined(splits.train, eval_set(splits)) == content
    assert len(splits.train) > 5
    for pieces in (splits.train, eval_set(splits)):
        assert [piece["ends"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@pytest.mark.parametrize("vocabulary", ["byte", "bpe"])
@pytest.mark.parametrize("seed", range(5))
def test_pieces_have_the_tokens_of_the_document(seed, vocabulary, small_pieces, tmp_path):
    # Without the white space that only Unicode knows: there a token may differ at a cut.
    parts = [part for part in PARTS if part.isascii() or not part.isspace()]
    content = random_text(seed, parts=parts)
    tokenizer = ByteTokenizer()
    if vocabulary == "bpe":
        tokenizer = train_tokenizer("bpe", [random_text(9, 5000, parts)], 700)
    pieces = load(written(tmp_path / "a.txt", content), eval_share=1e-9).train
    table = tokenized(pieces, range(len(pieces)), tokenizer, FeatureSpec(("text",), closed=True))
    expected = [*tokenizer.encode(joined(pieces)), tokenizer.eos_id]
    assert table.stream("text").tolist() == expected
    assert len(pieces) > 5


def test_pieces_are_small_even_without_lines_or_words(tmp_path):
    for content in ("word " * 100_000, "漢" * 150_000, "x" * 500_000, "x\r\n" * 100_000):
        splits = load(written(tmp_path / "a.txt", content))
        sizes = [len(p["text"].encode()) for p in [*splits.train, *eval_set(splits)]]
        assert max(sizes) <= text.PIECE + text.SEARCH
        assert joined(splits.train, eval_set(splits)) == content


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_the_end_of_the_text_is_held_out(share, tmp_path):
    rng = np.random.default_rng(0)
    for n in range(4):
        lines = [f"{n} {'x' * rng.integers(30)}\n" for _ in range(2000)]
        written(tmp_path / f"{n}.txt", "".join(lines))
    splits = load(tmp_path, eval_share=share)
    full_text = "".join((tmp_path / f"{n}.txt").read_text() for n in range(4))
    assert joined(splits.train, eval_set(splits)) == full_text
    assert len(joined(eval_set(splits))) == pytest.approx(share * len(full_text), abs=40)
    assert splits.description["held_out_bytes"] == len(joined(eval_set(splits)).encode())
    # As many documents end as there are files, and one more where the text is divided.
    ends = [piece["ends"] for piece in itertools.chain(splits.train, eval_set(splits))]
    assert sum(ends) in (4, 5)
    assert splits.train[len(splits.train) - 1]["ends"]


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        ("train.txt", "validation.txt"),
        ("train.txt.gz", "validation.txt"),
        ("train/a.txt", "validation/a/b.md"),
        ("train-00000-of-00001.txt", "validation.part1.txt.gz"),
        ("train", "validation.txt.gz"),
    ],
)
def test_only_named_splits_are_used(train, validation, tmp_path):
    written(tmp_path / train, "to learn", zipped=train.endswith(".gz"))
    written(tmp_path / validation, "to judge by", zipped=validation.endswith(".gz"))
    digest = load(tmp_path).digest
    written(tmp_path / "test.txt", "to keep away from")
    written(tmp_path / "training.txt", "not a split")
    splits = load(tmp_path)
    assert [*splits.train] == [{"text": "to learn", "ends": True}]
    assert [*eval_set(splits)] == [{"text": "to judge by", "ends": True}]
    assert splits.digest == digest
    assert list(load(tmp_path, train_split="validation", eval_split="test").evals) == ["test"]


def test_no_file_is_in_two_splits(tmp_path):
    written(tmp_path / "train.txt", "to learn")
    written(tmp_path / "train_2.txt", "to judge by")
    splits = load(tmp_path, eval_split="train_2")
    assert (joined(splits.train), joined(eval_set(splits))) == ("to learn", "to judge by")


def test_one_split_without_the_other_is_refused(tmp_path):
    written(tmp_path / "train.txt", "to learn")
    written(tmp_path / "test.txt", "to keep away from")
    said = r"only one of .* it has: test\.txt, train\.txt\. Name"
    with pytest.raises(MissingSplitError, match=said) as refused:
        load(tmp_path)
    assert (refused.value.split, refused.value.known) == ("validation", ("test", "train"))


def test_the_digest_follows_the_content_and_the_splits(tmp_path):
    path = written(tmp_path / "a.txt", random_text(0))
    digest = load(path).digest
    assert load(path.rename(tmp_path / "b.txt")).digest == digest
    zipped = tmp_path / "c.txt"
    zipped.write_bytes(gzip.compress((tmp_path / "b.txt").read_bytes()))
    assert load(zipped).digest == digest
    assert load(zipped, eval_share=0.3).digest != digest
    assert load(written(zipped, random_text(1))).digest != digest


def test_a_file_that_changes_is_read_again(tmp_path):
    path = written(tmp_path / "a.txt", "one\n" * 100)
    assert joined(load(path).train).startswith("one")
    assert joined(load(written(path, "two\n" * 100)).train).startswith("two")


def test_a_byte_order_mark_is_no_text(tmp_path):
    splits = load(written(tmp_path / "a.txt", "\ufeffone\ntwo\n" * 2))
    assert joined(splits.train, eval_set(splits)) == "one\ntwo\n\ufeffone\ntwo\n"


def test_utf_16_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.txt is UTF-16, not UTF-8"):
        load(written(tmp_path / "a.txt", "a fine line\n".encode("utf-16-le")))


def test_an_editors_copy_of_a_split_is_not_trained_on(tmp_path):
    for name in ("train.txt", "train.txt~", "train.txt.bak"):
        written(tmp_path / name, "to learn")
    written(tmp_path / "validation.txt", "to judge by")
    assert [*load(tmp_path).train] == [{"text": "to learn", "ends": True}]


@pytest.mark.parametrize("named", [False, True])
def test_the_log_says_what_is_held_out_without_named_splits(named, tmp_path):
    directory = tmp_path / "text"
    for name in ("train.txt", "validation.txt") if named else ("a.txt", "b.txt"):
        written(directory / name, "a line of text\n" * 100)
    where = dict(path=str(directory), cache_dir=str(tmp_path / "cache"), eval_share=0.25)
    config = data_config(source="text_files", length=16, batch_size=2, prefetch=0, **where)
    data = pipeline.load(config, objective="causal_lm", masking=masking(), seed=0)
    line = "no named splits: the last 0.25 of the text is held out (data.eval_share)"
    assert (line in data_lines(data)) != named
    assert named != any("named splits" in each for each in data_lines(data))


def test_invalid_utf_8_is_refused_with_file_and_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "PIECE", 20)
    content = b"a fine line of text\n" * 10 + b"caf\xe9\n" + b"a fine line of text\n" * 10
    pieces = load(written(tmp_path / "a.txt", content)).train
    good, bad = [], []
    for index in range(len(pieces)):
        try:
            good.append(pieces[index])
        except BadRecordError as error:
            bad.append(str(error))
    assert len(good) > 5
    assert len(bad) == 1 and f"{tmp_path}/a.txt:11: not valid UTF-8" in bad[0]


def test_pieces_can_be_pickled(tmp_path):
    pieces = load(written(tmp_path / "a.txt", random_text(0))).train
    assert joined(pickle.loads(pickle.dumps(pieces))) == joined(pieces)
