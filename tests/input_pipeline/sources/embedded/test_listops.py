"""ListOps: answers checked by a stack machine, and statistics of the generated lists."""

import collections
import dataclasses
import functools
import itertools
import statistics
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from input_pipeline import pipeline
from input_pipeline.sources import registry
from input_pipeline.sources.base import hash_fraction
from input_pipeline.sources.embedded import listops
from tests.tiny import data_config, masking

BOUNDS = {
    "the defaults": {},
    "the shortest": dict(depth=1, arguments=4, max_length=6),
    "two arguments": dict(depth=4, arguments=2, max_length=46),
    "nothing but full lists": dict(depth=2, arguments=3, min_length=15, max_length=17),
    "the Long Range Arena's": dict(depth=10, arguments=10, min_length=500, max_length=2000),
}


def config(**options):
    length = options.get("max_length", 30) + 2
    return data_config(source="listops", options=options, length=length)


@functools.cache
def some(number, *, is_eval=False, seed=0, name="the defaults"):
    options = listops.ListOpsOptions(**BOUNDS[name])
    lists = listops.Lists(options, number, is_eval=is_eval, seed=seed)
    return [lists[index] for index in range(number)]


class Worked(NamedTuple):
    answers: list[int]  # of every list, in the order in which they end: the whole one's is last
    depth: int
    arguments: int  # the most that a list has


def work_out(text: str) -> Worked:
    """A stack machine: operators and values wait there until the list ends."""
    stack, answers, depth, deepest, most = [], [], 0, 0, 0
    for symbol in text:
        if symbol in "<>=+":
            stack.append(symbol)
            depth += 1
            deepest = max(deepest, depth)
        elif symbol == "]":
            arguments = []
            while not isinstance(stack[-1], str):
                arguments.append(stack.pop())
            most = max(most, len(arguments))
            assert len(arguments) >= 2
            match stack.pop():
                case "<":
                    value = sorted(arguments)[0]
                case ">":
                    value = sorted(arguments)[-1]
                case "=":
                    value = int(statistics.median(arguments))  # of positive numbers: rounds down
                case "+":
                    value = int(str(sum(arguments))[-1])
            stack.append(value)
            answers.append(value)
            depth -= 1
        else:
            stack.append(int(symbol))
    assert stack == answers[-1:] and depth == 0
    return Worked(answers, deepest, most)


@pytest.mark.parametrize(
    ("text", "answer"),
    [(">29<47]0]", 9), ("=14]", 2), ("=149]", 4), ("=0189]", 4), ("+99<12]]", 9), ("=>01]]", None)],
)
def test_the_stack_machine_knows_lists_that_were_worked_out_by_hand(text, answer):
    if answer is None:
        with pytest.raises(AssertionError):
            work_out(text)
    else:
        assert work_out(text).answers[-1] == answer


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("is_eval", [False, True])
def test_answers_are_right_and_lists_within_bounds(name, is_eval):
    data = config(**BOUNDS[name])
    assert not list(data.problems())
    options = data.source_options
    examples = some(20 if "Arena" in name else 300, is_eval=is_eval, name=name)
    depths, counts = set(), set()
    for index, example in enumerate(examples):
        worked = work_out(example["text"])
        assert worked.answers[-1] == example["label"] == index % 10
        assert options.min_length <= len(example["text"]) <= options.max_length
        depths.add(worked.depth)
        counts.add(worked.arguments)
    assert max(depths) == options.depth and max(counts) == options.arguments


def test_lengths_are_spread_evenly():
    """They are drawn from 6 to 30 and may then lack up to two symbols."""
    lengths = np.array([len(example["text"]) for example in some(2000)])
    assert lengths.min() < 6 and lengths.max() == 30
    shares = np.histogram(lengths, bins=(4, 11, 16, 21, 26, 31))[0] / len(lengths)
    np.testing.assert_allclose(shares, 0.2, atol=0.06)


@pytest.mark.parametrize("name", ["the defaults", "the shortest"])
def test_train_and_eval_lists_are_disjoint(name):
    """By the hash rule, and by comparing samples: the shortest lists are few enough to repeat."""
    trained_on = {each["text"] for each in some(2000, name=name)}
    eval_texts = {each["text"] for each in some(1000, is_eval=True, name=name)}
    assert not trained_on & eval_texts
    assert all(hash_fraction(text) >= listops.EVAL_SHARE for text in trained_on)
    assert all(hash_fraction(text) < listops.EVAL_SHARE for text in eval_texts)
    again = {each["text"] for each in some(500, seed=1, name=name)}
    assert name == "the defaults" or len(trained_on & again) > 10


