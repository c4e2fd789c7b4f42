"""Untrusted files: every fault is refused by name, and nothing is left behind."""

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import convert
from experiment.schema import ConfigError
from pretrained import published
from tests.pretrained.make_fixtures import FIXTURES

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"


@pytest.fixture
def copy(tmp_path):
    """A copy that the test may damage."""

    def make(name="vit_classifier"):
        shutil.copytree(FIXTURES / name, tmp_path / "model")
        return tmp_path / "model"

    return make


def refusal(directory):
    """The one line, after which there is nothing but the directory itself."""
    target = directory.parent / "run"
    with pytest.raises(ConfigError) as refused:
        convert.convert(str(directory), str(target))
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    (line,) = str(refused.value).splitlines()
    return line


def change_config(directory, **changes):
    path = directory / CONFIG
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "gone"}))


def change_weights(directory, change):
    weights = load_file(directory / WEIGHTS)
    change(weights)
    save_file(weights, directory / WEIGHTS)


def raw(header, data=b""):
    """A safetensors file by hand."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def tensor(start, stop, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def test_the_undamaged_copy_is_converted(copy):
    directory = copy()
    convert.convert(str(directory), str(directory.parent / "run"))
    assert (directory.parent / "run" / "model.json").is_file()


class Explosive:
    def __reduce__(self):
        return (Path("exploded").touch, ())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl"])
def test_pickles_are_never_opened(name, copy, monkeypatch):
    directory = copy()
    monkeypatch.chdir(directory)
    (directory / WEIGHTS).unlink()
    (directory / name).write_bytes(pickle.dumps(Explosive()))
    line = refusal(directory)
    assert name in line and "can run any program" in line and "safetensors" in line
    assert not Path("exploded").exists()


@pytest.mark.parametrize("name", ["tf_model.h5", "flax_model.msgpack"])
def test_formats_of_other_libraries_are_refused(name, copy):
    directory = copy()
    (directory / WEIGHTS).rename(directory / name)
    assert name in refusal(directory)


@pytest.mark.parametrize(
    "content",
    {
        "empty": b"",
        "only a length": struct.pack("<Q", 8),
        "a length beyond the end": struct.pack("<Q", 1 << 62) + b"{}",
        "a header that is no JSON": raw(b"{not json"),
        "a header that is a list": raw(b"[1, 2]"),
        "a header that is no UTF-8": raw(b"\xff\xfe\xfd"),
        "offsets beyond the end": raw({"a": tensor(0, 800, (200,))}, bytes(8)),
        "offsets that end before they begin": raw({"a": tensor(8, 0)}, bytes(8)),
        "negative offsets": raw({"a": tensor(-8, 0)}, bytes(8)),
        "overlapping offsets": raw({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12)),
        "the same bytes twice": raw({"a": tensor(0, 8), "b": tensor(0, 8)}, bytes(8)),
        "a hole": raw({"a": tensor(0, 8), "b": tensor(16, 24)}, bytes(24)),
        "more bytes than numbers": raw({"a": tensor(0, 12)}, bytes(12)),
        "a size that overflows": raw({"a": tensor(0, 8, (1 << 40, 1 << 40))}, bytes(8)),
        "an unknown type": raw({"a": tensor(0, 8, dtype="C64X")}, bytes(8)),
        "bytes behind the last tensor": raw({"a": tensor(0, 8)}, bytes(16)),
        "a zip file": b"PK\x03\x04" + bytes(40),
    }.items(),
    ids=lambda item: item[0] if isinstance(item, tuple) else "",
)
def test_malformed_files(content, copy):
    directory = copy()
    (directory / WEIGHTS).write_bytes(content[1])
    assert "is not a valid safetensors file" in refusal(directory)


def test_a_file_that_ends_anywhere_is_refused(copy):
    directory = copy()
    content = (directory / WEIGHTS).read_bytes()
    rng = np.random.default_rng(0)
    for size in [0, 7, 8, 9, *rng.integers(10, len(content), 12), len(content) - 1]:
        (directory / WEIGHTS).write_bytes(content[:size])
        assert "is not a valid safetensors file" in refusal(directory)


def test_any_changed_byte_of_the_header_is_refused_or_harmless(copy):
    """No byte makes the reader crash, hang, or raise anything but a refusal."""
    directory = copy()
    content = bytearray((directory / WEIGHTS).read_bytes())
    (size,) = struct.unpack("<Q", content[:8])
    rng = np.random.default_rng(1)
    for place in rng.integers(0, 8 + size, 60):
        spoilt = content.copy()
        spoilt[place] ^= 1 << rng.integers(8)
        (directory / WEIGHTS).write_bytes(spoilt)
        try:
            found = published.read(directory)
        except ConfigError:
            continue
        assert found.tensors.shapes


def test_tensors_that_do_not_fit_are_named(copy):
    directory = copy()
    name = "vit.encoder.layer.0.attention.attention.query.weight"
    good = (directory / WEIGHTS).read_bytes()

    def refusal_after(change):
        (directory / WEIGHTS).write_bytes(good)
        change_weights(directory, change)
        return refusal(directory)

    assert f"the weights lack {name}" in refusal_after(lambda w: w.pop(name))
    extra = refusal_after(lambda w: w.update(surprise=np.zeros(3, np.float32)))
    assert "the weights have surprise, which a vit of this config has no place for" in extra
    deeper = refusal_after(lambda w: w.update({name.replace("0", "77"): w[name]}))
    assert "layer.77" in deeper
    assert f"{name} has the shape [1, 5]" in refusal_after(
        lambda w: w.update({name: np.zeros((1, 5), np.float32)})
    )
    assert "quantised weights are not supported" in refusal_after(
        lambda w: w.update({name: w[name].astype(np.int8)})
    )
    assert "are both" in refusal_after(
        lambda w: w.update({"vit.layers.0.attention.q_proj.weight": w[name]})
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(value, copy):
    directory, name = copy(), "vit.layernorm.weight"

    def spoil(weights):
        weights[name][1] = value

    change_weights(directory, spoil)
    assert f"{name} has values that are NaN or infinite; get the" in refusal(directory)
    convert.convert(str(directory), str(directory.parent / "run"), allow_nonfinite=True)
    assert (directory.parent / "run" / "model.json").is_file()


def test_a_tied_tensor_must_be_the_same(copy):
    directory = copy("gpt2")

    def untie(weights):
        weights["lm_head.weight"] = weights["transformer.wte.weight"] + 1

    change_weights(directory, untie)
    with pytest.raises(ConfigError, match=r"lm_head\.weight is not transformer\.wte\.weight"):
        fill(directory)


def fill(directory):
    """Everything but the tokenizer, which these models lack."""
    from tests.pretrained.test_parity import imported

    return imported(directory)


def shard(directory, where=None, also=()):
    """The weights in two files with an index."""
    weights = load_file(directory / WEIGHTS)
    (directory / WEIGHTS).unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, each in parts.items():
        save_file({n: weights[n] for n in (*each, *also)}, directory / file)
    index = {name: file for file, each in parts.items() for name in each} | (where or {})
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))
    return names


def test_sharded_weights_are_read(copy):
    directory = copy()
    shard(directory)
    assert published.read(directory).tensors.shapes
    convert.convert(str(directory), str(directory.parent / "run"))


@pytest.mark.parametrize("path", ["../secret.safetensors", "/etc/passwd.safetensors", "a/../b"])
def test_an_index_may_not_lead_out(path, copy):
    directory = copy()
    shutil.copy(directory / WEIGHTS, directory / "secret.safetensors")
    shard(directory, {"classifier.bias": path})
    line = refusal(directory)
    assert path in line and ("leads out of the directory" in line or "safetensors" in line)


def test_a_link_may_not_lead_out(copy, tmp_path_factory):
    directory = copy()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.move(directory / WEIGHTS, elsewhere / WEIGHTS)
    (directory / WEIGHTS).symlink_to(elsewhere / WEIGHTS)
    assert "leads out of the directory" in refusal(directory)


def test_the_hubs_cache_links_to_its_blobs(tmp_path):
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in (WEIGHTS, CONFIG):
        shutil.copy(FIXTURES / "vit_classifier" / name, blobs / f"{name}-hash")
        (snapshot / name).symlink_to(Path("../../blobs") / f"{name}-hash")
    assert published.read(snapshot).labels == ("no", "perhaps", "yes")


def test_an_index_must_be_right(copy):
    directory = copy()
    names = shard(directory)
    good = (directory / INDEX).read_text()

    def with_index(content):
        (directory / INDEX).write_text(content)
        return refusal(directory)

    where = json.loads(good)["weight_map"]
    assert "has no weight_map" in with_index("{}")
    assert "cannot be read as JSON" in with_index("{")
    assert "is not a JSON object" in with_index("[]")
    more = {"weight_map": {**where, "ghost": "a.safetensors"}}
    assert "lacks ghost" in with_index(json.dumps(more))
    fewer = {"weight_map": {name: file for name, file in where.items() if name != names[0]}}
    assert f"{names[0]} is in a file, but not in" in with_index(json.dumps(fewer))
    pickled = {"weight_map": {**where, names[0]: "pytorch_model.bin"}}
    assert "can run any program" in with_index(json.dumps(pickled))


def test_a_tensor_may_not_be_in_two_files(copy):
    directory = copy()
    shard(directory, also=("classifier.bias",))
    assert "classifier.bias is in two files" in refusal(directory)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("bert_base", dict(model_type="brt"), "is not supported. Did you mean 'bert'?"),
        ("bert_base", dict(model_type=["bert"]), "is not supported"),
        ("bert_base", dict(model_type="deberta"), "disentangled attention"),
        ("bert_base", dict(model_type="albert"), "for model_type=albert these are: Albert"),
        ("bert_base", dict(architectures=["BertForMultipleChoice"]), "BertForMultipleChoice"),
        ("bert_base", dict(architectures=["BertForQuestionAnswering"]), "lack qa_outputs.bias"),
        ("bert_base", dict(architectures=["BertForTokenClassification"]), "lack classifier.bias"),
        ("bert_base", dict(position_embedding_type="relative_key"), "position_embedding_type="),
        ("bert_base", dict(hidden_act="mish"), "hidden_act='mish' is not supported"),
        ("bert_base", dict(is_decoder=True), "is_decoder=True is not supported"),
        ("bert_base", dict(hidden_size="gone"), "has no hidden_size"),
        ("bert_base", dict(hidden_size="12"), "hidden_size='12' must be a positive number"),
        ("bert_base", dict(num_attention_heads=5), "num_attention_heads=5"),
        ("bert_base", dict(num_hidden_layers=10**9), "1000000000 layers, but"),
        ("bert_base", dict(vocab_size=10**9), "vocab_size=1000000000 must be at"),
        ("bert_base", dict(quantization_config={"bits": 4}), "quantization_config="),
        ("bert_base", dict(auto_map={"AutoModel": "x.Y"}), "is never run"),
        ("bert_classifier", dict(problem_type="regression"), "a regression has one label"),
        ("bert_classifier", dict(id2label={"0": "x"}), "classifier.bias has the shape [3]"),
        ("bert_classifier", dict(num_labels=10**12), "num_labels=1000000000000 is not supported"),
        ("bert_classifier", dict(id2label={"0": "x", "7": "y"}), "numbered from 0 on"),
        ("roberta_masked_lm", dict(hidden_act="relu"), "hidden_act='relu' is not supported"),
        ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        ("gpt2", dict(add_cross_attention=True), "add_cross_attention=True"),
        ("llama", dict(attention_bias=True), "the weights lack model.layers.0.self_attn.k_proj"),
        ("llama", dict(mlp_bias=True), "mlp_bias=True"),
        ("llama", dict(hidden_act="gelu"), "hidden_act='gelu'"),
        ("llama", dict(rope_parameters=dict(rope_type="dynamic")), "rope_type='dynamic'"),
        ("llama", dict(rope_parameters=dict(rope_type="yarn", factor=2.0)), "it lacks orig"),
        ("llama_yarn", dict(rope_parameters=dict(
            rope_type="yarn", factor=2.0, original_max_position_embeddings=16, truncate="no",
        )), "truncate='no'"),
        ("llama", dict(model_type="qwen2_moe"), "the gate of its shared expert"),
        ("qwen3_moe", dict(mlp_only_layers=[1]), "mlp_only_layers=[1] is not supported"),
        ("mixtral", dict(num_local_experts=9), "the weights lack"),
        ("llama", dict(model_type="gpt_oss"), "for model_type=gpt_oss these are: GptOss"),
        ("llama", dict(model_type="phi"), "the bias of its output layer"),
        ("llama", dict(model_type="gptj"), "neighbouring columns of a part of each head"),
        ("vit_base", dict(model_type="clip"), "two towers"),
        ("mistral", dict(sliding_window=-1), "sliding_window=-1 is not supported"),
        ("mistral", dict(sliding_window=True), "sliding_window=True is not supported"),
        ("qwen2", dict(layer_types=["full_attention"]), "it must list the kinds of 2 layers"),
        ("qwen2", dict(layer_types=["chunked_attention"] * 2), "'chunked_attention' is not supp"),
        ("qwen3", dict(num_hidden_layers=10**9, layer_types="gone"), "1000000000 layers, but"),
        ("qwen2", dict(layer_types=[["x"]] * 2), "['x'] is not supported"),
        ("qwen2", dict(use_sliding_window=False), "there is no sliding_window"),
        ("qwen3", dict(attention_bias=True), "the weights lack"),
        ("gemma", dict(hidden_act="relu"), "hidden_act='relu' is not supported"),
        ("gemma2", dict(attn_logit_softcapping=-1.0), "it must be a number above 0"),
        ("gemma2", dict(use_bidirectional_attention=True), "use_bidirectional_attention=True"),
        ("gemma3", dict(attn_logit_softcapping=9.0), "transformers does not apply it"),
        ("smollm3", dict(no_rope_layers=[1]), "it must list 0 or 1 for 3 layers"),
        ("phi3", dict(original_max_position_embeddings=0), "rope_type=longrope needs it"),
        ("gpt_neox", dict(attention_bias=False), "attention_bias=False is not supported"),
        ("falcon", dict(alibi=True), "alibi=True is not supported"),
        ("falcon", dict(num_ln_in_parallel_attn=3), "num_ln_in_parallel_attn=3"),
        ("stablelm", dict(qk_layernorm=True), "qk_layernorm=True is not supported"),
        ("opt", dict(word_embed_proj_dim=7), "word_embed_proj_dim=7 is not supported"),
        ("opt", dict(do_layer_norm_before=False), "do_layer_norm_before=False"),
        ("llama", dict(rope_parameters=dict(rope_type="llama3", factor=2.0)), "it lacks low_freq"),
        ("llama", dict(rope_parameters=dict(rope_type="linear", factor=2.0, beta=3)), "beta"),
        ("llama", dict(rope_parameters=[1]), "rope_scaling=[1]"),
        ("t5", dict(feed_forward_proj="gated-tanh"), "feed_forward_proj='gated-tanh'"),
        ("t5", dict(dense_act_fn="gelu"), "dense_act_fn='gelu' is not supported; only 'relu'"),
        ("t5", dict(is_gated_act=True), "is_gated_act=True is not supported"),
        ("t5", dict(architectures=["T5EncoderModel"]), "the weights have decoder.block.0"),
        ("vit_base", dict(model_type="deit"), "for model_type=deit these are: DeiT"),
        ("vit_base", dict(qkv_bias=False), "the weights have encoder.layer.0.attention"),
        ("vit_base", dict(image_size=[12, 24]), "image_size=[12, 24] is not supported; images and"),
        ("vit_base", dict(image_size=10**6), "image_size=1000000"),
        ("vit_base", dict(pooler_act="relu"), "pooler_act='relu'"),
        ("marian", dict(decoder_attention_heads=7), "decoder_attention_heads=7"),
        ("marian", dict(share_encoder_decoder_embeddings=False), "share_encoder_decoder"),
        ("marian", dict(decoder_vocab_size=5), "decoder_vocab_size=5"),
        ("bart", dict(normalize_before=True), "normalize_before=True"),
        ("bart", dict(pad_token_id="<pad>"), "pad_token_id='<pad>'"),
        ("bart", dict(num_attention_heads=1), "num_attention_heads=1 and encoder_attention_heads"),
        ("roberta_masked_lm", dict(pad_token_id=23), "pad_token_id=23 is not supported"),
    ],
)  # fmt: skip
def test_unsupported_settings_are_refused_with_the_reason(name, changes, reason, copy):
    directory = copy(name)
    change_config(directory, **changes)
    with pytest.raises(ConfigError) as refused:
        fill(directory)
    assert reason in str(refused.value)


STRANGE = [None, -1, 0, 1, 10**30, 1e308, True, "x", "", [], [7], {}, {"0": "x"}, [[]], "../x"]


@pytest.mark.parametrize(
    "name",
    ["bert_classifier", "llama3", "t5", "vit_base", "bart", "qwen2", "gemma3", "falcon", "phi3"],
)
def test_any_config_value_is_accepted_or_refused(name, copy):
    """No value of any key makes the reader raise anything but a refusal."""
    directory = copy(name)
    good = json.loads((directory / CONFIG).read_text())
    outcomes = {True: 0, False: 0}
    for key in good:
        for value in STRANGE:
            (directory / CONFIG).write_text(json.dumps(good | {key: value}))
            try:
                described(directory)
            except ConfigError as error:
                assert len(str(error)) < 1500
                outcomes[False] += 1
            else:
                outcomes[True] += 1
    assert min(outcomes.values()) > 20


def described(directory):
    """The directory's config as ours, without reading its weights."""
    from configs import default
    from experiment.sections import from_mapping

    found = published.read(directory)
    config = default.get_config().to_dict()
    config["model"] |= found.model
    config["task"] |= found.task
    config["data"] |= convert._data(found)
    return from_mapping(config)


