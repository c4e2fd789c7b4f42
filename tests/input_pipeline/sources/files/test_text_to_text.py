import collections
import json
import pickle

import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.sources.files import text_to_text
from tests.input_pipeline.sources.files.test_reading import written
from tests.tiny import data_config, masking
from train import data_lines

SIZES = {"sum": 30, "copy/long": 10, "turn": 20}


def record(task, n):
    return json.dumps({"task": task, "inputs": f"{task}: {n}", "targets": f"{task} is {n}"}) + "\n"


def json_lines(sizes):
    """Lines of all tasks, in turn."""
    rounds = range(max(sizes.values(), default=0))
    return "".join(record(task, n) for n in rounds for task, size in sizes.items() if n < size)


def corpus(directory, train=None, validation=None):
    written(directory / "train.jsonl", json_lines(SIZES) if train is None else train)
    eval_lines = json_lines({"sum": 3, "turn": 2}) if validation is None else validation
    written(directory / "validation.jsonl", eval_lines)
    return directory


def config(directory, **keys):
    sizes = dict(batch_size=6, length=24, encoder_length=24, prefetch=0)
    where = dict(path=str(directory), cache_dir=str(directory / "cache")) | keys
    return data_config(source="text_to_text_files", **sizes, **where)


def load(directory, **keys):
    data = config(directory, **keys)
    return pipeline.load(data, objective="seq2seq", masking=masking(), seed=0)


def tasks_of(data, batches):
    """Which task each row of the first batches belongs to."""
    rows = [row for n in range(batches) for row in data.train_batch(n)["targets"]]
    return [data.tokenizer.decode(row).partition(" is ")[0] for row in rows]


def test_a_task_with_half_of_a_character_is_refused(tmp_path):
    lines = json_lines(SIZES) + record("sum\ud800", 1)
    with pytest.raises(ConfigError, match=r"train\.jsonl:61: task has half of a character"):
        load(corpus(tmp_path, train=lines))


def test_each_task_has_its_own_examples(tmp_path):
    splits = text_to_text.load(config(corpus(tmp_path)))
    assert {task: len(each.train) for task, each in splits.items()} == SIZES
    for task, each in splits.items():
        assert [*each.train] == [
            {"source": f"{task}: {n}", "target": f"{task} is {n}", "task": task}
            for n in range(SIZES[task])
        ]
    assert len({each.digest for each in splits.values()}) == 3


def test_each_task_has_its_own_held_out_set_if_there_is_one(tmp_path):
    data = load(corpus(tmp_path))
    assert data.eval_names == ("validation_sum", "validation_turn")
    assert data.description["eval_rows"] == {"validation_sum": 3, "validation_turn": 2}
    assert [e["target"] for e in data.eval_examples("validation_turn", 9)] == [
        "turn is 0",
        "turn is 1",
    ]


def test_names_of_held_out_sets_are_fit_for_files(tmp_path):
    data = load(corpus(tmp_path, validation=json_lines({"copy/long": 1})))
    assert data.eval_names == ("validation_copy_long",)


def test_tasks_are_mixed_by_size(tmp_path):
    tasks = tasks_of(load(corpus(tmp_path)), batches=20)  # 120 rows: two epochs
    assert collections.Counter(tasks) == {task: 2 * size for task, size in SIZES.items()}
    assert collections.Counter(tasks[:60]) == SIZES


def test_tasks_are_mixed_by_weight(tmp_path):
    data = load(corpus(tmp_path), mixture=(("turn", 2.5), ("sum", 0.5)))
    tasks = tasks_of(data, batches=20)
    assert collections.Counter(tasks) == {"turn": 100, "sum": 20}
    assert collections.Counter(tasks[:6]) == {"turn": 5, "sum": 1}
    assert data.eval_names == ("validation_turn", "validation_sum")


def test_an_unknown_task_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"the task 'trun', .* mean 'turn'\? It has: copy/long, "):
        load(corpus(tmp_path), mixture=(("trun", 1.0),))
    with pytest.raises(ConfigError, match=r"2 parts of the data would be called 'sum'"):
        load(tmp_path, mixture=(("sum", 1.0), ("sum", 2.0)))


def test_an_eval_task_missing_from_training_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"validation\.jsonl:1: the task 'sing' does not occur in"
    ):
        load(corpus(tmp_path, validation=record("sing", 1)))


