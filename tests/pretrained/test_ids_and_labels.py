"""Special ids and classes of published configs mean what they mean in transformers."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
from checkpointing import loaded_run
from experiment.schema import ConfigError
from pretrained import published
from pretrained.architecture import Specials
from tests.pretrained.batches import our_batch
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_parity import TOLERANCE, imported
from tests.pretrained.test_round_trip import words  # noqa: F401
from tests.pretrained.transformers_models import Draw, answers, oracle, randomize
from tests.tiny import quick_jit
from training.model_for_task import by_name, model_arguments

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def with_classes(count):
    def change(weights):
        width = weights["classifier.weight"].shape[1]
        weights["classifier.weight"] = np.zeros((count, width), np.float32)
        weights["classifier.bias"] = np.zeros(count, np.float32)
        return weights

    return change


def test_the_number_of_labels_wins_over_old_names(changed):
    """transformers then forgets the names, which are those of another model."""
    directory = changed("bert_classifier", with_classes(5), num_labels=5)
    assert published.read(directory).labels == tuple(f"LABEL_{n}" for n in range(5))
    *_, params = imported(directory)
    assert params["classes"]["bias"].shape == (5,)
    directory = changed("bert_classifier", num_labels=3)
    assert published.read(directory).labels == ("no", "perhaps", "yes")
    directory = changed("bert_classifier", id2label=None)
    assert published.read(directory).labels == ("LABEL_0", "LABEL_1")


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "says",
    [
        dict(num_labels=50, id2label={"0": "a", "1": "b"}),
        dict(num_labels=2, id2label={"0": "a", "1": "b"}),
        dict(num_labels=4),
        dict(id2label={"0": "a", "1": "b", "2": "c"}),
        {},
    ],
)
def test_labels_are_those_of_transformers(says, changed):
    _, hf = oracle()
    directory = changed("bert_classifier", **{"id2label": None, "label2id": None, **says})
    theirs = hf.BertConfig.from_pretrained(directory).id2label
    assert published.read(directory).labels == tuple(theirs[n] for n in range(len(theirs)))


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_one_label_is_a_regression(name, changed):
    kinds = [
        dict(num_labels=1, id2label=None),
        dict(id2label={"0": "LABEL_0"}),
        dict(id2label={"0": "LABEL_0"}, problem_type="regression"),
    ]
    for says in kinds:
        found = published.read(changed(f"{name}_classifier", **says))
        assert (found.task["objective"], found.labels) == ("regress_text", ())
    several = changed(f"{name}_classifier", problem_type="regression")
    with pytest.raises(ConfigError, match=r"problem_type='regression' is not .*has one label"):
        published.read(several)
    one_tag = changed("bert_tokens", id2label={"0": "LABEL_0"}, num_labels=1)
    with pytest.raises(ConfigError, match="a regression has one label, and it is about texts"):
        published.read(one_tag)


def test_an_unused_roberta_pooler_is_ignored(changed):
    def with_pooler(weights):
        for part in ("weight", "bias"):
            weights[f"roberta.pooler.dense.{part}"] = weights[f"classifier.dense.{part}"] + 1
        return weights

    *_, expected = imported(FIXTURES / "roberta_classifier")
    *_, params = imported(changed("roberta_classifier", with_pooler))
    assert_same(params, expected)


def assert_same(params, expected):
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_multi_label_classifiers_are_refused(changed):
    with pytest.raises(ConfigError, match="only heads that choose one of several classes"):
        published.read(changed("bert_classifier", problem_type="multi_label_classification"))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "t5", "bert_base"])
def test_special_ids_beyond_the_vocabulary_are_ignored_and_noted(name, changed):
    keys = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    found = published.read(changed(name, **dict.fromkeys(keys, 50256)))
    assert found.specials == Specials()
    assert len(found.notes) == 4
    assert "bos_token_id=50256 is not an id of a vocabulary of 23" in found.notes[1]
    found = published.read(changed(name, **{**dict.fromkeys(keys, 22), "pad_token_id": -1}))
    assert (found.specials.bos, found.specials.pad) == (22, None) and len(found.notes) == 1
    found = published.read(changed(name, eos_token_id=[50256, 5, 6]))
    assert found.specials.eos == 5 and not found.notes


def test_special_tokens_of_the_tokenizer_replace_invalid_ids(changed, words, tmp_path, caplog):  # noqa: F811
    directory = changed("gpt2", bos_token_id=50256, eos_token_id=50256)
    convert.convert(str(directory), str(tmp_path / "run"), tokenizer=words)
    tokenizer = loaded_run.load(tmp_path / "run").tokenizer
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert "eos_token_id=50256 is not an id of a vocabulary of 23" in caplog.text


def test_a_base_model_of_bart_is_the_same_model(changed):
    """facebook/bart-base is stored so: no prefix, no bias of the answers."""
    *_, expected = imported(FIXTURES / "bart")

    def base(weights):
        del weights["final_logits_bias"]
        return {name.removeprefix("model."): value for name, value in weights.items()}

    *_, params = imported(changed("bart", base, architectures=["BartModel"]))
    assert np.any(expected["vocabulary"]["bias"]) and not np.any(params["vocabulary"]["bias"])
    assert_same(params["backbone"], expected["backbone"])


QKV_BIAS = tuple(f"attention.attention.{part}.bias" for part in ("query", "key", "value"))


def test_a_vit_without_biases_is_one_with_zeros(changed, tmp_path):
    def without(weights):
        return {name: x for name, x in weights.items() if not name.endswith(QKV_BIAS)}

    def with_zeros(weights):
        return {name: 0 * x if name.endswith(QKV_BIAS) else x for name, x in weights.items()}

    *_, expected = imported(changed("vit_classifier", with_zeros))
    directory = changed("vit_classifier", without, qkv_bias=False)
    *_, params = imported(directory)
    assert_same(params, expected)
    convert.convert(str(directory), str(tmp_path / "in"))
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["qkv_bias"] is True
    out = load_file(tmp_path / "out" / WEIGHTS)
    zeros = [name for name in out if name.endswith(QKV_BIAS)]
    assert zeros and not any(out[name].any() for name in zeros)
    with pytest.raises(ConfigError, match=r"the weights lack .*key\.bias"):
        imported(changed("vit_classifier", without))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_a_vit_without_biases_answers_as_in_transformers(tmp_path):
    torch, hf = oracle()
    torch.manual_seed(5)
    config = hf.ViTConfig(**Draw(5).vit(qkv_bias=False, num_labels=3))
    model = randomize(hf.ViTForImageClassification(config), 5)
    model.save_pretrained(tmp_path / "theirs")
    size = (2, config.num_channels, config.image_size, config.image_size)
    pixels = np.random.default_rng(5).normal(size=size).astype(np.float32)
    with torch.no_grad():
        theirs = answers(model, dict(pixel_values=pixels), dict(logits="logits"))["logits"].numpy()
    _, task, ours, params = imported(tmp_path / "theirs")
    batch = our_batch({"input/pixel_values": pixels})

    def logits(params):
        arguments, named = model_arguments(task, batch)
        return by_name(task, ours.apply({"params": params}, *arguments, **named))["logits"]

    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(quick_jit(logits)(params), theirs, rtol=0, atol=TOLERANCE)
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    again, info = hf.ViTForImageClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        found = answers(again.eval(), dict(pixel_values=pixels), dict(logits="logits"))["logits"]
    np.testing.assert_allclose(found.numpy(), theirs, rtol=0, atol=1e-6)
