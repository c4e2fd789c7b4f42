import collections
import csv
import hashlib
import io
import json
import pickle

import pytest

from experiment.schema import ConfigError
from input_pipeline.sources.base import BadRecordError, content_digest, hash_fraction
from input_pipeline.sources.files import labelled_text
from tests.input_pipeline.sources.files.test_reading import written
from tests.tiny import data_config

TRAIN = [("good", "a fine film"), ("bad", "a poor film"), ("bad", 'say "no" \\ to it')]
PAIRS = [("yes", "it rains", "it is wet"), ("no", "it rains", "it is dry")]


def tsv(examples):
    return "".join("\t".join(record) + "\n" for record in examples)


def jsonl(examples):
    keys = ("label", "text", "text_pair")
    return "".join(json.dumps(dict(zip(keys, r, strict=False))) + "\n" for r in examples)


FILMS, FILM = tsv(TRAIN), tsv(TRAIN[:1])


def load(directory, train=FILMS, validation=FILM, ending=".tsv"):
    written(directory / f"train{ending}", train, zipped=ending.endswith(".gz"))
    written(directory / f"validation{ending}", validation, zipped=ending.endswith(".gz"))
    return load_path(directory)


def load_path(path, **keys):
    return labelled_text.load(data_config(source="labelled_text_files", path=str(path), **keys))


def refusal_of(examples, index):
    with pytest.raises(BadRecordError) as refusal:
        examples[index]
    return str(refusal.value)


@pytest.mark.parametrize("examples", [TRAIN, PAIRS])
@pytest.mark.parametrize("ending", [".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz"])
def test_every_file_format_gives_the_same_examples(examples, ending, tmp_path):
    file_format = tsv if ".tsv" in ending else jsonl
    splits = load(tmp_path, file_format(examples), file_format(examples[:1]), ending)
    keys = ("text", "text_pair")
    expected = [
        {"label": splits.labels.index(label), **dict(zip(keys, texts, strict=False))}
        for label, *texts in examples
    ]
    assert [*splits.train] == expected
    assert [*splits.evals["validation"]] == expected[:1]
    assert splits.labels == tuple(sorted({record[0] for record in examples}))
    assert splits.text_pairs == (examples is PAIRS)


def test_labels_may_be_numbers_in_json(tmp_path):
    splits = load(tmp_path, jsonl([(3, "a"), (1, "b")]), jsonl([(1, "c")]), ".jsonl")
    assert splits.labels == ("1", "3")
    assert [example["label"] for example in splits.train] == [1, 0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("good", "1 columns; needs label, tab, text"),
        ("good\ta\tb\tc", "4 columns"),
        ("", "1 columns"),
        ("\ta text", "label '' is neither text nor"),
        ("good\t ", "text is empty or not text"),
        ("good\ta\t", "text_pair is empty or not text"),
        ("good\ta text\tanother", "the first record has no second text, and this one differs"),
    ],
)
def test_a_bad_line_of_tsv_is_named(line, reason, tmp_path):
    splits = load(tmp_path, tsv(TRAIN[:1]) + f"{line}\n")
    assert f"{tmp_path}/train.tsv:2: {reason}" in refusal_of(splits.train, 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"label": true, "text": "a"}', "label True is neither"),
        ('{"label": null, "text": "a"}', "label None is neither"),
        ('{"label": "good", "text": 3}', "text is empty or not text"),
        ('{"label": "good"}', "lacks 'text'"),
        ('{"text": "a", "lable": "good"}', "lacks 'label'"),
        ("good\ta text", "not JSON"),
    ],
)
def test_a_bad_line_of_json_is_named(line, reason, tmp_path):
    splits = load(tmp_path, jsonl(TRAIN[:1]) + f"{line}\n", jsonl(TRAIN[:1]), ".jsonl")
    assert f"{tmp_path}/train.jsonl:2: {reason}" in refusal_of(splits.train, 1)


def test_a_record_without_the_second_text_of_the_others_is_named(tmp_path):
    splits = load(tmp_path, tsv(PAIRS) + "yes\talone\n", tsv(PAIRS))
    assert "train.tsv:3: the first record has a second text" in refusal_of(splits.train, 2)


def test_a_label_that_training_lacks_is_named(tmp_path):
    splits = load(tmp_path, validation=tsv(TRAIN) + "gud\ta text\n")
    message = refusal_of(splits.evals["validation"], 3)
    assert message.endswith("validation.tsv:4: label 'gud' does not occur in training")


