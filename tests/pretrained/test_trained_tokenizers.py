"""transformers reads texts with an exported tokenizer that was trained here as its model does.

These tokenizers have no post-processor of their own: the special ids follow from the objective, and
an export has to write them.
"""

import functools

import numpy as np
import pytest

import convert
import generate
import train
from checkpointing import loaded_run
from configs import classify_text
from inference import predictors
from tests.corpora import write
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import read_strings
from tests.pretrained.transformers_models import oracle
from tests.runs import tiny

pytestmark = [
    pytest.mark.oracle, pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("compile_once"),
]  # fmt: skip
KINDS = ["wordpiece", "unigram", "word", "bpe"]
TEXTS = [
    "one text", " two  spaces ", "UPPER Title lower", "don't stop, now!", "naïve café", "漢字 かな",
    "x = {'a': 1}", "1234567890", "…", "a\u00a0b", "emoji 🙂 here", "[CLS] a [SEP] b", "<s>a</s>",
    "a\nb", "\u200bword\u200b", "e\u0301 é", "ﬁne ①", "supercalifragilistic", "a",
    "日本語 and English",
]  # fmt: skip
ARCHITECTURES = {"masked_lm": "BertForMaskedLM", "classify_text": "BertForSequenceClassification"}
Style = functools.partial(classify_text.get_config, "bert_style")


def exported(objective, kind, directory, *, pairs, lowercase=False):
    """A run whose tokenizer is trained on its data, and its export for transformers."""
    rng = np.random.default_rng(0)
    words = [word for text in [*TEXTS, *read_strings()[:200]] for word in text.split()]
    texts = [[" ".join(rng.choice(words, 5)) for _ in range(1 + pairs)] for _ in range(60)]
    lines = [f"{number % 3}\t" + "\t".join(each) for number, each in enumerate(texts)]
    lines = [line.replace('"', "") + "\n" for line in lines]
    for split in ("train", "validation"):
        write(directory / "data" / f"{split}.tsv", "".join(lines))
    data = dict(
        path=str(directory / "data"), cache_dir=str(directory / "cache"), tokenizer=kind,
        tokenizer_size=1600, length=64, buckets=(), lowercase=lowercase,
    )  # fmt: skip
    config = tiny(
        type("Style", (), {"get_config": Style}), steps=1, data=data,
        task=dict(objective=objective, label_smoothing=0.0),
        eval=dict(every=0, metrics=(), samples=0, patience=0), optimizer=dict(ema_decay=0.0),
        checkpoint=dict(every=1),
    )  # fmt: skip
    train.train_and_evaluate(config, str(directory / "run"))
    convert.convert(str(directory / "run"), str(directory / "out"))
    _, hf = oracle()
    return directory / "run", hf.AutoTokenizer.from_pretrained(directory / "out")


def read_here(workdir, texts):
    prompt = predictors.make_predictor(loaded_run.load(workdir), {}, 1).prompt
    rows = [prompt(text, "") for text in texts]
    types = [row.get("token_types", np.zeros_like(row["inputs"])).tolist() for row in rows]
    return [row["inputs"].tolist() for row in rows], types


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_lm(kind, tmp_path):
    workdir, theirs = exported("masked_lm", kind, tmp_path, pairs=False)
    # transformers' mask covers all spaces before it, that of training only one.
    texts = [f"{text.rstrip()} {{}} {text}" for text in TEXTS]
    found, _ = read_here(workdir, [text.replace("{}", "[MASK]") for text in texts])
    expected = theirs([text.replace("{}", theirs.mask_token) for text in texts])["input_ids"]
    assert found == expected
    for ids in expected:
        assert ids[0] == theirs.cls_token_id and ids[-1] == theirs.sep_token_id
        assert ids.count(theirs.mask_token_id) == 1


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier(kind, pairs, tmp_path):
    torch, hf = oracle()
    workdir, theirs = exported("classify_text", kind, tmp_path, pairs=pairs, lowercase=pairs)
    firsts, seconds = TEXTS, TEXTS[::-1]
    lines = [f"{a}\t{b}" for a, b in zip(firsts, seconds, strict=True)] if pairs else firsts
    found, types = read_here(workdir, lines)
    rows = theirs(firsts, seconds) if pairs else theirs(firsts)
    assert found == rows["input_ids"]
    for ids in found:
        assert ids[0] == theirs.cls_token_id and ids[-1] == theirs.sep_token_id
        assert ids.count(theirs.sep_token_id) == 1 + pairs
    if pairs:
        assert types == rows["token_type_ids"]
        assert all(set(each) == {0, 1} for each in types)
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert type(model).__name__ == ARCHITECTURES["classify_text"]
    rows = theirs(firsts, seconds if pairs else None, return_tensors="pt", padding=True)
    with torch.no_grad():
        shares = model(**rows).logits.softmax(-1).numpy()
    for row, outputs in zip(shares, generate.generate(workdir, lines), strict=True):
        ours = {output["label"]: output["probability"] for output in outputs}
        named = [ours[model.config.id2label[number]] for number in range(len(row))]
        np.testing.assert_allclose(named, row, rtol=0, atol=1e-5)
