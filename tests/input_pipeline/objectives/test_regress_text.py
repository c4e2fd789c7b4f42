"""Scored texts: rows, pairs, and bad lines."""

import json

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.tiny import data_config, masking


def load(path):
    given = dict(source="scored_files", path=str(path), batch_size=2, length=8)
    data = data_config(**given, tokenizer="byte", cache_dir=str(path.parent / "cache"))
    return pipeline.load(data, objective="regress_text", masking=masking(), seed=0)


def write(directory, lines, ending="tsv"):
    directory.mkdir()
    for split in ("train", "validation"):
        (directory / f"{split}.{ending}").write_text("".join(line + "\n" for line in lines))
    return directory


@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_rows_of_pairs(ending, tmp_path):
    examples = [(-0.25, "ab", "c"), (3, "d", "efgh")]
    lines = ["\t".join(map(str, record)) for record in examples]
    if ending == "jsonl":
        keys = ("score", "text", "text_pair")
        lines = [json.dumps(dict(zip(keys, record, strict=True))) for record in examples]
    data = load(write(tmp_path / "data", lines, ending))
    assert data.labels == () and data.text_pairs
    (batch,) = data.eval_batches("validation", 2)
    start = ByteTokenizer.first_byte_id
    a, b, c = (np.frombuffer(b"abc", "u1") + start).tolist()
    assert batch["scores"].tolist() == [-0.25, 3.0] and batch["scores"].dtype == np.float32
    assert batch["inputs"][0].tolist() == [4, a, b, 5, c, 5, 0, 0]
    assert batch["token_types"][0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert batch["inputs"][1].tolist() == [4, a + 3, 5, *range(a + 4, a + 8), 5]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("good\ttext", "the score 'good' is no number"),
        ("nan\ttext", "the score 'nan' is no number"),
        ("1\ta\tb\tc", "4 columns; needs number, tab, text"),
        ("1\ta\tb", "the first record has no second text"),
        ("1\t ", "text is empty"),
    ],
)
def test_bad_lines_are_named(line, problem, tmp_path):
    directory = write(tmp_path / "data", ["1\ta", "2.5\tb", line])
    with pytest.raises(ConfigError, match=rf"train\.tsv:3: .*{problem}"):
        load(directory)
