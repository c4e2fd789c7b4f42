import pickle
import weakref

import numpy as np
import pytest

from input_pipeline.sources.files import shards
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.shards import OPEN, SelectedExamples, open_shards
from tests.input_pipeline.sources.files.test_reading import written


def identity(lines):
    """The simplest `make`: every line as it is."""
    return lines


def opened(directory, sizes):
    """Shards of these sizes, every third gzipped, and the lines of all of them."""
    content = [[f"{n} {line}" for line in range(size)] for n, size in enumerate(sizes)]
    files = [
        (written(directory / f"{n:03}", "".join(f"{x}\n" for x in lines), zipped=n % 3 == 0),)
        for n, lines in enumerate(content)
    ]
    return open_shards(identity, files)[0], [line for lines in content for line in lines]


@pytest.mark.parametrize("sizes", [[5], [3, 4], [0, 2, 0, 0, 3, 1, 0], [0], [0, 0], [7] * 9])
def test_shards_are_one_sequence(sizes, tmp_path):
    examples, expected = opened(tmp_path, sizes)
    assert len(examples) == len(expected) == sum(sizes)
    assert [*examples] == expected
    for index in np.random.default_rng(0).permutation(len(expected)):
        assert examples[index] == expected[index]
    for outside in (-1, len(expected)):
        with pytest.raises(IndexError):
            examples[outside]


def test_a_record_can_be_traced_to_its_file_and_line(tmp_path):
    examples, expected = opened(tmp_path, [3, 0, 4, 2])
    chosen = SelectedExamples(examples, np.array([1, 3, 6, 8]))
    for index, text in enumerate(expected):
        lines, line = examples.at(index)
        assert f"{int(lines.path.name)} {line}" == text
    assert [*chosen] == [expected[index] for index in (1, 3, 6, 8)]
    assert [(lines.path.name, line) for lines, line in map(chosen.at, range(4))] == [
        ("000", 1), ("002", 0), ("002", 3), ("003", 1),
    ]  # fmt: skip
    assert [*SelectedExamples(chosen, np.array([0, 3]))] == [expected[1], expected[8]]


def test_examples_can_be_pickled(tmp_path):
    examples, expected = opened(tmp_path, [3, 4])
    examples[0]
    assert [*pickle.loads(pickle.dumps(examples))] == expected
    assert [*pickle.loads(pickle.dumps(SelectedExamples(examples, np.array([2, 5]))))] == [
        expected[2],
        expected[5],
    ]


def test_few_shards_are_open_at_a_time_and_each_is_opened_once_in_order(tmp_path, monkeypatch):
    count = 5 * OPEN
    examples, expected = opened(tmp_path, [2] * count)
    ever, alive = [], weakref.WeakSet()

    class Watched(Lines):
        def __init__(self, path):
            super().__init__(path)
            ever.append(path)
            alive.add(self)

    monkeypatch.setattr(shards, "Lines", Watched)
    for index, text in enumerate(expected):
        assert examples[index] == text
        assert len(alive) <= OPEN
    assert len(ever) == count
    # Threads and both sides of a pair look at neighbours: going back a little opens nothing.
    assert examples[len(expected) - 3] == expected[-3]
    assert len(ever) == count


def test_digests_depend_on_which_split_has_which_file(tmp_path):
    files = [(written(tmp_path / name, name),) for name in "abc"]
    digests = [Lines(path).digest for (path,) in files]
    assert open_shards(identity, files[:1])[1] == digests[:1]

    def of(*counts):
        """Digests with the files divided among splits of these sizes."""
        parts = np.split(np.arange(3), np.cumsum(counts)[:-1])
        return [d for part in parts for d in open_shards(identity, [files[i] for i in part])[1]]

    assert len({tuple(of(*counts)) for counts in [(3,), (1, 2), (2, 1), (1, 1, 1)]}) == 4
