"""Models of the hub in convert.py and train.py, and tokenizers of the hub in the data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import convert
import generate
import train
from checkpointing import hub_run, loaded_run, model_card, run_directory
from checkpointing.checkpoint_manager import find_checkpoint
from configs import classify_text
from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.objectives.objective import Masking
from storage.hub import pinned
from tests import scripts
from tests.experiment.test_bad_input import assert_short_and_clear
from tests.hub.conftest import forget, make_model
from tests.runs import TINY, saved
from tests.tiny import data_config

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = "hf://org/bert"


@pytest.fixture
def theirs(hub, tmp_path):
    """The directory of the model that the hub has."""
    directory = make_model(tmp_path / "theirs")
    hub.add("org/bert", directory)
    return directory


@pytest.fixture
def config(tmp_path):
    """Fine-tunes a classifier that has the shape of a run."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    lines = [f"{n % 3}\t{' '.join(rng.choice(list('abcdefgh'), 4))}\n" for n in range(40)]
    for split in ("train", "validation"):
        (tmp_path / "data" / f"{split}.tsv").write_text("".join(lines))

    def make(workdir, init_from=MODEL, tokenizer=MODEL, steps=1):
        config = classify_text.get_config(str(workdir)).to_dict()
        for section in ("optimizer", "checkpoint", "eval"):
            config[section] |= TINY[section]
        config["optimizer"] |= dict(ema_decay=0.0)
        config["data"] |= dict(
            path=str(tmp_path / "data"), tokenizer=tokenizer, length=8, batch_size=4,
            cache_dir=str(tmp_path / "cache"),
        )  # fmt: skip
        return {**config, "steps": steps, "log_every": 1, "init_from": init_from}

    return make


