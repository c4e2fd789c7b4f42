"""Token types of two texts: a published model gets those that transformers' tokenizer gives it."""

import json
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import convert
import generate
from checkpointing import loaded_run
from inference import predictors
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.transformers_models import oracle

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "sat", "on", "mat"]
NAMES = dict(
    pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
)
TYPED = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
    special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
)  # fmt: skip
ALL = ["input_ids", "token_type_ids", "attention_mask"]
# What the files say, and whether transformers 5 then gives the model token types.
CASES = [
    ({}, {}, True),
    (dict(tokenizer_class="BertTokenizer"), {}, True),
    (dict(tokenizer_class="BertTokenizerFast"), {}, True),
    (dict(tokenizer_class="PreTrainedTokenizerFast"), {}, False),
    (dict(tokenizer_class="DistilBertTokenizer"), {}, False),
    (dict(tokenizer_class="RobertaTokenizer"), {}, False),
    (dict(tokenizer_class="NoSuchTokenizer"), {}, False),
    (dict(tokenizer_class="BertTokenizer", model_input_names=ALL[::2]), {}, False),
    (dict(tokenizer_class="PreTrainedTokenizerFast", model_input_names=ALL), {}, True),
    ({}, dict(tokenizer_class="PreTrainedTokenizerFast"), False),
    (dict(tokenizer_class="BertTokenizer"), dict(tokenizer_class="DistilBertTokenizer"), True),
]


def published(directory, tokenizer_config, model_config):
    shutil.copytree(FIXTURES / "bert_classifier", directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | model_config))
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = TYPED
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(NAMES | tokenizer_config))


def types_in(workdir):
    predictor = predictors.make_predictor(loaded_run.load(workdir), {}, 1)
    fields = predictor.prompt("cat sat\ton mat", "")
    assert fields["inputs"].tolist() == [2, 5, 6, 3, 7, 8, 3]
    return fields["token_types"].tolist()


@pytest.mark.parametrize(("tokenizer_config", "model_config", "are_given"), CASES)
def test_token_types_follow_the_tokenizers_files(
    tokenizer_config, model_config, are_given, tmp_path
):
    published(tmp_path / "theirs", tokenizer_config, model_config)
    expected = [0, 0, 0, 0, *[int(are_given)] * 3]
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    assert types_in(tmp_path / "in") == expected
    # The exported files have the same settings.
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    convert.convert(str(tmp_path / "out"), str(tmp_path / "again"))
    assert types_in(tmp_path / "again") == expected


# RobertaTokenizer would also read the vocabulary of this tokenizer.json in its own way.
COMPARABLE = [case for case in CASES if case[0].get("tokenizer_class") != "RobertaTokenizer"]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("tokenizer_config", "model_config", "are_given"), COMPARABLE)
def test_classes_of_pairs_are_those_of_transformers(
    tokenizer_config, model_config, are_given, tmp_path
):
    torch, hf = oracle()
    published(tmp_path / "theirs", tokenizer_config, model_config)
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    found = generate.generate(tmp_path / "in", ["cat sat\ton mat", "mat\tcat cat"])
    texts = dict(text=["cat sat", "mat"], text_pair=["on mat", "cat cat"])
    for directory in ("theirs", "out"):
        tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / directory)
        rows = tokenizer(**texts, return_tensors="pt", padding=True)
        assert ("token_type_ids" in rows) == are_given
        model = hf.BertForSequenceClassification.from_pretrained(tmp_path / directory).eval()
        with torch.no_grad():
            shares = model(**rows).logits.softmax(-1).numpy()
        for row, outputs in zip(shares, found, strict=True):
            ours = {output["label"]: output["probability"] for output in outputs}
            theirs = [ours[model.config.id2label[number]] for number in range(len(row))]
            np.testing.assert_allclose(theirs, row, rtol=0, atol=1e-5)
