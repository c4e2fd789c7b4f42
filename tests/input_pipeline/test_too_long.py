"""Log lines about too long examples, against lengths counted here."""

import numpy as np
import pytest

from input_pipeline import too_long
from tests.input_pipeline.corpora import COUNT, load, write_corpus
from train import data_lines
from training.compilation import shapes_line


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def lengths(corpus, split, language):
    """Tokens of each line, with eos: a byte is one."""
    lines = (corpus / f"pairs/{split}.{language}").read_text().splitlines()
    return np.array([len(line) + 1 for line in lines])


@pytest.mark.parametrize(
    ("over_long", "done"), [("truncate", "truncated to"), ("drop", "dropped, above")]
)
def test_the_log_counts_too_long_examples_and_names_the_key_to_raise(corpus, over_long, done):
    data = load(corpus, "pairs", length=20, encoder_length=24, over_long=over_long)
    source, target = lengths(corpus, "train", "en"), lengths(corpus, "train", "de")
    eval_target = lengths(corpus, "validation", "de")
    assert (source > 24).any() and (target > 20).any() and (eval_target > 20).any()
    lines = data_lines(data)
    assert lines[0].startswith("data: ") and "too long" not in lines[0]
    assert (
        f"too long: {(source > 24).sum()} of {COUNT} sources of train were {done} "
        f"data.encoder_length=24 tokens; the longest has {source.max()}: raise "
        "data.encoder_length to keep all"
    ) in lines
    assert (
        f"too long: {(target > 20).sum()} of {COUNT} targets of train were {done} "
        f"data.length=20 tokens; the longest has {target.max()}: raise data.length to keep all"
    ) in lines
    # Whatever is done to training examples, held-out ones are truncated.
    assert (
        f"too long: {(eval_target > 20).sum()} of {len(eval_target)} targets of validation were "
        f"truncated to data.length=20 tokens; the longest has {eval_target.max()}: raise "
        "data.length to keep all; a truncated target counts as wrong in exact_match, and bleu, "
        "chrf and rouge compare with the full target"
    ) in lines


def test_the_log_says_that_a_batch_is_larger_than_the_training_set(corpus):
    def said(batch_size, **keys):
        data = load(corpus, "labelled", batch_size=batch_size, **keys)
        lines = [line for line in data_lines(data) if "data.batch_size" in line]
        rows = data.description["train_rows"]
        return rows, lines, data.train_batch(0)["weights"].sum()

    rows, lines, _ = said(4)
    assert lines == [] and said(rows)[1] == []
    _, lines, weight = said(rows + 1)
    assert lines == [
        f"data.batch_size={rows + 1} is more than all rows: "
        "a batch holds the training set more than once"
    ]
    assert weight == rows + 1
    _, lines, weight = said(rows + 1, buckets=(16,))
    assert lines == [
        f"data.batch_size={rows + 1} is more than all rows: "
        "no batch is full, and the rest of its rows have weight 0"
    ]
    assert weight < rows


def test_parts_of_a_mixture_are_counted_together(corpus):
    (target,) = [
        each
        for each in load(corpus, "tasks", length=20, encoder_length=99).description["over_long"]
        if each["split"] == "train"
    ]
    expected = lengths(corpus, "train", "de")
    assert (target["what"], target["total"]) == ("targets", COUNT)
    assert target["count"] == (expected > 20).sum() and target["longest"] == expected.max()


def test_nothing_is_logged_when_every_example_fits(corpus):
    for kind in ("pairs", "documents", "labelled"):
        assert too_long.lines(load(corpus, kind, length=99, encoder_length=99).description) == []
    assert too_long.lines(load(corpus, "documents", length=8).description) == []  # it goes on


@pytest.mark.parametrize("kind", ["pairs", "prefixes"])
def test_eval_batches_mark_truncated_targets(corpus, kind):
    data = load(corpus, kind, length=24, encoder_length=48)
    (batch,) = data.eval_batches("validation", 9)
    full_targets = [example["target"] for example in data.eval_examples("validation", 9)]
    decoded = [
        data.tokenizer.decode(row[weights > 0])
        for row, weights in zip(batch["targets"], batch["weights"], strict=True)
    ]
    cut = [text != target for text, target in zip(decoded, full_targets, strict=True)]
    assert batch["target_cut"].tolist() == cut and 0 < sum(cut) < 9


def test_the_compilation_log_names_shapes_and_bucket(corpus):
    data = load(corpus, "labelled", buckets=(12, 20))
    made = {}
    for n in range(40):
        batch = data.train_batch(n)
        made[batch["inputs"].shape[1]] = shapes_line(batch, 8, data.bucket_of(batch))
    assert made == {
        12: "inputs 8 x 12 (bucket 1 of 3)",
        20: "inputs 8 x 20 (bucket 2 of 3)",
        48: "inputs 8 x 48 (bucket 3 of 3)",
    }
    data = load(corpus, "labelled", bucket_count=2)
    batches = map(data.train_batch, range(40))
    assert {data.bucket_of(batch) for batch in batches} == {(1, 2), (2, 2)}
    # Rows are those of the whole batch, of which a process has its share.
    share = load(corpus, "pairs", process_count=2)
    batch = share.train_batch(0)
    shown = shapes_line(batch, 8, share.bucket_of(batch))
    assert shown == "encoder_inputs 8 x 48, inputs 8 x 48"
