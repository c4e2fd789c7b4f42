"""GGUF files come in as the models that they were made from."""

import importlib.util
import json

import gguf
import jax
import numpy as np
import pytest

import convert
from checkpointing import loaded_run
from experiment.schema import ConfigError
from model.heads import LanguageModel
from pretrained import gguf_model
from tests import scripts
from tests.gguf_files import gguf_of, write_gguf
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_parity import TOLERANCE
from tests.pretrained.transformers_models import VOCABULARY, oracle, randomize
from tests.tiny import quick_jit

KINDS = gguf.GGMLQuantizationType


def named(params):
    return {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(params)}


@pytest.mark.parametrize("name", ["llama", "llama_linear"])
def test_a_float_file_is_the_model_that_it_was_made_from(name, tmp_path):
    """Bit for bit; test_parity.py compares that model with transformers."""
    path = gguf_of(FIXTURES / name, tmp_path / "model.gguf")
    convert.convert(str(path), str(tmp_path / "run"))
    convert.convert(str(FIXTURES / name), str(tmp_path / "hub"), tokenizer="none")
    found, expected = loaded_run.load(tmp_path / "run"), loaded_run.load(tmp_path / "hub")
    assert found.model_config == expected.model_config
    ours, theirs = named(found.params), named(expected.params)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_array_equal(ours[key], value, err_msg=key)
    assert found.tokenizer.eos_id == 2 and found.tokenizer.bos_id == 1


def test_llama_3s_scaling_is_found_in_its_factors(tmp_path):
    rope = dict(
        rope_type="llama3", rope_theta=500_000.0, factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=8192,
    )  # fmt: skip
    source = tmp_path / "hub"
    source.mkdir()
    sizes = dict(vocab_size=23, num_hidden_layers=1, hidden_size=32, intermediate_size=8)
    config = json.loads((FIXTURES / "llama" / "config.json").read_text())
    config |= sizes | dict(num_attention_heads=1, num_key_value_heads=1, head_dim=32)
    config |= dict(rope_parameters=rope)
    (source / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (23, 32), "model.norm": (32,), "lm_head": (23, 32)}
    block = "model.layers.0."
    shapes |= {f"{block}self_attn.{x}_proj": (32, 32) for x in "qkvo"}
    shapes |= {f"{block}mlp.{x}_proj": (8, 32) for x in ("gate", "up")}
    shapes |= {f"{block}mlp.down_proj": (32, 8)}
    shapes |= {f"{block}{x}_layernorm": (32,) for x in ("input", "post_attention")}
    from safetensors.numpy import save_file

    weights = {f"{k}.weight": rng.normal(size=v).astype(np.float32) for k, v in shapes.items()}
    save_file(weights, source / "model.safetensors")
    frequencies = 500_000.0 ** (-np.arange(0, 32, 2) / 32)
    lengths = 2 * np.pi / frequencies
    factors = np.where(lengths > 8192, 8.0, 1.0)  # beyond one turn, and up to four
    for number, length in enumerate(lengths):
        if 8192 / 4 <= length <= 8192:
            smooth = (8192 / length - 1) / (4 - 1)
            factors[number] = 1 / ((1 - smooth) / 8 + smooth)
    assert len(set(factors)) > 2, "one length is in between"
    changes = {"llama.rope.scaling.original_context_length": None}
    tensors = {"rope_freqs.weight": factors.astype(np.float32)}
    path = gguf_of(source, tmp_path / "model.gguf", tensors=tensors, **changes)
    convert.convert(str(path), str(tmp_path / "run"))
    convert.convert(str(source), str(tmp_path / "same"), tokenizer="none")
    found, expected = (loaded_run.load(tmp_path / run).model_config for run in ("run", "same"))
    assert found == expected and found.rope_scaling == "llama3"
    tensors = {"rope_freqs.weight": (factors * 1.01).astype(np.float32)}
    line = refusal(gguf_of(source, tmp_path / "x.gguf", tensors=tensors, **changes), tmp_path)
    assert "rope_freqs.weight are not those of Llama 3.1" in line