def test_every_answer_occurs_in_both_splits_with_two_digits():
    """Otherwise drawing such a list would never end."""
    found = collections.defaultdict(set)
    for operator, first, second in itertools.product("<>=+", "0123456789", "0123456789"):
        text = f"{operator}{first}{second}]"
        found[work_out(text).answers[-1]].add(hash_fraction(text) < listops.EVAL_SHARE)
    assert found == {answer: {False, True} for answer in range(10)}


def test_an_example_depends_on_seed_side_and_index_alone():
    forwards, lists = some(40), listops.Lists(listops.ListOpsOptions(), 40, is_eval=False)
    assert [lists[index] for index in reversed(range(40))] == forwards[::-1]
    assert some(80)[:40] == forwards, "nor on how many there are"
    assert some(40, seed=1) != forwards and some(40, is_eval=True) != forwards
    for index in (-1, 40):
        with pytest.raises(IndexError):
            lists[index]


def test_answers_of_inner_lists_are_uniform():
    inner = [answer for each in some(2000) for answer in work_out(each["text"]).answers[:-1]]
    shares = np.bincount(inner) / len(inner)
    np.testing.assert_allclose(shares, 0.1, atol=0.015)


def test_counts_of_symbols_and_the_first_operator_are_not_enough():
    def features(text):
        return [*map(text.count, "0123456789<>=+]"), *(text[0] == each for each in "<>=+")]

    def columns(examples):
        features_of = np.array([features(each["text"]) for each in examples], np.float64)
        return features_of, [each["label"] for each in examples]

    (inputs, labels), eval_columns = columns(some(2000)), columns(some(1000, is_eval=True))
    mean, deviation = inputs.mean(axis=0), inputs.std(axis=0)
    linear = LogisticRegression(max_iter=300).fit((inputs - mean) / deviation, labels)
    accuracy = linear.score((eval_columns[0] - mean) / deviation, eval_columns[1])
    print(f"linear classifier of counts and the first operator: {accuracy:.3f}")
    assert 0.22 < accuracy < 0.34


def test_the_pipeline_gives_one_token_for_each_symbol(monkeypatch):
    monkeypatch.setattr(listops, "EVAL_SIZE", 20)
    data = pipeline.load(
        data_config(source="listops", batch_size=8),
        objective="classify_text",
        masking=masking(),
        seed=0,
    )
    assert data.labels == tuple("0123456789")
    batch = data.train_batch(3)
    for inputs, label in zip(batch["inputs"], batch["labels"], strict=True):
        text = data.tokenizer.decode(inputs)
        assert work_out(text).answers[-1] == label
        assert np.count_nonzero(inputs != data.tokenizer.pad_id) == len(text) + 2  # cls and sep
    assert data.description["too_long"] == {"train": 0, "held_out": 0}


def test_the_digest_depends_on_the_bounds(monkeypatch):
    monkeypatch.setattr(listops, "EVAL_SIZE", 20)

    def digest(**keys):
        (found,) = registry.components(config(**keys))
        return found.splits.digest

    assert digest() == digest()
    assert len({digest(), digest(depth=4), digest(max_length=29)}) == 3


def test_the_digest_of_the_default_lists_is_that_of_earlier_versions():
    """In those, the options were keys of every config."""
    found = pipeline.load(config(), objective="classify_text", masking=masking(), seed=0)
    assert found.digest.startswith("ce6eee189bc4d2dd")


def test_lists_in_a_mixture_have_their_options():
    given = dict(mixture=(("listops", 1.0),), options={"depth": 2, "max_length": 17}, length=32)
    (found,) = registry.components(data_config(**given))
    assert found.splits.description["depth"] == 2
    assert found.splits.description["length"] == (4, 17)


def test_the_config_of_listops_sets_all_options_so_that_flags_can_change_them():
    from configs import listops as experiment

    options = experiment.get_config().data.options.to_dict()
    assert options == dataclasses.asdict(listops.ListOpsOptions())
