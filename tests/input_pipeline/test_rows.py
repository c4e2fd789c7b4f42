import numpy as np

from input_pipeline.rows import ExampleRows, WindowRows
from input_pipeline.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


def test_windows_hold_every_id_once_with_eos_after_each_document():
    documents = [{"text": "abcd"}, {"text": ""}, {"text": "éf"}]
    rows = WindowRows(documents, TOKENIZER, width=4)
    windows = [rows.row(i)["text"] for i in range(len(rows))]
    assert [len(window) for window in windows] == [4, 4, 2]
    assert windows[0].dtype == np.int32
    eos = [TOKENIZER.eos_id]
    expected = [*TOKENIZER.encode("abcd"), *eos, *eos, *TOKENIZER.encode("éf"), *eos]
    assert np.concatenate(windows).tolist() == expected
    assert rows.example(0) == {"text": "abcd"}


def test_no_documents_no_windows():
    assert len(WindowRows([], TOKENIZER, width=4)) == 0


def test_examples_are_cut_to_their_capacity_and_counted():
    examples = [{"text": "abc", "label": 1}, {"text": "abcde", "label": 0}]
    rows = ExampleRows(examples, TOKENIZER, {"text": 4})
    assert rows.row(0)["text"].tolist() == TOKENIZER.encode("abc").tolist()
    assert rows.row(1)["text"].tolist() == TOKENIZER.encode("abcd").tolist()
    assert rows.row(1)["label"] == 0
    assert rows.example(1) == examples[1]
    assert rows.truncated() == 1


def test_examples_without_text_are_not_read_to_be_counted():
    class Unread(list):
        def __iter__(self):
            raise AssertionError("an image was read")

    assert ExampleRows(Unread([{"image": 0}]), None, {}).truncated() == 0