def refusal(path, tmp_path, **options):
    """The one line, after which there is no run."""
    target = tmp_path / "refused"
    with pytest.raises(ConfigError) as refused:
        convert.convert(str(path), str(target), **options)
    assert not target.exists() and not list(tmp_path.glob(".refused*"))
    (line,) = str(refused.value).splitlines()
    assert str(path) in line
    return line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"general.type": "adapter"}, "general.type='adapter' is no model"),
        ({"split.count": 3}, "one of 3 files of a model; merge them"),
        ({"llama.expert_count": 8}, "llama.expert_count=8: mixtures of experts"),
        ({"llama.attention.value_length": 3}, "it must be the size of a head of keys"),
        ({"llama.rope.dimension_count": 2}, "llama.rope.dimension_count=2: it must be"),
        ({"llama.rope.scaling.type": "longrope"}, "supported are: none, linear, yarn"),
        ({"llama.attention.sliding_window": 64}, "give --ignore_keys=llama.attention.sliding_w"),
        ({"llama.block_count": None}, "has no llama.block_count"),
        ({"llama.attention.head_count": [4, 2]}, "layers of different sizes"),
        ({"llama.attention.head_count_kv": 3}, "heads"),
        ({"llama.embedding_length": "x"}, "embedding_length='x': it must be a positive number"),
        ({"llama.attention.key_length": 0}, "key_length=0: it must be a positive number"),
        ({"llama.block_count": 2**31}, "2147483648 layers, but"),
        ({"llama.rope.freq_base": "x"}, "rope.freq_base='x': it must be a number above 0"),
        ({"tokenizer.ggml.eot_token_id": [1, 2]}, "eot_token_id or"),
        ({"llama.feed_forward_length": 999}, "mlp.down_proj.weight has the shape"),
        ({"tokenizer.ggml.pre": "default"}, "pre='default' is not read, only gpt-2, smollm"),
        ({"tokenizer.ggml.model": "t5"}, "model='t5' is not read, only gpt2 and llama"),
    ],
)
def test_what_is_not_read_is_refused_by_name(changes, says, tmp_path):
    assert says in refusal(gguf_of(FIXTURES / "llama", tmp_path / "x.gguf", **changes), tmp_path)


@pytest.mark.parametrize("kind", ["gemma2", "phi3", "mamba"])
def test_other_architectures_are_refused_by_name(kind, tmp_path):
    path = write_gguf(tmp_path / "x.gguf", kind, {}, {"token_embd.weight": np.ones((4, 8))})
    line = refusal(path, tmp_path)
    assert f"general.architecture={kind!r} is not read from GGUF, only llama, qwen2, qwen3" in line
    assert "take the safetensors" in line


def test_tensors_without_a_place_are_refused(tmp_path):
    path = gguf_of(
        FIXTURES / "llama", tmp_path / "x.gguf", tensors={"blk.0.ffn_up.bias": np.ones(4)}
    )
    assert "mlp.up_proj.bias, which a llama of this config" in refusal(path, tmp_path)
    path = gguf_of(FIXTURES / "llama", tmp_path / "y.gguf", tensors={"blk.0.new": np.ones(4)})
    assert "blk.0.new" in refusal(path, tmp_path)


def test_flags_apply_to_files_too(tmp_path):
    changes = {"llama.attention.sliding_window": 64, "tokenizer.ggml.pre": "other"}
    path = gguf_of(FIXTURES / "llama", tmp_path / "x.gguf", **changes)
    keys = ["llama.attention.sliding_window"]
    assert "pre='other' is not read" in refusal(path, tmp_path, ignore_keys=keys)
    convert.convert(str(path), str(tmp_path / "run"), "bfloat16", "none", keys)
    model = loaded_run.load(tmp_path / "run")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(model.params)} == {"bfloat16"}
    path = gguf_of(FIXTURES / "llama", tmp_path / "y.gguf")
    line = refusal(path, tmp_path, tokenizer="none", ignore_keys=["num_layers"])
    assert f"--ignore_keys names num_layers, which {path} does not have" in line


def test_the_missing_extra_and_a_missing_file_say_what_to_do(tmp_path, monkeypatch):
    path = gguf_of(FIXTURES / "llama", tmp_path / "x.gguf")
    (tmp_path / "model").mkdir()
    ended = scripts.run("convert.py", f"--from={tmp_path / 'y.gguf'}", f"--to={tmp_path / 'run'}")
    assert ended.code == 2 and "y.gguf is no file. Did you mean 'x.gguf'?" in ended.err
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "gguf" else real(name)
    )
    assert "pip install -e '.[gguf]'" in refusal(path, tmp_path)


