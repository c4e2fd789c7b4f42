"""Answers as spans of tokens: windows of long contexts, rows by hand, and files of questions."""

import itertools
import json

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.batch_shapes import row_outline
from input_pipeline.objectives.answer_span import WindowCutter, token_span
from input_pipeline.sources.files.questions import Questions
from input_pipeline.sources.files.reading import Lines
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.tiny import data_config, masking

CONTEXT = "0123456789abcdefghij"
QUESTIONS = [
    dict(question="q", context=CONTEXT, answer="78"),
    dict(question="who", context="Ada or Bob", answer=["Bob", "Ada"], answer_start=[7, 0]),
]


@pytest.mark.parametrize(
    ("room", "overlap", "question", "context"),
    [(10, 3, 4, 20), (10, 0, 1, 9), (10, 0, 1, 10), (10, 100, 5, 17), (6, 2, 1, 0), (7, 2, 3, 4)],
)
def test_windows_cover_the_context_and_overlap(room, overlap, question, context):
    windows = list(WindowCutter(room, overlap).windows(question, context))
    size = room - question
    assert windows[0][0] == 0 and windows[-1][1] == context
    assert all(0 <= stop - first <= size for first, stop in windows)
    for (first, stop), (later, _) in itertools.pairwise(windows):
        assert stop - first == size
        assert stop - later == min(overlap, size // 2)
    assert len(windows) == 1 or windows[-2][1] < context  # no window is superfluous


def test_a_span_has_all_tokens_that_touch_the_answer():
    spans = np.array([[0, 3], [3, 3], [3, 7], [8, 9]])
    assert token_span(spans, 0, 3) == (0, 0)
    assert token_span(spans, 2, 4) == (0, 2)
    assert token_span(spans, 7, 9) == (3, 3)
    assert token_span(spans, 7, 8) == (-1, -1)


def write(directory, lines=QUESTIONS):
    directory.mkdir()
    for split in ("train", "validation"):
        content = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"{split}.jsonl").write_text(content)
    return directory


def load(path, length=16, overlap=4, *, unanswerable=False, **overrides):
    given = dict(source="question_files", path=str(path), batch_size=2, tokenizer="byte")
    given |= dict(length=length, cache_dir=str(path.parent / "cache"))
    task = masking(window_overlap=overlap, unanswerable=unanswerable)
    return pipeline.load(
        data_config(**given | overrides), objective="answer_span", masking=task, seed=0
    )


def rows_of(data, name="validation"):
    """All rows of a set, as (text, target columns), with the bytes that are not special."""
    found = []
    for batch in data.eval_batches(name, 2):
        for row in range(2):
            if batch["weights"][row].any():
                ids = batch["inputs"][row] - ByteTokenizer.first_byte_id
                text = "".join(chr(id) if id >= 0 else "|" for id in ids)
                found.append((text.rstrip("|"), {k: batch[k][row].tolist() for k in batch}))
    return sorted(found, key=lambda each: each[1]["context_first"])


def test_rows_of_a_long_context_by_hand(tmp_path):
    rows = rows_of(load(write(tmp_path / "data", QUESTIONS[:1])))
    # 16 columns: cls, q, sep, 12 bytes of the context, sep. Windows share 4 bytes.
    assert [text for text, _ in rows] == ["|q|0123456789ab", "|q|89abcdefghij"]
    first, second = (row for _, row in rows)
    assert first["targets"] == [3 + 7, 3 + 8] and first["weights"] == [1, 1]
    assert second["targets"] == [0, 0] and second["weights"] == [1, 1]
    assert (first["context_start"], first["context_end"], first["context_first"]) == (3, 15, 0)
    assert (second["context_start"], second["context_end"], second["context_first"]) == (3, 15, 8)
    assert first["token_types"] == [0, 0, 0, *[1] * 13]


def test_the_answer_of_training_is_the_first_at_its_place(tmp_path):
    ((text, row),) = rows_of(load(write(tmp_path / "data", QUESTIONS[1:]), length=20))
    assert text == "|who|Ada or Bob"
    assert row["targets"] == [5 + 7, 5 + 9]


def test_a_long_question_has_half_of_a_row(tmp_path):
    record = dict(question="x" * 30, context="abcdef", answer="ef")
    rows = rows_of(load(write(tmp_path / "data", [record]), length=13, overlap=1))
    assert [text for text, _ in rows] == ["|xxxxx|abcde", "|xxxxx|ef"]
    assert [row["targets"] for _, row in rows] == [[0, 0], [7, 8]]


def test_questions_without_answers_need_the_key(tmp_path):
    directory = write(tmp_path / "data", [*QUESTIONS, dict(QUESTIONS[0], answer=[])])
    with pytest.raises(ConfigError, match=r"jsonl:3: no answer; set task\.unanswerable=True"):
        load(directory, over_long="truncate")
    rows = rows_of(load(directory, length=32, unanswerable=True))
    assert [row["targets"] for _, row in rows].count([0, 0]) == 1


def test_squads_form_is_read(tmp_path):
    answers = dict(text=["34", "7"], answer_start=[3, 7])
    path = tmp_path / "squad.jsonl"
    path.write_text(json.dumps(dict(question="q", context=CONTEXT, answers=answers, id="1")) + "\n")
    assert Questions(Lines(path))[0]["answers"] == [(3, 5), (7, 8)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (dict(answer="zz"), "does not have the answer 'zz'"),
        (dict(answer_start=3), "does not have the answer '78' at answer_start=3"),
        (dict(answer_start=[1, 2]), "1 answers have 2 answer_start"),
        (dict(answer=7), "answer is empty or not text"),
        (dict(context=" "), "context is empty or not text"),
        (dict(answers=[]), "answers must be an object"),
    ],
)
def test_bad_records_are_named(changes, problem, tmp_path):
    directory = write(tmp_path / "data")
    with (directory / "train.jsonl").open("a") as file:
        file.write(json.dumps(QUESTIONS[0] | changes) + "\n")
    with pytest.raises(ConfigError, match=rf"train\.jsonl:3: .*{problem}"):
        load(directory)


def test_the_outline_of_a_batch_has_the_shapes_of_a_real_one(tmp_path):
    path = write(tmp_path / "data")
    given = dict(source="question_files", path=str(path), batch_size=2, length=16)
    outline = row_outline(data_config(**given), objective="answer_span", masking=masking())
    batch = load(path).train_batch(0)
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
        name: ((2, *np.shape(x)), np.asarray(x).dtype) for name, x in outline.items()
    }


def test_a_row_without_room_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.length=4 has no room for cls, sep, a question"):
        load(write(tmp_path / "data"), length=4)
