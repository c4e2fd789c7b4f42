"""Adapters in the format of peft: out, in, and what peft itself makes of them."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import convert
import train
from checkpointing import loaded_run
from experiment.schema import ConfigError
from pretrained import model_files, peft_adapter, published
from pretrained.catalog import recognise
from tests import scripts
from tests.pretrained.batches import our_batch, parts_of, real
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_fine_tuning import fine_tuning
from tests.pretrained.test_parity import imported
from tests.pretrained.test_round_trip import words  # noqa: F401  a fixture
from tests.pretrained.transformers_models import answers, oracle
from tests.tiny import quick_jit
from training.finetune import as_tree, by_name, merge_lora
from training.model_for_task import by_name as outputs_by_name
from training.model_for_task import make_model, model_arguments

CONFIG, WEIGHTS = peft_adapter.CONFIG, peft_adapter.WEIGHTS
ALPHA, RANK = 5.0, 2
# Layouts: plain, fused with or without transposing, grouped heads, interleaved columns, two stacks.
NAMES = ("llama", "phi3", "gpt2", "gpt_neox", "falcon", "cohere", "bert_classifier", "t5", "bart")
ATTENTION = ("query", "key", "value", "out")


def random_adapters(params, seed=0, modules=ATTENTION):
    """Random adapters of the attention's kernels, as training makes them, by path."""
    rng, own = np.random.default_rng(seed), {}
    for path, kernel in by_name(params).items():
        parent, _, name = path.removesuffix("/kernel").rpartition("/")
        if not (path.endswith("/kernel") and parent.endswith("attention") and name in modules):
            continue
        inputs = 2 if name == "out" else 1
        layers, *sizes = kernel.shape
        stem = path.removesuffix("/kernel")
        own[f"{stem}/lora_a"] = rng.normal(size=(layers, *sizes[:inputs], RANK)) * 0.3
        own[f"{stem}/lora_b"] = rng.normal(size=(layers, RANK, *sizes[inputs:])) * 0.3
    assert own
    return {path: leaf.astype(np.float32) for path, leaf in own.items()}


def written(name, directory, modules=ATTENTION, full=()):
    """Adapters of a stored model in peft's format, and our merged parameters."""
    config, task, model, params = imported(FIXTURES / name)
    own = random_adapters(params, modules=modules)
    own |= {path: np.asarray(by_name(params)[path]) + 0.5 for path in full}
    merged = merge_lora(as_tree(own), params, ALPHA)
    found = published.read(FIXTURES / name)
    table = found.architecture.table(config, found.head, found.specials)
    named = {path: np.asarray(leaf) for path, leaf in by_name(merged).items()}
    kind = peft_adapter.task_type(
        task.objective_spec.head, has_source=task.objective_spec.has_source
    )
    directory.mkdir()
    peft_adapter.write(directory, table, own, named, ALPHA, kind)
    return task, model, merged


