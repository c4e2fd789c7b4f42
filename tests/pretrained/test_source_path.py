"""`--from` and `--tokenizer` that cannot be used: the error says what it is and what to do."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import convert
from experiment.schema import ConfigError
from pretrained import source_path
from pretrained.catalog import ARCHITECTURES, OTHERS, REFUSED
from tests import scripts
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.transformers_models import oracle

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED = "a directory with config.json, model.safetensors and tokenizer files is needed"


def refusal(source, target, **options):
    """The one line, after which nothing is left behind."""
    with pytest.raises(ConfigError) as refused:
        convert.convert(str(source), str(target), **options)
    assert not target.exists() and not list(target.parent.glob(f".{target.name}*"))
    (line,) = str(refused.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.pt", ("pickle", "never opened", "save_pretrained")),
        ("pytorch_model.bin", ("pickle", "never opened", "save_pretrained")),
        ("tf_model.h5", ("TensorFlow", "safetensors")),
        ("flax_model.msgpack", ("Flax", "safetensors")),
        ("weights.safetensors", ("weights alone", "config.json")),
        ("notes.txt", ("is a file",)),
    ],
)
def test_the_error_names_the_format_of_a_file(name, says, tmp_path):
    file = tmp_path / name
    file.write_bytes(b"\x80\x04GGUF")
    line = refusal(file, tmp_path / "run")
    assert line.startswith(f"--from={file} is a") and NEEDED in line
    assert all(each in line for each in says) and "JSON" not in line


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_path_to_a_model_file_is_refused_with_its_directory(name, changed, tmp_path):
    directory = changed("gpt2")
    assert f"--from={directory}" in refusal(directory / name, tmp_path / "run").partition(" is ")[2]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("HuggingFaceTB/SmolLM2-135M", "hf://HuggingFaceTB/SmolLM2-135M"),
        ("https://huggingface.co/google/mt5-small/tree/main", "hf://google/mt5-small"),
        ("https://huggingface.co/google/mt5-small/tree/v1.0/x", "hf://google/mt5-small@v1.0"),
        ("https://huggingface.co/gpt2", "hf://openai-community/gpt2"),
        ("https://hf.co/gpt2/tree/main", "hf://openai-community/gpt2"),
        ("gpt2", "hf://openai-community/gpt2"),
        ("bert-base-uncased", "hf://google-bert/bert-base-uncased"),
        ("t5-small", "hf://google-t5/t5-small"),
        ("roberta-base", "hf://FacebookAI/roberta-base"),
        ("distilbert-base-uncased", "hf://distilbert/distilbert-base-uncased"),
        ("my-model", "hf://OWNER/my-model"),
    ],
)  # fmt: skip
def test_a_name_of_the_hub_is_answered_with_its_address(source, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refusal(source, tmp_path / "run")
    ended = scripts.run("convert.py", f"--from={source}", f"--to={tmp_path / 'run'}")
    assert ended.code == 2 and line in ended.err
    assert line.endswith(f"write --from={name}")


HOW = "python convert.py --from={} --to=WORKDIR, then {}"
RUN_NEEDED = [
    ("train.py", "--config.init_from=", "init_from=WORKDIR"),
    ("train.py", "--config.task.teacher=", "task.teacher=WORKDIR"),
    ("train.py", "--config=configs/text_lm.py:", "give WORKDIR"),
    ("train.py", "--config=configs/classify_text.py:", "give WORKDIR"),
    ("generate.py", "--workdir=", "--workdir=WORKDIR"),
    ("evaluate.py", "--workdir=", "--workdir=WORKDIR"),
]


@pytest.mark.parametrize(("script", "flag", "then"), RUN_NEEDED)
def test_a_published_model_in_place_of_a_run_is_refused_with_the_conversion(
    script, flag, then, changed, tmp_path
):
    directory = changed("gpt2")
    own = [f"--workdir={tmp_path / 'run'}"] if script == "train.py" else []
    own += ["--prompt=a"] if script == "generate.py" else []
    for source in (directory, f"{directory}:5") if "init_from" in flag else (directory,):
        ended = scripts.run(script, *own, f"{flag}{source}")
        assert ended.code == 2 and len(ended.err.splitlines()) == 1
        assert "is a published model, not a run; import it first: " in ended.err
        assert HOW.format(directory, then) in ended.err
    ended = scripts.run(script, *own, f"{flag}Hugging-Face/Model-1.5B")
    assert ended.code == 2 and len(ended.err.splitlines()) == 1
    address = "hf://Hugging-Face/Model-1.5B"
    key = flag.removeprefix("--config.").rstrip("=")
    takes_address = key in ("init_from", "task.teacher")
    assert (f"write {key}={address}" if takes_address else HOW.format(address, then)) in ended.err


def test_a_run_is_not_taken_for_a_published_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for run in ("runs/missing", "runs", "runs:5", tmp_path / "x" / "y", "~/runs/x", "rns"):
        source_path.refuse_published("--workdir", run)  # others say what is wrong with them
    (tmp_path / "runs" / "config.json").write_text('{"model": {}, "model_type": "x"}')
    source_path.refuse_published("--workdir", "runs")
    (tmp_path / "runs" / "config.json").write_text("[]")
    source_path.refuse_published("--workdir", "runs")
    (tmp_path / "runs" / "model.safetensors").touch()
    with pytest.raises(ConfigError, match="published model, not a run"):
        source_path.refuse_published("--workdir", "runs")


def test_a_published_model_is_not_trained_over(changed):
    directory = changed("gpt2")
    before = {path: path.read_bytes() for path in directory.glob("*.json")}
    ended = scripts.run("train.py", f"--workdir={directory}")
    assert ended.code == 2 and "is a published model, not a run" in ended.err
    assert {path: path.read_bytes() for path in directory.glob("*.json")} == before


def test_a_misspelt_local_path_is_not_taken_for_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "minilm").mkdir(parents=True)
    line = refusal("runs/minilmm", tmp_path / "run")
    assert "is no directory. Did you mean 'minilm'?" in line and "hf://" not in line
    assert "has no checkpoints" in refusal("runs/minilm:500", tmp_path / "run")
    assert "hf://" not in refusal(tmp_path / "x" / "y", tmp_path / "run")
    assert "write $HOME" in refusal("~/models/minilm", tmp_path / "run")


def test_a_directory_without_a_config_lists_what_it_has(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    assert "has no config.json: it is empty" in refusal(directory, tmp_path / "run")
    (directory / "vocab.txt").touch()
    (directory / "weights.safetensors").touch()
    line = refusal(directory, tmp_path / "run")
    assert "has no config.json; it has vocab.txt, weights.safetensors; " in line and NEEDED in line
    (directory / "model.Q4_K_M.gguf").touch()
    assert "model.Q4_K_M.gguf is a file of llama.cpp" in refusal(directory, tmp_path / "run")
    for number in range(20):
        (directory / f"x{number:02}").touch()
    assert "x04 and 15 more" in refusal(directory, tmp_path / "run")
    (directory / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    assert "merge_and_unload" in refusal(directory, tmp_path / "run")


def test_a_cache_of_the_hub_leads_to_its_snapshot(tmp_path):
    cache, snapshot = tmp_path / "models--x--y", tmp_path / "models--x--y" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_bytes((FIXTURES / "gpt2" / name).read_bytes())
    assert f"did you mean --from={snapshot}?" in refusal(cache, tmp_path / "run")


def test_pooling_is_not_lost_with_the_first_layout_of_sentence_transformers(tmp_path):
    directory = tmp_path / "sentences"
    shutil.copytree(FIXTURES / "bert_base", directory / "0_Transformer")
    (directory / "modules.json").write_text("[]")
    line = refusal(directory, tmp_path / "run")
    assert "copy the files of 0_Transformer into it" in line and "did you mean" not in line


def test_a_config_without_a_model_type_says_which_to_add(changed, tmp_path):
    line = refusal(changed("roberta_classifier", model_type=None), tmp_path / "run")
    assert "has no model_type; its architectures name RobertaForSequenceClassification" in line
    assert 'add "model_type": "roberta"' in line
    line = refusal(changed("gpt2", model_type=None, architectures=None), tmp_path / "run")
    assert "has no model_type; if the model is one of these, add it" in line and "gpt2" in line
    line = refusal(changed("gpt2", model_type=None, architectures=["XForY"]), tmp_path / "run")
    assert "name XForY, which is not supported" in line and "None" not in line
    of_a_run = changed("gpt2", model_type=None, model={}, task={})
    assert "config of a run of train.py" in refusal(of_a_run, tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "guess"),
    [
        ("plbart", None), ("rembert", None), ("gpt_neo", None), ("mpt", None), ("ministral", None),
        ("xlm-roberta-xl", None), ("mobilebert", None), ("qwen2_vl", None), ("gemma4", None),
        ("lama", "llama"), ("GPT-2", "gpt2"), ("Llama", "llama"), ("robrta", "roberta"),
    ],
)  # fmt: skip
def test_only_misspelt_types_are_corrected(kind, guess, changed, tmp_path):
    line = refusal(changed("gpt2", model_type=kind), tmp_path / "run")
    assert f"model_type={kind!r} is not supported" in line
    assert f"Supported are: {', '.join(ARCHITECTURES)}" in line
    assert ("Did you mean" in line) == bool(guess)
    assert guess is None or f"Did you mean '{guess}'?" in line


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_no_architecture_of_transformers_is_taken_for_a_misspelling(changed, tmp_path):
    _, hf = oracle()
    others = hf.CONFIG_MAPPING.keys() - ARCHITECTURES.keys() - REFUSED.keys()
    assert len(others) > 300 and not OTHERS & ARCHITECTURES.keys()
    guessed = [
        kind
        for kind in others
        if "Did you mean" in refusal(changed("gpt2", model_type=kind), tmp_path / "run")
    ]
    assert not guessed


def test_errors_of_the_tokenizer_name_the_flag(changed, tmp_path):
    directory, target = changed("gpt2"), tmp_path / "run"
    line = refusal(directory, target, tokenizer="nowhere.json")
    assert "--tokenizer='nowhere.json' is no file" in line
    (tmp_path / "words.xyz").touch()
    line = refusal(directory, target, tokenizer=str(tmp_path / "words.xyz"))
    assert "words.xyz' has an unknown name" in line and "--tokenizer=" in line
    assert "data.tokenizer" not in line


def test_convert_py_takes_ignore_keys_and_refuses_in_one_line(changed, tmp_path):
    directory = changed("gpt2", foo_multiplier=2.0, foo_window=3)
    command = [sys.executable, "convert.py", f"--from={directory}", f"--to={tmp_path / 'run'}"]

    def run(*more):
        done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and not done.stdout
        return done.stderr.splitlines()

    (line,) = run()
    assert line.endswith("--ignore_keys=foo_multiplier,foo_window")
    (line,) = run("--ignore_keys=foo_window")
    assert line.endswith("--ignore_keys=foo_multiplier")
    # The keys are gone; what is missing then is the tokenizer.
    *_, line = run("--ignore_keys=foo_multiplier, foo_window")
    assert "has none of tokenizer.json" in line