def test_an_eval_split_without_chosen_tasks_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.eval_split='validation' has 0 examples of what"):
        load(corpus(tmp_path), mixture=(("copy/long", 1.0),))


def test_shards_give_the_same_examples(tmp_path):
    lines = json_lines(SIZES).splitlines(keepends=True)
    corpus(tmp_path / "unsharded")
    for number in range(7):  # a shard has few of a task, or none
        part = "".join(lines[number * 9 : (number + 1) * 9])
        name = f"train-{number}-of-7.jsonl"
        written(tmp_path / "cut" / (f"{name}.gz" if number % 2 else name), part, zipped=number % 2)
    written(tmp_path / "cut/validation/a.jsonl", json_lines({"sum": 3, "turn": 2}))
    unsharded, cut = (text_to_text.load(config(tmp_path / name)) for name in ("unsharded", "cut"))
    assert unsharded.keys() == cut.keys()
    for task in unsharded:
        assert [*cut[task].train] == [*unsharded[task].train]
        assert [*pickle.loads(pickle.dumps(cut[task].train))] == [*unsharded[task].train]
        assert [[*e] for e in cut[task].evals.values()] == [
            [*e] for e in unsharded[task].evals.values()
        ]


def test_a_share_of_every_task_of_an_unsplit_file_becomes_the_eval_set(tmp_path):
    sizes = {"sum": 300, "turn": 200}
    path = written(tmp_path / "tasks.jsonl", json_lines(sizes) * 2)
    splits = text_to_text.load(config(path, eval_share=0.3))
    for task, each in splits.items():
        train, eval_sources = ({e["source"] for e in s} for s in (each.train, *each.evals.values()))
        assert len(train) + len(eval_sources) == sizes[task] and not train & eval_sources
        assert len(each.train) == 2 * len(train)
        assert abs(len(eval_sources) - 0.3 * sizes[task]) < 4 * (0.21 * sizes[task]) ** 0.5


def test_the_log_says_once_what_is_held_out_without_named_splits(tmp_path):
    line = "no named splits: a hash holds out 0.3 (data.eval_share)"
    named = load(corpus(tmp_path / "named"))
    assert not any("named splits" in each for each in data_lines(named))
    path = written(tmp_path / "heap" / "tasks.jsonl", json_lines({"sum": 300, "turn": 200}))
    keys = config(path, eval_share=0.3, cache_dir=str(tmp_path / "cache"))
    unsplit = pipeline.load(keys, objective="seq2seq", masking=masking(), seed=0)
    assert [each for each in data_lines(unsplit) if "named splits" in each] == [line]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", r"the split 'train' of .* has no line that names its task"),
        ("oops\n", r"train\.jsonl:1: not JSON"),
        ("{}\n", r"train\.jsonl:1: lacks 'task'"),
    ],
)
def test_a_file_that_names_no_task_is_refused(content, reason, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        load(corpus(tmp_path, train=content))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("oops", "not JSON"),
        ('{"inputs": "a", "targets": "b"}', "lacks 'task'"),
        ('{"task": "sum", "inputs": "a"}', "lacks 'targets'"),
        ('{"task": "sum", "inputs": "a", "targets": 3}', "targets is empty or not text"),
        ('{"task": "sum", "inputs": " ", "targets": "b"}', "inputs is empty or not text"),
        ('{"task": "sum", "inputs": "\\ud83d", "targets": "b"}', "inputs has half of a character"),
    ],
)
def test_a_bad_line_is_named_and_can_be_skipped(line, reason, tmp_path):
    corpus(tmp_path, train=record("sum", 0) + line + "\n" + json_lines(SIZES))
    with pytest.raises(ConfigError, match=rf"train\.jsonl:2: {reason}"):
        load(tmp_path)
    data = load(tmp_path, max_bad_records=1)
    assert data.description["train_rows"] == 1 + sum(SIZES.values())


def test_bad_lines_are_counted_over_all_shards(tmp_path):
    for number in (1, 2):
        written(tmp_path / f"train-{number}.jsonl", json_lines(SIZES) + "oops\n")
    written(tmp_path / "validation.jsonl", json_lines({"sum": 3}))
    with pytest.raises(
        ConfigError, match=r"train-2\.jsonl:61: not JSON.*, bad record 2 after .*-1"
    ):
        load(tmp_path, max_bad_records=1)
    assert load(tmp_path, max_bad_records=2).description["train_rows"] == 2 * sum(SIZES.values())
