"""Packed rows, bucketed batches and too long examples, through the pipeline."""

import collections

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline.shuffle import sampled
from tests.input_pipeline.corpora import COUNT, load, numbers, segments, write_corpus
from tests.input_pipeline.sources.files.test_reading import written

FIELDS = {
    "pairs": ("encoder_inputs", "inputs", "targets", "weights"),
    "prefixes": ("inputs", "targets", "weights", "prefix"),
}
LENGTH = 48


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def batches(data, epochs=1):
    """Batches of one row, for that many epochs."""
    return [data.train_batch(n) for n in range(epochs * data.description["train_rows"])]


def examples(data, fields):
    """All examples of an epoch: the fields of each, without padding."""
    for batch in batches(data):
        if "segment_ids" not in batch:  # text read from left to right, alone in its row
            batch["segment_ids"] = (batch["targets"] > 0).astype(int)
        parts = [segments(batch, field) for field in fields]
        yield from zip(*([tuple(ids.tolist()) for ids in part] for part in parts), strict=True)


@pytest.mark.parametrize("kind", FIELDS)
def test_packing_does_not_change_examples(corpus, kind):
    alone = load(corpus, kind, batch_size=1)
    packed = load(corpus, kind, batch_size=1, packing=True)
    assert sorted(examples(packed, FIELDS[kind])) == sorted(examples(alone, FIELDS[kind]))


@pytest.mark.parametrize("kind", ["pairs", "prefixes", "documents", "masked", "tasks"])
def test_segments_are_numbered_and_positions_start_again(corpus, kind):
    data = load(corpus, kind, batch_size=1, packing=True)
    for batch in batches(data):
        prefixes = [prefix for prefix in ("", "encoder_") if f"{prefix}inputs" in batch]
        for prefix in prefixes:
            (marks,), (positions,) = batch[f"{prefix}segment_ids"], batch[f"{prefix}positions"]
            sizes = np.bincount(marks)[1:]
            assert (sizes > 0).all()
            laid = [np.repeat(np.arange(1, len(sizes) + 1), sizes), np.zeros(LENGTH - sizes.sum())]
            np.testing.assert_array_equal(marks, np.concatenate(laid))
            laid = [*map(np.arange, sizes), np.zeros(LENGTH - sizes.sum())]
            np.testing.assert_array_equal(positions, np.concatenate(laid))
        if len(prefixes) == 2:  # both hold the same examples
            assert numbers(data, batch, "encoder_inputs") == numbers(data, batch, "targets")


def test_evaluation_separates_documents_as_training_does(corpus):
    texts = [path.read_text() for path in sorted((corpus / "documents/validation").iterdir())]

    def shown(**keys):
        data = load(corpus, "documents", **keys)
        examples = data.eval_examples("validation", 1000)
        in_place = np.argsort(sampled(len(examples), len(examples)))
        return [examples[place]["text"] for place in in_place]

    assert "".join(shown()) == "".join(shown(packing=True)) == "".join(texts)
    assert [row for row in shown(packing=True) if row.startswith("<")][:3] == [
        text[:LENGTH] for text in texts[:3]
    ]
    assert len(shown(packing=True)) == sum(-(-(len(text) + 1) // LENGTH) for text in texts)
    assert len(shown()) == -(-sum(len(text) + 1 for text in texts) // LENGTH)


def test_ordinary_text_fills_packed_rows(tmp_path):
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"etaoinshrdlu"], rng.integers(2, 9))) for _ in range(500)]
    for name in ("train.en", "train.de", "validation.en", "validation.de"):
        lines = [" ".join(rng.choice(words, rng.integers(4, 30))) for _ in range(2000)]
        written(tmp_path / "pairs" / name, "\n".join(lines))
    data = load(tmp_path, "prefixes", length=512, batch_size=1, packing=True)
    assert np.mean([batch["segment_ids"] > 0 for batch in batches(data)]) > 0.95


def test_bucketed_batches_have_the_announced_shapes_and_cut_nothing(corpus):
    plain = load(corpus, "pairs", batch_size=1)
    buckets = load(corpus, "pairs", batch_size=1, buckets=(16, 24))
    shapes = collections.Counter(
        (batch["inputs"].shape, batch["encoder_inputs"].shape) for batch in batches(buckets)
    )
    assert shapes.keys() == {((1, n), (1, n)) for n in (16, 24, LENGTH)}
    fields = FIELDS["pairs"]
    assert sorted(examples(buckets, fields)) == sorted(examples(plain, fields))


