"""What files without a tokenizer.json leave to the tokenizer class: words, spaces, special tokens.

tests/pretrained/test_decoder_ids.py compares the same with transformers.
"""

import json
import shutil

import pytest
from tokenizers import Tokenizer, processors

from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.published_specials import as_published
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS

LLAMA = {"tokenizer_class": "LlamaTokenizer"}
DECOMPOSED, COMPOSED = "e\u0301", "é"


def merges(directory, model_type, beside=True, **config):
    """GPT-2's fixture as vocab.json and merges.txt, with RoBERTa's special tokens."""
    pieces = json.loads(PATHS["gpt2"].read_text())
    names = [*sorted(pieces, key=pieces.get), "<s>", "<pad>", "</s>", "<mask>"]
    vocab = {name: id for id, name in enumerate(names)}
    (directory / "vocab.json").write_text(json.dumps(vocab))
    shutil.copy(PATHS["gpt2"].with_name("vocab.bpe"), directory / "merges.txt")
    if beside:
        (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    return published(directory / "vocab.json", model_type, config)


def published(path, model_type, config):
    path.with_name("tokenizer_config.json").write_text(json.dumps(config))
    return as_published(open_tokenizer(path), path, model_type)


def pieces(tokenizer, text):
    return [tokenizer.pieces[id] for id in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("model_type", "config", "special"),
    [
        ("opt", dict(tokenizer_class="GPT2Tokenizer", bos_token="</s>", pad_token="<pad>"), 2),
        ("opt", {}, 0),
        ("gpt2", {}, 0),
        ("roberta", {}, 4),
        ("gpt2", dict(tokenizer_class="RobertaTokenizerFast"), 4),
    ],
)
def test_special_tokens_of_merges_are_those_of_the_class(tmp_path, model_type, config, special):
    tokenizer = merges(tmp_path, model_type, **config)
    names = ("<s>", "<pad>", "</s>", "<mask>")
    assert sum(pieces(tokenizer, name) == [name] for name in names) == special
    assert (pieces(tokenizer, "<|endoftext|>") == ["<|endoftext|>"]) == (special < 4)


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    ("model_type", "config", "composes"),
    [
        ("qwen2", {}, True),
        ("qwen2", dict(tokenizer_class="GPT2Tokenizer"), True),
        ("qwen3", {}, True),
        ("gpt_neox", {}, True),
        ("cohere", {}, True),
        ("opt", dict(tokenizer_class="GPTNeoXTokenizerFast"), True),
        ("gpt_neox", dict(tokenizer_class="GPT2Tokenizer"), False),
        ("starcoder2", {}, False),
    ],
)
def test_words_of_merges_are_those_of_the_class(tmp_path, model_type, config, composes, beside):
    tokenizer = merges(tmp_path, model_type, beside, **config)
    same = pieces(tokenizer, DECOMPOSED) == pieces(tokenizer, COMPOSED)
    assert same == composes


def test_merges_of_a_model_that_splits_otherwise_are_named(tmp_path, caplog):
    for model_type, config, is_known in (
        ("granite", dict(tokenizer_class="GPT2Tokenizer"), False),
        ("smollm3", dict(tokenizer_class="PreTrainedTokenizerFast"), False),
        ("llama", dict(tokenizer_class="GPT2Tokenizer"), True),
        ("qwen3", {}, True),
        ("opt", {}, True),
    ):
        caplog.clear()
        merges(tmp_path, model_type, **config)
        said = [line for line in caplog.messages if "give the model's tokenizer.json" in line]
        assert len(said) == (not is_known), model_type
        assert all(f"a text of {model_type}" in line for line in said)


@pytest.mark.parametrize(
    ("config", "first", "after_special"),
    [
        ({}, ["▁", "a"], ["a"]),
        (LLAMA, ["▁", "a"], ["a"]),
        (dict(LLAMA, legacy=False, add_prefix_space=None), ["▁", "a"], ["a"]),
        (dict(LLAMA, legacy=True), ["▁", "a"], ["▁", "a"]),
        (dict(LLAMA, add_prefix_space=False), ["a"], ["a"]),
        (dict(LLAMA, add_prefix_space=False, legacy=True), ["a"], ["a"]),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "mistral", "phi3"])
def test_a_space_before_a_text_is_as_the_files_say(
    tmp_path, model_type, config, first, after_special
):
    path = tmp_path / "tokenizer.model"
    shutil.copy(PATHS["llama"], path)  # this file says that there is one
    tokenizer = published(path, model_type, config)
    assert pieces(tokenizer, "a") == first
    assert pieces(tokenizer, "</s>a") == ["</s>", *after_special]
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


@pytest.mark.parametrize(
    ("model_type", "config", "begins"),
    [
        ("gpt_neox", dict(tokenizer_class="GPTNeoXTokenizer"), False),
        ("gpt_neox", dict(tokenizer_class="GPTNeoXTokenizerFast", add_bos_token=False), False),
        ("gpt_neox", {}, False),
        ("llama", dict(tokenizer_class="GPTNeoXTokenizer"), False),
        ("gpt_neox", dict(tokenizer_class="GPTNeoXTokenizer", add_bos_token=True), True),
        ("gpt_neox", dict(tokenizer_class="PreTrainedTokenizerFast"), True),
        ("stablelm", dict(tokenizer_class="GPTNeoXTokenizer"), True),
        ("llama", {}, True),
    ],
)
def test_a_neox_tokenizer_begins_with_bos_only_if_asked(tmp_path, model_type, config, begins):
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer.from_str(open_tokenizer(PATHS["gpt2"]).content)
    bos = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A $B:1",
        special_tokens=[("<|endoftext|>", bos)],
    )  # fmt: skip
    tokenizer.save(str(path))
    found = published(path, model_type, dict(config, bos_token="<|endoftext|>"))
    assert found.template.prefix == ((bos,) if begins else ())
    # The record of an import says the same, and so does what is exported.
    assert (Tokenizer.from_str(found.content).encode("a").ids[0] == bos) == begins
