"""Published weights are where training starts: from their workdir, with their shape."""

import json
import shutil

import ml_collections
import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
import evaluate
import generate
import train
from checkpointing import loaded_run
from configs import classify_text
from experiment.schema import ConfigError
from tests.corpora import write
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_published_ids import TOKENIZER_CONFIG, word_tokenizer
from tests.pretrained.test_round_trip import WORDS, words  # noqa: F401  a fixture
from tests.runs import TINY

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture(scope="module")
def published(words, tmp_path_factory, compile_once):  # noqa: F811
    workdir = tmp_path_factory.mktemp("published") / "bert"
    convert.convert(str(FIXTURES / "bert_masked_lm"), str(workdir), tokenizer=words)
    return workdir


def fine_tuning(published, tmp_path, **run):
    rng = np.random.default_rng(0)
    lines = [f"{n % 3}\t{' '.join(rng.choice(WORDS[7:], 4))}\n" for n in range(40)]
    for split in ("train", "validation"):
        write(tmp_path / "data" / f"{split}.tsv", "".join(lines))
    config = classify_text.get_config(str(published)).to_dict()
    for section in ("optimizer", "checkpoint", "eval"):
        config[section] |= TINY[section]
    config["optimizer"] |= dict(ema_decay=0.0, learning_rate=1e-9)
    config["data"] |= dict(
        path=str(tmp_path / "data"), tokenizer=str(published / "tokenizer.json"), length=8,
        batch_size=4, cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    return {**config, "steps": 1, "log_every": 1, "init_from": str(published), **run}


def test_a_classifier_begins_with_the_published_encoder(published, tmp_path):
    config = fine_tuning(published, tmp_path)
    train.train_and_evaluate(config, str(tmp_path / "run"))
    before, after = loaded_run.load(published), loaded_run.load(tmp_path / "run")
    assert after.model_config.num_classes == 3
    assert after.model_config.norm_epsilon == before.model_config.norm_epsilon == 1e-12
    kernel = lambda run: run.params["backbone"]["encoder"]["blocks"]["feed_forward"]["in"]["kernel"]  # noqa: E731
    np.testing.assert_allclose(kernel(after), kernel(before), atol=1e-7)
    # And out again, as what it has become.
    convert.convert(str(tmp_path / "run"), str(tmp_path / "out"))
    config = convert.model_files.read_json(tmp_path / "out", "config.json")
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "0", "1": "1", "2": "2"}


def test_a_fine_tuned_run_is_exported_with_the_special_tokens_of_its_published_model(tmp_path):
    """BERT's files name no bos and no eos; training fills these roles."""
    source, workdir = tmp_path / "source", tmp_path / "in"
    shutil.copytree(FIXTURES / "bert_masked_lm", source)
    named = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "mask")}
    word_tokenizer(source, tokenizer_class="BertTokenizer", padding_side="left", **named)
    convert.convert(str(source), str(workdir))
    train.train_and_evaluate(fine_tuning(workdir, tmp_path), str(tmp_path / "run"))
    written = []
    for name in ("in", "run"):
        convert.convert(str(tmp_path / name), str(tmp_path / f"{name}_out"))
        written.append(json.loads((tmp_path / f"{name}_out" / TOKENIZER_CONFIG).read_text()))
    assert written[0] == written[1]
    assert not {"bos_token", "eos_token"} & written[1].keys()
    assert written[1].items() >= dict(named, padding_side="left").items()


@pytest.fixture(scope="module")
def classifier(words, tmp_path_factory, compile_once):  # noqa: F811
    """A published classifier whose classes are not in the order in which data has them."""
    directory = tmp_path_factory.mktemp("published_classifier")
    shutil.copytree(FIXTURES / "bert_classifier", directory / "bert")
    config = json.loads((directory / "bert" / "config.json").read_text())
    labels = {"0": "2", "1": "0", "2": "1"}
    config |= dict(id2label=labels, label2id={name: int(n) for n, name in labels.items()})
    (directory / "bert" / "config.json").write_text(json.dumps(config))
    convert.convert(str(directory / "bert"), str(directory / "run"), tokenizer=words)
    return directory / "run"


def probabilities(workdir):
    (answers,) = generate.generate(workdir, [" ".join(WORDS[7:10])])
    return {each["label"]: each["probability"] for each in answers}


def test_classes_of_a_published_classifier_are_matched_by_name(classifier, tmp_path, capsys):
    config = fine_tuning(classifier, tmp_path)
    train.train_and_evaluate(config, str(tmp_path / "run"))
    assert "classes matched by name: their order differs" in capsys.readouterr().err
    assert loaded_run.load(tmp_path / "run").labels == ("0", "1", "2")
    before, after = probabilities(classifier), probabilities(tmp_path / "run")
    assert len({round(each, 3) for each in before.values()}) == 3  # or nothing would be compared
    assert after == pytest.approx(before, abs=1e-5)


