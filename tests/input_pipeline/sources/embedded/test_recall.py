"""Recall: the class is the key and nothing else tells it."""

import collections
import dataclasses
import functools

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from configs import recall as recall_config
from experiment import sections
from input_pipeline import pipeline
from input_pipeline.sources import registry
from input_pipeline.sources.embedded import recall
from model.attention import KINDS
from model.mixers import MIXERS
from tests.tiny import data_config, masking

DISTANCES = (8, 16, 32, 64)


@functools.cache
def some(number, distance=None, **options):
    rows = recall.KeyedRows(recall.RecallOptions(**options), number, distance)
    return [rows[index] for index in range(number)]


def config(**keys):
    options = dict(distances=DISTANCES) | keys.pop("options", {})
    return data_config(**dict(source="recall", options=options, length=515) | keys)


@pytest.mark.parametrize("key_place", ["first", "last"])
def test_the_class_is_the_key(key_place):
    place = {"first": 0, "last": -1}[key_place]
    examples = some(64, key_place=key_place) + some(64, 32, key_place=key_place)
    for index, example in enumerate(examples):
        assert "abcdefghijklmnop".index(example["text"][place]) == example["label"] == index % 16


def test_the_places_of_the_key_have_the_same_noise():
    """So that the control differs in nothing else."""
    for first, last in zip(some(64), some(64, key_place="last"), strict=True):
        assert first["text"][1:] == last["text"][:-1] and first["text"][0] == last["text"][-1]


def test_distances_and_classes_are_equally_common_in_training():
    found = some(16 * 4 * 3, distances=DISTANCES)
    counts = collections.Counter((len(each["text"]) - 1, each["label"]) for each in found)
    assert counts == {(distance, label): 3 for distance in DISTANCES for label in range(16)}


def test_an_evaluation_set_has_one_distance_and_does_not_depend_on_the_others():
    (alone,) = registry.components(config(options=dict(distances=(64,))))
    (among,) = registry.components(config())
    names = [f"distance_{distance:03}" for distance in DISTANCES]
    assert list(among.splits.evals) == names == sorted(names)
    assert alone.splits.evals == {"distance_064": among.splits.evals["distance_064"]}
    for name, examples in among.splits.evals.items():
        assert {len(each["text"]) - 1 for each in examples} == {int(name[-3:])}
        assert set(collections.Counter(each["label"] for each in examples).values()) == {512 // 16}
    (longer,) = registry.components(config(options=dict(distances=(64, 1024)), length=2000))
    assert list(longer.splits.evals) == ["distance_0064", "distance_1024"]


def test_train_and_eval_rows_are_disjoint():
    few = dict(classes=10, distances=(3,))  # few enough to repeat
    trained_on = {each["text"] for each in some(5000, **few)}
    evaluated = {each["text"] for each in some(1000, 3, **few)}
    assert len(trained_on) < 5000 and len(evaluated) < 1000
    assert not trained_on & evaluated


def test_an_example_depends_on_its_index_alone():
    rows = recall.KeyedRows(recall.RecallOptions(), 40)
    assert [rows[index] for index in reversed(range(40))] == some(40)[::-1] == some(80)[39::-1]
    assert some(40, 8) != some(40, 16) and some(40, 8)[0]["text"] not in some(40)[0]["text"]
    for index in (-1, 40):
        with pytest.raises(IndexError):
            rows[index]


def counts_of(texts, classes):
    return np.array(
        [[text.count(symbol) for symbol in "abcdefghijklmnop"[:classes]] for text in texts]
    )


def test_noise_is_uniform_and_independent_of_the_key():
    """Of the noise alone, every symbol is as common after every key, at every place."""
    examples, classes = some(16_000, 8, classes=4), 4
    symbols = np.array([list(each["text"][1:].encode()) for each in examples]) - ord("a")
    keys = np.array([each["label"] for each in examples])
    for place in range(8):
        table = np.zeros((classes, classes))
        np.add.at(table, (keys, symbols[:, place]), 1)
        # Chi-squared with 15 degrees of freedom: 44 is exceeded once in 10,000 times.
        assert ((table - 1000) ** 2 / 1000).sum() < 44


@pytest.mark.parametrize("distance", [8, 64])
def test_a_bag_of_tokens_cannot_know_the_key(distance):
    """Given the counts alone, every token is equally likely to be the key.

    So the best guess is the commonest symbol, and right with the probability count / length. No
    classifier of counts does better, and one of the noise alone does no better than chance.
    """
    train, evaluated = some(4000, distances=(distance,)), some(2000, distance)
    labels = [each["label"] for each in train], [each["label"] for each in evaluated]

    def score(first):
        counts = [
            counts_of([each["text"][first:] for each in part], 16) for part in (train, evaluated)
        ]
        linear = LogisticRegression(max_iter=300).fit(counts[0], labels[0])
        return linear.score(counts[1], labels[1]), (
            counts[1].max(axis=1) / counts[1].sum(axis=1)
        ).mean()

    bag, best = score(first=0)
    noise, _ = score(first=1)
    print(f"distance {distance}: counts {bag:.3f}, at best {best:.3f}; noise alone {noise:.3f}")
    assert bag < best + 0.03  # three standard deviations of 2,000 guesses
    assert best == pytest.approx({8: 0.24, 64: 0.13}[distance], abs=0.01)  # the docstring's
    assert noise < 1 / 16 + 0.017


def test_the_pipeline_gives_one_token_for_each_symbol():
    data = pipeline.load(
        config(batch_size=8, length=67), objective="classify_text", masking=masking(), seed=0
    )
    assert data.labels == tuple("abcdefghijklmnop")
    batch = data.train_batch(3)
    for inputs, label in zip(batch["inputs"], batch["labels"], strict=True):
        text = data.tokenizer.decode(inputs)
        assert data.labels[label] == text[0]
        assert np.count_nonzero(inputs != data.tokenizer.pad_id) == len(text) + 2  # cls and sep
    assert not any(data.description["too_long"].values())


def test_rows_can_be_sorted_by_length(monkeypatch):
    monkeypatch.setattr(recall, "TRAIN_SIZE", 256)
    data = config(batch_size=8, length=67, buckets=(11, 19, 35))
    data = pipeline.load(data, objective="classify_text", masking=masking(), seed=0)
    assert {data.train_batch(n)["inputs"].shape[1] for n in range(32)} == {11, 19, 35, 67}


def test_the_digest_depends_on_the_options():
    def digest(**options):
        return registry.components(config(options=options))[0].splits.digest

    options = ({}, {"distances": (8, 16)}, {"classes": 8}, {"key_place": "last"})
    assert len({digest(**each) for each in options}) == 4 and digest() == digest()


def test_the_config_sets_all_options_so_that_flags_can_change_them():
    options = recall_config.get_config().data.options.to_dict()
    assert options.keys() == {field.name for field in dataclasses.fields(recall.RecallOptions)}


MODELS = [
    *(dict(attention=kind) for kind in KINDS),
    *(dict(mixer=mixer) for mixer in MIXERS),
]


@pytest.mark.parametrize("family", ["decoder", "encoder"])
@pytest.mark.parametrize("changes", MODELS, ids=lambda changes: "-".join(changes.values()))
def test_the_config_goes_with_every_kind_of_attention_and_every_mixer(family, changes):
    if family == "encoder" and changes.get("attention") == "recurrent":
        pytest.skip("a kind for decoders")
    config = recall_config.get_config()
    config.model.update(changes)
    if family == "encoder":
        config.model.update(dict(family="encoder", pooling="first", encoder_layers=2))
    assert sections.from_mapping(config.to_dict()).model.family == family