def test_a_file_of_which_nothing_can_be_used_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"the split 'train' of .* is empty; it needs a label"):
        load(tmp_path, "")
    with pytest.raises(ConfigError, match=r"train\.tsv:1: 1 columns.*no line of the split can be"):
        load(tmp_path, "a,b\nc,d\n")


def test_a_split_in_two_formats_is_refused(tmp_path):
    load(tmp_path)
    with pytest.raises(ConfigError, match=r"has train\.jsonl and train\.tsv; keep one of them"):
        load(tmp_path, jsonl(TRAIN), jsonl(TRAIN), ".jsonl")


def test_shards_of_any_format_give_the_same_examples(tmp_path):
    unsharded = load(tmp_path / "a")
    written(tmp_path / "b/train-0.tsv.gz", tsv(TRAIN[:1]), zipped=True)
    written(tmp_path / "b/train-1.jsonl", jsonl(TRAIN[1:]))
    written(tmp_path / "b/validation/anything.tsv", FILM)
    cut = load_path(tmp_path / "b")
    assert [*cut.train] == [*unsharded.train] and cut.labels == unsharded.labels
    assert [*cut.evals["validation"]] == [*unsharded.evals["validation"]]
    assert [*pickle.loads(pickle.dumps(cut.train))] == [*unsharded.train]


def test_a_bad_line_of_a_shard_is_named(tmp_path):
    written(tmp_path / "train-1.tsv", FILMS)
    written(tmp_path / "train-2.tsv", FILM + "good\n")
    written(tmp_path / "validation-1.tsv", FILM)
    written(tmp_path / "validation-2.tsv", FILM + "gud\ta text\n")
    splits = load_path(tmp_path)
    assert "train-2.tsv:2: 1 columns" in refusal_of(splits.train, 4)
    assert "validation-2.tsv:2: label 'gud'" in refusal_of(splits.evals["validation"], 2)


def test_the_digest_hashes_the_file_contents(tmp_path):
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in (FILMS, FILM)]
    assert load(tmp_path).digest == content_digest(hashes)


# Examples without splits, sorted by label; each text occurs twice.
UNSPLIT = [(label, f"text {n % 500} of {label}") for label in ("a", "b", "c") for n in range(1000)]


def texts_of(examples):
    return collections.Counter(example["text"] for example in examples)


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("file_format", [tsv, jsonl])
def test_a_share_of_an_unsplit_file_becomes_the_eval_set(file_format, share, tmp_path):
    path = written(tmp_path / f"films.{file_format.__name__}", file_format(UNSPLIT))
    splits = load_path(path, eval_share=share)
    train, eval_set = splits.train, splits.evals["validation"]
    assert texts_of(train) + texts_of(eval_set) == collections.Counter(text for _, text in UNSPLIT)
    assert not texts_of(train).keys() & texts_of(eval_set).keys()
    assert splits.labels == ("a", "b", "c")
    # Of every label its share, to within four deviations of as many coins.
    counts = collections.Counter(example["label"] for example in eval_set)
    for label in range(3):
        assert abs(counts[label] / 2 - 500 * share) < 4 * (500 * share * (1 - share)) ** 0.5
    assert load_path(path, eval_share=0.2).digest != splits.digest


def test_the_eval_share_does_not_depend_on_file_or_line_order(tmp_path):
    one = load_path(written(tmp_path / "one.tsv", tsv(UNSPLIT)))
    written(tmp_path / "many/0.tsv", tsv(UNSPLIT[:1700:-1]))
    written(tmp_path / "many/1.jsonl.gz", jsonl(UNSPLIT[:1701]), zipped=True)
    many = load_path(tmp_path / "many/*")
    assert texts_of(many.train) == texts_of(one.train)
    assert texts_of(many.evals["validation"]) == texts_of(one.evals["validation"])
    assert [*pickle.loads(pickle.dumps(many.train))] == [*many.train]


def test_pairs_with_the_same_first_text_stay_together(tmp_path):
    pairs = [("yes", f"premise {n // 3}", f"hypothesis {n}") for n in range(300)]
    splits = load_path(written(tmp_path / "a.tsv", tsv(pairs)), eval_share=0.3)
    eval_texts = texts_of(splits.evals["validation"])
    assert set(eval_texts.values()) == {3} and len(eval_texts) > 10


def test_a_label_may_be_held_out_altogether(tmp_path):
    """The hash ignores labels. Named splits avoid it."""
    text = next(text for text in map(str, range(1000)) if hash_fraction(text) < 0.1)
    path = written(tmp_path / "a.tsv", tsv([*TRAIN, ("rare", text)]))
    splits = load_path(path, eval_share=0.1)
    assert splits.labels == ("bad", "good", "rare")
    assert [*splits.evals["validation"]] == [{"label": 2, "text": text}]