def test_every_end_is_an_end(tmp_path):
    changes = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2}
    path = gguf_of(FIXTURES / "llama", tmp_path / "x.gguf", **changes)
    convert.convert(str(path), str(tmp_path / "run"))
    tokenizer = loaded_run.load(tmp_path / "run").tokenizer
    assert (tokenizer.eos_id, tokenizer.more_eos_ids) == (2, (5,))


def test_a_file_may_be_exported_for_transformers(tmp_path):
    path = gguf_of(FIXTURES / "llama", tmp_path / "model.gguf")
    convert.convert(str(path), str(tmp_path / "run"))
    convert.convert(str(tmp_path / "run"), str(tmp_path / "out"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "llama" and config["rms_norm_eps"] == 1e-5
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_readable_architectures_are_in_the_catalog():
    from pretrained.catalog import ARCHITECTURES

    for name, each in gguf_model.READABLE.items():
        assert each.class_name in ARCHITECTURES[name].heads


# Against transformers

LARGER = dict(
    vocab_size=VOCABULARY, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=96, num_hidden_layers=2, max_position_embeddings=64, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-5,
)  # fmt: skip
PREFIX = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
YARN = dict(rope_type="yarn", rope_theta=900.0, factor=4.0, original_max_position_embeddings=16)
MADE = {
    "llama": ("llama", dict(head_dim=24, tie_word_embeddings=True)),
    "llama_biases": ("llama", dict(attention_bias=True)),
    "qwen2": ("qwen2", dict(rope_parameters=YARN)),
    "qwen3": ("qwen3", dict(head_dim=24)),
}


def made(name, directory, seed=0):
    """A random model of transformers, saved."""
    torch, hf = oracle()
    kind, more = MADE[name]
    more = dict(rope_parameters=dict(rope_type="default", rope_theta=700.0)) | more
    torch.manual_seed(seed)
    config = getattr(hf, f"{PREFIX[kind]}Config")(**LARGER, **more)
    model = randomize(getattr(hf, f"{PREFIX[kind]}ForCausalLM")(config), seed)
    model.save_pretrained(directory)
    return model


def logits_of(run, tokens):
    model = loaded_run.load(run)
    apply = quick_jit(LanguageModel(model.model_config).apply)
    return np.asarray(apply({"params": model.params}, tokens.astype(np.int32)))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("kind", [None, KINDS.F16, KINDS.BF16])
def test_logits_of_floats_are_those_of_transformers(name, kind, tmp_path):
    torch, _ = oracle()
    model = made(name, tmp_path / "hub")
    path = gguf_of(tmp_path / "hub", tmp_path / "model.gguf", quantise=kind)
    convert.convert(str(path), str(tmp_path / "run"))
    if kind is not None:
        rounded = torch.float16 if kind == KINDS.F16 else torch.bfloat16
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data = weight.data.to(rounded).float()
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, (2, 20))
    with torch.no_grad():
        theirs = model.double()(torch.tensor(tokens)).logits.numpy()
    ours = logits_of(tmp_path / "run", tokens)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * max(1, np.abs(theirs).max()))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [KINDS.Q8_0, KINDS.Q4_0, KINDS.Q4_1])
def test_logits_of_quantised_files_are_those_of_transformers_reader(kind, tmp_path):
    """transformers maps names, heads and rows with code of its own."""
    torch, hf = oracle()
    pytest.importorskip("accelerate")  # which its reader needs
    made("llama", tmp_path / "hub", seed=1)
    path = gguf_of(tmp_path / "hub", tmp_path / "model.gguf", quantise=kind)
    convert.convert(str(path), str(tmp_path / "run"))
    model = hf.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf")
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, (2, 20))
    with torch.no_grad():
        theirs = model.double()(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(
        logits_of(tmp_path / "run", tokens), theirs, rtol=0,
        atol=TOLERANCE * max(1, np.abs(theirs).max()),
    )  # fmt: skip
