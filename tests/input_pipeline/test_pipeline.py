import dataclasses
import re

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources.base import Splits
from input_pipeline.tokenizers.special_tokens import Template
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.stand_in import stand_in
from tests.tiny import data_config, masking

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
SMALL = {
    "dates": Splits(
        "pairs",
        [{"source": f"source {i}", "target": f"{i:03}"} for i in range(30)],
        {"held_out": [{"source": f"held out {i}", "target": f"{i:03}"} for i in range(7)]},
        (),
        {},
        "pairs",
        "memory",
    ),
    "pydoc": Splits(
        "documents",
        [{"text": f"{i} {TEXT}"} for i in range(3)],
        {"held_out": [{"text": "hélas"}, {"text": TEXT[:100]}]},
        (),
        {},
        "documents",
        "memory",
    ),
    "names": Splits(
        "labelled",
        [{"text": f"name {i}", "label": i % 2} for i in range(30)],
        {"held_out": [{"text": f"held out {i}", "label": i % 2} for i in range(7)]},
        ("even", "odd"),
        {},
        "labelled",
        "memory",
    ),
    "digits": Splits(
        "images",
        [{"image": np.full((2, 2, 1), i, np.float32), "label": i} for i in range(30)],
        {"held_out": [{"image": np.full((2, 2, 1), i, np.float32), "label": i} for i in range(7)]},
        tuple(map(str, range(30))),
        {},
        "images",
    ),
}
EVERY_TASK = [
    ("dates", "seq2seq", {}),
    ("dates", "prefix_lm", {}),
    ("pydoc", "causal_lm", {}),
    ("pydoc", "fill_in_middle", {}),
    ("pydoc", "prefix_lm", {}),
    ("pydoc", "masked_lm", {}),
    ("pydoc", "masked_lm", {"next_sentence": True}),
    ("pydoc", "span_corruption", {}),
    ("names", "classify_text", {}),
    ("names", "masked_lm", {}),
    ("digits", "classify_images", {}),
]


@pytest.fixture(autouse=True)
def small_sources(monkeypatch):
    for name, splits in SMALL.items():
        stand_in(monkeypatch, name, splits)


def load(
    source,
    objective,
    *,
    seed=0,
    process_index=0,
    process_count=1,
    next_sentence=False,
    evaluate_on_train=False,
    **keys,
):
    sizes = dict(batch_size=8, length=24, encoder_length=32, prefetch=2)
    return pipeline.load(
        data_config(source=source, **{**sizes, **keys}),
        objective=objective,
        masking=masking(next_sentence=next_sentence),
        seed=seed,
        process_index=process_index,
        process_count=process_count,
        evaluate_on_train=evaluate_on_train,
    )


def assert_equal(batch, other):
    assert set(batch) == set(other)
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


@pytest.mark.parametrize(("source", "objective", "keys"), EVERY_TASK)
def test_the_processes_together_build_the_batch_of_one(source, objective, keys):
    one_process = load(source, objective, **keys)
    for count in (2, 4):
        parts = [
            load(source, objective, process_index=i, process_count=count, **keys)
            for i in range(count)
        ]
        for n in (0, 3, 1000):  # 3 runs over the end of the first epoch
            batches = [part.train_batch(n) for part in parts]
            joined = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
            assert_equal(one_process.train_batch(n), joined)
        evals = [part.eval_batches("held_out", 4) for part in parts]
        for k, batch in enumerate(one_process.eval_batches("held_out", 4)):
            joined = {name: np.concatenate([e[k][name] for e in evals]) for name in batch}
            assert_equal(batch, joined)


@pytest.mark.parametrize(("source", "objective", "keys"), EVERY_TASK)
def test_shapes_and_types_never_change(source, objective, keys):
    data = load(source, objective, **keys)
    evals = [dict(batch) for batch in data.eval_batches("held_out", 8)]
    for batch in evals if source == "dates" else ():
        assert batch.pop("target_cut").shape == (8,)  # which evaluation alone has to know
    batches = [*(data.train_batch(n) for n in range(20)), *evals]
    layouts = [{name: (v.shape, v.dtype) for name, v in batch.items()} for batch in batches]
    assert all(layout == layouts[0] for layout in layouts)
    for name, (shape, dtype) in layouts[0].items():
        assert shape[0] == 8
        assert dtype == (np.float32 if name in ("weights", "images") else np.int32)


def test_packed_documents_have_their_middle_last_within_their_segment():
    data = load("pydoc", "fill_in_middle", packing=True)
    sentinels = data.tokenizer.sentinel_ids[:3]
    rearranged = plain = 0
    for n in range(5):
        batch = data.train_batch(n)
        for row in range(8):
            marks = batch["segment_ids"][row]
            for mark in range(1, marks.max() + 1):
                columns = marks == mark
                targets, weights = batch["targets"][row][columns], batch["weights"][row][columns]
                np.testing.assert_array_equal(batch["positions"][row][columns], range(len(targets)))
                is_sentinel = np.isin(targets, sentinels)
                assert is_sentinel.sum() in (0, 3)
                np.testing.assert_array_equal(weights, ~is_sentinel)
                if is_sentinel.any():
                    assert targets[0] == sentinels[0] and targets[-1] == data.tokenizer.eos_id
                    assert (targets == data.tokenizer.eos_id).sum() == 1
                rearranged += is_sentinel.any()
                plain += not is_sentinel.any()
    assert min(rearranged, plain) > 5


