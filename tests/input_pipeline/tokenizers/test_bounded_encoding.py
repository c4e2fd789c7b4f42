"""What a tokenizer's file makes slow ends in time, with an error, and the process can end too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from experiment.schema import ConfigError
from input_pipeline.tokenizers import bounded_encoding, file_checks, published_files
from input_pipeline.tokenizers.published_files import open_tokenizer

ROOT = Path(__file__).resolve().parents[3]
# No repeat of a repeat, but cubic time: 1,500 characters need seconds, and 30,000 need hours.
CUBIC, SLOW_TEXT = "a*a*[bc]", "a" * 1500 + "dc"


def write(directory, pattern=CUBIC, model=None):
    """A tokenizer.json with an expression."""
    tokenizer = Tokenizer(model or models.WordLevel({"[UNK]": 0, "d": 1, "c": 2}, "[UNK]"))
    if pattern:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    path = directory / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_slow_expression_is_an_error_in_time(tmp_path, monkeypatch):
    tokenizer = open_tokenizer(write(tmp_path))
    monkeypatch.setattr(bounded_encoding, "LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(bounded_encoding, "SLOWEST", 10**5)  # 15 ms for the text
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch(["d", text])):
        with pytest.raises(ConfigError, match=r"cannot encode '(aaa|d).*its rules need more than"):
            encode(SLOW_TEXT)


def test_the_trial_of_a_new_file_has_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(published_files, "TRIAL", SLOW_TEXT)
    monkeypatch.setattr(bounded_encoding, "LIMIT_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"json cannot be read .*its rules need more"):
        open_tokenizer(write(tmp_path))


def test_with_the_limit_ids_spans_and_texts_are_the_same(tmp_path):
    path = write(tmp_path)
    limited = open_tokenizer(path)
    library = Tokenizer.from_file(str(path))
    for text in ("dc", "", "aac d", "élan\n", "aab"):
        expected = library.encode(text, add_special_tokens=False)
        ids, spans = limited.encode_with_spans(text)
        assert limited.encode(text).tolist() == ids.tolist() == expected.ids
        assert spans.tolist() == [list(span) for span in expected.offsets]
        assert limited.encode_batch([text, "d"])[0].tolist() == expected.ids
    assert limited.decode([1, 2]) == library.decode([1, 2])
    pair = bounded_encoding.encode(library, ("d", "c"))
    assert (pair.ids, pair.sequence_ids) == ([1, 2], [0, 1])


def test_what_the_library_raises_comes_through(tmp_path):
    # One try of one place already takes more steps than the library allows: it panics.
    tokenizer = open_tokenizer(write(tmp_path, "(a|a)*[bc]"))
    with pytest.raises(ConfigError, match="retry-limit-in-match over"):
        tokenizer.encode("a" * 60 + "dc")


def test_a_process_whose_tokenizer_is_stuck_ends(tmp_path):
    write(tmp_path)
    program = (
        "import sys\n"
        "from experiment.schema import ConfigError\n"
        "from input_pipeline.tokenizers import bounded_encoding\n"
        "from input_pipeline.tokenizers.published_files import open_tokenizer\n"
        f"tokenizer = open_tokenizer({str(tmp_path)!r})\n"
        "bounded_encoding.LIMIT_SECONDS = 0.1\n"
        "try:\n    tokenizer.encode('a' * 30_000 + 'dc')\n"
        "except ConfigError as error:\n    sys.exit(str(error))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, timeout=300, capture_output=True, text=True
    )
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1), ended.stderr
    assert "its rules need more than 3 s" in ended.stderr


@pytest.mark.parametrize(
    ("model", "pattern", "is_slow"),
    [
        (models.BPE(), None, False),
        (models.BPE(), "b", True),
        (models.Unigram([("<unk>", 0.0), ("a" * 100, -1.0)], 0), None, False),
        (models.Unigram([("<unk>", 0.0), ("a" * 101, -1.0)], 0), None, True),
        (models.WordPiece({"a": 0}, unk_token="a"), None, False),
        (models.WordPiece({"a": 0}, unk_token="a", max_input_chars_per_word=10**9), None, True),
    ],
)
def test_only_files_that_can_be_slow_have_the_limit(model, pattern, is_slow, tmp_path):
    layout = json.loads(write(tmp_path, pattern, model).read_text())
    assert file_checks.may_be_slow(layout) == is_slow


def test_an_expression_of_the_decoder_has_the_limit(tmp_path, monkeypatch):
    path = write(tmp_path, None, models.WordLevel({"[UNK]": 0, SLOW_TEXT: 1}, "[UNK]"))
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.decoder = decoders.Replace(Regex(CUBIC), "x")
    tokenizer.save(str(path))
    opened = open_tokenizer(path)
    monkeypatch.setattr(bounded_encoding, "LIMIT_SECONDS", 0.05)
    with pytest.raises(ConfigError, match="its rules need more than"):
        opened.decode([1])