@pytest.mark.parametrize("name", NAMES)
def test_what_goes_out_comes_in(name, tmp_path):
    _, _, merged = written(name, tmp_path / "adapter")
    adapter = peft_adapter.read(tmp_path / "adapter")
    config = model_files.read_json(FIXTURES / name, model_files.CONFIG)
    architecture, _ = recognise(FIXTURES / name, config)
    tensors = peft_adapter.AdaptedTensors(
        model_files.Tensors(FIXTURES / name), adapter, architecture
    )
    found = published.read(FIXTURES / name, (), tensors)
    assert any(
        not np.array_equal(tensors.read(each, (slice(None),)), found.tensors._base.read(each, ()))
        for each in found.tensors._deltas
    )
    _, _, _, before = imported(FIXTURES / name)
    shapes = {path: leaf.shape for path, leaf in by_name(before).items()}
    readers, _ = found.fill(shapes, imported(FIXTURES / name)[0])
    changed = 0
    for path, expected in by_name(merged).items():
        index = tuple(slice(0, size) for size in expected.shape)
        ours = readers[path](index, np.float32)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-6, err_msg=path)
        changed += not np.array_equal(expected, by_name(before)[path])
        parts = tuple(slice(size // 2, size) for size in expected.shape)
        np.testing.assert_array_equal(readers[path](parts, np.float32), ours[parts])
    assert changed >= 3


def test_names_are_as_short_as_they_may_be(tmp_path):
    def targets(name, modules=ATTENTION):
        shutil.rmtree(tmp_path / "adapter", ignore_errors=True)
        written(name, tmp_path / "adapter", modules)
        return json.loads((tmp_path / "adapter" / CONFIG).read_text())["target_modules"]

    assert targets("llama", ("query", "value")) == ["q_proj", "v_proj"]
    assert targets("gpt2", ("query",)) == ["c_attn"]
    # The output of attention in BERT is called dense, like other layers.
    assert "bert.encoder.layer.0.attention.output.dense" in targets("bert_classifier", ("out",))


def trained(tmp_path, words, **finetune):  # noqa: F811
    """A run with adapters of a base that came from the hub."""
    base = tmp_path / "base"
    convert.convert(str(FIXTURES / "bert_masked_lm"), str(base), tokenizer=words)
    config = fine_tuning(base, tmp_path)
    config["optimizer"] |= dict(learning_rate=0.3)
    config["finetune"] |= dict(lora_rank=RANK, lora_alpha=ALPHA, **finetune)
    train.train_and_evaluate(config, str(tmp_path / "run"))
    return tmp_path / "run"


def test_a_run_goes_out_by_flag_and_comes_in_on_top_of_its_base(words, tmp_path):  # noqa: F811
    run = trained(tmp_path, words)
    ended = scripts.run("convert.py", f"--from={run}", f"--to={tmp_path / 'adapter'}", "--adapter")
    assert ended.code == 0, ended.err
    assert (
        f"adapters of 4 modules of a bert, for peft; their base is step 0 of {tmp_path / 'base'}"
        in (ended.out)
    )
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert names == {CONFIG, WEIGHTS}
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    assert config["task_type"] == "SEQ_CLS" and config["target_modules"] == ["query", "value"]
    assert config["modules_to_save"] == ["bert.pooler.dense", "classifier"]
    convert.convert(
        str(tmp_path / "adapter"), str(tmp_path / "in"), tokenizer=words,
        base=str(FIXTURES / "bert_masked_lm"),
    )  # fmt: skip
    before, after = loaded_run.load(run), loaded_run.load(tmp_path / "in")
    assert after.model_config.num_classes == 3 and after.labels == tuple(
        f"LABEL_{number}" for number in range(3)
    )
    ours, theirs = by_name(before.params), by_name(after.params)
    for path, value in theirs.items():
        np.testing.assert_allclose(value, ours[path], rtol=0, atol=2e-6, err_msg=path)


def test_flags_that_do_not_apply_are_refused(words, tmp_path):  # noqa: F811
    run, target = tmp_path / "run", tmp_path / "out"
    convert.convert(str(FIXTURES / "bert_masked_lm"), str(run), tokenizer=words)
    for options, says in (
        (dict(adapter=True), "has no adapters; train it with finetune.lora_rank"),
        (dict(base="x"), "--base is for imports, and this is a run"),
    ):
        with pytest.raises(ConfigError, match=says):
            convert.convert(str(run), str(target), **options)
    for options, says in (
        (dict(adapter=True), "--adapter is for exports"),
        (dict(base="x"), "--base=x is for adapters"),
    ):
        with pytest.raises(ConfigError, match=says):
            convert.convert(str(FIXTURES / "bert_masked_lm"), str(target), **options)
    assert not target.exists()


def refusal(directory, tmp_path, base="llama"):
    target = tmp_path / "refused"
    with pytest.raises(ConfigError) as refused:
        convert.convert(
            str(directory), str(target), tokenizer="none", base=base and str(FIXTURES / base)
        )
    assert not target.exists()
    (line,) = str(refused.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(peft_type="IA3"), "peft_type='IA3' is not supported; only LORA"),
        (dict(use_dora=True), "use_dora=True is not supported"),
        (dict(bias="all"), "bias='all' is not supported"),
        (dict(init_lora_weights="pissa"), "it changes the base"),
        (dict(layer_replication=[[0, 1]]), "layer_replication="),
        (dict(target_parameters=["x"]), "target_parameters="),
        (dict(new_option=3), "new_option=3 is not supported; it may change"),
        (dict(lora_alpha="8"), "lora_alpha='8' is not supported"),
        (dict(alpha_pattern={"(a+)+$": 3}), "is not the name of a module"),
        (dict(alpha_pattern=[1]), "it must be an object"),
        (dict(task_type="TOKEN_CLS"), "task_type='TOKEN_CLS' is not supported for"),
    ],
)
def test_adapters_of_other_kinds_are_refused(changes, says, tmp_path):
    written("llama", tmp_path / "adapter")
    path = tmp_path / "adapter" / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert says in refusal(tmp_path / "adapter", tmp_path)


