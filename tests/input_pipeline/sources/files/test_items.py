import pickle
import re

import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources.base import BadRecordError
from input_pipeline.sources.files import items
from tests.input_pipeline.sources.files.test_reading import written
from tests.tiny import data_config, masking

TRAIN = "first\ttea milk sugar\nsecond\ttea  milk\ncoffee milk tea milk\n"


def config(directory, train=TRAIN, validation="tea coffee\nmilk lemon tea\n", **keys):
    written(directory / "train.tsv", train)
    written(directory / "validation.tsv", validation)
    where = dict(path=str(directory), cache_dir=str(directory / "cache"))
    sizes = dict(batch_size=2, length=8, prefetch=0, tokenizer="item")
    return data_config(**{"source": "item_files", **where, **sizes, **keys})


def load(data):
    return pipeline.load(data, objective="masked_items", masking=masking(), seed=0)


def test_lines_with_and_without_a_name(tmp_path):
    splits = items.load(config(tmp_path))
    assert [*splits.train] == [
        {"text": "tea milk sugar", "name": "first"},
        {"text": "tea milk", "name": "second"},
        {"text": "coffee milk tea", "name": ""},  # an item counts once
    ]
    assert [*pickle.loads(pickle.dumps(splits.train))] == [*splits.train]


def test_ordered_items_keep_their_repetitions(tmp_path):
    splits = items.load(config(tmp_path, options={"ordered": True}))
    assert splits.train[2]["text"] == "coffee milk tea milk"
    assert splits.digest != items.load(config(tmp_path)).digest


@pytest.mark.parametrize("separator", [",", "\t", " | "])
def test_items_may_contain_spaces(tmp_path, separator):
    text = f"green tea{separator}milk\nmilk {separator} cane sugar\n"
    data = load(config(tmp_path, text, text, options={"separator": separator}))
    assert sorted(data.tokenizer.pieces[id] for id in data.tokenizer.text_ids) == [
        "cane sugar", "green tea", "milk",
    ]  # fmt: skip
    ids = data.tokenizer.encode(f" milk{separator} green tea ")
    assert [data.tokenizer.pieces[id] for id in ids] == ["milk", "green tea"]


def test_the_vocabulary_is_that_of_training_by_frequency(tmp_path):
    tokenizer = load(config(tmp_path)).tokenizer
    pieces = [tokenizer.pieces[id] for id in tokenizer.text_ids]
    assert pieces == ["milk", "tea", "coffee", "sugar"]  # equally frequent items by name
    assert tokenizer.encode("lemon").tolist() == [tokenizer.unknown_id]
    assert tokenizer.unspelt("milk lemon tea") == "lemon"
    assert tokenizer.sentinel_count == 0


def test_a_full_vocabulary_leaves_out_rare_items(tmp_path):
    tokenizer = load(config(tmp_path, tokenizer_size=9)).tokenizer
    assert [tokenizer.pieces[id] for id in tokenizer.text_ids] == ["milk", "tea"]


def test_evaluation_masks_the_last_item_and_leaves_out_unknown_ones(tmp_path):
    data = load(config(tmp_path))
    batch = data.eval_batches("validation", 2)[0]
    pieces, rows = data.tokenizer.pieces, {}
    assert (batch["weights"] == [1, 0, 0, 0]).all()
    for inputs, predicted, targets in zip(
        batch["inputs"], batch["predicted"][:, 0], batch["targets"][:, 0], strict=True
    ):
        assert inputs[predicted] == data.tokenizer.mask_id
        rows[pieces[targets]] = [pieces[id] for id in inputs if id in data.tokenizer.text_ids]
    assert rows == {"coffee": ["tea"], "tea": ["milk"]}


@pytest.mark.parametrize(
    ("line", "options", "problem"),
    [
        ("tea", {}, "train.tsv:1: 1 items; one is predicted from the others, so it needs 2"),
        ("tea tea", {}, "train.tsv:1: 1 items"),
        ("", {}, "train.tsv:1: 0 items"),
        ("name\t", {}, "train.tsv:1: 0 items"),
        ("tea,,milk", {"separator": ","}, "train.tsv:1: an item is empty"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, options, problem):
    data = config(tmp_path, f"{line}\n{TRAIN}", options=options)
    with pytest.raises(BadRecordError, match=problem):
        items.load(data).train[0]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (dict(tokenizer="byte"), "data.tokenizer=byte splits text.*set data.tokenizer=item"),
        (dict(options={"separator": ""}), "data.options.separator='' cannot separate items"),
        (dict(options={"sorted": True}), "data.options.sorted is not a config key"),
        (dict(source="names"), "data.tokenizer=item is for sequences of items"),
    ],
)
def test_bad_keys_are_refused(tmp_path, keys, problem):
    said = "\n".join(config(tmp_path, **keys).problems())
    assert re.search(problem, said)


def test_an_item_with_the_name_of_a_special_id_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="an item is called '⟨mask⟩'"):
        load(config(tmp_path, TRAIN + "tea ⟨mask⟩\n"))