def test_bad_lines_of_an_unsplit_file_go_to_training(tmp_path):
    path = written(tmp_path / "a.tsv", "".join(f"a\t{n}\n{n}\n" for n in range(50)))
    splits = load_path(path, eval_share=0.5)
    eval_set = [*splits.evals["validation"]]  # none is bad
    assert 10 < len(eval_set) < 40 and len(splits.train) == 100 - len(eval_set)
    assert f"{path}:2: 1 columns" in refusal_of(splits.train, 0 if texts_of(eval_set)["0"] else 1)


def test_an_eval_share_that_empties_a_split_is_refused(tmp_path):
    path = written(tmp_path / "a.tsv", FILMS + "bad\n")
    for share, count in ((1e-9, 0), (1 - 1e-9, 3)):
        with pytest.raises(
            ConfigError, match=rf"data\.eval_share=.* holds out {count} of the 3 rec"
        ):
            load_path(path, eval_share=share)
    with pytest.raises(ConfigError, match=r"a\.tsv:1: 1 columns"):
        load_path(written(path, "bad\n"))


@pytest.mark.parametrize(
    "heading", ["label\ttext\n", "Sentiment\treview\n", "y\ta\tb\n", "sentence\tlabel\n"]
)
def test_a_heading_is_refused_with_its_line(heading, tmp_path):
    label = heading.split("\t")[0]
    refused = rf"train\.tsv:1: a heading line, .* the label '{label}'; .*remove the line"
    with pytest.raises(ConfigError, match=refused):
        load(tmp_path / "both", heading + FILMS, heading + FILM)
    with pytest.raises(ConfigError, match=r"validation\.tsv:1: a heading line"):
        load(tmp_path / "held_out", FILMS, heading + FILM)
    with pytest.raises(ConfigError, match=r"heap\.tsv:1: a heading line"):
        load_path(written(tmp_path / "heap.tsv", heading + tsv(UNSPLIT)))
    for shard in range(3):
        written(tmp_path / f"shards/train-{shard}.tsv", heading + FILMS)
    written(tmp_path / "shards/validation.tsv", FILM)
    with pytest.raises(ConfigError, match=r"train-0\.tsv:1: a heading line"):
        load_path(tmp_path / "shards")


def test_a_class_that_is_called_like_a_heading_is_accepted(tmp_path):
    examples = [("class", "a"), ("y", "b"), ("class", "c")]
    assert load(tmp_path / "tsv", tsv(examples), tsv(examples[:1])).labels == ("class", "y")
    assert load(tmp_path / "a", jsonl(examples[1:]), jsonl(examples[1:]), ".jsonl").labels == (
        "class",
        "y",
    )
    for shard in range(3):  # each of them begins with it
        written(tmp_path / f"shards/train-{shard}.tsv", tsv(examples))
        written(tmp_path / f"shards/validation-{shard}.tsv", tsv(examples[:1]))
    assert load_path(tmp_path / "shards").labels == ("class", "y")


def test_columns_in_quotes_are_refused(tmp_path):
    quoted = [tuple(f'"{column}"' for column in record) for record in TRAIN]
    refused = r'train\.tsv: every label is in double quotes, such as "bad"; .* label, tab, text'
    for name, heading in (("plain", ""), ("heading", '"label"\t"text"\n')):
        with pytest.raises(ConfigError, match=refused):
            load(tmp_path / name, heading + tsv(quoted), tsv(quoted))
    with pytest.raises(ConfigError, match=r"heap\.tsv: every label is in double quotes"):
        load_path(written(tmp_path / "heap.tsv", tsv(quoted)))
    assert load(tmp_path / "some", tsv([*TRAIN, quoted[0]]), FILM).labels[0] == '"good"'
    assert load(tmp_path / "mark", tsv([*TRAIN, ('"', "a mark")]), FILM).labels[0] == '"'


def test_a_text_that_a_csv_writer_quoted_is_pointed_out(tmp_path, caplog):
    lines = [["bad", "a poor film"], ["good", 'he said "fine"'], ["good", '"the" "best"']]
    load(tmp_path / "plain", tsv(lines))
    assert not caplog.messages
    for name, dialect in (("tsv", csv.excel_tab), ("unix", csv.unix_dialect)):
        out = io.StringIO()
        csv_writer = csv.writer(out, dialect, delimiter="\t", quoting=csv.QUOTE_MINIMAL)
        csv_writer.writerows(lines)
        load(tmp_path / name, out.getvalue())
        (message,) = caplog.messages
        assert message.startswith(f"2 lines, the first is {tmp_path / name}/train.tsv:2, have a")
        caplog.clear()


