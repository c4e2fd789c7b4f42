"""ESM: the ids of its tokenizer, masked tokens in rows with several texts, rounded frequencies."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import convert
import generate
from checkpointing import loaded_run
from experiment.schema import ConfigError
from inference import predictors
from input_pipeline.tokenizers.published_files import open_tokenizer
from model.positions import rope_frequencies
from model.token_dropout import drop_masked
from pretrained import published
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.transformers_models import oracle

# As transformers.models.esm.configuration_esm.get_default_vocab_list(), the rarest residues left
# out, so that the ids fit the small models.
PIECES = ["<cls>", "<pad>", "<eos>", "<mask>", "<unk>", *"LAGVSERTIDPKQNFY", ".", "-"]
MASK, UNKNOWN = 3, 4
TEXTS = [
    "LAG", "L A G", "", " LAG ", "lag", "LxAyyG", "LAG<mask>V", "<mask>", "L.A-G", "<cls>LA<eos>",
    "LA\nGV", "[MASK]LA", "<null_1>A", "LéA", "<mas>k",
]  # fmt: skip


@pytest.fixture(scope="module")
def protein_model(tmp_path_factory):
    """A small ESM with its own vocabulary, as on the hub, and its import."""
    directory = tmp_path_factory.mktemp("esm")
    source, workdir = directory / "source", directory / "in"
    shutil.copytree(FIXTURES / "esm_masked_lm", source)
    (source / "vocab.txt").write_text("\n".join(PIECES))
    config = dict(tokenizer_class="EsmTokenizer", cls_token="<cls>", eos_token="<eos>")
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    convert.convert(str(source), str(workdir))
    return source, workdir


def prompt_ids(workdir, text):
    predictor = predictors.make_predictor(loaded_run.load(workdir), {}, 1)
    return predictor.prompt(text, "")["inputs"].tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LAG", [5, 6, 7]),
        ("L A\tG", [5, 6, 7]),
        ("LxyA", [5, UNKNOWN, 6]),
        ("L<mask>A", [5, MASK, 6]),
        ("lag", [UNKNOWN]),
    ],
)
def test_every_residue_is_a_token(protein_model, text, expected):
    source, _ = protein_model
    assert open_tokenizer(source / "vocab.txt").encode(text).tolist() == expected


def test_a_protein_has_a_class_token_before_it_and_an_end(protein_model):
    _, workdir = protein_model
    assert prompt_ids(workdir, "LA<mask>") == [0, 5, 6, MASK, 2]


def test_masked_residues_are_filled_in(protein_model):
    _, workdir = protein_model
    ((answer, *_),) = generate.generate(workdir, ["LA<mask>V"])
    assert len(answer["text"].replace(" ", "")) >= 4


def test_a_vocabulary_without_an_unknown_token_is_refused(protein_model, tmp_path):
    source, _ = protein_model
    shutil.copytree(source, tmp_path / "esm")
    (tmp_path / "esm" / "vocab.txt").write_text("\n".join(PIECES).replace("<unk>", "X"))
    with pytest.raises(ConfigError, match="has no <unk>, so it is not a vocabulary of ESM"):
        convert.convert(str(tmp_path / "esm"), str(tmp_path / "in"))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_ids_are_those_of_transformers(protein_model, tmp_path):
    _, hf = oracle()
    source, workdir = protein_model
    theirs = hf.AutoTokenizer.from_pretrained(source)
    convert.convert(str(workdir), str(tmp_path / "out"))
    again = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    own = open_tokenizer(source / "vocab.txt")
    for text in TEXTS:
        expected = theirs(text)["input_ids"]
        filled = theirs(f"{text}<mask>")["input_ids"]
        assert prompt_ids(workdir, f"{text}<mask>") == filled or "[MASK]" in text, text
        assert [0, *own.encode(text).tolist(), 2] == expected, text
        assert again(text)["input_ids"] == expected, text
        assert again(text, "LA")["input_ids"] == theirs(text, "LA")["input_ids"], text
    assert again.decode([5, 6]) == theirs.decode([5, 6])


def test_texts_that_share_a_row_are_scaled_apart():
    """Against the formula for a text alone: (1 - 0.12) / (1 - its share of masked tokens)."""
    x_btd = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    segments_bt = np.array([[1, 1, 1, 1, 2, 2], [1, 1, 2, 0, 0, 0]])
    is_masked_bt = np.array([[0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0]], bool)
    found = np.asarray(drop_masked(x_btd, is_masked_bt, segments_bt))
    for row, segment in ((0, 1), (0, 2), (1, 1)):
        places = segments_bt[row] == segment
        share = is_masked_bt[row, places].mean()
        expected = x_btd[row, places] * (~is_masked_bt[row, places, None]) * 0.88 / (1 - share)
        np.testing.assert_allclose(found[row, places], expected, rtol=1e-6)
    assert not found[1, 2].any(), "a text of masks alone is 0, not NaN"


def with_frequencies(directory, name, values):
    shutil.copytree(FIXTURES / "esm_masked_lm", directory, dirs_exist_ok=True)
    weights = load_file(directory / "model.safetensors")
    others = {n: value for n, value in weights.items() if "inv_freq" not in n}
    save_file(others | {name: values}, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


PREFIX = "esm.encoder.layer.0.attention.self."


@pytest.mark.parametrize("prefix", [PREFIX, "esm."])
def test_frequencies_are_those_of_the_file(prefix, tmp_path):
    """A model that was saved in 16 bits rotates by rounded frequencies, in transformers too."""
    heads = json.loads((FIXTURES / "esm_masked_lm" / "config.json").read_text())
    size = heads["hidden_size"] // heads["num_attention_heads"]
    exact = (10_000.0 ** -(np.arange(0, size, 2) / size)).astype(np.float32)
    rounded = exact.astype(np.float16).astype(np.float32)
    assert np.abs(exact - rounded).max() > 0
    name = f"{prefix}rotary_embeddings.inv_freq"
    for values, kind in ((exact, "default"), (rounded, "longrope")):
        source = with_frequencies(tmp_path / kind, name, values)
        assert published.read(source).model.get("rope_scaling", "default") == kind
        convert.convert(str(source), str(tmp_path / f"{kind}_in"), tokenizer="none")
        run = loaded_run.load(tmp_path / f"{kind}_in")
        np.testing.assert_array_equal(rope_frequencies(run.model_config), values)
        convert.convert(str(tmp_path / f"{kind}_in"), str(tmp_path / f"{kind}_out"))
        written = load_file(tmp_path / f"{kind}_out" / "model.safetensors")
        np.testing.assert_array_equal(written[f"{PREFIX}rotary_embeddings.inv_freq"], values)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_transformers_rotates_by_the_frequencies_of_the_file(tmp_path):
    torch, hf = oracle()
    values = np.array([0.9, 0.05, 0.002], np.float32)
    source = with_frequencies(tmp_path / "esm", f"{PREFIX}rotary_embeddings.inv_freq", values)
    convert.convert(str(source), str(tmp_path / "in"), tokenizer="none")
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    run = loaded_run.load(tmp_path / "in")
    tokens = np.array([[0, 5, 6, 7, 8, 9, 10, 3, 2]])
    ours, _ = run.model.apply({"params": run.params}, tokens)
    for directory in (source, tmp_path / "out"):
        model = hf.EsmForMaskedLM.from_pretrained(directory).double().eval()
        with torch.no_grad():
            theirs = model(torch.tensor(tokens), torch.ones_like(torch.tensor(tokens))).logits
        np.testing.assert_allclose(ours, theirs, atol=3e-5)
