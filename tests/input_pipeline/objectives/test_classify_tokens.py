"""Tags of words: which token has a word's tag, and files of tagged words."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from experiment.schema import ConfigError
from inference.encoder_predictors import TagPredictor
from input_pipeline import pipeline
from input_pipeline.objectives.classify_tokens import encode_words
from input_pipeline.sources.base import BadRecordError
from input_pipeline.sources.files.reading import Lines
from input_pipeline.sources.files.tagged_text import TaggedColumns
from input_pipeline.tokenizers.subword import SubwordTokenizer
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS
from tests.tiny import data_config, masking

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "Ada", "##lyn", "went", "to", "Ro", "##me", "é"]
EXAMPLES = [
    dict(tokens=["Adalyn", "went", "to", "Rome"], tags=["B-PER", "O", "O", "B-LOC"]),
    dict(tokens=["Rome"], tags=["B-LOC"]),
]


@pytest.fixture(scope="module")
def wordpiece():
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    roles = dict(pad=0, bos=2, eos=3, mask=1, cls=2, sep=3)
    return SubwordTokenizer(tokenizer.to_str(), roles, [])


def test_the_first_token_of_each_word_has_its_number(wordpiece):
    ids, numbers = encode_words(["Adalyn", "\x00", "went", "to", "Rome"], wordpiece)
    assert [PIECES[id] for id in ids] == ["Ada", "##lyn", "went", "to", "Ro", "##me"]
    # The control character becomes no token, so no token has the number 2.
    assert numbers.tolist() == [1, 0, 3, 4, 5, 0]


@pytest.mark.parametrize("name", ["bert_cased", "t5", "gpt2", "llama"])
def test_words_begin_where_the_text_does(name):
    """Every tokenizer: a token with a number is the first that touches its word."""
    from input_pipeline.tokenizers.published_files import open_tokenizer

    tokenizer, words = open_tokenizer(PATHS[name]), ["Zürich", "a", "x-1", "漢字", "end"]
    _, numbers = encode_words(words, tokenizer)
    _, spans = tokenizer.encode_with_spans(" ".join(words))
    owner = [number for number, word in enumerate(words, 1) for _ in range(len(word) + 1)]
    expected, touched_before = [], set()
    for start, end in spans:
        touched = {owner[place] for place in range(start, end) if " ".join(words)[place] != " "}
        new = touched - touched_before
        expected.append(min(new) if new else 0)
        touched_before |= touched
    assert numbers.tolist() == expected and max(numbers) == len(words)


def load(path, **overrides):
    given = dict(source="tagged_files", path=str(path), batch_size=2, length=12, tokenizer="byte")
    data = data_config(**{**given, "cache_dir": str(path.parent / "cache"), **overrides})
    return pipeline.load(data, objective="classify_tokens", masking=masking(), seed=0)


def write(directory, ending):
    directory.mkdir()
    for split in ("train", "validation"):
        if ending == "jsonl":
            lines = [json.dumps(record) for record in EXAMPLES]
        else:
            lines = ["-DOCSTART- -X- O O", ""]
            for record in EXAMPLES:
                pairs = zip(record["tokens"], record["tags"], strict=True)
                lines += [f"{word} NN {tag}" for word, tag in pairs] + [""]
        (directory / f"{split}.{ending}").write_text("\n".join(lines) + "\n")
    return directory


@pytest.mark.parametrize("ending", ["jsonl", "conll"])
def test_rows_of_a_file(ending, tmp_path):
    data = load(write(tmp_path / "data", ending))
    assert data.labels == ("B-LOC", "B-PER", "O")
    (batch,) = data.eval_batches("validation", 2)
    start = ByteTokenizer.first_byte_id
    # cls, ten of the bytes of the first text, sep: the rest is cut off.
    assert batch["inputs"][0].tolist() == [4, *(np.frombuffer(b"Adalyn wen", "u1") + start), 5]
    assert batch["weights"][0].tolist() == [0, 1, *[0] * 6, 1, 0, 0, 0]
    assert batch["targets"][0][[1, 8]].tolist() == [1, 2]
    assert batch["inputs"][1].tolist() == [4, *(np.frombuffer(b"Rome", "u1") + start), 5, *[0] * 6]
    assert batch["weights"][1].tolist() == [0, 1, *[0] * 10]
    assert batch["targets"][1][1] == 0


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (dict(tokens=["a", "b"], tags=["O"]), "2 tokens have 1 tags"),
        (dict(tokens=["a b"], tags=["O"]), "'a b' is empty or has a space"),
        (dict(tokens=["a\tb"], tags=["O"]), "is empty or has a space or a tab"),
        (dict(tokens="ab", tags=["O"]), "tokens must be a list of texts"),
        (dict(tokens=["a"]), "lacks 'tags'"),
    ],
)
def test_bad_records_are_named(record, problem, tmp_path):
    directory = write(tmp_path / "data", "jsonl")
    with (directory / "train.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(ConfigError, match=rf"train\.jsonl:3: .*{problem}"):
        load(directory)


def test_a_tag_that_training_lacks_is_refused(tmp_path):
    directory = write(tmp_path / "data", "jsonl")
    (directory / "validation.jsonl").write_text('{"tokens": ["a"], "tags": ["B-X"]}\n')
    with pytest.raises(ConfigError, match=r"validation\.jsonl:1: B-X: does not occur in training"):
        load(directory)


def rows_of_columns(directory, *lines):
    """The texts of a .conll file with these lines: (words, tags) of each."""
    path = directory / "train.conll"
    path.write_text("".join(f"{line}\n" for line in lines))
    return [(each["words"], each["tags"]) for each in TaggedColumns(Lines(path))]


def test_columns_are_between_tabs_or_else_between_spaces(tmp_path):
    found = rows_of_columns(
        tmp_path,
        "# sent_id = 3",
        "Rome\tNNP\tB-LOC",
        "10\u00a0km\tO",  # a no-break space is a part of its word
        "",
        "a  NN O",
        "# text = a b",  # a comment does not end a text
        "1\u202f000 O ",
        "# O",  # a word
        "-DOCSTART- -X- O",
        "#\t = \tO",
    )
    assert found == [
        (["Rome", "10\u00a0km"], ["B-LOC", "O"]),
        (["a", "1\u202f000", "#"], ["O", "O", "O"]),
        (["#"], ["O"]),
    ]
    reader = SimpleNamespace(
        _prompt=lambda *given: {}, _tokenizer=ByteTokenizer(), max_prompt_length=0
    )
    for words, _ in found:  # generate.py finds the same words
        for text in (" ".join(words), "\t ".join(words)):
            fields = TagPredictor.prompt(reader, text, "line 1")
            assert fields["targets"][fields["weights"] > 0].tolist() == list(range(len(words)))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("New York\tB-LOC", "the token 'New York' is empty or has a space"),
        ("\tO", "the token '' is empty"),
        ("Rome\t", "the last column, the tag, is empty"),
        ("Rome\u00a0O", "one column"),
    ],
)
def test_bad_columns_are_named_by_their_own_line(line, problem, tmp_path):
    with pytest.raises(BadRecordError, match=rf"train\.conll:2: {problem}"):
        rows_of_columns(tmp_path, "a\tO", line)