def test_adapters_keep_the_head_of_a_published_classifier(classifier, tmp_path, capsys):
    """It is trained itself: the adapters' base has its classes in another order."""
    config = fine_tuning(classifier, tmp_path)
    config["optimizer"] |= dict(name="adamw")
    config["finetune"] |= dict(lora_rank=2)
    for steps in (1, 2):  # the second resumes
        train.train_and_evaluate({**config, "steps": steps}, str(tmp_path / "run"))
        before, after = probabilities(classifier), probabilities(tmp_path / "run")
        assert after == pytest.approx(before, abs=1e-5)
    log = capsys.readouterr().err
    assert "their order differs from init_from's; lora: the head for classes is trained" in log


def test_data_with_the_classes_in_another_order_is_scored(classifier, tmp_path):
    config = fine_tuning(classifier, tmp_path)
    recorded = loaded_run.recorded_config(classifier)
    recorded["data"] |= {key: config["data"][key] for key in ("path", "cache_dir", "length")}
    scores = evaluate.evaluate(classifier, config=recorded)
    lines = (tmp_path / "data" / "validation.tsv").read_text().splitlines()
    pairs = [line.split("\t") for line in lines]
    answers = generate.generate(classifier, [text for _, text in pairs])
    right = [max(a, key=lambda x: x["probability"])["label"] for a in answers]
    expected = np.mean([label == found for (label, _), found in zip(pairs, right, strict=True)])
    assert scores["eval/validation/accuracy"] == pytest.approx(expected)


def test_another_tokenizer_is_refused_with_the_published_one(published, tmp_path):
    config = fine_tuning(published, tmp_path)
    config["data"]["tokenizer"] = "byte"
    with pytest.raises(ConfigError, match=r"model\.vocab_size=\d+ is too small") as refusal:
        train.train_and_evaluate(config, str(tmp_path / "run"))
    assert f"set data.tokenizer={published / 'tokenizer.json'}; for a" in str(refusal.value)
    with pytest.raises(ConfigError, match=r"set data\.tokenizer=WORKDIR/tokenizer\.json; for a"):
        train.train_and_evaluate({**config, "init_from": ""}, str(tmp_path / "run"))


def test_adapters_are_exported_merged(published, tmp_path):
    config = fine_tuning(published, tmp_path)
    config["optimizer"] |= dict(name="adamw", learning_rate=0.01)
    config["finetune"] |= dict(lora_rank=2)
    train.train_and_evaluate({**config, "steps": 3}, str(tmp_path / "run"))
    convert.convert(str(tmp_path / "run"), str(tmp_path / "out"))
    before = load_file(FIXTURES / "bert_masked_lm" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    both = [name for name in after if name in before and "pooler" not in name]
    adapted = [name for name in both if name.endswith(("query.weight", "value.weight"))]
    assert len(adapted) == 2 * published_layers(published)
    for name in both:
        if name in adapted:
            assert np.linalg.matrix_rank(after[name] - before[name], tol=1e-4) == 2
        else:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)


def published_layers(workdir):
    return loaded_run.load(workdir).model_config.encoder_layers


def test_a_published_classifier_is_scored(words, tmp_path):  # noqa: F811
    workdir = tmp_path / "run"
    convert.convert(str(FIXTURES / "bert_classifier"), str(workdir), tokenizer=words)
    texts = ["cat sat", "the dog ran", "a mat", "dog sat on the mat", "ran", "on a cat"]
    answers = generate.generate(workdir, texts)
    labels = ["no", "perhaps", "yes"] * 2
    lines = [f"{label}\t{text}\n" for label, text in zip(labels, texts, strict=True)]
    for split in ("train", "validation"):
        write(tmp_path / "data" / f"{split}.tsv", "".join(lines))
    config = loaded_run.recorded_config(workdir)
    config["data"] |= dict(path=str(tmp_path / "data"), cache_dir=str(tmp_path / "cache"))
    config["eval"] |= dict(batch_size=2)
    scores = evaluate.evaluate(workdir, config=config)
    right = [each[0]["label"] == label for each, label in zip(answers, labels, strict=True)]
    assert scores["eval/validation/accuracy"] == pytest.approx(np.mean(right))


def test_converted_weights_are_not_trained_over(published, tmp_path):
    config = fine_tuning(published, tmp_path)
    with pytest.raises(ConfigError, match="holds weights that were converted; start from them"):
        train.train_and_evaluate({**config, "init_from": ""}, str(published))


def test_training_with_the_embed_objective_is_refused(published, tmp_path):
    config = fine_tuning(published, tmp_path)
    config["task"] |= dict(objective="embed")
    config["eval"] |= dict(metrics=())
    with pytest.raises(ConfigError, match="'embed' does not fit"):
        train.train_and_evaluate(config, str(tmp_path / "run"))


def test_an_unknown_directory_is_no_architecture(tmp_path):
    with pytest.raises(ValueError, match="or a workdir"):
        classify_text.get_config(str(tmp_path))
    assert isinstance(classify_text.get_config(), ml_collections.ConfigDict)