def test_files_that_are_not_right_are_refused(tmp_path):
    written("llama", tmp_path / "adapter")
    path = tmp_path / "adapter" / WEIGHTS
    good, name = load_file(path), f"{peft_adapter.PREFIX}model.layers.0.self_attn.q_proj"

    def with_weights(change):
        weights = dict(good)
        change(weights)
        save_file(weights, path)
        return refusal(tmp_path / "adapter", tmp_path)

    a, b = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
    assert "has no lora_B that fits" in with_weights(lambda w: w.pop(b))
    assert "has no lora_B that fits" in with_weights(lambda w: w.update({b: w[b][:, :1]}))
    assert "but the base has shape" in with_weights(lambda w: w.update({b: w[b][:3]}))
    other = a.replace("q_proj", "x_proj")
    moved = {other: good[a], other.replace("lora_A", "lora_B"): good[b]}
    assert "the base has no such tensor" in with_weights(lambda w: w.update(moved))
    assert "is not known" in with_weights(lambda w: w.update({"x": w[a]}))
    full = f"{peft_adapter.PREFIX}new.weight"
    assert "new.weight" in with_weights(lambda w: w.update({full: w[a]}))
    assert "only floats are read" in with_weights(lambda w: w.update({a: w[a].astype(np.int8)}))
    assert "has no adapter" in with_weights(lambda w: [w.pop(key) for key in list(w)])
    path.write_bytes(b"{}")
    assert "not a valid safetensors file" in refusal(tmp_path / "adapter", tmp_path)
    path.rename(tmp_path / "adapter" / "adapter_model.bin")
    line = refusal(tmp_path / "adapter", tmp_path)
    assert "but adapter_model.bin" in line and "never opened" in line


def test_the_base_is_asked_for_or_found_by_its_name(tmp_path, monkeypatch):
    written("llama", tmp_path / "adapter")
    line = refusal(tmp_path / "adapter", tmp_path, base="")
    assert "is an adapter (LoRA) for another model" in line and "--base=DIR" in line
    path = tmp_path / "adapter" / CONFIG
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | dict(base_model_name_or_path="meta/Llama-9")))
    assert "its config names meta/Llama-9" in refusal(tmp_path / "adapter", tmp_path, base="")
    line = refusal(tmp_path / "adapter", tmp_path, base="missing")
    assert line.startswith("--base=") and "is no directory" in line
    path.write_text(json.dumps(config | dict(base_model_name_or_path=str(FIXTURES / "llama"))))
    convert.convert(str(tmp_path / "adapter"), str(tmp_path / "in"), tokenizer="none")
    assert loaded_run.load(tmp_path / "in").model_config.decoder_layers


# Against peft


def their_model(name):
    _, hf = oracle()
    config = json.loads((FIXTURES / name / "config.json").read_text())
    model = getattr(hf, config["architectures"][0]).from_pretrained(FIXTURES / name)
    return model.eval()


def our_answers(task, model, params, stored):
    arguments, named = model_arguments(task, our_batch(stored))
    found = quick_jit(model.apply)({"params": params}, *arguments, **named)
    return outputs_by_name(task, found)


def compare_logits(ours, model, stored, name):
    torch, _ = oracle()
    with torch.no_grad():
        inputs = parts_of(stored, "input/")
        theirs = answers(model.double(), inputs, {"logits": "logits"})["logits"].numpy()
    batch = our_batch(stored)
    ours, theirs = real(batch, "logits", np.asarray(ours)), real(batch, "logits", theirs)
    scale = max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * scale, err_msg=name)
    return theirs


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_peft_computes_the_same_with_our_adapters(name, tmp_path):
    peft = pytest.importorskip("peft")
    full = {"bert_classifier": ["classes/kernel"], "llama": ["backbone/decoder/final_norm/scale"]}
    task, model, merged = written(name, tmp_path / "adapter", full=full.get(name, ()))
    stored = load_file(FIXTURES / name / "expected.safetensors")
    base = their_model(name)
    theirs = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    ours = our_answers(task, model, merged, stored)["logits"]
    found = compare_logits(ours, theirs, stored, name)
    plain = real(our_batch(stored), "logits", stored["output/logits"])
    assert np.abs(found - plain).max() > 0.01, "the adapters change the answers"


MADE = {
    "llama": dict(target_modules=["q_proj", "down_proj"], modules_to_save=["lm_head"]),
    "gpt2": dict(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, use_rslora=True),
    "t5": dict(target_modules=["q", "v"]),
    "phi3": dict(
        target_modules="all-linear", rank_pattern={"qkv_proj": 3}, alpha_pattern={"qkv_proj": 7}
    ),
    "bert_classifier": dict(target_modules=["query", "value"], task_type="SEQ_CLS"),
}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MADE)
def test_adapters_of_peft_come_in(name, tmp_path):
    torch, _ = oracle()
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, lora_alpha=6, init_lora_weights=False, **MADE[name])
    theirs = peft.get_peft_model(their_model(name), config).eval()
    with torch.no_grad():
        for part, weight in theirs.named_parameters():
            if "modules_to_save" in part:
                weight.add_(0.3)
    theirs.save_pretrained(str(tmp_path / "adapter"))
    convert.convert(
        str(tmp_path / "adapter"), str(tmp_path / "in"), tokenizer="none", base=str(FIXTURES / name)
    )
    run = loaded_run.load(tmp_path / "in")
    stored = load_file(FIXTURES / name / "expected.safetensors")
    task = run.experiment.task
    model = make_model(run.model_config, task)
    params = jax.tree.map(jnp.asarray, run.params)
    ours = our_answers(task, model, params, stored)["logits"]
    compare_logits(ours, theirs, stored, name)