def test_keys_of_transformers_4_mean_the_same(copy):
    directory = copy("llama3")
    new, *_ = fill(directory)
    scaling = json.loads((directory / CONFIG).read_text())["rope_parameters"]
    theta = scaling.pop("rope_theta")
    change_config(directory, rope_parameters="gone", rope_scaling=scaling, rope_theta=theta)
    old, *_ = fill(directory)
    assert old == new and new.rope_scaling == "llama3"


def test_files_of_the_first_berts_are_read(copy):
    """LayerNorm's gamma and beta, positions as numbers, and both heads under the name of one."""
    directory = copy("bert_pretraining")
    *_, expected = fill(directory)

    def older(weights):
        for name in list(weights):
            new = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            weights[new.replace("LayerNorm.bias", "LayerNorm.beta")] = weights.pop(name)
        weights["bert.embeddings.position_ids"] = np.arange(16)[None]
        table = weights["bert.embeddings.word_embeddings.weight"]
        weights["cls.predictions.decoder.weight"] = table.copy()

    change_weights(directory, older)
    change_config(directory, architectures=["BertForMaskedLM"])
    *_, params = fill(directory)
    same = [np.array_equal(a, b) for a, b in zip(*map(leaves, (params, expected)), strict=True)]
    assert all(same) and len(same) > 20


