"""Long texts are truncated on the side that a published tokenizer names, as in transformers."""

import json
import shutil

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import convert
from checkpointing import loaded_run
from inference import predictors
from pretrained import sentence
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.transformers_models import oracle

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
TEXT, LONGEST = "a b c d e f g h", 6


def published(directory, truncation):
    shutil.copytree(FIXTURES / "bert_base", directory)
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(directory / "tokenizer.json"))
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    config = dict(names, truncation_side=truncation, model_max_length=LONGEST)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    sentence.write(directory, 18, "mean", LONGEST, normalize=False)


@pytest.mark.oracle
@pytest.mark.parametrize("truncation", ["left", "right"])
def test_a_long_text_has_transformers_ids(truncation, tmp_path):
    _, hf = oracle()
    published(tmp_path / "theirs", truncation)
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    expected = theirs(TEXT, truncation=True, max_length=LONGEST)["input_ids"]
    model = loaded_run.load(tmp_path / "in")
    fields = predictors.make_predictor(model, {}, 1).prompt(TEXT, "--prompt")
    assert fields["inputs"].tolist() == expected