def same_params(one, other):
    one, other = (
        {n: x for n, x in saved(workdir, step).items() if n.startswith("['params']")}
        for workdir, step in (one, other)
    )
    assert one and one.keys() == other.keys()
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_an_import_equals_that_of_the_downloaded_directory(hub, theirs, tmp_path):
    convert.convert(MODEL, str(tmp_path / "hub"))
    convert.convert(str(theirs), str(tmp_path / "local"))
    assert same_params((tmp_path / "hub", 0), (tmp_path / "local", 0))
    for name in ("tokenizer.json", "tokenizer_roles.json", "model.json"):
        assert (tmp_path / "hub" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    commit = hub.repos["org/bert"].refs["main"]
    record = json.loads((tmp_path / "hub" / model_card.IMPORTED_FROM).read_text())
    assert record == {"source": f"{MODEL}@{commit}"}


def test_a_tokenizer_of_another_model_on_the_hub(hub, theirs, tmp_path):
    (theirs / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    hub.repos["org/bert"].commit({p.name: p.read_bytes() for p in theirs.glob("*.*")})
    hub.add("org/words").commit({"tokenizer.json": (tmp_path / "tokenizer.json").read_bytes()})
    with pytest.raises(ConfigError, match=rf"^{MODEL}@\w+ has none of tokenizer.json"):
        convert.convert(MODEL, str(tmp_path / "run"))  # not the directory of the cache
    convert.convert(MODEL, str(tmp_path / "run"), tokenizer="hf://org/words")
    assert loaded_run.load(tmp_path / "run").tokenizer.vocab_size == 13


def test_refusals_end_the_script_with_one_line(hub, theirs, tmp_path):
    target = tmp_path / "run"
    for source in ("hf://org/none", "hf://bert-base-uncased", f"{MODEL}@none"):
        ended = scripts.run("convert.py", f"--from={source}", f"--to={target}")
        assert (ended.code, ended.out) == (2, "")
        assert_short_and_clear(ended.err, f"--from={source} ")
    assert not target.exists() and list(tmp_path.glob(".run*")) == []


def test_processes_read_the_environment(hub, theirs, tmp_path):
    """HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE, with nothing patched."""

    def run(target, **environment):
        command = [sys.executable, "convert.py", f"--from={MODEL}", f"--to={tmp_path / target}"]
        env = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)

    offline = run("a", HF_HUB_OFFLINE="1")
    assert offline.returncode == 2
    assert_short_and_clear(
        offline.stderr, f"--from={MODEL} is not in the cache, and HF_HUB_OFFLINE"
    )
    online = run("b")
    assert online.returncode == 0, online.stderr
    hub.log.clear()
    again = run("c", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert hub.log == []
    assert same_params((tmp_path / "b", 0), (tmp_path / "c", 0))


def test_training_starts_from_an_address_and_resumes(hub, theirs, config, tmp_path):
    """From the parameters of the import, which is made once; a moved branch changes nothing."""
    convert.convert(str(theirs), str(tmp_path / "local"))
    local = config(
        tmp_path / "local", str(tmp_path / "local"), str(tmp_path / "local" / "tokenizer.json")
    )
    train.train_and_evaluate(local, str(tmp_path / "a"))
    from_hub = config(tmp_path / "local")
    train.train_and_evaluate(from_hub, str(tmp_path / "b"))
    assert same_params((tmp_path / "a", 1), (tmp_path / "b", 1))
    commit = hub.repos["org/bert"].refs["main"]
    assert run_directory.read_config(tmp_path / "b")["init_from"] == f"{MODEL}@{commit}"

    files = dict(hub.repos["org/bert"].commits[commit])
    hub.repos["org/bert"].commit({**files, "config.json": files["config.json"] + b" "})
    forget()
    hub.log.clear()
    train.train_and_evaluate({**from_hub, "steps": 2}, str(tmp_path / "b"))
    train.train_and_evaluate({**local, "steps": 2}, str(tmp_path / "a"))
    assert same_params((tmp_path / "a", 2), (tmp_path / "b", 2))
    assert not any(line.endswith("model.safetensors") for line in hub.log)
    assert run_directory.read_config(tmp_path / "b")["init_from"] == f"{MODEL}@{commit}"
    with pytest.raises(ConfigError, match="init_from"):
        train.train_and_evaluate({**from_hub, "init_from": "hf://org/none"}, str(tmp_path / "b"))


def test_the_script_takes_shape_parameters_and_tokenizer_from_the_hub(hub, theirs, tmp_path):
    (tmp_path / "data").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "data" / f"{split}.tsv").write_text("yes\ta b\nno\tc d\n" * 4)
    ended = scripts.run(
        "train.py", f"--config=configs/classify_text.py:{MODEL}", f"--workdir={tmp_path / 'run'}",
        f"--config.init_from={MODEL}", f"--config.data.tokenizer={MODEL}",
        f"--config.data.path={tmp_path / 'data'}", f"--config.data.cache_dir={tmp_path / 'cache'}",
        "--config.data.length=8", "--config.data.batch_size=2", "--config.eval.batch_size=2",
        "--config.steps=1", "--config.optimizer.warmup_steps=0",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    ours = loaded_run.load(tmp_path / "run")
    assert (ours.model_config.width, ours.model_config.encoder_layers) == (18, 2)
    assert ours.tokenizer.vocab_size == 13
    assert len(generate.generate(tmp_path / "run", ["a b"])) == 1


def test_what_is_said_of_a_model_that_cannot_be_imported(hub, theirs):
    files = hub.repos["org/bert"].commits[hub.repos["org/bert"].refs["main"]]
    changed = json.loads(files["config.json"]) | {"position_embedding_type": "relative_key"}
    hub.add("org/other").commit({**files, "config.json": json.dumps(changed).encode()})
    address = pinned("x", "hf://org/other")
    with pytest.raises(ConfigError) as refused:
        find_checkpoint("hf://org/other")
    assert_short_and_clear(str(refused.value), f"{address}/config.json: position_embedding_type")
    for key in ("init_from", "task.teacher"):
        with pytest.raises(ConfigError, match=f"^{key}=hf://org/none is not on "):
            find_checkpoint("hf://org/none", key)


def test_adapters_keep_the_commit_of_their_base(hub, theirs, config, tmp_path):
    workdir = tmp_path / "run"
    changed = config(hub_run.open_hub_run("x", MODEL))
    changed["finetune"] |= dict(lora_rank=2)
    train.train_and_evaluate(changed, str(workdir))
    commit = hub.repos["org/bert"].refs["main"]
    assert run_directory.read_provenance(workdir)["base"]["run"] == f"{MODEL}@{commit}"
    before = generate.generate(workdir, ["a b"])
    hub.repos["org/bert"].commit({})
    forget()
    assert generate.generate(workdir, ["a b"]) == before


def test_data_with_a_tokenizer_of_the_hub(hub, theirs, tmp_path):
    def load(tokenizer):
        data = data_config(
            source="dates", tokenizer=tokenizer, length=16, batch_size=2,
            cache_dir=str(tmp_path / "cache"),
        )  # fmt: skip
        masking = Masking(rate=0.15, mean_span=3.0, whole_words=False, next_sentence=False)
        return pipeline.load(data, objective="seq2seq", masking=masking, seed=0)

    there, here = load(MODEL), load(str(theirs / "tokenizer.json"))
    assert there.tokenizer_digest == here.tokenizer_digest
    with pytest.raises(ConfigError, match=r"data\.tokenizer=hf://org/none is not on "):
        load("hf://org/none")