@pytest.mark.parametrize(
    ("what", "keys", "expected"),
    [
        # Nothing but pairs has a source, whose length would matter.
        ("labelled", dict(buckets=(16, 24), encoder_length=4 * LENGTH), [16, 24, LENGTH]),
        ("labelled", dict(buckets=(16, 24, 4 * LENGTH)), [16, 24, LENGTH]),
        ("labelled", dict(buckets=(1, 16, LENGTH)), [16, LENGTH]),  # no text is so short
        ("pairs", dict(buckets=(16, 24), encoder_length=2 * LENGTH), [16, 24, 2 * LENGTH]),
    ],
)
def test_only_lengths_that_batches_have_are_announced(corpus, what, keys, expected):
    data = load(corpus, what, batch_size=1, **keys)
    fields = ("inputs", "encoder_inputs") if what == "pairs" else ("inputs",)
    columns = {max(batch[name].shape[1] for name in fields) for batch in batches(data)}
    assert data.description["padded_to"] == sorted(columns) == expected


def test_buckets_save_padding(corpus):
    def cells(**keys):
        data = load(corpus, "labelled", **keys)
        return sum(data.train_batch(n)["inputs"].size for n in range(50))

    assert cells(buckets=(16, 24)) < 0.7 * cells()
    assert cells(bucket_count=3) < 0.7 * cells()


def test_buckets_chosen_from_the_data_hold_all_of_it(corpus):
    plain = load(corpus, "pairs", batch_size=1)
    chosen = load(corpus, "pairs", batch_size=1, bucket_count=3)
    lengths = chosen.description["padded_to"]
    assert len(lengths) == 3 and "padded_to" not in plain.description
    assert {batch["inputs"].shape[1] for batch in batches(chosen)} == set(lengths)
    fields = FIELDS["pairs"]
    assert sorted(examples(chosen, fields)) == sorted(examples(plain, fields))
    same = load(corpus, "pairs", batch_size=1, buckets=tuple(lengths))
    for n in range(40):
        ours, theirs = chosen.train_batch(n), same.train_batch(n)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def too_long(corpus, length, encoder_length):
    """Which pairs do not fit, with an eos after source and target."""
    texts = [
        (corpus / f"pairs/train.{language}").read_text().splitlines() for language in ("en", "de")
    ]
    source, target = (np.array([len(line.strip()) for line in lines]) for lines in texts)
    return (source + 1 > encoder_length) | (target + 1 > length)


@pytest.mark.parametrize("over_long", ["truncate", "drop"])
def test_examples_that_are_too_long_are_counted_and_change_no_shape(corpus, over_long):
    data = load(corpus, "pairs", length=20, encoder_length=24, over_long=over_long, batch_size=1)
    cut = too_long(corpus, 20, 24)
    assert 10 < cut.sum() < COUNT - 10
    assert data.description["too_long"]["train"] == cut.sum()
    indices = []
    for batch in batches(data):
        assert batch["targets"].shape == (1, 20) and batch["encoder_inputs"].shape == (1, 24)
        indices += numbers(data, batch)
    expected = range(COUNT) if over_long == "truncate" else np.flatnonzero(~cut)
    assert sorted(indices) == list(expected)


def test_over_long_split_continues_text_in_the_next_row(corpus):
    """masked_lm on labelled text: nothing is lost, and the shapes stay."""
    keys = dict(objective="masked_lm", length=12, batch_size=1)
    data = load(corpus, "labelled", over_long="split", **keys)
    lines = (corpus / "labelled/train.tsv").read_text().splitlines()
    texts = [line.partition("\t")[2] for line in lines]
    rows = [data.tokenizer.decode(batch["targets"][0]) for batch in batches(data)]
    assert all(batch["inputs"].shape == (1, 12) for batch in batches(data))
    expected = [text[i : i + 10] for text in texts for i in range(0, len(text), 10)]
    assert sorted(rows) == sorted(expected)
    assert data.description["too_long"]["train"] == sum(len(text) > 10 for text in texts)


def test_a_split_of_which_nothing_fits_is_refused(corpus):
    with pytest.raises(
        ConfigError, match=rf"'train' .* leaves no rows \({COUNT} entries, {COUNT} "
    ):
        load(corpus, "pairs", length=3, over_long="drop")


@pytest.mark.parametrize(
    "keys",
    [dict(packing=True), dict(buckets=(9,)), dict(bucket_count=2), dict(over_long="drop")],
)
def test_options_that_need_all_lengths_are_refused_for_generated_examples(corpus, keys):
    with pytest.raises(ConfigError, match=r"data\.source='dates' generates its examples on demand"):
        load(corpus, "pairs", source="dates", **keys)


def test_bad_records_are_described(tmp_path):
    write_corpus(tmp_path)
    path = tmp_path / "pairs/train.en"
    lines = path.read_text().splitlines()
    lines[3] = lines[50] = ""
    path.write_text("\n".join(lines) + "\n")
    data = load(tmp_path, "pairs", max_bad_records=2, batch_size=1)
    assert data.description["bad_records"] == {"train": 2, "validation": 0}
    indices = [number for batch in batches(data) for number in numbers(data, batch)]
    assert sorted(indices) == [n for n in range(COUNT) if n not in (3, 50)]