def test_weights_of_other_heads_are_left_out(copy):
    directory = copy("bert_pretraining")

    def with_copies(weights):
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].copy()

    change_weights(directory, with_copies)
    change_config(directory, architectures=["BertModel"])
    *_, params = fill(directory)
    assert set(params) == {"backbone", "pool"}


def leaves(tree):
    import jax

    return jax.tree.leaves(tree)


def test_convert_py_refuses_in_one_line(copy):
    directory = copy()
    change_config(directory, model_type="mamba")
    command = [sys.executable, "convert.py", f"--from={directory}", f"--to={directory}-run"]
    root = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and "model_type='mamba'" in done.stderr


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_tables_of_positions_that_are_not_sinusoids(kind, copy):
    directory = copy(kind)
    config = json.loads((directory / CONFIG).read_text())
    length, width = config["max_position_embeddings"], config["d_model"]
    angles = np.outer(np.arange(length), 10_000.0 ** (-np.arange(0, width, 2) / width))
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    name = "model.decoder.embed_positions.weight"

    def write(values):
        change_weights(directory, lambda weights: weights.update({name: values}))

    write(table.astype(np.float16))
    published.read(directory)
    convert.convert(str(directory), str(directory.parent / "run"), tokenizer="none")
    shutil.rmtree(directory.parent / "run")
    write(table[:, ::-1].astype(np.float32).copy())
    with pytest.raises(ConfigError, match=f"{name} is not the table of sinusoids"):
        convert.convert(str(directory), str(directory.parent / "run"), tokenizer="none")
    assert not (directory.parent / "run").exists()


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_pipe_in_place_of_a_file(name, copy):
    directory = copy()
    (directory / name).unlink()
    os.mkfifo(directory / name)
    assert f"{name} is a named pipe, not a file" in refusal(directory)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[" * 5000, "nested"),
        ('{"a": ' * 300 + "1" + "}" * 300, "nested"),
        ('{"a": 1e400}', "large"),
        ('{"a": 1' + "0" * 400 + "}", "large"),
    ],
)
def test_json_that_is_deep_or_has_huge_numbers(content, reason, copy):
    directory = copy()
    (directory / CONFIG).write_text(content)
    line = refusal(directory)
    assert CONFIG in line and reason in line


def test_a_file_name_with_a_zero_byte(copy):
    directory = copy()
    (directory / WEIGHTS).unlink()
    names = {"x": "a\0b.safetensors"}
    (directory / INDEX).write_text(json.dumps({"weight_map": names}))
    assert "is not a file name" in refusal(directory)


def test_images_without_channels(copy):
    directory = copy()
    change_config(directory, num_channels=0)
    assert "num_channels" in refusal(directory)