SWAPPED = [(f"text {n}", "good" if n % 2 else "bad") for n in range(60)]


def test_swapped_columns_are_refused(tmp_path):
    refused = r": 60 classes for 60 rows, 60 of them with one row: the label comes first, then"
    with pytest.raises(ConfigError, match=refused):
        load(tmp_path / "splits", tsv(SWAPPED), tsv(SWAPPED[:2]))
    with pytest.raises(ConfigError, match=refused):  # not because of what is held out
        load_path(written(tmp_path / "heap.tsv", tsv(SWAPPED)))
    with pytest.raises(ConfigError, match=r": 40 classes for 40 rows, 40 of them with one row"):
        load_path(written(tmp_path / "few.tsv", tsv(SWAPPED[:40])))
    with pytest.raises(ConfigError, match=r"60 rows, .*: the key 'label' names the class"):
        load_path(written(tmp_path / "heap.jsonl", jsonl(SWAPPED)))


def test_many_classes_are_accepted_if_most_rows_share_theirs(tmp_path):
    labels = [*range(60), *range(60, 90), *range(60, 90)]
    examples = [(f"class {label}", f"text {n}") for n, label in enumerate(labels)]
    assert len(load(tmp_path / "many", tsv(examples), FILM).labels) == 90
    assert len(load(tmp_path / "few", tsv(SWAPPED[:10]), FILM).labels) == 10


def test_folders_of_texts_are_refused_with_the_layouts_that_are_read(tmp_path):
    for split in ("train", "validation"):
        written(tmp_path / f"splits/{split}/good/1.txt", "a fine film")
    written(tmp_path / "classes/good/1", "a fine film")
    layouts = (
        r"has no file that ends in \.tsv or \.jsonl\. labelled_text_files reads train\.tsv and "
        r"validation\.tsv, with label, tab, text .* does not read a folder of files for each class"
    )
    for name in ("splits", "classes"):
        with pytest.raises(ConfigError, match=layouts) as refusal:
            load_path(tmp_path / name)
        assert "data.train_split" not in str(refusal.value)
    written(tmp_path / "classes/good/films.tsv.gz", FILM, zipped=True)
    with pytest.raises(ConfigError, match=r"Set data\.train_split and data\.eval_split"):
        load_path(tmp_path / "classes")


def test_labels_that_differ_only_in_spaces_are_refused(tmp_path):
    lines = tsv([("good", "a fine film"), ("bad", "a poor film"), ("good ", "a great film")])
    with pytest.raises(ConfigError, match="'good ' and 'good' differ only in spaces; remove"):
        load(tmp_path, train=lines)
    # A label may have spaces inside, or around it wherever it occurs.
    lines = tsv([("very good", "a fine film"), ("very bad ", "a poor film")])
    assert load(tmp_path, train=lines, validation="").labels == ("very bad ", "very good")


@pytest.mark.parametrize(
    ("ending", "line", "reason"),
    [
        (
            ".tsv",
            "\ufeffgood\ta joined file\n",
            r":4: label '\\ufeffgood' has a byte order",
        ),
        (
            ".jsonl",
            '{"label": "\\ufeffgood", "text": "x"}\n',
            r":4: label .* byte order",
        ),
        (
            ".jsonl",
            '{"label": "\\ud800", "text": "x"}\n',
            r":4: label has half of a char",
        ),
        (".jsonl", '{"label": " ", "text": "x"}\n', r":4: label is empty"),
    ],
)
def test_labels_that_would_be_classes_by_mistake_are_bad_records(ending, line, reason, tmp_path):
    write = tsv if ending == ".tsv" else jsonl
    found = load(tmp_path, write(TRAIN) + line, write(TRAIN[:1]), ending)
    assert found.labels == ("bad", "good")
    with pytest.raises(BadRecordError, match=reason):
        found.train[3]


def test_classes_that_a_hash_holds_out_altogether_are_named(tmp_path, caplog):
    texts = [f"text number {n}" for n in range(40)]
    eval_texts = [text for text in texts if hash_fraction(text.encode()) < 0.3]
    rare = eval_texts[0]
    examples = [
        ("rare" if text == rare else f"class {n % 2}", text) for n, text in enumerate(texts)
    ]
    splits = load_path(written(tmp_path / "all.tsv", tsv(examples)), eval_share=0.3)
    assert splits.labels == ("class 0", "class 1", "rare")
    assert "1 of 3 classes have no training example" in caplog.text and ": rare;" in caplog.text
