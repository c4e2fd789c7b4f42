"""Tokenizers that transformers' AutoTokenizer reads by other rules than their files'."""

import json

import pytest

from pretrained.auto_tokenizer import _RULES, _rules_on_ids, difference
from pretrained.catalog import ARCHITECTURES
from tests.pretrained.transformers_models import oracle

NORMALIZER, PRE_TOKENIZER = _RULES["qwen2"]


def content(normalizer, pre_tokenizer):
    return json.dumps({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer})


def test_other_rules_are_told_of():
    plain = content(None, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True})
    assert "AutoTokenizer splits texts of every qwen2 as" in difference("qwen2", plain)
    assert difference("qwen2", content({"type": "Lowercase"}, PRE_TOKENIZER))
    assert difference("llama", plain) == ""


def test_the_published_rules_are_not():
    split, to_bytes = PRE_TOKENIZER["pretokenizers"]
    pre_tokenizer = PRE_TOKENIZER | {"pretokenizers": [split, to_bytes | {"trim_offsets": True}]}
    assert difference("qwen2", content(NORMALIZER, pre_tokenizer)) == ""


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_the_types_and_rules_are_those_of_transformers():
    _, hf = oracle()
    from transformers.models.auto import tokenization_auto

    types = set(ARCHITECTURES)
    replaced = types & tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    names = {each: tokenization_auto.TOKENIZER_MAPPING_NAMES[each] for each in replaced}
    with_rules = {each for each, name in names.items() if name != "TokenizersBackend"}
    assert with_rules == set(_RULES)
    theirs = hf.Qwen2Tokenizer(vocab={"a": 0, "<|endoftext|>": 1}, merges=[])
    described = json.loads(theirs.backend_tokenizer.to_str())
    found = described["normalizer"], described["pre_tokenizer"]
    assert tuple(map(_rules_on_ids, found)) == (NORMALIZER, PRE_TOKENIZER)
