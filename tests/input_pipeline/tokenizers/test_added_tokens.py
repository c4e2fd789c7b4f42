"""Tokens that files beside a vocabulary add: ids by hand. test_published_ids.py has the oracle."""

import json
import shutil

import pytest

from experiment.schema import ConfigError
from input_pipeline.tokenizers.published_files import open_tokenizer
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS

SIZE = 1400  # of BERT's vocabulary here


@pytest.fixture
def vocabulary(tmp_path):
    shutil.copy(PATHS["bert_cased"], tmp_path / "vocab.txt")
    assert len((tmp_path / "vocab.txt").read_text().splitlines()) == SIZE
    return tmp_path / "vocab.txt"


def beside(path, **files):
    for name, content in files.items():
        path.with_name(f"{name}.json").write_text(json.dumps(content))


def entry(content, **flags):
    return dict(content=content, special=True, **flags)


@pytest.mark.parametrize(
    "files",
    [
        dict(added_tokens={"<b>": SIZE + 1, "<a>": SIZE}),
        dict(
            tokenizer_config={"added_tokens_decoder": {SIZE + 1: entry("<b>"), SIZE: entry("<a>")}}
        ),
        dict(tokenizer_config={"additional_special_tokens": ["<a>", entry("<b>")]}),
        dict(tokenizer_config={"extra_special_tokens": {"left": "<a>", "right": "<b>"}}),
        dict(special_tokens_map={"bos_token": "<a>", "pad_token": "<b>"}),
        dict(
            tokenizer_config={"eos_token": "<a>"},
            special_tokens_map={"additional_special_tokens": ["<a>", "<b>"]},
        ),
    ],
    ids=["table", "decoder", "listed", "named", "roles", "both"],
)
def test_tokens_are_added_after_the_vocabulary(vocabulary, files):
    plain = open_tokenizer(vocabulary)
    beside(vocabulary, **files)
    tokenizer = open_tokenizer(vocabulary)
    assert tokenizer.vocab_size == plain.vocab_size + 2 == SIZE + 2
    friday = plain.encode("Friday").tolist()
    assert tokenizer.encode("Friday<b> Friday <a>").tolist() == [*friday, SIZE + 1, *friday, SIZE]


def test_roles_are_those_that_the_files_name(vocabulary):
    beside(vocabulary, special_tokens_map={"eos_token": "<end>", "pad_token": entry("[MASK]")})
    tokenizer = open_tokenizer(vocabulary)
    assert (tokenizer.eos_id, tokenizer.pad_id) == (SIZE, tokenizer.mask_id)
    assert tokenizer.decode([SIZE]) == ""
    # As in transformers, a config with a table of ids makes the older file void.
    beside(vocabulary, tokenizer_config={"added_tokens_decoder": {}})
    assert open_tokenizer(vocabulary).vocab_size == SIZE


def test_tokens_that_are_not_special_are_text(vocabulary):
    beside(vocabulary, added_tokens={"friday13": SIZE})
    tokenizer = open_tokenizer(vocabulary)
    assert tokenizer.encode("on friday13").tolist()[-1] == SIZE
    assert tokenizer.decode([SIZE]) == "friday13"
    assert SIZE in tokenizer.text_ids


def test_an_id_that_is_not_the_next_one_is_refused(vocabulary):
    beside(vocabulary, added_tokens={"<a>": SIZE + 5})
    with pytest.raises(ConfigError, match=rf"give <a> the id {SIZE + 5}, but its place .* {SIZE};"):
        open_tokenizer(vocabulary)
    beside(vocabulary, added_tokens=["<a>"])
    with pytest.raises(ConfigError, match=r"added_tokens\.json beside it is not a JSON object"):
        open_tokenizer(vocabulary)


def test_a_model_without_room_for_a_token_does_without(vocabulary, caplog):
    beside(vocabulary, added_tokens={"<a>": SIZE, "<b>": SIZE + 1})
    with caplog.at_level("WARNING", "absl"):
        assert open_tokenizer(vocabulary, limit=SIZE + 1).vocab_size == SIZE + 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"vocab_size={SIZE + 1} are left out" in line and line.endswith(": <b>")


@pytest.mark.parametrize(("config", "logged"), [({}, 1), ({"do_lower_case": False}, 0)])
def test_the_log_says_how_casing_was_guessed(vocabulary, config, logged, caplog):
    beside(vocabulary, tokenizer_config=config)
    with caplog.at_level("INFO", "absl"):
        tokenizer = open_tokenizer(vocabulary)
    assert tokenizer.encode("Friday").tolist() != tokenizer.encode("friday").tolist()
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "no, because the vocabulary has some" in line]) == logged