@pytest.mark.parametrize("process_count", [1, 2, 4])
def test_every_example_occurs_once_per_epoch(process_count):
    parts = [
        load("digits", "classify_images", process_index=i, process_count=process_count)
        for i in range(process_count)
    ]
    batches = [[part.train_batch(n)["labels"] for part in parts] for n in range(15)]
    all_labels = np.concatenate([labels for batch in batches for labels in batch])
    epochs = all_labels.reshape(4, 30)  # 15 batches of 8 are 4 epochs of 30
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(30), (4, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_batch_depends_on_seed_and_number_only():
    data = load("pydoc", "masked_lm")
    third = data.train_batch(3)
    data.train_batch(9)
    assert_equal(third, data.train_batch(3))
    assert_equal(third, load("pydoc", "masked_lm").train_batch(3))
    for other in (data.train_batch(4), load("pydoc", "masked_lm", seed=1).train_batch(3)):
        assert not np.array_equal(third["inputs"], other["inputs"])


def test_masks_change_each_epoch_in_training_and_never_in_evaluation():
    data = load("names", "masked_lm", batch_size=30)
    first, second = data.train_batch(0), data.train_batch(1)
    order = [np.lexsort(batch["targets"].T) for batch in (first, second)]
    np.testing.assert_array_equal(first["targets"][order[0]], second["targets"][order[1]])
    assert not np.array_equal(first["weights"][order[0]], second["weights"][order[1]])
    other_seed = load("names", "masked_lm", seed=5)
    for batch, same in zip(
        data.eval_batches("held_out", 4), other_seed.eval_batches("held_out", 4), strict=True
    ):
        assert_equal(batch, same)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_iterator_gives_the_numbered_batches(prefetch):
    data = load("dates", "seq2seq", prefetch=prefetch)
    batches = list(data.train_iterator(5, 12))
    assert len(batches) == 7
    for n, batch in enumerate(batches, start=5):
        assert_equal(batch, data.train_batch(n))
    assert list(data.train_iterator(5, 5)) == []


@pytest.mark.parametrize(("source", "objective", "keys"), EVERY_TASK)
def test_evaluation_counts_every_row_once(source, objective, keys):
    data = load(source, objective, **keys)
    rows = data.description["eval_rows"]["held_out"]
    batches = data.eval_batches("held_out", 4)
    assert len(batches) == -(-rows // 4)
    weights = np.concatenate([batch["weights"] for batch in batches])
    real = weights.reshape(len(weights), -1).any(axis=1)
    assert real.tolist() == [True] * rows + [False] * (4 * len(batches) - rows)
    assert len(data.eval_batches("held_out", 4, max_batches=1)) == 1


@pytest.mark.parametrize(("source", "objective", "keys"), EVERY_TASK)
def test_training_rows_are_evaluated_as_if_they_were_held_out(source, objective, keys, monkeypatch):
    if source == "digits":
        keys = {**keys, "flip": True, "crop_padding": 1}
    if source == "names":
        keys = {**keys, "over_long": "drop", "length": 9}
    data = load(source, objective, evaluate_on_train=True, **keys)
    assert data.eval_names == ("train",)
    train_as_eval = dataclasses.replace(SMALL[source], evals={"held_out": SMALL[source].train})
    stand_in(monkeypatch, source, train_as_eval)
    expected = load(source, objective, **keys).eval_batches("held_out", 8)
    for batch, other in zip(data.eval_batches("train", 8), expected, strict=True):
        assert_equal(batch, other)


def test_training_rows_that_are_made_on_demand_are_evaluated_without_making_all_of_them():
    data = load("listops", "classify_text", evaluate_on_train=True, length=128)
    (batch,) = data.eval_batches("train", 4, 1)
    texts = [example["text"] for example in data.eval_examples("train", 4)]
    assert [data.tokenizer.decode(row) for row in batch["inputs"]] == texts


def test_evaluation_rows_are_in_the_order_of_the_examples():
    data = load("dates", "seq2seq")
    targets = np.concatenate([b["targets"] for b in data.eval_batches("held_out", 4)])
    examples = data.eval_examples("held_out", 100)
    assert len(examples) == 7
    assert [data.tokenizer.decode(row) for row in targets[:7]] == [e["target"] for e in examples]
    assert data.eval_names == ("held_out",)


def test_evaluation_examples_of_running_text_are_the_windows():
    data = load("pydoc", "causal_lm", length=6)
    shown = [example["text"] for example in data.eval_examples("held_out", 1000)]
    assert len(shown) == data.description["eval_rows"]["held_out"]
    assert {"hélas", TEXT[:5], TEXT[5:11]} <= set(shown) and len("".join(shown)) == 105


def test_eval_bytes_are_the_bytes_of_the_text():
    data = load("pydoc", "causal_lm")
    assert data.eval_bytes("held_out", 4) == len("hélas".encode()) + 100
    # One batch of one window of 24 ids holds one eos.
    assert data.eval_bytes("held_out", 1, max_batches=1) == 23


@pytest.mark.parametrize("tokenizer", ["bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("packing", [False, True])
def test_eval_bytes_are_those_of_the_text_whatever_the_tokenizer(tokenizer, packing, monkeypatch):
    documents = [{"text": f"  hélas\t月 Größe, {i}\n" * 5} for i in range(4)] + [{"text": " \n "}]
    documents[2]["ends"] = False
    splits = Splits("documents", documents, {"held_out": documents}, (), {}, tokenizer, "memory")
    stand_in(monkeypatch, "pydoc", splits)
    keys = dict(tokenizer=tokenizer, tokenizer_size=400, length=8, packing=packing)
    data = load("pydoc", "causal_lm", **keys)
    assert data.eval_bytes("held_out", 4) == sum(len(d["text"].encode()) for d in documents)
    batches = len(data.eval_batches("held_out", 4))
    counts = [data.eval_bytes("held_out", 4, n) for n in range(1, batches + 1)]
    assert counts == sorted(counts) and 0 < counts[0] < counts[-1] == data.eval_bytes("held_out", 4)


@pytest.mark.parametrize("objective", ["causal_lm", "prefix_lm"])
@pytest.mark.parametrize("template", [None, Template(), Template(prefix=(1, 4))])
def test_only_what_is_predicted_counts_as_bytes(objective, template, monkeypatch):
    """Neither prefixes nor, where no special id begins a row, its first id."""
    monkeypatch.setattr(ByteTokenizer, "template", template)
    data = load("pydoc", objective)
    batches = data.eval_batches("held_out", 4)
    eos = data.tokenizer.eos_id
    said = sum((batch["weights"] * (batch["targets"] != eos)).sum() for batch in batches)
    assert data.eval_bytes("held_out", 4) == said


def test_eval_bytes_of_pairs_count_the_targets():
    data = load("dates", "prefix_lm")
    assert data.eval_bytes("held_out", 4) == 7 * 3
    # Of six columns sep and eos take two; source and target share the rest.
    assert load("dates", "prefix_lm", length=6).eval_bytes("held_out", 4) == 7 * 2


def test_next_sentences_are_neighbours_or_from_another_row(monkeypatch):
    documents = [{"text": " ".join(f"<{100 * d + s}>." for s in range(60))} for d in range(3)]
    splits = Splits("documents", documents, {"held_out": documents}, (), {}, "", "memory")
    stand_in(monkeypatch, "pydoc", splits)
    data = load("pydoc", "masked_lm", next_sentence=True, batch_size=64, length=60)
    batch = data.train_batch(0)
    for row, types, follows in zip(
        batch["targets"], batch["token_types"], batch["next_sentence"], strict=True
    ):
        halves = data.tokenizer.decode(row[types == 0]), data.tokenizer.decode(row[types == 1])
        first, second = ([int(n) for n in re.findall(r"<(\d+)>", half)] for half in halves)
        assert first == list(range(first[0], first[0] + len(first)))
        assert second == list(range(second[0], second[0] + len(second)))
        assert (second[0] == first[-1] + 1) == follows
    assert 16 < batch["next_sentence"].sum() < 48


def test_half_of_the_training_rows_of_a_classifier_have_masked_tokens():
    data = pipeline.load(
        data_config(source="names", batch_size=300, length=24),
        objective="classify_text",
        masking=masking(auxiliary=True),
        seed=0,
    )
    batch = data.train_batch(0)
    masked = batch["token_weights"].any(axis=1)
    assert 0.4 < masked.mean() < 0.6
    unchanged = (batch["inputs"] == batch["targets"]).all(axis=1)
    assert unchanged[~masked].all() and unchanged[masked].mean() < 0.2
    assert set(data.eval_batches("held_out", 4)[0]) == {
        "inputs", "segment_ids", "labels", "weights"
    }  # fmt: skip


def test_the_data_describes_itself():
    data = load("digits", "classify_images")
    assert data.tokenizer is None and data.image_shape == (2, 2, 1) and len(data.labels) == 30
    data = load("names", "classify_text", length=12)
    assert data.labels == ("even", "odd") and data.image_shape is None
    assert data.description["too_long"] == {"train": 0, "held_out": 0}
    short = load("names", "classify_text", length=8)
    assert short.description["too_long"] == {"train": 20, "held_out": 7}


def test_the_digest_follows_the_source_and_nothing_of_the_run():
    digest = load("names", "classify_text").digest
    assert load("names", "masked_lm", seed=4, batch_size=16).digest == digest
    assert load("pydoc", "masked_lm").digest != digest


def test_batches_that_processes_cannot_share_are_refused():
    with pytest.raises(ConfigError, match=r"data\.batch_size=8 .* 3 processes.*multiple of 3"):
        load("dates", "seq2seq", process_count=3)
    with pytest.raises(ConfigError, match=r"eval\.batch_size=5 .* 2 processes"):
        load("dates", "seq2seq", process_count=2).eval_batches("held_out", 5)
